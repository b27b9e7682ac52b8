"""At which point of a sweep each policy is judged: where it serves most of what is wanted, with nothing lost.

With latency targets that some policy meets it is the point with the most requests served within them. Without, it is
the highest load that the policy serves in a stable queue; the lowest one where it keeps up with none. Where there is no
load to tell by (everything arrives at once) it is the point with the highest throughput. Points at which requests were
lost to memory running out count only for a policy that loses some everywhere.

Serving most says something along an axis of load only. Where every point is sent the same load and something else is
swept (burstiness, a limit of the batch), rates differ by chance, and the point is that with the largest share of
requests within the targets, or else the shortest p99 TTFT (`alike`). A point that refuses or cuts more requests as too
long than another one counts for nothing.

Figures of single runs show one point, the one that the verdict is about (`view`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from servecast.run.results import stated, swept
from servecast.text import plain_value, short_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from servecast.run.results import Results, Roof

Basis = Literal["targets", "load", "throughput", "alike"]

SAME = 0.02  # rates this close are called equal
SAME_LOAD = 0.02  # offered rates this close are one load
#: Last parts of the keys, beside rates (``*_rps``), that say how much is sent.
_LOADS = ("users", "think_s", "rate_scale", "scale")


class Judged(NamedTuple):
    """One row of `per_policy` for each policy, the best first; ``metric`` is the column they are compared by."""

    basis: Basis
    metric: str
    rows: pd.DataFrame


def per_policy(summary: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds, a row for each policy and sweep point in the order of the summary.

    ``regime`` is put in words (see `_regimes`); ``stable`` and ``overloaded`` are the shares of seeds that are, missing
    where no request had to queue behind an earlier one.
    """
    keys = ["policy", *swept(summary)]
    numeric = [name for name in summary.columns if name not in keys and name not in ("seed", "regime")]
    grouping: Any = {"sort": False, "dropna": False, "observed": True}
    known = summary["regime"].notna()
    flags = {name: (summary["regime"] == name).astype(float).where(known) for name in ("stable", "overloaded")}
    typed = summary.astype(dict.fromkeys(numeric, float)).assign(**flags)
    means = typed.groupby(keys, **grouping)[[*numeric, *flags]].mean()
    grouped = summary.groupby(keys, **grouping)
    means["regime"] = grouped["regime"].agg(_regimes)
    means["seeds"] = grouped["seed"].nunique()
    return means.reset_index()


def _regimes(column: pd.Series[Any]) -> str | None:
    """What the seeds of one point say: ``stable`` where all agree, else ``2 of 3 stable``."""
    names = [str(name) for name in column.dropna()]
    if len(set(names)) < 2:
        return names[0] if names else None
    counted = "stable" if "stable" in names else "overloaded"
    return f"{names.count(counted)} of {len(names)} {counted}"


def judged(table: pd.DataFrame) -> Judged:
    """Where each policy of `per_policy` is judged."""
    if alike(table):
        metric = "slo_attainment" if (table["goodput_rps"].astype(float) > 0).any() else "ttft_p99_s"
        best = [ranked(rows, metric)[0] for _, rows in table.groupby("policy", sort=False, observed=True)]
        return Judged("alike", metric, table.loc[_order(table.loc[best], metric)])
    if (table["goodput_rps"].astype(float) > 0).any():
        basis, metric = "targets", "goodput_rps"
    else:
        basis = "load" if table["stable"].notna().any() else "throughput"
        metric = "request_throughput_rps"
    places = [_place(rows, metric) for _, rows in table.groupby("policy", sort=False, observed=True)]
    rows = table.loc[places]
    rates = rows[metric].astype(float).fillna(-1.0)
    order = list(rates.sort_values(ascending=False, kind="stable").index)
    # Of those that serve as much as the first, the one whose tokens come sooner leads.
    level = [label for label in order if rates[label] >= (1 - SAME) * rates[order[0]]]
    late = rows["ttft_p99_s"].astype(float).fillna(np.inf)
    level.sort(key=lambda label: float(late[label]))
    return Judged(basis, metric, rows.loc[[*level, *order[len(level) :]]])  # type: ignore[arg-type]


def alike(table: pd.DataFrame) -> bool:
    """Whether the points of a sweep are sent the same load, so that they tell by latency and not by requests served.

    Of traffic that is swept in another way than its load (its burstiness, its lengths) rates may differ by chance.
    """
    keys = [str(name) for name in table.columns if "." in str(name) and table[name].astype(str).nunique() > 1]
    loads = [key for key in keys if short_key(key).endswith("_rps") or short_key(key) in _LOADS]
    if loads or table["stable"].isna().all() or table["policy"].is_unique:
        return False
    if "requested_rps" in table and table["requested_rps"].nunique() > 1:
        return False
    offered = table["offered_rps"].astype(float)
    return any(key.startswith("workload.") for key in keys) or offered.min() >= (1 - SAME_LOAD) * offered.max()


def ranked(table: pd.DataFrame, metric: str) -> list[Any]:
    """Labels of the points at which nothing is lost, the best first: most within the targets, shortest p99 TTFT."""
    return _order(_sound(table), metric)


def _order(rows: pd.DataFrame, metric: str) -> list[Any]:
    late = rows["ttft_p99_s"].astype(float).fillna(np.inf)
    first = -rows[metric].astype(float).fillna(-1.0) if metric == "slo_attainment" else rows["stable"] != 1
    return list(rows.index[np.lexsort((late, first))])


def most(table: pd.DataFrame) -> pd.DataFrame:
    """Each policy's row with the highest throughput, however late the answers, in the order of the table."""
    parts = [_sound(rows) for _, rows in table.groupby("policy", sort=False, observed=True)]
    return table.loc[[part["request_throughput_rps"].astype(float).fillna(-1.0).idxmax() for part in parts]]


def _sound(rows: pd.DataFrame) -> pd.DataFrame:
    """The points of one policy at which nothing is lost; those that serve at all, or else all of them.

    Where requests are too long, points that serve the most of them: what is refused makes the others look good.
    """
    short = ((rows["rejected"] + rows["cut"]) / rows["arrived"]).astype(float)
    served, kept = rows["completed"] > 0, rows["oom_failed"] == 0
    for chosen in (rows[served & kept & (short <= short[served & kept].min() + SAME)], rows[served]):
        if len(chosen):
            return chosen
    return rows


def _place(rows: pd.DataFrame, metric: str) -> Any:
    """The label of one policy's row."""
    rows = _sound(rows)
    wanted = rows[metric].astype(float).fillna(-1.0)
    if metric == "goodput_rps" and wanted.max() > 0:
        return wanted.idxmax()
    throughput = rows["request_throughput_rps"].astype(float).fillna(-1.0)
    if rows["stable"].isna().all():
        return throughput.idxmax()
    offered = rows["offered_rps"].astype(float).fillna(0.0)
    stable = rows["stable"] == 1
    load = offered[stable] if stable.any() else -offered
    order = np.lexsort((throughput[load.index].to_numpy(), load.to_numpy()))
    return load.index[order[-1]]


# --- the point that figures of single runs show ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """The tables of one point of a sweep and one seed: what figures of single runs show.

    policies : those that have a run there
    kinds : the kind of every policy, by its label
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
    # The policies that a swept key is about; the others (a batch size means nothing to them) stand at every point.
    own = {key: list(dict.fromkeys(summary.loc[summary[key].notna(), "policy"])) for key in keys}
    rows, reason = _telling(table, judged(table))
    values = {}
    for key in keys:
        having = rows[rows["policy"].isin(own[key])]
        values[key] = (having if len(having) else rows)[key].iloc[0]
    where = ", ".join(f"{name} = {plain_value(value)}" for name, value in values.items())
    at_point = _at(summary, own, values)
    seed = at_point["seed"].iloc[0]
    if summary["seed"].nunique() > 1:
        where = f"{where}, seed {seed}" if where else f"seed {seed}"

    shown = {**values, "seed": seed}
    rows = _at(at_point, own, shown)
    return View(
        tuple(dict.fromkeys(rows["policy"])),
        results.kinds,
        rows,
        _at(results.requests, own, shown),
        _at(results.decisions, own, shown),
        _at(results.oom, own, shown),
        stated(results.scenario),
        results.roof,
        where,
        reason,
    )


def _at(table: pd.DataFrame, own: Mapping[str, Sequence[str]], values: Mapping[str, Any]) -> pd.DataFrame:
    """The rows that have some values; ``own``: the policies that a key is about, the others have every value of it."""
    for name, value in values.items():
        wanted = table[name].isna() if value != value or value is None else table[name] == value
        if name in own:
            wanted |= ~table["policy"].isin(own[name])
        if not wanted.all():
            table = table[wanted]
    return table


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
