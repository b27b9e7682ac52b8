"""What simulating a scenario gives: a run for each policy, sweep point and seed, and the tables over all of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from servecast.cost.roofline import peak_flops
from servecast.metrics import Hardware, decisions_frame, oom_frame, requests_frame
from servecast.run.extrapolation import Extrapolation
from servecast.run.transient import Transient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pandas as pd

    from servecast.engine import Run
    from servecast.memory import MemoryBudget
    from servecast.scenario.serving import Serving


@dataclass(frozen=True, slots=True)
class Roof:
    """The roofline that steps are drawn on, per GPU: peaks as the data sheet has them for what the model multiplies in.

    calibrated : whether step times come from measurements; if not, every number is marked *uncalibrated*
    """

    name: str
    bandwidth_Bps: float  # noqa: N815 (the unit)
    flops: float
    calibrated: bool

    @classmethod
    def of(cls, served: Serving) -> Roof:
        """The roofline of the number format of a model's weights on its device."""
        flops = peak_flops(served.model, served.device)
        return cls(served.device.name, served.device.bandwidth_Bps, flops, served.cost.calibrated)

    @property
    def ridge(self) -> float:
        """FLOP per byte at which compute and memory bandwidth bind alike."""
        return self.flops / self.bandwidth_Bps


class Made(NamedTuple):
    """What a run gave, without what its scenario says already: this is what workers send and the store keeps.

    row : of the summary
    extrapolation : how far it went outside what was measured
    prompts_failed : memory ran out in a step that computed a closed batch's prompts
    transient : a head that decides a statistic
    tenants : rows of `servecast.metrics.by_tenant`; none where the workload names no tenant
    run : its requests and decisions; None where a sweep has too many to hold
    """

    row: dict[str, Any]
    extrapolation: Extrapolation | None
    notes: tuple[str, ...]
    prompts_failed: bool
    transient: Transient | None
    tenants: tuple[dict[str, Any], ...]
    run: Run | None

    def data(self) -> dict[str, Any]:
        """Plain data of all but the tables."""
        data = self._asdict()
        del data["run"]
        return data

    @classmethod
    def of(cls, data: dict[str, Any], run: Run | None = None) -> Made:
        """What such data are of."""
        lists = {name: tuple(data[name]) for name in ("notes", "tenants")}
        head = None if data["transient"] is None else Transient(*data["transient"])
        beyond = Extrapolation.of(data["extrapolation"])
        return cls(**{**data, **lists, "extrapolation": beyond, "transient": head, "run": run})


class Outcome(NamedTuple):
    """One run: which it is, and what it gave.

    policy, kind : the policy's label in tables, and its kind
    point : label of the sweep point ("" without a sweep)
    swept : value by swept key path, None where the key is one that this policy does not have
    """

    policy: str
    kind: str
    point: str
    swept: dict[str, Any]
    seed: int
    memory: MemoryBudget
    hardware: Hardware
    made: Made

    @property
    def run(self) -> Run | None:
        """Its requests and decisions, where they are held."""
        return self.made.run

    @property
    def row(self) -> dict[str, Any]:
        """Its row of the summary."""
        return self.made.row

    @property
    def which(self) -> str:
        """``static, rate_rps=8, seed 1``."""
        return ", ".join(part for part in (self.policy, self.point, f"seed {self.seed}") if part)

    @property
    def keys(self) -> dict[str, Any]:
        """The columns that tell this run from the others in every table."""
        return {"policy": self.policy, **self.swept, "seed": self.seed}


class Failure(NamedTuple):
    """A run that could not be: which, and why (an InputError's place and problem)."""

    policy: str
    point: str
    seed: int
    place: str
    problem: str

    @property
    def which(self) -> str:
        """``static, rate_rps=8, seed 1``."""
        return ", ".join(part for part in (self.policy, self.point, f"seed {self.seed}") if part)


def reasons(failures: Iterable[Failure]) -> Iterator[str]:
    """A line for each reason: ``(static, rate_rps=8, seed 1; and 4 more): place: problem``."""
    alike: dict[tuple[str, str], list[str]] = {}
    for failure in failures:
        alike.setdefault((failure.place, failure.problem), []).append(failure.which)
    for (place, problem), which in alike.items():
        more = f"; and {len(which) - 1} more" if len(which) > 1 else ""
        yield f"({which[0]}{more}): {place}: {problem}"


@dataclass(frozen=True)
class Results:
    """Every run of a scenario, in the order point, seed, policy. Tables are made when they are asked for.

    scenario : resolved, with every default that took effect, as it is written beside the tables
    warnings : what decides what the numbers are of, a sentence each; said whole and before all else
    notes : what else a reader should be told, a sentence each
    profile : errors and provenance of the cost model as plain values; None for a datasheet
    failures : runs that could not be; ``missing``: how many were not made because the user interrupted
    resumed : how many were made by an earlier run of this sweep
    """

    scenario: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    profile: Mapping[str, Any] | None = None
    roof: Roof | None = None
    failures: tuple[Failure, ...] = ()
    missing: int = 0
    resumed: int = 0

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each policy, by its label."""
        return {outcome.policy: outcome.kind for outcome in self.outcomes}

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row a run: policy, a column for each swept key path, seed, and `servecast.metrics.summarise`."""
        import pandas as pd

        return pd.DataFrame([{**outcome.keys, **outcome.row} for outcome in self.outcomes])

    @cached_property
    def tenants(self) -> pd.DataFrame:
        """One row a tenant of every run; empty where the workload names no tenant."""
        import pandas as pd

        return pd.DataFrame([{**outcome.keys, **row} for outcome in self.outcomes for row in outcome.made.tenants])

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request of every run whose tables are held."""
        return self._joined(lambda run, hardware: requests_frame(run))

    @cached_property
    def decisions(self) -> pd.DataFrame:
        """One row a scheduling decision of every run whose tables are held."""
        return self._joined(decisions_frame)

    @cached_property
    def oom(self) -> pd.DataFrame:
        """One row an out-of-memory event of every run whose tables are held."""
        return self._joined(lambda run, hardware: oom_frame(run))

    def _joined(self, table: Callable[[Run, Hardware], pd.DataFrame]) -> pd.DataFrame:
        import pandas as pd

        keys = pd.DataFrame([outcome.keys for outcome in self.outcomes if outcome.run is not None])
        frames = [table(each.run, each.hardware) for each in self.outcomes if each.run is not None]
        if not frames:
            return pd.DataFrame(columns=list(self.outcomes[0].keys))
        for name in reversed(keys.columns):
            values = keys[name].tolist()
            # Text is kept as codes, since it stands in every row of large tables.
            texts = pd.Index(dict.fromkeys(values)) if all(isinstance(each, str) for each in values) else None
            for value, frame in zip(values, frames, strict=True):
                if texts is None:  # of the type that all of them need, even where it has no rows
                    column: Any = pd.Series([value] * len(frame), index=frame.index, dtype=pd.Series(values).dtype)
                else:
                    column = pd.Categorical.from_codes([texts.get_loc(value)] * len(frame), categories=texts)
                frame.insert(0, name, column)
        return pd.concat(frames, ignore_index=True)


def stated(scenario: Mapping[str, Any]) -> Mapping[str, Any]:
    """The targets that hold for every request alike; none where a tenant has its own."""
    tenants = scenario.get("workload", {}).get("tenants") or ()
    return {} if any(tenant.get("slo") for tenant in tenants) else scenario.get("slo") or {}


def swept(summary: pd.DataFrame) -> list[str]:
    """The key paths of a sweep: the columns between policy and seed."""
    names = [str(name) for name in summary.columns]
    return names[1 : names.index("seed")]
