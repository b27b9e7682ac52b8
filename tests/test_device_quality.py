"""What a calibration says of itself, worked out a second time from its own table; its steps, and their shapes.

Nothing is timed here: a device of a known time for each shape stands in for a real one.
"""

import dataclasses
import math
import statistics

import numpy as np
import pandas as pd
import pytest

from servecast.batch import StepShape
from servecast.calibration import whole_steps
from servecast.cost import physics
from servecast.errors import InputError
from servecast.specs import catalogue

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'servecast[device]'")

from servecast.device import calibrate, grid, quality, steps  # noqa: E402
from servecast.device.machine import Ceilings  # noqa: E402
from servecast.device.model import transformer  # noqa: E402
from servecast.device.ragged import Ragged  # noqa: E402
from servecast.device.timing import Timing  # noqa: E402

SPEC = dataclasses.replace(catalogue.model("tiny"), dtype="fp32")
LIMITS = grid.Limits(4, 64, 96)
ROUNDS = 3
GOLDEN = (math.sqrt(5) - 1) / 2


# --- quality --------------------------------------------------------------------------------------------------------


def decoding(ratios):
    """Steps that decode and took ``ratios`` of what a fit to the others predicts."""
    shape = StepShape(0, 0, 0, 0, 1, 100, 101)
    return pd.DataFrame([shape._asdict() | {"seconds": 3e-3 * ratio, "unseen_s": 3e-3} for ratio in ratios])


@pytest.mark.parametrize(
    ("count", "lower", "upper"),
    [(1, 1, 1), (5, 1, 5), (38, 1, 38), (39, 2, 38), (40, 2, 39), (58, 2, 57), (59, 3, 57), (99, 5, 95)],
)
def test_the_bounds_of_an_interval_are_order_statistics(count, lower, upper):
    """k of n + 1 lie below the k-th of n: a twentieth on either side, or the extremes where that is less than one."""
    ordered = [1 + rank / 1000 for rank in range(1, count + 1)]
    shuffled = np.random.default_rng(count).permutation(ordered)
    assert quality.intervals(decoding(shuffled)) == {"decode": [ordered[lower - 1], ordered[upper - 1]]}


def test_each_kind_of_step_has_an_interval_of_its_own():
    table = decoding([0.9, 1.0, 1.2])
    prompts = decoding([0.5, 2.0]).assign(prefill_rows=1, prefill_tokens=9, decode_rows=0)
    assert quality.intervals(pd.concat([table, prompts], ignore_index=True)) == {
        "decode": [0.9, 1.2],
        "prefill": [0.5, 2.0],
    }


def test_a_round_is_held_against_the_others_not_against_itself():
    rounds = pd.DataFrame({"rows": ["a"] * 3, "seconds": [1.0, 2.0, 4.0]})
    against = [1 - 1 / 3, 1 - 2 / 2.5, 4 / 1.5 - 1]
    assert quality.noise(rounds)["median"] == pytest.approx(statistics.median(against))
    assert quality.noise(rounds)["p95"] == pytest.approx(np.quantile(against, 0.95))
    four = pd.DataFrame({"rows": ["a"] * 4, "seconds": [1.0, 1.0, 2.0, 4.0]})
    # The others' medians are 2, 2, 1 and 1: off by a half, a half, one and three.
    assert quality.noise(four)["median"] == pytest.approx((0.5 + 1.0) / 2)
    two = pd.DataFrame({"rows": ["a"] * 2, "seconds": [1.0, 1.25]})
    assert quality.noise(two)["median"] == pytest.approx((0.2 + 0.25) / 2)


def test_a_step_takes_the_median_of_its_rounds_in_the_order_of_the_first():
    raw = pd.DataFrame(
        {"rows": ["b", "a", "b", "a", "b", "a"], "part": "grid", "seconds": [9.0, 1.0, 2.0, 3.0, 4.0, 7.0]}
    )
    assert quality.by_step(raw)[["rows", "part", "seconds"]].to_numpy().tolist() == [
        ["b", "grid", 4.0],
        ["a", "grid", 3.0],
    ]


# --- the facts of a calibration -------------------------------------------------------------------------------------


def takes(shape):
    """What a step takes on the device that stands in [s]."""
    return (
        1e-3
        + 1e-5 * (shape.prefill_tokens + shape.decode_rows)
        + 2e-5 * (shape.prefill_rows + shape.decode_rows)
        + 2e-6 * shape.decode_context
        + 5e-7 * shape.prefill_pairs
    )


@pytest.fixture
def stands_in(monkeypatch):
    """Puts a device in place whose steps take what they are said to, no two alike if ``unsteady``."""

    def put(seconds=takes, unsteady=0.0):
        made = []

        def time(some, point, deadline=math.inf, **precision):
            made.append(point)
            taken = seconds(point.shape) * (1 + unsteady * (len(made) * GOLDEN % 1))
            return Timing(taken, 3, 1, taken, taken, 0.0)

        monkeypatch.setattr(steps.Steps, "time", time)
        monkeypatch.setattr(steps.Steps, "timed", lambda *_, **__: Timing(1e-3, 3, 1, 1e-3, 1e-3, 0.0))
        monkeypatch.setattr(calibrate, "ceilings", lambda *_: Ceilings(1e9, 1e9))
        return made

    return put


def calibrated(folder, **changes):
    fields = {"model": SPEC, "device": "cpu", "output": folder / "mine.yaml", "budget_s": 60, "limits": LIMITS}
    return calibrate.calibrate(calibrate.Request(**(fields | {"rounds": ROUNDS} | changes)))


def test_the_facts_follow_from_the_table(tmp_path, stands_in):
    made = stands_in(unsteady=0.1)
    found = calibrated(tmp_path)
    table = pd.read_csv(tmp_path / "mine.steps.csv")
    columns = {"mixed": table["reference_s"].tolist(), "decode": table["reference_decode_s"].tolist()}
    assert found.facts["references_s"] == pytest.approx({name: statistics.median(c) for name, c in columns.items()})
    assert found.facts["drift"] == pytest.approx(max(max(column) / min(column) - 1 for column in columns.values()))
    assert 0.05 < found.facts["drift"] < 0.1

    points = grid.references(LIMITS)
    for name, column in columns.items():
        # Timed anew before every so many steps, and each of these steps says what it was then.
        every = [column[at : at + calibrate.REFERENCE_EVERY] for at in range(0, len(column), calibrate.REFERENCE_EVERY)]
        assert [len(set(some)) for some in every] == [1] * len(every)
        assert len(set(column)) == len(every) > 5
        assert all(1 <= seconds / takes(points[name].shape) < 1.1 for seconds in column)
        assert made.count(points[name]) >= len(every)

    rounds = table.groupby("rows")["seconds"].apply(list)
    assert all(len(several) == ROUNDS for several in rounds)
    medians = found.steps.set_index("rows")["seconds"]
    assert medians[rounds.index].tolist() == pytest.approx([sorted(several)[1] for several in rounds])
    against = [abs(s[i] / statistics.median(s[:i] + s[i + 1 :]) - 1) for s in rounds for i in range(ROUNDS)]
    assert found.facts["noise"]["median"] == pytest.approx(statistics.median(against))
    assert found.facts["noise"]["p95"] == pytest.approx(np.quantile(against, 0.95))
    assert found.facts["steps"]["rounds"] == ROUNDS


def test_intervals_are_of_steps_that_the_fit_did_not_see(tmp_path, stands_in, monkeypatch):
    stands_in(unsteady=0.1)
    (tmp_path / "once").mkdir()
    fits, fit = [], whole_steps.fit
    monkeypatch.setattr(whole_steps, "fit", lambda *given, **named: fits.append(fit(*given, **named)) or fits[-1])
    once = calibrated(tmp_path / "once")
    seen = once.steps[once.steps["part"] == "grid"]
    shape = StepShape(*(seen[name].to_numpy() for name in StepShape._fields))
    unseen = whole_steps.unseen(shape, seen["seconds"].to_numpy(), fits[0])
    assert seen["unseen_s"].to_numpy() == pytest.approx(unseen)
    decode = (shape.prefill_rows == 0) & (shape.decode_rows > 0)
    ordered = sorted((seen["seconds"].to_numpy() / unseen)[decode])
    outside = max(1, (len(ordered) + 1) // 20)
    assert once.facts["intervals"]["decode"] == pytest.approx([ordered[outside - 1], ordered[-outside]], rel=1e-4)

    monkeypatch.setattr(whole_steps, "unseen", lambda shape, seconds, *_, **__: 2 * unseen)
    stands_in(unsteady=0.1)  # counted from the beginning: the same times
    (tmp_path / "twice").mkdir()
    twice = calibrated(tmp_path / "twice")
    assert twice.facts["held_out"] == once.facts["held_out"]
    for kind, bounds in once.facts["intervals"].items():
        assert twice.facts["intervals"][kind] == pytest.approx([bound / 2 for bound in bounds], rel=1e-4)
    assert set(once.facts["intervals"]) == {"decode", "mixed", "prefill"}


def test_the_corners_of_the_attention_tables_are_the_limits(tmp_path, stands_in):
    stands_in()
    tables = calibrated(tmp_path, rounds=1).profile.tables
    assert LIMITS.length != LIMITS.tokens
    for surface, outer, slope in (
        (tables.decode_attention, LIMITS.rows, 2e-6),
        (tables.prefill_attention, LIMITS.tokens, 5e-7),
    ):
        assert [curve[0] for curve in surface] == [(1,), (outer,)]
        assert [curve[1] for curve in surface] == [(0, LIMITS.length)] * 2
        assert surface[1][2] == pytest.approx((0, slope * outer * LIMITS.length), rel=0.01)


def test_padded_steps_that_take_as_long_as_ragged_ones_are_nothing_over_them(tmp_path, stands_in):
    stands_in(lambda shape: 1e-3)
    assert calibrated(tmp_path, rounds=1).facts["padded_over_ragged"] == {"median": 0, "least": 0, "most": 0}


def test_padded_over_ragged_is_a_ratio_less_one(stands_in):
    with torch.inference_mode():
        model = transformer(SPEC, torch.device("cpu"), "fp32", max_positions=LIMITS.length)
        some = steps.Steps(model, LIMITS)
        # Rows 1 and 4, each at contexts of 8 and 32.
        ragged = iter([1e-3, 2e-3, 0.5e-3, 0.8e-3])
        stands_in(lambda shape: next(ragged))
        found = calibrate._padded_over_ragged(model, some, LIMITS, math.inf)
    assert found == {"median": pytest.approx((0 + 0.25) / 2), "least": pytest.approx(-0.5), "most": pytest.approx(1.0)}


def test_steps_faster_than_the_gpu_they_are_said_to_be_of_are_refused(tmp_path, stands_in):
    spec, model = catalogue.device("h100-sxm"), dataclasses.replace(SPEC, dtype="bf16")
    asked = {"dtype": "bf16", "entry": "h100-sxm", "rounds": 1}
    stands_in(lambda shape: 0.9 * physics.floor_seconds(shape, model, spec))
    with pytest.raises(InputError, match=r"--as: the median step takes 0.90 of the least time that h100-sxm needs"):
        calibrated(tmp_path, **asked)
    assert not (tmp_path / "mine.yaml").exists()
    stands_in(lambda shape: 1.1 * physics.floor_seconds(shape, model, spec))
    (tmp_path / "slower").mkdir()
    assert calibrated(tmp_path / "slower", **asked).profile.device == "h100-sxm"
    # What was measured is good under another name, and the next call may give it.
    measured = (tmp_path / "mine.steps.csv").read_bytes()
    assert calibrated(tmp_path, **(asked | {"entry": "b200"})).profile.device == "b200"
    assert (tmp_path / "mine.steps.csv").read_bytes() == measured


def test_a_token_of_cut_layers_takes_the_cache_of_all(tmp_path, stands_in):
    stands_in()
    found = calibrated(tmp_path, layers=1, rounds=1)
    assert found.facts["memory"]["kv_per_token"] == SPEC.kv_bytes_per_token() == 2 * SPEC.layers * 2 * 16 * 4
    assert found.facts["memory"]["weights"] < SPEC.weight_bytes()


# --- steps ----------------------------------------------------------------------------------------------------------


def made_model(layers=None):
    with torch.inference_mode():
        return transformer(SPEC, torch.device("cpu"), "fp32", max_positions=LIMITS.length, layers=layers)


@pytest.mark.parametrize("layers", [None, 1])
def test_another_step_runs_before_each_timed_one(monkeypatch, layers):
    ran = []
    really = Ragged.step

    def step(ragged, spans, tokens):
        ran.append((len(ragged.model.layers), list(spans)))
        return really(ragged, spans, tokens)

    monkeypatch.setattr(Ragged, "step", step)
    limits = grid.Limits(20, 64, 96)
    point = grid.Point(((32, 1), (10, 1)))
    with torch.inference_mode():
        some = steps.Steps(made_model(layers), limits, layers=SPEC.layers)
        some.time(point, warm_up=2, least=3, most=3)
    # Two rows, a tenth of 20, of a fifth of the longest row, in the last slots: nobody else's keys.
    between = [grid.Span(19, 12, 1), grid.Span(18, 12, 1)]
    own = [grid.Span(0, 32, 1), grid.Span(1, 10, 1)]
    made = layers or SPEC.layers
    expected = [(made, own)] * 2 + [(made, between), (made, own)] * 3
    if layers:  # and once more without any, to tell what does not grow with them
        expected += [(0, own)] * 2 + [(made, between), (0, own)] * 3
    assert ran == expected


def test_held_out_steps_are_timed_anew_and_no_others(monkeypatch, stands_in):
    made = stands_in()
    identity = {"limits": dataclasses.asdict(LIMITS), "seed": 3, "graphs": False}
    table = steps.held_out_times(made_model(), identity)
    held_out = [point for point in grid.points(LIMITS, seed=3) if point.part == "held_out"]
    assert made == held_out
    assert {point.part for point in made} == {"held_out"}
    assert held_out != [point for point in grid.points(LIMITS) if point.part == "held_out"]
    assert table["seconds"].tolist() == [takes(point.shape) for point in held_out]
    assert [tuple(row) for row in table[list(StepShape._fields)].to_numpy()] == [point.shape for point in held_out]


# --- grid -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        # 3 tokens after 5 see 6 + 7 + 8 keys, 4 after none 1 + 2 + 3 + 4.
        (((5, 3), (0, 4), (10, 1), (2, 1)), StepShape(2, 7, 21 + 10, 5, 2, 12, 11)),
        (((5, 3),), StepShape(1, 3, 21, 5, 0, 0, 8)),
        (((0, 64),), StepShape(1, 64, 64 * 65 // 2, 0, 0, 0, 64)),
        (((7, 1),), StepShape(0, 0, 0, 0, 1, 7, 8)),
    ],
)
def test_the_shape_of_a_point(rows, shape):
    assert grid.Point(rows).shape == shape
