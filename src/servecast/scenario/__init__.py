"""Scenarios: the file, its schema, its points; what stands behind its names; and the resolved form."""

from servecast.scenario.loading import Point, changed, check, find, load, names, points, resolved, seen_from
from servecast.scenario.schema import Scenario
from servecast.scenario.serving import Serving, serving

__all__ = [
    "Point", "Scenario", "Serving", "changed", "check", "find", "load", "names", "points", "resolved", "seen_from",
    "serving",
]  # fmt: skip
