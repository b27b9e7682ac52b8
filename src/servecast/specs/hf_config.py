"""Reads the shape of a model from a Hugging Face ``config.json``, whole or abridged to the keys that matter.

Keys differ by family: experts are ``num_local_experts`` (Mixtral, gpt-oss), ``num_experts`` (Qwen) or
``n_routed_experts`` (DeepSeek); what a family always has (Qwen2's QKV bias, Qwen3's and Gemma3's query and key norms,
Gemma's four norms a layer, gpt-oss's sinks) is in its code and not in the file, so ``model_type`` decides it here
(transformers 4.57). Multimodal files nest the language model in ``text_config``: that part alone is read. Activation
functions are not looked at: none changes a size.

Left out: layers without attention keys and values (Mamba, linear attention) and encoders, which are refused.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servecast.errors import InputError
from servecast.specs import quantization
from servecast.specs.dtypes import dtype_name
from servecast.specs.layers.attention import Attention, LatentAttention
from servecast.specs.layers.feed_forward import Dense, Experts
from servecast.specs.layers.layer import Layer, LayerGroup
from servecast.specs.model import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from servecast.specs.quantization import Quantization

_QKV_BIASED = {"qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text", "glm4"}
_QK_NORMED = {"qwen3", "qwen3_moe", "gemma3", "gemma3_text", "apertus", "qwen3_vl_text"}
_FOUR_NORMS = {"gemma2", "gemma3", "gemma3_text"}
_TIED_UNLESS_SAID = {"gemma", "gemma2", "gemma3", "gemma3_text"}
_TWO_MATRIX_MLP = {"apertus", "nemotron", "phi", "starcoder2", "gpt_neox", "falcon", "opt"}
_ATTENTION_KINDS = {"full_attention", "sliding_attention"}


def load(path: str | Path) -> ModelSpec:
    """The model of a ``config.json``, or of a folder that holds one.

    Raises InputError naming the file and the key where something is missing or impossible.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"cannot be read ({error}); give the path of a Hugging Face config.json") from error
    except RecursionError:
        raise InputError(str(path), "is nested too deeply; a whole config.json is needed") from None
    except json.JSONDecodeError as error:
        problem = f"is not JSON ({error.msg}); a whole config.json is needed"
        raise InputError(f"{path}:{error.lineno}", problem) from error
    except ValueError as error:  # a number of more digits than Python reads
        raise InputError(str(path), f"holds no number a model can have ({error})") from None
    if not isinstance(config, dict):
        raise InputError(str(path), "holds no JSON object; give a Hugging Face config.json")
    if not config.get("quantization_config"):
        config["quantization_config"] = quantization.beside(path.parent)
    named = config.get("_name_or_path") or (path.parent.name if path.name == "config.json" else path.stem)
    return parse(config, name=str(named) or path.stem, source=str(path), place=str(path))


def parse(config: Mapping[str, Any], *, name: str, source: str, place: str) -> ModelSpec:
    """A model from the keys of a config; ``place`` is where errors say they are."""
    keys = _Keys(config, place)
    family = str(keys.get("model_type") or "")
    if config.get("is_encoder_decoder"):
        raise keys.refused("is_encoder_decoder", "true is not supported; use a decoder-only model")
    quantized = quantization.read(keys.get("quantization_config"), f"{place}: quantization_config")
    tied = keys.get("tie_word_embeddings")
    layers = Counter(_quantized(_layers(keys, family), quantized))
    return ModelSpec(
        name=name,
        source=source,
        hidden=keys.whole("hidden_size"),
        vocab=keys.whole("vocab_size"),
        groups=tuple(LayerGroup(count, layer) for layer, count in layers.items()),
        max_position=keys.whole("max_position_embeddings", 0) or None,
        tied_embeddings=family in _TIED_UNLESS_SAID if tied is None else bool(tied),
        dtype=_dtype(keys),
        weight_dtype=quantized.name if quantized else None,
        head=quantized.head if quantized else None,
        kv_dtype=quantized.kv_dtype if quantized else None,
    )


def _layers(keys: _Keys, family: str) -> Iterator[Layer]:
    """Every layer, first to last."""
    attention = _latent(keys) or _attention(keys, family)
    windows = _windows(keys, family, keys.whole("num_hidden_layers"))
    experts = _experts(keys, family)
    width = keys.whole("intermediate_size", experts.intermediate if experts else None)
    dense = Dense(width, gated=family not in _TWO_MATRIX_MLP, bias=bool(keys.get("mlp_bias")))
    norms = 4 if family in _FOUR_NORMS else 2
    for number, window in enumerate(windows):
        mixer = replace(attention, window=window) if isinstance(attention, Attention) else attention
        sparse = experts is not None and _is_sparse(keys, number)
        yield Layer((mixer,), experts if sparse else dense, norms)


def _quantized(layers: Iterable[Layer], quantized: Quantization | None) -> Iterator[Layer]:
    """Layers with the formats of their matrices."""
    for number, layer in enumerate(layers):
        yield layer if quantized is None else replace(layer, formats=quantized.formats(number))


def _attention(keys: _Keys, family: str) -> Attention:
    hidden, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    kv_heads = keys.whole("num_key_value_heads", heads)
    if kv_heads > heads or heads % kv_heads:
        raise keys.refused("num_key_value_heads", f"is {kv_heads}; it must divide num_attention_heads {heads}")
    head_dim = keys.whole("head_dim", 0)
    if not head_dim and hidden % heads:
        problem = f"is missing and hidden_size {hidden} is not a multiple of {heads} heads; state it"
        raise keys.refused("head_dim", problem)
    bias = bool(keys.get("attention_bias"))
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        qkv_bias=bias or family in _QKV_BIASED,
        output_bias=bias,
        qk_norm=family in _QK_NORMED,
        sinks=family == "gpt_oss",
    )


class _Keys:
    """Looks a key up in ``text_config`` first, then at the top, and says where it stood when its value is wrong."""

    def __init__(self, config: Mapping[str, Any], place: str) -> None:
        nested = config.get("text_config") or config.get("llm_config") or {}
        if not isinstance(nested, dict):
            raise InputError(f"{place}: text_config", f"{nested!r} is not an object")
        self.levels = (nested, config)
        self.place = place

    def get(self, key: str) -> Any:
        """The value, or None where the key is absent or null."""
        return next((level[key] for level in self.levels if level.get(key) is not None), None)

    def refused(self, key: str, problem: str) -> InputError:
        """What to raise for the value of a key."""
        return InputError(f"{self.place}: {key}", problem)

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number, positive unless it is the default; without a default the key must be there."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.refused(key, "is missing; a decoder's size cannot be known without it")
            return default
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (value == 0 and default != 0):
            raise self.refused(key, f"{value!r} is not a positive whole number")
        if value > 10**9:
            raise self.refused(key, f"{value:.3g} is larger than any model's; check the file")
        return value

    def first_whole(self, names: Sequence[str], default: int | None = None) -> int:
        """The first of several spellings of a key that is there."""
        there = next((key for key in names if self.get(key) is not None), None)
        return self.whole(there, 0) if there else self.whole(names[0], default)


def _dtype(keys: _Keys) -> str:
    """The format that vLLM's ``auto`` serves the checkpoint in: its own, or bf16 where that is fp32 or not said."""
    key = "dtype" if keys.get("torch_dtype") is None else "torch_dtype"
    given = keys.get(key)
    name = "bf16" if given is None else dtype_name(given, f"{keys.place}: {key}")
    return "bf16" if name == "fp32" else name


def _latent(keys: _Keys) -> LatentAttention | None:
    if keys.get("kv_lora_rank") is None:
        return None
    return LatentAttention(
        heads=keys.whole("num_attention_heads"),
        query_rank=keys.whole("q_lora_rank", 0) or None,
        kv_rank=keys.whole("kv_lora_rank"),
        nope=keys.whole("qk_nope_head_dim"),
        rope=keys.whole("qk_rope_head_dim"),
        value=keys.whole("v_head_dim"),
    )


def _experts(keys: _Keys, family: str) -> Experts | None:
    count = keys.first_whole(("num_local_experts", "num_experts", "n_routed_experts"), 0)
    if count <= 1:
        return None
    active = keys.first_whole(("num_experts_per_tok", "experts_per_token", "top_k_experts"))
    if active > count:
        raise keys.refused("num_experts_per_tok", f"{active} is more than the {count} experts there are")
    intermediate = keys.first_whole(("moe_intermediate_size", "intermediate_size"))
    shared = keys.whole("shared_expert_intermediate_size", 0) or keys.whole("n_shared_experts", 0) * intermediate
    return Experts(
        total=count,
        active=active,
        intermediate=intermediate,
        shared=shared,
        gated=family not in _TWO_MATRIX_MLP,
        shared_gate=family == "qwen2_moe",
        router_bias=family == "gpt_oss" or keys.get("topk_method") == "noaux_tc",
        biases=family == "gpt_oss",
    )


def _is_sparse(keys: _Keys, layer: int) -> bool:
    """Whether a layer of a mixture of experts routes: DeepSeek starts dense, Qwen can name or space dense layers."""
    if layer < keys.whole("first_k_dense_replace", 0) or layer in (keys.get("mlp_only_layers") or ()):
        return False
    return (layer + 1) % keys.whole("decoder_sparse_step", 1) == 0


def _windows(keys: _Keys, family: str, layers: int) -> list[int | None]:
    """The attention window of each layer in tokens, None where it is full."""
    window = keys.whole("sliding_window", 0) or None
    longest = keys.whole("max_position_embeddings", 0)
    if keys.get("use_sliding_window") is False or (window and longest and window >= longest):
        window = None
    kinds = keys.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise keys.refused("layer_types", f"must list a kind for each of the {layers} layers")
        if unknown := sorted({str(kind) for kind in kinds} - _ATTENTION_KINDS):
            known = ", ".join(sorted(_ATTENTION_KINDS))
            raise keys.refused("layer_types", f"{unknown[0]!r} is not supported; known are {known}")
        if "sliding_attention" in kinds and window is None and keys.get("sliding_window") is None:
            raise keys.refused("sliding_window", "is missing, though layer_types names sliding layers")
        return [window if kind == "sliding_attention" else None for kind in kinds]
    if family == "gemma2":
        return [None if layer % 2 else window for layer in range(layers)]
    usual = 6 if family in {"gemma3", "gemma3_text"} else 0
    if pattern := keys.first_whole(("sliding_window_pattern", "_sliding_window_pattern"), 0) or usual:
        return [window if (layer + 1) % pattern else None for layer in range(layers)]
    if family.startswith(("qwen2", "qwen3")):
        full = keys.whole("max_window_layers", 0)
        return [None if layer < full else window for layer in range(layers)]
    return [window] * layers
