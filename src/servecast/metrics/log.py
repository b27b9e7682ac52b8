"""Decisions of a run as the metrics read them: clipped to a window, in chunks, and as mean shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.batch import StepShape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    Columns = Mapping[str, NDArray[Any]]

TIME_TOLERANCE_S = 1e-9  # coalesced and stepped runs agree to this; a target met to within it is met
_CHUNK = 1 << 17  # rows of a table looked at together: bounds memory, whatever the length of the run


def clip_decisions(decisions: Columns, start: float, end: float) -> dict[str, NDArray[Any]]:
    """The decisions' iterations that end in (start, end] [s]; one that straddles an edge keeps its part."""
    begins = decisions["start_s"]
    ends = begins + decisions["seconds"]
    touching = np.flatnonzero((ends > start + TIME_TOLERANCE_S) & (begins < end))
    kept = {name: column[touching].copy() for name, column in decisions.items()}
    straddling = np.flatnonzero((kept["start_s"] < start) | (ends[touching] > end))
    for place in straddling:
        count, first, total = int(kept["iterations"][place]), kept["step_s"][place], kept["seconds"][place]
        slope = 2 * (total / count - first) / (count - 1) if count > 1 else 0.0
        steps = first + slope * np.arange(count)
        moments = kept["start_s"][place] + np.cumsum(steps)
        skipped = int(np.searchsorted(moments, start + TIME_TOLERANCE_S, side="right"))
        upto = int(np.searchsorted(moments, end + TIME_TOLERANCE_S, side="right"))
        kept["iterations"][place] = upto - skipped
        kept["seconds"][place] = steps[skipped:upto].sum()
        kept["start_s"][place] += steps[:skipped].sum()
        kept["step_s"][place] = first + slope * skipped
        kept["decode_context"][place] += skipped * kept["decode_rows"][place]
        kept["max_context"][place] += skipped
        if skipped:
            kept["resumed_rows"][place] = 0  # it was in the first iteration that they took up again
    return {name: column[kept["iterations"] > 0] for name, column in kept.items()}


def mean_shapes(decisions: Columns) -> StepShape:
    """The shape of each decision's mean iteration: contexts grow by one token a row and iteration."""
    later = (decisions["iterations"] - 1) / 2
    fields: dict[str, Any] = {name: decisions[name] for name in StepShape._fields}
    fields["decode_context"] = fields["decode_context"] + fields["decode_rows"] * later
    fields["max_context"] = fields["max_context"] + np.where(fields["decode_rows"] > 0, later, 0)
    return StepShape(**fields)


def chunks(columns: Columns) -> Iterator[Columns]:
    """The rows of a table, some 100,000 at a time."""
    for begin in range(0, len(columns["start_s"]), _CHUNK):
        yield {name: column[begin : begin + _CHUNK] for name, column in columns.items()}
