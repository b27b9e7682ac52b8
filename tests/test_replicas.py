"""Several replicas are one system: alone it is the engine's run, coalescing changes nothing, and nothing is lost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import Stepping, StepTime, columns, replayed
from test_laws import assert_same_run, policies, pools

from servecast.batch import StepShape
from servecast.engine import Server, replay
from servecast.executor import Measured, ModelExecutor
from servecast.kvcache import BlockPool, Growth
from servecast.policies import Continuous, Static
from servecast.requests import Request, Status
from servecast.routers import ROUTERS, LeastOutstanding, PrefixAffinity, RoundRobin
from servecast.workload.clients import ClosedLoop, HeldBack, LengthColumns, OpenLoop, RequestColumns
from servecast.workload.sessions import Sessions

routers = st.sampled_from(sorted(ROUTERS))
many = st.integers(1, 4)
CACHING = Continuous(4, 64, enable_prefix_caching=True)


@dataclass(frozen=True)
class Load:
    """Times on a grid on which step ends and arrivals tie, of ticks that are exact in binary or not."""

    kind: str
    table: list
    users: int
    think_s: float
    cost: StepTime

    def client(self):
        table = self.table
        if self.kind == "open":
            return OpenLoop(columns(table))
        if self.kind == "capped":
            return HeldBack(OpenLoop(columns(table)), self.users)
        if self.kind == "sessions":
            return turns(table, self.think_s)
        return ClosedLoop(self.users, self.think_s, LengthColumns(*np.array([row[1:] for row in table]).T))


@st.composite
def loads(draw):
    # Turns of sessions that fall together go in the order of their ids: rounding would decide, so they get exact times.
    kind = draw(st.sampled_from(["open", "capped", "closed", "sessions"]))
    tick = 2.0**-8 if kind == "sessions" or draw(st.booleans()) else 0.005
    ticks = st.integers(0, 60).map(lambda at: at * tick)
    table = draw(
        st.lists(st.tuples(ticks, st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=25).map(sorted)
    )
    cost = draw(st.sampled_from([StepTime(2 * tick), StepTime(2 * tick, tick / 64, tick / 4096)]))
    return Load(kind, table, draw(st.integers(1, 6)), tick * draw(st.sampled_from([0, 1, 20])), cost)


def system(
    client, policy, count, router="round_robin", stepped=False, cost=None, cap=1000, bs=16, growth=(), **options
):
    def server():
        executor, held = ModelExecutor(cost or StepTime()), Growth(bs, *growth)
        executor = Stepping(executor) if stepped else executor
        return Server(policy, executor, BlockPool(cap, bs, growth=held), held.longest(cap), restart_s=0.03)

    router = ROUTERS[router] if isinstance(router, str) else router
    return replay(client, [server() for _ in range(count)], router(), **options)


def turns(table, delays):
    """Sessions: requests (arrival_s, prompt, output) taken in turn by three conversations, with prefixes of their own."""
    plain = columns(table)
    names = [f"c{at % 3}" for at in range(len(plain))]
    late = [math.nan if at < 3 else delays for at in range(len(plain))]
    ids = tuple(
        tuple(1000 * (at % 3) + block for block in range(int(prompt) // 4))
        for at, prompt in enumerate(plain.prompt_tokens)
    )
    return Sessions(
        RequestColumns(
            plain.arrival_s, plain.prompt_tokens, plain.output_tokens, session=names, prefix_ids=ids,
            prefix_block_size=4, delay_s=np.array(late, float),
        )
    )  # fmt: skip


horizons = st.sampled_from([math.inf, 0.2])


class ToTheFirst:
    """Leaves every other replica idle."""

    def choose(self, request, now, loads, up):
        return 0


@settings(max_examples=200)
@given(loads(), policies, pools, horizons)
def test_arrivals_that_nobody_foresaw_change_nothing(load, policy, pool, horizon_s):
    """One replica knows the next arrival when it decides; one of two learns of it as it comes. They do the same."""
    system_of_two = system(load.client(), policy, 2, ToTheFirst, cost=load.cost, horizon_s=horizon_s, **pool)
    alone = system(load.client(), policy, 1, cost=load.cost, horizon_s=horizon_s, **pool).run
    [first, idle] = system_of_two.runs
    for name, column in alone.requests.items():
        np.testing.assert_allclose(first.requests[name], column, rtol=0, atol=1e-9, err_msg=name)
    for name, column in alone.decisions.items():
        np.testing.assert_allclose(first.decisions[name], column, rtol=0, atol=1e-9, err_msg=name)
    assert first.end_s == pytest.approx(alone.end_s, abs=1e-9)
    assert len(first.oom) == len(alone.oom)
    for name, column in alone.gaps.items():
        np.testing.assert_allclose(first.gaps[name], column, rtol=0, atol=1e-9, err_msg=name)
    assert not system_of_two.replica.any() and not len(idle.requests["id"]) and not len(idle.decisions["start_s"])


@settings(max_examples=400)
@given(loads(), policies, pools, routers, horizons, many)
def test_coalesced_is_stepped(load, policy, pool, router, horizon_s, count):
    coalesced, stepped = (
        system(load.client(), policy, count, router, stepped, load.cost, horizon_s=horizon_s, **pool)
        for stepped in (False, True)
    )
    np.testing.assert_array_equal(coalesced.replica, stepped.replica)
    for one, other in zip(coalesced.runs, stepped.runs, strict=True):
        assert_same_run(one, other)
    assert (stepped.run.decisions["iterations"] == 1).all()


@settings(max_examples=100)
@given(loads(), policies, pools, routers, many)
def test_every_request_is_served_once_and_books_close(load, policy, pool, router, count):
    made = system(load.client(), policy, count, router, cost=load.cost, **pool)
    ids = made.run.requests["id"]
    assert len(np.unique(ids)) == len(ids)
    if load.kind != "sessions":  # there, turns after a crash are cancelled
        assert len(ids) == len(load.table)
    assert set(made.replica.tolist()) <= set(range(count))
    done = made.run.requests["status"] == Status.COMPLETED
    assert (made.run.requests["generated_tokens"][done] == made.run.requests["output_limit"][done]).all()
    for run in made.runs:
        ends = run.decisions["start_s"] + run.decisions["seconds"]
        assert (run.decisions["start_s"][1:] >= ends[:-1] - 1e-9).all()
    again = system(load.client(), policy, count, router, cost=load.cost, **pool)
    assert all((made.run.decisions[name] == column).all() for name, column in again.run.decisions.items())


def test_round_robin_of_an_open_loop_is_so_many_engines():
    rng = np.random.default_rng(0)
    table = np.column_stack(
        [np.cumsum(rng.exponential(0.02, 400)), rng.integers(1, 300, 400), rng.integers(1, 100, 400)]
    )
    cost, policy = StepTime(0.01, 1e-4, 1e-6), Continuous(8, 256)
    made = system(OpenLoop(columns(table)), policy, 3, cost=cost)
    for at, run in enumerate(made.runs):
        own = replayed(
            OpenLoop(columns(table[at::3])), policy, ModelExecutor(cost), BlockPool(1000, 16), max_model_len=16000
        )
        np.testing.assert_allclose(run.requests["finish_s"], own.requests["finish_s"], rtol=0, atol=1e-9)
        assert len(run.decisions["start_s"]) == len(own.decisions["start_s"])
    assert made.run.end_s == max(run.end_s for run in made.runs)


def test_an_arrival_ends_only_the_run_of_the_replica_it_is_sent_to():
    # Two long answers at 0, one for each replica; the third request goes to replica 0 and cuts its run alone.
    table = [(0.0, 1, 50), (0.0, 1, 50), (0.105, 1, 1)]
    made = system(OpenLoop(columns(table)), Continuous(4, 64), 2)
    assert made.replica.tolist() == [0, 1, 0]
    assert made.runs[1].decisions["iterations"].tolist() == [1, 49]
    assert made.runs[0].decisions["iterations"].tolist() == [1, 10, 1, 38]
    assert made.run.requests["scheduled_s"][2] == pytest.approx(0.11, abs=1e-9)


def test_least_outstanding_sees_the_answers_of_its_own_instant():
    # Replica 0 answers at 0.02, just when the third request comes; replica 1 is still at work.
    table = [(0.0, 1, 2), (0.0, 1, 9), (0.02, 1, 1)]
    made = system(OpenLoop(columns(table)), Continuous(4, 64), 2, "least_outstanding")
    assert made.replica.tolist() == [0, 1, 0]
    later = system(
        OpenLoop(columns([*table[:2], (0.019, 1, 1), (0.019, 1, 1)])), Continuous(4, 64), 2, "least_outstanding"
    )
    assert later.replica.tolist() == [0, 1, 0, 1]


def test_least_kv_counts_the_blocks_of_the_iterations_so_far():
    # Both start with one block of 4; by 0.105 s the first row holds 1 + 10 tokens, the second, longer one, more.
    table = [(0.0, 8, 90), (0.0, 1, 90), (0.105, 1, 1)]
    for cap in (False, True):
        made = system(OpenLoop(columns(table)), Continuous(4, 64), 2, "least_kv", stepped=cap, bs=4)
        assert made.replica.tolist() == [0, 1, 1]
    # A tie of blocks goes to the fewer outstanding.
    tie = system(OpenLoop(columns([(0.0, 1, 9), (0.0, 1, 9)])), Static(8, 0.5), 2, "least_kv")
    assert tie.replica.tolist() == [0, 1]


def test_prefix_affinity_keeps_sessions_together_until_the_load_is_out_of_balance():
    class Loaded:
        def __init__(self, outstanding):
            self.outstanding = outstanding

        def kv_blocks(self, now):
            raise AssertionError("not asked")

    def asked(number, ids=(), session=None):
        return Request(number, 0.0, 10, 1, prefix_ids=ids, session=session)

    router = PrefixAffinity(most_ahead=2)
    level, skewed = [Loaded(1), Loaded(0)], [Loaded(0), Loaded(3)]
    assert router.choose(asked(0, (1, 2)), 0.0, level, (0, 1)) == 1
    assert router.choose(asked(1, (1, 2, 3)), 0.0, [Loaded(0), Loaded(2)], (0, 1)) == 1
    assert router.choose(asked(2, (9,)), 0.0, [Loaded(0), Loaded(2)], (0, 1)) == 0
    assert router.choose(asked(3, (1, 2, 3, 4)), 0.0, skewed, (0, 1)) == 0  # too far ahead: it moves
    assert router.choose(asked(4, (1, 2)), 0.0, level, (0, 1)) == 0  # and the prefix with it
    assert router.choose(asked(5, (1, 2)), 0.0, level, (1,)) == 1  # its replica restarts
    assert router.choose(asked(6, session="s"), 0.0, level, (0, 1)) == 1
    assert router.choose(asked(7, session="s"), 0.0, [Loaded(0), Loaded(1)], (0, 1)) == 1
    assert router.choose(asked(8), 0.0, [Loaded(0), Loaded(1)], (0, 1)) == 0


def test_prefix_affinity_finds_more_in_the_caches():
    rng = np.random.default_rng(1)
    table = np.column_stack([np.sort(rng.uniform(0, 3, 90)), rng.integers(40, 200, 90), rng.integers(1, 20, 90)])
    computed = {
        router: system(turns(table, 0.05), CACHING, 2, router, cost=StepTime(0.01, 1e-4), bs=4)
        .run.decisions["prefill_tokens"].sum()
        for router in ("prefix_affinity", "round_robin")
    }  # fmt: skip
    assert computed["prefix_affinity"] < computed["round_robin"]


def test_a_replica_that_restarts_is_passed_over():
    asked = []

    class Up(RoundRobin):
        def choose(self, request, now, loads, up):
            asked.append(list(up))
            return super().choose(request, now, loads, up)

    table = [(0.0, 30, 40), (0.0, 1, 40), (0.3, 1, 1), (0.31, 1, 1)]
    server = [
        Server(Static(1, 0.0), ModelExecutor(StepTime()), BlockPool(cap, 4), 4 * cap, restart_s=9.0, on_too_long="cut")
        for cap in (9, 90)
    ]
    made = replay(OpenLoop(columns(table)), server, Up())
    assert made.run.requests["status"].tolist() == [Status.COMPLETED] * 4  # cut to what fits: no crash
    tight = [Server(Static(2, 0.0), ModelExecutor(StepTime()), BlockPool(cap, 4), 36, restart_s=9.0) for cap in (9, 90)]
    table = [(0.0, 15, 18), (0.0, 1, 1), (0.0, 15, 18), (0.0, 1, 1), (0.3, 1, 1), (0.31, 1, 1)]
    asked.clear()
    made = replay(OpenLoop(columns(table)), tight, Up())
    assert made.run.requests["status"].tolist() == [Status.OOM, 0, Status.OOM, 0, 0, 0]
    assert asked[-2:] == [[1], [1]]
    assert made.replica.tolist() == [0, 1, 0, 1, 1, 1]
    assert len(made.run.oom) == 1


def test_progress_and_many_requests_flush():
    told = []
    table = [(0.001 * at, 5, 2) for at in range(3000)]
    made = system(OpenLoop(columns(table)), Continuous(8, 64), 2, "least_outstanding", progress=told.append)
    assert told == sorted(told) and told[-1] <= 3000
    assert (made.run.requests["status"] == Status.COMPLETED).all()


def test_the_shorter_queue_waits_less_than_each_in_turn_and_two_less_than_one():
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.exponential(0.06, 2000))
    table = [(at, 10, out) for at, out in zip(times, rng.geometric(0.2, 2000), strict=True)]
    policy = Continuous(1, 64)

    def mean_wait(count, router):
        run = system(OpenLoop(columns(table)), policy, count, router).run
        return float((run.requests["scheduled_s"] - run.requests["sent_s"]).mean())

    assert mean_wait(2, "least_outstanding") < mean_wait(2, "round_robin") < mean_wait(1, "round_robin")


def test_measured_iterations_cannot_be_undone():
    class Device:
        def run(self, batch, until=math.inf):
            return Measured([0.01] * batch.iterations)

    servers = [Server(Continuous(4, 64), Device(), BlockPool(100, 16), 1600) for _ in range(2)]
    with pytest.raises(AssertionError, match="undone"):
        replay(OpenLoop(columns([(0.0, 1, 50), (0.0, 1, 50), (0.1, 1, 1)])), servers, LeastOutstanding())


def test_shape_of_the_merged_log():
    made = system(OpenLoop(columns([(0.0, 1, 5), (0.0, 1, 5)])), Continuous(4, 64), 2)
    assert (np.diff(made.run.decisions["start_s"]) >= 0).all()
    assert set(StepShape._fields) <= set(made.run.decisions)
    assert made.run.kv_blocks_total == 1000
