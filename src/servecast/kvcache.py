"""The KV cache's books: free + held = total, always. Whoever takes or gives back a block says so here.

Blocks are counted, not named: without prefix caching no two sequences share one, so which block a sequence holds
changes nothing that can be observed.
"""

from __future__ import annotations


class BlockPool:
    """``total`` usable KV blocks of ``block_size`` tokens and ``block_bytes`` bytes each.

    vLLM's ``num_gpu_blocks`` is one more: its null block is never handed out (vLLM 0.32, v1/core/block_pool.py).
    """

    __slots__ = ("block_bytes", "block_size", "held", "total")

    def __init__(self, total: int, block_size: int, block_bytes: float = 1.0) -> None:
        assert total > 0 and block_size > 0, (total, block_size)
        self.total = total
        self.block_size = block_size
        self.block_bytes = block_bytes
        self.held = 0

    @property
    def free(self) -> int:
        return self.total - self.held

    def blocks(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens: their number divided by the block size, rounded up."""
        return -(-tokens // self.block_size)

    def take(self, blocks: int) -> None:
        self.held += blocks
        assert self.held <= self.total, f"{self.held} KV blocks held of {self.total}"

    def clear(self) -> None:
        """Take back every block."""
        self.held = 0

    def give(self, blocks: int) -> None:
        self.held -= blocks
        assert self.held >= 0, f"{self.held} KV blocks held"
