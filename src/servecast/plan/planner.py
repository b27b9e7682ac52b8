"""From a goal to a plan: surveys every configuration, chooses, and says how sure the choice is.

Each configuration is served at rising and falling loads until its highest one within the goal is bracketed, once a
seed, in runs that are long enough for it; then the fewest replicas are found that serve the target, simulated as one
system whose own highest load reaches it. The best option is looked at more closely: with more seeds, what binds it, and
what one change would gain. All of it uses common random numbers, so that differences are of the configurations and not
of the draws. Every option's interval is of its seeds and of the profile's errors. With a store every simulated load
is kept at once, and a plan that was stopped goes on where it was.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servecast.cost import profile as profiles
from servecast.errors import InputError, PointError, SlipError
from servecast.plan.answer import BreakEven, Option, Plan, break_even
from servecast.plan.best import at_the_target, drawn_of, enough, examined, saturation, with_extrapolation, with_money
from servecast.plan.configuration import Configuration, judges
from servecast.plan.load import load_of
from servecast.plan.searching import drawn_pairs, guessed, replicas_for, settled, statistics, together
from servecast.plan.uncertainty import estimate
from servecast.run.sweep import Progress, notes_of
from servecast.run.too_long import TooLong
from servecast.scenario.goals import Search
from servecast.scenario.loading import grid
from servecast.scenario.traffic import traffic
from servecast.specs import catalogue
from servecast.text import listed, short_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from servecast.plan.searching import Found
    from servecast.run.store import Store
    from servecast.scenario import Point, Scenario
    from servecast.scenario.goals import Goal


def make_plan(
    scenario: Scenario,
    jobs: int = 1,
    progress: Callable[[Progress], None] = lambda progress: None,
    store: Store | None = None,
) -> Plan:
    """Search, choose and judge; simulated loads are taken from ``store`` and kept there.

    Raises InputError without a goal, without a load that can be scaled, and for targets that cannot be judged.
    """
    goal, search = _wanted(scenario)
    _require_priced_devices(scenario, goal, search)
    searched = list(_configurations(scenario, search, store))
    digests = {each.digest for each in searched if isinstance(each, Configuration)}
    # Counted now: what this sitting adds was not there before.
    resumed = 0 if store is None else store.count(digests)
    total = len(searched) + 1
    options: list[Option] = []
    progress(Progress(0, total, scenario.name))
    for option in _surveyed(searched, jobs):
        options.append(option)
        progress(Progress(len(options), total, option.label))
    chosen = _chosen(searched, options)
    notes = (
        *_unused_prices(goal, options),
        *notes_of(traffic(scenario.workload, scenario.engine.block_size)),
        *_notes(options),
    )
    plan = Plan(scenario.name, dict(goal.slo), tuple(options), None, supported=False, notes=notes, resumed=resumed)
    if chosen is not None:
        configuration = _with_requests(searched[chosen], options[chosen])
        plan, looked_at = examined(replace(plan, best=options[chosen]), configuration)
        digests |= looked_at
        assert plan.best is not None
        # What the closer look found of the system that serves the target.
        fields = ("fleet_capacity", "at_target", "usd_at_target", "prices", "offered", "extrapolated", "beyond")
        options[chosen] = replace(options[chosen], **{name: getattr(plan.best, name) for name in fields})
        progress(Progress(total, total, plan.best.label))
        plan = _with_prices(replace(plan, options=tuple(options)), goal)
    if store is not None:  # all is there: what it has of other scenarios can go
        store.keep_only(digests)
    return plan


def _with_prices(plan: Plan, goal: Goal) -> Plan:
    """The plan with its cheapest option, and from which load on that, or else the best one, costs less than an API."""
    cheapest = _cheapest(plan.options)
    compared = plan.best if cheapest is None else plan.options[cheapest]
    assert compared is not None
    found = _against_api(compared, goal)
    return replace(
        plan,
        break_even=found,
        cheapest="" if cheapest is None else compared.label,
        break_even_of="" if found is None else compared.label,
    )


def _chosen(searched: Sequence[Configuration | Option], options: list[Option]) -> int | None:
    """The option with the fewest GPUs; it and the cheapest serve the target with as many seeds as they need, too."""
    sure: set[int] = set()
    while True:
        serving = [at for at, option in enumerate(options) if option.serves]
        if not serving:
            return None
        fewest_gpus, cheapest = min(serving, key=lambda at: _rank(options[at])), _cheapest(options)
        unsure = {fewest_gpus, fewest_gpus if cheapest is None else cheapest} - sure
        if not unsure:
            return fewest_gpus
        for at in sorted(unsure):
            configuration = _with_requests(searched[at], options[at])
            options[at] = _at_target(enough(configuration, options[at]), configuration)
        sure |= unsure


def _cheapest(options: Sequence[Option]) -> int | None:
    """The option that costs least for the target; of equals, the one with the fewest GPUs. None without prices."""
    priced = [at for at, option in enumerate(options) if option.usd_for_target is not None]
    return min(priced, key=lambda at: (options[at].usd_for_target, _rank(options[at])), default=None)


def _with_requests(searched: Configuration | Option, option: Option) -> Configuration:
    """The configuration with runs as long as its survey made them."""
    assert isinstance(searched, Configuration), "it serves the target"
    own = searched.scenario.workload.requests
    if option.requests is None or own is None or option.requests <= own:
        return searched
    return searched.varied(requests=option.requests)


def _wanted(scenario: Scenario) -> tuple[Goal, Search]:
    if scenario.goal is None:
        raise InputError("scenario.goal", "is missing: say what to reach, like goal: {slo: {ttft_p99_s: 1.0}}")
    if "slo_attainment" in scenario.goal.slo and not judges(scenario):
        problem = "counts requests that meet slo:, and the scenario has none: add slo:"
        raise InputError("scenario.goal.slo.slo_attainment", problem)
    if scenario.horizon_s is not None:
        problem = (
            f"{scenario.horizon_s:g} cuts off the answers that are late, and a plan would not see them: take it out"
        )
        raise InputError("scenario.horizon_s", problem)
    return scenario.goal, scenario.search or Search.model_validate({})


def _require_priced_devices(scenario: Scenario, goal: Goal, search: Search) -> None:
    """A price of a device that is none would be left out without a word."""
    own = {Path(str(name)).stem for name in (scenario.device, *search.over.get("device", ()))}
    for name in goal.usd_per_gpu_hour:
        if name not in own:
            _require_name(catalogue.device, name, f"scenario.goal.usd_per_gpu_hour.{name}")


def _require_name(find: Callable[[str], object], name: str, place: str) -> None:
    """Raises InputError with ``place`` for a name that ``find`` does not know."""
    try:
        find(name)
    except InputError as error:
        raise InputError(place, error.problem) from None


def _configurations(scenario: Scenario, search: Search, store: Store | None) -> Iterator[Configuration | Option]:
    """Every policy at every point of the search; a key that a policy does not have makes no second point of it.

    A point that cannot be is an option with its reason; where none can be, the first one's reason is raised. So is a
    model, device or profile that nobody knows: a slip, and not a configuration that cannot be.
    """
    seen = set()
    finders: dict[str, Callable[[str], object]] = {
        "model": catalogue.model, "device": catalogue.device, "profile": profiles.load
    }  # fmt: skip
    for key, find in finders.items():
        for name in search.over.get(key, ()):
            if isinstance(name, str):
                _require_name(find, name, f"scenario.search.over.{key}")
    for point in _points(scenario, search):
        if isinstance(point, Option):
            yield point
            continue
        here = point.scenario
        for at, entry in enumerate(here.policies):
            same = f"{at} {here.model_copy(update={'policies': (entry,)})!r}"
            if same in seen:
                continue
            seen.add(same)
            policy = scenario.labels()[at]
            label = ", ".join(part for part in (policy, point.label) if part)
            router = here.router or "least_outstanding"
            yield Configuration(label, here, at, here.replicas or 1, router, point.swept, store, policy=policy)


def _points(scenario: Scenario, search: Search) -> list[Point | Option]:
    """The points of the search; one that is well written and cannot be is an option with its reason."""
    found: list[Point | Option] = []
    errors: list[InputError] = []
    for given, here in grid(scenario.model_copy(update={"sweep": search.over, "seeds": 1}), "scenario.search.over"):
        if not isinstance(here, InputError):
            found += here
            continue
        cause = here.cause if isinstance(here, PointError) else here
        if isinstance(cause, SlipError) or not search.over:
            raise here
        errors.append(here)
        found.append(_impossible(scenario, given, cause))
    if len(errors) == len(found):
        raise errors[0]
    return found


def _impossible(scenario: Scenario, given: dict[str, Any], cause: InputError) -> Option:
    """The option of a point that is no scenario, with its reason."""
    label = ", ".join(f"{short_key(key)}={value}" for key, value in given.items())
    load = load_of(scenario.workload, scenario.engine.block_size)
    device = str(given.get("profile") or given.get("device") or scenario.profile or scenario.device)
    split = given.get("engine.tensor_parallel_size") or scenario.engine.tensor_parallel_size
    assert scenario.goal is not None
    target = scenario.goal.rate_rps or (0.0 if load is None else load.own)
    return Option(
        label, given, device, scenario.profile is not None, split if isinstance(split, int) else 1,
        "" if load is None else load.unit, target, refused=_reason(cause),
    )  # fmt: skip


def _reason(error: InputError) -> str:
    return f"{error.place.removeprefix('scenario.')}: {error.problem}"


def _surveyed(searched: list[Configuration | Option], jobs: int) -> Iterator[Option]:
    """The options, in order; so many configurations at a time."""
    configurations = [each for each in searched if isinstance(each, Configuration)]
    if jobs == 1 or len(configurations) <= 1:
        surveyed = map(_survey, configurations)
    else:
        from joblib import Parallel, delayed

        surveyed = Parallel(n_jobs=jobs, return_as="generator")(delayed(_survey)(each) for each in configurations)
    for each in searched:
        yield each if isinstance(each, Option) else next(surveyed)


def _survey(configuration: Configuration) -> Option:
    """What one configuration can do; the reason instead, where it cannot run at all."""
    scenario, load, target = configuration.scenario, configuration.load, configuration.target
    try:
        served = configuration.served
    except InputError as error:
        device = scenario.profile or scenario.device or ""
        split = scenario.engine.tensor_parallel_size or 1
        return Option(
            configuration.label, configuration.changed, device, scenario.profile is not None, split, load.unit, target,
            configuration.replicas, _reason(error), policy=configuration.policy,
        )  # fmt: skip
    seeds = configuration.seeds()
    configuration, found = settled(configuration, seeds)
    option = Option(
        configuration.label, configuration.changed, served.device.name, served.cost.calibrated,
        served.tensor_parallel, load.unit, target, configuration.replicas,
        usd_per_hour=configuration.usd_per_hour,
        policy=configuration.policy,
        saturation=saturation(configuration, seeds),
        requests=configuration.varied(replicas=1).sent,
        drift=found.drift,
        tests=found.tests,
    )  # fmt: skip
    at = found.by_seed[0] if found.by_seed else found.failing
    if at is not None:
        row = configuration.sample(at, seeds[0]).row
        option = replace(option, too_long=TooLong.of(row, configuration.system.memory))
    if not found.by_seed:
        return replace(option, refused=found.reason.text if found.reason is not None else "")
    first, highest = seeds[0], found.by_seed[0]
    drawn = drawn_pairs(configuration, seeds, drawn_of(configuration, highest, first), highest)
    capacity = found.capacity(drawn)
    option = replace(
        option,
        capacity=capacity,
        unstable_above=capacity.value if found.unstable else None,
        drawn=drawn,
        interval=" and ".join(["seeds"] * (len(seeds) > 1) + ["profile"] * bool(drawn)),
    )
    option = with_money(option, configuration, highest, first)
    option = with_extrapolation(option, configuration, [highest], first)
    count = replicas_for(configuration, seeds, capacity.value)
    if count is None:
        return replace(option, refused=_why_not(configuration, capacity.value, found))
    option = replace(option, target_replicas=count, target_gpus=count * served.tensor_parallel)
    return _at_target(option, configuration)


def _at_target(option: Option, configuration: Configuration) -> Option:
    """The option with what the GPUs that serve the target do there and at most, and what they cost."""
    if option.target_replicas is None:
        return option
    configuration, seeds = configuration.varied(replicas=option.target_replicas), configuration.seeds()
    found = together(configuration, seeds)
    option = replace(
        option,
        fleet_capacity=found._replace(drift=option.drift).capacity(option.drawn) if found.by_seed else None,
        at_target=statistics(configuration, seeds),
    )
    option = at_the_target(option, configuration, seeds)
    return with_extrapolation(option, configuration, [option.target], seeds[0])


def _why_not(configuration: Configuration, capacity: float, found: Found) -> str:
    beyond = f"{found.why} above {capacity:.4g} {configuration.load.unit}"
    if configuration.scenario.replicas is not None:
        return f"{beyond}, target {configuration.target:.4g}"
    _, most = guessed(configuration, capacity)
    gpus = configuration.varied(replicas=most).gpus if most else configuration.search.most_gpus
    return f"more than {gpus} GPU{'s' if gpus > 1 else ''}: {beyond} on one replica"


def _against_api(option: Option, goal: Goal) -> BreakEven | None:
    """From which load on the GPUs that serve the target cost less than the API, in the option's unit."""
    capacity, usd, api = option.fleet_capacity, option.usd_for_target, goal.api
    if api is None or usd is None or capacity is None or not option.offered:
        return None
    found = []
    for rate, tokens in option.offered:
        each = break_even(usd, rate, tokens, api.usd_per_mtok_input, api.usd_per_mtok_output)
        if each is None:
            return None
        # Break-even over what is sent, in the unit of the load: what a user sends at the target is taken for all.
        found.append(each.utilisation * option.target)
    load = estimate(found)
    low, high = (None if end is None or not end else load.value / end for end in (capacity.high, capacity.low))
    return BreakEven(
        load.value, load.value / capacity.value, low, high, usd * option.target / load.value, load.low, load.high
    )


def _unused_prices(goal: Goal, options: Sequence[Option]) -> tuple[str, ...]:
    """The note on prices of devices that no option is on; none where each has its use."""
    devices = list(dict.fromkeys(option.device for option in options))
    idle = [name for name in goal.usd_per_gpu_hour if name not in devices]
    if not idle:
        return ()
    its, is_ = ("its price", "is") if len(idle) == 1 else ("their prices", "are")
    return (f"No option is on {listed(idle)}: {its} {is_} not used. The options are on {listed(devices)}.",)


def _rank(option: Option) -> tuple[float, float, float]:
    assert option.target_gpus is not None and option.capacity is not None
    dollars = option.usd_for_target
    return option.target_gpus, math.inf if dollars is None else dollars, -option.capacity.value / option.gpus


def _notes(options: list[Option]) -> tuple[str, ...]:
    cheapest = _cheapest(options)
    if cheapest is None:
        return ()
    least, fewest_gpus = options[cheapest], min((each for each in options if each.serves), key=_rank)
    if fewest_gpus.usd_for_target is None or least.usd_for_target >= fewest_gpus.usd_for_target:  # type: ignore[operator]
        return ()
    note = (
        f"Cheaper with more GPUs: {least.label}, {least.target_gpus} GPUs, "
        f"${least.usd_for_target:,.2f} an hour instead of ${fewest_gpus.usd_for_target:,.2f}."
    )
    return (note,)
