"""From a scenario to a run: the one place where a scenario and one of its policies become servers, memory, traffic.

``run``, ``plan``, ``compare``, ``validate`` and the Python interface all come here, so that a key of the scenario means
the same in each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from servecast.cost.roofline import ridge
from servecast.engine import Server, replay
from servecast.errors import InputError
from servecast.executor import ModelExecutor
from servecast.kvcache import BlockPool
from servecast.metrics import Hardware, Slo, Tenants, summarise
from servecast.routers import ROUTERS
from servecast.scenario.serving import activation_blocks, memory_budget, require_whole_prompts_fit, serving
from servecast.scenario.traffic import traffic

if TYPE_CHECKING:
    from collections.abc import Callable

    from servecast.cost.model import CostModel
    from servecast.engine import Run
    from servecast.executor import Executor, PricedSteps
    from servecast.memory import MemoryBudget
    from servecast.metrics import Value, Window
    from servecast.policies import Policy
    from servecast.scenario import Scenario
    from servecast.scenario.schema import Workload
    from servecast.scenario.serving import Serving
    from servecast.scenario.traffic import Traffic
    from servecast.workload.clients import Client

    #: Makes the machine of each replica of a system.
    Machines = Callable[["System"], "Machine"]


class Machine(NamedTuple):
    """What takes the steps of one replica, and the memory it has; ``activation_blocks``: see `Policy.start`."""

    executor: Executor
    pool: BlockPool
    activation_blocks: Callable[[int], int]


@dataclass(frozen=True, eq=False)
class System:
    """A scenario with one of its policies, ready to serve.

    at : the policy's place in the scenario's list
    served : the model on its GPUs, and what steps cost there
    memory : the budget of one GPU
    """

    scenario: Scenario
    at: int
    served: Serving
    policy: Policy
    memory: MemoryBudget

    @classmethod
    def of(cls, scenario: Scenario, at: int = 0, served: Serving | None = None) -> System:
        """The system of a scenario without a sweep; ``served`` where it is known already.

        Raises InputError for an unknown name, for a model that does not fit, and for prompts that would wait for ever.
        """
        served = served or serving(scenario)
        policy = scenario.policies[at].build()
        memory = memory_budget(scenario, served, policy.set_aside)
        require_whole_prompts_fit(policy, memory, f"scenario.policies[{at}]")
        return cls(scenario, at, served, policy, memory)

    @property
    def label(self) -> str:
        """The policy's name in tables."""
        return self.scenario.labels()[self.at]

    @property
    def replicas(self) -> int:
        """Engines that share the traffic."""
        return self.scenario.replicas or 1

    @property
    def longest(self) -> int:
        """The most tokens that a sequence can have."""
        return min(self.memory.max_model_len, self.memory.kv_tokens)

    @property
    def hardware(self) -> Hardware:
        """What the steps of a run are judged against."""
        served = self.served
        least = ridge(served.model, served.device)
        return Hardware(served.model, least, served.cost, served.kv_dtype, served.tensor_parallel)

    @property
    def usd_per_hour(self) -> float | None:
        """US dollars an hour of all GPUs; None without a price."""
        cost = self.scenario.cost
        return None if cost is None else cost.usd_per_gpu_hour * self.served.tensor_parallel * self.replicas

    def priced(self, cost: CostModel) -> System:
        """The same system with another cost model."""
        return replace(self, served=self.served._replace(cost=cost))

    def activation_blocks(self) -> Callable[[int], int]:
        """KV blocks' worth of memory that a step of so many tokens needs beyond what the budget has set aside."""
        return activation_blocks(self.scenario, self.served, self.memory)

    def traffic(self, workload: Workload | None = None) -> Traffic:
        """The requests of the scenario's workload, or of another, with prefixes in blocks of this engine."""
        return traffic(workload or self.scenario.workload, self.scenario.engine.block_size)

    def serve(
        self,
        client: Client,
        *,
        replicas: int | None = None,
        machines: Machines | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Run:
        """Serve a client's requests until all have ended, or until the scenario's horizon.

        replicas : behind the scenario's router; as many as the scenario has by default
        machines : what takes the steps; the cost model by default
        """
        scenario, servers = self.scenario, []
        for _ in range(replicas or self.replicas):
            executor, pool, beyond = (machines or modelled)(self)
            engine = scenario.engine
            limits = self.longest, beyond, engine.restart_s, engine.on_too_long
            servers.append(Server(self.policy, executor, pool, *limits))
        horizon_s = math.inf if scenario.horizon_s is None else scenario.horizon_s
        router = ROUTERS[scenario.router or "least_outstanding"]()
        try:
            run = replay(client, servers, router, horizon_s=horizon_s, progress=progress).run
        except InputError as error:
            if not hasattr(self.policy, error.place):
                raise
            raise error.moved(f"scenario.policies[{self.at}].{error.place}") from None
        # A device that finds its own limit has more blocks in its books than there is memory.
        return replace(run, kv_blocks_total=self.memory.kv_blocks)

    def row(
        self,
        run: Run,
        sent: Traffic,
        *,
        seed: int,
        window: Window | None = None,
        replicas: int | None = None,
        usd_per_hour: float | None = None,
        executed: bool = False,
    ) -> dict[str, Value]:
        """The run's row of the summary, judged by the scenario's targets; see `summarise`."""
        replicas = replicas or self.replicas
        return summarise(
            run,
            policy=self.label,
            seed=seed,
            slo=self.slo,
            tenants=self.tenants(sent),
            window=window,
            hardware=self.hardware,
            usd_per_hour=usd_per_hour,
            output_over_input=None if self.scenario.cost is None else self.scenario.cost.output_over_input,
            requested_rps=sent.requested_rps,
            replicas=replicas,
            gpus=self.served.tensor_parallel * replicas,
            calibrated=self.served.cost.calibrated or executed,  # what was executed was measured
            cancelled=0 if sent.sessions is None else sent.sessions.cancelled,
        )

    @property
    def slo(self) -> Slo | None:
        """The latency targets of every request whose tenant has none of its own; None without targets."""
        return None if self.scenario.slo is None else Slo(**self.scenario.slo.model_dump())

    def tenants(self, sent: Traffic) -> Tenants | None:
        """The tenants of the traffic with their own targets; None where it names nobody."""
        if sent.tenants is None:
            return None
        sections = self.scenario.workload.tenants or ()
        own = {section.name: Slo(**section.slo.model_dump()) for section in sections if section.slo is not None}
        return Tenants.of(sent.tenants, own, [section.name for section in sections])


def modelled(system: System, cost: PricedSteps | None = None, step_time_scale: float = 1.0) -> Machine:
    """The machine of a simulation: steps priced by the system's cost model (or ``cost``), and the budgeted memory."""
    memory = system.memory
    pool = BlockPool(memory.kv_blocks, memory.block_size, memory.block_bytes, memory.growth)
    return Machine(ModelExecutor(cost or system.served.cost, step_time_scale), pool, system.activation_blocks())
