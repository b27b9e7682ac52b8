"""Runs a validation: every policy at every load, executed twice and simulated; what came out, ready to be written.

Every case is executed once, then every case again: between the two lie minutes, as between calibrating and executing,
and what lies between them is the noise that an error stands beside. A run whose device has drifted is tried again, and
reported as inconclusive if it does so every time. What drift is left is in the error; beside it stands the error of a
simulation at the speed that the device had during the run (`runs.scale`), which is the model's own. Loads are shares of
each policy's own saturation, the throughput of a burst of the same requests as simulated: chosen before anything runs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from servecast.against.device import compare, gates
from servecast.against.device.runs import Bench, Executed, facts_of, scale
from servecast.errors import InputError
from servecast.metrics import latencies
from servecast.run.sweep import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from servecast.against.device.gates import ValidationFile
    from servecast.engine import Run
    from servecast.scenario import Scenario

EXECUTIONS = 2


@dataclass(frozen=True)
class Case:
    """One policy at one load.

    band : each metric's simulated range over the step times of the band, and whether the executed mean lies in it
    drift : of the reference steps against their calibration, the worst of its runs
    tries : times it was run for one execution
    """

    policy: str
    load: float | str
    rate_rps: float | None
    simulated: Run
    executed: tuple[Executed, ...]
    comparisons: tuple[compare.Compared, ...]
    band: dict[str, tuple[float, float, bool]]
    same_batches: list[dict[str, Any]]
    per_request: dict[str, dict[str, float]]
    regime: tuple[str | None, str | None]
    drift: float
    conclusive: bool
    tries: int


@dataclass(frozen=True)
class Validation:
    """All cases, the step errors, and the ranking of the policies in a burst. ``planned``: executions, of all cases."""

    file: ValidationFile
    name: str
    device: str
    facts: dict[str, Any]
    held_out: list[dict[str, Any]]
    cases: tuple[Case, ...]
    ranking: dict[str, dict[str, float]] = field(default_factory=dict)
    interrupted: bool = False
    planned: int = 0

    def outside(self) -> list[tuple[Case, compare.Compared]]:
        """What missed its gate."""
        return [(case, c) for case in self.cases for c in case.comparisons if c.verdict == compare.OUTSIDE]


def validate(
    path: Path, device: str, progress: Callable[[Progress], None] = lambda progress: None, seed: int | None = None
) -> Validation:
    """Execute and simulate what the file says on ``device``.

    Interrupted, it keeps the cases it has. Raises InputError for a file, profile or device that does not do.
    """
    file = gates.read(path)
    if seed is not None:
        file.scenario.setdefault("workload", {})["seed"] = seed
    folder = path.parent
    burst = gates.at_load(file, folder, None)
    facts = facts_of(str(burst.profile))
    bench = Bench(burst, device, facts)
    labels = burst.labels()
    saturation = [_saturation(bench, burst, at) for at in range(len(labels))]
    held_out = bench.held_out()
    loads: list[float | str] = [*([gates.BURST] if file.burst else []), *file.loads]
    wanted = []
    for load in loads:
        for at, label in enumerate(labels):
            rate = None if load == gates.BURST else float(load) * saturation[at]
            wanted.append(_Setting(at, label, load, rate, gates.at_load(file, folder, rate)))
    executed: list[list[Executed]] = [[] for _ in wanted]
    interrupted = False
    try:
        for number in range(EXECUTIONS * len(wanted)):
            begun = time.monotonic()
            setting, runs = wanted[number % len(wanted)], executed[number % len(wanted)]
            runs.append(_execute(file, bench, setting))
            took = time.monotonic() - begun
            progress(Progress(number + 1, EXECUTIONS * len(wanted), f"{setting.label} at {setting.load}: {took:.0f} s"))
    except KeyboardInterrupt:
        if not executed[0]:
            raise
        interrupted = True
    cases = tuple(_case(file, bench, setting, runs) for setting, runs in zip(wanted, executed, strict=True) if runs)
    return Validation(
        file, burst.name, device, facts, held_out, cases, _ranking(cases), interrupted, EXECUTIONS * len(wanted)
    )


def _saturation(bench: Bench, burst: Scenario, at: int) -> float:
    summary = bench.summary(bench.simulate(burst, at))
    if not summary["completed"]:
        raise InputError("scenario", f"{burst.labels()[at]} completes no request of a burst: nothing can be compared")
    return float(summary["completed"]) / float(summary["makespan_s"])


class _Setting(NamedTuple):
    """Policy ``at`` of a scenario at one load."""

    at: int
    label: str
    load: float | str
    rate_rps: float | None
    scenario: Scenario


def _execute(file: ValidationFile, bench: Bench, setting: _Setting) -> Executed:
    """The run on the device; of runs on a device that has drifted, each tried again, the one least off."""
    best: Executed | None = None
    for number in range(1, file.tries + 1):
        again = bench.execute(setting.scenario, setting.at)
        if best is None or abs(again.drift) < abs(best.drift):
            best = again
        best = replace(best, tries=number)
        if abs(again.drift) <= file.drift:
            break
    assert best is not None
    return best


def _case(file: ValidationFile, bench: Bench, setting: _Setting, executed: Sequence[Executed]) -> Case:
    at, label, load, rate, scenario = setting
    drift = max((run.drift for run in executed), key=abs)
    conclusive = abs(drift) <= file.drift
    simulated, first = bench.simulate(scenario, at), executed[0].run
    fast = latencies(first.requests, first.respond)["ttft"] < 1.0

    def of(run: Run) -> dict[str, float | None]:
        return compare.metrics(bench.summary(run), run, fast)

    def paced(factor: float) -> dict[str, float | None]:
        return of(bench.simulate(scenario, at, factor))

    found, measured = of(simulated), [of(each.run) for each in executed]
    # What would have been forecast, had the device's speed during each run been known.
    knowing = [paced(scale(each.run, each.drifts)) for each in executed]
    ends = [paced(factor) for factor in file.band] if load in file.band_loads else []
    comparisons, band = [], {}
    for name, value in found.items():
        executions, gate = [each[name] for each in measured], file.gate(load, name)
        at_speed = [each[name] for each in knowing]
        comparisons.append(compare.compared(name, value, executions, gate, conclusive, knowing=at_speed))
        values = [each for each in (value, *(end[name] for end in ends)) if each is not None]
        inside = compare.within(min(values), max(values), executions) if len(values) == 3 else None
        if inside is not None:
            band[name] = (min(values), max(values), inside)
    return Case(
        policy=label,
        load=load,
        rate_rps=rate,
        simulated=simulated,
        executed=tuple(executed),
        comparisons=tuple(c for c in comparisons if c is not None),
        band=band,
        same_batches=compare.same_batches(bench.cost, first),
        per_request=compare.per_request(simulated, first),
        regime=(bench.summary(simulated)["regime"], bench.summary(first)["regime"]),
        drift=drift,
        conclusive=conclusive,
        tries=max(run.tries for run in executed),
    )


def _ranking(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Output throughput of each policy in the burst, executed and simulated, as a share of the best one's."""
    rates = {
        case.policy: {"executed": float(np.mean(c.executed)), "simulated": c.simulated}
        for case in cases
        for c in case.comparisons
        if case.load == gates.BURST and c.metric == "output_throughput_tps"
    }
    best = {side: max(each[side] for each in rates.values()) for side in ("executed", "simulated") if rates}
    return {
        policy: {side: rate / best[side] for side, rate in sides.items()}
        | {f"{side}_tps": rate for side, rate in sides.items()}
        for policy, sides in rates.items()
    }
