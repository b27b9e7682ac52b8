"""A hidden folder beside results, for one process at a time, and files of lines in it that survive a kill.

``OUT/.NAME.points/`` belongs to ``OUT/NAME/``; where that is a link, to what it leads to. A line counts when its end is
there: what a killed process left without one is no line. Each ends with a checksum, so that a line which somebody
edited, or a power cut tore, is told and never taken for a run. A full disk, or a folder that cannot be written, is an
InputError of one line, and what was finished before stays.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from servecast import files
from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from io import FileIO

#: The end of a line: a checksum of what stands before it.
_CHECKED = re.compile(rb'(\{.*), "sum": "([0-9a-f]{16})"\}')
#: Lines are brought to the disk itself so often: a power cut costs the runs of that time, and no run waits for each.
_SYNC_S = 1.0


@contextmanager
def held(results: Path) -> Iterator[tuple[Path, list[Path]]]:
    """The hidden folder of the results folder ``results``, held by this process; the folders that were made for it.

    Raises
    ------
    InputError : another process holds it, or it cannot be written
    """
    # Links are followed: two names of one folder are one store.
    there = Path(os.path.realpath(results))
    folder = there.with_name(f".{there.name}.points")
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder / "lock", results)
    with lock:
        yield folder, made


def writing(folder: Path) -> AbstractContextManager[None]:
    """A full disk, or a folder that cannot be written, in one line."""
    return files.writing(folder, "free space or choose another folder with --out: what was finished is kept")


def _lock(path: Path, results: Path) -> IO[str]:
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


def remove(folder: Path, made: list[Path]) -> None:
    """Take away an empty folder, and those that were made for it if nothing else stands in them."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in made[1:]:
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


# --- lines ----------------------------------------------------------------------------------------------------------


class Lines:
    """A file to whose end one line after the other is added, each a mapping with its ``key``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: FileIO | None = None
        self._synced_s = 0.0

    def read(self) -> dict[str, dict[str, Any]]:
        """Every whole line, by its key. One without a checksum is of a version before there were any, and left out.

        Raises InputError for a line that holds something else than was written.
        """
        if not self.path.exists():
            return {}
        try:
            text = self.path.read_bytes()
        except OSError as error:
            raise InputError(str(self.path), f"cannot be read ({error.strerror}): begin anew with --fresh") from None
        found = {}
        for number, line in enumerate(text[: _whole(text)].split(b"\n")[:-1], start=1):
            try:
                entry = _entry(line)
                key = str(entry["key"])
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                raise InputError(f"{self.path}:{number}", "is no finished run: begin anew with --fresh") from None
            if entry.pop("sum", None) is not None:
                found[key] = entry
        return found

    def add(self, line: dict[str, Any]) -> None:
        """Write a line, to its end; raises OSError."""
        if self._open is None:
            self._open = self.path.open("ab", buffering=0)
            self._open.truncate(_whole(self.path.read_bytes()))
        left = memoryview(text_of(line))
        while left:  # a disk that is nearly full takes a part
            left = left[self._open.write(left) :]
        if time.monotonic() - self._synced_s >= _SYNC_S:
            os.fdatasync(self._open.fileno())
            self._synced_s = time.monotonic()

    def close(self) -> None:
        """Close the file; what was added stays."""
        if self._open is not None:
            try:
                os.fdatasync(self._open.fileno())
            finally:
                self._open.close()
                self._open = None


def text_of(line: dict[str, Any]) -> bytes:
    """A line as it is written."""
    text = json.dumps(line, default=_plain).encode()
    return text[:-1] + b', "sum": "' + _sum(text[:-1]) + b'"}\n'


def _entry(line: bytes) -> dict[str, Any]:
    """What a line holds; a ValueError if it is not what was written."""
    entry: dict[str, Any] = json.loads(line)
    if entry.get("sum") is not None:
        parts = _CHECKED.fullmatch(line)
        if parts is None or _sum(parts[1]) != parts[2]:
            raise ValueError("edited or torn")
    return entry


def _sum(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:16].encode()


def _whole(text: bytes) -> int:
    return text.rfind(b"\n") + 1


def _plain(value: Any) -> Any:
    """A number of numpy's as Python's."""
    return value.item()
