"""Clients: order, ties, caps on requests in flight, and closed loops, against a simple server and by hand."""

import heapq
import tracemalloc
from math import inf

import numpy as np
import pytest
from counting import opcodes
from hypothesis import given
from hypothesis import strategies as st

from servecast.requests import Request
from servecast.workload.arrivals import Closed
from servecast.workload.clients import CHUNK, ClosedLoop, HeldBack, LengthColumns, OpenLoop, RequestColumns


def requests_at(*arrival_s: float) -> RequestColumns:
    n = len(arrival_s)
    return RequestColumns(np.array(arrival_s, float), np.arange(n) + 10, np.arange(n) + 1)


def lengths(n: int) -> LengthColumns:
    return LengthColumns(np.arange(n) + 10, np.arange(n) + 1)


def serve(client, duration_s):
    """A server that takes ``duration_s(request)`` for each: (id, sent, answered) of all, and the most in flight."""
    served, in_flight, most = [], [], 0
    while in_flight or client.next_send() < inf:
        due_s = client.next_send()
        if in_flight and in_flight[0][0] <= due_s:
            end_s, _, request = heapq.heappop(in_flight)
            client.answered(request, end_s)
        else:
            request, sent_s = client.send()
            assert sent_s == due_s
            end_s = sent_s + duration_s(request)
            served.append((request.id, sent_s, end_s))
            heapq.heappush(in_flight, (end_s, request.id, request))
            most = max(most, len(in_flight))
    return served, most


# --- columns and the open loop --------------------------------------------------------------------------------------


def test_columns_iterate_as_requests_across_chunks():
    n = 2 * CHUNK + 5
    columns = RequestColumns(np.arange(n) / 4, np.arange(n) + 1, np.arange(n) + 2)
    assert len(columns) == n
    assert list(columns) == [Request(i, i / 4, i + 1, i + 2) for i in range(n)]
    first = next(iter(columns))
    assert [type(value) for value in first[:4]] == [int, float, int, int]


def test_columns_carry_priority_session_tenant_and_prefixes():
    columns = RequestColumns(
        np.array([0.0, 1.0]),
        np.array([1, 2]),
        np.array([3, 4]),
        priority=np.array([5, 0]),
        session=["a", None],
        prefix_ids=[(1, 2**40), ()],
    )
    assert list(columns) == [
        Request(0, 0.0, 1, 3, 5, "a", None, (1, 2**40)),
        Request(1, 1.0, 2, 4, 0, None, None, ()),
    ]
    back = columns.take(np.array([1, 0]), np.array([0.5, 0.5]))
    assert list(back) == [Request(0, 0.5, 2, 4, 0, None, None, ()), Request(1, 0.5, 1, 3, 5, "a", None, (1, 2**40))]
    only_tenants = RequestColumns(np.array([0.0]), np.array([1]), np.array([1]), tenant=["t"])
    assert list(only_tenants) == [Request(0, 0.0, 1, 1, 0, None, "t", ())]


@pytest.mark.parametrize("arrival_s", [[1.0, 0.5], [0.0, np.nan], [0.0, np.inf]])
def test_columns_assert_that_time_is_finite_and_never_decreases(arrival_s):
    with pytest.raises(AssertionError):
        requests_at(*arrival_s)


def test_columns_assert_that_they_are_equally_long_and_ask_for_tokens():
    with pytest.raises(AssertionError):
        RequestColumns(np.zeros(2), np.ones(3, int), np.ones(2, int))
    with pytest.raises(AssertionError):
        RequestColumns(np.zeros(2), np.ones(2, int), np.array([1, 0]))


def test_wrk_13_the_offered_rate_is_the_achieved_one():
    columns = requests_at(*(np.arange(1, 2001) / 200.0))
    assert columns.offered_rps == pytest.approx(200.0, rel=1e-12)
    assert columns.span_s == pytest.approx(9.995)
    assert requests_at(0.0, 0.0).offered_rps is None
    assert requests_at(3.0).offered_rps is None
    assert requests_at().offered_rps is None
    assert requests_at().span_s == 0.0


def test_the_lengths_of_a_trace_feed_a_closed_loop():
    client = ClosedLoop(1, 0.0, requests_at(3.0, 4.0).lengths)
    assert client.send() == (Request(0, 0.0, 10, 1), 0.0)


def test_open_loop_sends_at_arrival_in_the_order_of_the_columns():
    client = OpenLoop(requests_at(0.0, 1.0, 1.0, 1.0, 2.5))
    assert len(client) == 5
    sent = []
    while client.next_send() < inf:
        due_s = client.next_send()
        request, sent_s = client.send()
        assert due_s == sent_s == request.arrival_s
        sent.append((request.id, sent_s))
        client.answered(request, 100.0)
    assert sent == [(0, 0.0), (1, 1.0), (2, 1.0), (3, 1.0), (4, 2.5)]
    assert client.next_send() == inf


def test_a_workload_without_requests_sends_nothing():
    for client in (OpenLoop(requests_at()), HeldBack(OpenLoop(requests_at()), 1), ClosedLoop(3, 0.0, lengths(0))):
        assert len(client) == 0
        assert client.next_send() == inf


# --- held back ------------------------------------------------------------------------------------------------------


def test_held_back_sends_at_the_instant_of_an_answer_and_keeps_the_arrival():
    client = HeldBack(OpenLoop(requests_at(0.0, 0.0, 0.5, 4.0)), 2)
    first, _ = client.send()
    second, _ = client.send()
    assert client.next_send() == inf
    client.answered(second, 3.0)
    assert client.next_send() == 3.0
    third, sent_s = client.send()
    assert (third.id, third.arrival_s, sent_s) == (2, 0.5, 3.0)
    assert client.next_send() == inf
    client.answered(first, 3.5)
    assert client.next_send() == 4.0  # the slot is free before the request comes
    assert client.send()[1] == 4.0
    assert client.next_send() == inf
    client.answered(third, 9.0)
    assert client.next_send() == inf
    assert len(client) == 4


def test_held_back_does_not_depend_on_when_the_engine_takes_what_is_due():
    """Requests due at 5 and 6, a slot free since 1, an answer at 10 that is reported before both are taken."""
    client = HeldBack(OpenLoop(requests_at(0.0, 0.0, 5.0, 6.0)), 2)
    first, second = client.send()[0], client.send()[0]
    client.answered(first, 1.0)
    client.answered(second, 10.0)
    assert [client.send()[1], client.send()[1]] == [5.0, 10.0]


@given(
    arrivals=st.lists(st.integers(0, 20), max_size=30).map(sorted),
    durations=st.lists(st.integers(0, 10), min_size=30, max_size=30),
    cap=st.integers(1, 6),
)
def test_held_back_is_the_queue_with_as_many_servers_as_the_cap(arrivals, durations, cap):
    """Against the recursion of a first-come first-served queue with ``cap`` servers, which has no client in it."""
    free_s, expected = [0.0] * cap, []
    for at, arrival_s in enumerate(arrivals):
        start_s = max(arrival_s, heapq.heappop(free_s))
        heapq.heappush(free_s, start_s + durations[at])
        expected.append((at, start_s, start_s + durations[at]))
    served, most = serve(HeldBack(OpenLoop(requests_at(*arrivals)), cap), lambda request: float(durations[request.id]))
    assert served == expected
    assert most <= cap


def test_a_cap_that_never_binds_changes_nothing():
    arrivals = [0.0, 0.0, 1.0, 7.0]
    free = serve(OpenLoop(requests_at(*arrivals)), lambda request: 3.0)
    assert serve(HeldBack(OpenLoop(requests_at(*arrivals)), 4), lambda request: 3.0) == free


# --- closed loop ----------------------------------------------------------------------------------------------------


def test_met_15_closed_loop_does_not_wait_for_the_wave():
    """Two users, answers after 10, 100, 10 ms: the third request starts at 10 ms, not 100 ms."""
    duration_s = {0: 0.010, 1: 0.100, 2: 0.010}
    served, most = serve(ClosedLoop(2, 0.0, lengths(3)), lambda request: duration_s[request.id])
    assert served == [(0, 0.0, 0.010), (1, 0.0, 0.100), (2, 0.010, 0.020)]
    assert most == 2


def test_wrk_16_concurrency_32_is_32_in_flight():
    served, most = serve(ClosedLoop(32, 0.0, lengths(500)), lambda request: 0.01 * (1 + request.id % 7))
    assert most == 32
    assert [request for request, _, _ in served] == list(range(500))
    assert sum(sent_s == 0 for _, sent_s, _ in served) == 32


def test_closed_loop_thinks_numbers_in_order_and_stops_at_the_number_of_requests():
    client = ClosedLoop(2, 1.0, lengths(4))
    assert len(client) == 4
    served, _ = serve(client, lambda request: 0.25 if request.id % 2 else 0.5)
    assert served == [(0, 0.0, 0.5), (1, 0.0, 0.25), (2, 1.25, 1.75), (3, 1.5, 1.75)]
    assert client.next_send() == inf


def test_users_begin_evenly_over_the_ramp_and_go_on_while_others_are_to_begin():
    """Four users over 8 s who think 1 s: the first is back twice before the second has an answer."""
    client = ClosedLoop(4, 1.0, lengths(7), ramp_s=8.0)
    served, most = serve(client, lambda request: 0.5)
    assert [sent_s for _, sent_s, _ in served] == [0.0, 1.5, 2.0, 3.0, 3.5, 4.0, 6.0]
    assert [number for number, _, _ in served] == list(range(7))
    assert most == 1
    with pytest.raises(ValueError, match="ramp_s is -1"):
        Closed(2, 0.0, -1)


def test_closed_loop_requests_arrive_when_sent_with_the_lengths_in_order():
    client = ClosedLoop(1, 2.0, lengths(2))
    request, _ = client.send()
    assert request == Request(0, 0.0, 10, 1)
    assert client.next_send() == inf
    client.answered(request, 3.0)
    assert client.send() == (Request(1, 5.0, 11, 2), 5.0)


def test_more_users_than_requests_stay_silent():
    served, most = serve(ClosedLoop(100, 0.0, lengths(3)), lambda request: 1.0)
    assert served == [(0, 0.0, 1.0), (1, 0.0, 1.0), (2, 0.0, 1.0)]
    assert most == 3


def test_liveness_a_rejected_request_releases_its_slot_and_its_user():
    """An answer at the instant of sending, as for a rejected request."""
    for client in (HeldBack(OpenLoop(requests_at(0.0, 0.0, 0.0, 2.0)), 1), ClosedLoop(1, 0.0, lengths(4))):
        served, _ = serve(client, lambda request: 0.0)
        assert len(served) == 4


def test_a_closed_loop_can_be_held_back_too():
    served, most = serve(HeldBack(ClosedLoop(4, 0.0, lengths(8)), 2), lambda request: 1.0)
    assert most == 2
    assert [sent_s for _, sent_s, _ in served] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    assert [request for request, _, _ in served] == list(range(8))


@given(
    users=st.integers(1, 5),
    total=st.integers(1, 20),
    think=st.integers(0, 3),
    durations=st.lists(st.integers(0, 5), min_size=20),
)
def test_closed_loop_conserves_requests_and_users(users, total, think, durations):
    served, most = serve(ClosedLoop(users, float(think), lengths(total)), lambda request: float(durations[request.id]))
    assert [request for request, _, _ in served] == list(range(total))
    assert most <= users
    sent = [sent_s for _, sent_s, _ in served]
    assert sent == sorted(sent)
    ends = sorted(end_s for _, _, end_s in served)
    assert sent == [0.0] * min(users, total) + [end_s + think for end_s in ends[: total - min(users, total)]]


def test_liveness_clients_that_could_never_end_are_refused():
    with pytest.raises(AssertionError):
        HeldBack(OpenLoop(requests_at(0.0)), 0)
    with pytest.raises(AssertionError):
        ClosedLoop(0, 0.0, lengths(1))
    with pytest.raises(AssertionError):
        ClosedLoop(1, inf, lengths(1))


# --- cost -----------------------------------------------------------------------------------------------------------


def test_scl_01_sending_takes_memory_of_a_chunk_and_time_that_does_not_grow():
    n = 300_000
    columns = RequestColumns(np.arange(n) / 4, np.full(n, 100), np.full(n, 100))

    def work(requests: int) -> int:
        client = OpenLoop(columns)

        def sending():
            for _ in range(requests):
                client.next_send()
                client.send()

        return opcodes(sending)

    assert work(4000) == pytest.approx(2 * work(2000), rel=0.01)
    tracemalloc.start()
    client = OpenLoop(columns)
    for _ in range(5 * CHUNK):
        client.send()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6
