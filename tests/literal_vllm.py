"""vLLM's V1 scheduler, read to the letter: one block, one row, one token at a time, and nothing clever.

Written from the rules alone and sharing no code with the product, as the thing its scheduler must agree with. A step
takes 0.010 s + 0.0001 s for each token scheduled in it; arrivals not later than the clock are there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


class Block:
    def __init__(self):
        self.hash = None
        self.users = 0


@dataclass
class Request:
    id: int
    arrival: float
    prompt: int
    output: int
    priority: int = 0
    shared: tuple = ()
    computed: int = 0
    generated: int = 0
    blocks: list = field(default_factory=list)
    first: float | None = None
    last: float | None = None

    @property
    def tokens(self):
        return self.prompt + self.generated

    def hash_of(self, place):
        return self.shared[place] if place < len(self.shared) else ("own", self.id, place)


class Cache:
    def __init__(self, blocks, size, remember):
        self.free = deque(Block() for _ in range(blocks))
        self.size = size
        self.remember = remember
        self.known = {}

    def blocks(self, tokens):
        return -(-tokens // self.size)

    def find(self, request):
        found = []
        for place in range((request.tokens - 1) // self.size if self.remember else 0):
            equal = self.known.get(request.hash_of(place))
            if not equal:
                break
            found.append(equal[0])
        return found

    def allocate(self, request, new, found=()):
        computed = request.computed + len(found) * self.size
        wanted = self.blocks(computed + new) - len(request.blocks) - len(found)
        if wanted + sum(not block.users for block in found) > len(self.free):
            return False
        for block in found:
            if not block.users:
                self.free.remove(block)
            block.users += 1
            request.blocks.append(block)
        for _ in range(wanted):
            block = self.free.popleft()
            if block.hash is not None:
                self.known[block.hash].remove(block)
                block.hash = None
            block.users = 1
            request.blocks.append(block)
        if self.remember:
            for place in range((computed + new) // self.size):
                if request.blocks[place].hash is None:
                    request.blocks[place].hash = request.hash_of(place)
                    self.known.setdefault(request.hash_of(place), []).append(request.blocks[place])
        return True

    def release(self, request):
        for block in reversed(request.blocks):
            block.users -= 1
            if not block.users:
                (self.free.append if block.hash is not None else self.free.appendleft)(block)
        request.blocks = []


def schedule(
    requests, *, blocks, size, max_num_seqs, max_num_batched_tokens, chunked=True, threshold=0, remember=False,
    by_priority=False, reserve=True, watermark=0.0,
):  # fmt: skip
    """The steps as (start, sorted [id, new, cached] rows, ids preempted, free blocks afterwards)."""
    cache = Cache(blocks, size, remember)
    coming = deque(sorted(requests, key=lambda request: (request.arrival, request.id)))
    waiting, running, steps, clock = [], [], [], 0.0

    def urgency(request):
        return request.priority, request.arrival, request.id

    while coming or waiting or running:
        if not waiting and not running and coming[0].arrival > clock:
            clock = coming[0].arrival
        while coming and coming[0].arrival <= clock + 1e-9:
            waiting.append(coming.popleft())
        if by_priority:
            waiting.sort(key=urgency)
        budget, rows, preempted = max_num_batched_tokens, {}, []
        several = len(running) + len(waiting) > 1
        position = 0
        while position < len(running) and budget > 0:
            request = running[position]
            new = request.tokens - request.computed
            if threshold and several:
                new = min(new, threshold)
            new = min(new, budget)
            while not cache.allocate(request, new):
                victim = max(running, key=lambda r: urgency(r)[:2]) if by_priority else running[-1]
                at = running.index(victim)
                running.remove(victim)
                if victim in [row for row, _ in rows.values()]:
                    budget += rows.pop(victim.id)[1][1]
                    position -= 1
                elif at < position:
                    position -= 1
                cache.release(victim)
                victim.computed = 0
                preempted.append(victim.id)
                waiting.insert(0, victim)
                if by_priority:
                    waiting.sort(key=urgency)
                if victim is request:
                    break
            else:
                rows[request.id] = (request, [request.id, new, request.computed])
                budget -= new
                position += 1
                continue
            break
        while not preempted and waiting and budget > 0 and len(running) < max_num_seqs:
            request = waiting[0]
            found = cache.find(request)
            cached = len(found) * size
            new = request.tokens - cached
            if threshold and several:
                new = min(new, threshold)
            if new > budget:
                if not chunked:
                    break
                new = budget
            idle = sum(not block.users for block in found)
            whole = request.tokens if reserve else cached + new
            kept = -(-watermark * blocks // 1) if running else 0
            if cache.blocks(whole) - len(found) + idle + kept > len(cache.free):
                break
            assert cache.allocate(request, new, found)
            waiting.pop(0)
            running.append(request)
            request.computed = cached
            rows[request.id] = (request, [request.id, new, cached])
            budget -= new
        if not rows:
            assert preempted, "nothing to do, and nobody gave way"
            steps.append((clock, [], preempted, len(cache.free)))
            continue
        start = clock
        clock += 0.010 + 0.0001 * sum(row[1] for _, row in rows.values())
        ended = []
        for request, (_, new, _) in rows.values():
            request.computed += new
            if request.computed == request.tokens:
                request.generated += 1
                request.first = clock if request.first is None else request.first
                if request.generated == request.output:
                    request.last = clock
                    ended.append(request)
        for request in [request for request in running if request in ended]:
            cache.release(request)
            running.remove(request)
        steps.append((start, sorted(row for _, row in rows.values()), preempted, len(cache.free)))
    return steps
