"""What a version of vLLM counts when it measures its memory at start-up, beside weights and KV cache.

vLLM runs one step of ``max_num_batched_tokens`` and samples for ``max_num_seqs`` rows of it (`profile_run`). The peak
is the larger of two moments:

    layers      the widest layer. A mixture of experts holds a copy of each token for each expert it takes: one buffer
                for the gate-up outputs and, after them, the results, tokens x top_k x max(2 x width, hidden), and one
                for their product, tokens x top_k x width (`fused_experts`: intermediate_cache1 and 3 share, 2 beside)
    sampling    bytes a row and vocabulary entry; every GPU holds all of the vocabulary, gathered

Which samples decides: with 1,024 rows, the default on large GPUs, it is far larger than the experts' buffers.

    before 0.17   logits in 16 bits (2) and fp32 (4) are sorted: values (4) and int64 indices (8), and the radix sort's
                  own indices (8) and copies of keys and values (12): 38 bytes
    from 0.17     top-k and top-p in place (Triton, FlashInfer): logits (2 + 4), probabilities (4) and noise (4): 14
                  bytes, and a scratch row in fp32 for each multiprocessor

What is not torch's own: libraries, CUDA graphs and communicators. Before 0.11 the count begins before the process
groups exist, so it holds the communicators of all of them: the world's, and torch's and vLLM's own of the
tensor-parallel and of the expert-parallel group, which every model had. Later only the one that gathers logits is
built after the count has begun. From 0.19 graphs are captured once while memory is measured.

Read in vLLM 0.9.2 to 0.23 (v1/worker/gpu_worker.py, v1/sample/ops, distributed/parallel_state.py) and PyTorch's
`segmented_sort_pairs`; logged: gpt-oss-120b on an H100 -2.14 GiB (here -2.2), Qwen3-235B-A22B in fp8 on four 8.11 GiB
(8.4), both with vLLM 0.9 or 0.10. Left out: buffers of all-to-all kernels (data-parallel experts), DeepGEMM's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from servecast.errors import InputError

if TYPE_CHECKING:
    from servecast.specs.model import ModelSpec

_MIB = 1 << 20

_LIBRARIES_BYTES = 200 * _MIB
"""What libraries allocate on the device after start-up, outside torch: cuBLAS and attention workspaces, the engine's
persistent input buffers. Logs of vLLM 0.6 to 0.15 on one GPU leave 0.27 to 0.37 GiB for this and the graphs."""

_COMMUNICATOR_BYTES = 392 * _MIB
"""NCCL channels and all-reduce buffers on each GPU of a tensor-parallel group: 342 MiB measured for 2 GPUs, 392 MiB for
4 and 8, NCCL 2.27 (ai-dynamo/aiconfigurator, systems/*.yaml, nccl_mem); the larger is used throughout."""

SORTED_BYTES = 38
"""Bytes a row and vocabulary entry where logits are sorted."""

_SCRATCH_ROWS = 128  # about the multiprocessors of a large GPU


class StartUp(NamedTuple):
    """A version's count. ``hybrid_cache`` says whether sliding layers keep their window alone."""

    sampled_bytes: int
    scratch_rows: int
    graph_bytes: int
    communicators: int
    hybrid_cache: bool

    def sampling_bytes(self, model: ModelSpec, rows: int) -> float:
        """Bytes alive while ``rows`` tokens are drawn."""
        return model.padded_vocab * (self.sampled_bytes * rows + 4 * min(rows, self.scratch_rows))

    def activation_bytes(self, model: ModelSpec, tokens: int, rows: int, tensor_parallel: int) -> float:
        """Most bytes of activations alive on a GPU at one time while a step of ``tokens`` samples for ``rows``."""
        sampling = model.hidden_bytes(tokens) + self.sampling_bytes(model, rows)
        return max(model.forward_bytes_peak(tokens, tensor_parallel), sampling)

    def overhead_bytes(self, tensor_parallel: int = 1, enforce_eager: bool = False) -> int:
        """Runtime overhead on each GPU: libraries, CUDA graphs unless eager, communicators unless alone."""
        shared = self.communicators * _COMMUNICATOR_BYTES if tensor_parallel > 1 else 0
        return _LIBRARIES_BYTES + (0 if enforce_eager else self.graph_bytes) + shared


def version_of(like: str) -> tuple[int, int]:
    """Major and minor version; raises InputError where ``like`` is not "vllm-MAJOR.MINOR"."""
    version = re.fullmatch(r"vllm-(\d+)\.(\d+)(\.\d+)?", like)
    if not version:
        raise InputError("engine.like", f"{like!r} is not known; write vllm- and a version, as in vllm-0.23")
    return int(version[1]), int(version[2])


def start_up(like: str) -> StartUp:
    """What the version that ``like`` names counts."""
    version = version_of(like)
    sorts = version < (0, 17)
    return StartUp(
        sampled_bytes=SORTED_BYTES if sorts else 14,
        scratch_rows=0 if sorts else _SCRATCH_ROWS,
        graph_bytes=(400 if version >= (0, 19) else 100) * _MIB,
        communicators=5 if version < (0, 11) else 1,
        hybrid_cache=version >= (0, 21),
    )
