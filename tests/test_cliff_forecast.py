"""What the memory cliff forecasts, byte by byte: weights, rotary tables, cache and activations."""

import dataclasses

import pytest
from specs import remade

from servecast.specs import catalogue

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'servecast[device]'")

from servecast.device import cliff, footprint  # noqa: E402
from servecast.device.cache import KVCache  # noqa: E402
from servecast.device.model import transformer  # noqa: E402

#: Nothing of a step: what is left is what stands there whatever is computed.
NOTHING = footprint.Activations(0.0, 0.0, 0.0)
#: 100 bytes a token in the layers; when sampling, 5,000 a row beside 10 a token.
SOME = footprint.Activations(100.0, 5000.0, 10.0)

HIDDEN, WIDTH, HEADS, KV_HEADS, INTERMEDIATE, VOCAB = 64, 16, 4, 2, 128, 256


def spec(layers):
    tiny = catalogue.model("tiny")
    attention, mlp = tiny.plain
    assert (tiny.hidden, attention.head_dim, attention.heads, attention.kv_heads) == (HIDDEN, WIDTH, HEADS, KV_HEADS)
    assert (mlp.intermediate, tiny.vocab) == (INTERMEDIATE, VOCAB)
    return remade(dataclasses.replace(tiny, name="deep"), layers)


def load(layers, dtype="fp32", prompt=300, output=100, limit_bytes=40_000_000):
    return cliff.CliffCase(spec(layers), "cpu", dtype, prompt=prompt, output=output, limit_bytes=limit_bytes)


def weights(layers, each):
    """Bytes of all matrices and norms of the model, ``each`` a number."""
    projections = HIDDEN * WIDTH * (HEADS + 2 * KV_HEADS + HEADS)
    layer = projections + 3 * HIDDEN * INTERMEDIATE + 2 * HIDDEN
    return each * (layers * layer + 2 * VOCAB * HIDDEN + HIDDEN)


@pytest.fixture
def activations(monkeypatch):
    def say(found):
        monkeypatch.setattr(cliff, "activations", lambda ragged, limits: found)

    return say


@pytest.mark.parametrize(("dtype", "each"), [("fp32", 4), ("bf16", 2)])
@pytest.mark.parametrize("layers", [2, 500])
def test_the_forecast_is_weights_rotary_tables_cache_and_activations(activations, dtype, each, layers):
    activations(SOME)
    forecast = cliff.forecast_of(load(layers, dtype))
    rotary = 2 * 400 * WIDTH * each  # cosines and sines
    row = 400 * 2 * layers * KV_HEADS * WIDTH * each
    for rows in (1, 7, 100):
        step = max(100 * 300 * rows, 5000 * rows + 10 * 300 * rows)
        assert forecast.bytes(rows) == weights(layers, each) + rotary + rows * row + step


def test_sampling_counts_where_it_takes_more_than_the_layers(activations):
    activations(SOME)
    forecast = cliff.forecast_of(load(2, prompt=10, output=390))
    standing = weights(2, 4) + 2 * 400 * WIDTH * 4 + 3 * 400 * 2 * 2 * KV_HEADS * WIDTH * 4
    assert forecast.bytes(3) == standing + 3 * 5000 + 3 * 10 * 10


def test_without_a_step_it_is_what_a_model_and_its_cache_really_hold(activations):
    """Long rows, so that the rotary tables weigh as much as the weights do."""
    activations(NOTHING)
    asked = load(2, prompt=3000, output=500)
    forecast = cliff.forecast_of(asked)
    with torch.inference_mode():
        model = transformer(asked.model, torch.device("cpu"), "fp32", max_positions=3500)
        cache = KVCache(model, 5, 3500)
    tables = sum(table.numel() * table.element_size() for table in (model.cos, model.sin))
    assert tables > 0.5 * model.weight_bytes()
    assert forecast.bytes(5) == model.weight_bytes() + tables + cache.bytes()


def test_the_rows_forecast_are_those_that_fit_beside_weights_and_tables(activations):
    activations(NOTHING)
    standing, row = weights(500, 4) + 2 * 400 * WIDTH * 4, 400 * 2 * 500 * KV_HEADS * WIDTH * 4
    forecast = cliff.forecast_of(load(500))
    for rows in (1, 3, 40):
        assert forecast.most(standing + rows * row, 4096) == rows
        assert forecast.most(standing + rows * row - 1, 4096) == rows - 1
    assert forecast.most(standing + 40 * row, 12) == 12


def test_what_is_forecast_is_what_is_told(activations, monkeypatch):
    """Of a device that holds what it holds: one row less than forecast."""
    activations(SOME)
    row = 400 * 2 * 20 * KV_HEADS * WIDTH * 4 + 100 * 300
    standing = weights(20, 4) + 2 * 400 * WIDTH * 4
    asked = load(20, limit_bytes=standing + 9 * row + row // 2)
    held = standing + 8 * row
    monkeypatch.setattr(
        cliff._Child, "tried", lambda child, rows: cliff.Try(rows, rows <= 8, 2 * held if rows <= 8 else None)
    )
    found = cliff.cliff(asked)
    assert (found.predicted_rows, found.found_rows) == (9, 8)
    assert (found.predicted_bytes, found.bytes_at_found) == (standing + 9 * row, held)
    assert found.bytes_error == pytest.approx(-0.5)
