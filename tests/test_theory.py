"""Queues whose waits are known in closed form, and Little's law."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from serving import StepTime, columns, latencies, of_size, serve

from servecast.policies import POLICIES, Continuous
from servecast.workload.clients import OpenLoop, RequestColumns

ONE_AT_A_TIME = [of_size(kind, 1, budget=10**9) for kind in POLICIES]
ids = list(POLICIES)


def poisson(rate, n, seed):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, n))


def confidence(waits, batches=40):
    """Mean and half-width of its 99.9 % interval, from batch means (waits are correlated)."""
    means = waits[: len(waits) // batches * batches].reshape(batches, -1).mean(axis=1)
    return means.mean(), stats.t.ppf(0.9995, batches - 1) * means.std(ddof=1) / np.sqrt(batches)


@pytest.mark.parametrize("policy", ONE_AT_A_TIME, ids=ids)
@pytest.mark.parametrize("load", [0.3, 0.7])
def test_m_d_1(policy, load):
    """Wait = rho D / (2 (1 - rho)) for Poisson arrivals and a service of one 10 ms step."""
    n, service = 20_000, 0.010
    client = OpenLoop(RequestColumns(poisson(load / service, n, 7), np.full(n, 10), np.ones(n, dtype=np.int64)))
    run = serve([], policy, client=client)
    mean, half = confidence(latencies(run)["queue"])
    expected = load * service / (2 * (1 - load))
    assert abs(mean - expected) < half
    assert half < 0.15 * expected


@pytest.mark.parametrize("policy", ONE_AT_A_TIME, ids=ids)
def test_m_m_1(policy):
    """Wait = rho / (mu - lambda) for exponential services: prompts of exponential length, priced by the token."""
    n, load, per_token, mean_tokens = 40_000, 0.6, 1e-6, 20_000
    prompts = np.ceil(np.random.default_rng(3).exponential(mean_tokens, n)).astype(np.int64)
    service = per_token * mean_tokens
    client = OpenLoop(RequestColumns(poisson(load / service, n, 11), prompts, np.ones(n, dtype=np.int64)))
    run = serve([], policy, cap=10**6, client=client, cost=StepTime(fixed=1e-12, per_token=per_token))
    mean, half = confidence(latencies(run)["queue"])
    expected = load / (1 / service - load / service)
    assert abs(mean - expected) < half
    assert half < 0.15 * expected


@pytest.mark.parametrize("policy", [of_size(kind, 4, 0.05, 64) for kind in POLICIES], ids=ids)
def test_littles_law(policy):
    """Mean rows held = rate x mean time from first scheduled to end. Closed batches hold a row until the batch ends."""
    rng = np.random.default_rng(5)
    n = 500
    run = serve(zip(poisson(20, n, 2), rng.integers(1, 50, n), rng.integers(1, 30, n), strict=True), policy)
    held = (run.decisions["slots"] * run.decisions["seconds"]).sum()
    served = (run.requests["finish_s"] - run.requests["scheduled_s"]).sum()
    if not policy.closed:
        assert held == pytest.approx(served, rel=1e-9)
    else:
        assert held > served
        at_end = serve(
            zip(poisson(20, n, 2), rng.integers(1, 50, n), rng.integers(1, 30, n), strict=True),
            replace(policy, respond="batch_end"),
        )
        held = (at_end.decisions["slots"] * at_end.decisions["seconds"]).sum()
        assert held == pytest.approx((at_end.requests["finish_s"] - at_end.requests["scheduled_s"]).sum(), rel=1e-9)


def test_twice_as_slow_is_twice_as_long():
    burst = [(0.0, 10 + i, 5 + i % 7) for i in range(50)]
    once, twice = (serve(burst, Continuous(8, 64), cost=StepTime(scale, scale / 100, scale / 1e4)) for scale in (1, 2))
    np.testing.assert_allclose(twice.requests["finish_s"], 2 * once.requests["finish_s"], rtol=1e-12)


def test_columns_of_requests_keep_their_order():
    assert [request.id for request in columns([(0, 1, 1), (0, 2, 1)])] == [0, 1]
