"""The store of finished runs beside the results, so that a sweep that was stopped goes on where it was.

``OUT/.NAME.points/`` belongs to ``OUT/NAME/``:

    points.jsonl        one line a finished run, written as it ends: its key and all that its scenario does not say
    tables/KEY.npz      its requests and decisions, as long as all tables together are kept (`MOST_REQUESTS`); its line
                        has its hash, and a table of another hash is not there: its run is made again
    lock                held while a sweep is at work here

The key of a run is a hash of all that decides its numbers: the point with its seed and its one policy, what the files
it names hold, and the program itself. So a changed scenario, trace, profile or version finds nothing of the old runs,
and a longer sweep finds those it shares. Names and labels are no part of it.

A process that is killed loses nothing that was finished: a line counts when its end is there, and its table is in place
before it. Runs that could not be made are not kept; they are tried again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from servecast import resources
from servecast.batch import OutOfMemory
from servecast.engine import Run
from servecast.files import refuse_strangers, whole
from servecast.run.extrapolation import Beyond
from servecast.run.kept import Lines, held, remove, text_of, writing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from servecast.scenario import Point, Scenario

#: Requests of all runs of a sweep together up to which their tables are kept: beyond, only those that figures show.
MOST_REQUESTS = 250_000

_CODE = Path(__file__).resolve().parents[1]
_FILES = (".py", ".yaml", ".csv")
#: Parts of the program that make no numbers of a run.
_APART = ("report", "device", "validation", "comparison", "cli.py", "terminal.py", "__main__.py", "_shipped")


class Made(NamedTuple):
    """What a run gave, without what its scenario says already.

    row : of the summary
    beyond, notes : as in `Outcome`
    prompts_failed : memory ran out in a step that computed a closed batch's prompts
    run : its tables; None where they are not kept
    tenants : rows by tenant, as in `Outcome`
    """

    row: dict[str, Any]
    beyond: Beyond | None
    notes: tuple[str, ...]
    prompts_failed: bool
    run: Run | None
    tenants: tuple[dict[str, Any], ...] = ()


class PointsStore:
    """The finished runs of one results folder; made by `opened`."""

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self._folder = folder
        self._lines = Lines(folder / "points.jsonl")
        self._tables = folder / "tables"
        if fresh:
            with writing(folder):
                self._lines.path.unlink(missing_ok=True)
            self.drop_tables()
        self._found = self._lines.read()

    def __len__(self) -> int:
        return len(self._found)

    def restored(self, keys: list[str], *, tables: bool = True) -> dict[str, Made]:
        """Those of the runs ``keys`` that are here, with their ``tables`` unless there are too many to hold."""
        rows = {key: self._found[key] for key in keys if key in self._found}
        if not tables or sum(int(line["row"]["arrived_whole_run"]) for line in rows.values()) > MOST_REQUESTS:
            return {key: _made(line, None) for key, line in rows.items()}
        there = {key: line for key, line in rows.items() if _hash_of(self._table(key)) == line["table"] is not None}
        return {key: _made(line, _load(self._table(key))) for key, line in there.items()}

    def add(self, key: str, made: Made) -> None:
        """Keep a run that has ended. Its line is the last to be written."""
        line = _line(key, made)
        with writing(self._folder):
            line["table"] = None if made.run is None else self._add_table(key, made.run)
            self._lines.add(line)
        self._found[key] = line

    def _add_table(self, key: str, run: Run) -> str | None:
        """Write a table; its hash."""
        self._tables.mkdir(exist_ok=True)
        with whole(self._table(key), sync=False) as unfinished:
            _save(unfinished, run)
        return _hash_of(self._table(key))

    def drop_tables(self) -> None:
        """Keep the rows alone from now on."""
        with writing(self._folder):
            if self._tables.is_dir():
                shutil.rmtree(self._tables)

    def keep_only(self, keys: Collection[str]) -> None:
        """Forget every run but these: those of an earlier scenario, when the present one is done."""
        if self._found.keys() <= set(keys):
            return
        self.close()
        self._found = {key: line for key, line in self._found.items() if key in keys}
        with writing(self._folder):
            with whole(self._lines.path) as fresh:
                fresh.write_bytes(b"".join(map(text_of, self._found.values())))
            for table in self._tables.glob("*.npz"):
                if table.stem not in self._found:
                    table.unlink()

    def close(self) -> None:
        """Close the file; what was added stays."""
        self._lines.close()

    def _table(self, key: str) -> Path:
        return self._tables / f"{key}.npz"


@contextmanager
def opened(results: Path, *, fresh: bool = False) -> Iterator[PointsStore]:
    """The store of the results folder ``results``, for one process at a time; ``fresh`` empties it first.

    Without a run in it nothing is left behind.

    Raises
    ------
    InputError : another process is at work there, it cannot be written, the disk is full, or it or the results folder
        holds something else
    """
    refuse_strangers(results)  # said before anything is simulated
    with held(results) as (folder, made):
        store = PointsStore(folder, fresh=fresh)
        try:
            yield store
        finally:
            store.close()
            if not len(store):
                remove(folder, made)


# --- keys -----------------------------------------------------------------------------------------------------------


def key_of(point: Point, at: int) -> str:
    """The key of one policy's run at a point."""
    return digest_of(point.scenario, at, {"name", "policies", "sweep", "seeds"})


def digest_of(scenario: Scenario, at: int, apart: set[str], more: str = "") -> str:
    """A hash of a scenario with one policy, but for the keys ``apart``: of its values, its files and the program."""
    data = scenario.model_dump(mode="json", exclude=apart | {"policies"})
    named = {**data, "policy": scenario.policies[at].model_dump(mode="json", exclude={"name"}), "more": more}
    files = {text: _held(text) for text in _texts(named) if text.startswith("/")}
    shipped = resources.directory("calibration") / f"{scenario.profile}.yaml"
    if shipped.is_file():
        files["profile"] = _held(str(shipped))
    told = json.dumps([named, files, fingerprint()], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:32]


@cache
def fingerprint() -> str:
    """A hash of the program: two that differ may give other numbers."""
    digest = hashlib.sha256(np.__version__.encode())
    for path in sorted(_CODE.rglob("*")):
        name = path.relative_to(_CODE)
        if path.suffix in _FILES and name.parts[0] not in _APART and not name.parts[0].startswith("commands_"):
            digest.update(name.as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for value in data.values():
            yield from _texts(value)
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from _texts(value)


def _held(text: str) -> str:
    """A hash of what a file holds, or the files of a folder; empty where there is none."""
    path = Path(text)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return "".join(_hash(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.is_file())


@cache
def _hash(path: str, changed_ns: int, size: int) -> str:
    """Read once for all points, and again if the file changes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- lines and tables -----------------------------------------------------------------------------------------------


def _line(key: str, made: Made) -> dict[str, Any]:
    beyond = None if made.beyond is None else made.beyond._asdict()
    told = {"row": made.row, "beyond": beyond, "notes": made.notes, "prompts_failed": made.prompts_failed}
    return {"key": key, **told, "tenants": made.tenants}


def _made(line: dict[str, Any], run: Run | None) -> Made:
    beyond = line["beyond"]
    if beyond is not None:
        beyond = Beyond(beyond["factors"], tuple(beyond["kinds"]), beyond["physics"])
    return Made(line["row"], beyond, tuple(line["notes"]), line["prompts_failed"], run, tuple(line["tenants"]))


def _save(path: Path, run: Run) -> None:
    columns: dict[str, Any] = {f"requests.{name}": column for name, column in run.requests.items()}
    columns |= {f"decisions.{name}": column for name, column in run.decisions.items()}
    columns["gaps"] = run.gaps
    columns["oom"] = np.array(run.oom, dtype=float).reshape(-1, 4)
    columns["single"] = np.array([run.end_s, run.kv_blocks_total])
    columns["respond"] = np.array(run.respond)
    with path.open("wb") as file:
        np.savez(file, **columns)


def _hash_of(path: Path) -> str | None:
    """A hash of a file; None where there is none that can be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError:
        return None


def _load(path: Path) -> Run:
    with np.load(path, allow_pickle=False) as file:
        columns: dict[str, dict[str, Any]] = {"requests": {}, "decisions": {}}
        for name in file.files:
            table, _, column = name.partition(".")
            if column:
                columns[table][column] = file[name]
        oom = [OutOfMemory(time, int(lost), wanted, there) for time, lost, wanted, there in file["oom"].tolist()]
        end_s, blocks = file["single"].tolist()
        return Run(
            columns["requests"], columns["decisions"], file["gaps"], oom, end_s, int(blocks), str(file["respond"])
        )
