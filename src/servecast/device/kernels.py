"""Three fused operations of a layer, as engines have them: in torch for any device, in Triton for CUDA.

    add_norm   residual += x; rms_norm(residual)               before each of a layer's two halves
    rotary     query-key norms, rotary embedding, and the new keys and values into the cache
    gated      silu(gate) * up                                 between the two products of the feed-forward

With the four matrix products and attention these are nine or ten kernels a layer, the number vLLM launches. The torch
forms say what each computes; the Triton forms are tested against them (also without a GPU, in Triton's interpreter).
Triton comes with the CUDA builds of torch. Where it is missing, CUDA runs the torch forms and `servecast doctor` says
so.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from servecast.specs.layers.attention import Attention

NORM_EPSILON = 1e-5


class Heads(NamedTuple):
    """Query heads, key-value heads and the width of each."""

    query: int
    kv: int
    width: int

    @classmethod
    def of(cls, attention: Attention) -> Heads:
        """Those of a layer's attention."""
        return cls(attention.heads, attention.kv_heads, attention.head_dim)

    @property
    def parts(self) -> tuple[int, int, int]:
        """Columns of queries, keys and values in the fused matrix."""
        return self.query * self.width, self.kv * self.width, self.kv * self.width


class Angles(NamedTuple):
    """Cosines and sines (max_positions, head_dim) of the rotary embedding, and each token's position (T,) int32."""

    cos: torch.Tensor
    sin: torch.Tensor
    positions: torch.Tensor


class Store(NamedTuple):
    """Keys and values of a layer's cache, (places, kv_heads, head_dim), and where each token's go (T,) int32."""

    keys: torch.Tensor
    values: torch.Tensor
    where: torch.Tensor


class InTorch:
    """The operations in torch: the definition, and what a CPU runs."""

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(normed, residual + x), all (T, hidden). The sum may be written into ``residual``."""
        total = residual + x
        return functional.rms_norm(total, weight.shape, weight, NORM_EPSILON), total

    def rotary(
        self,
        qkv: torch.Tensor,
        heads: Heads,
        angles: Angles,
        store: Store,
        qk_norm: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        """Rotated queries (T, heads, head_dim) of ``qkv`` (T, sum of parts); keys and values go into the store.

        qk_norm : weights (head_dim,) of query and key norms
        """
        q, k, v = (part.unflatten(-1, (-1, heads.width)) for part in qkv.split(heads.parts, -1))
        if qk_norm is not None:
            q, k = (functional.rms_norm(t, w.shape, w, NORM_EPSILON) for t, w in zip((q, k), qk_norm, strict=True))
        cos, sin = angles.cos[angles.positions][:, None], angles.sin[angles.positions][:, None]
        store.keys.index_copy_(0, store.where.long(), _rotated(k, cos, sin))
        store.values.index_copy_(0, store.where.long(), v)
        return _rotated(q, cos, sin)

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up (T, intermediate) of (T, 2 x intermediate)."""
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate) * up


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding in halves, as Llama in transformers has it (arXiv 2104.09864, with columns reordered)."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


@cache  # asked at each step, and a missing module is looked for in every folder of the path
def fused_for(device: torch.device) -> InTorch:
    """What a device runs: Triton on CUDA, where it is installed, else torch."""
    if device.type == "cuda" and has_triton():
        from servecast.device.triton_kernels import InTriton

        return InTriton()
    return InTorch()
