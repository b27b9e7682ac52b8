"""Requests as their client saw them: the columns are said here, for recordings and for what is forecast of them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class ClientTimes:
    """n answered requests in order of arrival; latencies count from the send, as the tools measure them.

    arrival_s, sent_s : (n,) float64 [s] from the first arrival; sent later than arrival where the client held it back
    prompt_tokens, output_tokens : (n,) int64 [tokens]
    ttft_s, e2e_s : (n,) float64 [s] from sent_s
    """

    arrival_s: NDArray[np.float64]
    sent_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    ttft_s: NDArray[np.float64]
    e2e_s: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ttft_s)

    @property
    def tpot_s(self) -> NDArray[np.float64]:
        """Time per output token after the first, (E2E - TTFT) / (tokens - 1): (n,) [s]; NaN for a single token."""
        after_first = self.output_tokens - 1
        return np.where(after_first > 0, (self.e2e_s - self.ttft_s) / np.maximum(after_first, 1), np.nan)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Arrival, lengths and times by name, without what follows from them."""
        return {field.name: getattr(self, field.name) for field in fields(ClientTimes)}


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRequests(ClientTimes):
    """Measured requests, row by row the requests of the trace they come with.

    A tool without a clock (llmperf, SGLang) leaves NaN for the times of arrival and sending; a latency that the file
    does not have is NaN too.

    itl_s : n tuples of gaps between tokens (chunks) [s], empty where unknown; None where the file has none
    failed : requests of the file that failed, and are not among the rows
    source : format of the file
    """

    itl_s: Sequence[tuple[float, ...]] | None
    failed: int
    source: str
