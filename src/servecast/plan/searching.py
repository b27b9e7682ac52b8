"""One configuration against a goal: its highest load for each seed, and the fewest replicas that serve the target.

Short runs flatter: they begin with an empty server, and a queue near saturation takes long to become what it will be.
So where requests are made, runs are lengthened: to at least `LEAST` requests and `ROWS` times those in service at once,
then doubled until the highest load moves by no more than ``search.half_width``. What it moved last stands in the
interval (see `uncertainty.estimate`).
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from servecast.plan.capacity import fewest, highest_load
from servecast.plan.configuration import judges
from servecast.plan.sample import Why, known, refusal
from servecast.plan.uncertainty import estimate
from servecast.scenario.goals import at_least

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servecast.plan.configuration import Configuration
    from servecast.plan.sample import Refusal
    from servecast.plan.uncertainty import Draw, Estimate

#: Below this share of the first load, a server is as good as empty: what fails there fails always.
EMPTY = 1 / 256
#: Steps of a search that begins near its end, and at it.
NEAR, AT = 1.15, 1.05
#: Requests of a lengthened run for each replica, at least, and times those in service at once.
LEAST, ROWS = 2_000, 40
#: So many times shorter are runs of which only differences count: with drawn step times, or with one change.
SHORTER = 4
#: Beyond so many times what each serves in a burst, replicas together serve no more.
_POOLED = 1.1
#: Loads so close are the same.
_EQUAL = 1 + 1e-12


class Found(NamedTuple):
    """Highest loads of one configuration by seed, why the next load fails, and that load.

    slack : share by which each of them may be too low: the width of its bracket
    drift : by which share runs half as long gave more; None if that was not tried
    """

    by_seed: list[float]
    reason: Refusal | None
    failing: float | None
    capped: bool
    tests: int
    slack: float = 0.0
    drift: float | None = None

    @property
    def mean(self) -> float:
        """The mean of the highest loads; 0 if there is none."""
        return float(np.mean(self.by_seed)) if self.by_seed else 0.0

    @property
    def unstable(self) -> bool:
        """Whether it is the queue that ends it."""
        return self.capped or (self.reason is not None and self.reason.why is Why.UNSTABLE)

    @property
    def why(self) -> str:
        """The reason in words."""
        return "unstable" if self.reason is None else self.reason.text

    def capacity(self, drawn: Sequence[tuple[float, float]] = ()) -> Estimate:
        """The highest load with its interval."""
        return estimate(self.by_seed, drawn, slack=self.slack, drift=self.drift or 0.0)


class _DoesNotFitError(Exception):
    """Requests are too long for the engine, at whichever load they come."""

    def __init__(self, refused: Refusal, load: float) -> None:
        super().__init__(refused.text)
        self.found = Found([], refused, load, False, 1)


def _meets(configuration: Configuration, load: float, seed: int) -> bool:
    """Whether the goal is met at a load. Raises _DoesNotFitError where no other load would be met either."""
    refused = configuration.test(load, seed)
    if refused is not None and refused.why is Why.REJECTED:
        raise _DoesNotFitError(refused, load)
    return refused is None


def capacities(configuration: Configuration, seeds: Sequence[int], start: float, around: Sequence[float] = ()) -> Found:
    """The highest load within the goal for each seed: the first from ``start``, the others from where it ended.

    around : where to look for the first seeds' instead, in small steps
    No seed counts where one of them meets the goal at no load.
    """
    try:
        return _capacities(configuration, seeds, start, around)
    except _DoesNotFitError as error:
        return error.found


def _capacities(configuration: Configuration, seeds: Sequence[int], start: float, around: Sequence[float]) -> Found:
    by_seed: list[float] = []
    reason: Refusal | None = None
    failing, capped, tests = None, False, 0
    for place, seed in enumerate(seeds):
        near = bool(by_seed) or place < len(around)
        most = configuration.ceiling(seed)
        bracket = highest_load(
            partial(_meets, configuration, seed=seed),
            around[place] if place < len(around) else by_seed[0] if by_seed else start,
            ceiling=most,
            tolerance=configuration.search.tolerance,
            step=NEAR if near else 2.0,
            floor=min(start, most) * EMPTY,  # a target far above what one can serve is no load to begin from
            whole=configuration.load.whole,
        )
        tests += bracket.tests
        why = None if bracket.high is None else configuration.test(bracket.high, seed)
        if bracket.low is None:
            return Found([], why, bracket.high, False, tests)
        if not by_seed:
            reason, failing, capped = why, bracket.high, bracket.capped
        by_seed.append(bracket.low)
    exact = configuration.load.whole and min(by_seed) * configuration.search.tolerance < 1
    return Found(by_seed, reason, failing, capped, tests, 0.0 if exact or capped else configuration.search.tolerance)


def settled(configuration: Configuration, seeds: Sequence[int]) -> tuple[Configuration, Found]:
    """The highest loads in runs that are long enough for them, and the configuration that makes runs so long."""
    search, own = configuration.search, configuration.scenario.workload.requests
    found = capacities(configuration, seeds, configuration.target)
    if not configuration.load.made or not found.by_seed or own is None or search.most_requests <= own:
        return configuration, found
    rows = max(configuration.sample(at, seed).most_rows for at, seed in zip(found.by_seed, seeds, strict=True))
    requests = max(own, min(math.ceil(max(LEAST, ROWS * rows) / 2), search.most_requests // 2))
    tests = found.tests
    if requests > own:
        configuration, found = _longer(configuration, seeds, found, requests)
        tests += found.tests
    while found.by_seed and requests < search.most_requests:
        requests = min(requests * 2, search.most_requests)
        configuration, longer = _longer(configuration, seeds, found, requests)
        tests += longer.tests
        found = longer._replace(drift=found.mean / longer.mean - 1 if longer.by_seed else None)
        if found.drift is not None and abs(found.drift) <= search.half_width:
            break
    return configuration, found._replace(tests=tests)


def _longer(
    configuration: Configuration, seeds: Sequence[int], found: Found, requests: int
) -> tuple[Configuration, Found]:
    longer = configuration.varied(requests=requests)
    return longer, capacities(longer, seeds, found.mean, found.by_seed)


def together(configuration: Configuration, seeds: Sequence[int]) -> Found:
    """The highest loads of the replicas as one system; a target that a seed meets is in its own."""
    target = configuration.target
    found = capacities(configuration, seeds, target, [target])
    pairs = zip(found.by_seed, seeds, strict=False)  # none where one of them meets the goal at no load
    return found._replace(
        by_seed=[
            target if load < target <= configuration.ceiling(seed) and configuration.meets(target, seed) else load
            for load, seed in pairs
        ]
    )


def shortened(configuration: Configuration) -> Configuration:
    """The configuration with runs that are enough for differences, with the same random numbers on both sides."""
    requests = configuration.requests
    return configuration if requests is None else configuration.varied(requests=requests // SHORTER)


def drawn_pairs(
    configuration: Configuration, seeds: Sequence[int], drawn: Sequence[Draw], start: float
) -> tuple[tuple[float, float], ...]:
    """The highest load with the profile and with each of its draws (0 if there is none), as the search has it."""
    if not drawn:
        return ()
    brief = shortened(configuration)
    used = seeds[: len(drawn)]
    by_seed = capacities(brief, used, start, [start] * len(used)).by_seed
    pairs = []
    for at, draw in enumerate(drawn if by_seed else ()):
        here, seed = by_seed[at % len(used)], used[at % len(used)]
        bracket = highest_load(
            partial(brief.meets, seed=seed, draw=draw),
            here / draw.step_time_scale,
            tolerance=brief.search.tolerance,
            step=AT,
            floor=here * EMPTY,
            ceiling=brief.ceiling(seed, draw),
            whole=brief.load.whole,
        )
        pairs.append((here, bracket.low or 0.0))
    return tuple(pairs)


def replicas_for(configuration: Configuration, seeds: Sequence[int], capacity: float) -> int | None:
    """The fewest replicas that serve the target, simulated as one system; those given, where they are given."""

    def serve(count: int) -> bool:
        return serves(configuration.varied(replicas=count), seeds)

    fixed = configuration.scenario.replicas
    if fixed is not None:
        return fixed if fixed <= configuration.most_replicas and serve(fixed) else None
    guess, most = guessed(configuration, capacity)
    # Sharing a router they may carry more than each for itself, within a latency, but hardly more work.
    one = configuration.varied(replicas=1)
    if most < 1 or one.ceiling(seeds[0]) * most * _POOLED < configuration.target:
        return None
    return fewest(serve, min(guess, most), most)


def serves(configuration: Configuration, seeds: Sequence[int]) -> bool:
    """Whether the replicas together meet the goal at the target, and their highest load reaches it."""
    target = configuration.target
    refused = [configuration.test(target, seed) for seed in seeds]
    if any(each is not None and each.why is Why.UNSTABLE for each in refused):
        return False
    if _mean_refused(configuration, seeds):
        return False
    if target <= min(configuration.ceiling(seed) for seed in seeds) and not any(refused):
        return True  # each seed's highest load is at least the target
    return together(configuration, seeds).mean * _EQUAL >= target


def guessed(configuration: Configuration, capacity: float) -> tuple[int, int]:
    """Replicas for the target if they did not share it, and the most to try: where twice as many fail, more do."""
    guess = max(1, math.ceil(configuration.target / capacity * (1 - configuration.search.tolerance)))
    return guess, min(max(2 * guess, guess + 2), configuration.most_replicas)


def _mean_refused(configuration: Configuration, seeds: Sequence[int]) -> bool:
    """Whether some seed loses requests, or the mean over seeds misses a target."""
    rows = [configuration.sample(configuration.target, seed).row for seed in seeds]
    row = dict(rows[0])
    for name in ("oom_failed", "rejected"):
        row[name] = max(int(each[name] or 0) for each in rows)
    for name in configuration.goal.slo:
        values = [value for each in rows if (value := known(each, name)) is not None]
        row[name] = float(np.mean(values)) if values else None
    return refusal(row, configuration.goal) is not None


def statistics(configuration: Configuration, seeds: Sequence[int], drawn: Sequence[Draw] = ()) -> dict[str, Estimate]:
    """Every statistic of the goal at the target, and the goodput. A time has no bound where a draw is unstable."""
    target, slo = configuration.target, configuration.goal.slo
    names = dict.fromkeys([*slo, *(["goodput_rps"] if judges(configuration.scenario) else [])])

    def of(seed: int, draw: Draw | None = None) -> dict[str, float | None]:
        found = configuration.sample(target, seed, draw)
        # Good requests a second of those that come: over the makespan the ramp and the drain would count too.
        share, rate = found.good_share, configuration.rate(target, seed)
        goodput = None if share is None or rate is None else share * rate
        return {name: known(found.row, name) for name in slo} | {"goodput_rps": goodput}

    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for at, draw in enumerate(drawn):
        seed = seeds[at % len(seeds)]
        here, there = of(seed), of(seed, draw)
        refused = configuration.test(target, seed, draw)
        unstable = refused is not None and refused.why is Why.UNSTABLE
        unstable = unstable or target > configuration.ceiling(seed, draw)
        for name in names:
            with_profile, with_draw = here[name], there[name]
            if with_profile is not None and with_draw is not None:
                endless = unstable and name in slo and not at_least(name)
                pairs[name].append((with_profile, math.inf if endless else with_draw))
    found = {}
    for name in names:
        values = [value for seed in seeds if (value := of(seed)[name]) is not None]
        if values:
            found[name] = estimate(values, pairs[name], most=1.0 if at_least(name) else math.inf)
    return found
