"""The three files of a calibration: profile, steps, facts. What is measured is on disk before the next step begins.

One calibration writes them at a time, and goes on only with rows that are as a calibration writes them: of the steps
that are planned, each once a round, with times that can be.
"""

from __future__ import annotations

import csv
import json
import math
from typing import IO, TYPE_CHECKING, Any

from servecast.batch import StepShape
from servecast.cost.profile import dump
from servecast.errors import InputError
from servecast.files import dumps, lock, write, writing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from servecast.cost.profile import TabulatedProfile
    from servecast.device.grid import Point

REFERENCES = {"mixed": "reference_s", "decode": "reference_decode_s"}
"""Columns of the reference steps' times."""

COLUMNS = (
    "seconds", "iterations", *StepShape._fields, "part", "rows", "round", "repeats", "dropped", "least_s", "most_s",
    "spread", *REFERENCES.values(),
)  # fmt: skip
"""Of `NAME.steps.csv`: a row for each step and round."""

_WHOLE = ("iterations", *StepShape._fields, "round", "repeats", "dropped")
_TIMES = ("seconds", "least_s", "most_s", *REFERENCES.values())
_SAME_MACHINE = ("processor", "gpu", "torch", "threads")
_ROOM = "make room and call again, or choose another --output: what was measured is kept"
_ANEW = "choose another --output, or measure anew with --fresh"


class Files:
    """Profile, steps and facts of a calibration whose profile is ``output``; ours alone until it is left."""

    def __init__(self, output: Path) -> None:
        if output.suffix not in {".yaml", ".yml"}:
            raise InputError("--output", f"{str(output)!r} is no YAML file: name it like calibration/mine.yaml")
        if not output.parent.is_dir():
            raise InputError("--output", f"there is no folder {output.parent}: make it first")
        self.profile = output
        self.steps = output.with_suffix(".steps.csv")
        self.facts = output.with_suffix(".json")
        self._ours: IO[str] | None = None

    def __enter__(self) -> Files:
        self._new = not self.steps.exists()
        with writing(self.steps, _ROOM):
            self._ours = lock(self.steps)
        if self._ours is None:
            problem = "another calibration is writing here: wait for it, or choose another --output"
            raise InputError(str(self.steps), problem)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._new and self.steps.is_file() and not self.facts.exists() and not self.steps.stat().st_size:
            self.steps.unlink()  # made by us, and nothing came of it
        assert self._ours is not None
        self._ours.close()

    def begin(self, identity: dict[str, Any], described: dict[str, Any], *, fresh: bool = False) -> dict[str, Any]:
        """The facts to go on with: those of a run that ended early, or new ones beside an empty table.

        Raises InputError where other measurements stand there; ``fresh`` writes over them, and over their profile.
        """
        new = {"identity": identity, "machine": described, "complete": False}
        if fresh:
            self.profile.unlink(missing_ok=True)
            self.facts.unlink(missing_ok=True)
        elif self.facts.is_file():
            return self._going_on(identity, described)
        elif self.profile.exists():
            raise InputError(str(self.profile), f"stands here without {self.facts.name}: {_ANEW}")
        with writing(self.steps, _ROOM), self.steps.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(COLUMNS)
        self.note(new)
        return new

    def _going_on(self, identity: Mapping[str, Any], described: Mapping[str, Any]) -> dict[str, Any]:
        before = self._before()
        state = "a finished" if before["complete"] else "an unfinished"
        if before["identity"].get("device") is None:
            before["identity"]["device"] = identity["device"]
        here = {key: described.get(key) for key in _SAME_MACHINE}
        there = {key: before["machine"].get(key) for key in _SAME_MACHINE}
        for asked, found in ((identity, before["identity"]), (here, there)):
            for key, value in asked.items():
                if found.get(key) != value:
                    raise InputError(
                        str(self.facts),
                        f"{state} calibration with {key} {found.get(key)} stands here, asked is {value}: {_ANEW}",
                    )
        if before["complete"]:
            raise InputError(str(self.facts), f"{state} calibration stands here: {_ANEW}")
        return before

    def _before(self) -> dict[str, Any]:
        """The facts that stand there."""
        try:
            facts = json.loads(self.facts.read_text(encoding="utf-8"))
        except ValueError:  # UnicodeDecodeError is one
            facts = None
        wanted = {"identity": dict, "machine": dict, "complete": bool}
        if (
            not isinstance(facts, dict)
            or not all(isinstance(facts.get(key), kind) for key, kind in wanted.items())
            or ("ceilings" in facts) != ("memory" in facts)
        ):
            raise InputError(str(self.facts), f"is not what a calibration writes: remove it, or {_ANEW}")
        return facts

    def note(self, facts: dict[str, Any]) -> None:
        """Write the facts, never half of them."""
        write(self.facts, dumps(facts, indent=2) + "\n", _ROOM)

    def save(self, profile: TabulatedProfile) -> None:
        """Write the profile, never half of it."""
        write(self.profile, dump(profile), _ROOM)

    def write(self, row: dict[str, Any]) -> None:
        """Append one measured step; it is on disk when this returns."""
        with writing(self.steps, _ROOM), self.steps.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)

    def discard(self) -> None:
        """Remove what `begin` has written."""
        self.steps.unlink()
        self.facts.unlink()

    def rows(self, points: Sequence[Point]) -> list[dict[str, Any]]:
        """The rows that are there, of steps of ``points``. A last row cut short by a crash is taken off.

        Raises InputError with the line of a row that no calibration has written.
        """
        try:
            text = self.steps.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InputError(str(self.steps), f"is not UTF-8, so no calibration wrote it: {_ANEW}") from None
        if not text.endswith("\n"):
            text = text[: text.rfind("\n") + 1]
            with writing(self.steps, _ROOM):
                self.steps.write_text(text, encoding="utf-8")
        reader = csv.DictReader(text.splitlines())
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise InputError(f"{self.steps}, line 1", f"is not the heading that a calibration writes: {_ANEW}")
        planned = {point.label: point for point in points}
        found: dict[tuple[str, int], dict[str, Any]] = {}
        for row in reader:
            line = f"{self.steps}, line {reader.line_num}"
            try:
                made = _row(row, planned)
            except ValueError as wrong:
                raise InputError(line, f"{wrong}: mend it, or {_ANEW}") from None
            which = made["rows"], made["round"]
            if which in found:
                raise InputError(line, f"{which[0]!r} stands twice in round {which[1]}: remove one, or {_ANEW}")
            found[which] = made
        return list(found.values())


def _row(row: Mapping[str | None, Any], planned: Mapping[str, Point]) -> dict[str, Any]:
    """A row with its numbers as numbers. Raises ValueError for one that is not of a planned step."""
    if None in row or None in row.values():
        raise ValueError(f"there are not {len(COLUMNS)} values")
    made: dict[str, Any] = {str(name): value for name, value in row.items()}
    for name in (*_WHOLE, *_TIMES, "spread"):
        try:
            made[name] = int(made[name]) if name in _WHOLE else float(made[name])
        except ValueError:
            raise ValueError(f"{name} {made[name]!r} is no number") from None
    for name in _TIMES:
        if not 0 < made[name] < math.inf:
            raise ValueError(f"{name} {made[name]:g} must be > 0 and finite")
    point = planned.get(made["rows"])
    if point is None:
        raise ValueError(f"{made['rows']!r} is no step that would be measured here")
    if made["part"] != point.part or any(made[name] != value for name, value in point.shape._asdict().items()):
        raise ValueError(f"part and shape are not those of {made['rows']!r}")
    return made
