"""Azure LLM inference traces of 2023, 2024 and 2025: CSV with ``TIMESTAMP,ContextTokens,GeneratedTokens``.

2023: ``2023-11-16 18:15:46.6805900`` without a zone, 7 digits (100 ns), CRLF, no final newline. 2024:
``2024-05-12 00:00:00.001163+00:00``, no fraction on whole seconds. Times are those of the invocation, kept as exact
whole nanoseconds; one without a zone is taken as UTC. ``ContextTokens`` are the whole prompt. 2025 (multimodal):
``2024-10-15T12:00:00.269Z`` and a column ``NumImages``, which is not read. Source: github.com/Azure/AzurePublicDataset.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from servecast.workload.traces.delimited import Clock, Delimited, fixed
from servecast.workload.traces.rows import Malformed

if TYPE_CHECKING:
    from numpy.typing import NDArray

TIME = "TIMESTAMP"
_DATE = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d"
_PLAIN = re.compile(rf"(?:{_DATE}(?:\.\d{{1,9}})?\n)+", re.ASCII)
_ANY = re.compile(rf"({_DATE})(?:\.(\d{{1,9}}))?\s*(?:(Z)|([+-])(\d\d):?(\d\d))?", re.ASCII)
_YEARS = "1700", "2262"  # what fits whole nanoseconds; numpy wraps beyond without a word
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_date(text: str) -> bool:
    """Whether this is how these traces write a time."""
    return _ANY.fullmatch(text) is not None


def _time_of(text: str) -> int:
    """Nanoseconds since 1970; what is no date and time is Malformed."""
    if not text:
        raise Malformed(f"{TIME} is missing", "")
    match = _ANY.fullmatch(text)
    if not match:
        raise Malformed(f"{TIME} is not a date and time", text)
    date, fraction, _, sign, hours, minutes = match.groups()
    if not _YEARS[0] <= date < _YEARS[1]:
        raise Malformed(f"{TIME} is outside the years 1700 to 2261", text)
    try:
        passed = datetime.fromisoformat(date).replace(tzinfo=UTC) - _EPOCH
    except ValueError:
        raise Malformed(f"{TIME} is not a date and time", text) from None
    if sign:
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        passed += offset if sign == "-" else -offset
    return (passed.days * 86_400 + passed.seconds) * 10**9 + int((fraction or "").ljust(9, "0"))


def _times_of(texts: tuple[str, ...]) -> NDArray[np.int64] | None:
    """Nanoseconds since 1970 of a whole column; None where one of them needs a closer look."""
    for suffix in ("+00:00", "Z"):
        if texts[0].endswith(suffix):
            if not all(text.endswith(suffix) for text in texts):
                return None
            texts = tuple(text[: -len(suffix)] for text in texts)
            break
    if not _PLAIN.fullmatch("\n".join(texts) + "\n") or min(texts) < _YEARS[0] or max(texts) >= _YEARS[1]:
        return None
    try:
        return np.array(texts, "datetime64[ns]").astype(np.int64)
    except ValueError:  # a day or an hour that does not exist
        return None


DATES = Clock(_time_of, _times_of)
COLUMNS = f"{TIME},ContextTokens,GeneratedTokens"
AZURE = Delimited(
    "azure", f"CSV with the columns {COLUMNS}", fixed(COLUMNS, only=True, unit="ns", clock=DATES, dates=True)
)
AZURE_LMM = Delimited(
    "azure_lmm",
    f"CSV with the columns {COLUMNS} and NumImages",
    fixed(f"{COLUMNS},NumImages", only=True, unit="ns", clock=DATES, dates=True),
    remark="NumImages is not read: only the tokens of ContextTokens are served",
)
