"""How figures look: one colour and one marker for each policy throughout, quiet axes, the same bytes each time."""

from __future__ import annotations

import io
import math
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from servecast.report.charts.looks import places
from servecast.report.words import UNCALIBRATED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from servecast.run.results import Roof

COLOURS = {"static": "#d9822b", "padded": "#b8325e", "continuous": "#1f6fb2"}
MARKERS = {"static": "o", "padded": "s", "continuous": "D"}
MORE_COLOURS = ("#2a9d78", "#7a5bb0", "#8a6d3b", "#4aa3c7", "#c2b02c", "#5b6770", "#e0709a")
MORE_MARKERS = ("^", "v", "P", "X", "*", "<", ">")
INK, QUIET, FAINT = "#222831", "#6b7480", "#d5dae0"
ALARM = "#c1121f"
WIDTH = 9.6  # inches; at 140 dots per inch a figure is as wide as a page of the report
DPI = 140
_HEAD = 0.66  # inches above the axes: title and legend

_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "text.parse_math": False,  # a $ in a name is a $
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "hatch.linewidth": 0.7,
    "axes.formatter.use_locale": False,
    "axes.formatter.useoffset": False,
    "svg.hashsalt": "servecast",
}


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure with its file name, its heading, and the one line that says what it teaches."""

    name: str
    title: str
    caption: str
    figure: Figure

    def png(self) -> bytes:
        """The figure as PNG."""
        return self._saved("png", {"Software": None})

    def svg(self) -> bytes:
        """The figure as SVG."""
        return self._saved("svg", {"Date": None, "Creator": None})

    def _saved(self, form: str, metadata: dict[str, Any]) -> bytes:
        buffer = io.BytesIO()
        with settings(), warnings.catch_warnings():
            # Letters that the font lacks are boxes in the file; the page has them, and a font's warning helps nobody.
            warnings.filterwarnings("ignore", r"Glyph \d+")
            self.figure.savefig(buffer, format=form, dpi=DPI, metadata=metadata)
        return buffer.getvalue()


@contextmanager
def settings() -> Iterator[None]:
    """The look of every figure, whatever the user's own matplotlibrc says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def canvas(
    title: str, height: float, rows: int = 1, columns: int = 1, head: float = _HEAD, **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of the report's width and its axes, ``rows`` by ``columns``, under its title.

    ``height`` in inches, and ``head`` for title and legend above it.
    """
    room = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - head / (height + head)))
    figure = Figure(figsize=(WIDTH, height + head), layout=room)
    figure.text(0.008, 1 - 0.11 / (height + head), title, va="top", fontsize=12.5, fontweight="bold")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes.tolist()


def legend(figure: Figure, handles: Sequence[Any], ncols: int = 5) -> None:
    """The legend of a figure, in the room that `canvas` left for it below the title."""
    top = 1 - 0.36 / figure.get_figheight()
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0, top), ncols=ncols, columnspacing=1.4, borderaxespad=0.2
    )


def policy_handles(
    policies: Sequence[str], kinds: Mapping[str, str], line: Literal["-", "none"] = "-", marked: bool = True
) -> list[Line2D]:
    """Legend entries of policies."""
    colour, marker = colours(policies, kinds), markers(policies, kinds)
    return [
        Line2D([], [], color=colour[p], linestyle=line, marker=marker[p] if marked else "", label=heading(p, 30))
        for p in policies
    ]


def logarithmic(axis: Axis) -> None:
    """A logarithmic axis with plain numbers: more of each decade the fewer there are; at least a factor 5 long."""
    low, high = axis.get_view_interval()
    if high < 5 * low:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(5), middle * math.sqrt(5)
        axis.set_view_interval(low, high, ignore=True)
    subs = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if high < 15 * low else (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{float(f'{value:.3g}'):,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def titled(title: str, roof: Roof | None) -> str:
    """The title, marked where its numbers rest on a data sheet alone."""
    return title if roof is None or roof.calibrated else f"{title} ({UNCALIBRATED})"


def colours(policies: Sequence[str], kinds: Mapping[str, str] | None = None) -> dict[str, str]:
    """A colour for each policy: that of its kind for the first of a kind, a free one for the others.

    kinds : kind by policy; where it is not given, the kind that a name begins with
    """
    palette = (*COLOURS.values(), *MORE_COLOURS)
    return {policy: palette[place] for policy, place in places(policies, kinds).items()}


def markers(policies: Sequence[str], kinds: Mapping[str, str] | None = None) -> dict[str, str]:
    """A marker for each policy by the same rule, so that figures read without colour."""
    shapes = (*MARKERS.values(), *MORE_MARKERS)
    return {policy: shapes[place] for policy, place in places(policies, kinds).items()}


def heading(policy: str, longest: int = 44) -> str:
    """A policy's name, cut where it would run into its neighbour."""
    return policy if len(policy) <= longest else f"{policy[: longest - 1]}…"
