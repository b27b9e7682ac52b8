"""A comparison in words and files: its tables, the requests side by side, and a self-contained page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from servecast.against.server.observed import LATENCIES
from servecast.files import replacing, write_tables
from servecast.report.charts.files import write_figures
from servecast.report.compare_charts import charts
from servecast.report.page import Page, Section, again, chart_section, table_section
from servecast.report.tables import table_of
from servecast.report.trust import assumed
from servecast.report.verdicts.compare import verdict
from servecast.scenario import resolved, seen_from
from servecast.text import BLANK, Table, number, percent, seconds, signed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from servecast.against.server.compared import Comparison, Row

#: Of `document`: goes up when a key is taken out, or means something else.
SCHEMA_VERSION: Final = 1
_TOTALS = {"makespan_s": "makespan", "request_throughput_rps": "requests/s", "output_throughput_tps": "output tok/s"}
_METHOD = (
    "The recorded arrivals and lengths were served by the scenario's engine; errors are (simulated - recorded) / "
    "recorded. Latencies are the client's: TTFT from the send to the first token. Makespan: first send to last token. "
    "Means are equivalent when two one-sided t tests of 30 means of consecutive requests reject an error of the margin "
    "or more, at 5 %; not shown is not the same as different."
)


def write(compared: Comparison, out: Path, figures: Sequence[str] = (), *, as_csv: bool = False) -> Path:
    """Write ``out/<scenario name>-compared/``, whole or not at all, in place of an earlier one; the path of its page.

    figures : forms (``svg``, ``png``) in which each chart of the page is a file too

    Raises InputError: the folder cannot be written, or what is there holds no results.
    """
    name = compared.scenario.name
    target = out / f"{name}-compared"
    scenario = seen_from(target.resolve(), resolved(compared.scenario))
    with replacing(target) as folder:
        shown = charts(compared)
        made = {"summary": compared.table, "requests": compared.requests}
        files = write_tables(folder, scenario, made, as_csv=as_csv) + write_figures(folder, shown, figures)
        first, *others = tables(compared)
        page = Page(
            name=name,
            title=f"{name}: simulated against recorded",
            kicker="Simulated against recorded",
            verdict=verdict(compared),
            notes=settings(compared),
            sections=[
                table_section("recorded", first),
                *(chart_section(chart, chart.title) for chart in shown),
                *(table_section(at, each) for at, each in enumerate(others)),
                Section("assumed", "Assumptions", "What is assumed", assumed(scenario, "The scenario as it ran")),
                again("", files, definitions=_METHOD),
            ],
        )
        (folder / "report.html").write_text(page.html(), encoding="utf-8")
    return target / "report.html"


def document(compared: Comparison, page: Path) -> dict[str, Any]:
    """What ``--json`` prints; every row has every key, and what is not known is NaN or None."""
    return {
        "schema_version": SCHEMA_VERSION,
        "name": compared.scenario.name,
        "folder": page.parent,
        "report": page,
        "verdict": str(verdict(compared)),
        "notes": settings(compared),
        "rows": compared.table.to_dict("records"),
    }


def tables(compared: Comparison) -> tuple[Table, ...]:
    """Latencies and totals side by side; then how single requests and distributions are met, with the verdicts."""
    rows = [row for row in compared.rows if row["counted_from"] != "arrival" or compared.held_back]
    judged = [_judged(compared, row) for row in rows if row["statistic"] == "mean"]
    return (
        table_of("Recorded and simulated", [_figures(compared, row) for row in rows]),
        table_of("Single requests, distributions, equivalence of means", judged),
    )


def _figures(compared: Comparison, row: Row) -> dict[str, str]:
    def shown(value: float) -> str:
        return seconds(value) if row["metric"].endswith("_s") else number(value, 4)

    cells = {"": _name(compared, row)}
    cells |= {
        "recorded": shown(row["recorded"]),
        "simulated": shown(row["simulated"]),
        "error": signed(row["error"], 2),
    }
    if compared.band:
        cells[f"steps -+{100 * compared.band[0]:g} %"] = f"{shown(row['band_low'])} .. {shown(row['band_high'])}"
        cells["inside"] = "yes" if row["in_band"] else "no"
    if compared.twin:
        cells |= {"twin": shown(row["twin"]), "its error": signed(row["twin_error"], 2)}
    return cells


def _judged(compared: Comparison, row: Row) -> dict[str, str]:
    shown, within = BLANK, BLANK
    if "equivalent" in row:
        shown = f"{signed(row['error_low'], 2)} .. {signed(row['error_high'], 2)}"
        within = "yes" if row["equivalent"] else f"not shown (p = {row['tost_p']:.2g})"
    cells = {
        "": _name(compared, row, statistic=False), "requests": f"{row['count']:,}",
        "each, median": percent(row["request_error_p50"], 2), "each, p90": percent(row["request_error_p90"], 2),
        "KS distance": f"{row['ks_distance']:.3f}", "error of the mean, 90 %": shown,
        f"within {100 * compared.margin:g} %": within,
    }  # fmt: skip
    if compared.twin:
        cells["twin: each, median"] = percent(row["twin_request_error_p50"], 2)
        cells["twin: KS"] = f"{row['twin_ks_distance']:.3f}"
    return cells


def _name(compared: Comparison, row: Row, statistic: bool = True) -> str:
    if row["counted_from"] is None:
        return _TOTALS[row["metric"]]
    parts = [LATENCIES[row["metric"]], row["statistic"]] if statistic else [LATENCIES[row["metric"]]]
    if compared.held_back and row["metric"] != "tpot_s":
        parts.append(f"from {row['counted_from']}")
    return " ".join(parts) + ("" if row["requests"] == "all" else f", {row['requests']}")


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
