"""One configuration of a plan: a policy on its GPUs, with replicas behind a router, ready to serve any load."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from servecast.errors import InputError
from servecast.metrics import Window
from servecast.plan.load import load_of
from servecast.plan.sample import Sample, refusal, sample
from servecast.run.store import digest_of
from servecast.run.system import System, modelled
from servecast.run.transient import transient
from servecast.scenario.goals import Search

if TYPE_CHECKING:
    from servecast.plan.load import Load
    from servecast.plan.sample import Refusal
    from servecast.plan.uncertainty import Draw
    from servecast.run.store import Store
    from servecast.scenario.goals import Goal
    from servecast.scenario.schema import Scenario
    from servecast.scenario.serving import Serving

#: Requests of a burst for each replica, and times its slots, at least.
BURST_REQUESTS, BURST_ROWS = 1500, 6
#: Requests of a lengthened run of several replicas, in all: what they send together is less uneven than what one does.
TOGETHER = 10_000
#: Requests of each user in a lengthened run of a closed loop, at least.
TURNS = 5
#: Keys of a scenario that decide nothing about what a load gives; replicas and router are told apart.
_APART = {"name", "sweep", "seeds", "goal", "search", "cost", "replicas", "router"}


def judges(scenario: Scenario) -> bool:
    """Whether requests are judged one by one: good ones are counted."""
    return scenario.slo is not None or any(tenant.slo is not None for tenant in scenario.workload.tenants or ())


@dataclass(frozen=True, eq=False)
class Configuration:
    """A point of the search with one policy, on so many replicas.

    label : ``continuous, max_num_seqs=64``
    store : where simulated loads are kept; None: nowhere
    requests : of a run for each replica, where requests are made and the scenario has fewer; None: as it has
    """

    label: str
    scenario: Scenario
    at: int
    replicas: int
    router: str
    changed: dict[str, Any]
    store: Store | None = None
    requests: int | None = None
    policy: str = ""
    _samples: dict[str, Sample] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def system(self) -> System:
        """What serves its loads. Raises InputError where the model does not fit."""
        return System.of(self.scenario, self.at)

    @property
    def served(self) -> Serving:
        """The model on its GPUs."""
        return self.system.served

    @cached_property
    def load(self) -> Load:
        """The workload as a number that grows with the traffic. Raises InputError where it has none."""
        found = load_of(self.scenario.workload, self.scenario.engine.block_size)
        if found is None:
            problem = "sends all requests at once and has no rate: give arrivals with a rate"
            raise InputError("scenario.workload", problem)
        return found

    @property
    def goal(self) -> Goal:
        """What is to be reached."""
        assert self.scenario.goal is not None, "a plan has a goal"
        return self.scenario.goal

    @cached_property
    def search(self) -> Search:
        """How thoroughly it is looked for."""
        return self.scenario.search or Search.model_validate({})

    def varied(self, **numbers: int) -> Configuration:
        """The same with other ``replicas`` or ``requests``; loads that were simulated are shared."""
        _ = self.system, self.load, self.digest  # found once, before it is copied
        other = copy.copy(self)
        vars(other).update(numbers)
        return other

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.replicas * self.served.tensor_parallel

    @property
    def most_replicas(self) -> int:
        """As many as the search has GPUs for."""
        return self.search.most_gpus // self.served.tensor_parallel

    @property
    def sent(self) -> int | None:
        """Requests of a run, but for what a warm-up or a burst takes; None of a recording."""
        if not self.load.made:
            return None
        own, longer = self.scenario.workload.requests, self.requests or 0
        assert own is not None, "it is made"
        return max(own * self.replicas, min(longer * self.replicas, max(longer, TOGETHER)))

    @cached_property
    def digest(self) -> str:
        """A hash of all that decides what a load gives here; neither goals nor prices do."""
        return digest_of(self.scenario, self.at, _APART, self.router)

    @cached_property
    def target(self) -> float:
        """The load to be served. Raises InputError for a rate that the workload does not count in."""
        load, rate_rps = self.load, self.goal.rate_rps
        if rate_rps is None:
            return load.own
        if load.unit != "requests/s":
            problem = f"{rate_rps:g}, but the load counts in {load.unit}: leave it out"
            raise InputError("scenario.goal.rate_rps", problem)
        return rate_rps

    def seeds(self, count: int | None = None) -> list[int]:
        """So many seeds, ``search.seeds`` by default; one where another would change nothing."""
        first = self.scenario.workload.seed
        return list(range(first, first + (count or self.search.seeds if self.load.drawn else 1)))

    @property
    def usd_per_hour(self) -> float | None:
        """Dollars an hour of all GPUs; None without a price."""
        cost = self.scenario.cost
        usual = None if cost is None else cost.usd_per_gpu_hour
        price = self.goal.usd_per_gpu_hour.get(self.served.device.name, usual)
        return None if price is None else price * self.gpus

    def ceiling(self, seed: int, draw: Draw | None = None) -> float:
        """The highest load to try: beyond what a burst is served at none is stable; users are no more than requests."""
        if self.load.whole:
            requests = self.scenario.workload.requests
            assert requests is not None, "the schema wants it of a closed loop"
            return float(max(requests, self.requests or 0) * self.replicas)
        return self.saturation(seed, draw)

    def saturation(self, seed: int, draw: Draw | None = None) -> float:
        """The most that the replicas serve [requests/s]: a burst's steady throughput; infinite where none can be sent.

        Where requests are made they are at least `BURST_REQUESTS` and `BURST_ROWS` times the slots for each replica,
        however few the scenario has, so that neither the filling nor the drain of the batch counts. A recording has the
        requests it has: of its middle and of the whole, the higher throughput counts, for the middle may be heavier.
        Replicas are so many times one, unless a shared cap or the placing of prefixes lets them do otherwise.
        """
        if self.load.unit != "requests/s":
            return math.inf
        if self.replicas > 1 and self.router != "prefix_affinity" and self.scenario.workload.max_in_flight is None:
            return self.varied(replicas=1).saturation(seed, draw) * self.replicas
        served = self.sample(math.inf, seed, draw)
        # A burst that is lost to crashes caps nothing: each load itself will say what it loses.
        if served.steady_rps is None or served.row["oom_failed"]:
            return math.inf
        return served.steady_rps if self.load.made else max(served.steady_rps, served.whole_rps or 0.0)

    def rate(self, load: float, seed: int) -> float | None:
        """Requests a second that a load is."""
        return load if self.load.unit == "requests/s" else self.sample(load, seed).steady_rps

    def served_rate(self, load: float, seed: int) -> float | None:
        """Requests a second of a load that are answered and billed: what is refused whole is not."""
        rate, row = self.rate(load, seed), self.sample(load, seed).row
        refused = row.get("rejected")
        if rate is None or not refused or self.load.unit != "requests/s":  # other loads are seen by what completes
            return rate
        return rate * (1 - float(refused) / float(row["arrived"]))  # type: ignore[arg-type]  # counts

    def sample(self, load: float, seed: int, draw: Draw | None = None) -> Sample:
        """What a load gives: as remembered or kept on disk, else simulated; an infinite load is a burst."""
        key = f"{float(load)!r} {seed} {self.replicas} {self.sent}" + ("" if draw is None else f" {draw.key}")
        if key not in self._samples:
            found = None if self.store is None else self.store.found(self.digest, key)
            self._samples[key] = self._simulated(load, seed, draw) if found is None else Sample.of(found)
            if found is None and self.store is not None:
                self.store.add(self.digest, self._samples[key].data(), key)
        return self._samples[key]

    def _length(self, load: float) -> int:
        """Requests of a run; what a warm-up leaves is no less than the scenario has at its own load."""
        scenario, sent = self.scenario, self.sent
        if math.isinf(load):
            return max(self.replicas * max(BURST_REQUESTS, BURST_ROWS * self.system.policy.slots), sent or 0)
        if sent is None:
            return 1
        if self.load.whole and self.requests is not None:
            sent = max(sent, TURNS * int(load))
        if not (scenario.warmup_s or scenario.cooldown_s):
            return sent
        assert scenario.workload.requests is not None
        return max(sent, math.ceil(scenario.workload.requests * load / self.load.own))

    def _window(self, load: float) -> Window:
        """The part that counts: all of a burst; of a recording that runs faster, the same part of the recording."""
        if math.isinf(load):
            return Window()
        ends = self.scenario.warmup_s, self.scenario.cooldown_s
        faster = 1.0 if self.load.made else max(load / self.load.own, 1.0)
        return Window(*(None if end is None else end / faster for end in ends))

    def _simulated(self, load: float, seed: int, draw: Draw | None) -> Sample:
        system = self.system if draw is None else self.system.priced(draw.cost)
        scale = 1.0 if draw is None else draw.step_time_scale
        sent = system.traffic(self.load.at(load, seed, self.replicas, self._length(load)))
        run = system.serve(sent.client, replicas=self.replicas, machines=partial(modelled, step_time_scale=scale))
        window = self._window(load)
        row = system.row(run, sent, seed=seed, window=window, replicas=self.replicas)
        found = sample(run, row, system.hardware, system.policy)
        return replace(found, transient=transient(run, window, int(load) if self.load.whole else None))

    def test(self, load: float, seed: int, draw: Draw | None = None) -> Refusal | None:
        """Why the goal is not met at a load; None if it is."""
        return refusal(self.sample(load, seed, draw).row, self.goal)

    def meets(self, load: float, seed: int, draw: Draw | None = None) -> bool:
        """Whether the goal is met at a load."""
        return self.test(load, seed, draw) is None
