"""What a run was worth: its row of ``summary.csv``, and of each tenant its row of ``tenants.csv``.

The metrics are those of `servecast.metrics.table`; what has no value is None, never 0 or NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.metrics.measured import Measured, Window, within
from servecast.metrics.table import METRICS, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.engine import Run
    from servecast.metrics.slo import Slo, Tenants
    from servecast.metrics.waste import Hardware


def summarise(
    run: Run,
    *,
    policy: str,
    seed: int,
    slo: Slo | None = None,
    tenants: Tenants | None = None,
    window: Window | None = None,
    hardware: Hardware | None = None,
    usd_per_hour: float | None = None,
    **facts: Value,
) -> dict[str, Value]:
    """The row of ``summary.csv`` for one run.

    tenants : each one's requests are judged by its own targets, by ``slo`` where it has none; where neither is given,
        its requests are neither good nor counted in the attainment
    usd_per_hour : of all GPUs of the system; idle hours are paid too
    facts : what the run itself does not know: ``requested_rps``, ``replicas``, ``gpus``, ``calibrated``, ``cancelled``

    Raises
    ------
    InputError : the window leaves nothing of the run
    """
    bounds = (window or Window()).bounds(run)
    counted = within(run.requests, bounds)
    measured = Measured(run, counted, bounds, slo, tenants, hardware, usd_per_hour, facts)
    return {"policy": policy, "seed": seed, **{metric.name: metric.value(measured) for metric in METRICS.values()}}


def by_tenant(
    run: Run, tenants: Tenants, *, slo: Slo | None = None, window: Window | None = None
) -> Iterator[dict[str, Value]]:
    """The rows of ``tenants.csv`` for one run: the metrics that are told by tenant, and the targets of each.

    Left out: what a run does not keep by request, which are the gaps between single tokens (ITL) and the tokens given
    inside a window.

    slo : targets of tenants without their own

    Raises InputError where the window leaves nothing of the run.
    """
    bounds = (window or Window()).bounds(run)
    for name, requests, targets in tenants.parts(within(run.requests, bounds), slo):
        measured = Measured(run, requests, bounds, targets)
        row: dict[str, Value] = {"tenant": name}
        for metric in METRICS.values():
            if metric.per_tenant:
                row[metric.name] = metric.value(measured)
            if metric.name == "slo_attainment":
                row |= {f"slo_{key}": getattr(targets, key, None) for key in ("ttft_s", "tpot_s", "e2e_s")}
        yield row
