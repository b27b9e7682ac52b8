"""Prefix caching: full blocks stay in the cache after their sequence has gone, until their room is needed.

Layers that slide keep their own window and share nothing: what is remembered is the blocks of full layers.

A block is known by the chain of tokens up to its end. Here that is the trace's own id of a prompt block (equal id,
equal whole prefix), or the sequence and the block's place in it for tokens that nobody else can have. A block is
entered when its tokens are scheduled, so that a later admission of the same step can share it. Blocks that nobody
holds are taken again in the order in which they came free, the tail of a sequence before its head; blocks that were
never filled go first. So a preempted sequence may find its own blocks again.

Source: vLLM 0.32, v1/core/block_pool.py and kv_cache_manager.py.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from servecast.policies.state import State

if TYPE_CHECKING:
    from collections.abc import Hashable

    from servecast.kvcache import BlockPool
    from servecast.policies.state import Queue
    from servecast.requests import Sequence


class Block:
    """A full block: what it holds, and how many sequences use it."""

    __slots__ = ("key", "users")

    def __init__(self, key: Hashable, users: int) -> None:
        self.key = key
        self.users = users


class PrefixState(State):
    """A state whose cache remembers. The pool's free blocks include those that are remembered but not held."""

    __slots__ = ("_chains", "_idle", "_known", "_reserved")

    def __init__(self, pool: BlockPool, waiting: Queue | None = None, ahead: bool = False) -> None:
        super().__init__(pool, waiting, ahead)
        self._grow = self._take_reserved
        self._known: dict[Hashable, OrderedDict[Block, None]] = {}  # by key; equal blocks in order of entry
        self._idle: OrderedDict[Block, None] = OrderedDict()  # held by nobody, the next to be taken first
        self._reserved = 0  # empty blocks that are spoken for
        self._chains: dict[Sequence, list[Block]] = {}  # the full blocks of a running sequence that others may share

    def find_cached(self, sequence: Sequence) -> tuple[int, int]:
        found = self._cached_chain(sequence)
        idle = sum(not block.users for block in found)
        return len(found) * self.pool.block_size, idle * self.pool.growth.full

    def admit(self, sequence: Sequence, now: float, found: int, computed: int) -> int:
        super().admit(sequence, now, 0, 0)
        chain = self._cached_chain(sequence)
        full = self.pool.growth.full
        idle = 0
        for block in chain:
            if not block.users:
                del self._idle[block]
                idle += full
            block.users += 1
        self.pool.take(idle)
        self._chains[sequence] = chain
        sequence.computed = found
        sequence.blocks = len(chain) * full
        return idle + self.take_blocks(sequence, computed)

    def take_blocks(self, sequence: Sequence, computed: int) -> int:
        taken = super().take_blocks(sequence, computed)
        chain = self._chains[sequence]
        ids = sequence.request.prefix_ids
        for place in range(len(chain), min(len(ids), computed // self.pool.block_size)):
            self._enter(chain, ids[place], 1)
        return taken

    def take(self, blocks: int) -> None:
        self._empty(blocks)
        self.pool.take(blocks)

    def reserve(self, blocks: int) -> None:
        self._reserved = 0
        self._empty(blocks)
        self._reserved = blocks

    def _take_reserved(self, blocks: int) -> None:
        self._reserved = 0
        self.take(blocks)

    def _empty(self, blocks: int) -> None:
        """Forget as many blocks as it takes to have this many empty ones."""
        full = self.pool.growth.full
        empty = self.pool.free - len(self._idle) * full - self._reserved
        for _ in range(-(-(blocks - empty) // full)):
            block, _ = self._idle.popitem(last=False)
            self._forget(block)

    def give_blocks(self, sequence: Sequence) -> None:
        size, full = self.pool.block_size, self.pool.growth.full
        chain = self._chains.pop(sequence)
        ids = sequence.request.prefix_ids  # those of a turn go on into its answer, which the next one says again
        for place in range(len(chain), sequence.computed // size):
            self._enter(chain, ids[place] if place < len(ids) else (sequence, place), 1)
        idle = self.pool.blocks(sequence.computed) - len(chain) * full
        for block in reversed(chain):
            block.users -= 1
            if not block.users:
                self._idle[block] = None
                idle += full
        self.pool.give(idle)

    def release(self, ended: list[Sequence]) -> None:
        # What comes free first is taken first, and vLLM frees in the order of its running rows.
        if len(ended) > 1:
            ended = sorted(ended, key=self.places(ended).__getitem__)
        for sequence in ended:
            self.give_blocks(sequence)
            self.dismiss(sequence)

    def crash(self) -> list[Sequence]:
        lost = super().crash()
        for table in (self._known, self._idle, self._chains):
            table.clear()
        self._reserved = 0
        return lost

    def _cached_chain(self, sequence: Sequence) -> list[Block]:
        """The longest chain of known blocks. The last token is computed in any case: it gives the next one."""
        ids = sequence.request.prefix_ids
        known = self._known
        chain = []
        for place in range((sequence.tokens - 1) // self.pool.block_size):
            blocks = known.get(ids[place] if place < len(ids) else (sequence, place))
            if not blocks:
                break
            chain.append(next(iter(blocks)))
        return chain

    def _enter(self, chain: list[Block], key: Hashable, users: int) -> None:
        block = Block(key, users)
        chain.append(block)
        self._known.setdefault(key, OrderedDict())[block] = None

    def _forget(self, block: Block) -> None:
        equal = self._known[block.key]
        del equal[block]
        if not equal:
            del self._known[block.key]
