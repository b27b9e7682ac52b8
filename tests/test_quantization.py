"""Bits a weight of every way to say how a checkpoint is stored, and which matrices are left as they are.

The right values are arithmetic on the formats: weight bits + bits of a scale (and a zero) / weights that share it.
"""

import json
import os
from pathlib import Path

import pytest

from servecast.errors import InputError
from servecast.memory import GIB
from servecast.specs import catalogue, quantization
from servecast.specs.quantization import Quantization

TRIED = Path(os.environ.get("SERVECAST_SHARED", Path(__file__).parents[2] / "shared")) / "tried"
ATTENTION = {"query", "key", "value", "output", "query_down", "query_up", "kv_down", "kv_up"}
DENSE = {"gate", "up", "down"}


def read(**stated) -> Quantization:
    found = quantization.read(stated, "p")
    assert found is not None
    return found


def compressed(**weights) -> dict:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


AO = {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}}
BITS = [
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, "int4", 4 + 16 / 128),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False}, "int4", 4 + 20 / 128),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", 8),
    ({"quant_method": "gptq", "bits": 3, "group_size": 64}, "int3", 3 + 16 / 64),
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4", 4.15625),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "int4", 4 + 20 / 64),
    (compressed(num_bits=4, type="int", group_size=32, strategy="group", symmetric=True), "int4", 4.5),
    (compressed(num_bits=4, type="int", group_size=128, strategy="group", symmetric=False), "int4", 4 + 20 / 128),
    (compressed(num_bits=8, type="int", strategy="channel"), "int8", 8),
    (compressed(num_bits=8, type="float", strategy="tensor"), "fp8", 8),
    (compressed(num_bits=8, type="float", strategy="block", block_structure=[128, 128]), "fp8", 8 + 32 / 16384),
    (compressed(num_bits=4, type="float", strategy="tensor_group", group_size=16), "nvfp4", 4.5),
    (compressed(num_bits=4, type="float", strategy="group", group_size=32), "mxfp4", 4.25),
    ({"quant_method": "fp8"}, "fp8", 8),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 8 + 32 / 16384),
    ({"quant_method": "fbgemm_fp8"}, "fp8", 8),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, "nvfp4", 4.5),
    ({"quant_method": "modelopt_fp4", "quant_algo": "NVFP4"}, "nvfp4", 4.5),
    ({"quant_algo": "FP8"}, "fp8", 8),
    ({"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"}, "fp8", 8 + 32 / 16384),
    ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 128}, "int4", 4.125),
    ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "fp8", 8.25),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, "fp8", 8),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}}, "mxfp4", 4.25),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int4", "group_size": 128}}}, "int4", 4.125),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "int4", 4.5),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 8),
    ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}, "int4", 4.125),
    ({"quant_method": "intel/auto-round", "bits": 4, "data_type": "mx_fp"}, "mxfp4", 4.25),
    ({"quant_method": "auto-round", "bits": 4, "data_type": "nv_fp4"}, "nvfp4", 4.5),
    ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}, "int4", 4.5),
    (
        {"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 64}},
        "int4",
        4.5,
    ),
    ({"quant_method": "torchao", "quant_type": {"default": AO}}, "int4", 4.5),
    ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Float8WeightOnlyConfig"}}}, "fp8", 8),
]


@pytest.mark.parametrize(("stated", "name", "bits"), BITS)
def test_bits_of_a_weight_with_its_scales(stated, name, bits):
    found = quantization.read(stated, "p")
    assert found.usual == (name, pytest.approx(bits))
    assert found.head is None
    formats = dict(found.formats(0))
    assert ATTENTION | DENSE | {"experts", "shared"} <= set(formats)
    assert set(formats.values()) == {found.usual}


LEFT = [
    (["lm_head"], 0, set()),
    (["re:.*self_attn.*"], 7, ATTENTION | {"index"}),
    (["*self_attn*"], 7, ATTENTION | {"index"}),
    (["model.layers.*.self_attn*"], 7, ATTENTION | {"index"}),
    (["self_attn"], 7, ATTENTION | {"index"}),
    (["re:.*shared_experts.*"], 3, {"shared"}),
    (["model.layers.3.mlp.shared_experts"], 3, {"shared"}),
    (["model.layers.3.mlp.shared_experts"], 4, set()),
    (["re:.*mlp\\.(gate|up|gate_up|down)_proj.*"], 0, DENSE),
    (["mlp.gate", "re:.*mlp.gate$", "router"], 0, set()),  # a router is never counted as quantised; gate_proj is none
    (["model.layers.1.mlp.down_proj"], 1, {"down"}),
    (["model.layers.1.mlp.down_proj"], 11, set()),
    (["model.layers.1*"], 1, None),
    (["model.layers.1*"], 10, set()),  # as modelopt means it: the tree below layer 1
    (["model.language_model.layers.2.self_attn.o_proj"], 2, {"output"}),
    (["language_model.model.layers.2.self_attn.kv_b_proj"], 2, {"kv_up"}),
    (["backbone.layers.4.mixer.in_proj"], 4, {"state_in"}),
    (["re:.*(block_sparse_moe|mlp)\\..*"], 0, DENSE | {"experts", "shared", "latent"}),
    (["model.layers.0.self_attn.qkv_proj"], 0, {"query", "key", "value"}),
]


@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignored_layers"])
@pytest.mark.parametrize(("listed", "layer", "left"), LEFT)
def test_modules_that_stay_as_they_are(key, listed, layer, left):
    every = set(dict(read(quant_method="fp8").formats(0)))
    found = dict(read(quant_method="fp8", **{key: listed}).formats(layer))
    assert every - set(found) == (every if left is None else left)


def test_only_routed_experts_of_gpt_oss():
    assert dict(read(quant_method="mxfp4").formats(5)) == {"experts": ("mxfp4", 4.25)}


def test_each_module_has_the_format_of_the_first_rule_that_names_it():
    gptq = read(quant_method="gptq", bits=4, group_size=128, dynamic={
        "-:.*\\.self_attn\\..*": {}, "+:.*\\.down_proj": {"bits": 8, "group_size": 32}}, lm_head=True)  # fmt: skip
    formats = dict(gptq.formats(1))
    assert "query" not in formats
    assert (formats["down"], formats["up"]) == (("int8", 8.5), ("int4", 4.125))
    assert gptq.head == ("int4", 4.125)
    layers = {"model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
              "model.layers.0.self_attn.o_proj": {"quant_algo": "FP8"}}  # fmt: skip
    mixed = read(quant_method="modelopt", quant_algo="MIXED_PRECISION", quantized_layers=layers)
    assert dict(mixed.formats(0)) == {"experts": ("nvfp4", 4.5), "output": ("fp8", 8.0)}
    assert mixed.formats(1) == ()
    round_ = read(
        quant_method="auto-round", bits=4, group_size=128, extra_config={"model.layers.0.mlp.up_proj": {"bits": 16}}
    )
    assert set(dict(read(quant_method="auto-round", bits=4).formats(0))) - set(dict(round_.formats(0))) == {"up"}
    groups = {"a": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}},
              "b": {"targets": ["re:.*experts.*"], "weights": {"num_bits": 4, "group_size": 32}}}  # fmt: skip
    split = dict(read(quant_method="compressed-tensors", config_groups=groups).formats(0))
    assert (split["experts"], split["query"]) == (("int4", 4.5), ("fp8", 8.0))


def test_the_file_of_modelopt_beside_the_config(tmp_path):
    assert quantization.beside(tmp_path) is None
    stated = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"producer": {}, "quantization": stated}))
    found = quantization.read(quantization.beside(tmp_path), "p")
    assert (found.usual, found.kv_dtype) == (("nvfp4", 4.5), "fp8")


@pytest.mark.parametrize(
    "stated",
    [
        4,
        {"quant_method": "gguf"},
        {"quant_method": "aqlm"},
        {"bits": 4},
        {"quant_method": "gptq"},
        {"quant_method": "gptq", "bits": "four"},
        {"quant_method": "gptq", "bits": 4.5},
        {"quant_method": "gptq", "bits": 4, "group_size": 0},
        {"quant_method": "awq", "bits": 4, "modules_to_not_convert": "lm_head"},
        {"quant_method": "fp8", "weight_block_size": 128},
        {"quant_method": "fp8", "modules_to_not_convert": ["re:("]},
        *(
            {"quant_method": "fp8", "ignored_layers": [f"re:{text}"]}
            for text in ("(.*)*x", "(a|.)*!$", "(.+)+!", ".*" * 9)
        ),
        {"quant_method": "bitsandbytes"},
        {"quant_method": "compressed-tensors"},
        compressed(num_bits=4, type="float", group_size=64),
        {"quant_method": "modelopt"},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {"quant_method": "torchao", "quant_type": "autoquant"},
        {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp6"}}},
    ],
)
def test_what_cannot_be_told_is_refused_in_one_line(stated):
    with pytest.raises(InputError) as caught:
        quantization.read(stated, "config.json: quantization_config")
    text = str(caught.value)
    assert text.startswith("config.json: quantization_config") and "\n" not in text
    assert "remove" not in text


WEIGHTS = {
    # 1,014,686,023,680 expert weights at 4.5 bits, the other 11.72 billion at 16
    "configs/kimi-k2-thinking-int4.json": (1_014_686_023_680 * 4.5 / 8 + 11_722_208_768 * 2, None),
    # all but the two tables of 151,936 x 4,096, 94 routers of 4,096 x 128 and the norms at 4.5 bits; an fp8 cache
    "nvfp4-folder": ((235_093_634_560 - 1_294_741_504) * 4.5 / 8 + 1_294_741_504 * 2, "fp8"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_of_tried_checkpoints(name):
    if not (TRIED / name).exists():
        pytest.skip(f"no {name} under {TRIED}: set SERVECAST_SHARED")
    model = catalogue.model(str(TRIED / name))
    assert model.weight_bytes() == pytest.approx(WEIGHTS[name][0], rel=1e-4)
    assert model.kv_dtype == WEIGHTS[name][1]


def test_fp32_checkpoints_are_served_in_16_bits(tmp_path):
    config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
              "intermediate_size": 11008, "vocab_size": 32000, "torch_dtype": "float32"}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    model = catalogue.model(str(path))
    assert model.weight_bytes() / GIB == pytest.approx(12.55, abs=0.01)
    assert model.kv_bytes_per_token() == 524_288
    assert catalogue.model("cpu-small").dtype == "fp32"  # what is measured on a CPU says its own


def test_an_lm_head_that_is_quantised_is_counted_so(tmp_path):
    config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 1, "num_attention_heads": 32,
              "intermediate_size": 11008, "vocab_size": 32000,
              "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    plain = catalogue.model(str(path)).weight_bytes()
    config["quantization_config"]["lm_head"] = True
    path.write_text(json.dumps(config))
    assert plain - catalogue.model(str(path)).weight_bytes() == 32000 * 4096 * (2 - 4.125 / 8)
