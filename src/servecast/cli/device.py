"""What the commands share that compute on a device: torch is loaded when one of them runs."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from servecast.errors import InputError


def load(name: str) -> Any:
    """A module that computes; one line where torch is missing."""
    try:
        return importlib.import_module(f"servecast.device.{name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError("torch", "is not installed: pip install 'servecast[device]'") from None


def say(text: str) -> None:
    """How far a measurement is, on standard error."""
    print(text, file=sys.stderr, flush=True)
