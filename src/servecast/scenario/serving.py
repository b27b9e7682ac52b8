"""What stands behind a scenario's names: the model, the device, what steps cost, the memory each policy gets, and what
``like: vllm-0.19`` leaves to that engine.
"""

from __future__ import annotations

import dataclasses
import math
import re
from bisect import bisect_left
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from servecast import memory
from servecast.cost import profile as profiles
from servecast.cost.roofline import Roofline
from servecast.errors import InputError
from servecast.specs import catalogue
from servecast.specs.start_up import start_up
from servecast.text import gibibytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servecast.cost.model import CostModel
    from servecast.cost.profile import ProfileFile
    from servecast.memory import MemoryBudget
    from servecast.policies import Policy
    from servecast.scenario.schema import PolicyEntry, Scenario
    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import ModelSpec

#: Where the name of a file ends in a place: ``trace.csv:17``, ``my-gpu.yaml.tdp_w``.
_OF_A_FILE = re.compile(r":|(?<=\.yaml)\.|(?<=\.yml)\.|(?<=\.json)\.")


class Serving(NamedTuple):
    """A model on its GPUs. ``kv_dtype`` None is the model's own; ``memory_share`` is gpu_memory_utilization."""

    model: ModelSpec
    device: DeviceSpec
    cost: CostModel
    tensor_parallel: int
    kv_dtype: str | None
    memory_share: float
    profile: ProfileFile | None = None


def serving(scenario: Scenario) -> Serving:
    """The objects that a scenario names.

    Raises InputError for an unknown name, and for a profile measured with another model or another split.
    """
    engine = scenario.engine
    kv_dtype = None if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype
    with _placed("scenario.model"):
        model = catalogue.model(scenario.model)
    model = _quantized(scenario, model)
    profile, split = None, engine.tensor_parallel_size or 1
    if scenario.profile is None:
        with _placed("scenario.device"):
            device = catalogue.device(str(scenario.device))
            cost: CostModel = Roofline(model, device, split, kv_dtype)
    else:
        with _placed("scenario.profile"):
            profile = profiles.load(str(scenario.profile))
            device = catalogue.device(profile.device)
            split = engine.tensor_parallel_size or profile.tensor_parallel
            profile.require(model.name, split, kv_dtype)
        cost = profile.cost()
    share = engine.gpu_memory_utilization or memory.engine_defaults(device, engine.like).gpu_memory_utilization
    return Serving(model, device, cost, split, kv_dtype, share, profile)


def _quantized(scenario: Scenario, model: ModelSpec) -> ModelSpec:
    """The model; the weights of its linear layers in another number format where the scenario wants that."""
    place, dtype = "scenario.engine.quantization", scenario.engine.quantization
    if dtype is None:
        return model
    if scenario.profile is not None:
        problem = f"{dtype}, but profile {scenario.profile} was measured with the model's own weights: take it out, or "
        raise InputError(place, problem + "choose `device:` for the datasheet roofline")
    if model.weight_dtype is not None:
        problem = f"{dtype}, but the weights of {model.name} are {model.weight_dtype} already: take it out"
        raise InputError(place, problem)
    return dataclasses.replace(model, weight_dtype=dtype)


def settle(scenario: Scenario, device: DeviceSpec) -> Scenario:
    """The scenario with every ``like`` spelled out: what a policy leaves open is what that engine does on ``device``.

    Batch limits are those of `memory.engine_defaults`; prefix caching is on in every V1 engine, and asynchronous
    scheduling since vLLM 0.14. Settling twice changes nothing.
    """
    policies = tuple(entry if entry.like is None else _settled(entry, device) for entry in scenario.policies)
    return scenario.model_copy(update={"policies": policies})


def _settled(entry: PolicyEntry, device: DeviceSpec) -> PolicyEntry:
    assert entry.like is not None
    defaults = memory.engine_defaults(device, entry.like)
    version = tuple(int(part) for part in re.findall(r"\d+", entry.like)[:2])
    given = {key: getattr(entry, key) for key in entry.model_fields_set}
    tokens = given.get("max_num_batched_tokens", defaults.max_num_batched_tokens)
    values = {
        "max_num_batched_tokens": tokens,
        "max_num_seqs": min(defaults.max_num_seqs, tokens),
        "enable_prefix_caching": True,
        "async_scheduling": version >= (0, 14),
        **given,
        "name": entry.name,
    }
    return type(entry).model_validate(values)


def require_whole_prompts_fit(policy: Policy, budget: MemoryBudget, place: str) -> None:
    """Without chunked prefill a prompt that exceeds the budget would wait for ever, and all behind it.

    Raises InputError, as vLLM refuses to start then.
    """
    longest = min(budget.max_model_len, budget.kv_tokens)
    if policy.longest_prompt < longest:
        problem = f"{policy.longest_prompt} is less than max_model_len {longest}: without chunked prefill a prompt must"
        remedy = f"give at least {longest}, set engine.max_model_len lower, or enable_chunked_prefill: true"
        raise InputError(f"{place}.max_num_batched_tokens", f"{problem} fit one step; {remedy}")


def memory_budget(scenario: Scenario, served: Serving, step: tuple[int, int]) -> MemoryBudget:
    """The memory that is left when the activations of ``step`` (tokens, sampled rows) are set aside.

    Raises InputError, with vLLM's own start-up errors among others.
    """
    try:
        with _placed("scenario.engine"):
            return _budget(scenario, served, step)
    except memory.NotEnoughMemoryError as error:
        # A max_model_len that does not fit has vLLM's own remedies.
        asked = error.place.endswith("max_model_len")
        raise (None if asked else _too_large_a_step(scenario, served, step)) or error from None


def _budget(scenario: Scenario, served: Serving, step: tuple[int, int], advise: bool = True) -> MemoryBudget:
    return memory.budget(
        served.model,
        served.device,
        gpu_memory_utilization=served.memory_share,
        max_num_batched_tokens=step[0],
        max_num_seqs=step[1],
        kv_dtype=served.kv_dtype,
        tensor_parallel=served.tensor_parallel,
        advise=advise,
        **scenario.engine.model_dump(include={"block_size", "kv_blocks", "max_model_len", "enforce_eager", "like"}),
    )


def _too_large_a_step(scenario: Scenario, served: Serving, step: tuple[int, int]) -> InputError | None:
    """Where it is the step's activations that do not fit: the policy's limit that is too large, and the largest one."""

    def fits(limit: int) -> bool:
        try:
            _budget(scenario, served, (min(step[0], limit), min(step[1], limit)), advise=False)
        except memory.NotEnoughMemoryError:
            return False
        return True

    most = bisect_left(range(1, max(step)), True, key=lambda limit: not fits(limit))
    if not most:
        return None
    at, policy = next(
        (at, policy)
        for at, policy in enumerate(entry.build() for entry in scenario.policies)
        if policy.set_aside == step
    )
    key = max(policy.limits, key=lambda name: int(getattr(policy, name)))
    peak = start_up(scenario.engine.like).activation_bytes(served.model, *step, served.tensor_parallel)

    def holds(gpus: int) -> MemoryBudget:
        return _budget(scenario, served._replace(tensor_parallel=gpus), step, advise=False)

    problem = (
        f"{getattr(policy, key)} wants {gibibytes(peak)} for the activations of a step, for which there is no room "
        f"beside the weights and one sequence's KV cache: give at most {most}"
        f"{memory.smallest_split(holds, served.tensor_parallel)}"
    )
    return memory.NotEnoughMemoryError(f"scenario.policies[{at}].{key}", problem)


def activation_blocks(scenario: Scenario, served: Serving, budget: MemoryBudget) -> Callable[[int], int]:
    """KV blocks' worth of memory that a step of so many tokens needs beyond what the plan has set aside.

    With ``kv_blocks`` given, memory that the cache leaves unused is there for activations too.
    """
    set_aside = budget.activation_bytes
    if scenario.engine.kv_blocks is not None:
        spoken_for = budget.weight_bytes + budget.activation_bytes + budget.overhead_bytes + budget.kv_bytes
        set_aside += max(0.0, budget.usable_bytes - spoken_for)

    @lru_cache(maxsize=4096)
    def blocks(tokens: int) -> int:
        beyond = budget.activation_bytes_of(tokens) - set_aside
        return math.ceil(beyond / budget.block_bytes) if beyond > 0 else 0

    return blocks


@contextmanager
def _placed(place: str) -> Iterator[None]:
    """An InputError is placed in the scenario, unless it knows a file of its own."""
    try:
        yield
    except InputError as error:
        if error.place.startswith(("engine.", "model")):
            place = f"scenario.{error.place}"
        elif Path(_OF_A_FILE.split(error.place)[0]).is_file():
            place = error.place
        raise error.moved(place) from None
