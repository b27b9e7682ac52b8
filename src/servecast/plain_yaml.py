"""YAML as plain data: numbers, text, lists and mappings, of a size and depth that have a bound.

Scalars are those of YAML 1.2, because those of 1.1 surprise: ``1e9`` is a number here, ``on`` and ``no`` are words,
``010`` is ten, ``1:30`` is no number and a date is text. A key given twice is refused instead of the last one winning,
and so are aliases that blow up a few lines to billions of values. ruamel.yaml was tried: it takes ``inf`` for text and
``!x 1`` for a value, wraps every value in types of its own, and parses at 0.4 of the speed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import yaml

from servecast.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

_MOST_VALUES, _DEEPEST = 200_000, 32
#: What PyYAML's constructors raise besides its own errors: !!int abc, a million digits, brackets a thousand deep.
NO_VALUE = (ValueError, AttributeError, OverflowError, RecursionError)


def read(path: Path) -> Any:
    """The plain data of a file. Raises InputError with the path for whatever it cannot be read for."""
    try:
        return parsed(path.read_text(encoding="utf-8-sig"), fast=True)[1]
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror}): give an existing file") from None
    except (yaml.YAMLError, *NO_VALUE) as error:
        raise InputError(str(path), f"is not YAML of plain data ({why(error)}): mend it") from None


def why(error: Exception) -> str:
    """What was wrong, in a few words."""
    return "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())[:200]


def parsed(text: str, fast: bool = False) -> tuple[yaml.Node | None, Any]:
    """The tree of nodes and the plain data of one document; None and None where it is empty.

    fast : read in C, whose errors say less
    """
    loader = _FastLoader(text) if fast else _Loader(text)
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
        if isinstance(node, yaml.MappingNode):
            _refuse_repeated(node)
        inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        parts = [] if isinstance(inner, str) else [_written_out(part, known) for part in inner]
        size, depth = 1 + sum(size for size, _ in parts), 1 + max((depth for _, depth in parts), default=0)
        if size > _MOST_VALUES or depth > _DEEPEST:
            said = f"{size:,} values" if size > _MOST_VALUES else f"values more than {_DEEPEST} levels deep"
            problem = f"with its aliases written out this holds {said}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        known[id(node)] = size, depth
    return known[id(node)]


def _refuse_repeated(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
            if key.value in seen:
                problem = f"key {key.value!r} stands twice in one mapping"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)


#: Of plain data alone: no dates, bytes or sets.
_CONSTRUCTORS = {
    tag: make
    for tag, make in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.endswith((":null", ":bool", ":str", ":seq", ":map"))
}


class _Loader(yaml.SafeLoader):
    """The safe loader with the scalars of YAML 1.2; its nodes know their lines, and its errors have words."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 (the loader's own protocol)
    yaml_constructors: ClassVar[dict[Any, Any]] = dict(_CONSTRUCTORS)


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same language read in C where PyYAML has it: tables are long."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 (the loader's own protocol)
    yaml_constructors: ClassVar[dict[Any, Any]] = dict(_CONSTRUCTORS)


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
for _loader in (_Loader, _FastLoader):
    for _tag, (_pattern, _first) in _SCALARS.items():
        _loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)
    _loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value.replace("_", "")))
    _loader.add_constructor(
        "tag:yaml.org,2002:float",
        lambda _, node: float(node.value.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan")),
    )
