"""A run written as other tools' files: vLLM's result, an llm-d report, a Chrome trace."""

import json
import math
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml
from serving import StepTime, of_size, serve

from servecast.batch import OutOfMemory
from servecast.errors import InputError
from servecast.files import dumps, write
from servecast.metrics import Slo
from servecast.policies import POLICIES
from servecast.report.charts.files import _standalone, encoded
from servecast.report.exports import ENDINGS, write_exports
from servecast.report.exports.llmd import _llmd_report, write_llmd
from servecast.report.exports.perfetto import write_perfetto
from servecast.report.exports.tokens import _iteration_ends, token_gaps_by_request
from servecast.report.exports.vllm_json import Answers, _vllm_metrics, vllm_result, write_vllm
from servecast.report.trace_chart import trace_chart
from servecast.requests import Status
from servecast.workload.clients import RequestColumns
from servecast.workload.prefixes import PrefixIds
from servecast.workload.traces.trace_file import TraceFile

SHARED = Path(os.environ.get("SERVECAST_SHARED", Path(__file__).parents[1] / ".." / "shared"))
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"sample files are not there: {SHARED}")
CONTINUOUS, STATIC, PADDED = (POLICIES[kind] for kind in ("continuous", "static", "padded"))
COST = StepTime(fixed=0.01, per_token=1e-5, per_context=1e-7)
REQUESTS = [(at * 0.05, 20 + 7 * (at % 9), 1 + (at * 5) % 23) for at in range(40)]


def refuse_constants(name):
    raise AssertionError(f"{name} is no JSON")


def strict(text):
    return json.loads(text, parse_constant=refuse_constants)


def run_of(policy=None, requests=REQUESTS, **options):
    return serve(requests, policy or CONTINUOUS(), cost=COST, **options)


def preempting():
    run = run_of(requests=[(at * 0.01, 30, 60) for at in range(12)], cap=24, max_model_len=200)
    assert run.requests["preemptions"].sum() > 0
    return run


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [of_size(kind, 4, 0.1) for kind in POLICIES], ids=list(POLICIES))
def test_token_times_are_those_of_a_stepped_run(policy):
    """In a stepped run every iteration is a decision, so its gaps can be read off the table of decisions."""
    run, stepped = run_of(policy), run_of(policy, stepped=True)
    decoding = stepped.decisions["decode_rows"] > 0
    ends = (stepped.decisions["start_s"] + stepped.decisions["seconds"])[decoding]
    np.testing.assert_allclose(_iteration_ends(run.decisions), ends, atol=1e-9)
    for row, gaps in enumerate(token_gaps_by_request(run)):
        first, finish = run.requests["first_token_s"][row], run.requests["finish_s"][row]
        assert len(gaps) == run.requests["generated_tokens"][row] - 1
        assert gaps.sum() == pytest.approx(finish - first, abs=1e-9)
        inside = ends[(ends > first + 1e-9) & (ends < finish + 1e-9)]
        np.testing.assert_allclose(gaps, np.diff(inside, prepend=first), atol=1e-9)


def test_a_preempted_request_has_its_long_gap():
    run = preempting()
    for row, gaps in enumerate(token_gaps_by_request(run)):
        assert len(gaps) == run.requests["generated_tokens"][row] - 1
        assert gaps.sum() == pytest.approx(run.requests["finish_s"][row] - run.requests["first_token_s"][row])
        if run.requests["preemptions"][row] == 1:
            own = run.gaps["seconds"][run.gaps["request"] == run.requests["id"][row]]
            assert len(own) and all(np.isclose(gaps, gap, atol=1e-9).any() for gap in own)


def test_answers_in_one_piece_have_no_gaps():
    run = run_of(STATIC(batch_size=4, max_wait_s=0.1, respond="batch_end"))
    assert all(len(gaps) == 0 for gaps in token_gaps_by_request(run))
    result = vllm_result(run, model_id="m")
    assert result["mean_tpot_ms"] is None
    assert result["mean_itl_ms"] is None
    assert result["mean_ttft_ms"] == pytest.approx(result["mean_e2el_ms"])


# --- vLLM -------------------------------------------------------------------------------------------------------------

KEYS = [
    "date",
    "endpoint_type",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "start_times",
    "generated_texts",
    "errors",
    "latencies",
    "queue_times",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    "rtfx",
]


@needs_shared
def test_vllms_metrics_are_recomputed_from_its_own_lists():
    sample = json.loads((SHARED / "samples/vllm_bench_serve_detailed.json").read_text(encoding="utf-8"))
    expected = json.loads((SHARED / "samples/EXPECTED_vllm_metrics.json").read_text(encoding="utf-8"))
    names = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "errors")
    got = _vllm_metrics(
        Answers(*(sample[name] for name in names)),
        sample["duration"],
        slo_ms={name: float(value) for name, value in expected["slo_ms"].items()},
    )
    metrics = expected["metrics"]
    given = {"num_prompts", "request_rate", "burstiness", "max_concurrency"}
    assert got == {name: pytest.approx(metrics[name], rel=1e-12) for name in metrics if name not in given}


def test_vllms_metrics_by_hand():
    answers = Answers(
        [10, 20, 30, 5], [3, 1, 0, 2], [0.1, 0.3, 0.0, 0.2], [[0.01, 0.03], [], [], [0.9]], [0.14, 0.3, 0.0, 1.1],
        [100.0, 100.5, 100.6, 100.9], ["", "", "no", ""],
    )  # fmt: skip
    got = _vllm_metrics(answers, 2.0, slo_ms={"ttft": 250.0, "tpot": 901.0}, percentiles=(99.9,))
    assert (got["completed"], got["failed"], got["total_input_tokens"], got["total_output_tokens"]) == (3, 1, 35, 6)
    assert got["request_goodput"] == 2 / 2.0
    assert got["mean_ttft_ms"] == pytest.approx(200)
    assert got["mean_tpot_ms"] == pytest.approx((20 + 900) / 2)
    assert got["std_tpot_ms"] == pytest.approx(440)
    assert got["mean_itl_ms"] == pytest.approx((10 + 30 + 900) / 3)
    assert got["max_output_tokens_per_s"] == 4  # 0.1, 0.11, 0.14, 0.8 s; 1.1 and 2.0 s come later
    assert got["max_concurrent_requests"] == 3
    assert "p99.9_ttft_ms" in got
    assert _vllm_metrics(answers, 2.0)["request_goodput"] is None


def test_a_vllm_result_has_vllms_keys_and_reads_back_as_a_measured_run(tmp_path):
    run = run_of()
    path = tmp_path / "result.json"
    options = {
        "model_id": "m",
        "request_rate": 20.0,
        "slo_ms": {"ttft": 100.0},
        "metadata": {"tensor_parallel_size": 1},
    }
    write_vllm(run, path, **options)
    result = strict(path.read_text(encoding="utf-8"))
    assert set(KEYS) <= set(result)
    assert result["tensor_parallel_size"] == 1
    assert result["num_prompts"] == result["completed"] == 40
    for name in ("mean", "median", "std", "p99"):
        assert all(f"{name}_{metric}_ms" in result for metric in ("ttft", "tpot", "itl", "e2el"))
    again = _vllm_metrics(
        Answers(
            *(
                result[name]
                for name in ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "errors")
            )
        ),
        result["duration"],
        slo_ms=options["slo_ms"],
    )
    assert again == {name: pytest.approx(result[name]) for name in again}
    read = TraceFile(str(path)).read()
    assert read.report.format == "vllm"
    np.testing.assert_allclose(read.columns.arrival_s, run.requests["sent_s"] - run.requests["sent_s"][0])
    assert read.columns.output_tokens.tolist() == run.requests["generated_tokens"].tolist()
    np.testing.assert_allclose(read.recorded.e2e_s, run.requests["finish_s"] - run.requests["sent_s"])
    np.testing.assert_allclose(
        read.recorded.ttft_s + [math.fsum(gaps) for gaps in read.recorded.itl_s], read.recorded.e2e_s, atol=1e-9
    )
    write_vllm(run_of(), tmp_path / "again.json", **options)
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def failing():
    """One rejected, the rest lost in a crash or unfinished."""
    run = run_of(requests=[(0.0, 5000, 5), (0.0, 30, 500), (0.1, 30, 3)], cap=100, horizon_s=0.5)
    return replace(run, oom=[OutOfMemory(0.2, 2, 1e9, 1e8)])


def test_out_01_nothing_completed_is_null_in_strict_json(tmp_path):
    run = failing()
    requests = {name: column[:2] for name, column in run.requests.items()}
    run = replace(run, requests=requests)
    write_vllm(run, tmp_path / "r.json", model_id="m")
    result = strict((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (result["completed"], result["failed"]) == (0, 2)
    assert result["mean_ttft_ms"] is None
    assert result["max_concurrent_requests"] is None
    assert result["request_rate"] == "inf"
    assert [error.split(":")[0] for error in result["errors"]] == ["rejected", "unfinished"]
    assert result["ttfts"] == result["latencies"] == [0, 0]
    write_llmd(run, tmp_path / "r.yaml", model="m", device="d")
    report = yaml.safe_load((tmp_path / "r.yaml").read_text(encoding="utf-8"))
    assert report["results"]["request_performance"]["aggregate"]["latency"]["request_latency"]["mean"] is None
    strict(dumps(report))


def test_out_03_paths_and_numpy_numbers_become_plain(tmp_path):
    value = {
        "path": Path("a/b"), 1: np.int64(7), "array": np.array([1.5, math.nan]), "tuple": (np.float32(2), math.inf, None),
        "flag": np.bool_(True),
    }  # fmt: skip
    assert strict(dumps(value)) == {
        "path": "a/b",
        "1": 7,
        "array": [1.5, None],
        "tuple": [2.0, None, None],
        "flag": True,
    }
    with pytest.raises(InputError, match="cannot be written"):
        write_vllm(run_of(), tmp_path / "no" / "r.json", model_id="m")
    write(tmp_path / "b", b"ab")
    assert (tmp_path / "b").read_bytes() == b"ab"
    with pytest.raises(InputError, match="cannot be written"):
        write(tmp_path / "no" / "b", b"")


# --- llm-d ------------------------------------------------------------------------------------------------------------


def shape(value, depth=6):
    if isinstance(value, dict) and depth:
        return {key: shape(inner, depth - 1) for key, inner in value.items()}
    return None


def assert_within(ours, theirs, place=""):
    """Every key of ours that the example has a mapping for is a key of the example's."""
    for key, inner in ours.items():
        assert key in theirs, f"{place}.{key} is not in the example"
        if isinstance(inner, dict) and isinstance(theirs[key], dict) and key not in ("native", "config"):
            assert_within(inner, theirs[key], f"{place}.{key}")


@needs_shared
def test_an_llmd_report_has_the_structure_of_the_example():
    example = yaml.safe_load((SHARED / "samples/llmd_benchmark_report_v0_2_example.yaml").read_text(encoding="utf-8"))
    report = _llmd_report(run_of(), model="m", device="H100", tensor_parallel=2, rate_rps=20.0, concurrency=8)
    assert report["version"] == example["version"]
    assert_within(report["run"], example["run"])
    ours, theirs = report["scenario"], example["scenario"]
    assert_within(ours["stack"][0], theirs["stack"][0])
    loads = theirs["load"] | {"standardized": theirs["load"]["standardized"]}
    for name in ("input_seq_len", "output_seq_len"):
        loads["standardized"][name] |= {"std_dev": 0, "min": 0, "max": 0}
    assert_within(ours["load"], loads)
    ours, theirs = (one["results"]["request_performance"]["aggregate"] for one in (report, example))
    for part in ("requests", "throughput", "latency"):
        for name, figures in ours[part].items():
            assert name in theirs[part]
            if isinstance(figures, dict):
                assert figures["units"] == theirs[part][name]["units"]
                assert set(figures) - {"stddev"} <= set(theirs["latency"]["time_to_first_token"])
    assert set(ours["latency"]) == set(theirs["latency"])
    components = [one["results"]["observability"]["components"][0]["aggregate"] for one in (report, example)]
    assert set(components[0]) <= set(components[1])
    assert all(components[0][name]["units"] == components[1][name]["units"] for name in components[0])


def test_an_llmd_report_says_what_the_run_says(tmp_path):
    run = run_of()
    write_llmd(run, tmp_path / "r.yaml", model="m", device="H100", native={"engine": {"block_size": np.int64(16)}})
    report = yaml.safe_load((tmp_path / "r.yaml").read_text(encoding="utf-8"))
    aggregate = report["results"]["request_performance"]["aggregate"]
    requests = run.requests
    ttft = requests["first_token_s"] - requests["sent_s"]
    e2e = requests["finish_s"] - requests["sent_s"]
    figures = aggregate["latency"]["time_to_first_token"]
    assert figures["mean"] == pytest.approx(ttft.mean())
    assert figures["p99p9"] == pytest.approx(np.percentile(ttft, 99.9))
    assert figures["stddev"] == pytest.approx(ttft.std())
    assert (figures["min"], figures["max"]) == (pytest.approx(ttft.min()), pytest.approx(ttft.max()))
    several = requests["generated_tokens"] > 1
    tpot = ((e2e - ttft)[several] / (requests["generated_tokens"][several] - 1)).mean()
    assert aggregate["latency"]["time_per_output_token"]["mean"] == pytest.approx(tpot)
    normalised = (e2e / requests["generated_tokens"]).mean()
    assert aggregate["latency"]["normalized_time_per_output_token"]["mean"] == pytest.approx(normalised)
    gaps = np.concatenate(list(token_gaps_by_request(run)))
    itl = aggregate["latency"]["inter_token_latency"]
    assert itl["mean"] == pytest.approx(gaps.mean())
    assert itl["stddev"] == pytest.approx(gaps.std(), rel=0.02)
    assert itl["p99"] == pytest.approx(np.percentile(gaps, 99), rel=2e-3)
    assert aggregate["requests"]["total"] == 40
    assert aggregate["throughput"]["output_token_rate"]["mean"] == pytest.approx(
        requests["generated_tokens"].sum() / run.end_s
    )
    kv = report["results"]["observability"]["components"][0]["aggregate"]["kv_cache_usage"]
    assert 0 < kv["max"] <= 100  # OUT-05
    assert kv["max"] == pytest.approx(100 * run.decisions["kv_blocks"].max() / run.kv_blocks_total)
    assert report["scenario"]["stack"][0]["native"]["config"] == {"engine": {"block_size": 16}}
    assert report["run"]["time"]["start"] == "1970-01-01T00:00:00.000Z"
    other = _llmd_report(run, model="m", device="H100", native={"engine": {"block_size": 32}})
    assert other["run"]["uid"] != report["run"]["uid"]
    assert _llmd_report(run_of(), model="m", device="H100") == _llmd_report(run_of(), model="m", device="H100")


def test_lengths_that_are_all_alike_are_fixed_in_a_report():
    report = _llmd_report(run_of(requests=[(0.0, 30, 5)] * 3), model="m", device="d", rate_rps=math.inf)
    load = report["scenario"]["load"]["standardized"]
    assert load["input_seq_len"] == {"distribution": "fixed", "value": 30}
    assert "rate_qps" not in load
    nothing = _llmd_report(run_of(requests=[]), model="m", device="d")
    aggregate = nothing["results"]["request_performance"]["aggregate"]
    assert aggregate["throughput"]["request_rate"]["mean"] is None
    assert nothing["scenario"]["load"]["standardized"]["input_seq_len"]["value"] == 0.0
    strict(dumps(nothing))


# --- Perfetto ---------------------------------------------------------------------------------------------------------


def events_of(run, path, **window):
    write_perfetto(run, path, **window)
    trace = strict(path.read_text(encoding="utf-8"))
    assert trace["displayTimeUnit"] == "ms"
    return trace["traceEvents"]


def test_a_chrome_trace_loads_and_holds_the_run(tmp_path):
    run = run_of()
    events = events_of(run, tmp_path / "t.json")
    for event in events:
        assert event["ph"] in "MXCbei"
        assert isinstance(event["pid"], int)
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] != "X" or event["dur"] >= 0
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"requests", "engine", "queue"}
    steps = [event for event in events if event["ph"] == "X" and event["pid"] == 2]
    assert len(steps) == len(run.decisions["start_s"])
    assert sum(step["args"]["iterations"] for step in steps) == run.decisions["iterations"].sum()
    assert {step["name"] for step in steps} <= {"prefill", "decode", "mixed"}
    for a, b in pairwise(steps):
        assert a["ts"] + a["dur"] <= b["ts"] + 1e-2  # one thing at a time
    slices = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    lanes = {}
    for event in slices:
        lanes.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for times in lanes.values():
        for a, b in pairwise(sorted(times)):
            assert a[1] <= b[0] + 1e-2  # nobody shares a slot
    decodes = {event["name"]: event for event in slices if event["name"].endswith("decode")}
    last = max(range(40), key=lambda row: run.requests["finish_s"][row])
    finish = run.requests["finish_s"][last] * 1e6
    assert decodes[f"request {last} decode"]["ts"] + decodes[f"request {last} decode"]["dur"] == pytest.approx(finish)
    counters = {
        name: [e["args"][name] for e in events if e["ph"] == "C" and e["name"] == name]
        for name in ("running", "kv_blocks")
    }
    assert max(counters["kv_blocks"]) == run.decisions["kv_blocks"].max() > 0
    assert counters["running"][-1] == 0
    begins = [event["id"] for event in events if event["ph"] == "b"]
    assert sorted(begins) == sorted(event["id"] for event in events if event["ph"] == "e") == list(range(40))


def test_a_window_of_a_chrome_trace(tmp_path):
    run = run_of()
    part = events_of(run, tmp_path / "t.json", start_s=0.5, end_s=1.0)
    steps = [event for event in part if event["ph"] == "X" and event["pid"] == 2]
    assert 0 < len(steps) < len(run.decisions["start_s"])
    assert all(step["ts"] <= 1e6 and step["ts"] + step["dur"] >= 0.5e6 for step in steps)
    ids = {event["id"] for event in part if event["ph"] == "b"}
    assert 0 < len(ids) < 40


def test_a_chrome_trace_of_what_failed(tmp_path):
    run = failing()
    events = events_of(run, tmp_path / "t.json")
    assert [event["name"] for event in events if event["ph"] == "i"] == ["out of memory"]
    by = {event["id"]: event["args"]["status"] for event in events if event["ph"] == "b"}
    assert by[0] == "rejected"
    assert by[1] == "unfinished"
    oom = replace(run, requests=run.requests | {"status": np.array([Status.REJECTED, Status.OOM, Status.OOM])})
    assert any(event.get("args", {}).get("status") == "oom" for event in events_of(oom, tmp_path / "t.json"))
    assert len(events_of(run_of(requests=[]), tmp_path / "t.json")) == 7


def test_a_padded_batch_and_a_preempted_request_are_drawn(tmp_path):
    assert events_of(run_of(PADDED(batch_size=4, max_wait_s=0.1)), tmp_path / "t.json")
    events = events_of(preempting(), tmp_path / "t.json")
    assert any(event.get("args", {}).get("preemptions") for event in events)


# --- all of them ------------------------------------------------------------------------------------------------------


def test_runs_are_written_as_what_is_asked_for(tmp_path):
    runs = [("continuous rate=8/s", run_of()), ("static", run_of(STATIC(batch_size=4, max_wait_s=0.1)))]
    options = {"model": "m", "device": "H100", "slo": Slo(ttft_s=0.1, e2e_s=1.0), "rate_rps": 20.0, "max_in_flight": 8}
    paths = write_exports(tmp_path / "exports", tuple(ENDINGS), runs, **options)
    assert [path.name for path in paths] == [
        f"{name}.{kind}"
        for name in ("continuous_rate=8_s", "static")
        for kind in ("vllm.json", "llmd.yaml", "perfetto.json")
    ]
    result = strict(paths[0].read_text(encoding="utf-8"))
    assert (result["request_rate"], result["max_concurrency"], result["device"]) == (20.0, 8, "H100")
    assert result["request_goodput"] > 0
    plain = write_exports(tmp_path / "more", ["vllm"], runs[:1], model="m", device="d")
    assert strict(plain[0].read_text(encoding="utf-8"))["request_rate"] == "inf"
    with pytest.raises(InputError, match="'csv' is no export; choose from vllm, llmd, perfetto"):
        write_exports(tmp_path, ["csv"], runs, model="m", device="d")
    with pytest.raises(InputError, match=r"two runs would be written to static\.vllm\.json"):
        write_exports(tmp_path, ["vllm"], [runs[1], runs[1]], model="m", device="d")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        write_exports(tmp_path / "file" / "x", ["vllm"], runs, model="m", device="d")


# --- the figure of a trace --------------------------------------------------------------------------------------------


def test_the_figure_of_a_trace():
    n = 3000
    ids = PrefixIds.of([(at % 40, 1000 + at) for at in range(n)])
    columns = RequestColumns(
        np.arange(n) / 7, np.arange(n) % 900 + 1, np.arange(n) % 50 + 1, prefix_ids=ids, prefix_block_size=512
    )
    chart = trace_chart(columns, "a trace")
    assert _standalone(chart) == _standalone(trace_chart(columns, "a trace"))
    assert encoded(chart, "png")[:4] == b"\x89PNG"
    assert "3,000 requests, 7" in chart.caption
    assert "an infinite prefix cache finds" in chart.caption
    arrivals, lengths, found = chart.panels
    width = arrivals.curves[0].x[1] - arrivals.curves[0].x[0]
    assert sum(arrivals.curves[0].y[:-1]) * width == pytest.approx(n)
    assert sum(int(dict(span.numbers)["requests"].replace(",", "")) for span in lengths.spans) == n
    assert found.curves[0].y[-1] == pytest.approx(100 * (n - 40) / (2 * n))


def test_the_figure_of_a_burst_without_prefixes():
    columns = RequestColumns(np.zeros(2), np.array([5, 7]), np.array([1, 1]), prefix_ids=[(), ()], prefix_block_size=16)
    chart = trace_chart(columns, "burst")
    assert chart.caption == "2 requests, all at once; no prefix ids."
    assert [panel.title for panel in chart.panels] == ["Lengths"]
    assert encoded(chart, "png")[:4] == b"\x89PNG"
    listed = replace(columns, prefix_ids=[(1,), (1,)])
    assert "finds 58 %" in trace_chart(listed, "burst").caption
