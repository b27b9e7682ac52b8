"""JSON as the standard has it: no NaN, no infinity, plain types, the same bytes each time."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable


def plain(value: Any) -> Any:
    """``value`` with numpy's numbers and arrays, paths and tuples as JSON's own, and None for what is not finite."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def dumps(value: Any) -> str:
    """One line of strict JSON."""
    return json.dumps(plain(value), allow_nan=False)


def write(path: Path | str, parts: Iterable[str]) -> None:
    """Writes text; a place that cannot be written is an InputError."""
    try:
        with Path(path).open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(parts)
    except OSError as error:
        raise InputError(str(path), f"cannot be written ({error.strerror or error}); choose another place") from error


def write_bytes(path: Path | str, content: bytes) -> None:
    """Writes bytes; a place that cannot be written is an InputError."""
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise InputError(str(path), f"cannot be written ({error.strerror or error}); choose another place") from error
