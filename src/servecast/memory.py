"""The memory budget of a serving engine: what is left for the KV cache once everything else has its place.

    KV bytes  = gpu_memory_utilization x device memory - weights - activation peak - runtime overhead
    kv_blocks = floor(KV bytes / block bytes) - 1

as vLLM V1 measures it at start-up (`determine_available_memory`, `get_kv_cache_configs`); per GPU of a tensor-parallel
group. A block is ``block_size`` tokens of every layer. Blocks are rounded down, and one of them is vLLM's null block,
which no sequence can hold: ``kv_blocks`` are the usable ones, vLLM's ``num_gpu_blocks`` is one more.

Sliding layers keep no more than their window. Blocks grow with the sequence, so a hybrid model is laid out in the
better of two ways, neither of which promises what is not there: windows of ``max_num_seqs`` sequences set aside and
blocks of the full layers alone (good for gpt-oss and its 128 tokens), or every layer counted in full (what vLLM does
with its hybrid KV cache manager off; good where windows are long against the memory, as in Gemma 3). vLLM's hybrid
manager shares out pages freely and fits somewhat more than either.

The activation peak depends on ``max_num_batched_tokens`` and ``max_num_seqs`` and on no length: a smaller
``max_model_len`` frees nothing (with chunked prefill off vLLM raises max_num_batched_tokens to max_model_len, which
looks as if it did). The runtime overhead is one set of constants for every model and device; with them the logged
capacities of vLLM 0.15 to 0.23 on an RTX 4090, A100 and H100s come within 3 %.

Left out: pipeline and expert parallelism, CPU offload, fragmentation at run time, other processes on the device.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from servecast.errors import InputError
from servecast.specs.dtypes import dtype_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import ModelSpec

GIB = 1 << 30
MIB = 1 << 20

RUNTIME_BYTES = 200 * MIB
"""What libraries allocate on the device after start-up, outside torch: cuBLAS and attention workspaces, the engine's
persistent input buffers. Logs of vLLM 0.6 to 0.15 on one GPU leave 0.27 to 0.37 GiB for this and the next together."""

GRAPH_BYTES = 100 * MIB
"""What vLLM sets aside for captured CUDA graphs; none with enforce_eager."""

COMMUNICATOR_BYTES = 392 * MIB
"""NCCL channels and all-reduce buffers on each GPU of a tensor-parallel group: 342 MiB measured for 2 GPUs, 392 MiB for
4 and 8, NCCL 2.27 (ai-dynamo/aiconfigurator, systems/*.yaml, nccl_mem); the larger is used throughout."""


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
    version = re.fullmatch(r"vllm-(\d+)\.(\d+)(\.\d+)?", like)
    if not version:
        raise InputError("engine.like", f"{like!r} is not known; write vllm- and a version, as in vllm-0.23")
    utilization = 0.92 if (int(version[1]), int(version[2])) >= (0, 22) else 0.90
    size_gib = device.memory_bytes / GIB
    large = size_gib >= 160 or (size_gib >= 70 and not device.name.lower().startswith("a100"))
    tokens = 16384 if size_gib >= 160 else 8192 if large else 2048
    return EngineDefaults(like, utilization, 1024 if large else 256, tokens)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The budget of one GPU in bytes, line by line, and the blocks it leaves.

    usable_bytes - weight_bytes - activation_bytes - overhead_bytes = kv_bytes, unless ``kv_blocks`` was given: then
    kv_bytes is what those blocks take. ``window_bytes`` is the part of kv_bytes set aside for sliding windows,
    ``block_bytes`` what one block takes of the rest. ``max_model_len`` is the longest sequence, in tokens.
    """

    model: ModelSpec
    device: DeviceSpec
    tensor_parallel: int
    block_size: int
    kv_dtype: str
    max_num_seqs: int
    total_bytes: int
    usable_bytes: float
    weight_bytes: float
    activation_bytes: float
    overhead_bytes: float
    kv_bytes: float
    window_bytes: float
    block_bytes: float
    kv_blocks: int
    max_model_len: int

    @property
    def kv_tokens(self) -> int:
        """Tokens that all usable blocks hold."""
        return self.kv_blocks * self.block_size

    def blocks_of(self, tokens: int) -> int:
        """Blocks that one sequence of ``tokens`` holds."""
        return -(-tokens // self.block_size)

    def max_concurrency(self, tokens: int) -> float:
        """How many sequences of ``tokens`` the blocks hold at one time, as vLLM prints it (1.56x)."""
        return self.kv_blocks / self.blocks_of(tokens)

    def activation_bytes_of(self, tokens: int, rows: int | None = None) -> float:
        """Peak activation bytes of a step of ``tokens`` that samples for ``rows`` sequences (max_num_seqs if None)."""
        sampled = self.max_num_seqs if rows is None else rows
        return self.model.activation_bytes_peak(tokens, sampled, self.tensor_parallel)


def whole_blocks(kv_bytes: float, block_bytes: float) -> int:
    """Blocks that fit, rounded down: 19.701 GiB in blocks of 32 MiB are 630."""
    return math.floor(kv_bytes / block_bytes)


def overhead_bytes(tensor_parallel: int = 1, enforce_eager: bool = False) -> int:
    """Runtime overhead on each GPU: libraries, CUDA graphs unless eager, a communicator unless alone."""
    return RUNTIME_BYTES + (0 if enforce_eager else GRAPH_BYTES) + (COMMUNICATOR_BYTES if tensor_parallel > 1 else 0)


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
) -> MemoryBudget:
    """The memory budget of ``model`` on each of ``tensor_parallel`` devices.

    ``kv_blocks`` overrides the number of usable blocks, whatever the budget says. ``max_model_len`` None takes the
    smaller of the model's and what the blocks hold. Raises InputError for values out of range, for a split that the
    heads do not allow, and with vLLM's two start-up errors: no memory left for blocks, or too little for one request.
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
    cached_dtype = model.dtype if kv_dtype in (None, "auto") else dtype_name(str(kv_dtype), "engine.kv_cache_dtype")
    usable = gpu_memory_utilization * device.memory_bytes
    weights = model.weight_bytes(tensor_parallel)
    activations = model.activation_bytes_peak(max_num_batched_tokens, max_num_seqs, tensor_parallel)
    overhead = overhead_bytes(tensor_parallel, enforce_eager)
    window_bytes, block_bytes = 0.0, block_size * model.kv_bytes_per_token(cached_dtype, tensor_parallel)
    if kv_blocks is None:
        kv_bytes = usable - weights - activations - overhead
        aside = max_num_seqs * model.window_bytes(block_size, cached_dtype, tensor_parallel)
        growing = block_size * model.full_kv_bytes_per_token(cached_dtype, tensor_parallel)
        if growing and whole_blocks(kv_bytes - aside, growing) > whole_blocks(kv_bytes, block_bytes):
            window_bytes, block_bytes = aside, growing
        kv_blocks = whole_blocks(kv_bytes - window_bytes, block_bytes) - 1
        if kv_blocks < 1:
            problem = _no_memory(device, usable, weights, activations, overhead)
            raise NotEnoughMemoryError("engine.gpu_memory_utilization", problem)
    else:
        kv_bytes = (kv_blocks + 1) * block_bytes
    return MemoryBudget(
        model, device, tensor_parallel, block_size, cached_dtype, max_num_seqs,
        total_bytes=device.memory_bytes,
        usable_bytes=usable,
        weight_bytes=weights,
        activation_bytes=activations,
        overhead_bytes=overhead,
        kv_bytes=kv_bytes,
        window_bytes=window_bytes,
        block_bytes=block_bytes,
        kv_blocks=kv_blocks,
        max_model_len=_longest(model, max_model_len, kv_blocks, block_size, block_bytes),
    )  # fmt: skip


def _refuse_out_of_range(gpu_memory_utilization: float, given: Mapping[str, int | None]) -> None:
    if not 0 < gpu_memory_utilization <= 1:
        problem = f"{gpu_memory_utilization} is outside (0, 1]; write 0.9 for 90 %"
        raise InputError("engine.gpu_memory_utilization", problem)
    for key, value in given.items():
        if value is not None and value < 1:
            raise InputError(f"engine.{key}", f"{value} is not a positive whole number")


def _longest(model: ModelSpec, asked: int | None, kv_blocks: int, block_size: int, block_bytes: float) -> int:
    """The longest sequence: what is asked, else the smaller of the model's and what the blocks hold [tokens]."""
    held = kv_blocks * block_size
    longest = min(model.max_position or held, held) if asked is None else asked
    if model.max_position and longest > model.max_position:
        problem = f"{longest} is more than the {model.max_position} positions of {model.name}"
        raise InputError("engine.max_model_len", problem)
    if longest > held:
        needed, there = (-(-tokens // block_size) * block_bytes / GIB for tokens in (longest, held))
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
