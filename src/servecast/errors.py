"""The one way bad input is reported: a place, what is wrong there, and the remedy, on one line.

Raised only at the edges (files, scenarios, options). Inside, invariants are asserted instead.
"""

from __future__ import annotations


class InputError(Exception):
    """Input a user can mend: ``place`` names where it stands, ``problem`` its value and the remedy.

    The command line prints ``place: problem`` as a single line and exits with status 2.
    """

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(place, problem)  # both, so that it survives pickling and SimPy's copies
        self.place = place
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"

    def moved(self, place: str) -> InputError:
        """The same error at a place that the user knows."""
        return type(self)(place, self.problem)


class SlipError(InputError):
    """A slip of the pen: a key, a kind or a word that nobody knows, or text for a number. No other value mends it."""


class PointError(InputError):
    """A point of a sweep that cannot be: its ``label``, and the ``cause``."""

    def __init__(self, place: str, label: str, cause: InputError) -> None:
        super().__init__(place, f"at {label[:200]}: {cause}")
        self.args = (place, label, cause)  # it is made of them again when it is unpickled
        self.label = label
        self.cause = cause
