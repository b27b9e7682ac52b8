"""How far a command is, and how long the rest will take."""

from __future__ import annotations

from typing import NamedTuple


class Progress(NamedTuple):
    """Made (with the share of the one being made), in all, and which is at work.

    found : how many of those made were there from an earlier sitting: they took no time in this one
    """

    made: float
    total: int
    at_work: str
    found: int = 0

    def seconds_left(self, elapsed_s: float) -> float | None:
        """Seconds that what is missing will take, at the pace of this sitting; None before anything was made in it."""
        made = self.made - self.found
        return elapsed_s / made * (self.total - self.made) if made > 0 else None
