"""From a scenario and a recording to the comparison."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from servecast.against.server.compared import Comparison
from servecast.against.server.forecast import first_third, fit, forecast, load, with_network
from servecast.against.server.observed import recorded, same_requests
from servecast.cost.known_error import known_error
from servecast.errors import InputError
from servecast.run.extrapolation import farthest
from servecast.scenario.serving import serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from servecast.against.server.forecast import Forecast, Host
    from servecast.against.server.observed import Observed
    from servecast.scenario import Scenario

#: Steps so much shorter and longer are simulated beside a forecast from a profile.
BAND: Final = 0.05
_TWINS = {"patched": "vanilla", "vanilla": "patched"}
_TWIN = re.compile(r"-(patched|vanilla)(?=\.)")


def compared(
    scenario: str | Path,
    recording: Path | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
    margin: float = 0.05,
    band: float | None = None,
    twin: Path | None = None,
    host_from: Path | None = None,
    host_steps: bool = False,
) -> Comparison:
    """Simulate the arrivals and lengths of a recording, and hold the times against the recorded ones.

    recording : None for the trace of the scenario
    margin : relative error of means within which they are to be shown equivalent
    band : also simulated with steps so much shorter and longer; 0 for none, None for `BAND`, or for the known error of
        a datasheet where one prices the steps
    twin : another recording of the same requests; None looks for ``-patched`` beside ``-vanilla`` and the reverse
    host_from : recording that the client's way (uplink + downlink) is fitted on, instead of ``workload.network``; of
        the recording itself the first third is used, and the rest is judged
    host_steps : fit time of the host on top of each step too

    Raises InputError: what cannot be read, simulated or compared.
    """
    _refuse_impossible(margin, BAND if band is None else band)
    if host_steps and host_from is None:
        raise InputError("--host-steps", "nothing says which run to fit it on: name one with --host-from")
    settled = load(scenario, overrides, recording)
    if band is None:
        band = BAND if settled.profile is not None else known_error(None).high - 1
    if settled.workload.trace is None:
        raise InputError("RECORDED", "no recording is named, and the scenario has no trace: give a file")
    trace = settled.workload.trace.build()
    requests, notes = recorded(trace)
    file = Path(trace.path)
    judged = _window(settled, requests)
    host, beside = None, tuple[str, ...]()
    if host_from is not None:
        own = host_from.resolve() == file.resolve()
        host, beside = _host(settled, requests if own else None, host_from, host_steps)
        settled = with_network(settled, host.network_s / 2, host.network_s / 2)
        judged = judged & ~first_third(requests) if own else judged
        if not judged.any():
            problem = f"{host_from} has nothing after its first third to judge: fit on another run"
            raise InputError("--host-from", problem)
    step_s = 0.0 if host is None else host.step_s
    made = forecast(settled, requests, host_step_s=step_s)
    shorter, longer = (
        forecast(settled, requests, step_time_scale=scale, host_step_s=step_s).seen if band else None
        for scale in (1 - band, 1 + band)
    )
    found, beside_it = _twin(file, requests, twin)
    around = None if shorter is None or longer is None else (band, shorter, longer)
    told = (*(f"Recording: {note}." for note in notes), *beside, *beside_it, *_extrapolated(settled, made))
    return Comparison(settled, requests, made, judged, margin, band=around, twin=found, host=host, notes=told)


def _refuse_impossible(margin: float, band: float) -> None:
    for name, share in (("--margin", margin), ("--band", band)):
        if not 0 <= share < 1 or (name == "--margin" and share == 0):
            raise InputError(name, f"{share:g} is no such share: give a fraction, like 0.05 for 5 %")


def _host(scenario: Scenario, own: Observed | None, path: Path, steps: bool) -> tuple[Host, tuple[str, ...]]:
    """The host's times, fitted on the first third of the recording itself or on the whole of another; notes on that."""
    requests, notes = (own, ()) if own is not None else recorded(path, f"--host-from {path}")
    host = fit(scenario, requests, part="whole" if own is None else "first third", steps=steps)
    return host._replace(source=path.name), tuple(f"{path.name}: {note}." for note in notes)


def _window(scenario: Scenario, requests: Observed) -> NDArray[np.bool_]:
    """Which requests the scenario's warm-up and cool-down leave."""
    arrival = requests.arrival_s
    start, end = scenario.warmup_s or 0.0, float(arrival[-1]) - (scenario.cooldown_s or 0.0)
    chosen: NDArray[np.bool_] = (arrival >= start) & (arrival <= end)
    if not chosen.any():
        problem = f"from {start:g} s to {end:g} s no request of the recording arrives; shorten them"
        raise InputError("scenario.warmup_s", problem)
    return chosen


def _twin(file: Path, requests: Observed, named: Path | None) -> tuple[tuple[str, Observed] | None, list[str]]:
    """The twin with its name, and a note where one was found that is none."""
    beside = file.with_name(_TWIN.sub(lambda match: f"-{_TWINS[match[1]]}", file.name))
    path = named or (beside if beside.name != file.name and beside.is_file() else None)
    if path is None:
        return None, []
    other = recorded(path, f"--twin {path}" if named else "")[0]
    problem = same_requests(requests, other)
    if problem is None:
        return (path.name, other), []
    if named is not None:
        raise InputError(f"--twin {named}", f"is no twin: {problem}; name a recording of the same requests")
    return None, [f"{path.name} is no twin of the recording: {problem}."]


def _extrapolated(scenario: Scenario, made: Forecast) -> Iterator[str]:
    beyond = farthest(made.run, serving(scenario).cost)
    if beyond is not None:
        where = [f"by a factor of up to {beyond.factor:.1f} in {beyond.field}"] if beyond.field else []
        kind = ["some steps are of a kind that was never measured"] if beyond.kinds else []
        yield f"Extrapolated beyond the measured steps: {', '.join(where + kind)}."
