"""The numbers that explain batching, worked out: intensity, ridge, memory wall, padding, and the price of a token.

A linear layer of n x n weights on a batch of B rows, b bytes per value:

    FLOPs = 2 B n^2      weight bytes = b n^2      activation bytes = 2 b B n      (inputs read, outputs written)
    intensity = 2 B / b by weights alone, B n / (n + 2 B) x 2 / b with activations

Decode reads the weights once for all rows, so a batch of (ridge x b / 2) rows keeps the arithmetic units as busy as the
memory. Every row also holds its context in the KV cache. Past some context the KV cache is full before the batch is
that large: the memory wall comes before the ridge.

Everything here is plain arithmetic on specs; nothing is fitted and nothing printed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from servecast import memory
from servecast.errors import InputError
from servecast.memory import MemoryBudget, engine_defaults
from servecast.specs import catalogue
from servecast.specs.dtypes import bytes_per_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import ModelSpec

LAYER_WIDTH = 4096
WALL_MODELS = ("llama-2-7b", "llama-3.1-8b")
WALL_DEVICES = ("a100-40gb", "a100-80gb")


@dataclass(frozen=True, slots=True)
class LayerIntensity:
    """FLOP per byte of a square linear layer at one batch, without activations in the bytes and with them."""

    batch: int
    width: int
    flops: int
    weight_bytes: float
    activation_bytes: float
    weights_only: float
    with_activations: float


def layer_intensity(batch: int, width: int = LAYER_WIDTH, dtype: str = "bf16") -> LayerIntensity:
    """How many FLOPs a ``width`` x ``width`` layer does per byte it moves for ``batch`` rows."""
    value = bytes_per_value(dtype)
    flops = 2 * batch * width * width
    weights = value * width * width
    activations = 2 * value * batch * width
    return LayerIntensity(
        batch=batch,
        width=width,
        flops=flops,
        weight_bytes=weights,
        activation_bytes=activations,
        weights_only=flops / weights,
        with_activations=flops / (weights + activations),
    )


@dataclass(frozen=True, slots=True)
class Crossing:
    """The smallest batch whose intensity reaches a ridge; None where activations keep it from ever doing so."""

    ridge: float
    weights_only: int
    with_activations: int | None


def ridge_crossing(ridge: float, width: int = LAYER_WIDTH, dtype: str = "bf16") -> Crossing:
    """The batch at which decode turns from bandwidth-bound to compute-bound on a device with this ridge [FLOP/B].

    With activations the intensity tends to width / bytes per value as the batch grows, whatever the batch: a higher
    ridge is never reached.
    """
    value = bytes_per_value(dtype)
    batch = ridge * value / 2  # 2 B / b = ridge
    # 2 B n / (b (n + 2 B)) = ridge, solved for B
    headroom = 1 - 2 * batch / width
    return Crossing(ridge, math.ceil(batch), math.ceil(batch / headroom) if headroom > 0 else None)


def ridges(dtype: str = "bf16") -> dict[str, float]:
    """The ridge [FLOP/B] of each device of the catalogue that computes in ``dtype``."""
    return {device.name: device.ridge(dtype) for device in catalogue.devices() if dtype in device.flops}


@dataclass(frozen=True, slots=True)
class MemoryWall:
    """Where KV memory ends a batch before the ridge is reached.

    ``batch`` rows reach the ridge; sequences of up to ``longest_context`` tokens fit that many times into the KV cache,
    and from ``context`` on they do not. ``max_batch_at_wall`` is how many of ``context`` tokens still fit.
    """

    model: str
    device: str
    ridge: float
    batch: int
    kv_tokens: int
    longest_context: int
    context: int
    max_batch_at_wall: int


def memory_wall(
    model: ModelSpec, device: DeviceSpec, ridge: float | None = None, like: str = "vllm-0.23"
) -> MemoryWall:
    """The context length from which memory stops ``model`` on one ``device`` before decode reaches the ridge.

    ``ridge`` [FLOP/B] defaults to the device's own. The KV cache is what the engine ``like`` leaves by its defaults,
    with room for at least ``batch`` sequences. Raises InputError where the model leaves no room for a KV cache.
    """
    ridge = device.ridge(model.dtype) if ridge is None else ridge
    batch = ridge_crossing(ridge, dtype=model.weight_dtype or model.dtype).weights_only
    defaults = engine_defaults(device, like)
    budget = memory.budget(
        model,
        device,
        gpu_memory_utilization=defaults.gpu_memory_utilization,
        block_size=defaults.block_size,
        max_num_batched_tokens=defaults.max_num_batched_tokens,
        max_num_seqs=max(batch, defaults.max_num_seqs),
    )
    longest = budget.kv_blocks // batch * budget.block_size
    return MemoryWall(
        model=model.name,
        device=device.name,
        ridge=ridge,
        batch=batch,
        kv_tokens=budget.kv_tokens,
        longest_context=longest,
        context=longest + 1,
        max_batch_at_wall=_fitting(budget, longest + 1),
    )


def memory_walls(ridge: float | None = None) -> list[MemoryWall]:
    """The wall of Llama-2-7B (all heads cached) and Llama-3.1-8B (grouped), on the A100 of 40 and of 80 GB."""
    return [
        memory_wall(catalogue.model(model), catalogue.device(device), ridge)
        for model in WALL_MODELS
        for device in WALL_DEVICES
    ]


def _fitting(budget: MemoryBudget, context: int) -> int:
    return budget.kv_blocks // budget.blocks_of(context)


@dataclass(frozen=True, slots=True)
class PaddingWaste:
    """What padding prompts to the longest costs: computed and useful tokens and causal query-key pairs."""

    computed_tokens: int
    useful_tokens: int
    computed_pairs: int
    useful_pairs: int

    @property
    def tokens(self) -> float:
        """Share of the computed tokens that is padding."""
        return 1 - self.useful_tokens / self.computed_tokens

    @property
    def pairs(self) -> float:
        """Share of the computed query-key pairs that is padding."""
        return 1 - self.useful_pairs / self.computed_pairs


def padding_waste(prompts: Sequence[int] = (2000, 50, 50, 50, 50, 50, 50, 50)) -> PaddingWaste:
    """The padding in one batch of ``prompts`` [tokens], each padded to the longest."""
    if not prompts or min(prompts) < 1:
        raise InputError("prompts", f"{list(prompts)} must be at least one length, each of 1 token or more")
    longest = max(prompts)
    return PaddingWaste(
        computed_tokens=len(prompts) * longest,
        useful_tokens=sum(prompts),
        computed_pairs=len(prompts) * (longest * (longest + 1) // 2),
        useful_pairs=sum(prompt * (prompt + 1) // 2 for prompt in prompts),
    )


def usd_per_mtok(usd_per_hour: float, tokens_per_s: float, utilization: float = 1.0) -> float:
    """Dollars per million tokens of hardware that costs ``usd_per_hour`` and is busy a share ``utilization`` of it."""
    return usd_per_hour / (tokens_per_s * utilization * 3600) * 1e6
