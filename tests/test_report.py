"""The results folder: what it says, that it is whole or not there, and that it is the same bytes each time."""

from __future__ import annotations

import csv
import errno
import gzip
import json
import math
import os
import re
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import toy_runs as toy

from servecast import files as tables
from servecast import metrics, report
from servecast import text as words
from servecast.errors import InputError
from servecast.policies import POLICIES
from servecast.report.charts import files as figures
from servecast.report.charts.looks import places
from servecast.report.charts.spec import Chart, Panel
from servecast.report.run_page import _tiles, _window, chart_sections
from servecast.report.tables import targets
from servecast.report.time_charts import _held_slots, buckets
from servecast.report.trust import step_error
from servecast.run.judged import _regimes, judged, per_policy, view

if TYPE_CHECKING:
    from collections.abc import Iterator

BURST = ([0.0] * 12, [100, 120, 90, 2000, 80, 110] * 2, [30, 40, 1, 35, 300, 28] * 2)


def burst_results(**fields: Any) -> toy.ToyResults:
    """Twelve requests at once, in batches of six: one straggler and one long prompt in each."""
    runs = {kind: toy.batched(kind, *BURST, batch_size=6) for kind in ("static", "padded")}
    runs["continuous"] = toy.continuous(*BURST, max_num_seqs=6)
    return toy.toy_results([({"seed": 1}, runs)], **fields)


@pytest.fixture(scope="module")
def burst() -> toy.ToyResults:
    return burst_results()


@pytest.fixture(scope="module")
def chat() -> toy.ToyResults:
    return toy.chat_results(requests=120, seeds=2, rates=(3, 12))


@pytest.fixture(scope="module")
def written(chat: toy.ToyResults, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.write_run(chat, tmp_path_factory.mktemp("results")).parent


@pytest.fixture
def light(burst: toy.ToyResults) -> toy.ToyResults:
    """Results for what is about files."""
    return burst


# ---- the folder --------------------------------------------------------------------------------------------------


def test_the_folder_holds_everything(written: Path) -> None:
    expected = {"scenario.yaml", "summary.csv", "oom.csv", "requests.parquet", "decisions.parquet", "report.html"}
    assert {path.name for path in written.iterdir()} == expected
    assert [path.name for path in written.parent.iterdir()] == ["toy"]


def test_tables_read_back_as_the_same_numbers(written: Path, chat: toy.ToyResults) -> None:
    summary = pd.read_csv(written / "summary.csv")
    assert list(summary.columns[:3]) == ["policy", "workload.arrivals.rate_rps", "seed"]
    assert summary["ttft_p99_s"].tolist() == chat.summary["ttft_p99_s"].tolist()
    requests = pd.read_parquet(written / "requests.parquet")
    np.testing.assert_array_equal(requests["finish_s"], chat.requests["finish_s"])
    assert requests["status"].tolist() == chat.requests["status"].astype(str).tolist()
    tables.write_tables(written.parent, {}, {"requests": chat.requests}, as_csv=True)
    text = gzip.decompress((written.parent / "requests.csv.gz").read_bytes()).decode()
    (written.parent / "requests.csv.gz").unlink()
    assert not re.search(r"nan|inf|None|NULL", text, re.IGNORECASE)
    cut = tables.frame_csv(pd.DataFrame({"a": [0.1, math.nan, 1e-05], "b": [1, 2, 3]}))
    assert cut == b"a,b\n0.1,1\n,2\n0.00001,3\n" or cut == b"a,b\n0.1,1\n,2\n1e-05,3\n"


def test_long_tables_are_parquet_or_csv_as_asked(chat: toy.ToyResults, tmp_path: Path) -> None:
    """Their names do not depend on how long they are, and both read back as the same numbers."""
    frames = {"summary": chat.summary, "requests": chat.requests, "decisions": chat.decisions}
    names = tables.write_tables(tmp_path, {}, frames)
    assert names == ["scenario.yaml", "summary.csv", "requests.parquet", "decisions.parquet"]
    back = pd.read_parquet(tmp_path / "decisions.parquet")
    pd.testing.assert_frame_equal(back, chat.decisions, check_dtype=False)
    names = tables.write_tables(tmp_path, {}, frames, as_csv=True)
    assert names == ["scenario.yaml", "summary.csv", "requests.csv.gz", "decisions.csv.gz"]
    back = pd.read_csv(tmp_path / "decisions.csv.gz")
    pd.testing.assert_frame_equal(back, chat.decisions, check_dtype=False)


def test_cells_of_mixed_columns_are_strict_json_or_blank(tmp_path: Path) -> None:
    mixed = [None, "text, quoted", 3, 0.5, [1, 2], {"kind": "fixed"}, math.nan, True]
    frame = pd.DataFrame({"a": pd.Series(mixed, dtype=object), "none": pd.Series([None] * 8, dtype=object)})
    tables.write_tables(tmp_path, {}, {"summary": frame})
    with (tmp_path / "summary.csv").open(newline="") as file:
        cells = [row[0] for row in csv.reader(file)]
    assert cells == ["a", "", "text, quoted", "3", "0.5", "[1, 2]", '{"kind": "fixed"}', "", "true"]


def test_out_03_the_scenario_may_hold_paths_and_numpy_numbers() -> None:
    scenario = {"name": "x", "path": Path("a/b"), "n": np.int64(3), "rates": (np.float64(0.5), None)}
    assert tables.scenario_text(scenario) == "name: x\npath: a/b\nn: 3\nrates:\n- 0.5\n- null\n"
    assert json.loads(json.dumps(tables.plain(scenario), allow_nan=False))["rates"] == [0.5, None]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_rerun_leaves_the_old_results(
    light: toy.ToyResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    report.write_run(light, tmp_path, ("svg",))
    before = snapshot(tmp_path)

    def full(chart: Chart, form: str, mark: str) -> bytes:
        raise failure

    monkeypatch.setattr(figures, "encoded", full)
    with pytest.raises((InputError, KeyboardInterrupt)) as caught:
        report.write_run(light, tmp_path, ("svg",))
    if isinstance(failure, OSError):
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith(f"{tmp_path / 'toy'}: results cannot be written (No space left on device)")
    assert snapshot(tmp_path) == before


def test_a_failed_swap_puts_the_old_results_back(
    light: toy.ToyResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report.write_run(light, tmp_path)
    before = snapshot(tmp_path)
    rename = Path.rename

    def stubborn(self: Path, target: Path) -> Path:
        if self.name.endswith(".new"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", stubborn)
    with pytest.raises(InputError, match="Input/output error"):
        report.write_run(light, tmp_path)
    monkeypatch.undo()
    assert snapshot(tmp_path) == before


def test_a_rerun_replaces_its_own_files_and_keeps_those_of_others(light: toy.ToyResults, tmp_path: Path) -> None:
    report.write_run(light, tmp_path, ("svg", "png"))
    (tmp_path / "toy" / "tokens.png").write_bytes(b"stale")
    (tmp_path / "toy" / "old-figure.png").write_bytes(b"stale")
    (tmp_path / "toy" / "notes.md").write_text("mine")
    report.write_run(light, tmp_path, ("png",))
    assert not (tmp_path / "toy" / "tokens.svg").exists()
    assert (tmp_path / "toy" / "notes.md").read_text() == "mine"
    assert not (tmp_path / "toy" / "old-figure.png").exists()
    assert (tmp_path / "toy" / "tokens.png").read_bytes() != b"stale"
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_a_folder_that_holds_no_results_is_not_replaced(light: toy.ToyResults, tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"toy: is there and holds no results .* --out"):
        report.write_run(light, tmp_path)
    assert (tmp_path / "toy" / "thesis.tex").read_text() == "years of work"
    (tmp_path / "toy" / "thesis.tex").unlink()
    assert report.write_run(light, tmp_path).is_file()


def test_a_place_that_is_no_folder_is_one_line(light: toy.ToyResults, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file.toy: results cannot be written \(Not a directory\)"):
        report.write_run(light, tmp_path / "file")


def test_cfg_07_and_cfg_12_the_same_bytes_whatever_hash_seed_and_locale(burst: toy.ToyResults, tmp_path: Path) -> None:
    report.write_run(burst, tmp_path / "here", ("svg", "png"))
    program = (
        "import sys, locale; from pathlib import Path; import test_report as t\n"
        "try: locale.setlocale(locale.LC_ALL, '')\n"
        "except locale.Error: pass\n"
        "t.report.write_run(t.burst_results(), Path(sys.argv[1]), ('svg', 'png'))"
    )
    places = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {
        "PYTHONHASHSEED": "1",
        "LC_ALL": "de_DE.UTF-8",
        "PYTHONPATH": places,
        "TZ": "Asia/Tokyo",
    }
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "there")], env=environment, check=True)
    assert snapshot(tmp_path / "here") == snapshot(tmp_path / "there")


# ---- the page ----------------------------------------------------------------------------------------------------


def test_the_page_stands_alone(written: Path, chat: toy.ToyResults) -> None:
    html = (written / "report.html").read_text(encoding="utf-8")
    assert len(html) < 6_000_000
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", html)
    assert html.count("<script") == 1
    assert "data:image/png" not in html
    told = report.verdict(chat.summary, chat.scenario["slo"])
    assert f'<p class="verdict">{told.headline} <span>{told.rest}</span></p>' in html
    assert "A note with &lt;angles&gt; &amp; ampersand." in html
    assert "servecast run scenario.yaml" in html
    assert "numpy linear" in html
    assert (
        '<th scope="row">largest</th><td>mixed</td><td>2,000</td><td>0.41 %</td><td>1.12 %</td><td>-0.30 %</td>' in html
    )
    assert '<th scope="row">provenance.source</th><td>a table</td>' in html
    assert "covariance" not in html
    assert "uncalibrated" not in html.split("</style>")[1]
    assert "Means over 2 seeds" in html
    assert re.search(r"within the targets: workload.arrivals.rate_rps = (3|12), seed 1\.", html)
    error = (
        "Step times: held-out mixed steps are met to 0.41 % in the median, 1.12 % at p95; mixed steps -0.30 % in the mean. "
        "No decode or prefill step was measured."
    )
    assert html.index(error) < html.index("A note with") < html.index(">The policies compared<")


def test_a_data_sheet_is_called_uncalibrated_everywhere(burst: toy.ToyResults, tmp_path: Path) -> None:
    roof = report.Roof("a100", 1.555e12, 312e12, calibrated=False)
    results = burst_results(roof=roof, profile=None)
    html = report.write_run(results, tmp_path).read_text(encoding="utf-8")
    assert "Uncalibrated roofline: " in html
    assert html.count("uncalibrated") >= 4
    report.write_run(results, tmp_path, ("svg",))
    for file in (tmp_path / "toy").glob("*.svg"):
        assert re.search(r'class="title"[^>]*>[^<]* \(uncalibrated\)<', file.read_text(encoding="utf-8"))
    assert roof.ridge == pytest.approx(200.6, abs=0.1)


def test_a_policy_without_steps_is_no_reason_to_fail() -> None:
    run = toy.continuous(*BURST, max_num_seqs=6)
    never = toy.ToyRun(toy.request_columns([{"status": toy.REJECTED}] * 2), toy.decision_columns([]), end_s=1.0)
    results = toy.toy_results([({"seed": 1}, {"continuous": run, "static": never})])
    assert set(charts_of(results)) >= {"roofline", "timeline", "tokens"}
    long = toy.toy_results([({"seed": 1}, {"continuous": toy.continuous(*toy.chat(700, 8), capacity=1400)})])
    made = charts_of(long)
    assert len(long.decisions) > 1000
    assert all(points_of(made[name]) < 600 for name in ("roofline", "latency-cdf", "timeline"))


def test_a_calibrated_model_without_errors_says_that(burst: toy.ToyResults, tmp_path: Path) -> None:
    html = report.write_run(burst_results(profile=None, roof=None, notes=[]), tmp_path).read_text(encoding="utf-8")
    assert "states no errors" in html
    assert not list((tmp_path / "toy").glob("roofline*"))


def test_the_window_is_named(burst: toy.ToyResults) -> None:
    assert _window(burst).startswith("All numbers are of the whole run")
    burst = burst_results(scenario=burst.scenario | {"warmup_s": 10.0, "cooldown_s": None})
    assert "from 10 s to 0 s before the last arrival" in _window(burst)


def test_met_03_a_run_in_which_nothing_completes_has_a_report(tmp_path: Path) -> None:
    rejected = toy.ToyRun(
        toy.request_columns([{"status": toy.REJECTED, "reject_reason": 1, "prompt_tokens": 10**6}] * 3),
        toy.decision_columns([]),
    )
    results = toy.toy_results([({"seed": 1}, {"continuous": rejected})])
    assert str(report.verdict(results.summary)) == "No request completed: 3 rejected (prompt too long)."
    html = report.write_run(results, tmp_path).read_text(encoding="utf-8")
    assert "No request completed: 3 rejected (prompt too long)." in html
    assert not re.search(r"\bnan\b", html, re.IGNORECASE)
    row = report.comparison_rows(results.summary)[0]
    assert row["TTFT p99 [s]"] == words.BLANK
    assert row["done"] == "0/3"


# ---- words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (3, "3"), (3.0, "3"), (11.84, "11.8"), (0.0123456, "0.0123"), (123456.7, "123,457"), (99.96, "100.0"),
        (1e-9, "1.00e-09"), (None, words.BLANK), (math.nan, words.BLANK), (math.inf, "inf"), (-2.5, "-2.50"),
        (100.0, "100"), (0.5, "0.500"),
    ],
)  # fmt: skip
def test_numbers_at_three_digits(value: float | None, text: str) -> None:
    assert words.number(value) == text


def test_times_and_shares() -> None:
    assert [words.seconds(x) for x in (0.0851, 1.254, 1380, None)] == ["85.1 ms", "1.25 s", "23 min", words.BLANK]
    assert [words.share(x) for x in (0, 0.0004, 0.034, 0.87, 1.0, None)] == [
        "0 %", "<0.1 %", "3.4 %", "87 %", "100 %", words.BLANK,
    ]  # fmt: skip


def summary_of(**columns: list[Any]) -> pd.DataFrame:
    """A summary with these columns, and the rest plausible."""
    count = len(columns["policy"])
    base: dict[str, Any] = {
        "policy": None, "seed": [1] * count, "offered_rps": [8.0] * count, "completed": [100] * count,
        "arrived": [100] * count, "goodput_rps": [None] * count, "ttft_p99_s": [0.4] * count,
        "tpot_p50_s": [0.020] * count, "oom_failed": [0] * count, "oom_events": [0] * count, "rejected": [0] * count,
        "cut": [0] * count, **{name: [0] * count for name in metrics.REJECTIONS},
        "unfinished": [0] * count, "usd_per_mtok_output": [None] * count, "regime": ["stable"] * count,
        "slo_attainment": [None] * count, "itl_p99_s": [None] * count,
    }  # fmt: skip
    base["ttft_p50_s"] = [value / 2 for value in columns.get("ttft_p99_s", base["ttft_p99_s"])]
    keys = [name for name in columns if name == "policy" or (name not in base and name not in _MEASURED)]
    frame = pd.DataFrame(base | columns)
    return frame[[*keys, "seed", *frame.columns.drop([*keys, "seed"])]]


RATE = "arrivals.rate_rps"  # an axis of load
_MEASURED = ("request_throughput_rps", "ttft_p50_s", "busy_fraction")


def said(*args: Any, **kwargs: Any) -> str:
    return str(report.verdict(*args, **kwargs))


def test_verdict_compares_throughput() -> None:
    summary = summary_of(
        policy=["static", "padded", "continuous"],
        request_throughput_rps=[3.8, 2.3, 11.8],
        oom_failed=[0, 12, 0],
        oom_events=[0, 1, 0],
        usd_per_mtok_output=[1.2, 2.0, 0.41],
    )
    assert said(summary) == (
        "Continuous serves 11.8 req/s, 3.1 times static and 5.1 times padded. "
        "Continuous: 11.8 req/s, median TTFT 200 ms, p99 TTFT 400 ms, median TPOT 20 ms, $0.410 of the whole bill per million output tokens. "
        "Static: 3.80 req/s, median TTFT 200 ms, p99 TTFT 400 ms, median TPOT 20 ms, $1.20 of the whole bill per million output tokens. "
        "Padded: 2.30 req/s, median TTFT 200 ms, p99 TTFT 400 ms, median TPOT 20 ms, $2 of the whole bill per million output tokens. "
        "As memory runs out padded loses 12 of 100 requests."
    )


def test_verdict_compares_latency_where_throughput_is_equal() -> None:
    summary = summary_of(
        policy=["static", "continuous"],
        request_throughput_rps=[2.0, 2.01],
        ttft_p99_s=[1.9, 0.08],
        tpot_p50_s=[0.02, None],
    )
    assert said(summary, calibrated=False) == (
        "Uncalibrated roofline: continuous gives its first token after 40 ms in the median, 24 times sooner than static, "
        "at the same 2.01 req/s. Continuous: 2.01 req/s, median TTFT 40 ms, p99 TTFT 80 ms. "
        "Static: 2 req/s, median TTFT 950 ms, p99 TTFT 1.90 s, median TPOT 20 ms."
    )
    same_median = summary.assign(ttft_p50_s=0.04, regime="overloaded")
    assert report.verdict(same_median).headline == (
        "Continuous gives its first token after 80 ms at p99, 24 times sooner than static, at the same 2.01 req/s "
        "(overloaded)."
    )


def test_verdict_compares_latency_where_throughput_is_alike_and_times_are_not() -> None:
    """A straggler: 1.87 against 1.71 req/s is no news beside 1.31 against 17.2 s."""
    summary = summary_of(
        policy=["static", "continuous", "other"],
        request_throughput_rps=[1.71, 1.87, 1.87],
        ttft_p99_s=[34.4, 2.62, 2.64],
        regime=[None] * 3,
        offered_rps=[None] * 3,
    )
    assert said(summary) == (
        "Continuous gives its first token after 1.31 s in the median, 13 times sooner than static and as soon as other. "
        "Continuous: 1.87 req/s, median TTFT 1.31 s, p99 TTFT 2.62 s, median TPOT 20 ms. "
        "Other: 1.87 req/s, median TTFT 1.32 s, p99 TTFT 2.64 s, median TPOT 20 ms. "
        "Static: 1.71 req/s, median TTFT 17.2 s, p99 TTFT 34.4 s, median TPOT 20 ms."
    )
    near = summary.assign(ttft_p50_s=[1.4, 1.3, 1.3], ttft_p99_s=[2.7, 2.6, 2.6])
    assert said(near).startswith("Continuous serves 1.87 req/s, as many as other and 1.1 times static. ")


def test_verdict_never_says_one_time_sooner() -> None:
    summary = summary_of(policy=["static", "continuous"], request_throughput_rps=[2.0, 2.01], ttft_p99_s=[0.41, 0.40])
    assert report.verdict(summary).headline == "Continuous and static serve the same 2.01 req/s."


def test_verdict_takes_each_policys_best_point_and_means_over_seeds() -> None:
    summary = summary_of(
        policy=["a", "a", "b", "b", "b", "b"],
        seed=[1, 2, 1, 2, 1, 2],
        request_throughput_rps=[5.0, 5.0, 1.0, 1.0, 9.0, 11.0],
        **{RATE: [1, 1, 1, 1, 2, 2]},
    )
    assert said(summary).startswith("B serves 10 req/s at rate_rps 2, 2 times a at rate_rps 1. ")
    summary["oom_failed"] = [3, 3, 5, 7, 0, 0]
    assert said(summary).endswith(
        " As memory runs out a loses requests at rate_rps 1 (3 of 100 there) and b loses requests at rate_rps 1 and below "
        "(6 of 100 there)."
    )


def test_verdict_is_about_the_highest_load_that_is_stable() -> None:
    """A full server answers most, too late: it is no point to run at, and its price none to pay."""
    rates = [1, 2, 4, 1, 2, 4]
    summary = summary_of(
        policy=["static"] * 3 + ["continuous"] * 3,
        offered_rps=rates,
        request_throughput_rps=[0.9, 0.95, 0.96, 1.0, 1.99, 2.5],
        regime=["overloaded"] * 3 + ["stable", "stable", "overloaded"],
        usd_per_mtok_output=[9.0, 8.0, 7.0, 3.0, 2.0, 1.0],
        **{RATE: rates},
    )
    assert said(summary) == (
        "Continuous serves 1.99 req/s at rate_rps 2, 2.2 times static at rate_rps 1 (overloaded). "
        "Continuous at rate_rps 2: 1.99 req/s, median TTFT 200 ms, p99 TTFT 400 ms, median TPOT 20 ms, "
        "$2 of the whole bill per million output tokens. "
        "Static at rate_rps 1 (overloaded): 0.900 req/s, median TTFT 200 ms, p99 TTFT 400 ms, median TPOT 20 ms, "
        "$9 of the whole bill per million output tokens."
    )
    assert said(summary.assign(regime="overloaded")).startswith("Continuous serves 1 req/s (overloaded) at rate_rps 1")
    seeds = pd.concat([summary, summary.assign(seed=2, regime="stable")], ignore_index=True)
    rows = per_policy(seeds)
    assert rows["regime"].tolist() == ["1 of 2 stable"] * 3 + ["stable", "stable", "1 of 2 stable"]
    assert judged(rows).rows[RATE].tolist() == [2, 1]
    assert report.comparison_rows(summary_like(seeds))[0]["queue"] == "1 of 2 stable"


def summary_like(summary: pd.DataFrame) -> pd.DataFrame:
    """With every column that the comparison shows."""
    return summary.assign(**{each.name: 0.0 for each in metrics.ranked() if each.name not in summary})


def test_regimes_of_several_seeds_are_counted() -> None:
    assert _regimes(pd.Series(["stable", "backlogged", "stable"])) == "2 of 3 stable"
    assert _regimes(pd.Series(["overloaded", "backlogged", "overloaded"])) == "2 of 3 overloaded"
    assert _regimes(pd.Series(["backlogged"] * 3)) == "backlogged"
    assert _regimes(pd.Series([None, None])) is None


def test_verdict_compares_points_at_which_nothing_is_lost_and_names_the_cliff() -> None:
    sizes = [32, 64, 128, 192]
    summary = summary_of(
        policy=["static"] * 4 + ["padded"] * 4 + ["continuous"],
        size=[*sizes, *sizes, None],
        request_throughput_rps=[1.3, 1.9, 2.64, 0.4, 0.955, 1.0, 1.67, 0.3, 5.76],
        oom_failed=[0, 0, 0, 94, 0, 3, 8, 94, 0],
        regime=[None] * 9,
        offered_rps=[None] * 9,
    )
    assert said(summary) == (
        "Continuous serves 5.76 req/s, 2.2 times static at size 128. "
        "Continuous: 5.76 req/s, median TTFT 200 ms, p99 TTFT 400 ms, median TPOT 20 ms. "
        "Static at size 128: 2.64 req/s, median TTFT 200 ms, p99 TTFT 400 ms, median TPOT 20 ms. "
        "Padded at size 32: 0.955 req/s, median TTFT 200 ms, p99 TTFT 400 ms, median TPOT 20 ms. "
        "As memory runs out static loses requests at size 192 and above (94 of 100 there) and padded loses requests at "
        "size 64 and above (3 of 100 there)."
    )
    rows = report.comparison_rows(summary_like(summary))
    assert [(row["policy"], row["size"]) for row in rows][-2:] == [("padded", "192"), ("continuous", words.BLANK)]
    room = summary_of(
        policy=["static"] * 3, blocks=[400, 120, 40], request_throughput_rps=[3.0, 2.0, 1.0], oom_failed=[0, 5, 9]
    )
    assert said(room).endswith("static loses requests at blocks 120 and below (5 of 100 there).")
    gap = room.assign(blocks=[40, 120, 400], oom_failed=[0, 5, 0])
    assert said(gap).endswith("static loses requests at blocks 120 first (5 of 100 there).")
    named = room.assign(blocks=["a", "b", "c"])
    assert said(named).endswith("static loses requests at blocks b (5 of 100 there).")


def test_verdict_with_targets() -> None:
    summary = summary_of(
        policy=["static", "continuous", "other"],
        request_throughput_rps=[3.0, 9.0, 8.9],
        goodput_rps=[0.0, 8.8, 4.4],
        regime=["overloaded", "stable", "stable"],
    )
    slo = {"ttft_s": 1.0, "tpot_s": 0.05, "e2e_s": None}
    assert said(summary, slo) == (
        "Continuous serves 8.80 req/s within the targets, 2 times other, while static serves none. "
        "Continuous: 8.80 req/s within the targets (9 with late answers), median TTFT 200 ms, p99 TTFT 400 ms, median TPOT "
        "20 ms. Other: 4.40 req/s within the targets (8.90 with late answers), median TTFT 200 ms, p99 TTFT 400 ms, median "
        "TPOT 20 ms. Static (overloaded): no req/s within the targets (3 with late answers), median TTFT 200 ms, p99 TTFT "
        "400 ms, median TPOT 20 ms. The targets are TTFT ≤ 1 s, TPOT ≤ 50 ms."
    )
    even = summary.assign(goodput_rps=[2.99, 8.9, 8.85])
    assert said(even).startswith("Continuous serves 8.90 req/s within the targets, as many as other and 3.0 times")
    assert "with late answers" not in said(even)
    assert said(summary.assign(goodput_rps=0.0), slo).startswith(
        "No policy meets the targets: continuous serves 9 req/s, as many as other and 3 times"
    )
    assert said(summary_of(policy=["static"], request_throughput_rps=[3.0])) == (
        "Static serves 3 req/s. Static: 3 req/s, median TTFT 200 ms, p99 TTFT 400 ms, median TPOT 20 ms."
    )
    none = summary.assign(goodput_rps=None, request_throughput_rps=[0.0, 9.0, 0.05])
    assert report.verdict(none).headline == "Continuous serves 9 req/s, while other and static serve almost none."


def test_where_is_the_point_of_the_headline() -> None:
    """A policy that serves next to nothing is called that; what it serves at most stands with its own point."""
    summary = summary_of(
        policy=["static"] * 2 + ["continuous"] * 2,
        request_throughput_rps=[2.38, 2.38, 7.8, 11.0],
        goodput_rps=[0.00195, 0.00368, 7.76, 0.1],
        regime=["overloaded", "overloaded", "stable", "overloaded"],
        **{RATE: [8, 20, 8, 20]},
    )
    told = said(summary)
    assert told.startswith(
        "Continuous serves 7.76 req/s within the targets at rate_rps 8, while static serves almost none. "
        "Continuous at rate_rps 8: 7.76 req/s within the targets (11 with late answers at rate_rps 20, overloaded), "
    )
    assert (
        "Static at rate_rps 20 (overloaded): 0.00368 req/s within the targets (2.38 with late answers at rate_rps 8, "
        "overloaded), " in told
    )
    never = summary.assign(goodput_rps=[0.0, 0.0, 7.76, 0.1])
    assert "at rate_rps 8, while static serves none." in said(never)


def test_every_figure_of_another_point_says_which() -> None:
    summary = summary_of(
        policy=["a", "b"] * 2,
        request_throughput_rps=[2.0, 1.0, 2.5, 2.0],
        offered_rps=[2.0, 2.0, 4.0, 4.0],
        regime=["stable", "overloaded", "overloaded", "stable"],
        **{RATE: [2, 2, 4, 4]},
    )
    assert said(summary).startswith("A at rate_rps 2 and b at rate_rps 4 serve the same 2 req/s. ")
    sooner = summary.assign(ttft_p50_s=[0.2, 9.0, 9.0, 0.205], ttft_p99_s=[0.4, 9.0, 9.0, 4.0])
    assert "at p99 at rate_rps 2, 10 times sooner than b at rate_rps 4." in said(sooner)
    third = summary_of(
        policy=["a", "b", "c"],
        request_throughput_rps=[9.0, 8.95, 1.0],
        regime=["stable", "overloaded", "stable"],
        **{RATE: [2, 4, None]},
    )
    assert said(third).startswith(
        "A serves 9 req/s at rate_rps 2, as many as b at rate_rps 4 (overloaded) and 9 times c. "
    )
    only = summary_of(policy=["a", "b"], size=[None, 128], request_throughput_rps=[9.0, 3.0], regime=[None] * 2)
    assert said(only).startswith("A serves 9 req/s, 3 times b at size 128. ")


BURSTY = "workload.arrivals.burstiness"


def bursty(**columns: Any) -> pd.DataFrame:
    """The same load at four burstinesses; rates differ by chance, and most is served where it is burstiest."""
    return summary_of(
        **{
            "policy": ["continuous"] * 4, BURSTY: [math.inf, 1, 0.25, 0.1], "offered_rps": [6.0, 6.05, 6.4, 7.2],
            "request_throughput_rps": [5.9, 5.95, 6.3, 6.94], "goodput_rps": [5.9, 5.94, 6.25, 6.2],
            "slo_attainment": [1.0, 0.999, 0.992, 0.894], "ttft_p99_s": [0.188, 0.356, 0.698, 1.43],
            "itl_p99_s": [0.139, 0.156, 0.205, 0.341], **columns,
        }
    )  # fmt: skip


def test_verdict_of_a_sweep_over_something_else_than_load_is_about_latency() -> None:
    slo = {"ttft_s": 1.0, "tpot_s": 0.05}
    same = bursty(offered_rps=[6.0, 6.01, 5.99, 6.02], request_throughput_rps=[5.9, 5.88, 5.87, 5.86])
    assert said(same, slo) == (
        "At the same 6.00 req/s sent, continuous answers 100 % within the targets at burstiness inf and 89.4 % at "
        "burstiness 0.1. Continuous answers 100 % within the targets at burstiness inf (p99 TTFT 188 ms, p99 ITL 139 ms) "
        "and 89.4 % at burstiness 0.1 (p99 TTFT 1.43 s, p99 ITL 341 ms). The targets are TTFT ≤ 1 s, TPOT ≤ 50 ms."
    )
    assert said(bursty(), slo).startswith(
        "At about the same load, continuous answers 100 % within the targets at burstiness inf and 89.4 % at burstiness "
        "0.1. The points are sent 6 to 7.20 req/s. "
    )
    assert "serves most" not in said(bursty())
    assert judged(per_policy(bursty())).rows[BURSTY].tolist() == [math.inf]
    bare = same.assign(goodput_rps=None, slo_attainment=None)
    assert said(bare) == (
        "At the same 6.00 req/s sent, continuous has its p99 TTFT at 188 ms at burstiness inf and at 1.43 s at burstiness "
        "0.1. Continuous has its p99 TTFT at 188 ms at burstiness inf (p99 ITL 139 ms) and at 1.43 s at burstiness 0.1 "
        "(p99 ITL 341 ms)."
    )
    assert said(same.assign(goodput_rps=0.0, slo_attainment=0.0), slo).startswith(
        "No policy meets the targets: at the same 6.00 req/s sent, continuous has its p99 TTFT"
    )
    dead = {"completed": 0, "ttft_p99_s": math.nan, "goodput_rps": 0.0, "slo_attainment": 0.0, "rejected": 100}
    beside = pd.concat([same, same.assign(policy="static", itl_p99_s=math.nan, **dead)], ignore_index=True)
    assert said(beside).endswith(" Static answers none at burstiness inf and much the same at the other points.")
    alike = bare.assign(ttft_p99_s=[0.188, 0.19, 0.189, 0.192])
    assert said(alike).endswith("at burstiness inf (p99 ITL 139 ms) and much the same at the other points.")


def test_so_is_that_of_a_batch_limit_at_one_load() -> None:
    summary = summary_of(
        policy=["static", "static", "continuous"],
        offered_rps=[10.0] * 3,
        request_throughput_rps=[4.7, 8.9, 9.9],
        goodput_rps=[0.5, 5.0, 9.9],
        slo_attainment=[0.05, 0.5, 1.0],
        usd_per_mtok_output=[2.0, 1.0, 0.9],
        regime=["overloaded", "stable", "stable"],
        ttft_p99_s=[60.0, 2.0, 0.4],
        **{"policies[*].batch_size": [16, 64, None]},
    )
    assert said(summary) == (
        "At the same 10 req/s sent, continuous answers 100 % within the targets. "
        "Continuous answers 100 % within the targets (p99 TTFT 400 ms). Static answers 50 % at "
        "batch_size 64 (p99 TTFT 2 s, serving 8.90 req/s, $1 of the whole bill per million output tokens) and 5 % at batch_size 16 (p99 TTFT "
        "60 s, serving 4.70 req/s, $2 of the whole bill per million output tokens, overloaded)."
    )


@pytest.mark.parametrize(
    ("columns", "basis"),
    [
        ({}, "alike"),
        ({"requested_rps": [6.0, 6.0, 7.0, 7.0]}, "targets"),  # the arrivals as a whole are swept
        ({"workload.arrivals.users": [1, 2, 3, 4]}, "targets"),
        ({"workload.trace.rate_scale": [1, 2, 3, 4]}, "targets"),
        ({"workload.arrivals.rate_rps": [6.0] * 4}, "alike"),  # one rate is no axis
        ({"regime": [None] * 4}, "targets"),  # all at once: there is no load to hold
    ],
)
def test_what_an_axis_of_load_is(columns: dict[str, Any], basis: str) -> None:
    assert (
        judged(
            per_policy(bursty()).assign(**columns) if "regime" not in columns else per_policy(bursty(**columns))
        ).basis
        == basis
    )


def test_verdict_of_a_burst_says_the_least_too() -> None:
    """What is served at 1,000 tokens is no property of the policy alone."""
    summary = summary_of(
        policy=["continuous"] * 3,
        tokens=[1000, 8000, 32000],
        request_throughput_rps=[32.2, 3.99, 0.783],
        regime=[None] * 3,
    )
    assert said(summary).startswith("Continuous serves 32.2 req/s at tokens 1000 and 0.783 at tokens 32000. ")


def test_price_of_the_verdict_is_the_price_of_the_figure() -> None:
    rates = [1, 2, 4]
    summary = summary_of(
        policy=["static"] * 3 + ["continuous"] * 3,
        request_throughput_rps=[0.9, 0.95, 0.96, 1.0, 1.99, 2.5],
        goodput_rps=[0.5, 0.1, 0.0, 1.0, 1.9, 0.3],
        usd_per_mtok_output=[9.0, 8.0, 7.0, 3.0, 2.0, 1.0],
        busy_fraction=[1.0] * 6,
        **{RATE: rates * 2},
    )
    results = toy.ToyResults({"name": "toy"}, summary, summary, summary, summary, [], None, None)
    best, tiles = _tiles(results)
    assert best == "continuous, rate_rps 2"
    assert ("$2", "of the whole bill per million output tokens") in tiles
    assert "at rate_rps 2, 3.8 times static at rate_rps 1." in str(report.verdict(summary))
    assert "$2 of the whole bill per million output tokens" in str(report.verdict(summary))


def test_the_error_of_the_step_times_is_one_line() -> None:
    operators = [
        {"operator": "GEMM", "along": "m", "median": 0.0354, "p95": 0.1737, "signed_mean": 0.004},
        {"operator": "decode attention", "along": "rows", "median": 0.0289, "p95": 0.1953, "signed_mean": 0.005},
    ]
    whole = [
        {"operator": "whole step", "along": "all", "median": 0.0389, "p95": 0.09701, "signed_mean": -0.00078},
        {"operator": "whole step", "along": "mixed", "median": 0.03968, "p95": 0.07861, "signed_mean": 0.009275},
        {"operator": "whole step", "along": "decode", "median": 0.03968, "p95": 0.07861, "signed_mean": 0.009275},
        {"operator": "whole step", "along": "prefill", "median": 0.03968, "p95": 0.07861, "signed_mean": 0.009275},
    ]
    sums = [
        {"part": "random", "regime": "all", "rows_each": 16, "median": 0.008, "p95": 0.0161, "signed_mean": -0.0012}
    ]
    assert step_error({"held_out": operators}, calibrated=True) == (
        "Step times: put together of operators measured one by one; left-out points of their tables are met to 2.89 % to "
        "3.54 % in the median, 20 % at p95; recorded tokens took 0.88 to 1.14 times as long."
    )
    assert step_error({"held_out": whole}, calibrated=True) == (
        "Step times: held-out steps are met to 3.89 % in the median, 9.70 % at p95; mixed steps +0.93 % in the mean."
    )
    assert step_error({"held_out": sums}, calibrated=True) == (
        "Step times: held-out sums of 16 steps are met to 0.80 % in the median, 1.61 % at p95; -0.12 % in the mean."
    )
    assert step_error(None, calibrated=True) == "Step times: calibrated, but no error is stated."
    assert "uncalibrated" in step_error(None, calibrated=False)


def test_comparison_leaves_out_what_nothing_fills(chat: toy.ToyResults) -> None:
    rows = report.comparison_rows(chat.summary)
    assert len(rows) == 6
    assert list(rows[0])[:4] == ["policy", "rate_rps", "done", "req/s"]
    assert rows[0]["rate_rps"] == "3"
    assert "whole bill $/M output" in rows[0]
    bare = chat.summary.assign(usd_per_mtok_output=None, goodput_rps=None)
    assert {"whole bill $/M output", "good req/s"}.isdisjoint(report.comparison_rows(bare)[0])
    both = chat.summary.assign(regime=["stable", "overloaded"] * 6)
    assert {row["queue"] for row in report.comparison_rows(both)} == {"1 of 2 stable"}
    swept = chat.summary.assign(**{"workload.arrivals.rate_rps": [0.5, None] * 6})
    assert {row["rate_rps"] for row in report.comparison_rows(swept)} == {"0.5", words.BLANK}


# ---- figures -----------------------------------------------------------------------------------------------------


def charts_of(results: Any) -> dict[str, Chart]:
    return {chart.name: chart for each in chart_sections(results) for chart in each.charts}


def points_of(chart: Chart) -> int:
    """Places that one panel's lines and marks have."""
    panel = chart.panels[0]
    assert isinstance(panel, Panel)
    series = sum(len(line) for each in panel.series for line in each.lines)
    return series + sum(len(curve.x) for curve in panel.curves) + sum(len(area.x) for area in panel.areas)


def text_boxes(node: ElementTree.Element, x: float, y: float, scale: float, size: float) -> Iterator[Any]:
    """Texts of an SVG with the boxes that they take about: left, top, right, bottom."""
    for child in node:
        tag, at, inner = child.tag.split("}")[1], (x, y), scale
        if moved := re.match(r"translate\((\S+) (\S+)\)", child.get("transform", "")):
            at = (x + scale * float(moved[1]), y + scale * float(moved[2]))
        if tag == "svg":
            at, inner = (x + float(child.get("x", 0)), y + float(child.get("y", 0))), float(child.get("width", 0)) / 520
        if tag == "text" and (child.text or "").strip():
            words = child.text or ""
            high = 16.0 if child.get("class") == "title" else size if inner != 1 or scale != 1 else 12.0
            wide, classes = 0.6 * high * len(words), (child.get("class") or "").split()
            left = at[0] + inner * float(child.get("x", 0)) - wide * ("end" in classes) - wide / 2 * ("mid" in classes)
            base = at[1] + inner * float(child.get("y", 0))
            yield words, (left, base - 0.75 * high, left + wide, base)
        yield from text_boxes(child, *at, inner, size)


def texts_overlap(chart: Chart) -> list[tuple[str, str]]:
    """Pairs of texts of a figure file that touch, or leave it."""
    root = ElementTree.fromstring(figures._standalone(chart))
    width, height = (float(root.get(side, 0)) for side in ("width", "height"))
    boxes = list(text_boxes(root, 0.0, 0.0, 1.0, 12.0))
    outside = [(words, "edge") for words, b in boxes if b[0] < 0 or b[1] < 0 or b[2] > width or b[3] > height]
    return outside + [
        (one, other)
        for place, (one, a) in enumerate(boxes)
        for other, b in boxes[place + 1 :]
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]


def test_no_text_of_a_figure_overlaps_or_is_cut(burst: toy.ToyResults, chat: toy.ToyResults) -> None:
    for results in (burst, chat):
        made = charts_of(results)
        assert {name: texts_overlap(chart) for name, chart in made.items()} == {name: [] for name in made}
        assert all(chart.caption.endswith(".") and "\n" not in chart.caption for chart in made.values())
        assert all(re.search(r"\d", chart.caption) for chart in made.values())


def test_a_figure_file_is_one_document_that_needs_nothing(burst: toy.ToyResults) -> None:
    for chart in charts_of(burst).values():
        svg = figures._standalone(chart)
        ElementTree.fromstring(svg)
        assert "var(" not in svg
        assert not re.search(r"href|url\(|<script|@import", svg)
        assert chart.title in svg
        assert all(escape(key.name) in svg for key in chart.legend)
        assert figures.encoded(chart, "png").startswith(b"\x89PNG")


def test_a_png_needs_resvg_and_a_font(burst: toy.ToyResults, monkeypatch: pytest.MonkeyPatch) -> None:
    chart = charts_of(burst)["tokens"]
    monkeypatch.setattr(figures, "_has_fonts", lambda: False)
    with pytest.raises(InputError, match=r"png: resvg finds no font on this machine: install one .* or use svg"):
        figures.encoded(chart, "png")
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(InputError, match=r"png: needs resvg: pip install 'servecast\[figures\]'; svg needs"):
        figures.encoded(chart, "png")


def test_a_small_run_has_a_gantt_chart(burst: toy.ToyResults) -> None:
    assert len(charts_of(burst)["slots"].panels) == 3
    bars = _held_slots(view(burst), "padded")
    first = [bar for bar in bars if bar["start"] == bars[0]["start"]]
    straggler = max(first, key=lambda bar: bar["finish"])
    assert straggler["id"] == 4
    assert {bar["until"] for bar in first} == {straggler["finish"]}
    assert {bar["longest"] for bar in first} == {2000}
    continuous = _held_slots(view(burst), "continuous")
    assert all(bar["until"] == bar["finish"] and bar["longest"] == bar["prompt"] for bar in continuous)
    assert all(bar["lane"] == bar["slot"] for bar in continuous)


def test_crashed_unfinished_and_preempted_requests_have_bars() -> None:
    load = ([0.0] * 6, [100] * 6, [400] * 6)
    crashed = toy.batched("padded", *load, batch_size=6, capacity=100)
    preempted = toy.continuous(*load, capacity=100)
    cut = toy.continuous(*load, capacity=1000)
    cut.requests["status"][:] = toy.UNFINISHED
    cut.requests["finish_s"][:] = np.nan
    results = toy.toy_results([({"seed": 1}, {"padded": crashed, "continuous": preempted, "cut": cut})])
    shown = view(results)
    assert [bar["crashed"] for bar in _held_slots(shown, "padded")] == [True] * 6
    assert {bar["finish"] for bar in _held_slots(shown, "padded")} == {crashed.oom[0].time_s}
    assert [bar["finish"] for bar in _held_slots(shown, "cut")] == pytest.approx([cut.end_s] * 6)
    bars = _held_slots(shown, "continuous")
    for one in bars:
        for other in bars:
            if one is not other and one["lane"] == other["lane"]:
                assert one["until"] <= other["start"] + 1e-9 or other["until"] <= one["start"] + 1e-9
    made = charts_of(results)
    assert texts_overlap(made["slots"]) == []
    assert "runs out of it once" in made["timeline"].caption
    assert "instead of crashing" in made["timeline"].caption


def test_answers_at_the_batch_end_are_compared_by_their_last_token() -> None:
    run = toy.batched("static", *BURST, batch_size=6)
    run.respond = "batch_end"
    run.requests["first_token_s"] = run.requests["finish_s"].copy()
    made = charts_of(toy.toy_results([({"seed": 1}, {"static": run})]))
    assert made["throughput-latency"].panels[1].y.label == "p99 time to the last token [s]"  # type: ignore[union-attr]
    assert len(made["latency-cdf"].panels) == 2


def test_figures_show_the_highest_load_that_some_policy_keeps_up_with(chat: toy.ToyResults) -> None:
    key = "workload.arrivals.rate_rps"
    summary = chat.summary.copy()
    summary["regime"] = np.where(summary[key] == 3, "stable", "overloaded")

    def at(**columns: Any) -> Any:
        results = toy.ToyResults(**{**chat.__dict__, "summary": summary.assign(**columns)})
        return view(results).summary[key].unique().tolist()

    good = {"goodput_rps": np.where(summary[key] == 3, 2.9, 1.0)}
    assert at(**good) == [3]
    assert at(goodput_rps=None) == [3]
    assert at(goodput_rps=None, regime="stable") == [12]
    assert at(goodput_rps=None, regime="overloaded") == [3]
    assert at(**good, regime=None, offered_rps=None, oom_failed=0) == [3]
    assert at(goodput_rps=None, regime=None, offered_rps=None, oom_failed=0) == [12]
    chosen = view(chat)
    assert chosen.summary["seed"].unique().tolist() == [1]
    assert len(chosen.requests) == 3 * 120


def test_a_policy_without_one_of_two_swept_keys_has_its_line(chat: toy.ToyResults) -> None:
    names = ("summary", "requests", "decisions", "oom")
    sized = {
        name: (table := getattr(chat, name)).assign(size=np.where(table["policy"] == "static", 8.0, math.nan))[
            [
                "policy",
                "workload.arrivals.rate_rps",
                "size",
                *table.columns.drop(["policy", "workload.arrivals.rate_rps"]),
            ]
        ]
        for name in names
    }
    made = charts_of(toy.ToyResults(**{**chat.__dict__, **sized}))
    assert points_of(made["throughput-latency"]) == points_of(charts_of(chat)["throughput-latency"]) == 6


def test_a_missing_swept_value_is_a_point_too(burst: toy.ToyResults) -> None:
    tables_ = {
        name: pd.concat(
            [frame.assign(**{"engine.kv_blocks": value}) for value in (math.nan, 100.0)], ignore_index=True
        )[["policy", "engine.kv_blocks", *frame.columns.drop("policy")]]
        for name, frame in (("summary", burst.summary), ("requests", burst.requests), ("decisions", burst.decisions))
    }
    tables_["oom"] = burst.oom.assign(**{"engine.kv_blocks": math.nan})
    shown = view(toy.ToyResults(**{**burst.__dict__, **tables_}))
    assert shown.summary["engine.kv_blocks"].isna().all()
    assert len(shown.requests) == len(burst.requests)


def test_a_burst_shows_where_memory_runs_out_first() -> None:
    load = ([0.0] * 8, [100] * 8, [20] * 7 + [400])
    points = []
    for capacity in (400, 120, 40):
        runs = {"padded": toy.batched("padded", *load, batch_size=4, capacity=capacity)}
        points.append(({"blocks": capacity, "seed": 1}, runs))
    results = toy.toy_results(points)
    shown = view(results)
    assert (shown.where, shown.reason) == ("blocks = 120", "the first point at which memory runs out")
    assert 0 < shown.summary["oom_failed"].iloc[0] < 8
    dead = toy.batched("padded", [0.0] * 4, [1000] * 4, [5] * 4, batch_size=4, capacity=100)
    both = toy.toy_results([({"seed": 1}, {"padded": dead, "continuous": toy.continuous(*load)})])
    made = charts_of(both)
    assert len(made["timeline"].panels) == 4
    assert "padded" in made["timeline"].caption


def test_a_policy_that_a_swept_key_is_not_about_stands_at_every_point(burst: toy.ToyResults) -> None:
    def spread(table: pd.DataFrame) -> pd.DataFrame:
        closed, other = table[table["policy"] != "continuous"], table[table["policy"] == "continuous"]
        parts = [closed.assign(size=32.0), closed.assign(size=256.0), other.assign(size=math.nan)]
        return pd.concat(parts, ignore_index=True)[["policy", "size", *table.columns.drop("policy")]]

    names = ("summary", "requests", "decisions", "oom")
    shown = view(toy.ToyResults(**{**burst.__dict__, **{name: spread(getattr(burst, name)) for name in names}}))
    assert shown.where == "size = 32"
    assert shown.reason.startswith("the point at which")
    assert shown.summary["policy"].tolist() == ["static", "padded", "continuous"]
    assert len(shown.requests) == len(burst.requests)


def test_scl_05_long_runs_are_thinned_without_losing_peaks_or_areas() -> None:
    rng = np.random.default_rng(1)
    count = 200_000
    lasts = rng.uniform(0.01, 0.03, count)
    starts = np.cumsum(lasts) - lasts + np.where(np.arange(count) > count // 2, 300.0, 0.0)
    values = rng.integers(1, 100, count).astype(float)
    values[77_777] = 500
    decisions = pd.DataFrame({"start_s": starts, "seconds": lasts})
    times, peaks = buckets(decisions, values, "max", 300)
    assert len(times) < 1000
    assert peaks.max() == 500
    assert (peaks == 0).any()  # the idle five minutes
    times, means = buckets(decisions, values, "mean", 110)
    assert (means[:-1] * np.diff(times)).sum() == pytest.approx((values * lasts).sum())


def test_short_runs_are_drawn_exactly_with_their_idle_time() -> None:
    decisions = pd.DataFrame({"start_s": [0.0, 1.0, 5.0], "seconds": [1.0, 2.0, 1.0]})
    times, heights = buckets(decisions, [3, 4, 5], "mean", 110)
    assert times.tolist() == [0, 1, 3, 5, 6]
    assert heights.tolist() == [3, 4, 0, 5, 0]


def test_a_long_stay_fills_every_bucket_it_spans() -> None:
    starts = np.append(np.arange(1000) * 0.01, 10.0)
    lasts = np.append(np.full(1000, 0.01), 50.0)
    values = np.append(np.ones(1000), 7.0)
    times, peaks = buckets(pd.DataFrame({"start_s": starts, "seconds": lasts}), values, "max", 300)
    assert (peaks[:-1][times[:-1] > 10.1] == 7).all()


def test_policies_keep_their_colours() -> None:
    names = ("static", "padded", "continuous", "continuous max_num_seqs=64", "mine")
    taken = places(names)
    assert taken["continuous"] == places(("continuous",))["continuous"]
    assert len(set(taken.values())) == 5
    assert places(("mine", "continuous"), {"mine": "static"}) == {
        "mine": taken["static"],
        "continuous": taken["continuous"],
    }
    assert [places((kind,))[kind] for kind in POLICIES] == list(range(len(POLICIES)))


def test_importing_the_report_draws_nothing() -> None:
    program = "import sys, servecast.report; print([m for m in ('resvg_py', 'pandas', 'jinja2') if m in sys.modules])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_slo_of_the_metrics_is_that_of_the_words() -> None:
    assert targets({"e2e_s": 30}) == "E2E ≤ 30 s"
    assert not metrics.Slo()
