"""The memory cliff: forecast, and found by really running out."""

import dataclasses
import resource
import signal

import pytest

from servecast.errors import InputError
from servecast.specs import catalogue

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'servecast[device]'")

from servecast.device import cliff, footprint, limit  # noqa: E402

SPEC = dataclasses.replace(catalogue.model("tiny"), dtype="fp32")
LOAD = cliff.CliffCase(SPEC, "cpu", "fp32", prompt=200, output=56, limit_bytes=40_000_000)


@pytest.mark.parametrize("policy", ["static", "padded"])
def test_the_forecast_is_exact_or_off_by_one_and_its_bytes_within_5_percent(policy):
    told = []
    found = cliff.cliff(dataclasses.replace(LOAD, policy=policy), told.append)
    assert abs(found.predicted_rows - found.found_rows) <= 1
    assert abs(found.bytes_error) < 0.05
    assert found.predicted_bytes <= LOAD.limit_bytes
    assert [t.rows for t in told] == [t.rows for t in found.tries]
    assert {t.fitted for t in told} == {True, False}
    assert all(t.rows <= found.found_rows for t in told if t.fitted)


def tried(load, *rows):
    with cliff._Child(load) as child:
        return [child.tried(count) for count in rows]


def test_an_attempt_that_runs_out_poisons_nothing():
    out, first, second = tried(LOAD, 500, 20, 20)
    assert not out.fitted
    assert first.fitted
    assert second.fitted
    assert first.peak_bytes == pytest.approx(second.peak_bytes, rel=0.02)


def test_another_failure_is_not_taken_for_want_of_memory(monkeypatch):
    def broken(load, model, rows, before):
        raise RuntimeError("a kernel\nfailed")

    monkeypatch.setattr(cliff, "_run", broken)
    with pytest.raises(
        InputError, match="cliff: a batch of 3 rows failed for another reason than memory: a kernel failed"
    ):
        tried(LOAD, 3)


class Pipe:
    def __init__(self, *told):
        self.told, self.sent = list(told), []

    def recv(self):
        return self.told.pop(0) if self.told else None

    def send(self, answer):
        self.sent.append(answer)


@pytest.mark.parametrize("policy", ["static", "padded"])
def test_one_child_can_try_again_after_it_ran_out(policy):
    load = dataclasses.replace(LOAD, policy=policy)
    limits, interrupt = resource.getrlimit(resource.RLIMIT_DATA), signal.getsignal(signal.SIGINT)
    pipe = Pipe(4, 5000, 4)
    try:
        cliff._serve(load, pipe)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)
        signal.signal(signal.SIGINT, interrupt)
    first, refused, again = pipe.sent
    assert first[0]
    assert refused == (False, None, None)
    assert again[0]


def test_a_child_that_a_signal_ends_is_out_of_memory(monkeypatch):
    import os

    monkeypatch.setattr(cliff, "_run", lambda load, model, rows, before: os.kill(os.getpid(), signal.SIGKILL))
    assert tried(LOAD, 3) == [cliff.Try(3, False, None)]


@pytest.mark.parametrize("edge", [1, 2, 7, 8, 63, 64, 99])
@pytest.mark.parametrize("guess", [1, 5, 40, 100])
def test_bisection_finds_the_edge_from_any_guess(edge, guess):
    asked = []

    def fits(rows):
        assert 1 <= rows <= 100
        assert rows not in asked
        asked.append(rows)
        return rows <= edge

    assert cliff._bisected(guess, 100, fits) == edge
    assert len(asked) <= 16


def test_bisection_at_the_ends():
    assert cliff._bisected(50, 100, lambda rows: False) == 0
    assert cliff._bisected(50, 100, lambda rows: True) == 100
    assert cliff._bisected(1, 1, lambda rows: True) == 1


def test_too_little_and_too_much_memory_are_one_line():
    with pytest.raises(InputError, match=r"--memory-gb: 0.0005 GB hold not one row of 200 \+ 56 tokens"):
        cliff.cliff(dataclasses.replace(LOAD, limit_bytes=500_000))
    with pytest.raises(InputError, match=r"--memory-gb: 0.04 GB hold 3 rows, the most that is tried"):
        cliff.cliff(dataclasses.replace(LOAD, most_rows=3))
    with pytest.raises(InputError, match="--prompt: prompt 0 and output 56 must be at least 1 token each"):
        cliff.cliff(dataclasses.replace(LOAD, prompt=0))


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("could not create a primitive descriptor for a matmul primitive"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_want_of_memory_is_told_from_other_failures(error, memory):
    assert limit.out_of_memory(error) == memory


def test_peak_bytes_are_those_of_what_is_alive():
    def step():
        a = torch.zeros(1000)  # 4,000 bytes
        b = a + 1  # 8,000 alive
        del a
        return b.view(10, 100) * 2  # 8,000 again: the view is no storage of its own

    assert footprint.peak_bytes(step, torch.device("cpu")) == 8000


def test_activations_are_the_larger_of_two_moments():
    found = footprint.fitted([(16, 1, 1600), (64, 1, 6400), (8, 8, 4000)], carried=10.0)
    assert found == footprint.Activations(100.0, 490.0, 10.0)
    assert found.peak(100, 1) == 10_000
    assert found.peak(100, 100) == 50_000


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_the_cliff_on_cuda_is_within_2_percent():
    spec = catalogue.model("cpu-small")
    found = cliff.cliff(cliff.CliffCase(spec, "cuda", "bf16", prompt=512, output=256, limit_bytes=2_000_000_000))
    assert abs(found.predicted_rows - found.found_rows) <= 1
    assert abs(found.bytes_error) < 0.02


def test_without_a_limit_a_cpu_has_half_a_gigabyte():
    from servecast.device.cliff import usual_limit_bytes

    assert usual_limit_bytes("cpu") == 500_000_000
