"""Makes the profiles of calibration/*-ops.yaml and *-layers.yaml from the shared tables of measured operators.

    SERVECAST_SHARED=../shared python benchmarks/operator_profiles.py [NAME...]

What the host adds comes from a recorded run of the same engine where there is one, and is stated where there is none:

- H100 and H200: from the steps of one Qwen3-14B run at 2 requests a second (vLLM 0.23, unpatched server);
- RTX PRO 6000 and RTX 4090: from the first third of the requests of one Llama-3.1-8B run (vLLM 0.19): the overhead at
  which the simulated time per token of those requests has the recorded mean;
- A100, L40S: stated, the middle of what recorded engines show.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from servecast import memory
from servecast.calibration import assemble, steps
from servecast.cost import host
from servecast.cost.profile import LeftOut, TabulatedProfile, rounded, save
from servecast.engine import Server, replay
from servecast.executor import ModelExecutor
from servecast.kvcache import BlockPool
from servecast.policies import Continuous
from servecast.specs import catalogue
from servecast.workload.clients import OpenLoop, RequestColumns

if TYPE_CHECKING:
    from servecast.cost.host import Host

SHARED = Path(os.environ.get("SERVECAST_SHARED", Path(__file__).parents[2] / "shared"))
OPS = SHARED / "measured" / "ops"
CALIBRATION = Path(__file__).parents[1] / "calibration"

KERNELS = "ai-dynamo/aiconfigurator (Apache-2.0)"
LAYERS = "casys-kaist/LLMServingSim (MIT)"

H100_RUN = "steps of an H100, Qwen3-14B, vLLM 0.23, 2 req/s, unpatched"
TWINS = 0.014
RTX_RUN = "first third of an RTX PRO 6000 run, Llama-3.1-8B, vLLM 0.19, 10 req/s of ShareGPT"


class Made(NamedTuple):
    """One profile: its name, model, device, split, folder of tables and how its host is come by."""

    name: str
    model: str
    device: str
    split: int
    tables: str
    host: str


def _plan() -> list[Made]:
    sxm = {"h100": ("h100-sxm", "h100_sxm-vllm0.24.0"), "h200": ("h200", "h200_sxm-vllm0.24.0")}
    sxm["a100"] = ("a100-80gb", "a100_sxm-vllm0.14.0")
    made = []
    for gpu, (device, tables) in sxm.items():
        whose = "stated" if gpu == "a100" else "h100"
        for model, split in (("llama-3.1-8b", 1), ("llama-3.1-70b", 4), ("qwen3-14b", 1), ("qwen3-32b", 1)):
            name = f"{gpu}-{model}{f'-tp{split}' if split > 1 else ''}-ops"
            made.append(Made(name, model, device, split, tables, whose))
    for model in ("llama-3.1-8b", "qwen3-14b"):
        made.append(Made(f"l40s-{model}-ops", model, "l40s", 1, "l40s-vllm0.24.0", "stated"))
    for model in ("llama-3.1-8b", "qwen3-14b", "qwen3-32b"):
        tables = "rtx_pro_6000_server-vllm0.19.0"
        made.append(Made(f"rtx-pro-6000-{model}-ops", model, "rtx-pro-6000", 1, tables, "rtx-kernels"))
    for model in ("llama-3.1-8b", "qwen3-32b"):
        tables = f"rtxpro6000-{model}-tp1-vllm0.19"
        made.append(Made(f"rtx-pro-6000-{model}-layers", model, "rtx-pro-6000", 1, tables, "rtx-layers"))
    tables = "rtx4090-llama-3.1-8b-tp1-vllm0.19"
    made.append(Made("rtx4090-llama-3.1-8b-layers", "llama-3.1-8b", "rtx4090", 1, tables, "rtx-layers"))
    return made


PLAN = _plan()


def make(plan: Made, date: str | None = None, overhead: Host | None = None) -> TabulatedProfile:
    """The profile, with its host overhead or another."""
    return assemble.fit_operators(
        OPS / plan.tables,
        catalogue.model(plan.model),
        catalogue.device(plan.device),
        name=plan.name,
        tensor_parallel=plan.split,
        engine=f"vLLM {plan.tables.rpartition('vllm')[2]} (kernels)",
        source=KERNELS if (OPS / plan.tables / "gemm_perf.parquet").is_file() else LAYERS,
        host=overhead or _host(plan),
        date=date,
    )


def _host(plan: Made) -> Host:
    if plan.host == "stated":
        return host.unknown()
    if plan.host == "h100":
        found = h100_host()
        return found if plan.name == "h100-qwen3-14b-ops" else taken_from(found, H100_RUN)
    tables = "rtx_pro_6000_server-vllm0.19.0" if plan.host == "rtx-kernels" else "rtxpro6000-llama-3.1-8b-tp1-vllm0.19"
    found = rtx_host(tables)
    own = plan.device == "rtx-pro-6000" and plan.model == "llama-3.1-8b"
    return found if own else taken_from(found, RTX_RUN)


def taken_from(found: Host, whose: str) -> Host:
    """The overhead of another run or model of the same engine: the value, but no longer known."""
    borrowed = {"how": f"taken from {whose}", "identified": False, "origin": "borrowed", "low": 0.0}
    return host.Host(
        found.step_s.model_copy(update={**borrowed, "high": max(host.MOST_S, found.step_s.high)}),
        found.row_s.model_copy(update=borrowed),
    )


@cache
def h100_host() -> Host:
    """What vLLM 0.23 adds on an H100, by the steps of its run at 2 requests a second."""
    bare = assemble.fit_operators(
        OPS / "h100_sxm-vllm0.24.0",
        catalogue.model("qwen3-14b"),
        catalogue.device("h100-sxm"),
        name="bare",
        host=host.given(0.0),
    )
    measured = SHARED / "measured/h100-qwen3-14b-vllm0.23/steps/agg_2rps_vanilla.csv.gz"
    return host.from_steps(bare.cost(), steps.read(measured), f"fitted to the {H100_RUN}")


@cache
def rtx_host(tables: str) -> Host:
    """What vLLM 0.19 adds on an RTX PRO 6000: the overhead at which the first third's mean TPOT is the recorded one."""
    model, device = catalogue.model("llama-3.1-8b"), catalogue.device("rtx-pro-6000")
    recorded = pd.read_csv(SHARED / "measured/rtxpro6000-llama-3.1-8b-vllm0.19/runs/sharegpt-10rps.csv.gz")
    third = len(recorded) // 3
    bare = assemble.fit_operators(OPS / tables, model, device, name="bare", host=host.given(0.0))
    plan = memory.budget(
        model,
        device,
        gpu_memory_utilization=0.90,
        block_size=16,
        max_num_batched_tokens=2048,
        max_num_seqs=128,
    )
    columns = RequestColumns(
        recorded["arrival_s"].to_numpy(float),
        recorded["prompt_tokens"].to_numpy(np.int64),
        recorded["output_tokens"].to_numpy(np.int64),
    )

    def mean_tpot(step_s: float) -> float:
        cost = assemble.with_host(bare, host.given(step_s)).cost()
        policy = Continuous(max_num_seqs=128, max_num_batched_tokens=2048, async_scheduling=True)
        run = replay(OpenLoop(columns), [Server(policy, ModelExecutor(cost), BlockPool(plan.kv_blocks, 16), 8192)]).run
        served = run.requests
        pace = (served["finish_s"] - served["first_token_s"]) / (served["output_tokens"] - 1)
        return float(pace[:third].mean())

    wanted = ((recorded["e2e_s"] - recorded["ttft_s"]) / (recorded["output_tokens"] - 1))[:third].mean()

    def overhead(tpot: float) -> float:
        low, high = 0.0, 3e-3
        if mean_tpot(low) >= tpot:
            return low
        while high - low > 1e-6:
            middle = (low + high) / 2
            low, high = (middle, high) if mean_tpot(middle) < tpot else (low, middle)
        return rounded((low + high) / 2, 4)

    step = host.given(overhead(wanted), how=f"fitted to the mean time per token of the {RTX_RUN}").step_s
    # Twins of a run differ by up to 1.4 % in their means: so little is known of one run's.
    bounds = {"low": overhead(wanted * (1 - TWINS)), "high": overhead(wanted * (1 + TWINS)), "identified": True}
    bounds["origin"] = "fitted"
    return host.given(0.0, how=step.how)._replace(step_s=step.model_copy(update=bounds))


def main(names: list[str]) -> None:
    """Write the profiles and print a line for each."""
    print("| profile | tables | host a step | GEMM or dense left out | decode attention | prefill attention |")
    print("|---|---|---|---|---|---|")
    for plan in PLAN:
        if names and plan.name not in names:
            continue
        profile = make(plan)
        save(profile, CALIBRATION / f"{plan.name}.yaml")
        worst: dict[str, LeftOut] = {}
        for error in profile.held_out:
            name = error.operator.replace("dense kernels", "GEMM")
            if name not in worst or error.median > worst[name].median:
                worst[name] = error
        shown = (
            f"{worst[name].median:.1%}, {worst[name].p95:.0%}"
            for name in ("GEMM", "decode attention", "prefill attention")
        )
        print(f"| `{plan.name}` | {plan.tables} | {profile.host['step_s'].value * 1e3:.2f} ms | {' | '.join(shown)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
