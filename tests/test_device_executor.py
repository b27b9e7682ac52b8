"""The executors that run on a device or play one back, under the engine and the policies that simulations use."""

import dataclasses
import math

import numpy as np
import pytest
from serving import Stepping, columns, replayed, shape_of_rows

from servecast.errors import InputError
from servecast.executor import Measured
from servecast.kvcache import BlockPool
from servecast.policies import Continuous, Padded, Static
from servecast.specs import catalogue
from servecast.workload.clients import OpenLoop

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'servecast[device]'")

from playback import RecordedExecutor  # noqa: E402

from servecast.device.executor import DeviceExecutor, stepped  # noqa: E402
from servecast.device.model import transformer  # noqa: E402
from servecast.device.timing import measure, open_device, timing  # noqa: E402

SPEC = dataclasses.replace(catalogue.model("tiny"), dtype="fp32")
POLICIES = {
    "static": (Static(4, 0.01), 1000),
    "static, at once": (Static(4, 0.01, respond="batch_end"), 1000),
    "padded": (Padded(4, 0.01), 1000),
    "continuous": (Continuous(4, 256), 1000),
    "chunked": (Continuous(4, 24), 1000),
    "preempting": (Continuous(6, 64), 12),
}
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]
    ),
]


@pytest.fixture(scope="module", params=DEVICES)
def model(request):
    device = open_device(request.param)
    return transformer(SPEC, device, "fp32" if device.type == "cpu" else "bf16", max_positions=600)


def requests(count=14):
    draw = np.random.default_rng(1)
    return [(i * 0.001, int(draw.integers(4, 50)), int(draw.integers(1, 30))) for i in range(count)]


def served(model, name, executor=None):
    policy, blocks = POLICIES[name]
    executor = executor or DeviceExecutor(model, slots=6, max_length=256, padded=policy.kind == "padded")
    run = replayed(OpenLoop(columns(requests())), policy, executor, BlockPool(blocks, 16), max_model_len=128)
    return run, executor


def same(ours, theirs):
    for table in ("requests", "decisions"):
        for name, column in getattr(ours, table).items():
            assert np.array_equal(column, getattr(theirs, table)[name], equal_nan=column.dtype.kind == "f"), name
    assert all(np.array_equal(ours.gaps[name], theirs.gaps[name], equal_nan=True) for name in ours.gaps)
    assert ours.end_s == theirs.end_s


@pytest.mark.parametrize("name", POLICIES)
def test_playing_a_device_run_back_gives_every_time_bit_for_bit(model, name):
    run, _ = served(model, name)
    assert (run.requests["status"] == 0).all()
    same(served(model, name, RecordedExecutor(run.decisions))[0], run)
    if name == "preempting":
        assert run.requests["preemptions"].sum() > 0


def test_every_policy_generates_the_same_tokens(model):
    if model.device.type == "cuda":
        pytest.skip("kernels of other shapes round otherwise in bf16")
    answers = []
    for name in POLICIES:
        _, executor = served(model, name)
        answers.append({i: executor.tokens[i][: prompt + out] for i, (_, prompt, out) in enumerate(requests())})
    assert all(answer == answers[0] for answer in answers)
    assert all(len(answers[0][i]) == prompt + out for i, (_, prompt, out) in enumerate(requests()))


def test_one_iteration_at_a_time_gives_the_same_tokens(model):
    _, whole = served(model, "continuous")
    executor = DeviceExecutor(model, slots=6, max_length=256, padded=False)
    served(model, "continuous", Stepping(executor))
    assert whole.tokens == executor.tokens


class Watching:
    """A device executor whose batches are added up row by row."""

    def __init__(self, executor):
        self.executor = executor
        self.seen = 0

    def run(self, batch, until=math.inf):
        assert shape_of_rows(batch) == batch.shape
        self.seen += 1
        durations = self.executor.run(batch, until)
        assert 1 <= durations.count <= batch.iterations
        assert all(seconds > 0 for seconds in durations.seconds)
        ends = np.cumsum(durations.seconds)
        assert durations.count == 1 or ends[-2] < until
        assert durations.count == batch.iterations or ends[-1] >= until - 1e-9
        return durations


@pytest.mark.parametrize("name", ["static", "padded", "chunked"])
def test_the_executor_contract_holds(model, name):
    executor = Watching(DeviceExecutor(model, slots=6, max_length=256, padded=name == "padded"))
    served(model, name, executor)
    assert executor.seen > 5


def test_a_log_of_another_run_is_refused(model):
    run, _ = served(model, "continuous")
    with pytest.raises(InputError, match=r"recorded run: step 0 of the log is .* it is of another run"):
        served(model, "static", RecordedExecutor(run.decisions))
    coalesced = {name: column.copy() for name, column in run.decisions.items()}
    coalesced["iterations"][3] = 2
    with pytest.raises(InputError, match="a simulation's log, not a device's"):
        RecordedExecutor(coalesced)


def test_iterations_stop_with_the_first_to_end_at_the_time_given():
    assert stepped(lambda: 0.5, 10, math.inf).seconds == [0.5] * 10
    assert stepped(lambda: 0.5, 10, 1.2).seconds == [0.5] * 3
    assert stepped(lambda: 0.5, 10, 1.0).seconds == [0.5] * 2
    assert stepped(lambda: 0.5, 10, 0.0).seconds == [0.5]
    assert isinstance(stepped(lambda: 0.5, 1, 0.0), Measured)


def test_no_memory_for_the_cache_is_one_line():
    model = transformer(SPEC, torch.device("cpu"), "fp32", max_positions=8)
    with pytest.raises(InputError, match="device: no memory for a KV cache of 1000000 rows"):
        DeviceExecutor(model, slots=1_000_000, max_length=1_000_000, padded=False)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("tpu", "is no device"),
        ("cuda:x", "is no device"),
        ("cpu:1", "is no device: there is one cpu"),
        ("", "is no device"),
    ],
)
def test_a_device_that_does_not_exist_is_one_line(name, problem):
    with pytest.raises(InputError, match=f"--device: '{name}' {problem}"):
        open_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_cuda_that_is_absent_is_one_line():
    with pytest.raises(InputError, match=r"--device: 'cuda:0' is not there: .*; use cpu"):
        open_device("cuda:0")


def test_warm_up_is_dropped_and_counted():
    # CAL-07: the first of ten runs takes 20 times as long.
    slow = iter([20.0, *[1.0] * 20])
    now = [0.0]

    def step():
        now[0] += next(slow)

    taken = measure(step, lambda: now[0], warm_up=1, least=3, most=9)
    assert (taken.seconds, taken.dropped, taken.most_s) == (1.0, 1, 1.0)


def test_what_runs_between_repeats_is_not_timed():
    now, order = [0.0], []

    def step():
        order.append("step")
        now[0] += 1.0

    def between():
        order.append("between")
        now[0] += 7.0

    taken = measure(step, lambda: now[0], warm_up=1, least=3, most=3, between=between)
    assert (taken.least_s, taken.most_s) == (1.0, 1.0)
    assert order == ["step", *["between", "step"] * 3]


def test_repeats_end_when_the_median_is_known_or_at_most():
    now = [0.0]
    quiet = measure(lambda: now.__setitem__(0, now[0] + 1.0), lambda: now[0], warm_up=0, least=3, most=50)
    assert quiet.repeats == 3
    noisy = iter([1.0, 2.0] * 100)
    taken = measure(lambda: now.__setitem__(0, now[0] + next(noisy)), lambda: now[0], warm_up=0, most=50)
    assert taken.repeats == 50
    assert timing([1.0, 1.1, 0.9, 1.0, 1.05], 0).error < timing([1.0, 1.1, 0.9], 0).error
    assert timing([3.0, 1.0, 2.0], 4)[:5] == (2.0, 3, 4, 1.0, 3.0)
