"""The verdict on a validation: how many gates were met, and whether the ranking of the policies was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.against.device import compare
from servecast.report.verdicts import Verdict

if TYPE_CHECKING:
    from servecast.against.device.validate import Validation


def verdict(validation: Validation) -> Verdict:
    """Gates met, missed and not decided; then how they were met, and the ranking."""
    gated = [each.verdict for case in validation.cases for each in case.comparisons if each.gate is not None]
    missed, unclear, barely = map(gated.count, (compare.OUTSIDE, compare.UNCLEAR, compare.TWICE_NOISE))
    counts = f"{len(gated) - missed - unclear} of {len(gated)} gates met, {missed} missed, {unclear} inconclusive."
    details = [f"{barely} of those met are met only by twice the noise."] if barely else []
    if validation.interrupted:
        made = sum(len(case.executed) for case in validation.cases)
        headline = f"Interrupted after {made} of {validation.planned} executions, no verdict on the rest."
        return Verdict(headline, (f"So far {counts}", *details))
    executed, simulated = (
        sorted(validation.ranking, key=lambda policy: -validation.ranking[policy][side])
        for side in ("executed", "simulated")
    )
    if len(executed) > 1:
        details.append(f"The ranking of the policies is {'the same' if executed == simulated else 'NOT the same'}.")
    return Verdict(counts, tuple(details))
