"""Errors of a simulation against the executed run, beside the noise of executing twice, and a verdict for each.

Three named parts, from the step to the whole: *held-out shapes* (the cost model on single steps), *same batches* (the
cost model along the executed log: no feedback), *closed loop* (the whole simulation, in which an early step changes who
is in the next batch). An error is (simulated - executed) / executed, executed being the mean of the executions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from servecast.cost.model import STEP_KINDS, step_kind
from servecast.metrics import CLIENT_LATENCIES, latencies, mean_shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servecast.cost.model import CostModel
    from servecast.engine import Run

METRICS = (
    "makespan_s",
    "output_throughput_tps",
    *(f"{name}_{what}_s" for name in CLIENT_LATENCIES for what in ("mean", "p50", "p90", "p99")),
    "ttft_under_1s_mean_s",
)
WASTE = ("padding_waste", "slot_waste")

NOISE = "within noise"
GATE = "within the gate"
TWICE_NOISE = "within twice the noise"
OUTSIDE = "outside"
UNGATED = "no gate"
UNCLEAR = "inconclusive"


class Compared(NamedTuple):
    """One metric: simulated, executed (each time), error and noise as shares; ``gate`` None where none was set.

    error_at_speed : of simulations at the speed that the device had during each run; None where that is not known
    """

    metric: str
    simulated: float
    executed: tuple[float, ...]
    error: float
    noise: float | None
    gate: float | None
    verdict: str
    error_at_speed: float | None = None


def metrics(summary: dict[str, Any], run: Run, fast: np.ndarray[Any, Any]) -> dict[str, float | None]:
    """The metrics of a run; ``fast`` marks the requests whose executed TTFT was under a second."""
    found = {name: summary.get(name) for name in (*METRICS, *WASTE)}
    ttft = latencies(run.requests, run.respond)["ttft"]
    some = fast & ~np.isnan(ttft)
    found["ttft_under_1s_mean_s"] = float(ttft[some].mean()) if some.any() else None
    return found


def compared(
    name: str,
    simulated: float | None,
    executed: Sequence[float | None],
    gate: float | None,
    conclusive: bool = True,
    knowing: Sequence[float | None] = (),
) -> Compared | None:
    """The comparison of one metric; None where either side has no value, or where nothing was executed but zeros.

    knowing : the simulation of each execution at the device's speed during it
    """
    known = [value for value in executed if value is not None]
    if simulated is None or not known or not (mean := float(np.mean(known))):
        return None
    error = simulated / mean - 1
    noise = (max(known) - min(known)) / mean if len(known) > 1 else None
    paced = [k / e - 1 for k, e in zip(knowing, executed, strict=False) if k is not None and e]
    at_speed, said = float(np.mean(paced)) if paced else None, verdict(error, noise, gate, conclusive)
    return Compared(name, simulated, tuple(known), error, noise, gate, said, at_speed)


def verdict(error: float, noise: float | None, gate: float | None, conclusive: bool = True) -> str:
    """Within noise, within the gate, within twice the noise where that is the larger, or outside."""
    if not conclusive:
        return UNCLEAR
    if noise is not None and abs(error) <= noise:
        return NOISE
    if gate is None:
        return UNGATED
    if abs(error) <= gate:
        return GATE
    return TWICE_NOISE if noise is not None and abs(error) <= 2 * noise else OUTSIDE


def same_batches(cost: CostModel, run: Run) -> list[dict[str, Any]]:
    """The cost model along an executed log: error of the total, and of single steps, over all and by kind."""
    decisions = run.decisions
    shape = mean_shapes(decisions)
    seconds = decisions["seconds"]
    predicted = np.asarray(cost.seconds(shape)) * decisions["iterations"]
    kinds = np.asarray(step_kind(shape))
    found: list[dict[str, Any]] = []
    for name in ("all", *STEP_KINDS):
        chosen = np.ones(len(seconds), dtype=bool) if name == "all" else kinds == name
        if chosen.any():
            single, busy_s = np.abs(predicted[chosen] / seconds[chosen] - 1), float(seconds[chosen].sum())
            row = {"regime": name, "count": int(chosen.sum()), "busy_s": busy_s}
            row |= {"total": float(predicted[chosen].sum() / busy_s - 1), "median": float(np.median(single))}
            found.append(row | {"p95": float(np.quantile(single, 0.95))})
    return found


def per_request(simulated: Run, executed: Run) -> dict[str, dict[str, float]]:
    """Median and p90 of the relative error of each request's own latencies."""
    ours, theirs = latencies(simulated.requests, simulated.respond), latencies(executed.requests, executed.respond)
    found = {}
    for name in CLIENT_LATENCIES:
        both = ~np.isnan(ours[name]) & ~np.isnan(theirs[name]) & (theirs[name] > 0)
        if both.any():
            error = np.abs(ours[name][both] / theirs[name][both] - 1)
            found[name] = {"median": float(np.median(error)), "p90": float(np.quantile(error, 0.9))}
    return found


def within(low: float | None, high: float | None, executed: Sequence[float | None]) -> bool | None:
    """Whether the mean of the executions that have a value lies in a band; None without any, or without a band."""
    known = [value for value in executed if value is not None]
    if low is None or high is None or not known:
        return None
    return bool(min(low, high) <= np.mean(known) <= max(low, high))
