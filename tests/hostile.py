"""Hostile values, documents with one of them in a place, and the rule that every command keeps whatever it is given.

The rule: it exits with 0, 1 or 2; 2 is said in one line on standard error (runs of a sweep that cannot be: a line for
each reason), nothing else is said there; and it ends, within memory that has a bound.
"""

from __future__ import annotations

import contextlib
import copy
import io
import resource
import signal
import warnings
from pathlib import Path

from hypothesis import strategies as st

from servecast.cli import app

LONGEST_S, MORE_BYTES = 120, 3 << 30  # of one command: far above what any takes, below what a hang or a leak does
MEGABYTE = "x" * (1 << 20)

#: By type, at every magnitude; then what a text file can hold instead of a value.
NUMBERS = [
    0, -1, 1, 2, 1.5, 1e-9, 5e-324, -5e-324, 1e15, 1e300, -1e300, 10**6, 10**9, 2**31, 2**53, 2**63 - 1, 2**63, 2**70,
    10**400, float("inf"), float("-inf"), float("nan"),
]  # fmt: skip
OTHERS = [
    None, True, False, "", "abc", "100ms", "1e400", "0x10", "2020-01-01", "١٢", "\0", "a\nb", "e\u0301\u202e", "x" * 5000,
    [], {}, [[]], [None], [1e300, 1e300], [0, 100], {"kind": "fixed", "tokens": 10**9}, {"a": {"b": []}}, [[[[[[[1]]]]]]],
]  # fmt: skip
values = st.sampled_from([*NUMBERS, *OTHERS]) | st.integers() | st.floats() | st.text(max_size=20)


class TooLongError(BaseException):
    """A command that does not end."""


def _too_long(*_):
    raise TooLongError


@contextlib.contextmanager
def _bounded():
    """Within so many seconds, and so much more memory than there is now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    previous = signal.signal(signal.SIGALRM, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MORE_BYTES, limits[1]))
    signal.alarm(LONGEST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, previous)


def ends_well(*arguments: object) -> tuple[int, str]:
    """Run a command here; the rule holds. Its status, and what it said on standard error."""
    out, err = io.StringIO(), io.StringIO()
    with _bounded(), warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        warnings.simplefilter("error", RuntimeWarning)
        try:
            app.main([str(argument) for argument in arguments])
        except SystemExit as end:
            status = end.code
    said = err.getvalue()
    lines = said.splitlines()
    assert status in (0, 1, 2), (status, said)
    assert len(said) < 2000 * max(len(lines), 1), said[:500]
    assert not said.startswith("memory:"), said
    if status == 2:
        usage = [line for line in lines if line.startswith(("Usage:", "Try ")) or not line.strip("│╭╮╰╯─ ")]
        alike = len(lines) - len(usage) == 1 or len({line.split(" (", 1)[0] for line in lines}) == 1
        assert lines and alike, said
    else:
        assert not said, said
    return status, said


def places(node, path=()):
    """Every key path in plain data."""
    if isinstance(node, dict | list):
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield (*path, key)
            yield from places(child, (*path, key))


def placed(data, path, value):
    """A copy with one value at a key path; without what is there if ``value`` is `Ellipsis`."""
    made = copy.deepcopy(data)
    node = made
    for part in path[:-1]:
        node = node[part]
    if value is ...:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return made


@st.composite
def mutated(draw, data):
    """Plain data with one to three values somewhere that do not belong there, or missing."""
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(data))
        if found:
            data = placed(data, draw(st.sampled_from(found)), draw(values | st.just(...)))
    return data
