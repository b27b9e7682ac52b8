"""Splitwise-sim: CSV with ``arrival_timestamp`` [s], ``prompt_size``, ``token_size``; an application is a tenant here.

Times count from the start of the trace; ``prompt_size`` is the whole prompt.

Source: github.com/Mutinifni/splitwise-sim.
"""

from servecast.workload.traces.delimited import Delimited, Layout, fixed

_COLUMNS = "arrival_timestamp,prompt_size,token_size"


def _layout(header: list[str], row: list[str]) -> Layout | None:
    tenant = {"tenant": "application_id"} if "application_id" in header else {}
    return fixed(_COLUMNS, names=tenant)(header, row)


SPLITWISE = Delimited("splitwise", f"CSV with the columns {_COLUMNS}", _layout)
