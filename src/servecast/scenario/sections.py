"""What every mapping of a scenario file has in common, and mappings that a dataclass elsewhere describes.

Strict: text is no number, true is no 1, and NaN is nothing at all.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any, ClassVar, Literal, Union, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from servecast.scenario.bounds import bounded


class Section(BaseModel):
    """A mapping of the file."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )


class Described(Section):
    """A mapping whose keys are the fields of a frozen dataclass, which checks its own values."""

    described_by: ClassVar[type[Any]]

    @model_validator(mode="after")
    def _possible(self) -> Described:
        self.build()
        return self

    def build(self) -> Any:
        """The dataclass with these values."""
        try:
            return self.described_by(**self.parameters())
        except ValueError as error:
            raise _refuse_as_said(str(error), self) from None

    def parameters(self) -> dict[str, Any]:
        """The values, without ``kind`` and ``name``."""
        return {name: getattr(self, name) for name in _fields(self.described_by)}


def refuse(remedy: str, at: tuple[str | int, ...] = (), **shown: object) -> PydanticCustomError:
    """What is wrong and what to write instead; ``at`` is where below the present key, ``value`` what to show."""
    return PydanticCustomError("remedy", "{remedy}", {"remedy": remedy, "at": at, **shown})


def described(
    source: type[Any], *, kind: str | None = None, above: type[Described] = Described, **types: Any
) -> type[Described]:
    """The section that the dataclass ``source`` describes; ``types`` replace those of its fields.

    Numbers are within the bounds of their quantity (`bounds.bounded`), unless a type says otherwise.
    """
    hints = get_type_hints(source, include_extras=True)
    texts = _descriptions(source)
    fields: dict[str, Any] = {}
    if kind is not None:
        fields["kind"] = (Literal[kind], Field(description=f"{kind}: {_first_sentence(source)}"))
    for name, field in _fields(source).items():
        default: Any = {} if field.default is dataclasses.MISSING else {"default": field.default}
        hint = types.get(name, bounded(name, hints[name], field.default))
        fields[name] = (hint, Field(**default, description=texts.get(name)))
    section: type[Described] = create_model(
        source.__name__, __base__=above, __doc__=source.__doc__, __module__=__name__, **fields
    )
    section.described_by = source
    return section


def one_of(*sections: type[Section]) -> Any:
    """A value that is one of several sections, told apart by ``kind``."""
    return Annotated[Union[sections], Field(discriminator="kind")]  # noqa: UP007


def listed(item: Any) -> Any:
    """A YAML list, kept as a tuple; at least one item."""
    return Annotated[tuple[item, ...], BeforeValidator(_as_tuple), Field(min_length=1)]


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def optional(description: str) -> Any:
    """A key that may be left out, or null."""
    return Field(None, description=description)


def _fields(source: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(source) if field.init and field.name != "kind"}


def _refuse_as_said(said: str, section: Described) -> PydanticCustomError:
    """A dataclass says "KEY is VALUE; it must ...": place the error at that key."""
    key = re.match(r"(\w+)\b", said)
    if key and key[1] in _fields(section.described_by):
        return refuse(said.removeprefix(key[1]).removeprefix(" is ").replace("; ", ": ", 1), (key[1],), value=None)
    return refuse(said)


def _descriptions(source: type[Any]) -> dict[str, str]:
    """``key : text`` lines of a docstring."""
    lines = re.findall(r"^\s*([\w, ]+) : (.+(?:\n {8,}\S.*)*)$", source.__doc__ or "", flags=re.MULTILINE)
    return {name: " ".join(text.replace("``", "").split()) for names, text in lines for name in names.split(", ")}


def _first_sentence(source: type[Any]) -> str:
    return " ".join((source.__doc__ or "").split("\n\n")[0].split()).replace("``", "")
