"""What a recorded run tells of the host: the client's way to the server and back, and host time on top of each step.

Constant times up and down cannot be told apart by any recording at the client: shifting all requests by one and all
answers by the other changes no latency, in an open loop or under a cap. Only their sum is fitted, and it is split in
half. It must lie inside the loop all the same: a capped client sends when it hears.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from servecast.against.server.forecast import Network, Setting, forecast
from servecast.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from servecast.against.server.observed import Observed

Part = Literal["whole", "first third"]

_CLOSE_S: Final = 1e-6


class Host(NamedTuple):
    """Fitted times [s], and what they were fitted on: the part of a recording, and its number of requests."""

    network: Network
    step_s: float
    part: Part
    requests: int
    source: str = ""


def first_third(requests: Observed) -> NDArray[np.bool_]:
    """Which requests (n,) arrive in the first third of the time in which any do."""
    arrival = requests.arrival_s
    within: NDArray[np.bool_] = arrival <= arrival[0] + (arrival[-1] - arrival[0]) / 3
    return within


def fit(setting: Setting, requests: Observed, *, part: Part = "whole", steps: bool = False) -> Host:
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
    near = setting._replace(network=Network())
    step_s = _host_step(near, requests, chosen) if steps else 0.0
    seen = forecast(near, requests, host_step_s=step_s).seen
    total = max(0.0, float(np.median((requests.ttft_s - seen.ttft_s)[chosen])))
    return Host(Network(total / 2, total / 2), step_s, part, int(chosen.sum()))


def _host_step(setting: Setting, requests: Observed, chosen: NDArray[np.bool_]) -> float:
    """Time [s] on top of each step with which the chosen requests take as long after their first tokens as recorded."""
    from scipy.optimize import brentq

    def writing(seen: Observed) -> float:
        return float((seen.e2e_s - seen.ttft_s)[chosen].sum())

    wanted, tokens = writing(requests), int((requests.output_tokens[chosen] - 1).sum())

    def missing(step_s: float) -> float:
        return writing(forecast(setting, requests, host_step_s=step_s).seen) - wanted

    return 0.0 if missing(0.0) >= 0.0 else float(brentq(missing, 0.0, wanted / tokens, xtol=_CLOSE_S))
