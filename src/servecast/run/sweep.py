"""Runs a scenario: each policy at each sweep point with each seed, in parallel if asked; the order never changes.

A run that cannot be (a point without memory for one request, say) is reported and the others are kept. Interrupted, the
runs made so far are kept too; with a `Store` the next sweep begins with them. What a sweep gives does not depend on how
many runs were made at a time, where, or in how many sittings.
"""

from __future__ import annotations

import gc
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from servecast.errors import InputError
from servecast.metrics import Window, by_tenant
from servecast.requests import Status
from servecast.run.extrapolation import farthest, sentences
from servecast.run.judged import view
from servecast.run.results import Failure, Made, Outcome, Results, Roof, reasons
from servecast.run.store import digest_of
from servecast.run.system import System
from servecast.run.too_long import sentences as too_long
from servecast.run.transient import sentences as transients
from servecast.run.transient import transient
from servecast.scenario import keypath, points, resolved
from servecast.scenario.loading import label_of
from servecast.scenario.serving import serving
from servecast.text import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from servecast.run.cluster import Cluster
    from servecast.run.store import Store
    from servecast.run.system import Machines
    from servecast.scenario import Point, Scenario
    from servecast.scenario.serving import Serving
    from servecast.scenario.traffic import Traffic

#: Requests of all runs of a sweep together up to which their tables are kept: beyond, only those that figures show.
MOST_REQUESTS = 250_000
#: Keys of a point that decide nothing about the numbers of one policy's run.
_APART = {"name", "policies", "sweep", "seeds"}


class Progress(NamedTuple):
    """How far a command is: made (with the share of the one being made), in all, and which is at work.

    found : how many of those made were there from an earlier sitting: they took no time in this one
    """

    made: float
    total: int
    at_work: str
    found: int = 0

    def seconds_left(self, elapsed_s: float) -> float | None:
        """Seconds that what is missing will take, at the pace of this sitting; None before anything was made in it."""
        made = self.made - self.found
        return elapsed_s / made * (self.total - self.made) if made > 0 else None


class Task(NamedTuple):
    """One run to be made: a policy, by its place in the scenario's list, at a point of the sweep with one seed."""

    point: Point
    at: int

    @property
    def policy(self) -> str:
        """The policy's name in tables."""
        return self.point.scenario.labels()[self.at]

    @property
    def which(self) -> str:
        """``static rate_rps=8``."""
        return f"{self.policy} {self.point.label}".strip()

    @property
    def digest(self) -> str:
        """What the run is found by in a store."""
        return digest_of(self.point.scenario, self.at, _APART)


def tasks_of(scenario: Scenario) -> list[Task]:
    """Every run to be made, in order: a policy without a swept key runs once, not at each of its values.

    A task has its point as the policy has it: None for each swept key that is another policy's, and no word of it.
    """
    tasks: dict[tuple[Any, ...], Task] = {}
    for point in points(scenario):
        for at in range(len(scenario.policies)):
            own = {key: value for key, value in point.swept.items() if _has(point.scenario, at, key)}
            swept = {**dict.fromkeys(point.swept), **own}
            label = point.label if swept == point.swept else label_of(own)
            tasks.setdefault((at, label, point.seed), Task(point._replace(label=label, swept=swept), at))
    return list(tasks.values())


def simulate(
    scenario: Scenario,
    jobs: int = 1,
    progress: Callable[[Progress], None] = lambda progress: None,
    store: Store | None = None,
    cluster: Cluster | None = None,
    machines: Machines | None = None,
) -> Results:
    """Run every policy, sweep point and seed, ``jobs`` at a time or on a cluster, but for those in ``store``.

    ``machines`` (a device) take the steps here, one run at a time, and have no store: what was measured is not what
    would be measured again.

    Raises InputError if not one of the runs can be made (the first one's), and KeyboardInterrupt if none was.
    """
    tasks = tasks_of(scenario)
    assert store is None or machines is None
    sweep = Sweep(tasks, store, repeatable=machines is None)
    progress(Progress(sweep.resumed, len(tasks), scenario.name, sweep.resumed))
    try:
        for place, result in _each(sweep, jobs, progress, cluster, machines):
            sweep.add(place, result)
            progress(Progress(len(sweep.results), len(tasks), tasks[place].which, sweep.resumed))
    except KeyboardInterrupt:
        if not sweep.split()[0]:
            raise
    (outcomes, failures), missing = sweep.split(), len(sweep.missing)
    if not outcomes:
        raise InputError(failures[0].place, failures[0].problem)
    if not missing and store is not None:
        store.keep_only(sweep.digests)
    results = Results(
        scenario=resolved(scenario, sweep.point_of(outcomes[0])),
        outcomes=tuple(outcomes),
        warnings=(*too_long(outcomes), *transients(outcomes)),
        notes=tuple(_notes(outcomes, failures, missing)),
        failures=tuple(failures),
        missing=missing,
        resumed=sweep.resumed,
        **_priced(serving(sweep.point_of(outcomes[0]))),
    )
    if not {"device", "model", "profile"}.isdisjoint(outcomes[0].swept):
        # Each device has a roof of its own: the one that the figures show.
        shown = outcomes[int(view(results).summary.index[0])]
        results = replace(results, **_priced(serving(sweep.point_of(shown))))
    return results if sweep.tables else _with_tables_shown(results, tasks)


def _priced(served: Serving) -> dict[str, Any]:
    """What results say of the step times: the roof, and the profile's errors."""
    return {
        "roof": Roof.of(served),
        "profile": None if served.profile is None else served.profile.model_dump(mode="json"),
    }


def _with_tables_shown(results: Results, tasks: Sequence[Task]) -> Results:
    """The results with the requests and decisions of the runs that the figures show, which are made once more."""
    shown = set(view(results).summary.index)
    by_name = {(task.policy, task.point.label, task.point.seed): task for task in tasks}
    outcomes = list(results.outcomes)
    for row in shown:
        of = outcomes[row]
        again = run(by_name[of.policy, of.point, of.seed])
        assert isinstance(again, Made)
        outcomes[row] = of._replace(made=of.made._replace(run=again.run))
    note = (
        "Too many requests to hold the tables of all runs: those of requests and decisions are of the "
        f"{len(shown)} that the figures show, of {len(outcomes)}."
    )
    return replace(results, outcomes=tuple(outcomes), notes=(*results.notes, note))


class Sweep:
    """The runs of some tasks, by their place: those found in a store, and those added as they end.

    repeatable : a run made once more is the same; if not, its tables are held however large they are
    resumed : how many runs were found in the store
    tables : whether the requests and decisions of all runs are held; if not, no outcome has a ``run``
    """

    def __init__(self, tasks: Sequence[Task], store: Store | None = None, *, repeatable: bool = True) -> None:
        self.tasks = tasks
        self._store = store
        self._servings: dict[str, Serving] = {}
        self._requests = 0
        self._many = repeatable and len({(task.point.label, task.point.seed) for task in tasks}) > 1
        # Requests that are sure to come, so that workers need not send tables which nobody would hold.
        loads = [task.point.scenario.workload for task in tasks if task.point.scenario.horizon_s is None]
        known = sum(load.requests or 0 for load in loads if load.trace is None and load.servegen is None)
        self.tables = not (self._many and known > MOST_REQUESTS)
        self.results: dict[int, Outcome | Failure] = {}
        for place, made in self._found():
            self._hold(place, made)
        self.resumed = len(self.results)

    @cached_property
    def digests(self) -> list[str]:
        """What each task is found by in the store."""
        return [task.digest for task in self.tasks]

    @property
    def missing(self) -> list[int]:
        """The places of the tasks that are still to be run, in order."""
        return [place for place in range(len(self.tasks)) if place not in self.results]

    def split(self) -> tuple[list[Outcome], list[Failure]]:
        """The runs that were made, and those that could not be, in order."""
        results = [result for _, result in sorted(self.results.items())]
        made = [result for result in results if isinstance(result, Outcome)]
        return made, [result for result in results if isinstance(result, Failure)]

    def point_of(self, outcome: Outcome) -> Scenario:
        """The scenario of an outcome, without a sweep."""
        which = outcome.point, outcome.seed
        return next(task.point.scenario for task in self.tasks if (task.point.label, task.point.seed) == which)

    def add(self, place: int, result: Made | Failure) -> None:
        """Take in what a task gave, and keep it."""
        if isinstance(result, Failure):
            self.results[place] = result
            return
        self._hold(place, result)
        if self._store is not None:
            self._store.add(self.digests[place], result.data(), run=result.run if self.tables else None)

    def _found(self) -> list[tuple[int, Made]]:
        """The runs of the store, with their tables unless there are too many to hold."""
        store = self._store
        if store is None:
            return []
        found = ((place, store.found(digest)) for place, digest in enumerate(self.digests))
        rows = {place: data for place, data in found if data is not None}
        if not self.tables or sum(int(data["row"]["arrived_whole_run"]) for data in rows.values()) > MOST_REQUESTS:
            return [(place, Made.of(data)) for place, data in rows.items()]
        runs = {place: store.run(self.digests[place]) for place in rows}
        return [(place, Made.of(rows[place], made)) for place, made in runs.items() if made is not None]

    def _hold(self, place: int, made: Made) -> None:
        self._requests += int(made.row["arrived_whole_run"])
        task = self.tasks[place]
        (label, swept, seed, scenario), at = task
        # What all points of a device share is held once.
        key = scenario.model_dump_json(include={"model", "profile", "device", "engine"})
        if key not in self._servings:
            self._servings[key] = serving(scenario)
        system = System.of(scenario, at, self._servings[key])
        made = made._replace(row={**made.row, "policy": task.policy}, run=made.run if self.tables else None)
        kind = scenario.policies[at].kind
        self.results[place] = Outcome(task.policy, kind, label, swept, seed, system.memory, system.hardware, made)
        if self.tables and self._requests > MOST_REQUESTS and self._many:
            self.tables = False
            for at, result in self.results.items():
                if isinstance(result, Outcome):
                    self.results[at] = result._replace(made=result.made._replace(run=None))
            if self._store is not None:
                self._store.drop_tables()


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
    yield from (f"Not run {said}" for said in reasons(failures))
    yield from sentences(outcomes)
    # Why memory can run out with the KV cache next to empty: the step that failed held nothing yet.
    found: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        if outcome.made.prompts_failed:
            found.setdefault(outcome.policy, {})[outcome.point] = None
    if found:
        who = [policy + (f" ({'; '.join(labels)})" if any(labels) else "") for policy, labels in found.items()]
        yield (
            f"Out of memory in the step that computes a batch's prompts: {listed(who)}. Its KV and activations do not "
            "fit together; KV peak is of the steps that ran, so it can be 0 % beside that."
        )
    yield from dict.fromkeys(note for outcome in outcomes for note in outcome.made.notes)


def _each(
    sweep: Sweep,
    jobs: int,
    progress: Callable[[Progress], None],
    cluster: Cluster | None,
    machines: Machines | None,
) -> Iterator[tuple[int, Made | Failure]]:
    """What the missing tasks give, each with its place, as soon as it has ended."""
    tasks, places = sweep.tasks, sweep.missing
    if cluster is None and (jobs == 1 or len(places) == 1):
        for made, place in enumerate(places, start=len(tasks) - len(places)):

            def within(share: float, made: int = made, place: int = place) -> None:
                progress(Progress(made + share, len(tasks), tasks[place].which, sweep.resumed))

            yield place, run(tasks[place], within, machines)
        return
    calls = ((place, tasks[place], sweep.tables) for place in places)
    from joblib import Parallel, delayed, parallel_config

    with nullcontext() if cluster is None else parallel_config(backend="dask", client=cluster.client):
        # One by one and in any order, so that what has ended is kept at once.
        threads = jobs if cluster is None else cluster.threads
        parallel = Parallel(n_jobs=threads, return_as="generator_unordered", batch_size=1)
        yield from parallel(delayed(_run_in_worker)(*call) for call in calls)


def _run_in_worker(place: int, task: Task, tables: bool) -> tuple[int, Made | Failure]:
    _keep_imports()
    result = run(task)
    # What the head would not hold is not sent.
    return place, result._replace(run=None) if isinstance(result, Made) and not tables else result


@cache
def _keep_imports() -> None:
    """Once in each worker: joblib has it collect garbage every second, and what was imported is none."""
    gc.freeze()


def run(
    task: Task, progress: Callable[[float], None] = lambda share: None, machines: Machines | None = None
) -> Made | Failure:
    """Make one run; ``progress`` is called with the share of its requests that have ended."""
    try:
        return _run(task, progress, machines)
    except InputError as error:
        return Failure(task.policy, task.point.label, task.point.seed, error.place, error.problem)


def _run(task: Task, progress: Callable[[float], None], machines: Machines | None) -> Made:
    system = System.of(task.point.scenario, task.at)
    scenario, served, replicas = system.scenario, system.served, system.replicas
    if replicas > 1 and machines is not None:
        raise InputError("scenario.replicas", f"{replicas} engines cannot be executed on one device: take it out")
    sent = system.traffic()
    requests = len(sent.client)
    made = system.serve(sent.client, machines=machines, progress=lambda ended: progress(ended / requests))
    window = Window(scenario.warmup_s, scenario.cooldown_s)
    row: dict[str, Any] = system.row(
        made, sent, seed=task.point.seed, window=window, usd_per_hour=system.usd_per_hour, executed=machines is not None
    )
    whose, ended = system.tenants(sent), made.requests
    by_name = () if whose is None else tuple(by_tenant(made, whose, slo=system.slo, window=window))
    prompts_failed = bool(((ended["status"] == Status.OOM) & (ended["generated_tokens"] == 0)).any())
    head = transient(made, window, getattr(scenario.workload.arrivals, "users", None))
    return Made(row, farthest(made, served.cost), notes_of(sent), prompts_failed, head, by_name, made)


def notes_of(sent: Traffic) -> tuple[str, ...]:
    """What a reader should know of requests: answers that were cut, rows of a trace that were left out, by reason."""
    report = sent.trace
    left_out = [] if report is None else [f"left out {rejected}" for rejected in report.rejected]
    return (*sent.notes, *(f"Trace: {note}." for note in (*left_out, *(report.notes if report else ()))))
