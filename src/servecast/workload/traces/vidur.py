"""Vidur and Sarathi: CSV with ``num_prefill_tokens,num_decode_tokens``, and ``arrived_at`` [s] where it is a trace.

Without times they are lengths alone. Source: github.com/microsoft/vidur, data/processed_traces.
"""

from __future__ import annotations

from servecast.workload.traces.delimited import Delimited, Layout, fixed

_LENGTHS = "num_prefill_tokens,num_decode_tokens"

VIDUR = Delimited("vidur", f"CSV with the columns arrived_at,{_LENGTHS}", fixed(f"arrived_at,{_LENGTHS}"))


def _lengths(header: list[str], _: list[str]) -> Layout | None:
    if not set(_LENGTHS.split(",")) <= set(header) or "arrived_at" in header:
        return None
    prompt, output = _LENGTHS.split(",")
    return Layout(None, prompt, output)


VIDUR_LENGTHS = Delimited("vidur_lengths", f"CSV with the columns {_LENGTHS} and no times", _lengths)
