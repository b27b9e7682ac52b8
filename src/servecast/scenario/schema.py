"""The shape of a scenario file: what may be said, in which units, within which ranges.

Units stand in the keys (``_s``, ``_rps``, ``_tokens``), so values are bare numbers. Arrivals, lengths and policies are
not described again here: each is a dataclass of its own part, and its fields are its schema.
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from servecast.policies import POLICIES
from servecast.requests import OnTooLong
from servecast.scenario.bounds import (
    RATE,
    Blocks,
    BlockSize,
    Factor,
    Gpus,
    MaybeTokens,
    Points,
    Priority,
    Replicas,
    Requests,
    Seconds,
    Seed,
    Sequences,
    SomeSeconds,
    Tokens,
)
from servecast.scenario.goals import Goal, RouterName, Search, Values
from servecast.scenario.sections import Described, Section, described, listed, one_of, optional, refuse
from servecast.workload import arrivals as arrival_processes
from servecast.workload import fitting, rates
from servecast.workload import lengths as length_laws
from servecast.workload.lengths import RandomLengths
from servecast.workload.traces.trace_file import TraceFile

if TYPE_CHECKING:
    from servecast.policies import Policy


def _existing(text: str, info: ValidationInfo, folder: bool = False) -> str:
    """An absolute path of a file (or folder) that is there: variables and ``~`` expanded, relative to the scenario."""
    full = os.path.expanduser(os.path.expandvars(text))  # noqa: PTH111 (variables first, then what they hold)
    unset = re.search(r"\$\{?(\w+)\}?", full)
    if unset:
        raise refuse(f"the environment variable {unset[1]} is not set; set it, or write the path out")
    if "\0" in full:
        raise refuse("holds a NUL character; give a path")
    path = (Path((info.context or {}).get("folder", ".")) / full).resolve()
    if not (path.is_dir() if folder else path.is_file()):
        kind = "folder" if folder else "file"
        raise refuse(f"no such {kind} ({path}); give a path relative to the scenario file, or an absolute one")
    return str(path)


def _name_or_path(text: str, info: ValidationInfo) -> str:
    """A path where it looks like one (a slash alone does not: ``Qwen/Qwen3-14B`` is a name), else a name."""
    looks = text.startswith(("/", "./", "../", "~", "$")) or text.endswith((".json", ".yaml", ".yml"))
    return _existing(text, info) if looks else text


def _printable(text: str) -> str:
    """A name that can stand in a table: one line of printable text."""
    if not text.isprintable():
        raise refuse("holds characters that cannot be printed; use letters, digits and signs")
    return text


FilePath: TypeAlias = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_existing)]
FolderPath: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=4096), AfterValidator(partial(_existing, folder=True))
]
NameOrPath: TypeAlias = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_name_or_path)]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_printable)]
EngineVersion: TypeAlias = Annotated[str, Field(pattern=r"^vllm-\d+\.\d+(\.\d+)?$")]
#: ``inf`` is a rate at which everything arrives at once.
Rate: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=True)]


class Engine(Section):
    """The serving engine's own settings, named as vLLM names them."""

    like: EngineVersion = Field("vllm-0.23", description="engine whose defaults are taken, as in vllm-0.23")
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = optional(
        "share of the device memory the engine may use, a fraction; null: the version's default"
    )
    block_size: BlockSize = Field(16, description="tokens per KV block")
    kv_blocks: Blocks | None = optional("usable KV blocks, instead of what the memory gives")
    max_model_len: Annotated[Tokens, Field(ge=2)] | None = optional(
        "longest prompt plus answer in tokens; null: the model's, or what the KV cache holds if less"
    )
    on_too_long: OnTooLong = Field(
        "reject",
        description="a request whose prompt and answer exceed max_model_len: reject refuses it whole, as vLLM does; "
        "cut ends its answer there",
    )
    kv_cache_dtype: Literal["auto", "bf16", "fp16", "fp8", "fp32"] = Field("auto", description="auto: the model's own")
    quantization: Literal["fp8", "int8", "int4"] | None = optional(
        "number format of the linear layers' weights; null: the model's own"
    )
    tensor_parallel_size: Gpus | None = optional("GPUs for the model; null: the profile's, or 1")
    restart_s: Seconds = Field(30.0, description="seconds the engine is down after running out of memory")
    enforce_eager: bool = Field(False, description="true: no CUDA graphs, and no memory for them")


class Slo(Section):
    """Service level objectives: a request is good if it meets every target given."""

    ttft_s: SomeSeconds | None = optional("time to first token [s]")
    tpot_s: SomeSeconds | None = optional("time per output token after the first [s]")
    e2e_s: SomeSeconds | None = optional("arrival to last token [s]")
    single_token: Literal["pass", "fail", "exclude"] = Field("pass", description="a one-token answer under tpot_s")

    @model_validator(mode="after")
    def _some_target(self) -> Slo:
        if self.ttft_s is None and self.tpot_s is None and self.e2e_s is None:
            raise refuse("no target is given: add ttft_s, tpot_s or e2e_s, or take slo out")
        return self


class EmpiricalLength(Section):
    """Lengths from quantiles: one side of a shipped table, or a table written out."""

    kind: Literal["empirical"]
    name: Name | None = optional("shipped quantiles: azure-conv-2023, azure-code-2023")
    percentiles: listed(float) | None = optional("rising from 0 to 100")  # type: ignore[valid-type]
    tokens: listed(float) | None = optional("the length at each percentile")  # type: ignore[valid-type]

    @model_validator(mode="after")
    def _one_table(self) -> EmpiricalLength:
        own = self.percentiles is not None or self.tokens is not None
        if (self.name is None) == (not own) or (own and (self.percentiles is None or self.tokens is None)):
            raise refuse("one table is wanted: give name (azure-conv-2023), or both percentiles and tokens")
        if own:
            try:
                length_laws.Empirical(self.percentiles or (), self.tokens or ())
            except ValueError as error:
                raise refuse(str(error)) from None
        return self


class Empirical(Section):
    """Prompts and answers of a shipped table of quantiles, drawn independently."""

    kind: Literal["empirical"]
    name: Name = Field(description="shipped quantiles: azure-conv-2023, azure-code-2023")


class Pairs(Section):
    """Prompts and answers drawn together, as the rows of a trace have them."""

    kind: Literal["trace"]
    path: FilePath = Field(description="trace whose rows give the pairs")
    max_prompt_tokens: Tokens | None = optional("leave out rows with longer prompts")
    max_output_tokens: Tokens | None = optional("leave out rows with longer answers")


if TYPE_CHECKING:
    Arrivals: TypeAlias = Described
    Length: TypeAlias = Described | EmpiricalLength
    Lengths: TypeAlias = Empirical | Pairs | Described
    Trace: TypeAlias = Described
else:
    Arrivals = one_of(
        described(arrival_processes.Poisson, kind="poisson", rate_rps=Rate),
        described(arrival_processes.Gamma, kind="gamma", rate_rps=Rate, burstiness=Rate),
        described(arrival_processes.Constant, kind="constant", rate_rps=Rate),
        described(arrival_processes.Burst, kind="burst"),
        described(arrival_processes.Closed, kind="closed"),
        described(
            rates.Piecewise,
            kind="piecewise",
            durations_s=listed(SomeSeconds),
            rates_rps=listed(Annotated[float, Field(ge=0, le=RATE.value), RATE]),
            burstiness=Rate,
        ),
        described(rates.Diurnal, kind="diurnal", burstiness=Rate),
        described(rates.RampUp, kind="ramp_up", burstiness=Rate),
        described(rates.Modulated, kind="modulated", rate_rps=Rate),
    )
    Length = one_of(
        described(length_laws.Fixed, kind="fixed"),
        described(length_laws.Uniform, kind="uniform"),
        described(length_laws.Lognormal, kind="lognormal"),
        EmpiricalLength,
    )
    Lengths = one_of(
        Empirical,
        Pairs,
        described(RandomLengths, kind="random", prefix_tokens=MaybeTokens),
        described(
            fitting.JointQuantiles,
            kind="joint_quantiles",
            percentiles=listed(float),
            prompt_tokens=listed(float),
            output_tokens=listed(listed(float)),
        ),
    )
    Trace = described(TraceFile, path=FilePath)


class Network(Section):
    """The way between the client and the server, counted as the client's: latencies start at the server."""

    uplink_s: Seconds = Field(0.0, description="a request reaches the scheduler so many seconds after it was sent")
    downlink_s: Seconds = Field(0.0, description="the client hears of an answer so many seconds after it was given")


class Tenant(Section):
    """One tenant of a mixture, with arrivals, lengths, priority and, if it has them, targets of its own."""

    name: Name = Field(description="unique among the tenants")
    arrivals: Arrivals = Field(description="when its requests come")
    lengths: Lengths | None = optional("prompt and output lengths together")
    prompt_tokens: Length | None = optional("prompt lengths, instead of lengths")
    output_tokens: Length | None = optional("output lengths, instead of lengths")
    share: Factor | None = optional("part of the requests, in proportion; null: by the rates of all")
    priority: Priority = Field(0, description="lower goes first, under scheduling_policy: priority")
    slo: Slo | None = optional("its latency targets, all of them; null: those of the scenario")

    @model_validator(mode="after")
    def _one_kind_of_lengths(self) -> Tenant:
        if (self.lengths is None) == (self.prompt_tokens is None or self.output_tokens is None):
            raise refuse("give lengths, or both prompt_tokens and output_tokens")
        return self


class Conversations(Section):
    """Conversations of several turns: each prompt holds all that was said before."""

    arrivals: Arrivals = Field(description="when conversations start")
    turns: Length = Field(description="turns of each")
    new_tokens: Length = Field(description="the user's text of a turn")
    output_tokens: Length = Field(description="the answer to it")
    think_s: Seconds = Field(0.0, description="seconds from an answer to the next turn")
    system_tokens: MaybeTokens = Field(0, description="what every prompt starts with, all the same")


class ServeGen(Section):
    """A folder of ServeGen client chunks."""

    folder: FolderPath = Field(description="folder of chunk-*-trace.csv and chunk-*-dataset.json")
    start_s: Seconds = Field(0.0, description="second of the day at which to begin")
    duration_s: SomeSeconds = Field(3600.0, description="how much of the day")
    scale: Factor = Field(1.0, description="factor of all rates")


class Workload(Section):
    """What arrives: arrivals and lengths, a trace, tenants, conversations, or ServeGen's clients."""

    arrivals: Arrivals | None = optional("when requests come: poisson, gamma, constant, burst, closed ...")
    lengths: Lengths | None = optional("prompt and output lengths together")
    prompt_tokens: Length | None = optional("prompt lengths, instead of lengths")
    output_tokens: Length | None = optional("output lengths, instead of lengths")
    trace: Trace | None = optional("a recorded trace, instead of arrivals and lengths")
    tenants: listed(Tenant) | None = Field(  # type: ignore[valid-type]
        None, description="a mixture, instead of arrivals and lengths"
    )
    conversations: Conversations | None = optional("sessions, instead of arrivals and lengths")
    servegen: ServeGen | None = optional("ServeGen's clients, instead of arrivals and lengths")
    requests: Requests | None = optional(
        "how many requests (or conversations); of a trace, the first so many (null: all)"
    )
    seed: Seed = Field(0, description="seed of arrivals and lengths")
    max_in_flight: Sequences | None = optional("the client holds back what exceeds so many at the server")
    network: Network | None = optional("the client's way to the server and back; null: none")

    @model_validator(mode="after")
    def _one_source(self) -> Workload:
        sources = ("arrivals", "lengths", "prompt_tokens", "output_tokens")
        given = [key for key in sources if getattr(self, key) is not None]
        whole = [key for key in ("trace", "tenants", "conversations", "servegen") if getattr(self, key) is not None]
        if len(whole) > 1:
            raise refuse(f"{' and '.join(whole)} are given: keep one")
        if whole and given:
            source, taken = whole[0].rstrip("s"), " and ".join(given)
            raise refuse(f"a {source} has its own arrivals and lengths: take out {taken}, or the {source}")
        if not whole and self.arrivals is None:
            raise refuse("nothing arrives: give arrivals, like {kind: poisson, rate_rps: 8}, or a trace")
        if self.lengths is not None and len(given) > 2:
            raise refuse("lengths are given twice: keep lengths, or prompt_tokens and output_tokens")
        if not whole and self.lengths is None and len(given) < 3:
            raise refuse("lengths are missing: give lengths, or both prompt_tokens and output_tokens")
        if self.requests is None and whole[:1] not in (["trace"], ["servegen"]):
            raise refuse("requests is missing: say how many, like requests: 1000")
        return self


class Cost(Section):
    """What the user pays. No price ships as a fact."""

    usd_per_gpu_hour: Annotated[float, Field(ge=0, le=1e6)] = Field(description="US dollars for one GPU for one hour")
    output_over_input: Annotated[float, Field(gt=0, le=1e6)] | None = optional(
        "price list: an output token costs so many input tokens; null: by the busy time of prefill and decode"
    )


class PolicyEntry(Described):
    """One policy of the list: its ``kind``, the fields of its dataclass, and an optional name."""

    name: Name | None = optional("unique name in tables and figures")
    like: EngineVersion | None = optional(
        "continuous only: an engine whose defaults are taken for what is not given, as in vllm-0.19"
    )

    @model_validator(mode="after")
    def _like_an_engine(self) -> PolicyEntry:
        if self.like is not None and not POLICIES[self.kind].like_engine:
            raise refuse("only continuous batching is like an engine: take it out", ("like",), value=self.like)
        return self

    def parameters(self) -> dict[str, Any]:
        """The values; of an engine's defaults, the number of sequences gives way to the token budget."""
        values = super().parameters()
        if self.like is not None and "max_num_seqs" in values and "max_num_seqs" not in self.model_fields_set:
            values["max_num_seqs"] = min(values["max_num_seqs"], values["max_num_batched_tokens"])
        return values

    if TYPE_CHECKING:
        kind: str

        def build(self) -> Policy: ...


_POLICY_SECTIONS = [described(policy, kind=kind, above=PolicyEntry) for kind, policy in POLICIES.items()]

if TYPE_CHECKING:
    Policies: TypeAlias = tuple[PolicyEntry, ...]
else:
    Policies = listed(one_of(*_POLICY_SECTIONS))


def policy_keys(kind: str) -> list[tuple[str, Any, str]]:
    """Key, default (None for none) and meaning of each parameter of a policy."""
    from pydantic_core import PydanticUndefined

    section = next(s for s in _POLICY_SECTIONS if s.described_by is POLICIES[kind])
    return [
        (key, None if field.default is PydanticUndefined else field.default, field.description or "")
        for key, field in section.model_fields.items()
        if key not in {"kind", "name", "like"}
    ]


class Scenario(Section):
    """One scenario: a model on a device, a workload, the policies to compare."""

    #: The points of its sweep, once they were made (`loading.points`); a changed copy has none.
    __slots__ = ("expanded",)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as plain data: the sections of policies are made when this file is imported, and do not pickle."""
        return _of_plain, (self.model_dump(mode="json"),)

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        description="name of the results folder: letters, digits, . _ -",
    )
    model: NameOrPath = Field(description="catalogue name (servecast list models) or the path of a config.json")
    profile: NameOrPath | None = optional(
        "calibrated device: a name (servecast list profiles) or the path of a profile"
    )
    device: NameOrPath | None = optional(
        "datasheet device, an uncalibrated roofline: a name (servecast list devices) or a path"
    )
    engine: Engine = Field(default_factory=lambda: Engine.model_validate({}), description="engine settings")
    workload: Workload = Field(description="what arrives")
    policies: Policies = Field(description="policies to compare")
    slo: Slo | None = optional("latency targets")
    cost: Cost | None = optional("price of the hardware")
    sweep: dict[str, Values] = Field(default_factory=dict, description="key path: list of values; several make a grid")
    seeds: Points = Field(1, description="repeats with workload.seed, +1, +2, ...")
    horizon_s: SomeSeconds | None = optional("stop after so many seconds; null: when all is answered")
    warmup_s: Seconds | None = optional("seconds left out at the start; null: the whole run counts")
    derived: dict[str, Any] | None = Field(
        None, exclude=True, description="written beside results for people to read; ignored when read back"
    )
    cooldown_s: Seconds | None = optional("seconds left out before the last arrival")
    goal: Goal | None = optional("targets for servecast plan")
    search: Search | None = optional("what servecast plan may change")
    replicas: Replicas | None = optional("engines behind the router; null: one, and plan finds how many")
    router: RouterName | None = optional("how requests are shared out; null: least_outstanding")

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if value is not None or key not in {"engine", "sweep"}}

    @model_validator(mode="after")
    def _one_device(self) -> Scenario:
        if (self.profile is None) == (self.device is None):
            given = "profile and device are both given" if self.profile else "neither profile nor device is given"
            raise refuse(f"{given}: name a profile (calibrated), or a device (datasheet) and no profile")
        return self

    @model_validator(mode="after")
    def _labels_differ(self) -> Scenario:
        labels = self.labels()
        for at, label in enumerate(labels):
            if (first := labels.index(label)) < at:
                remedy = f"policies[{first}] is called that too; give each a name of its own"
                raise refuse(remedy, ("policies", at, "name"), value=label)
        return self

    def labels(self) -> list[str]:
        """What each policy is called: its name, else its kind with what tells it from others of that kind."""
        labels = []
        for entry in self.policies:
            alike = [other.parameters() for other in self.policies if other.kind == entry.kind and other.name is None]
            parts = [
                f"{key}={value}"
                for key, value in entry.parameters().items()
                if any(other[key] != value for other in alike)
            ]
            labels.append(entry.name or " ".join([entry.kind, *parts]))
        return labels


def _of_plain(data: dict[str, Any]) -> Scenario:
    return Scenario.model_validate(data, context={"folder": Path()})
