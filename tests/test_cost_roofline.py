"""The roofline: the floor of bytes and FLOPs, closed sums, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servecast.batch import StepShape, causal_pairs
from servecast.cost.roofline import Roofline, peak_flops, ridge_batch
from servecast.errors import InputError
from servecast.specs import catalogue

MODELS = ("qwen3-14b", "llama-3.1-8b", "mixtral-8x7b", "gpt-oss-20b", "gemma-3-12b", "deepseek-v3")


def roofline(name="qwen3-14b", device="h100-sxm", **options):
    return Roofline(catalogue.model(name), catalogue.device(device), **options)


def decode(rows, context_each):
    return StepShape(0, 0, 0, 0, rows, rows * context_each, context_each)


def later(shape, i):
    return shape._replace(
        decode_context=shape.decode_context + i * shape.decode_rows, max_context=shape.max_context + i
    )


def test_decode_is_weights_and_cache_over_bandwidth():
    # 14,768,307,200 parameters in bf16; one row does not read the embedding table but one line of it
    seconds = roofline(bandwidth_efficiency=1.0, overhead_s=0.0).seconds(decode(1, 1000))
    weights = 2 * (14_768_307_200 - 151_936 * 5_120) + 2 * 5_120
    assert seconds == pytest.approx((weights + 1001 * 163_840) / 3.35e12, rel=1e-6)


def test_prefill_is_flops_over_peak():
    seconds = roofline(compute_efficiency=1.0, overhead_s=0.0).seconds(
        StepShape(1, 4096, causal_pairs(4096), 0, 0, 0, 4096)
    )
    linear = 2 * (40 * (5120 * 128 * (2 * 40 + 2 * 8) + 3 * 5120 * 17408) * 4096 + 151_936 * 5120)
    attention = 4 * 40 * 40 * 128 * causal_pairs(4096)
    assert seconds == pytest.approx((linear + attention) / 989e12, rel=0.002)


@pytest.mark.parametrize("name", MODELS)
def test_no_batch_is_faster_than_its_bytes_and_flops(name):
    """CAL-03: batches of 1 to 10,000."""
    model, device = catalogue.model(name), catalogue.device("h100-sxm")
    rows = np.unique(np.geomspace(1, 10_000, 40).astype(int))
    shape = decode(rows, 1000)
    seconds = Roofline(model, device, overhead_s=0.0).seconds(shape)
    assert (seconds >= model.step_bytes(shape) / device.bandwidth_Bps).all()
    assert (seconds >= model.step_flops(shape) / peak_flops(model, device)).all()
    assert (np.diff(seconds) > 0).all()


def test_no_mixed_step_is_faster_than_its_bytes_and_flops():
    model, device = catalogue.model("llama-3.1-8b"), catalogue.device("h100-sxm")
    rng = np.random.default_rng(0)
    rows, tokens = rng.integers(1, 10_000, 500), rng.integers(0, 8192, 500)
    shape = StepShape((tokens > 0) * 1, tokens, tokens * (tokens + 1) // 2, 0 * rows, rows, rows * 700, 700 + 0 * rows)
    seconds = Roofline(model, device, overhead_s=0.0).seconds(shape)
    assert (seconds >= model.step_bytes(shape) / device.bandwidth_Bps).all()
    assert (seconds >= model.step_flops(shape) / device.peak_flops("bf16")).all()


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(MODELS),
    rows=st.integers(1, 600),
    context=st.integers(0, 300_000),
    iterations=st.integers(1, 5000),
)
def test_durations_are_the_seconds_of_each_iteration(name, rows, context, iterations):
    cost = roofline(name)
    shape = StepShape(0, 0, 0, 0, rows, context, context)
    base, slope, count = cost.durations(shape, iterations)
    assert 1 <= count <= iterations
    steps = sorted({0, count // 3, count - 1})
    expected = [cost.seconds(later(shape, i)) for i in steps]
    assert np.allclose([base + slope * i for i in steps], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gemma-3-12b"])
def test_the_affine_piece_ends_where_a_window_fills(name):
    model = catalogue.model(name)
    window = min(read.window for _, read in model.attended().reads if read.window)
    shape = decode(4, window - 11)
    base, slope, count = roofline(name).durations(shape, 100)
    assert count == 11
    following = roofline(name).durations(later(shape, count), 100)
    assert 0 < following[1] < slope
    assert following[2] == 100
    assert following[0] > base


def test_tensor_parallel_pays_an_all_reduce_and_saves_the_rest():
    one, four = roofline("llama-3.1-70b", tensor_parallel=4), roofline("llama-3.1-70b", tensor_parallel=8)
    shape = decode(8, 500)
    assert one.seconds(shape) / 2 < four.seconds(shape) < one.seconds(shape)
    model, device = catalogue.model("llama-3.1-70b"), catalogue.device("h100-sxm")
    tokens = 4096
    prompt = StepShape(1, tokens, causal_pairs(tokens), 0, 0, 0, tokens)
    compute = model.step_flops(prompt, tensor_parallel=4) / (0.7 * device.peak_flops("bf16"))
    reduce = 2 * 80 * 2 * (3 / 4) * tokens * 8192 * 2 / device.interconnect_Bps
    assert one.seconds(prompt) == pytest.approx(compute + reduce + 0.001, rel=0.01)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"compute_efficiency": 0.0}, "roofline.compute_efficiency"),
        ({"bandwidth_efficiency": 1.2}, "roofline.bandwidth_efficiency"),
        ({"overhead_s": -1.0}, "roofline.overhead_s"),
        ({"overhead_s": float("nan")}, "roofline.overhead_s"),
    ],
)
def test_refuses_impossible_options(options, place):
    with pytest.raises(InputError) as refused:
        roofline(**options)
    assert refused.value.place == place


def test_an_empty_step_has_no_duration():
    with pytest.raises(InputError, match="step time must be > 0"):
        roofline().durations(StepShape(0, 0, 0, 0, 0, 0, 0), 1)


def test_it_says_that_it_is_not_calibrated():
    cost = roofline()
    assert not cost.calibrated
    assert "uncalibrated" in cost.name
    assert cost.extrapolated(decode(1, 10)) is False
    assert not cost.extrapolated(decode(np.array([1, 2]), 10)).any()


def test_weights_in_eight_bits_multiply_in_eight_bits_where_the_device_can():
    import dataclasses

    model = dataclasses.replace(catalogue.model("llama-3.1-8b"), weight_dtype="fp8")
    shape = StepShape(1, 4096, causal_pairs(4096), 0, 0, 0, 4096)
    hopper = Roofline(model, catalogue.device("h100-sxm"), overhead_s=0.0).seconds(shape)
    assert hopper < 0.6 * roofline("llama-3.1-8b", overhead_s=0.0).seconds(shape)
    ampere = Roofline(model, catalogue.device("a100-80gb"), overhead_s=0.0).seconds(shape)
    assert ampere == pytest.approx(roofline("llama-3.1-8b", "a100-80gb", overhead_s=0.0).seconds(shape))


def test_an_affine_piece_ends_where_attention_turns_from_bytes_to_flops():
    """Latent attention computes and reads at nearly the same pace; here it is made to cross."""
    import dataclasses

    model, device = catalogue.model("deepseek-v3"), catalogue.device("h100-sxm")
    device = dataclasses.replace(device, flops={"fp8": 9e14, "bf16": 9e14})
    prompt = StepShape(1, 2000, 0, 60_000, 8, 8 * 1000, 1000)
    for efficiency in np.linspace(0.2, 1.0, 9):
        cost = Roofline(model, device, compute_efficiency=float(efficiency))
        base, slope, count = cost.durations(prompt, 100_000)
        steps = sorted({0, count // 2, count - 1})
        expected = [cost.seconds(later(prompt, i)) for i in steps]
        assert np.allclose([base + slope * i for i in steps], expected, rtol=1e-9)
        if count < 100_000:
            after = cost.durations(later(prompt, count), 10)
            assert after[1] > slope
            break
    else:
        pytest.fail("no efficiency at which the two cross")


def test_the_memory_of_token_terms_is_bounded():
    cost = roofline("llama-3.1-8b")
    for tokens in range(1, 66_000):
        cost.durations(StepShape(0, 0, 0, 0, tokens, 0, 0), 1)
    assert len(cost._linear) <= 65_536


@pytest.mark.parametrize(
    ("name", "device", "split", "quantised", "rows"),
    [
        ("gpt-oss-120b", "h100-sxm", 1, None, 2003),
        ("qwen3-30b-a3b", "h100-sxm", 1, None, 2934),
        ("mixtral-8x7b", "h100-sxm", 1, None, 1079),
        ("deepseek-v3", "b200", 8, None, 4361),
        ("llama-3.1-70b", "h100-sxm", 1, "int4", 81),
        ("llama-2-7b", "a100-80gb", 1, None, 154),
    ],
)
def test_the_batch_at_which_a_models_own_flops_and_bytes_cross(name, device, split, quantised, rows):
    """Worked out by hand from each model's own matrices: a mixture of experts reads nearly all of them for any batch."""
    model = catalogue.model(name)
    model = model if quantised is None else replace(model, weight_dtype=quantised)
    assert ridge_batch(model, catalogue.device(device), split) == pytest.approx(rows, rel=5e-3)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "gemma-3-1b"])
def test_below_that_batch_reading_takes_longer_and_from_it_on_computing(name):
    model, device = catalogue.model(name), catalogue.device("h100-sxm")
    rows = ridge_batch(model, device)
    assert rows is not None
    for batch, computes in ((1, False), (rows - 1, False), (rows, True), (100 * rows, True)):
        shape = StepShape(0, 0, 0, 0, batch, 0, 1)
        times = model.linear_flops(shape) / peak_flops(model, device), model.linear_bytes(shape) / device.bandwidth_Bps
        assert (times[0] >= times[1]) is computes


def test_a_ridge_that_no_batch_reaches():
    device = replace(catalogue.device("h100-sxm"), bandwidth_Bps=1.0)
    assert ridge_batch(catalogue.model("llama-3.1-8b"), device) is None
