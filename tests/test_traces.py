"""Trace files: each format as its users have it, every way a file can be broken, and what is taken of a good one."""

import csv
import gzip
import json
import os
import random
import statistics
import tracemalloc
from bisect import bisect_left
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servecast.errors import InputError
from servecast.workload.traces.readers import PLAIN_READERS, READERS
from servecast.workload.traces.statistics import trace_statistics
from servecast.workload.traces.trace_file import TraceFile

SHARED = Path(os.environ.get("SERVECAST_SHARED", Path(__file__).parents[1] / ".." / "shared"))
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"sample traces are not there: {SHARED}")

AZURE_2023 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
    "2023-11-16 18:15:50.9951690,879,55"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-12 00:00:00.001163+00:00,1452,3\n"
    "2024-05-12 00:00:01+00:00,1224,11\n"
    "2024-05-12 00:00:01.5+00:00,1,1\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
    '{"timestamp": 0, "input_length": 512, "output_length": 6, "hash_ids": [0]}\n'
    '{"timestamp": 3000, "input_length": 1, "output_length": 7}\n'
)
PLAIN = "arrival_s,prompt_tokens,output_tokens\n0,10,1\n0.25,20,2\n1,30,3\n"
SAMPLES = {"azure-2023": AZURE_2023, "azure-2024": AZURE_2024, "mooncake": MOONCAKE, "plain": PLAIN}


@pytest.fixture
def trace(tmp_path):
    """Writes a trace file, and gives it with options."""

    def written(text, **options):
        path = tmp_path / "trace.txt"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return TraceFile(str(path), **options)

    return written


def rows(result):
    columns = result.columns
    return list(
        zip(columns.arrival_s.tolist(), columns.prompt_tokens.tolist(), columns.output_tokens.tolist(), strict=True)
    )


def rejected(result):
    return {one.reason: one.lines for one in result.report.rejected}


def plain(*lines):
    return "\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]) + "\n"


# --- formats --------------------------------------------------------------------------------------------------------


def test_azure_2023_keeps_seven_digits_crlf_and_a_last_line_without_end(trace):
    result = trace(AZURE_2023).read()
    assert rows(result) == [(0.0, 374, 44), (4.314579, 396, 109), (4.314579, 879, 55)]
    assert result.report.format == "azure"
    assert result.report.notes == ("times are absolute: 2023-11-16 18:15:46.680590 UTC is now 0 s",)
    assert result.report.rows_read == result.report.rows_used == 3
    ticks = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0000000,1,1\n2023-11-16 18:15:46.0000001,1,1\n"
    )
    assert trace(ticks).read().columns.arrival_s.tolist() == [0.0, 1e-7]


def test_azure_2024_reads_zones_and_whole_seconds(trace):
    assert rows(trace(AZURE_2024).read()) == [(0.0, 1452, 3), (0.998837, 1224, 11), (1.498837, 1, 1)]


@pytest.mark.parametrize(
    "written",
    ["2024-05-12T01:00:01Z", "2024-05-12 01:00:01.000Z", "2024-05-12 03:00:01+02:00", "2024-05-11 19:30:01-0530"],
)
def test_azure_reads_any_zone_and_takes_none_as_utc(trace, written):
    text = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 01:00:00,1,1\n{written},2,2\n"
    assert rows(trace(text).read()) == [(0.0, 1, 1), (1.0, 2, 2)]


def test_azure_reads_mixed_zones_in_one_file(trace):
    text = AZURE_2024 + "2024-05-12 01:00:02.0+01:00,3,3\n2024-05-12 00:00:03,4,4\n"
    assert [round(arrival_s, 6) for arrival_s, _, _ in rows(trace(text).read())[-2:]] == [1.998837, 2.998837]


def test_columns_are_found_by_name_in_any_order(trace):
    text = 'output_tokens,"arrival_s", prompt_tokens ,model\n7,0.5,3,a\n"8",1.5,"4",b\n'
    assert rows(trace(text).read()) == [(0.0, 3, 7), (1.0, 4, 8)]


def test_mooncake_is_in_milliseconds_and_keeps_prefixes(trace):
    result = trace(MOONCAKE).read()
    assert rows(result) == [(0.0, 600, 5), (0.0, 512, 6), (3.0, 1, 7)]
    assert [request.prefix_ids for request in result.columns] == [(0, 1), (0,), ()]
    assert result.report.prefix_block_size == 512
    assert result.report.time_unit == "ms"


def test_mooncake_without_ids_has_no_prefixes(trace):
    text = '{"timestamp": 10.5, "input_length": 6.0, "output_length": 5, "hash_ids": []}\n'
    result = trace(text).read()
    assert result.columns.prefix_ids is None
    assert result.report.prefix_block_size is None
    assert rows(result) == [(0.0, 6, 5)]


def test_pfx_07_hash_ids_are_not_cut_to_32_bits(trace):
    text = '{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 4294967297]}\n'
    assert next(iter(trace(text).read().columns)).prefix_ids == (1, 4294967297)


@pytest.mark.parametrize(
    "text",
    [
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens,More\n2024-10-15T12:00:00.269Z,0,770,491,1\n",
        '{"chat_id": 1, "timestamp": 61.1, "input_length": 40, "output_length": 132}\n',
        '{"timestamp": 0, "input_length": 600}\n',
        "arrived_at,num_prefill_tokens\n0,1\n",
        "0,1,1\n",
        "[]\n",
        "{}\n",
        "null\n",
        "[" * 100_000,
        "no trace at all",
    ],
)
def test_other_formats_are_refused_with_the_list_of_those_that_are_read(trace, text):
    file = trace(text)
    with pytest.raises(InputError) as error:
        file.read()
    assert error.value.place == file.path
    cut = text.startswith("[[")  # looks like JSON, and is none
    beginning = "starts like JSON, which is cut" if cut else "is of no known trace format: it starts with '"
    assert error.value.problem.startswith(beginning)
    if cut:
        return
    assert all(reader.name in error.value.problem for reader in (*READERS, *PLAIN_READERS))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def test_a_named_format_is_checked(trace):
    assert len(trace(PLAIN, format="plain").read().columns) == 3
    with pytest.raises(InputError, match="is not of the format azure: CSV with the columns TIMESTAMP"):
        trace(PLAIN, format="azure").read()
    with pytest.raises(InputError, match="no trace format is called 'csv'; formats: azure, azure_lmm"):
        trace(PLAIN, format="csv").read()


def test_two_formats_that_fit_are_an_error_that_lists_them(trace, monkeypatch):
    monkeypatch.setattr("servecast.workload.traces.trace_file.READERS", (*READERS, READERS[0]))
    with pytest.raises(InputError, match="fits more than one format; choose with format: one of azure, azure"):
        trace(AZURE_2023).read()


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize(
    "disguise",
    [
        lambda data: gzip.compress(data),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: gzip.compress(b"\xef\xbb\xbf" + data),
        lambda data: data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
        lambda data: data.replace(b"\r\n", b"\n").replace(b"\n", b"\r"),
        lambda data: data.rstrip(),
        lambda data: b"\n \n" + data + b"\n\n\t\n",
        lambda data: data.replace(b"\n", b"\n\n"),
    ],
    ids=["gzip", "bom", "gzip-bom", "crlf", "cr", "no-end", "blank-around", "blank-between"],
)
def test_the_same_rows_in_any_disguise(trace, name, disguise):
    data = SAMPLES[name].encode()
    expected = rows(trace(data).read())
    assert rows(trace(disguise(data)).read()) == expected


def test_blank_lines_are_counted_and_keep_line_numbers_right(trace):
    result = trace("\n" + plain("0,1,1", "", "1,0,1", " ", "2,1,1")).read()
    assert result.report.blank_lines == 3
    assert rejected(result) == {"no prompt tokens": (5,)}


# --- broken rows ------------------------------------------------------------------------------------------------------

BAD_PLAIN = [
    ("nan,1,1", "arrival_s is not finite"),
    ("inf,1,1", "arrival_s is not finite"),
    ("1e999,1,1", "arrival_s is not finite"),
    (",1,1", "arrival_s is missing"),
    ("-5,1,1", "arrival_s is negative"),
    ("1e30,1,1", "arrival_s is too large"),
    ("soon,1,1", "arrival_s is not a number"),
    ("1_0,1,1", "arrival_s is not a number"),
    ("\u0663,1,1", "arrival_s is not a number"),
    ("1,-5,1", "prompt_tokens is negative"),
    ("1,1.5,1", "prompt_tokens is not a whole number"),
    ("1,,1", "prompt_tokens is missing"),
    ("1,NaN,1", "prompt_tokens is not finite"),
    ("1,1,abc", "output_tokens is not a number"),
    ("1,1,1_000", "output_tokens is not a number"),
    ("1,1,99999999999999999999", "output_tokens is above 1,000,000,000"),
    ("1,1," + "9" * 5000, "output_tokens is not finite"),
    ("1,1,2000000000", "output_tokens is above 1,000,000,000"),
    ("1,1", "row without 3 fields"),
    ("1,1,1,1", "row without 3 fields"),
    ("1,1,\ufffd", "output_tokens is not a number"),
    ("arrival_s,prompt_tokens,output_tokens", "arrival_s is not a number"),
]


@pytest.mark.parametrize(("row", "reason"), BAD_PLAIN)
def test_wrk_05_a_malformed_row_is_an_error_with_its_line_number(trace, row, reason):
    file = trace(plain("0,1,1", row, "2,3,4"))
    with pytest.raises(InputError) as error:
        file.read()
    assert error.value.place == f"{file.path}:3"
    assert error.value.problem.startswith(reason)
    assert "on_bad_row: skip" in error.value.problem
    assert "\n" not in str(error.value)
    result = trace(plain("0,1,1", row, "2,3,4"), on_bad_row="skip").read()
    assert rows(result) == [(0.0, 1, 1), (2.0, 3, 4)]
    assert rejected(result) == {reason: (3,)}


BAD_AZURE = [
    ("2023-11-16,1,1", "TIMESTAMP is not a date and time"),
    ("2023-02-30 00:00:00,1,1", "TIMESTAMP is not a date and time"),
    ("2023-11-16 25:00:00,1,1", "TIMESTAMP is not a date and time"),
    ("now,1,1", "TIMESTAMP is not a date and time"),
    ("NaT,1,1", "TIMESTAMP is not a date and time"),
    ("1700158546.68,1,1", "TIMESTAMP is not a date and time"),
    (",1,1", "TIMESTAMP is missing"),
    ("9999-01-01 00:00:00,1,1", "TIMESTAMP is outside the years 1700 to 2261"),
    ("1600-01-01 00:00:00,1,1", "TIMESTAMP is outside the years 1700 to 2261"),
    ("2023-11-16 18:15:50,1,-1", "GeneratedTokens is negative"),
]


@pytest.mark.parametrize(("row", "reason"), BAD_AZURE)
def test_wrk_05_azure_rows(trace, row, reason):
    good = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:50.000,1,1\n"
    with pytest.raises(InputError) as error:
        trace(good + row).read()
    assert error.value.place.endswith(":3")
    assert error.value.problem.startswith(reason)
    assert rejected(trace(good + row, on_bad_row="skip").read()) == {reason: (3,)}


BAD_MOONCAKE = [
    ('{"input_length": 1, "output_length": 1}', "timestamp is missing"),
    ('{"timestamp": null, "input_length": 1, "output_length": 1}', "timestamp is missing"),
    ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "timestamp is not finite"),
    ('{"timestamp": -5, "input_length": 1, "output_length": 1}', "timestamp is negative"),
    ('{"timestamp": 1e30, "input_length": 1, "output_length": 1}', "timestamp is too large"),
    ('{"timestamp": 1, "input_length": "1000", "output_length": 1}', "input_length is not a number"),
    ('{"timestamp": 1, "input_length": true, "output_length": 1}', "input_length is not a number"),
    ('{"timestamp": 1, "input_length": 1.5, "output_length": 1}', "input_length is not a whole number"),
    ('{"timestamp": 1, "input_length": 1, "output_length": -3}', "output_length is negative"),
    ('{"timestamp": 1, "input_length": 1, "output_length": Infinity}', "output_length is not finite"),
    (
        '{"timestamp": 1, "input_length": 1, "output_length": 1' + "0" * 400 + "}",
        "output_length is above 1,000,000,000",
    ),
    ('{"timestamp": 1, "input_length": 1, "output_length": 1' + "0" * 5000 + "}", "row is not JSON"),
    (
        '{"timestamp": 1, "input_length": 1000, "output_length": 3, "hash_ids": [1]}',
        "hash_ids are not one for each 512 tokens of the prompt",
    ),
    (
        '{"timestamp": 1, "input_length": 5, "output_length": 3, "hash_ids": ["z"]}',
        "hash_ids is not a list of whole numbers",
    ),
    (
        '{"timestamp": 1, "input_length": 5, "output_length": 3, "hash_ids": 7}',
        "hash_ids is not a list of whole numbers",
    ),
    (
        '{"timestamp": 1, "input_length": 5, "output_length": 3, "hash_ids": ""}',
        "hash_ids is not a list of whole numbers",
    ),
    ('{"timestamp": 40, "', "row is not JSON"),
    ("[" * 100_000, "row is not JSON"),
    ("[1, 2]", "row is not a JSON object"),
    ("7", "row is not a JSON object"),
]


@pytest.mark.parametrize(("row", "reason"), BAD_MOONCAKE)
def test_wrk_05_mooncake_rows(trace, row, reason):
    text = MOONCAKE + row
    with pytest.raises(InputError) as error:
        trace(text).read()
    assert error.value.place.endswith(":4")
    assert error.value.problem.startswith(reason)
    assert len(str(error.value)) < 400
    assert rejected(trace(text, on_bad_row="skip").read()) == {reason: (4,)}
    if reason != "timestamp is missing" or "null" in row:  # the first line that is an object tells the format
        assert rejected(trace(row + "\n" + MOONCAKE, on_bad_row="skip").read()) == {reason: (1,)}


def test_the_first_malformed_row_of_the_file_is_the_one_reported(trace):
    with pytest.raises(InputError) as error:
        trace(plain("0,1,1", "1,-1,1", "nan,1,1")).read()
    assert error.value.place.endswith(":3")


def test_met_23_rows_that_cannot_be_served_are_rejected_and_counted(trace):
    result = trace(plain("5,0,1", "6,4,0", "7,0,0", "8,1,1")).read()
    assert rows(result) == [(0.0, 1, 1)]
    assert rejected(result) == {"no prompt tokens": (2, 4), "no output tokens": (3,)}
    assert [str(one) for one in result.report.rejected] == [
        "2 rows: no prompt tokens (lines 2, 4)",
        "1 row: no output tokens (line 3)",
    ]


def test_rejections_show_an_example_and_at_most_ten_lines(trace):
    result = trace(plain("0,1,1", *["1,x\t,1"] * 25), on_bad_row="skip").read()
    assert str(result.report.rejected[0]) == (
        "25 rows: prompt_tokens is not a number, for example 'x' (lines 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 15 more)"
    )
    assert result.report.rejected[0].lines == tuple(range(3, 28))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file is empty"),
        ("\n\n  \n", "the file is empty"),
        ("arrival_s,prompt_tokens,output_tokens", "has no rows below its header"),
        (
            plain("0,0,1", "1,1,0"),
            "none of its 2 rows can be served: 1 row: no prompt tokens (line 2); 1 row: no output",
        ),
        (b"PAR1\0\0\0\0", "its Parquet data is damaged or cut"),
        (b"PAR2\0\0\0\0", "is not UTF-8 text"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n".encode("utf-16"), "is not UTF-8 text"),
        (gzip.compress(PLAIN.encode() * 100, mtime=0)[:-20], "its gzip stream is damaged or cut"),
        (b"\x1f\x8b" + b"x" * 50, "its gzip stream is damaged or cut"),
        (b"\x1f\x8b", "its gzip stream is damaged or cut"),
        (gzip.compress(b"", mtime=0), "the file is empty"),
    ],
)
def test_a_file_without_a_single_request_is_an_error(trace, text, problem):
    file = trace(text, on_bad_row="skip")
    with pytest.raises(InputError) as error:
        file.read()
    assert error.value.place == file.path
    assert error.value.problem.startswith(problem)


def test_a_file_that_is_not_there_or_is_a_folder_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        TraceFile(str(tmp_path / "absent.csv")).read()
    with pytest.raises(InputError, match="is a folder"):
        TraceFile(str(tmp_path)).read()
    with pytest.raises(InputError, match="cannot be read"):
        TraceFile(str(tmp_path / ("x" * 5000))).read()


# --- time -------------------------------------------------------------------------------------------------------------


def test_wrk_01_an_absolute_epoch_is_shifted_to_0_and_said(trace):
    result = trace(plain("1700000000.0,1,1", "1700000001.0,1,1")).read()
    assert result.columns.arrival_s.tolist() == [0.0, 1.0]
    assert result.report.origin_s == 1_700_000_000
    assert result.report.notes == ("times are absolute: 2023-11-14 22:13:20.000000 UTC is now 0 s",)


def test_wrk_03_an_epoch_in_the_wrong_unit_asks_for_the_right_one(trace):
    rows = plain("1700000000000,1,1", "1700000001000,1,1")
    with pytest.raises(InputError, match=r"beyond the year 9999: is its unit another \(time_unit\)"):
        trace(rows).read()
    assert trace(rows, time_unit="ms").read().columns.span_s == 1.0


def test_wrk_19_times_are_relative_to_the_first_arrival(trace):
    result = trace(plain("12.5,1,1", "13,1,1")).read()
    assert result.columns.arrival_s.tolist() == [0.0, 0.5]
    assert result.report.notes == ("the first arrival, at 12.5 s in the file, is now 0 s",)
    kept = trace(plain("12.5,1,1", "13,1,1"), keep_offset=True).read()
    assert kept.columns.arrival_s.tolist() == [12.5, 13.0]
    assert kept.report.origin_s == 0
    assert kept.report.notes == ()


@pytest.mark.parametrize("text", [plain("1700000000.0,1,1"), AZURE_2023])
def test_wrk_01_a_clock_cannot_be_kept(trace, text):
    with pytest.raises(InputError, match=r"arrivals start at 17\d{8} s, a clock's time; leave keep_offset out"):
        trace(text, keep_offset=True).read()


def test_wrk_03_milliseconds_are_not_seconds_and_ties_keep_the_order_of_the_file(trace):
    lines = [{"timestamp": 3000 * (at // 5), "input_length": at + 1, "output_length": 1} for at in range(10)]
    result = trace("\n".join(map(json.dumps, lines)), format="mooncake").read()
    assert result.columns.span_s == 3.0
    assert result.columns.arrival_s.tolist() == [0.0] * 5 + [3.0] * 5
    assert result.columns.prompt_tokens.tolist() == list(range(1, 11))


def test_wrk_03_the_unit_can_be_given(trace):
    result = trace(plain("0,1,1", "3000,1,1"), time_unit="ms").read()
    assert result.columns.span_s == 3.0
    assert result.report.time_unit == "ms"
    assert result.report.notes == ("times are read as ms, not as s as plain has them",)
    assert trace(plain("0,1,1", "3000,1,1"), time_unit="ns").read().columns.span_s == 3e-6
    with pytest.raises(InputError, match="time_unit is ms, but azure has dates"):
        trace(AZURE_2023, time_unit="ms").read()


def test_wrk_07_unsorted_rows_are_sorted_stably_and_said(trace):
    result = trace(plain("5,1,1", "1,2,2", "3,3,3", "1,4,4")).read()
    assert rows(result) == [(0.0, 2, 2), (0.0, 4, 4), (2.0, 3, 3), (4.0, 1, 1)]
    assert result.report.out_of_order == 2
    assert result.report.notes[-1] == "time steps back 2 times, first at line 3: sorted"
    assert [request.id for request in result.columns] == [0, 1, 2, 3]


def test_wrk_07_sorting_takes_the_prefixes_along(trace):
    lines = [{"timestamp": 9 - at, "input_length": 5, "output_length": at + 1, "hash_ids": [at]} for at in range(9)]
    columns = trace("\n".join(map(json.dumps, lines))).read().columns
    assert [request.prefix_ids for request in columns] == [(at,) for at in reversed(range(9))]
    assert [request.output_tokens for request in columns] == list(range(9, 0, -1))


def test_wrk_17_a_long_gap_is_kept(trace):
    assert trace(plain("0,1,1", "1000000,1,1")).read().columns.arrival_s.tolist() == [0.0, 1e6]
    nanoseconds = plain("0,1,1", "3000000000,1,1")  # beyond 2^31
    assert trace(nanoseconds, time_unit="ns").read().columns.arrival_s.tolist() == [0.0, 3.0]


# --- what is taken ----------------------------------------------------------------------------------------------------

TEN = plain(*[f"{100 + at},{at + 1},{10 * (at + 1)}" for at in range(10)])


def test_a_slice_includes_its_start_and_excludes_its_end(trace):
    result = trace(TEN, start_s=2, duration_s=3).read()
    assert rows(result) == [(0.0, 3, 30), (1.0, 4, 40), (2.0, 5, 50)]
    assert result.report.outside_slice == 7
    assert result.report.origin_s == 102
    assert len(trace(TEN, start_s=9).read().columns) == 1
    with pytest.raises(InputError, match=r"no request lies in the slice from 9\.5 s; the trace spans 9 s"):
        trace(TEN, start_s=9.5).read()


def test_longer_requests_are_left_out_and_counted(trace):
    result = trace(TEN, start_s=1, max_prompt_tokens=8, max_output_tokens=40).read()
    assert result.columns.prompt_tokens.tolist() == [2, 3, 4]
    assert rejected(result) == {"prompt_tokens above 8": (10, 11), "output_tokens above 40": (6, 7, 8, 9)}
    with pytest.raises(InputError, match="none of the 3 requests in the slice is within the limits"):
        trace(TEN, start_s=7, max_prompt_tokens=7).read()


def test_wrk_21_rate_scale_2_is_twice_as_fast_and_says_so(trace):
    result = trace(TEN, rate_scale=2).read()
    assert result.columns.arrival_s.tolist() == [at / 2 for at in range(10)]
    assert result.report.notes[-1] == "rate_scale 2: 1 requests/s become 2"
    sliced = trace(TEN, start_s=2, duration_s=3, rate_scale=0.5).read()
    assert sliced.columns.arrival_s.tolist() == [0.0, 2.0, 4.0]


def test_liv_13_more_requests_than_rows_is_an_error(trace):
    with pytest.raises(InputError) as error:
        trace(PLAIN).read(requests=10)
    assert error.value.problem == (
        "10 requests are asked for, but there are 3 rows to take them from; "
        "ask for fewer, or repeat the trace with cycle: true"
    )
    with pytest.raises(InputError, match="0 requests are asked for"):
        trace(PLAIN).read(requests=0)


def test_liv_13_or_the_trace_is_cycled_and_says_so(trace):
    result = trace(PLAIN, cycle=True).read(requests=10)
    assert len(result.columns) == 10
    assert result.report.cycles == 4
    assert result.report.rows_used == 3
    assert result.report.notes == ("cycled 4 times: 10 requests from 3 rows",)
    # the period is the span and one mean gap, so that the rate holds
    assert result.columns.arrival_s.tolist() == [0, 0.25, 1, 1.5, 1.75, 2.5, 3, 3.25, 4, 4.5]
    assert result.columns.prompt_tokens.tolist() == [10, 20, 30] * 3 + [10]
    assert trace(plain("7,1,1"), cycle=True).read(requests=3).columns.arrival_s.tolist() == [0.0, 0.0, 0.0]


def test_fewer_requests_are_the_first_of_the_slice(trace):
    result = trace(TEN, start_s=2).read(requests=3)
    assert result.columns.prompt_tokens.tolist() == [3, 4, 5]
    assert result.report.beyond_requests == 5
    assert result.report.outside_slice == 2


@pytest.mark.parametrize(
    "options",
    [
        {"start_s": -1},
        {"start_s": float("nan")},
        {"start_s": float("inf")},
        {"duration_s": 0},
        {"duration_s": float("nan")},
        {"rate_scale": 0},
        {"rate_scale": float("inf")},
        {"rate_scale": float("nan")},
        {"max_prompt_tokens": 0},
        {"max_output_tokens": -1},
        {"time_unit": "minutes"},
        {"on_bad_row": "ignore"},
    ],
)
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} is .*must"):
        TraceFile("t.csv", **options)


ROW = st.tuples(st.integers(0, 20), st.integers(0, 6), st.integers(0, 6))


@given(
    table=st.lists(ROW, min_size=1, max_size=30),
    start=st.integers(0, 10),
    duration=st.one_of(st.none(), st.integers(1, 10)),
    limit=st.one_of(st.none(), st.integers(1, 6)),
    requests=st.one_of(st.none(), st.integers(1, 40)),
    cycle=st.booleans(),
    careful=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_row_is_in_exactly_one_place(trace, table, start, duration, limit, requests, cycle, careful):
    """Against a few lines of plain Python; ``careful`` adds a blank line, which must not change anything."""
    good = [(line, *row) for line, row in enumerate(table, 2) if row[1] and row[2]]
    first = min((arrival for _, arrival, _, _ in good), default=0)
    inside = [row for row in sorted(good, key=lambda row: row[1]) if start <= row[1] - first]
    inside = [row for row in inside if duration is None or row[1] - first < start + duration]
    expected = [row for row in inside if limit is None or row[2] <= limit]
    text = plain(*(",".join(map(str, row)) for row in table)) + "\n" * careful
    file = trace(text, start_s=start, duration_s=duration, max_prompt_tokens=limit, cycle=cycle)
    wanted = requests or len(expected)
    if not expected or (wanted > len(expected) and not cycle):
        with pytest.raises(InputError):
            file.read(requests)
        return
    result = file.read(requests)
    report = result.report
    taken = min(wanted, len(expected))
    assert [row[1:] for row in rows(result)][:taken] == [row[2:] for row in expected[:taken]]
    assert result.columns.arrival_s[:taken].tolist() == [row[1] - expected[0][1] for row in expected[:taken]]
    assert len(result.columns) == wanted
    assert report.blank_lines == careful
    assert report.rows_read == len(table)
    assert report.rows_read == report.rows_used + report.rows_rejected + report.outside_slice + report.beyond_requests
    assert report.rows_rejected == len(table) - len(good) + len(inside) - len(expected)


# --- the samples and slices of the shared folder ----------------------------------------------------------------------


@needs_shared
def test_hostile_azure_sample():
    result = TraceFile(str(SHARED / "samples/hostile/azure_bom_blank_unsorted_dup.csv")).read()
    assert rows(result) == [(0.0, 374, 44), (0.0, 374, 44), (4.314579, 396, 109), (5.31941, 150000, 55)]
    assert rejected(result) == {"no prompt tokens": (6,), "no output tokens": (8,)}
    assert (result.report.rows_read, result.report.blank_lines, result.report.out_of_order) == (6, 1, 1)


@needs_shared
def test_hostile_mooncake_sample():
    path = str(SHARED / "samples/hostile/mooncake_bad.jsonl")
    with pytest.raises(InputError) as error:
        TraceFile(path).read()
    assert error.value.place == f"{path}:3"
    result = TraceFile(path, on_bad_row="skip").read()
    assert rows(result) == [(0.0, 1000, 3)]
    assert result.report.origin_s == 0.0105
    assert rejected(result) == {
        "no output tokens": (1,),
        "timestamp is negative": (3,),
        "hash_ids are not one for each 512 tokens of the prompt": (5,),
        "input_length is not a number": (6,),
        "row is not JSON": (7,),
    }
    assert result.report.blank_lines == 1


CUT = ["samples/azure_2023.csv", "samples/azure_2024.csv", "samples/mooncake_trace.jsonl"]
CUT += ["samples/hostile/azure_bom_blank_unsorted_dup.csv", "samples/hostile/mooncake_bad.jsonl"]


@needs_shared
@pytest.mark.parametrize("name", CUT)
@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_cuts_and_damage_never_end_in_anything_but_an_input_error(trace, name, data):
    content = bytearray((SHARED / name).read_bytes())
    start = data.draw(st.integers(0, len(content)))
    content = content[start * data.draw(st.booleans()) :][: data.draw(st.integers(0, len(content)))]
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = gzip.compress(bytes(content)) if data.draw(st.booleans()) else bytes(content)
    for on_bad_row in ("error", "skip"):
        try:
            result = trace(content, on_bad_row=on_bad_row).read()
        except InputError as error:
            assert str(error).isprintable()  # noqa: PT017
        else:
            report = result.report
            assert report.rows_read == report.rows_used + report.rows_rejected
            assert len(result.columns) == report.rows_used


def independent(path):
    """(arrivals [s], prompts, outputs) of a trace by the csv and json modules alone, in whole nanoseconds or ms."""
    with path.open(newline="", encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            lines = [json.loads(line) for line in file]
            ticks, per_second = [line["timestamp"] for line in lines], 1000
            prompts, outputs = ([line[f"{side}_length"] for line in lines] for side in ("input", "output"))
        else:
            lines = list(csv.DictReader(file))
            ticks, per_second = [], 10**7
            for line in lines:
                date, digits = line["TIMESTAMP"].split(".")
                seconds = (datetime.fromisoformat(date) - datetime(2023, 11, 16)).total_seconds()  # noqa: DTZ001
                ticks.append(int(seconds) * 10**7 + int(digits))
            prompts, outputs = ([int(line[name]) for line in lines] for name in ("ContextTokens", "GeneratedTokens"))
    return [(tick - ticks[0]) / per_second for tick in ticks], prompts, outputs


def independent_reuse(path):
    """What an infinite cache finds of a Mooncake trace, by a set of prefixes."""
    known, blocks, hits, tokens, hit_tokens = set(), 0, 0, 0, 0
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for at in range(len(row["hash_ids"])):
            prefix = tuple(row["hash_ids"][: at + 1])
            size = min(512, row["input_length"] - 512 * at)
            if prefix in known:
                hits, hit_tokens = hits + 1, hit_tokens + size
            known.add(prefix)
            blocks, tokens = blocks + 1, tokens + size
    return {"prefix_block_hit_rate": hits / blocks, "prefix_token_hit_rate": hit_tokens / tokens}


def percentile(values, percent):
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


SLICES = {
    "azure_2023_code_min00-10.csv": 1482,
    "azure_2023_conv_min00-10.csv": 2867,
    "mooncake_conversation_min00-05.jsonl": 918,
    "mooncake_synthetic_first300.jsonl": 300,
}


@needs_shared
@pytest.mark.parametrize("name", SLICES)
def test_slices_of_public_traces_have_the_statistics_that_plain_python_computes(name):
    path = SHARED / "traces" / name
    result = TraceFile(str(path)).read()
    arrival_s, prompts, outputs = independent(path)
    assert len(result.columns) == SLICES[name]
    assert rows(result) == list(zip(arrival_s, prompts, outputs, strict=True))  # exact to the last bit
    figures = trace_statistics(result)
    gaps = [b - a for a, b in pairwise(arrival_s)]
    span = arrival_s[-1]
    expected = {
        "rows_read": SLICES[name],
        "rows_rejected": 0,
        "requests": SLICES[name],
        "span_s": span,
        "mean_rate_rps": len(gaps) / span,
        "prefix_block_hit_rate": None,
        "prefix_token_hit_rate": None,
        "gap_cv": statistics.pstdev(gaps) / statistics.fmean(gaps),
        "gap_max_s": max(gaps),
    }
    for window in (1, 10, 60):
        counts = [bisect_left(arrival_s, start + window) - at for at, start in enumerate(arrival_s)]
        expected[f"peak_{window}s_rps"] = max(counts) / window
        whole = int(span // window)
        inside = [0] * whole
        for at in arrival_s:
            if at < whole * window:
                inside[int(at // window)] += 1
        iod = statistics.pvariance(inside) / statistics.fmean(inside) if whole > 1 else None
        expected[f"iod_{window}s"] = iod
    if path.suffix == ".jsonl":
        expected.update(independent_reuse(path))
    for side, values in (("prompt_tokens", prompts), ("output_tokens", outputs)):
        expected[f"{side}_mean"] = statistics.fmean(values)
        expected.update({f"{side}_p{percent}": percentile(values, percent) for percent in (50, 90, 99)})
        expected[f"{side}_min"] = min(values)
        expected[f"{side}_max"] = max(values)
    assert figures.keys() == expected.keys()
    assert figures == {
        key: value if value is None else pytest.approx(value, rel=1e-9) for key, value in expected.items()
    }


@needs_shared
def test_a_mooncake_slice_keeps_every_prefix_id():
    path = SHARED / "traces/mooncake_conversation_min00-05.jsonl"
    result = TraceFile(str(path)).read()
    expected = [tuple(json.loads(line)["hash_ids"]) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [request.prefix_ids for request in result.columns] == expected


def test_statistics_are_none_where_there_is_nothing_to_say(trace):
    figures = trace_statistics(trace(plain("3,7,9")).read())
    assert [figures[key] for key in ("span_s", "mean_rate_rps", "gap_cv", "gap_max_s")] == [0.0, None, None, None]
    assert figures["peak_1s_rps"] is None
    assert figures["prompt_tokens_p99"] == 7
    burst = trace_statistics(trace(plain("0,7,9", "0,7,9", "0,0,9")).read())
    assert (burst["requests"], burst["rows_rejected"], burst["mean_rate_rps"]) == (2, 1, None)
    json.dumps(burst, allow_nan=False)


def test_a_peak_window_may_start_anywhere(trace):
    figures = trace_statistics(trace(plain("0,1,1", "0.9,1,1", "1.1,1,1", "1.8,1,1", "1.95,1,1")).read())
    assert figures["peak_1s_rps"] == 3  # 0.9 to 1.8, and again 1.1 to 1.95; no second from 0 or 1 alone shows more
    assert figures["peak_10s_rps"] is None


# --- size -------------------------------------------------------------------------------------------------------------


def test_scl_01_a_large_file_takes_little_time_and_memory(tmp_path):
    """200,000 Azure rows in under 300 bytes each (`benchmarks/traces.py` times them)."""
    path = tmp_path / "large.csv"
    draw = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for at in range(200_000):
            file.write(
                f"2024-05-12 {at // 3600 % 24:02}:{at // 60 % 60:02}:{at % 60:02}.{draw.randrange(10**6):06}+00:00,"
            )
            file.write(f"{draw.randint(1, 8000)},{draw.randint(1, 900)}\n")
    assert len(TraceFile(str(path)).read().columns) == 200_000
    tracemalloc.start()
    TraceFile(str(path)).read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 45e6, peak


def test_a_large_file_is_the_same_across_blocks(tmp_path):
    """More rows than a block holds, a broken one in the second block, for both kinds of file."""
    n = 70_000
    table = [f"{at / 8},{at + 1},1" for at in range(n)]
    table[68_000] = "oops,1,1"
    path = tmp_path / "large.csv"
    path.write_text(plain(*table), encoding="utf-8")
    result = TraceFile(str(path), on_bad_row="skip").read()
    assert rejected(result) == {"arrival_s is not a number": (68_002,)}
    assert result.columns.prompt_tokens.tolist() == [at + 1 for at in range(n) if at != 68_000]
    np.testing.assert_array_equal(result.columns.arrival_s, (result.columns.prompt_tokens - 1) / 8)
    lines = [f'{{"timestamp": {at}, "input_length": {at + 1}, "output_length": 1}}' for at in range(20_000)]
    lines[17_000] = "{"
    path.write_text("\n".join(lines), encoding="utf-8")
    result = TraceFile(str(path), on_bad_row="skip", time_unit="ms").read()
    assert rejected(result) == {"row is not JSON": (17_001,)}
    assert len(result.columns) == 19_999
