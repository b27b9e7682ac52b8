"""What a run was worth: the table of metrics, its summary row (`summarise`) and by tenant, and its tables."""

from servecast.metrics.gaps import GapHistogram, token_gaps
from servecast.metrics.latencies import CLIENT_LATENCIES, LATENCIES, Slo, Tenants, latencies
from servecast.metrics.log import mean_shapes
from servecast.metrics.measured import PERCENTILE_RULE, PERCENTILES, Window
from servecast.metrics.summary import by_tenant, decisions_frame, oom_frame, requests_frame, summarise
from servecast.metrics.table import METRICS, REJECTIONS, WIDE, Metric, Value, ranked, regime
from servecast.metrics.waste import Hardware

__all__ = [
    "CLIENT_LATENCIES", "LATENCIES", "METRICS", "PERCENTILES", "PERCENTILE_RULE", "REJECTIONS", "WIDE", "GapHistogram",
    "Hardware", "Metric", "Slo", "Tenants", "Value", "Window", "by_tenant", "decisions_frame", "latencies",
    "mean_shapes", "oom_frame", "ranked", "regime", "requests_frame", "summarise", "token_gaps",
]  # fmt: skip
