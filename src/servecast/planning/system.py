"""One configuration of a plan: a policy on its GPUs, with replicas behind a router, ready to serve any load."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from servecast.cost.model import regime
from servecast.errors import InputError
from servecast.executor import ModelExecutor
from servecast.kvcache import BlockPool
from servecast.metrics import Hardware, Slo, Window, summarise
from servecast.metrics.log import mean_shapes
from servecast.planning.load import load_of
from servecast.replicas import ROUTERS, Server, System, replay_together
from servecast.scenario.goals import at_least
from servecast.scenario.serving import activation_blocks, plan, require_whole_prompts_fit, serving, step_set_aside
from servecast.scenario.traffic import traffic

if TYPE_CHECKING:
    from servecast.memory import MemoryPlan
    from servecast.metrics.summary import Value
    from servecast.planning.load import Load
    from servecast.planning.uncertainty import Draw
    from servecast.policies import Policy
    from servecast.scenario.goals import Goal
    from servecast.scenario.schema import Scenario
    from servecast.scenario.serving import Serving

#: Rates so close are the same: targets and measured values pass through decimal text.
_EQUAL = 1 + 1e-12


class Test(NamedTuple):
    """One simulated load: the summary's row, and why it does not meet the goal ("" if it does)."""

    row: dict[str, Value]
    refused: str
    unstable: bool = False


@dataclass(frozen=True, eq=False)
class Configuration:
    """A point of the search with one policy.

    label : ``continuous, max_num_seqs=64``
    replicas : as the scenario says, or 1
    """

    label: str
    scenario: Scenario
    at: int
    replicas: int
    router: str
    changed: dict[str, Any]
    _rows: dict[tuple[float, int, int], dict[str, Value]] = field(default_factory=dict, init=False, repr=False)
    _saturations: dict[tuple[int, int], float] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def served(self) -> Serving:
        return serving(self.scenario)

    @cached_property
    def policy(self) -> Policy:
        return self.scenario.policies[self.at].build()

    @cached_property
    def memory(self) -> MemoryPlan:
        """Raises InputError where the model does not fit."""
        planned = plan(self.scenario, self.served, step_set_aside(self.policy))
        require_whole_prompts_fit(self.policy, planned, f"scenario.policies[{self.at}]")
        return planned

    @cached_property
    def load(self) -> Load | None:
        return load_of(self.scenario.workload, self.scenario.engine.block_size)

    def gpus(self, replicas: int | None = None) -> int:
        return (replicas or self.replicas) * self.served.tensor_parallel

    def saturation(self, seed: int, replicas: int) -> float:
        """Throughput [requests/s] of a burst of the same requests on the replicas; infinite where none can be sent."""
        load = self.load
        if load is None or load.unit != "requests/s":
            return math.inf
        key = seed, replicas
        if key not in self._saturations:
            row, system = self.serve(math.inf, seed, replicas)
            took_s = system.run.end_s - float(system.run.requests["sent_s"].min())
            completed = float(row["completed"] or 0)
            # A burst that is lost to crashes caps nothing: each load itself will say what it loses.
            self._saturations[key] = completed / took_s if completed and not row["oom_failed"] else math.inf
        return self._saturations[key]

    def serve(self, load: float, seed: int, replicas: int, draw: Draw | None = None) -> tuple[dict[str, Value], System]:
        """Simulate: the row of the summary, for all replicas together, and the runs."""
        scenario, served, planned = self.scenario, self.served, self.memory
        cost, scale = (served.cost, 1.0) if draw is None else draw
        workload = (
            scenario.workload.model_copy(update={"seed": seed})
            if self.load is None
            else self.load.at(load, seed, replicas)
        )
        servers = [
            Server(
                self.policy,
                ModelExecutor(cost, scale),
                BlockPool(planned.kv_blocks, planned.block_size, planned.block_bytes),
                min(planned.max_model_len, planned.kv_tokens),
                activation_blocks(scenario, served, planned),
                scenario.engine.restart_s,
            )
            for _ in range(replicas)
        ]
        sent = traffic(workload, scenario.engine.block_size)
        system = replay_together(
            sent.client,
            servers,
            ROUTERS[self.router](),
            horizon_s=math.inf if scenario.horizon_s is None else scenario.horizon_s,
        )
        hardware = Hardware(
            served.model, served.device.ridge(served.model.dtype), cost, served.kv_dtype, served.tensor_parallel
        )
        whole_run = not math.isfinite(load)
        row = summarise(
            system.run,
            policy=self.label,
            seed=seed,
            slo=None if scenario.slo is None else Slo(**scenario.slo.model_dump()),
            window=Window() if whole_run else Window(scenario.warmup_s, scenario.cooldown_s),
            hardware=hardware,
        )
        busy = known(row, "busy_fraction")
        row["busy_fraction"] = None if busy is None else busy / replicas
        return row, system

    def row(self, load: float, seed: int, replicas: int, draw: Draw | None = None) -> dict[str, Value]:
        """The row of the summary alone; those of the profile itself are remembered."""
        if draw is not None:
            return self.serve(load, seed, replicas, draw)[0]
        key = load, seed, replicas
        if key not in self._rows:
            self._rows[key] = self.serve(load, seed, replicas)[0]
        return self._rows[key]

    def test(self, goal: Goal, load: float, seed: int, replicas: int, draw: Draw | None = None) -> Test:
        """Whether the goal is met at a load."""
        row = self.row(load, seed, replicas, draw)
        if row["regime"] == "overloaded":
            return Test(row, "unstable: the queue grows as long as requests arrive", unstable=True)
        return Test(row, refusal(row, goal))


def known(row: dict[str, Value], name: str) -> float | None:
    """A statistic of a run, if it has one."""
    value = row[name]
    return None if value is None else float(value)


def refusal(row: dict[str, Value], goal: Goal) -> str:
    """Why a run does not meet the goal: its first reason; "" if it does. A target is met at equality.

    Raises InputError for a target of which the run says nothing.
    """
    if row["oom_failed"] and not goal.allow_out_of_memory:
        return f"out of memory: {row['oom_failed']} requests lost"
    if row["rejected"]:
        return f"{row['rejected']} requests rejected: longer than max_model_len"
    for name, target in goal.slo.items():
        value = known(row, name)
        if value is None:
            if at_least(name):
                raise InputError(f"scenario.goal.slo.{name}", "counts requests that meet slo:, and no slo is given")
            if not row["completed"]:
                return "no request completed"
            continue  # no answer of two tokens has a gap to judge
        if (value < target / _EQUAL) if at_least(name) else (value > target * _EQUAL):
            return f"{name} {value:.4g}, target {target:g}"
    return ""


def busy_shares(system: System) -> dict[str, float]:
    """Share of the busy seconds in each kind of step."""
    decisions = system.run.decisions
    kinds = np.asarray(regime(mean_shapes(decisions)))
    seconds = decisions["seconds"]
    total = float(seconds.sum())
    return {str(kind): float(seconds[kinds == kind].sum()) / total for kind in np.unique(kinds)} if total else {}


class Binding(NamedTuple):
    """What keeps a configuration from more: its name, and the share of the busy time in which it did."""

    name: str
    share: float


def binding(row: dict[str, Value], system: System, policy: Policy, refused: str) -> Binding:
    """What binds in a run that just fails.

    While requests wait something keeps them out: seats (``max_num_seqs``, ``batch_size``), KV blocks, or the token
    budget. Where nobody waits for most of the busy time, or a target on the pace of tokens failed, it is the steps
    themselves, and the roofline says whether bandwidth or compute; where the GPUs are not busy either, it is bursts.
    """
    decisions = system.run.decisions
    seconds = decisions["seconds"]
    total = float(seconds.sum())
    seats = getattr(policy, "max_num_seqs", None) or getattr(policy, "batch_size", math.inf)
    waiting = decisions["waiting"] > 0
    rows = decisions["prefill_rows"] + decisions["decode_rows"]
    full = waiting & (np.maximum(decisions["slots"], rows) >= seats)
    memory = waiting & ~full & (decisions["kv_blocks"] >= 0.9 * system.run.kv_blocks_total)
    memory |= decisions["preempted"] > 0
    shares = {
        "batch limit": float(seconds[full].sum()) / total,
        "KV memory": float(seconds[memory].sum()) / total,
        "token budget": float(seconds[waiting & ~full & ~memory].sum()) / total,
    }
    most = max(shares, key=lambda name: shares[name])
    paced = refused.startswith(("tpot", "itl"))
    if shares[most] > 0.2 and not paced:
        return Binding(most, shares[most])
    busy = float(row["busy_fraction"] or 0.0)
    if busy < 0.7 and not paced:
        return Binding("queueing", 1 - busy)
    bandwidth = float(row["bandwidth_bound_fraction"] or 0.0)
    return Binding("bandwidth", bandwidth) if bandwidth >= 0.5 else Binding("compute", 1 - bandwidth)
