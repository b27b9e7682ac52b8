"""Every format of trace: what its reader makes of a small file, of a hostile one, and of random damage."""

import gzip
import io
import json
import math
import os
from datetime import date
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from servecast.cli import trace as command
from servecast.errors import InputError
from servecast.workload.traces.delimited import Delimited, fixed
from servecast.workload.traces.readers import PLAIN_READERS, READERS
from servecast.workload.traces.source import opened
from servecast.workload.traces.statistics import trace_statistics
from servecast.workload.traces.summaries import SUMMARIES, recognised
from servecast.workload.traces.trace_file import TraceFile

SHARED = Path(os.environ.get("SERVECAST_SHARED", Path(__file__).parents[1] / ".." / "shared"))
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"sample traces are not there: {SHARED}")


def lines(*rows):
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def aiperf(start, **more):
    metrics = {
        "input_sequence_length": {"value": 40, "unit": "tokens"},
        "output_sequence_length": {"value": 3, "unit": "tokens"},
        "time_to_first_token": {"value": 50, "unit": "ms"},
        "request_latency": {"value": 0.07, "unit": "s"},
        "inter_chunk_latency": {"value": [10000, 10000], "unit": "us"},
    } | more.pop("metrics", {})
    metadata = {"request_start_ns": 1_700_000_000_000_000_000 + start, "benchmark_phase": "profiling"}
    return {"metadata": metadata | more.pop("metadata", {}), "metrics": metrics, **more}


VLLM = {
    "date": "x", "request_rate": "inf", "mean_ttft_ms": math.nan, "duration": 2.0,
    "input_lens": [10, 20, 30], "output_lens": [3, 1, 0], "ttfts": [0.1, 0.2, 0.0], "itls": [[0.01, 0.02], [], []],
    "start_times": [500.0, 500.5, 501.0], "errors": ["", "", "Bad"],
}  # fmt: skip
SGLANG = {key: value for key, value in VLLM.items() if key != "start_times"} | {"mean_e2e_latency_ms": 1.0}


def guidellm(*starts):
    def request(start):
        timings = {"request_start": start, "first_token_iteration": start + 0.1, "request_end": start + 0.3}
        return {
            "info": {"timings": timings},
            "input_metrics": {"total_tokens": 48},
            "output_metrics": {"total_tokens": 5},
        }

    requests = {"successful": [request(start) for start in starts], "errored": [request(9.0)], "incomplete": []}
    return {"requests": requests, "config": {"strategy": {"type_": "poisson", "rate": 10.0}}}


def inference_perf(start, times, error=None):
    answer = {"output_tokens": len(times), "output_token_times": times}
    info = {"request_metrics": {"text": {"input_tokens": 128}}, "response_metrics": answer}
    return {"start_time": start, "end_time": times[-1] if times else start, "info": info, "error": error}


def llmperf(**more):
    answer = {"error_code": None, "ttft_s": 0.1, "end_to_end_latency_s": 0.3}
    return answer | {"number_input_tokens": 64, "number_output_tokens": 3} | more


def otel(*spans):
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def span(start="1700000000000000000", name="llm_request", **values):
    attributes = {
        "gen_ai.usage.prompt_tokens": {"intValue": "512"},
        "gen_ai.usage.completion_tokens": {"intValue": 9},
        "gen_ai.latency.time_to_first_token": {"doubleValue": 0.4},
        "gen_ai.latency.e2e": {"stringValue": "2.5"},
    } | values
    listed = [{"key": key, "value": value} for key, value in attributes.items()]
    return {"name": name, "startTimeUnixNano": start, "attributes": listed}


def dynamo(received, ended=1_700_000_009_000, kind="request_end"):
    request = {"output_tokens": 5, "replay": {"input_length": 60}}
    if received is not None:
        request["request_received_ms"] = received
    event = {"schema": "dynamo.request.trace.v1", "event_type": kind, "event_time_unix_ms": ended, "request": request}
    return {"event": event}


def parquet(**columns):
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


#: name: (reader, content, [(arrival_s, prompt_tokens, output_tokens), ...])
FILES = {
    "azure": ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n", [(0, 374, 44)]),
    "azure_lmm": (
        "azure_lmm",
        ("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15T12:00:00.269Z,0,770,491\n"
        "2024-10-15T12:00:05.819Z,1,949,126\n"),
        [(0, 770, 491), (5.55, 949, 126)],
    ),
    "burstgpt-1": (
        "burstgpt",
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
        "45,GPT-4,300,0,300,API log\n47,GPT-4,30,1,31,API log\n"),
        [(0, 472, 18), (42, 30, 1)],
    ),
    "burstgpt-2": (
        "burstgpt",
        ("Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "0,s1,1.5,GPT-4,100,10,110,Conversation log\n20,,0.7,ChatGPT,300,30,330,API log\n"),
        [(0, 100, 10), (20, 300, 30)],
    ),
    "mooncake": (
        "mooncake",
        lines({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]})
        + lines({"timestamp": 3000, "input_length": 7, "output_length": 6}),
        [(0, 600, 5), (3, 7, 6)],
    ),
    "mooncake-sessions": (
        "mooncake",
        lines(
            {"session_id": "s1", "timestamp": 0, "input_length": 600, "output_length": 50},
            {"session_id": "s1", "delay": 1500, "input_length": 1200, "output_length": 60},
            {"session_id": "s2", "timestamp": 250.5, "input_length": 100, "output_length": 20},
        ),
        [(0, 600, 50), (0.2505, 100, 20), (1.5, 600 + 50 + 1200, 60)],
    ),
    "timed_trace": (
        "timed_trace",
        lines({"timestamp": 0.5, "input_length": 40, "output_length": 5, "hash_ids": [0, 1, 2]})
        + lines({"timestamp": 3, "input_length": 7, "output_length": 6, "hash_ids": [9]}),
        [(0, 40, 5), (2.5, 7, 6)],
    ),
    "bailian": (
        "bailian",
        lines(
            {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.0, "input_length": 40, "output_length": 132,
             "type": "text", "turn": 1, "hash_ids": [1089, 1090, 1091]},
            {"chat_id": 160, "parent_chat_id": 159, "timestamp": 62.5, "input_length": 16, "output_length": 80,
             "hash_ids": [1089]},
        ),
        [(0, 40, 132), (1.5, 16, 80)],
    ),
    "vidur": ("vidur", "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,374,44\n", [(0, 374, 44)]),
    "vidur_lengths": (
        "vidur_lengths",
        "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.8\n",
        [(0, 3772, 54)],
    ),
    "splitwise": (
        "splitwise",
        ("request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
        "0,0,7,0.5,1,512,3\n1,0,,2.5,1,99,4\n"),
        [(0, 512, 3), (2, 99, 4)],
    ),
    "apex": (
        "apex",
        ("ContextTokens,GeneratedTokens,TotalTokens,RequestID,StartTimeOffset,SynthesizedBody\n"
        '156,67,223,0,197890289,"{""a"": 1, ""b"": 2}"\n115,390,505,1,9197890289,plain\n'),
        [(0, 156, 67), (9, 115, 390)],
    ),
    "llmservingsim": (
        "llmservingsim",
        lines({"input_toks": 10, "output_toks": 5, "arrival_time_ns": 0, "input_tok_ids": [1, 2]})
        + lines({"input_toks": 11, "output_toks": 6, "arrival_time_ns": 3_000_000_000}),
        [(0, 10, 5), (3, 11, 6)],
    ),
    "llmservingsim_csv": (
        "llmservingsim_csv",
        "input_toks,output_toks,arrival_time_ns\n10,5,0\n11,6,3000000000\n",
        [(0, 10, 5), (3, 11, 6)],
    ),
    "llmservingsim_bench": (
        "llmservingsim_bench",
        lines(
            {"input_toks": 58, "output_toks": 5, "arrival_time": 1787267980.08, "queued_ts": 100.0,
             "scheduled_ts": 100.1, "first_token_ts": 100.5, "last_token_ts": 102.0},
        ),
        [(0, 58, 5)],
    ),
    "dynamo": (
        "dynamo",
        lines(dynamo(1_700_000_002_000), dynamo(None), dynamo(1, kind="request_start"), dynamo(1_700_000_000_000)),
        [(0, 60, 5), (2, 60, 5), (9, 60, 5)],
    ),
    "vllm": ("vllm", json.dumps(VLLM), [(0, 10, 3), (0.5, 20, 1)]),
    "vllm-pretty": ("vllm", json.dumps(VLLM, indent=1), [(0, 10, 3), (0.5, 20, 1)]),
    "vllm-old": (
        "vllm",
        json.dumps({key: value for key, value in VLLM.items() if key not in ("start_times", "errors")}),
        [(0, 10, 3), (0, 20, 1)],
    ),
    "sglang": ("sglang", json.dumps(SGLANG) + "\n", [(0, 10, 3), (0, 20, 1)]),
    "aiperf": (
        "aiperf",
        lines(
            aiperf(0, metadata={"benchmark_phase": "warmup"}),
            aiperf(10**9),
            aiperf(2 * 10**9, error={"code": 500}, metrics={}),
            aiperf(3 * 10**9, metadata={"was_cancelled": True}),
            aiperf(35 * 10**8),
        ),
        [(0, 40, 3), (2.5, 40, 3)],
    ),
    "guidellm": (
        "guidellm",
        json.dumps({"metadata": {"guidellm_version": "0.8.1"}, "benchmarks": [guidellm(1.7e9, 1.7e9 + 2)]}),
        [(0, 48, 5), (2, 48, 5)],
    ),
    "inference_perf": (
        "inference_perf",
        json.dumps(
            [inference_perf(1000.0, [1000.1, 1000.2]), inference_perf(1001.0, [1001.5]), inference_perf(9, [], "no")],
            indent=1,
        ),
        [(0, 128, 2), (1, 128, 1)],
    ),
    "llmperf": ("llmperf", json.dumps([llmperf(), llmperf(error_code=400)], indent=1), [(0, 64, 3)]),
    "otel": (
        "otel",
        json.dumps(otel(span(), span(name="other"))) + "\n" + json.dumps(otel(span("1700000001000000000"))),
        [(0, 512, 9), (1, 512, 9)],
    ),
    "weka": (
        "weka",
        lines(
            {"id": "c1", "t": 0.0, "in": 200, "out": 20, "hash_ids": [1, 2, 3]},
            {"id": "c1", "t": 4.0, "in": 300, "out": 20, "hash_ids": [1, 2, 3, 4]},
        ),
        [(0, 200, 20), (4, 300, 20)],
    ),
    "weka-conversations": (
        "weka",
        json.dumps(
            {"id": "c1", "models": ["m"], "block_size": 16, "hash_id_scope": "local", "requests": [
                {"t": 1.0, "type": "n", "in": 40, "out": 2, "hash_ids": [1, 2], "api_time": 0.5},
                {"t": 2.0, "type": "subagent", "agent_id": "a", "requests": [
                    {"t": 0.5, "type": "s", "in": 20, "out": 3, "hash_ids": [1], "ttft": 0.1, "api_time": 0.2}]},
                {"t": 9.0, "type": "n", "in": 60, "out": 2, "hash_ids": [1, 2, 3]},
            ]}, indent=1,
        ),
        [(0, 40, 2), (1.5, 20, 3), (8, 60, 2)],
    ),
    "mooncake-64": (
        "mooncake",
        lines({"block_size": 64}, {"timestamp": 0, "input_length": 200, "output_length": 5, "hash_ids": [1, 2, 3, 4]},
              {"timestamp": 1500, "input_length": 200, "output_length": 5, "hash_ids": ["1", "2", "3", "A"]}),
        [(0, 200, 5), (1.5, 200, 5)],
    ),
    "guidellm-trace": (
        "timed_trace",
        lines({"timestamp": 1000.25, "input_length": 7, "output_length": 5})
        + lines({"timestamp": 1001.0, "input_length": 8, "output_length": 6}),
        [(0, 7, 5), (0.75, 8, 6)],
    ),
    "dynamo-rows": (
        "mooncake",
        lines({"created_time": 0, "input_tokens": 7, "output_tokens": 5}, {"created_time": 250, "input_tokens": 8, "output_tokens": 6}),
        [(0, 7, 5), (0.25, 8, 6)],
    ),
    "plain": ("plain", "arrival_s,prompt_tokens,output_tokens\n0,10,1\n0.25,20,2\n", [(0, 10, 1), (0.25, 20, 2)]),
    "plain-ms": ("plain", "timestamp_ms,input_tokens,completion_tokens\n0,10,1\n250,20,2\n", [(0, 10, 1), (0.25, 20, 2)]),
    "plain-dates": (
        "plain",
        "timestamp,isl,osl\n2024-05-12 00:00:00+00:00,10,1\n2024-05-12 00:00:01+00:00,20,2\n",
        [(0, 10, 1), (1, 20, 2)],
    ),
    "plain-lengths": ("plain", "index,prompt_tokens,output_tokens\n0,10,1\n", [(0, 10, 1)]),
    "plain_jsonl": (
        "plain_jsonl",
        lines({"arrival_s": 1, "prompt_tokens": 10, "output_tokens": 1, "session": "a", "priority": 2, "ttft_s": 0.5}),
        [(0, 10, 1)],
    ),
    "plain_jsonl-dates": (
        "plain_jsonl",
        lines({"timestamp": "2024-05-12T00:00:00Z", "prompt_tokens": 10, "output_tokens": 1}),
        [(0, 10, 1)],
    ),
    "plain_parquet": (
        "plain_parquet",
        parquet(arrival_s=[0.0, 0.25], prompt_tokens=[10, 20], output_tokens=[1, 2], model=["a", "b"]),
        [(0, 10, 1), (0.25, 20, 2)],
    ),
    "plain_parquet-careful": (
        "plain_parquet",
        parquet(
            arrival_ms=[0, 250], input_tokens=[10.0, 20.0], output_tokens=[1, 2], tenant=["a", None],
            prefix_ids_16=[[1], None],
        ),
        [(0, 10, 1), (0.25, 20, 2)],
    ),
    "plain_parquet-dates": (
        "plain_parquet",
        parquet(
            timestamp=pyarrow.array([10**9, 3 * 10**9], pyarrow.timestamp("ns", "UTC")), prompt_tokens=[10, 20],
            output_tokens=[1, 2],
        ),
        [(0, 10, 1), (2, 20, 2)],
    ),
}  # fmt: skip


@pytest.fixture
def trace(tmp_path):
    """Writes a trace file, and gives it with options."""

    def written(content, **options):
        path = tmp_path / "trace.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return TraceFile(str(path), **options)

    return written


def rows(result):
    return [
        tuple(row)
        for row in zip(
            *(column.tolist() for column in (result.columns.arrival_s, *result.columns.lengths)), strict=True
        )
    ]


def rejected(result):
    return {one.reason: one.lines for one in result.report.rejected}


# --- each format ----------------------------------------------------------------------------------------------------


def test_every_reader_has_a_file_here():
    every = (*READERS, *PLAIN_READERS)
    assert {reader for reader, _, _ in FILES.values()} == {reader.name for reader in every}
    names = [reader.name for reader in every]
    assert len(set(names)) == len(names)
    assert all(reader.signature for reader in every)


@pytest.mark.parametrize("more", ["", "input_tokens,"])
def test_a_new_format_of_obvious_names_wins_over_the_plain_one(trace, monkeypatch, more):
    """A new format is a reader and a place in the registry, also where its columns read like plain ones."""
    columns = f"arrival_s,{more}prompt_tokens,output_tokens,seat"
    text = columns + "\n" + ",".join(["7", *"1" * more.count(","), "11", "3", "a"]) + "\n"
    mine = Delimited("mine", "CSV with a seat", fixed("arrival_s,prompt_tokens,output_tokens,seat", unit="ms"))
    if more:
        with pytest.raises(InputError, match="could both be the prompt"):
            trace(text).read()
    else:
        assert trace(text).read().report.format == "plain"
    monkeypatch.setattr("servecast.workload.traces.trace_file.READERS", (*READERS, mine))
    found = trace(text, keep_offset=True).read()
    assert (found.report.format, found.columns.arrival_s.tolist()) == ("mine", [0.007])
    if not more:
        assert trace(text, format="plain", keep_offset=True).read().columns.arrival_s.tolist() == [7.0]


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_recognised_and_read(trace, name):
    reader, content, expected = FILES[name]
    result = trace(content).read()
    assert result.report.format == reader
    assert rows(result) == [(pytest.approx(arrival, abs=1e-6), *lengths) for arrival, *lengths in expected]
    report = result.report
    assert report.rows_read == report.rows_used + report.rows_rejected
    assert trace(content, format=reader).read().columns.prompt_tokens.tolist() == [row[1] for row in expected]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("disguise", ["gzip", "zstd", "bom", "crlf", "blank", "no-end"])
def test_the_same_requests_in_any_disguise(trace, name, disguise):
    _, content, expected = FILES[name]
    data = content.encode() if isinstance(content, str) else content
    if data[:4] == b"PAR1":
        return
    data = {
        "gzip": gzip.compress,
        "zstd": lambda data: pyarrow.Codec("zstd").compress(data, asbytes=True),
        "bom": lambda data: b"\xef\xbb\xbf" + data,
        "crlf": lambda data: data.replace(b"\n", b"\r\n"),
        "blank": lambda data: b"\n \n" + data + b"\n\t\n",
        "no-end": lambda data: data.rstrip(),
    }[disguise](data)
    assert [row[1:] for row in rows(trace(data).read())] == [tuple(row[1:]) for row in expected]


def test_failed_calls_are_counted_as_such(trace):
    assert rejected(trace(FILES["burstgpt-1"][1]).read()) == {"failed in the source": (3,)}
    assert rejected(trace(FILES["vllm"][1]).read()) == {"failed in the source": (3,)}
    assert str(trace(FILES["vllm"][1]).read().report.rejected[0]) == "1 row: failed in the source (request 3)"
    assert rejected(trace(FILES["aiperf"][1]).read()) == {"phase warmup": (1,), "failed in the source": (3, 4)}
    assert rejected(trace(FILES["guidellm"][1]).read()) == {"failed in the source": (3,)}
    assert rejected(trace(FILES["dynamo"][1]).read()) == {"event of another kind": (3,)}
    assert rejected(trace(FILES["otel"][1]).read()) == {"span of another kind": (2,)}


def test_what_was_measured_comes_with_the_trace(trace):
    recorded = trace(FILES["vllm"][1]).read().recorded
    assert recorded.sent_s.tolist() == recorded.arrival_s.tolist() == [0.0, 0.5]
    assert recorded.ttft_s.tolist() == [0.1, 0.2]
    assert recorded.e2e_s.tolist() == [pytest.approx(0.13), 0.2]
    assert recorded.itl_s == [(0.01, 0.02), ()]
    assert recorded.tpot_s.tolist() == [pytest.approx(0.015), pytest.approx(math.nan, nan_ok=True)]
    assert (recorded.failed, recorded.source, len(recorded)) == (1, "vllm", 2)

    recorded = trace(FILES["sglang"][1]).read().recorded
    assert np.isnan(recorded.sent_s).all() and np.isnan(recorded.arrival_s).all()
    assert recorded.e2e_s.tolist() == [pytest.approx(0.13), 0.2]

    recorded = trace(FILES["aiperf"][1]).read().recorded
    assert recorded.ttft_s.tolist() == [0.05, 0.05]
    assert recorded.e2e_s.tolist() == [0.07, 0.07]
    assert recorded.itl_s[0] == pytest.approx((0.01, 0.01))

    recorded = trace(FILES["inference_perf"][1]).read().recorded
    assert recorded.ttft_s.tolist() == pytest.approx([0.1, 0.5])
    assert recorded.itl_s[0] == pytest.approx((0.1,))
    recorded = trace(FILES["guidellm"][1]).read().recorded
    assert recorded.e2e_s.tolist() == pytest.approx([0.3, 0.3], abs=1e-6)
    recorded = trace(FILES["otel"][1]).read().recorded
    assert (recorded.ttft_s[0], recorded.e2e_s[0], recorded.sent_s.tolist()) == (0.4, 2.5, [0.0, 1.0])
    recorded = trace(FILES["llmservingsim_bench"][1]).read().recorded
    assert (recorded.ttft_s[0], recorded.e2e_s[0]) == (0.5, 2.0)
    recorded = trace(FILES["burstgpt-2"][1]).read().recorded
    assert np.isnan(recorded.ttft_s).all()
    assert recorded.e2e_s.tolist() == [1.5, 0.7]
    assert trace(FILES["plain"][1]).read().recorded is None


def test_rows_of_documents_and_of_other_kinds_are_named_for_what_they_are(trace):
    report = json.dumps({"benchmarks": [guidellm(1.7e9 + 2, 1.7e9)]})
    assert "time steps back 1 time, first at request 2: sorted" in trace(report).read().report.notes
    mixed = lines(aiperf(0), {"kind": "footer"})
    assert rejected(trace(mixed).read()) == {"record of another kind": (2,)}
    nothing = {"resourceSpans": [{"scopeSpans": [{}]}, {"scopeSpans": [{"spans": [span(), 7]}]}]}
    assert rejected(trace(json.dumps(nothing)).read()) == {"span of another kind": (2,)}


def test_recorded_runs_in_the_plain_form(trace):
    text = (
        "id,arrival_s,send_s,prompt_tokens,output_tokens,ttft_s,e2e_s\n"
        "1,2.5,3.0,20,2,0.2,0.4\n0,0.5,0.5,10,1,0.1,0.1\n2,2.5,3.5,20,2,,\n"
    )
    for careful in ("", "\n"):
        path = trace(text + careful).path
        recorded = TraceFile(path).read().recorded
        assert recorded.arrival_s.tolist() == [0.0, 2.0, 2.0]
        assert recorded.sent_s.tolist() == [0.0, 2.5, 3.0]
        assert recorded.prompt_tokens.tolist() == [10, 20, 20]
        assert recorded.ttft_s.tolist() == [0.1, 0.2, pytest.approx(math.nan, nan_ok=True)]
    assert trace(FILES["plain"][1]).read().recorded is None


def test_sessions_tenants_and_priorities_are_kept(trace):
    assert trace(FILES["burstgpt-2"][1]).read().columns.session == ["s1", None]
    assert trace(FILES["bailian"][1]).read().columns.session == ["159", "159"]
    assert trace(FILES["splitwise"][1]).read().columns.tenant == ["7", None]
    assert trace(FILES["plain_parquet-careful"][1]).read().columns.tenant == ["a", None]
    columns = trace(FILES["plain_jsonl"][1]).read().columns
    assert (columns.session, columns.priority.tolist()) == (["a"], [2])
    columns = trace("arrival_s,prompt_tokens,output_tokens,priority,tenant\n0,1,1,-3,a\n1,1,1,,\n").read().columns
    assert (columns.priority.tolist(), columns.tenant) == ([-3, 0], ["a", None])


def test_prefix_ids_come_with_their_block_size(trace):
    for name, ids, size in (
        ("mooncake", [(0, 1), ()], 512),
        ("timed_trace", [(0, 1, 2), (9,)], 16),
        ("bailian", [(1089, 1090, 1091), (1089,)], 16),
        ("plain_parquet-careful", [(1,), ()], 16),
    ):
        columns = trace(FILES[name][1]).read().columns
        assert [request.prefix_ids for request in columns] == ids
        assert columns.prefix_block_size == size


def test_a_turn_waits_for_the_turn_before(trace):
    result = trace(FILES["mooncake-sessions"][1]).read()
    assert result.columns.session == ["s1", "s2", "s1"]
    assert result.columns.delay_s.tolist() == [pytest.approx(math.nan, nan_ok=True)] * 2 + [1.5]
    assert "1 requests wait for the answer to the turn before" in " ".join(result.report.notes)
    orphan = lines(
        {"timestamp": 0, "input_length": 1, "output_length": 1, "session_id": "a"},
        {"delay": 5, "input_length": 1, "output_length": 1, "session_id": "b"},
    )
    assert rejected(trace(orphan).read()) == {"a delay, and no turn before it": (2,)}


def test_wrk_03_a_unit_that_two_formats_read_differently_is_asked_for(trace):
    """Whole numbers without ids may be Mooncake's milliseconds or GuideLLM's seconds; fractions are seconds."""
    text = lines(*({"timestamp": at, "input_length": 1, "output_length": 1} for at in (0, 2)))
    ids = lines(
        *({"timestamp": at, "input_length": 40, "output_length": 1, "hash_ids": [1, 2, at + 9]} for at in (0, 2))
    )
    epoch = lines(
        *(
            {"timestamp": 1_700_000_000 + at, "input_length": 600, "output_length": 1, "hash_ids": [1, at + 9]}
            for at in (0, 2)
        )
    )
    for content in (text, ids, epoch):
        with pytest.raises(InputError, match="nothing says the unit of its times; give time_unit"):
            trace(content).read()
        assert trace(content, time_unit="s").read().columns.span_s == 2
        assert trace(content, time_unit="ms").read().columns.span_s == 0.002
    assert trace(text, format="timed_trace").read().columns.span_s == 2
    assert trace(text, format="mooncake").read().columns.span_s == 0.002


# --- units, ambiguity, several runs ---------------------------------------------------------------------------------


def test_wrk_03_a_time_without_a_unit_is_asked_for(trace):
    text = "timestamp,prompt_tokens,output_tokens\n0,1,1\n3000,1,1\n"
    with pytest.raises(InputError, match="nothing says the unit of its times; give time_unit, one of s, ms, us, ns"):
        trace(text).read()
    result = trace(text, time_unit="ms").read()
    assert (result.columns.span_s, result.report.time_unit) == (3.0, "ms")
    dates = "timestamp,prompt_tokens,output_tokens\n2024-05-12 00:00:00,1,1\n"
    with pytest.raises(InputError, match="time_unit is ms, but plain has dates"):
        trace(dates, time_unit="ms").read()


def test_wrk_03_a_unit_that_cannot_be_is_asked_about(trace):
    text = "arrival_ns,prompt_tokens,output_tokens\n" + "".join(f"{at},1,1\n" for at in range(100))
    assert trace(text).read().report.notes == (
        "1,000,000,000 requests/s over 9.9e-08 s: if that cannot be, times are not in ns; say in what with time_unit",
    )
    assert trace(text, time_unit="s").read().report.notes == ("times are read as s, not as ns as plain has them",)


def test_two_columns_that_could_mean_the_same_are_an_error(trace):
    for content in (
        "arrival_s,prompt_tokens,input_tokens,output_tokens\n0,1,1,1\n",
        lines({"arrival_s": 0, "prompt_tokens": 1, "input_tokens": 1, "output_tokens": 1}),
        parquet(prompt_tokens=[1], input_tokens=[1], output_tokens=[1]),
    ):
        file = trace(content)
        with pytest.raises(InputError) as error:
            file.read()
        assert error.value.place == file.path
        assert "prompt_tokens and input_tokens could both be the prompt; rename all but one" in error.value.problem


def test_lengths_alone_are_a_burst_and_say_so(trace):
    for name in ("vidur_lengths", "llmperf", "sglang", "vllm-old", "plain-lengths"):
        report = trace(FILES[name][1]).read().report
        assert report.time_unit is None
        assert "has lengths and no arrivals: all requests are at 0; give arrivals of your own" in report.notes[0]


def test_several_runs_in_one_file_are_an_error_that_lists_them(trace):
    text = json.dumps(VLLM) + "\n" + json.dumps(VLLM | {"request_rate": 4.0, "input_lens": [9, 9, 9]})
    with pytest.raises(
        InputError, match=r"holds 2 runs; choose one with part \(1: x rate inf, 3 requests; 2: x rate 4"
    ):
        trace(text).read()
    assert trace(text, part=2).read().columns.prompt_tokens.tolist() == [9, 9]
    with pytest.raises(InputError, match="part is 3, but there are 2 runs"):
        trace(text, part=3).read()
    report = json.dumps({"benchmarks": [guidellm(1.0), guidellm(5.0, 6.0)]})
    assert len(trace(report, part=2).read().columns) == 2
    with pytest.raises(InputError, match=r"1: poisson 10\.0, 2 requests; 2: poisson 10\.0, 3 requests"):
        trace(report).read()


def test_a_document_of_another_kind_in_between_is_an_error(trace):
    file = trace(json.dumps(VLLM) + "\n{}\n")
    with pytest.raises(InputError, match="a document that is not vllm; keep them apart") as error:
        file.read()
    assert error.value.place == f"{file.path}:2"


def test_a_cut_document(trace):
    whole = json.dumps(VLLM)
    with pytest.raises(InputError, match="its JSON is cut or damaged at line 2"):
        trace(whole + "\n" + whole[:-20]).read()
    result = trace(whole + "\n" + whole[:-20], on_bad_row="skip").read()
    assert len(result.columns) == 2
    assert "what follows is not read" in result.report.notes[0]
    with pytest.raises(InputError, match=r"starts like JSON, which is cut or damaged: .* at line"):
        trace(json.dumps(VLLM, indent=1)[:-20]).read()
    with pytest.raises(InputError, match="starts like JSON, which is cut or damaged"):
        trace('{"a": ' + "9" * 5000 + "}").read()


# --- broken rows ----------------------------------------------------------------------------------------------------


def vllm(**changes):
    return json.dumps(VLLM | changes)


BAD = [
    (vllm(output_lens=[3, 1]), ":1", "output_lens has 2 values, and there are 3 requests"),
    (vllm(itls=7), ":1", "itls is not a list"),
    (vllm(input_lens=["10", 20, 30]), ": request 1", "input_lens is not a number"),
    (vllm(ttfts=[math.nan, 0.2, 0]), ": request 1", "ttfts is not finite"),
    (vllm(ttfts=[-1, 0.2, 0]), ": request 1", "ttfts is negative"),
    (vllm(itls=[7, [], []]), ": request 1", "itls is not a list of lists"),
    (vllm(input_lens=[10**30, 20, 30]), ": request 1", "input_lens is above 1,000,000,000"),
    (lines(aiperf(0, metrics={"time_to_first_token": {"value": 5, "unit": "furlongs"}})), ":1", "time_to_first_token has a unit"),
    (lines(aiperf(0, metrics={"inter_chunk_latency": {"value": 5, "unit": "ms"}})), ":1", "inter_chunk_latency is not a list"),
    (lines(aiperf(0, metrics={"input_sequence_length": None})), ":1", "input_sequence_length is missing"),
    (lines(aiperf(0, metrics={"input_sequence_length": 7})), ":1", "value is missing"),
    (lines(aiperf(0, metadata={"request_start_ns": "1"})), ":1", "request_start_ns is not a number"),
    (json.dumps({"metadata": {"guidellm_version": "1"}, "benchmarks": [{}]}), ":1", "benchmarks[0].requests is missing"),
    (json.dumps({"benchmarks": [{"requests": {"successful": [7]}}]}), ": request 1", "request is not a JSON object"),
    (
        json.dumps({"benchmarks": [{"requests": {"successful": [{"info": {"timings": {"request_start": 5,
         "first_token_iteration": 4, "request_end": 6}}}]}}]}),
        ": request 1",
        "request_start, first_token_iteration and request_end decrease",
    ),
    (json.dumps([inference_perf(10, [5])]), ": request 1", "start_time, output_token_times and end_time decrease"),
    (json.dumps([inference_perf(1, [2]), 7]), ": request 2", "request is not a JSON object"),
    (json.dumps([inference_perf(1, [2]) | {"end_time": None}]), ": request 1", "end_time is missing"),
    (json.dumps([inference_perf(1, "ab") | {"end_time": 2}]), ": request 1", "output_token_times is not a list"),
    (json.dumps([llmperf(ttft_s="x")]), ": request 1", "ttft_s is not a number"),
    (json.dumps([llmperf(), 7]), ": request 2", "request is not a JSON object"),
    (json.dumps({"resourceSpans": 7}), ":1", "resourceSpans is not a list"),
    (json.dumps(otel(span("soon"))), ": request 1", "startTimeUnixNano is not a number"),
    (json.dumps(otel(span(**{"gen_ai.usage.prompt_tokens": None}))), ": request 1", "gen_ai.usage.prompt_tokens is missing"),
    (lines(dynamo("x")), ":1", "request.request_received_ms is not a number"),
    (lines(dynamo(1) | {"event": {"schema": "dynamo.request.trace.v1", "event_type": "request_end"}}), ":1", "event_time_unix_ms is missing"),
    (lines({"chat_id": "a", "parent_chat_id": 1, "timestamp": 1, "input_length": 1, "output_length": 1}), ":1", "chat_id and parent_chat_id are not"),
    (lines({"delay": 5, "input_length": 1, "output_length": 1}), ":1", "delay without a session_id"),
    (lines({"timestamp": 5, "session_id": [], "input_length": 1, "output_length": 1}), ":1", "session_id is not a name"),
    (
        lines({"input_toks": 1, "output_toks": 1, "queued_ts": 5, "first_token_ts": 4, "last_token_ts": 6}),
        ":1",
        "queued_ts, first_token_ts and last_token_ts decrease",
    ),
    ("arrival_s,prompt_tokens,output_tokens,ttft_s\n0,1,1,-2\n", ":2", "ttft_s is negative"),
    ("arrival_s,prompt_tokens,output_tokens,priority\n0,1,1,0.5\n", ":2", "priority is not a whole number"),
    ("arrival_s,prompt_tokens,output_tokens,prefix_ids_16\n0,1,1,a b\n", ":2", "prefix_ids_16 are not whole numbers"),
    ("arrival_s,prompt_tokens,output_tokens,prefix_ids_16\n0,1,1,1 2\n", ":2", "prefix_ids_16 are more than"),
    ('arrival_s,prompt_tokens,output_tokens\n0,1,"' + "9" * 200_000 + '"\n', ":2", "row without 3 fields"),
    (lines({"arrival_s": 0, "prompt_tokens": "1", "output_tokens": 1}), ":1", "prompt_tokens is not a number"),
    (lines({"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "priority": "x"}), ":1", "priority is not"),
    (lines({"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "prefix_ids_16": "x"}), ":1", "prefix_ids_16 is not a list"),
    (lines({"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "prefix_ids_16": [1, 2]}), ":1", "prefix_ids_16 are more"),
    (parquet(arrival_s=[0.0, None], prompt_tokens=[1, 1], output_tokens=[1, 1]), ":2", "arrival_s is missing"),
    (parquet(arrival_s=[0.0, math.nan], prompt_tokens=[1, 1], output_tokens=[1, 1]), ":2", "arrival_s is not finite"),
    (parquet(arrival_s=[0.0, 1.0], prompt_tokens=[1, -1], output_tokens=[1, 1]), ":2", "prompt_tokens is negative"),
    (parquet(arrival_s=[0.0, 1.0], prompt_tokens=[1, 10**10], output_tokens=[1, 1]), ":2", "prompt_tokens is above"),
    (parquet(arrival_s=["0", "1"], prompt_tokens=[1, 1], output_tokens=[1, 1]), ":1", "arrival_s is not a number"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "place", "reason"), BAD)
def test_wrk_05_a_row_that_cannot_be_meant_is_an_error_with_its_place(trace, content, place, reason):
    file = trace(content)
    with pytest.raises(InputError) as error:
        file.read()
    assert error.value.place == file.path + place
    assert error.value.problem.startswith(reason)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 400
    try:
        skipped = trace(content, on_bad_row="skip").read()
    except InputError:
        return
    assert skipped.report.rows_rejected >= 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (pyarrow.Codec("zstd").compress(FILES["plain"][1].encode() * 100, asbytes=True)[:-9], ""),
        (b"\x28\xb5\x2f\xfd" + b"x" * 50, "cannot be read"),
        (FILES["plain_parquet"][1][:-30], "its Parquet data is damaged or cut"),
        (parquet(a=[1]), "is of no known trace format: a table with other columns"),
        (json.dumps({"benchmarks": []}), "is of no known"),
        ("[" + json.dumps(7) + "]", "is of no known"),
    ],
)
def test_files_that_cannot_be_read_are_an_error(trace, content, problem):
    file = trace(content, on_bad_row="skip")
    with pytest.raises(InputError) as error:
        file.read()
    assert error.value.problem.startswith(problem)


def test_a_damaged_page_of_a_table_is_an_error(trace):
    n = 5000
    content = bytearray(
        parquet(arrival_s=np.arange(n) * 0.37, prompt_tokens=np.arange(n) + 1, output_tokens=np.ones(n, int))
    )
    content[40:4000] = bytes(3960)
    with pytest.raises(InputError, match="Parquet data is damaged"):
        trace(bytes(content)).read()


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_cuts_and_damage_never_end_in_anything_but_an_input_error(trace, name, data):
    content = FILES[name][1]
    content = bytearray(content.encode() if isinstance(content, str) else content)
    start = data.draw(st.integers(0, len(content)))
    content = content[start * data.draw(st.booleans()) :][: data.draw(st.integers(0, len(content)))]
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    packed = data.draw(
        st.sampled_from([bytes, gzip.compress, lambda raw: pyarrow.Codec("zstd").compress(raw, asbytes=True)])
    )
    for on_bad_row in ("error", "skip"):
        try:
            result = trace(packed(bytes(content)), on_bad_row=on_bad_row).read()
        except InputError as error:
            assert str(error).isprintable()  # noqa: PT017
        else:
            assert result.report.rows_read == result.report.rows_used + result.report.rows_rejected


# --- hostile values ---------------------------------------------------------------------------------------------------

MAGNITUDES = (
    0, 1, -1, 2**31, 2**53 + 1, 2**62, 2**63, 2**64, 10**30, 10**400, 0.5, 5e-324, -5e-324, 1e-9, 1e18, 1.7e308, math.inf,
    -math.inf, math.nan, True, None, "", "7", "x", "nan", "1e999", "\u0663", "a,b", '"', "\n", "2024-01-01", "ff" * 40, [],
    [1], ["1"], [[1]], [10**30], [-1], {}, {"value": 1, "unit": "ms"}, {"value": -1, "unit": None}, {"a": {"b": 1}},
)  # fmt: skip
hostile = st.one_of(
    st.sampled_from(MAGNITUDES), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=6), st.lists(st.integers())
)


def places(value, path=()):
    """Every place of a JSON value, as a path of keys and indices."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    yield path
    for key, child in children:
        yield from places(child, (*path, key))


def replaced(value, path, new):
    """The JSON value with ``new`` at that place."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def spoilt(content, data):
    """A file with one to three of its values replaced by hostile ones."""
    if content[:1] in "{[":
        whole = content.count("\n") > 0 and content[:2] in ("[\n", "{\n")
        parts = [json.loads(content)] if whole else [json.loads(line) for line in content.splitlines()]
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(parts) - 1))
            path = data.draw(st.sampled_from(list(places(parts[at]))))
            parts[at] = replaced(parts[at], path, data.draw(hostile))
        return "\n".join(map(json.dumps, parts))
    head, *table = [line.split(",") for line in content.splitlines()]
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.sampled_from(table))
        row[data.draw(st.integers(0, len(row) - 1))] = str(data.draw(hostile))
    return "\n".join(",".join(row) for row in [head, *table])


def answered(path, *options):
    """What the command says of a file: exit 0, or an InputError of one line."""
    try:
        command.trace([path], strict="--strict" in options, fit="--fit" in options)
    except InputError as error:
        assert str(error).isprintable() and len(str(error)) < 800  # noqa: PT017


@pytest.mark.parametrize("name", [name for name, (_, content, _) in FILES.items() if isinstance(content, str)])
@given(data=st.data())
@settings(
    max_examples=6, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_value_in_any_field_is_read_or_refused_in_one_line(trace, capsys, name, data):
    path = trace(spoilt(FILES[name][1], data)).path
    for option in ("", "--strict", "--fit"):
        answered(Path(path), option)
    capsys.readouterr()


ARROW = {
    "decimal": pyarrow.array([Decimal("0.5"), Decimal("1.5")]), "whole": pyarrow.array([Decimal(0), Decimal(2)]),
    "date32": pyarrow.array([date(2024, 1, 1), date(2024, 1, 2)]), "date64": pyarrow.array([0, 86_400_000], pyarrow.date64()),
    "time32": pyarrow.array([1, 2], pyarrow.time32("s")), "time64": pyarrow.array([1, 2], pyarrow.time64("ns")),
    "duration": pyarrow.array([1, 2**62], pyarrow.duration("s")), "far": pyarrow.array([0, 2**62], pyarrow.timestamp("ms")),
    "timestamp": pyarrow.array([1, 2], pyarrow.timestamp("us", "UTC")), "bool": pyarrow.array([True, False]),
    "binary": pyarrow.array([b"1", b"2"]), "list": pyarrow.array([[1], [2]]), "struct": pyarrow.array([{"a": 1}, None]),
    "null": pyarrow.nulls(2), "uint64": pyarrow.array([1, 2**64 - 1], pyarrow.uint64()), "float16": pyarrow.array([0, 1], pyarrow.float16()),
    "strings": pyarrow.array(["1", "2"]), "dictionary": pyarrow.array(["1", "2"]).dictionary_encode(),
    "map": pyarrow.array([[("a", 1)], []], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
}  # fmt: skip
FIELDS = ("arrival_s", "timestamp", "prompt_tokens", "output_tokens", "priority", "session", "tenant", "ttft_s", "e2e_s", "send_s", "delay_s", "prefix_ids_16")  # fmt: skip


@pytest.mark.parametrize("kind", ARROW)
def test_any_type_in_any_column_of_a_table_is_read_or_refused_in_one_line(trace, capsys, kind):
    for field in FIELDS:
        columns = {"arrival_s": [0.0, 1.0], "prompt_tokens": [1, 2], "output_tokens": [1, 2]}
        if field == "timestamp":
            del columns["arrival_s"]
        path = trace(parquet(**columns | {field: ARROW[kind]})).path
        for option in ("", "--strict", "--fit"):
            answered(Path(path), option)
    capsys.readouterr()


def test_a_typed_column_of_a_table_says_its_own_unit(trace):
    """A duration of 500 ms in a column of seconds is 0.5 s; a decimal is a number; a date is a time."""
    lengths = {"prompt_tokens": pyarrow.array([Decimal(7), Decimal(8)]), "output_tokens": [1, 2]}
    spans = pyarrow.array([0, 500], pyarrow.duration("ms"))
    result = trace(parquet(arrival_s=spans, ttft_s=spans, **lengths)).read()
    assert rows(result) == [(0.0, 7, 1), (0.5, 8, 2)]
    assert result.recorded.ttft_s.tolist() == [0.0, 0.5]
    assert rows(trace(parquet(timestamp=ARROW["date32"], **lengths)).read())[1][0] == 86_400.0


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("arrival_s,prompt_tokens,output_tokens,prefix_ids_0\n0,1,1,1\n", "prefix_ids_0: a block of no tokens"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n4611686018427387904,1,1\n", "time is beyond the year 9999"),
        (parquet(arrival_s=[0], prompt_tokens=ARROW["time32"].slice(0, 1), output_tokens=[1]), "prompt_tokens is not a number"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_says_why(trace, content, problem):
    with pytest.raises(InputError, match=problem):
        trace(content).read()


@pytest.mark.parametrize(
    "name", ["created_at", "ts", "request_time", "Received Timestamp", "date", "started_ms", "sent_at"]
)
def test_a_time_under_a_name_that_is_not_known_is_no_burst(trace, name):
    """Read without its times, a trace would come all at once; durations are none."""
    with pytest.raises(InputError, match=f"{name} may be when requests arrive; rename it arrival_s"):
        trace(f"{name},input_tokens,output_tokens\n0,1,1\n5,2,2\n").read()
    for other in ("elapsed_time", "ttft_ms", "updated", "attempts", "latency_s"):
        assert trace(f"{other},input_tokens,output_tokens\n0,1,1\n").read().report.time_unit is None


def test_a_span_that_no_clock_can_tell_is_none(trace):
    figures = trace_statistics(trace("arrival_s,prompt_tokens,output_tokens\n0,1,1\n5e-324,2,2\n").read())
    assert figures["mean_rate_rps"] is None
    assert figures["gap_cv"] is None


def test_a_sparse_trace_of_centuries_has_its_dispersion_in_little_memory(trace):
    """3 requests in 10^10 windows of 1 s, two of them in one: n = 10^10, sums 3 and 5, so (5n - 9) / 3n."""
    result = trace("arrival_s,prompt_tokens,output_tokens\n0,1,1\n0.5,1,1\n3,1,1\n10000000000,1,1\n").read()
    n = 10**10
    assert trace_statistics(result)["iod_1s"] == pytest.approx((5 * n - 9) / (3 * n), rel=1e-12)


# --- summaries ------------------------------------------------------------------------------------------------------

SUMMED = {
    "vLLM summary": '{"request_rate": Infinity, "mean_ttft_ms": NaN, "completed": 0, "failed": 5, "duration": 1.0}',
    "SGLang summary": '{"mean_e2e_latency_ms": 2.5, "backend": "sglang"}\n',
    "AIPerf summary (JSON)": '{"schema_version": "1.4", "request_latency": {"unit": "ms", "avg": 7.5, "p50": null}}',
    "AIPerf summary (CSV)": "Metric,avg,p50\nRequest Latency (ms),7.50,\n\nMetric,Value\nRequest Count,7\n\nEndpoint,Metric,avg\na,b,3\n",
    "GuideLLM summary (CSV)": "Run Info,Timings\nID,Duration\n,Sec\nabc,1.5\nx,2\n",
    "inference-perf summary": '{"load_summary": {"count": 60}, "successes": {"latency": {"mean": 0.5}}}',
    "vLLM /metrics text": '# TYPE vllm:x gauge\nvllm:x{a="b"} 12.0\nvllm:t_bucket{le="0.1",a="b"} 2.0\n',
    "ServeGen rates": "2400,0.085,6.69,Gamma,0.02,73.0\n",
    "ServeGen lengths": '{"0": {"input_tokens": "{45: 0.5}", "output_tokens": "{}"}}',
}  # fmt: skip


def summary_kind(path):
    with opened(path) as content:
        found = recognised(content)
        return None if found is None else found.name


@pytest.mark.parametrize("kind", SUMMED)
def test_a_summary_is_recognised_and_says_what_it_is_good_for(trace, kind):
    file = trace(SUMMED[kind])
    assert summary_kind(file.path) == kind
    with pytest.raises(InputError) as error:
        file.read()
    assert error.value.problem.startswith("holds no requests, it is for ")
    assert kind in error.value.problem


def test_every_summary_is_here_and_a_trace_is_none(trace):
    assert set(SUMMED) == {kind.name for kind in SUMMARIES}
    assert summary_kind(trace(FILES["plain"][1]).path) is None


# --- the samples of the shared folder -------------------------------------------------------------------------------

READ = {
    "aiperf_profile_export.jsonl": ("aiperf", 7), "azure_2023.csv": ("azure", 3), "azure_2024.csv": ("azure", 6),
    "azure_lmm_2025.csv": ("azure_lmm", 3), "bailian_qwen.jsonl": ("bailian", 2), "burstgpt_v1.csv": ("burstgpt", 3),
    "burstgpt_v2_session.csv": ("burstgpt", 3), "dynamo_request_trace_v1.jsonl": ("dynamo", 1),
    "guidellm_benchmarks.json": ("guidellm", 3), "inference_perf_per_request_lifecycle_metrics.json": ("inference_perf", 4),
    "llmperf_individual_responses.json": ("llmperf", 4), "llmservingsim_requests.jsonl": ("llmservingsim_bench", 1),
    "mooncake_trace.jsonl": ("mooncake", 4), "mooncake_trace_aiperf_session.jsonl": ("mooncake", 3),
    "sglang_bench_serving.jsonl": ("sglang", 4), "vidur_lengths_only.csv": ("vidur_lengths", 2),
    "vidur_trace.csv": ("vidur", 3), "vllm_bench_serve_detailed.json": ("vllm", 4), "vllm_otel_span.json": ("otel", 1),
}  # fmt: skip
SUMMED_UP = {
    "aiperf_profile_export_aiperf.csv": "AIPerf summary (CSV)", "aiperf_profile_export_aiperf.json": "AIPerf summary (JSON)",
    "guidellm_benchmarks.csv": "GuideLLM summary (CSV)", "inference_perf_stage_0_lifecycle_metrics.json": "inference-perf summary",
    "servegen_chunk-0-dataset.json": "ServeGen lengths", "servegen_chunk-0-trace.csv": "ServeGen rates",
    "vllm_bench_serve_append.json": "vLLM summary", "vllm_bench_serve_summary.json": "vLLM summary",
    "vllm_bench_serve_summary_old.json": "vLLM summary", "vllm_metrics.prom": "vLLM /metrics text",
    "vllm_nan_inf.json": "vLLM summary",
}  # fmt: skip


@needs_shared
def test_every_sample_is_read_or_answered_in_one_line():
    read, summed, others = {}, {}, set()
    for path in [*sorted(SHARED.glob("samples/*.*")), SHARED / "samples/hostile/vllm_nan_inf.json"]:
        try:
            result = TraceFile(str(path)).read()
            read[path.name] = (result.report.format, len(result.columns))
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017
            found = summary_kind(str(path))
            if found is None:
                others.add(path.name)
            else:
                summed[path.name] = found
    assert read == READ
    assert summed == SUMMED_UP
    assert others == {"EXPECTED_vllm_metrics.json", "llmd_benchmark_report_v0_2_example.yaml"}


KEYS = {
    "azure": ("ContextTokens", "GeneratedTokens"), "azure_lmm": ("ContextTokens", "GeneratedTokens"),
    "burstgpt": ("Request tokens", "Response tokens"), "vidur": ("num_prefill_tokens", "num_decode_tokens"),
    "vidur_lengths": ("num_prefill_tokens", "num_decode_tokens"), "mooncake": ("input_length", "output_length"),
    "bailian": ("input_length", "output_length"), "llmservingsim_bench": ("input_toks", "output_toks"),
}  # fmt: skip


@needs_shared
@pytest.mark.parametrize("name", [name for name, (form, _) in READ.items() if form in KEYS])
def test_flat_samples_hold_what_json_and_csv_alone_find_in_them(name):
    path = SHARED / "samples" / name
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        head, *table = [line.strip().split(",") for line in text.splitlines() if line.strip()]
        found = [dict(zip(head, row, strict=True)) for row in table]
    else:
        found = [json.loads(line) for line in text.splitlines() if line.strip()]
    prompt, output = KEYS[READ[name][0]]
    pairs = sorted((int(row[prompt]), int(row[output])) for row in found)
    lengths = TraceFile(str(path)).read().columns.lengths
    assert sorted(zip(*(side.tolist() for side in lengths), strict=True)) == [pair for pair in pairs if pair[1]]


@needs_shared
@pytest.mark.parametrize("name", [*READ, *SUMMED_UP])
@given(data=st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cut_samples_never_end_in_anything_but_an_input_error(trace, name, data):
    folder = "samples/hostile" if name == "vllm_nan_inf.json" else "samples"
    content = (SHARED / folder / name).read_bytes()
    content = content[: data.draw(st.integers(0, len(content)))]
    for on_bad_row in ("error", "skip"):
        try:
            trace(content, on_bad_row=on_bad_row).read()
        except InputError as error:
            assert str(error).isprintable()  # noqa: PT017
    summary_kind(trace(content).path) if content.strip() else None


@needs_shared
def test_recorded_runs_of_the_shared_folder():
    paths = sorted(SHARED.glob("measured/*/runs/*.csv.gz"))
    assert len(paths) >= 11
    for path in paths:
        recorded = TraceFile(str(path)).read().recorded
        assert len(recorded) >= 300
        assert not np.isnan(recorded.e2e_s).any()
        assert (recorded.e2e_s >= recorded.ttft_s).all()
        assert all(a <= b for a, b in pairwise(recorded.arrival_s))
        assert (recorded.sent_s - recorded.arrival_s > -0.01).all()
