"""A large sweep: how much faster on two cores than on one, and how much memory the process at its head takes.

    python benchmarks/sweep.py                     # 1,000 points of 2,000 requests, --jobs 1 and 2
    python benchmarks/sweep.py --points 100        # a quick look

Chat-like requests on the shipped H100 profile at 50 rates with 20 seeds each, one policy, kept in a store as
``servecast run`` does. Each number of jobs has a process of its own. The time is of the sweep with the start of its
workers, without the report. Where the cores are shared with others it says little; the CPU time that head and workers
took together, over that of one job, says what two cores of its own would give. The memory is the most that the process
at the head (not its workers) held at once, the report included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RATES = 50


def sweep(points: int, requests: int, jobs: int, report: bool) -> dict[str, float]:
    from servecast.report import write_run
    from servecast.run.store import opened
    from servecast.run.sweep import simulate
    from servecast.scenario import check

    seeds = max(points // RATES, 1)
    rates = [round(1 + 9 * at / (RATES - 1), 3) for at in range(min(RATES, points))]
    scenario = check(
        {
            "name": "sweep",
            "model": "qwen3-14b",
            "profile": "h100-qwen3-14b-ops",
            "workload": {
                "arrivals": {"kind": "poisson", "rate_rps": 1},
                "lengths": {"kind": "empirical", "name": "azure-conv-2023"},
                "requests": requests,
            },
            "policies": [{"kind": "continuous", "max_num_seqs": 256, "max_num_batched_tokens": 8192}],
            "sweep": {"workload.arrivals.rate_rps": rates},
            "seeds": seeds,
        },
        Path(),
    )
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder) / "sweep") as store:
        begun, cpu = time.perf_counter(), time.process_time()
        results = simulate(scenario, jobs=jobs, store=store)
        seconds = time.perf_counter() - begun
        cpu = time.process_time() - cpu
        if jobs > 1:
            from joblib.externals.loky import get_reusable_executor

            get_reusable_executor().shutdown(wait=True)  # what its workers took is known when they have ended
        if report:
            write_run(results, Path(folder))
    assert len(results.summary) == len(rates) * seeds
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "runs": len(results.summary),
        "seconds": seconds,
        "head_s": cpu,
        "workers_s": workers.ru_utime + workers.ru_stime,
        "peak_mb": peak,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--no-report", action="store_true", help="do not write the report, which takes memory too")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(sweep(asked.points, asked.requests, asked.one, not asked.no_report)))
        return
    first = None
    for jobs in asked.jobs:
        done = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--one", str(jobs)], capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
        cpu = found["head_s"] + found["workers_s"]
        first = first or (found["seconds"], cpu)
        print(
            f"--jobs {jobs}: {found['runs']} runs in {found['seconds']:.1f} s, {first[0] / found['seconds']:.2f} times "
            f"as fast; CPU {found['head_s']:.1f} s head, {found['workers_s']:.1f} s workers: "
            f"{jobs * first[1] / cpu:.2f} times on {jobs} cores of its own; head at most {found['peak_mb']:.0f} MB; "
            f"load average {found['load']:.1f} on {os.cpu_count()} cores",
            flush=True,
        )


if __name__ == "__main__":
    main()
