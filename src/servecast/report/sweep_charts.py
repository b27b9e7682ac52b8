"""Charts over all points of a sweep: throughput and latency, the pace of each user, cost, memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from servecast.report.charts.spec import Axis, Bars, Chart, Key, Line, Panel
from servecast.report.points import PER_GPU, USERS, frontier
from servecast.report.tables import targets
from servecast.text import listed, number, seconds, share, short_key

if TYPE_CHECKING:
    import pandas as pd

    from servecast.report.charts.spec import Datum
    from servecast.report.points import Points


_MOST_BARS = 40


def throughput_latency(of: Points) -> Chart | None:
    """p99 TTFT and p99 TPOT over served requests per second, each with its target."""
    table = of.shown[of.shown["completed"] > 0]
    if not len(table):
        return None
    x = Axis("requests served per second", base=0.0)
    first = ("ttft_p99_s", "p99 time to first token [s]", "ttft_s", 1.0)
    pace = ("tpot_p99_s", "p99 time per output token [ms]", "tpot_s", 1e3)
    whole = ("e2e_p99_s", "p99 time to the last token [s]", "e2e_s", 1.0)
    panels = []
    for column, label, target, unit in (first, pace if table["tpot_p99_s"].notna().any() else whole):
        aim = of.slo.get(target)
        lines = () if aim is None else (Line(f"target {seconds(float(aim))}", y=unit * float(aim)),)
        series = of.series(table, "request_throughput_rps", column, unit)
        panels.append(Panel(x, Axis(label, log=True), series, lines=lines))
    legend = of.legend(table)
    if any(panel.lines for panel in panels):
        legend = (*legend, Key(f"targets: {targets(of.slo)}", "aim"))
    note = of.note
    if not of.keys:
        note = f"{note} One load gives a point; sweep the rate and the points become a curve.".strip()
    best = table.iloc[int(table["request_throughput_rps"].to_numpy().argmax())]
    strained = " (overloaded)" if best["overloaded"] > 0 else ""
    caption = (
        f"Right is more, down is sooner: {best['policy']} reaches the most, {number(best['request_throughput_rps'])} "
        f"requests per second{strained} with p99 TTFT at {seconds(best['ttft_p99_s'])}"
        f"{'; a line that turns up is a full server' if of.keys and of.ordered else ''}."
    )
    return Chart("throughput-latency", "Throughput against latency", caption, tuple(panels), legend, note)


def interactivity(of: Points) -> Chart | None:
    """What one user sees against what one GPU gives, with the Pareto frontier."""
    table = of.shown[of.shown[USERS].notna() & (of.shown[PER_GPU] > 0)]
    if not len(table):
        return None
    edge = table.loc[frontier(table)]
    through = tuple((float(row[USERS]), float(row[PER_GPU])) for _, row in edge.iterrows())
    line = (Line("Pareto frontier", through=through, band=True),) if len(through) > 1 else ()

    def marked(datum: Datum) -> Datum:
        """The point, with a word in its tooltip where it stands on the frontier."""
        if (datum.x, datum.y) not in through:
            return datum
        return datum._replace(numbers=(*datum.numbers[:2], ("Pareto frontier", "on it"), *datum.numbers[2:]))

    series = tuple(
        replace(each, lines=tuple(tuple(map(marked, part)) for part in each.lines))
        for each in of.series(table, USERS, PER_GPU)
    )
    x, y = "output tokens/s of each user (1 / median TPOT)", "output tokens/s of each GPU"
    panel = Panel(Axis(x, base=0.0), Axis(y, base=0.0), series, lines=line)
    fast, full = edge.iloc[-1], edge.iloc[0]
    caption = (
        f"Up is cheaper, right is faster for each user. Most of each GPU: {of.name(full)}, {number(full[PER_GPU])} "
        f"tokens/s at {number(full[USERS])} tokens/s a user"
    )
    if fast.name != full.name:
        caption += f". Fastest for each user: {of.name(fast)}, {number(fast[USERS])} tokens/s"
        caption += f" with {number(fast[PER_GPU])} of each GPU"
    legend = of.legend(table)
    legend += (Key("Pareto frontier: nothing beats it in both", "frontier"),) if line else ()
    return Chart("interactivity", "Interactivity against throughput", f"{caption}.", (panel,), legend, of.note)


def cost_curve(of: Points, price: float | None) -> Chart | None:
    """Dollars of the whole bill per million output tokens against the load; bars where there is one load only."""
    table = of.shown[of.shown["usd_per_mtok_output"].notna()]
    if not len(table):
        return None
    panel: Panel | Bars
    dollars, words = "US dollars of the whole bill per million output tokens", "Idle time is paid too"
    if _curved(of, table):
        series = of.series(table, "request_throughput_rps", "usd_per_mtok_output")
        panel = Panel(Axis("requests served per second", base=0.0), Axis(dollars, log=True), series)
        if of.ordered:
            words = "A GPU is paid for by the hour, so a token costs less the more are served"
    else:
        prices = table["usd_per_mtok_output"].astype(float)
        bars = of.bars(table, "usd_per_mtok_output", prices, lambda price: f"${number(price)}")
        panel = Bars(Axis(dollars, base=0.0), bars)
    sound = table[~table["strained"]]
    among = sound if len(sound) else table
    cheap = among.iloc[int(among["usd_per_mtok_output"].astype(float).to_numpy().argmin())]
    caption = (
        f"{words}: {of.name(cheap)} makes a million output tokens for a whole bill of "
        f"${number(cheap['usd_per_mtok_output'])}, the least {'of all points that keep up' if len(sound) else 'of all'}"
    )
    paid = "" if price is None else f"At ${number(price)} an hour for each GPU, the scenario's own price. "
    title, note = "What a million tokens cost", f"{paid}{of.note}".strip()
    return Chart("cost-curve", title, f"{caption}.", (panel,), of.legend(table), note)


def memory(of: Points) -> Chart | None:
    """How much of the KV cache is taken, and what happens where it is too small: requests lost, or preempted."""
    table = of.shown[of.shown["kv_peak_fraction"].notna()]
    if not len(table):
        return None
    table = table.assign(
        filled=100 * table["kv_peak_fraction"].astype(float),
        lost=100 * table["oom_failed"] / table["arrived"],
        again=table["preemptions"] / table["arrived"],
    )
    x, label = _along(of, table)
    full = Line("KV capacity", y=100.0, strong=True)
    panels: list[Panel | Bars] = []
    if x is None:
        bars = of.bars(table, "kv_peak_fraction", table["filled"], lambda filled: share(filled / 100))
        axis = Axis("KV memory at the peak [%]", limits=(0.0, 118.0))
        panels.append(Bars(axis, bars, lines=(Line("", x=100.0, strong=True),)))
    else:
        apart = table[table[x].isna()]  # policies without the key
        aside = (Line(str(row["policy"]), y=float(row["filled"]), right=True) for _, row in apart.iterrows())
        views = (
            ("filled", "kv_peak_fraction", Axis("KV memory at the peak [%]", limits=(0.0, 112.0)), (full, *aside)),
            ("lost", "oom_failed", Axis("requests lost to memory [%]", base=0.0), ()),
            ("again", "preemptions", Axis("preemptions per request", base=0.0), ()),
        )
        for column, shown, axis, lines in [each for each in views if each[0] == "filled" or table[each[0]].any()][:2]:
            series = of.series(table, x, column, None, shown)
            panels.append(Panel(Axis(label, base=0.0), axis, series, lines=lines))
    return Chart("memory", "Memory, and the cliff", _memory_words(of, table), tuple(panels), of.legend(table), of.note)


def _curved(of: Points, table: pd.DataFrame) -> bool:
    """Whether points are drawn along an axis; else each has a bar: one load, or a few things of different names."""
    several = any((table["policy"] == policy).sum() > 1 for policy in of.policies)
    return several and (of.ordered or len(table) > _MOST_BARS)


def _along(of: Points, table: pd.DataFrame) -> tuple[str | None, str]:
    """What memory is drawn along: the first swept key that is a number, else the load; nothing with one point each."""
    if not _curved(of, table):
        return None, ""
    for key in of.keys:
        values = table[key].dropna().tolist()
        if len(set(map(str, values))) > 1 and all(
            isinstance(v, (int, float)) and not isinstance(v, bool) for v in values
        ):
            return key, short_key(key)
    return "request_throughput_rps", "requests served per second"


def _memory_words(of: Points, table: pd.DataFrame) -> str:
    calm, short = [], []
    for policy in of.policies:
        rows = table[table["policy"] == policy]
        if not len(rows):
            continue
        lost = rows[rows["oom_failed"] > 0]
        peak = share(float(rows["kv_peak_fraction"].max()))
        if len(lost):
            where = of.name(lost.iloc[0]).removeprefix(policy).removeprefix(", ")
            short.append(f"{policy} runs out of memory{f' at {where}' if where else ''}")
        elif (rows["preemptions"] > 0).any():
            short.append(f"{policy} fills {peak} and preempts instead of crashing")
        else:
            calm.append(f"{policy} {peak}")
    parts = [f"of the KV memory {listed(calm)} are needed at most" if calm else "", listed(short)]
    text = "; ".join(part for part in parts if part)
    return f"{text[:1].upper()}{text[1:]}."
