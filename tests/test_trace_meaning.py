"""What the rows of each format mean: units, whole prompts, and the tokens that a prefix cache finds, by hand."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import servecast
from servecast.cli import trace as command
from servecast.errors import InputError
from servecast.workload.traces.trace_file import TraceFile

SHARED = Path(os.environ.get("SERVECAST_SHARED", Path(__file__).parents[1] / ".." / "shared"))
needs_shared = pytest.mark.skipif(not (SHARED / "tried/traces").is_dir(), reason=f"trace files are not there: {SHARED}")


@pytest.fixture
def trace(tmp_path):
    """Writes JSON lines, and gives the file with options."""

    def written(*rows, **options):
        path = tmp_path / "trace.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return TraceFile(str(path), **options)

    return written


def mooncake(timestamp, prompt, ids=None, **more):
    row = {"timestamp": timestamp, "input_length": prompt, "output_length": 5} | more
    return row if ids is None else row | {"hash_ids": ids}


def computed(path, block_size, **options):
    """Prompt tokens that each request computes in an engine with prefix caching, one after another."""
    scenario = {
        "name": "t", "model": "qwen3-14b", "profile": "h100-qwen3-14b-ops", "engine": {"block_size": block_size},
        "workload": {"trace": {"path": str(path), **options}},
        "policies": [{"kind": "continuous", "enable_prefix_caching": True, "max_num_seqs": 1}],
    }  # fmt: skip
    text = Path(path).parent / "t.yaml"
    text.write_text(json.dumps(scenario), encoding="utf-8")
    decisions = servecast.simulate(servecast.load(text)).decisions
    return [int(tokens) for tokens in decisions.prefill_tokens if tokens]


#: file of the shared folder: (format, unit, arrivals, prompts)
TRIED = {
    "aiperf_sessions.jsonl": ("mooncake", "ms", [0, 0.5, 1.0], [1000, 1000 + 200 + 50, 1250 + 200 + 50]),
    "dynamo_alias.jsonl": ("mooncake", "ms", [0, 0.105], [200, 130]),
    "dynamo_trace.jsonl": ("dynamo", "ms", [0, 2.0], [200, 200]),
    "guidellm_trace.jsonl": ("timed_trace", "s", [0, 0.5], [256, 512]),
    "litellm_hex.jsonl": ("mooncake", "ms", [0, 0.01], [700, 700]),
    "mooncake64.jsonl": ("mooncake", "ms", [0, 0.105], [200, 130]),
    "weka.jsonl": ("weka", "s", [0, 4.0], [200, 300]),
}  # fmt: skip


@needs_shared
@pytest.mark.parametrize("name", TRIED)
def test_a_tried_file_has_the_unit_and_the_lengths_of_its_format(name):
    form, unit, arrivals, prompts = TRIED[name]
    result = TraceFile(str(SHARED / "tried/traces" / name)).read()
    assert (result.report.format, result.report.time_unit) == (form, unit)
    assert result.columns.arrival_s.tolist() == pytest.approx(arrivals)
    assert result.columns.prompt_tokens.tolist() == prompts


@needs_shared
def test_every_tried_file_is_read_or_refused_in_one_line():
    for path in sorted((SHARED / "tried/traces").iterdir()):
        try:
            TraceFile(str(path)).read()
        except InputError as error:
            assert str(error).isprintable()  # noqa: PT017


@pytest.mark.parametrize(
    ("rows", "block_size", "expected"),
    [
        # 3 hashes of 64 are shared: 192 tokens, which are 12 blocks of 16, 8 of 24, and 1 of 128
        ("dynamo", 16, [200, 8]), ("dynamo", 24, [200, 8]), ("dynamo", 128, [200, 72]),
        # 2 ids of 64: 128 tokens, which are 8 of 16, 5 of 24 (120), and 1 of 128
        ("mooncake64", 16, [200, 2]), ("mooncake64", 24, [200, 10]), ("mooncake64", 128, [200, 2]),
        # one id of 512: 32 of 16, 21 of 24 (504)
        ("hex", 16, [700, 188]), ("hex", 24, [700, 196]),
        # 3 full blocks of 64: 192 tokens
        ("weka", 16, [200, 108]), ("weka", 128, [200, 172]),
    ],
)  # fmt: skip
def test_prefixes_are_found_whatever_the_two_block_sizes(trace, rows, block_size, expected):
    def dynamo(received, hashes):
        replay = {"trace_block_size": 64, "input_length": 200, "input_sequence_hashes": hashes}
        request = {"request_received_ms": received, "output_tokens": 5, "replay": replay}
        return {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request}

    hashes = ["9f2a41c07be6d310", "aa11bb22cc33dd44", "0xEE11BB22CC33DD44"]
    kinds = {
        "dynamo": [dynamo(10**12, [2**63 + 1, 12, 13, 14]), dynamo(10**12 + 2000, [2**63 + 1, 12, 13, 15])],
        "mooncake64": [mooncake(0, 200, [1, 2, 3, 4]), mooncake(2000, 130, [1, 2, 5])],
        "hex": [mooncake(0, 700, hashes[:2]), mooncake(2000, 700, hashes[::2])],
        "weka": [{"id": "c", "t": at * 4.0, "in": 200 + 100 * at, "out": 5, "hash_ids": [1, 2, 3, 4][: 3 + at]} for at in (0, 1)],
    }  # fmt: skip
    assert computed(trace(*kinds[rows]).path, block_size) == expected


def test_a_turn_finds_its_history_in_the_cache(trace):
    """Turn 2 is 1,000 + 200 + 50 tokens. All but the last of the 200 were computed: 1,199 tokens, 74 blocks of 16, so
    it computes 1,250 - 1,184 = 66. Turn 3 has 1,500 of which 1,449 were: 90 blocks, so 60."""
    first = {"session_id": "a", "timestamp": 0, "input_length": 1000, "output_length": 200}
    later = {"session_id": "a", "delay": 500, "input_length": 50, "output_length": 200}
    assert computed(trace(first, later, later).path, 16) == [1000, 66, 60]
    assert computed(trace(first, later, later).path, 16, turns="whole") == [1000, 50, 50]


def test_a_first_turn_shares_its_ids_with_other_sessions_and_later_ones_their_history(trace):
    """512 tokens are one id of both sessions; b then has 188 of its own. a's second turn knows 700 + 4 of 5 answered."""
    rows = [
        mooncake(0, 700, [1, 2], session_id="a"),
        mooncake(1000, 700, [1, 3], session_id="b"),
        mooncake(2000, 95, [4], session_id="a"),
    ]
    result = trace(*rows).read()
    assert result.columns.prompt_tokens.tolist() == [700, 700, 800]
    assert computed(trace(*rows).path, 16) == [700, 188, 800 - 704]


def test_sessions_whose_ids_say_the_history_again_have_whole_prompts(trace):
    rows = [mooncake(0, 600, [1, 2], session_id="a"), mooncake(900, 1200, [1, 2, 3], session_id="a")]
    assert trace(*rows).read().columns.prompt_tokens.tolist() == [600, 1200]
    assert trace(*rows, turns="new").read().columns.prompt_tokens.tolist() == [600, 600 + 5 + 1200]
    with pytest.raises(InputError, match="say if lengths are new or whole with turns: new or turns: whole"):
        trace(*rows, mooncake(950, 600, [7, 8], session_id="a")).read()


def test_a_block_that_is_partial_in_one_row_and_full_in_another_is_refused(trace):
    """700 tokens end 188 into the second block of 512, which 1,024 tokens fill; a turn may go on where it ended."""
    rows = [mooncake(0, 700, [1, 2]), mooncake(1000, 1024, [1, 2])]
    for content in (rows, rows[::-1], [rows[0], mooncake(1000, 800, [1, 2])]):
        with pytest.raises(InputError, match=r"hash id 2 stands for \d+ tokens here and for \d+ in row 1"):
            trace(*content, on_bad_row="skip").read()
    grown = [row | {"session_id": "a"} for row in rows]
    assert trace(*grown).read().columns.prompt_tokens.tolist() == [700, 1024]


def test_the_block_size_is_said_or_told(trace):
    rows = [mooncake(0, 96, [1, 2]), mooncake(1000, 90, [1, 3])]  # blocks of 48, or 64: 2 ids each
    assert trace(*rows).read().report.prefix_block_size == 64
    assert trace(*rows, block_size=48).read().report.prefix_block_size == 48
    assert trace({"block_size": 48}, *rows).read().report.prefix_block_size == 48
    assert trace(*(row | {"block_size": 48} for row in rows)).read().report.prefix_block_size == 48
    with pytest.raises(InputError, match="block_size is not 48 as in the rows before"):
        trace(rows[0] | {"block_size": 48}, rows[1] | {"block_size": 64}).read()
    with pytest.raises(InputError, match="hash_ids are not one for each 512 tokens"):
        trace(mooncake(0, 100, [1, 2]), mooncake(1000, 90, [1, 3, 4])).read()


def test_a_dynamo_request_without_an_arrival_has_that_of_its_end_less_its_time(trace):
    def event(ended, **request):
        more = {"output_tokens": 5, "replay": {"input_length": 9}} | request
        return {
            "schema": "dynamo.request.trace.v1",
            "event_type": "request_end",
            "event_time_unix_ms": ended,
            "request": more,
        }

    result = trace(event(5000, request_received_ms=1000), event(5000, total_time_ms=3500), event(4000)).read()
    assert result.columns.arrival_s.tolist() == [0, 0.5, 3.0]
    assert "1 requests have no time of arrival: that of their end is taken" in result.report.notes


def test_long_sessions_take_little_memory_and_share_just_their_history(trace):
    """20,000 turns of one session, each one token and an answer of one: turn i has 2i + 1 tokens, and no other's."""
    turns = [{"session_id": "a", "timestamp": at, "input_length": 1, "output_length": 1} for at in range(20_000)]
    columns = trace(*turns, {"session_id": "b", "timestamp": 0, "input_length": 40, "output_length": 1}).read().columns
    assert max(columns.prompt_tokens.tolist()) == 39_999
    assert len(columns.prefix_ids.flat) == 20_000  # the text without ids of a session is one, that grows
    few = columns.take(np.array([0, 1, 30, 60]), np.zeros(4)).in_blocks(16).prefix_ids
    assert [columns.session[row] for row in (0, 1)] == ["a", "b"]
    assert len(few[1]) == 0  # nobody shares with b: its only turn has no known prefix
    assert few[2] == few[3][: len(few[2])]


def test_hash_ids_of_a_turn_without_an_answer_do_not_grow(trace):
    rows = [
        mooncake(0, 512, [1], session_id="a", output_length=0),
        mooncake(9, 32, session_id="a"),
        mooncake(20, 1024, [1, 2]),
    ]
    result = trace(*rows, turns="new").read()
    blocks = list(result.columns.in_blocks(16).prefix_ids)
    assert result.columns.prompt_tokens.tolist() == [544, 1024]
    assert blocks[0][:32] == blocks[1][:32]
    assert blocks[0][32] != blocks[1][32]


def test_sessions_without_times_start_at_once_and_go_on_at_once(trace):
    """AIPerf's own example of turns has no time; a turn with neither time nor delay follows the answer."""
    turn = {"session_id": "a", "input_length": 30, "output_length": 4}
    result = trace(turn, turn | {"delay": 2000, "input_length": 15}, turn | {"input_length": 5}).read()
    assert result.columns.arrival_s.tolist() == [0, 2.0, 2.0]
    assert result.columns.delay_s.tolist()[1:] == [2.0, 0.0]
    assert result.columns.prompt_tokens.tolist() == [30, 30 + 4 + 15, 49 + 4 + 5]


def test_a_block_size_that_the_format_itself_has_is_refused(trace):
    row = {
        "chat_id": 1,
        "parent_chat_id": -1,
        "timestamp": 1,
        "input_length": 32,
        "output_length": 1,
        "hash_ids": [1, 2],
    }
    with pytest.raises(InputError, match="block_size is 64, but bailian says itself what an id stands for"):
        trace(row, block_size=64).read()


def test_graphs_of_agents_are_no_mooncake_trace(trace):
    header = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 4}
    row = {
        "request_id": "r",
        "session_id": "s",
        "input_length": 4,
        "output_length": 2,
        "hash_ids": [1],
        "not_before_ms": 0,
        "dependencies": [],
    }
    with pytest.raises(InputError, match="is of no known trace format"):
        trace(header, row).read()


@needs_shared
def test_every_shared_file_ends_in_a_table_or_in_one_line(capsys):
    """`servecast trace`, as it is called: exit 0 or an InputError, whatever lies there."""
    for folder in ("tried/traces", "samples", "samples/hostile"):
        for path in sorted(one for one in (SHARED / folder).iterdir() if one.is_file()):
            for strict in (False, True):
                try:
                    command.trace([path], strict=strict)
                except InputError as error:
                    assert str(error).isprintable()  # noqa: PT017
    capsys.readouterr()
