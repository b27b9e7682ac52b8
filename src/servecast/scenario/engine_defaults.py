"""``like: vllm-0.19`` on a continuous policy: what the scenario leaves open is what that engine does on that device.

Batch limits by device are those of `memory.engine_defaults`; prefix caching is on in every V1 engine, and asynchronous
scheduling since vLLM 0.14.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from servecast.memory import engine_defaults

if TYPE_CHECKING:
    from servecast.scenario.schema import PolicyEntry, Scenario
    from servecast.specs.device import DeviceSpec

#: Keys of an entry that are no parameters of its policy.
_OWN = ("kind", "name", "like")


def settle(scenario: Scenario, device: DeviceSpec) -> Scenario:
    """The scenario with every ``like`` spelled out. Settling twice changes nothing."""
    policies = tuple(entry if entry.like is None else _settled(entry, device) for entry in scenario.policies)
    return scenario.model_copy(update={"policies": policies})


def _settled(entry: PolicyEntry, device: DeviceSpec) -> PolicyEntry:
    assert entry.like is not None
    defaults = engine_defaults(device, entry.like)
    major, minor = (int(part) for part in re.findall(r"\d+", entry.like)[:2])
    given = {key: getattr(entry, key) for key in entry.model_fields_set if key not in _OWN}
    tokens = given.get("max_num_batched_tokens", defaults.max_num_batched_tokens)
    values = {
        "max_num_batched_tokens": tokens,
        "max_num_seqs": min(defaults.max_num_seqs, tokens),
        "enable_prefix_caching": True,
        "async_scheduling": (major, minor) >= (0, 14),
        **given,
    }
    own = {key: getattr(entry, key) for key in _OWN}
    return type(entry).model_validate({**own, **values})
