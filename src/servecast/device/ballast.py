"""A memory limit on executed steps of a GPU, under which its allocator really fails, and what a growing cache takes.

The cache of a device is held whole, since graphs and kernels want it in one place. What a batch has grown into is
weighed by ballast instead: each time rows grow, a tensor of as many bytes is allocated beside, and the allocator may
have no more than the limit leaves (`torch.cuda.set_per_process_memory_fraction`). So a batch that is too large ends in
the device's own out-of-memory error, in the step and at the row at which a cache that grows would end.

The allocator takes pieces of 2 MiB, or of 20 MiB that it shares out: a limit is met to about that. Before it fails it
gives back what it only keeps.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import torch

from servecast.errors import InputError
from servecast.executor import RanOutError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TRIED_TO = re.compile(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class Ballast:
    """What the rows of a cache weigh so far. ``token_bytes``: of one token of one row, in all layers."""

    def __init__(self, device: torch.device, slots: int, token_bytes: float) -> None:
        self.device = device
        self.token_bytes = token_bytes
        self.held = 0
        self._tokens = [0] * slots
        self._pieces: list[torch.Tensor] = []

    def grow(self, lengths: Sequence[tuple[int, int]]) -> None:
        """Allocate what the rows (slot, tokens) lack, in one piece. Raises torch.OutOfMemoryError."""
        lacking = sum(max(0, tokens - self._tokens[slot]) for slot, tokens in lengths)
        if not lacking:
            return
        size = int(lacking * self.token_bytes)
        self._pieces.append(torch.empty(size, dtype=torch.uint8, device=self.device))
        self.held += size
        for slot, tokens in lengths:
            self._tokens[slot] = max(tokens, self._tokens[slot])

    def ready(self, longest: int) -> None:
        """Rows can be run up to any length: the cache is there."""

    def release(self) -> None:
        """Give everything back to the device."""
        self._pieces.clear()
        self._tokens = [0] * len(self._tokens)
        self.held = 0
        torch.cuda.empty_cache()


class DeviceLimit:
    """``budget`` bytes of a GPU for cache and activations together, of which the cache may take ``cache_bytes``.

    What is allocated before its first step does not count: weights, the cache that is held whole, graphs.
    block_size : tokens by which a row of the cache grows at a time
    """

    def __init__(self, device: torch.device, budget: float, cache_bytes: float, block_size: int = 1) -> None:
        self.device = device
        self.block_size = block_size
        self.budget = int(budget)
        self.cache_bytes = int(cache_bytes)
        self._at_rest: int | None = None

    def whole_blocks(self, tokens: int) -> int:
        """Tokens that the blocks of a row of ``tokens`` hold."""
        return -(-tokens // self.block_size) * self.block_size

    @contextlib.contextmanager
    def room(self, room: int, held: int) -> Iterator[None]:
        """No more than ``room`` bytes may be taken inside, beside the ``held`` ones of the cache.

        Raises RanOutError where more is wanted, InputError where the device itself has less than that.
        """
        if self._at_rest is None:
            torch.cuda.empty_cache()
            self._at_rest = int(torch.cuda.memory_reserved(self.device))
        allowed = self._at_rest + held + max(0, room)
        if torch.cuda.memory_reserved(self.device) > allowed:
            torch.cuda.empty_cache()  # the allocator asks for its limit only when it takes more than it keeps
        total = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total), self.device)
        failed: str | None = None  # not the error, whose frames hold memory
        try:
            yield
        except torch.OutOfMemoryError as error:
            failed = str(error)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)
        if failed is None:
            return
        torch.cuda.empty_cache()
        there = int(torch.cuda.memory_reserved(self.device)) + torch.cuda.mem_get_info(self.device)[0]
        if allowed > there:
            raise InputError(
                "engine.gpu_memory_utilization",
                f"running out is executed beside a cache held whole, {self._at_rest / 1e9:.3g} GB with the weights: "
                f"{(allowed - self._at_rest) / 1e9:.3g} GB more were allowed, the device has "
                f"{(there - self._at_rest) / 1e9:.3g} GB: give less, smaller batches or a shorter engine.max_model_len",
            )
        raise RanOutError(float(held + max(wanted_bytes(failed), room + 1)), float(held + room))


def wanted_bytes(message: str) -> int:
    """What the allocator was asked for, from its message; 0 where that does not say."""
    found = _TRIED_TO.search(message)
    return int(float(found[1]) * _UNITS[found[2]]) if found else 0
