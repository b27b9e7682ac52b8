"""Turns what pydantic found into what a user needs: where (key path and line), the value, the remedy; on one line."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import BaseModel

from servecast.errors import InputError, SlipError
from servecast.scenario.bounds import Most
from servecast.scenario.keypath import written
from servecast.text import either, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

    from servecast.scenario.document import Document, KeyPath

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SUFFIX_WORDS = {"_s": "seconds", "_rps": "requests per second", "_tokens": "tokens", "_hour": "US dollars"}
#: Of pydantic: what is wrong whatever else stands beside it; and, given text, too.
_SLIPS = ("extra_forbidden", "union_tag_invalid", "literal_error")
_NUMBERS = ("int_type", "float_type", "bool_type")
_MAPPINGS = ("dict_type", "model_type", "model_attributes_type")
#: What pydantic wanted to see, in words.
_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list, [...]",
    **dict.fromkeys(_MAPPINGS, "a mapping, {key: value}"),
    "invalid_key": "keys that are text",
}
#: Limits as a sentence and as an interval have them.
_LIMITS = {
    "gt": ("above {:g}", "({:g}"),
    "ge": ("of at least {:g}", "[{:g}"),
    "lt": ("below {:g}", "{:g})"),
    "le": ("of at most {:g}", "{:g}]"),
}


def input_error(
    error: ValidationError,
    schema: type[BaseModel],
    data: object,
    document: Document | None,
    overridden: Iterable[KeyPath] = (),
) -> InputError:
    """The first thing to mend (an unknown key first: it often explains a missing one), and how many there are besides.

    ``overridden`` are key paths whose values came from options, not from the document.
    """
    found = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    first = found[0]
    location, kind = first["loc"], first["type"]
    if location[-1:] == ("[key]",):  # pydantic's mark of a key that is itself wrong
        return InputError(f"scenario.{written(location[:-2])}", f"the key {first['input']!r} is no text: quote it")
    path = (*_untagged(location, data), *first.get("ctx", {}).get("at", ()))
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        path = (*path, "kind")
    notes = []
    if any(path[: len(above)] == above for above in overridden):
        notes.append("from an option")
    elif document:
        line = document.line(path)
        notes.append(f"{document.source}:{line}" if line else document.source)
    if len(found) > 1:
        notes.append(f"and {len(found) - 1} more to mend")
    problem = _problem(first, path, schema, data) + (f" ({', '.join(notes)})" if notes else "")
    slip = kind in _SLIPS or (isinstance(first["input"], str) and kind in _NUMBERS)
    return (SlipError if slip else InputError)(f"scenario.{written(path)}" if path else "scenario", problem)


def _problem(detail: ErrorDetails, path: KeyPath, schema: type[BaseModel], data: object) -> str:
    """The value and the remedy."""
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    _, field = _walk(schema, path, data)
    wanted = f" ({field.description})" if field is not None and field.description else ""
    if kind == "extra_forbidden":
        return _unknown_key(path, schema, data)
    if kind == "missing":
        return f"missing: add {path[-1]}{wanted}"
    if kind == "remedy":
        given = context.get("value", value)
        return (f"{shown(given)}: " if isinstance(given, str | int | float) else "") + str(context["remedy"])
    if kind == "union_tag_not_found":
        return f"missing: add kind: {either(_kinds_in(_walk(schema, path[:-1], data)[1]))}"
    if kind == "union_tag_invalid":
        kinds = [tag.strip("' ") for tag in str(context["expected_tags"]).split(",")]
        return f"{shown(context['tag'])} is unknown: {_nearest(str(context['tag']), kinds)}"
    if kind == "literal_error":
        choices = [part.strip("' ") for part in re.split(r", | or ", str(context["expected"]))]
        return f"{shown(value)} is unknown: {_nearest(str(value), choices)}"
    if isinstance(value, str) and kind in _NUMBERS:
        return _text_for_number(value, kind, str(path[-1]), wanted)
    if kind == "int_type" and isinstance(value, float) and value.is_integer() and abs(value) <= 1 << 53:
        return f"{shown(value)} is not written as a whole number: write {int(value)}"
    if kind == "finite_number" or kind.startswith(("greater_than", "less_than")):
        wrong = "not finite" if kind == "finite_number" else "out of range"
        return f"{shown(value)} is {wrong}: give a number {_range(field, kind)}{wanted}"
    if kind in {"string_too_long", "too_long"}:
        units = "characters" if isinstance(value, str) else "entries"
        return f"{shown(value)} has {len(value):,} {units}: give at most {context['max_length']}{wanted}"
    if kind == "string_pattern_mismatch":
        return f"{shown(value)} is not allowed here: give{wanted}"
    if kind in {"too_short", "string_too_short"}:
        return f"{shown(value)} is empty: give at least one{wanted}"
    if kind in _MAPPINGS and (kinds := _kinds_in(field)):
        example = f"{{kind: fixed, tokens: {shown(value)}}}" if "fixed" in kinds else f"{{kind: {kinds[0]}, ...}}"
        return f"{shown(value)} is {_named(value)}: give a mapping with its kind ({either(kinds)}), as {example}"
    if value is None:
        return f"nothing is given (null): give {_WANTED.get(kind, 'a value')}{wanted}"
    if kind not in _WANTED:  # pydantic's own words are a sentence
        return f"{shown(value)} cannot stand here: {detail['msg'][:1].lower()}{detail['msg'][1:]}{wanted}"
    return f"{shown(value)} is {_named(value)}: give {_WANTED[kind]}{wanted}"


def _unknown_key(path: KeyPath, schema: type[BaseModel], data: object) -> str:
    key = str(path[-1])
    section, field = _walk(schema, path[:-1], data)
    known = list(section.model_fields) if section is not None else []
    others = {name for other in _siblings(field) for name in other.model_fields}
    if section is not None and key in others:
        return f"kind {_kinds(section)[0]} has no such key: take it out (its keys are {', '.join(known)})"
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
    longer = [name for name in known if name.startswith(key + "_")]
    if near or longer:
        return f"unknown key: did you mean {(longer or near)[0]}?"
    elsewhere = [where for name, where in _keys(schema, ()) if name == key]
    if elsewhere:
        return f"unknown key here: it stands under {elsewhere[0]}"
    return f"unknown key: the keys here are {', '.join(known)}"


def _text_for_number(text: str, kind: str, key: str, wanted: str) -> str:
    """Text where a number is wanted: most often a unit was written."""
    match = re.fullmatch(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z%/]*)\s*", text)
    unit = next((word for suffix, word in _SUFFIX_WORDS.items() if key.endswith(suffix)), None)
    if kind == "bool_type":
        return f"{shown(text)} is text: give true or false{wanted}"
    whole = "a whole number" if kind == "int_type" else "a bare number"
    if match and match[2]:
        scale = _SECONDS.get(match[2].lower()) if key.endswith("_s") else None
        example = f", {float(match[1]) * scale:g}" if scale else ""
        named = f" in {unit}" if unit else ""
        ending = "" if unit else wanted
        return f"{shown(text)} has a unit: the unit stands in the key, give {whole}{named}{example}{ending}"
    if match:
        return f"{shown(text)} is text: take the quotes off{wanted}"
    return f"{shown(text)} is text: give {whole}{wanted}"


def _range(field: FieldInfo | None, kind: str) -> str:
    """``in (0, 1]``, or ``above 0``: the limits of a field, those inside an optional type too.

    Of a quantity that is bounded for a reason, the limit that a value of this ``kind`` of error breaks, and the reason.
    """
    limits: dict[str, list[str]] = {}
    most = None
    pending: list[Any] = [] if field is None else [*field.metadata, field.annotation]
    while pending:
        item = pending.pop(0)
        most = item if isinstance(item, Most) else most
        for name, forms in _LIMITS.items():
            if hasattr(item, name):
                limits[name[0]] = [form.format(getattr(item, name)).replace("e+0", "e") for form in forms]
        metadata = getattr(item, "__metadata__", ()) or getattr(item, "metadata", ())
        if isinstance(metadata, tuple | list):
            pending.extend(metadata)
        if get_origin(item) is not Literal:
            pending.extend(get_args(item))
    if most is not None and kind.startswith("less_than"):
        return f"of at most {most.value:,.0f}, since {most.why}"
    if most is not None:
        limits.pop("l", None)
    if len(limits) == 2:
        return f"in {limits['g'][1]}, {limits['l'][1]}"
    return next(iter(limits.values()), ["that is finite"])[0]


def _untagged(location: tuple[str | int, ...], data: object) -> KeyPath:
    """The key path of an error: pydantic's location without the ``kind`` it adds after each choice."""
    path: list[str | int] = []
    node: object = data
    fresh = True  # the tag comes right after entering the mapping it tells apart
    for part in location:
        fresh = not (fresh and isinstance(node, dict) and "kind" in node and part == node["kind"])
        if fresh:
            path.append(part)
            node = _child(node, part)
    return tuple(path)


def _child(node: object, part: str | int) -> object:
    if isinstance(node, dict):
        return node.get(part)
    if isinstance(node, list | tuple) and isinstance(part, int) and part < len(node):
        return node[part]
    return None


def _walk(schema: type[BaseModel], path: KeyPath, data: object) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The section that a key path leads to (of several the one of the ``kind`` that the data has there), and its field.

    A key of a mapping that the scenario's author names has no section, and the field of the mapping.
    """
    section: type[BaseModel] | None = schema
    field, node, choices = None, data, [schema]
    for part in path:
        node = _child(node, part)
        if isinstance(part, str):
            field = section.model_fields.get(part) if section is not None else field
            choices = list(_sections_in(field.annotation)) if section is not None and field is not None else []
        kind = node.get("kind") if isinstance(node, dict) else None
        section = next((one for one in choices if len(choices) == 1 or kind in _kinds(one)), None)
    return section, field


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)


def _kinds(section: type[BaseModel]) -> tuple[str, ...]:
    field = section.model_fields.get("kind")
    return get_args(field.annotation) if field is not None else ()


def _siblings(field: FieldInfo | None) -> list[type[BaseModel]]:
    """The sections of any ``kind`` that can be the value of a field."""
    return [section for section in _sections_in(field.annotation) if _kinds(section)] if field is not None else []


def _kinds_in(field: FieldInfo | None) -> list[str]:
    return [kind for section in _siblings(field) for kind in _kinds(section)]


def _keys(schema: type[BaseModel], above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Every key of the schema, with the section it stands in."""
    for name, field in schema.model_fields.items():
        if above:
            yield name, ".".join(above)
        for section in _sections_in(field.annotation):
            yield from _keys(section, (*above, name))


def _nearest(word: str, choices: list[str]) -> str:
    near = difflib.get_close_matches(word, choices, n=1)
    return f"did you mean {near[0]}? It can be {either(choices)}" if near else f"give {either(choices)}"


def _named(value: object) -> str:
    names = {bool: "a truth value", str: "text", int: "a number", float: "a number", dict: "a mapping"}
    return names.get(type(value), "a list")
