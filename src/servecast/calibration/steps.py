"""Reads a table of measured steps: one row a step, or a row for several iterations of one batch.

Columns `seconds`, `prefill_rows`, `prefill_tokens`, `prefill_pairs`, `decode_rows`, `decode_context` must be there;
`prefill_context`, `max_context` and `iterations` may be; others are ignored. A row of several iterations counts as
their mean step: the context grows by one token a decode row and iteration, and the cost is affine in it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from servecast.batch import StepShape
from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pandas as pd

REQUIRED: Final = ("seconds", "prefill_rows", "prefill_tokens", "prefill_pairs", "decode_rows", "decode_context")
OPTIONAL: Final = ("prefill_context", "max_context", "iterations")
FEWEST: Final = 24
_DIGITS: Final = 300  # of a number that a float still holds

#: A log shows a decode context that grows by the decode rows from row to row; so many of its rows must.
_CONTINUING: Final = 0.5
#: Share of a log's rows that are decode steps after decode steps, at least: of few, chance makes some look so.
_PAIRS: Final = 0.25


@dataclass(frozen=True)
class Steps:
    """Measured steps as columns.

    seconds : (n,) [s]      shape : arrays (n,)      measured : the shape's fields that the table held
    run : (n,) which file a row is from      files, sha256 : provenance, one hash over all files
    """

    seconds: npt.NDArray[np.float64]
    shape: StepShape
    measured: tuple[str, ...]
    run: npt.NDArray[np.int64]
    files: tuple[str, ...]
    sha256: str

    def __len__(self) -> int:
        return len(self.seconds)

    def consecutive(self) -> bool:
        """Whether rows follow one another in time (a log of an engine) or stand alone (a grid of shapes)."""
        s = self.shape
        decode = (np.asarray(s.prefill_rows) == 0) & (np.asarray(s.decode_rows) > 0)
        pair = decode[:-1] & decode[1:] & (self.run[:-1] == self.run[1:])
        if pair.sum() < _PAIRS * len(self):
            return False
        grown = np.diff(s.decode_context) == np.asarray(s.decode_rows)[:-1]
        return bool(grown[pair].mean() >= _CONTINUING)


def read(paths: str | Path | Sequence[str | Path]) -> Steps:
    """Steps of one file or of several runs (.csv, .csv.gz, .parquet).

    Raises InputError with file and line for what is missing, not a number, negative, or a step without a duration.
    """
    files = [Path(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
    if not files:
        raise InputError("fit", "no table of steps given: name at least one .csv, .csv.gz or .parquet file")
    digest = hashlib.sha256()
    parts = []
    for file in files:
        table = table_of(file)
        digest.update(file.read_bytes())
        parts.append(_columns(table, str(file), first_line=1 if file.suffix == ".parquet" else 2))
    return _steps(parts, tuple(f.name for f in files), digest.hexdigest())


def from_frame(table: pd.DataFrame, place: str = "steps") -> Steps:
    """Steps of a data frame; an error names ``place`` and the row's position, counted from 1."""
    return _steps([_columns(table, place, first_line=1)], (place,), fingerprint(table))


def fingerprint(table: pd.DataFrame) -> str:
    """A hash of a table's rows."""
    import pandas as pd

    return hashlib.sha256(pd.util.hash_pandas_object(table, index=False).to_numpy().tobytes()).hexdigest()


def table_of(file: Path, wanted: str = "give a table of measured steps (.csv, .csv.gz, .parquet)") -> pd.DataFrame:
    """A table of any content. Raises InputError, ``wanted`` its remedy where there is no such file."""
    import pandas as pd

    if not file.is_file():
        raise InputError(str(file), f"no such file: {wanted}")
    try:
        if file.suffix == ".parquet":
            return pd.read_parquet(file)
        if file.name.endswith((".csv", ".csv.gz")):
            return pd.read_csv(file)
    except (ValueError, OSError, EOFError) as error:  # pandas' and pyarrow's own errors are ValueErrors
        problem = f"cannot be read as a table ({' '.join(str(error).split())}): save it again"
        raise InputError(str(file), problem) from error
    kind = file.suffix or "no ending"
    raise InputError(str(file), f"{kind} is not a known kind of table: use .csv, .csv.gz or .parquet")


def _columns(table: pd.DataFrame, place: str, first_line: int) -> dict[str, npt.NDArray[np.float64]]:
    missing = [name for name in REQUIRED if name not in table.columns]
    if missing:
        raise InputError(place, f"column {', '.join(missing)} is missing: a table of steps has {', '.join(REQUIRED)}")
    known = [name for name in (*REQUIRED, *OPTIONAL) if name in table.columns]
    columns = {name: _numbers(table[name], name, place, first_line) for name in known}

    def refuse(bad: Any, problem: str, *shown: str) -> None:
        rows = np.flatnonzero(bad)
        if len(rows):
            values = ", ".join(f"{name} {columns[name][rows[0]]:g}" for name in shown)
            more = f" ({len(rows)} such rows)" if len(rows) > 1 else ""
            raise InputError(f"{place}:{rows[0] + first_line}", f"{values}: {problem}{more}")

    for name, values in columns.items():
        refuse(values < 0, "must not be negative: remove or measure the row again", name)
    refuse(columns["seconds"] == 0, "step time must be > 0: remove or measure the row again", "seconds")
    if "iterations" in columns:
        refuse(columns["iterations"] < 1, "must be at least 1", "iterations")
    rows, tokens, pairs = (columns[name] for name in ("prefill_rows", "prefill_tokens", "prefill_pairs"))
    none = tokens + columns["decode_rows"] == 0
    refuse(none, "a step computes at least one token: remove the row", "prefill_tokens", "decode_rows")
    attended = "each token attends to itself at least; a fresh prompt of P tokens has P(P+1)/2 pairs"
    refuse(pairs < tokens, attended, "prefill_pairs", "prefill_tokens")
    apart = (rows > 0) != (tokens > 0)
    refuse(apart, "prefill rows and prefill tokens come together", "prefill_rows", "prefill_tokens")
    return columns


def numeric(column: pd.Series[Any]) -> npt.NDArray[np.float64]:
    """A column as numbers: NaN for what is none, infinity for one of hundreds of digits."""
    import pandas as pd

    try:
        return pd.to_numeric(column, errors="coerce").to_numpy(dtype=float)
    except OverflowError:
        texts = column.astype(str).where(column.astype(str).str.len() < _DIGITS, "inf")
        return pd.to_numeric(texts, errors="coerce").to_numpy(dtype=float)


def _numbers(column: pd.Series[Any], name: str, place: str, first_line: int) -> npt.NDArray[np.float64]:
    numbers = numeric(column)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        problem = f"{name} is {str(column.iloc[bad[0]])!r}: put a finite number, or remove the row"
        raise InputError(f"{place}:{bad[0] + first_line}", problem)
    return numbers


def _steps(parts: list[dict[str, npt.NDArray[np.float64]]], files: tuple[str, ...], sha256: str) -> Steps:
    held = [name for name in (*REQUIRED, *OPTIONAL) if all(name in part for part in parts)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in held}
    n = len(columns["seconds"])
    if n < FEWEST:
        raise InputError(files[0], f"{n} steps are too few to fit and to hold out from: give at least {FEWEST}")
    iterations = columns.get("iterations", np.ones(n))
    grown = (iterations - 1) / 2
    fields = {name: columns.get(name, np.zeros(n)) for name in StepShape._fields}
    fields["decode_context"] = fields["decode_context"] + grown * fields["decode_rows"]
    if "max_context" in held:
        fields["max_context"] = fields["max_context"] + grown
    run = np.repeat(np.arange(len(parts)), [len(part["seconds"]) for part in parts])
    shape = StepShape(**fields)  # type: ignore[arg-type]  # arrays
    measured = tuple(name for name in StepShape._fields if name in held)
    return Steps(columns["seconds"] / iterations, shape, measured, run, files, sha256)
