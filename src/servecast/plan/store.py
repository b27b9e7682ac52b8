"""The simulated loads of a plan on disk, so that a plan that was stopped goes on where it was.

``OUT/.NAME-plan.points/`` belongs to ``OUT/NAME-plan/``:

    DIGEST-PID.jsonl    one line a simulated load of one configuration, written as it ends, by the process that made it
    lock                held while a plan is at work here

The digest is of all that decides the numbers of a configuration (its scenario with one policy, what the files it names
hold, the router, and the program); the key of a line is the load, the seed, the number of replicas, and the step times
where they were drawn. So a changed scenario, trace, profile or version finds nothing of the old loads; a goal, a price
or a search that changed finds them all. Each process has files of its own: workers that outlive a killed parent for a
moment cannot tear the lines of the next one.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servecast.errors import InputError
from servecast.run.kept import Lines, held, remove, writing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

#: What a plan writes into its folder (`plan_files`).
FILES = ("plan.json", "plan.html", "options.csv", "scenario.yaml")


class KeptLoads:
    """The simulated loads of one configuration."""

    def __init__(self, folder: Path, digest: str) -> None:
        self._folder = folder
        self._found: dict[str, dict[str, Any]] = {}
        for file in sorted(folder.glob(f"{digest}-*.jsonl")):
            self._found |= Lines(file).read()
        self._lines = Lines(folder / f"{digest}-{os.getpid()}.jsonl")

    def __len__(self) -> int:
        return len(self._found)

    def found(self, key: str) -> dict[str, Any] | None:
        """What is kept of a load; None if it was not simulated yet."""
        line = self._found.get(key)
        return None if line is None else line["sample"]

    def add(self, key: str, sample: dict[str, Any]) -> None:
        """Keep a load that was simulated. Raises InputError if the disk is full."""
        line = {"key": key, "sample": sample}
        with writing(self._folder):
            self._lines.add(line)
        self._found[key] = line

    def close(self) -> None:
        """Close the file; it opens again for what is added later."""
        self._lines.close()


@contextmanager
def opened(results: Path, *, fresh: bool = False) -> Iterator[Path]:
    """The folder of the loads kept for the plan in ``results``, for one process at a time; ``fresh`` empties it first.

    The folder of the plan itself is made before anything is simulated, and taken away again if nothing came into it.

    Raises InputError if something else stands where the plan is to be written, another process is at work there, it
    cannot be written, or the disk is full.
    """
    there = Path(os.path.realpath(results))
    _refuse_strangers(results)
    with held(results) as (folder, made):
        if fresh:
            keep_only(folder, ())
        with writing(results):
            there.mkdir(parents=True, exist_ok=True)
        try:
            yield folder
        finally:
            if there.is_dir() and not any(there.iterdir()):
                there.rmdir()
            if not any(folder.glob("*.jsonl")):
                remove(folder, made)


def _refuse_strangers(results: Path) -> None:
    """What cannot be written over, found before it is too late."""
    if results.exists() and not results.is_dir():
        raise InputError(
            str(results), "is a file, where a plan wants a folder: move it away, or choose another folder with --out"
        )
    for name in FILES:
        if (results / name).is_dir():
            raise InputError(
                str(results / name),
                "is a folder, where the plan wants to write a file: move it away, or choose another folder with --out",
            )
    if results.is_dir() and not os.access(results, os.W_OK | os.X_OK):
        raise InputError(
            str(results),
            "cannot be written (Permission denied): let it be written, or choose another folder with --out",
        )


def keep_only(folder: Path, digests: Collection[str]) -> None:
    """Forget every configuration but these."""
    with writing(folder):
        for file in folder.glob("*.jsonl"):
            if file.name.partition("-")[0] not in digests:
                file.unlink()
