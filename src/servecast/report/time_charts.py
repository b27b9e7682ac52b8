"""Charts of single runs over time: rows at work and KV memory, and who held which slot."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.policies import POLICIES
from servecast.report.charts.looks import places
from servecast.report.charts.spec import (
    Area,
    Axis,
    Bars,
    Chart,
    Datum,
    Key,
    Line,
    Marks,
    Panel,
    Piece,
    Span,
    evenly,
    tooltips,
)  # fmt: skip
from servecast.text import how_often, missing, number, seconds, share

if TYPE_CHECKING:
    import pandas as pd

    from servecast.run.judged import View

_PANELS = 6  # policies of a timeline
_MEANS = 110  # of time where means are drawn: batches that follow each other faster are a level, not a comb
_BUCKETS = 300  # of time where peaks are drawn
_MOMENTS = 40  # with tooltips
_MARKS = 60  # of a kind and policy
_ABOVE = 111.0  # percent of the KV memory: where marks stand

_LARGEST = 64  # requests of a chart of slots; more are no longer told apart
_SLOT_PANELS = 4
#: Looks of a slot's time that stand in the legend where they occur.
_SLOT_WORDS = {
    "padding": "padding: computed for nobody", "idle": "idle: held until the batch ends", "oom": "out of memory"
}  # fmt: skip


def timeline(view: View) -> Chart | None:
    """For each policy rows at work and KV memory over time, with every moment that memory was short (up to a limit)."""
    seen = {*view.decisions["policy"], *view.oom["policy"]}
    shown = [policy for policy in view.policies if policy in seen][:_PANELS]
    if not shown:
        return None
    looks = places(tuple(view.kinds), view.kinds)
    decisions = {policy: view.of(view.decisions, policy) for policy in shown}
    ends = [float((part["start_s"] + part["seconds"]).max()) for part in decisions.values() if len(part)]
    time = Axis("time [s]", limits=(0.0, max(ends, default=1.0)))
    panels: list[Panel | Bars] = []
    for policy in shown:
        panels += _of_policy(view, policy, decisions[policy], looks[policy], time)
    used = {str(area.look) for panel in panels if isinstance(panel, Panel) for area in panel.areas}
    marked = {m.look: m.name for panel in panels if isinstance(panel, Panel) for m in panel.marks if m.points}
    legend = [Key("rows at work (the policy's colour)", "work")]
    legend += [Key("slots held by finished rows", "idle")] if "idle" in used else []
    legend += [*(Key(name, look) for look, name in marked.items()), Key("KV capacity", "strong")]
    title, caption = "Running rows and KV memory over time", _timeline_caption(view, shown)
    return Chart("timeline", title, caption, tuple(panels), tuple(legend))


def _of_policy(view: View, policy: str, decisions: pd.DataFrame, look: int, time: Axis) -> tuple[Panel, Panel]:
    """Rows at work, and KV memory."""
    areas: tuple[Area, ...] = ()
    held: tuple[Area, ...] = ()
    at_work: list[Datum] = []
    filled: list[Datum] = []
    if len(decisions):  # else it crashed before its first step
        total = float(view.row(policy)["kv_blocks_total"])
        areas = _working(decisions, look)
        times, blocks = buckets(decisions, 100 * decisions["kv_blocks"] / total, "max", _BUCKETS)
        held = (Area(look, times.tolist(), [0.0] * len(times), blocks.tolist(), pale=True),)
        at_work, filled = _moments(policy, decisions, total)
    preempted = decisions.loc[decisions["preempted"] > 0, "start_s"].to_numpy(float)
    oom = view.of(view.oom, policy)["time_s"].to_numpy(float)
    marks = (_marked("preempted", "preemption", preempted, policy), _marked("oom", "out of memory", oom, policy))
    capacity = Line("", y=100.0, strong=True)
    memory = Axis("KV memory [%]", limits=(0.0, 122.0))
    return (
        Panel(time, Axis("rows", base=0.0), tooltips(policy, look, at_work), title=policy, areas=areas, height=250),
        Panel(time, memory, tooltips(policy, look, filled), policy, (capacity,), areas=held, marks=marks, height=250),
    )


def _working(decisions: pd.DataFrame, look: int) -> tuple[Area, ...]:
    """Means of the rows that work, and of the slots above them that finished rows hold."""
    live = decisions["useful_decode_rows"] + decisions["prefill_rows"]
    times, slots = buckets(decisions, decisions["slots"], "mean", _MEANS)
    _, working = buckets(decisions, live, "mean", _MEANS)
    work = Area(look, times.tolist(), [0.0] * len(times), working.tolist())
    if float((slots - working).max(initial=0.0)) <= 1e-9:
        return (work,)
    return (Area("idle", times.tolist(), working.tolist(), slots.tolist()), work)


def buckets(decisions: pd.DataFrame, values: Any, how: str, most: int) -> tuple[Any, Any]:
    """A step curve of ``values`` over time, 0 while nothing runs: times and heights, at most ``most`` steps.

    how : ``max`` keeps peaks, ``mean`` weighs by time. What has no more decisions than that is drawn exactly.
    """
    starts = decisions["start_s"].to_numpy(float)
    ends = starts + decisions["seconds"].to_numpy(float)
    values = np.asarray(values, dtype=float)
    if len(starts) <= most:
        idle = np.append(starts[1:], np.inf) > ends + 1e-9
        times = np.concatenate([starts, ends[idle]])
        heights = np.concatenate([values, np.zeros(int(idle.sum()))])
        order = np.argsort(times, kind="stable")
        return times[order], heights[order]
    edges = np.linspace(starts[0], ends[-1], most + 1)
    if how == "mean":
        area = np.concatenate([[0.0], np.cumsum(values * (ends - starts))])
        corners = np.stack([starts, ends], 1).ravel()
        upto = np.interp(edges, corners, np.stack([area[:-1], area[1:]], 1).ravel())
        heights = np.diff(upto) / np.diff(edges)
    else:
        heights = np.zeros(most)
        first = np.clip(np.searchsorted(edges, starts, side="right") - 1, 0, most - 1)
        last = np.clip(np.searchsorted(edges, ends, side="left") - 1, first, most - 1)
        np.maximum.at(heights, first, values)
        np.maximum.at(heights, last, values)
        for place in np.flatnonzero(last > first + 1):  # fewer than there are buckets
            np.maximum(heights[first[place] : last[place]], values[place], out=heights[first[place] : last[place]])
    return edges, np.append(heights, 0.0)


def _moments(policy: str, decisions: pd.DataFrame, total: float) -> tuple[list[Datum], list[Datum]]:
    """Decisions evenly spaced in time as points with tooltips: at their rows at work, and at their KV memory."""
    starts = decisions["start_s"].to_numpy(float)
    wanted = np.linspace(starts[0], starts[-1], _MOMENTS)
    chosen = decisions.iloc[np.unique(np.clip(np.searchsorted(starts, wanted, side="right") - 1, 0, None))]
    at_work, filled = [], []
    for step in chosen.to_dict("records"):
        rows, part = step["useful_decode_rows"] + step["prefill_rows"], 100 * step["kv_blocks"] / total
        numbers = (("time [s]", number(step["start_s"], 4)), ("rows at work", f"{rows:,}"),
                   ("slots held", f"{step['slots']:,}"), ("KV memory [%]", number(part)),
                   ("waiting", f"{step['waiting']:,}"))  # fmt: skip
        at_work.append(Datum(step["start_s"], float(rows), policy, numbers))
        filled.append(Datum(step["start_s"], part, policy, numbers))
    return at_work, filled


def _marked(look: str, name: str, times: Any, policy: str) -> Marks:
    times = times[evenly(len(times), _MARKS)] if len(times) else times
    points = (Datum(time, _ABOVE, f"{policy}: {name}", (("time [s]", number(time, 4)),)) for time in times.tolist())
    return Marks(look, tuple(points), name)


def _timeline_caption(view: View, shown: list[str]) -> str:
    parts = []
    for policy in shown:
        row = view.row(policy)
        part = f"{policy} fills {share(row['kv_peak_fraction'])} of the KV memory at its peak"
        if row["oom_events"]:
            part += f" and runs out of it {how_often(row['oom_events'])}"
        elif row["preemptions"]:
            part += f" and preempts {how_often(row['preemptions'])} instead of crashing"
        if not missing(row["slot_waste"]) and row["slot_waste"] > 0.005:
            part += f", {share(row['slot_waste'])} of its slots' time held by finished rows"
        parts.append(part)
    return f"{'; '.join(parts)}."


# ---- slots ---------------------------------------------------------------------------------------------------------


def slots(view: View) -> Chart | None:
    """Of a small run a bar a request in the row of its slot: prompt, answer, then the time it holds it for others."""
    counts = [len(view.of(view.requests, policy)) for policy in view.policies]
    if not counts or not 0 < max(counts) <= _LARGEST or view.requests["scheduled_s"].isna().all():
        return None
    shown = view.policies[:_SLOT_PANELS]
    looks = places(tuple(view.kinds), view.kinds)
    held = {policy: _held_slots(view, policy) for policy in shown}
    end = max((slot["until"] for each in held.values() for slot in each), default=1.0)
    panels = []
    for policy in shown:
        spans = tuple(_span(policy, slot, looks[policy]) for slot in held[policy])
        crashes = tuple(
            Datum(slot["until"], float(slot["lane"]), f"request {slot['id']}: out of memory", ())
            for slot in held[policy]
            if slot["crashed"]
        )
        lanes = max((slot["lane"] for slot in held[policy]), default=0) + 1
        x, y = Axis("time [s]", limits=(0.0, end)), Axis("slot", limits=(lanes - 0.5, -0.5), whole=True)
        marks = (Marks("oom", crashes, "out of memory"),)
        panels.append(Panel(x, y, title=policy, spans=spans, marks=marks, height=116 + 17 * max(lanes, 4)))
    used = {piece.look for panel in panels for span in panel.spans for piece in span.pieces}
    used |= {"oom"} if any(panel.marks[0].points for panel in panels) else set()
    legend = (
        Key("prompt", "ink"), Key("answer (the policy's colour)", "work"),
        *(Key(name, look) for look, name in _SLOT_WORDS.items() if look in used),
    )  # fmt: skip
    title, caption = "Who held which slot, and for what", _slots_caption(view, shown)
    return Chart("slots", title, caption, tuple(panels), legend, stacked=True)


def _held_slots(view: View, policy: str) -> list[dict[str, Any]]:
    """When each request of a policy took its slot, answered, and left it; bars of one lane do not overlap."""
    requests = view.of(view.requests, policy)
    requests = requests[requests["scheduled_s"].notna()].sort_values(["scheduled_s", "slot"], kind="stable")
    decisions = view.of(view.decisions, policy)
    computed = decisions["prefill_tokens"] + decisions["iterations"] * decisions["decode_rows"]
    needed = decisions["useful_prefill_tokens"] + decisions["iterations"] * decisions["useful_decode_rows"]
    padded = bool((computed > needed).any())
    over = np.sort(view.of(view.oom, policy)["time_s"].to_numpy(float))
    end = float((decisions["start_s"] + decisions["seconds"]).max()) if len(decisions) else 0.0
    held = []
    for row in requests.to_dict("records"):
        crashes = over[over >= row["scheduled_s"]]
        finish = row["finish_s"] if row["status"] == "completed" else float(crashes[0]) if len(crashes) else end
        held.append(
            {
                "id": row["id"], "slot": int(row["slot"]), "start": row["scheduled_s"], "finish": finish,
                "first": finish if missing(row["first_token_s"]) else row["first_token_s"],
                "crashed": row["status"] == "oom", "until": finish, "padded": padded,
                "prompt": row["prompt_tokens"], "longest": row["prompt_tokens"],
            }
        )  # fmt: skip
    kind = POLICIES.get(view.kinds.get(policy, ""))
    if padded or (kind is not None and kind.closed):
        for _, members in groupby(held, key=itemgetter("start")):
            batch = list(members)
            until, longest = max(slot["finish"] for slot in batch), max(slot["prompt"] for slot in batch)
            for slot in batch:
                slot |= {"until": until, "longest": longest if padded else slot["longest"]}
    # A bar stands in its slot, or beside it where a preempted request's bar spans what another held meanwhile.
    free: dict[int, float] = {}
    for slot in held:
        lane = slot["slot"]
        while free.get(lane, 0.0) > slot["start"] + 1e-9:
            lane += 1
        slot["lane"] = lane
        free[lane] = slot["until"]
    return held


def _span(policy: str, slot: dict[str, Any], look: int) -> Span:
    real = slot["start"] + (slot["first"] - slot["start"]) * slot["prompt"] / max(slot["longest"], 1)
    pieces = (
        Piece(slot["start"], real, "ink"),
        Piece(real, slot["first"], "padding"),
        Piece(slot["first"], slot["finish"], look),
        Piece(slot["finish"], slot["until"], "padding" if slot["padded"] else "idle"),
    )
    times = (("from [s]", "start"), ("first token [s]", "first"), ("last token [s]", "finish"),
             ("slot free [s]", "until"))  # fmt: skip
    numbers = (("slot", str(slot["slot"])), *((label, number(slot[name], 4)) for label, name in times))
    wanted = tuple(piece for piece in pieces if piece.end > piece.begin)
    return Span(f"{policy}, request {slot['id']}", numbers, slot["lane"] - 0.38, slot["lane"] + 0.38, wanted, look)


def _slots_caption(view: View, shown: tuple[str, ...]) -> str:
    parts = []
    for policy in shown:
        row = view.row(policy)
        wasted = [
            f"{share(row[column])} {what}"
            for column, what in (("slot_waste", "of slot time idle"), ("padding_waste", "of tokens padding"))
            if not missing(row[column]) and row[column]
        ]
        tail = f" with {' and '.join(wasted)}" if wasted else ""
        parts.append(f"{policy} ends after {seconds(float(row['makespan_s']))}{tail}")
    return f"{'; '.join(parts)}."
