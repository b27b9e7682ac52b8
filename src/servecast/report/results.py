"""What a report is made from, and which of a sweep's points its figures show."""

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
    requests, decisions, oom : the tables of all runs under each other, with the same first columns
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
    def requests(self) -> pd.DataFrame:
        """`servecast.metrics.requests_frame` of each run."""

    @property
    def decisions(self) -> pd.DataFrame:
        """`servecast.metrics.decisions_frame` of each run."""

    @property
    def oom(self) -> pd.DataFrame:
        """`servecast.metrics.oom_frame` of each run."""

    @property
    def notes(self) -> Sequence[str]:
        """One sentence each."""

    @property
    def profile(self) -> Mapping[str, Any] | None:
        """Of the fitted cost model."""

    @property
    def roof(self) -> Roof | None:
        """Of the device."""


def swept(summary: pd.DataFrame) -> list[str]:
    """The key paths of a sweep: the columns between policy and seed."""
    names = [str(name) for name in summary.columns]
    return names[1 : names.index("seed")]


@dataclass(frozen=True, slots=True)
class View:
    """The tables of one point of a sweep and one seed, all policies: what figures of single runs show."""

    policies: tuple[str, ...]
    summary: pd.DataFrame
    requests: pd.DataFrame
    decisions: pd.DataFrame
    oom: pd.DataFrame
    slo: Mapping[str, Any]
    roof: Roof | None
    where: str
    reason: str

    def of(self, table: pd.DataFrame, policy: str) -> pd.DataFrame:
        """The rows of one policy."""
        return table[table["policy"] == policy]

    def row(self, policy: str) -> Any:
        """The summary of one policy."""
        return self.of(self.summary, policy).iloc[0]


def view(results: Reportable) -> View:
    """The point that tells most: the highest load that some policy still serves in a stable queue, its first seed.

    Where no policy is stable anywhere it is the lowest load. Where there is no load to tell by (a burst) it is the
    first point at which memory runs out and some requests are still served, or else the last point.
    """
    summary = results.summary
    keys = swept(summary)
    own = {key: _with_own_values(summary, key) for key in keys}
    at, reason = _telling(summary, own)
    values = {name: summary[name].iloc[at] for name in [*keys, "seed"]}
    where = ", ".join(f"{name} = {value}" for name, value in values.items() if name != "seed")
    if summary["seed"].nunique() > 1:
        where = f"{where}, seed {values['seed']}" if where else f"seed {values['seed']}"

    def pick(table: pd.DataFrame) -> pd.DataFrame:
        for name, value in values.items():
            wanted = table[name].isna() if value != value or value is None else table[name] == value
            if name in own:
                wanted |= ~table["policy"].isin(own[name])
            if not wanted.all():
                table = table[wanted]
        return table

    return View(
        tuple(dict.fromkeys(summary["policy"])),
        pick(summary),
        pick(results.requests),
        pick(results.decisions),
        pick(results.oom),
        results.scenario.get("slo") or {},
        results.roof,
        where,
        reason,
    )


def _with_own_values(summary: pd.DataFrame, key: str) -> list[str]:
    """The policies that a swept key is about; the others (a batch size means nothing to them) stand at every point."""
    return list(dict.fromkeys(summary.loc[summary[key].notna(), "policy"]))


def _telling(summary: pd.DataFrame, own: Mapping[str, list[str]]) -> tuple[int, str]:
    """The row whose point is shown, and why it is this one."""
    offered = summary["offered_rps"].astype(float)
    first_seed = summary["seed"] == summary["seed"].iloc[0]
    for policies in own.values():
        if (first_seed & summary["policy"].isin(policies)).any():
            first_seed &= summary["policy"].isin(policies)
    if offered.isna().all():
        cliff = first_seed & (summary["oom_failed"] > 0) & (summary["completed"] > 0)
        if cliff.any():
            return int(cliff.to_numpy().argmax()), "the first point at which memory runs out"
        return int(first_seed.to_numpy().nonzero()[0][-1]), "the last point of the sweep"
    stable = first_seed & (summary["regime"] == "stable") & offered.notna()
    if stable.any():
        highest = int(offered.where(stable).to_numpy().argsort(kind="stable")[int(stable.sum()) - 1])
        return highest, "the highest load that some policy serves in a stable queue"
    lowest = int(offered.where(first_seed).fillna(float("inf")).to_numpy().argmin())
    return lowest, "the lowest load, since no policy serves any in a stable queue"
