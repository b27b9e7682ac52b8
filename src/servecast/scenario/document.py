"""Reads a scenario's YAML: plain data, and the line on which each key stands.

YAML 1.2 scalars, because those of 1.1 surprise: ``1e9`` is a number here, ``on`` and ``no`` are words, ``010`` is ten
and ``1:30`` is no number. A key given twice is refused instead of the last one winning. ruamel.yaml was tried: it takes
``inf`` for text and ``!x 1`` for a value, wraps every value in types of its own, and parses at 0.4 of the speed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import yaml

from servecast.errors import InputError
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
_MOST_VALUES, _DEEPEST = 200_000, 32
#: What PyYAML's constructors raise besides its own errors: !!int abc, a million digits, brackets a thousand deep.
_NO_VALUE = (ValueError, AttributeError, OverflowError, RecursionError)


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
        root, data = _parsed(text)
    except yaml.YAMLError as error:
        raise InputError(*_syntax(path, error)) from None
    except _NO_VALUE as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())[:120]
        raise InputError(str(path), f"holds what is no value ({why}): write plain numbers and text") from None
    if root is None or data is None:
        raise InputError(f"{path}:1", "the file is empty: a scenario names at least a model, a workload and policies")
    if not isinstance(data, dict):
        found = "a list" if isinstance(data, list) else repr(data)
        raise InputError(f"{path}:{root.start_mark.line + 1}", f"{found} is no mapping: write lines of 'key: value'")
    return Document(str(path), data, root)


def value(text: str, place: str) -> object:
    """The value of an option such as ``--set key=VALUE``, read as the scenario file would read it."""
    try:
        return _parsed(text)[1]
    except (yaml.YAMLError, *_NO_VALUE):
        raise InputError(place, f"{shown(text)} is not a YAML value: quote it") from None


def _parsed(text: str) -> tuple[yaml.Node | None, Any]:
    """The tree of nodes and the plain data of one document; None and None where it is empty."""
    loader = _Loader(text)
    root = loader.get_single_node()
    if root is None:
        return None, None
    _written_out(root, {})
    return root, loader.construct_document(root)


def _written_out(node: yaml.Node, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Values in a node, and how deep, with every alias written out: a few lines of aliases can hold billions.

    known : of nodes seen; infinite while one is at work, so that one within itself is too deep
    """
    if id(node) not in known:
        known[id(node)] = (0, _DEEPEST)
        inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        parts = [] if isinstance(inner, str) else [_written_out(part, known) for part in inner]
        size, depth = 1 + sum(size for size, _ in parts), 1 + max((depth for _, depth in parts), default=0)
        if size > _MOST_VALUES or depth > _DEEPEST:
            said = f"{size:,} values" if size > _MOST_VALUES else f"values more than {_DEEPEST} levels deep"
            problem = f"with its aliases written out this holds {said}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        known[id(node)] = size, depth
    return known[id(node)]


class _Loader(yaml.SafeLoader):
    """The safe loader with the scalars of YAML 1.2 and no repeated keys."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (the loader's own protocol)
    #: Plain data alone: no dates, bytes or sets.
    yaml_constructors = {  # noqa: RUF012
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.endswith((":null", ":bool", ":int", ":float", ":str", ":seq", ":map"))
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge" or not isinstance(key_node, yaml.ScalarNode):
                continue
            if key_node.value in seen:
                problem = f"key {key_node.value!r} stands twice in one mapping"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9][0-9_]*", list("-+0123456789")),
    "float": (
        r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.?(inf|Inf|INF)|\.?(nan|NaN|NAN)",
        list("-+.0123456789iInN"),
    ),
    "merge": (r"<<", ["<"]),
}
for _tag, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value.replace("_", "")))
_Loader.add_constructor(
    "tag:yaml.org,2002:float",
    lambda _, node: float(node.value.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan")),
)


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
