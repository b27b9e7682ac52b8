"""What the whole command ``servecast run`` costs beside its core: start-up, metrics, tables, page. One policy.

    python benchmarks/command.py                                   # 2,000 requests; each further one up to 22,000
    python benchmarks/command.py --policy padded --profile         # where the time goes

*start-up*: CPU of a fresh ``servecast run`` up to the moment that the scenario is simulated, imports above all. *core*:
drawing the workload, simulating it, and the row of summary.csv. *command*: all that the command does after its imports,
core included. All are CPU seconds, the best of several turns.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import io
import pstats
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from speed import outcome, scenario

from servecast.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Callable

STARTUP = """
import time, sys
from servecast.cli.app import app
from servecast.run import sweep
def stop(*_, **__):
    print(time.process_time()); sys.exit()
sweep.simulate = stop
app(["run", sys.argv[1], "--out", sys.argv[2]])
"""


def best(turns: int, timed: Callable[[], None]) -> float:
    found = float("inf")
    for _ in range(turns):
        start = time.process_time()
        timed()
        found = min(found, time.process_time() - start)
    return found


def command(file: Path, folder: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        app(["run", str(file), "--out", str(folder), "--fresh"], standalone_mode=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs=2, default=[2000, 22_000])
    parser.add_argument("--policy", default="continuous", choices=("continuous", "static", "padded"))
    parser.add_argument("--load", type=float, default=0.9, help="share of saturation")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="also print where the larger command spends its time")
    arguments = parser.parse_args()
    burst, _ = outcome(arguments.policy, 2000, {"kind": "burst"})
    arrivals = {"kind": "poisson", "rate_rps": arguments.load * burst.row["request_throughput_rps"]}
    few, many = arguments.requests
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files = {}
        for requests in (10, few, many):
            made = scenario(arguments.policy, requests, arrivals).model_dump(mode="json", exclude_unset=True)
            files[requests] = folder / f"{requests}.yaml"
            files[requests].write_text(yaml.safe_dump(made | {"slo": {"ttft_s": 1.0, "tpot_s": 0.05}}))
        command(files[10], folder)  # so that everything is imported
        start = [sys.executable, "-c", STARTUP, str(files[10]), place]
        startup = min(
            float(subprocess.run(start, check=True, capture_output=True, text=True).stdout)
            for _ in range(min(arguments.turns, 3))
        )
        core = {n: best(arguments.turns, lambda n=n: outcome(arguments.policy, n, arrivals)) for n in (few, many)}
        whole = {n: best(arguments.turns, lambda n=n: command(files[n], folder)) for n in (few, many)}
        page = (folder / "speed" / "report.html").stat().st_size
        print(f"start-up {startup:.2f} s; page {page / 1e6:.2f} MB")
        print(f"{'':<12}{f'{few:,} requests':>18}{f'{many:,} requests':>18}{'each further one':>20}")
        for name, timed in (("core", core), ("command", whole)):
            each = 1e6 * (timed[many] - timed[few]) / (many - few)
            print(f"{name:<12}{timed[few]:>16.2f} s{timed[many]:>16.2f} s{each:>17.1f} us")
        if arguments.profile:
            profile = cProfile.Profile()
            profile.runcall(command, files[many], folder)
            pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
