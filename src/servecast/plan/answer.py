"""What a plan says: one option a row, those that cannot be among them, and the money.

    whole bill $/M tokens = GPUs x price / (3600 x rate x tokens of a mean request) x 1e6

over input, output or all tokens, each time with the whole bill on it: no two of them are charged together. The price
list (`Sold`) shares the bill out between input and output, as `servecast.metrics.prices` does for a run. At a
utilisation u (mean over peak load) a GPU that is paid by the hour serves u times what it could, so that a token costs
1/u of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from servecast.files import strict
from servecast.scenario.goals import at_least

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from servecast.plan.uncertainty import Estimate
    from servecast.run.too_long import TooLong

UTILISATIONS = (1.0, 0.7, 0.5, 0.3)
#: Letters of a reason that a table has room for.
_SHORT = 48
KINDS = ("input", "output", "total")


class Tokens(NamedTuple):
    """Tokens of a mean request that completed."""

    input: float
    output: float

    @property
    def total(self) -> float:
        return self.input + self.output


class Offered(NamedTuple):
    """What one seed sends at the target: requests a second, and the tokens of a mean one."""

    rate: float
    tokens: Tokens


class Sold(NamedTuple):
    """One kind of token at the target: millions an hour, their price, and the part of the bill that they pay."""

    mtok_per_hour: float
    usd_per_mtok: float | None
    usd_per_hour: float | None


class BreakEven(NamedTuple):
    """Against an API: the load from which on the GPUs cost less, and what share of their highest load that is.

    The tokens of a request are those of the target, and so are the requests that a user sends.

    load : above ``utilisation`` 1 the API is cheaper at any load
    load_low, load_high : 90 % interval over seeds, whose requests differ
    utilisation_low, utilisation_high : 90 % interval, from that of the highest load
    api_usd_per_hour : what the API asks for the target
    """

    load: float
    utilisation: float
    utilisation_low: float | None = None
    utilisation_high: float | None = None
    api_usd_per_hour: float | None = None
    load_low: float | None = None
    load_high: float | None = None


class Fleet(NamedTuple):
    """A system that serves the target, and its highest load."""

    replicas: int
    gpus: int
    capacity: Estimate
    usd_per_hour: float | None


@dataclass(frozen=True)
class Option:
    """One configuration and what it can do.

    policy : its name; empty where the point of the search is no scenario
    refused : why it cannot serve the target ("" if it can)
    capacity : highest load within the goal, of ``replicas``; None if there is none
    rate : requests a second that the highest load is
    saturation : the most requests a second that the replicas serve, whoever waits; None where nothing saturates them
    unstable_above : the goal is met up to this load, and beyond it the queue grows without end
    target_replicas, target_gpus : fewest that serve the target; None if none up to the limit do
    at_target : each statistic of the goal, and goodput_rps, at the target
    usd_per_mtok : kind of token: the whole bill, dollars per million, at the highest load
    requests : of a simulated load, for each replica; None of a recording, which has its own
    drift : by which share runs half as long gave a higher load; None if that was not tried
    fleet_capacity : highest load of the ``target_replicas`` together, which share what arrives
    usd_at_target : kind of token: dollars per million at the target, of the GPUs that serve it, over seeds
    prices : kind of token: its part of the bill at the target; input and output add up to the bill
    offered : what comes at the target, by seed
    extrapolated : share of the busy time priced outside what was measured, at the target or the highest load
    beyond : how far outside, in a sentence
    too_long : requests that it refuses or whose answers it cuts, at the highest load or where none is met
    interval : what the 90 % intervals of loads hold: seeds, the profile's errors, both
    drawn : highest loads with the profile and with draws of its errors
    """

    label: str
    changed: Mapping[str, Any]
    device: str
    calibrated: bool
    tensor_parallel: int
    unit: str
    target: float
    replicas: int = 1
    refused: str = ""
    capacity: Estimate | None = None
    rate: Estimate | None = None
    saturation: Estimate | None = None
    unstable_above: float | None = None
    target_replicas: int | None = None
    target_gpus: int | None = None
    at_target: Mapping[str, Estimate] = field(default_factory=dict)
    usd_per_hour: float | None = None
    usd_per_mtok: Mapping[str, Estimate] = field(default_factory=dict)
    tokens: Tokens | None = None
    binds: str = ""
    binds_share: float = 0.0
    tests: int = 0
    requests: int | None = None
    drift: float | None = None
    fleet_capacity: Estimate | None = None
    usd_at_target: Mapping[str, Estimate] = field(default_factory=dict)
    prices: Mapping[str, Sold] = field(default_factory=dict)
    offered: tuple[Offered, ...] = field(default=(), repr=False)
    extrapolated: float | None = None
    beyond: str = ""
    interval: str = ""
    policy: str = ""
    too_long: TooLong | None = None
    drawn: tuple[tuple[float, float], ...] = field(default=(), repr=False)

    @property
    def why_not(self) -> str:
        """Why it cannot serve the target, as short as a table needs it."""
        return self.refused if len(self.refused) <= _SHORT else self.refused[: _SHORT - 3].rstrip(" ,;:") + "..."

    @property
    def gpus(self) -> int:
        """GPUs of the system whose capacity stands here."""
        return self.replicas * self.tensor_parallel

    @property
    def serves(self) -> bool:
        """Whether it serves the target."""
        return self.target_gpus is not None

    @property
    def usd_for_target(self) -> float | None:
        """Dollars an hour of the GPUs that serve the target."""
        if self.target_gpus is None or self.usd_per_hour is None:
            return None
        return self.usd_per_hour / self.gpus * self.target_gpus


@dataclass(frozen=True)
class Change:
    """One change that was tried on the best option: its highest load, and that of each GPU against before."""

    label: str
    capacity: float | None
    gain_per_gpu: float | None
    refused: str = ""


@dataclass(frozen=True)
class Plan:
    """The answer to a goal.

    options : every configuration, in the order of the search
    best : the one with the fewest GPUs for the target (then dollars, then the highest load a GPU), as the system that
        serves it: its ``replicas`` are those of the target, its intervals have the profile's errors in them; None if
        no option serves the target
    supported : the interval supports the plan: at its bad end every target of the goal is still met
    holds : where it does not, the next size whose interval does; None if none was found
    cheapest : label of the option that costs least for the target; empty without prices
    break_even_of : label of the option that is compared with the API
    baseline : the best option as it is, from the same short runs as the changes
    noise : share of a highest load by which short runs of one seed may differ: what a change gains must be more
    resumed : simulated loads that were there from an earlier sitting; no part of what is compared or written
    """

    name: str
    goal: Mapping[str, float]
    options: tuple[Option, ...]
    best: Option | None
    supported: bool
    doubts: tuple[str, ...] = ()
    headroom: Estimate | None = None
    break_even: BreakEven | None = None
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()
    holds: Fleet | None = None
    cheapest: str = ""
    break_even_of: str = ""
    baseline: Change | None = None
    noise: float = 0.0
    resumed: int = field(default=0, compare=False)

    @property
    def may_not_hold(self) -> bool:
        """Whether the best option reaches the target, but the bad end of an interval does not."""
        best = self.best
        if best is None or best.capacity is None:
            return False
        return falls_short(best.capacity, best.target) or bool(list(missed(best.at_target, self.goal)))

    def data(self) -> dict[str, Any]:
        """Plain data for ``--json``: what has no value is null, and so is an end of an interval without a bound."""
        data: dict[str, Any] = strict(asdict(self))
        del data["resumed"]
        data["may_not_hold"] = self.may_not_hold
        best = [] if self.best is None else [(self.best, data["best"])]
        for option, plain in (*zip(self.options, data["options"], strict=True), *best):
            del plain["drawn"], plain["offered"]
            plain["prices"] = {kind: sold._asdict() for kind, sold in option.prices.items()}
            plain |= {
                "replica_gpus": option.tensor_parallel,
                "usd_for_target": option.usd_for_target,
                "why_not": option.why_not,
            }
        for option, plain in best:
            if option.usd_per_mtok:
                prices = {
                    f"{share:g}": {kind: price.over(share) for kind, price in option.usd_per_mtok.items()}
                    for share in UTILISATIONS
                }
                plain["usd_per_mtok_at_target"] = {kind: price.value for kind, price in option.usd_at_target.items()}
                plain["usd_per_mtok_at_utilisation"] = {
                    share: {kind: price.value for kind, price in kinds.items()} for share, kinds in prices.items()
                }
                plain["usd_at_utilisation"] = strict(prices)
        return data


def falls_short(capacity: Estimate, target: float) -> bool:
    """Whether the low end of a highest load is below the target."""
    return capacity.low is not None and capacity.low < target


def missed(at_target: Mapping[str, Estimate], goal: Mapping[str, float]) -> Iterator[tuple[str, float, float]]:
    """Each statistic whose bad end misses its target: its name, that end, and the target."""
    for name, target in goal.items():
        found = at_target.get(name)
        if found is None or found.low is None or found.high is None:
            continue
        bad = found.low if at_least(name) else found.high
        if bad < target if at_least(name) else bad > target:
            yield name, bad, target


def dollars(usd_per_hour: float, rate: Estimate, tokens: Tokens) -> dict[str, Estimate]:
    """Dollars per million tokens of each kind where ``rate`` [requests/s] is served for ``usd_per_hour``."""
    return {
        kind: rate.inverse(usd_per_hour / 3600 / getattr(tokens, kind) * 1e6)
        for kind in KINDS
        if getattr(tokens, kind) > 0
    }


def break_even(
    usd_per_hour: float, rate: float, tokens: Tokens, usd_input: float, usd_output: float
) -> BreakEven | None:
    """The rate at which an API at these dollars per million tokens costs as much as the GPUs; None for a free one.

    rate : the highest [requests/s]
    tokens : of a mean request at the target
    """
    usd_per_request = (tokens.input * usd_input + tokens.output * usd_output) / 1e6
    if usd_per_request == 0:
        return None
    load = usd_per_hour / 3600 / usd_per_request
    return BreakEven(load, load / rate)
