"""Batching policies: each decides on the next `Batch` from what waits and what runs."""

from servecast.policies.continuous import Continuous
from servecast.policies.padded import Padded
from servecast.policies.state import Policy, State
from servecast.policies.static import Static

#: The policies by the ``kind`` they have in a scenario.
POLICIES: dict[str, type[Static] | type[Padded] | type[Continuous]] = {
    policy.kind: policy for policy in (Static, Padded, Continuous)
}

__all__ = ["POLICIES", "Continuous", "Padded", "Policy", "State", "Static"]
