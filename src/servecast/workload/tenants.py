"""Several tenants at one server: each with arrivals, lengths and a priority of its own.

Each tenant draws from streams of its own, so that another rate or law for one leaves the others' requests as they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING

import numpy as np

from servecast.workload.arrivals import arrive
from servecast.workload.checks import ABOVE_0, check
from servecast.workload.clients import RequestColumns
from servecast.workload.shaping import split
from servecast.workload.synthetic import streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servecast.workload.arrivals import Arrivals
    from servecast.workload.lengths import Lengths


@dataclass(frozen=True)
class Tenant:
    """One tenant. ``share`` is its part of the requests, in proportion to the others'; None: to the rates of all.

    A lower ``priority`` goes first, as in vLLM.
    """

    name: str
    arrivals: Arrivals
    lengths: Lengths
    share: float | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name is empty; give each tenant one")
        check(self, ABOVE_0, "share")


def mixture(tenants: Sequence[Tenant], requests: int, seed: int) -> RequestColumns:
    """``requests`` requests of all tenants together, in order of arrival; equal times go in the order of the tenants.

    They are split exactly (largest remainder) by the shares, or by the rates where no share is given, so that all
    tenants are there for about the same time. Tenants with the same name, or rates that are not known, are a
    ValueError.
    """
    names = [tenant.name for tenant in tenants]
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"tenants are {', '.join(names) or 'none'}; give at least one, each with a name of its own")
    weights = [_weight(tenant, all(one.share is None for one in tenants)) for tenant in tenants]
    counts = split(requests, weights)
    roots = np.random.SeedSequence(seed).spawn(len(tenants))
    parts, owners = [], []
    for at, (tenant, count, root) in enumerate(zip(tenants, counts, roots, strict=True)):
        arrivals_rng, prompt_rng, output_rng = streams(root)
        times_s = arrive(tenant.arrivals, count, arrivals_rng)
        parts.append((times_s, *tenant.lengths.draw(len(times_s), prompt_rng, output_rng)))
        owners.append(np.full(len(times_s), at))
    times_s, prompts, outputs = (np.concatenate(column) for column in zip(*parts, strict=True))
    owner = np.concatenate(owners)
    priorities = np.array([tenant.priority for tenant in tenants], np.int64)
    return RequestColumns.in_order(
        times_s,
        prompts,
        outputs,
        priority=priorities[owner] if priorities.any() else None,
        tenant=[names[at] for at in owner.tolist()],
    )


def _weight(tenant: Tenant, by_rate: bool) -> float:
    if not by_rate:
        if tenant.share is None:
            raise ValueError(f"share is missing for tenant {tenant.name}; give one to each tenant, or to none")
        return tenant.share
    rate = getattr(tenant.arrivals, "rate_rps", getattr(tenant.arrivals, "mean_rps", inf))
    if not isfinite(rate):
        raise ValueError(f"share is missing for tenant {tenant.name}, whose arrivals have no rate; give shares to all")
    return float(rate)
