"""Padded steps: a rectangle of rows, each computed as if it were the longest.

Prompts are padded on the right (causal attention keeps what a prompt computes independent of the padding behind it),
generated tokens follow the padded prompt, and a mask hides the gap between the two. A row on CPU costs the same whether
it is one of a ragged step or of a rectangle of that length; on CUDA decoding with a mask is another kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from servecast.device.attention import Rows, attention_for, row_attention

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from servecast.device.cache import KVCache
    from servecast.device.model import Transformer


@dataclass
class Padded:
    """Padded steps of a model on a cache: one rectangle of rows, prefilled together. ``prompts`` are their lengths."""

    model: Transformer
    cache: KVCache
    prompts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    padded_prompt: int = 0
    padded: int = 0

    def begin(self, prompts: Sequence[int], context: int = 0) -> None:
        """A new batch. ``context`` > 0: as if its rows had been computed up to so many tokens already."""
        self.prompts = np.asarray(prompts, np.int64)
        self.padded_prompt = int(self.prompts.max())
        self.padded = context
        assert len(prompts) <= self.cache.slots, (len(prompts), self.cache.slots)

    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (rows, vocab) after prompts ``tokens`` (rows, longest), padded on the right with whatever."""
        rows, longest = tokens.shape
        assert (rows, longest) == (len(self.prompts), self.padded_prompt), (tokens.shape, self.prompts)
        at = np.arange(rows)
        column = np.tile(np.arange(longest), rows)
        starts = np.arange(rows + 1)
        attention = attention_for(tokens.device)
        slots, used = self._sent(starts * self.cache.max_length), self._sent(np.full(rows, longest))
        every = Rows(self._sent(starts * longest), slots, used, longest, longest)
        logits = self.model.logits(
            tokens.flatten(),
            self._sent(column),
            self._sent(column + np.repeat(at * self.cache.max_length, longest)),
            self._sent(at * longest + self.prompts - 1),
            self.cache,
            lambda q, keys, values: attention(q, keys, values, every),
        )
        self.padded = longest
        return logits

    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (rows, vocab) after one more token a row (rows,), attending over the padded context."""
        rows, at = len(tokens), self.padded
        upto = at + 1
        prompts = torch.from_numpy(self.prompts).to(tokens.device)
        columns = torch.arange(upto, device=tokens.device)
        seen = (columns < prompts[:, None]) | (columns >= self.padded_prompt)

        def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            held = [t.unflatten(0, (-1, self.cache.max_length))[:rows, :upto] for t in (keys, values)]
            return _masked(q, held[0], held[1], seen)

        logits = self.model.logits(
            tokens,
            self._sent(self.prompts + (at - self.padded_prompt)),
            self._sent(np.arange(rows) * self.cache.max_length + at),
            self._sent(np.arange(rows)),
            self.cache,
            attend,
        )
        self.padded = upto
        return logits

    def _sent(self, numbers: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(numbers.astype(np.int32)).to(self.model.device)


def _masked(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """One token a row, q (rows, heads, head_dim), over what is ``seen`` (rows, upto) of keys (rows, upto, kv_heads, -).

    The query heads of a group go in as if they were a row's length, so that a group reads its keys once. On CUDA the
    memory-efficient kernel: cuDNN would build a plan for each new length, the plain form takes 29 times the memory.
    """
    if not q.is_cuda:
        out = torch.empty_like(q)
        for row in range(len(q)):
            row_attention(q[row : row + 1], keys[row], values[row], out[row : row + 1], seen[row, None])
        return out
    grouped = q.unflatten(1, (keys.shape[2], -1))
    mask = seen[:, None, None].expand(-1, -1, grouped.shape[2], -1)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        out = scaled_dot_product_attention(grouped, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask)
    return out.flatten(1, 2)
