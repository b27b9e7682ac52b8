"""A forecast held against what a server was recorded to do: `servecast compare`."""

from __future__ import annotations

from servecast.comparison.command import compare
from servecast.comparison.compared import Comparison
from servecast.comparison.forecast import Setting, load
from servecast.comparison.host import Host
from servecast.comparison.observed import Observed

__all__ = ["Comparison", "Host", "Observed", "Setting", "compare", "load"]
