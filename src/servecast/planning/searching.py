"""One configuration against a goal: its highest load for each seed, and the fewest replicas that serve the target."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from servecast.errors import InputError
from servecast.planning.capacity import fewest, highest_load
from servecast.planning.system import known, refusal
from servecast.planning.uncertainty import estimate
from servecast.scenario.goals import at_least

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servecast.planning.system import Configuration, Test
    from servecast.planning.uncertainty import Draw, Estimate
    from servecast.scenario.goals import Goal, Search

#: Below this share of the first load, a server is as good as empty: what fails there fails always.
EMPTY = 1 / 256
#: Steps of a search that begins near its end.
NEAR = 1.15


class Found(NamedTuple):
    """Highest loads of one configuration by seed, why the next load fails, and that load.

    slack : share by which each of them may be too low: the width of its bracket
    """

    by_seed: list[float]
    reason: str
    failing: float | None
    capped: bool
    tests: int
    slack: float = 0.0

    @property
    def unstable(self) -> bool:
        """Whether it is the queue that ends it."""
        return self.capped or self.reason.startswith("unstable")

    def capacity(self, drawn: Sequence[tuple[float, float]] = ()) -> Estimate:
        """The highest load with its interval."""
        return estimate(self.by_seed, drawn, slack=self.slack)


def capacities(
    configuration: Configuration, goal: Goal, search: Search, replicas: int, seeds: Sequence[int], start: float
) -> Found:
    """The highest load within the goal for each seed: the first from ``start``, the others from where it ended.

    No seed counts where one of them meets the goal at no load.
    """
    load = configuration.load
    assert load is not None
    by_seed: list[float] = []
    reason, failing, capped, tests = "", None, False, 0
    for seed in seeds:
        refused: dict[float, str] = {}

        def meets(at: float, seed: int = seed, refused: dict[float, str] = refused) -> bool:
            refused[at] = configuration.test(goal, at, seed, replicas).refused
            return not refused[at]

        near = bool(by_seed)
        bracket = highest_load(
            meets,
            by_seed[0] if near else start,
            ceiling=ceiling(configuration, seed, replicas),
            tolerance=search.tolerance,
            step=NEAR if near else 2.0,
            floor=start * EMPTY,
            whole=load.whole,
        )
        tests += bracket.tests
        why = refused.get(bracket.high, "") if bracket.high is not None else ""
        if bracket.low is None:
            return Found([], why, bracket.high, False, tests)
        if not near:
            reason, failing, capped = why, bracket.high, bracket.capped
        by_seed.append(bracket.low)
    exact = load.whole and min(by_seed) * search.tolerance < 1
    return Found(by_seed, reason, failing, capped, tests, 0.0 if exact or capped else search.tolerance)


def capacity_drawn(
    configuration: Configuration, goal: Goal, search: Search, replicas: int, seed: int, start: float, draw: Draw
) -> float:
    """The highest load within the goal if step times were as drawn; 0 if there is none."""
    load = configuration.load
    assert load is not None
    bracket = highest_load(
        lambda tried: not configuration.test(goal, tried, seed, replicas, draw).refused,
        start,
        tolerance=search.tolerance,
        step=NEAR,
        floor=start * EMPTY,
        ceiling=ceiling(configuration, seed, replicas, draw),
        whole=load.whole,
    )
    return bracket.low or 0.0


def ceiling(configuration: Configuration, seed: int, replicas: int, draw: Draw | None = None) -> float:
    """Beyond what a burst is served at, no load is stable; there are no more users than requests."""
    load = configuration.load
    assert load is not None
    if load.whole:
        requests = configuration.scenario.workload.requests
        assert requests is not None, "the schema wants it of a closed loop"
        return float(requests * replicas)
    return configuration.saturation(seed, replicas, draw)


def target_of(configuration: Configuration, goal: Goal) -> float:
    """The load to be served.

    Raises InputError for a rate that the workload does not count in.
    """
    load = configuration.load
    assert load is not None
    if goal.rate_rps is None:
        return load.own
    if load.unit != "requests/s":
        raise InputError(
            "scenario.goal.rate_rps", f"{goal.rate_rps:g}, but the load counts in {load.unit}: leave it out"
        )
    return goal.rate_rps


def seeds_of(configuration: Configuration, count: int) -> list[int]:
    """So many seeds; one where another would change nothing."""
    first = configuration.scenario.workload.seed
    load = configuration.load
    assert load is not None
    return list(range(first, first + (count if load.drawn else 1)))


def replicas_for(
    configuration: Configuration, goal: Goal, search: Search, seeds: Sequence[int], target: float, capacity: float
) -> int | None:
    """The fewest replicas that serve the target, simulated as one system; those given, where they are given."""

    def serve(count: int) -> bool:
        tests = [configuration.test(goal, target, seed, count) for seed in seeds]
        most = float(np.mean([ceiling(configuration, seed, count) for seed in seeds]))
        return target <= most and not _refusal(tests, goal)

    fixed = configuration.scenario.replicas
    if fixed is not None:
        return fixed if configuration.gpus(fixed) <= search.most_gpus and serve(fixed) else None
    guess, most = guessed(configuration, search, target, capacity)
    return fewest(serve, guess, most) if guess <= most else None


def guessed(configuration: Configuration, search: Search, target: float, capacity: float) -> tuple[int, int]:
    """Replicas for the target if they did not share it, and how many to try: where twice as many do not, more do not.

    All together never serve more than each for itself would, so that more than may be had need not be tried.
    """
    guess = max(1, math.ceil(target / capacity * (1 - search.tolerance)))
    return guess, min(max(2 * guess, guess + 2), search.most_gpus // configuration.served.tensor_parallel)


def _refusal(tests: list[Test], goal: Goal) -> str:
    """Why runs with several seeds do not meet the goal: one of them fails, or their mean misses a target."""
    for test in tests:
        if test.unstable:
            return test.refused
    row = dict(tests[0].row)
    for name in ("oom_failed", "rejected"):
        row[name] = max(int(test.row[name] or 0) for test in tests)
    for name in goal.slo:
        values = [value for test in tests if (value := known(test.row, name)) is not None]
        row[name] = float(np.mean(values)) if values else None
    return refusal(row, goal)


def statistics(
    configuration: Configuration, goal: Goal, target: float, replicas: int, seeds: Sequence[int],
    drawn: Sequence[Draw] = (),
) -> dict[str, Estimate]:  # fmt: skip
    """Every statistic of the goal at the target, and the goodput. A time has no bound where a draw is unstable."""
    names = dict.fromkeys([*goal.slo, *(["goodput_rps"] if configuration.judges else [])])
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for at, draw in enumerate(drawn):
        seed = seeds[at % len(seeds)]
        here = configuration.sample(target, seed, replicas).row
        test = configuration.test(goal, target, seed, replicas, draw)
        unstable = test.unstable or target > ceiling(configuration, seed, replicas, draw)
        for name in names:
            with_profile, with_draw = known(here, name), known(test.row, name)
            if with_profile is not None and with_draw is not None:
                endless = unstable and not at_least(name) and name in goal.slo
                pairs[name].append((with_profile, math.inf if endless else with_draw))
    found = {}
    for name in names:
        rows = (configuration.sample(target, seed, replicas).row for seed in seeds)
        values = [value for row in rows if (value := known(row, name)) is not None]
        if values:
            found[name] = estimate(values, pairs[name], most=1.0 if at_least(name) else math.inf)
    return found
