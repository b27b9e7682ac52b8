"""How fast traces are read, and how much memory that takes.

    python benchmarks/traces.py                      # a million Azure rows, 100 MB of Mooncake
    python benchmarks/traces.py --rows 100000 --megabytes 10

Each file is made from a seed, and read by a process of its own, whose CPU time and peak memory are printed: with the
interpreter and numpy in them (about 0.2 s and 45 MB). The bounds are a million Azure rows in 3 s and 300 MB.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

BOUNDS = {"azure": (3.0, 300.0)}
READ = """
import resource, sys, time
from servecast.workload.traces.trace_file import TraceFile
trace = TraceFile(sys.argv[1]).read()
used = resource.getrusage(resource.RUSAGE_SELF)
print(len(trace.columns), trace.report.format, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


def azure(path: Path, rows: int) -> None:
    draw = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for row in range(rows):
            second, part = divmod(row, 12)
            file.write(
                f"2024-05-{12 + second // 86_400:02} {second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}"
                f".{part * 83_000 + draw.randrange(80_000):06}+00:00,{draw.randint(1, 8000)},{draw.randint(1, 900)}\n"
            )


def mooncake(path: Path, megabytes: float) -> None:
    """Half of each prompt is a prefix that others have too."""
    draw, written, time_ms, fresh = random.Random(1), 0, 0, 100_000
    with path.open("w", encoding="utf-8") as file:
        while written < megabytes * 1e6:
            prompt = draw.randint(1, 25_000)
            blocks = -(-prompt // 512)
            shared = draw.randint(0, blocks)
            ids = [*range(shared), *range(fresh, fresh + blocks - shared)]
            fresh += blocks - shared
            row = {"timestamp": time_ms, "input_length": prompt, "output_length": draw.randint(1, 900), "hash_ids": ids}
            written += file.write(json.dumps(row) + "\n")
            time_ms += draw.randint(0, 600)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the Azure file")
    parser.add_argument("--megabytes", type=float, default=100.0, help="size of the Mooncake file")
    options = parser.parse_args()
    over = False
    with tempfile.TemporaryDirectory() as folder:
        for name, size in (("azure", options.rows), ("mooncake", options.megabytes)):
            path = Path(folder) / name
            {"azure": azure, "mooncake": mooncake}[name](path, size)
            done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
            rows, form, seconds, megabytes = done.stdout.split()
            print(
                f"{form}: {int(rows):,} rows, {path.stat().st_size / 1e6:.0f} MB on disk: "
                f"{float(seconds):.2f} s of CPU, {float(megabytes):.0f} MB at most"
            )
            if name in BOUNDS and size == 1_000_000:
                over |= float(seconds) > BOUNDS[name][0] or float(megabytes) > BOUNDS[name][1]
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
