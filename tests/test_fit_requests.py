"""A coarse profile from requests alone: it finds the engine that served them again, and says how little it knows."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd
import pytest
from serving import replayed

from servecast.calibration import fit_requests as fitting
from servecast.calibration.steps import table_of
from servecast.cost import physics
from servecast.cost import profile as profiles
from servecast.cost.fitted import FittedCost
from servecast.errors import InputError
from servecast.executor import ModelExecutor
from servecast.kvcache import BlockPool
from servecast.policies import Continuous
from servecast.specs import catalogue
from servecast.workload.clients import OpenLoop, RequestColumns

MODEL, DEVICE = catalogue.model("llama-3.1-8b"), catalogue.device("h100-sxm")
PEAK = physics.of(MODEL, DEVICE)
TRUE = FittedCost(
    weight_read_s=PEAK.weight_read_s / 0.78,
    token_s=PEAK.token_s / 0.66,
    pair_s=PEAK.pair_s / 0.66,
    context_s=PEAK.context_s / 0.78,
    row_s=2e-5,
    step_s=8e-4,
)
OFFSET_S = 0.006


def served(cost, count=400, rate=6.0, seed=3):
    random = np.random.default_rng(seed)
    columns = RequestColumns(
        np.cumsum(random.exponential(1 / rate, count)),
        random.integers(64, 3000, count),
        random.integers(1, 300, count),
    )
    run = replayed(
        OpenLoop(columns), Continuous(), ModelExecutor(cost), BlockPool(40_000, 16), max_model_len=8192
    ).requests
    return pd.DataFrame(
        {
            "arrival_s": run["arrival_s"],
            "prompt_tokens": run["prompt_tokens"],
            "output_tokens": run["output_tokens"],
            "ttft_s": run["first_token_s"] - run["sent_s"] + OFFSET_S,
            "e2e_s": run["finish_s"] - run["sent_s"] + OFFSET_S,
        }
    )


@pytest.fixture(scope="module")
def recorded():
    return served(TRUE)


@pytest.fixture(scope="module")
def profile(recorded):
    return fitting.fit_requests(recorded, MODEL, DEVICE, name="coarse")


class TestFit:
    def test_it_prices_what_it_has_seen(self, profile):
        (error,) = profile.held_out
        assert error.median < 0.02
        assert abs(error.signed_mean) < 0.02

    def test_the_same_load_comes_out(self, profile, recorded):
        again = served(profile.cost())
        for name in ("ttft_s", "e2e_s"):
            assert again[name].mean() == pytest.approx(recorded[name].mean(), rel=0.04)

    def test_intervals_are_wide_and_hold_the_truth(self, profile):
        for name in ("weight_read_s", "token_s", "pair_s", "context_s", "row_s", "step_s"):
            interval = profile.coefficients[name]
            assert interval.low <= getattr(TRUE, name) <= interval.high, name
        assert profile.coefficients["weight_read_s"].high > 1.2 * profile.coefficients["weight_read_s"].low

    def test_what_was_not_told_says_so(self, profile):
        told = {name for name, c in profile.coefficients.items() if c.identified}
        assert told == {"token_s", "row_s", "step_s"}
        assert not profile.sharpness.identified
        assert re.match(
            r"coarse: fitted to the times of 400 requests, no step was measured; \d+ of them", profile.notes[0]
        )
        assert re.search(
            r"half of each 90 % interval, of its value: token_s \d+%, row_s \d+%, step_s \d+%$", profile.notes[1]
        )
        assert "pinned, not fitted: weight_read_s, pair_s, context_s and the knee" in profile.notes[2]

    def test_it_is_a_profile_like_any_other(self, profile, tmp_path):
        profiles.save(profile, tmp_path / "coarse.yaml")
        assert profiles.load(tmp_path / "coarse.yaml") == profile
        assert profile.domain["mixed"]["prefill_tokens"][1] <= 3000

    def test_the_same_requests_give_the_same_profile(self, recorded, profile):
        again = fitting.fit_requests(recorded, MODEL, DEVICE, name="coarse", date=profile.provenance.date)
        assert again == profile

    def test_held_back_requests_count_from_the_send(self, recorded):
        late = recorded.assign(send_s=recorded["arrival_s"], arrival_s=recorded["arrival_s"] - 5)
        moved = fitting.timeline(late, "here")
        np.testing.assert_allclose(moved.rows, fitting.timeline(recorded, "here").rows)


class TestTimeline:
    def test_rows_and_context_of_two_answers_side_by_side(self, recorded):
        two = recorded.head(fitting.FEWEST).copy()
        two["arrival_s"] = np.arange(len(two)) * 1000.0
        two[["prompt_tokens", "output_tokens", "ttft_s", "e2e_s"]] = [100, 11, 1.0, 11.0]
        two.loc[two.index[1], "arrival_s"] = 5.0  # its token comes at 6, when the first has 5 of its 10 steps behind it
        line = fitting.timeline(two, "here")
        assert line.rows[0] == pytest.approx(1.5)  # alone until 6, two of them until 11
        assert line.context[0] == pytest.approx(105 + 0.5 * 102.5)
        assert (line.own_rows[1], line.own_context[1]) == (pytest.approx(1), pytest.approx(105))
        assert (line.before[0], line.after[0]) == (1, 2)
        assert not line.alone[1] or line.own_rows[1] == 1
        assert line.alone[2]


class TestReading:
    def test_requests_are_known_by_their_columns(self, recorded):
        assert fitting.is_requests(recorded.columns)
        assert not fitting.is_requests(["seconds", "prefill_rows"])

    def test_files_are_read(self, recorded, tmp_path):
        recorded.to_csv(tmp_path / "a.csv", index=False)
        recorded.to_parquet(tmp_path / "a.parquet")
        for name in ("a.csv", "a.parquet"):
            assert len(table_of(tmp_path / name)) == len(recorded)
        with pytest.raises(InputError, match="no such file"):
            table_of(tmp_path / "b.csv")
        (tmp_path / "c.parquet").write_bytes(b"nothing")
        with pytest.raises(InputError, match="cannot be read"):
            table_of(tmp_path / "c.parquet")

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            (lambda t: t.drop(columns="ttft_s"), "ttft_s is missing"),
            (lambda t: t.assign(ttft_s=math.nan), "here:2: times must be"),
            (lambda t: t.assign(e2e_s=t["ttft_s"] / 2), "0 < ttft_s <= e2e_s"),
            (lambda t: t.head(5), "too few"),
            (lambda t: t.iloc[[0] * len(t)], "here: all 400 requests are the same one: record requests that vary"),
            (lambda t: t.assign(output_tokens=1), "none decodes"),
            (lambda t: t.assign(ttft_s=t["ttft_s"] / 1e3, e2e_s=t["e2e_s"] / 1e3), "of the peak bandwidth"),
        ],
    )
    def test_what_cannot_be_is_refused(self, recorded, change, problem):
        with pytest.raises(InputError, match=problem):
            fitting.fit_requests(change(recorded), MODEL, DEVICE, name="x", files=("here",))


class TestWhatRequestsDoNotTell:
    """Requests one after the other never share a step: nothing tells a row from the constant."""

    @pytest.fixture(scope="class")
    @staticmethod
    def alone():
        return served(TRUE, count=80, rate=0.05)

    def test_rows_are_pinned_where_all_ran_alone(self, alone):
        made = fitting.fit_requests(alone, MODEL, DEVICE, name="coarse")
        row = made.coefficients["row_s"]
        assert (row.identified, row.origin) == (False, "pinned")
        assert row.value == pytest.approx(PEAK.row_s / 0.7, rel=1e-6)
        assert row.low <= TRUE.row_s <= row.high
        assert any("two numbers and the client's way are fitted" in note for note in made.notes)

    def test_tokens_are_pinned_where_all_prompts_are_alike(self, alone):
        decode_s = alone["e2e_s"] - alone["ttft_s"]
        alike = alone.assign(
            arrival_s=100.0 * np.arange(len(alone)), prompt_tokens=500, ttft_s=0.025, e2e_s=0.025 + decode_s
        )
        made = fitting.fit_requests(alike, MODEL, DEVICE, name="coarse")
        assert made.coefficients["token_s"].origin == "pinned"
        assert made.coefficients["token_s"].value == pytest.approx(PEAK.token_s / 0.7, rel=1e-6)
        for c in made.coefficients.values():
            assert c.origin == "pinned" or c.low <= c.value <= c.high
