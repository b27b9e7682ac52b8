"""Latency targets, and how many requests met them: of all, or each tenant by its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from servecast.metrics.latencies import latencies
from servecast.metrics.log import TIME_TOLERANCE_S
from servecast.requests import Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from servecast.metrics.log import Columns


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency targets [s]; a request is good when it completed and met (<=) all that are set.

    single_token : what an answer without a TPOT does to a TPOT target: ``pass`` (as vLLM counts it), ``fail``, or
        ``exclude`` it from good requests and from the denominator of the attainment. Answers given at the batch's end
        have no TPOT either, and are treated alike.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    single_token: Literal["pass", "fail", "exclude"] = "pass"

    def __bool__(self) -> bool:
        return any(target is not None for target in (self.ttft_s, self.tpot_s, self.e2e_s))

    def good(self, requests: Columns, respond: str) -> tuple[int, int]:
        """Good requests, and the number they are a share of."""
        times = latencies(requests, respond)
        completed = requests["status"] == Status.COMPLETED
        good, of = completed, len(completed)
        for name in ("ttft", "e2e", "tpot"):
            target = getattr(self, f"{name}_s")
            if target is not None:
                unpaced = np.isnan(times["tpot"]) if name == "tpot" and self.single_token == "pass" else False
                good = good & ((times[name] <= target + TIME_TOLERANCE_S) | unpaced)
        if self.tpot_s is not None and self.single_token == "exclude":
            of -= int((np.isnan(times["tpot"]) & completed).sum())
        return int(good.sum()), of


@dataclass(frozen=True, slots=True, eq=False)
class Tenants:
    """Which tenant each request of a workload belongs to, and the targets of tenants that have their own.

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


def good_requests(
    requests: Columns, slo: Slo | None, tenants: Tenants | None, respond: str
) -> tuple[int, int] | tuple[None, int]:
    """Good requests, and the number they are a share of; None where nobody has a target.

    With ``tenants`` each is judged by its own targets, by ``slo`` where it has none; requests of tenants that have
    neither are neither good nor counted.
    """
    parts = [("", requests, slo)] if tenants is None else tenants.parts(requests, slo)
    found = [targets.good(part, respond) for _, part, targets in parts if targets]
    if not found:
        return None, len(requests["id"])
    return sum(good for good, _ in found), sum(of for _, of in found)
