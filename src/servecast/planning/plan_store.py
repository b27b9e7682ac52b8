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
from typing import TYPE_CHECKING, Any

from servecast.planning.kept import Lines, held, remove, writing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path


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

    Raises InputError if another process is at work there, it cannot be written, or the disk is full.
    """
    with held(results) as (folder, made):
        if fresh:
            keep_only(folder, ())
        try:
            yield folder
        finally:
            if not any(folder.glob("*.jsonl")):
                remove(folder, made)


def keep_only(folder: Path, digests: Collection[str]) -> None:
    """Forget every configuration but these."""
    with writing(folder):
        for file in folder.glob("*.jsonl"):
            if file.name.partition("-")[0] not in digests:
                file.unlink()
