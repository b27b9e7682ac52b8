"""What stands behind the price of a step: each term of it in milliseconds, and whether it was measured, fitted, pinned
to physics, borrowed from another run, or stated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from servecast.batch import StepShape
from servecast.cost.fitted import FittedCost, smooth_maximum
from servecast.cost.profile import Profile, TabulatedProfile
from servecast.text import Table, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.scenario.serving import Serving

#: Steps that are taken apart: what they are called, and their shapes.
_STEPS: Final = {
    "1 row of 1,024": StepShape(0, 0, 0, 0, 1, 1024, 1025),
    "256 rows of 1,024": StepShape(0, 0, 0, 0, 256, 256 * 1024, 1025),
    "prompt of 2,048": StepShape(1, 2048, 2048 * 2049 // 2, 0, 0, 0, 2048),
}


def price_of_a_step(served: Serving) -> Table:
    """The terms of three steps, and where each comes from."""
    rows = tuple(_fitted(served.profile) if isinstance(served.profile, Profile) else _other(served))
    total = ("= step", *(f"{float(served.cost.seconds(shape)) * 1e3:,.2f} ms" for shape in _STEPS.values()), "")
    return Table("what a step takes", ("", *_STEPS, "what it is"), (*rows, total))


def _fitted(profile: Profile) -> Iterator[tuple[str, ...]]:
    """The terms of a fitted formula."""
    cost, of = profile.cost(), profile.coefficients

    def row(name: str, seconds: list[float], *coefficients: str) -> tuple[str, ...]:
        told = dict.fromkeys(f"{each}: {of[each].origin}" for each in coefficients)
        return (name, *(f"{value * 1e3:,.2f} ms" for value in seconds), ", ".join(told))

    shapes = list(_STEPS.values())
    tokens = [float(shape.prefill_tokens + shape.decode_rows) for shape in shapes]
    matmuls = [_matmuls(cost, count) for count in tokens]
    yield row("reading weights, or matmuls", matmuls, "weight_read_s", "token_s")
    yield row("query-key pairs", [cost.pair_s * float(cost.pairs_computed(shape)) for shape in shapes], "pair_s")
    yield row("cached tokens", [cost.context_s * float(cost.context_read(shape)) for shape in shapes], "context_s")
    yield row("rows", [cost.row_s * (shape.prefill_rows + shape.decode_rows) for shape in shapes], "row_s")
    yield row("constant", [cost.step_s] * len(shapes), "step_s")


def _matmuls(cost: FittedCost, tokens: float) -> float:
    read = cost.weight_read_s * float(cost.weights_read(tokens))
    return float(smooth_maximum(read, cost.token_s * tokens, cost.sharpness))


def _other(served: Serving) -> Iterator[tuple[str, ...]]:
    """What is not a formula of coefficients: tables, whose shares of reference steps the profile keeps; a datasheet."""
    profile = served.profile
    if not isinstance(profile, TabulatedProfile):
        yield ("all of it", *([""] * len(_STEPS)), "a datasheet's peaks at stated efficiencies, not measured")
        return
    for name, c in profile.host.items():
        if c.value:
            each = [c.value * (1 if name == "step_s" else s.prefill_rows + s.decode_rows) for s in _STEPS.values()]
            yield (
                f"host, {name}",
                *(f"{value * 1e3:,.2f} ms" for value in each),
                c.how if c.how.startswith(c.origin) else f"{c.origin}: {c.how}",
            )
    for step, shares in profile.composition.items():
        parts = [f"{percent(share, 0)} {origin}" for origin, share in shares if share]
        yield (f"of {step}", *([""] * len(_STEPS)), ", ".join(parts))
    for error in profile.held_out:
        if error.operator == "whole step" and error.along == "all":
            told = f"measured steps, {number(error.count)} others are met to {percent(error.median, 1)} in the median"
            yield ("all of it", *([""] * len(_STEPS)), told)
