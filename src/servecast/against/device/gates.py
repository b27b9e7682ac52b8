"""The file of a validation: a scenario, the loads to run it at, and the gates that were set before it ran.

scenario: {name: ..., model: ..., profile: ..., workload: ..., policies: [...]}
loads: [0.3, 0.6, 0.95]     shares of each policy's own saturation, the simulated throughput of a burst
burst: true                 and that burst itself
band: [0.95, 1.05]          step times at which the simulation is made again, for the loads in `band_loads`
gates: [{loads: [0.3, 0.6], metrics: [ttft_mean_s], relative: 0.10}]
                            loads as above, or `burst`; metrics as in `metrics.csv`
drift: 0.10                 of a reference step since the calibration; beyond it a run is tried again
tries: 3                    at most, for one execution
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from servecast import plain_yaml
from servecast import scenario as scenarios
from servecast.against.device.compare import METRICS, WASTE
from servecast.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from servecast.scenario import Scenario

#: The load that is a burst: every request at once.
BURST = "burst"

Share = Annotated[float, Field(gt=0, le=2, strict=True)]
Load = Share | Annotated[str, Field(pattern="^burst$")]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Gate(_Section):
    """Metrics that must come within ``relative`` of what was executed, or twice the noise where that is larger."""

    loads: tuple[Load, ...]
    metrics: tuple[str, ...]
    relative: Annotated[float, Field(gt=0, lt=1, strict=True)]

    @field_validator("metrics")
    @classmethod
    def _known(cls, metrics: tuple[str, ...]) -> tuple[str, ...]:
        for name in metrics:
            if name not in (*METRICS, *WASTE):
                near = difflib.get_close_matches(name, (*METRICS, *WASTE), 1)
                meant = f": did you mean {near[0]}?" if near else f"; there are {', '.join((*METRICS, *WASTE))}"
                raise ValueError(f"{name} is no metric that is compared{meant}")
        return metrics


class ValidationFile(_Section):
    """What to execute and simulate, and what would be good enough."""

    scenario: dict[str, Any]
    loads: tuple[Share, ...] = (0.3, 0.6)
    burst: Annotated[bool, Field(strict=True)] = True
    band: tuple[Share, Share] = (0.95, 1.05)
    band_loads: tuple[Load, ...] = ()
    gates: tuple[_Gate, ...] = ()
    drift: Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)] = 0.10
    tries: Annotated[int, Field(ge=1, strict=True)] = 3

    @model_validator(mode="after")
    def _of_what_runs(self) -> ValidationFile:
        """Gates and bands are of loads that are run; each load is run once."""
        if not self.loads and not self.burst:
            raise ValueError("loads is empty and burst is false: nothing would be run")
        if len(set(self.loads)) < len(self.loads):
            raise ValueError(f"loads names one twice: {', '.join(f'{load:g}' for load in self.loads)}")
        run = [*self.loads, *([BURST] if self.burst else [])]
        named = [(f"gates[{at}]", load) for at, gate in enumerate(self.gates) for load in gate.loads]
        for place, load in (*named, *(("band_loads", load) for load in self.band_loads)):
            if load not in run:
                raise ValueError(f"{place}: {load} is not run: add it to loads, or take it out")
        return self

    def gate(self, load: float | str, metric: str) -> float | None:
        """The gate of a metric at a load, None where none was set."""
        own = (gate.relative for gate in self.gates if load in gate.loads and metric in gate.metrics)
        return next(own, None)


def read(path: Path) -> ValidationFile:
    """Read and check the file of a validation. Raises InputError with the file and the key of what is wrong."""
    data = plain_yaml.read(path)
    if not isinstance(data, dict) or "scenario" not in data:
        raise InputError(str(path), "has no key 'scenario': a validation holds scenario, loads and gates")
    try:
        return ValidationFile.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "value_error":  # ours: it says the value itself
            raise InputError(f"{path}: {key}" if key else str(path), str(first["ctx"]["error"])) from None
        raise InputError(f"{path}: {key}", f"{first['input']!r}: {first['msg'].lower()}") from None


def at_load(file: ValidationFile, folder: Path, rate_rps: float | None) -> Scenario:
    """The scenario with Poisson arrivals at a rate, or as a burst where that is None.

    Raises InputError where the scenario is none, sweeps, or names no measured profile.
    """
    arrivals = {"kind": "burst"} if rate_rps is None else {"kind": "poisson", "rate_rps": rate_rps}
    data = scenarios.changed(file.scenario, {"workload.arrivals": arrivals})
    checked = scenarios.check(data, folder)
    if checked.profile is None:
        raise InputError("scenario.profile", "is missing: a validation compares a measured profile with its device")
    if checked.sweep or checked.seeds != 1 or checked.horizon_s is not None:
        raise InputError("scenario", "sweep, seeds and horizon_s are not validated: take them out")
    if checked.replicas not in (None, 1) or checked.warmup_s is not None or checked.cooldown_s is not None:
        raise InputError("scenario", "replicas, warmup_s and cooldown_s are not validated: take them out")
    return checked
