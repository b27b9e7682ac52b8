"""The worked numbers that the tool exists to teach, each as printed."""

import pytest

from servecast import memory
from servecast.errors import InputError
from servecast.memory import engine_defaults
from servecast.plan import lessons
from servecast.specs import catalogue


def test_a_layer_does_one_flop_per_byte_at_batch_1_and_64_at_batch_64():
    one, many = lessons.layer_intensity(1), lessons.layer_intensity(64)
    assert (one.weights_only, many.weights_only) == (1.0, 64.0)
    assert (one.flops, one.weight_bytes, one.activation_bytes) == (33_554_432, 33_554_432, 16_384)
    assert one.with_activations == pytest.approx(0.9995, abs=5e-5)
    assert many.with_activations == pytest.approx(62.06, abs=0.005)
    assert lessons.layer_intensity(64, dtype="fp8").weights_only == 128.0


def test_the_batch_that_crosses_a_ridge_is_the_first_that_reaches_it():
    crossing = lessons.ridge_crossing(140)
    assert (crossing.weights_only, crossing.with_activations) == (140, 151)
    for batch, counted in ((140, "weights_only"), (151, "with_activations")):
        assert getattr(lessons.layer_intensity(batch), counted) >= 140
        assert getattr(lessons.layer_intensity(batch - 1), counted) < 140
    assert lessons.ridge_crossing(140, dtype="fp8").weights_only == 70
    assert lessons.ridge_crossing(140.5).weights_only == 141


def test_activations_bound_the_intensity_of_any_batch():
    assert lessons.layer_intensity(10**9).with_activations == pytest.approx(2048, rel=1e-4)
    assert lessons.ridge_crossing(2047).with_activations is not None
    assert lessons.ridge_crossing(2048).with_activations is None


def test_each_device_has_its_ridge():
    ridges = lessons.ridges()
    assert len(ridges) == len(catalogue.devices())
    assert ridges["a100-40gb"] == pytest.approx(200.6, abs=0.05)
    assert ridges["a100-80gb"] == pytest.approx(153.0, abs=0.05)
    assert ridges["h100-sxm"] == pytest.approx(295.2, abs=0.05)
    assert "a100-40gb" not in lessons.ridges("fp8")


@pytest.mark.parametrize(
    ("ridge", "contexts"), [(None, [(201, 225), (154, 785), (201, 817), (154, 3009)]), (140, [321, 865, 1169, 3313])]
)
def test_memory_stops_the_batch_before_the_ridge(ridge, contexts):
    walls = lessons.memory_walls(ridge)
    assert [(wall.model, wall.device) for wall in walls] == [
        ("llama-2-7b", "a100-40gb"),
        ("llama-2-7b", "a100-80gb"),
        ("llama-3.1-8b", "a100-40gb"),
        ("llama-3.1-8b", "a100-80gb"),
    ]
    assert [(wall.batch, wall.context) if ridge is None else wall.context for wall in walls] == contexts


@pytest.mark.parametrize("wall", lessons.memory_walls(), ids=lambda wall: f"{wall.model}-{wall.device}")
def test_the_wall_is_where_the_batch_just_stops_fitting(wall):
    model, device = catalogue.model(wall.model), catalogue.device(wall.device)
    defaults = engine_defaults(device)
    budget = memory.budget(
        model,
        device,
        gpu_memory_utilization=defaults.gpu_memory_utilization,
        block_size=16,
        max_num_batched_tokens=defaults.max_num_batched_tokens,
        max_num_seqs=defaults.max_num_seqs,
    )
    assert wall.kv_tokens == budget.kv_tokens
    assert wall.batch * budget.blocks_of(wall.longest_context) <= budget.kv_blocks
    assert wall.batch * budget.blocks_of(wall.context) > budget.kv_blocks


def test_one_long_prompt_makes_the_batch_padding():
    waste = lessons.padding_waste()
    assert (waste.computed_tokens, waste.useful_tokens) == (16_000, 2350)
    assert (waste.computed_pairs, waste.useful_pairs) == (16_008_000, 2_009_925)
    assert f"{waste.tokens:.1%} {waste.pairs:.1%}" == "85.3% 87.4%"


def test_padding_of_other_batches():
    assert lessons.padding_waste([10, 20, 30, 40]).tokens == 0.375
    assert (lessons.padding_waste([7, 7]).tokens, lessons.padding_waste([7, 7]).pairs) == (0, 0)
    # a page claims 95 % of the attention for one prompt of 4k with seven of 200
    claimed = lessons.padding_waste([4096] + 7 * [200])
    assert f"{claimed.tokens:.1%} {claimed.pairs:.1%}" == "83.2% 87.3%"
    with pytest.raises(InputError, match="prompts"):
        lessons.padding_waste([])
    with pytest.raises(InputError, match="prompts"):
        lessons.padding_waste([5, 0])
