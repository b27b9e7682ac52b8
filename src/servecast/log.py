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


#: Rows of a chunk: large enough that its columns are mapped, not carved from the heap, and so given back one by one.
_CHUNK = 65_536


class Log:
    """``rows`` takes tuples of numbers in the order of ``names``; a row may come as several.

    Names that end in ``_s``, and ``seconds``, hold times; ``slot`` may be NaN.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.rows: list[tuple[Any, ...]] = []
        self._chunks: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
        self._filled = _CHUNK  # rows of the last chunk that are in use

    def flush(self) -> None:
        """Turn the rows so far into columns."""
        table = np.fromiter(chain.from_iterable(self.rows), dtype=np.float64).reshape(-1, len(self.names))
        self.rows.clear()
        while len(table):
            if self._filled == _CHUNK:
                for name, chunks in self._chunks.items():
                    chunks.append(np.empty(_CHUNK, _dtype(name)))
                self._filled = 0
            part, table = table[: _CHUNK - self._filled], table[_CHUNK - self._filled :]
            place = slice(self._filled, self._filled + len(part))
            for chunks, column in zip(self._chunks.values(), part.T, strict=True):
                chunks[-1][place] = column
            self._filled = place.stop

    def columns(self) -> dict[str, NDArray[Any]]:
        """All columns, whole; the log is empty afterwards."""
        self.flush()
        columns = {}
        for name in self.names:
            chunks = self._chunks.pop(name)
            if chunks:
                chunks[-1] = chunks[-1][: self._filled]
            columns[name] = np.concatenate([np.empty(0, _dtype(name)), *chunks])
        return columns


def _dtype(name: str) -> type[np.generic]:
    if name.endswith("_s") or name in ("seconds", "slot"):
        return np.float64
    return np.int64 if name in _WIDE else np.int32
