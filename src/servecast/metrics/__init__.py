"""What a run was worth: its summary row (`summarise`), and by tenant; its tables (`requests_frame`, ...)."""

from servecast.metrics.frames import decisions_frame, keyed, oom_frame, requests_frame
from servecast.metrics.gaps import GapHistogram, token_gaps
from servecast.metrics.log import mean_shapes
from servecast.metrics.summary import PERCENTILE_RULE, PERCENTILES, Slo, Value, Window, latencies, regime, summarise
from servecast.metrics.tenants import Tenants, by_tenant
from servecast.metrics.waste import Hardware

__all__ = [
    "PERCENTILES",
    "PERCENTILE_RULE",
    "GapHistogram",
    "Hardware",
    "Slo",
    "Tenants",
    "Value",
    "Window",
    "by_tenant",
    "decisions_frame",
    "keyed",
    "latencies",
    "mean_shapes",
    "oom_frame",
    "regime",
    "requests_frame",
    "summarise",
    "token_gaps",
]
