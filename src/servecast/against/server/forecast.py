"""What the simulator says of recorded requests: the scenario's engine serves the recorded arrivals and lengths.

Requests come when they were sent, and where the scenario caps those in flight, when they arrived: then holding them
back is the client's doing, and is simulated too. The client is as far away as ``workload.network`` says (`Remote`).
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from servecast import resources
from servecast.against.server.observed import Observed
from servecast.errors import InputError
from servecast.requests import Status
from servecast.run.system import System, modelled
from servecast.scenario import Scenario, changed, check, find, keypath, points
from servecast.scenario import document as documents
from servecast.scenario.traffic import sending

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from servecast.batch import StepShape
    from servecast.engine import Run
    from servecast.executor import PricedSteps
    from servecast.workload.traces.trace_file import TraceFile


#: Options of a trace that say how to read it, and leave the load what it was.
_READING: Final = ("path", "format", "part", "time_unit", "on_bad_row")


class Network(NamedTuple):
    """The way from the client to the scheduler and back [s]."""

    uplink_s: float = 0.0
    downlink_s: float = 0.0

    @property
    def total_s(self) -> float:
        """What it adds to every latency [s]."""
        return self.uplink_s + self.downlink_s


class Setting(NamedTuple):
    """A scenario of one policy at one point, with the network of its workload."""

    scenario: Scenario
    network: Network

    @property
    def recording(self) -> TraceFile | None:
        """The recording is the trace of the scenario."""
        trace = self.scenario.workload.trace
        file: TraceFile | None = None if trace is None else trace.build()
        return file


def load(
    name: str | Path, overrides: Mapping[str, object] | None = None, recording: str | Path | None = None
) -> Setting:
    """Read a scenario to compare: a path, or the name of a shipped one, those of ``scenarios/recorded`` included.

    recording : takes the place of the arrivals and lengths of the scenario, whatever they are

    Raises InputError: it cannot be read, is more than one run, or takes only a part of its recording.
    """
    file = _file(name)
    read = documents.read(file)
    overrides = overrides or {}
    data = changed(read.data, overrides)
    replaced = [keypath.parse(key, f"--set {key}") for key in overrides]
    if recording is not None and isinstance(data.get("workload"), dict):
        data["workload"] = _replaying(data["workload"], Path(recording))
        replaced.append(("workload",))
    scenario = check(data, file.parent, read, replaced)
    for key, problem in _more_than_one_run(scenario):
        raise InputError(f"scenario.{key}", problem)
    way = scenario.workload.network
    network = Network() if way is None else Network(way.uplink_s, way.downlink_s)
    return Setting(points(scenario)[0].scenario, network)


def _file(name: str | Path) -> Path:
    shipped = resources.directory("scenarios") / "recorded" / f"{str(name).removesuffix('.yaml')}.yaml"
    return shipped if not Path(name).is_file() and shipped.is_file() else find(name)


def _replaying(workload: dict[str, Any], recording: Path) -> dict[str, Any]:
    """The plain data of a workload that replays a file: what says how to read one stays, and so does the cap."""
    if not recording.is_file():
        raise InputError(str(recording), "no such file: name the recorded requests")
    trace = workload.get("trace")
    reading = {key: trace[key] for key in _READING if key in trace} if isinstance(trace, dict) else {}
    replaying = {"trace": reading | {"path": str(recording.resolve())}}
    return replaying | {key: workload[key] for key in ("max_in_flight", "network") if key in workload}


def _more_than_one_run(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Keys that make the scenario something else than one replay of a whole recording, and what to do about them."""
    if len(scenario.policies) > 1:
        yield "policies", f"{len(scenario.policies)} policies: keep the one that the recorded server ran"
    if scenario.sweep:
        yield "sweep", "a recording is one run: take the sweep out"
    if scenario.seeds > 1:
        yield "seeds", f"{scenario.seeds} seeds, but a recording is replayed and nothing is drawn: take it out"
    if scenario.horizon_s is not None:
        yield "horizon_s", f"{scenario.horizon_s:g} s would cut the recording off: take it out"
    if scenario.workload.trace is None:
        return
    if scenario.workload.requests is not None:
        yield "workload.requests", f"{scenario.workload.requests} of them are a part of the recorded load: take it out"
    file = scenario.workload.trace.build()
    for field in fields(file):
        value = getattr(file, field.name)
        if field.name not in _READING and value != field.default:
            yield (
                f"workload.trace.{field.name}",
                f"{value} changes the recorded load, which is replayed whole: take it out",
            )


class WithHost:
    """A cost model with time of the host on top: ``step_s`` for each step."""

    __slots__ = ("_cost", "_step_s")

    def __init__(self, cost: PricedSteps, step_s: float) -> None:
        self._cost = cost
        self._step_s = step_s

    def durations(self, shape: StepShape, iterations: int) -> tuple[float, float, int]:
        """As the model inside has it, each iteration ``step_s`` longer."""
        base, slope, count = self._cost.durations(shape, iterations)
        return base + self._step_s, slope, count


class Forecast(NamedTuple):
    """What the clients of the simulated server saw, and the run of the server."""

    seen: Observed
    run: Run


def forecast(
    setting: Setting, requests: Observed, *, step_time_scale: float = 1.0, host_step_s: float = 0.0
) -> Forecast:
    """Serve recorded requests: the same arrivals and lengths, the scenario's engine.

    step_time_scale : factor of every step time
    host_step_s : time of the host [s] on top of each step of the profile

    Raises InputError where the simulated server does not answer all of them in full, as the recorded one did.
    """
    scenario, network = setting.scenario, setting.network
    system = System.of(scenario)
    workload = scenario.workload.model_copy(update={"network": network})
    due = requests.sent_s if workload.max_in_flight is None else requests.arrival_s
    order = np.argsort(due, kind="stable")
    origin = float(due[order[0]])
    columns = requests.asked.take(order, due[order] - origin)
    cost = WithHost(system.served.cost, host_step_s) if host_step_s else None
    run = system.serve(
        sending(columns, workload, scenario.engine.block_size).client,
        machines=partial(modelled, cost=cost, step_time_scale=step_time_scale),
    )
    _answered_in_full(run)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return Forecast(_seen(run, requests, network, place, origin), run)


def _seen(run: Run, requests: Observed, network: Network, place: NDArray[np.intp], origin: float) -> Observed:
    """What the client saw of a run, in the order of the recording: row i stands at ``place[i]`` of the run."""
    reached, first, finish = (run.requests[name][place] for name in ("sent_s", "first_token_s", "finish_s"))
    sent = reached - network.uplink_s
    ttft, e2e = first - reached + network.total_s, finish - reached + network.total_s
    if run.respond == "batch_end":
        ttft = e2e
    return Observed(requests.arrival_s, sent + origin, requests.prompt_tokens, requests.output_tokens, ttft, e2e)


def _answered_in_full(run: Run) -> None:
    lost = int((run.requests["status"] != Status.COMPLETED).sum())
    if lost:
        raise InputError(
            "scenario.engine",
            f"the simulated server loses {lost:,} requests that the recorded one answered (rejected, or out of "
            "memory): check max_model_len, kv_blocks and the policy",
        )
    short = int((run.requests["generated_tokens"] < run.requests["output_tokens"]).sum())
    if short:
        raise InputError(
            "scenario.engine.max_model_len",
            f"it cuts {short:,} answers short that the recorded server gave in full: check max_model_len and kv_blocks",
        )
