"""The formats of traces. A new one is a file with a reader, and a line here."""

from servecast.workload.traces.azure import AZURE
from servecast.workload.traces.mooncake import MOONCAKE
from servecast.workload.traces.plain import PLAIN
from servecast.workload.traces.rows import Reader

READERS: tuple[Reader, ...] = (AZURE, MOONCAKE, PLAIN)
