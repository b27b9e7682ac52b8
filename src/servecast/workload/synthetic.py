"""Synthetic workloads: an arrival process and lengths, drawn from one seed in streams that do not touch each other.

Arrivals, prompts and outputs each have their own stream, so that a sweep of the rate sends the same requests, only
closer together, and another law for the outputs leaves arrivals and prompts as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from servecast.errors import InputError
from servecast.workload.arrivals import arrive
from servecast.workload.clients import LengthColumns, RequestColumns
from servecast.workload.lengths import RandomLengths

if TYPE_CHECKING:
    from servecast.workload.arrivals import Arrivals
    from servecast.workload.lengths import Lengths


def generate(arrivals: Arrivals, lengths: Lengths, requests: int, seed: int) -> RequestColumns:
    """``requests`` requests of an open loop; the same arguments give the same bytes.

    Fewer where a schedule of rates ends before; none at all is an InputError.
    """
    times_s = arrive(arrivals, requests, streams(seed)[0])
    if requests and not len(times_s):
        raise InputError("arrivals", "the schedule ends before the first request; give it a higher rate, or more time")
    drawn = generate_lengths(lengths, len(times_s), seed)
    if not isinstance(lengths, RandomLengths) or not lengths.prefix_tokens:
        return RequestColumns(times_s, *drawn)
    ids = lengths.shared_prefix(len(drawn.prompt_tokens))
    return RequestColumns(times_s, *drawn, prefix_ids=ids, prefix_block_size=lengths.block_size)


def generate_lengths(lengths: Lengths, requests: int, seed: int) -> LengthColumns:
    """The lengths alone, the same as `generate` gives for that seed: what a closed loop sends."""
    _, prompt_rng, output_rng = streams(seed)
    return lengths.draw(requests, prompt_rng, output_rng)


def streams(seed: int | np.random.SeedSequence, n: int = 3) -> tuple[np.random.Generator, ...]:
    """Generators of arrivals, prompts, outputs. A further stream goes at the end, so that these keep their numbers."""
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    return tuple(map(np.random.default_rng, root.spawn(n)))
