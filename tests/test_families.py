"""Every known model type against the parameter count of its class, what is refused, and the models served in 2026.

``parameter_counts.jsonl`` holds small configs of each type, as a checkpoint would state them, with the number of
parameters of ``AutoModelForCausalLM.from_config`` on the meta device (transformers 5.24.0, torch 2.13.0): tied tables
once, buffers left out (the corrections of router scores among them, a value an expert). Text models that are no causal
LM there (Qwen-VL, GLM-V) are their text model and an lm_head.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servecast.batch import StepShape, causal_pairs
from servecast.cost.roofline import Roofline
from servecast.errors import InputError
from servecast.specs import catalogue, hf_config
from servecast.specs.families import FAMILIES, REFUSED

GIB = 1 << 30
SMALL = {
    "hidden_size": 96, "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 160, "vocab_size": 500, "max_position_embeddings": 4096,
}  # fmt: skip
COUNTED = [json.loads(line) for line in (Path(__file__).parent / "parameter_counts.jsonl").read_text().splitlines()]
TRIED = Path(os.environ.get("SERVECAST_SHARED", "../shared")) / "tried" / "configs"


def parse(config):
    return hf_config.parse(config, name="m", source="s", place="p")


def small(row):
    config = SMALL | {"model_type": row["model_type"]} | row["keys"]
    if "hybrid_override_pattern" in config:  # says how many layers there are
        del config["num_hidden_layers"]
    return config


@pytest.mark.parametrize("row", COUNTED, ids=[f"{row['model_type']}-{i}" for i, row in enumerate(COUNTED)])
def test_parameters_are_those_of_the_class(row):
    model = parse(small(row))
    assert model.parameters() == row["parameters"]
    assert model.weight_bytes() >= 2 * row["parameters"]
    assert 0 < model.active_parameters() <= row["parameters"]
    nested = {"model_type": "a_wrapper", "vision_config": {"hidden_size": 7}, "text_config": small(row)}
    assert parse(nested).parameters() == row["parameters"]


def test_every_known_type_has_a_count_of_its_own_or_is_read_as_one_that_has():
    counted = [FAMILIES[row["model_type"]] for row in COUNTED]
    assert [name for name, family in FAMILIES.items() if family not in counted] == []
    assert not set(FAMILIES) & set(REFUSED)


@pytest.mark.parametrize("row", COUNTED[::3], ids=[row["model_type"] for row in COUNTED[::3]])
def test_steps_of_every_kind_are_priced_alike_as_numbers_and_as_arrays(row):
    model = parse(small(row) | {"torch_dtype": "bfloat16"})
    shapes = [
        StepShape(0, 0, 0, 0, 4, 4 * 900, 900), StepShape(1, 300, causal_pairs(300), 0, 0, 0, 300),
        StepShape(2, 40, 500, 10, 7, 9000, 2000),
    ]  # fmt: skip
    table = StepShape(*(np.array(column) for column in zip(*shapes, strict=True)))
    for method in (model.step_flops, model.step_bytes):
        assert method(table) == pytest.approx([method(shape) for shape in shapes], rel=1e-12)
    priced = Roofline(model, catalogue.device("h100-sxm"))
    for shape in (StepShape(0, 0, 0, 0, 3, 3 * context, context) for context in (1, 40, 63, 64, 2000)):
        base, slope, count = priced.durations(shape, 50)
        later = shape._replace(decode_context=shape.decode_context + 3 * (count - 1))
        assert base == pytest.approx(priced.seconds(shape), rel=1e-12)
        assert base + slope * (count - 1) == pytest.approx(priced.seconds(later), rel=1e-9)


# --- what is refused -----------------------------------------------------------------------------------------------

LLAMA = SMALL | {"model_type": "llama"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "bert"}, "model_type: 'bert' is not supported: it is an encoder"),
        ({"model_type": "mamba2"}, "model_type: 'mamba2' .*fixed state in every layer"),
        ({"model_type": "mllama_text_model"}, "cross-attention"),
        ({"model_type": "mllama", "text_config": LLAMA}, "cross-attention"),
        ({"model_type": "gemma4_assistant", "text_config": LLAMA}, "drafts for another model"),
        ({"model_type": "llamma"}, "'llamma' is not known .closest are llama.*parameter count"),
        ({"model_type": "my_own_thing"}, r"'my_own_thing' is not known \(\d+ types are"),
        ({"model_type": None}, "model_type: is missing"),
        ({"model_type": None, "architectures": ["BertModel"]}, "model_type: is missing"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures: LlamaFor.* makes no tokens"),
        ({"model_type": "bamba", "mamba_n_heads": 8, "mamba_d_state": 16}, "no layer attends"),
        ({"attn_type_list": [1] * 6, "layer_types": ["linear_attention"] * 6}, "layer_types: 'linear_attention'"),
        ({"attn_type_list": [0] * 6}, "attn_type_list"),
        ({"attn_type_list": [1]}, "attn_type_list: must list"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*X"}, "hybrid_override_pattern: 'X'"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*"}, "lists 2 layers, num_hidden_layers says 6"),
        ({"num_local_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": 3}, "mlp_only_layers: 3"),
        ({"attention_bias": "yes"}, "attention_bias: 'yes' is neither"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_in_one_line_that_names_the_key(change, says):
    with pytest.raises(InputError, match=says) as caught:
        parse({key: value for key, value in (LLAMA | change).items() if value is not None})
    assert "\n" not in str(caught.value)


CHANGES_SHAPE = {
    "full_attention_interval": 4, "hybrid_override_pattern": "M*", "attn_layer_period": 8, "expert_layer_offset": 1,
    "hybrid_layer_ids": [2], "hybrid_layer_pattern": [0, 1], "swa_num_attention_heads": 64, "block_types": ["a"],
    "full_attn_idxs": [2], "attn_layer_indices": [2], "mamba_d_state": 64, "ssm_state_size": 128, "moe_latent_size": 9,
    "linear_attn_config": {"num_heads": 1}, "compress_ratios": [4], "index_head_dim": 128, "global_head_dim": 512,
    "interleave_moe_layer_step": 2, "intermediate_size_mlp": 200, "num_global_key_value_heads": 2,
    "num_kv_shared_layers": 2, "cross_attention_layers": [3], "per_layer_config": {"1": {"head_dim": 8}},
    "v_head_dim": 64, "q_lora_rank": 32, "use_qk_norm": True, "multi_query": True, "add_cross_attention": True,
}  # fmt: skip


@pytest.mark.parametrize("key", CHANGES_SHAPE)
def test_a_key_that_changes_the_shape_and_is_not_read_is_refused_by_its_name(key):
    for value in (None, False, 0, [], {}):
        assert parse(LLAMA | {key: value}) == parse(LLAMA)
    with pytest.raises(InputError, match=f"^p: {key}: changes the shape"):
        parse(LLAMA | {key: CHANGES_SHAPE[key]})


SPELLED = st.from_regex(r"(mamba|ssm|swa|hybrid|compress)_[a-z_]{3,12}", fullmatch=True)


@given(SPELLED)
def test_keys_of_other_architectures_never_pass_in_silence(key):
    harmless = ("chunk_size", "hidden_act", "norm_before_gate", "dt_", "use_", "dtype", "multiplier", "block_size")
    if not any(word in key for word in (*harmless, "kernel")):
        with pytest.raises(InputError, match=key):
            parse(LLAMA | {key: 3})


@given(st.dictionaries(st.from_regex(r"[xyz]_[a-z_]{1,20}", fullmatch=True), st.integers() | st.text() | st.booleans()))
def test_keys_that_change_no_shape_are_let_by(others):
    assert parse(LLAMA | others) == parse(LLAMA)


WEIRD = st.sampled_from(
    [None, -1, 0, 1, 1.5, float("nan"), "x", "", [], {}, True, 10**9, 10**12, 10**400, [1], [[1]], {"a": 1}, ["x"] * 6]
)


@given(st.sampled_from(COUNTED), st.data(), WEIRD)
def test_any_value_of_any_key_is_read_or_refused_in_one_line(row, data, value):
    config = small(row)
    key = data.draw(st.sampled_from(sorted(config)))
    told = ""
    try:
        model = parse(config | {key: value})
        assert model.parameters() > 0
        assert min(model.weight_bytes(), model.kv_bytes(5000)) > 0
    except InputError as error:
        told = str(error)
    assert "\n" not in told


def test_a_class_stands_for_a_missing_type():
    named = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert parse(named | {"architectures": ["LlamaForCausalLM"]}) == parse(LLAMA)


def test_a_nested_config_may_leave_out_what_its_class_has():
    text = {"hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34, "sliding_window": 1024}
    nested = parse({"model_type": "gemma3", "text_config": text | {"model_type": "gemma3_text"}})
    assert nested.groups == catalogue.model("gemma-3-4b").groups
    assert nested.parameters() == catalogue.model("gemma-3-4b").parameters()
    assert nested.language_part


# --- the models of 2026 ----------------------------------------------------------------------------------------------

# file: parameters, active parameters, KV bytes a token in bf16, state bytes a sequence. State: per layer, Mamba 2 heads x
# width x state + 3 x channels of the convolution; Qwen3-Next 32 x 128 x 128 + 3 x 8,192; 2 bytes each.
PUBLISHED = {
    "qwen3-next-80b": (79_674_391_296, 3.87e9, 24_576, 36 * (32 * 128 * 128 + 3 * 8192) * 2),
    "nemotron-h-56b": (56_324_350_464, 56.3e9, 40_960, 54 * (256 * 64 * 256 + 3 * (16_384 + 2 * 8 * 256)) * 2),
    "nemotron-3-nano-30b": (31_577_937_344, 3.58e9, 6144, 23 * (64 * 64 * 128 + 3 * (4096 + 2 * 8 * 128)) * 2),
    "llama4-scout": (107_769_861_120, 17.2e9, 196_608, 0),
    "deepseek-v3.2": (671_877_944_064, 38.4e9, 61 * (2 * 576 + 132), 0),
    "falcon-h1-7b": (7_585_513_568, 7.6e9, 45_056, 44 * (24 * 128 * 256 + 3 * (3072 + 2 * 256)) * 2),
    "zamba2-2.7b": (2_491_813_280, 2.5e9, 184_320, 54 * (5120 * 64 + 3 * (5120 + 2 * 64)) * 2),
    "command-r-35b": (34_980_831_232, 35e9, 1_310_720, 0),
    "starcoder2-3b": (3_030_371_328, 3.03e9, 30_720, 0),
    "afm-4.5b": (4_619_184_640, 4.6e9, 73_728, 0),
    "olmo2-7b": (7_298_617_344, 7.3e9, 524_288, 0),
    "granite-4.0-micro": (3_402_836_480, 3.4e9, 81_920, 0),
}


@pytest.mark.skipif(not TRIED.is_dir(), reason="the shared configs are not here")
@pytest.mark.parametrize("name", PUBLISHED)
def test_models_of_2026_have_their_published_sizes(name):
    parameters, active, per_token, state = PUBLISHED[name]
    model = catalogue.model(str(TRIED / f"{name}.json"))
    assert model.parameters() == parameters
    assert model.active_parameters() == pytest.approx(active, rel=0.01)
    assert model.kv_bytes_per_token("bf16") == per_token
    assert model.state_bytes() == state
    if name == "deepseek-v3.2":
        assert model.kv_bytes_per_token("fp8") == 61 * (656 + 132) == 48_068


def test_long_contexts_cost_what_their_kinds_of_layer_keep():
    gemma, deepseek = catalogue.model("gemma-3-27b"), catalogue.model("deepseek-v3")
    assert gemma.kv_bytes(131_072) == 10 * 131_072 * 8192 + 52 * 1024 * 8192
    assert gemma.kv_bytes(131_072) / GIB == pytest.approx(10.41, abs=0.005)
    assert deepseek.kv_bytes(163_840) / GIB == pytest.approx(10.72, abs=0.005)


MOE = {"moe_intermediate_size": 1408, "num_experts_per_tok": 8}


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (
            MOE | {
                "model_type": "glm4_moe", "hidden_size": 4096, "num_hidden_layers": 46, "num_attention_heads": 96,
                "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 10_944, "n_routed_experts": 128,
                "n_shared_experts": 1, "first_k_dense_replace": 1, "attention_bias": True, "vocab_size": 151_552,
                "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5, "use_qk_norm": False,
            },
            106.8,  # GLM-4.5-Air; its card says 106 B, without the layer that predicts more tokens
        ),
        (
            MOE | {
                "model_type": "minimax_m2", "hidden_size": 3072, "num_hidden_layers": 62, "num_attention_heads": 48,
                "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 1536, "num_local_experts": 256,
                "moe_intermediate_size": None, "attn_type_list": [1] * 62, "use_qk_norm": True, "vocab_size": 200_064,
                "qk_norm_type": "per_layer", "shared_intermediate_size": 0, "use_mtp": True, "num_mtp_modules": 3,
            },
            228.7,
        ),
    ],
)  # fmt: skip
def test_configs_in_the_wild_with_keys_that_say_the_usual(config, billions):
    assert parse(config).parameters() / 1e9 == pytest.approx(billions, rel=0.002)


def test_kimi_k2_is_a_deepseek_v3():
    config = {
        "model_type": "kimi_k2", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64,
        "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18_432, "moe_intermediate_size": 2048,
        "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
        "vocab_size": 163_840, "moe_layer_freq": 1, "n_group": 1, "topk_method": "noaux_tc", "ep_size": 1,
    }  # fmt: skip
    assert parse(config).parameters() == 1_026_408_232_448
    assert parse(config).active_parameters() / 1e9 == pytest.approx(32.9, abs=0.05)


# --- what a step costs in them -----------------------------------------------------------------------------------


def tried(model_type):
    return parse(next(small(row) for row in COUNTED if row["model_type"] == model_type))


def decode(rows, context):
    return StepShape(0, 0, 0, 0, rows, rows * context, context)


def test_a_state_is_read_and_written_once_a_row_however_long_the_sequence():
    model = tried("falcon_h1")
    alone = model.attention_bytes(decode(5, 0)) - 5 * model.kv_bytes_per_token()
    assert alone == 5 * 2 * model.state_bytes()
    grown = model.attention_bytes(decode(5, 1000)) - model.attention_bytes(decode(5, 0))
    assert grown == 5 * 1000 * model.kv_bytes_per_token()
    inner, state, channels = 8 * 24, 16, 8 * 24 + 2 * 2 * 16
    assert model.state_bytes() == 6 * (inner * state + 3 * channels) * 2
    assert model.state_bytes(2) == model.state_bytes() / 2  # both heads and groups are divided
    assert model.state_bytes(8) == 6 * (inner / 8 * state + 3 * (inner / 8 + 2 * state)) * 2  # groups are copied


def test_sparse_attention_scores_every_token_and_attends_to_the_best():
    model = tried("deepseek_v32")
    heads, key, top, latent = 4, 16, 64, 32 + 8
    index = key + 4
    assert model.kv_bytes_per_token("bf16") == 6 * (latent * 2 + index)
    near, far = decode(1, 63), decode(1, 999)
    assert model.attention_bytes(near, "bf16") == 6 * 64 * (latent * 2 + index)
    assert model.attention_bytes(far, "bf16") == 6 * (1000 * index + top * latent * 2)
    pair = 2 * 6 * (2 * 32 + 8)
    assert model.attention_flops(far) == 6 * (1000 * 2 * heads * key + top * pair)


def test_a_shared_cache_is_kept_once_and_read_by_every_layer_that_shares_it():
    row = next(row for row in COUNTED if row["model_type"] == "gemma4_text" and "num_kv_shared_layers" in row["keys"])
    sharing, apart = parse(small(row)), parse(small(row) | {"num_kv_shared_layers": None})
    assert sharing.kv_bytes_per_token() < apart.kv_bytes_per_token()
    assert sharing.attention_bytes(decode(2, 30)) == apart.attention_bytes(decode(2, 30))


def test_blocks_that_share_weights_are_held_once_and_read_at_each_use():
    one = tried("zamba2")
    [shared] = [group for group in one.groups if group.layer.kind == "full attention"]
    assert (shared.layers, shared.weight_sets) == (2, 1)
    everything = one.linear_bytes(decode(1, 0)) - (500 + 12) * 96 * 2 - 96 * 2  # less the lm_head and a row
    held = one.weight_bytes() - (500 + 12) * 96 * 2
    assert everything > held


def test_kinds_of_layer_are_counted():
    assert dict(tried("nemotron_h").kinds) == {"state space": 3, "feed-forward alone": 2, "full attention": 1}
    assert tried("llama").state_bytes() == 0
