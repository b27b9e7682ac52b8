"""Reads a scenario's YAML: plain data, and the line on which each key stands.

The language is that of `plain_yaml`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import yaml

from servecast.errors import InputError
from servecast.plain_yaml import NO_VALUE, parsed, why
from servecast.text import shown

if TYPE_CHECKING:
    from pathlib import Path

#: Where a value stands in a scenario: keys of mappings and positions in lists.
KeyPath: TypeAlias = tuple[str | int, ...]


class Document(NamedTuple):
    """One YAML file: its ``data``, and the tree of nodes that knows the lines."""

    source: str
    data: dict[Any, Any]
    root: yaml.Node

    def line(self, path: KeyPath) -> int | None:
        """The line of the value at ``path``, or of the nearest key above it; None if it is not in the file at all."""
        node, line = self.root, None
        for part in path:
            if (found := _child(node, part)) is None:
                break
            line, node = found
        return line


_LARGEST_BYTES = 1 << 20  # a scenario that comes near this holds data, not settings


def read(path: Path) -> Document:
    """Parse one scenario file. Errors are one line that starts with ``file:line``."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            problem = f"is larger than {_LARGEST_BYTES >> 20} MiB: a scenario names its data, it holds none"
            raise InputError(str(path), problem)
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(str(path), f"not text in UTF-8 (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror}): name a scenario file") from None
    try:
        root, data = parsed(text)
    except yaml.YAMLError as error:
        raise InputError(*_syntax(path, error)) from None
    except NO_VALUE as error:
        raise InputError(str(path), f"holds what is no value ({why(error)}): write plain numbers and text") from None
    if root is None or data is None:
        raise InputError(f"{path}:1", "the file is empty: a scenario names at least a model, a workload and policies")
    if not isinstance(data, dict):
        found = "a list" if isinstance(data, list) else shown(data)
        raise InputError(f"{path}:{root.start_mark.line + 1}", f"{found} is no mapping: write lines of 'key: value'")
    return Document(str(path), data, root)


def value(text: str, place: str) -> object:
    """The value of an option such as ``--set key=VALUE``, read as the scenario file would read it."""
    try:
        return parsed(text)[1]
    except (yaml.YAMLError, *NO_VALUE):
        raise InputError(place, f"{shown(text)} is not a YAML value: quote it") from None


def _child(node: yaml.Node, part: str | int) -> tuple[int, yaml.Node] | None:
    """The line of a key (or list position) in ``node``, and the node of its value."""
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.value == str(part):
                return key_node.start_mark.line + 1, value_node
    elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        item = node.value[part]
        return item.start_mark.line + 1, item
    return None


#: By PyYAML's own words: what is wrong, and the remedy.
_REMEDIES = {
    "'\\t'": "a tab stands where YAML wants spaces: indent with spaces",
    "but found another document": "a second document starts here ('---'): one file holds one scenario",
    "stands twice": "{problem}: keep one",
    "aliases written out": "{problem}: a scenario names its data, it holds none",
    "could not determine a constructor": "{problem}: a scenario is plain data, take the '!' tag out",
    "expected alphabetic or numeric character": "a * stands for a YAML alias here: quote the key path, "
    '"policies[*].batch_size"',
}


def _syntax(path: Path, error: yaml.YAMLError) -> tuple[str, str]:
    """Place and problem of a YAML error, on one line."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
    problem = " ".join(str(getattr(error, "problem", None) or getattr(error, "reason", None) or error).split())
    for words, remedy in _REMEDIES.items():
        if words in problem:
            return place, remedy.format(problem=problem)
    return place, f"not YAML ({problem}): check colons, brackets, quotes and the indent of this line"
