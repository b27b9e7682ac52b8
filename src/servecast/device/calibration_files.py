"""The three files of a calibration: profile, steps, facts. What is measured is on disk before the next step begins."""

from __future__ import annotations

import contextlib
import csv
import json
from typing import TYPE_CHECKING, Any

from servecast.batch import StepShape
from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS = (
    "seconds", "iterations", *StepShape._fields, "part", "rows", "round", "repeats", "dropped", "least_s", "most_s",
    "spread", "reference_s", "reference_decode_s",
)  # fmt: skip
"""Of `NAME.steps.csv`: a row for each step and round."""


class Files:
    """Profile, steps and facts of a calibration whose profile is ``output``."""

    def __init__(self, output: Path) -> None:
        if output.suffix not in {".yaml", ".yml"}:
            raise InputError("--output", f"{str(output)!r} is no YAML file: name it like calibration/mine.yaml")
        if not output.parent.is_dir():
            raise InputError("--output", f"there is no folder {output.parent}: make it first")
        self.profile = output
        self.steps = output.with_suffix(".steps.csv")
        self.facts = output.with_suffix(".json")

    def begin(self, identity: dict[str, Any], described: dict[str, Any], *, fresh: bool = False) -> dict[str, Any]:
        """The facts to go on with: those of a run that ended early, or new ones beside an empty table.

        Raises InputError where other measurements stand there; ``fresh`` removes them, and the profile they made.
        """
        new = {"identity": identity, "machine": described, "complete": False}
        if fresh:
            for path in (self.profile, self.steps, self.facts):
                path.unlink(missing_ok=True)
        elif before := self._before():
            for key, value in identity.items():
                if before["identity"].get(key) != value:
                    state = "a finished" if before["complete"] else "an unfinished"
                    raise InputError(
                        str(self.facts),
                        f"{state} calibration with {key} {before['identity'].get(key)} stands here, asked is {value}: "
                        "choose another --output, or measure anew with --fresh",
                    )
            if before["complete"]:
                raise InputError(
                    str(self.facts),
                    "a finished calibration stands here: choose another --output, or measure anew with --fresh",
                )
            return before
        elif self.profile.exists():
            raise InputError(
                str(self.profile),
                f"stands here without {self.facts.name}: choose another --output, or write over it with --fresh",
            )
        with self._written(self.steps), self.steps.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(COLUMNS)
        self.note(new)
        return new

    def _before(self) -> dict[str, Any] | None:
        """The facts that stand there; None without any, or without the steps they are about."""
        if not (self.facts.is_file() and self.steps.is_file()):
            return None
        try:
            facts: dict[str, Any] = json.loads(self.facts.read_text(encoding="utf-8"))
            facts["identity"].get, facts["complete"]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(
                str(self.facts), "is not what a calibration writes: remove it, or measure anew with --fresh"
            ) from None
        return facts

    def note(self, facts: dict[str, Any]) -> None:
        """Write the facts, never half of them."""
        partial = self.facts.with_name(self.facts.name + ".partial")
        with self._written(self.facts):
            partial.write_text(json.dumps(facts, indent=2, allow_nan=False) + "\n", encoding="utf-8")
            partial.replace(self.facts)

    def write(self, row: dict[str, Any]) -> None:
        """Append one measured step; it is on disk when this returns."""
        with self._written(self.steps), self.steps.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)

    def discard(self) -> None:
        """Remove what `begin` has written."""
        self.steps.unlink()
        self.facts.unlink()

    def done(self) -> set[tuple[str, int]]:
        """Label and round of the rows that are there. A last row cut short by a crash is taken off."""
        text = self.steps.read_text(encoding="utf-8")
        if not text.endswith("\n"):
            text = text[: text.rfind("\n") + 1]
            with self._written(self.steps):
                self.steps.write_text(text, encoding="utf-8")
        return {(row["rows"], int(row["round"])) for row in csv.DictReader(text.splitlines())}

    @contextlib.contextmanager
    def _written(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                str(path), f"cannot be written ({error.strerror}): make room and call again, what was measured is kept"
            ) from None
