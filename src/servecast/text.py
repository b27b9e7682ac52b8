"""Numbers, times, shares, lists and tables as text: one way to write each."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

BLANK = "\u2013"


class Table(NamedTuple):
    """A table to print: title, column heads, rows of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def number(value: float | None, digits: int = 3) -> str:
    """``value`` at so many significant digits, never in powers of ten between 1e-4 and 1e6; blank for None and NaN."""
    if value is None or math.isnan(value):
        return BLANK
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    if places > digits + 3:
        return f"{value:.{digits - 1}e}"
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if places and value == round(value) else text


def gibibytes(count: float) -> str:
    """Bytes in GiB."""
    return f"{count / (1 << 30):,.2f} GiB"


def seconds(value: float | None) -> str:
    """A time at three digits in the unit that suits it: 85.0 ms, 1.25 s, 23 min."""
    if value is None or math.isnan(value):
        return BLANK
    if value < 1:
        return f"{number(value * 1e3)} ms"
    return f"{number(value)} s" if value < 600 else f"{number(value / 60)} min"


def share(value: float | None) -> str:
    """A fraction as a percentage; what is there but small does not become 0."""
    if value is None or math.isnan(value):
        return BLANK
    percent = 100 * value
    if 0 < percent < 0.1:
        return "<0.1 %"
    return f"{percent:.1f} %" if 0 < percent < 10 else f"{percent:.0f} %"


def percent(value: float, digits: int = 1) -> str:
    """A fraction as a percentage with so many decimals."""
    return f"{100 * value:.{digits}f} %"


def signed(value: float, digits: int = 0) -> str:
    """A signed share as a percentage, ``+12 %``; what rounds to nothing has no sign and no decimals."""
    if math.isnan(value):
        return BLANK
    percent = round(100 * value, digits)
    return f"{percent:+.{digits}f} %" if percent else "0 %"


def how_often(count: float) -> str:
    """How often: once, twice, 12 times."""
    return {1.0: "once", 2.0: "twice"}.get(float(count), f"{number(float(count))} times")


def missing(value: Any) -> bool:
    """None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def shown(value: Any, most: int = 60) -> str:
    """A value as a file has it, on one line, cut short."""
    text = json.dumps(value) if isinstance(value, bool | None) else repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def plain_value(value: Any) -> str:
    """A swept value as a person wrote it; blank where there is none."""
    if missing(value):
        return BLANK
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def short_key(key: str) -> str:
    """The last part of a key path."""
    return key.rsplit(".", 1)[-1]


def listed(parts: list[str], last: str = "and") -> str:
    """Parts as a sentence has them: a, b and c."""
    return f"{', '.join(parts[:-1])} {last} {parts[-1]}" if len(parts) > 1 else "".join(parts)


def either(parts: list[str]) -> str:
    """Choices as a sentence has them: a, b or c."""
    return listed(parts, "or")
