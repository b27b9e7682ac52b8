"""Synthetic workloads: an arrival process and lengths, drawn from one seed in streams that do not touch each other.

Arrivals, prompts and outputs each have their own stream, so that a sweep of the rate sends the same requests, only
closer together, and another law for the outputs leaves arrivals and prompts as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from servecast.workload.clients import LengthColumns, RequestColumns

if TYPE_CHECKING:
    from servecast.workload.arrivals import Arrivals
    from servecast.workload.lengths import Lengths


def generate(arrivals: Arrivals, lengths: Lengths, requests: int, seed: int) -> RequestColumns:
    """``requests`` requests of an open loop; the same arguments give the same bytes."""
    times_s = arrivals.times(requests, _streams(seed)[0])
    return RequestColumns(times_s, *generate_lengths(lengths, requests, seed))


def generate_lengths(lengths: Lengths, requests: int, seed: int) -> LengthColumns:
    """The lengths alone, the same as `generate` gives for that seed: what a closed loop sends."""
    _, prompt_rng, output_rng = _streams(seed)
    return lengths.draw(requests, prompt_rng, output_rng)


def _streams(seed: int) -> tuple[np.random.Generator, ...]:
    """Generators of arrivals, prompts, outputs. A further stream goes at the end, so that these keep their numbers."""
    return tuple(map(np.random.default_rng, np.random.SeedSequence(seed).spawn(3)))
