"""What simulating a scenario gives: a run for each policy, sweep point and seed, and the tables over all of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from servecast.metrics import Hardware, decisions_frame, oom_frame, requests_frame
from servecast.report.results import Roof

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from servecast.engine import Run
    from servecast.memory import MemoryPlan
    from servecast.planning.beyond import Beyond
    from servecast.scenario.serving import Serving


class Outcome(NamedTuple):
    """One run: which it is, its tables, and its row of the summary.

    policy, kind : the policy's label in tables, and its kind
    point : label of the sweep point ("" without a sweep); swept : value by swept key path
    """

    policy: str
    kind: str
    point: str
    swept: dict[str, Any]
    seed: int
    run: Run
    row: dict[str, Any]
    memory: MemoryPlan
    hardware: Hardware
    beyond: Beyond | None = None
    notes: tuple[str, ...] = ()

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


@dataclass(frozen=True)
class Results:
    """Every run of a scenario, in the order point, seed, policy. Tables are made when they are asked for.

    scenario : resolved, with every default that took effect, as it is written beside the tables
    notes : what a reader should be told, a sentence each
    profile : errors and provenance of the cost model as plain values; None for a datasheet
    failures : runs that could not be; ``missing``: how many were not made because the user interrupted
    """

    scenario: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...] = ()
    profile: Mapping[str, Any] | None = None
    roof: Roof | None = None
    failures: tuple[Failure, ...] = ()
    missing: int = 0

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row a run: policy, a column for each swept key path, seed, and `servecast.metrics.summarise`."""
        import pandas as pd

        return pd.DataFrame([{**outcome.keys, **outcome.row} for outcome in self.outcomes])

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request of every run."""
        return self._joined([requests_frame(outcome.run) for outcome in self.outcomes])

    @cached_property
    def decisions(self) -> pd.DataFrame:
        """One row a scheduling decision of every run."""
        return self._joined([decisions_frame(outcome.run, outcome.hardware) for outcome in self.outcomes])

    @cached_property
    def oom(self) -> pd.DataFrame:
        """One row an out-of-memory event of every run."""
        return self._joined([oom_frame(outcome.run) for outcome in self.outcomes])

    def _joined(self, frames: list[pd.DataFrame]) -> pd.DataFrame:
        import pandas as pd

        keys = [outcome.keys for outcome in self.outcomes]
        for key in reversed(keys[0]):
            values = [row[key] for row in keys]
            for value, frame in zip(values, frames, strict=True):
                frame.insert(0, key, _repeated(value, values, len(frame)))
        return pd.concat(frames, ignore_index=True)


def _repeated(value: Any, values: list[Any], count: int) -> Any:
    """A column that holds one of ``values``: text as codes, since it stands in every row of large tables."""
    import pandas as pd

    if not isinstance(value, str):
        return [value] * count
    texts = list(dict.fromkeys(values))
    return pd.Categorical.from_codes([texts.index(value)] * count, categories=pd.Index(texts))


def roof(served: Serving) -> Roof:
    """The roofline that the report draws steps on."""
    flops = served.device.peak_flops(served.model.dtype)
    return Roof(served.device.name, served.device.bandwidth_Bps, flops, served.cost.calibrated)
