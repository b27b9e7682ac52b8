"""A comparison in words: the tables that the command prints and the page shows, and the verdict above them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.against.server.observed import LATENCIES
from servecast.text import BLANK, Table, number, percent, seconds, signed

if TYPE_CHECKING:
    from servecast.against.server.compared import Comparison, Row

_TOTALS = {"makespan_s": "makespan", "request_throughput_rps": "requests/s", "output_throughput_tps": "output tok/s"}


def tables(compared: Comparison) -> tuple[Table, ...]:
    """Latencies and totals side by side; then how single requests and distributions are met, with the verdicts."""
    return (_figures(compared), _verdicts(compared))


def _figures(compared: Comparison) -> Table:
    heads = ["", "recorded", "simulated", "error"]
    heads += [f"steps -+{100 * compared.band[0]:g} %", "inside"] if compared.band else []
    heads += ["twin", "its error"] if compared.twin else []
    rows = tuple(
        _figure_row(compared, row)
        for row in compared.rows
        if row["counted_from"] != "arrival" or compared.held_back
    )  # fmt: skip
    return Table("Recorded and simulated", tuple(heads), rows)


def _figure_row(compared: Comparison, row: Row) -> tuple[str, ...]:
    def shown(value: float) -> str:
        return seconds(value) if row["metric"].endswith("_s") else number(value, 4)

    cells = [_name(compared, row), shown(row["recorded"]), shown(row["simulated"]), signed(row["error"], 2)]
    if compared.band:
        cells += [f"{shown(row['band_low'])} .. {shown(row['band_high'])}", "yes" if row["in_band"] else "no"]
    if compared.twin:
        cells += [shown(row["twin"]), signed(row["twin_error"], 2)]
    return tuple(cells)


def _name(compared: Comparison, row: Row, statistic: bool = True) -> str:
    if row["counted_from"] is None:
        return _TOTALS[row["metric"]]
    parts = [LATENCIES[row["metric"]], row["statistic"]] if statistic else [LATENCIES[row["metric"]]]
    if compared.held_back and row["metric"] != "tpot_s":
        parts.append(f"from {row['counted_from']}")
    return " ".join(parts) + ("" if row["requests"] == "all" else f", {row['requests']}")


def _verdicts(compared: Comparison) -> Table:
    heads = ["", "requests", "each, median", "each, p90", "KS distance", "error of the mean, 90 %"]
    heads += [f"within {100 * compared.margin:g} %"]
    heads += ["twin: each, median", "twin: KS"] if compared.twin else []
    rows = []
    for row in compared.rows:
        if row["statistic"] != "mean" or (row["counted_from"] == "arrival" and not compared.held_back):
            continue
        cells = [_name(compared, row, statistic=False), f"{row['count']:,}"]
        cells += [percent(row[key], 2) for key in ("request_error_p50", "request_error_p90")]
        cells.append(f"{row['ks_distance']:.3f}")
        if "equivalent" in row:
            cells.append(f"{signed(row['error_low'], 2)} .. {signed(row['error_high'], 2)}")
            cells.append("yes" if row["equivalent"] else f"not shown (p = {row['tost_p']:.2g})")
        else:
            cells += [BLANK, BLANK]
        if compared.twin:
            cells += [percent(row["twin_request_error_p50"], 2), f"{row['twin_ks_distance']:.3f}"]
        rows.append(tuple(cells))
    return Table("Single requests, distributions, equivalence of means", tuple(heads), tuple(rows))


def settings(compared: Comparison) -> tuple[str, ...]:
    """What was assumed, a sentence each: where the host's times come from among it."""
    scenario = compared.scenario
    network = scenario.workload.network
    assert network is not None
    policy = scenario.policies[0]
    cap = scenario.workload.max_in_flight
    first = (
        f"{scenario.model} on {scenario.profile or scenario.device}, {policy.kind}; "
        f"{'at most ' + str(cap) + ' in flight' if cap else 'open loop'}; "
        f"{1e3 * network.uplink_s:.3g} ms up, {1e3 * network.downlink_s:.3g} ms down"
    )
    lines = [first]
    host = compared.host
    if host is not None:
        steps = f", {1e3 * host.step_s:.3f} ms of host time a step" if host.step_s else ""
        lines.append(
            f"Fitted on the {host.part} of {host.source} ({host.requests:,} requests): "
            f"{1e3 * host.network_s:.2f} ms up and down together{steps}"
        )
    if not compared.judged.all():
        lines.append(f"{int(compared.judged.sum()):,} of {len(compared.recorded):,} requests are judged")
    if compared.twin:
        lines.append(f"Twin of the recording: {compared.twin[0]}")
    return (*lines, *compared.notes)
