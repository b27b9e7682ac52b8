"""What the simulator says of recorded requests: the scenario's engine serves the recorded arrivals and lengths.

Requests come when they were sent, and where the scenario caps those in flight, when they arrived: then holding them
back is the client's doing, and is simulated too. The client is as far away as ``workload.network`` says (`Remote`).

A recorded run also tells of the host: the client's way to the server and back, and host time on top of each step.
Constant times up and down cannot be told apart by any recording at the client: shifting all requests by one and all
answers by the other changes no latency, in an open loop or under a cap. Only their sum is fitted, and it is split in
half. It must lie inside the loop all the same: a capped client sends when it hears.
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from servecast import resources
from servecast.against.server.observed import Observed
from servecast.errors import InputError
from servecast.requests import Status
from servecast.run.system import System, modelled
from servecast.run.too_long import TooLong
from servecast.scenario import Scenario, changed, check, find, keypath, points
from servecast.scenario import document as documents
from servecast.scenario.schema import Network
from servecast.scenario.traffic import sending

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from servecast.batch import StepShape
    from servecast.engine import Run
    from servecast.executor import PricedSteps

Part = Literal["whole", "first third"]

_CLOSE_S: Final = 1e-6
#: Options of a trace that say how to read it, and leave the load what it was.
_READING: Final = ("path", "format", "part", "time_unit", "block_size", "turns", "on_bad_row")


def load(
    name: str | Path, overrides: Mapping[str, object] | None = None, recording: str | Path | None = None
) -> Scenario:
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
    way = scenario.workload.network or Network.model_validate({})
    return with_network(points(scenario)[0].scenario, way.uplink_s, way.downlink_s)


def with_network(scenario: Scenario, uplink_s: float, downlink_s: float) -> Scenario:
    """The scenario with this way from the client to the scheduler and back [s]."""
    network = Network.model_validate({"uplink_s": uplink_s, "downlink_s": downlink_s})
    workload = scenario.workload.model_copy(update={"network": network})
    return scenario.model_copy(update={"workload": workload})


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
            problem = f"{value} changes the recorded load, which is replayed whole: take it out"
            yield f"workload.trace.{field.name}", problem


class _WithHost:
    """A cost model with time of the host on top: ``step_s`` for each step."""

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
    scenario: Scenario, requests: Observed, *, step_time_scale: float = 1.0, host_step_s: float = 0.0
) -> Forecast:
    """Serve recorded requests: the same arrivals and lengths, the engine of a scenario from `load`.

    step_time_scale : factor of every step time
    host_step_s : time of the host [s] on top of each step of the profile

    Raises InputError where the simulated server does not answer all of them in full, as the recorded one did.
    """
    system = System.of(scenario)
    workload, network = scenario.workload, scenario.workload.network
    assert network is not None, "load gives it one"
    due = requests.sent_s if workload.max_in_flight is None else requests.arrival_s
    order = np.argsort(due, kind="stable")
    origin = float(due[order[0]])
    columns = requests.asked.take(order, due[order] - origin)
    cost = _WithHost(system.served.cost, host_step_s) if host_step_s else None
    run = system.serve(
        sending(columns, workload, scenario.engine.block_size).client,
        machines=partial(modelled, cost=cost, step_time_scale=step_time_scale),
    )
    _require_full_answers(run, system)
    # What the client saw, in the order of the recording.
    place = np.argsort(order)
    reached, first, finish = (run.requests[name][place] for name in ("sent_s", "first_token_s", "finish_s"))
    sent, way = reached - network.uplink_s, network.uplink_s + network.downlink_s
    ttft, e2e = first - reached + way, finish - reached + way
    if run.respond == "batch_end":
        ttft = e2e
    seen = Observed(requests.arrival_s, sent + origin, requests.prompt_tokens, requests.output_tokens, ttft, e2e)
    return Forecast(seen, run)


def _require_full_answers(run: Run, system: System) -> None:
    too_long = TooLong.of_run(run, system.memory)
    if too_long is not None:
        raise InputError(
            "scenario.engine.max_model_len",
            f"at {too_long.max_model_len:,} tokens {too_long.counts}, all of which the recorded server answered in "
            f"full; {too_long.remedy}",
        )
    lost = int((run.requests["status"] != Status.COMPLETED).sum())
    if lost:
        raise InputError(
            "scenario.engine",
            f"the simulated server loses {lost:,} requests that the recorded one answered, as memory runs out: check "
            "kv_blocks and the policy",
        )


# --- what a recording tells of the host ------------------------------------------------------------------------------


class Host(NamedTuple):
    """Fitted times [s], and what they were fitted on: the part of a recording, and its number of requests.

    network_s : up and down together
    """

    network_s: float
    step_s: float
    part: Part
    requests: int
    source: str = ""


def first_third(requests: Observed) -> NDArray[np.bool_]:
    """Which requests (n,) arrive in the first third of the time in which any do."""
    arrival = requests.arrival_s
    within: NDArray[np.bool_] = arrival <= arrival[0] + (arrival[-1] - arrival[0]) / 3
    return within


def fit(scenario: Scenario, requests: Observed, *, part: Part = "whole", steps: bool = False) -> Host:
    """The network, and with ``steps`` also the host's time for each step, with which a recording is met best.

    The host's time makes the mean time per token that of the recording (0 where the profile alone is slower already);
    the network is the median of what TTFTs then lack.

    Raises InputError: the client held requests back (then the network changes what the server sees, and every error of
    the steps is in the TTFT many times over), or with ``steps``, no answer of the part has more than one token.
    """
    if requests.held_back:
        raise InputError("--host-from", "its client held requests back at a cap: name a run below saturation")
    chosen = np.ones(len(requests), bool) if part == "whole" else first_third(requests)
    if steps and not (requests.output_tokens[chosen] > 1).any():
        raise InputError("--host-steps", "all answers have one token, which says nothing of steps: take it out")
    near = with_network(scenario, 0.0, 0.0)
    step_s = _host_step(near, requests, chosen) if steps else 0.0
    seen = forecast(near, requests, host_step_s=step_s).seen
    total = max(0.0, float(np.median((requests.ttft_s - seen.ttft_s)[chosen])))
    return Host(total, step_s, part, int(chosen.sum()))


def _host_step(scenario: Scenario, requests: Observed, chosen: NDArray[np.bool_]) -> float:
    """Time [s] on top of each step with which the chosen requests take as long after their first tokens as recorded."""
    from scipy.optimize import brentq

    def writing(seen: Observed) -> float:
        return float((seen.e2e_s - seen.ttft_s)[chosen].sum())

    wanted, tokens = writing(requests), int((requests.output_tokens[chosen] - 1).sum())

    def missing(step_s: float) -> float:
        return writing(forecast(scenario, requests, host_step_s=step_s).seen) - wanted

    return 0.0 if missing(0.0) >= 0.0 else float(brentq(missing, 0.0, wanted / tokens, xtol=_CLOSE_S))
