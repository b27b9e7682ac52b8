"""Reads the layers of a decoder as most families have them: attention, then a feed-forward, the same keys everywhere.

What a family always has and its config does not say (Qwen2's QKV bias, Gemma's four norms) is its `Family`. Experts are
``num_local_experts`` here and ``n_routed_experts`` there; all known spellings are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from servecast.specs.layers.attention import Attention, Index, LatentAttention
from servecast.specs.layers.feed_forward import Dense, Experts
from servecast.specs.layers.layer import NOTHING, Layer, LayerGroup, Weights, named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from servecast.specs.config_keys import Keys

Reader: TypeAlias = "Callable[[Keys, Family], Iterable[Layer | LayerGroup]]"
Said: TypeAlias = "bool | str"  # True or False, or the key that says which


def decoder(keys: Keys, family: Family) -> Iterable[Layer]:
    """Every layer, first to last."""
    mixer = attention(keys, family)
    layers = keys.whole("num_hidden_layers")
    spans = windows(keys, family, layers) if isinstance(mixer, Attention) else _alike(keys, layers)
    sparse = sparse_layers(keys, layers) if (mixture := experts(keys, family)) else set()
    dense = None if mixture and len(sparse) == layers else feed_forward(keys, family)
    made: dict[tuple[int | None, bool], Layer] = {}
    for number, window in enumerate(spans):
        kind = window, number in sparse
        if kind not in made:
            here = replace(mixer, window=window) if isinstance(mixer, Attention) else mixer
            made[kind] = Layer((here,), mixture if kind[1] else dense, family.norms, family.extra)
        yield made[kind]


@dataclass(frozen=True, slots=True)
class Family:
    """What the models of one ``model_type`` have that their config does not say.

    read : reads the layers; defaults : what the class takes where a key is absent
    tied : lm_head and embedding are one table where the config says nothing
    norms, ends : vectors of the hidden width in a layer, and after the last one; a norm with a bias has two
    gated, mlp_bias, qkv_bias, output_bias : of the projections; a key's name where the config decides
    qk_norm : "" none, "head" one weight for all heads, "whole" one for each column; qk_norm_key : the key that decides
    sinks : the attention has them; every : every n-th layer attends fully, the others see the window, where the config
        does not say which
    router_bias : a bias of the router; a correction of its scores counts where a config names noaux_tc for it
    shared_gate, expert_biases, attention_gate : see `Experts` and `Attention`; head_bias : the lm_head has a bias
    extra : in every layer; inert : keys that change nothing here
    """

    read: Reader = decoder
    defaults: Mapping[str, Any] = field(default_factory=dict)
    tied: bool = False
    norms: int = 2
    ends: int = 1
    gated: bool = True
    mlp_bias: Said = "mlp_bias"
    qkv_bias: Said = "attention_bias"
    output_bias: Said = "attention_bias"
    qk_norm: str = ""
    qk_norm_key: str = ""
    sinks: bool = False
    every: int | None = None
    router_bias: bool = False
    shared_gate: bool = False
    expert_biases: bool = False
    head_bias: Said = False
    attention_gate: bool = False
    extra: Weights = NOTHING
    inert: tuple[str, ...] = ()


def said(keys: Keys, value: Said) -> bool:
    """What a family always has, or what the key says that decides."""
    return keys.flag(value) if isinstance(value, str) else value


def attention(keys: Keys, family: Family, prefix: str = "") -> Attention | LatentAttention:
    """The attention of a model, without its window; latent where the config has the rank of a compressed cache."""
    if not prefix and keys.get("kv_lora_rank") is not None:
        return latent(keys)
    hidden, heads = keys.whole("hidden_size"), keys.whole(prefix + "num_attention_heads")
    kv_heads = keys.whole(prefix + "num_key_value_heads", heads)
    if kv_heads > heads or heads % kv_heads:
        raise keys.refused(
            prefix + "num_key_value_heads", f"is {kv_heads}; it must divide {prefix}num_attention_heads {heads}"
        )
    head_dim = keys.whole(prefix + "head_dim", 0)
    if not head_dim and hidden % heads:
        problem = f"is missing and hidden_size {hidden} is not a multiple of {heads} heads; state it"
        raise keys.refused(prefix + "head_dim", problem)
    normed = family.qk_norm if not family.qk_norm_key or keys.flag(family.qk_norm_key) else ""
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        qkv_bias=said(keys, family.qkv_bias),
        output_bias=said(keys, family.output_bias),
        qk_norm=normed == "head",
        whole_qk_norm=normed == "whole",
        sinks=family.sinks,
        gated=family.attention_gate,
    )


def latent(keys: Keys) -> LatentAttention:
    """Multi-head latent attention (DeepSeek), with an index where the config has one (DeepSeek-V3.2)."""
    hidden, query_rank = keys.whole("hidden_size"), keys.whole("q_lora_rank", 0) or None
    kv_rank, rope = keys.whole("kv_lora_rank"), keys.whole("qk_rope_head_dim")
    biases = (query_rank or 0) + kv_rank + rope + hidden
    index = None
    if keys.get("index_topk") is not None:
        index = Index(keys.whole("index_n_heads"), keys.whole("index_head_dim"), keys.whole("index_topk"))
    return LatentAttention(
        heads=keys.whole("num_attention_heads"),
        query_rank=query_rank,
        kv_rank=kv_rank,
        nope=keys.whole("qk_nope_head_dim"),
        rope=rope,
        value=keys.whole("v_head_dim"),
        index=index,
        extra=biases * keys.flag("attention_bias"),
    )


def feed_forward(keys: Keys, family: Family, key: str = "intermediate_size") -> Dense:
    """A dense feed-forward of the width that ``key`` says."""
    return Dense(keys.whole(key), gated=family.gated, bias=said(keys, family.mlp_bias))


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_TAKEN = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_k", "moe_topk")
_WIDTHS = ("moe_intermediate_size", "intermediate_size")
_SHARED_WIDTHS = (
    "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size",
)  # fmt: skip
_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")


def experts(keys: Keys, family: Family) -> Experts | None:
    """The mixture of experts of a model; None in a dense one."""
    count = keys.first_whole(_EXPERTS, 0)
    if count <= 1:
        keys.first_whole(_TAKEN, 0)
        return None
    active = keys.first_whole(_TAKEN)
    if active > count:
        raise keys.refused("num_experts_per_tok", f"{active} is more than the {count} experts there are")
    intermediate = keys.first_whole(_WIDTHS)
    beside, each = keys.first_whole(_SHARED, 0), keys.first_whole(_SHARED_WIDTHS, 0)
    corrected = family.router_bias or keys.get("topk_method") == "noaux_tc"
    return Experts(
        total=count,
        active=active,
        intermediate=intermediate,
        shared=each * max(1, beside) if each else beside * intermediate,
        gated=family.gated,
        shared_gate=family.shared_gate,
        router_bias=corrected,
        biases=family.expert_biases,
    )


def sparse_layers(keys: Keys, layers: int) -> set[int]:
    """The layers of a mixture of experts that route: a list of kinds, or the first, named or spaced dense ones."""
    first = keys.first_whole(("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"), 0)
    for key, routes in (("mlp_layer_types", "sparse"), ("is_moe_layer", True), ("moe_layer_freq", 1)):
        if isinstance(keys.get(key), list):
            kinds = keys.each_layer(key, layers) or []
            if unknown := [kind for kind in kinds if kind not in ("sparse", "dense", True, False)]:
                raise keys.refused(key, f"{unknown[0]!r} is not supported; known are sparse and dense")
            return {number for number, kind in enumerate(kinds) if kind == routes}
    named_dense = keys.get("mlp_only_layers") or ()
    if not isinstance(named_dense, (list, tuple)):
        raise keys.refused("mlp_only_layers", f"{named_dense!r} is no list of layers")
    step, spaced = (
        keys.whole("decoder_sparse_step", 1),
        keys.first_whole(("moe_layer_freq", "moe_layer_interval"), 1) or 1,
    )
    last = keys.get("moe_layer_end_index")
    last = layers - 1 if last is None or last == -1 else keys.checked("moe_layer_end_index", last, 0)
    return {
        number
        for number in range(first, min(last + 1, layers))
        if number not in named_dense and (number + 1) % step == 0 and (number - first * (step == 1)) % spaced == 0
    }


def _alike(keys: Keys, layers: int) -> list[int | None]:
    """No windows: latent attention keeps every token, whether a list of layers says so or not."""
    for kind in keys.each_layer("layer_types", layers) or ():
        if kind not in ("full_attention", "indexed_attention"):
            raise keys.refused("layer_types", f"{kind!r} is not supported where attention is latent")
    return [None] * layers


_FULL = {"full_attention", "global_attention", "attention"}
_SLIDING = {"sliding_attention", "local_attention", "chunked_attention"}


def windows(keys: Keys, family: Family, layers: int) -> list[int | None]:
    """The attention window of each layer in tokens, None where it is full."""
    window = keys.whole("sliding_window", 0) or None
    longest = keys.whole("max_position_embeddings", 0)
    if keys.get("use_sliding_window") is False or (window and longest and window >= longest):
        window = None
    if any(kind != 1 for kind in keys.each_layer("attn_type_list", layers) or ()):
        raise keys.refused("attn_type_list", "has other kinds than 1 (attention), which this model_type does not")
    kinds = keys.each_layer("layer_types", layers)
    if kinds is not None:
        if unknown := sorted({str(kind) for kind in kinds} - _FULL - _SLIDING):
            known = ", ".join(sorted(_FULL | _SLIDING))
            raise keys.refused("layer_types", f"{unknown[0]!r} is not supported by this model_type; known are {known}")
        if not _SLIDING.isdisjoint(kinds) and window is None and keys.get("sliding_window") is None:
            raise keys.refused("sliding_window", "is missing, though layer_types names sliding layers")
        keys.get("sliding_window_pattern")
        return [window if kind in _SLIDING else None for kind in kinds]
    pattern = _pattern(keys, family, layers)
    if pattern is not None:
        return [None if full else window for full in pattern]
    if keys.get("max_window_layers") is not None:
        full = keys.whole("max_window_layers", 0)
        return [None if layer < full else window for layer in range(layers)]
    return [window] * layers


def _pattern(keys: Keys, family: Family, layers: int) -> list[bool] | None:
    """Which layers attend fully by a pattern of the config or of the family; None where neither has one."""
    written = keys.get("sliding_window_pattern")
    if isinstance(written, str):
        if set(written) - set("LG") or not written:
            raise keys.refused("sliding_window_pattern", f"{written!r} is no pattern of L (local) and G (global)")
        last = layers - 1  # Exaone: the last layer attends fully, wherever the pattern ends
        return [written[layer % len(written)] == "G" or layer == last for layer in range(layers)]
    stated = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
    every = keys.first_whole(stated, 0) or family.every
    return None if not every else [(layer + 1) % every == 0 for layer in range(layers)]


def expected(*keys: str, **values: Any) -> dict[str, Any]:
    """Defaults of a class: ``keys`` that are true there, and others by their value."""
    return {**dict.fromkeys(keys, True), **values}


def adapter(**matrices: int) -> Weights:
    """Matrices of a layer that are its family's own."""
    return Weights(named(**matrices))
