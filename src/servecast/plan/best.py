"""The best option of a plan, looked at closely: all its intervals, what binds it, and what one change would gain."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servecast.cost.known_error import known_error
from servecast.errors import InputError
from servecast.metrics.prices import price_list
from servecast.plan.answer import Change, Fleet, Offered, Sold, dollars, falls_short, missed
from servecast.plan.capacity import fewest
from servecast.plan.sample import binding
from servecast.plan.searching import capacities, serves, shortened, statistics, together
from servecast.plan.uncertainty import Estimate, draws, estimate
from servecast.run.extrapolation import sentence
from servecast.run.store import StoreError
from servecast.scenario import check
from servecast.scenario.loading import changed as with_changes
from servecast.text import percent, short_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from servecast.plan.answer import Option, Plan
    from servecast.plan.configuration import Configuration
    from servecast.plan.searching import Found
    from servecast.plan.uncertainty import Draw

#: A load so many times the highest is served, if no failing one is known, to see what binds.
_BEYOND = 1.2
#: A run in which more than this share of its requests is in service at once is hardly longer than its own beginning.
_MOST_AT_ONCE = 0.2
#: More of the busy time priced outside what was measured is a doubt.
EXTRAPOLATED_MOST = 0.1


def enough(configuration: Configuration, option: Option) -> Option:
    """The option with as many replicas as serve the target with more seeds too; refused where there may be no more."""
    assert option.target_replicas is not None
    configuration = configuration.varied(replicas=option.target_replicas)
    while True:
        found, seeds = _narrowed(configuration)
        if serves(configuration, seeds):
            return replace(option, target_replicas=configuration.replicas, target_gpus=configuration.gpus)
        if configuration.scenario.replicas is not None or configuration.replicas >= configuration.most_replicas:
            reason = f"{found.why} above {found.mean:.4g} {option.unit} with {len(seeds)} seeds"
            return replace(
                option, target_replicas=None, target_gpus=None, refused=reason, fleet_capacity=None, usd_at_target={}
            )
        configuration = configuration.varied(replicas=configuration.replicas + 1)


def examined(plan: Plan, configuration: Configuration) -> tuple[Plan, set[str]]:
    """The plan with its best option as the system that serves the target, looked at closely.

    More seeds where its interval is wide, the profile's errors, what binds it, and what one change would gain. Also
    the digests of the configurations that were tried as changes.
    """
    option = plan.best
    assert option is not None and option.target_replicas is not None
    configuration = configuration.varied(replicas=option.target_replicas)
    found, seeds = _narrowed(configuration)
    first, highest = seeds[0], found.by_seed[0]
    capacity = found._replace(drift=option.drift).capacity(option.drawn)
    drawn = drawn_of(configuration, option.target, first)
    # Where nothing but saturation ends it, what binds shows plainly beyond; there are no more users than requests.
    beyond = found.failing or highest * (1.0 if configuration.load.whole else _BEYOND)
    bound = binding(configuration.sample(beyond, first), found.reason)
    best = replace(
        option,
        replicas=configuration.replicas,
        capacity=capacity,
        fleet_capacity=capacity,
        saturation=saturation(configuration, seeds, drawn),
        unstable_above=capacity.value if found.unstable else None,
        usd_per_hour=configuration.usd_per_hour,
        at_target=statistics(configuration, seeds, drawn),
        binds=bound.name,
        binds_share=bound.share,
        tests=option.tests + found.tests,
    )
    best = with_money(best, configuration, highest, first)
    best = at_the_target(best, configuration, seeds)
    best = with_extrapolation(best, configuration, (option.target, highest), first)
    doubts = tuple(_doubts(best, configuration))
    digests: set[str] = set()
    changes: tuple[Change, ...] = ()
    over_seeds = estimate(found.by_seed, slack=found.slack)
    noise = found.slack if over_seeds.high is None else over_seeds.high / over_seeds.value - 1
    if configuration.search.try_changes:
        changes = _changes(configuration, highest, digests)
    plan = replace(
        plan,
        best=best,
        supported=not doubts,
        doubts=doubts,
        headroom=capacity.each(lambda end: end / option.target - 1),
        notes=(*plan.notes, *_notes(configuration, best, highest, first)),
        holds=_holds(configuration, best, seeds, drawn),
        baseline=changes[0] if changes else None,
        changes=changes[1:],
        noise=noise,
    )
    return plan, digests


def drawn_of(configuration: Configuration, load: float, seed: int) -> list[Draw]:
    """Cost models that the profile's errors allow, weighed by the steps of a load."""
    served, busy = configuration.served, configuration.sample(load, seed).busy
    return draws(served.profile, served.cost, configuration.search.draws, busy)


def _holds(configuration: Configuration, best: Option, seeds: Sequence[int], drawn: Sequence[Draw]) -> Fleet | None:
    """The next size that the interval supports; None if this one is supported, or no larger one is found to be."""
    assert best.capacity is not None
    target, slo, replicas = best.target, configuration.goal.slo, best.replicas
    short = falls_short(best.capacity, target) or bool(list(missed(best.at_target, slo)))
    most = min(2 * replicas + 2, configuration.most_replicas)
    if not short or configuration.scenario.replicas is not None or most <= replicas:
        return None

    def capacity(larger: Configuration) -> Estimate | None:
        found = together(larger, seeds)
        return found._replace(drift=best.drift).capacity(best.drawn) if found.by_seed else None

    def supported(count: int) -> bool:
        larger = configuration.varied(replicas=count)
        highest = capacity(larger) if count > replicas else None
        if highest is None or highest.value < target or falls_short(highest, target):
            return False
        return not list(missed(statistics(larger, seeds, drawn), slo))

    low = best.capacity.low or best.capacity.value / 2
    guess = math.ceil(replicas * target / low * (1 - configuration.search.tolerance))
    count = fewest(supported, max(replicas + 1, guess), most)
    if count is None:
        return None
    larger = configuration.varied(replicas=count)
    highest = capacity(larger)
    return None if highest is None else Fleet(count, larger.gpus, highest, larger.usd_per_hour)


def _narrowed(configuration: Configuration) -> tuple[Found, list[int]]:
    """The highest loads with so many seeds that their interval is as narrow as asked, or with the most allowed."""
    search, seeds = configuration.search, configuration.seeds()
    found = together(configuration, seeds)
    while 1 < len(seeds) < search.most_seeds and found.by_seed:
        highest = estimate(found.by_seed)
        assert highest.low is not None and highest.high is not None
        if (highest.high - highest.low) / 2 / highest.value <= search.half_width:
            break
        more = configuration.seeds(min(len(seeds) * 2, search.most_seeds))
        wider = together(configuration, more)
        if not wider.by_seed:  # a seed without any load says nothing of how high it is
            break
        found, seeds = wider, more
    return found, seeds


def saturation(configuration: Configuration, seeds: Sequence[int], drawn: Sequence[Draw] = ()) -> Estimate | None:
    """The most that the replicas serve [requests/s], with its interval over seeds and the profile's errors.

    None where nothing saturates.
    """
    each = [configuration.saturation(seed) for seed in seeds]
    if not all(map(math.isfinite, each)):
        return None
    return estimate(each, [(each[0], configuration.saturation(seeds[0], draw)) for draw in drawn])


def with_money(option: Option, configuration: Configuration, load: float, seed: int) -> Option:
    """Tokens of a mean request, requests a second at the highest load, and dollars where a price is known."""
    assert option.capacity is not None
    tokens, rate = configuration.sample(load, seed).tokens, configuration.served_rate(load, seed)
    assert tokens is not None and rate is not None, "a load that meets the goal completed requests"
    # Of users, each sends at the pace that was seen; of requests a second all that are not refused are served.
    factor, usd = rate / load, option.usd_per_hour
    served = option.capacity.each(lambda end: end * factor)
    return replace(option, tokens=tokens, rate=served, usd_per_mtok={} if usd is None else dollars(usd, served, tokens))


def at_the_target(option: Option, configuration: Configuration, seeds: Sequence[int]) -> Option:
    """The option with what a million tokens cost at the target, on the GPUs that serve it: the mean over seeds."""
    usd = configuration.usd_per_hour
    if usd is None:
        return option
    offered, shares = [], []
    for seed in seeds:
        served = configuration.sample(option.target, seed)
        rate = None if served.tokens is None else configuration.served_rate(option.target, seed)
        if served.tokens is not None and rate is not None:
            offered.append(Offered(rate, served.tokens))
            shares.append(served.row.get("prefill_busy_fraction"))
    by_seed = [
        {kind: price.value for kind, price in dollars(usd, Estimate(each.rate), each.tokens).items()}
        for each in offered
    ]
    kinds = [kind for kind in by_seed[0] if all(kind in each for each in by_seed)] if by_seed else []
    return replace(
        option,
        offered=tuple(offered),
        usd_at_target={kind: estimate([each[kind] for each in by_seed]) for kind in kinds},
        prices=_sold(configuration, usd, offered, [float(share) for share in shares if share is not None]),
    )


def _sold(
    configuration: Configuration, usd: float, offered: Sequence[Offered], shares: Sequence[float]
) -> dict[str, Sold]:
    """The price list at the target, of the mean over seeds: input and output share the bill."""
    if not offered:
        return {}
    cost, an_hour = configuration.scenario.cost, 3600 / len(offered)
    given = an_hour * sum(each.rate * each.tokens.input for each in offered)
    made = an_hour * sum(each.rate * each.tokens.output for each in offered)
    prices = price_list(
        usd, given, made, prefill_share=sum(shares) / len(shares) if shares else None,
        output_over_input=None if cost is None else cost.output_over_input,
    )  # fmt: skip
    return {
        kind: Sold(count / 1e6, price, None if price is None else count / 1e6 * price)
        for kind, count, price in zip(prices._fields, (given, made), prices, strict=True)
    }


def with_extrapolation(option: Option, configuration: Configuration, loads: Sequence[float], seed: int) -> Option:
    """The option with how far these loads went beyond what was measured."""
    samples = [configuration.sample(load, seed) for load in loads]
    shares = [float(value) for each in samples if (value := each.row["extrapolated_fraction"]) is not None]
    most = max([*shares, *([] if option.extrapolated is None else [option.extrapolated])], default=None)
    outside = [each.extrapolation for each in samples if each.extrapolation is not None]
    words = sentence(option.label, max(shares, default=0.0), outside) if outside else option.beyond
    return replace(option, extrapolated=most if option.calibrated else None, beyond=words)


def _doubts(best: Option, configuration: Configuration) -> Iterator[str]:
    """Why the interval does not support the plan."""
    if not best.calibrated:
        yield f"step times come from a datasheet: {known_error(None).words}"
    if best.extrapolated is not None and best.extrapolated > EXTRAPOLATED_MOST:
        yield (
            f"{percent(best.extrapolated, 0)} of the busy time is priced beyond what the profile was measured on, and "
            f"no interval holds the error of that (more than {percent(EXTRAPOLATED_MOST, 0)} is a doubt)"
        )
    if best.drift is not None and abs(best.drift) > configuration.search.half_width:
        yield (
            f"the highest load still moves by {percent(abs(best.drift), 0)} when runs are twice as long: raise "
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


def _notes(configuration: Configuration, best: Option, highest: float, seed: int) -> Iterator[str]:
    """A head that decides, extrapolation, how long runs were, and that a beginning is most of them."""
    head = configuration.sample(best.target, seed).transient
    if head is not None:
        yield head.sentence(" at the target")
    if best.beyond:
        yield best.beyond
    served = configuration.sample(highest, seed)
    arrived, rows = int(served.row["arrived_whole_run"] or 0), served.most_rows * configuration.replicas
    length = f"Length of runs: {arrived:,} requests at the highest load"
    own = configuration.scenario.workload.requests
    if not configuration.load.made:
        yield f"{length}, as many as are recorded; a recording is not made longer."
    elif best.drift is None:
        yield f"{length}; workload.requests is {own:,}, and search.most_requests lets no run be longer."
    else:
        change = f"{percent(abs(best.drift))} {'more' if best.drift > 0 else 'less'}"
        yield f"{length} (workload.requests: {own:,}); one replica serves {change} in runs half as long."
    if rows > _MOST_AT_ONCE * arrived:
        yield (
            f"Short runs: up to {rows:,} of {arrived:,} requests are in service at once at the highest load, so that "
            f"its statistics are mostly of a server that fills up; {math.ceil(rows / _MOST_AT_ONCE):,} requests or "
            "more tell more."
        )


def _changes(configuration: Configuration, highest: float, digests: set[str]) -> tuple[Change, ...]:
    """What they are compared with, then one change at a time, the best first; adds the digest of each to ``digests``.

    All with the first seed, in runs that are enough for a difference.
    """
    brief = shortened(configuration)
    found = capacities(brief, brief.seeds(1), highest, [highest])
    if not found.by_seed:
        return ()
    before = found.by_seed[0]
    tried: list[Change] = []
    for changed in _candidates(configuration):
        label = ", ".join(f"{short_key(key)}={_shown(value)}" for key, value in changed.items())
        try:
            scenario = check(with_changes(configuration.scenario.model_dump(mode="json"), changed), Path())
            other = replace(brief, label=label, scenario=scenario)
            found = capacities(other, other.seeds(1), before, [before])
        except StoreError:
            raise  # the disk, not the change
        except InputError as error:
            tried.append(Change(label, None, None, error.problem))
            continue
        digests.add(other.digest)
        if found.by_seed:
            gain = found.by_seed[0] / other.gpus / (before / configuration.gpus) - 1
            tried.append(Change(label, found.by_seed[0], gain))
        else:
            tried.append(Change(label, None, None, found.why if found.reason is not None else ""))
    tried.sort(key=lambda change: -math.inf if change.gain_per_gpu is None else -change.gain_per_gpu)
    return Change("as it is", before, 0.0), *tried


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _candidates(configuration: Configuration) -> Iterator[dict[str, Any]]:
    """Changes that may help: batch limits up and down, more room for KV, smaller KV and weights, more GPUs each."""
    scenario, served, at = configuration.scenario, configuration.served, configuration.at
    values = scenario.policies[at].parameters()
    for key in configuration.system.policy.limits:
        floor = values.get("max_num_seqs", 1) if key == "max_num_batched_tokens" else 1
        for value in (values[key] * 2, values[key] // 2):
            if value >= floor and value <= values.get("max_num_batched_tokens", math.inf) * 2:
                changed = {f"policies[{at}].{key}": value}
                if key == "max_num_seqs" and value > values.get("max_num_batched_tokens", math.inf):
                    changed[f"policies[{at}].max_num_batched_tokens"] = value  # at least the number of sequences
                yield changed
    if served.memory_share < 0.95 and scenario.engine.kv_blocks is None:
        yield {"engine.gpu_memory_utilization": 0.95}
    if scenario.profile is None:
        if scenario.engine.kv_cache_dtype == "auto":
            yield {"engine.kv_cache_dtype": "fp8"}
        if served.model.weight_dtype is None and "fp8" in served.device.flops:
            yield {"engine.quantization": "fp8"}
        yield {"engine.tensor_parallel_size": served.tensor_parallel * 2}
