"""Work counted instead of timed: the same number on every machine, however busy."""

from __future__ import annotations

import sys


def opcodes(call) -> int:
    """Bytecodes executed in Python by a call: what its cost is made of, whatever else the machine does."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(previous)
    return count
