"""Changes from a result A to a result B: a figure of both, an interval of the difference, and a verdict.

A verdict says better or worse where the figure has a direction and the 90 % interval of its difference leaves out zero.
A change of less than 0.1 % is ``same``: nobody would act on it.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from servecast.plan.uncertainty import Estimate

    Key = tuple[str, Any, Any]

SAME = 0.001  # changes of a smaller share count as none

#: Keys of a scenario that say where and what for, not what was run.
_SAID = ("name", "sweep", "seeds")


class Change(NamedTuple):
    """One figure of both results.

    subject : the policy or configuration that it is of
    point : swept values in words
    before, after : the figure, with its own interval where it has one; None where a result lacks it
    way : more is better (1), worse (-1) or neither (0)
    low, high : 90 % interval of after less before; None where nothing tells one
    seeds : how many the interval is from
    """

    metric: str
    subject: str
    point: str
    before: Estimate | None
    after: Estimate | None
    way: int
    low: float | None = None
    high: float | None = None
    seeds: int | None = None

    @property
    def difference(self) -> float:
        """After less before; NaN where one is missing."""
        return math.nan if self.before is None or self.after is None else self.after.value - self.before.value

    @property
    def verdict(self) -> str:
        """``same``, ``better``, ``worse``, ``more``, ``less``; ``unclear`` where the interval holds zero."""
        if self.before is None or self.after is None:
            return "same" if self.before is self.after else "only one has it"
        small = SAME * abs(self.before.value)
        if self.low is not None and self.high is not None:
            if max(-self.low, self.high) <= small:
                return "same"
            if self.low <= 0 <= self.high:
                return "unclear"
        if abs(self.difference) <= small:
            return "same"
        if self.way == 0:
            return "more" if self.difference > 0 else "less"
        return "better" if self.way * self.difference > 0 else "worse"


@dataclass(frozen=True)
class Difference:
    """Two results held against each other.

    subject : what a change is of
    folders : of A and of B
    keys : key path of the scenarios, and its value in each, where they differ; None where one lacks it
    changes : by metric, subject and point
    notes : what could not be compared
    plans : both plans as they were written; None of two runs
    """

    subject: Literal["policy", "configuration"]
    folders: tuple[Path, Path]
    keys: tuple[Key, ...]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    plans: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None


@contextmanager
def reading(folder: Path, command: str) -> Iterator[None]:
    """While the files of a folder are read that ``command`` wrote: what goes wrong is one line."""
    try:
        yield
    except InputError as error:
        raise InputError(error.place, f"{error.problem}, or name a results folder of {command}") from None
    except OSError as error:
        problem = f"{error.strerror}: name a results folder, as {command} writes it"
        raise InputError(str(error.filename or folder), problem) from None
    except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
        problem = f"cannot be read ({' '.join(repr(error).split())[:120]}): name a results folder of {command}"
        raise InputError(str(folder), problem) from None


def keys_between(first: Mapping[str, Any], folder: Path, second: Mapping[str, Any], other: Path) -> Iterator[Key]:
    """Key paths whose values differ between scenarios of two folders; what follows from them (``derived``) last."""
    before, after = dict(_flat(first, folder)), dict(_flat(second, other))
    paths = [path for path in dict.fromkeys([*before, *after]) if path.split(".")[0].split("[")[0] not in _SAID]
    for path in sorted(paths, key=lambda path: path.startswith("derived.")):
        if before.get(path) != after.get(path):
            yield path, before.get(path), after.get(path)
    for key in _SAID[1:]:
        if first.get(key) != second.get(key):
            yield key, first.get(key), second.get(key)


def _flat(value: Any, folder: Path, path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by key path; a path of a file counts from its results folder."""
    if isinstance(value, dict) and value:
        for key, entry in value.items():
            yield from _flat(entry, folder, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for at, entry in enumerate(value):
            yield from _flat(entry, folder, f"{path}[{at}]")
    elif isinstance(value, str) and value.startswith(("./", "../")):
        yield path, str((folder / value).resolve())
    else:
        yield path, value
