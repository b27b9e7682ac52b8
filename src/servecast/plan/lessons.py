"""The numbers that explain batching, worked out: intensity, ridge, memory wall and padding.

A linear layer of n x n weights on a batch of B rows, b bytes per value:

    FLOPs = 2 B n^2      weight bytes = b n^2      activation bytes = 2 b B n      (inputs read, outputs written)
    intensity = 2 B / b by weights alone, B n / (n + 2 B) x 2 / b with activations

Decode reads the weights once for all rows, so a batch of (ridge x b / 2) rows keeps the arithmetic units as busy as the
memory. Every row also holds its context in the KV cache. From some context on the cache is full before the batch is
that large: memory stops the batch before the ridge does.

Everything here is plain arithmetic on specs; nothing is fitted and nothing printed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from servecast.errors import InputError
from servecast.memory import budget, engine_defaults
from servecast.specs import catalogue
from servecast.specs.dtypes import bytes_per_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import ModelSpec

_LAYER_WIDTH = 4096
_WALL_MODELS = ("llama-2-7b", "llama-3.1-8b")
_WALL_DEVICES = ("a100-40gb", "a100-80gb")


class _LayerIntensity(NamedTuple):
    """What a square linear layer computes and moves at one batch; FLOP per byte of weights, and of all bytes."""

    flops: int
    weight_bytes: float
    activation_bytes: float
    weights_only: float
    with_activations: float


def layer_intensity(batch: int, width: int = _LAYER_WIDTH, dtype: str = "bf16") -> _LayerIntensity:
    """A ``width`` x ``width`` layer on ``batch`` rows."""
    value = bytes_per_value(dtype)
    flops, weights, activations = 2 * batch * width * width, value * width * width, 2 * value * batch * width
    return _LayerIntensity(flops, weights, activations, flops / weights, flops / (weights + activations))


class _Crossing(NamedTuple):
    """The smallest batch whose intensity reaches a ridge; None where activations keep every batch below it."""

    weights_only: int
    with_activations: int | None


def ridge_crossing(ridge: float, width: int = _LAYER_WIDTH, dtype: str = "bf16") -> _Crossing:
    """The batch at which decode turns from bandwidth-bound to compute-bound on a device with this ridge [FLOP/B].

    With activations the intensity tends to width / bytes per value as the batch grows. A higher ridge is never reached.
    """
    value = bytes_per_value(dtype)
    batch = ridge * value / 2  # 2 B / b = ridge
    # 2 B n / (b (n + 2 B)) = ridge, solved for B
    headroom = 1 - 2 * batch / width
    return _Crossing(math.ceil(batch), math.ceil(batch / headroom) if headroom > 0 else None)


def ridges(dtype: str = "bf16") -> dict[str, float]:
    """The ridge [FLOP/B] of each device of the catalogue that computes in ``dtype``."""
    return {device.name: device.ridge(dtype) for device in catalogue.devices() if dtype in device.flops}


class _MemoryWall(NamedTuple):
    """Where KV memory ends a batch before the ridge is reached.

    ``batch`` rows reach the ridge; that many sequences of ``longest_context`` tokens fit into the KV cache, and of
    ``context`` tokens, one more, they do not.
    """

    model: str
    device: str
    ridge: float
    batch: int
    kv_tokens: int
    longest_context: int
    context: int


def _memory_wall(model: ModelSpec, device: DeviceSpec, ridge: float | None = None) -> _MemoryWall:
    """The context length from which memory stops ``model`` on one ``device`` before decode reaches the ridge.

    ``ridge`` [FLOP/B] defaults to the device's own. The KV cache is what the engine leaves by its defaults, with room
    for at least ``batch`` sequences. Raises InputError where the model leaves no room for a KV cache.
    """
    ridge = device.ridge(model.dtype) if ridge is None else ridge
    batch = ridge_crossing(ridge, dtype=model.weight_dtype or model.dtype).weights_only
    defaults = engine_defaults(device, "vllm-0.23")
    memory = budget(
        model,
        device,
        gpu_memory_utilization=defaults.gpu_memory_utilization,
        block_size=defaults.block_size,
        max_num_batched_tokens=defaults.max_num_batched_tokens,
        max_num_seqs=max(batch, defaults.max_num_seqs),
    )
    longest = memory.growth.longest(memory.kv_blocks // batch)
    return _MemoryWall(model.name, device.name, ridge, batch, memory.kv_tokens, longest, longest + 1)


def memory_walls(ridge: float | None = None) -> list[_MemoryWall]:
    """The wall of Llama-2-7B (all heads cached) and Llama-3.1-8B (grouped), on the A100 of 40 and of 80 GB."""
    return [
        _memory_wall(catalogue.model(model), catalogue.device(device), ridge)
        for model in _WALL_MODELS
        for device in _WALL_DEVICES
    ]


class _PaddingWaste(NamedTuple):
    """Computed and useful tokens and causal query-key pairs of prompts that are padded to the longest.

    tokens, pairs : share of the computed ones that is padding
    """

    computed_tokens: int
    useful_tokens: int
    computed_pairs: int
    useful_pairs: int
    tokens: float
    pairs: float


def padding_waste(prompts: Sequence[int] = (2000, 50, 50, 50, 50, 50, 50, 50)) -> _PaddingWaste:
    """The padding in one batch of ``prompts`` [tokens], each padded to the longest."""
    if not prompts or min(prompts) < 1:
        raise InputError("prompts", f"{list(prompts)} must be at least one length, each of 1 token or more")
    tokens, useful_tokens = len(prompts) * max(prompts), sum(prompts)
    longest, *pairs = (prompt * (prompt + 1) // 2 for prompt in (max(prompts), *prompts))
    all_pairs, useful = len(prompts) * longest, sum(pairs)
    return _PaddingWaste(tokens, useful_tokens, all_pairs, useful, 1 - useful_tokens / tokens, 1 - useful / all_pairs)
