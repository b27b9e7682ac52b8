"""The two fits of a table of steps against each other: the same rows to fit, the same rows to judge.

    SERVECAST_SHARED=../shared python benchmarks/two_fits.py

smooth : `servecast.calibration.fit`, seven coefficients with physics behind them (`servecast fit`)
piecewise : `servecast.calibration.whole_steps`, two curves with up to 24 knots each (`servecast calibrate`)

Tables: the log of an H100 (one run to fit; to judge, every fifth stretch of 128 rows, and its twin) and the grid of
`calibration/cpu-tiny.steps.csv` (its grid to fit, its held-out steps to judge). Beyond: fitted to the half with the
least work by the roofline (of the stretches of the log, of each kind of step in the grid), judged on the fifth with the
most. Errors are of sums of 16 rows in the log, whose single rows hold the jitter of a client's clock, and of single
steps in the grid. Carried: the log has 13 rows at most; runs of the same server at 6 requests/s, with prompts of 256
and 4,096 tokens, and at its limit with 256 rows are simulated with either fit.
"""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from servecast.calibration import fit as smooth
from servecast.calibration import solve, whole_steps
from servecast.calibration.steps import Steps, from_frame
from servecast.cost import physics
from servecast.cost.curves import Curve, Surface
from servecast.cost.model import STEP_KINDS, step_kind
from servecast.cost.tabulated import TabulatedCost
from servecast.device.quality import by_step
from servecast.engine import Server, replay
from servecast.executor import ModelExecutor
from servecast.kvcache import BlockPool
from servecast.policies import Continuous
from servecast.specs import catalogue
from servecast.workload.clients import HeldBack, OpenLoop, Remote, RequestColumns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.cost.model import CostModel

SHARED = Path(os.environ.get("SERVECAST_SHARED", Path(__file__).parents[2] / "shared"))
LOGS = SHARED / "measured" / "h100-qwen3-14b-vllm0.23" / "steps"
COLUMNS = {"arrival_s": float, "prompt_tokens": np.int64, "output_tokens": np.int64}
#: The way between client and server of these runs.
OFFSET_S = 0.0035
RUNS = LOGS.parent / "runs"
GRID = Path(__file__).parents[1] / "calibration" / "cpu-tiny.steps.csv"


def by_smooth(table: pd.DataFrame, model: str, device: str) -> CostModel:
    found = smooth.fit(
        table, catalogue.model(model), catalogue.device(device), name="smooth", bounded_by_roofline=device != "cpu"
    )
    return found.cost()


def by_pieces(table: pd.DataFrame, model: str, device: str) -> CostModel:
    steps = from_frame(table)
    found = whole_steps.fit(steps.shape, steps.seconds, replicates=2)
    rows, context = (float(np.asarray(steps.shape[at]).max()) for at in (4, 5))
    tokens, pairs = (float(np.asarray(steps.shape[at]).max()) for at in (1, 2))
    tables = found.tables(int(rows), int(context), int(max(tokens, 1)), int(max(pairs, 1)))
    decode, prefill = (
        Surface(tuple(c[0][0] for c in curves), tuple(Curve(c[1], c[2]) for c in curves))
        for curves in (tables["decode_attention"], tables["prefill_attention"])
    )
    return TabulatedCost(Curve(*found.tokens), Curve(*found.rows), decode, prefill, "tokens", decode)


FITS = {"smooth": by_smooth, "piecewise": by_pieces}


def judged(cost: CostModel, steps: Steps, window: int) -> Iterator[tuple[str, int, float, float, float]]:
    """Kind of step, how many, median and p95 of the error, its mean."""
    starts = solve.window_starts(np.arange(len(steps)), steps.run, window)
    predicted, measured = (
        solve.window_sums(np.asarray(values, float), starts, window)
        for values in (cost.seconds(steps.shape), steps.seconds)
    )
    kinds = np.asarray(step_kind(steps.shape))[starts[:, None] + np.arange(window)]
    kind = np.where((kinds == "mixed").any(1), "mixed", np.where((kinds == "prefill").any(1), "prefill", "decode"))
    error = predicted / measured - 1
    for name in ("all", *STEP_KINDS):
        chosen = error if name == "all" else error[kind == name]
        if len(chosen):
            yield name, len(chosen), float(np.median(abs(chosen))), float(np.quantile(abs(chosen), 0.95)), chosen.mean()


def carried(cost: CostModel, name: str) -> tuple[float, float]:
    """Errors of the mean E2E and TPOT of a recorded run of the same server, none of whose steps was fitted."""
    run = pd.read_csv(RUNS / f"{name}.csv.gz").sort_values("arrival_s", kind="stable", ignore_index=True)
    columns = RequestColumns(*(run[key].to_numpy(kind) for key, kind in COLUMNS.items()))
    client = Remote(HeldBack(OpenLoop(columns), 256), OFFSET_S, OFFSET_S)
    policy = Continuous(max_num_seqs=256, max_num_batched_tokens=8192, async_scheduling=True)
    server = Server(policy, ModelExecutor(cost), BlockPool(18_037, 16), 40_960)
    served = replay(client, [server]).run.requests
    steps = run["output_tokens"].to_numpy() - 1
    e2e_s, decoding_s = (
        served["finish_s"] - served["sent_s"] + 2 * OFFSET_S,
        served["finish_s"] - served["first_token_s"],
    )
    tpot_s = (run["e2e_s"] - run["ttft_s"]).to_numpy() / steps
    return e2e_s.mean() / run["e2e_s"].mean() - 1, (decoding_s / steps).mean() / tpot_s.mean() - 1


def by_work(table: pd.DataFrame, model: str, device: str, stretch: int = 1) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The half of the steps (or of stretches of a log) with the least work, and the fifth with the most, by kind."""
    steps = from_frame(table)
    work = pd.Series(physics.floor_seconds(steps.shape, catalogue.model(model), catalogue.device(device)))
    piece = np.arange(len(work)) // stretch
    kind = step_kind(steps.shape) if stretch == 1 else np.zeros(len(work))
    rank = work.groupby(piece).transform("mean").groupby(kind).rank(pct=True).to_numpy()
    return table[rank <= 0.5], table[rank > 0.8]


def cases() -> Iterator[tuple[str, str, str, pd.DataFrame, pd.DataFrame, int]]:
    """Name, model, device, rows to fit, rows to judge, rows in a sum."""
    one, twin = (pd.read_csv(LOGS / f"agg_2rps_{name}.csv.gz") for name in ("vanilla", "patched"))
    stretch = np.arange(len(one)) // 128 % 5 == 4
    h100 = ("qwen3-14b", "h100-sxm")
    yield "H100 log, every fifth stretch", *h100, one[~stretch], one[stretch], 16
    yield "H100 log, its twin", *h100, one, twin, 16
    yield "H100 log, beyond", *h100, *by_work(one, *h100, 128), 16
    rows = by_step(pd.read_csv(GRID))
    grid, held_out = (rows[rows["part"] == part].drop(columns=["rows", "part"]) for part in ("grid", "held_out"))
    cpu = ("cpu-small", "cpu")
    yield "CPU grid, held out", *cpu, grid, held_out, 1
    yield "CPU grid, beyond", *cpu, *by_work(grid, *cpu), 1


def main() -> None:
    """Print one line for each table, kind of step and fit."""
    print(f"{'table':32}{'steps':9}{'sums':>6}   {'fit':12}{'median':>8}{'p95':>9}{'mean':>9}")
    for name, model, device, fitted, held_out, window in cases():
        steps = from_frame(held_out)
        for label, fit in FITS.items():
            for kind, count, median, p95, mean in judged(fit(fitted, model, device), steps, window):
                print(f"{name:32}{kind:9}{count:6}   {label:12}{median:8.2%}{p95:9.2%}{mean:+9.2%}", flush=True)
    one = pd.read_csv(LOGS / "agg_2rps_vanilla.csv.gz")
    for name, label in product(("rate-agg_6rps-vanilla", "w7-agg6", "w5-agg18"), FITS):
        e2e, tpot = carried(FITS[label](one, "qwen3-14b", "h100-sxm"), name)
        print(f"H100, fitted to 2 requests/s, served {name:22} {label:10} E2E {e2e:+.1%}, TPOT {tpot:+.1%}", flush=True)


if __name__ == "__main__":
    main()
