"""The plain trace: CSV with ``arrival_s,prompt_tokens,output_tokens``, in any order; other columns are not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from servecast.workload.traces.delimited import Delimited
from servecast.workload.traces.rows import LATEST, moment, number

if TYPE_CHECKING:
    from numpy.typing import NDArray

TIME = "arrival_s"


def _time_of(text: str) -> float:
    return moment(TIME, number(TIME, text), text)


def _times_of(texts: tuple[str, ...]) -> NDArray[np.float64] | None:
    joined = "".join(texts)
    if "_" in joined or not joined.isascii():
        return None
    try:
        times = np.array(list(map(float, texts)))
    except ValueError:
        return None
    return times if np.all((times >= 0) & (times <= LATEST)) else None


PLAIN = Delimited("plain", "s", False, TIME, "prompt_tokens", "output_tokens", _time_of, _times_of)
