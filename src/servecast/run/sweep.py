"""Runs a scenario: each policy at each sweep point with each seed, in parallel if asked; the order never changes.

A run that cannot be (a point without memory for one request, say) is reported and the others are kept. Interrupted, the
runs made so far are kept too; with a `PointsStore` the next sweep begins with them. What a sweep gives does not depend
on how many runs were made at a time, where, or in how many sittings.
"""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from servecast.engine import replay
from servecast.errors import InputError
from servecast.executor import ModelExecutor
from servecast.kvcache import BlockPool
from servecast.metrics import Window, by_tenant, summarise
from servecast.progress import Progress
from servecast.replicas import ROUTERS, Server, replay_together
from servecast.requests import Status
from servecast.run.extrapolation import farthest, sentences
from servecast.run.gathered import Gathered
from servecast.run.results import Failure, Outcome, Results, hardware, roof
from servecast.run.shown import view
from servecast.run.targets import targets, tenants
from servecast.scenario import check, keypath, points
from servecast.scenario.resolved import resolved
from servecast.scenario.serving import activation_blocks, plan, require_whole_prompts_fit, serving, step_set_aside
from servecast.scenario.traffic import traffic
from servecast.text import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servecast.engine import Client, Run
    from servecast.executor import Executor
    from servecast.memory import MemoryPlan
    from servecast.run.cluster import Cluster
    from servecast.run.points_store import PointsStore
    from servecast.scenario import Point, Scenario
    from servecast.scenario.serving import Serving
    from servecast.workload.traces.trace_file import TraceReport

    #: Finds the machine of a policy, by its place in the list, with the memory planned for it.
    Machines = Callable[[Scenario, int, Serving, MemoryPlan], "Machine"]


class Machine(NamedTuple):
    """What takes a run's steps, and the memory it has (see `replay`)."""

    executor: Executor
    pool: BlockPool
    activation_blocks: Callable[[int], int]


def modelled(scenario: Scenario, at: int, served: Serving, planned: MemoryPlan) -> Machine:
    """The machine of a simulation: the cost model, and the planned memory."""
    pool = BlockPool(planned.kv_blocks, planned.block_size, planned.block_bytes)
    return Machine(ModelExecutor(served.cost), pool, activation_blocks(scenario, served, planned))


def simulate(
    scenario: Scenario,
    jobs: int = 1,
    progress: Callable[[Progress], None] = lambda progress: None,
    store: PointsStore | None = None,
    cluster: Cluster | None = None,
    machines: Machines = modelled,
) -> Results:
    """Run every policy, sweep point and seed, ``jobs`` at a time or on a cluster, but for those in ``store``.

    ``machines`` other than modelled ones (a device) work here, one run at a time, and have no store: what was measured
    is not what would be measured again.

    Raises InputError if not one of the runs can be made (the first one's), and KeyboardInterrupt if none was.
    """
    work = _work(scenario)
    assert store is None or machines is modelled
    gathered = Gathered(work, store, repeatable=machines is modelled)
    progress(Progress(gathered.resumed, len(work), scenario.name, gathered.resumed))
    try:
        for place, result in _each(work, gathered, jobs, progress, cluster, machines):
            gathered.add(place, result)
            told = f"{result.policy} {result.point}".strip()
            progress(Progress(len(gathered.results), len(work), told, gathered.resumed))
    except KeyboardInterrupt:
        if not gathered.outcomes:
            raise
    outcomes, failures, missing = gathered.outcomes, gathered.failures, len(gathered.missing)
    if not outcomes:
        raise InputError(failures[0].place, failures[0].problem)
    if not missing:
        gathered.done()
    shown = next(point.scenario for point, _ in work if (point.label, point.seed) == _which(outcomes[0]))
    served = serving(shown)
    results = Results(
        scenario=resolved(scenario, shown),
        outcomes=tuple(outcomes),
        notes=tuple(_notes(outcomes, failures, missing)),
        profile=None if served.profile is None else served.profile.model_dump(mode="json"),
        roof=roof(served),
        failures=tuple(failures),
        missing=missing,
        resumed=gathered.resumed,
    )
    if not {"device", "model", "profile"}.isdisjoint(outcomes[0].swept):
        results = _under_the_roof_shown(results, work)
    return results if gathered.tables else _with_tables_shown(results, work)


def _which(outcome: Outcome) -> tuple[str, int]:
    return outcome.point, outcome.seed


def _under_the_roof_shown(results: Results, work: list[tuple[Point, int]]) -> Results:
    """The results with the roof and the profile's errors of the runs that the figures show: each device has its own."""
    of = results.outcomes[int(view(results).summary.index[0])]
    served = serving(next(point.scenario for point, _ in work if (point.label, point.seed) == _which(of)))
    profile = None if served.profile is None else served.profile.model_dump(mode="json")
    return replace(results, roof=roof(served), profile=profile)


def _with_tables_shown(results: Results, work: list[tuple[Point, int]]) -> Results:
    """The results with the requests and decisions of the runs that the figures show, which are made once more."""
    shown = set(view(results).summary.index)
    runs = {(point.scenario.labels()[at], point.label, point.seed): (point, at) for point, at in work}
    outcomes = list(results.outcomes)
    for row in shown:
        of = outcomes[row]
        again = run(*runs[of.policy, of.point, of.seed])
        assert isinstance(again, Outcome)
        outcomes[row] = again
    told = (
        "Too many requests to hold the tables of all runs: those of requests and decisions are of the "
        f"{len(shown)} that the figures show, of {len(outcomes)}."
    )
    return replace(results, outcomes=tuple(outcomes), notes=(*results.notes, told))


def _work(scenario: Scenario) -> list[tuple[Point, int]]:
    """Every run to be made, in order: a policy without a swept key runs once, not at each of its values."""
    work: dict[tuple[Any, ...], tuple[Point, int]] = {}
    for point in points(scenario):
        for at in range(len(scenario.policies)):
            own = _own(point, at)
            work.setdefault((at, own.label, point.seed), (own, at))
    return list(work.values())


def _own(point: Point, at: int) -> Point:
    """The point as one policy has it: None for each swept key that is another policy's, and no word of it."""
    swept = {key: value if _has(point.scenario, at, key) else None for key, value in point.swept.items()}
    if swept == point.swept:
        return point
    kept = [key for key in swept if _has(point.scenario, at, key)]
    last = [key.rsplit(".", 1)[-1] for key in kept]
    named = [short if last.count(short) == 1 else key for key, short in zip(kept, last, strict=True)]
    label = ", ".join(f"{name}={swept[key]}" for key, name in zip(kept, named, strict=True))
    return point._replace(label=label, swept=swept)


def _has(scenario: Scenario, at: int, key: str) -> bool:
    """Whether a swept key path means anything to the policy at this place of the list."""
    parts = keypath.parse(key, f"scenario.sweep.{key}")
    if parts[0] != "policies" or len(parts) < 3:
        return True
    entry = scenario.policies[at]
    return parts[1] == at or (parts[1] == "*" and parts[2] in type(entry).model_fields)


def _notes(outcomes: list[Outcome], failures: list[Failure], missing: int) -> Iterator[str]:
    if missing:
        yield f"Interrupted: {missing} of {missing + len(outcomes) + len(failures)} runs were not made."
    for failure in failures:
        yield f"Not run ({failure.which}): {failure.place}: {failure.problem}"
    yield from sentences(outcomes)
    yield from _prompts_that_did_not_fit(outcomes)
    yield from dict.fromkeys(note for outcome in outcomes for note in outcome.notes)


def _prompts_that_did_not_fit(outcomes: list[Outcome]) -> Iterator[str]:
    """Why memory can run out with the KV cache next to empty: the step that failed held nothing yet."""
    found: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        if outcome.prompts_failed:
            found.setdefault(outcome.policy, {})[outcome.point] = None
    if found:
        told = [policy + (f" ({'; '.join(where)})" if any(where) else "") for policy, where in found.items()]
        yield (
            f"Out of memory in the step that computes a batch's prompts: {listed(told)}. Its KV and activations do not "
            "fit together; KV peak is of the steps that ran, so it can be 0 % beside that."
        )


def _each(
    work: list[tuple[Point, int]],
    gathered: Gathered,
    jobs: int,
    progress: Callable[[Progress], None],
    cluster: Cluster | None,
    machines: Machines,
) -> Iterator[tuple[int, Outcome | Failure]]:
    """What is missing of ``work``, with its position, each as soon as it has ended."""
    places = gathered.missing
    if cluster is None and (jobs == 1 or len(places) == 1):
        for made, place in enumerate(places, start=len(work) - len(places)):
            point, at = work[place]
            which = f"{point.scenario.labels()[at]} {point.label}".strip()

            def within(share: float, made: int = made, which: str = which) -> None:
                progress(Progress(made + share, len(work), which, gathered.resumed))

            yield place, run(point, at, within, machines)
        return
    # Workers get plain data: the sections of policies are made when the schema is imported, and do not pickle.
    tasks = (
        (place, _data(point), point.label, point.swept, at, gathered.tables)
        for place in places
        for point, at in [work[place]]
    )
    if cluster is not None:
        yield from cluster.each(_run_data, tasks)
        return
    from joblib import Parallel, delayed

    # One by one and in any order, so that what has ended is kept at once.
    parallel = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
    yield from parallel(delayed(_run_data)(*task) for task in tasks)


def _data(point: Point) -> dict[str, Any]:
    return point.scenario.model_dump(mode="json")


def _run_data(
    place: int, data: dict[str, Any], label: str, swept: dict[str, Any], at: int, tables: bool
) -> tuple[int, Outcome | Failure]:
    from servecast.scenario import Point

    _keep_imports()
    scenario = check(data, Path())
    result = run(Point(label, swept, scenario.workload.seed, scenario), at)
    # What the head would not hold is not sent.
    return place, result._replace(run=None) if isinstance(result, Outcome) and not tables else result


@cache
def _keep_imports() -> None:
    """Once in each worker: joblib has it collect garbage every second, and what was imported is none."""
    gc.freeze()


def run(
    point: Point, at: int, progress: Callable[[float], None] = lambda share: None, machines: Machines = modelled
) -> Outcome | Failure:
    """One policy (by its position in the list) at one point; ``progress`` is told the share of requests that ended."""
    label = point.scenario.labels()[at]
    try:
        return _run(point, at, label, progress, machines)
    except InputError as error:
        return Failure(label, point.label, point.seed, error.place, error.problem)


def _run(point: Point, at: int, label: str, progress: Callable[[float], None], machines: Machines) -> Outcome:
    scenario = point.scenario
    entry = scenario.policies[at]
    policy = entry.build()
    served = serving(scenario)
    planned = plan(scenario, served, step_set_aside(policy))
    require_whole_prompts_fit(policy, planned, f"scenario.policies[{at}]")
    sent = traffic(scenario.workload, scenario.engine.block_size)
    requests = len(sent.client)
    replicas = scenario.replicas or 1
    if replicas > 1 and machines is not modelled:
        raise InputError("scenario.replicas", f"{replicas} engines cannot be executed on one device: take it out")
    servers = [
        Server(
            policy,
            machine.executor,
            machine.pool,
            min(planned.max_model_len, planned.kv_tokens),
            machine.activation_blocks,
            scenario.engine.restart_s,
        )
        for machine in (machines(scenario, at, served, planned) for _ in range(replicas))
    ]
    made = _served(sent.client, servers, scenario, progress=lambda ended: progress(ended / requests))
    # A device finds its own limit, and has more in its books.
    made = replace(made, kv_blocks_total=planned.kv_blocks)
    judged_by = hardware(served)
    slo, whose = targets(scenario), tenants(scenario, sent)
    window = Window(scenario.warmup_s, scenario.cooldown_s)
    row = summarise(
        made,
        policy=label,
        seed=point.seed,
        slo=slo,
        tenants=whose,
        window=window,
        hardware=judged_by,
        usd_per_hour=None
        if scenario.cost is None
        else scenario.cost.usd_per_gpu_hour * served.tensor_parallel * replicas,
        requested_rps=sent.requested_rps,
    )
    row["calibrated"] = served.cost.calibrated or machines is not modelled  # what was executed was measured
    row["replicas"] = replicas
    row["gpus"] = served.tensor_parallel * replicas
    busy = row["busy_fraction"]
    row["busy_fraction"] = busy / replicas if isinstance(busy, float) else busy  # of all engines together
    row["cancelled"] = 0 if sent.sessions is None else sent.sessions.cancelled
    notes = (*sent.notes, *(() if sent.trace is None else trace_notes(sent.trace)))
    by_name = () if whose is None else tuple(by_tenant(made, whose, slo=slo, window=window))
    return Outcome(
        label, entry.kind, point.label, point.swept, point.seed, made, row, planned, judged_by,
        farthest(made, served.cost), notes, _prompts_failed(made), by_name,
    )  # fmt: skip


def _served(client: Client, servers: list[Server], scenario: Scenario, progress: Callable[[int], None]) -> Run:
    """The run of one engine, or of several behind their router as one system."""
    horizon_s = math.inf if scenario.horizon_s is None else scenario.horizon_s
    if len(servers) > 1:
        router = ROUTERS[scenario.router or "least_outstanding"]()
        return replay_together(client, servers, router, horizon_s=horizon_s, progress=progress).run
    [server] = servers
    return replay(
        client,
        server.policy,
        server.executor,
        server.pool,
        max_model_len=server.max_model_len,
        activation_blocks=server.activation_blocks,
        restart_s=server.restart_s,
        horizon_s=horizon_s,
        progress=progress,
    )


def _prompts_failed(made: Run) -> bool:
    requests = made.requests
    return bool(((requests["status"] == Status.OOM) & (requests["generated_tokens"] == 0)).any())


def trace_notes(report: TraceReport) -> tuple[str, ...]:
    """What became of a trace's rows: those left out stand first, by reason, with their first line numbers."""
    left_out = [f"left out {rejected}" for rejected in report.rejected]
    return tuple(f"Trace: {note}." for note in (*left_out, *report.notes))
