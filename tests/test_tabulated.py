"""Curves and the cost model put together of them: exact where measured, straight between, affine in pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servecast.batch import StepShape
from servecast.cost.curves import Curve, Surface, curve, left_out, surface
from servecast.cost.model import Domain
from servecast.cost.tabulated import TabulatedCost
from servecast.errors import InputError


def decode_step(rows, context):
    return StepShape(0, 0, 0, 0, rows, context, 1 + context // max(rows, 1))


def prompt_step(tokens, cached=0, rows=0, context=0, prompts=1):
    pairs = prompts * (tokens * cached + tokens * (tokens + 1) // 2)
    return StepShape(prompts, prompts * tokens, pairs, prompts * cached, rows, context, cached + tokens)


@pytest.fixture
def cost():
    return TabulatedCost(
        tokens=curve([(1, 0.010), (16, 0.011), (1024, 0.040)]),
        sampled=curve([(1, 0.001), (64, 0.002)]),
        decode=surface(
            [(1, 16, 0.001), (1, 1024, 0.002), (1, 4096, 0.003), (4, 16, 0.001), (4, 1024, 0.004), (4, 2048, 0.007)]
        ),
        prefill=surface([(16, 0, 0.0005), (16, 8.5, 0.001), (1024, 0, 0.0005), (1024, 512.5, 0.005)]),
        prefill_by="tokens",
        mixed=surface([(1, 16, 0.001), (1, 1024, 0.006)]),
        mixed_tile_s=1e-6,
        step_s=0.0005,
        row_s=1e-5,
    )


class TestCurve:
    def test_straight_between_knots_and_not_on_a_logarithm(self):
        assert curve([(1024, 0.010), (2048, 0.020)]).at(1536) == pytest.approx(0.015)

    def test_exact_at_knots(self):
        points = [(1, 0.3), (2, 0.1), (5, 0.7)]
        assert [curve(points).at(x) for x, _ in points] == [y for _, y in points]

    def test_below_it_stays_and_beyond_it_goes_on(self):
        line = curve([(10, 1.0), (20, 2.0)])
        assert (line.at(1), line.at(40)) == (1.0, pytest.approx(4.0))

    def test_one_point_is_a_constant(self):
        assert [curve([(4, 2.0)]).at(x) for x in (1, 4, 9)] == [2.0] * 3

    def test_at_least_is_nowhere_below_not_even_beyond(self):
        raised = curve([(1, 2.0), (2, 1.0), (4, 3.0)]).at_least(lambda x: 2.0 * x)
        assert raised.seconds[:3] == (2.0, 4.0, 8.0)
        assert all(raised.at(x) >= 2 * x - 1e-9 for x in (1, 1.5, 3, 5, 9, 100, 1e6))

    @given(st.lists(st.floats(0.1, 10), min_size=3, max_size=30), st.sampled_from([0.01, 0.1]))
    def test_thinned_stays_within_its_tolerance(self, values, tolerance):
        whole = curve(enumerate(values))
        thin = whole.thinned(tolerance)
        assert set(thin.knots) <= set(whole.knots)
        for x, y in zip(whole.knots, whole.seconds, strict=True):
            assert thin.at(x) == pytest.approx(y, rel=tolerance * 1.001)

    def test_a_line_is_thinned_to_its_ends(self):
        assert curve([(x, 3.0 * x) for x in range(1, 20)]).thinned(0.001).knots == (1, 19)

    def test_left_out_is_the_line_between_the_neighbours(self):
        assert left_out(curve([(0, 1.0), (1, 4.0), (2, 3.0)])) == [pytest.approx(-0.5)]
        assert left_out(curve([(0, 1.0), (1, 4.0)])) == []

    @pytest.mark.parametrize(
        ("knots", "seconds", "problem"),
        [
            ((), (), "as many"),
            ((1.0,), (1.0, 2.0), "as many"),
            ((2.0, 1.0), (1.0, 1.0), "rise"),
            ((-1.0, 1.0), (1.0, 1.0), "rise"),
            ((1.0,), (-1.0,), "at least 0"),
            ((1.0,), (float("nan"),), "finite"),
        ],
    )
    def test_nonsense_is_refused(self, knots, seconds, problem):
        with pytest.raises(InputError, match=problem):
            Curve(knots, seconds)


class TestSurface:
    def test_exact_for_what_is_linear_in_both(self):
        def plane(n, c):
            return 1 + 2 * n + 3 * c + 0.5 * n * c

        drawn = surface([(n, c, plane(n, c)) for n in (1, 4, 16) for c in (0, 10, 100)])
        for n, c in [(1, 0), (2, 5), (9, 77), (16, 100), (3, 10)]:
            assert drawn.at(n, c) == pytest.approx(plane(n, c))
            assert drawn.curve(n).at(c) == pytest.approx(plane(n, c))

    def test_beyond_the_last_curve_work_is_proportional(self):
        drawn = surface([(1, 1, 1.0), (2, 1, 1.5)])
        assert drawn.at(8, 1) == pytest.approx(6.0)
        assert drawn.at(0.5, 1) == 1.0

    def test_a_curve_on_the_grid_keeps_its_own_knots(self):
        drawn = surface([(1, 1, 1.0), (1, 5, 2.0), (2, 3, 1.0), (2, 9, 2.0)])
        assert drawn.curve(2).knots == (3, 9)
        assert drawn.curve(1.5).knots == (1, 3, 5, 9)

    @pytest.mark.parametrize("outer", [(), (1.0, 1.0), (0.0, 1.0)])
    def test_nonsense_is_refused(self, outer):
        with pytest.raises(InputError, match="curves"):
            Surface(outer, tuple(Curve((1.0,), (1.0,)) for _ in outer))


class TestTabulatedCost:
    def test_a_decode_step_is_the_sum_of_its_parts(self, cost):
        # 1 row of 1,024: tokens 10 ms, lm_head and sampler 1 ms, attention 2 ms, host 0.5 ms and 10 us
        assert cost.seconds(decode_step(1, 1024)) == pytest.approx(0.010 + 0.001 + 0.002 + 0.0005 + 1e-5)

    def test_a_prompt_is_the_sum_of_its_parts(self, cost):
        assert cost.seconds(prompt_step(1024)) == pytest.approx(0.040 + 0.001 + 0.005 + 0.0005 + 1e-5)

    def test_a_mixed_step_takes_the_joint_attention(self, cost):
        alone = cost.seconds(prompt_step(512))
        both = cost.seconds(prompt_step(512, rows=1, context=1024))
        token, row = (0.040 - 0.011) / 1008, 0.001 / 63 + 1e-5
        assert both - alone == pytest.approx(token + row + 0.006 + 1e-6 * 512)

    def test_equal_prompts_have_their_own_length(self, cost):
        one = cost.seconds(prompt_step(256, rows=1, context=16)) - cost.seconds(prompt_step(256))
        two = cost.seconds(prompt_step(256, rows=1, context=16, prompts=2)) - cost.seconds(prompt_step(256, prompts=2))
        assert one == pytest.approx(two)  # the tile term sees 256 tokens, not 512

    def test_by_pairs_per_token_is_the_same_surface_turned(self):
        def priced(by, points):
            shared = {"tokens": curve([(1, 0.01)]), "sampled": curve([(1, 0.0)])}
            decode = surface([(1, 1, 0.001)])
            return TabulatedCost(**shared, decode=decode, mixed=decode, prefill=surface(points), prefill_by=by)

        def taken(tokens, pairs):
            return 1e-4 + 1e-7 * tokens + 1e-9 * tokens * pairs

        grid = [(float(t), p) for t in (0.0, 64.0, 512.0) for p in (1.0, 64.0, 512.0)]
        by_pairs = priced("pairs_per_token", [(p, t, taken(t, p)) for t, p in grid])
        by_tokens = priced("tokens", [(t, p, taken(t, p)) for t, p in grid if t])
        for shape in (prompt_step(64), prompt_step(128, prompts=3), prompt_step(100, cached=300)):
            assert by_pairs.seconds(shape) == pytest.approx(by_tokens.seconds(shape))

    @given(st.integers(1, 200), st.integers(1, 500_000), st.integers(1, 5000))
    def test_durations_are_the_steps_one_by_one(self, rows, context, iterations):
        cost = TabulatedCost(
            tokens=curve([(1, 0.01), (512, 0.02)]),
            sampled=curve([(1, 0.001)]),
            decode=surface([(n, c, 1e-4 + 1e-8 * n * c**1.1) for n in (1, 8, 64) for c in (16, 256, 1024, 9000)]),
            prefill=surface([(1, 1, 1.0)]),
            prefill_by="tokens",
            mixed=surface([(1, 1, 0.0)]),
        )
        base, slope, count = cost.durations(decode_step(rows, context), iterations)
        assert 1 <= count <= iterations
        for i in {0, 1, count // 2, count - 1}:
            if i < count:
                alone = cost.seconds(decode_step(rows, context + i * rows))
                assert base + slope * i == pytest.approx(alone, rel=1e-9)

    def test_pieces_end_only_at_knots(self, cost):
        assert cost.durations(decode_step(1, 16), 10_000)[2] == 1024 - 16 + 1
        assert cost.durations(decode_step(1, 1024), 10_000)[2] == 4096 - 1024 + 1
        assert cost.durations(decode_step(1, 5000), 10_000)[2] == 10_000

    def test_a_longer_context_never_costs_less(self, cost):
        contexts = np.arange(4, 40_000, 7)
        zeros = np.zeros_like(contexts)
        taken = cost.seconds(StepShape(zeros, zeros, zeros, zeros, zeros + 4, contexts, contexts))
        assert (np.diff(taken) >= -1e-15).all()

    def test_arrays_are_their_rows(self, cost):
        shapes = [decode_step(1, 16), decode_step(7, 900), prompt_step(300), prompt_step(77, rows=3, context=4000)]
        together = StepShape(*(np.array(column) for column in zip(*shapes, strict=True)))
        assert cost.seconds(together).tolist() == [cost.seconds(shape) for shape in shapes]

    def test_beyond_the_tokens_time_is_proportional(self, cost):
        assert cost.seconds(prompt_step(2048)) - cost.seconds(prompt_step(1024)) > 0.040

    def test_no_step_of_nothing(self, cost):
        with pytest.raises(InputError, match="step time must be > 0"):
            cost.seconds(decode_step(0, 0))

    def test_no_overhead_below_0(self, cost):
        with pytest.raises(InputError, match="step_s"):
            TabulatedCost(cost.tokens, cost.sampled, cost.decode, cost.prefill, "tokens", cost.mixed, step_s=-1.0)

    def test_no_tokens_for_nothing(self, cost):
        with pytest.raises(InputError, match="takes no time"):
            TabulatedCost(curve([(1, 0.0)]), curve([(1, 0.0)]), cost.decode, cost.prefill, "tokens", cost.mixed)

    def test_memory_is_bounded(self, cost, monkeypatch):
        monkeypatch.setattr("servecast.cost.model._REMEMBERED", 4)
        for rows in range(1, 30):
            cost.seconds(decode_step(rows, 100 * rows))
            cost.seconds(prompt_step(10 * rows, rows=rows, context=rows))
        assert max(map(len, (cost._linear, cost._decoding, cost._mixing))) <= 4

    def test_it_says_where_it_was_measured(self, cost):
        assert cost.calibrated
        boxed = TabulatedCost(
            cost.tokens, cost.sampled, cost.decode, cost.prefill, "tokens", cost.mixed,
            domain=Domain({"decode": {"decode_rows": (1, 4)}}),
        )  # fmt: skip
        assert not boxed.extrapolated(decode_step(4, 99))
        assert boxed.extrapolation(decode_step(9, 99)).field == "decode_rows"
