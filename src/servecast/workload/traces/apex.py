"""APEX: CSV with ``StartTimeOffset`` [ns], ``ContextTokens``, ``GeneratedTokens``; offsets exceed 32 bits.

``SynthesizedBody`` may be there, quoted; it is not read. Source: github.com/microsoft/apex_plus.
"""

from servecast.workload.traces.delimited import Delimited, fixed

_COLUMNS = "StartTimeOffset,ContextTokens,GeneratedTokens"

APEX = Delimited("apex", f"CSV with the columns {_COLUMNS}", fixed(_COLUMNS, without="TIMESTAMP", unit="ns"))
