"""Calibration on the CPU with a two-layer model: its files, resuming, quality, and every way it can go wrong."""

import dataclasses
import json
import os
import time

import numpy as np
import pytest
from specs import remade

from servecast.batch import StepShape
from servecast.calibration import whole_steps
from servecast.cost import profile as profiles
from servecast.cost.model import step_kind
from servecast.errors import InputError
from servecast.specs import catalogue

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'servecast[device]'")

from servecast.device import calibrate, grid, machine, quality, steps, timing  # noqa: E402
from servecast.device.model import transformer  # noqa: E402
from servecast.device.timing import Timing  # noqa: E402

SPEC = dataclasses.replace(catalogue.model("tiny"), dtype="fp32")
LIMITS = grid.Limits(4, 64, 96)
FORM = {"step": 2e-3, "token": 4e-5, "row": 1e-4, "context": 1e-6, "pair": 5e-8}


def request(folder, **changes):
    fields = {"model": SPEC, "device": "cpu", "output": folder / "mine.yaml", "budget_s": 60, "limits": LIMITS}
    return calibrate.Request(**(fields | {"rounds": 2} | changes))


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibration")
    told = []
    return calibrate.calibrate(request(folder), told.append), folder, told


def test_it_writes_a_profile_that_loads_and_steps_that_have_the_one_schema(calibration):
    import pandas as pd

    found, folder, told = calibration
    assert found.complete
    profile = profiles.load(folder / "mine.yaml")
    assert (profile.model, profile.device) == ("tiny", "cpu")
    assert profile.memory_bytes["weights"] == SPEC.weight_bytes()
    profile.require("tiny")
    with pytest.raises(InputError, match="model: qwen3-14b, but profile mine was measured with tiny"):
        profile.require("qwen3-14b")
    table = pd.read_csv(folder / "mine.steps.csv")
    assert set(StepShape._fields) | {"seconds", "iterations", "spread", "least_s", "most_s", "dropped"} <= set(table)
    assert (table["least_s"] <= table["seconds"]).all()
    assert (table["seconds"] <= table["most_s"]).all()
    assert (table["dropped"] >= 1).all()
    assert (table["max_context"] <= LIMITS.length).all()
    assert told[-1].made == told[-1].total == len(table)
    assert told[-1].left_s == 0


def test_servecast_fit_reads_its_table(calibration):
    from servecast.calibration import fit

    _, folder, _ = calibration
    fitted = fit.fit_file([folder / "mine.steps.csv"], model="tiny", device="a100-80gb", name="again")
    assert fitted.provenance.rows > 100


def test_held_out_steps_are_not_fitted_and_their_errors_stand_in_the_profile(calibration):
    found, _, _ = calibration
    assert found.facts["steps"]["held_out"] == found.facts["held_out"][0]["count"]
    assert found.profile.provenance.rows == found.facts["steps"]["grid"]
    assert {e.along for e in found.profile.held_out} == {"all", "decode", "mixed", "prefill"}
    # Whether the numbers are good is for results/validation-cpu: a shared machine with a 1 ms step proves little.
    assert found.facts["held_out"][0]["median"] < 0.5


def test_the_roofs_and_the_noise_stand_beside_it(calibration):
    found, folder, _ = calibration
    facts = json.loads((folder / "mine.json").read_text())
    assert facts["complete"]
    assert facts["ceilings"]["copy_Bps"] > 1e8
    assert facts["ceilings"]["matmul_flops"] > 1e9
    assert facts["noise"]["median"] >= 0
    assert facts["machine"]["threads"] == 1
    report = calibrate.report(found)
    assert any("noise floor" in table.columns for table in report.tables)


def test_memory_is_measured_not_computed_and_says_where(calibration):
    # CAL-13: counted from the tensors on the device, they agree with what the catalogue computes.
    found, folder, _ = calibration
    memory = profiles.load(folder / "mine.yaml").memory_bytes
    assert memory == pytest.approx(found.facts["memory"])
    assert memory["weights"] == SPEC.weight_bytes()
    assert memory["kv_per_token"] == SPEC.kv_bytes_per_token()
    assert found.profile.provenance.source
    assert found.profile.provenance.files == ("mine.steps.csv",)
    assert found.facts["machine"]["processor"]


def test_figures_are_drawn(calibration):
    from servecast.report import device_charts
    from servecast.report.charts.files import encoded

    found, _, _ = calibration
    for chart in (device_charts.fitted(found), device_charts.roofline(found, SPEC)):
        assert encoded(chart, "png").startswith(b"\x89PNG")
        points = [d for panel in chart.panels for each in panel.series for line in each.lines for d in line]
        assert len(points) == len(chart.panels) * len(found.steps)
        assert any(d.hollow for d in points) == (chart.name == "steps")


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    def killed(progress):
        if progress.made == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate.calibrate(request(tmp_path, rounds=1), killed)
    table = tmp_path / "mine.steps.csv"
    before = table.read_text()
    assert len(before.splitlines()) == 31
    table.write_text(before + "0.0012,1,0")  # the crash came in the middle of a line
    told = []
    found = calibrate.calibrate(request(tmp_path, rounds=1), told.append)
    assert told[0].made == 31
    assert table.read_text().startswith(before)
    assert found.complete
    kept = table.read_bytes(), (tmp_path / "mine.yaml").read_bytes()
    with pytest.raises(InputError, match=r"mine.json: a finished calibration stands here: .* --fresh"):
        calibrate.calibrate(request(tmp_path, rounds=1))
    assert (table.read_bytes(), (tmp_path / "mine.yaml").read_bytes()) == kept
    again = []
    calibrate.calibrate(request(tmp_path, rounds=1, fresh=True), again.append)
    assert again[0].made == 1


def test_a_profile_of_another_origin_is_not_written_over(tmp_path):
    (tmp_path / "mine.yaml").write_text("kind: fitted\n")
    with pytest.raises(InputError, match=r"mine.yaml: stands here without mine.json: .* --fresh"):
        calibrate.calibrate(request(tmp_path))
    (tmp_path / "mine.steps.csv").write_text("")
    (tmp_path / "mine.json").write_text('{"identity": 3}')
    with pytest.raises(InputError, match=r"mine.json: is not what a calibration writes"):
        calibrate.calibrate(request(tmp_path))
    assert (tmp_path / "mine.yaml").read_text() == "kind: fitted\n"


def test_a_model_that_takes_longer_to_make_than_there_is_time_is_one_line(tmp_path):
    deep = remade(dataclasses.replace(SPEC, name="deep"), 8)
    with pytest.raises(InputError, match=r"--budget-s: 1e-09 s made 1 of 8 layers of deep on cpu: give more time"):
        calibrate.calibrate(request(tmp_path, model=deep, budget_s=1e-9))


def test_an_unfinished_calibration_of_something_else_is_not_mixed_in(tmp_path):
    def killed(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate.calibrate(request(tmp_path), killed)
    other = dataclasses.replace(SPEC, name="another")
    with pytest.raises(InputError, match=r"mine.json: an unfinished calibration with model tiny stands here"):
        calibrate.calibrate(request(tmp_path, model=other))
    with pytest.raises(InputError, match=r"an unfinished calibration with dtype fp32 stands here, asked is bf16"):
        calibrate.calibrate(request(tmp_path, dtype="bf16"))


def unfinished(folder):
    """A calibration that was killed after 30 steps; its table and facts."""

    def killed(progress):
        if progress.made == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate.calibrate(request(folder, rounds=1), killed)
    return folder / "mine.steps.csv", folder / "mine.json"


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda text: "", "line 1: is not the heading"),
        (lambda text: text.replace("seconds", "secs", 1), "line 1: is not the heading"),
        (lambda text: changed(text, "seconds", "nan"), "line 3: seconds nan must be > 0 and finite"),
        (lambda text: changed(text, "seconds", "-1"), "line 3: seconds -1 must be > 0"),
        (lambda text: changed(text, "seconds", "1e999"), "line 3: seconds inf must be > 0 and finite"),
        (lambda text: changed(text, "seconds", "abc"), "line 3: seconds 'abc' is no number"),
        (lambda text: changed(text, "reference_decode_s", ""), "line 3: reference_decode_s '' is no number"),
        (lambda text: changed(text, "reference_s", "0"), "line 3: reference_s 0 must be > 0"),
        (lambda text: changed(text, "part", "whatever"), "line 3: part and shape are not those of"),
        (lambda text: changed(text, "decode_rows", "77"), "line 3: part and shape are not those of"),
        (lambda text: changed(text, "rows", "9x9+9"), "line 3: '9x9.9' is no step that would be measured"),
        (lambda text: text + text.splitlines()[5] + "\n", "line 32: .* stands twice in round 0"),
        (lambda text: text + "1,2,3\n", "line 32: there are not 19 values"),
        (lambda text: text + "\ud800", "is not UTF-8"),
    ],
)
def test_rows_that_no_calibration_wrote_are_one_line(killed_once, tmp_path, spoil, problem):
    for path in killed_once.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    table = tmp_path / "mine.steps.csv"
    table.write_bytes(spoil(table.read_text()).encode(errors="surrogatepass"))
    spoilt = table.read_bytes()
    with pytest.raises(InputError, match=problem) as raised:
        calibrate.calibrate(request(tmp_path, rounds=1))
    assert "mine.steps.csv" in raised.value.place
    assert table.read_bytes() == spoilt


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    unfinished(folder)
    return folder


def changed(text, column, value):
    """The table with another value in its second row."""
    lines = text.splitlines()
    names = lines[0].split(",")
    row = lines[2].split(",")
    row[names.index(column)] = value
    lines[2] = ",".join(row)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"identity": null, "complete": false, "machine": {}}', "\xff"])
def test_facts_that_no_calibration_wrote_are_one_line(killed_once, tmp_path, text):
    for path in killed_once.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "mine.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"mine.json: is not what a calibration writes"):
        calibrate.calibrate(request(tmp_path, rounds=1))


@pytest.mark.parametrize(("key", "value"), [("processor", "Intel 486"), ("torch", "1.0"), ("threads", 8)])
def test_rows_of_another_machine_are_not_mixed_in(killed_once, tmp_path, key, value):
    for path in killed_once.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    facts = json.loads((tmp_path / "mine.json").read_text())
    facts["machine"][key] = value
    (tmp_path / "mine.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match=rf"mine.json: an unfinished calibration with {key} {value} stands here"):
        calibrate.calibrate(request(tmp_path, rounds=1))


def test_a_full_disk_at_the_profile_loses_no_step(killed_once, tmp_path):
    for path in killed_once.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    partial = tmp_path / f".mine.yaml.{os.getpid()}.partial"
    partial.symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"mine.yaml: cannot be written \(No space left on device\); make room"):
        calibrate.calibrate(request(tmp_path, rounds=1))
    assert not partial.is_symlink()  # half a file does not stay
    measured = (tmp_path / "mine.steps.csv").read_bytes()
    told = []
    found = calibrate.calibrate(request(tmp_path, rounds=1), told.append)
    assert not told  # nothing was left to measure
    assert found.complete
    assert (tmp_path / "mine.steps.csv").read_bytes() == measured


def test_two_calibrations_do_not_write_one_file(tmp_path):
    refused = []

    def another(progress):
        if progress.made == 3:
            with pytest.raises(InputError, match=r"mine.steps.csv: another calibration is writing here") as raised:
                calibrate.calibrate(request(tmp_path, rounds=1, fresh=True))
            refused.append(raised)

    assert calibrate.calibrate(request(tmp_path, rounds=1), another).complete
    assert len(refused) == 1


def test_a_cache_larger_than_memory_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"--max-rows: 1000000 rows of 1000000 tokens take .* GB of KV cache"):
        calibrate.calibrate(request(tmp_path, limits=grid.Limits(1_000_000, 1_000_000, 96)))
    assert not list(tmp_path.iterdir())


def test_a_too_small_budget_is_one_line_and_keeps_what_it_measured(tmp_path):
    with pytest.raises(InputError, match=r"--budget-s: 1 s measured \d+ of the grid's steps, a fit takes 24"):
        calibrate.calibrate(request(tmp_path, budget_s=1), lambda progress: time.sleep(0.1))
    assert (tmp_path / "mine.steps.csv").is_file()
    with pytest.raises(InputError, match="--budget-s: 0 must be > 0"):
        calibrate.calibrate(request(tmp_path, budget_s=0))


def test_a_budget_in_which_nothing_is_measured_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(calibrate, "_measure", lambda *_: False)
    with pytest.raises(InputError, match="--budget-s: 60 s measured 0 of the grid's steps, a fit takes 24"):
        calibrate.calibrate(request(tmp_path))


def test_a_full_disk_is_one_line(tmp_path):
    (tmp_path / "mine.steps.csv").symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"mine.steps.csv: cannot be written \(No space left on device\); make room"):
        calibrate.calibrate(request(tmp_path))


def test_a_model_larger_than_memory_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"--model: the weights of llama-3.1-405b .* use fewer --layers"):
        calibrate.calibrate(request(tmp_path, model=catalogue.model("llama-3.1-405b")))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"device": "tpu"}, "--device: 'tpu' is no device"),
        ({"dtype": "fp16"}, "--dtype: fp16 is not computed on cpu: use bf16 or fp32"),
        ({"layers": 3}, "--layers: 3 is outside 1 to 2"),
        ({"model": catalogue.model("mixtral-8x7b")}, "mixtral-8x7b has a mixture of experts"),
        ({"entry": "h900"}, "h900"),
    ],
)
def test_what_cannot_be_calibrated_is_one_line(tmp_path, changes, problem):
    with pytest.raises(InputError, match=problem) as raised:
        calibrate.calibrate(request(tmp_path, **changes))
    assert "\n" not in str(raised.value)


def test_an_output_that_is_no_profile_is_one_line(tmp_path):
    with pytest.raises(InputError, match="is no YAML file"):
        calibrate.calibrate(request(tmp_path, output=tmp_path / "mine.csv"))
    with pytest.raises(InputError, match="there is no folder"):
        calibrate.calibrate(request(tmp_path, output=tmp_path / "no" / "mine.yaml"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_cuda_that_is_absent_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"--device: 'cuda:0' is not there"):
        calibrate.calibrate(request(tmp_path, device="cuda:0"))


def test_cut_layers_are_scaled_up(tmp_path, monkeypatch):
    def measured(step, now, **options):
        layers = len(step.__closure__[0].cell_contents.model.layers)
        seconds = 1e-3 + 2e-3 * layers  # what no layer takes, and what each takes
        return Timing(seconds, 3, 1, seconds, seconds, 0.0)

    monkeypatch.setattr(steps, "measure", measured)
    deep = remade(dataclasses.replace(SPEC, name="deep"), 8)
    for layers in (1, 3, 8):
        asked = request(tmp_path, model=deep, layers=layers)
        with torch.inference_mode():
            model = calibrate._built(asked, torch.device("cpu"), "fp32", LIMITS)
            some = steps.Steps(model, grid.Limits(4, 64, 64), layers=8)
        assert len(model.layers) == layers
        assert some.time(grid.Point(((32, 1),) * 4), np.inf).seconds == pytest.approx(17e-3)


def layered(monkeypatch, each):
    """Every step of n layers takes 1 ms and ``each`` (n) more."""

    def measured(step, now, **options):
        seconds = 1e-3 + each(len(step.__closure__[0].cell_contents.model.layers))
        return Timing(seconds, 3, 1, seconds, seconds, 0.0)

    monkeypatch.setattr(steps, "measure", measured)


def test_cut_layers_are_checked_at_full_depth(tmp_path, monkeypatch):
    layered(monkeypatch, lambda n: 2e-3 * n)
    found = calibrate.calibrate(request(tmp_path, layers=1, rounds=1))
    assert found.facts["layers_scaled"] == {"decode": pytest.approx(0), "prefill": pytest.approx(0)}
    assert any("1 of 2 layers computed" in note for note in found.profile.notes)
    assert any("checked at full depth: decode" in note for note in found.profile.notes)


def test_cut_layers_that_fit_a_cache_are_refused(tmp_path, monkeypatch):
    layered(monkeypatch, lambda n: 1e-3 if n == 1 else 2e-3 * n)
    with pytest.raises(InputError, match=r"--layers: 1 of 2 layers scaled up are -40% off a step at full depth"):
        calibrate.calibrate(request(tmp_path, layers=1))
    assert not list(tmp_path.iterdir())


def test_cut_layers_of_a_model_that_memory_does_not_hold_are_not_checked(tmp_path, monkeypatch):
    def full(model, dtype, device, place, layers=None):
        if layers is None:
            raise InputError(place, "too large")
        return 1 << 30

    layered(monkeypatch, lambda n: 2e-3 * n)
    monkeypatch.setattr(machine, "require_room", full)
    found = calibrate.calibrate(request(tmp_path, layers=1, rounds=1))
    assert found.facts["layers_scaled"] is None
    assert any("unchecked: memory does not hold all layers" in note for note in found.profile.notes)


def synthetic(noise=0.0, seed=0):
    points = [point for point in grid.points(grid.Limits(32, 1024, 2048)) if point.part == "grid"]
    columns = np.array([point.shape for point in points], dtype=float).T
    shape = StepShape(*columns)
    seconds = (
        FORM["step"]
        + FORM["token"] * (shape.prefill_tokens + shape.decode_rows)
        + FORM["row"] * (shape.prefill_rows + shape.decode_rows)
        + FORM["context"] * shape.decode_context
        + FORM["pair"] * shape.prefill_pairs
    )
    draw = np.random.default_rng(seed)
    return shape, seconds * draw.lognormal(0, noise, len(seconds)) if noise else seconds


@pytest.mark.parametrize(("noise", "close"), [(0.0, 0.005), (0.03, 0.06)])
def test_a_fit_recovers_known_coefficients(noise, close):
    shape, seconds = synthetic(noise)
    found = whole_steps.fit(shape, seconds)
    assert found.context_s[0] == pytest.approx(FORM["context"], rel=close)
    assert found.pair_s[0] == pytest.approx(FORM["pair"], rel=5 * close)
    assert found.context_s[1] <= found.context_s[0] <= found.context_s[2]
    (tokens, f), (rows, g) = found.tokens, found.rows
    every = f[0] + g[0], f[-1] + g[-1]
    assert every[0] == pytest.approx(FORM["step"] + FORM["token"] + FORM["row"], rel=2 * close)
    assert every[1] == pytest.approx(FORM["step"] + FORM["token"] * tokens[-1] + FORM["row"] * rows[-1], rel=2 * close)
    assert (np.array([*f, *g]) >= 0).all()  # CAL-14


@pytest.mark.parametrize(
    ("keep", "pinned"),
    [
        (lambda s: s.decode_rows == 0, {"context_s"}),  # no cached token in any decode step
        (lambda s: s.prefill_rows == 0, {"pair_s"}),
        (lambda s: s.prefill_tokens + s.decode_rows == 4, set()),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_a_term_that_no_step_holds_is_pinned_to_physics(keep, pinned, noise):
    shape, seconds = synthetic(noise)
    kept = keep(shape)
    physics = (2e-6, 1e-7)
    found = whole_steps.fit(
        StepShape(*(column[kept] for column in shape)), seconds[kept], physics=physics, replicates=20
    )
    assert pinned <= set(found.pinned)
    for (value, low, high), name, stated in zip(
        (found.context_s, found.pair_s), ("context_s", "pair_s"), physics, strict=True
    ):
        if name in found.pinned:
            assert (value, low < value < high) == (stated, True)


def test_cached_tokens_that_follow_the_rows_are_pinned():
    rows = np.tile([1.0, 2, 4, 8, 16, 32], 8)
    shape = StepShape(0 * rows, 0 * rows, 0 * rows, 0 * rows, rows, 500 * rows, 501 + 0 * rows)
    seconds = 2e-3 + 1e-4 * rows + 1e-6 * 500 * rows
    found = whole_steps.fit(shape, seconds, physics=(9e-7, 1e-8), replicates=5)
    assert set(found.pinned) == {"context_s", "pair_s"}
    assert found.context_s[0] == 9e-7
    steps = np.array(found.tokens[1]) + np.array(found.rows[1]) + 9e-7 * 500 * np.array(found.tokens[0])
    assert steps == pytest.approx(2e-3 + 6e-4 * np.array(found.tokens[0]), rel=0.01)


def random_grid(seed):
    """Steps of some kinds, whose columns may hold one value or two, bound by weights below 250 tokens: (shape, seconds,
    true k and q)."""
    rng = np.random.default_rng(seed)
    n = int(rng.choice([60, 120, 240]))
    kind = rng.choice(rng.choice(["decode", "prefill", "mixed"], rng.integers(1, 4), replace=False), n)

    def column(low, high):
        free = np.exp(rng.uniform(np.log(low), np.log(high), n))
        values = (free[:1], rng.choice(free[:2], n), free[0] * rng.uniform(0.95, 1.05, n), free, free)
        return np.broadcast_to(np.maximum(1, values[rng.integers(5)]).astype(int), n)

    rows, context, new, cached = column(1, 64), column(16, 4000), column(8, 2048), column(16, 2000)
    cached = cached * (rng.random() < 0.4)
    prefill, decode = kind != "decode", kind != "prefill"
    shape = StepShape(
        prefill * 1, new * prefill, (new * cached + new * (new + 1) // 2) * prefill, cached * prefill, rows * decode,
        rows * context * decode, np.maximum(context * decode, (cached + new) * prefill),
    )  # fmt: skip
    true = PEAKS[0] * rng.uniform(1.05, 2), PEAKS[1] * rng.uniform(1.2, 2.5)
    seconds = np.maximum(5e-3, 2e-5 * (shape.prefill_tokens + shape.decode_rows)) + 1e-3
    seconds = seconds + 1e-5 * (shape.prefill_rows + shape.decode_rows)
    seconds = seconds + true[0] * shape.decode_context + true[1] * shape.prefill_pairs
    return shape, seconds * np.exp(rng.normal(0, rng.choice([0, 0.005, 0.02, 0.04]), n)), true


PEAKS = 4e-8, 6e-10  # seconds a cached token, and a query-key pair


def test_attention_fitted_to_random_grids_is_near_the_truth_or_pinned_and_never_beats_the_peaks():
    far = []
    for seed in range(30):
        shape, seconds, true = random_grid(seed)
        physics = PEAKS[0] / 0.8, PEAKS[1] / 0.7
        found = whole_steps.fit(shape, seconds, physics=physics, peaks=PEAKS, replicates=40)
        terms = zip(("context_s", "pair_s"), (found.context_s, found.pair_s), true, physics, PEAKS, strict=True)
        for name, (value, low, high), truth, stated, least in terms:
            assert least * (1 - 1e-5) <= value <= 3 * truth, (seed, name)
            if name in found.pinned:
                assert value == pytest.approx(stated)
            else:
                assert high - low <= 0.5 * value * (1 + 1e-5)
                far.append(abs(value - truth) / max((high - low) / 3.29, 1e-3 * value))
    assert len(far) >= 12  # some grids do tell them
    assert sum(z > 3 for z in far) <= 1, sorted(far)[-3:]


def priced(shape, seconds):
    tables = whole_steps.fit(shape, seconds).tables(32, 1023, 2048, 1024)
    asked = calibrate.Request(SPEC, "cpu", None)
    coefficient = profiles.Coefficient(value=0.0, unit="s", low=0.0, high=0.0, identified=False, how="")
    return profiles.TabulatedProfile(
        name="synthetic", model=asked.model.name, device="cpu", host={"step_s": coefficient, "row_s": coefficient},
        tables=profiles.Tables.model_validate_json(json.dumps(tables)),
        provenance=profiles.Provenance(source="", engine="", date="", files=(), sha256="", rows=1, seed=0, rows_each=1),
    ).cost()  # fmt: skip


def test_bends_are_followed_and_the_rest_stays_straight():
    shape, seconds = synthetic()
    tokens = shape.prefill_tokens + shape.decode_rows
    bent = seconds - np.where(tokens == 1, 1e-3, 0) + np.where(tokens == 3, 5e-4, 0)
    cost = priced(shape, bent)
    error = np.abs(cost.seconds(shape) / bent - 1)
    assert np.median(error) < 0.01
    assert cost.seconds(StepShape(0, 0, 0, 0, 1, 100, 101)) == pytest.approx(1.24e-3, rel=0.05)


def test_prices_beyond_the_grid():
    shape, seconds = synthetic(0.02)
    cost = priced(shape, seconds)
    # CAL-01: a context 32 times as long as any measured costs its share, and more always costs more.
    contexts = [16, 1000, 4000, 32_000, 128_000]
    taken = [cost.seconds(StepShape(0, 0, 0, 0, 4, 4 * c, c + 1)) for c in contexts]
    assert taken == sorted(taken)
    assert taken[-1] == pytest.approx(FORM["context"] * 4 * 128_000, rel=0.1)
    # CAL-09: prefill has an effect.
    with_prefill = cost.seconds(StepShape(1, 2048, 2048 * 2049 // 2, 0, 4, 400, 2048))
    assert with_prefill > cost.seconds(StepShape(0, 0, 0, 0, 4, 400, 101)) + 2000 * FORM["token"]
    # CAL-11: more rows always take longer, beyond the last one measured too.
    rows = [cost.seconds(StepShape(0, 0, 0, 0, n, 32 * n, 33)) for n in (32, 64, 128, 256, 10_000)]
    assert rows == sorted(rows)
    assert len(set(rows)) == len(rows)
    # CAL-03: extrapolated a thousandfold, tokens cost at least what they cost inside.
    assert rows[-1] >= 10_000 * FORM["token"]


def test_linear_times_stay_linear_between_knots():
    # CAL-05: half way between two measured lengths a time that is linear in tokens is the mean of theirs.
    shape, _ = synthetic()
    tokens = shape.prefill_tokens + shape.decode_rows
    cost = priced(shape, tokens * 1e-5)
    for between in (1280, 1536, 1792):
        assert cost.seconds(StepShape(1, between, 0, 0, 0, 0, between)) == pytest.approx(between * 1e-5, rel=0.005)


def test_errors_and_coverage_are_counted_by_kind():
    import pandas as pd

    shape, seconds = synthetic()
    table = pd.DataFrame(dict(zip(StepShape._fields, shape, strict=True)))
    table["seconds"], table["predicted_s"] = seconds, seconds * 1.1
    found = list(quality.errors(table, "predicted_s"))
    assert [e["regime"] for e in found] == [
        "all",
        *[k for k in ("decode", "mixed", "prefill") if k in step_kind(shape)],
    ]
    assert all(e["median"] == pytest.approx(0.1) and e["signed_mean"] == pytest.approx(0.1) for e in found)
    table["predicted_s"] *= np.random.default_rng(0).lognormal(0, 0.05, len(table))
    table["unseen_s"] = table["predicted_s"]
    assert quality.coverage(quality.intervals(table), table) == pytest.approx(0.9, abs=0.05)
    assert quality.coverage({"decode": [2.0, 3.0]}, table) == 0.0


def apart(shape, seconds):
    """What a fit to the others says of each step."""
    return whole_steps.unseen(shape, seconds, whole_steps.fit(shape, seconds, replicates=5))


def test_intervals_of_unseen_steps_hold_nine_in_ten_new_ones():
    import pandas as pd

    shape, seconds = synthetic()
    draw = np.random.default_rng(5)
    held, own = [], []
    for _ in range(20):
        noisy, new = (seconds * draw.lognormal(0, 0.05, len(seconds)) for _ in range(2))
        table = pd.DataFrame(dict(zip(StepShape._fields, shape, strict=True)))
        table["seconds"] = noisy
        fitted = priced(shape, noisy).seconds(shape)
        for bounds, predicted in ((held, apart(shape, noisy)), (own, fitted)):
            table["unseen_s"] = predicted
            again = table.assign(seconds=new, predicted_s=fitted)
            bounds.append(quality.coverage(quality.intervals(table), again))
    assert 0.88 <= np.mean(held) <= 0.97
    assert np.mean(own) < np.mean(held) - 0.02  # a fit's own residuals are too small


def test_a_step_that_is_left_out_does_not_tell_its_own_prediction():
    shape, seconds = synthetic()
    wild = seconds.copy()
    wild[7] *= 5
    assert apart(shape, wild)[7] == pytest.approx(apart(shape, seconds)[7], rel=0.02)


def test_what_is_pinned_is_pinned_for_steps_that_are_left_out_too():
    rows = np.repeat([1.0, 2, 4, 8, 16, 32], 4)
    none, tokens = 0 * rows, np.tile([0.0, 64, 256, 1024], 6)
    shape = StepShape((tokens > 0) * 1.0, tokens, tokens * (tokens + 1) / 2, none, rows, 100 * rows, none + 1100)
    seconds = 0.01 + 1e-5 * (rows + tokens) + 2e-8 * 100 * rows + 1e-9 * shape.prefill_pairs
    found = whole_steps.fit(shape, seconds, replicates=5, physics=(2e-8, 1e-9))
    assert found.pinned == ("context_s", "pair_s")  # as many cached tokens for each row, as many tokens as knots
    assert found.sure == (2e-8, 1e-9)
    assert whole_steps.unseen(shape, seconds, found) == pytest.approx(seconds, rel=0.1)
    # A pin that takes all of a step with many rows leaves nothing to fit there.
    dear = whole_steps.unseen(shape, seconds, found._replace(sure=(1e-5, 1e-9)))
    assert (dear[rows == 32] > 1.5 * seconds[rows == 32]).all()


def test_reference_steps_take_no_more_cache_than_they_need():
    """They are kept beside an executed run's own cache."""
    limits = grid.Limits(32, 256, 512)
    with torch.inference_mode():
        model = transformer(SPEC, torch.device("cpu"), "fp32", max_positions=256)
    references = steps.References(model, {"limits": dataclasses.asdict(limits), "graphs": False})
    assert (references._steps.cache.slots, references._steps.cache.max_length) == (9 + 3, 65)
    assert set(references.glance()) == {"mixed", "decode"}


def test_noise_is_the_device_against_itself():
    import pandas as pd

    rounds = pd.DataFrame({"rows": ["a"] * 4 + ["b"] * 4, "seconds": [1.0, 1.0, 1.0, 1.1, 2.0, 2.0, 2.0, 2.0]})
    assert quality.noise(rounds)["median"] == pytest.approx(0.0)
    assert quality.noise(rounds)["p95"] == pytest.approx(0.065, rel=0.1)
    assert quality.noise(rounds.iloc[[0, 4]])["median"] is None


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA L40", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None),
        ("NVIDIA GB200", None),
    ],
)
def test_a_gpu_is_the_one_of_its_whole_name_or_asked_for(monkeypatch, name, entry):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    if entry is None:
        with pytest.raises(InputError, match="is not in the catalogue: say which entry it is with --as"):
            machine.spec_of(torch.device("cuda"), None)
    else:
        assert machine.spec_of(torch.device("cuda"), None).name == entry


@pytest.mark.parametrize("version", ["2.6.0+cu124", "2.10.1", "1.13"])
def test_a_torch_that_is_too_old_is_refused_in_one_line(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(InputError, match=r"^torch: .* is older than 2.11.*: pip install 'torch>=2.11'$"):
        timing.open_device("cpu")


def test_the_extra_asks_for_the_lowest_torch_that_is_taken():
    import re
    from pathlib import Path

    text = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'device = \["torch>=([\d.]+)"\]', text)[1] == ".".join(map(str, timing.LOWEST_TORCH))


def test_gpus_are_found_in_the_catalogue_by_their_own_names():
    entries = {spec.name for spec in catalogue.devices()}
    assert set(machine._GPU_NAMES) <= entries
    assert machine.spec_of(torch.device("cpu"), None).name == "cpu"
    assert machine.memory_bytes(torch.device("cpu"), catalogue.device("cpu")) > 1e8
    assert machine.conditions(torch.device("cpu")) == {}
