"""BurstGPT: CSV with ``Timestamp`` [s from the start of day 1], ``Request tokens``, ``Response tokens``, and more.

Times are those of the submission; ``Request tokens`` are the whole prompt, in a conversation with its history. The
second edition adds ``Session ID`` (empty outside of conversations) and ``Elapsed time``, the end-to-end time that the
original service took [s]. Columns are found by name. No response tokens means that the call failed in the source.
Source: github.com/HPMLL/BurstGPT.
"""

from servecast.workload.traces.delimited import Delimited, Layout, fixed

_V1 = "Timestamp,Request tokens,Response tokens,Model,Log Type"
_V2 = f"{_V1},Session ID,Elapsed time"


def _layout(header: list[str], row: list[str]) -> Layout | None:
    second = fixed(_V2, zero_failed=True, names={"session": "Session ID"}, numbers={"e2e_s": "Elapsed time"})
    return second(header, row) or fixed(_V1, zero_failed=True)(header, row)


BURSTGPT = Delimited("burstgpt", f"CSV with the columns {_V1}", _layout)
