"""The best option of a plan, looked at closely: all its intervals, what binds it, and what one change would gain."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from servecast.errors import InputError
from servecast.plan.answer import Change, Fleet, Option, dollars, falls_short, missed
from servecast.plan.binding import binding
from servecast.plan.capacity import fewest
from servecast.plan.searching import capacities, serves, shortened, statistics, together
from servecast.plan.uncertainty import Estimate, draws, estimate
from servecast.run.extrapolation import sentence
from servecast.run.store import StoreError
from servecast.scenario import check
from servecast.scenario.loading import changed as with_changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from servecast.plan.configuration import Configuration
    from servecast.plan.searching import Found
    from servecast.plan.uncertainty import Draw

#: A load so many times the highest is served, if no failing one is known, to see what binds.
_BEYOND = 1.2
#: A run in which more than this share of its requests is in service at once is hardly longer than its own beginning.
_MOST_AT_ONCE = 0.2
#: More of the busy time priced outside what was measured is a doubt.
EXTRAPOLATED_MOST = 0.1


class Examined(NamedTuple):
    """The best option as the system that serves the target.

    holds : the next size that the interval supports, where it does not support this one
    baseline : what the changes are compared with
    looked_at : digests of the configurations that were tried as changes
    """

    option: Option
    doubts: tuple[str, ...]
    holds: Fleet | None
    baseline: Change | None
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    looked_at: tuple[str, ...]


def enough(configuration: Configuration, option: Option) -> Option:
    """The option with as many replicas as serve the target with more seeds too; refused where there may be no more."""
    replicas = option.target_replicas
    assert replicas is not None
    while True:
        found, seeds = _narrowed(configuration, replicas)
        if serves(configuration, replicas, seeds):
            return replace(option, target_replicas=replicas, target_gpus=configuration.gpus(replicas))
        if (
            configuration.scenario.replicas is not None
            or configuration.gpus(replicas + 1) > configuration.search.most_gpus
        ):
            reason = f"{found.why} above {found.mean:.4g} {option.unit} with {len(seeds)} seeds"
            return replace(
                option, target_replicas=None, target_gpus=None, refused=reason, fleet_capacity=None, usd_at_target={}
            )
        replicas += 1


def examined(configuration: Configuration, option: Option) -> Examined:
    """With more seeds where its interval is wide, with the profile's errors, what binds it, and what would help."""
    replicas, target = option.target_replicas, option.target
    assert replicas is not None and option.capacity is not None
    found, seeds = _narrowed(configuration, replicas)
    capacity = found._replace(drift=option.drift).capacity(option.drawn)
    drawn = drawn_of(configuration, target, seeds[0], replicas)
    # Where nothing but saturation ends it, what binds shows plainly beyond; there are no more users than requests.
    load = configuration.load
    beyond = found.failing or found.by_seed[0] * (1.0 if load.whole else _BEYOND)
    just_failing = configuration.sample(beyond, seeds[0], replicas)
    bound = binding(just_failing, found.reason)
    best = replace(
        option,
        replicas=replicas,
        capacity=capacity,
        fleet_capacity=capacity,
        saturation=saturation(configuration, seeds, replicas),
        unstable_above=capacity.value if found.unstable else None,
        usd_per_hour=configuration.usd_per_hour(replicas),
        at_target=statistics(configuration, replicas, seeds, drawn),
        binds=bound.name,
        binds_share=bound.share,
        tests=option.tests + found.tests,
    )
    best = with_money(best, configuration, found, seeds[0])
    best = at_the_target(best, configuration, seeds, replicas)
    best = with_extrapolation(best, configuration, ((target, seeds[0]), (found.by_seed[0], seeds[0])), replicas)
    holds = _holds(configuration, best, seeds, drawn)
    baseline, changes, looked_at = (
        _changes(configuration, best, found.by_seed[0]) if configuration.search.try_changes else (None, (), ())
    )
    doubts = tuple(_doubts(best, configuration))
    notes = tuple(_notes(configuration, best, found, seeds[0], replicas))
    return Examined(best, doubts, holds, baseline, changes, notes, looked_at)


def drawn_of(configuration: Configuration, at: float, seed: int, replicas: int) -> tuple[Draw, ...]:
    """Cost models that the profile's errors allow, weighed by the steps of a load."""
    busy = configuration.sample(at, seed, replicas).busy
    return tuple(draws(configuration.served.profile, configuration.served.cost, configuration.search.draws, busy))


def _holds(configuration: Configuration, best: Option, seeds: Sequence[int], drawn: Sequence[Draw]) -> Fleet | None:
    """The next size that the interval supports; None if this one is supported, or no larger one is found to be."""
    assert best.capacity is not None
    target, replicas = best.target, best.replicas

    def capacity(count: int) -> Estimate | None:
        found = together(configuration, count, seeds)
        return found._replace(drift=best.drift).capacity(best.drawn) if found.by_seed else None

    def supported(count: int) -> bool:
        if count <= replicas:
            return False
        most = capacity(count)
        if most is None or most.value < target or falls_short(most, target):
            return False
        return not list(missed(statistics(configuration, count, seeds, drawn), configuration.goal.slo))

    short = falls_short(best.capacity, target) or bool(list(missed(best.at_target, configuration.goal.slo)))
    if not short or configuration.scenario.replicas is not None:
        return None
    low = best.capacity.low or best.capacity.value / 2
    most = min(2 * replicas + 2, configuration.search.most_gpus // configuration.served.tensor_parallel)
    if most <= replicas:
        return None
    count = fewest(
        supported, max(replicas + 1, math.ceil(replicas * target / low * (1 - configuration.search.tolerance))), most
    )
    highest = None if count is None else capacity(count)
    if count is None or highest is None:
        return None
    return Fleet(count, configuration.gpus(count), highest, configuration.usd_per_hour(count))


def _narrowed(configuration: Configuration, replicas: int) -> tuple[Found, list[int]]:
    """The highest loads with so many seeds that their interval is as narrow as asked, or with the most allowed."""
    seeds = configuration.seeds()
    found = together(configuration, replicas, seeds)
    while (
        1 < len(seeds) < configuration.search.most_seeds
        and found.by_seed
        and _half_width(estimate(found.by_seed)) > configuration.search.half_width
    ):
        more = configuration.seeds(min(len(seeds) * 2, configuration.search.most_seeds))
        wider = together(configuration, replicas, more)
        if not wider.by_seed:  # a seed without any load says nothing of how high it is
            break
        found, seeds = wider, more
    return found, seeds


def _half_width(found: Estimate) -> float:
    assert found.low is not None and found.high is not None
    return (found.high - found.low) / 2 / found.value


def saturation(configuration: Configuration, seeds: Sequence[int], replicas: int) -> Estimate | None:
    """The most that the replicas serve [requests/s], with its interval over seeds; None where nothing saturates."""
    each = [configuration.saturation(seed, replicas) for seed in seeds]
    return estimate(each) if all(map(math.isfinite, each)) else None


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


def at_the_target(option: Option, configuration: Configuration, seeds: Sequence[int], replicas: int) -> Option:
    """The option with what a million tokens cost at the target, on the GPUs that serve it: the mean over seeds."""
    usd = configuration.usd_per_hour(replicas)
    if usd is None:
        return option
    by_seed = []
    for seed in seeds:
        tokens, rate = configuration.sample(option.target, seed, replicas).tokens, None
        if tokens is not None:
            rate = configuration.rate(option.target, seed, replicas)
        if tokens is not None and rate is not None:
            by_seed.append({kind: price.value for kind, price in dollars(usd, Estimate(rate), tokens).items()})
    kinds = [kind for kind in by_seed[0] if all(kind in each for each in by_seed)] if by_seed else []
    return replace(option, usd_at_target={kind: estimate([each[kind] for each in by_seed]) for kind in kinds})


def with_extrapolation(
    option: Option, configuration: Configuration, looked_at: Sequence[tuple[float, int]], replicas: int
) -> Option:
    """The option with how far these loads (and seeds) went beyond what was measured."""
    samples = [configuration.sample(at, seed, replicas) for at, seed in looked_at]
    shares = [float(value) for each in samples if (value := each.row["extrapolated_fraction"]) is not None]
    most = max([*shares, *([] if option.extrapolated is None else [option.extrapolated])], default=None)
    outside = [each.extrapolation for each in samples if each.extrapolation is not None]
    words = sentence(option.label, max(shares, default=0.0), outside) if outside else option.beyond
    return replace(option, extrapolated=most if option.calibrated else None, beyond=words)


def _doubts(best: Option, configuration: Configuration) -> Iterator[str]:
    """Why the interval does not support the plan."""
    if not best.calibrated:
        yield "step times come from a datasheet, whose error nobody knows"
    if best.extrapolated is not None and best.extrapolated > EXTRAPOLATED_MOST:
        yield (
            f"{best.extrapolated:.0%} of the busy time is priced beyond what the profile was measured on, and no "
            f"interval holds the error of that (more than {EXTRAPOLATED_MOST:.0%} is a doubt)"
        )
    if best.drift is not None and abs(best.drift) > configuration.search.half_width:
        yield (
            f"the highest load still moves by {abs(best.drift):.0%} when runs are twice as long: raise "
            "search.most_requests"
        )
    assert best.capacity is not None
    if best.capacity.low is None:
        yield "one seed and no errors of the profile: there is no interval"
    elif falls_short(best.capacity, best.target):
        yield f"the highest load may be as low as {best.capacity.low:.3g} {best.unit}, the target is {best.target:.3g}"
    for name, bad, target in missed(best.at_target, configuration.goal.slo):
        if math.isinf(bad):
            yield f"{name} may have no bound at the target load, which may be unstable"
        else:
            yield f"{name} may be {bad:.3g} at the target load, {target:g} is wanted"


def _notes(configuration: Configuration, best: Option, found: Found, seed: int, replicas: int) -> Iterator[str]:
    """How long runs were, that they were too short to tell a highest load from its beginning, and extrapolation."""
    if best.beyond:
        yield best.beyond
    served = configuration.sample(found.by_seed[0], seed, replicas)
    arrived, rows = int(served.row["arrived_whole_run"] or 0), served.most_rows * replicas
    yield _length(configuration, best, arrived)
    if rows > _MOST_AT_ONCE * arrived:
        yield (
            f"Short runs: up to {rows:,} of {arrived:,} requests are in service at once at the highest load, so that "
            f"its statistics are mostly of a server that fills up; {math.ceil(rows / _MOST_AT_ONCE):,} requests or "
            "more tell more."
        )


def _length(configuration: Configuration, best: Option, arrived: int) -> str:
    load = configuration.load
    length = f"Length of runs: {arrived:,} requests at the highest load"
    if not load.made:
        return f"{length}, as many as are recorded; a recording is not made longer."
    own = configuration.scenario.workload.requests
    if best.drift is None:
        return f"{length}; workload.requests is {own:,}, and search.most_requests lets no run be longer."
    change = f"{abs(best.drift):.1%} {'more' if best.drift > 0 else 'less'}"
    return f"{length} (workload.requests: {own:,}); one replica serves {change} in runs half as long."


def _changes(
    configuration: Configuration, best: Option, start: float
) -> tuple[Change | None, tuple[Change, ...], tuple[str, ...]]:
    """What it is compared with, one change at a time, the best first, and the digests of what was tried.

    All with the first seed, in runs that are enough for a difference.
    """
    brief = shortened(configuration)
    found = capacities(brief, best.replicas, brief.seeds(1), start, [start])
    if not found.by_seed:
        return None, (), ()
    before = found.by_seed[0]
    tried: list[Change] = []
    digests: list[str] = []
    for changed in _candidates(configuration):
        label = ", ".join(f"{key.rsplit('.', 1)[-1]}={_shown(value)}" for key, value in changed.items())
        try:
            scenario = check(with_changes(configuration.scenario.model_dump(mode="json"), changed), Path())
            other = replace(brief, label=label, scenario=scenario, replicas=best.replicas)
            found = capacities(other, best.replicas, other.seeds(1), before, [before])
        except StoreError:
            raise  # the disk, not the change
        except InputError as error:
            tried.append(Change(label, None, None, error.problem))
            continue
        digests.append(other.digest)
        if not found.by_seed:
            tried.append(Change(label, None, None, found.why if found.reason is not None else ""))
            continue
        gain = found.by_seed[0] / other.gpus(best.replicas) / (before / configuration.gpus(best.replicas)) - 1
        tried.append(Change(label, found.by_seed[0], gain))
    tried.sort(key=lambda change: -math.inf if change.gain_per_gpu is None else -change.gain_per_gpu)
    return Change("as it is", before, 0.0), tuple(tried), tuple(digests)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _candidates(configuration: Configuration) -> Iterator[dict[str, Any]]:
    """Changes that may help: batch limits up and down, more room for KV, smaller KV and weights, more GPUs each."""
    scenario, at = configuration.scenario, configuration.at
    values = scenario.policies[at].parameters()
    for key in configuration.policy.limits:
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
