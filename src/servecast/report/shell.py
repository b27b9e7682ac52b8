"""What every page shares: its style and its script, from files that travel with the package."""

from __future__ import annotations

from importlib import resources

from servecast.report.charts.looks import DARK, LIGHT


def read(name: str) -> str:
    """A file of the folder of templates."""
    return resources.files("servecast.report").joinpath("templates", name).read_text(encoding="utf-8")


def style() -> str:
    """The style sheet, with the palette of the charts for light and dark."""
    values = {
        "SERIES_LIGHT": _variables(LIGHT),
        "SERIES_DARK": _variables(DARK),
        "SERIES_CLASSES": "\n".join(f".l{place} {{ --c: var(--s{place}); }}" for place in range(len(LIGHT))),
    }
    text = read("page.css")
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def script() -> str:
    """The script of the charts."""
    return read("charts.js")


#: The tooltip that the script fills: screen readers have the same from each point's own name.
TIP = '<div id="tip" aria-hidden="true" hidden></div>'


def _variables(colours: tuple[str, ...]) -> str:
    return " ".join(f"--s{place}: {colour};" for place, colour in enumerate(colours))
