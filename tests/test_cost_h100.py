"""The shipped H100 profile against measurements it has not seen; `pytest -s` prints the numbers.

Reads the measured steps and the public GEMM tables where SERVECAST_SHARED (default ../shared) holds them.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from servecast.batch import StepShape, causal_pairs
from servecast.calibration import fit as fitting
from servecast.calibration import steps
from servecast.cost import physics, profile
from servecast.cost.fitted import smooth_maximum
from servecast.cost.roofline import Roofline
from servecast.specs import catalogue

SHARED = Path(os.environ.get("SERVECAST_SHARED", Path(__file__).parents[2] / "shared"))
MEASURED = SHARED / "measured"
STEPS = MEASURED / "h100-qwen3-14b-vllm0.23" / "steps"
TWIN = {"vanilla": "patched", "patched": "vanilla"}

needs_steps = pytest.mark.skipif(not STEPS.is_dir(), reason=f"no measured H100 steps in {STEPS}")


def file(run):
    return STEPS / f"agg_2rps_{run}.csv.gz"


def fit(run, **options):
    return fitting.fit_file(file(run), model="qwen3-14b", device="h100-sxm", name="h100-qwen3-14b", **options)


def errors_on(cost, run):
    """Relative errors over sums of 16 consecutive rows, which of them hold a prompt, and of mixed rows one by one."""
    seen = steps.read(file(run))
    n = len(seen) // 16 * 16
    predicted, mixed = cost.seconds(seen.shape), seen.shape.prefill_rows > 0
    sums = [v[:n].reshape(-1, 16).sum(axis=1) for v in (predicted, seen.seconds)]
    holds_prompt = mixed[:n].reshape(-1, 16).any(axis=1)
    return sums[0] / sums[1] - 1, holds_prompt, predicted[mixed].sum() / seen.seconds[mixed].sum() - 1


def show(label, errors, holds_prompt, mixed_rows):
    print(
        f"\n{label}: median {np.median(np.abs(errors)):.2%}, p95 {np.quantile(np.abs(errors), 0.95):.2%}, "
        f"signed mean {errors.mean():+.2%}, of sums that hold a prompt {errors[holds_prompt].mean():+.2%}; "
        f"mixed rows one by one {mixed_rows:+.2%}"
    )


@needs_steps
def test_the_shipped_profile_prices_the_other_run():
    """Bars of the project: sums of 16 rows, median at most 1 %, p95 at most 2 %, mixed steps within 2 % signed."""
    errors, holds_prompt, mixed_rows = errors_on(profile.load("h100-qwen3-14b").cost(), "patched")
    show("fit on vanilla, judged on patched", errors, holds_prompt, mixed_rows)
    assert np.median(np.abs(errors)) <= 0.01
    assert np.quantile(np.abs(errors), 0.95) <= 0.02
    assert abs(errors[holds_prompt].mean()) <= 0.02
    assert abs(mixed_rows) <= 0.02


@needs_steps
def test_the_other_direction_is_as_good_but_for_a_change_of_clock():
    """In the last third of the vanilla run every step is 1.7 % shorter than before; the patched run knows nothing of it."""
    errors, holds_prompt, mixed_rows = errors_on(fit("patched").cost(), "vanilla")
    show("fit on patched, judged on vanilla", errors, holds_prompt, mixed_rows)
    assert np.median(np.abs(errors)) <= 0.01
    assert np.quantile(np.abs(errors), 0.95) <= 0.025
    assert abs(errors[holds_prompt].mean()) <= 0.02
    first = errors[: len(errors) * 6 // 10]
    assert np.quantile(np.abs(first), 0.95) <= 0.02


@needs_steps
def test_the_shipped_profile_is_what_the_command_makes():
    shipped = profile.load("h100-qwen3-14b")
    again = fit(
        "vanilla", source=shipped.provenance.source, engine=shipped.provenance.engine, date=shipped.provenance.date
    )
    assert again.provenance == shipped.provenance
    for name, c in shipped.coefficients.items():
        assert again.coefficients[name].value == pytest.approx(c.value, rel=1e-3), name
        assert again.coefficients[name].how == c.how


def test_prefill_scales_as_the_roofline_from_256_to_4096_tokens():
    """The data hold prompts of about 1,000 tokens only: within 15 % of the roofline at the fitted efficiencies, at every
    length and in every ratio to 1,024 tokens."""
    shipped = profile.load("h100-qwen3-14b").cost()
    model, device = catalogue.model("qwen3-14b"), catalogue.device("h100-sxm")
    peak = physics.of(model, device)
    roof = Roofline(
        model,
        device,
        compute_efficiency=peak.token_s / shipped.token_s,
        bandwidth_efficiency=peak.weight_read_s / shipped.weight_read_s,
        overhead_s=shipped.step_s,
    )
    lengths = np.array([256, 362, 512, 724, 1024, 1448, 2048, 2896, 4096])
    one = np.ones_like(lengths)
    prompts = StepShape(one, lengths, causal_pairs(lengths), 0 * one, 0 * one, 0 * one, lengths)
    ratio = shipped.seconds(prompts) / roof.seconds(prompts)
    print("\nprefill, fitted / roofline:", dict(zip(lengths.tolist(), ratio.round(3).tolist(), strict=True)))
    assert (np.abs(ratio - 1) <= 0.15).all()
    assert (np.abs(ratio / ratio[4] - 1) <= 0.15).all()
    flops = np.asarray(model.step_flops(prompts))
    per_flop = shipped.seconds(prompts) / flops
    assert per_flop[lengths >= 512] == pytest.approx(per_flop[4], rel=0.15)


def test_the_shipped_profile_is_never_faster_than_the_roofline():
    """CAL-03, over every step an engine with 256 rows and 8,192 tokens can make."""
    shipped = profile.load("h100-qwen3-14b").cost()
    rng = np.random.default_rng(0)
    rows, new = rng.integers(0, 257, 4000), rng.integers(1, 8192, 4000)
    context = rows * rng.integers(1, 40_000, 4000)
    shapes = StepShape(np.ones(4000, int), new, causal_pairs(new), 0 * new, rows, context, context)
    floor = physics.floor_seconds(shapes, catalogue.model("qwen3-14b"), catalogue.device("h100-sxm"))
    assert (shipped.seconds(shapes) >= floor).all()


@pytest.mark.parametrize("version", ["0.14.0", "0.19.0", "0.24.0"])
def test_the_stated_constants_are_those_of_public_gemm_tables(version):
    """One layer of Qwen3-14B put together from GEMM times: bandwidth efficiency about 0.80, sharpness 2.5 to 5.5."""
    pd = pytest.importorskip("pandas")
    path = MEASURED / "ops" / f"h100_sxm-vllm{version}" / "gemm_perf.parquet"
    if not path.is_file():
        pytest.skip(f"no GEMM table {path}")
    from scipy.optimize import least_squares

    table = pd.read_parquet(path).query("gemm_dtype == 'bfloat16'")

    def matrix(n, k):
        return table[(table.n == n) & (table.k == k)].groupby("m").latency.mean()

    # qkv and o are on the tables' grid; gate-up (34,816 x 5,120) and down (5,120 x 17,408) scale from the nearest.
    layer = matrix(7168, 5120) + matrix(5120, 5120) + matrix(65536, 5120) * 34816 / 65536
    layer = (layer + matrix(5120, 16384) * 17408 / 16384).dropna()
    weights = 7168 * 5120 + 5120 * 5120 + 34816 * 5120 + 5120 * 17408

    def fit_layer(most, compute):
        part = layer[layer.index <= most]
        tokens, milliseconds = part.index.to_numpy(float), part.to_numpy()

        def error(x):
            read, matmul = weights * 2 / 3.35e9 / x[0], weights * 2 / 989e9 / (compute or x[2]) * tokens
            return np.log(smooth_maximum(read, matmul, x[1]) / milliseconds)

        start, low, high = [0.8, 4.0, 0.8], [0.3, 1.0, 0.3], [1.0, 30.0, 1.0]
        return least_squares(error, start, bounds=(low, high)).x

    bandwidth, free_sharpness, compute = fit_layer(4352, None)
    _, sharpness, _ = fit_layer(257, 0.68)
    print(
        f"\nvLLM {version} GEMMs: bandwidth {bandwidth:.3f}, compute {compute:.3f}, sharpness {free_sharpness:.1f}; "
        f"with compute at 0.68 up to 257 tokens {sharpness:.1f}"
    )
    assert 0.78 <= bandwidth <= 0.84
    assert 2.5 <= free_sharpness <= 5.5
    assert 3.0 <= sharpness <= 5.5
