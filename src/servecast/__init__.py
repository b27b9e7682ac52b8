"""servecast: forecasts of LLM serving from measured kernels.

The Python interface is two functions, and what they need is imported when they are called::

    import servecast

    results = servecast.simulate(servecast.load("quickstart"))
    results.summary  # a data frame, as results.requests and results.decisions
"""

from __future__ import annotations

TYPE_CHECKING = (
    False  # as type checkers know it; to import it would leave an interrupt at start-up nobody to tell of it
)
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from servecast.run.results import Results
    from servecast.scenario import Scenario

__all__ = ["__version__", "load", "simulate"]

__version__ = "0.1.0"


def load(path: str | Path, overrides: Mapping[str, object] | None = None) -> Scenario:
    """Read and check a scenario: a path, or the name of a shipped one; ``overrides`` maps key paths to values.

    Raises `servecast.errors.InputError` with the key path, the value and the remedy.
    """
    from servecast.scenario import load

    return load(path, overrides or {})


def simulate(scenario: Scenario, jobs: int = 1) -> Results:
    """Run every policy, sweep point and seed of a scenario, ``jobs`` at a time."""
    from servecast.run.sweep import simulate

    return simulate(scenario, jobs=jobs)
