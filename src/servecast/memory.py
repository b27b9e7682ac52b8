"""The memory budget of a serving engine: what is left for the KV cache once everything else has its place.

    KV bytes  = gpu_memory_utilization x device memory - weights - activation peak - runtime overhead
    kv_blocks = floor(KV bytes / block bytes) - 1

as vLLM V1 measures it at start-up (`determine_available_memory`, `get_kv_cache_configs`); per GPU of a tensor-parallel
group. A block is ``block_size`` tokens of every layer. Blocks are rounded down, and one of them is vLLM's null block,
which no sequence can hold: ``kv_blocks`` are the usable ones, vLLM's ``num_gpu_blocks`` is one more.

Not every layer keeps every token. From 0.21 on vLLM's hybrid KV cache manager puts the layers into groups of equal
size (as many layers as the rarest kind has, or the commonest if that has fewer than 1.5 times as many; the last group
of a kind is padded), and a block is ``block_size`` tokens of one group. A sequence holds blocks of the sliding groups
for its window alone, and one more since a window can begin anywhere in a block. A step's new tokens are in all groups
until it ends: room for them is asked once, of the longest sequence. Before 0.21, and where all layers slide, every
layer counts in full and a block is of all of them. Layers of unlike width are counted in blocks of the full ones.

The states of recurrent layers do not grow: a sequence holds whole blocks for them from its first token to its last
(vLLM enlarges the attention blocks to the size of a state page and rounds up there). A model of states alone has
blocks of one sequence each.

What a version counts beside weights and cache, activations of the step and runtime overhead, is in
`servecast.specs.start_up`. No length enters it: a smaller ``max_model_len`` frees nothing (with chunked prefill off
vLLM raises max_num_batched_tokens to max_model_len, which looks as if it did). With it the logged capacities of vLLM
0.15 to 0.23 on an RTX 4090, A100 and H100s come within 3 %.

Left out: pipeline and expert parallelism, CPU offload, fragmentation at run time, other processes on the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from servecast.errors import InputError
from servecast.kvcache import Growth
from servecast.specs.dtypes import dtype_name
from servecast.specs.start_up import start_up, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import ModelSpec
    from servecast.specs.start_up import StartUp

GIB = 1 << 30
MIB = 1 << 20

_MOST_GPUS = 64  # of a tensor-parallel group: the largest that is proposed
_LONGEST = 1 << 20  # tokens of a sequence of a model that keeps states alone and says no limit


class NotEnoughMemoryError(InputError):
    """The engine would not start: what is left for the KV cache is nothing, or holds no sequence so long."""


@dataclass(frozen=True, slots=True)
class EngineDefaults:
    """What an engine uses where a user says nothing. ``like`` names the version it is taken from."""

    like: str
    gpu_memory_utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int = 16


def engine_defaults(device: DeviceSpec, like: str = "vllm-0.23") -> EngineDefaults:
    """The defaults of vLLM's API server on this device, by version: 0.90 of the memory before 0.22, 0.92 since.

    From 70 GiB on, A100 excepted, 1,024 sequences and 8,192 tokens a step (16,384 from 160 GiB), else 256 and 2,048
    (vLLM, `EngineArgs.get_batch_defaults`). Raises InputError where ``like`` is not "vllm-MAJOR.MINOR".
    """
    utilization = 0.92 if version_of(like) >= (0, 22) else 0.90
    size_gib = device.memory_bytes / GIB
    large = size_gib >= 160 or (size_gib >= 70 and not device.name.lower().startswith("a100"))
    tokens = 16384 if size_gib >= 160 else 8192 if large else 2048
    return EngineDefaults(like, utilization, 1024 if large else 256, tokens)


class _Layout(NamedTuple):
    """How the cache is cut: how a sequence grows, what a block takes, and blocks that a step's new tokens hold."""

    growth: Growth
    block_bytes: float
    passing_blocks: int = 0

    def longest(self, blocks: int) -> int:
        """Tokens of one sequence that has so many blocks to itself."""
        return self.growth.longest(blocks - self.passing_blocks)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The budget of one GPU in bytes, line by line, and the blocks it leaves.

    usable_bytes - weight_bytes - activation_bytes - overhead_bytes = kv_bytes, unless ``kv_blocks`` was given: then
    kv_bytes is what those blocks take. ``block_bytes`` is what one block takes, ``growth`` how many a sequence holds,
    ``kv_tokens`` the longest sequence that all usable blocks hold, ``max_model_len`` the longest that is served.
    """

    model: ModelSpec
    device: DeviceSpec
    like: str
    tensor_parallel: int
    kv_dtype: str
    max_num_seqs: int
    total_bytes: int
    usable_bytes: float
    weight_bytes: float
    activation_bytes: float
    overhead_bytes: float
    kv_bytes: float
    block_bytes: float
    growth: Growth
    kv_blocks: int
    kv_tokens: int
    max_model_len: int

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.growth.size

    def blocks_of(self, tokens: int) -> int:
        """Blocks that one sequence of ``tokens`` holds."""
        return self.growth.blocks(tokens)

    def max_concurrency(self, tokens: int) -> float:
        """How many sequences of ``tokens`` the blocks hold at one time, as vLLM prints it (1.56x)."""
        return self.kv_blocks / self.blocks_of(tokens)

    def activation_bytes_of(self, tokens: int, rows: int | None = None) -> float:
        """Peak activation bytes of a step of ``tokens`` that samples for ``rows`` sequences (max_num_seqs if None)."""
        sampled = self.max_num_seqs if rows is None else rows
        return start_up(self.like).activation_bytes(self.model, tokens, sampled, self.tensor_parallel)


def whole_blocks(kv_bytes: float, block_bytes: float) -> int:
    """Blocks that fit, rounded down: 19.701 GiB in blocks of 32 MiB are 630."""
    return math.floor(kv_bytes / block_bytes)


def smallest_split(fits: Callable[[int], object], above: int) -> str:
    """The smallest tensor_parallel_size above ``above`` for which ``fits`` raises no InputError, as a remedy."""
    for gpus in range(above + 1, _MOST_GPUS + 1):
        try:
            fits(gpus)
        except InputError:
            continue
        return f"; the smallest tensor_parallel_size that holds it is {gpus}"
    return f"; no tensor_parallel_size up to {_MOST_GPUS} holds it"


def budget(
    model: ModelSpec,
    device: DeviceSpec,
    *,
    gpu_memory_utilization: float,
    block_size: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    kv_dtype: str | None = None,
    tensor_parallel: int = 1,
    kv_blocks: int | None = None,
    max_model_len: int | None = None,
    enforce_eager: bool = False,
    like: str = "vllm-0.23",
    advise: bool = True,
) -> MemoryBudget:
    """The memory budget of ``model`` on each of ``tensor_parallel`` devices, as the version ``like`` counts it.

    ``kv_blocks`` overrides the number of usable blocks, whatever the budget says. ``max_model_len`` None takes the
    smaller of the model's and what the blocks hold. Raises InputError for values out of range, for a split that the
    heads do not allow, and with vLLM's two start-up errors: no memory left for blocks, or too little for one request.
    These say the smallest split that holds the model if ``advise``.
    """
    given = {
        "block_size": block_size,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": max_num_seqs,
        "tensor_parallel_size": tensor_parallel,
        "kv_blocks": kv_blocks,
        "max_model_len": max_model_len,
    }
    _refuse_out_of_range(gpu_memory_utilization, given)
    cached_dtype = (
        model.cache_dtype if kv_dtype in (None, "auto") else dtype_name(str(kv_dtype), "engine.kv_cache_dtype")
    )

    def made(gpus: int) -> MemoryBudget:
        return _budget(
            model, device, like, gpu_memory_utilization, block_size, max_num_batched_tokens, max_num_seqs,
            cached_dtype, gpus, kv_blocks, max_model_len, enforce_eager,
        )  # fmt: skip

    try:
        return made(tensor_parallel)
    except NotEnoughMemoryError as error:
        if not advise or kv_blocks is not None:
            raise
        raise NotEnoughMemoryError(error.place, error.problem + smallest_split(made, tensor_parallel)) from None


def _budget(
    model: ModelSpec,
    device: DeviceSpec,
    like: str,
    gpu_memory_utilization: float,
    block_size: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    kv_dtype: str,
    tensor_parallel: int,
    kv_blocks: int | None,
    max_model_len: int | None,
    enforce_eager: bool,
) -> MemoryBudget:
    version = start_up(like)
    usable = gpu_memory_utilization * device.memory_bytes
    weights = model.weight_bytes(tensor_parallel)
    activations = version.activation_bytes(model, max_num_batched_tokens, max_num_seqs, tensor_parallel)
    overhead = version.overhead_bytes(tensor_parallel, enforce_eager)
    longest = max_model_len or model.max_position
    layout = _layout(model, version, block_size, kv_dtype, tensor_parallel, max_num_batched_tokens, longest)
    if kv_blocks is None:
        kv_bytes = usable - weights - activations - overhead
        kv_blocks = whole_blocks(kv_bytes, layout.block_bytes) - 1
        if not layout.longest(kv_blocks):
            problem = _no_memory(device, usable, weights, activations, overhead)
            raise NotEnoughMemoryError("engine.gpu_memory_utilization", problem)
    else:
        kv_bytes = (kv_blocks + 1) * layout.block_bytes
    return MemoryBudget(
        model, device, like, tensor_parallel, kv_dtype, max_num_seqs,
        total_bytes=device.memory_bytes,
        usable_bytes=usable,
        weight_bytes=weights,
        activation_bytes=activations,
        overhead_bytes=overhead,
        kv_bytes=kv_bytes,
        block_bytes=layout.block_bytes,
        growth=layout.growth,
        kv_blocks=kv_blocks,
        kv_tokens=layout.longest(kv_blocks),
        max_model_len=_longest(model, max_model_len, kv_blocks, layout),
    )  # fmt: skip


def _layout(
    model: ModelSpec, version: StartUp, block_size: int, kv_dtype: str, gpus: int, step: int, longest: int | None
) -> _Layout:
    """Blocks of one group of layers, and the groups that keep every token, that slide, and what states take."""
    states = model.state_bytes(gpus)
    layers = model.windows(kv_dtype, gpus)
    if not layers:
        return _Layout(Growth(longest or _LONGEST), states)
    token = sum(each * count for (_, each), count in layers.items())
    windows = [window for window, _ in layers if window is not None]
    if not version.hybrid_cache or not 0 < len(windows) < len(layers):
        return _Layout(Growth(block_size, own=math.ceil(states / (block_size * token))), block_size * token)
    full, sliding, group = _groups(layers)
    most = max(windows) - 1 + step if longest is None else min(max(windows) - 1 + step, longest)
    kept, passing = (-(-min(max(windows) - 1 + new, most) // block_size) + 1 for new in (0, step))
    own = math.ceil(states / (block_size * group))
    return _Layout(Growth(block_size, full, sliding, kept, own), block_size * group, (passing - kept) * sliding)


def _groups(layers: Mapping[tuple[int | None, float], int]) -> tuple[int, int, float]:
    """Groups of layers that keep every token, groups that slide, and the KV bytes of a token in one group.

    vLLM 0.23, `_get_kv_cache_groups_uniform_page_size`.
    """
    counts, widths = list(layers.values()), {each for _, each in layers}
    if len(widths) > 1:
        full = sum(each * count for (window, each), count in layers.items() if window is None)
        sliding = sum(each * count for (window, each), count in layers.items() if window is not None)
        return 1, math.ceil(sliding / full), full
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    full_groups = sum(-(-count // size) for (window, _), count in layers.items() if window is None)
    sliding_groups = sum(-(-count // size) for (window, _), count in layers.items() if window is not None)
    return full_groups, sliding_groups, size * widths.pop()


def _refuse_out_of_range(gpu_memory_utilization: float, given: Mapping[str, int | None]) -> None:
    if not 0 < gpu_memory_utilization <= 1:
        problem = f"{gpu_memory_utilization} is outside (0, 1]; write 0.9 for 90 %"
        raise InputError("engine.gpu_memory_utilization", problem)
    for key, value in given.items():
        if value is not None and value < 1:
            raise InputError(f"engine.{key}", f"{value} is not a positive whole number")


def _longest(model: ModelSpec, asked: int | None, kv_blocks: int, layout: _Layout) -> int:
    """The longest sequence: what is asked, else the smaller of the model's and what the blocks hold [tokens]."""
    held = layout.longest(kv_blocks)
    longest = min(model.max_position or held, held) if asked is None else asked
    if model.max_position and longest > model.max_position:
        problem = f"{longest} is more than the {model.max_position} positions of {model.name}"
        raise InputError("engine.max_model_len", problem)
    if not held:
        problem = f"{kv_blocks} hold no sequence, with its states and the new tokens of a step: give more"
        raise NotEnoughMemoryError("engine.kv_blocks", problem)
    if longest > held:
        blocks = (layout.growth.blocks(tokens) + layout.passing_blocks for tokens in (longest, held))
        needed, there = (count * layout.block_bytes / GIB for count in blocks)
        # "models's" and the figures in this order are vLLM's own words, so that a search for them finds both
        raise NotEnoughMemoryError(
            "engine.max_model_len",
            f"To serve at least one request with the models's max seq len ({longest}), ({needed:.2f} GiB KV cache is "
            f"needed, which is larger than the available KV cache memory ({there:.2f} GiB). Based on the available "
            f"memory, the estimated maximum model length is {held}. Try increasing `gpu_memory_utilization` or "
            "decreasing `max_model_len`",
        )
    return longest


def _no_memory(device: DeviceSpec, usable: float, weights: float, activations: float, overhead: float) -> str:
    left = usable - weights - activations - overhead
    helps = "Try increasing `gpu_memory_utilization`, a device with more memory, or a larger tensor_parallel_size"
    if weights + activations + overhead >= device.memory_bytes:
        helps = (
            f"That is more than all of {device.name}, whatever `gpu_memory_utilization` is: take a larger GPU, "
            "a larger tensor_parallel_size, or a model with quantised weights"
        )
    return (
        f"No available memory for the cache blocks: {usable / GIB:.2f} GiB usable - {weights / GIB:.2f} weights "
        f"- {activations / GIB:.2f} activations - {overhead / GIB:.2f} runtime = {left / GIB:.2f} GiB. {helps}"
    )
