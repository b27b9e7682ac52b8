"""The runs of a sweep as they come in: kept in the store, put in order, and freed of tables too large to hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.run.points_store import MOST_REQUESTS, Made, key_of
from servecast.run.results import Failure, Outcome, hardware
from servecast.scenario.serving import plan, serving, step_set_aside

if TYPE_CHECKING:
    from servecast.run.points_store import PointsStore
    from servecast.scenario import Point, Scenario
    from servecast.scenario.serving import Serving


class Gathered:
    """What is there of ``work`` (points, each with the place of its policy), by position.

    repeatable : a run made once more is the same; if not, its tables are held however large they are
    resumed : how many runs were found in the store
    tables : whether the requests and decisions of all runs are held; if not, no outcome has a ``run``
    """

    def __init__(
        self, work: list[tuple[Point, int]], store: PointsStore | None = None, *, repeatable: bool = True
    ) -> None:
        self._work = work
        self._store = store
        self._servings: dict[str, Serving] = {}
        self._keys = [] if store is None else [key_of(point, at) for point, at in work]
        self._requests = 0
        self._many = repeatable and len({(point.label, point.seed) for point, _ in work}) > 1
        self.tables = not (self._many and _known_requests(work) > MOST_REQUESTS)
        self.results: dict[int, Outcome | Failure] = {}
        found = {} if store is None else store.restored(self._keys, tables=self.tables)
        for place, key in enumerate(self._keys):
            if key in found:
                self._hold(place, self._outcome(place, found[key]))
        self.resumed = len(self.results)

    @property
    def missing(self) -> list[int]:
        """The positions that are still to be run, in order."""
        return [place for place in range(len(self._work)) if place not in self.results]

    @property
    def outcomes(self) -> list[Outcome]:
        """The runs that were made, in order."""
        return [result for _, result in sorted(self.results.items()) if isinstance(result, Outcome)]

    @property
    def failures(self) -> list[Failure]:
        """The runs that could not be, in order."""
        return [result for _, result in sorted(self.results.items()) if isinstance(result, Failure)]

    def add(self, place: int, result: Outcome | Failure) -> None:
        """Take in what ``work[place]`` gave, and keep it."""
        if isinstance(result, Failure):
            self.results[place] = result
            return
        # What all points of a device share is held once, not as each worker sent it.
        made = Made(result.row, result.beyond, result.notes, result.prompts_failed, result.run, result.tenants)
        self._hold(place, self._outcome(place, made))
        if self._store is not None:
            self._store.add(self._keys[place], made if self.tables else made._replace(run=None))

    def done(self) -> None:
        """All is there: what the store has of other scenarios can go."""
        if self._store is not None:
            self._store.keep_only(self._keys)

    def _hold(self, place: int, outcome: Outcome) -> None:
        self._requests += int(outcome.row["arrived_whole_run"])
        self.results[place] = outcome if self.tables else outcome._replace(run=None)
        if self.tables and self._requests > MOST_REQUESTS and self._many:
            self.tables = False
            self.results = {
                at: result._replace(run=None) if isinstance(result, Outcome) else result
                for at, result in self.results.items()
            }
            if self._store is not None:
                self._store.drop_tables()

    def _outcome(self, place: int, made: Made) -> Outcome:
        point, at = self._work[place]
        label = point.scenario.labels()[at]
        entry = point.scenario.policies[at]
        served = self._serving(point.scenario)
        return Outcome(
            label,
            entry.kind,
            point.label,
            point.swept,
            point.seed,
            made.run,
            {**made.row, "policy": label},
            plan(point.scenario, served, step_set_aside(entry.build())),
            hardware(served),
            made.beyond,
            made.notes,
            made.prompts_failed,
            made.tenants,
        )

    def _serving(self, scenario: Scenario) -> Serving:
        key = scenario.model_dump_json(include={"model", "profile", "device", "engine"})
        if key not in self._servings:
            self._servings[key] = serving(scenario)
        return self._servings[key]


def _known_requests(work: list[tuple[Point, int]]) -> int:
    """How many requests are sure to come, so that workers need not send tables which nobody would hold."""
    loads = [point.scenario.workload for point, _ in work if point.scenario.horizon_s is None]
    return sum(load.requests or 0 for load in loads if load.trace is None and load.servegen is None)
