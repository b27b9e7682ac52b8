"""Runs a scenario: each policy at each sweep point with each seed, in parallel if asked; the order never changes.

A run that cannot be (a point without memory for one request, say) is reported and the others are kept. Interrupted, the
runs made so far are kept too.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from servecast.engine import replay
from servecast.errors import InputError
from servecast.executor import ModelExecutor
from servecast.kvcache import BlockPool
from servecast.metrics import Hardware, Slo, Window, summarise
from servecast.planning.beyond import farthest, sentences
from servecast.planning.results import Failure, Outcome, Results, roof
from servecast.scenario import check, points
from servecast.scenario.resolved import resolved
from servecast.scenario.serving import activation_blocks, plan, require_whole_prompts_fit, serving, step_set_aside
from servecast.scenario.traffic import traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servecast.scenario import Point, Scenario


class Progress(NamedTuple):
    """How far a scenario is: runs made (with the share of the one being made), runs in all, and which is at work."""

    made: float
    total: int
    at_work: str


def simulate(
    scenario: Scenario, jobs: int = 1, progress: Callable[[Progress], None] = lambda progress: None
) -> Results:
    """Run every policy, sweep point and seed, ``jobs`` at a time.

    Raises InputError if not one of the runs can be made (the first one's), and KeyboardInterrupt if none was.
    """
    work = [(point, at) for point in points(scenario) for at in range(len(scenario.policies))]
    outcomes: list[Outcome] = []
    failures: list[Failure] = []
    try:
        for result in _each(work, jobs, progress):
            if isinstance(result, Outcome):
                outcomes.append(result)
            else:
                failures.append(result)
            made = len(outcomes) + len(failures)
            progress(Progress(made, len(work), f"{result.policy} {result.point}".strip()))
    except KeyboardInterrupt:
        if not outcomes:
            raise
    if not outcomes:
        raise InputError(failures[0].place, failures[0].problem)
    shown = next(point.scenario for point, _ in work if point.label == outcomes[0].point)
    served = serving(shown)
    missing = len(work) - len(outcomes) - len(failures)
    return Results(
        scenario=resolved(scenario, shown),
        outcomes=tuple(outcomes),
        notes=tuple(_notes(outcomes, failures, missing)),
        profile=None if served.profile is None else served.profile.model_dump(mode="json"),
        roof=roof(served),
        failures=tuple(failures),
        missing=missing,
    )


def _notes(outcomes: list[Outcome], failures: list[Failure], missing: int) -> Iterator[str]:
    if missing:
        yield f"Interrupted: {missing} of {missing + len(outcomes) + len(failures)} runs were not made."
    for failure in failures:
        yield f"Not run ({failure.which}): {failure.place}: {failure.problem}"
    yield from sentences(outcomes)
    yield from dict.fromkeys(note for outcome in outcomes for note in outcome.notes)


def _each(
    work: list[tuple[Point, int]], jobs: int, progress: Callable[[Progress], None]
) -> Iterator[Outcome | Failure]:
    """The results in the order of ``work``, each as soon as it and all before it are there."""
    if jobs == 1 or len(work) == 1:
        for made, (point, at) in enumerate(work):
            which = f"{point.scenario.labels()[at]} {point.label}".strip()

            def within(share: float, made: int = made, which: str = which) -> None:
                progress(Progress(made + share, len(work), which))

            yield run(point, at, within)
        return
    from joblib import Parallel, delayed

    # Workers get plain data: the sections of policies are made when the schema is imported, and do not pickle.
    tasks = (delayed(_run_data)(_data(point), point.label, point.swept, at) for point, at in work)
    yield from Parallel(n_jobs=jobs, return_as="generator")(tasks)


def _data(point: Point) -> dict[str, Any]:
    return point.scenario.model_dump(mode="json")


def _run_data(data: dict[str, Any], label: str, swept: dict[str, Any], at: int) -> Outcome | Failure:
    from servecast.scenario import Point

    scenario = check(data, Path())
    return run(Point(label, swept, scenario.workload.seed, scenario), at)


def run(point: Point, at: int, progress: Callable[[float], None] = lambda share: None) -> Outcome | Failure:
    """One policy (by its position in the list) at one point; ``progress`` is told the share of requests that ended."""
    label = point.scenario.labels()[at]
    try:
        return _run(point, at, label, progress)
    except InputError as error:
        return Failure(label, point.label, point.seed, error.place, error.problem)


def _run(point: Point, at: int, label: str, progress: Callable[[float], None]) -> Outcome:
    scenario = point.scenario
    entry = scenario.policies[at]
    policy = entry.build()
    served = serving(scenario)
    planned = plan(scenario, served, step_set_aside(policy))
    require_whole_prompts_fit(policy, planned, f"scenario.policies[{at}]")
    sent = traffic(scenario.workload, scenario.engine.block_size)
    requests = len(sent.client)
    pool = BlockPool(planned.kv_blocks, planned.block_size, planned.block_bytes)
    made = replay(
        sent.client,
        policy,
        ModelExecutor(served.cost),
        pool,
        max_model_len=min(planned.max_model_len, planned.kv_tokens),
        activation_blocks=activation_blocks(scenario, served, planned),
        restart_s=scenario.engine.restart_s,
        horizon_s=math.inf if scenario.horizon_s is None else scenario.horizon_s,
        progress=lambda ended: progress(ended / requests),
    )
    hardware = Hardware(
        served.model, served.device.ridge(served.model.dtype), served.cost, served.kv_dtype, served.tensor_parallel
    )
    row = summarise(
        made,
        policy=label,
        seed=point.seed,
        slo=None if scenario.slo is None else Slo(**scenario.slo.model_dump()),
        window=Window(scenario.warmup_s, scenario.cooldown_s),
        hardware=hardware,
        usd_per_hour=None if scenario.cost is None else scenario.cost.usd_per_gpu_hour * served.tensor_parallel,
        requested_rps=sent.requested_rps,
    )
    row["calibrated"] = served.cost.calibrated
    row["cancelled"] = 0 if sent.sessions is None else sent.sessions.cancelled
    notes = () if sent.trace is None else tuple(f"Trace: {note}." for note in sent.trace.notes)
    return Outcome(
        label, entry.kind, point.label, point.swept, point.seed, made, row, planned, hardware,
        farthest(made, served.cost), notes,
    )  # fmt: skip
