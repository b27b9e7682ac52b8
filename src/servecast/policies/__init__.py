"""Batching policies: each decides on the next `Batch` from what waits and what runs."""

from servecast.policies.continuous import Continuous
from servecast.policies.padded import Padded
from servecast.policies.policy import Policy
from servecast.policies.prefill_first import PrefillFirst
from servecast.policies.state import State
from servecast.policies.static import Static

#: The policies by the ``kind`` they have in a scenario. Their order is that of colours and markers.
POLICIES: dict[str, type[Policy]] = {policy.kind: policy for policy in (Static, Padded, Continuous, PrefillFirst)}

__all__ = ["POLICIES", "Continuous", "Padded", "Policy", "PrefillFirst", "State", "Static"]
