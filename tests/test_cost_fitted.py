"""The fitted form: closed sums, monotone beyond its data, bounded work, and the domain it admits to."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from counting import opcodes
from hypothesis import given, settings
from hypothesis import strategies as st

from servecast.batch import StepShape, causal_pairs
from servecast.cost.fitted import FittedCost, Window, smooth_maximum
from servecast.cost.model import Domain
from servecast.errors import InputError

PLAIN = FittedCost(0.0104, 3.95e-5, 1.22e-9, 6.1e-8, 4.2e-5, 6.5e-4)
WINDOWED = FittedCost(0.0104, 3.95e-5, 1.22e-9, 6.1e-8, 4.2e-5, 6.5e-4, windows=(Window(0.5, 128), Window(0.25, 1024)))
EXPERTS = FittedCost(0.0104, 3.95e-5, 1.22e-9, 6.1e-8, 4.2e-5, 6.5e-4, expert_share=0.9, expert_untouched=0.9375)
ALL = pytest.mark.parametrize("cost", [PLAIN, WINDOWED, EXPERTS], ids=["plain", "windowed", "experts"])

decode_shapes = st.builds(
    lambda rows, context: StepShape(0, 0, 0, 0, rows, context, context), st.integers(1, 600), st.integers(0, 3_000_000)
)


@st.composite
def mixed_shapes(draw):
    prompts = draw(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 9000)), min_size=1, max_size=8))
    rows, context = draw(st.integers(0, 300)), draw(st.integers(0, 900_000))
    return StepShape(
        len(prompts),
        sum(new for new, _ in prompts),
        sum(causal_pairs(new, cached) for new, cached in prompts),
        sum(cached for _, cached in prompts),
        rows,
        context if rows else 0,
        context,
    )


def later(shape, i):
    return shape._replace(
        decode_context=shape.decode_context + i * shape.decode_rows, max_context=shape.max_context + i
    )


def array_of(*shapes):
    return StepShape(*(np.array(column) for column in zip(*shapes, strict=True)))


def test_the_form_term_by_term():
    shape = StepShape(2, 300, 40_000, 70, 5, 6_000, 2_000)
    expected = (
        6.5e-4 + (0.0104**5 + (3.95e-5 * 305) ** 5) ** 0.2 + 1.22e-9 * 40_000 + 6.1e-8 * (6_000 + 70) + 4.2e-5 * (2 + 5)
    )
    assert PLAIN.seconds(shape) == pytest.approx(expected, rel=1e-12)


@ALL
@settings(max_examples=150, deadline=None)
@given(shape=decode_shapes, iterations=st.integers(1, 5000))
def test_durations_are_the_seconds_of_each_iteration(cost, shape, iterations):
    base, slope, count = cost.durations(shape, iterations)
    assert 1 <= count <= iterations
    steps = sorted({0, 1 % count, count // 2, count - 1})
    expected = cost.seconds(array_of(*(later(shape, i) for i in steps)))
    assert np.allclose([base + slope * i for i in steps], expected, rtol=0, atol=1e-12)


@ALL
@settings(max_examples=150, deadline=None)
@given(shape=mixed_shapes())
def test_scalars_and_arrays_agree_on_mixed_steps(cost, shape):
    seconds = cost.seconds(shape)
    assert cost.durations(shape, 1)[0] == seconds
    assert cost.seconds(array_of(shape, shape)) == pytest.approx([seconds, seconds], abs=1e-12)


@ALL
@settings(max_examples=150, deadline=None)
@given(shape=mixed_shapes(), more=st.integers(1, 4000))
def test_more_work_never_takes_less_time(cost, shape, more):
    """CAL-01, CAL-09, CAL-11: monotone in tokens, pairs, context and rows, far beyond any data."""
    seconds = cost.seconds(shape)
    cached = shape._replace(
        prefill_context=shape.prefill_context + more * shape.prefill_rows,
        prefill_pairs=shape.prefill_pairs + more * shape.prefill_tokens,
    )
    for larger in (
        shape._replace(decode_context=shape.decode_context + more),
        shape._replace(decode_rows=shape.decode_rows + more),
        shape._replace(prefill_rows=shape.prefill_rows + more),
        cached,
    ):
        assert cost.seconds(larger) >= seconds * (1 - 1e-14)
    longer = shape._replace(
        prefill_tokens=shape.prefill_tokens + more,
        prefill_pairs=shape.prefill_pairs + causal_pairs(more, shape.prefill_context + shape.prefill_tokens),
    )
    assert cost.seconds(longer) > seconds


def test_a_window_ends_the_affine_piece_when_the_mean_row_fills_it():
    shape = StepShape(0, 0, 0, 0, 3, 300, 110)  # mean 100; a window of 128 reads at most 127
    base, slope, count = WINDOWED.durations(shape, 1000)
    assert count == 28  # means 100 .. 127
    assert slope == pytest.approx(6.1e-8 * 3)
    following, flatter, rest = WINDOWED.durations(later(shape, count), 1000)
    assert flatter == pytest.approx(6.1e-8 * 3 * 0.5)
    assert rest == 1024 - 128
    assert following == pytest.approx(base + slope * 27 + flatter, abs=1e-12)


def test_windows_cut_a_fresh_prompt_exactly():
    half = FittedCost(0.0, 1e-9, 1e-6, 0.0, 0.0, 1e-9, windows=(Window(1.0, 100),))
    prompt = StepShape(1, 250, causal_pairs(250), 0, 0, 0, 250)
    seen = sum(min(i, 100) for i in range(1, 251))
    assert half.seconds(prompt) == pytest.approx(1e-6 * seen + 250e-9 + 1e-9, rel=1e-9)


def test_a_mixture_of_experts_reads_more_weights_as_more_tokens_touch_more_experts():
    one, many = EXPERTS.weights_read(1), EXPERTS.weights_read(1000)
    assert one == pytest.approx(0.1 + 0.9 * 0.0625)  # dense part, and 1 of 16 experts
    assert many == pytest.approx(1.0)


def test_linear_times_are_predicted_linearly_between_and_beyond():
    """CAL-05: 1,024 tokens in 10 ms and 2,048 in 20 ms are 15 ms for 1,536, not 15.85."""
    linear = FittedCost(0.0, 10e-3 / 1024, 0.0, 0.0, 0.0, 0.0)
    prompts = array_of(*(StepShape(1, n, n, 0, 0, 0, n) for n in (1024, 1536, 2048, 8192)))
    assert linear.seconds(prompts) == pytest.approx([0.010, 0.015, 0.020, 0.080], rel=1e-12)


def test_decode_gets_slower_with_each_larger_batch():
    """CAL-11: no plateau from some batch size on."""
    batches = array_of(*(StepShape(0, 0, 0, 0, b, b * 1032, 1032) for b in (32, 64, 128, 256)))
    assert (np.diff(PLAIN.seconds(batches)) > 0).all()


@given(st.floats(1e-9, 1e3), st.floats(0, 1e3), st.floats(1, 30))
def test_smooth_maximum_lies_between_the_maximum_and_its_bound(a, b, p):
    value = float(smooth_maximum(a, b, p))
    assert max(a, b) * (1 - 1e-12) <= value <= max(a, b) * 2 ** (1 / p) * (1 + 1e-12)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["weight_read_s", "token_s", "pair_s", "context_s", "row_s", "step_s"])
def test_refuses_negative_and_infinite_coefficients(name, value):
    """CAL-14."""
    good = {"weight_read_s": 1.0, "token_s": 1.0, "pair_s": 1.0, "context_s": 1.0, "row_s": 1.0, "step_s": 1.0}
    with pytest.raises(InputError, match=name):
        FittedCost(**{**good, name: value})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"sharpness": 0.5}, "sharpness"),
        ({"expert_share": 1.5}, "expert_share"),
        ({"sharpness": math.nan}, "sharpness"),
    ],
)
def test_refuses_impossible_forms(options, match):
    with pytest.raises(InputError, match=match):
        FittedCost(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, **options)


def test_a_step_must_take_time():
    """LIV-05: all coefficients 0, or nothing in the step."""
    with pytest.raises(InputError, match="step time must be > 0"):
        FittedCost(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    with pytest.raises(InputError, match="step time must be > 0"):
        PLAIN.durations(StepShape(0, 0, 0, 0, 0, 0, 0), 1)


def test_only_what_is_scheduled_is_priced():
    """MET-21: the largest context held by a waiting request changes nothing."""
    assert PLAIN.seconds(StepShape(0, 0, 0, 0, 1, 500, 500)) == PLAIN.seconds(StepShape(0, 0, 0, 0, 1, 500, 90_000))


def test_the_hot_path_does_bounded_work():
    """One prediction for any number of rows and iterations: the same few operations, once a token count is known."""
    cost = pickle.loads(pickle.dumps(PLAIN))
    decode, mixed = StepShape(0, 0, 0, 0, 64, 64_000, 1200), StepShape(2, 2000, 1_001_000, 0, 64, 64_000, 1200)
    few = StepShape(0, 0, 0, 0, 1, 10, 10)
    for shape in (decode, mixed, few):
        cost.durations(shape, 1)
    work = {
        name: opcodes(lambda shape=shape, n=n: cost.durations(shape, n))
        for name, shape, n in (("decode", decode, 100), ("few", few, 1), ("long", decode, 10**6), ("mixed", mixed, 1))
    }
    assert work["decode"] == work["few"] == work["long"]
    assert work["mixed"] < 1.3 * work["decode"]
    assert work["decode"] < 100


def test_the_memory_of_token_terms_is_bounded():
    cost = FittedCost(0.0104, 3.95e-5, 1.22e-9, 6.1e-8, 4.2e-5, 6.5e-4)
    for tokens in range(1, 70_000):
        cost.durations(StepShape(0, 0, 0, 0, tokens, 0, 0), 1)
    assert len(cost._terms) <= 65_536


class TestDomain:
    measured = array_of(
        StepShape(0, 0, 0, 0, 1, 1000, 1000),
        StepShape(0, 0, 0, 0, 13, 13_000, 1100),
        StepShape(1, 900, 405_450, 0, 2, 2000, 1000),
        StepShape(2, 2000, 1_001_000, 0, 4, 4000, 1000),
    )

    def test_inside_and_outside(self):
        domain = Domain.of(self.measured)
        shapes = array_of(
            StepShape(0, 0, 0, 0, 5, 6000, 1050),
            StepShape(0, 0, 0, 0, 27, 13_000, 1050),
            StepShape(1, 1000, 500_500, 0, 3, 3000, 1000),
            StepShape(1, 1000, 500_500, 0, 3, 3000, 4000),
            StepShape(1, 1000, 500_500, 0, 0, 0, 1000),
        )
        assert domain.extrapolated(shapes).tolist() == [False, True, False, True, True]
        assert domain.factors(shapes)[:4] == pytest.approx([1, 28 / 14, 1, 4001 / 1001])
        assert domain.factors(shapes)[4] == math.inf

    def test_says_what_and_by_how_much(self):
        cost = FittedCost(0.01, 1e-5, 0, 1e-8, 0, 0, domain=Domain.of(self.measured))
        assert cost.extrapolation(StepShape(0, 0, 0, 0, 5, 6000, 1050)) == ("", 1.0)
        assert cost.extrapolation(StepShape(0, 0, 0, 0, 26, 26_000, 1050)) == (
            "decode_context",
            pytest.approx(2, rel=1e-3),
        )
        assert cost.extrapolation(StepShape(1, 10, 55, 0, 0, 0, 10)) == ("regime", math.inf)
        assert cost.extrapolated(StepShape(0, 0, 0, 0, 26, 26_000, 1050)) is True

    def test_a_column_that_was_not_measured_does_not_bound(self):
        domain = Domain.of(self.measured, ("decode_rows",))
        assert domain.extrapolated(StepShape(0, 0, 0, 0, 5, 10**9, 10**9)) is False
        assert domain.extrapolated(StepShape(0, 0, 0, 0, 14, 0, 0)) is True
