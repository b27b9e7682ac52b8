"""LLMServingSim: its data sets (CSV or JSON lines, ``arrival_time_ns``), and what its bench records of a real engine.

A bench row has ``queued_ts``, ``scheduled_ts``, ``first_token_ts`` and ``last_token_ts`` on one monotonic clock [s],
and ``arrival_time`` on another, the wall clock: only the first is read, so a request arrives when the engine queues
it. Source: github.com/casys-kaist/LLMServingSim.
"""

from typing import Any

from servecast.workload.traces.delimited import Delimited, Layout, fixed
from servecast.workload.traces.json_lines import JsonLines
from servecast.workload.traces.rows import Found, Malformed, Row, moment_in, tokens_in

_COLUMNS = "arrival_time_ns,input_toks,output_toks"
_LAYOUT = Layout("arrival_time_ns", "input_toks", "output_toks", unit="ns")
_CLOCK = ("queued_ts", "first_token_ts", "last_token_ts")


def _recorded(row: dict[str, Any]) -> Row:
    queued, first, last = (moment_in(row, name) for name in _CLOCK)
    if not queued <= first <= last:
        raise Malformed("queued_ts, first_token_ts and last_token_ts decrease", f"{queued}, {first}, {last}")
    prompt, output = tokens_in(row, "input_toks"), tokens_in(row, "output_toks")
    return Row(queued, prompt, output, ttft_s=first - queued, e2e_s=last - queued)


LLMSERVINGSIM = JsonLines(
    "llmservingsim",
    f"JSON lines with {_COLUMNS}",
    lambda row: row.keys() >= set(_COLUMNS.split(",")),
    _LAYOUT.row,
    _LAYOUT,
)
LLMSERVINGSIM_CSV = Delimited("llmservingsim_csv", f"CSV with the columns {_COLUMNS}", fixed(_COLUMNS, unit="ns"))
LLMSERVINGSIM_BENCH = JsonLines(
    "llmservingsim_bench",
    "JSON lines with input_toks, output_toks and queued_ts",
    lambda row: row.keys() >= {"input_toks", "output_toks", "queued_ts"},
    _recorded,
    Found(),
)
