"""The currency of the simulator: the shape of a step, what a policy decides, and the columns of the log.

`StepShape` is made of sums, so that a step is priced, measured and logged by the same numbers however many rows it
has. A padded batch is not a special case: its shape is simply larger than the useful part, which is counted beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Sequence as SequenceOf

    from servecast.requests import Sequence


class StepShape(NamedTuple):
    """What one engine step computes. Fields are numbers, or equally long arrays of them (a table of steps).

    prefill_rows : rows that compute prompt tokens, or take up again after a pause
    prefill_tokens : tokens computed for them
    prefill_pairs : causal query-key pairs of those tokens, cached prefix included; a fresh prompt of P has P(P+1)/2
    prefill_context : tokens of those rows that were cached before the step
    decode_rows : rows that compute the one token after the last
    decode_context : cached tokens read by the decode rows, summed
    max_context : keys of the longest row, its new tokens included (kernels that mask a joint batch pay for it)
    """

    prefill_rows: int
    prefill_tokens: int
    prefill_pairs: int
    prefill_context: int
    decode_rows: int
    decode_context: int
    max_context: int


def causal_pairs(new: int, cached: int = 0) -> int:
    """Query-key pairs of ``new`` causal tokens after ``cached`` ones: new*cached + new(new+1)/2."""
    return new * cached + new * (new + 1) // 2


class Row(NamedTuple):
    """One row of a step as a device computes it: ``new`` tokens after ``cached`` ones."""

    sequence: Sequence
    cached: int
    new: int


class Tally(NamedTuple):
    """What a decision is besides its shape: what was asked for, who holds a slot, and what it cost others.

    useful_prefill_tokens, useful_decode_rows : the part of the first iteration that somebody wants
    slots : slots held, those of rows that have finished and of rows that stand still included
    waiting : sequences left in the queue
    preempted : sequences put back into it
    recomputed_tokens : tokens computed that had been computed before
    stalled_rows : rows that have not finished, and compute nothing in this step
    resumed_rows : decode rows that stood still before this step; the gap before the token of their first iteration is
        longer than that iteration, and stands in the run's gaps
    """

    useful_prefill_tokens: int
    useful_decode_rows: int
    slots: int
    waiting: int
    preempted: int
    recomputed_tokens: int
    stalled_rows: int
    resumed_rows: int


class Batch:
    """What runs next: who advances, by how many tokens, and for how many iterations that holds if nobody arrives.

    shape : of the first iteration, as computed (padding included); each further one has one cached token more per
        decode row
    prefill : rows that compute tokens of a prompt, or take up again after a pause, each with how many
    decode : tokens that each of the state's decode rows advances by in an iteration: 1, or 0 where they stand still
    counts : the fields of `Tally`; a plain tuple, since naming them for each decision would take longer than pricing it
    interruptible : an arrival could change the decision, so the run ends at the first iteration boundary at or after it
    rows : ``rows(batch)`` walks the rows of the first iteration; only a device needs to

    `State.commit` books exactly this. Two things that are not built have their place here. *Speculative decoding*: how
    many tokens a row took is known when the step has ended, so its rows come with their tokens, as those of ``prefill``
    do, and such a batch has one iteration. *Disaggregation*: a row that leaves for another replica is taken out of the
    decode rows as a preempted one is, its counts up to date, and is admitted there with its tokens found in the cache.
    """

    __slots__ = ("counts", "decode", "interruptible", "iterations", "prefill", "rows", "shape")

    def __init__(
        self,
        shape: StepShape,
        iterations: int,
        prefill: SequenceOf[tuple[Sequence, int]],
        decode: int,
        counts: tuple[int, ...],
        interruptible: bool,
        rows: Callable[[Batch], Iterator[Row]],
    ) -> None:
        self.shape = shape
        self.iterations = iterations
        self.prefill = prefill
        self.decode = decode
        self.counts = counts
        self.interruptible = interruptible
        self.rows = rows

    @property
    def tally(self) -> Tally:
        """The counts by their names."""
        return Tally._make(self.counts)


class Wait(NamedTuple):
    """Nothing to run before ``until`` [s], unless something arrives."""

    until: float


class OutOfMemory(NamedTuple):
    """The next step does not fit: the engine crashes, its unfinished members fail, and it restarts."""

    time_s: float
    requests: int
    wanted_bytes: float
    available_bytes: float


Decision = Batch | Wait | OutOfMemory

#: Columns of a run's log, one row a scheduling decision. Every table of steps has ``iterations``, ``seconds`` and the
#: fields of `StepShape` among its columns.
DECISION_COLUMNS = (
    "start_s",
    "iterations",
    "seconds",
    "step_s",
    *StepShape._fields,
    *Tally._fields,
    "kv_blocks",
    "finished",
)
