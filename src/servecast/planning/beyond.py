"""How far a run went beyond what its cost model was measured on: said once, with the amount."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from servecast.batch import StepShape
from servecast.cost.fitted import FittedCost
from servecast.metrics import mean_shapes
from servecast.metrics.log import chunks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from servecast.cost.model import CostModel
    from servecast.engine import Run
    from servecast.planning.results import Outcome


class Beyond(NamedTuple):
    """The farthest that steps of a run lay outside the measured ones: ``factor`` times the bound in ``field``.

    unmeasured : some steps were of a kind (decode, mixed, prefill) that was never measured, so that no factor says it
    """

    field: str
    factor: float
    unmeasured: bool


def farthest(run: Run, cost: CostModel) -> Beyond | None:
    """How far a run went outside the calibrated domain; None inside it, and for a datasheet."""
    if not isinstance(cost, FittedCost):
        return None
    field, factor, unmeasured = "", 1.0, False
    for part in chunks(run.decisions):
        shapes = mean_shapes(part)
        factors = np.atleast_1d(cost.domain.factors(shapes))
        unmeasured |= bool(np.isinf(factors).any())
        known = np.where(np.isinf(factors), 0.0, factors)
        at = int(known.argmax())
        if known[at] > factor:
            field, factor = cost.extrapolation(StepShape(*(np.atleast_1d(column)[at] for column in shapes)))
    return Beyond(field, factor, unmeasured) if field or unmeasured else None


def sentences(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """One sentence for each policy priced beyond the measurements: the largest share and factor of its runs."""
    for policy in dict.fromkeys(outcome.policy for outcome in outcomes):
        runs = [
            (outcome.row["extrapolated_fraction"] or 0.0, outcome.beyond)
            for outcome in outcomes
            if outcome.policy == policy
        ]
        told = [beyond for _, beyond in runs if beyond is not None]
        if not told:
            continue
        worst = max(told, key=lambda beyond: beyond.factor)
        how = [f"by a factor of up to {_factor(worst.factor)} in {worst.field}"] if worst.field else []
        if any(beyond.unmeasured for beyond in told):
            how.append("some in steps of a kind that was never measured")
        share = max(share for share, _ in runs)
        yield f"Extrapolated: {policy}, up to {share:.0%} of its busy time, {', '.join(how)}."


def _factor(factor: float) -> str:
    return f"{factor:.1f}" if factor < 100 else f"{factor:,.0f}"
