"""The page without a browser: what it holds, that names stay names, and how large it gets."""

from __future__ import annotations

import base64
import math
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pages
import pandas as pd
import pytest
import toy_runs as toy
from hypothesis import given
from hypothesis import strategies as st

import servecast
from servecast import report
from servecast.policies import POLICIES
from servecast.report import sweep_charts, trust
from servecast.report.charts.figure import figure
from servecast.report.charts.looks import DARK, LIGHT, MARKERS, PATHS, places
from servecast.report.charts.scales import scale
from servecast.report.charts.spec import Axis, Chart, Datum, Panel, Series
from servecast.report.points import MOST_POINTS, PER_GPU, USERS, frontier, points_of
from servecast.report.run_page import run_page
from servecast.run.judged import view
from servecast.scenario import check
from servecast.text import number

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 6_000_000  # bytes of a page


class Read(HTMLParser):
    """Tags in order, with their attributes; and the text of scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.write_run(pages.swept_results(), tmp_path_factory.mktemp("swept"), ("svg", "png"))


# ---- what it holds ------------------------------------------------------------------------------------------------


def test_sections_stand_in_the_order_in_which_people_ask(swept: Path) -> None:
    html = swept.read_text(encoding="utf-8")
    ids = re.findall(r'<section id="([\w-]+)"', html)
    assert ids == [
        "compared",
        "served",
        "latencies",
        "pace",
        "price",
        "room",
        "waste",
        "roof",
        "time",
        "trust",
        "assumed",
        "again",
    ]
    assert html.index('class="verdict"') < html.index('id="compared"')
    read = Read(html)
    links = {str(entry["href"]) for entry in read.all("a") if str(entry["href"]).startswith("#")}
    assert links <= {f"#{entry['id']}" for _, entry in read.tags if entry.get("id")}
    assert {entry["id"] for entry in read.all("figure")} == {
        "throughput-latency", "latency-cdf", "interactivity", "cost-curve", "memory", "tokens", "roofline", "timeline",
        "step-errors",
    }  # fmt: skip


def test_every_interactive_chart_is_a_file_too(swept: Path) -> None:
    for name in (
        "throughput-latency",
        "latency-cdf",
        "interactivity",
        "cost-curve",
        "memory",
        "tokens",
        "roofline",
        "timeline",
    ):
        assert (swept.with_name(f"{name}.png")).stat().st_size > 5000
        assert b"<svg" in swept.with_name(f"{name}.svg").read_bytes()


def test_tables_travel_in_the_page_as_they_stand_beside_it(swept: Path) -> None:
    links = {
        str(entry["download"]): str(entry["href"])
        for entry in Read(swept.read_text(encoding="utf-8")).all("a")
        if "download" in entry
    }
    assert {"summary.csv", "throughput-latency.csv", "interactivity.csv", "cost-curve.csv", "memory.csv"} <= set(links)
    data = {name: base64.b64decode(link.partition("base64,")[2]) for name, link in links.items()}
    assert data["summary.csv"] == swept.with_name("summary.csv").read_bytes()
    assert all(text.decode().count("\n") > 1 for text in data.values())


def test_points_are_means_over_the_seeds_with_their_range(swept: Path) -> None:
    summary = pages.summary(swept)
    key = "workload.arrivals.rate_rps"
    told = points_of(pages.swept_results())
    chart = sweep_charts.throughput_latency(told)
    assert chart is not None
    panel = chart.panels[0]
    assert isinstance(panel, Panel)
    series = {each.name: each for each in panel.series}
    for policy in ("static", "continuous"):
        for datum, rate in zip(series[policy].lines[0], (3, 6, 12), strict=True):
            rows = summary[(summary["policy"] == policy) & (summary[key] == rate)]
            assert datum.x == pytest.approx(rows["request_throughput_rps"].mean())
            assert datum.y == pytest.approx(rows["ttft_p99_s"].mean())
            assert (datum.low, datum.high) == pytest.approx((rows["ttft_p99_s"].min(), rows["ttft_p99_s"].max()))
            assert dict(datum.numbers)["TTFT p99 [s]"] == number(float(rows["ttft_p99_s"].mean()), 4)
            assert datum.name == f"{policy}, rate_rps {rate}"
    assert "means over 2 seeds" in chart.note


def test_one_load_is_points_and_bars_and_no_curve(tmp_path: Path) -> None:
    html = pages.single(tmp_path).read_text(encoding="utf-8")
    assert "One load gives a point" in html
    told = points_of(toy.chat_results(rates=(6,), requests=40))
    cost, memory = sweep_charts.cost_curve(told, 2.5), sweep_charts.memory(told)
    assert cost is not None
    assert memory is not None
    assert [type(chart.panels[0]).__name__ for chart in (cost, memory)] == ["Bars", "Bars"]
    assert "$2.50 an hour" in cost.note
    assert len(cost.panels[0].bars) == 3  # type: ignore[union-attr]


def test_without_a_price_there_is_no_cost(tmp_path: Path) -> None:
    results = toy.chat_results(rates=(3, 6), requests=20)
    results.summary = results.summary.assign(usd_per_mtok_output=None)
    html = report.write_run(results, tmp_path).read_text(encoding="utf-8")
    assert 'id="price"' not in html
    assert "cost-curve" not in html


def test_errors_are_told_as_what_they_are(swept: Path) -> None:
    """A p95 is no worst case, and operators that were put together are no fitted steps."""
    html = swept.read_text(encoding="utf-8")
    assert "at worst" not in html
    assert "95 of 100 to within its pale end (p95), and the rest lie beyond it. The largest p95 is " in html
    assert "a cost model fitted to measured steps" in html
    error = {"median": 0.02, "p95": 0.2, "signed_mean": 0.0, "count": 9, "along": "n"}
    put_together = {"kind": "tabulated", "held_out": [{"operator": "GEMM", **error}]}
    told = trust.trusted(put_together, True, None)
    assert "put together of operators that were measured one by one" in told
    assert "fitted to measured steps" not in told
    assert "Points that their own table had not" in told
    assert "The largest p95 is 20 %" in told
    whole = {"kind": "tabulated", "held_out": [{"operator": "whole step", **error}]}
    assert "tables of whole steps" in trust.trusted(whole, True, None)
    assert "states no errors" in trust.trusted(None, True, None)


def test_idle_slots_are_one_thing(swept: Path) -> None:
    """The table's are of slot time; the chart's part is of token places, has another name, and says why it differs."""
    html = swept.read_text(encoding="utf-8")
    chart = html[html.index('<figure class="chart lone" id="tokens"') : html.index('<section id="roof"')]
    assert "empty places of a closed batch" in chart
    assert "idle slots of a closed batch" not in html
    assert "The table&#x27;s idle slots are the same as a share of slot time" in chart
    assert "<dt>idle slots</dt><dd>share of slot time (slots times steps)" in html


# ---- what it is made of -------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(1, 1e4)), min_size=1, max_size=40))
def test_the_frontier_is_what_nothing_beats_in_both(points: list[tuple[float, float]]) -> None:
    table = pd.DataFrame(points, columns=[USERS, PER_GPU]).assign(strained=False)
    found = [points[label] for label in frontier(table)]
    for x, y in points:
        assert any(a >= x and b >= y for a, b in found)
    for one in found:
        assert not any(a >= one[0] and b >= one[1] and (a, b) != one for a, b in points)
    assert found == sorted(found)
    strained = table.assign(strained=[True, *[False] * (len(points) - 1)])
    if len(points) > 1:
        assert 0 not in frontier(strained)


def test_tokens_of_a_gpu_count_every_gpu() -> None:
    results = toy.chat_results(rates=(3, 6), requests=20)
    results.summary = results.summary.assign(gpus=6)
    table = points_of(results).table
    assert (table[PER_GPU] * 6).tolist() == pytest.approx(table["output_throughput_tps"].astype(float).tolist())
    assert (table[USERS] * table["tpot_p50_s"]).tolist() == pytest.approx([1.0] * len(table))


@given(st.floats(1e-6, 1e6), st.floats(1.0001, 1e5), st.booleans())
def test_ticks_are_few_inside_and_increasing(low: float, factor: float, log: bool) -> None:
    made = scale(Axis("x", log=log), [low, low * factor], 0.0, 400.0)
    ticks = made.ticks(6)
    values = [value for value, _ in ticks]
    assert 1 <= len(ticks) <= 7
    assert values == sorted(set(values))
    assert all(-1e-6 <= made(value) <= 400 + 1e-6 for value in values)
    assert 0 <= made(low) < made(low * factor) <= 400
    assert all(float(words.replace(",", "")) == pytest.approx(value, rel=6e-3, abs=1e-9) for value, words in ticks)


def channel(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def linear(colour: str) -> list[float]:
    return [channel(int(colour[place : place + 2], 16) / 255) for place in (1, 3, 5)]


def contrast(one: str, other: str) -> float:
    light, dark = sorted(
        (sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(x), strict=True)) for x in (one, other)),
        reverse=True,
    )
    return (light + 0.05) / (dark + 0.05)


#: Machado, Oliveira and Fernandes, 2009: what the linear colours are to an eye without the cones of one kind.
SIGHT = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}


def lab(colour: str, sight: str) -> list[float]:
    seen = [min(max(sum(w * c for w, c in zip(row, linear(colour), strict=True)), 0.0), 1.0) for row in SIGHT[sight]]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    x, y, z = (
        (lambda t: t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116)(
            sum(w * c for w, c in zip(row, seen, strict=True)) / w0
        )
        for row, w0 in zip(to_xyz, white, strict=True)
    )
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


@pytest.mark.parametrize(("palette", "ground"), [(LIGHT, "#ffffff"), (DARK, "#151a21")])
def test_colours_of_policies_are_told_apart_by_every_eye(palette: tuple[str, ...], ground: str) -> None:
    assert all(contrast(colour, ground) >= 3 for colour in palette)
    for sight in SIGHT:
        first = [lab(colour, sight) for colour in palette[:4]]  # beyond them markers tell policies apart
        apart = [math.dist(a, b) for place, a in enumerate(first) for b in first[place + 1 :]]
        assert min(apart) > 20, sight
    assert len(MARKERS) == len(palette) == len(PATHS)
    assert len(set(places([*"abcdef", *POLICIES]).values())) == 10
    assert len(set(places([*"abcdefg", "static", "padded", "continuous"]).values())) == 10


def test_things_of_different_names_are_not_joined() -> None:
    """A line from one GPU to another says nothing; each point has its name."""
    results = toy.chat_results(rates=(3, 12), requests=20)
    key = "workload.arrivals.rate_rps"
    for name in ("summary", "requests", "decisions", "oom"):
        table = getattr(results, name).rename(columns={key: "device"})
        setattr(
            results, name, table.assign(device=table["device"].map({3: "a GPU of a very long name indeed", 12: "b"}))
        )
    told = points_of(results)
    curves, cost = sweep_charts.throughput_latency(told), sweep_charts.cost_curve(told, None)
    assert curves is not None
    assert cost is not None
    series = curves.panels[0].series  # type: ignore[union-attr]
    assert not any(each.joined for each in series)
    assert [datum.words for datum in series[0].lines[0]] == ["a GPU of a very long na…", "b"]
    assert len(cost.panels[0].bars) == 6  # type: ignore[union-attr]
    assert "on toy-gpu" not in run_page(results, [])


def test_steps_stand_under_the_roof_of_their_own_device() -> None:
    """Of a sweep over devices the figures show the best: under another's roof its steps would fly."""
    changes = {"workload.requests": 8, "sweep": {"profile": ["l40s-qwen3-14b-ops", "h200-qwen3-14b-ops"]}}
    results = servecast.simulate(servecast.load("questions/which-gpu", changes))
    assert view(results).where == "profile = h200-qwen3-14b-ops"
    assert results.roof is not None
    assert results.profile is not None
    assert results.roof.name == results.profile["device"] == "h200"


def test_each_tenant_has_a_row_with_its_own_targets(tmp_path: Path) -> None:
    lengths = {"prompt_tokens": {"kind": "fixed", "tokens": 100}, "output_tokens": {"kind": "fixed", "tokens": 5}}
    arrivals = {"kind": "constant", "rate_rps": 3.0}
    tenants = [
        {"name": "chat", "arrivals": arrivals, **lengths, "slo": {"ttft_s": 0.5}},
        {"name": "<b>batch</b>", "arrivals": arrivals, **lengths, "slo": None},
    ]
    data = {"name": "shared", "model": "llama-3.1-8b", "device": "h100-sxm", "policies": [{"kind": "continuous"}]}
    results = servecast.simulate(check({**data, "workload": {"tenants": tenants, "requests": 20}}, tmp_path))
    html = run_page(results, [])
    (section,) = re.findall(r'<section id="tenants".*?</section>', html, re.DOTALL)
    assert "<td>chat</td><td>TTFT \u2264 500 ms</td>" in section
    assert "<td>&lt;b&gt;batch&lt;/b&gt;</td>" in section
    assert '<a href="#tenants">' in html
    assert "the roofline of h100-sxm" in html.replace("\n", " ")


# ---- names stay names ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [pages.hostile, pages.bad_plan])
def test_names_are_text_wherever_they_stand(make: Any, tmp_path: Path) -> None:
    html = make(tmp_path).read_text(encoding="utf-8")
    read = Read(html)
    assert len(read.all("script")) == 1
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "{{ 7*7 }}" in html
    assert "49" not in re.findall(r"naïve 名前 (\S+)", html)
    known = {
        "class", "id", "viewbox", "role", "aria-label", "aria-hidden", "aria-pressed", "x", "y", "width", "height", "rx", "d",
        "transform", "tabindex", "data-s", "type", "href", "download", "scope", "lang", "charset", "name", "content", "hidden", "open",
        "data-label", "fill-opacity",
    }  # fmt: skip
    assert {name for _, attributes in read.tags for name in attributes} <= known
    assert any(pages.HOSTILE in str(entry.get("aria-label")) for entry in read.all("g"))


# ---- how large it gets --------------------------------------------------------------------------------------------


def test_a_large_sweep_has_a_page_that_can_be_mailed() -> None:
    results = pages.many(3000)
    assert len(results.summary) == 3000
    told = points_of(results)
    assert MOST_POINTS - 50 <= len(told.shown) <= MOST_POINTS
    assert set(frontier(told.table)) <= set(told.shown.index)
    html = run_page(results, ["summary.csv"])
    assert len(html.encode()) < LIMIT
    assert f"{len(told.shown):,} of 3,000 points are drawn" in html
    assert "The first 150 of 3,000 rows" in html
    assert "is too large to travel in the page" in html
    assert 'download="summary-points.csv"' in html


def test_a_long_table_under_a_chart_is_cut_and_its_file_is_not() -> None:
    points = tuple(Datum(float(x), 1.0, f"p{x}", (("x", str(x)),)) for x in range(1, 301))
    chart = Chart("c", "C", "Caption.", (Panel(Axis("x"), Axis("y"), (Series("s", 0, (points,)),)),))
    html = figure(chart)
    assert "The first 120 of 300 rows" in html
    (link,) = [str(entry["href"]) for entry in Read(html).all("a")]
    assert base64.b64decode(link.partition("base64,")[2]).decode().splitlines()[-1] == "p300,300"
