"""Arrival processes: rate and burstiness as asked, vLLM's rule for gamma gaps, and values that cannot be."""

from math import inf, nan

import numpy as np
import pytest
from scipy.special import gammainc

from servecast.errors import InputError
from servecast.workload.arrivals import Burst, Closed, Constant, Gamma, Poisson

PROCESSES = [
    Poisson(8.0),
    Poisson(8.0, rescale=True),
    Gamma(8.0, 0.1),
    Gamma(8.0, 5.0),
    Gamma(8.0, 0.5, rescale=True),
    Constant(8.0),
    Burst(),
    Poisson(inf),
]


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def gaps(times_s: np.ndarray) -> np.ndarray:
    return np.diff(times_s, prepend=0.0)


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_arrivals_never_decrease_are_finite_and_repeat_to_the_byte(process):
    times_s = process.times(5000, rng())
    assert times_s.dtype == np.float64
    assert times_s.shape == (5000,)
    assert np.isfinite(times_s).all()
    assert times_s[0] >= 0
    assert (np.diff(times_s) >= 0).all()
    assert times_s.tobytes() == process.times(5000, rng()).tobytes()
    assert process.times(0, rng()).shape == (0,)


@pytest.mark.parametrize(
    ("process", "cv"), [(Poisson(8.0), 1.0), (Gamma(8.0, 0.25), 2.0), (Gamma(8.0, 4.0), 0.5)], ids=str
)
def test_gaps_have_the_mean_and_the_cv_asked_for(process, cv):
    n = 200_000
    sample = gaps(process.times(n, rng()))
    standard_error = cv / np.sqrt(n)
    assert abs(sample.mean() * 8.0 - 1) < 4 * standard_error
    assert sample.std() / sample.mean() == pytest.approx(cv, rel=0.02)


def test_poisson_counts_per_second_have_variance_equal_to_mean():
    times_s = Poisson(8.0).times(160_000, rng())
    counts = np.bincount(times_s.astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.04)


def test_burstiness_one_is_exponential():
    """Kolmogorov-Smirnov distance to the exponential law, at the 0.1 % level."""
    n = 20_000
    for process in (Poisson(3.0), Gamma(3.0, 1.0)):
        law = np.sort(1 - np.exp(-3.0 * gaps(process.times(n, rng()))))
        distance = max(np.max(np.arange(1, n + 1) / n - law), np.max(law - np.arange(n) / n))
        assert distance < 1.95 / np.sqrt(n)


def test_wrk_09_gamma_with_cv_3_5_keeps_mean_and_cv_within_5_percent():
    process = Gamma(1000.0, burstiness=1 / 3.5**2)
    # 10,000 gaps of CV 3.5 have a mean that varies by 3.5 % and a CV that varies by 5 %: averaged over seeds
    samples = [gaps(process.times(10_000, rng(seed))) for seed in range(40)]
    assert np.mean([sample.mean() for sample in samples]) == pytest.approx(1e-3, rel=0.05)
    assert np.mean([sample.std() / sample.mean() for sample in samples]) == pytest.approx(3.5, rel=0.05)
    under_a_microsecond = gammainc(process.burstiness, 1e-6 * 1000 * process.burstiness)  # the law's own share: 48 %
    assert np.mean(samples[0] < 1e-6) == pytest.approx(under_a_microsecond, abs=0.02)
    assert np.mean(samples[0] < 1e-9) == pytest.approx(
        gammainc(process.burstiness, 1e-6 * process.burstiness), abs=0.02
    )


def test_rescaling_ends_at_n_over_rate_as_vllm_does():
    for process in (Poisson(8.0, rescale=True), Gamma(8.0, 0.3, rescale=True)):
        times_s = process.times(1000, rng())
        assert times_s[-1] == pytest.approx(125.0, rel=1e-12)
    plain = Gamma(8.0, 0.3).times(1000, rng())
    np.testing.assert_allclose(Gamma(8.0, 0.3, rescale=True).times(1000, rng()), plain * 125.0 / plain[-1], rtol=1e-12)


def test_the_rate_only_scales_the_sample():
    np.testing.assert_allclose(Poisson(4.0).times(100, rng()), 2 * Poisson(8.0).times(100, rng()), rtol=1e-12)


def test_wrk_13_constant_arrivals_reach_exactly_the_rate():
    times_s = Constant(200.0).times(2000, rng())
    assert times_s[0] == 1 / 200
    assert times_s[-1] == 10.0
    assert Constant(0.1).times(1_000_000, rng())[-1] == 1e7


def test_infinite_burstiness_is_constant_and_infinite_rate_is_a_burst():
    np.testing.assert_array_equal(Gamma(4.0, inf).times(8, rng()), Constant(4.0).times(8, rng()))
    for process in (Burst(), Poisson(inf), Gamma(inf, 0.5), Gamma(inf, inf), Constant(inf), Poisson(inf, rescale=True)):
        assert process.times(5, rng()).tolist() == [0.0] * 5


@pytest.mark.parametrize("rate_rps", [0, -1.0, nan, -inf])
@pytest.mark.parametrize("process", [Poisson, Gamma, Constant])
def test_a_rate_that_cannot_be_is_refused(process, rate_rps):
    with pytest.raises(ValueError, match=r"rate_rps is .* above 0"):
        process(rate_rps)


@pytest.mark.parametrize("burstiness", [0, -1, nan])
def test_a_burstiness_that_cannot_be_is_refused(burstiness):
    with pytest.raises(ValueError, match="burstiness is"):
        Gamma(1.0, burstiness)


@pytest.mark.parametrize(("users", "think_s"), [(0, 0.0), (-1, 0.0), (1, -0.1), (1, inf), (1, nan)])
def test_users_that_cannot_be_are_refused(users, think_s):
    with pytest.raises(ValueError, match=r"users is|think_s is"):
        Closed(users, think_s)


def test_extremes_are_an_error_and_not_a_nan():
    with pytest.raises(InputError, match=r"arrivals\.rescale: all 5 gaps drawn are 0"):
        Gamma(1.0, 1e-9, rescale=True).times(5, rng())
    with pytest.raises(InputError, match=r"arrivals\.rate_rps: 1e-320 puts an arrival beyond"):
        Constant(1e-320).times(5, rng())
