"""Runs a scenario: each policy at each sweep point with each seed, in parallel if asked; the order never changes.

A run that cannot be (a point without memory for one request, say) is reported and the others are kept. Interrupted, the
runs made so far are kept too; with a `PointsStore` the next sweep begins with them. What a sweep gives does not depend
on how many runs were made at a time, where, or in how many sittings.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servecast.errors import InputError
from servecast.metrics import Window, by_tenant
from servecast.progress import Progress
from servecast.requests import Status
from servecast.run.extrapolation import farthest, sentences
from servecast.run.gathered import Gathered
from servecast.run.results import Failure, Outcome, Results, roof
from servecast.run.shown import view
from servecast.run.system import System
from servecast.scenario import check, keypath, points
from servecast.scenario.resolved import resolved
from servecast.scenario.serving import serving
from servecast.text import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servecast.engine import Run
    from servecast.run.cluster import Cluster
    from servecast.run.points_store import PointsStore
    from servecast.run.system import Machines
    from servecast.scenario import Point, Scenario
    from servecast.workload.traces.trace_file import TraceReport


def simulate(
    scenario: Scenario,
    jobs: int = 1,
    progress: Callable[[Progress], None] = lambda progress: None,
    store: PointsStore | None = None,
    cluster: Cluster | None = None,
    machines: Machines | None = None,
) -> Results:
    """Run every policy, sweep point and seed, ``jobs`` at a time or on a cluster, but for those in ``store``.

    ``machines`` (a device) take the steps here, one run at a time, and have no store: what was measured is not what
    would be measured again.

    Raises InputError if not one of the runs can be made (the first one's), and KeyboardInterrupt if none was.
    """
    work = _work(scenario)
    assert store is None or machines is None
    gathered = Gathered(work, store, repeatable=machines is None)
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
    machines: Machines | None,
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
    point: Point, at: int, progress: Callable[[float], None] = lambda share: None, machines: Machines | None = None
) -> Outcome | Failure:
    """One policy (by its position in the list) at one point; ``progress`` is told the share of requests that ended."""
    label = point.scenario.labels()[at]
    try:
        return _run(point, at, label, progress, machines)
    except InputError as error:
        return Failure(label, point.label, point.seed, error.place, error.problem)


def _run(point: Point, at: int, label: str, progress: Callable[[float], None], machines: Machines | None) -> Outcome:
    system = System.of(point.scenario, at)
    scenario, served, replicas = system.scenario, system.served, system.replicas
    if replicas > 1 and machines is not None:
        raise InputError("scenario.replicas", f"{replicas} engines cannot be executed on one device: take it out")
    sent = system.traffic()
    requests = len(sent.client)
    made = system.serve(sent.client, machines=machines, progress=lambda ended: progress(ended / requests))
    window = Window(scenario.warmup_s, scenario.cooldown_s)
    row: dict[str, Any] = system.row(
        made, sent, seed=point.seed, window=window, usd_per_hour=system.usd_per_hour, executed=machines is not None
    )
    notes = (*sent.notes, *(() if sent.trace is None else trace_notes(sent.trace)))
    whose = system.tenants(sent)
    by_name = () if whose is None else tuple(by_tenant(made, whose, slo=system.slo, window=window))
    return Outcome(
        label, scenario.policies[at].kind, point.label, point.swept, point.seed, made, row, system.memory,
        system.hardware, farthest(made, served.cost), notes, _prompts_failed(made), by_name,
    )  # fmt: skip


def _prompts_failed(made: Run) -> bool:
    requests = made.requests
    return bool(((requests["status"] == Status.OOM) & (requests["generated_tokens"] == 0)).any())


def trace_notes(report: TraceReport) -> tuple[str, ...]:
    """What became of a trace's rows: those left out stand first, by reason, with their first line numbers."""
    left_out = [f"left out {rejected}" for rejected in report.rejected]
    return tuple(f"Trace: {note}." for note in (*left_out, *report.notes))
