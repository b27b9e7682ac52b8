"""A run as tables: its row of ``summary.csv`` and its tenants' of ``tenants.csv``, both of `servecast.metrics.table`;
its requests, decisions and crashes as data frames, for which pandas is imported when one is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.metrics.latencies import latencies
from servecast.metrics.log import mean_shapes
from servecast.metrics.measured import Measured, Window, within
from servecast.metrics.table import METRICS, Value
from servecast.requests import RejectReason, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from servecast.engine import Run
    from servecast.metrics.latencies import Slo, Tenants
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
    output_over_input: float | None = None,
    **facts: Value,
) -> dict[str, Value]:
    """The row of ``summary.csv`` for one run.

    tenants, usd_per_hour, output_over_input, facts : as in `Measured`

    Raises InputError where the window leaves nothing of the run.
    """
    bounds = (window or Window()).bounds(run)
    requests = within(run.requests, bounds)
    measured = Measured(run, requests, bounds, slo, tenants, hardware, usd_per_hour, output_over_input, facts)
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


def requests_frame(run: Run) -> pd.DataFrame:
    """One row a request, in order of id; what is not known is missing.

    finish_reason : in vLLM's words: ``stop`` for an answer in full, ``length`` for one that was cut at max_model_len,
        ``abort`` for one that was lost as memory ran out
    reject_reason : a `RejectReason`, in lower case
    """
    import pandas as pd

    times = {f"{name}_s": values for name, values in latencies(run.requests, run.respond).items()}
    names = pd.Index([status.name.lower() for status in Status])
    columns: dict[str, Any] = run.requests | times
    columns["status"] = pd.Categorical.from_codes(run.requests["status"].astype(np.int8), categories=names)
    columns["finish_reason"] = _finish_reasons(run)
    refused = [reason.name.lower() for reason in RejectReason if reason]
    reasons = run.requests["reject_reason"] - 1  # -1 is what is missing, as pandas has it
    columns["reject_reason"] = pd.Categorical.from_codes(reasons, categories=pd.Index(refused))
    columns["slot"] = pd.array(run.requests["slot"], dtype="Int32")
    sizes = ("prompt_tokens", "output_tokens", "generated_tokens")
    ends = ("status", "finish_reason", "reject_reason")
    moments = ("scheduled_s", "first_token_s", "finish_s", "queue_s")
    order = ("id", "arrival_s", "sent_s", "client_queue_s", *sizes, *ends, *moments, *times)
    return pd.DataFrame({name: columns[name] for name in (*order, "preemptions", "recomputed_tokens", "slot")})


def _finish_reasons(run: Run) -> Any:
    import pandas as pd

    requests = run.requests
    codes = np.full(len(requests["id"]), -1)  # as pandas has it, of what is missing
    codes[requests["status"] == Status.COMPLETED] = 0
    codes[(codes == 0) & (requests["generated_tokens"] < requests["output_tokens"])] = 1
    codes[requests["status"] == Status.OOM] = 2
    return pd.Categorical.from_codes(codes, categories=pd.Index(["stop", "length", "abort"]))


def decisions_frame(run: Run, hardware: Hardware | None = None) -> pd.DataFrame:
    """One row a scheduling decision, in the one schema of steps.

    With ``hardware`` also ``step_flops`` and ``step_bytes`` of its mean iteration, per GPU: where it stands on the
    roofline.
    """
    import pandas as pd

    columns: dict[str, Any] = dict(run.decisions)
    if hardware is not None:
        columns |= dict(zip(("step_flops", "step_bytes"), hardware.work(mean_shapes(run.decisions)), strict=True))
    return pd.DataFrame(columns)


def oom_frame(run: Run) -> pd.DataFrame:
    """One row an out-of-memory event: when, how many requests it took, bytes wanted and bytes there."""
    import pandas as pd

    counts = ("requests", "wanted_bytes", "available_bytes")
    columns = {"time_s": np.array([event.time_s for event in run.oom], dtype=np.float64)}
    # With their types even where there are none, so that joined with other runs' they stay what they are.
    columns |= {name: np.array([round(getattr(event, name)) for event in run.oom], dtype=np.int64) for name in counts}
    return pd.DataFrame(columns)
