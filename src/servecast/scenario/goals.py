"""What a plan is to reach, and what it may change: the ``goal:`` and ``search:`` of a scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field

from servecast.metrics import LATENCIES, METRICS, PERCENTILES
from servecast.scenario.bounds import RATE, SECONDS
from servecast.scenario.keypath import parse
from servecast.scenario.sections import Section, listed, optional, refuse
from servecast.text import either

if TYPE_CHECKING:
    from servecast.scenario.document import KeyPath

RouterName: TypeAlias = Literal["round_robin", "least_outstanding", "least_kv", "prefix_affinity"]


def at_least(statistic: str) -> bool:
    """Whether more of a statistic is better."""
    return METRICS[statistic].goal and METRICS[statistic].direction > 0


def _statistics() -> str:
    """What a target can be set for, in words."""
    times = [name for name, latency in LATENCIES.items() if latency.goal]
    others = [name for name in METRICS if METRICS[name].goal and not name.startswith(tuple(times))]
    ranks = either(["mean", *(f"p{rank}" for rank in PERCENTILES)])
    return f"{either(times)} with {ranks}, like ttft_p99_s, or {' or '.join(others)}"


def _targets(targets: dict[str, float]) -> dict[str, float]:
    if not targets:
        raise refuse("no target is given: add one, like ttft_p99_s: 1.0")
    for name, value in targets.items():
        known = name in METRICS and METRICS[name].goal
        share = known and at_least(name)
        for wrong, remedy in (
            (not known, f"is no statistic: write {_statistics()}"),
            (value <= 0 and share, "is always met: give a share above 0, at most 1"),
            (value <= 0, "can never be met: give a number above 0"),
            (value > SECONDS.value, f"can never be missed: give at most {SECONDS.value:,.0f} ({SECONDS.why})"),
            (share and value > 1, "is a share of the requests: give at most 1"),
        ):
            if wrong:
                raise refuse(remedy, (name,), value=value)
    return targets


if TYPE_CHECKING:
    Values: TypeAlias = tuple[Any, ...]
else:
    Values = listed(Any)

#: What is asked, and how it is judged: options with other values answer other questions.
_ASKED = frozenset(("goal", "search", "slo", "cost", "workload", "warmup_s", "cooldown_s", "horizon_s"))


def _choices(over: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """A plan chooses how to serve what is asked. What is asked it may not choose: it would take the least."""
    for key in over:
        path = parse(key, f"scenario.search.over.{key}")
        if path[0] in _ASKED and not _of_the_server(path):
            raise refuse(
                f"is part of what is asked, and the easiest would win: make a plan for each, with --set {key}=...",
                (key,),
            )
    return over


def _of_the_server(path: KeyPath) -> bool:
    """Whether a key of the workload says how it is let in, and not what comes."""
    return path[:2] in {("workload", "max_in_flight"), ("workload", "network")} or (
        path[:2] == ("workload", "tenants") and path[3:] == ("priority",)
    )


_Price: TypeAlias = Annotated[float, Field(ge=0, le=1e6)]


class ApiPrice(Section):
    """What an API asks. No price ships as a fact."""

    usd_per_mtok_input: _Price = Field(description="US dollars for a million input tokens")
    usd_per_mtok_output: _Price = Field(description="US dollars for a million output tokens")


class Goal(Section):
    """Targets that a plan must meet, at which load, and what things cost."""

    slo: Annotated[dict[str, float], AfterValidator(_targets)] = Field(
        description="statistic: target, like ttft_p99_s: 1.0; slo_attainment is of the targets in slo:"
    )
    rate_rps: Annotated[float, Field(gt=0, le=RATE.value), RATE] | None = optional(
        "load to be served, in requests a second; null: as the workload has it"
    )
    allow_out_of_memory: bool = Field(False, description="true: crashes are no reason against a plan")
    allow_rejected: bool = Field(False, description="true: plan for the requests that fit, where others are too long")
    usd_per_gpu_hour: dict[str, _Price] = Field(
        default_factory=dict, description="device: US dollars an hour for one; others cost cost.usd_per_gpu_hour"
    )
    api: ApiPrice | None = optional("an API's prices to compare with")


class Search(Section):
    """What a plan may change, and how thoroughly it looks."""

    over: Annotated[dict[str, Values], AfterValidator(_choices)] = Field(
        default_factory=dict, description="key path: list of values, as in sweep; replicas, profile and model too"
    )
    tolerance: Annotated[float, Field(gt=0, le=0.5)] = Field(
        0.02, description="a highest load is bracketed to within this share"
    )
    seeds: Annotated[int, Field(ge=1, le=64)] = Field(3, description="repeats with workload.seed, +1, +2, ...")
    half_width: Annotated[float, Field(gt=0, le=1)] = Field(
        0.05, description="the best plan gets more seeds until its 90 % interval over seeds is that near, as a share"
    )
    most_seeds: Annotated[int, Field(ge=1, le=64)] = Field(12, description="but no more seeds than these")
    draws: Annotated[int, Field(ge=0, le=1000)] = Field(
        12, description="step times drawn from the profile's errors, for the interval; 0: none, but for a datasheet"
    )
    most_requests: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        20_000,
        description="runs of made workloads are lengthened until the highest load settles, up to so many requests for "
        "each replica; no more than workload.requests: not at all",
    )
    most_gpus: Annotated[int, Field(ge=1, le=4096)] = Field(64, description="no plan with more GPUs")
    try_changes: bool = Field(True, description="try what the best plan would gain by one change")
