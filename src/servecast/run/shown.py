"""Which of a sweep's points the figures of single runs show: the one that the verdict is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from servecast.run.judged import judged, per_policy
from servecast.run.results import stated, swept
from servecast.text import plain_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from servecast.run.judged import Judged
    from servecast.run.results import Results, Roof


@dataclass(frozen=True, slots=True)
class View:
    """The tables of one point of a sweep and one seed, all policies: what figures of single runs show.

    kinds : the kind of each policy, by its label
    """

    policies: tuple[str, ...]
    kinds: Mapping[str, str]
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


def on_the_roof(steps: pd.DataFrame) -> tuple[list[float], list[float]]:
    """Where each decision stands on a roofline: FLOP per byte, and TFLOP/s, of all its iterations together."""
    intensity = steps["step_flops"] / steps["step_bytes"]
    reached = steps["step_flops"] * steps["iterations"] / steps["seconds"] / 1e12
    return intensity.astype(float).tolist(), reached.astype(float).tolist()


def view(results: Results) -> View:
    """The point at which the best policy is judged, its first seed. Where all arrives at once and memory runs out, it
    is the first point at which it does and some requests are still served."""
    summary = results.summary
    keys = swept(summary)
    table = per_policy(summary)
    own = {key: _with_own_values(summary, key) for key in keys}
    chosen = judged(table)
    rows, reason = _telling(table, chosen)
    values = {key: _value(rows, key, own[key]) for key in keys}
    where = ", ".join(f"{name} = {plain_value(value)}" for name, value in values.items())
    seed = summary["seed"].iloc[0]
    if summary["seed"].nunique() > 1:
        where = f"{where}, seed {seed}" if where else f"seed {seed}"

    def pick(table: pd.DataFrame) -> pd.DataFrame:
        for name, value in (*values.items(), ("seed", seed)):
            wanted = table[name].isna() if value != value or value is None else table[name] == value
            if name in own:
                wanted |= ~table["policy"].isin(own[name])
            if not wanted.all():
                table = table[wanted]
        return table

    return View(
        tuple(dict.fromkeys(summary["policy"])),
        results.kinds,
        pick(summary),
        pick(results.requests),
        pick(results.decisions),
        pick(results.oom),
        stated(results.scenario),
        results.roof,
        where,
        reason,
    )


def _with_own_values(summary: pd.DataFrame, key: str) -> list[str]:
    """The policies that a swept key is about; the others (a batch size means nothing to them) stand at every point."""
    return list(dict.fromkeys(summary.loc[summary[key].notna(), "policy"]))


def _value(rows: pd.DataFrame, key: str, owners: list[str]) -> Any:
    """The swept value of the first of ``rows`` whose policy has the key."""
    having = rows[rows["policy"].isin(owners)]
    return (having if len(having) else rows)[key].iloc[0]


def _telling(table: pd.DataFrame, chosen: Judged) -> tuple[pd.DataFrame, str]:
    """Rows of the point that is shown, the one that decides first; and why it is this point."""
    best = chosen.rows.iloc[0]
    cliff = table[(table["oom_failed"] > 0) & (table["completed"] > 0)]
    if len(cliff) and table["stable"].isna().all():
        return cliff, "the first point at which memory runs out"
    if chosen.basis == "targets":
        return chosen.rows, f"the point at which {best['policy']} serves most requests within the targets"
    if chosen.basis == "alike":
        least = (
            "most of the same load within the targets" if chosen.metric == "slo_attainment" else "the same load soonest"
        )
        return chosen.rows, f"the point at which {best['policy']} answers {least}"
    if chosen.basis == "throughput":
        return chosen.rows, f"the point at which {best['policy']} serves most"
    if best["stable"] == 1:
        return chosen.rows, "the highest load that some policy serves in a stable queue"
    return chosen.rows, "the lowest load, since no policy serves any in a stable queue"
