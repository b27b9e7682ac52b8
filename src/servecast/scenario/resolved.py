"""A scenario with every default that took effect: what is written beside the results, and can be run again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from servecast.scenario.loading import points
from servecast.scenario.serving import memory_budget, serving, settle

if TYPE_CHECKING:
    from pathlib import Path

    from servecast.memory import MemoryBudget
    from servecast.scenario.schema import Scenario

_GIB = 1 << 30


def resolved(scenario: Scenario, shown: Scenario | None = None) -> dict[str, Any]:
    """The scenario as plain data, paths absolute. What follows from it stands under ``derived``.

    shown : the point of the sweep that ``derived`` is about; the first by default
    ``derived`` is for people to read: a scenario that is loaded again ignores it and derives it anew.

    Raises InputError where the point's names or its memory cannot be.
    """
    first = shown or points(scenario)[0].scenario
    served = serving(first)
    scenario = settle(scenario, served.device)
    data: dict[str, Any] = scenario.model_dump(mode="json")
    data["engine"]["gpu_memory_utilization"] = scenario.engine.gpu_memory_utilization or served.memory_share
    data["engine"]["tensor_parallel_size"] = scenario.engine.tensor_parallel_size or served.tensor_parallel
    plans = {
        label: _budget(memory_budget(first, served, entry.build().set_aside))
        for label, entry in zip(scenario.labels(), first.policies, strict=True)
    }
    data["derived"] = {
        "model_parameters": served.model.parameters(),
        "device": served.device.name,
        "cost_model": served.cost.name,
        "calibrated": served.cost.calibrated,
        "memory": plans,
    }
    return data


def _budget(budget: MemoryBudget) -> dict[str, Any]:
    sizes = {
        "usable": budget.usable_bytes,
        "weights": budget.weight_bytes,
        "activations": budget.activation_bytes,
        "overhead": budget.overhead_bytes,
        "kv": budget.kv_bytes,
    }
    return {
        "kv_blocks": budget.kv_blocks,
        "kv_tokens": budget.kv_tokens,
        "max_model_len": budget.max_model_len,
        "kv_cache_dtype": budget.kv_dtype,
        **{f"{name}_gib": round(size / _GIB, 3) for name, size in sizes.items()},
    }


def seen_from(folder: Path, data: Any) -> Any:
    """A copy of plain data in which absolute paths are relative to ``folder``."""
    if isinstance(data, dict):
        return {key: seen_from(folder, value) for key, value in data.items()}
    if isinstance(data, list):
        return [seen_from(folder, value) for value in data]
    if isinstance(data, str) and data.startswith("/"):
        path = os.path.relpath(data, folder)
        return path if path.startswith("..") else f"./{path}"
    return data
