"""Attention of a step's rows over their slots of the cache: one call for rows of any lengths.

`flash` is the one operator on CUDA: flash attention 2 as torch has it (aten::_flash_attention_forward, alike from 2.11
on). Each row says where its queries start, where its slot starts and how many keys of it count; pages are not needed.
Rows of one new token go in a call of their own, without a causal mask: only so are the query heads of a group packed
into one block that reads their keys once, and the keys split over all multiprocessors (flash decoding). A window of
(-1, 0) or a causal flag switches both off (mha_varlen_fwd, ``seqlenq_ngroups_swapped``).

`reference` computes the same on any device, row by row: the definition, and what a CPU runs in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Attended (T, heads, head_dim) of queries alike over keys and values (places, kv_heads, head_dim) of the cache.
    Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "Rows"], torch.Tensor]

TILE = 128
"""Tokens of a chunk that attend in one call on a CPU. Behind a cached prefix the fused kernel takes a mask and computes
what it hides too: small tiles leave little to hide."""


class Rows(NamedTuple):
    """The rows of one call. Tensors are int32 on the device of the queries.

    starts : (rows + 1,) where each row's queries start, and where the last one's end
    slots : (rows + 1,) where each row's slot starts in the cache; the last entry is not read
    used : (rows,) keys of each row, its new ones included
    longest_new, longest : bounds on the queries and on the keys of a row
    """

    starts: torch.Tensor
    slots: torch.Tensor
    used: torch.Tensor
    longest_new: int
    longest: int


def flash(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Flash attention on CUDA; a row's tokens see causally where a row may have several."""
    causal = rows.longest_new > 1
    out = torch.ops.aten._flash_attention_forward(
        q, keys, values, rows.starts, rows.slots, rows.longest_new, rows.longest, 0.0, causal, False,
        seqused_k=rows.used,
    )[0]  # fmt: skip
    assert isinstance(out, torch.Tensor)
    return out


def reference(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: Rows) -> torch.Tensor:
    """What `flash` computes, one fused call a row."""
    out = torch.zeros_like(q)  # tokens of no row stay as they are
    starts, slots = rows.starts.tolist(), rows.slots.tolist()
    for row, used in enumerate(rows.used.tolist()):
        part = slice(starts[row], starts[row + 1])
        if part.start < part.stop:
            slot = slice(slots[row], slots[row] + used)
            row_attention(q[part], keys[slot], values[slot], out[part])
    return out


def attention_for(device: torch.device) -> Attention:
    """The attention that a device runs."""
    return flash if device.type == "cuda" else reference


def row_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, hidden: torch.Tensor | None = None
) -> None:
    """Fused attention of one row into ``out``: q (new, heads, head_dim), the last of k, v (keys, kv_heads, head_dim).

    Its tokens see causally. One token sees every key but those that ``hidden``, a mask (1, keys) of what is seen,
    leaves out. Behind a cached prefix a row goes tile by tile (`TILE`).
    """
    new, upto = len(q), len(k)
    if new == 1 or new == upto:
        _fused(q, k, v, out, hidden)
        return
    for done in range(0, new, TILE):
        tile = slice(done, min(done + TILE, new))
        size, seen = tile.stop - done, upto - new + tile.stop
        mask = torch.ones(size, seen, dtype=torch.bool, device=q.device).tril(seen - size) if size > 1 else None
        _fused(q[tile], k[:seen], v[:seen], out[tile], mask)


def _fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, mask: torch.Tensor | None) -> None:
    """One token's query heads of a group share its keys, so they go in as if they were its length; more are spread over
    an expanded view. Neither copies the cache. Without a mask one token sees every key, several see causally."""
    new, heads, width = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    if new == 1:
        attended = scaled_dot_product_attention(
            q.view(1, kv_heads, group, width), k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask
        )
        out.view(1, kv_heads, group, width).copy_(attended)
        return
    grouped = q.view(new, kv_heads, group, width).permute(1, 2, 0, 3)
    keys, values = (t.transpose(0, 1)[:, None].expand(kv_heads, group, -1, width) for t in (k, v))
    attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, is_causal=mask is None)
    out.view(new, kv_heads, group, width).copy_(attended.permute(2, 0, 1, 3))
