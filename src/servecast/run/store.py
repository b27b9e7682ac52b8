"""Finished runs, kept beside the results, so that a sweep or a plan that was stopped goes on where it was.

``OUT/.NAME.sqlite`` belongs to ``OUT/NAME/``; where that is a link, to what it leads to. It holds one row a run of a
sweep, or a simulated load of a plan:

    digest    a hash of all that decides its numbers: the scenario with its one policy, what the files it names hold,
              and the program itself. So a changed scenario, trace, profile or version finds nothing of the old runs,
              and a longer sweep finds those it shares. Names and labels are no part of it
    load      of a plan: the load, the seed and the number of replicas
    value     what it gave, as JSON
    tables    its requests and decisions, with a hash in front; empty where they are not kept
    checksum  of the three texts: a row that was edited or damaged is told and never taken for a run

Each row is a transaction of its own, so that a process that is killed loses at most the run in progress. Nothing is
synchronised with the disk: that would take 15 ms a run, more than many runs. A power cut may so damage the file, which
is told, and ``--fresh`` begins anew. There is no write-ahead log, which network file systems do not carry. A command
locks ``OUT/.NAME.lock`` while it is at work; its worker processes write the same file in turn.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sqlite3
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast import files, resources
from servecast.batch import OutOfMemory
from servecast.engine import Run
from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from servecast.scenario import Scenario

#: Goes up when rows mean something else. The program is part of every digest: an older file holds nothing to take.
_VERSION = 1
#: What SQLite files of ours have in their header ("svca"), as file(1) and others may see.
_APPLICATION = 0x73766361
_TABLE = (
    "CREATE TABLE runs (digest TEXT, load TEXT, value TEXT, tables BLOB, checksum BLOB, PRIMARY KEY (digest, load))"
)
_HEAD = 100  # bytes of an SQLite file that say what it is
#: How long a worker waits for another that writes a row [s].
_BUSY_S = 60.0
_CODE = Path(__file__).resolve().parents[1]
_FILES = (".py", ".yaml", ".csv")
#: Parts of the program that make no numbers of a run.
_APART = ("report", "device", "against", "cli", "__main__.py", "_shipped")
_HASH = 16  # bytes


class StoreError(InputError):
    """The store cannot be read or written: the disk is full, or the file is damaged."""


class Store:
    """The finished runs of one results folder; made by `opened`. A copy in another process writes the same file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None

    def __reduce__(self) -> tuple[type[Store], tuple[Path]]:
        return Store, (self.path,)

    def __len__(self) -> int:
        return sum(int(count) for (count,) in self._rows("SELECT count(*) FROM runs"))

    def count(self, digests: Iterable[str]) -> int:
        """How many runs of these digests there are."""
        return sum(len(self._rows("SELECT 1 FROM runs WHERE digest = ?", digest)) for digest in set(digests))

    def found(self, digest: str, load: str = "") -> dict[str, Any] | None:
        """What a run gave; None where it is not here."""
        rows = self._rows("SELECT value, checksum FROM runs WHERE digest = ? AND load = ?", digest, load)
        if not rows:
            return None
        value, checksum = rows[0]
        if checksum != _checksum(digest, load, value):
            raise _damaged(self.path)
        found: dict[str, Any] = json.loads(value)
        return found

    def run(self, digest: str) -> Run | None:
        """The requests and decisions of a run; None where they were not kept, or are damaged."""
        rows = self._rows("SELECT tables FROM runs WHERE digest = ?", digest)
        return None if not rows or rows[0][0] is None else _unpacked(rows[0][0])

    def add(self, digest: str, value: dict[str, Any], load: str = "", run: Run | None = None) -> None:
        """Keep a run that has ended, with its tables where they are given. Raises StoreError if the disk is full."""
        text = json.dumps(value, default=np.generic.item)
        tables = None if run is None else _packed(run)
        row = (digest, load, text, tables, _checksum(digest, load, text))
        self._rows("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", *row, create=True)

    def drop_tables(self) -> None:
        """Keep what runs gave alone from now on."""
        self._rows("UPDATE runs SET tables = NULL WHERE tables IS NOT NULL")

    def keep_only(self, digests: Collection[str]) -> None:
        """Forget every run but these: those of an earlier scenario, when the present one is done."""
        there = {digest for (digest,) in self._rows("SELECT DISTINCT digest FROM runs")}
        for digest in there.difference(digests):
            self._rows("DELETE FROM runs WHERE digest = ?", digest)

    def close(self) -> None:
        """Close the file; it opens again when it is needed."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _rows(self, statement: str, *values: Any, create: bool = False) -> list[Any]:
        """What a statement gives, which is a transaction by itself; nothing where there is no file yet."""
        if not create and not self.path.exists():
            return []
        try:
            if self._connection is None:
                self._connection = _connected(self.path)
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise _damaged(self.path) from error
            raise _unwritable(self.path, str(error)) from error


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        marks = [connection.execute(f"PRAGMA {mark}").fetchone()[0] for mark in ("application_id", "user_version")]
        if marks != [_APPLICATION, _VERSION]:
            connection.execute("PRAGMA auto_vacuum = FULL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("DROP TABLE IF EXISTS runs")
            connection.execute(_TABLE)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_strangers(path: Path) -> None:
    """Raises StoreError where a database of another program stands in the store's place; reads it, and changes nothing.

    Stores of earlier versions have no application id, and this one table.
    """
    head = b""
    if path.exists():
        with path.open("rb") as file:
            head = file.read(_HEAD)
    if len(head) < _HEAD or not head.startswith(b"SQLite format 3\0"):
        return  # new, or damaged, which is told when it is opened
    application = int.from_bytes(head[68:72], "big")
    if application == _APPLICATION or (application == 0 and _tables(path) in ([], [_TABLE])):
        return
    raise StoreError(str(path), "is a database of another program: move it away, or choose another folder with --out")


def _tables(path: Path) -> list[str]:
    """The statements that made the tables of a database, which stays as it is; ours where it is damaged."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as connection:
            return [made for (made,) in connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table'")]
    except sqlite3.DatabaseError:
        return [_TABLE]  # it is told when it is opened


def _damaged(path: Path) -> StoreError:
    return StoreError(str(path), "is damaged, or holds no finished runs: begin anew with --fresh")


def _unwritable(path: Path, why: str) -> StoreError:
    problem = f"cannot be written ({why}); free space or choose another folder with --out: what was finished is kept"
    return StoreError(str(path), problem)


@contextmanager
def opened(
    results: Path, *, fresh: bool = False, refuse: Callable[[Path], None] = files.refuse_strangers
) -> Iterator[Store]:
    """The store of the results folder ``results``, for one command at a time; ``fresh`` empties it first.

    Without a run in it nothing is left behind. ``refuse`` says before anything is simulated what stands where the
    results are to be written.

    Raises InputError: another process is at work there, or it cannot be written.
    """
    refuse(results)
    # Links are followed: two names of one folder are one store.
    there = Path(os.path.realpath(results))
    store = Store(there.with_name(f".{there.name}.sqlite"))
    lock = there.with_name(f".{there.name}.lock")
    made = [path for path in lock.parents if not path.exists()]
    try:
        held = _locked(lock, results)
    except OSError as error:
        raise _unwritable(store.path, error.strerror or str(error)) from error
    with held:
        try:
            _prepare(store, fresh)
            yield store
        finally:
            store.close()
            lock.unlink(missing_ok=True)
            for path in () if store.path.exists() else made:
                if path.is_dir() and not any(path.iterdir()):
                    path.rmdir()


def _prepare(store: Store, fresh: bool) -> None:
    """Make sure that the store's file is ours and whole, or not there; ``fresh``: not there."""
    try:
        _refuse_strangers(store.path)
        if fresh:
            store.path.unlink(missing_ok=True)
            store.path.with_name(f"{store.path.name}-journal").unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(store.path, error.strerror or str(error)) from error
    len(store)  # a damaged one is told now


def _locked(path: Path, results: Path) -> Any:
    """The lock, with the number of this process in it."""
    file = files.lock(path)
    if file is None:
        holder = path.read_text(encoding="utf-8").strip() if path.exists() else ""
        which = f"process {holder}" if holder else "another process"
        problem = f"{which} is writing these results: wait until it is done, or choose another folder with --out"
        raise InputError(str(results), problem)
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


# --- digests --------------------------------------------------------------------------------------------------------


def digest_of(scenario: Scenario, at: int, apart: set[str], more: str = "") -> str:
    """A hash of a scenario with one policy, but for the keys ``apart``: of its values, its files and the program."""
    data = scenario.model_dump(mode="json", exclude=apart | {"policies"})
    named = {**data, "policy": scenario.policies[at].model_dump(mode="json", exclude={"name"}), "more": more}
    contents = {text: _content(text) for text in _texts(named) if text.startswith("/")}
    shipped = resources.directory("calibration") / f"{scenario.profile}.yaml"
    if shipped.is_file():
        contents["profile"] = _content(str(shipped))
    text = json.dumps([named, contents, fingerprint()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def fingerprint() -> str:
    """A hash of the program: two that differ may give other numbers."""
    digest = hashlib.sha256(np.__version__.encode())
    for path in sorted(_CODE.rglob("*")):
        name = path.relative_to(_CODE)
        if path.suffix in _FILES and name.parts[0] not in _APART:
            digest.update(name.as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, (dict, list, tuple)):
        for value in data.values() if isinstance(data, dict) else data:
            yield from _texts(value)


def _content(text: str) -> str:
    """A hash of what a file holds, or the files of a folder; empty where there is none."""
    path = Path(text)
    found = [file for file in (sorted(path.iterdir()) if path.is_dir() else [path]) if file.is_file()]
    return "".join(_hash_of(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in found)


@cache
def _hash_of(path: str, changed_ns: int, size: int) -> str:
    """Read once for all points, and again if the file changes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- values and tables ----------------------------------------------------------------------------------------------


def _checksum(*texts: str) -> bytes:
    return _hash("\0".join(texts).encode())


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_HASH]


def _packed(run: Run) -> bytes:
    tables = {"requests": run.requests, "decisions": run.decisions, "gaps": run.gaps}
    columns: dict[str, Any] = {f"{of}.{name}": column for of, table in tables.items() for name, column in table.items()}
    columns["oom"] = np.array(run.oom, dtype=float).reshape(-1, 4)
    columns["single"] = np.array([run.end_s, run.kv_blocks_total])
    columns["respond"] = np.array(run.respond)
    file = io.BytesIO()
    np.savez(file, **columns)
    return _hash(file.getvalue()) + file.getvalue()


def _unpacked(tables: bytes) -> Run | None:
    """The run; None where the tables are not what was written."""
    if tables[:_HASH] != _hash(tables[_HASH:]):
        return None
    with np.load(io.BytesIO(tables[_HASH:]), allow_pickle=False) as file:
        columns: dict[str, dict[str, Any]] = {"requests": {}, "decisions": {}, "gaps": {}}
        for name in file.files:
            table, _, column = name.partition(".")
            if column:
                columns[table][column] = file[name]
        oom = [OutOfMemory(time, int(lost), wanted, there) for time, lost, wanted, there in file["oom"].tolist()]
        end_s, blocks = file["single"].tolist()
        return Run(**columns, oom=oom, end_s=end_s, kv_blocks_total=int(blocks), respond=str(file["respond"]))
