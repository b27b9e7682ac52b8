"""What a report is made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd


@dataclass(frozen=True, slots=True)
class Roof:
    """The roofline that steps are drawn on, per GPU: peaks as the data sheet has them for the model's dtype.

    calibrated : whether step times come from measurements; if not, every number is marked *uncalibrated*
    """

    name: str
    bandwidth_Bps: float  # noqa: N815 (the unit)
    flops: float
    calibrated: bool

    @property
    def ridge(self) -> float:
        """FLOP per byte at which compute and memory bandwidth bind alike."""
        return self.flops / self.bandwidth_Bps


class Reportable(Protocol):
    """The results of a scenario.

    scenario : resolved, as it is written to ``scenario.yaml``; ``name``, ``sweep`` and ``slo`` are read here
    summary : a row for each policy, sweep point and seed, which are its first columns
    tenants : a row a tenant of each run, with the same first columns; empty where the workload names none
    requests, decisions, oom : the tables of all runs under each other, with the same first columns
    kinds : the kind of each policy by its label
    notes : warnings to show
    profile : errors and provenance of the cost model (nested mappings of plain values), or None
    """

    @property
    def scenario(self) -> Mapping[str, Any]:
        """Resolved: every default that took effect."""

    @property
    def summary(self) -> pd.DataFrame:
        """`servecast.metrics.summarise` of each run."""

    @property
    def tenants(self) -> pd.DataFrame:
        """`servecast.metrics.by_tenant` of each run."""

    @property
    def requests(self) -> pd.DataFrame:
        """`servecast.metrics.requests_frame` of each run."""

    @property
    def decisions(self) -> pd.DataFrame:
        """`servecast.metrics.decisions_frame` of each run."""

    @property
    def oom(self) -> pd.DataFrame:
        """`servecast.metrics.oom_frame` of each run."""

    @property
    def kinds(self) -> Mapping[str, str]:
        """Kind by label, in the order of the policies."""

    @property
    def notes(self) -> Sequence[str]:
        """One sentence each."""

    @property
    def profile(self) -> Mapping[str, Any] | None:
        """Of the fitted cost model."""

    @property
    def roof(self) -> Roof | None:
        """Of the device."""


def stated(scenario: Mapping[str, Any]) -> Mapping[str, Any]:
    """The targets that hold for every request alike; none where a tenant has its own."""
    tenants = scenario.get("workload", {}).get("tenants") or ()
    return {} if any(tenant.get("slo") for tenant in tenants) else scenario.get("slo") or {}


def swept(summary: pd.DataFrame) -> list[str]:
    """The key paths of a sweep: the columns between policy and seed."""
    names = [str(name) for name in summary.columns]
    return names[1 : names.index("seed")]
