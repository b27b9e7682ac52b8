"""APEX: CSV with ``StartTimeOffset`` [ns], ``ContextTokens``, ``GeneratedTokens``; offsets exceed 32 bits.

Offsets are those of the arrivals from the start of the trace; ``ContextTokens`` are the whole prompt.

``SynthesizedBody`` may be there, quoted; it is not read. Source: github.com/microsoft/apex_plus.
"""

from servecast.workload.traces.delimited import Delimited, fixed

_COLUMNS = "StartTimeOffset,ContextTokens,GeneratedTokens"

APEX = Delimited("apex", f"CSV with the columns {_COLUMNS}", fixed(_COLUMNS, without="TIMESTAMP", unit="ns"))
