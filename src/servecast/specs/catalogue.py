"""The shipped models and devices by name, and the way to a user's own: a path in place of a name.

``models.yaml`` holds what of each model's Hugging Face ``config.json`` decides its size, read by `hf_config`; names are
lower-case, and the Hugging Face id works too. ``devices.yaml`` holds `device.DeviceSpec` entries.
"""

from __future__ import annotations

import difflib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servecast.errors import InputError
from servecast.specs import device as device_entry
from servecast.specs import hf_config

if TYPE_CHECKING:
    from collections.abc import Iterable

    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import ModelSpec


def model(name_or_path: str | Path) -> ModelSpec:
    """A model by catalogue name or Hugging Face id (upper or lower case), or by the path of a ``config.json``.

    Raises InputError with the closest names where there is no such thing.
    """
    wanted = str(name_or_path)
    named = _models()
    by_id = {spec.source.lower(): spec for spec in named.values()}
    found = named.get(wanted.lower()) or by_id.get(wanted.lower())
    if found:
        return found
    if Path(wanted).exists() or wanted.endswith(".json"):
        return hf_config.load(wanted)
    raise InputError("model", _unknown(wanted, "model", list(named), "the path of a Hugging Face config.json"))


def device(name_or_path: str | Path) -> DeviceSpec:
    """A device by catalogue name (upper or lower case), or by the path of a YAML file with one entry's keys.

    Raises InputError with the closest names where there is no such thing.
    """
    wanted = str(name_or_path)
    named = _devices()
    if wanted.lower() in named:
        return named[wanted.lower()]
    path = Path(wanted)
    if path.suffix in {".yaml", ".yml"}:
        return device_entry.parse(_read_yaml(path), name=path.stem, place=str(path))
    raise InputError("device", _unknown(wanted, "device", list(named), "the path of a YAML file with its keys"))


def models() -> list[ModelSpec]:
    """Every model shipped, in the order of the catalogue."""
    return list(_models().values())


def devices() -> list[DeviceSpec]:
    """Every device shipped, in the order of the catalogue."""
    return list(_devices().values())


def _unknown(wanted: str, what: str, names: Iterable[str], otherwise: str) -> str:
    close = difflib.get_close_matches(wanted.lower().rsplit("/", 1)[-1], list(names), n=3, cutoff=0.6)
    hint = f"closest are {', '.join(close)}" if close else f"`servecast list {what}s` names them"
    return f"{wanted!r} is no {what} of the catalogue; {hint}; or give {otherwise}"


@cache
def _models() -> dict[str, ModelSpec]:
    return {
        name: hf_config.parse(entry["config"], name=name, source=entry["source"], place=f"models.yaml: {name}")
        for name, entry in _shipped("models.yaml").items()
    }


@cache
def _devices() -> dict[str, DeviceSpec]:
    return {
        name: device_entry.parse(entry, name=name, place=f"devices.yaml: {name}")
        for name, entry in _shipped("devices.yaml").items()
    }


def _shipped(name: str) -> dict[str, Any]:
    import yaml  # here: the interface answers --help without it

    with resources.files(__package__).joinpath(name).open(encoding="utf-8") as file:
        entries: dict[str, Any] = yaml.safe_load(file)
    return entries


def _read_yaml(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror}); give an existing file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"is not YAML ({' '.join(str(error).split())})") from error
