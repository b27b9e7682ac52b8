"""From a goal to a plan: surveys every configuration, chooses, and says how sure the choice is.

Each configuration is served at rising and falling loads until its highest one within the goal is bracketed, once a
seed; then the fewest replicas that serve the target are found by simulating them as one system. The best option is
looked at more closely: with the profile's errors, what binds it, and what one change would gain. All of it uses common
random numbers, so that differences are of the configurations and not of the draws.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from servecast.errors import InputError
from servecast.planning.answer import Change, Option, Plan, Tokens, break_even, dollars
from servecast.planning.capacity import fewest, highest_load
from servecast.planning.system import Configuration, Test, binding, busy_shares, known, refusal
from servecast.planning.uncertainty import Draw, Estimate, draws, estimate
from servecast.requests import Status
from servecast.scenario import check, points
from servecast.scenario.goals import Search, at_least
from servecast.scenario.loading import changed as with_changes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servecast.scenario import Scenario
    from servecast.scenario.goals import Goal

#: Below this share of the first load, a server is as good as empty: what fails there fails always.
_EMPTY = 1 / 256
#: Steps of a search that begins near its end.
_NEAR = 1.15


class Surveying(NamedTuple):
    """How far a plan is."""

    made: int
    total: int
    at_work: str


class Found(NamedTuple):
    """Highest loads of one configuration by seed, why the next load fails, and that load."""

    by_seed: list[float]
    reason: str
    failing: float | None
    capped: bool
    tests: int


def make_plan(scenario: Scenario, jobs: int = 1, progress: Callable[[Surveying], None] = lambda progress: None) -> Plan:
    """Search, choose and judge.

    Raises InputError without a goal, without a load that can be scaled, and for targets that cannot be judged.
    """
    goal, search = _wanted(scenario)
    configurations = list(_configurations(scenario, search))
    options: list[Option] = []
    for option in _surveyed(configurations, jobs):
        options.append(option)
        progress(Surveying(len(options), len(configurations) + 1, option.label))
    serving = [at for at, option in enumerate(options) if option.serves]
    notes = _notes(options)
    if not serving:
        return Plan(scenario.name, dict(goal.slo), tuple(options), None, supported=False, notes=notes)
    chosen = min(serving, key=lambda at: _rank(options[at]))
    closer = _closer(configurations[chosen], options[chosen], goal, search)
    progress(Surveying(len(options) + 1, len(configurations) + 1, closer.option.label))
    best = closer.option
    assert best.capacity is not None and best.tokens is not None
    against = None
    if goal.api is not None and best.usd_per_hour is not None:
        api = goal.api
        against = break_even(
            best.usd_per_hour, best.capacity.value, best.tokens, api.usd_per_mtok_input, api.usd_per_mtok_output
        )
    return Plan(
        scenario.name,
        dict(goal.slo),
        tuple(options),
        best,
        supported=not closer.doubts,
        doubts=closer.doubts,
        headroom=Estimate(*(None if end is None else end / best.target - 1 for end in best.capacity)),  # type: ignore[arg-type]
        break_even=against,
        changes=closer.changes,
        notes=notes,
    )


def _wanted(scenario: Scenario) -> tuple[Goal, Search]:
    if scenario.goal is None:
        raise InputError("scenario.goal", "is missing: say what to reach, like goal: {slo: {ttft_p99_s: 1.0}}")
    if "slo_attainment" in scenario.goal.slo and scenario.slo is None:
        raise InputError(
            "scenario.goal.slo.slo_attainment", "counts requests that meet slo:, and the scenario has none: add slo:"
        )
    return scenario.goal, scenario.search or Search.model_validate({})


def _configurations(scenario: Scenario, search: Search) -> Iterator[Configuration]:
    """Every policy at every point of the search; a key that a policy does not have makes no second point of it."""
    over = scenario.model_copy(update={"sweep": search.over, "seeds": 1})
    seen = set()
    for point in points(over):
        for at, entry in enumerate(point.scenario.policies):
            if f"{at} {point.scenario.model_copy(update={'policies': (entry,)})!r}" in seen:
                continue
            seen.add(f"{at} {point.scenario.model_copy(update={'policies': (entry,)})!r}")
            name = scenario.labels()[at]
            yield Configuration(
                f"{name}, {point.label}" if point.label else name,
                point.scenario,
                at,
                point.scenario.replicas or 1,
                point.scenario.router or "least_outstanding",
                point.swept,
            )


def _surveyed(configurations: list[Configuration], jobs: int) -> Iterator[Option]:
    if jobs == 1 or len(configurations) == 1:
        yield from map(survey, configurations)
        return
    from joblib import Parallel, delayed

    # Plain data: the sections of policies do not pickle.
    tasks = (delayed(_survey_data)(each.scenario.model_dump(mode="json"), _fields(each)) for each in configurations)
    yield from Parallel(n_jobs=jobs, return_as="generator")(tasks)


def _fields(configuration: Configuration) -> dict[str, Any]:
    return {key: getattr(configuration, key) for key in ("label", "at", "replicas", "router", "changed")}


def _survey_data(data: dict[str, Any], fields: dict[str, Any]) -> Option:
    return survey(Configuration(scenario=check(data, Path()), **fields))


def survey(configuration: Configuration) -> Option:
    """What one configuration can do; the reason instead, where it cannot run at all."""
    scenario = configuration.scenario
    goal, search = _wanted(scenario)
    load = configuration.load
    if load is None:
        raise InputError("scenario.workload", "sends all requests at once and has no rate: give arrivals with a rate")
    target = _target(configuration, goal)
    try:
        served = configuration.served
        configuration.memory  # noqa: B018 (raises where the model does not fit)
    except InputError as error:
        device = scenario.profile or scenario.device or ""
        split = scenario.engine.tensor_parallel_size or 1
        told = f"{error.place.removeprefix('scenario.')}: {error.problem}"
        return Option(
            configuration.label, configuration.changed, device, scenario.profile is not None, split, load.unit, target,
            configuration.replicas, told,
        )  # fmt: skip
    option = Option(
        configuration.label, configuration.changed, served.device.name, served.cost.calibrated,
        served.tensor_parallel, load.unit, target, configuration.replicas,
        usd_per_hour=_usd_per_hour(configuration, goal, configuration.replicas),
    )  # fmt: skip
    seeds = _seeds(configuration, search)
    found = capacities(configuration, goal, search, configuration.replicas, seeds, target)
    if not found.by_seed:
        return replace(option, refused=found.reason, tests=found.tests)
    capacity = estimate(found.by_seed)
    option = replace(
        option,
        capacity=capacity,
        unstable_above=capacity.value if found.capped or found.reason.startswith("unstable") else None,
        tests=found.tests,
    )
    option = _with_money(option, configuration, seeds[0])
    count = _replicas_for(configuration, goal, search, seeds, target, capacity.value)
    if count is None:
        return replace(option, refused=_why_not(configuration, search, capacity, target, found))
    at_target = _at_target(configuration, goal, target, count, seeds, ())
    return replace(
        option, target_replicas=count, target_gpus=count * served.tensor_parallel, at_target=at_target
    )  # fmt: skip


def capacities(
    configuration: Configuration,
    goal: Goal,
    search: Search,
    replicas: int,
    seeds: list[int],
    start: float,
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
            ceiling=_ceiling(configuration, seed, replicas),
            tolerance=search.tolerance,
            step=_NEAR if near else 2.0,
            floor=start * _EMPTY,
            whole=load.whole,
        )
        tests += bracket.tests
        why = refused.get(bracket.high, "") if bracket.high is not None else ""
        if bracket.low is None:
            return Found([], why, bracket.high, False, tests)
        if not near:
            reason, failing, capped = why, bracket.high, bracket.capped
        by_seed.append(bracket.low)
    return Found(by_seed, reason, failing, capped, tests)


def _ceiling(configuration: Configuration, seed: int, replicas: int) -> float:
    """Beyond what a burst is served at, no load is stable; there are no more users than requests."""
    load = configuration.load
    assert load is not None
    if load.whole:
        requests = configuration.scenario.workload.requests
        assert requests is not None, "the schema wants it of a closed loop"
        return float(requests * replicas)
    return configuration.saturation(seed, replicas)


def _target(configuration: Configuration, goal: Goal) -> float:
    load = configuration.load
    assert load is not None
    if goal.rate_rps is None:
        return load.own
    if load.unit != "requests/s":
        raise InputError(
            "scenario.goal.rate_rps", f"{goal.rate_rps:g}, but the load counts in {load.unit}: leave it out"
        )
    return goal.rate_rps


def _seeds(configuration: Configuration, search: Search) -> list[int]:
    first = configuration.scenario.workload.seed
    workload = configuration.scenario.workload
    # A trace as recorded is the same with every seed.
    drawn = workload.trace is None or getattr(workload.trace, "rate_rps", None) is not None
    return list(range(first, first + (search.seeds if drawn else 1)))


def _replicas_for(
    configuration: Configuration, goal: Goal, search: Search, seeds: list[int], target: float, capacity: float
) -> int | None:
    """The fewest replicas that serve the target, simulated as one system; those given, where they are given."""

    def serve(count: int) -> bool:
        tests = [configuration.test(goal, target, seed, count) for seed in seeds]
        ceiling = float(np.mean([_ceiling(configuration, seed, count) for seed in seeds]))
        return target <= ceiling and not _refusal(tests, goal)

    fixed = configuration.scenario.replicas
    if fixed is not None:
        return fixed if configuration.gpus(fixed) <= search.most_gpus and serve(fixed) else None
    guess, most = _guessed(configuration, search, target, capacity)
    return fewest(serve, guess, most) if guess <= most else None


def _guessed(configuration: Configuration, search: Search, target: float, capacity: float) -> tuple[int, int]:
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


def _why_not(configuration: Configuration, search: Search, capacity: Estimate, target: float, found: Found) -> str:
    load = configuration.load
    assert load is not None
    beyond = f"{found.reason or 'unstable'} above {capacity.value:.3g} {load.unit}"
    if configuration.scenario.replicas is not None:
        return f"{beyond}, target {target:.3g}"
    _, most = _guessed(configuration, search, target, capacity.value)
    gpus = configuration.gpus(most) if most else search.most_gpus
    return f"more than {gpus} GPU{'s' if gpus > 1 else ''}: {beyond} on one replica"


def _at_target(
    configuration: Configuration, goal: Goal, target: float, replicas: int, seeds: list[int], drawn: tuple[Draw, ...]
) -> dict[str, Estimate]:
    """Every statistic of the goal at the target, and the goodput."""
    rows = {seed: configuration.row(target, seed, replicas) for seed in seeds}
    names = [*goal.slo, *(["goodput_rps"] if configuration.scenario.slo is not None else [])]
    differences: dict[str, list[float]] = {name: [] for name in names}
    for at, draw in enumerate(drawn):
        seed = seeds[at % len(seeds)]
        row = configuration.row(target, seed, replicas, draw)
        for name in names:
            there, here = known(row, name), known(rows[seed], name)
            if there is not None and here is not None:
                differences[name].append(there - here)
    found = {}
    for name in names:
        values = [value for row in rows.values() if (value := known(row, name)) is not None]
        if values:
            found[name] = estimate(values, differences[name])
    return found


class _Closer(NamedTuple):
    option: Option
    doubts: tuple[str, ...]
    changes: tuple[Change, ...]


def _closer(configuration: Configuration, option: Option, goal: Goal, search: Search) -> _Closer:
    """The best option as the system that serves the target: with all intervals, what binds it, what would help."""
    replicas, target = option.target_replicas, option.target
    assert replicas is not None and option.capacity is not None
    seeds = _seeds(configuration, search)
    # The same search again is already made; a larger system is looked for near so many times one replica.
    same = replicas == configuration.replicas
    guess = target if same else option.capacity.value * replicas / configuration.replicas
    found = capacities(configuration, goal, search, replicas, seeds, guess)
    assert found.by_seed, "it serves the target"
    system = configuration.serve(target, seeds[0], replicas)[1]
    drawn = tuple(draws(configuration.served.profile, configuration.served.cost, search.draws, busy_shares(system)))
    loads = [
        _drawn_capacity(configuration, goal, search, replicas, seeds, found, at, drawn) for at in range(len(drawn))
    ]
    differences = [load - found.by_seed[at % len(seeds)] for at, load in enumerate(loads)]
    capacity = estimate(found.by_seed, differences)
    beyond = found.failing or found.by_seed[0] * (1 + search.tolerance)
    row, failing = configuration.serve(beyond, seeds[0], replicas)
    bound = binding(row, failing, configuration.policy, found.reason)
    best = replace(
        option,
        replicas=replicas,
        capacity=capacity,
        unstable_above=capacity.value if found.capped or found.reason.startswith("unstable") else None,
        usd_per_hour=_usd_per_hour(configuration, goal, replicas),
        at_target=_at_target(configuration, goal, target, replicas, seeds, drawn),
        binds=bound.name,
        binds_share=bound.share,
        tests=option.tests + found.tests,
    )
    best = _with_money(best, configuration, seeds[0])
    changes = _changes(configuration, goal, search, best, found.by_seed[0]) if search.try_changes else ()
    return _Closer(best, tuple(_doubts(best, goal, configuration)), changes)


def _drawn_capacity(
    configuration: Configuration, goal: Goal, search: Search, replicas: int, seeds: list[int], found: Found, at: int,
    drawn: tuple[Draw, ...],
) -> float:  # fmt: skip
    """The highest load within the goal if step times were as drawn; 0 if there is none."""
    load, draw, seed = configuration.load, drawn[at], seeds[at % len(seeds)]
    assert load is not None
    start = found.by_seed[at % len(seeds)]
    bracket = highest_load(
        lambda tried: not configuration.test(goal, tried, seed, replicas, draw).refused,
        start,
        tolerance=search.tolerance,
        step=_NEAR,
        floor=start * _EMPTY,
        ceiling=_ceiling(configuration, seed, replicas) / (1 if load.whole else draw.step_time_scale),
        whole=load.whole,
    )
    return bracket.low or 0.0


def _doubts(best: Option, goal: Goal, configuration: Configuration) -> Iterator[str]:
    """Why the interval does not support the plan."""
    if not best.calibrated:
        yield "step times come from a datasheet, whose error nobody knows"
    assert best.capacity is not None
    if best.capacity.low is None:
        yield "one seed and no errors of the profile: there is no interval"
    elif best.capacity.low < best.target:
        yield f"the highest load may be as low as {best.capacity.low:.3g} {best.unit}, the target is {best.target:.3g}"
    for name, target in goal.slo.items():
        told = best.at_target.get(name)
        if told is None or told.low is None or told.high is None:
            continue
        bad = told.low if at_least(name) else told.high
        if bad < target if at_least(name) else bad > target:
            yield f"{name} may be {bad:.3g} at the target load, {target:g} is wanted"


def _usd_per_hour(configuration: Configuration, goal: Goal, replicas: int) -> float | None:
    cost = configuration.scenario.cost
    price = goal.usd_per_gpu_hour.get(configuration.served.device.name, None if cost is None else cost.usd_per_gpu_hour)
    return None if price is None else price * configuration.gpus(replicas)


def _with_money(option: Option, configuration: Configuration, seed: int) -> Option:
    """Tokens of a mean request, and dollars where a price is known and the load is a rate."""
    assert option.capacity is not None
    requests = configuration.serve(option.capacity.value, seed, option.replicas)[1].run.requests
    done = requests["status"] == Status.COMPLETED
    tokens = Tokens(float(requests["prompt_tokens"][done].mean()), float(requests["generated_tokens"][done].mean()))
    capacity = option.capacity
    option = replace(option, tokens=tokens)
    if option.usd_per_hour is None or option.unit != "requests/s":
        return option
    return replace(option, usd_per_mtok=dollars(option.usd_per_hour, capacity, tokens))


def _rank(option: Option) -> tuple[float, float, float]:
    assert option.target_gpus is not None and option.capacity is not None
    dollars = option.usd_for_target
    return option.target_gpus, math.inf if dollars is None else dollars, -option.capacity.value / option.gpus


def _notes(options: list[Option]) -> tuple[str, ...]:
    notes = []
    priced = [option for option in options if option.usd_for_target is not None]
    if priced:
        cheapest = min(priced, key=lambda option: option.usd_for_target or 0.0)
        fewest_gpus = min(priced, key=_rank)
        if (cheapest.usd_for_target or 0.0) < (fewest_gpus.usd_for_target or 0.0):
            notes.append(
                f"Cheaper with more GPUs: {cheapest.label}, {cheapest.target_gpus} GPUs, "
                f"${cheapest.usd_for_target:,.2f} an hour instead of ${fewest_gpus.usd_for_target:,.2f}."
            )
    return tuple(notes)


def _changes(
    configuration: Configuration, goal: Goal, search: Search, best: Option, before: float
) -> tuple[Change, ...]:
    """One change at a time, tried with the first seed; the best first."""
    tried = []
    for changed in _candidates(configuration):
        label = ", ".join(f"{key.rsplit('.', 1)[-1]}={_told(value)}" for key, value in changed.items())
        try:
            scenario = check(with_changes(configuration.scenario.model_dump(mode="json"), changed), Path())
            other = Configuration(
                label, scenario, configuration.at, best.replicas, configuration.router, configuration.changed
            )
            found = capacities(other, goal, search, best.replicas, _seeds(other, search)[:1], before)
        except InputError as error:
            tried.append(Change(label, None, None, error.problem))
            continue
        if not found.by_seed:
            tried.append(Change(label, None, None, found.reason))
            continue
        gain = found.by_seed[0] / other.gpus(best.replicas) / (before / configuration.gpus(best.replicas)) - 1
        tried.append(Change(label, found.by_seed[0], gain))
    return tuple(sorted(tried, key=lambda change: -math.inf if change.gain_per_gpu is None else -change.gain_per_gpu))


def _told(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _candidates(configuration: Configuration) -> Iterator[dict[str, Any]]:
    """Changes that may help: batch limits up and down, more room for KV, smaller KV, more GPUs a replica."""
    scenario, at = configuration.scenario, configuration.at
    values = scenario.policies[at].parameters()
    for key in ("max_num_seqs", "max_num_batched_tokens", "batch_size"):
        if key in values:
            floor = values.get("max_num_seqs", 1) if key == "max_num_batched_tokens" else 1
            for value in (values[key] * 2, values[key] // 2):
                if value >= floor and value <= values.get("max_num_batched_tokens", math.inf) * 2:
                    yield _raised(f"policies[{at}].", key, value, values)
    if configuration.served.memory_share < 0.95 and scenario.engine.kv_blocks is None:
        yield {"engine.gpu_memory_utilization": 0.95}
    if scenario.profile is None:
        if scenario.engine.kv_cache_dtype == "auto":
            yield {"engine.kv_cache_dtype": "fp8"}
        yield {"engine.tensor_parallel_size": configuration.served.tensor_parallel * 2}


def _raised(above: str, key: str, value: int, values: dict[str, Any]) -> dict[str, Any]:
    """A batch limit with what must follow it: the budget is at least the number of sequences."""
    changed = {above + key: value}
    if key == "max_num_seqs" and value > values["max_num_batched_tokens"]:
        changed[above + "max_num_batched_tokens"] = value
    return changed
