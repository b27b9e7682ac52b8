"""An append-only table: rows go in one by one, columns come out as arrays.

Every so often the rows are packed into bytes, each number in the type of its column. That costs less than making
arrays of them, and keeps a run of a million requests in memory.
"""

from __future__ import annotations

import struct
from itertools import starmap
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Counts that can pass two thousand million in one row: pairs are quadratic in a prompt's length.
_WIDE = frozenset(("prefill_pairs", "prefill_context", "decode_context"))
#: Bytes of a block: so large that the system maps it, instead of carving it from the heap, and takes it back whole.
_BLOCK = 1 << 23


class Log:
    """``rows`` takes tuples of numbers in the order of ``names``.

    Names that end in ``_s``, and ``seconds``, hold times; ``slot`` may be NaN.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        codes = [_code(name) for name in names]
        self.rows: list[tuple[Any, ...]] = []
        self._pack = struct.Struct("=" + "".join(codes)).pack
        self._type = np.dtype([(name, np.dtype(code)) for name, code in zip(names, codes, strict=True)])
        self._blocks: list[bytearray] = []

    def flush(self) -> None:
        """Pack the rows so far."""
        if not self._blocks or len(self._blocks[-1]) > _BLOCK:
            self._blocks.append(bytearray())
        self._blocks[-1] += b"".join(starmap(self._pack, self.rows))
        self.rows.clear()

    def columns(self) -> dict[str, NDArray[Any]]:
        """All columns, whole; the log is empty afterwards."""
        self.flush()
        rows = sum(map(len, self._blocks)) // self._type.itemsize
        columns = {name: np.empty(rows, self._type[name]) for name in self._type.names or ()}
        end = rows
        while self._blocks:  # never all rows twice in memory
            table = np.frombuffer(self._blocks.pop(), self._type)
            for name, column in columns.items():
                column[end - len(table) : end] = table[name]
            end -= len(table)
        return columns


def _code(name: str) -> str:
    """The type of a column, as `struct` and numpy call it."""
    if name.endswith("_s") or name in ("seconds", "slot"):
        return "d"
    return "q" if name in _WIDE else "i"
