"""Policies of a scenario on a real device: the executor, and the memory that it and the policy have.

A closed batch may outgrow its memory. Where the largest one could, the run is made under that memory as a real limit
(`device.limit`, `device.ballast`): the policy is then given more KV blocks than it can use, and the crash is the
device's own. Elsewhere cache and activations fit whatever comes, and nothing is limited, which also leaves the device's
step times alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.errors import InputError
from servecast.kvcache import BlockPool
from servecast.run.system import Machine

if TYPE_CHECKING:
    from servecast.device.ballast import DeviceLimit
    from servecast.device.limit import Limit
    from servecast.device.model import Transformer
    from servecast.memory import MemoryBudget
    from servecast.policies import Policy
    from servecast.run.system import System
    from servecast.specs.model import ModelSpec


class OnDevice:
    """Makes the machine of each run on ``device``: ``cpu``, ``cuda`` or ``cuda:N``. A model is built once.

    Raises InputError for a device that is not there, and when called for what it cannot compute.
    """

    def __init__(self, device: str) -> None:
        from servecast.device.timing import open_device

        self.name = device
        self.device = open_device(device)
        self._built: tuple[ModelSpec, int, Transformer] | None = None

    def __call__(self, system: System) -> Machine:
        served = system.served
        refuse_unexecutable(system.policy, f"scenario.policies[{system.at}]")
        if served.tensor_parallel != 1:
            raise InputError("--execute", f"{self.name!r} is one device, tensor_parallel_size is not 1: simulate that")
        if served.kv_dtype not in (None, served.model.dtype):
            raise InputError("--execute", f"a KV cache in {served.kv_dtype} is not computed: set kv_cache_dtype: auto")
        return machine(self._model(served.model, 2 * system.longest), system)

    def described(self) -> str:
        """A sentence on what the runs were made on."""
        from servecast.device import machine as machines

        facts = machines.described(self.device)
        return (
            f"Executed on {facts.get('gpu', facts['processor'])} with torch {facts['torch']}: steps are measured "
            f"({facts['clock']}), not forecast."
        )

    def _model(self, spec: ModelSpec, positions: int) -> Transformer:
        from servecast.device import machine as machines
        from servecast.device.model import require_dense, transformer

        if self._built is None or self._built[0] != spec or self._built[1] < positions:
            self._built = None  # first, so that two never have to fit
            require_dense(spec)
            machines.refuse_dtype(spec.dtype, self.device, "scenario.model")
            machines.require_room(spec, spec.dtype, self.device, "scenario.model")
            self._built = (spec, positions, transformer(spec, self.device, spec.dtype, max_positions=positions))
        return self._built[2]


def machine(model: Transformer, system: System) -> Machine:
    """A system on a model that has been built: executor, warm, and memory."""
    from servecast.device.executor import DeviceExecutor

    policy, budget, rows = system.policy, system.memory, system.policy.slots
    # A rectangle grows by the longest answer past the longest prompt, each of them shorter than a sequence may be.
    length = system.longest * (2 if policy.rectangle else 1)
    beyond = system.activation_blocks()
    pool = BlockPool(budget.kv_blocks, budget.block_size, budget.block_bytes)
    limit = _limit(model, policy, rows * pool.blocks(length) + beyond(rows * system.longest), budget)
    if limit is not None:
        pool = BlockPool(rows * pool.blocks(length), budget.block_size, budget.block_bytes)
    executor = DeviceExecutor(model, slots=rows, max_length=length, padded=policy.rectangle, limit=limit)
    executor.warm_up()
    return Machine(executor, pool, beyond if limit is None else lambda tokens: 0)


def _limit(model: Transformer, policy: Policy, most_blocks: int, budget: MemoryBudget) -> Limit | DeviceLimit | None:
    """The memory limit of a policy whose batches may want ``most_blocks``; None where they cannot run out."""
    from servecast.device.ballast import DeviceLimit
    from servecast.device.limit import Limit

    if not policy.closed or most_blocks <= budget.kv_blocks:
        return None
    cache = budget.kv_blocks * budget.block_bytes
    beside = budget.usable_bytes - budget.weight_bytes - budget.overhead_bytes
    # A rectangle is held as one piece, rows of their own lengths in whole blocks each.
    block_size = 1 if policy.rectangle else budget.block_size
    both = max(beside, cache + budget.activation_bytes)
    if model.device.type == "cpu":
        return Limit(both, cache, block_size)
    return DeviceLimit(model.device, both, cache, block_size)


def refuse_unexecutable(policy: Policy, place: str) -> None:
    """Raises InputError for options of a policy that the device does not compute."""
    for option in policy.simulated_only:
        raise InputError(f"{place}.{option}", "true is simulated only, a device does not execute it: set false")
