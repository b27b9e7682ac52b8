"""Where the computed tokens went, and what a million tokens cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.patches import Patch

from servecast.report.plots.style import ALARM, INK, Plot, canvas, colours, heading, legend, settings, titled
from servecast.run.judged import judged, per_policy
from servecast.run.results import swept
from servecast.text import missing, number, plain_value, share, short_key

if TYPE_CHECKING:
    from typing import Any

    from servecast.run.results import Results
    from servecast.run.shown import View

#: Part of the bar, colour, hatch.
PARTS = (
    ("useful", "#2a9d78", ""),
    ("recomputed after preemption", "#8fcfb8", ""),
    ("lost when memory ran out", ALARM, ""),
    ("padding", "#b8a1c9", "////"),
    ("empty places of a closed batch", "#e6e9ed", "...."),
)


def token_shares(view: View) -> Plot | None:
    """One bar a policy: of all token places it computed or held, the share that served somebody."""
    rows = {policy: parts_of(view.row(policy)) for policy in view.policies}
    rows = {policy: parts for policy, parts in rows.items() if sum(parts)}
    if not rows:
        return None
    with settings():
        figure, [[axes]] = canvas(titled("Where the computed tokens went", view.roof), 0.85 + 0.6 * len(rows))
        for place, parts in enumerate(rows.values()):
            left, total = 0.0, sum(parts)
            for part, (_, colour, hatch) in zip(parts, PARTS, strict=True):
                width = 100 * part / total
                axes.barh(place, width, 0.66, left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.8)
                if width > 6:
                    axes.text(
                        left + width / 2, place, share(part / total), ha="center", va="center", color=_ink(colour),
                        bbox={"facecolor": colour, "edgecolor": "none", "pad": 1.5} if hatch else None,
                    )  # fmt: skip
                left += width
            axes.text(101, place, f"{_count(total)}", va="center")
        axes.text(101, -0.72, "tokens in all", va="center", fontsize=8)
        axes.set_yticks(range(len(rows)), [heading(policy, 28) for policy in rows])
        axes.set(xlim=(0, 114), ylim=(len(rows) - 0.5, -0.95), xlabel="token places computed or held [%]")
        axes.set_xticks(range(0, 101, 20))
        axes.grid(visible=False, axis="y")
        used = [any(parts[i] for parts in rows.values()) for i in range(len(PARTS))]
        handles = [
            Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=label)
            for (label, colour, hatch), shown in zip(PARTS, used, strict=True)
            if shown
        ]
        legend(figure, handles)
    worst = min(rows, key=lambda policy: rows[policy][0] / sum(rows[policy]))
    best = max(rows, key=lambda policy: rows[policy][0] / sum(rows[policy]))
    caption = f"{share(rows[best][0] / sum(rows[best]))} of what {best} computes or holds serves somebody"
    if worst != best:
        caption += f", of {worst} {share(rows[worst][0] / sum(rows[worst]))}"
    return Plot("tokens", "Where the computed tokens went", f"{caption}.", figure)


def parts_of(row: Any) -> list[float]:
    """Token places of one run, in the order of `PARTS`."""
    recomputed = min(float(row["recomputed_tokens"]), float(row["useful_tokens"]))
    lost = min(float(row["lost_tokens"]), float(row["useful_tokens"]) - recomputed)
    useful = float(row["useful_tokens"]) - recomputed - lost
    return [useful, recomputed, lost, float(row["padding_tokens"]), float(row["idle_slot_tokens"])]


def _ink(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 140 else INK


def _count(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{number(value / size)} {unit}"
    return number(value)


def cost_bars(results: Results) -> Plot | None:
    """Dollars per million output tokens, idle time paid; of each policy at the point where the verdict judges it."""
    table, keys = per_policy(results.summary), swept(results.summary)
    policies = tuple(dict.fromkeys(results.summary["policy"]))
    rows = judged(table).rows.set_index("policy").loc[list(policies)]
    rows = rows[rows["usd_per_mtok_output"].notna()]
    prices = {str(policy): float(price) for policy, price in rows["usd_per_mtok_output"].items()}
    if not prices:
        return None
    colour = colours(policies, results.kinds)
    with settings():
        figure, [[axes]] = canvas(titled("What a million tokens cost", results.roof), 0.6 + 0.5 * len(prices), head=0.4)
        for place, (policy, price) in enumerate(prices.items()):
            row = rows.loc[policy]
            axes.barh(place, price, 0.62, color=colour[policy])
            axes.annotate(
                f"${number(price)}   {_at(row, keys)}",
                (price, place),
                (5, 0),
                textcoords="offset points",
                va="center",
            )
        axes.set_yticks(range(len(prices)), [heading(policy, 28) for policy in prices])
        axes.set(xlim=(0, 1.5 * max(prices.values())), xlabel="US dollars per million output tokens")
        axes.set_ylim(len(prices) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
    cheap, dear = min(prices, key=prices.__getitem__), max(prices, key=prices.__getitem__)
    caption = f"{cheap} makes a million output tokens for ${number(prices[cheap])}"
    if cheap != dear:
        caption += f", {dear} for ${number(prices[dear])}"
    return Plot("cost", "What a million tokens cost", f"{caption}; idle time is paid too.", figure)


def _at(row: Any, keys: list[str]) -> str:
    """At which point, how busy, and whether the queue was stable there."""
    told = [f"{short_key(key)} {plain_value(row[key])}" for key in keys if not missing(row[key])]
    told.append(f"busy {share(row['busy_fraction'])}")
    regime = row["regime"]  # none for a burst, which is NaN beside others
    return ", ".join([*told, *([regime] if isinstance(regime, str) and regime != "stable" else [])])
