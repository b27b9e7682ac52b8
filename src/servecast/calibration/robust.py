"""Takes out of measured tables what their neighbours do not share: lone points, and times that fall as work grows.

A table of times lies on a grid: tokens by widths, rows by contexts. A **lone point** lies far from the straight line
(of logarithms) between its neighbours along every axis of the grid, to the same side: a hiccup of the clock, not a slow
kernel, since kernels change with size for whole stretches of a grid. It is put on that line. At the edge of a grid,
where there are neighbours on one side only, a point is alone if it lies outside what they can grow to.

What is left still falls now and then from one size to a larger one. An **isotonic regression** (Barlow et al. 1972;
`scipy.optimize.isotonic_regression`) takes the rising times that are nearest, relative to each; a running maximum would
carry the one slow point on to all larger sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from servecast.cost.curves import Curve

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pandas as pd

    from servecast.calibration.operators import Points

    Floats = npt.NDArray[np.float64]

_ALONE: Final = 1.4
"""Factor between a lone point and the line of its neighbours. Left out one by one, points of the shared tables are met
to 4 to 15 % (p95); kernels that change, and caches that are outgrown, lie within 1.3 along one axis at least."""

_TILE: Final = 0.125
"""The most that one token more adds to a step: one row of tiles beside eight. Tables of GEMMs on an H100 have 23 % from
1,024 tokens to 1,025, from where on they are flat; steps of an engine there, recorded at 1,022 to 1,032, 11 %."""

#: Work per step along an axis at the edge of a grid, in powers of the size: in proportion, and a little more.
_GROWTH: Final = 1.2
#: Each pass takes the worst points of their surroundings; points in a row of a bad stretch come one after another.
_PASSES: Final = 12
_SWEEPS: Final = 20
_REACH: Final = 2


def without_lone_points(seconds: Floats, sizes: Sequence[Floats]) -> tuple[Floats, int]:
    """Times on a grid with the lone points put on the line of their neighbours, and how many there were.

    seconds : (...) [s], NaN where nothing was measured      sizes : the positions along each axis of ``seconds``
    """
    logs = np.log(seconds)
    places = [np.log1p(np.asarray(size, dtype=float)) for size in sizes]
    axes = [axis for axis, place in enumerate(places) if len(place) >= 3]
    changed = np.zeros(logs.shape, dtype=bool)
    for _ in range(_PASSES if axes else 0):
        apart, lines = zip(*(_apart(logs, places[axis], axis) for axis in axes), strict=True)
        least = _same_side(np.array(apart))
        size = np.abs(least)
        alone = size > np.log(_ALONE)
        for axis in axes:
            for shift in (-_REACH, -1, 1, _REACH):
                alone &= size >= np.nan_to_num(_moved(size, shift, axis))
        if not alone.any():
            break
        logs[alone] = _median(np.array(lines))[alone]
        changed |= alone
    return np.exp(logs), int(changed.sum())


def settled(table: pd.DataFrame, axes: Sequence[str], time: str) -> tuple[pd.DataFrame, int]:
    """A table without its lone points: ``axes`` are the columns that place a row on a grid; and how many there were.

    Rows that stand at one place count with their median.
    """
    places = [np.unique(table[axis].to_numpy(dtype=float), return_inverse=True) for axis in axes]
    at = tuple(inverse for _, inverse in places)
    grid = np.full([len(values) for values, _ in places], np.nan)
    medians = table.groupby(list(axes))[time].transform("median").to_numpy(dtype=float)
    grid[at] = medians
    whole, count = without_lone_points(grid, [values for values, _ in places])
    return table.assign(**{time: whole[at]}), count


def _jump_shared(knots: Floats, seconds: Floats) -> Floats:
    """Rising times in which one token more takes at most `_TILE` longer; more comes with the next."""
    capped = seconds.copy()
    for i in range(1, len(capped)):
        if knots[i] - knots[i - 1] == 1:
            capped[i] = min(capped[i], capped[i - 1] * (1 + _TILE))
    return capped


def settled_curve(of: Curve) -> Curve:
    """The nearest curve that never falls, and rises by less than a tile's share from one count to the next."""
    values = rising(of.seconds)
    return Curve(of.knots, tuple(_jump_shared(np.array(of.knots), values).tolist()))


def rising(seconds: Sequence[float]) -> Floats:
    """The nearest times that never fall, by squares of relative differences."""
    from scipy.optimize import isotonic_regression

    values = np.asarray(seconds, dtype=float)
    scale = values + np.median(values) / 100  # a table may hold times of 0
    return np.asarray(isotonic_regression(values, weights=1 / np.maximum(scale, 1e-12) ** 2).x)


def rising_points(points: Points, *, both: bool) -> Points:
    """Points (outer, inner, seconds) whose times fall neither along the inner number nor, with ``both``, the outer one.

    Rows of a grid and columns of it in turn until nothing falls: projections onto what rises along one of them.
    """
    found = {(outer, inner): seconds for outer, inner, seconds in points}
    lines = _lines(found, 0) + (_lines(found, 1) if both else [])
    for _ in range(_SWEEPS if both else 1):
        before = dict(found)
        for line in lines:
            found.update(zip(line, rising([found[key] for key in line]).tolist(), strict=True))
        if max(abs(found[key] - before[key]) for key in found) <= 1e-9 * max(found.values()):
            break
    return [(outer, inner, seconds) for (outer, inner), seconds in found.items()]


def _lines(found: dict[tuple[float, float], float], same: int) -> list[list[tuple[float, float]]]:
    """The places that share one number, in the order of the other."""
    lines: dict[float, list[tuple[float, float]]] = {}
    for key in sorted(found):
        lines.setdefault(key[same], []).append(key)
    return list(lines.values())


def _apart(logs: Floats, place: Floats, axis: int) -> tuple[Floats, Floats]:
    """How far each point lies from its neighbours along an axis, and where they put it; NaN without any.

    Between neighbours: from the lines of times and of logarithms, and what lies between these (a constant and a term
    that grows are on the former, powers on the latter). At an edge: from what goes on as the neighbours do, or stays,
    or, at the far one, grows as its work; of the ranges of the next neighbours and of those after them, the nearer.
    """
    y = np.moveaxis(logs, axis, -1)
    x = np.broadcast_to(place, y.shape)
    near = {shift: (_moved(y, shift, -1), _moved(x, shift, -1)) for shift in (-3, -2, -1, 1, 2, 3)}

    def line(left: int, right: int, to: Floats = x) -> tuple[Floats, Floats]:
        """Through two neighbours: of times, and of their logarithms."""
        (a, at_a), (b, at_b) = near[left], near[right]
        share = np.expm1(to - at_a) / np.expm1(at_b - at_a)
        straight = np.log(np.maximum((1 - share) * np.exp(a) + share * np.exp(b), np.exp(np.minimum(a, b) - 1)))
        return straight, a + (b - a) * (to - at_a) / (at_b - at_a)

    def outside(ends: Sequence[Floats], of: Floats = y) -> tuple[Floats, Floats]:
        low, high = np.fmin.reduce(ends), np.fmax.reduce(ends)
        nearest = np.clip(of, low, high)
        return of - nearest, np.minimum(nearest, (low + high) / 2)

    with np.errstate(invalid="ignore", divide="ignore"):
        beside = [line(-1, 1), line(-2, 1), line(-1, 2), _only(line(1, 2), near[-2]), _only(line(-2, -1), near[2])]
        apart, put = outside([_median(np.array([pair[straight] for pair in beside])) for straight in (0, 1)])
        # Next to a bad edge a point still goes on as those before it do.
        for inward in beside[3:]:
            on, _ = outside(inward)
            apart = np.where(np.abs(on) < np.abs(apart), on, apart)
        for sign, grown in ((1, 0.0), (-1, _GROWTH)):
            ranges = [
                outside(
                    [
                        near[sign * k][0],
                        *line(sign * k, sign * (k + 1)),
                        near[sign * k][0] + grown * (x - near[sign * k][1]),
                    ]
                )
                for k in (1, 2)
            ]
            edge = np.isnan(near[-sign][0])
            # Those after the next speak where the next one is itself no neighbour of theirs.
            (a, at_a), (b, at_b) = near[sign], near[sign * 2]
            strange, _ = outside([b, *line(sign * 2, sign * 3, at_a), b + grown * (at_a - at_b)], a)
            sane = np.abs(strange) <= np.log(_ALONE)
            nearer = np.where(~sane & (np.abs(ranges[1][0]) < np.abs(ranges[0][0])), 1, 0)
            apart, put = (
                np.where(edge, np.where(nearer, ranges[1][i], ranges[0][i]), inner)
                for i, inner in enumerate((apart, put))
            )
    return np.moveaxis(apart, -1, axis), np.moveaxis(put, -1, axis)


def _only(lines: tuple[Floats, Floats], missing: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """The lines where a neighbour on the other side is missing, next to an edge; NaN elsewhere."""
    at = np.isnan(missing[0])
    return np.where(at, lines[0], np.nan), np.where(at, lines[1], np.nan)


def _median(lines: Floats) -> Floats:
    """Along the first axis, over what is there."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of points without any neighbour
        return np.asarray(np.nanmedian(lines, axis=0))


def _same_side(apart: Floats) -> Floats:
    """The least distance over the axes where all lie to one side; 0 where they do not, or where none tells."""
    known = ~np.isnan(apart)
    above, below = (np.where(known, sign * apart, np.inf).min(axis=0) for sign in (1, -1))
    any_known = known.any(axis=0)
    return np.where(any_known & (above > 0), above, np.where(any_known & (below > 0), -below, 0.0))


def _moved(values: Floats, shift: int, axis: int) -> Floats:
    """What lies ``shift`` places further along an axis; NaN beyond the grid."""
    y = np.moveaxis(values, axis, -1)
    found = np.full(y.shape, np.nan)
    if abs(shift) < y.shape[-1]:
        if shift > 0:
            found[..., :-shift] = y[..., shift:]
        else:
            found[..., -shift:] = y[..., :shift]
    return np.moveaxis(found, -1, axis)
