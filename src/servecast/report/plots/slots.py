"""A Gantt chart of slots for small runs, in which the straggler and the padding can be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.patches import Patch

from servecast.report.plots.style import ALARM, INK, QUIET, Plot, canvas, colours, heading, legend, settings, titled
from servecast.text import seconds, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from servecast.run.shown import View

CLOSED = ("static", "padded")  # kinds whose slots are held until the batch ends
LARGEST = 64  # requests; more are no longer told apart
_PANELS = 4
_LABELS = 20


def slot_chart(view: View) -> Plot | None:
    """A bar a request in the row of its slot: prompt, answer, then the time it holds its slot for others."""
    counts = [len(view.of(view.requests, policy)) for policy in view.policies]
    if not counts or not 0 < max(counts) <= LARGEST or view.requests["scheduled_s"].isna().all():
        return None
    shown = view.policies[:_PANELS]
    bars = {policy: _bars(view, policy) for policy in shown}
    lanes = [max((bar["lane"] for bar in bars[policy]), default=0) + 1 for policy in shown]
    inches = [0.62 + 0.17 * max(count, 3) for count in lanes]
    colour = colours(view.policies, view.kinds)
    with settings():
        figure, panels = canvas(
            titled("Who held which slot, and for what", view.roof),
            0.3 + sum(inches),
            len(shown),
            1,
            sharex=True,
            gridspec_kw={"height_ratios": inches},
        )
        for [axes], policy, count in zip(panels, shown, lanes, strict=True):
            for bar in bars[policy]:
                _draw(axes, bar, colour[policy], labelled=counts[0] <= _LABELS)
            axes.set_title(heading(policy, 60))
            axes.set_ylim(count - 0.4, -0.6)
            axes.set_yticks(range(0, count, max(1, count // 8)))
            axes.set_ylabel("slot")
            axes.grid(visible=False, axis="y")
        panels[-1][0].set_xlabel("time [s]")
        panels[-1][0].set_xlim(0, None)
        _legend(figure)
    return Plot("slots", "Who held which slot, and for what", _caption(view, shown), figure)


def _bars(view: View, policy: str) -> list[dict[str, Any]]:
    requests = view.of(view.requests, policy)
    requests = requests[requests["scheduled_s"].notna()].sort_values(["scheduled_s", "slot"], kind="stable")
    decisions = view.of(view.decisions, policy)
    closed = view.kinds.get(policy) in CLOSED  # the log alone does not tell: async scheduling holds seats too
    computed = decisions["prefill_tokens"] + decisions["iterations"] * decisions["decode_rows"]
    needed = decisions["useful_prefill_tokens"] + decisions["iterations"] * decisions["useful_decode_rows"]
    padded = bool((computed > needed).any())
    over = np.sort(view.of(view.oom, policy)["time_s"].to_numpy(float))
    end = float((decisions["start_s"] + decisions["seconds"]).max()) if len(decisions) else 0.0
    bars = []
    for row in requests.to_dict("records"):
        crashes = over[over >= row["scheduled_s"]]
        finish = row["finish_s"] if row["status"] == "completed" else crashes[0] if len(crashes) else end
        bar = {
            "id": row["id"], "slot": int(row["slot"]), "start": row["scheduled_s"], "finish": finish,
            "first": finish if row["first_token_s"] != row["first_token_s"] else row["first_token_s"],
            "crashed": row["status"] == "oom", "until": finish, "padded": padded,
            "prompt": row["prompt_tokens"], "longest": row["prompt_tokens"],
        }  # fmt: skip
        bars.append(bar)
    if closed or padded:
        for start in dict.fromkeys(bar["start"] for bar in bars):
            batch = [bar for bar in bars if bar["start"] == start]
            for bar in batch:
                bar["until"] = max(other["finish"] for other in batch)
                if padded:
                    bar["longest"] = max(other["prompt"] for other in batch)
    _lanes(bars)
    return bars


def _lanes(bars: list[dict[str, Any]]) -> None:
    """A bar stands in its slot, or beside it where a preempted request's bar spans what another held meanwhile."""
    free: dict[int, float] = {}
    for bar in bars:
        lane = bar["slot"]
        while free.get(lane, 0.0) > bar["start"] + 1e-9:
            lane += 1
        bar["lane"] = lane
        free[lane] = bar["until"]


def _draw(axes: Axes, bar: dict[str, Any], colour: str, labelled: bool) -> None:
    lane, height = bar["lane"], 0.72
    real = bar["start"] + (bar["first"] - bar["start"]) * bar["prompt"] / max(bar["longest"], 1)
    pieces: list[tuple[float, float, dict[str, Any]]] = [
        (bar["start"], real, {"color": INK}),
        (real, bar["first"], _PADDING),
        (bar["first"], bar["finish"], {"color": colour, "alpha": 0.75}),
        (bar["finish"], bar["until"], _PADDING if bar["padded"] else _IDLE),
    ]
    for begin, end, look in pieces:
        if end > begin:
            axes.barh(lane, end - begin, height, begin, linewidth=0, **look)
    if bar["crashed"]:
        axes.plot([bar["until"]], [lane], marker="X", color=ALARM, markersize=6, markeredgewidth=0, zorder=4)
    axes.plot([bar["start"], bar["start"]], [lane - height / 2, lane + height / 2], color="white", linewidth=0.8)
    if labelled:
        axes.annotate(
            f"{bar['id']}", (bar["first"], lane), (3, 0), textcoords="offset points", va="center", fontsize=7,
            color="white", clip_on=True,
        )  # fmt: skip


_PADDING: dict[str, Any] = {"facecolor": "#f3dbe3", "edgecolor": "#b8325e", "hatch": "//////"}
_IDLE: dict[str, Any] = {"facecolor": "#e6e9ed", "edgecolor": QUIET, "hatch": "...."}


def _legend(figure: Figure) -> None:
    legend(
        figure,
        [
            Patch(color=INK, label="prompt"),
            Patch(color=QUIET, alpha=0.75, label="answer (the policy's colour)"),
            Patch(**_PADDING, linewidth=0, label="padding: computed for nobody"),
            Patch(**_IDLE, linewidth=0, label="idle: held until the batch ends"),
        ],
    )


def _caption(view: View, shown: tuple[str, ...]) -> str:
    parts = []
    for policy in shown:
        row = view.row(policy)
        words = f"{policy} ends after {seconds(float(row['makespan_s']))}"
        wasted = [
            f"{share(row[column])} {what}"
            for column, what in (("slot_waste", "of slot time idle"), ("padding_waste", "of tokens padding"))
            if row[column] == row[column] and row[column]
        ]
        parts.append(f"{words} with {' and '.join(wasted)}" if wasted else words)
    return f"{'; '.join(parts)}."
