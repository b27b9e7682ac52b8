"""One colour and one marker for each policy, by its kind: a place in the palette, the same in pages and in files.

The colours are told apart with normal sight and with the two common kinds of colour blindness, and stand out 3:1 from
the page in light and dark (`tests/test_page.py` measures both); markers tell policies apart without colour.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from servecast.policies import POLICIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LIGHT = ("#c4700f", "#b8325e", "#1f6fb2", "#249ca8", "#7a5bb0", "#8a6d3b", "#168064", "#85800f", "#5b6770", "#c2528c")
DARK = ("#f0a04b", "#f0719b", "#5ba8ee", "#60e4f0", "#b39ae6", "#c9a66b", "#45c4a0", "#cfc657", "#a5b1bb", "#f29cc4")
MARKERS = ("circle", "square", "diamond", "up", "down", "plus", "cross", "star", "left", "right")

#: Outlines of markers around (0, 0), with a reach of about 5.
PATHS = {
    "circle": "M-4.6 0A4.6 4.6 0 1 0 4.6 0A4.6 4.6 0 1 0 -4.6 0Z",
    "square": "M-4.2 -4.2H4.2V4.2H-4.2Z",
    "diamond": "M0 -5.8L5.8 0L0 5.8L-5.8 0Z",
    "up": "M0 -5.4L5.2 4H-5.2Z",
    "down": "M0 5.4L5.2 -4H-5.2Z",
    "plus": "M-1.8 -5.2H1.8V-1.8H5.2V1.8H1.8V5.2H-1.8V1.8H-5.2V-1.8H-1.8Z",
    "cross": "M-5 -2.6L-2.6 -5L0 -2.4L2.6 -5L5 -2.6L2.4 0L5 2.6L2.6 5L0 2.4L-2.6 5L-5 2.6L-2.4 0Z",
    "star": "M0 -6L1.5 -2L5.7 -1.9L2.4 .8L3.5 4.9L0 2.5L-3.5 4.9L-2.4 .8L-5.7 -1.9L-1.5 -2Z",
    "left": "M-5.4 0L4 -5.2V5.2Z",
    "right": "M5.4 0L-4 -5.2V5.2Z",
}


def places(policies: Sequence[str], kinds: Mapping[str, str] | None = None) -> dict[str, int]:
    """The place in the palette of each policy: kinds in the order of the registry, then whatever place is free.

    The first policy of a kind has the place of its kind; a second one, and what is no kind, takes a free place.

    kinds : kind by policy; where it is not given, the longest kind that a name begins with
    """
    registry = list(POLICIES)
    by_length = sorted(registry, key=len, reverse=True)
    found: dict[str, int] = {}
    others = []
    for policy in policies:
        kind = (kinds or {}).get(policy) or next((name for name in by_length if policy.startswith(name)), "")
        if kind in registry and registry.index(kind) not in found.values():
            found[policy] = registry.index(kind)
        else:
            others.append(policy)
    order = (*range(len(registry), len(LIGHT)), *range(len(registry)))
    free = [place for place in order if place not in found.values()] or order
    found |= {policy: free[at % len(free)] for at, policy in enumerate(others)}
    return {policy: found[policy] for policy in policies}


def marker(look: int | str) -> str:
    """The outline of the marker of a look; what is no series has a circle."""
    return PATHS[MARKERS[look % len(MARKERS)] if isinstance(look, int) else "circle"]


def read(name: str) -> str:
    """A file of the folder of templates."""
    return resources.files("servecast.report").joinpath("templates", name).read_text(encoding="utf-8")


def style() -> str:
    """The style sheet of a page, with the palette of the charts for light and dark."""
    values = {
        "CHART_STYLE": read("chart.css"),
        "SERIES_LIGHT": _variables(LIGHT),
        "SERIES_DARK": _variables(DARK),
        "SERIES_CLASSES": "\n".join(f".l{place} {{ --c: var(--s{place}); }}" for place in range(len(LIGHT))),
    }
    text = read("page.css")
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _variables(colours: tuple[str, ...]) -> str:
    return " ".join(f"--s{place}: {colour};" for place, colour in enumerate(colours))
