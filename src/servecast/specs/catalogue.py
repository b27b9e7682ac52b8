"""The shipped models and devices by name, and the way to a user's own: a path in place of a name.

``models.yaml`` holds what of each model's Hugging Face ``config.json`` decides its size, read by `hf_config`; names are
lower-case, and the Hugging Face id works too. ``devices.yaml`` holds `device.DeviceSpec` entries.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servecast.errors import InputError
from servecast.specs import device as device_entry
from servecast.specs import hf_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import ModelSpec

_HERE = Path(__file__).parent


def model(name_or_path: str | Path) -> ModelSpec:
    """A model by catalogue name or Hugging Face id (upper or lower case), or by the path of a ``config.json``.

    Raises InputError with the closest names where there is no such thing.
    """
    wanted = str(name_or_path)
    for spec in models():
        if wanted.lower() in (spec.name, spec.source.lower()):
            return spec
    if Path(wanted).exists() or wanted.endswith(".json"):
        return hf_config.load(wanted)
    raise _unknown(wanted, "model", models(), "the path of a Hugging Face config.json")


def device(name_or_path: str | Path) -> DeviceSpec:
    """A device by catalogue name (upper or lower case), or by the path of a YAML file with one entry's keys.

    Raises InputError with the closest names where there is no such thing.
    """
    wanted = str(name_or_path)
    for spec in devices():
        if wanted.lower() == spec.name:
            return spec
    path = Path(wanted)
    if path.suffix in {".yaml", ".yml"}:
        return device_entry.parse(_yaml(path), name=path.stem, place=str(path))
    raise _unknown(wanted, "device", devices(), "the path of a YAML file with its keys")


@cache
def models() -> list[ModelSpec]:
    """Every model shipped, in the order of the catalogue."""
    return [_model(name, entry) for name, entry in _yaml(_HERE / "models.yaml").items()]


def _model(name: str, entry: dict[str, Any]) -> ModelSpec:
    spec = hf_config.parse(entry["config"], name=name, source=entry["source"], place=f"models.yaml: {name}")
    return replace(spec, dtype=entry.get("dtype", spec.dtype))


@cache
def devices() -> list[DeviceSpec]:
    """Every device shipped, in the order of the catalogue."""
    entries = _yaml(_HERE / "devices.yaml")
    return [device_entry.parse(entry, name=name, place=f"devices.yaml: {name}") for name, entry in entries.items()]


def _unknown(wanted: str, what: str, known: Sequence[ModelSpec | DeviceSpec], otherwise: str) -> InputError:
    names = [spec.name for spec in known]
    close = difflib.get_close_matches(wanted.lower().rsplit("/", 1)[-1], names, n=3, cutoff=0.6)
    hint = f"closest are {', '.join(close)}" if close else f"`servecast list {what}s` names them"
    return InputError(what, f"{wanted!r} is no {what} of the catalogue; {hint}; or give {otherwise}")


def _yaml(path: Path) -> Any:
    from servecast import plain_yaml  # here: the interface answers --help without it

    return plain_yaml.read(path)
