"""Files that are complete and in place, or not there at all; plain values as YAML and JSON know them.

`replacing` fills a hidden folder beside the target and `whole` a hidden file; a rename puts it in place. A command that
fails on the way leaves what was there before. Short tables are CSV, which people open; long ones are Parquet, smaller
and five times faster to write, or gzipped CSV where that is asked for. Numbers are written so that they read back as
the same double, missing ones as nothing; no file holds a time of day, so the same inputs give the same bytes.
"""

from __future__ import annotations

import csv
import fcntl
import gzip
import io
import json
import math
import os
import shutil
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import IO

    import pandas as pd
    import pyarrow as pa

SCENARIO = "scenario.yaml"
_SHORT = ("summary", "tenants", "oom")  # tables that people open
#: What a results folder has from us: figures and tables of an earlier run are not carried over.
_OURS = (".png", ".svg", ".csv.gz", ".parquet", "/" + SCENARIO, "/report.html", *(f"/{name}.csv" for name in _SHORT))
FREE_SPACE = "free space or choose another place"


@contextmanager
def writing(place: Path | str, remedy: str = FREE_SPACE) -> Iterator[None]:
    """Turns a full disk, or a place that cannot be written, into an InputError: ``place: ...; remedy``."""
    try:
        yield
    except OSError as error:
        raise InputError(str(place), f"cannot be written ({error.strerror or error}); {remedy}") from error


@contextmanager
def whole(path: Path, sync: bool = True) -> Iterator[Path]:
    """A file to write beside ``path``, which takes its place when the block ends well; never half a file.

    A link stays, and what it leads to is replaced. A pipe or a terminal is written as it is.

    sync : bring the new file to the disk before the old one goes, so that a power cut leaves one of them
    """
    there = Path(os.path.realpath(path))
    if there.exists() and not there.is_file():
        yield path
        return
    partial = there.with_name(f".{there.name}.{os.getpid()}.partial")
    try:
        yield partial
        if sync:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        partial.replace(there)
    finally:
        partial.unlink(missing_ok=True)


def write(path: Path | str, content: str | bytes | Iterable[str], remedy: str = FREE_SPACE) -> None:
    """Writes a whole file; a place that cannot be written is an InputError."""
    with writing(path, remedy), whole(Path(path)) as partial, partial.open("wb") as file:
        parts = [content] if isinstance(content, bytes | str) else content
        file.writelines(part if isinstance(part, bytes) else part.encode() for part in parts)


def lock(path: Path) -> IO[str] | None:
    """``path`` open for appending and locked until it is closed; None while another process holds it.

    The system lets go of the lock when the process ends, however it ends.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        # Whoever held it before may have removed the file meanwhile: then this lock keeps nobody out.
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
        file.close()


def refuse_strangers(target: Path) -> None:
    """Raises InputError where ``target`` is something else than results, and would be replaced."""
    if target.exists() and not (target.is_dir() and ((target / SCENARIO).is_file() or not any(target.iterdir()))):
        problem = f"is there and holds no results (no {SCENARIO}), so it is not replaced"
        raise InputError(str(target), f"{problem}; choose another folder with --out")


@contextmanager
def replacing(
    target: Path, refuse: Callable[[Path], None] = refuse_strangers, ours: tuple[str, ...] = _OURS
) -> Iterator[Path]:
    """A fresh folder to write into, which becomes ``target`` when the block ends well.

    Files that somebody else put into the old ``target`` are carried over. Where it is a link, what it leads to is
    written, and the link stays.

    refuse : raises InputError where ``target`` must not be replaced
    ours : how the paths of files end that go with the old folder

    Raises InputError where it cannot be written, the disk is full, or ``target`` holds something else than results.
    """
    there = Path(os.path.realpath(target))
    fresh, aside = (there.with_name(f".{there.name}.{os.getpid()}.{part}") for part in ("new", "old"))
    try:
        refuse(target)
        for leftover in (fresh, aside):
            shutil.rmtree(leftover, ignore_errors=True)
        fresh.mkdir(parents=True)
        try:
            yield fresh
            _swap(fresh, there, aside, ours)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        remedy = "free space or choose another folder with --out"
        raise InputError(str(target), f"results cannot be written ({error.strerror or error}); {remedy}") from error


def _swap(fresh: Path, target: Path, aside: Path, ours: tuple[str, ...]) -> None:
    if not target.exists():
        fresh.rename(target)
        return
    target.rename(aside)
    try:
        fresh.rename(target)
    except OSError:
        aside.rename(target)
        raise
    for kept in sorted(aside.iterdir()):
        if not f"/{kept.name}".endswith(ours) and not (target / kept.name).exists():
            kept.rename(target / kept.name)
    shutil.rmtree(aside)


def write_tables(
    folder: Path, scenario: Mapping[str, Any], tables: Mapping[str, pd.DataFrame], *, as_csv: bool = False
) -> list[str]:
    """Write the resolved scenario and each table by its name; the names of the files.

    as_csv : long tables too are CSV, gzipped
    """
    (folder / SCENARIO).write_text(scenario_text(scenario), encoding="utf-8")
    names = [SCENARIO]
    for name, frame in tables.items():
        ending = ".csv" if name in _SHORT else ".csv.gz" if as_csv else ".parquet"
        names.append(name + ending)
        if ending == ".parquet":
            _write_parquet(_arrow(frame), folder / names[-1])
        else:
            text = frame_csv(frame)
            (folder / names[-1]).write_bytes(text if ending == ".csv" else gzip.compress(text, 1, mtime=0))
    return names


def scenario_text(scenario: Mapping[str, Any]) -> str:
    """The resolved scenario as YAML, in its own order."""
    import yaml

    return yaml.safe_dump(plain(scenario), sort_keys=False, allow_unicode=True, width=120)


def frame_csv(frame: pd.DataFrame) -> bytes:
    """A frame as CSV: shortest digits that read back as the same number, whatever the locale; missing is blank."""
    from pyarrow import csv as arrow_csv

    table = _arrow(frame)
    head = io.StringIO()
    csv.writer(head, lineterminator="\n").writerow(table.column_names)
    body = io.BytesIO()
    body.write(head.getvalue().encode())
    arrow_csv.write_csv(table, body, arrow_csv.WriteOptions(include_header=False, quoting_style="needed"))
    return body.getvalue()


def _write_parquet(table: pa.Table, path: Path) -> None:
    from pyarrow import parquet

    texts = [field.name for field in table.schema if str(field.type) in ("string", "large_string")]
    parquet.write_table(table, path, compression="zstd", compression_level=1, use_dictionary=texts)


def _arrow(frame: pd.DataFrame) -> pa.Table:
    import pyarrow as pa

    columns = {}
    for name in frame.columns:
        column = frame[name]
        if column.dtype == object:
            column = column.map(_text)
        values = pa.Array.from_pandas(column)
        columns[str(name)] = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    return pa.table(columns)


def _text(value: Any) -> str | None:
    """A cell of a column of mixed values: text as it is, numbers as Python writes them, structures as JSON."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        return value
    return json.dumps(plain(value), allow_nan=False, sort_keys=True)


def plain(value: Any, not_finite: Callable[[float], Any] = float) -> Any:
    """``value`` as YAML and JSON know it: mappings, lists, text, numbers and None. Named tuples become mappings.

    not_finite : what becomes of infinity and NaN, which YAML has and JSON has not
    """
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): plain(entry, not_finite) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry, not_finite) for entry in value]
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return plain(value.tolist(), not_finite)
    if isinstance(value, float):
        return value if math.isfinite(value) else not_finite(value)
    return str(value) if isinstance(value, (Path, date)) else value


def strict(value: Any) -> Any:
    """``value`` as the standard of JSON has it: None for infinity and NaN."""
    return plain(value, lambda _: None)


def dumps(value: Any, indent: int | None = None) -> str:
    """``value`` as strict JSON, the same bytes each time."""
    return json.dumps(strict(value), indent=indent, allow_nan=False)
