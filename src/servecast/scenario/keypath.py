"""Key paths: how ``--set`` and ``sweep`` name one value of a scenario.

``policies[0].batch_size`` and ``policies.0.batch_size`` are the same. ``policies[*].batch_size`` is every policy that
has that key in the file. Below ``sweep`` the rest is one key, because those keys are key paths themselves.
"""

from __future__ import annotations

import copy
import difflib
import re
from typing import TYPE_CHECKING, Any

from servecast.errors import SlipError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from servecast.scenario.document import KeyPath

_PARTS = re.compile(r"[^.\[\]\s]+")
_PATH = re.compile(r"[^.\[\]\s]+(?:\.[^.\[\]\s]+|\[(?:[0-9]+|\*)\])*")


def parse(text: str, place: str) -> KeyPath:
    """The parts of a key path: names, list positions, and ``*`` for every item of a list."""
    if text.startswith("sweep."):
        return ("sweep", text.removeprefix("sweep."))
    if not _PATH.fullmatch(text):
        raise SlipError(place, f"{text!r} is no key path: write it like slo.ttft_s or policies[0].batch_size")
    return tuple(int(part) if part.isdecimal() else part for part in _PARTS.findall(text))


def written(path: Iterable[str | int]) -> str:
    """A key path as errors and columns show it: ``policies[0].batch_size``."""
    parts = (f"[{part}]" if isinstance(part, int) or part == "*" else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def assign(node: Any, path: KeyPath, value: object, place: str, above: KeyPath = ()) -> None:
    """Set one value in place. Mappings on the way that are missing (or null) are made; list items must be there.

    above : the key path of ``node``
    """
    part, rest = path[0], path[1:]
    if part == "*":
        for at in _having(node, rest, place, above):
            assign(node[at], rest, value, place, (*above, at))
        return
    if isinstance(node, list):
        if not isinstance(part, int) or part >= len(node):
            names = f"0 to {len(node) - 1}" if node else "none, it is empty"
            raise SlipError(place, f"{written((*above, part))} is not there: the items of {written(above)} are {names}")
    elif isinstance(node, dict):
        part = str(part)
        if rest and node.get(part) is None:
            node[part] = {}
    else:
        raise SlipError(place, f"{written(above)} is {node!r} and has no keys: set it whole instead")
    if rest:
        assign(node[part], rest, value, place, (*above, part))
    else:
        node[part] = copy.deepcopy(value)


def _having(node: Any, rest: KeyPath, place: str, above: KeyPath) -> list[int]:
    """The items of a list that ``[*]`` stands for: those that already have the key; at least one must."""
    if not isinstance(node, list) or not rest:
        problem = f"'*' stands for the items of a list, and {written(above) or 'the scenario'} is none there"
        raise SlipError(place, problem)
    items = [item if isinstance(item, dict) else {} for item in node]
    having = [at for at, item in enumerate(items) if rest[0] in item]
    if not having:
        known = sorted({str(key) for item in items for key in item})
        near = difflib.get_close_matches(str(rest[0]), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"their keys are {', '.join(known) or 'none'}"
        raise SlipError(place, f"no item of {written(above)} has the key {rest[0]!r}: {hint}")
    return having
