"""Executes and simulates a policy of a scenario on one trace, in one virtual clock.

The engine is the same; only the executor differs. About and during each executed run reference steps are timed again:
the device may have become slower since it was calibrated, and no model of steps can know that. A shared machine changes
its speed by a tenth and more within a minute, in jumps. Reference steps before and after a run miss a jump in the
middle. An executed run has a virtual clock, the sum of its steps: so reference steps can be timed inside it, between
two batches, and the run does not notice.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.against.device.execute import machine, refuse_unexecutable
from servecast.cost import profile as profiles
from servecast.cost.model import step_kind
from servecast.cost.roofline import ridge
from servecast.errors import InputError
from servecast.metrics import Hardware, mean_shapes, summarise
from servecast.run.system import System, modelled
from servecast.scenario.serving import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from servecast.batch import Batch
    from servecast.cost.model import CostModel
    from servecast.engine import Run
    from servecast.executor import Durations, Executor
    from servecast.run.system import Machine, Machines
    from servecast.scenario import Scenario
    from servecast.scenario.serving import Serving

    Seconds = Mapping[str, float]

#: Device time between two looks at the speed [s].
_EVERY_S = 0.25


@dataclass(frozen=True)
class Executed:
    """A run on the device.

    drifts : of the reference steps about and during it, against their calibration; tries : it took
    """

    run: Run
    drifts: Mapping[str, float]
    tries: int = 1

    @property
    def drift(self) -> float:
        """The drift furthest from 0, with its sign."""
        return max(self.drifts.values(), key=abs)


class Bench:
    """A scenario's model on its device, built once, and the cost model that forecasts it."""

    def __init__(self, scenario: Scenario, device: str, facts: Mapping[str, Any], layers: int | None = None) -> None:
        from servecast.device.model import transformer
        from servecast.device.steps import References
        from servecast.device.timing import open_device

        self.served = serving(scenario)
        self.cost: CostModel = self.served.cost
        self.facts = facts
        identity = facts["identity"]
        _require_same(identity, self.served, device)
        positions = max(2 * (scenario.engine.max_model_len or self._most(scenario)), identity["limits"]["length"])
        self.model = transformer(
            self.served.model, open_device(device), identity["dtype"], max_positions=positions, layers=layers
        )
        self._references = References(self.model, identity)

    def _most(self, scenario: Scenario) -> int:
        return System.of(scenario, 0, self.served).memory.max_model_len

    def simulate(self, scenario: Scenario, at: int, step_time_scale: float = 1.0) -> Run:
        """Policy ``at`` of the scenario with the cost model, its step times scaled."""
        return self._serve(scenario, at, partial(modelled, step_time_scale=step_time_scale))

    def execute(self, scenario: Scenario, at: int) -> Executed:
        """Policy ``at`` of the scenario on the device."""
        references = self._references
        before = references.seconds()
        watched: list[_Watched] = []

        def machines(system: System) -> Machine:
            made = self._machine(system)
            # On CUDA the cache leaves no memory for another; what moves a GPU's speed, its clock, moves slowly.
            if self.model.device.type != "cpu":
                return made
            watched.append(_Watched(made.executor, references.glance))
            return made._replace(executor=watched[0])

        run = self._serve(scenario, at, machines)
        seen = [before, *(each for executor in watched for each in executor.seen), references.seconds()]
        return Executed(run, _drifts_of(seen, self.facts["references_s"]))

    def _machine(self, system: System) -> Machine:
        refuse_unexecutable(system.policy, f"scenario.policies[{system.at}]")
        return machine(self.model, system)

    def held_out(self) -> list[dict[str, Any]]:
        """Errors of the cost model on the held-out steps, timed anew: [{regime, count, median, p95, signed_mean}]."""
        from servecast.device.quality import errors, shapes
        from servecast.device.steps import held_out_times

        table = held_out_times(self.model, self.facts["identity"])
        table["predicted_s"] = self.cost.seconds(shapes(table))
        return list(errors(table, "predicted_s"))

    def summary(self, run: Run) -> dict[str, Any]:
        """The summary row of a run, judged by the forecast's own cost model; it names no policy and no seed."""
        served = self.served
        hardware = Hardware(served.model, ridge(served.model, served.device), self.cost)
        return summarise(run, policy="", seed=0, hardware=hardware)

    def _serve(self, scenario: Scenario, at: int, machines: Machines) -> Run:
        system = System.of(scenario, at, self.served)
        return system.serve(system.traffic().client, machines=machines)


class _Watched:
    """An executor that looks at the device's speed now and then, between batches."""

    def __init__(self, executor: Executor, glance: Callable[[], Seconds]) -> None:
        self.seen: list[Seconds] = []
        self._executor = executor
        self._glance = glance
        self._since = math.inf

    def run(self, batch: Batch, until: float = math.inf) -> Durations:
        if self._since >= _EVERY_S:
            self.seen.append(self._glance())
            self._since = 0.0
        taken = self._executor.run(batch, until)
        self._since += taken.total
        return taken


def _drifts_of(seen: Sequence[Seconds], calibrated: Seconds) -> dict[str, float]:
    """Mean time of each reference step over that of its calibration, less 1."""
    return {name: float(np.mean([each[name] for each in seen])) / seconds - 1 for name, seconds in calibrated.items()}


def scale(run: Run, drifts: Seconds) -> float:
    """Step times of the run over those of a device as fast as when it was calibrated.

    Steps that only decode go by the decoding reference, the others by the mixed one, each by its share of the time.
    """
    decisions = run.decisions
    kinds = np.asarray(step_kind(mean_shapes(decisions)))
    seconds = decisions["seconds"]
    decoding = float(seconds[kinds == "decode"].sum() / seconds.sum()) if len(seconds) else 0.0
    return 1 + decoding * drifts["decode"] + (1 - decoding) * drifts["mixed"]


def _require_same(identity: Mapping[str, Any], served: Serving, device: str) -> None:
    """Refuse a profile that was measured for another model, or on another kind of device."""
    if identity["model"] != served.model.name:
        problem = f"was measured with {identity['model']}, not {served.model.name}: choose another profile"
        raise InputError("scenario.profile", problem)
    on_cpu = identity["device"] == "cpu"
    if on_cpu != (device.partition(":")[0] == "cpu"):
        raise InputError("--device", f"{device!r}, but the profile was measured on {identity['device']}: use that")
    if served.model.dtype != identity["dtype"]:
        problem = f"was measured in {identity['dtype']}, the model is in {served.model.dtype}: calibrate again"
        raise InputError("scenario.profile", problem)


def facts_of(profile: str) -> dict[str, Any]:
    """What `servecast calibrate` wrote beside a profile.

    Raises InputError for a profile that it did not write.
    """
    path = Path(profiles._find(profile)).with_suffix(".json")
    if not path.is_file():
        problem = f"{profile} has no {path.name} beside it: let servecast calibrate make the profile"
        raise InputError("scenario.profile", problem)
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "references_s" not in facts:
        raise InputError(str(path), "its calibration has not ended: call servecast calibrate again")
    return facts
