"""A dense decoder-only transformer as served today, with random weights: what a step of tokens computes.

    x = embedding[token]
    per layer: x += output(attend(rotary(q), rotary(k), v))   with q, k, v = qkv(rms_norm(x)), one fused matrix
               x += down(silu(gate) * up)                     with gate, up = gate_up(rms_norm(x)), one fused matrix
    logits = head(rms_norm(x of each row's last token))

Grouped-query attention, optional query-key norms and QKV bias, tied or untied head. How rows attend to their cache
belongs to the caller (`serving`), so that ragged and padded steps share everything else.

Left out, and refused with a line that says so: experts, latent attention, sliding windows, sinks, biases elsewhere than
in QKV, feed-forwards without a gate, quantised weights. Sources: Llama (arXiv 2302.13971), GQA (arXiv 2305.13245).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from servecast.device.kernels import NORM_EPSILON, Angles, Heads, Store, fused_for
from servecast.errors import InputError
from servecast.specs.layers.attention import Attention
from servecast.specs.layers.layer import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from servecast.device.cache import KVCache
    from servecast.specs.layers.feed_forward import Dense
    from servecast.specs.model import ModelSpec

    #: attend(q (T, heads, head_dim), keys, values (places, kv_heads, head_dim) of a layer's cache) -> like q
    Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

ROPE_THETA = 10_000.0  # no step time depends on it
_INIT_STD = 0.02

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer, as (output, input) matrices."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: torch.Tensor
    feed_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor

    @property
    def qk_norm(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Weights of query and key norms."""
        return None if self.query_norm is None or self.key_norm is None else (self.query_norm, self.key_norm)


@dataclass(frozen=True, slots=True)
class Transformer:
    """A model's weights on a device. ``cos``, ``sin`` : (max_positions, head_dim) of the rotary embedding."""

    spec: ModelSpec
    attention: Attention
    layers: tuple[_Layer, ...]
    embedding: torch.Tensor
    norm: torch.Tensor
    head: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and cache."""
        return self.embedding.dtype

    def tensors(self) -> list[torch.Tensor]:
        """Every weight once (a tied head is the embedding)."""
        inner = [getattr(layer, name) for layer in self.layers for name in _Layer.__slots__]
        head = None if self.head is self.embedding else self.head
        return [tensor for tensor in (self.embedding, self.norm, head, *inner) if tensor is not None]

    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())

    def logits(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        where: torch.Tensor,
        sampled: torch.Tensor,
        cache: KVCache,
        attend: Attend,
    ) -> torch.Tensor:
        """Logits (rows, vocab) of ``tokens`` (T,) at the places ``sampled`` (rows,).

        ``positions`` and ``where`` (T,) int32 are each token's place in its row and in the cache, which takes its keys
        and values before anything attends.
        """
        fused, heads = fused_for(self.device), Heads.of(self.attention)
        angles = Angles(self.cos, self.sin, positions)
        residual, x = functional.embedding(tokens, self.embedding), None
        for number, layer in enumerate(self.layers):
            if x is None:
                normed = functional.rms_norm(residual, layer.attention_norm.shape, layer.attention_norm, NORM_EPSILON)
            else:
                normed, residual = fused.add_norm(x, residual, layer.attention_norm)
            keys, values = cache.layer(number)
            qkv = functional.linear(normed, layer.qkv, layer.qkv_bias)
            q = fused.rotary(qkv, heads, angles, Store(keys, values, where), layer.qk_norm)
            x = functional.linear(attend(q, keys, values).flatten(-2), layer.output)
            normed, residual = fused.add_norm(x, residual, layer.feed_norm)
            x = functional.linear(fused.gated(functional.linear(normed, layer.gate_up)), layer.down)
        last = residual.index_select(0, sampled)
        if x is not None:
            last = last + x.index_select(0, sampled)
        return functional.linear(functional.rms_norm(last, self.norm.shape, self.norm, NORM_EPSILON), self.head)


def require_dense(spec: ModelSpec) -> tuple[Attention, Dense]:
    """The attention and the feed-forward that every layer of a model has.

    Raises InputError for what `Transformer` cannot compute.
    """
    reason, parts = spec.not_plain, spec.plain
    if parts is not None:
        attention, mlp = parts
        plain = Attention(attention.heads, attention.kv_heads, attention.head_dim)
        reasons = {
            "attention sinks": attention.sinks,
            "a feed-forward without a gate": not mlp.gated,
            "biases outside QKV": attention.output_bias or mlp.bias,
            "attention of its own kind": replace(
                attention, qkv_bias=False, qk_norm=False, sinks=False, output_bias=False
            )
            != plain,
            "other norms than two a layer": spec.groups[0].layer.norms != 2,
            "weights outside its layers": spec.extra != NOTHING or spec.lookup > 0,
            "quantised weights": spec.weight_dtype not in (None, spec.dtype),
        }
        reason = next((reason for reason, applies in reasons.items() if applies), "")
    if reason or parts is None:
        problem = f"{spec.name} has {reason}, which is not computed here: choose a dense model in 16 or 32 bits"
        raise InputError("model", problem)
    return parts


def transformer(
    spec: ModelSpec,
    device: torch.device,
    dtype: str,
    *,
    max_positions: int,
    layers: int | None = None,
    seed: int = 0,
    made: Callable[[int, int], None] = lambda made, layers: None,
) -> Transformer:
    """A model with random weights: normal of 0.02, never zeros, which hardware multiplies at less power.

    layers : so many instead of the model's own; made : called after each with how many there are, and of how many
    Raises InputError for a model that cannot be computed here.
    """
    attention, mlp = require_dense(spec)
    width = DTYPES[dtype]
    generator = torch.Generator(device=device).manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=width, device=device).normal_(0.0, _INIT_STD, generator=generator)

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=width, device=device)

    query, kv = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    wanted = spec.layers if layers is None else layers
    every = []
    for number in range(wanted):
        every.append(
            _Layer(
                attention_norm=ones(spec.hidden),
                qkv=random(query + 2 * kv, spec.hidden),
                qkv_bias=random(query + 2 * kv) if attention.qkv_bias else None,
                query_norm=ones(attention.head_dim) if attention.qk_norm else None,
                key_norm=ones(attention.head_dim) if attention.qk_norm else None,
                output=random(spec.hidden, query),
                feed_norm=ones(spec.hidden),
                gate_up=random(2 * mlp.intermediate, spec.hidden),
                down=random(spec.hidden, mlp.intermediate),
            )
        )
        made(number + 1, wanted)
    embedding = random(spec.padded_vocab, spec.hidden)
    head = embedding if spec.tied_embeddings else random(spec.padded_vocab, spec.hidden)
    cos, sin = _rotary_tables(max_positions, attention.head_dim, width, device)
    return Transformer(spec, attention, tuple(every), embedding, ones(spec.hidden), head, cos, sin)


def _rotary_tables(
    positions: int, width: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    frequency = ROPE_THETA ** (-torch.arange(0, width, 2, dtype=torch.float32, device=device) / width)
    angle = torch.outer(torch.arange(positions, dtype=torch.float32, device=device), frequency)
    angle = torch.cat((angle, angle), -1)
    return angle.cos().to(dtype), angle.sin().to(dtype)
