"""The tables of a run as data frames; pandas is imported when one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.metrics.latencies import latencies
from servecast.metrics.log import mean_shapes
from servecast.requests import Status

if TYPE_CHECKING:
    import pandas as pd

    from servecast.engine import Run
    from servecast.metrics.waste import Hardware


def requests_frame(run: Run) -> pd.DataFrame:
    """One row a request, in order of id; what is not known is missing."""
    import pandas as pd

    times = latencies(run.requests, run.respond)
    names = [status.name.lower() for status in Status]
    columns: dict[str, Any] = {name: run.requests[name] for name in ("id", "arrival_s", "sent_s")}
    columns["client_queue_s"] = times["client_queue"]
    columns |= {name: run.requests[name] for name in ("prompt_tokens", "output_tokens", "generated_tokens")}
    columns["status"] = pd.Categorical.from_codes(run.requests["status"].astype(np.int8), categories=pd.Index(names))
    columns |= {name: run.requests[name] for name in ("scheduled_s", "first_token_s", "finish_s")}
    columns |= {f"{name}_s": times[name] for name in ("queue", *times)}
    columns |= {name: run.requests[name] for name in ("preemptions", "recomputed_tokens")}
    columns["slot"] = pd.array(run.requests["slot"], dtype="Int32")
    return pd.DataFrame(columns)


def decisions_frame(run: Run, hardware: Hardware | None = None) -> pd.DataFrame:
    """One row a scheduling decision, in the one schema of steps.

    With ``hardware`` also ``step_flops`` and ``step_bytes`` of its mean iteration, per GPU: where it stands on the
    roofline.
    """
    import pandas as pd

    columns: dict[str, Any] = dict(run.decisions)
    if hardware is not None:
        columns |= dict(zip(("step_flops", "step_bytes"), hardware.work(mean_shapes(run.decisions)), strict=True))
    return pd.DataFrame(columns)


def oom_frame(run: Run) -> pd.DataFrame:
    """One row an out-of-memory event: when, how many requests it took, bytes wanted and bytes there."""
    import pandas as pd

    counts = ("requests", "wanted_bytes", "available_bytes")
    columns = {"time_s": np.array([event.time_s for event in run.oom], dtype=np.float64)}
    # With their types even where there are none, so that joined with other runs' they stay what they are.
    columns |= {name: np.array([round(getattr(event, name)) for event in run.oom], dtype=np.int64) for name in counts}
    return pd.DataFrame(columns)
