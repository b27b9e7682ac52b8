"""Finds the files that ship with servecast: calibrated profiles and scenarios.

In a checkout (or an editable install of one) they stand at the top of the tree, where people edit them; in a wheel they
travel inside the package, under ``_shipped``.
"""

from __future__ import annotations

from pathlib import Path

from servecast.errors import InputError

_PACKAGE = Path(__file__).resolve().parent


def directory(name: str, package: Path = _PACKAGE) -> Path:
    """The folder of shipped files ``name`` (``calibration`` or ``scenarios``): of the tree, else of the wheel."""
    tree = package.parent.parent
    if package.parent.name == "src" and (tree / "pyproject.toml").is_file() and (tree / name).is_dir():
        return tree / name
    shipped = package / "_shipped" / name
    if shipped.is_dir():
        return shipped
    raise InputError(name, f"no such folder in {tree} nor in {package / '_shipped'}: install servecast again")
