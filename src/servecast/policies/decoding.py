"""The rows that take one token per step, kept as running totals.

What a decode step costs, when the next row ends and when the next KV block is needed are all sums over the rows, and
each of them moves in a known way from step to step:

* the cached tokens read grow by the number of rows,
* a row ends at a step known when it joins, so a heap gives the next end,
* a row that holds C cached tokens needs a block in the steps where C is a multiple of the block size, so counting the
  rows by the residue of that step ("phase") gives the blocks that any number of steps will take,
* in layers that slide a row needs no more of them once its window is full: from then on it gives back one for each it
  takes. Rows before that step are "young", and are counted by phase once more.

Hence no decision walks the rows, and one decision can cover as many steps as nothing ends or runs out.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servecast.kvcache import Growth
    from servecast.requests import Sequence


_SLOT_BITS = 32
_SLOT = (1 << _SLOT_BITS) - 1
_NEVER = 1 << 62


class DecodeRows:
    """Totals over the decode rows. ``step`` counts iterations; a row's cached tokens are its ``offset + step``.

    Heap entries are integers, a key shifted past the row's slot, because comparing those is what a heap does all day.
    An entry whose row has left or joined anew is stale: its key no longer is that of the row in the slot.
    """

    __slots__ = (
        "_filling", "_finishing", "_last_slide", "_longest", "_longest_row", "_phases", "_rows", "_stale", "_young",
        "_young_phases", "block_size", "context", "count", "growth", "next_finish", "step",
    )  # fmt: skip

    def __init__(self, growth: Growth) -> None:
        self.growth = growth
        self.block_size = block_size = growth.size
        # A row of more cached tokens is young no longer: with so many it takes the last block of its window.
        self._last_slide = (growth.window - 1) * block_size if growth.sliding else -1
        self._young: set[Sequence] = set()
        self._young_phases = [0] * block_size
        self._filling: list[int] = []  # the steps at which young rows are so long; rows that left are among them
        self.step = 0
        self.count = 0
        self.context = 0
        self.next_finish = _NEVER  # the step with which the next row ends
        self._phases = [0] * block_size
        self._rows: dict[int, Sequence] = {}
        self._finishing: list[int] = []
        self._stale = 0  # entries of _finishing whose row has left before its end
        self._longest: list[int] = []
        self._longest_row: Sequence | None = None

    def __contains__(self, sequence: Sequence) -> bool:
        return self._rows.get(sequence.slot) is sequence  # type: ignore[arg-type]  # None finds nobody

    def computed(self, sequence: Sequence) -> int:
        """Cached tokens of any sequence, whether it decodes or not."""
        return sequence.offset + self.step if sequence in self else sequence.computed

    def join(self, sequence: Sequence) -> None:
        """Add a row that has just generated a token and must generate more."""
        step = self.step
        computed = sequence.computed
        slot = sequence.slot
        assert slot is not None, sequence
        sequence.offset = offset = computed - step
        sequence.finish_step = finish = step + sequence.output_limit - sequence.generated
        self.count += 1
        self.context += computed
        self._phases[-offset % self.block_size] += 1
        if computed <= self._last_slide:
            self._young.add(sequence)
            self._young_phases[-offset % self.block_size] += 1
            heappush(self._filling, ((self._last_slide - offset) << _SLOT_BITS) + slot)
        self._rows[slot] = sequence
        heappush(self._finishing, (finish << _SLOT_BITS) + slot)
        if finish < self.next_finish:
            self.next_finish = finish
        heappush(self._longest, slot - (offset << _SLOT_BITS))
        longest = self._longest_row
        if longest is None or offset > longest.offset:
            self._longest_row = sequence

    def leave(self, sequence: Sequence) -> None:
        """Take out a row that has more to generate, and bring its own counts up to date."""
        sequence.generated = sequence.output_limit - (sequence.finish_step - self.step)
        sequence.tokens = sequence.request.prompt_tokens + sequence.generated
        self._drop(sequence)
        self._stale += 1
        self._settle_next_finish()

    def _drop(self, sequence: Sequence) -> None:
        offset = sequence.offset
        sequence.computed = computed = offset + self.step
        self.count -= 1
        self.context -= computed
        self._phases[-offset % self.block_size] -= 1
        if computed <= self._last_slide:
            self._young.remove(sequence)
            self._young_phases[-offset % self.block_size] -= 1
        del self._rows[sequence.slot]  # type: ignore[arg-type]  # who decodes has a slot
        if sequence is self._longest_row:
            self._find_longest()

    def _settle_next_finish(self) -> None:
        """Let go of stale entries, those of rows that left or joined anew, until the first one is a row's."""
        finishing = self._finishing
        while self._stale and finishing:
            sequence = self._rows.get(finishing[0] & _SLOT)
            if sequence is not None and sequence.finish_step == finishing[0] >> _SLOT_BITS:
                break
            heappop(finishing)
            self._stale -= 1
        self.next_finish = finishing[0] >> _SLOT_BITS if finishing else _NEVER

    def advance(self, steps: int) -> list[Sequence]:
        """Make ``steps`` steps. The rows whose last token came with the last one, in order of arrival: they leave."""
        if self._young:
            self._slide(self.step + steps)
        self.step = step = self.step + steps
        self.context += steps * self.count
        finished: list[Sequence] = []
        while self.next_finish == step:
            sequence = self._rows[heappop(self._finishing) & _SLOT]
            sequence.generated = sequence.output_limit
            self._drop(sequence)
            finished.append(sequence)
            if self._stale:
                self._settle_next_finish()
            else:
                finishing = self._finishing
                self.next_finish = finishing[0] >> _SLOT_BITS if finishing else _NEVER
        if len(finished) > 1:
            finished.sort(key=lambda sequence: sequence.request.id)
        return finished

    def steps(self, blocks: int) -> int:
        """Steps until the next row ends or ``blocks`` free blocks do; there must be a row."""
        steps = self.next_finish - self.step
        growth = self.growth
        if self._young:
            steps = min(steps, self._settle_filling() + 1 - self.step)
        if (self.count * growth.full + len(self._young) * growth.sliding) * (steps // self.block_size + 1) > blocks:
            return min(steps, self._steps_within(blocks))
        return steps

    def _settle_filling(self) -> int:
        """The step at which the first young row takes the last block of its window."""
        filling, rows = self._filling, self._rows
        while True:
            entry = filling[0]
            sequence = rows.get(entry & _SLOT)
            if sequence in self._young and self._last_slide - sequence.offset == entry >> _SLOT_BITS:
                return entry >> _SLOT_BITS
            heappop(filling)

    def _slide(self, step: int) -> None:
        """Rows that are young no longer at ``step``."""
        while self._young and self._settle_filling() < step:
            sequence = self._rows[heappop(self._filling) & _SLOT]
            self._young.remove(sequence)
            self._young_phases[-sequence.offset % self.block_size] -= 1

    def longest(self) -> int:
        """Cached tokens of the longest row, 0 without rows."""
        row = self._longest_row
        return 0 if row is None else row.offset + self.step

    def _find_longest(self) -> None:
        self._longest_row = None
        longest = self._longest
        rows = self._rows
        while longest:
            entry = longest[0]
            sequence = rows.get(entry & _SLOT)
            if sequence is not None and sequence.offset == -(entry >> _SLOT_BITS):
                self._longest_row = sequence
                return
            heappop(longest)

    def blocks_needed(self, steps: int) -> int:
        """KV blocks that the rows take over the next ``steps`` steps."""
        growth = self.growth
        needed = growth.full * self._crossings(self._phases, self.count, steps)
        if self._young:
            # No row ages within the steps of a decision, and beyond the window's last block it needs none for a while.
            needed += growth.sliding * self._crossings(self._young_phases, len(self._young), steps)
        return needed

    def _crossings(self, phases: list[int], rows: int, steps: int) -> int:
        """How often such rows begin a block over the next ``steps`` steps."""
        size = self.block_size
        start = self.step % size
        if steps == 1:
            return phases[start]
        rounds = steps // size
        end = start + steps - rounds * size
        part = sum(phases[start:end]) if end <= size else sum(phases[start:]) + sum(phases[: end - size])
        return rounds * rows + part

    def next_blocks(self, sequence: Sequence) -> int:
        """Blocks that this row takes in the next step."""
        computed = sequence.offset + self.step
        return self.growth.blocks(computed + 1) - self.growth.blocks(computed)

    def _steps_within(self, blocks: int) -> int:
        """The most steps that ``blocks`` free blocks allow."""
        growth, young = self.growth, self._young_phases
        rounds, left = divmod(blocks, self.count * growth.full + len(self._young) * growth.sliding)
        size = self.block_size
        steps = rounds * size
        at = self.step
        while True:
            left -= growth.full * self._phases[at % size] + growth.sliding * young[at % size]
            if left < 0:
                return steps
            steps += 1
            at += 1
