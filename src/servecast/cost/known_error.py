"""What is known of the error of step times by the kind of profile they come from, before any profile is judged itself.

    datasheet   roofline at stated efficiencies: step times of the 21 shipped profiles of GPUs over the roofline's, for
                decode, prefill and mixed steps (`tests/test_known_error.py`). None of them is a mixture of experts
    operators   put together of kernels measured one by one: time per token of the public table of vLLM servers, nine of
                ten rows (`results/README.md`, "Public TTFT and TPOT by configuration")
    steps       fitted to, or interpolated between, measured steps: E2E and TPOT of ten recorded runs
                (`results/README.md`)
    requests    fitted to requests alone: means of the runs that it was fitted to, simulated again
                (`tests/test_fit_requests.py`)

A profile that states a larger error of its own is believed; a smaller one does not count below these.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from servecast.cost.profile import TabulatedProfile

if TYPE_CHECKING:
    from servecast.cost.profile import ProfileFile

#: Of a two-sided 90 % interval.
TAIL: Final = 0.05


class KnownError(NamedTuple):
    """Measured over predicted time: ``low`` at 5 %, ``high`` at 95 %; ``of`` what was measured, against what."""

    low: float
    high: float
    of: str

    def at(self, rank: float) -> float:
        """The factor at a rank in (0, 1): each side is a lognormal of its own, and 1 is in the middle."""
        from statistics import NormalDist

        quantile = NormalDist().inv_cdf
        end = self.low if rank < 0.5 else self.high
        return math.exp(math.log(end) * abs(quantile(rank)) / quantile(1 - TAIL))

    @property
    def words(self) -> str:
        """``measured ones are 0.92 to 1.43 times as long``: nine of ten."""
        return self.of.format(f"{self.low:g} to {self.high:g}")


KNOWN: Final = {
    "datasheet": KnownError(0.92, 1.43, "measured ones are {} times as long"),
    "operators": KnownError(0.88, 1.14, "recorded tokens took {} times as long"),
    "steps": KnownError(0.98, 1.02, "recorded runs took {} times as long"),
    "requests": KnownError(0.96, 1.04, "runs took {} times as long"),
}


def known_error(profile: ProfileFile | None) -> KnownError:
    """What is known of profiles of this kind; None is a datasheet."""
    if profile is None:
        return KNOWN["datasheet"]
    if isinstance(profile, TabulatedProfile):
        whole = any(error.operator == "whole step" for error in profile.held_out)
        return KNOWN["steps" if whole else "operators"]
    return KNOWN["steps" if getattr(profile, "residuals", None) else "requests"]
