"""One contract for every executor: at least one iteration, at most those asked for, and the first to end at ``until``."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import Stepping, StepTime, columns, of_size, replayed, serve

from servecast.batch import Batch, StepShape, Tally
from servecast.errors import InputError
from servecast.executor import SAME_INSTANT_S, Affine, Measured, ModelExecutor, affine_end, first_to_end_at
from servecast.kvcache import BlockPool
from servecast.policies import POLICIES
from servecast.workload.clients import OpenLoop

bases = st.floats(1e-4, 1.0)
slopes = st.floats(0.0, 1e-3)


def decode(iterations, rows=4, context=100):
    shape = StepShape(0, 0, 0, 0, rows, context, context)
    return Batch(shape, iterations, [], 1, Tally(0, rows, rows, 0, 0, 0, 0, 0), True, lambda batch: iter(()))


class Playback:
    """A device run played back: the next durations come from a list."""

    def __init__(self, seconds):
        self.seconds = list(seconds)

    def run(self, batch, until=math.inf):
        taken, elapsed = [], 0.0
        while len(taken) < batch.iterations:
            taken.append(self.seconds.pop(0))
            elapsed += taken[-1]
            if elapsed >= until - SAME_INSTANT_S:
                break
        return Measured(taken)


@given(bases, slopes, st.floats(1e-6, 50.0))
def test_first_to_end_at_is_what_counting_finds(base, slope, time):
    n = first_to_end_at(base, slope, time)
    assert affine_end(base, slope, n) >= time - SAME_INSTANT_S
    assert n == 1 or affine_end(base, slope, n - 1) < time - SAME_INSTANT_S


@given(bases, slopes, st.integers(1, 500))
def test_an_iteration_that_ends_exactly_then_is_the_one(base, slope, n):
    assert first_to_end_at(base, slope, affine_end(base, slope, n)) == n


@given(bases, slopes, st.integers(1, 200), st.floats(0.0, 300.0))
def test_affine_and_measured_agree(base, slope, count, time):
    affine = Affine(base, slope, count)
    measured = Measured([base + slope * i for i in range(count)])
    assert affine.total == pytest.approx(measured.total, rel=1e-12)
    assert affine.count == measured.count
    assert abs(affine.ended_by(time) - measured.ended_by(time)) <= (
        1 if np.isclose(affine_end(base, slope, affine.ended_by(time)), time, rtol=1e-9) else 0
    )
    assert sum(piece.count for piece in measured.pieces()) == sum(piece.count for piece in affine.pieces())


@given(st.integers(1, 300), st.floats(1e-6, 5.0), st.floats(0.0, 1e-4), st.floats(0.5, 2.0))
def test_contract_of_the_model(iterations, until, per_context, scale):
    executor = ModelExecutor(StepTime(0.01, 0.0, per_context), step_time_scale=scale)
    durations = executor.run(decode(iterations), until)
    assert 1 <= durations.count <= iterations
    assert durations.count == iterations or durations.total >= until - SAME_INSTANT_S
    assert durations.ended_by(until - 2 * SAME_INSTANT_S) <= durations.count
    stepped = Stepping(executor).run(decode(iterations), until)
    assert stepped.count == 1 and stepped.total == durations.base


@given(st.lists(st.floats(0.001, 0.1), min_size=300, max_size=300), st.integers(1, 300), st.floats(1e-6, 5.0))
def test_contract_of_a_playback(seconds, iterations, until):
    durations = Playback(seconds).run(decode(iterations), until)
    assert 1 <= durations.count <= iterations
    assert durations.count == iterations or durations.total >= until - SAME_INSTANT_S
    assert durations.count == 1 or sum(durations.seconds[:-1]) < until - SAME_INSTANT_S


@pytest.mark.parametrize("policy", [of_size(kind, 3, 0.02, 64) for kind in POLICIES], ids=list(POLICIES))
@pytest.mark.parametrize("horizon_s", [math.inf, 0.31])
def test_a_run_played_back_is_that_run(policy, horizon_s):
    """Durations as measured, one by one, give the run that the model gave, and a log with a row per iteration."""
    requests = [(0.013 * i, 5 + 11 * i % 40, 1 + 7 * i % 30) for i in range(40)]
    cost = StepTime(0.01, 1e-4, 1e-6)
    modelled = serve(requests, policy, cap=20, cost=cost, stepped=True, restart_s=0.05)
    played = replayed(
        OpenLoop(columns(requests)), policy, Playback(modelled.decisions["seconds"]), BlockPool(20, 16),
        max_model_len=320, restart_s=0.05, horizon_s=horizon_s,
    )  # fmt: skip
    again = serve(requests, policy, cap=20, cost=cost, stepped=True, restart_s=0.05, horizon_s=horizon_s)
    for name in ("first_token_s", "finish_s", "scheduled_s"):
        np.testing.assert_allclose(played.requests[name], again.requests[name], rtol=0, atol=1e-9)
    for name, column in again.decisions.items():
        if name not in ("finished", "kv_blocks", "waiting"):  # of a decision, not of each of its iterations
            np.testing.assert_allclose(played.decisions[name], column, rtol=0, atol=1e-9, err_msg=name)
    assert played.decisions["finished"].sum() == again.decisions["finished"].sum()


@pytest.mark.parametrize("base", [0.0, -1.0, math.nan, math.inf])
def test_LIV_05_a_model_without_time_is_refused(base):
    class Broken:
        def durations(self, shape, iterations):
            return base, 0.0, iterations

    with pytest.raises(InputError, match="step time must be > 0"):
        ModelExecutor(Broken()).run(decode(3))
