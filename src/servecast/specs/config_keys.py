"""The keys of a model's config.json: looked up by name, checked, and remembered.

A reader asks for what it needs. A key that changes the shape of a model and that no reader asked for means that the
model is another than the one that was read: `Keys.unread` names the first such key.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TEXT = ("text_config", "llm_config", "language_config")  # where multimodal files keep their language model

_CHANGES_SHAPE = re.compile(
    r"""
      full_attention_interval | hybrid_.* | layers?_block_type | block_types? | layer_types | mlp_layer_types
    | attn_layer_(period|offset|indices) | expert_layer_(period|offset) | attn_type_list | full_attn_idxs | swa_.*
    | linear_(attn_config|.*heads.*|.*dim.*) | (mamba|ssm)_.* | n_mamba_heads | conv_(kernel|L_cache) | lru_width
    | compress_.* | index_.* | per_layer_config | cross_attention_layers | decoder_layers | add_cross_attention
    | interleave_moe_layer_step | moe_layers? | moe_layer_(freq|start_index|end_index|interval) | decoder_sparse_step
    | mlp_only_layers | first_k_dense_replace | num_dense_layers | is_moe.* | enable_moe_block | zero_expert_num
    | (num|n)_(local_|routed_|shared_)?experts? | num_experts_per_tok(en)? | experts_per_token | top_k_experts
    | moe_(num_experts|num_shared_experts|num_shared_expert|k|topk|top_k|latent_size) | num_shared_expert
    | .*expert.*(intermediate|hidden|ffn).*size | moe_.*intermediate_size | expert_dim | .*intermediate_size.*
    | use_mixed_mlp_moe | use_cla | ffn_dim | n_inner | .*ffn_dim_multiplier | use_double_wide_mlp | mlp_type
    | global_head_dim | num_global_key_value_heads | num_kv_shared_layers | attention_k_eq_v | .*hidden_size_per_layer.*
    | v_head_dim | (q|kv|o)_lora_rank | qk_(nope|rope)_head_dim | multi_query | multi_query_attention
    | num_kv_heads | num_key_value_heads_per_layer | num_attention_heads_per_layer | multi_query_group_num
    | .*qk_?(layer)?_?norm | (attention|attn|mlp|qkv|use|use_qkv|add|add_qkv|lm_head|conv|projectors)_bias(_linear)?
    | attention_out_bias | bias | use_post_norm | use_sandwich_norm | sandwich_norm | use_parallel_residual
    | new_decoder_architecture | parallel_attn | num_mem_blocks | attention_hidden_size | word_embed_proj_dim
    | (num_)?hash_.* | engram_.* | .*adapter.* | laurel_.* | altup_.* | hc_mult | use_(conv|sconv)
    | attention_chunk_size | sliding_window_pattern | attn_output_gate | .*gated_attention
    | .*attention_gate.*
    """,
    re.VERBOSE,
)
"""Keys that have changed the shape of some model: kinds of layers and their mixture, experts, heads, biases, norms.
A key that is false, zero, empty or null changes nothing."""

_CHANGES_NOTHING = re.compile(
    r"""
      mamba_(chunk_size|hidden_act|norm_before_gate|dt_.*|use_.*|.*_dtype) | ssm_.*multipliers? | .*_multipliers?
    | index_(topk_freq|topk_pattern|skip_.*|share.*|n_group) | hybrid_(block_size|kernel) | qk_norm_(eps|type)
    | moe_(router|aux|norm|routed|renormalize|layer_start).* | mamba_ssm_dtype | conv_use_.* | .*adapter_(path|name).*
    """,
    re.VERBOSE,
)
"""Keys of the same spelling that do not."""

_MOST, _MOST_LAYERS = 10**9, 10_000  # layers are gone through one by one


class Keys:
    """Looks a key up in the language model's part first, then at the top, then among the ``defaults`` of its class."""

    def __init__(self, config: Mapping[str, Any], place: str) -> None:
        named = next((key for key in _TEXT if config.get(key)), None)
        nested = config[named] if named else {}
        if not isinstance(nested, dict):
            raise InputError(f"{place}: {named}", f"{nested!r} is not an object")
        self.levels: tuple[Mapping[str, Any], ...] = (nested, config) if nested else (config,)
        self.place = place
        self._read: set[str] = set()

    def get(self, key: str) -> Any:
        """The value, or None where the key is absent or null."""
        self._read.add(key)
        return next((level[key] for level in self.levels if level.get(key) is not None), None)

    def assume(self, defaults: Mapping[str, Any]) -> None:
        """What the class of the model takes where a key is absent."""
        self.levels = (*self.levels, defaults)

    def refused(self, key: str, problem: str) -> InputError:
        """What to raise for the value of a key."""
        return InputError(f"{self.place}: {key}", problem)

    def unread(self) -> str | None:
        """A key that changes the shape of the model and that nobody asked for; None where there is none."""
        for key, value in self.levels[0].items():
            if key in self._read or not value or (isinstance(value, str) and value.lower() in {"none", "false"}):
                continue
            if _CHANGES_SHAPE.fullmatch(key) and not _CHANGES_NOTHING.fullmatch(key):
                return key
        return None

    def flag(self, key: str) -> bool:
        """Whether a key is there and true."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool) and value not in (0, 1):
            raise self.refused(key, f"{value!r} is neither true nor false")
        return bool(value)

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number, positive unless it is the default; without a default the key must be there."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.refused(key, "is missing; a decoder's size cannot be known without it")
            return default
        return self.checked(key, value, default)

    def checked(self, key: str, value: object, default: int | None = None) -> int:
        """A value as a whole number, positive unless it is the default; or a list of one and the same."""
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (value == 0 and default != 0):
            raise self.refused(key, f"{value!r} is not a positive whole number")
        if value > (_MOST_LAYERS if key == "num_hidden_layers" else _MOST):
            shown = f"{value:.3g}" if value < 10**300 else "a number of hundreds of digits"
            raise self.refused(key, f"{shown} is larger than any model's; check the file")
        return value

    def first_whole(self, names: Sequence[str], default: int | None = None) -> int:
        """The first of several spellings of a key that is there."""
        values = [self.get(key) for key in names]  # all of them are known here, whichever is there
        there = next((key for key, value in zip(names, values, strict=True) if value is not None), None)
        return self.whole(there, 0) if there else self.whole(names[0], default)

    def each_layer(self, key: str, layers: int) -> list[Any] | None:
        """A list with one entry for each layer; None where the key is absent.

        Raises InputError where it is no list, or of another length.
        """
        values = self.get(key)
        if values is None:
            return None
        if not isinstance(values, list) or len(values) != layers:
            raise self.refused(key, f"must list a kind for each of the {layers} layers")
        return values
