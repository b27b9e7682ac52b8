"""Validation: executed and simulated side by side, on the CPU with a two-layer model."""

import dataclasses
import json
import math

import numpy as np
import pytest
import yaml

from servecast.against.device import compare, gates
from servecast.errors import InputError
from servecast.executor import Affine
from servecast.requests import Status
from servecast.run.system import modelled
from servecast.scenario import check

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'servecast[device]'")

from servecast.against.device import runs  # noqa: E402
from servecast.against.device.validate import validate  # noqa: E402
from servecast.device import calibrate, grid, steps  # noqa: E402
from servecast.report.validation_page import tables, write  # noqa: E402
from servecast.report.verdicts.validate import verdict  # noqa: E402
from servecast.specs import hf_config  # noqa: E402

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, its profile, and the file of a validation."""
    place = tmp_path_factory.mktemp("validation")
    (place / "two-layers.json").write_text(json.dumps(CONFIG))
    model = hf_config.load(str(place / "two-layers.json"))
    limits = grid.Limits(4, 96, 128)
    calibrate.calibrate(calibrate.Request(model, "cpu", place / "mine.yaml", budget_s=60, limits=limits, rounds=2))
    scenario = {
        "name": "small",
        "model": "./two-layers.json",
        "profile": "./mine.yaml",
        "engine": {"max_model_len": 96, "kv_blocks": 64, "restart_s": 1},
        "workload": {
            "arrivals": {"kind": "burst"},
            "prompt_tokens": {"kind": "uniform", "min_tokens": 4, "max_tokens": 40},
            "output_tokens": {"kind": "uniform", "min_tokens": 1, "max_tokens": 20},
            "requests": 16,
            "seed": 3,
        },
        "policies": [
            {"kind": "static", "batch_size": 4, "max_wait_s": 0.02},
            {"kind": "padded", "batch_size": 4, "max_wait_s": 0.02},
            {"kind": "continuous", "max_num_seqs": 4, "max_num_batched_tokens": 64},
        ],
    }
    data = {"scenario": scenario, "loads": [0.5], "band_loads": [0.5], "drift": 10.0, "tries": 1}
    data["gates"] = [{"loads": [0.5, "burst"], "metrics": ["e2e_mean_s"], "relative": 0.9}]
    (place / "plan.yaml").write_text(yaml.safe_dump(data))
    return place


@pytest.fixture(scope="module")
def found(folder):
    told = []
    made = validate(folder / "plan.yaml", "cpu", told.append)
    assert [p.made for p in told] == list(range(1, 13))
    return made


def test_every_policy_is_executed_and_simulated_at_every_load(found):
    assert [(c.policy, c.load) for c in found.cases] == [
        (policy, load) for load in ("burst", 0.5) for policy in ("static", "padded", "continuous")
    ]
    for case in found.cases:
        assert len(case.executed) == 2
        assert case.conclusive
        for run in (case.simulated, *(executed.run for executed in case.executed)):
            assert (run.requests["status"] == 0).all()
            assert np.array_equal(run.requests["generated_tokens"], case.simulated.requests["generated_tokens"])
        assert {c.metric for c in case.comparisons} >= {"makespan_s", "ttft_mean_s", "e2e_p99_s"}
        wasted = {c.metric for c in case.comparisons} & set(compare.WASTE)
        assert wasted == {"static": {"slot_waste"}, "padded": {*compare.WASTE}, "continuous": set()}[case.policy]
        assert {s["regime"] for s in case.same_batches} >= {"all", "decode"}
        assert set(case.per_request) == {"ttft", "tpot", "e2e"}


def test_a_burst_makes_the_same_batches_whatever_steps_take(found):
    for case in found.cases[:3]:
        ours, theirs = case.simulated.decisions, case.executed[0].run.decisions
        for name in ("prefill_tokens", "prefill_pairs"):
            assert ours[name].sum() == theirs[name].sum()
        if case.policy == "padded":
            [waste] = [c for c in case.comparisons if c.metric == "padding_waste"]
            assert waste.error == pytest.approx(0, abs=1e-12)
            assert waste.verdict == compare.NOISE


def test_ranking_names_every_policy_and_the_best_has_all(found):
    assert set(found.ranking) == {"static", "padded", "continuous"}
    for side in ("executed", "simulated"):
        assert max(rates[side] for rates in found.ranking.values()) == 1.0


def test_a_band_is_given_where_it_was_asked_for(found):
    assert not found.cases[0].band
    low, high, _ = found.cases[3].band["e2e_mean_s"]
    assert low < high


def test_it_writes_tables_logs_figures_and_a_page(found, tmp_path):
    import pandas as pd

    page = write(found, tmp_path, ("svg", "png"))
    metrics = pd.read_csv(tmp_path / "metrics.csv")
    assert set(metrics["verdict"]) <= {
        compare.NOISE, compare.GATE, compare.TWICE_NOISE, compare.OUTSIDE, compare.UNGATED, compare.UNCLEAR
    }  # fmt: skip
    parts = pd.read_csv(tmp_path / "parts.csv")
    assert set(parts["part"]) == {"held-out shapes", "same batches"}
    log = pd.read_csv(tmp_path / "executed" / "continuous-0_5.decisions.csv.gz")
    assert (log["iterations"] == 1).all()
    for name in ("latencies-burst", "running-0_5"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")
    text = page.read_text(encoding="utf-8")
    assert "<h2>Held-out shapes" in text
    assert 'id="at-latencies-burst"' in text
    assert "gates met" in text
    json.loads((tmp_path / "validation.json").read_text(), parse_constant=pytest.fail)
    assert len(tables(found)) == 5


def test_a_drift_makes_a_run_inconclusive_after_its_tries(folder, monkeypatch):
    plan = folder / "drifted.yaml"
    data = yaml.safe_load((folder / "plan.yaml").read_text()) | {
        "loads": [0.5],
        "burst": False,
        "drift": 0.1,
        "tries": 3,
        "gates": [],
    }
    data["scenario"]["policies"] = data["scenario"]["policies"][2:]
    plan.write_text(yaml.safe_dump(data))
    # Only decoding has become slower: the step that is mostly arithmetic would not show it.
    slower = {"mixed": 1.0, "decode": 1.3}

    def timed(references, **precision):
        return {name: slower[name] * seconds for name, seconds in calibrated.items()}

    calibrated = json.loads((folder / "mine.json").read_text())["references_s"]
    monkeypatch.setattr(steps.References, "_timed", timed)
    [case] = validate(plan, "cpu").cases
    assert not case.conclusive
    assert case.tries == 3
    assert case.drift == pytest.approx(0.3)
    assert {c.verdict for c in case.comparisons} == {compare.UNCLEAR}


def test_interrupted_it_keeps_every_case_that_ran_at_all(folder):
    def interrupted(made):
        if made.made == 8:  # of twelve: six cases once, two of them twice
            raise KeyboardInterrupt

    found = validate(folder / "plan.yaml", "cpu", interrupted)
    assert found.interrupted
    assert verdict(found).headline == "Interrupted after 8 of 12 executions, no verdict on the rest."
    assert "ranking" not in str(verdict(found))
    assert [len(case.executed) for case in found.cases] == [2, 2, 1, 1, 1, 1]
    assert all(c.noise is None for case in found.cases[2:] for c in case.comparisons)


def test_a_batch_that_outgrows_the_memory_crashes_in_both(folder):
    data = yaml.safe_load((folder / "plan.yaml").read_text()) | {"loads": [], "band_loads": [], "gates": []}
    # A page of this model holds 32 tokens: so does a block.
    data["scenario"]["engine"] = {"max_model_len": 96, "block_size": 32, "kv_blocks": 6, "restart_s": 1}
    data["scenario"]["policies"] = data["scenario"]["policies"][:1]
    plan = folder / "tight.yaml"
    plan.write_text(yaml.safe_dump(data))
    found = validate(plan, "cpu")
    [case] = found.cases
    lost = case.simulated.requests["status"] == Status.OOM
    assert 0 < lost.sum() < len(lost)
    for executed in case.executed:
        assert np.array_equal(executed.run.requests["status"], case.simulated.requests["status"])
        assert [e.requests for e in executed.run.oom] == [e.requests for e in case.simulated.oom]
    runs_table = tables(found)[3]
    assert runs_table.rows[0][runs_table.columns.index("lost simulated")] == str(lost.sum())


def test_drift_is_the_worst_mean_with_its_sign():
    seen = [{"mixed": 1.02, "decode": 2.0}, {"mixed": 1.0, "decode": 1.6}]
    found = runs._drifts_of(seen, {"mixed": 1.0, "decode": 2.0})
    assert found == {"mixed": pytest.approx(0.01), "decode": pytest.approx(-0.1)}
    assert runs.Executed(None, found).drift == found["decode"]


def test_a_device_that_is_a_third_slower_is_told_apart_from_a_wrong_model(folder, monkeypatch):
    """Steps that take what the model says, times 4/3: the forecast is off by that, at the device's speed by nothing."""
    factor = 4 / 3
    calibrated = json.loads((folder / "mine.json").read_text())["references_s"]

    def timed(references, **precision):
        return {name: factor * seconds for name, seconds in calibrated.items()}

    def slower(bench, system):
        return modelled(system, step_time_scale=factor)

    monkeypatch.setattr(steps.References, "_timed", timed)
    monkeypatch.setattr(runs.Bench, "_machine", slower)
    found = validate(folder / "plan.yaml", "cpu")
    for case in found.cases:
        assert case.drift == pytest.approx(factor - 1)
        for c in case.comparisons:
            assert c.error_at_speed == pytest.approx(0, abs=1e-9)
        [tpot] = [c for c in case.comparisons if c.metric == "tpot_mean_s"]
        assert tpot.error < -0.1
        assert all(len(executed.run.decisions["seconds"]) for executed in case.executed)


def test_the_speed_is_looked_at_between_batches_by_device_time():
    class Fixed:
        def run(self, batch, until=math.inf):
            return Affine(0.1, 0.0, 1)

    looks = []
    watched = runs._Watched(Fixed(), lambda: looks.append(len(looks)) or {"mixed": 1.0})
    for _ in range(10):
        watched.run(None)
    assert len(watched.seen) == len(looks) == 4  # before the first, and after each 0.25 s


def test_verdicts():
    assert compare.verdict(0.02, 0.03, 0.10) == compare.NOISE
    assert compare.verdict(0.08, 0.03, 0.10) == compare.GATE
    assert compare.verdict(-0.15, 0.08, 0.10) == compare.TWICE_NOISE
    assert compare.verdict(-0.17, 0.08, 0.10) == compare.OUTSIDE
    assert compare.verdict(0.17, None, 0.10) == compare.OUTSIDE
    assert compare.verdict(0.17, 0.08, None) == compare.UNGATED
    assert compare.verdict(0.01, 0.08, 0.10, conclusive=False) == compare.UNCLEAR


def test_an_error_is_simulated_over_the_mean_of_the_executions():
    c = compare.compared("x", 1.1, [0.9, 1.1], 0.2)
    assert (c.error, c.noise) == (pytest.approx(0.1), pytest.approx(0.2))
    assert compare.compared("x", None, [1.0], 0.1) is None
    assert compare.compared("x", 0.0, [0.0, 0.0], 0.1) is None
    assert compare.within(1.0, 2.0, [1.0, 1.6]) is True
    assert compare.within(1.0, 2.0, [2.5, 2.5]) is False
    assert compare.within(None, 2.0, [1.0]) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- a list", "has no key 'scenario'"),
        ("scenario: {a: 1", "is not YAML"),
        ("{scenario: {}, load: [1]}", "load: .* extra inputs"),
        ("{scenario: {}, loads: [3]}", "loads.0: 3: input should be less than or equal to 2"),
        ("{scenario: {}, gates: [{loads: [0.3], metrics: [slot_waste], relative: 2}]}", "gates.0.relative: 2: input"),
        (
            "{scenario: {}, gates: [{loads: [0.3], metrics: [tpot_meen_s], relative: 0.1}]}",
            "gates.0.metrics: tpot_meen_s is no metric that is compared: did you mean tpot_mean_s",
        ),
        (
            "{scenario: {}, gates: [{loads: [0.7], metrics: [slot_waste], relative: 0.1}]}",
            r"gates\[0\]: 0.7 is not run: add it to loads",
        ),
        ("{scenario: {}, burst: false, band_loads: [burst]}", "band_loads: burst is not run"),
        ("{scenario: {}, loads: [0.3, 0.6, 0.3]}", "loads names one twice: 0.3, 0.6, 0.3"),
        ("{scenario: {}, loads: [], burst: false}", "nothing would be run"),
    ],
)
def test_a_file_that_is_no_validation_is_one_line(tmp_path, text, problem):
    file = tmp_path / "plan.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=problem) as raised:
        gates.read(file)
    assert str(raised.value).startswith(str(file))
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        gates.read(tmp_path / "none.yaml")


def edited(folder, **scenario):
    data = yaml.safe_load((folder / "plan.yaml").read_text())
    data["scenario"] |= scenario
    file = folder / "edited.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


@pytest.mark.parametrize(
    ("scenario", "problem"),
    [
        ({"profile": None, "device": "cpu"}, "scenario.profile: is missing"),
        ({"sweep": {"engine.block_size": [16, 32]}}, "sweep, seeds and horizon_s are not validated"),
        ({"model": "qwen3-14b"}, "was measured with two-layers"),
        ({"replicas": 2}, "replicas, warmup_s and cooldown_s are not validated"),
        ({"warmup_s": 0.5}, "replicas, warmup_s and cooldown_s are not validated"),
        (
            {"policies": [{"kind": "continuous", "enable_prefix_caching": True}]},
            "enable_prefix_caching: true is simulated",
        ),
    ],
)
def test_what_cannot_be_validated_is_one_line(folder, scenario, problem):
    with pytest.raises(InputError, match=problem):
        validate(edited(folder, **scenario), "cpu")


def test_a_profile_of_another_device_or_dtype_is_one_line(folder):
    facts = json.loads((folder / "mine.json").read_text())["identity"]
    data = yaml.safe_load((folder / "plan.yaml").read_text())["scenario"]
    served = runs.serving(check(data, folder))
    runs._require_same(facts, served, "cpu")
    with pytest.raises(InputError, match=r"--device: 'cuda:0', but the profile was measured on cpu"):
        runs._require_same(facts, served, "cuda:0")
    with pytest.raises(InputError, match="was measured in fp32, the model is in bf16"):
        runs._require_same(facts | {"dtype": "fp32"}, served, "cpu")
    with pytest.raises(InputError, match="was measured with tiny, not two-layers"):
        runs._require_same(facts | {"model": "tiny"}, served, "cpu")


def test_a_profile_that_calibrate_did_not_make_is_one_line(folder):
    with pytest.raises(InputError, match=r"has no h100-qwen3-14b\.json beside it"):
        runs.facts_of("h100-qwen3-14b")


def test_the_shipped_validation_is_a_scenario_with_gates():
    from servecast import resources

    path = resources.directory("scenarios") / "validation" / "cpu.yaml"
    plan = gates.read(path)
    assert plan.gate(0.3, "ttft_mean_s") == 0.10
    assert plan.gate("burst", "output_throughput_tps") == 0.08
    assert plan.gate(0.95, "ttft_mean_s") is None
    assert gates.at_load(plan, path.parent, 2.0).workload.arrivals.kind == "poisson"
    assert dataclasses.is_dataclass(runs.Executed)
