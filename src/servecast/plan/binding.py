"""Why a load does not meet a goal, and what keeps the configuration from more."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from servecast.errors import InputError
from servecast.plan.sample import Share
from servecast.scenario.goals import at_least

if TYPE_CHECKING:
    from servecast.metrics import Value
    from servecast.plan.sample import Sample
    from servecast.scenario.goals import Goal

#: Rates so close are the same: targets and measured values pass through decimal text.
_EQUAL = 1 + 1e-12
#: It is waiting that fails a target if so much of the longest latencies is waiting.
_WAITED = 0.5
#: Engines that stand idle for the rest are not short of steps.
_BUSY = 0.7


class Why(Enum):
    """How a load fails."""

    UNSTABLE = auto()
    OUT_OF_MEMORY = auto()
    REJECTED = auto()
    NO_ANSWER = auto()
    MISSED = auto()


class Refusal(NamedTuple):
    """Why a load does not meet a goal; ``statistic`` is the one that misses its target, where one does."""

    why: Why
    text: str
    statistic: str = ""


class Binding(NamedTuple):
    """What keeps a configuration from more: its name, and its share of the waiting or, of steps, of the busy time."""

    name: str
    share: float


def known(row: dict[str, Value], name: str) -> float | None:
    """A statistic of a run, if it has one."""
    value = row[name]
    return None if value is None else float(value)


def refusal(row: dict[str, Value], goal: Goal) -> Refusal | None:
    """The first reason for which a run does not meet the goal; None if it does. A target is met at equality.

    Raises InputError for a target of which the run says nothing.
    """
    if row["regime"] == "overloaded":
        return Refusal(Why.UNSTABLE, "unstable: the queue grows as long as requests arrive")
    if row["oom_failed"] and not goal.allow_out_of_memory:
        return Refusal(Why.OUT_OF_MEMORY, f"out of memory: {row['oom_failed']} requests lost")
    if row["rejected"]:
        return Refusal(Why.REJECTED, f"{row['rejected']} requests rejected: longer than max_model_len")
    for name, target in goal.slo.items():
        value = known(row, name)
        if value is None:
            if at_least(name):
                raise InputError(f"scenario.goal.slo.{name}", "counts requests that meet slo:, and no slo is given")
            if not row["completed"]:
                return Refusal(Why.NO_ANSWER, "no request completed")
            continue  # no answer of two tokens has a gap to judge
        if (value < target / _EQUAL) if at_least(name) else (value > target * _EQUAL):
            return Refusal(Why.MISSED, f"{name} {value:.4g}, target {target:g}", name)
    return None


def binding(sample: Sample, refused: Refusal | None) -> Binding:
    """What binds in a run that just fails, from why it fails and from what requests waited for.

    A target on the pace of tokens, and a latency that is mostly not waiting, fail by the steps themselves, and the
    roofline says whether bandwidth or compute. Requests lost to memory fail by memory. Else it is what most of the
    waiting was for: slots (the batch limit), KV blocks, or the budget of a step; but if the steps meanwhile lie above
    the ridge, more rows would take longer in proportion, and compute binds. Waiting for nothing but the steps of other
    prompts, in engines that stand idle for a third of the time, is queueing: it comes of bursts.
    """
    bandwidth = float(sample.row["bandwidth_bound_fraction"] or 0.0)
    steps = Binding("bandwidth", bandwidth) if bandwidth >= 0.5 else Binding("compute", 1 - bandwidth)
    if refused is not None and refused.why is Why.OUT_OF_MEMORY:
        return Binding("KV memory", 1.0)
    # What the statistic is of: ttft, tpot, itl, e2e, queue.
    if refused is not None and not _waits(sample, refused.statistic.partition("_")[0]):
        return steps
    name = max(sample.kept_out, key=lambda name: sample.kept_out[name].waited, default="token budget")
    waited, compute = sample.kept_out.get(name, Share(0.0, 0.0))
    busy = float(sample.row["busy_fraction"] or 0.0)
    if name == "token budget" and busy < _BUSY:
        return Binding("queueing", 1 - busy)
    if not waited:
        return steps
    return Binding("compute", waited * compute) if compute >= 0.5 else Binding(name, waited)


def _waits(sample: Sample, latency: str) -> bool:
    """Whether it is waiting that fails: a queue that grows, a target on it, or a latency that is mostly waiting."""
    if latency in {"tpot", "itl"}:
        return False
    if latency in {"ttft", "e2e", "slo"}:
        return sample.queued.get("e2e" if latency == "e2e" else "ttft", 0.0) >= _WAITED
    return True
