"""How fast servecast simulates, in units of what SimPy itself can do on the same machine in the same minute.

    python benchmarks/speed.py                     # 20,000 and 200,000 requests, three policies
    python benchmarks/speed.py --requests 1000000 --policies continuous --loads 0.3

A timeout is one turn of ``while True: yield env.timeout(1)``. Requests have Azure-conv lengths and Poisson arrivals
at a share of saturation (the throughput of a burst of the same requests), on the shipped H100 profile. The time of a
run is CPU time of drawing the workload, simulating it and computing every column of summary.csv; what the command costs
beyond that, command.py says. Both units are the best of several turns, so that a busy neighbour does not count.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import simpy

from servecast.run.sweep import Made, Task, run
from servecast.scenario import Scenario, check, points

POLICIES = {
    "continuous": {"kind": "continuous", "max_num_seqs": 256, "max_num_batched_tokens": 8192},
    "static": {"kind": "static", "batch_size": 16, "max_wait_s": 0.5},
    "padded": {"kind": "padded", "batch_size": 16, "max_wait_s": 0.5},
}


def timeouts_per_second(count: int = 300_000) -> float:
    environment = simpy.Environment()

    def loop():
        while True:
            yield environment.timeout(1)

    environment.process(loop())
    start = time.process_time()
    environment.run(until=count)
    return count / (time.process_time() - start)


def scenario(policy: str, requests: int, arrivals: dict[str, object]) -> Scenario:
    return check(
        {
            "name": "speed",
            "model": "qwen3-14b",
            "profile": "h100-qwen3-14b",
            "workload": {
                "arrivals": arrivals,
                "lengths": {"kind": "empirical", "name": "azure-conv-2023"},
                "requests": requests,
                "seed": 1,
            },
            "policies": [POLICIES[policy]],
        },
        Path(),
    )


def outcome(policy: str, requests: int, arrivals: dict[str, object]) -> tuple[Made, float]:
    [point] = points(scenario(policy, requests, arrivals))
    start = time.process_time()
    result = run(Task(point, 0))
    seconds = time.process_time() - start
    assert isinstance(result, Made), result
    return result, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--loads", type=float, nargs="+", default=[0.3, 0.9], help="shares of saturation")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument(
        "--turns", type=int, default=5, help="turns of runs below 100,000 requests; larger take two, the largest one"
    )
    arguments = parser.parse_args()

    heads = ("policy", "requests", "load", "rps", "timeouts/s", "requests/s", "ratio", "decisions", "peak MB")
    print("{:<11}{:>9}{:>6}{:>7}{:>12}{:>12}{:>8}{:>11}{:>9}".format(*heads))
    for policy in arguments.policies:
        burst, _ = outcome(policy, 4000, {"kind": "burst"})
        saturation = burst.row["request_throughput_rps"]
        for requests in arguments.requests:
            for load in arguments.loads:
                arrivals = {"kind": "poisson", "rate_rps": load * saturation}
                unit, best = 0.0, float("inf")
                for _ in range(arguments.turns if requests < 100_000 else 2 if requests < 500_000 else 1):
                    result = None  # two runs at once would count twice in the peak
                    unit = max(unit, timeouts_per_second())
                    result, seconds = outcome(policy, requests, arrivals)
                    best = min(best, seconds)
                assert result is not None
                decisions = len(result.run.decisions["start_s"]) / requests
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                print(
                    f"{policy:<11}{requests:>9}{load:>6}{load * saturation:>7.2f}{unit:>12,.0f}"
                    f"{requests / best:>12,.0f}{requests / best / unit:>8.4f}"
                    f"{decisions:>11.2f}{peak:>9.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
