"""How often a plan's 90 % interval over seeds holds what fresh plans find: the mean of all others with other seeds.

    python benchmarks/coverage.py                 # 20 plans of each case, some minutes
    python benchmarks/coverage.py --plans 8 --seeds 3

Each plan has seeds that no other has. What the others find stands for the truth: its own error is a part in
sqrt(plans) of a plan's. Held: the share of plans whose interval holds it; 90 % is stated. The profile's errors are left
out (draws: 0), since they are the same in every plan.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import servecast
from servecast.plan.planner import make_plan

#: The largest seed of a plan is far below the first of the next.
APART = 1000
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "users, two GPUs": ("questions/users-to-gpus", {"replicas": 2}),
    "requests/s, one GPU": (
        "quickstart",
        {
            "policies": [{"kind": "continuous", "max_num_seqs": 64, "max_num_batched_tokens": 4096}],
            "sweep": {}, "goal": {"slo": {"ttft_p99_s": 1.0, "tpot_p95_s": 0.05}}, "replicas": 1,
            "workload.requests": 1000,
        },
    ),
}  # fmt: skip


def coverage(scenario: str, changes: dict[str, Any], plans: int, seeds: int) -> tuple[float, float, float, float]:
    """Share of the plans whose interval holds the mean of the others; mean load; scatter and half-width as shares."""
    search = {
        "seeds": seeds, "most_seeds": seeds, "draws": 0, "try_changes": False, "most_requests": 2000,
    }  # fmt: skip
    found = []
    for at in range(plans):
        plan = make_plan(servecast.load(scenario, {**changes, "workload.seed": APART * (at + 1), "search": search}))
        assert plan.options[0].capacity is not None
        found.append(plan.options[0].capacity)
    loads = np.array([each.value for each in found])
    others = (loads.sum() - loads) / (plans - 1)
    held = [each.low <= other <= each.high for each, other in zip(found, others, strict=True)]
    width = np.mean([(each.high - each.low) / 2 / each.value for each in found])
    return float(np.mean(held)), float(loads.mean()), float(loads.std(ddof=1) / loads.mean()), float(width)


def main() -> None:
    """Print a line for each case."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--plans", type=int, default=20)
    options.add_argument("--seeds", type=int, default=2)
    given = options.parse_args()
    for name, (scenario, changes) in CASES.items():
        held, load, scatter, width = coverage(scenario, changes, given.plans, given.seeds)
        print(
            f"{name}: {held:.0%} of {given.plans} plans of {given.seeds} seeds hold {load:.4g}; plans scatter by "
            f"{scatter:.1%}, intervals are +-{width:.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
