"""What a run was worth to each tenant: the rows of ``tenants.csv``, each tenant judged by targets of its own.

Definitions are those of the summary (`servecast.metrics.summary`). Left out: what a run does not keep by request, which
are the gaps between single tokens (ITL) and the tokens given inside a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.metrics.summary import Slo, Value, Window, counted_by_status, good_of, latency_statistics, within
from servecast.metrics.waste import ratio
from servecast.requests import Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from servecast.metrics.log import Columns, Run


@dataclass(frozen=True, slots=True, eq=False)
class Tenants:
    """Whose each request of a workload is, and what a tenant has targets of its own for.

    names : in the order of the table; "" is nobody's
    owner : (requests,) place in ``names`` by the request's id
    slo : targets by name, of tenants that have their own
    """

    names: tuple[str, ...]
    owner: NDArray[np.int64]
    slo: Mapping[str, Slo]

    @classmethod
    def of(cls, column: Sequence[str | None], slo: Mapping[str, Slo], first: Sequence[str] = ()) -> Tenants:
        """The tenants of a workload's column of names; those in ``first`` come first, whether they send or not."""
        names = {name: place for place, name in enumerate(dict.fromkeys((*first, *(name or "" for name in column))))}
        return cls(tuple(names), np.array([names[name or ""] for name in column], np.int64), slo)

    def parts(self, requests: Columns, slo: Slo | None) -> Iterator[tuple[str, Columns, Slo | None]]:
        """Each tenant with its part of ``requests``, and its targets: its own, else ``slo``."""
        owner = self.owner[requests["id"]]
        order = np.argsort(owner, kind="stable")
        ends = np.searchsorted(owner[order], np.arange(len(self.names)), side="right")
        for name, rows in zip(self.names, np.split(order, ends[:-1]), strict=True):
            yield name, {key: column[rows] for key, column in requests.items()}, self.slo.get(name, slo)


def by_tenant(
    run: Run, tenants: Tenants, *, slo: Slo | None = None, window: Window | None = None
) -> Iterator[dict[str, Value]]:
    """The rows of ``tenants.csv`` for one run; units stand in the names, what has no value is None.

    slo : targets of tenants without their own

    Raises InputError where the window leaves nothing of the run.
    """
    bounds = (window or Window()).bounds(run)
    start, end = bounds or (0.0, run.end_s)
    for name, requests, targets in tenants.parts(within(run.requests, bounds), slo):
        completed = {key: column[requests["status"] == Status.COMPLETED] for key, column in requests.items()}
        good, of = good_of(requests, targets, run.respond)
        row: dict[str, Any] = {"tenant": name, "arrived": len(requests["id"]), **counted_by_status(requests)}
        row |= {
            "request_throughput_rps": ratio(len(completed["id"]), end - start),
            "goodput_rps": None if good is None else ratio(good, end - start),
            "slo_attainment": None if good is None else ratio(good, of),
        }
        row |= {f"slo_{key}": getattr(targets, key, None) for key in ("ttft_s", "tpot_s", "e2e_s")}
        yield row | latency_statistics(completed, run.respond)
