"""An append-only table: rows go in as tuples, columns come out as arrays.

Rows are turned into compact columns a few thousand at a time, which is what keeps a run of a million requests in
memory and costs least per row: a tuple appended to a list is the cheapest thing Python can do with a row.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Counts that can pass two thousand million in one row: pairs are quadratic in a prompt's length.
_WIDE = frozenset(("prefill_pairs", "prefill_context", "decode_context"))


class Log:
    """``rows`` takes tuples of numbers in the order of ``names``; a row may come as several.

    Names that end in ``_s``, and ``seconds``, hold times.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.rows: list[tuple[float, ...]] = []
        self._chunks: dict[str, list[NDArray[Any]]] = {name: [] for name in names}

    def flush(self) -> None:
        """Turn the rows so far into columns."""
        width = len(self.names)
        table = np.fromiter(chain.from_iterable(self.rows), dtype=np.float64)
        for name, column in zip(self.names, table.reshape(-1, width).T, strict=True):
            self._chunks[name].append(column.astype(_dtype(name)))
        self.rows.clear()

    def columns(self) -> dict[str, NDArray[Any]]:
        """All columns, whole; the log is empty afterwards."""
        self.flush()
        return {name: np.concatenate(self._chunks.pop(name)) for name in self.names}


def _dtype(name: str) -> type[np.generic]:
    if name.endswith("_s") or name == "seconds":
        return np.float64
    return np.int64 if name in _WIDE else np.int32
