"""Turns that hold only what is new, and hash ids that cannot be: what rows mean together.

Where a trace says only what is new in a turn, its prompt is what was said before in its session, answers included, and
then that: prompt i = prompt i-1 + output i-1 + new i. So turns share their history as a prefix, with ids or without.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from servecast.errors import InputError
from servecast.workload.prefixes import PrefixIds, first_places, require_few

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from servecast.workload.traces.rows import Block

_OWN = -(2**62)  # ids from here on are of text that no id of the file stands for


def one_size_each(rows: Block, block_size: int | None, path: str) -> None:
    """Raises InputError where an id stands for part of a block in one row and for more of it in another.

    The last block of a prompt may have grown with a later turn of its session: that turn begins with the same text.
    Source: AIPerf 0.13, dataset/generator/prompt.py refuses such traces too.
    """
    ids = rows.prefix_ids
    if ids is None or block_size is None or not len(ids.flat):
        return
    starts, ends = ids.spans(rows.prompt_tokens, block_size)
    sizes, first = ends - starts, first_places(ids.flat)
    row = np.repeat(np.arange(len(ids)), ids.counts)
    session = rows.session or [None] * len(ids)
    for at in np.flatnonzero(sizes != sizes[first]).tolist():
        a, b = int(row[first[at]]), int(row[at])
        grown = session[a] is not None and session[a] == session[b] and sizes[at] > sizes[first[at]]
        if not grown:
            raise InputError(
                f"{path}:{rows.lines[b]}",
                f"hash id {ids.flat[at]} stands for {sizes[at]} tokens here and for {sizes[first[at]]} in row "
                f"{rows.lines[a]}; one block cannot be both: mend the ids, or say how many tokens they stand for with "
                "block_size",
            )


def with_history(rows: Block, block_size: int, said: str | None, path: str) -> tuple[Block, str | None]:
    """The rows with whole prompts, and what to say of it; the same rows where their prompts are whole already.

    said : new or whole, where the user says what the lengths of turns are; else the ids tell
    """
    turns = list(_turns(rows.session))
    following = [turn for turn in turns if len(turn) > 1]
    if not following:
        return rows, None
    meant = said or _meant(rows.prefix_ids, following, path)
    if meant == "whole":
        return rows, None if said else "turns begin with the ids of the turns before: their lengths are whole prompts"
    prompts = rows.prompt_tokens.copy()
    for turn in following:
        said_before = np.cumsum(prompts[turn] + rows.output_tokens[turn])
        prompts[turn] = said_before - rows.output_tokens[turn]
    added = int((prompts - rows.prompt_tokens).sum())
    ids = _whole_ids(rows, following, block_size)
    note = f"prompts of a session's turns are what is new in them: {added:,} tokens of history are added (turns: whole)"
    return rows._replace(prompt_tokens=prompts, prefix_ids=ids), note


def _turns(sessions: list[str | None] | None) -> Iterator[list[int]]:
    """The rows of each session, in the order of the file."""
    named: dict[str, list[int]] = {}
    for row, name in enumerate(sessions or ()):
        if name is not None:
            named.setdefault(name, []).append(row)
    yield from named.values()


def _meant(ids: PrefixIds | None, following: list[list[int]], path: str) -> str:
    """Whether later turns say their history again: then their ids begin like those of the turn before."""
    again = set()
    for turn in following if ids is not None else ():
        assert ids is not None, "there are ids"
        again |= {ids[b][0] == ids[a][0] for a, b in pairwise(turn) if ids[a] and ids[b]}
    if len(again) == 2:
        problem = "some turns begin with the ids of the turn before and some do not; say if lengths are new or whole"
        raise InputError(path, f"{problem} with turns: new or turns: whole")
    return "whole" if again == {True} else "new"


def _whole_ids(rows: Block, following: list[list[int]], block_size: int) -> PrefixIds:
    """Ids of whole prompts and answers: in a session those of all turns so far, and ids of its own for texts without.

    Each stands for its own number of tokens, since a turn ends anywhere; the last one grows while texts without ids
    follow each other.
    """
    n = len(rows.lines)
    ids = rows.prefix_ids or PrefixIds(np.empty(0, np.int64), np.zeros(n, np.int64))
    starts, ends = ids.spans(rows.prompt_tokens, block_size)
    bounds = [*pairwise([0, *ids.ends.tolist()])]
    texts = [(ids.flat[a:b], (ends - starts)[a:b]) for a, b in bounds]
    own, made = iter(range(_OWN, 0)), 0
    for turn in following:
        known, sizes, shown = _said(rows, turn, texts, own)
        made += sum(count for count, _ in shown)
        require_few(made, "fewer requests, or shorter sessions")
        for row, (count, last) in zip(turn, shown, strict=True):
            texts[row] = known[:count], np.append(sizes[: count - 1], last) if count else sizes[:0]
    flat, tokens = (np.concatenate(parts) for parts in zip(*texts, strict=True))
    return PrefixIds(flat, np.cumsum([len(some) for some, _ in texts], dtype=np.int64), tokens)


def _said(
    rows: Block, turn: list[int], texts: list[tuple[NDArray[Any], NDArray[np.int64]]], own: Iterator[int]
) -> tuple[NDArray[Any], NDArray[np.int64], list[tuple[int, int]]]:
    """All that is said in one session as ids and their tokens, and of each turn how many ids it has come to and how
    many tokens the last of these stood for then."""
    known: list[int] = []
    sizes: list[int] = []
    shown = []
    grows = False  # the last text is one without ids
    for row in turn:
        given, lengths = (column.tolist() for column in texts[row])
        known += given
        sizes += lengths
        rest = int(rows.prompt_tokens[row] + rows.output_tokens[row]) - sum(lengths)
        grows = grows and not given
        if rest and grows:
            sizes[-1] += rest
        elif rest:
            known.append(next(own))
            sizes.append(rest)
            grows = True
        shown.append((len(known), sizes[-1] if sizes else 0))
    return PrefixIds.of([known]).flat, np.array(sizes, np.int64), shown
