"""The KV cache of a device: ``slots`` rows of ``max_length`` tokens in each layer, keys and values token by token.

Rows are held whole, as fused kernels want them. On CUDA one more slot, the spare, takes what the padding of a captured
graph writes.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from servecast.device.ballast import Ballast
from servecast.device.limit import Reserved

if TYPE_CHECKING:
    from servecast.device.model import Transformer


class KVCache:
    """Keys and values of ``slots`` rows of up to ``max_length`` tokens, in ``layers`` layers.

    ``growing``: rows take memory for the tokens that ``reserved.grow`` has made room for. On a CPU they can take no
    more; on CUDA the cache is held whole and ballast stands for what has grown.
    ``spare``: one slot more, numbered ``slots`` (None: on CUDA).
    """

    def __init__(
        self, model: Transformer, slots: int, max_length: int, growing: bool = False, spare: bool | None = None
    ) -> None:
        self.slots = slots
        self.reserved: Reserved | Ballast | None = None
        heads, width = model.attention.kv_heads, model.attention.head_dim
        if growing and model.device.type == "cuda":
            token_bytes = 2 * len(model.layers) * heads * width * model.dtype.itemsize
            self.reserved = Ballast(model.device, slots, token_bytes)
        elif growing:
            self.reserved = Reserved(2 * len(model.layers), slots, max_length, heads * width * model.dtype.itemsize)
            tensors = self.reserved.tensors(model.dtype, heads, width)
            self.keys, self.values = tensors[::2], tensors[1::2]
            self.max_length = tensors[0].shape[1]
            return
        self.max_length = max_length
        more = model.device.type == "cuda" if spare is None else spare
        shape = (slots + more, max_length, heads, width)
        generator = torch.Generator(device=model.device).manual_seed(1)

        def random() -> torch.Tensor:
            # Random, not zeros: a calibration reads contexts that no prefill has written.
            return torch.empty(shape, dtype=model.dtype, device=model.device).normal_(generator=generator)

        self.keys = [random() for _ in model.layers]
        self.values = [random() for _ in model.layers]

    def stretched(self, times: int) -> KVCache:
        """The same memory as a ``times`` smaller number of rows, each that many times as long; without a spare."""
        if times == 1:
            return self
        other = copy.copy(self)
        other.slots, other.max_length = self.slots // times, self.max_length * times
        shape = (-1, *self.keys[0].shape[2:])
        used = other.slots * other.max_length
        for name in ("keys", "values"):
            held = [tensor.view(shape)[:used].unflatten(0, (other.slots, -1)) for tensor in getattr(self, name)]
            setattr(other, name, held)
        return other

    def layer(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer as (places, kv_heads, head_dim): place = slot x max_length + position."""
        return self.keys[number].flatten(0, 1), self.values[number].flatten(0, 1)

    def bytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))
