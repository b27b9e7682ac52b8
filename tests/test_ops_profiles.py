"""Profiles from operator tables against recorded engines (issue 4, section 4), and the shipped ones against the tables.

H100: host overhead from the steps of the 2 req/s run (unpatched), client offset 3.5 ms each way, nothing else fitted;
the other runs are never seen. RTX PRO 6000: host overhead from the first third of its one run, judged on the rest.
`pytest -s` prints every error.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from counting import opcodes
from serving import Stepping, replayed

from servecast import memory
from servecast.batch import StepShape
from servecast.calibration import fit_requests
from servecast.cost import host, physics
from servecast.cost import profile as profiles
from servecast.cost.profile import TabulatedProfile
from servecast.executor import ModelExecutor
from servecast.kvcache import BlockPool
from servecast.policies import Continuous
from servecast.specs import catalogue
from servecast.workload.clients import HeldBack, OpenLoop, Remote, RequestColumns

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("SERVECAST_SHARED", ROOT / ".." / "shared"))
H100_RUNS = "measured/h100-qwen3-14b-vllm0.23/runs"
RTX_RUN = "measured/rtxpro6000-llama-3.1-8b-vllm0.19/runs/sharegpt-10rps.csv.gz"
OFFSET_S = 0.0035

SHIPPED = [name for name in profiles.list_profiles() if name.endswith(("-ops", "-layers"))]


def recorded(path):
    file = SHARED / path
    if not file.is_file():
        pytest.skip(f"{file} is not there: set SERVECAST_SHARED to the folder that holds it")
    return pd.read_csv(file).sort_values("arrival_s", kind="stable", ignore_index=True)


def simulated(cost, run, *, max_num_seqs, tokens, blocks, max_model_len, offset_s=0.0, in_flight=None, wrap=None):
    columns = RequestColumns(
        run["arrival_s"].to_numpy(float),
        run["prompt_tokens"].to_numpy(np.int64),
        run["output_tokens"].to_numpy(np.int64),
    )
    client = OpenLoop(columns)
    client = Remote(client if in_flight is None else HeldBack(client, in_flight), offset_s, offset_s)
    policy = Continuous(max_num_seqs=max_num_seqs, max_num_batched_tokens=tokens, async_scheduling=True)
    executor = ModelExecutor(cost)
    executor = executor if wrap is None else wrap(executor)
    served = replayed(client, policy, executor, BlockPool(blocks, 16), max_model_len=max_model_len).requests
    ttft = served["first_token_s"] - served["sent_s"] + 2 * offset_s
    e2e = served["finish_s"] - served["sent_s"] + 2 * offset_s
    return ttft, e2e


def errors(name, run, ttft, e2e, rows=slice(None)):
    """Signed errors of the means, and the median of the requests' own errors."""
    steps = run["output_tokens"].to_numpy()[rows] - 1
    ttft, e2e = ttft[rows], e2e[rows]
    real_ttft, real_e2e = run["ttft_s"].to_numpy()[rows], run["e2e_s"].to_numpy()[rows]
    found = {
        "e2e": e2e.mean() / real_e2e.mean() - 1,
        "tpot": ((e2e - ttft) / steps).mean() / ((real_e2e - real_ttft) / steps).mean() - 1,
        "ttft": ttft.mean() / real_ttft.mean() - 1,
        "each": float(np.median(np.abs(e2e / real_e2e - 1))),
    }
    print(f"\n{name}: " + ", ".join(f"{key} {value:+.2%}" for key, value in found.items()))
    return found


def making_of_profiles():
    spec = importlib.util.spec_from_file_location("operator_profiles", ROOT / "benchmarks" / "operator_profiles.py")
    making = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(making)
    return making


def test_a_borrowed_overhead_says_so():
    borrowed = making_of_profiles().taken_from(host.given(2e-3), "an H100")
    assert borrowed.step_s.value == 2e-3 and borrowed.step_s.low == 0 and "an H100" in borrowed.step_s.how


class TestAgainstRecordedRuns:
    @pytest.mark.parametrize(
        "name",
        [
            "rate-agg_2rps-vanilla",
            "rate-agg_4rps-vanilla",
            "rate-agg_4rps-patched",
            "rate-agg_6rps-vanilla",
            "rate-agg_6rps-patched",
            "tenants-2T_agg_4rps-vanilla",
            "w7-agg6",
            "w5-agg18",
        ],
    )
    def test_h100_from_operators(self, name):
        run = recorded(f"{H100_RUNS}/{name}.csv.gz")
        cost = profiles.load("h100-qwen3-14b-ops").cost()
        ttft, e2e = simulated(
            cost,
            run,
            max_num_seqs=256,
            tokens=8192,
            blocks=18_037,
            max_model_len=40_960,
            offset_s=OFFSET_S,
            in_flight=256,
        )
        found = errors(name, run, ttft, e2e)
        assert abs(found["e2e"]) <= 0.05
        assert abs(found["tpot"]) <= 0.05

    def test_rtx_pro_6000_from_layers(self):
        run = recorded(RTX_RUN)
        profile = profiles.load("rtx-pro-6000-llama-3.1-8b-layers")
        blocks = memory.budget(
            catalogue.model("llama-3.1-8b"),
            catalogue.device("rtx-pro-6000"),
            gpu_memory_utilization=0.90,
            block_size=16,
            max_num_batched_tokens=2048,
            max_num_seqs=128,
        ).kv_blocks
        ttft, e2e = simulated(profile.cost(), run, max_num_seqs=128, tokens=2048, blocks=blocks, max_model_len=8192)
        for part, rows in (("last two thirds", slice(len(run) // 3, None)), ("all", slice(None))):
            found = errors(f"RTX PRO 6000, {part}", run, ttft, e2e, rows)
            assert abs(found["e2e"]) <= 0.04
            assert abs(found["tpot"]) <= 0.04
            assert abs(found["ttft"]) <= 0.08
            assert found["each"] <= 0.04

    def test_coalesced_is_stepped(self):
        run = recorded(f"{H100_RUNS}/rate-agg_4rps-vanilla.csv.gz").head(300)
        cost = profiles.load("h100-qwen3-14b-ops").cost()
        setting = {"max_num_seqs": 256, "tokens": 8192, "blocks": 18_037, "max_model_len": 40_960}
        together = simulated(cost, run, **setting)
        stepped = simulated(cost, run, **setting, wrap=Stepping)
        np.testing.assert_allclose(together, stepped, rtol=0, atol=1e-9)

    def test_requests_alone_serve_their_twin(self):
        """Coarse: fitted to the requests of one server at 4 req/s, judged on its twin and at other rates."""
        seen = recorded(f"{H100_RUNS}/rate-agg_4rps-vanilla.csv.gz")
        model, device = catalogue.model("qwen3-14b"), catalogue.device("h100-sxm")
        cost = fit_requests.fit_requests(seen, model, device, name="coarse").cost()
        for name in ("rate-agg_4rps-patched", "rate-agg_6rps-vanilla", "w5-agg18"):
            run = recorded(f"{H100_RUNS}/{name}.csv.gz")
            ttft, e2e = simulated(
                cost,
                run,
                max_num_seqs=256,
                tokens=8192,
                blocks=18_037,
                max_model_len=40_960,
                offset_s=OFFSET_S,
                in_flight=256,
            )
            assert abs(errors(f"from requests alone, {name}", run, ttft, e2e)["e2e"]) <= 0.05


class TestShipped:
    def test_all_that_were_promised_are_there(self):
        promised = {
            f"{gpu}-{model}-ops"
            for gpu in ("h100", "h200", "a100")
            for model in ("llama-3.1-8b", "llama-3.1-70b-tp4", "qwen3-14b", "qwen3-32b")
        }
        promised |= {"l40s-llama-3.1-8b-ops", "rtx-pro-6000-llama-3.1-8b-layers", "rtx4090-llama-3.1-8b-layers"}
        assert promised <= set(SHIPPED)

    @pytest.mark.parametrize("name", SHIPPED)
    def test_it_says_what_it_is(self, name):
        profile = profiles.load(name)
        assert isinstance(profile, TabulatedProfile)
        assert profile.provenance.source and profile.held_out and profile.notes and profile.composition
        profile.require(catalogue.model(profile.model).name, profile.tensor_parallel)
        catalogue.device(profile.device)

    @pytest.mark.parametrize("name", SHIPPED)
    def test_more_work_takes_longer_and_no_step_beats_the_bandwidth(self, name):
        profile = profiles.load(name)
        cost, model, device = profile.cost(), catalogue.model(profile.model), catalogue.device(profile.device)
        weights = model.linear_bytes(StepShape(0, 0, 0, 0, 1, 0, 1), tensor_parallel=profile.tensor_parallel)
        one = cost.seconds(StepShape(0, 0, 0, 0, 1, 1000, 1000))
        assert one > weights / device.bandwidth_Bps
        contexts = [cost.seconds(StepShape(0, 0, 0, 0, 16, 16 * c, c)) for c in (100, 1000, 4000, 32_000)]
        prompts = [cost.seconds(StepShape(1, t, t * (t + 1) // 2, 0, 0, 0, t)) for t in (64, 512, 2048, 8192)]
        assert contexts == sorted(contexts) and prompts == sorted(prompts)
        peak = model.linear_flops(StepShape(1, 8192, 1, 0, 0, 0, 1), tensor_parallel=profile.tensor_parallel)
        assert prompts[-1] > peak / device.peak_flops("bf16")

    @pytest.mark.parametrize("name", profiles.list_profiles())
    def test_no_step_beats_its_flops_and_bytes(self, name):
        """All kinds of steps, within what was measured and far beyond; prompts with cached prefixes among them."""
        profile = profiles.load(name)
        model, device = catalogue.model(profile.model), catalogue.device(profile.device)
        rng, n = np.random.default_rng(0), 1500
        new, cached, rows, context = (
            np.exp(rng.uniform(0, np.log(most), n)).astype(int) for most in (2e4, 1e5, 600, 1e5)
        )
        kind = rng.integers(0, 3, n)
        prefill, decode, cached = kind > 0, kind < 2, cached * (rng.random(n) < 0.5)
        pairs = new * cached + new * (new + 1) // 2
        shapes = StepShape(
            prefill * 1, new * prefill, pairs * prefill, cached * prefill, rows * decode, rows * context * decode,
            np.maximum(context * decode, (cached + new) * prefill),
        )  # fmt: skip
        floor = physics.floor_seconds(shapes, model, device, profile.tensor_parallel)
        assert (profile.cost().seconds(shapes) >= floor * (1 - 1e-6)).all()

    @pytest.mark.parametrize("name", profiles.list_profiles())
    def test_one_token_or_row_more_takes_no_less_and_little_more(self, name):
        """A row of tiles beside eight is 12.5 %; what else changes between neighbouring counts is one bad measurement."""
        cost, tokens = profiles.load(name).cost(), np.arange(1, 4400)
        zeros = tokens * 0
        prompts = StepShape(zeros + 1, tokens, tokens * (tokens + 1) // 2, zeros, zeros, zeros, tokens)
        mixed = prompts._replace(decode_rows=zeros + 16, decode_context=zeros + 16_000)
        rows = np.arange(1, 1024)
        batches = [StepShape(0 * rows, 0 * rows, 0 * rows, 0 * rows, rows, rows * each, each) for each in (500, 4096)]
        for shapes in (prompts, mixed, *batches):
            seconds = np.asarray(cost.seconds(shapes))
            if name == "cpu-tiny":
                # The steps themselves have it: three rows are slower than four, see the steps beside the profile.
                seconds = seconds[8:]
            change = seconds[1:] / seconds[:-1] - 1
            assert change.min() > -0.001, change.argmin()
            assert change.max() < 0.125, change.argmax()
        for context in (1000, 16_000, 128_000):
            one, two = (cost.seconds(StepShape(0, 0, 0, 0, n, n * context, context)) for n in (1, 2))
            assert two > 0.99 * one

    def test_one_bad_point_is_not_carried_on(self):
        cost = profiles.load("rtx-pro-6000-llama-3.1-8b-ops").cost()
        assert cost.seconds(StepShape(0, 0, 0, 0, 1, 4096, 4096)) == pytest.approx(0.0118, rel=0.02)
        long = [cost.seconds(StepShape(0, 0, 0, 0, 1, context, context)) for context in (4096, 16_384, 131_072)]
        assert long[0] * 1.02 < long[1] < long[2] / 1.3

    def test_its_work_does_not_grow_with_rows_context_or_iterations(self):
        cost = profiles.load("rtx-pro-6000-llama-3.1-8b-layers").cost()
        decode = [
            StepShape(0, 0, 0, 0, rows, rows * each, each) for rows, each in ((2, 100), (17, 1003), (200, 30_000))
        ]
        mixed = StepShape(1, 987, 987 * 494, 0, 12, 12 * 1100, 1200)
        for shape in (*decode, mixed):
            cost.durations(shape, 50)
        work = [opcodes(lambda shape=shape: cost.durations(shape, 50)) for shape in (*decode, mixed)]
        assert max(work[:3]) < 1.5 * min(work[:3]) and work[3] < 5 * min(work[:3])
        assert opcodes(lambda: cost.durations(decode[1], 10**6)) < 1.5 * work[1]

    @pytest.mark.parametrize(
        "name", ["h100-qwen3-14b-ops", "a100-llama-3.1-70b-tp4-ops", "rtx4090-llama-3.1-8b-layers"]
    )
    def test_it_is_what_the_tables_give(self, name):
        if not (SHARED / "measured/ops").is_dir():
            pytest.skip(f"no operator tables under {SHARED}: set SERVECAST_SHARED")
        making = making_of_profiles()
        shipped = profiles.load(name)
        plan = next(plan for plan in making.PLAN if plan.name == name)
        assert making.make(plan, overhead=host.unknown()).tables == shipped.tables
