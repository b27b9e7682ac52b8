"""Fitting: known coefficients come back, what the data do not tell is pinned, and bad tables are refused by line."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from servecast.batch import StepShape
from servecast.calibration import fit as fitting
from servecast.calibration import steps
from servecast.cost import physics
from servecast.cost.fitted import COEFFICIENTS, FittedCost
from servecast.cost.profile import dump
from servecast.errors import InputError
from servecast.specs import catalogue

MODEL, DEVICE = catalogue.model("llama-3.1-8b"), catalogue.device("a100-80gb")
PEAK = physics.of(MODEL, DEVICE)
TRUE = FittedCost(PEAK.weight_read_s / 0.83, PEAK.token_s / 0.62, PEAK.pair_s / 0.4, PEAK.context_s / 0.7, 3e-5, 1.5e-3)


def table(shape, seconds):
    return pd.DataFrame({"seconds": seconds, **{name: getattr(shape, name) for name in StepShape._fields}})


def grid(n=1200, seed=0, most=8192):
    """Decode batches, prompts of all lengths with and without cached prefixes, and both together."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, n)
    prefill = kind > 0
    new = np.exp(rng.uniform(np.log(4), np.log(most), n)).astype(int) * prefill
    cached = rng.integers(0, 6000, n) * (rng.random(n) < 0.5) * prefill
    rows = np.where(kind < 2, np.exp(rng.uniform(0, np.log(256), n)).astype(int), 0)
    context = rows * np.exp(rng.uniform(np.log(16), np.log(4000), n)).astype(int)
    pairs = new * cached + new * (new + 1) // 2
    return StepShape(prefill * 1, new, pairs, cached, rows, context, np.maximum(context, cached))


def noisy(shape, spread, seed=1, cost=TRUE):
    return table(shape, cost.seconds(shape) * np.exp(np.random.default_rng(seed).normal(0, spread, len(shape[0]))))


def log(n, rng, prompts_every=40, prompt=1000):
    """A made-up engine log: consecutive decode steps, a prompt now and then; returns its shapes."""
    rows, context, out = 4, 4400, []
    for i in range(n):
        new = int(rng.normal(prompt, 15)) if i % prompts_every == 0 and i else 0
        out.append(StepShape(int(new > 0), new, new * (new + 1) // 2, 0, rows, context, 1100))
        context += rows
        if new:
            rows, context = rows + 1, context + new
            if rows > 12:
                rows, context = 4, 4400
    return StepShape(*(np.array(column) for column in zip(*out, strict=True)))


def fit(data, **options):
    return fitting.fit(data, MODEL, DEVICE, name="toy", date="2026-01-01", **options)


class TestKnownCoefficients:
    @pytest.fixture(scope="class")
    @staticmethod
    def profile():
        return fit(noisy(grid(), 0.02))

    def test_come_back(self, profile):
        for name in COEFFICIENTS:
            c = profile.coefficients[name]
            assert c.identified, (name, c)
            assert c.value == pytest.approx(getattr(TRUE, name), rel=0.12), name
        assert profile.sharpness.identified
        assert profile.sharpness.value == pytest.approx(5.0, rel=0.25)

    def test_hold_the_truth_in_their_intervals(self, profile):
        """Nine in ten should; seven coefficients of one fit leave room for one to miss."""
        held = [c.low <= getattr(TRUE, name) <= c.high for name, c in profile.coefficients.items()]
        held.append(profile.sharpness.low <= 5.0 <= profile.sharpness.high)
        assert sum(held) >= len(held) - 1

    def test_predict_what_was_held_out(self, profile):
        errors = {(e.part, e.regime): e for e in profile.held_out}
        assert errors["random", "all"].median < 0.02
        assert errors["largest", "all"].median < 0.025
        assert abs(errors["random", "all"].signed_mean) < 0.005
        assert {"decode", "mixed", "prefill"} <= {regime for _, regime in errors}

    def test_extrapolate(self, profile):
        """CAL-01: contexts and batches far beyond the data."""
        far = StepShape(0, 0, 0, 0, 512, 512 * 32_000, 32_000)
        assert profile.cost().seconds(far) == pytest.approx(TRUE.seconds(far), rel=0.05)
        assert profile.cost().extrapolated(far)
        assert profile.cost().extrapolation(far).factor > 10

    def test_residual_quantiles_are_those_of_the_noise(self, profile):
        for residuals in profile.residuals.values():
            assert residuals.quantiles[3] == pytest.approx(1.0, abs=0.01)
            assert residuals.quantiles[5] / residuals.quantiles[1] == pytest.approx(np.exp(2 * 1.645 * 0.02), abs=0.02)

    def test_covariance_is_that_of_the_intervals(self, profile):
        sigma = np.sqrt(np.diag(profile.covariance))
        half = np.array([(c.high - c.low) / 2 for c in profile.coefficients.values()])
        assert half == pytest.approx(1.645 * sigma, rel=0.15)

    def test_report_has_a_row_for_everything(self, profile):
        coefficients, errors, domain = fitting.report(profile).tables
        assert [row[0] for row in coefficients.rows] == [*COEFFICIENTS, "sharpness"]
        assert len(errors.rows) == len(profile.held_out)
        assert [row[0] for row in domain.rows] == ["decode", "mixed", "prefill"]
        assert all(len(row) == len(t.columns) for t in (coefficients, errors, domain) for row in t.rows)


def test_intervals_cover_the_truth_nine_times_in_ten():
    """With enough steps to pin nothing: a pinned coefficient that is wrong in truth moves its neighbours."""
    shape = grid(1200)
    covered = []
    for seed in range(12):
        profile = fit(noisy(shape, 0.02, seed=seed))
        assert all(c.identified for c in profile.coefficients.values())
        covered += [c.low <= getattr(TRUE, name) <= c.high for name, c in profile.coefficients.items() if c.identified]
    assert np.mean(covered) >= 0.8


def test_is_deterministic():
    data = noisy(grid(200), 0.02)
    assert dump(fit(data)) == dump(fit(data.copy()))
    assert dump(fit(data, seed=1)) != dump(fit(data))


def test_prompts_of_one_length_leave_pairs_and_context_to_physics():
    """A log like a client's: jitter that moves time from one step to the next, prompts of 1,000 tokens only."""
    rng = np.random.default_rng(0)
    true = FittedCost(PEAK.weight_read_s / 0.8, PEAK.token_s / 0.6, PEAK.pair_s / 0.6, PEAK.context_s / 0.8, 3e-5, 1e-3)
    shape = log(12_000, rng)
    late = rng.normal(0, 3e-4, len(shape[0]) + 1)
    profile = fit(table(shape, true.seconds(shape) * np.exp(rng.normal(0, 0.01, len(shape[0]))) + np.diff(late)))
    assert profile.provenance.rows_each == 16
    for name in ("weight_read_s", "pair_s", "context_s"):
        assert not profile.coefficients[name].identified
        assert "pinned" in profile.coefficients[name].how
    assert profile.coefficients["token_s"].identified
    cost = profile.cost()
    for n in (256, 512, 1024, 2048, 4096):
        prompt = StepShape(1, n, n * (n + 1) // 2, 0, 0, 0, n)
        assert cost.seconds(prompt) == pytest.approx(true.seconds(prompt), rel=0.05), n
    error = next(e for e in profile.held_out if (e.part, e.regime) == ("random", "all"))
    assert error.median < 0.005


def test_prefill_alone_and_decode_alone_are_fitted_with_the_rest_pinned():
    shape = grid(900)
    decode = shape.prefill_rows == 0
    only = StepShape(*(column[decode] for column in shape))
    profile = fit(noisy(only, 0.01))
    assert not profile.coefficients["pair_s"].identified
    assert any("no mixed or prefill step was measured" in note for note in profile.notes)
    assert profile.cost().seconds(only) == pytest.approx(TRUE.seconds(only), rel=0.03)
    prompt = StepShape(1, 2048, 2048 * 2049 // 2, 0, 0, 0, 2048)
    # CAL-09: prefill costs something even where nobody measured it
    assert profile.cost().seconds(prompt) > 2 * profile.cost().seconds(StepShape(0, 0, 0, 0, 1, 0, 0))
    only = StepShape(*(column[shape.decode_rows == 0] for column in shape))
    profile = fit(noisy(only, 0.01))
    assert profile.cost().seconds(only) == pytest.approx(TRUE.seconds(only), rel=0.04)


def test_nothing_is_fitted_below_the_roofline():
    """CAL-03, CAL-14: steps at 0.97 of the floor, as jitter makes them, give no coefficient below physics."""
    shape = grid(400)
    floor = physics.floor_seconds(shape, MODEL, DEVICE)
    profile = fit(table(shape, floor * np.random.default_rng(0).uniform(0.99, 1.05, len(floor))))
    for name, least in zip(COEFFICIENTS, PEAK[:5], strict=False):
        assert profile.coefficients[name].value >= least * (1 - 1e-6), name
        assert profile.coefficients[name].low >= 0
    wild = StepShape(*(column * 40 for column in shape))
    assert (profile.cost().seconds(wild) >= physics.floor_seconds(wild, MODEL, DEVICE) * 0.999).all()


def test_steps_faster_than_the_device_are_refused():
    data = noisy(grid(200), 0.02)
    data["seconds"] /= 20
    with pytest.raises(InputError, match=r"of the least time that 1 x a100-80gb needs for llama-3\.1-8b"):
        fit(data)
    assert fit(data, bounded_by_roofline=False).coefficients["token_s"].value < PEAK.token_s


@pytest.mark.parametrize("spread", [0.0, 0.05])
def test_steps_of_one_shape_are_refused_however_often_they_were_timed(spread):
    shape = StepShape(*(np.full(64, value) for value in (0, 0, 0, 0, 8, 4000, 600)))
    with pytest.raises(
        InputError, match=r"^steps: all 64 steps are of one shape .*decode_rows 8, .*that vary in these$"
    ):
        fit(noisy(shape, spread))
    contexts = shape._replace(decode_context=np.repeat([4000, 40_000], 32))
    assert fit(noisy(contexts, 0.01)).coefficients


def test_a_few_wild_steps_move_nothing():
    shape = grid(600)
    data = noisy(shape, 0.02)
    data.loc[::50, "seconds"] *= 20
    cost = fit(data).cost()
    assert cost.seconds(shape) == pytest.approx(TRUE.seconds(shape), rel=0.06)


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3"])
def test_experts_windows_and_latent_attention_have_physics(name):
    model = catalogue.model(name)
    device = catalogue.device("h200")
    peak = physics.of(model, device, tensor_parallel=8 if name == "deepseek-v3" else 1)
    assert all(value > 0 for value in peak[:5])
    assert (0 < peak.expert_share < 1) == (model.experts is not None)
    assert bool(peak.windows) == any(read.window for _, read in model.attended().reads)
    if name != "deepseek-v3":
        cost = FittedCost(*peak[:5], 0.0, 30.0, peak.expert_share, peak.expert_untouched, peak.windows)
        shape = StepShape(0, 0, 0, 0, np.array([1, 4, 16, 64]), np.array([90, 400, 1700, 6000]), np.full(4, 120))
        assert cost.seconds(shape) == pytest.approx(physics.floor_seconds(shape, model, device), rel=0.1)


class TestTables:
    @pytest.fixture
    def good(self):
        return noisy(grid(60), 0.02)

    @pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
    def test_formats_give_the_same_fit(self, good, tmp_path, ending):
        path = tmp_path / f"steps.{ending}"
        good.to_parquet(path) if ending == "parquet" else good.to_csv(path, index=False)
        read = steps.read(path)
        assert read.seconds == pytest.approx(good["seconds"].to_numpy(), rel=1e-12)
        assert read.files == (path.name,)
        assert len(read.sha256) == 64

    @pytest.mark.parametrize(
        ("column", "value", "problem"),
        [
            ("seconds", float("nan"), "seconds is 'nan'"),
            ("seconds", 0.0, "step time must be > 0"),
            ("seconds", -0.1, "must not be negative"),
            ("decode_context", -5, "must not be negative"),
            ("prefill_tokens", "many", "prefill_tokens is 'many'"),
            ("seconds", float("inf"), "put a finite number"),
        ],
    )
    @pytest.mark.parametrize("ending", ["csv", "parquet"])
    def test_bad_values_are_named_by_line(self, good, tmp_path, column, value, problem, ending):
        bad = good.astype({column: object})
        bad.loc[7, column] = value
        path = tmp_path / f"steps.{ending}"
        if ending == "csv":
            bad.to_csv(path, index=False)
        else:
            bad.astype({column: str}).to_parquet(path) if isinstance(value, str) else bad.to_parquet(path)
        with pytest.raises(InputError) as refused:
            steps.read(path)
        assert refused.value.place == f"{path}:{9 if ending == 'csv' else 8}"
        assert problem in str(refused.value)

    def test_a_step_of_nothing_and_impossible_prefills_are_refused(self, good):
        for edit, problem in (
            ({"prefill_rows": 0, "prefill_tokens": 0, "prefill_pairs": 0, "decode_rows": 0}, "at least one token"),
            ({"prefill_rows": 1, "prefill_tokens": 100, "prefill_pairs": 50}, "attends to itself"),
            ({"prefill_rows": 0, "prefill_tokens": 100, "prefill_pairs": 5050}, "come together"),
        ):
            bad = good.copy()
            for column, value in edit.items():
                bad.loc[3, column] = value
            with pytest.raises(InputError, match=problem) as refused:
                steps.from_frame(bad)
            assert refused.value.place == "steps:4"

    def test_missing_columns_files_and_rows_are_refused(self, good, tmp_path):
        with pytest.raises(InputError, match="column decode_rows, decode_context is missing"):
            steps.from_frame(good.drop(columns=["decode_rows", "decode_context"]))
        with pytest.raises(InputError, match="too few"):
            steps.from_frame(good.head(10))
        with pytest.raises(InputError, match="no such file"):
            steps.read(tmp_path / "none.csv")
        with pytest.raises(InputError, match="no table of steps"):
            steps.read([])
        (tmp_path / "steps.txt").write_text("x")
        with pytest.raises(InputError, match="not a known kind"):
            steps.read(tmp_path / "steps.txt")

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("a.csv", b""),
            ("b.csv.gz", b"not gzip"),
            ("c.parquet", b"not parquet"),
            ("d.csv", b"\xff\xfe\x81,\x00\n1,2\n"),
        ],
    )
    def test_files_that_are_no_tables_are_refused(self, tmp_path, name, content):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as refused:
            steps.read(tmp_path / name)
        assert name in str(refused.value)
        assert "\n" not in str(refused.value)

    def test_a_row_of_several_iterations_is_their_mean_step(self):
        shape = StepShape(0, 0, 0, 0, np.full(30, 4), np.arange(30) * 100 + 4000, np.full(30, 1000))
        iterations = np.full(30, 11)
        total = [sum(TRUE.seconds(StepShape(0, 0, 0, 0, 4, int(c) + 4 * i, 0)) for i in range(11)) for c in shape[5]]
        read = steps.from_frame(table(shape, total).assign(iterations=iterations))
        assert read.seconds == pytest.approx(TRUE.seconds(read.shape), rel=1e-12)
        assert read.shape.max_context[0] == 1005

    def test_columns_that_may_be_missing_are_zero_and_do_not_bound(self, good):
        read = steps.from_frame(good.drop(columns=["prefill_context", "max_context"]))
        assert not read.shape.max_context.any()
        assert read.measured == tuple(n for n in StepShape._fields if n not in ("prefill_context", "max_context"))

    def test_runs_are_kept_apart(self, good, tmp_path):
        paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
        for path in paths:
            good.to_csv(path, index=False)
        read = steps.read(paths)
        assert read.run.tolist() == [0] * 60 + [1] * 60
        assert read.files == ("a.csv", "b.csv")

    def test_a_log_is_told_from_a_grid(self, good):
        shape = log(200, np.random.default_rng(0))
        assert steps.from_frame(table(shape, TRUE.seconds(shape))).consecutive()
        assert not steps.from_frame(good).consecutive()


def test_a_short_log_is_fitted_or_refused_but_never_judged_on_what_it_saw():
    shape = log(200, np.random.default_rng(0))
    profile = fit(table(shape, TRUE.seconds(shape)))
    assert {e.part for e in profile.held_out} == {"random", "largest"}
    shortest = StepShape(*(column[:24] for column in shape))
    with pytest.raises(InputError, match="nothing to hold out"):
        fit(table(shortest, TRUE.seconds(shortest)))


def test_fit_file_takes_names_of_the_catalogue(tmp_path):
    noisy(grid(80), 0.01).to_csv(tmp_path / "steps.csv", index=False)
    profile = fitting.fit_file(
        tmp_path / "steps.csv", model="llama-3.1-8b", device="a100-80gb", name="toy", source="made up", engine="none"
    )
    assert (profile.model, profile.device, profile.provenance.rows) == ("llama-3.1-8b", "a100-80gb", 80)
    with pytest.raises(InputError):
        fitting.fit_file(tmp_path / "steps.csv", model="llama-9", device="a100-80gb", name="toy")
