"""Runs a validation: every policy at every load, executed twice and simulated; what came out, ready to be written.

Every case is executed once, then every case again: between the two lie minutes, as between calibrating and executing,
and what lies between them is the noise that an error stands beside. A run whose device has drifted is tried again, and
reported as inconclusive if it does so every time. What drift is left is in the error; beside it stands the error of a
simulation at the speed that the device had during the run (`servecast.against.device.speed`), which is the model's own.
Loads are shares of each policy's own saturation, the throughput of a burst of the same requests as simulated: chosen
before anything runs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from servecast.against.device import compare, gates, speed
from servecast.against.device.runs import Bench, Executed, facts_of
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
    run = bench.simulate(burst, at)
    summary = bench.summary(run, "", 0)
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
    seed = scenario.workload.seed
    simulated = bench.simulate(scenario, at)
    first = executed[0].run
    fast = latencies(first.requests, first.respond)["ttft"] < 1.0
    ours = bench.summary(simulated, label, seed)
    theirs = [bench.summary(run.run, label, seed) for run in executed]
    found = compare.metrics(ours, simulated, fast)
    measured = [compare.metrics(summary, run.run, fast) for summary, run in zip(theirs, executed, strict=True)]
    # What would have been forecast, had the device's speed during each run been known.
    paced = [bench.simulate(scenario, at, speed.scale(each.run, each.drifts)) for each in executed]
    knowing = [compare.metrics(bench.summary(run, label, seed), run, fast) for run in paced]
    comparisons = [
        compare.compared(
            name,
            found[name],
            [m[name] for m in measured],
            file.gate(load, name),
            conclusive,
            knowing=[k[name] for k in knowing],
        )
        for name in found
    ]
    return Case(
        policy=label,
        load=load,
        rate_rps=rate,
        simulated=simulated,
        executed=tuple(executed),
        comparisons=tuple(c for c in comparisons if c is not None),
        band=_band(file, bench, scenario, at, load, fast, measured, found),
        same_batches=compare.same_batches(bench.cost, first),
        per_request=compare.per_request(simulated, first),
        regime=(ours["regime"], theirs[0]["regime"]),
        drift=drift,
        conclusive=conclusive,
        tries=max(run.tries for run in executed),
    )


def _band(
    file: ValidationFile,
    bench: Bench,
    scenario: Scenario,
    at: int,
    load: float | str,
    fast: np.ndarray[Any, Any],
    measured: Sequence[dict[str, float | None]],
    found: dict[str, float | None],
) -> dict[str, tuple[float, float, bool]]:
    """Each metric's simulated range over the step times of the band, and whether the executed mean lies in it."""
    if load not in file.band_loads:
        return {}
    ends = []
    for scale in file.band:
        run = bench.simulate(scenario, at, scale)
        ends.append(compare.metrics(bench.summary(run, "", 0), run, fast))
    band = {}
    for name in found:
        values = [value for value in (ends[0][name], found[name], ends[1][name]) if value is not None]
        inside = compare.within(min(values), max(values), [m[name] for m in measured]) if len(values) == 3 else None
        if inside is not None:
            band[name] = (min(values), max(values), inside)
    return band


def _ranking(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Output throughput of each policy in the burst, executed and simulated, as a share of the best one's."""
    burst = {case.policy: case for case in cases if case.load == gates.BURST}
    rates: dict[str, dict[str, float]] = {"executed": {}, "simulated": {}}
    for policy, case in burst.items():
        for c in case.comparisons:
            if c.metric == "output_throughput_tps":
                rates["executed"][policy] = float(np.mean(c.executed))
                rates["simulated"][policy] = c.simulated
    return {
        policy: {side: values[policy] / max(values.values()) for side, values in rates.items()}
        | {f"{side}_tps": values[policy] for side, values in rates.items()}
        for policy in rates["executed"]
    }
