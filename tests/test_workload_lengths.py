"""Length laws, the shipped quantiles, and the independence of the random streams."""

import time
from math import exp, inf, log1p, nan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servecast.errors import InputError
from servecast.workload.arrivals import Gamma, Poisson
from servecast.workload.clients import LengthColumns
from servecast.workload.lengths import (
    LONGEST_TOKENS,
    Empirical,
    Fixed,
    Independent,
    Lognormal,
    Pairs,
    Uniform,
    dataset,
    datasets,
)
from servecast.workload.synthetic import generate, generate_lengths

CHAT = Independent(Lognormal(500.0, 1.0), Uniform(10, 400))


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    "law", [Fixed(7), Uniform(3, 9), Lognormal(100.0, 1.0), Empirical((0, 50, 100), (1, 10, 1000))], ids=str
)
def test_lengths_are_whole_at_least_one_and_repeat_to_the_byte(law):
    tokens = law.draw(10_000, rng())
    assert tokens.dtype == np.int64
    assert tokens.min() >= 1
    assert tokens.tobytes() == law.draw(10_000, rng()).tobytes()
    assert law.draw(0, rng()).shape == (0,)


def test_wrk_20_fixed_lengths_do_not_vary():
    tokens = Fixed(100).draw(1000, rng())
    assert tokens.mean() == 100
    assert tokens.std() == 0


def test_uniform_includes_both_ends_equally():
    counts = np.bincount(Uniform(3, 6).draw(40_000, rng()))
    assert counts[:3].tolist() == [0, 0, 0]
    np.testing.assert_allclose(counts[3:], 10_000, rtol=0.05)
    assert Uniform(5, 5).draw(3, rng()).tolist() == [5, 5, 5]


def of_mean(mean, cv, **limits):
    """The law with that mean and coefficient of variation before clipping: sigma^2 = ln(1 + cv^2)."""
    return Lognormal(mean / sqrt(1 + cv * cv), sqrt(log1p(cv * cv)), **limits)


def test_lognormal_has_the_median_and_sigma_or_the_mean_and_cv_asked_for():
    by_median = Lognormal(1000.0, 0.5).draw(200_000, rng())
    assert np.median(by_median) == pytest.approx(1000, rel=0.01)
    assert np.log(by_median).std() == pytest.approx(0.5, rel=0.01)
    assert by_median.mean() == pytest.approx(1000 * exp(0.125), rel=0.01)
    by_mean = of_mean(1000.0, cv=0.8).draw(200_000, rng())
    assert by_mean.mean() == pytest.approx(1000, rel=0.01)
    assert by_mean.std() / by_mean.mean() == pytest.approx(0.8, rel=0.02)
    assert set(of_mean(50.0, cv=0.0).draw(100, rng()).tolist()) == {50}


def test_liv_12_limits_far_from_the_law_clip_and_never_loop():
    began = time.monotonic()
    assert set(of_mean(500.0, cv=0.002, min_tokens=1, max_tokens=2).draw(100_000, rng()).tolist()) == {2}
    assert set(Lognormal(0.001, 0.1, min_tokens=4, max_tokens=4).draw(1000, rng()).tolist()) == {4}
    assert Lognormal(1e9, 10.0).draw(1000, rng()).max() == LONGEST_TOKENS
    assert time.monotonic() - began < 1


def table_mean(law):
    return np.trapezoid(law.tokens, law.percentiles) / 100


def test_empirical_percentiles_converge_to_the_table():
    law = Empirical((0, 10, 50, 90, 100), (5, 20, 100, 1000, 5000))
    tokens = law.draw(200_000, rng())
    np.testing.assert_allclose(np.percentile(tokens, (10, 50, 90)), (20, 100, 1000), rtol=0.02)
    assert tokens.min() == 5
    assert tokens.max() <= 5000
    assert table_mean(law) == pytest.approx((10 * 12.5 + 40 * 60 + 40 * 550 + 10 * 3000) / 100)
    assert tokens.mean() == pytest.approx(table_mean(law), rel=0.01)


# Whole-trace figures of the Azure 2023 traces: (mean, p50, p90, p99, max)
AZURE_2023 = {
    ("azure-code-2023", 0): (2047.8, 1469, 5188, 7436, 7437),
    ("azure-code-2023", 1): (27.9, 13, 55, 251, 1899),
    ("azure-conv-2023", 0): (1154.7, 1020, 2734, 4142, 14050),
    ("azure-conv-2023", 1): (211.1, 129, 424, 601, 1000),
}


@pytest.mark.parametrize(("name", "side"), AZURE_2023)
def test_shipped_quantiles_give_the_statistics_of_the_whole_trace(name, side):
    mean, p50, p90, p99, largest = AZURE_2023[name, side]
    law = (dataset(name).prompt_tokens, dataset(name).output_tokens)[side]
    assert isinstance(law, Empirical)
    assert table_mean(law) == pytest.approx(mean, rel=0.02)
    assert [round(law.tokens[law.percentiles.index(at)]) for at in (50, 90, 99, 100)] == [p50, p90, p99, largest]
    tokens = law.draw(400_000, rng())
    assert tokens.mean() == pytest.approx(mean, rel=0.025)
    np.testing.assert_allclose(np.percentile(tokens, (50, 90, 99)), (p50, p90, p99), rtol=0.03)
    assert tokens.max() <= largest


def test_an_unknown_data_set_names_the_closest_and_all():
    with pytest.raises(InputError) as error:
        dataset("azure-conv")
    assert str(error.value) == (
        "lengths.name: 'azure-conv' is neither a file nor a known name; did you mean azure-conv-2023? "
        "known: azure-conv-2023, azure-code-2023"
    )
    assert list(datasets()) == ["azure-conv-2023", "azure-code-2023"]


def test_own_quantiles_are_read_from_a_file(tmp_path):
    table = tmp_path / "mine.csv"
    table.write_text("# source: my logs\npercentile,prompt_tokens,output_tokens\n0,1,2\n100,11,2\n", encoding="utf-8")
    lengths = dataset(str(table))
    assert lengths.prompt_tokens == Empirical((0, 100), (1, 11))
    assert lengths.output_tokens == Empirical((0, 100), (2, 2))


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        (b"", "", "has no rows"),
        (b"percentile,prompt_tokens\n0,1\n100,2\n", "", "has no column output_tokens"),
        (b"percentile,prompt_tokens,output_tokens\n0,1,1\n100,x,2\n", ":3", "'100,x,2' is not 3 numbers"),
        (b"percentile,prompt_tokens,output_tokens\n0,1,1\n\n100,2\n", ":4", "'100,2' is not 3 numbers"),
        (b"percentile,prompt_tokens,output_tokens\n0,9,1\n100,2,2\n", "", "tokens run from 9 to 2"),
        (b"percentile,prompt_tokens,output_tokens\n0,1,nan\n100,2,2\n", "", "they must not fall"),
        (b"\xff\xfe\x00", "", "cannot be read as text"),
    ],
)
def test_own_quantiles_that_cannot_be_are_one_line_with_the_place(tmp_path, text, place, problem):
    table = tmp_path / "mine.csv"
    table.write_bytes(text)
    with pytest.raises(InputError) as error:
        dataset(str(table))
    assert error.value.place == f"{table}{place}"
    assert problem in error.value.problem
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "law",
    [
        lambda: Fixed(0),
        lambda: Fixed(-5),
        lambda: Fixed(LONGEST_TOKENS + 1),
        lambda: Uniform(0, 5),
        lambda: Uniform(6, 5),
        lambda: Lognormal(0.0, 1.0),
        lambda: Lognormal(nan, 1.0),
        lambda: Lognormal(inf, 1.0),
        lambda: Lognormal(1.0, -1.0),
        lambda: Lognormal(1.0, nan),
        lambda: Lognormal(1.0, 1.0, min_tokens=3, max_tokens=2),
        lambda: Empirical((), ()),
        lambda: Empirical((0,), (1,)),
        lambda: Empirical((0, 100), (1,)),
        lambda: Empirical((1, 100), (1, 2)),
        lambda: Empirical((0, 50), (1, 2)),
        lambda: Empirical((0, 0, 100), (1, 2, 3)),
        lambda: Empirical((0, 100), (2, 1)),
        lambda: Empirical((0, 100), (0, 1)),
        lambda: Empirical((0, 100), (1, inf)),
        lambda: Pairs(LengthColumns(np.empty(0, np.int64), np.empty(0, np.int64))),
    ],
)
def test_laws_that_cannot_be_are_refused(law):
    with pytest.raises(ValueError, match=r"must|give|swap"):
        law()


def test_pairs_stay_together_and_all_occur():
    observed = LengthColumns(np.array([1, 20, 300]), np.array([7, 8, 9]))
    prompt, output = Pairs(observed).draw(1000, rng(), rng(2))
    assert set(zip(prompt.tolist(), output.tolist(), strict=True)) == {(1, 7), (20, 8), (300, 9)}


# --- workloads of arrivals and lengths ------------------------------------------------------------------------------


def columns_of(*args):
    columns = generate(*args)
    return columns.arrival_s.tobytes(), columns.prompt_tokens.tobytes(), columns.output_tokens.tobytes()


@given(seed=st.integers(0, 2**64), n=st.integers(0, 50))
def test_cfg_07_the_same_seed_gives_the_same_bytes(seed, n):
    assert columns_of(Poisson(8.0), CHAT, n, seed) == columns_of(Poisson(8.0), CHAT, n, seed)


def test_each_of_arrivals_prompts_and_outputs_leaves_the_others_alone():
    arrivals, prompts, outputs = columns_of(Poisson(8.0), CHAT, 500, 3)
    other = columns_of(Gamma(2.0, 0.3), CHAT, 500, 3)
    assert other[0] != arrivals
    assert other[1:] == (prompts, outputs)
    other = columns_of(Poisson(8.0), Independent(dataset("azure-conv-2023").prompt_tokens, CHAT.output_tokens), 500, 3)
    assert other[1] != prompts
    assert (other[0], other[2]) == (arrivals, outputs)
    other = columns_of(Poisson(8.0), Independent(CHAT.prompt_tokens, Fixed(3)), 500, 3)
    assert other[:2] == (arrivals, prompts)
    lengths = generate_lengths(CHAT, 500, 3)
    assert (lengths.prompt_tokens.tobytes(), lengths.output_tokens.tobytes()) == (prompts, outputs)


def test_pfx_05_seeds_and_streams_differ():
    same_law = Independent(Lognormal(500.0, 1.0), Lognormal(500.0, 1.0))
    one, two = generate(Poisson(1.0), same_law, 500, 1), generate(Poisson(1.0), same_law, 500, 2)
    assert (one.prompt_tokens != two.prompt_tokens).mean() > 0.9
    assert (one.arrival_s != two.arrival_s).all()
    assert abs(np.corrcoef(one.prompt_tokens, one.output_tokens)[0, 1]) < 0.1
    assert (one.prompt_tokens != one.output_tokens).mean() > 0.9
