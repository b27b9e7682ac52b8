"""`servecast run --execute`: the tables of a simulation from a real run, and crashes that are the device's own."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml
from serving import replayed

from servecast import scenario
from servecast.batch import OutOfMemory
from servecast.cli import run as commands_run
from servecast.cli.app import main
from servecast.errors import InputError
from servecast.executor import Affine, RanOutError
from servecast.kvcache import BlockPool
from servecast.policies import Static
from servecast.requests import Status
from servecast.run import sweep
from servecast.run.system import System
from servecast.scenario.traffic import traffic

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'servecast[device]'")

from playback import RecordedExecutor  # noqa: E402

from servecast.against.device.execute import OnDevice  # noqa: E402
from servecast.device import limit  # noqa: E402
from servecast.device.executor import stepped  # noqa: E402

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 8, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}  # fmt: skip
STATIC = {"kind": "static", "batch_size": 4, "max_wait_s": 0.01}
PADDED = {"kind": "padded", "batch_size": 4, "max_wait_s": 0.01}
CONTINUOUS = {"kind": "continuous", "max_num_seqs": 4, "max_num_batched_tokens": 256}


def written(folder, **changes):
    """A scenario of a two-layer model; its file."""
    (folder / "two-layers.json").write_text(json.dumps(CONFIG))
    data = {
        "name": "small",
        "model": "./two-layers.json",
        "device": "cpu",
        "engine": {"max_model_len": 320, "kv_blocks": 400, "restart_s": 1},
        "workload": {
            "arrivals": {"kind": "burst"},
            "prompt_tokens": {"kind": "uniform", "min_tokens": 4, "max_tokens": 40},
            "output_tokens": {"kind": "uniform", "min_tokens": 1, "max_tokens": 20},
            "requests": 10,
            "seed": 3,
        },
        "policies": [STATIC, PADDED, CONTINUOUS],
    } | changes
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def ran(file, out, *options):
    with pytest.raises(SystemExit) as ended:
        main(["run", str(file), "--out", str(out), *options])
    return ended.value.code


def test_an_executed_run_writes_the_tables_of_a_simulation(tmp_path, capsys):
    file = written(tmp_path)
    out = tmp_path / "results"
    assert ran(file, out) == 0
    forecast = {p.name: p.read_bytes() for p in (out / "small").iterdir()}
    assert ran(file, out, "--execute", "cpu") == 0
    assert "report: " in capsys.readouterr().out
    assert {p.name: p.read_bytes() for p in (out / "small").iterdir()} == forecast  # it stands beside, untouched
    (out / "small").rename(tmp_path / "small")
    (tmp_path / "simulated").mkdir()
    (tmp_path / "small").rename(tmp_path / "simulated" / "small")
    (out / "executed").rename(tmp_path / "executed")
    ours, theirs = ({p.name for p in (tmp_path / side / "small").iterdir()} for side in ("executed", "simulated"))
    assert ours == theirs
    for side, device in (("executed", "cpu"), ("simulated", None)):
        told = yaml.safe_load((tmp_path / side / "small" / "scenario.yaml").read_text())
        assert told["derived"].get("executed_on") == device
    for name, read in (("summary.csv", pd.read_csv), ("requests.parquet", pd.read_parquet)):
        executed, simulated = (read(tmp_path / side / "small" / name) for side in ("executed", "simulated"))
        assert list(executed) == list(simulated)
        assert len(executed) == len(simulated)
    # In a burst the tokens are the same whatever steps take; the times are not.
    for same in ("id", "status", "output_tokens"):
        assert executed[same].tolist() == simulated[same].tolist()
    assert not np.allclose(executed["finish_s"], simulated["finish_s"])
    executed_summary = pd.read_csv(tmp_path / "executed" / "small" / "summary.csv")
    page = (tmp_path / "executed" / "small" / "report.html").read_text()
    assert "Executed on cpu, not forecast," in page
    assert "servecast run scenario.yaml --execute cpu" in page
    assert "gives the same bytes" not in page
    assert "ncalibrated" not in page.split("<main>")[1]  # a data sheet prices nothing here
    assert executed_summary["calibrated"].all()


def executed_and_simulated(file):
    loaded = scenario.load(str(file))
    return sweep.simulate(loaded, machines=OnDevice("cpu")).outcomes, sweep.simulate(loaded).outcomes


#: Some answers are long: a batch with several of them outgrows the memory, others end before.
TIGHT = {
    "engine": {"max_model_len": 320, "kv_blocks": 24, "restart_s": 1},
    "workload": {
        "arrivals": {"kind": "burst"},
        "prompt_tokens": {"kind": "uniform", "min_tokens": 8, "max_tokens": 60},
        "output_tokens": {"kind": "lognormal", "median_tokens": 40, "sigma": 1.2, "max_tokens": 250},
        "requests": 32,
        "seed": 5,
    },
    "policies": [STATIC, PADDED],
}


@pytest.mark.parametrize("try_", range(3))
def test_a_real_run_crashes_in_the_batch_where_the_simulation_does(tmp_path, try_):
    executed, simulated = executed_and_simulated(written(tmp_path, **TIGHT))
    for ours, theirs in zip(simulated, executed, strict=True):
        status = ours.run.requests["status"]
        assert {Status.OOM, Status.COMPLETED} == set(status.tolist())
        assert theirs.run.requests["status"].tolist() == status.tolist()
        assert len(theirs.run.oom) == len(ours.run.oom) > 0
        assert [event.requests for event in theirs.run.oom] == [event.requests for event in ours.run.oom]
        for event in theirs.run.oom:
            assert event.wanted_bytes > event.available_bytes
        lost = status == Status.OOM
        tokens = [side.run.requests["generated_tokens"][lost] for side in (ours, theirs)]
        assert abs(tokens[0] - tokens[1]).max() <= 8  # a page is 4 tokens of a row
        assert theirs.run.kv_blocks_total == ours.run.kv_blocks_total == 24


def test_a_crashed_run_plays_back_bit_for_bit(tmp_path):
    loaded = scenario.load(str(written(tmp_path, **TIGHT)))
    system = System.of(loaded)
    policy, on_device = system.policy, OnDevice("cpu")(system)

    def run(executor):
        return replayed(
            traffic(loaded.workload, 16).client, policy, executor, BlockPool(400, 16), max_model_len=320, restart_s=1.0
        )

    first = run(on_device.executor)
    again = run(RecordedExecutor(first.decisions, first.oom))
    assert first.oom == again.oom
    assert first.oom
    for name, column in first.requests.items():
        assert np.array_equal(column, again.requests[name], equal_nan=column.dtype.kind == "f"), name


def test_prompts_that_do_not_fit_crash_the_engine_too(tmp_path):
    workload = TIGHT["workload"] | {
        "prompt_tokens": {"kind": "fixed", "tokens": 300},
        "output_tokens": {"kind": "fixed", "tokens": 4},
        "requests": 4,
    }
    executed, simulated = executed_and_simulated(written(tmp_path, **TIGHT | {"workload": workload}))
    for outcome in (*executed, *simulated):
        assert (outcome.run.requests["status"] == Status.OOM).all()
        assert (outcome.run.requests["generated_tokens"] == 0).all()


class RunsOut:
    """Has memory for the first ``steps`` steps after each restart."""

    def __init__(self, steps):
        self.steps = steps
        self.made = 0

    def run(self, batch, until=np.inf):
        if self.made == self.steps:
            self.made = 0
            raise RanOutError(2.0, 1.0)
        self.made += 1
        return Affine(0.5, 0.0, 1)


def test_the_engine_records_a_device_that_runs_out_and_restarts(tmp_path):
    loaded = scenario.load(str(written(tmp_path)))
    run = replayed(
        traffic(loaded.workload, 16).client, Static(5, 0.0), RunsOut(3), BlockPool(400, 16), max_model_len=320,
        restart_s=10.0,
    )  # fmt: skip
    lost = int((run.requests["status"] == Status.OOM).sum())
    assert run.oom[0] == OutOfMemory(1.5, run.oom[0].requests, 2.0, 1.0)
    assert sum(event.requests for event in run.oom) == lost > 0
    later = run.requests["scheduled_s"] > 1.5
    assert run.requests["scheduled_s"][later].min() == pytest.approx(11.5)


def test_steps_before_the_one_that_fails_count():
    left = iter([0.5, 0.5])

    def step():
        try:
            return next(left)
        except StopIteration:
            raise RanOutError(2.0, 1.0) from None

    assert stepped(step, 10, np.inf).seconds == [0.5, 0.5]
    with pytest.raises(RanOutError):
        stepped(step, 10, np.inf)


def test_the_kernel_refuses_what_is_beyond_the_limit():
    held = limit.Limit(8e6, 4e6)
    with held.room(4_000_000, 0):
        torch.zeros(700_000)
    with pytest.raises(RanOutError) as raised, held.room(4_000_000, 1_000_000):
        torch.zeros(1_100_000)
    assert raised.value.wanted_bytes == pytest.approx(5_400_000, rel=0.01)
    assert raised.value.available_bytes == 5_000_000
    torch.zeros(2_000_000)  # lifted again
    with pytest.raises(RuntimeError, match="another"), held.room(1000, 0):
        raise RuntimeError("another failure")


def test_a_cache_takes_memory_as_its_rows_grow():
    cache = limit.Reserved(tensors=2, slots=3, max_length=100, token_bytes=1024)
    before = limit.data_bytes()
    [keys, _] = cache.tensors(torch.float32, 8, 32)
    assert keys.shape == (3, 100, 8, 32)
    cache.grow([(0, 1), (1, 5)])
    assert cache.held == 2 * 3 * 4096 == limit.data_bytes() - before
    keys[1, 4] = 1.0
    cache.grow([(1, 8)])
    assert cache.held == 2 * 3 * 4096
    assert keys[1, 4].sum() == 256
    cache.release()
    assert cache.held == 0
    assert limit.data_bytes() == before


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"model": "mixtral-8x7b", "device": "h100-sxm", "engine": {"tensor_parallel_size": 2}},
            "tensor_parallel_size",
        ),
        (
            {"model": "mixtral-8x7b", "device": "b200", "engine": {}},
            "has a mixture of experts, which is not computed here",
        ),
        ({"policies": [CONTINUOUS | {"enable_prefix_caching": True}]}, "enable_prefix_caching: true is simulated only"),
        ({"engine": {"kv_cache_dtype": "fp8"}}, "a KV cache in fp8 is not computed"),
    ],
)
def test_what_cannot_be_executed_is_one_line(tmp_path, capsys, changes, problem):
    assert ran(written(tmp_path, **changes), tmp_path, "--execute", "cpu") == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert problem in line


def test_a_model_larger_than_memory_is_one_line(tmp_path, capsys):
    huge = CONFIG | {"hidden_size": 32768, "num_hidden_layers": 200}
    file = written(tmp_path, engine={"kv_blocks": 40, "max_model_len": 320}, device="b200")
    (tmp_path / "two-layers.json").write_text(json.dumps(huge))
    with pytest.raises(InputError, match=r"scenario\.(model|engine).*"):
        sweep.simulate(scenario.load(str(file)), machines=OnDevice("cpu"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--execute", "tpu"), "'tpu' is no device"),
        (("--execute", "cpu", "--jobs", "2"), "--jobs: 2 runs at a time on one device"),
    ],
)
def test_an_option_that_does_not_do_is_one_line(tmp_path, capsys, options, problem):
    assert ran(written(tmp_path), tmp_path, *options) == 2
    assert problem in capsys.readouterr().err


def test_without_torch_the_extra_is_named(monkeypatch):
    import importlib

    def missing(name):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"torch: is not installed: pip install 'servecast\[device\]'"):
        commands_run._executing("cpu", 1, None)
