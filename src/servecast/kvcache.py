"""The KV cache's books: free + held = total, always. Whoever takes or gives back a block says so here.

Blocks are counted, not named: without prefix caching no two sequences share one, so which block a sequence holds
changes nothing that can be observed.
"""

from __future__ import annotations

from typing import NamedTuple


class Growth(NamedTuple):
    """How many blocks a sequence holds. A block is ``size`` tokens of one group of layers.

    full : groups of layers that keep every token; sliding : groups that keep the last ``window`` blocks of each alone
    own : what a sequence holds beside them from its first token to its last: states of recurrent layers
    """

    size: int
    full: int = 1
    sliding: int = 0
    window: int = 0
    own: int = 0

    def blocks(self, tokens: int, rows: int = 1) -> int:
        """Blocks of ``rows`` sequences that lie side by side and have so many tokens together."""
        if not tokens:
            return 0
        count = -(-tokens // self.size)
        if self.sliding or self.own:
            return count * self.full + min(count, rows * self.window) * self.sliding + rows * self.own
        return count * self.full

    def longest(self, blocks: int, rows: int = 1) -> int:
        """The most tokens together of ``rows`` sequences in so many blocks."""
        blocks -= rows * self.own
        count = blocks // (self.full + self.sliding)
        if count >= rows * self.window:
            count = (blocks - rows * self.window * self.sliding) // self.full
        return max(0, count) * self.size


class BlockPool:
    """``total`` usable KV blocks of ``block_size`` tokens and ``block_bytes`` bytes each, which sequences hold as
    ``growth`` says (None: one group of layers that keep every token).

    vLLM's ``num_gpu_blocks`` is one more: its null block is never handed out (vLLM 0.32, v1/core/block_pool.py).
    """

    __slots__ = ("block_bytes", "block_size", "growth", "held", "total")

    def __init__(self, total: int, block_size: int, block_bytes: float = 1.0, growth: Growth | None = None) -> None:
        assert total > 0 and block_size > 0, (total, block_size)
        self.total = total
        self.block_size = block_size
        self.block_bytes = block_bytes
        self.growth = growth or Growth(block_size)
        self.held = 0

    @property
    def free(self) -> int:
        return self.total - self.held

    def blocks(self, tokens: int) -> int:
        """Blocks that a sequence of ``tokens`` tokens holds."""
        return self.growth.blocks(tokens)

    def take(self, blocks: int) -> None:
        self.held += blocks
        assert self.held <= self.total, f"{self.held} KV blocks held of {self.total}"

    def clear(self) -> None:
        """Take back every block."""
        self.held = 0

    def give(self, blocks: int) -> None:
        self.held -= blocks
        assert self.held >= 0, f"{self.held} KV blocks held"
