"""One simulated load: what it gave, as plain numbers kept instead of the run itself, and whether it meets a goal.

Also why it does not, and what keeps the configuration from more (`binding`).

*Steady* is the throughput between 20 and 80 % of the completions: while a burst is served the engine is full there, and
neither its filling nor its drain counts. With n requests of which r are in service at once, the drain begins when n - r
have been admitted, so that n >= 5 r keeps it outside. Completions are counted after the first moment and up to the
second, so that batches which end together are counted whole.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from servecast.cost.model import step_kind
from servecast.errors import InputError
from servecast.metrics.log import mean_shapes
from servecast.plan.answer import Tokens
from servecast.requests import Status
from servecast.run.extrapolation import Extrapolation, farthest
from servecast.run.transient import Transient
from servecast.scenario.goals import at_least

if TYPE_CHECKING:
    from servecast.engine import Run
    from servecast.metrics import Hardware, Value
    from servecast.policies import Policy
    from servecast.scenario.goals import Goal

#: Completions between these shares are counted.
_FROM, _TO = 0.2, 0.8
#: Latencies at or above this percentile are the tail in which it is seen what they are made of.
_TAIL = 95
#: Rates so close are the same: targets and measured values pass through decimal text.
_EQUAL = 1 + 1e-12
#: It is waiting that fails a target if so much of the longest latencies is waiting.
_WAITED = 0.5
#: Engines that stand idle for the rest are not short of steps.
_BUSY = 0.7


class Share(NamedTuple):
    """Share of all waiting (in request-seconds) for one thing, and how much of it passed in steps above the ridge."""

    waited: float
    compute: float


@dataclass(frozen=True)
class Sample:
    """One load, served.

    row : of the summary, for all replicas together
    steady_rps : requests a second between 20 and 80 % of the completions; None without a completion
    whole_rps : completed requests over the whole time that they took; None without one
    tokens : of a mean request that completed
    most_rows : rows in service at once, at most, of one replica
    busy : share of the busy seconds in each kind of step
    kept_out : what kept requests waiting: slots, KV blocks, the token budget
    queued : share of waiting in the tail of TTFT and of E2E
    extrapolation : how far its steps lay outside the measured ones; None inside, and for a datasheet
    transient : a head that decides one of its statistics
    """

    row: dict[str, Value]
    steady_rps: float | None
    whole_rps: float | None
    tokens: Tokens | None
    most_rows: int
    busy: dict[str, float]
    kept_out: dict[str, Share]
    queued: dict[str, float]
    extrapolation: Extrapolation | None = None
    transient: Transient | None = None

    @property
    def good_share(self) -> float | None:
        """Good requests of all that arrived in the window; None where none are judged."""
        rate, arrived = self.row["goodput_rps"], self.row["arrived"]
        if rate is None or not arrived:
            return None
        window_s = float(self.row["window_end_s"] or 0.0) - float(self.row["window_start_s"] or 0.0)
        return float(rate) * window_s / float(arrived)

    def data(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Sample:
        """The sample of such data."""
        tokens = None if data["tokens"] is None else Tokens(*data["tokens"])
        kept_out = {name: Share(*share) for name, share in data["kept_out"].items()}
        extrapolation = Extrapolation.of(data["extrapolation"])
        head = None if data["transient"] is None else Transient(*data["transient"])
        told = {"kept_out": kept_out, "extrapolation": extrapolation, "transient": head}
        return cls(**{**data, "tokens": tokens, **told})


def sample(run: Run, row: dict[str, Value], hardware: Hardware, policy: Policy) -> Sample:
    """The numbers of a run of one replica, or of several as one."""
    done = run.requests["status"] == Status.COMPLETED
    tokens = None
    if done.any():
        means = (float(run.requests[name][done].mean()) for name in ("prompt_tokens", "generated_tokens"))
        tokens = Tokens(*means)
    decisions = run.decisions
    rows = np.maximum(decisions["slots"], decisions["prefill_rows"] + decisions["decode_rows"])
    return Sample(
        {name: value.item() if isinstance(value, np.generic) else value for name, value in row.items()},
        *throughput(run),
        tokens,
        int(rows.max(initial=0)),
        _busy(run),
        _kept_out(run, hardware, policy),
        _queued(run),
        farthest(run, hardware.cost),
    )


def throughput(run: Run) -> tuple[float | None, float | None]:
    """Requests a second between 20 and 80 % of the completions, and over the whole time."""
    requests = run.requests
    finish = np.sort(requests["finish_s"][requests["status"] == Status.COMPLETED])
    if not len(finish):
        return None, None
    took_s = float(finish[-1] - requests["sent_s"].min())
    whole = len(finish) / took_s if took_s > 0 else None
    begin, end = (finish[math.ceil(share * len(finish)) - 1] for share in (_FROM, _TO))
    if end <= begin:
        return whole, whole
    first, last = np.searchsorted(finish, (begin, end), side="right")
    return float(last - first) / float(end - begin), whole


def _busy(run: Run) -> dict[str, float]:
    kinds = np.asarray(step_kind(mean_shapes(run.decisions)))
    seconds = run.decisions["seconds"]
    total = float(seconds.sum())
    return {str(kind): float(seconds[kinds == kind].sum()) / total for kind in np.unique(kinds)} if total else {}


def _kept_out(run: Run, hardware: Hardware, policy: Policy) -> dict[str, Share]:
    """While requests wait something keeps them out: slots (max_num_seqs, batch_size), KV blocks, or the budget."""
    decisions = run.decisions
    waited = decisions["seconds"] * decisions["waiting"]
    total = float(waited.sum())
    if not total:
        return {}
    flops, moved = hardware.work(mean_shapes(decisions))
    compute = flops >= hardware.ridge * moved
    full = np.maximum(decisions["slots"], decisions["prefill_rows"] + decisions["decode_rows"]) >= policy.slots
    memory = ~full & ((decisions["kv_blocks"] >= 0.9 * run.kv_blocks_total) | (decisions["preempted"] > 0))
    found = {}
    for name, rows in (("batch limit", full), ("KV memory", memory), ("token budget", ~full & ~memory)):
        part = float(waited[rows].sum())
        found[name] = Share(
            min(part / total, 1.0), min(float(waited[rows & compute].sum()) / part, 1.0) if part else 0.0
        )
    return found


def _queued(run: Run) -> dict[str, float]:
    """Of the longest latencies, the share that is waiting."""
    done = run.requests["status"] == Status.COMPLETED
    if not done.any():
        return {}
    requests = {name: run.requests[name][done] for name in ("sent_s", "scheduled_s", "first_token_s", "finish_s")}
    queue = requests["scheduled_s"] - requests["sent_s"]
    found = {}
    for name, end in (("ttft", "first_token_s"), ("e2e", "finish_s")):
        took = requests[end] - requests["sent_s"]
        tail = took >= np.percentile(took, _TAIL)
        whole = float(took[tail].sum())
        found[name] = float(queue[tail].sum()) / whole if whole else 0.0
    return found


# --- against a goal --------------------------------------------------------------------------------------------------


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
    if row["rejected"] and not goal.allow_rejected:
        return Refusal(Why.REJECTED, f"{row['rejected']} of {row['arrived']} requests do not fit max_model_len")
    if row["regime"] == "overloaded":
        return Refusal(Why.UNSTABLE, "unstable: the queue grows as long as requests arrive")
    if row["oom_failed"] and not goal.allow_out_of_memory:
        return Refusal(Why.OUT_OF_MEMORY, f"out of memory: {row['oom_failed']} requests lost")
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
