"""How much of a workload is sent: one number that grows with the traffic, for every kind of workload.

Requests a second for arrivals and traces, conversations a second for conversations, users for a closed loop. It is the
rate that the workload declares, the same for every seed; of tenants, the sum of theirs, with all of them there. Only a
recording has the rate that it has.

A load is reached by scaling rates (a trace: its clock), never by drawing anew: the same seed sends the same requests in
the same order, only faster, so that loads are compared with common random numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.scenario.traffic import traffic
from servecast.workload.arrivals import arrive
from servecast.workload.shaping import split

if TYPE_CHECKING:
    from servecast.scenario.schema import Workload

#: So much faster a workload without a rate of its own is a burst.
_BURST = 1e6


@dataclass(frozen=True)
class Load:
    """A workload whose size is a number.

    unit : what the number counts: requests/s, conversations/s or users
    own : the number that the workload has as it is written
    """

    workload: Workload
    unit: str
    own: float

    @property
    def whole(self) -> bool:
        """Whether it counts in whole numbers."""
        return self.unit == "users"

    @property
    def made(self) -> bool:
        """Whether its requests are made, as many as are wanted, and not recorded."""
        workload = self.workload
        return workload.requests is not None and workload.trace is None and workload.servegen is None

    @property
    def drawn(self) -> bool:
        """Whether another seed gives another workload: all but a trace as it was recorded."""
        trace: Any = self.workload.trace
        return trace is None or trace.rate_rps is not None or bool(trace.jitter_s)

    def at(self, load: float, seed: int, times: int = 1, least: int = 1) -> Workload:
        """The workload with this load and seed; where requests are made, ``times`` as many and at least ``least``."""
        workload = self.workload
        changes: dict[str, Any] = {"seed": seed}
        if self.made:
            assert workload.requests is not None
            changes["requests"] = max(workload.requests * times, least)
        if self.whole:
            changes["arrivals"] = _changed(workload.arrivals, users=int(load))
        elif workload.arrivals is not None and self.unit == "requests/s" and hasattr(workload.arrivals, "rate_rps"):
            changes["arrivals"] = _changed(workload.arrivals, rate_rps=load)
        else:
            changes |= _faster(workload, load / self.own if math.isfinite(load) else _BURST)
        return workload.model_copy(update=changes)


def load_of(workload: Workload, block_size: int) -> Load | None:
    """The load of a workload; None for one that has no rate, a burst.

    Raises InputError for a workload that cannot be read.
    """
    arrivals = workload.arrivals
    if workload.conversations is not None:
        started = getattr(workload.conversations.arrivals, "rate_rps", None)
        return None if started is None else Load(workload, "conversations/s", float(started))
    if arrivals is not None and hasattr(arrivals, "users"):
        return Load(workload, "users", float(arrivals.users))
    declared = _declared(workload)
    if declared is not None:
        return Load(workload, "requests/s", declared)
    client = traffic(workload.model_copy(update={"max_in_flight": None, "network": None}), block_size).client
    first = last = client.next_send()
    sent = 0
    while (due := client.next_send()) < math.inf:
        client.send()
        sent, last = sent + 1, due
    return Load(workload, "requests/s", (sent - 1) / (last - first)) if sent > 1 and last > first else None


def _declared(workload: Workload) -> float | None:
    """The mean rate that arrivals or tenants say [requests/s]; None where it must be seen from the requests."""
    if workload.arrivals is not None and workload.requests is not None:
        return _mean(workload.arrivals, workload.requests)
    if workload.tenants is None or workload.requests is None:
        return None
    tenants = workload.tenants
    rates = [getattr(each.arrivals, "rate_rps", getattr(each.arrivals, "mean_rps", math.inf)) for each in tenants]
    weights = rates if all(each.share is None for each in tenants) else [each.share or math.inf for each in tenants]
    if not all(map(math.isfinite, weights)):
        return None  # said where their requests are made
    counts = split(workload.requests, weights)
    means = [_mean(each.arrivals, count) for each, count in zip(tenants, counts, strict=True)]
    known = [mean for mean in means if mean is not None]
    return math.fsum(known) if len(known) == len(means) else None


def _mean(arrivals: Any, requests: int) -> float | None:
    """The mean rate of arrivals over so many requests; None where they come all at once.

    A rate that changes with time is averaged over the time that the requests take, with even gaps, so that it is of the
    rate and not of a draw.
    """
    rate = getattr(arrivals, "rate_rps", None)
    if rate is not None:
        return float(rate) if math.isfinite(rate) else None
    if not hasattr(arrivals, "burstiness"):
        return None
    times_s = arrive(_changed(arrivals, burstiness=math.inf).build(), requests, np.random.default_rng(0))
    return (len(times_s) - 1) / float(times_s[-1] - times_s[0]) if len(times_s) > 1 else None


def _faster(workload: Workload, factor: float) -> dict[str, Any]:
    """The parts of a workload that say how fast it is, so many times faster."""
    if workload.trace is not None:
        trace: Any = workload.trace
        return {"trace": _changed(trace, rate_scale=trace.rate_scale * factor)}
    if workload.servegen is not None:
        return {"servegen": _changed(workload.servegen, scale=workload.servegen.scale * factor)}
    if workload.tenants is not None:
        tenants = tuple(_changed(each, arrivals=_scaled(each.arrivals, factor)) for each in workload.tenants)
        return {"tenants": tenants}
    if workload.conversations is not None:
        talk = workload.conversations
        return {"conversations": _changed(talk, arrivals=_scaled(talk.arrivals, factor))}
    return {"arrivals": _scaled(workload.arrivals, factor)}


def _scaled(arrivals: Any, factor: float) -> Any:
    """Arrivals with every rate times ``factor``, and the times at which rates change that much earlier."""
    changes: dict[str, Any] = {}
    for key in type(arrivals).model_fields:
        value = getattr(arrivals, key)
        if key.endswith("_rps"):
            changes[key] = tuple(each * factor for each in value) if isinstance(value, tuple) else value * factor
        elif key in {"durations_s", "period_s", "peak_s"}:
            changes[key] = tuple(each / factor for each in value) if isinstance(value, tuple) else value / factor
    return _changed(arrivals, **changes)


def _changed(section: Any, **values: Any) -> Any:
    return section.model_copy(update=values)
