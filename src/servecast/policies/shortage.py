"""When a step cannot give every running row its tokens: who goes without, and who is preempted.

Most steps need none of this. Here the rows are looked at one by one, so it costs what the batch is large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.policies.queue import urgency

if TYPE_CHECKING:
    from servecast.policies.state import State
    from servecast.requests import Sequence


def preempt_last(state: State, prefill: list[tuple[Sequence, int]], wanted: int) -> tuple[int, int]:
    """Preempt from the end of the running ones until the rest find blocks; how many, and the blocks the rest want.

    vLLM walks the rows in order and preempts the last whenever one finds no block. Since a victim stands behind every
    row served so far, that ends with the longest prefix of rows whose needs fit, which is what this computes.
    """
    pool, decoding = state.pool, state.decoding
    preempted = 0
    while wanted > pool.total - pool.held:
        victim = next(reversed(state.running))
        if victim in decoding:
            wanted -= decoding.next_blocks(victim)
        elif prefill and prefill[-1][0] is victim:
            _, new = prefill.pop()
            wanted -= pool.blocks(victim.computed + new) - victim.blocks
        state.preempt(victim)
        preempted += 1
    return preempted, wanted


def walk(state: State, budget: int, limit: int, by_priority: bool) -> tuple[list[tuple[Sequence, int]], int, int]:
    """Serve the running rows in order, as vLLM does, until budget or blocks end.

    A row that finds no block preempts the last one, or the least urgent, which may have been served already: that one
    gives its tokens back to the budget. If it is the row itself, the rest go without. A decode row that goes without
    pauses: it leaves the decode rows and is treated as a prompt with one token left.

    Returns the rows that compute a prompt with their tokens, the budget left, and how many were preempted.
    """
    pool, decoding = state.pool, state.decoding
    rows = list(state.running)
    served: dict[Sequence, tuple[int, int]] = {}
    promised = preempted = position = 0
    while position < len(rows) and budget > 0:
        sequence = rows[position]
        computed = decoding.computed(sequence)
        new = 1 if sequence in decoding else min(sequence.tokens - computed, limit, budget)
        wanted = pool.blocks(computed + new) - pool.blocks(computed)
        while promised + wanted > pool.total - pool.held:
            victim = max(rows, key=lambda row: urgency(row)[:2]) if by_priority else rows[-1]
            place = rows.index(victim)
            del rows[place]
            if victim in served:
                tokens, blocks = served.pop(victim)
                budget += tokens
                promised -= blocks
                position -= 1
            state.preempt(victim)
            preempted += 1
            if victim is sequence:
                break
        else:
            served[sequence] = (new, wanted)
            promised += wanted
            budget -= new
            position += 1
            continue
        break
    for sequence in rows:
        if sequence in decoding and sequence not in served:
            state.pause(sequence)
    return [(row, served[row][0]) for row in rows if row in served and row not in decoding], budget, preempted
