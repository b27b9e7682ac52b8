"""The best option of a plan, looked at closely: all its intervals, what binds it, and what one change would gain."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from servecast.errors import InputError
from servecast.planning.answer import Change, Option, dollars
from servecast.planning.sample import binding
from servecast.planning.searching import capacities, capacity_drawn, seeds_of, statistics
from servecast.planning.uncertainty import Estimate, draws, estimate
from servecast.scenario import check
from servecast.scenario.goals import at_least
from servecast.scenario.loading import changed as with_changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from servecast.planning.searching import Found
    from servecast.planning.system import Configuration
    from servecast.scenario.goals import Goal, Search

#: A load so many times the highest is served, if no failing one is known, to see what binds.
_BEYOND = 1.2
#: A run in which more than this share of its requests is in service at once is hardly longer than its own beginning.
_MOST_AT_ONCE = 0.2


class Closer(NamedTuple):
    """The best option as the system that serves the target.

    looked_at : digests of the configurations that were tried as changes
    """

    option: Option
    doubts: tuple[str, ...]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    looked_at: tuple[str, ...]


def closer(configuration: Configuration, option: Option, goal: Goal, search: Search) -> Closer:
    """With more seeds where its interval is wide, with the profile's errors, what binds it, and what would help."""
    replicas, target = option.target_replicas, option.target
    assert replicas is not None and option.capacity is not None
    # The same search again is already made; a larger system is looked for near so many times one replica.
    same = replicas == configuration.replicas
    guess = target if same else option.capacity.value * replicas / configuration.replicas
    found, seeds = _narrowed(configuration, goal, search, replicas, guess)
    busy = configuration.sample(target, seeds[0], replicas).busy
    drawn = tuple(draws(configuration.served.profile, configuration.served.cost, search.draws, busy))
    pairs = []
    for at, draw in enumerate(drawn):
        place = at % len(seeds)
        here = found.by_seed[place]
        pairs.append((here, capacity_drawn(configuration, goal, search, replicas, seeds[place], here, draw)))
    capacity = found.capacity(pairs)
    # Where nothing but saturation ends it, what binds shows plainly beyond; there are no more users than requests.
    load = configuration.load
    assert load is not None
    beyond = found.failing or found.by_seed[0] * (1.0 if load.whole else _BEYOND)
    just_failing = configuration.sample(beyond, seeds[0], replicas)
    bound = binding(just_failing, found.reason)
    best = replace(
        option,
        replicas=replicas,
        capacity=capacity,
        saturation=saturation(configuration, seeds, replicas),
        unstable_above=capacity.value if found.unstable else None,
        usd_per_hour=usd_per_hour(configuration, goal, replicas),
        at_target=statistics(configuration, goal, target, replicas, seeds, drawn),
        binds=bound.name,
        binds_share=bound.share,
        tests=option.tests + found.tests,
    )
    best = with_money(best, configuration, found, seeds[0])
    changes, looked_at = (
        _changes(configuration, goal, search, best, found.by_seed[0]) if search.try_changes else ((), ())
    )
    doubts = tuple(_doubts(best, goal))
    return Closer(best, doubts, changes, tuple(_notes(configuration, found, seeds[0], replicas)), looked_at)


def _narrowed(
    configuration: Configuration, goal: Goal, search: Search, replicas: int, guess: float
) -> tuple[Found, list[int]]:
    """The highest loads with so many seeds that their interval is as narrow as asked, or with the most allowed."""
    seeds = seeds_of(configuration, search.seeds)
    found = capacities(configuration, goal, search, replicas, seeds, guess)
    assert found.by_seed, "it serves the target"
    while 1 < len(seeds) < search.most_seeds and _half_width(estimate(found.by_seed)) > search.half_width:
        more = seeds_of(configuration, min(len(seeds) * 2, search.most_seeds))
        wider = capacities(configuration, goal, search, replicas, more, guess)
        if not wider.by_seed:  # a seed without any load says nothing of how high it is
            break
        found, seeds = wider, more
    return found, seeds


def _half_width(told: Estimate) -> float:
    assert told.low is not None and told.high is not None
    return (told.high - told.low) / 2 / told.value


def saturation(configuration: Configuration, seeds: Sequence[int], replicas: int) -> Estimate | None:
    """The most that the replicas serve [requests/s], with its interval over seeds; None where nothing saturates."""
    each = [configuration.saturation(seed, replicas) for seed in seeds]
    return estimate(each) if all(map(math.isfinite, each)) else None


def usd_per_hour(configuration: Configuration, goal: Goal, replicas: int) -> float | None:
    """Dollars an hour of all GPUs; None without a price."""
    cost = configuration.scenario.cost
    price = goal.usd_per_gpu_hour.get(configuration.served.device.name, None if cost is None else cost.usd_per_gpu_hour)
    return None if price is None else price * configuration.gpus(replicas)


def with_money(option: Option, configuration: Configuration, found: Found, seed: int) -> Option:
    """Tokens of a mean request, requests a second at the highest load, and dollars where a price is known."""
    assert option.capacity is not None
    tokens = configuration.sample(found.by_seed[0], seed, option.replicas).tokens
    assert tokens is not None, "a load that meets the goal completed requests"
    capacity = option.capacity
    rate = configuration.rate(found.by_seed[0], seed, option.replicas)
    assert rate is not None
    # Of users, each sends at the pace that was seen; of requests a second the factor is 1.
    factor = rate / found.by_seed[0]
    served = Estimate(*(None if end is None else end * factor for end in capacity))  # type: ignore[arg-type]
    option = replace(option, tokens=tokens, rate=served)
    if option.usd_per_hour is None:
        return option
    return replace(option, usd_per_mtok=dollars(option.usd_per_hour, served, tokens))


def _doubts(best: Option, goal: Goal) -> Iterator[str]:
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
        if math.isinf(bad):
            yield f"{name} may have no bound at the target load, which may be unstable"
        elif bad < target if at_least(name) else bad > target:
            yield f"{name} may be {bad:.3g} at the target load, {target:g} is wanted"


def _notes(configuration: Configuration, found: Found, seed: int, replicas: int) -> Iterator[str]:
    """That a run is too short to tell its highest load from its beginning."""
    served = configuration.sample(found.by_seed[0], seed, replicas)
    arrived, rows = int(served.row["arrived_whole_run"] or 0), served.most_rows * replicas
    if rows > _MOST_AT_ONCE * arrived:
        yield (
            f"Short runs: up to {rows:,} of {arrived:,} requests are in service at once at the highest load, so that "
            f"its statistics are mostly of a server that fills up; {math.ceil(rows / _MOST_AT_ONCE):,} requests or "
            "more tell more."
        )


def _changes(
    configuration: Configuration, goal: Goal, search: Search, best: Option, before: float
) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """One change at a time, tried with the first seed; the best first. And the digests of what was tried."""
    tried, digests = [], []
    for changed in _candidates(configuration):
        label = ", ".join(f"{key.rsplit('.', 1)[-1]}={_told(value)}" for key, value in changed.items())
        try:
            scenario = check(with_changes(configuration.scenario.model_dump(mode="json"), changed), Path())
            other = replace(configuration, label=label, scenario=scenario, replicas=best.replicas)
            found = capacities(other, goal, search, best.replicas, seeds_of(other, 1), before)
        except InputError as error:
            if error.place.endswith(".points"):
                raise  # the disk, not the change
            tried.append(Change(label, None, None, error.problem))
            continue
        digests.append(other.digest)
        other.close()
        if not found.by_seed:
            tried.append(Change(label, None, None, found.reason))
            continue
        gain = found.by_seed[0] / other.gpus(best.replicas) / (before / configuration.gpus(best.replicas)) - 1
        tried.append(Change(label, found.by_seed[0], gain))
    tried.sort(key=lambda change: -math.inf if change.gain_per_gpu is None else -change.gain_per_gpu)
    return tuple(tried), tuple(digests)


def _told(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _candidates(configuration: Configuration) -> Iterator[dict[str, Any]]:
    """Changes that may help: batch limits up and down, more room for KV, smaller KV and weights, more GPUs each."""
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
        if configuration.served.model.weight_dtype is None and "fp8" in configuration.served.device.flops:
            yield {"engine.quantization": "fp8"}
        yield {"engine.tensor_parallel_size": configuration.served.tensor_parallel * 2}


def _raised(above: str, key: str, value: int, values: dict[str, Any]) -> dict[str, Any]:
    """A batch limit with what must follow it: the budget is at least the number of sequences."""
    changed = {above + key: value}
    if key == "max_num_seqs" and value > values["max_num_batched_tokens"]:
        changed[above + "max_num_batched_tokens"] = value
    return changed
