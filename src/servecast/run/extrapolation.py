"""How far a run went beyond what its cost model was measured on: said once for each policy, in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from servecast.cost.fitted import FittedCost
from servecast.cost.model import step_kind
from servecast.cost.tabulated import TabulatedCost
from servecast.metrics import mean_shapes
from servecast.metrics.log import chunks
from servecast.text import listed, number, share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from servecast.cost.model import CostModel
    from servecast.engine import Run
    from servecast.metrics.waste import StepCost
    from servecast.run.results import Outcome

#: What a field of `StepShape` above its bound means to somebody who does not know the field.
_LARGER = {
    "prefill_rows": "more prompts in a step",
    "prefill_tokens": "more prompts in a step",
    "prefill_pairs": "longer prompts",
    "prefill_context": "longer cached parts of prompts",
    "decode_rows": "larger batches",
    "decode_context": "more context in a batch",
    "max_context": "longer contexts",
}
_UNSEEN = {
    "decode": "steps without prompts",
    "mixed": "steps of prompts and answers together",
    "prefill": "steps of prompts alone",
}
_NAMED = 3  # ways to be larger in a sentence, the farthest first


class Extrapolation(NamedTuple):
    """The farthest that steps of a run lay outside the measured ones.

    factors : the largest value over its bound, of each field that went above it
    kinds : kinds of steps (decode, mixed, prefill) that were never measured, so that no factor says it
    pinned : coefficients of a fitted formula that physics gave and no measurement; None where tables are carried on
    """

    factors: Mapping[str, float]
    kinds: tuple[str, ...]
    pinned: tuple[str, ...] | None

    @classmethod
    def of(cls, data: Sequence[Any] | None) -> Extrapolation | None:
        """The one of such data, as JSON has it."""
        if data is None:
            return None
        return cls(data[0], tuple(data[1]), tuple(data[2]) if isinstance(data[2], list | tuple) else None)

    @property
    def field(self) -> str:
        """The field that went farthest; empty if none did."""
        return max(self.factors, key=self.factors.__getitem__, default="")

    @property
    def factor(self) -> float:
        """How far it went: 1 is the bound itself."""
        return max(self.factors.values(), default=1.0)


def farthest(run: Run, cost: CostModel | StepCost) -> Extrapolation | None:
    """How far a run went outside the calibrated domain; None inside it, and for a datasheet."""
    if not isinstance(cost, (FittedCost, TabulatedCost)):
        return None
    boxes = cost.domain.boxes
    factors: dict[str, float] = {}
    kinds: dict[str, None] = {}
    for part in chunks(run.decisions):
        shapes = mean_shapes(part)
        of = np.asarray(step_kind(shapes))
        for kind in dict.fromkeys(of.tolist()):
            rows = of == kind
            if kind not in boxes:
                kinds[kind] = None
                continue
            for name, (_, bound) in boxes[kind].items():
                # One is added on both sides, as `Domain` does, so that a bound of 0 gives a finite factor.
                factor = (float(np.asarray(getattr(shapes, name))[rows].max()) + 1) / (bound + 1)
                if factor > factors.get(name, 1.0):
                    factors[name] = factor
    pinned = cost.pinned if isinstance(cost, FittedCost) else None
    return Extrapolation(factors, tuple(kinds), pinned) if factors or kinds else None


def sentences(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """One sentence for each policy priced beyond the measurements, the largest share of busy time first."""
    most: dict[str, float] = {}
    for outcome in outcomes:
        most[outcome.policy] = max(outcome.row["extrapolated_fraction"] or 0.0, most.get(outcome.policy, 0.0))
    for policy in sorted(most, key=most.__getitem__, reverse=True):
        made = [outcome.made.extrapolation for outcome in outcomes if outcome.policy == policy]
        found = [each for each in made if each is not None]
        if found:
            yield sentence(policy, most[policy], found)


def sentence(name: str, most: float, found: Sequence[Extrapolation]) -> str:
    """How far some runs went beyond the measurements, and for which share of their busy time at most."""
    factors: dict[str, float] = {}
    for each in found:
        for field, factor in each.factors.items():
            factors[_LARGER[field]] = max(factor, factors.get(_LARGER[field], 1.0))
    farthest_first = sorted(factors, key=factors.__getitem__, reverse=True)[:_NAMED]
    larger = [f"{words} ({number(factors[words], 2)} times)" for words in farthest_first]
    unseen = [_UNSEEN[kind] for kind in dict.fromkeys(kind for each in found for kind in each.kinds)]
    parts = [f"{listed(larger)} than were measured"] if larger else []
    parts += [f"{listed(unseen)}, which were not measured at all"] if unseen else []
    return f"Extrapolated: {name}, up to {share(most)} of its busy time: {', and '.join(parts)}: {_priced(found[0])}."


def _priced(found: Extrapolation) -> str:
    """What stands behind a price beyond the measurements."""
    if found.pinned is None:
        return "priced by carrying the measured tables on"
    if not found.pinned:
        return "priced by carrying the fitted formula on"
    names = listed(list(found.pinned))
    return (
        f"priced by the fitted formula, in which {names} {'are' if len(found.pinned) > 1 else 'is'} pinned to physics"
    )
