"""A forecast held against what a server was recorded to do: `servecast compare`."""

from __future__ import annotations

from servecast.against.server.command import compared
from servecast.against.server.compared import Comparison
from servecast.against.server.forecast import Host, load
from servecast.against.server.observed import Observed

__all__ = ["Comparison", "Host", "Observed", "compared", "load"]
