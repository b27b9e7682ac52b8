"""Compares profiles put together of operators with TTFT and TPOT by configuration (no gate): markdown on stdout.

    SERVECAST_SHARED=../shared python benchmarks/configurations.py

Dense rows of `measured/configs/ttft_tpot_by_config.csv.gz` on GPUs that have tables. Each is a closed loop: as many
users as the row's concurrency, ten requests each, prompts and answers of 0.8 to 1.0 of the row's lengths (the custom of
the public benchmark that most rows come from; with equal lengths all users send at once, and TTFT triples), memory at
0.90. What the rows do not tell (spread of lengths, ramp, engine settings, KV dtype) is guessed that way, so this is
sanity, not truth.
"""

from __future__ import annotations

import dataclasses
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from servecast import memory
from servecast.calibration import assemble
from servecast.cost import host
from servecast.engine import Server, replay
from servecast.errors import InputError
from servecast.executor import ModelExecutor
from servecast.kvcache import BlockPool
from servecast.policies import Continuous
from servecast.specs import catalogue
from servecast.workload.clients import ClosedLoop, LengthColumns

if TYPE_CHECKING:
    from servecast.cost.tabulated import TabulatedCost
    from servecast.specs.model import ModelSpec

SHARED = Path(os.environ.get("SERVECAST_SHARED", Path(__file__).parents[2] / "shared"))
OPS = SHARED / "measured" / "ops"

MODELS = {"meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b", "meta-llama/Llama-3.1-70B": "llama-3.1-70b"}
SYSTEMS = {"h100_sxm": ("h100-sxm", "h100_sxm-vllm0.24.0"), "h200_sxm": ("h200", "h200_sxm-vllm0.24.0")}
ROUNDS = 10
SHORTEST = 0.8


class Setting(NamedTuple):
    """What prices a row."""

    model: str
    system: str
    precision: str
    split: int


def main() -> None:
    """Print the table by GPU, model, engine and precision, and the implausible rows by reason."""
    table = pd.read_csv(SHARED / "measured/configs/ttft_tpot_by_config.csv.gz")
    table = table[table["model_path"].isin(MODELS) & table["system"].isin(SYSTEMS) & (table["mode"] == "agg")]
    rows = [_row(row) for _, row in table.iterrows()]
    judged = pd.DataFrame(rows)
    print("| GPU | model | engine | precision | rows | TPOT: median error, median of size, p90 | TTFT: the same |")
    print("|---|---|---|---|---|---|---|")
    for key, group in judged[judged["reason"] == ""].groupby(["system", "model", "engine", "precision"]):
        print(
            "|",
            " | ".join(map(str, key)),
            "|",
            len(group),
            "|",
            _errors(group["tpot"]),
            "|",
            _errors(group["ttft"]),
            "|",
        )
    print("\nBy split, TPOT (median error):")
    for key, group in judged[judged["reason"] == ""].groupby(["system", "model", "engine", "split"]):
        print(
            f"- {', '.join(map(str, key))} GPUs: {group['tpot'].median():+.1%} TPOT, {group['ttft'].median():+.1%} TTFT"
        )
    print("\nLeft out, by reason:")
    for reason, group in judged[judged["reason"] != ""].groupby("reason"):
        print(f"- {reason}: {len(group)} rows ({', '.join(sorted(set(group['engine'])))})")


def _row(row: Any) -> dict[str, object]:
    precision = row["precision"] if isinstance(row["precision"], str) else "not stated (bf16 taken)"
    setting = Setting(MODELS[row["model_path"]], row["system"], precision, int(row["tp_size"]))
    users, prompt, answer = int(row["batch_size"]), int(row["isl"]), int(row["osl"])
    found: dict[str, object] = {
        "system": row["system"],
        "model": setting.model,
        "engine": row["backend"],
        "precision": precision,
        "split": setting.split,
        "reason": "",
    }
    cost, model = _cost(setting)
    ttft, tpot = row["silicon_ttft_ms"] / 1e3, row["silicon_tpot_ms"] / 1e3
    found["reason"] = _implausible(setting, model, users, prompt, answer, ttft, tpot)
    if found["reason"]:
        return found
    try:
        simulated = _simulate(setting, cost, model, users, prompt, answer)
    except InputError:
        found["reason"] = "the model does not fit these GPUs at 0.90 of their memory"
        return found
    found["ttft"], found["tpot"] = simulated[0] / ttft - 1, simulated[1] / tpot - 1
    return found


def _implausible(
    setting: Setting, model: ModelSpec, users: int, prompt: int, answer: int, ttft: float, tpot: float
) -> str:
    """Why a row cannot be what it says; empty if it can."""
    device = catalogue.device(SYSTEMS[setting.system][0])
    context = users * (prompt + answer / 2)
    kv = model.kv_bytes_per_token(tensor_parallel=setting.split) * context
    free = 0.92 * device.memory_bytes - model.weight_bytes(setting.split)
    least = (model.weight_bytes(setting.split) + min(kv, max(free, 0.0)) / 2) / device.bandwidth_Bps
    if tpot < least:
        return "TPOT under the time to read the weights and half of the context (in fp8) at the peak bandwidth"
    flops = 2 * model.active_parameters() * prompt / setting.split / device.peak_flops(model.weight_dtype or "bf16")
    if ttft < flops:
        return "TTFT under the FLOPs of one prompt at the peak"
    if kv > max(free, 0.0):
        return "the context of all users does not fit: TTFT is a queue whose rules are not told"
    return ""


@cache
def _cost(setting: Setting) -> tuple[TabulatedCost, ModelSpec]:
    device, tables = SYSTEMS[setting.system]
    model = catalogue.model(setting.model)
    if setting.precision == "fp8":
        model = dataclasses.replace(model, weight_dtype="fp8")
    profile = assemble.fit_operators(
        OPS / tables,
        model,
        catalogue.device(device),
        name=f"{setting.system} {setting.model} x {setting.split}",
        tensor_parallel=setting.split,
        host=host.given(0.0),
    )
    return profile.cost(), model


def _simulate(
    setting: Setting, cost: TabulatedCost, model: ModelSpec, users: int, prompt: int, answer: int
) -> tuple[float, float]:
    """Mean TTFT and TPOT [s]."""
    plan = memory.budget(
        model,
        catalogue.device(SYSTEMS[setting.system][0]),
        gpu_memory_utilization=0.90,
        block_size=16,
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        tensor_parallel=setting.split,
    )
    count = ROUNDS * users
    draw = np.random.default_rng(0).uniform
    lengths = LengthColumns(
        np.round(prompt * draw(SHORTEST, 1.0, count)).astype(np.int64),
        np.round(answer * draw(SHORTEST, 1.0, count)).astype(np.int64),
    )
    policy = Continuous(max_num_seqs=256, max_num_batched_tokens=8192, async_scheduling=True)
    pool = BlockPool(plan.kv_blocks, 16)
    run = replay(ClosedLoop(users, 0.0, lengths), [Server(policy, ModelExecutor(cost), pool, plan.max_model_len)]).run
    served = run.requests
    first = served["first_token_s"] - served["sent_s"]
    pace = (served["finish_s"] - served["first_token_s"]) / (served["generated_tokens"] - 1)
    return float(np.nanmean(first)), float(np.nanmean(pace))


def _errors(errors: Any) -> str:
    size = errors.abs()
    return f"{errors.median():+.1%}, {size.median():.1%}, {size.quantile(0.9):.1%}"


if __name__ == "__main__":
    main()
