"""Vidur and Sarathi: CSV with ``num_prefill_tokens,num_decode_tokens``, and ``arrived_at`` [s] where it is a trace.

``num_prefill_tokens`` are the whole prompt. Without times they are lengths alone. Source: github.com/microsoft/vidur,
data/processed_traces.
"""

from servecast.workload.traces.delimited import Delimited, fixed

_LENGTHS = "num_prefill_tokens,num_decode_tokens"

VIDUR = Delimited("vidur", f"CSV with the columns arrived_at,{_LENGTHS}", fixed(f"arrived_at,{_LENGTHS}"))
VIDUR_LENGTHS = Delimited(
    "vidur_lengths",
    f"CSV with the columns {_LENGTHS} and no times",
    fixed(f",{_LENGTHS}", without="arrived_at"),
)
