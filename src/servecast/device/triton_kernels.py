"""The operations of `kernels` in Triton: one launch each, arithmetic in fp32, results rounded as the torch forms do.

Only CUDA needs this file; it is imported where Triton is installed. ``TRITON_INTERPRET=1`` runs it on a CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from servecast.device.kernels import NORM_EPSILON, InTorch

if TYPE_CHECKING:
    from servecast.device.kernels import Angles, Heads, Store

_COLUMNS = 1024  # of the gated product, a program


@triton.jit
def _add_norm(x, residual, weight, out, width, epsilon, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A program a token."""
    columns = tl.arange(0, BLOCK)
    there = columns < width
    at = tl.program_id(0).to(tl.int64) * width + columns
    summed = tl.load(residual + at, mask=there, other=0.0).to(tl.float32)
    summed += tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    rounded = summed.to(residual.dtype.element_ty)
    tl.store(residual + at, rounded, mask=there)
    exact = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(exact * exact, 0) / width + epsilon)
    normed = exact * scale * tl.load(weight + columns, mask=there, other=0.0).to(tl.float32)
    tl.store(out + at, normed.to(out.dtype.element_ty), mask=there)


@triton.jit
def _rotary(  # type: ignore[no-untyped-def]
    qkv, cos, sin, positions, where, query_norm, key_norm, queries, keys, values, epsilon,
    QUERY: tl.constexpr, KV: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """A program a token and head: queries first, then keys, then values."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half = tl.arange(0, HALF)
    there = half < WIDTH // 2
    source = qkv + (token * (QUERY + 2 * KV) + head) * WIDTH
    first = tl.load(source + half, mask=there, other=0.0)
    second = tl.load(source + WIDTH // 2 + half, mask=there, other=0.0)
    place = tl.load(where + token).to(tl.int64) * KV * WIDTH
    if head >= QUERY + KV:
        target = values + place + (head - QUERY - KV) * WIDTH
    elif head >= QUERY:
        target = keys + place + (head - QUERY) * WIDTH
    else:
        target = queries + (token * QUERY + head) * WIDTH
    if head < QUERY + KV:
        a, b = first.to(tl.float32), second.to(tl.float32)
        if NORMED:
            scale = tl.rsqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / WIDTH + epsilon)
            weight = query_norm
            if head >= QUERY:
                weight = key_norm
            a = a * scale * tl.load(weight + half, mask=there, other=0.0).to(tl.float32)
            b = b * scale * tl.load(weight + WIDTH // 2 + half, mask=there, other=0.0).to(tl.float32)
        angle = tl.load(positions + token).to(tl.int64) * WIDTH + half
        c = tl.load(cos + angle, mask=there, other=0.0).to(tl.float32)
        s = tl.load(sin + angle, mask=there, other=0.0).to(tl.float32)
        first = (a * c - b * s).to(qkv.dtype.element_ty)
        second = (b * c + a * s).to(qkv.dtype.element_ty)
    tl.store(target + half, first, mask=there)
    tl.store(target + WIDTH // 2 + half, second, mask=there)


@triton.jit
def _gated(gate_up, out, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A program a token and `_COLUMNS` columns."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = columns < width
    gate = tl.load(gate_up + token * 2 * width + columns, mask=there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (token * 2 + 1) * width + columns, mask=there, other=0.0).to(tl.float32)
    tl.store(out + token * width + columns, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=there)


class InTriton(InTorch):
    """The operations in Triton. ``add_norm`` writes the sum into its residual."""

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, width = x.shape
        out = torch.empty_like(x)
        _add_norm[(tokens,)](
            x, residual, weight, out, width, NORM_EPSILON, BLOCK=triton.next_power_of_2(width), num_warps=8
        )
        return out, residual

    def rotary(
        self,
        qkv: torch.Tensor,
        heads: Heads,
        angles: Angles,
        store: Store,
        qk_norm: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        queries = qkv.new_empty((len(qkv), heads.query, heads.width))
        query_norm, key_norm = qk_norm or (qkv, qkv)  # not read without norms
        _rotary[(len(qkv), heads.query + 2 * heads.kv)](
            qkv, angles.cos, angles.sin, angles.positions, store.where, query_norm, key_norm, queries,
            store.keys, store.values, NORM_EPSILON, QUERY=heads.query, KV=heads.kv, WIDTH=heads.width,
            HALF=triton.next_power_of_2(heads.width // 2), NORMED=qk_norm is not None, num_warps=1,
        )  # fmt: skip
        return queries

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        tokens, width = len(gate_up), gate_up.shape[1] // 2
        out = gate_up.new_empty((tokens, width))
        _gated[(tokens, triton.cdiv(width, _COLUMNS))](gate_up, out, width, BLOCK=_COLUMNS, num_warps=4)
        return out
