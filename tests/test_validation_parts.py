"""The parts of a validation, each on numbers that follow by hand, and the whole on devices of a known speed.

A device stands in for a real one that takes what the model says, times a factor of each execution. Nothing is timed.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from toy_runs import ToyRun, decision_columns

from servecast.against.device import compare, execute, runs
from servecast.against.device import validate as validation
from servecast.against.device.gates import BURST
from servecast.policies import Continuous, Padded, Static
from servecast.report.verdicts.validate import verdict
from servecast.requests import Status
from servecast.run.system import modelled
from servecast.scenario import check
from servecast.scenario.serving import serving

SCENARIO = {
    "name": "small",
    "model": "cpu-small",
    "profile": "cpu-tiny",
    "engine": {"max_model_len": 256, "kv_blocks": 64},
    "workload": {
        "arrivals": {"kind": "burst"},
        "prompt_tokens": {"kind": "uniform", "min_tokens": 4, "max_tokens": 60},
        "output_tokens": {"kind": "uniform", "min_tokens": 1, "max_tokens": 60},
        "requests": 24,
        "seed": 3,
    },
    "policies": [
        {"kind": "static", "batch_size": 2, "max_wait_s": 0.02},
        {"kind": "continuous", "max_num_seqs": 8, "max_num_batched_tokens": 128},
    ],
}


# --- compare and speed ----------------------------------------------------------------------------------------------


def test_the_error_at_speed_is_of_each_simulation_over_its_own_execution():
    c = compare.compared("x", 3.0, [2.0, 4.0], None, knowing=[1.0, 5.0])
    assert c.error_at_speed == pytest.approx((1 / 2 - 1 + 5 / 4 - 1) / 2)
    assert compare.compared("x", 3.0, [2.0, 4.0], None, knowing=[None, 5.0]).error_at_speed == pytest.approx(0.25)
    assert compare.compared("x", 3.0, [2.0, 4.0], None).error_at_speed is None


class Flat:
    """Every step takes 2 ms, and 1 ms more for each row that prefills."""

    def seconds(self, shape):
        return 2e-3 + 1e-3 * np.asarray(shape.prefill_rows)


def executed_log():
    """A prompt and three runs of decoding: 24 ms that the model says take 13, one step of 4 and five of 2 each."""
    decode = {"decode_rows": 2, "decode_context": 40, "max_context": 30}
    return decision_columns(
        [
            {"seconds": 4e-3, "prefill_rows": 2, "prefill_tokens": 40, "prefill_pairs": 420, "max_context": 30},
            {"seconds": 8e-3, "iterations": 2, **decode},
            {"seconds": 2e-3, "iterations": 1, **decode},
            {"seconds": 10e-3, "iterations": 2, **decode},
        ]
    )


def test_the_total_of_the_same_batches_is_forecast_over_executed():
    every, decode, prefill = compare.same_batches(Flat(), ToyRun({}, executed_log()))
    assert [part["regime"] for part in (every, decode, prefill)] == ["all", "decode", "prefill"]
    assert [part["count"] for part in (every, decode, prefill)] == [4, 3, 1]
    assert every["busy_s"] == pytest.approx(24e-3)
    assert every["total"] == pytest.approx((4 + 4 + 2 + 4) / 24 - 1)
    assert decode["total"] == pytest.approx((4 + 2 + 4) / 20 - 1)
    assert prefill["total"] == pytest.approx(0.0)
    assert decode["median"] == pytest.approx(0.5)  # of 4/8, 2/2 and 4/10, less one


def test_a_band_holds_the_mean_of_the_executions():
    assert compare.within(1.0, 2.0, [0.5, 1.7]) is True
    assert compare.within(1.0, 2.0, [1.5, 3.5]) is False
    assert compare.within(2.0, 1.0, [1.5]) is True


def test_decoding_goes_by_its_own_reference_and_by_its_share_of_the_time():
    run = ToyRun({}, executed_log())
    assert runs.scale(run, {"decode": 0.3, "mixed": 0.0}) == pytest.approx(1 + 20 / 24 * 0.3)
    assert runs.scale(run, {"decode": 0.0, "mixed": 0.3}) == pytest.approx(1 + 4 / 24 * 0.3)
    assert runs.scale(run, {"decode": -0.1, "mixed": 0.2}) == pytest.approx(1 + (20 * -0.1 + 4 * 0.2) / 24)
    prompt = {"prefill_rows": 1, "prefill_tokens": 9, "decode_rows": 3, "decode_context": 30, "max_context": 11}
    beside = ToyRun({}, decision_columns([{"seconds": 1e-3, **prompt}]))
    assert runs.scale(beside, {"decode": 0.5, "mixed": 0.2}) == pytest.approx(1.2)
    assert runs.scale(ToyRun({}, decision_columns([])), {"decode": 0.5, "mixed": 0.2}) == pytest.approx(1.2)


# --- validate -------------------------------------------------------------------------------------------------------


class Benches:
    """Makes benches whose device takes ``factors`` times what is forecast: of the first executions, then the second."""

    def __init__(self, factors):
        self.factors = factors
        self.executed = []
        self.made = None

    def __call__(self, scenario, device, facts, layers=None):
        self.made = StandIn(scenario, self)
        return self.made


class StandIn(runs.Bench):
    def __init__(self, scenario, benches):
        self.served = serving(scenario)
        self.cost = self.served.cost
        self._benches = benches

    def held_out(self):
        return []

    def execute(self, scenario, at):
        executed = self._benches.executed
        arrivals = scenario.workload.arrivals
        which = (at, getattr(arrivals, "rate_rps", None))
        factor = self._benches.factors[executed.count(which)]
        executed.append(which)
        return runs.Executed(self.simulate(scenario, at, factor), {"mixed": factor - 1, "decode": factor - 1})


@pytest.fixture
def validated(tmp_path, monkeypatch):
    """Validates on a device of given factors."""

    def run(factors, **plan):
        benches = Benches(factors)
        monkeypatch.setattr(validation, "Bench", benches)
        file = tmp_path / "plan.yaml"
        file.write_text(yaml.safe_dump({"scenario": SCENARIO, "loads": [0.5], "tries": 1, "drift": 10.0} | plan))
        return validation.validate(file, "cpu"), benches

    return run


def test_every_policy_is_run_at_a_share_of_its_own_saturation(validated):
    found, benches = validated([1.0, 1.0], loads=[0.5, 0.8])
    burst = check(SCENARIO, None)
    own = []
    for at in range(2):
        run = benches.made.simulate(burst, at)
        assert (run.requests["status"] == Status.COMPLETED).all()
        own.append(len(run.requests["id"]) / np.max(run.requests["finish_s"]))
    assert own[1] > 1.2 * own[0]
    rates = {(case.policy, case.load): case.rate_rps for case in found.cases}
    assert rates.pop(("static", BURST)) is rates.pop(("continuous", BURST)) is None
    assert rates == {
        (policy, load): pytest.approx(load * own[at])
        for at, policy in enumerate(("static", "continuous"))
        for load in (0.5, 0.8)
    }
    for case in found.cases:
        # So were they executed, twice, and simulated.
        assert benches.executed.count((["static", "continuous"].index(case.policy), case.rate_rps)) == 2
        assert np.array_equal(case.simulated.requests["finish_s"], case.executed[0].run.requests["finish_s"])
        assert all(c.error == 0 for c in case.comparisons)


def test_every_execution_is_simulated_at_the_speed_that_it_had_itself(validated):
    found, _ = validated([1.25, 0.8])
    assert len(found.cases) == 4
    for case in found.cases:
        assert {c.metric for c in case.comparisons} >= {"makespan_s", "ttft_mean_s", "tpot_mean_s"}
        for c in case.comparisons:
            assert c.error_at_speed == pytest.approx(0, abs=1e-9), c.metric
        [tpot] = [c for c in case.comparisons if c.metric == "tpot_mean_s"]
        assert tpot.noise > 0.1
        assert max(tpot.executed) > 1.15 * min(tpot.executed)


@pytest.mark.parametrize("factors", [[0.7, 1.1], [1.1, 0.7]])
def test_the_drift_of_a_case_is_its_worst_whichever_way(validated, factors):
    found, _ = validated(factors, drift=0.2)
    for case in found.cases:
        assert case.drift == pytest.approx(-0.3)
        assert not case.conclusive
        assert {c.verdict for c in case.comparisons} == {compare.UNCLEAR}
    found, _ = validated(factors, drift=0.35)
    assert all(case.conclusive for case in found.cases)


def test_the_band_is_about_the_mean_of_two_executions(validated):
    """In a burst every time goes as the steps do: 1.2 and 0.82 of the forecast are 1.01 of it together."""
    plan = {"band": [0.95, 1.05], "band_loads": [BURST]}
    found, _ = validated([1.2, 0.82], **plan)
    case = next(case for case in found.cases if (case.policy, case.load) == ("continuous", BURST))
    low, high, inside = case.band["makespan_s"]
    [makespan] = [c for c in case.comparisons if c.metric == "makespan_s"]
    assert makespan.error == pytest.approx(1 / 1.01 - 1)
    assert (low, high) == (pytest.approx(0.95 * makespan.simulated), pytest.approx(1.05 * makespan.simulated))
    assert inside
    found, _ = validated([1.0, 1.2], **plan)
    case = next(case for case in found.cases if (case.policy, case.load) == ("continuous", BURST))
    assert case.band["makespan_s"] == (low, high, False)
    assert all(not case.band for case in found.cases if case.load != BURST)


# --- runs -----------------------------------------------------------------------------------------------------------


#: What reference steps take about a run, as when they were calibrated, and while it is on.
ABOUT, DURING = {"mixed": 1.0, "decode": 2.0}, {"mixed": 1.6, "decode": 2.2}


class Looked:
    """Reference steps of these times."""

    def __init__(self):
        self.asked = []

    def seconds(self):
        self.asked.append("about")
        return ABOUT

    def glance(self):
        self.asked.append("during")
        return DURING


class OnSlowDevice(runs.Bench):
    """A bench whose device takes 200 times what is forecast, so that there is time to look."""

    def __init__(self, scenario, kind):
        self.served = serving(scenario)
        self.cost = self.served.cost
        self.facts = {"references_s": ABOUT}
        self.model = SimpleNamespace(device=SimpleNamespace(type=kind))
        self._references = Looked()

    def _machine(self, system):
        return modelled(system, step_time_scale=200.0)


@pytest.mark.parametrize("at", [0, 1])
def test_what_is_seen_of_the_speed_during_a_run_counts_as_what_is_seen_about_it(at):
    scenario = check(SCENARIO, None)
    bench = OnSlowDevice(scenario, "cpu")
    executed = bench.execute(scenario, at)
    asked = bench._references.asked
    looks = asked.count("during")
    assert asked == ["about", *["during"] * looks, "about"]
    assert looks > 2
    assert executed.drifts == {
        "mixed": pytest.approx((2 * 1.0 + looks * 1.6) / (2 + looks) / 1.0 - 1),
        "decode": pytest.approx((2 * 2.0 + looks * 2.2) / (2 + looks) / 2.0 - 1),
    }
    assert executed.drift == executed.drifts["mixed"]
    # Looking takes no time of the run.
    assert np.array_equal(executed.run.requests["finish_s"], bench.simulate(scenario, at, 200.0).requests["finish_s"])


def test_on_a_gpu_nobody_looks_during_a_run():
    scenario = check(SCENARIO, None)
    bench = OnSlowDevice(scenario, "cuda")
    assert bench.execute(scenario, 1).drifts == {"mixed": 0.0, "decode": 0.0}
    assert bench._references.asked == ["about"] * 2


# --- write ----------------------------------------------------------------------------------------------------------


def told(verdicts, gate=0.1, ranking=(), **fields):
    comparisons = tuple(compare.Compared("x", 1.0, (1.0, 1.0), 0.0, 0.0, gate, name) for name in verdicts)
    ungated = compare.Compared("x", 1.0, (1.0, 1.0), 0.5, 0.0, None, compare.UNGATED)
    case = SimpleNamespace(comparisons=(*comparisons, ungated), executed=(None, None))
    fields = {"ranking": dict(ranking)} | fields
    return verdict(validation.Validation(None, "small", "cpu", {}, [], (case,), **fields))


def test_a_gate_is_met_only_where_something_says_so():
    every = [
        *[compare.NOISE] * 3, *[compare.GATE] * 4, *[compare.TWICE_NOISE] * 2, *[compare.OUTSIDE] * 5,
        *[compare.UNCLEAR] * 6,
    ]  # fmt: skip
    assert told(every) == (
        "9 of 20 gates met, 5 missed, 6 inconclusive.",
        ("2 of those met are met only by twice the noise.",),
    )
    assert told([compare.UNCLEAR] * 3) == ("0 of 3 gates met, 0 missed, 3 inconclusive.", ())
    assert told([compare.OUTSIDE]) == ("0 of 1 gates met, 1 missed, 0 inconclusive.", ())


def test_the_ranking_is_the_same_where_both_sides_order_alike():
    both = {"a": {"executed": 1.0, "simulated": 0.9}, "b": {"executed": 0.5, "simulated": 1.0}}
    assert told([compare.GATE], ranking=both).details == ("The ranking of the policies is NOT the same.",)
    both["b"]["simulated"] = 0.8
    assert told([compare.GATE], ranking=both).details == ("The ranking of the policies is the same.",)


# --- execute --------------------------------------------------------------------------------------------------------

PLANNED = SimpleNamespace(
    kv_blocks=100, block_bytes=4096, block_size=16, usable_bytes=1e9, weight_bytes=4e8, overhead_bytes=1e8,
    activation_bytes=1e6,
)  # fmt: skip


@pytest.mark.parametrize("policy", [Static(4, 0.01), Padded(4, 0.01)])
def test_batches_that_fill_the_memory_exactly_cannot_outgrow_it(policy):
    pytest.importorskip("torch", reason="torch is not installed: pip install 'servecast[device]'")
    model = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    assert execute._limit(model, policy, 99, PLANNED) is None
    assert execute._limit(model, policy, 100, PLANNED) is None
    beyond = execute._limit(model, policy, 101, PLANNED)
    block = 1 if policy.rectangle else 16
    assert (beyond.budget, beyond.cache_bytes, beyond.block_size) == (int(5e8), 100 * 4096, block)
    # Whom the memory preempts it does not crash.
    assert execute._limit(model, Continuous(4, 64), 101, PLANNED) is None


def test_the_limit_of_batches_that_can_outgrow_the_memory(monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed: pip install 'servecast[device]'")
    from servecast.device import limit as limits

    monkeypatch.setattr(limits, "give_back_freed_memory", lambda: None)  # nothing is taken here
    model = SimpleNamespace(device=SimpleNamespace(type="cpu"))
    for policy, block in ((Static(4, 0.01), 16), (Padded(4, 0.01), 1)):
        limit = execute._limit(model, policy, 101, PLANNED)
        assert (limit.budget, limit.cache_bytes, limit.block_size) == (int(5e8), 100 * 4096, block)
