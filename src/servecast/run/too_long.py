"""Requests that the engine cannot serve in full: how many, why, and what would take them.

A request is too long where its prompt and the longest answer that it asks for exceed ``max_model_len``. The longest
answer is the request's ``max_tokens`` where the trace has it, else the tokens that it has. Whether such a request is
refused whole or its answer cut is ``engine.on_too_long``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from servecast.metrics import METRICS, REJECTIONS
from servecast.metrics.measured import Measured
from servecast.text import listed, share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from servecast.engine import Run
    from servecast.memory import MemoryBudget
    from servecast.run.results import Outcome


@dataclass(frozen=True)
class TooLong:
    """What became of the requests of a run that were too long.

    arrived, completed : of all requests
    rejected : refused requests by reason, those reasons alone that occur
    cut, cut_tokens : answers that ended at ``max_model_len``, and the tokens that they lack
    longest_tokens : what the longest request needs
    max_position : the longest sequence that the model takes; None where it says none
    kv_tokens : what the KV cache holds
    """

    arrived: int
    completed: int
    rejected: Mapping[str, int]
    cut: int
    cut_tokens: int
    longest_tokens: int
    max_model_len: int
    model: str
    max_position: int | None
    kv_tokens: int

    @classmethod
    def of(cls, row: Mapping[str, Any], memory: MemoryBudget) -> TooLong | None:
        """Of a run's row of the summary; None where all requests fit."""
        rejected = {name: int(row[name]) for name in REJECTIONS if row[name]}
        if not rejected and not row["cut"]:
            return None
        return cls(
            arrived=int(row["arrived"]),
            completed=int(row["completed"]),
            rejected=rejected,
            cut=int(row["cut"]),
            cut_tokens=int(row["cut_tokens"]),
            longest_tokens=int(row["longest_request_tokens"]),
            max_model_len=memory.max_model_len,
            model=memory.model.name,
            max_position=memory.model.max_position or None,
            kv_tokens=memory.kv_tokens,
        )

    @classmethod
    def of_run(cls, run: Run, memory: MemoryBudget) -> TooLong | None:
        """Of a run that has no summary; None where all requests fit."""
        counted = Measured(run, run.requests)
        names = (*REJECTIONS, "cut", "cut_tokens", "longest_request_tokens", "arrived", "completed")
        return cls.of({name: METRICS[name].value(counted) for name in names}, memory)

    @property
    def share(self) -> float:
        """Of the requests that arrived, those that were refused or cut."""
        return (sum(self.rejected.values()) + self.cut) / self.arrived

    @property
    def short(self) -> str:
        """``57 % of the requests refused as too long``: a few words, for a headline."""
        lost = sum(self.rejected.values())
        parts = [f"{share(lost / self.arrived)} of the requests refused as too long"] if lost else []
        if self.cut:
            parts.append(f"{share(self.cut / self.completed)} of the answers cut short")
        return listed(parts)

    @property
    def counts(self) -> str:
        """``570 of 1,000 requests are refused (215 prompt too long, 355 answer too long)``, and answers cut."""
        parts = []
        if lost := sum(self.rejected.values()):
            reasons = listed([f"{count:,} {METRICS[name].label}" for name, count in self.rejected.items()])
            parts.append(f"{lost:,} of {self.arrived:,} requests {'is' if lost == 1 else 'are'} refused ({reasons})")
        if self.cut:
            ends = "is cut and lacks" if self.cut == 1 else "are cut and lack"
            parts.append(f"{self.cut:,} of {self.completed:,} answers {ends} {self.cut_tokens:,} tokens")
        return listed(parts)

    @property
    def remedy(self) -> str:
        """What would take all of them: a longer max_model_len, where model and memory allow it."""
        needed, limits = self.longest_tokens, []
        if self.max_position is not None and needed > self.max_position:
            limits.append(f"{self.model} has {self.max_position:,} positions: take a model with more")
        if needed > self.kv_tokens:
            limits.append(f"the KV cache holds {self.kv_tokens:,} tokens: give it more memory, or kv_cache_dtype: fp8")
        longest = f"the longest needs {needed:,} tokens"
        if limits:
            return f"{longest}, and {listed(limits)}, or send shorter requests"
        return f"{longest}: set engine.max_model_len to {needed}"


def sentences(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What to tell of a sweep: one sentence, of the run with the most requests that are too long."""
    found = [(each, over) for each in outcomes if (over := TooLong.of(each.row, each.memory)) is not None]
    if not found:
        return
    worst, over = max(found, key=lambda pair: pair[1].share)
    where = ""
    if len({(each.counts, each.max_model_len) for _, each in found}) > 1 or len(found) < len(outcomes):
        where = f" ({worst.which}; {len(found)} of {len(outcomes)} runs have some)"
    yield f"Too long for max_model_len {over.max_model_len:,}: {over.counts}{where}; {over.remedy}."
