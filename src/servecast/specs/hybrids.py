"""Reads the layers of families that mix kinds: state spaces, linear attention, convolutions, windows and attention."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from servecast.specs.decoder import attention, experts, feed_forward, latent, said, sparse_layers, windows
from servecast.specs.dtypes import dtype_name
from servecast.specs.layers.attention import Attention
from servecast.specs.layers.feed_forward import Dense, Experts
from servecast.specs.layers.layer import Layer, LayerGroup, Weights, named
from servecast.specs.layers.recurrent import DeltaNet, Lightning, Mamba, Mamba2, ShortConvolution

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from servecast.specs.config_keys import Keys
    from servecast.specs.decoder import Family
    from servecast.specs.layers.layer import Mixer

_FULL = {"full_attention", "attention"}
_RECURRENT = {"linear_attention", "mamba", "conv"}


def _kinds(keys: Keys, layers: int, key: str = "layer_types") -> list[bool] | None:
    """Which layers attend, by a list of kinds; None where there is none."""
    kinds = keys.each_layer(key, layers)
    if kinds is None:
        return None
    if unknown := sorted({str(kind) for kind in kinds} - _FULL - _RECURRENT):
        known = ", ".join(sorted(_FULL | _RECURRENT))
        raise keys.refused(key, f"{unknown[0]!r} is not supported by this model_type; known are {known}")
    return [kind in _FULL for kind in kinds]


def _listed(keys: Keys, key: str, layers: int, first: int = 0) -> list[bool] | None:
    """Which layers a list of indices names; None where there is none."""
    indices = keys.get(key)
    if indices is None:
        return None
    if not isinstance(indices, list) or not all(isinstance(i, int) and first <= i < layers + first for i in indices):
        raise keys.refused(key, f"must list layers of the {layers} there are")
    return [number + first in indices for number in range(layers)]


def _state_dtype(keys: Keys) -> str | None:
    """What the recurrent state is kept in, where the config says it; else the model's own."""
    given = [(key, keys.get(key)) for key in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")]
    return next((dtype_name(str(value), f"{keys.place}: {key}") for key, value in given if value), None)


def _feed_forwards(keys: Keys, family: Family, layers: int) -> list[Dense | Experts]:
    """The feed-forward of each layer."""
    mixture = experts(keys, family)
    sparse = sparse_layers(keys, layers) if mixture else set()
    dense = feed_forward(keys, family) if len(sparse) < layers else None
    found = [mixture if number in sparse else dense for number in range(layers)]
    return [each for each in found if each is not None]


def _mixed(
    keys: Keys, family: Family, attends: Sequence[bool], mixers: tuple[Mixer, Mixer], norms: int = 2
) -> Iterable[Layer]:
    """Layers with the first mixer where they attend, with the second elsewhere."""
    full, other = mixers
    for here, following in zip(attends, _feed_forwards(keys, family, len(attends)), strict=True):
        yield Layer((full if here else other,), following, norms)


def delta_net(keys: Keys, family: Family) -> Iterable[Layer]:
    """Qwen3-Next and Qwen3.5: gated delta rule, and gated attention in one layer of four."""
    layers = keys.whole("num_hidden_layers")
    attends = _kinds(keys, layers)
    every = keys.whole("full_attention_interval", 4)
    attends = attends or [(number + 1) % every == 0 for number in range(layers)]
    linear = DeltaNet(
        key_heads=keys.whole("linear_num_key_heads"),
        value_heads=keys.whole("linear_num_value_heads"),
        key_dim=keys.whole("linear_key_head_dim"),
        value_dim=keys.whole("linear_value_head_dim"),
        kernel=keys.whole("linear_conv_kernel_dim"),
        state_dtype=_state_dtype(keys),
    )
    keys.get("attn_output_gate")
    return _mixed(keys, family, attends, (attention(keys, family), linear))


def kimi_linear(keys: Keys, family: Family) -> Iterable[Layer]:
    """Kimi Linear: Kimi Delta Attention, and latent attention in one layer of four."""
    layers = keys.whole("num_hidden_layers")
    stated = keys.get("linear_attn_config")
    if isinstance(stated, dict):
        full = stated.get("full_attn_layers") or []
        attends = [number + 1 in full for number in range(layers)]
        heads, width, kernel = (
            keys.checked(f"linear_attn_config.{key}", stated.get(key))
            for key in ("num_heads", "head_dim", "short_conv_kernel_size")
        )
    else:
        heads, width = keys.whole("linear_num_heads"), keys.whole("linear_head_dim")
        kernel, kinds = keys.whole("linear_conv_kernel_dim"), _kinds(keys, layers)
        if kinds is None:
            raise keys.refused("layer_types", "is missing; which layers attend cannot be known without it")
        attends = kinds
    linear = DeltaNet(heads, heads, width, width, kernel, rank=width, state_dtype=_state_dtype(keys))
    return _mixed(keys, family, attends, (latent(keys), linear))


def lightning(keys: Keys, family: Family) -> Iterable[Layer]:
    """MiniMax-01: lightning attention, and full attention in one layer of eight."""
    layers = keys.whole("num_hidden_layers")
    attends, listed = _kinds(keys, layers), keys.each_layer("attn_type_list", layers)
    if attends is None and listed is None:
        raise keys.refused("layer_types", "is missing; which layers attend cannot be known without it")
    full = attention(keys, family)
    assert isinstance(full, Attention), "MiniMax-01 compresses no keys"
    linear = Lightning(full.heads, full.head_dim, _state_dtype(keys))
    return _mixed(keys, family, attends or [kind == 1 for kind in listed or []], (full, linear))


def convolutions(keys: Keys, family: Family) -> Iterable[Layer]:
    """LFM2: gated short convolutions, and attention where the config lists it."""
    layers, hidden = keys.whole("num_hidden_layers"), keys.whole("hidden_size")
    attends = _kinds(keys, layers)
    listed = _listed(keys, "full_attn_idxs", layers)
    attends = attends or listed or [True] * layers
    short = ShortConvolution(keys.whole("conv_dim", hidden), keys.whole("conv_L_cache", 3), keys.flag("conv_bias"))
    dense, mixture = Dense(_adjusted_width(keys)), experts(keys, family)
    sparse = sparse_layers(keys, layers) if mixture else set()
    full = attention(keys, family)
    for number, here in enumerate(attends):
        yield Layer((full if here else short,), mixture if number in sparse else dense)


def _adjusted_width(keys: Keys) -> int:
    """LFM2 states a width of which two thirds are used, rounded up to a multiple."""
    width = keys.first_whole(("block_ff_dim", "intermediate_size"))
    adjusted, factor = keys.get("block_auto_adjust_ff_dim"), keys.get("block_ffn_dim_multiplier")
    multiple = keys.whole("block_multiple_of", 256)
    if adjusted is False or (adjusted is None and keys.get("num_experts")):
        return width
    width = int(2 * width / 3)
    if factor is None:
        return width
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < 100:
        raise keys.refused("block_ffn_dim_multiplier", f"{factor!r} is no factor")
    return multiple * math.ceil(int(factor * width) / multiple)


def _mamba2(keys: Keys, names: Sequence[str], norm: bool = True) -> Mamba2:
    """Mamba 2 by a family's names of heads, head width, state, groups and kernel."""
    heads, width, state, groups, kernel = names
    bias = any([keys.flag("mamba_proj_bias"), keys.flag("add_bias_linear"), keys.flag("projectors_bias")])
    conv = [keys.get("mamba_conv_bias"), keys.get("use_conv_bias")]
    count = keys.whole(heads)
    inner = keys.first_whole(("mamba_expand", "expand"), 2) * keys.whole("hidden_size")
    stated = keys.get(width)
    return Mamba2(
        heads=count,
        head_dim=inner // count if stated in (None, "auto") else keys.whole(width),
        state=keys.whole(state),
        groups=keys.whole(groups, 1),
        kernel=keys.whole(kernel, 4),
        gate_norm=norm,
        bias=bias,
        conv_bias=False not in conv,
        state_dtype=_state_dtype(keys),
    )


_GRANITE = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv")


def bamba(keys: Keys, family: Family) -> Iterable[Layer]:
    """Bamba: Mamba 2, and attention in the listed layers."""
    layers = keys.whole("num_hidden_layers")
    attends = _kinds(keys, layers)
    listed = _listed(keys, "attn_layer_indices", layers)
    return _mixed(
        keys, family, attends or listed or [False] * layers, (attention(keys, family), _mamba2(keys, _GRANITE))
    )


def granite_hybrid(keys: Keys, family: Family) -> Iterable[Layer]:
    """Granite 4.0: Mamba 2 and attention by layer, with experts beside a shared feed-forward, or that one alone."""
    layers = keys.whole("num_hidden_layers")
    attends = _kinds(keys, layers) or _kinds(keys, layers, "layers_block_type")
    if attends is None:
        raise keys.refused("layer_types", "is missing; which layers attend cannot be known without it")
    full = attention(keys, family)
    mixture = experts(keys, family)
    following = mixture or feed_forward(keys, family, "shared_intermediate_size")
    for key in (*_GRANITE, "intermediate_size"):  # a model of attention alone may state what it has no use for
        keys.get(key)
    state = full if all(attends) else _mamba2(keys, _GRANITE)
    for here in attends:
        yield Layer((full if here else state,), following)


def falcon_h1(keys: Keys, family: Family) -> Iterable[Layer]:
    """Falcon-H1: attention and Mamba 2 side by side in every layer."""
    state = _mamba2(keys, _GRANITE, norm=keys.flag("mamba_rms_norm"))
    inner = keys.whole("mamba_d_ssm", state.heads * state.head_dim)
    if inner != state.heads * state.head_dim:
        problem = f"is {inner}, not the {state.heads} heads of {state.head_dim}; one of the three is amiss"
        raise keys.refused("mamba_d_ssm", problem)
    layer = Layer((attention(keys, family), state), feed_forward(keys, family))
    return [layer] * keys.whole("num_hidden_layers")


def jamba(keys: Keys, family: Family) -> Iterable[Layer]:
    """Jamba: Mamba, attention in one layer of a period, experts in one of another."""
    layers, hidden = keys.whole("num_hidden_layers"), keys.whole("hidden_size")
    period, offset = keys.whole("attn_layer_period", 8), keys.whole("attn_layer_offset", 0)
    every, first = keys.whole("expert_layer_period", 2), keys.whole("expert_layer_offset", 0)
    rank = keys.get("mamba_dt_rank")
    state = Mamba(
        inner=keys.whole("mamba_expand", 2) * hidden,
        state=keys.whole("mamba_d_state", 16),
        step_rank=math.ceil(hidden / 16) if rank in (None, "auto") else keys.whole("mamba_dt_rank"),
        kernel=keys.whole("mamba_d_conv", 4),
        norms=keys.get("mamba_inner_layernorms") is not False,
        bias=keys.flag("mamba_proj_bias"),
        conv_bias=keys.get("mamba_conv_bias") is not False,
        state_dtype=_state_dtype(keys),
    )
    kinds = _kinds(keys, layers, "layers_block_type") or _kinds(keys, layers)
    full, dense, mixture = attention(keys, family), feed_forward(keys, family), experts(keys, family)
    for number in range(layers):
        attends = kinds[number] if kinds else number % period == offset
        routes = mixture is not None and number % every == first
        yield Layer((full if attends else state,), mixture if routes else dense)


_NEMOTRON = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel")
_BLOCKS = {
    **dict.fromkeys(("M", "mamba", "linear_attention"), "M"),
    **dict.fromkeys(("*", "attention", "full_attention"), "*"),
    **dict.fromkeys(("-", "mlp"), "-"),
    **dict.fromkeys(("E", "moe"), "E"),
}


def nemotron_h(keys: Keys, family: Family) -> Iterable[Layer]:
    """Nemotron-H: each layer is Mamba 2 (M), attention (*), a feed-forward (-) or experts (E), with one norm."""
    key = "layers_block_type" if keys.get("hybrid_override_pattern") is None else "hybrid_override_pattern"
    written = keys.get(key)
    if not isinstance(written, (str, list)) or not written:
        raise keys.refused(key, "is missing; which layers attend cannot be known without it")
    if unknown := [kind for kind in map(str, written) if kind not in _BLOCKS]:
        raise keys.refused(key, f"{unknown[0]!r} is not supported; known are M, *, - and E")
    layers = keys.whole("num_hidden_layers", len(written))
    if len(written) != layers:
        raise keys.refused(key, f"lists {len(written)} layers, num_hidden_layers says {layers}")
    blocks = [_BLOCKS[kind] for kind in written]
    for name in ("head_dim", "attention_head_dim"):
        if keys.get(name) is not None:
            keys.assume({"head_dim": keys.whole(name)})
    mixture, found = _nemotron_experts(keys, family), set(blocks)
    parts: dict[str, tuple[tuple[Mixer, ...], Dense | Experts | None]] = {
        "M": ((_mamba2(keys, _NEMOTRON),) if "M" in found else (), None),
        "*": ((attention(keys, family),) if "*" in found else (), None),
        "-": ((), feed_forward(keys, family) if "-" in found else None),
        "E": ((), mixture),
    }
    if "E" in found and mixture is None:
        raise keys.refused("n_routed_experts", "is missing, though the pattern has layers of experts")
    for block in blocks:
        yield Layer(*parts[block], norms=1)


def _nemotron_experts(keys: Keys, family: Family) -> Experts | None:
    mixture = experts(keys, family)
    inner = keys.whole("moe_latent_size", 0) or None
    if mixture is None or inner is None:
        return mixture
    biases = (inner + keys.whole("hidden_size")) * said(keys, family.mlp_bias)
    return replace(mixture, latent=inner, router_extra=biases)


_ZAMBA = ("n_mamba_heads", "mamba_headdim", "mamba_d_state", "mamba_ngroups", "mamba_d_conv")


def zamba2(keys: Keys, family: Family) -> Iterable[LayerGroup]:
    """Zamba2: Mamba 2 in every layer, and before some of them one of a few transformer blocks that share weights.

    A block sees the hidden state beside the embedding, twice as wide; a matrix of its own leads back to each layer, and
    an adapter of its own of rank ``adapter_rank`` adds to the shared gate and up projections.
    """
    hidden, layers = keys.whole("hidden_size"), keys.whole("num_hidden_layers")
    kinds = keys.get("layers_block_type")
    listed = _listed(keys, "hybrid_layer_ids", layers)
    if listed is None and isinstance(kinds, list) and len(kinds) == layers:
        listed = [kind == "hybrid" for kind in kinds]
    if listed is None:
        raise keys.refused("hybrid_layer_ids", "is missing; which layers attend cannot be known without it")
    used, blocks = sum(listed), keys.whole("num_mem_blocks", 1)
    heads = keys.whole("num_attention_heads")
    inner = keys.whole("attention_hidden_size", 2 * hidden)
    shared = Attention(
        heads=heads,
        kv_heads=keys.whole("num_key_value_heads", heads),
        head_dim=keys.whole("attention_head_dim", inner // heads),
        inputs=inner,
    )
    rank, width = keys.whole("adapter_rank", 128), keys.whole("intermediate_size")
    adapters = rank * (hidden + 2 * width)
    if keys.flag("use_shared_attention_adapter"):
        adapters += 3 * rank * (inner + heads * shared.head_dim)
    state = _mamba2(keys, _ZAMBA)
    own = Weights(named(lead=hidden * hidden, adapter=adapters))
    yield LayerGroup(layers - used, Layer((state,), None, 1))
    yield LayerGroup(used, Layer((state,), None, 1, own))
    # The norm of the wide input comes on top of the one before the feed-forward.
    yield LayerGroup(used, Layer((shared,), Dense(width), 1, Weights(plain=inner)), copies=min(blocks, used))


def llama4(keys: Keys, family: Family) -> Iterable[Layer]:
    """Llama 4: chunks of the context in three layers of four, experts beside a shared one, dense layers between."""
    layers = keys.whole("num_hidden_layers")
    chunk, longest = keys.whole("attention_chunk_size", 0) or None, keys.whole("max_position_embeddings", 0)
    if chunk and longest and chunk >= longest:
        chunk = None
    every = keys.whole("no_rope_layer_interval", 4)
    listed, kinds = keys.get("no_rope_layers") or None, keys.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        chunked = [kind == "chunked_attention" for kind in kinds]
    elif isinstance(listed, list) and len(listed) == layers:
        chunked = [bool(rotated) for rotated in listed]
    else:
        chunked = [(number + 1) % every != 0 for number in range(layers)]
    step, routed = keys.whole("interleave_moe_layer_step", 1), keys.get("moe_layers")
    sparse = routed if isinstance(routed, list) else range(step - 1, layers, step)
    full, mixture = attention(keys, family), experts(keys, family)
    if mixture is None:
        raise keys.refused("num_local_experts", "is missing; Llama 4 is a mixture of experts")
    mixture = replace(mixture, shared=mixture.intermediate)
    dense = Dense(keys.whole("intermediate_size_mlp", 0) or mixture.intermediate)
    keys.get("use_qk_norm")  # without weights
    for number in range(layers):
        here = replace(full, window=chunk if chunked[number] else None) if isinstance(full, Attention) else full
        yield Layer((here,), mixture if number in sparse else dense)


def mimo(keys: Keys, family: Family) -> Iterable[Layer]:
    """MiMo-V2-Flash: a short window with sinks in most layers, and full attention with fewer KV heads in the others."""
    layers = keys.whole("num_hidden_layers")
    pattern = keys.each_layer("hybrid_layer_pattern", layers)
    kinds = keys.each_layer("layer_types", layers)
    if pattern is None and kinds is None:
        raise keys.refused("hybrid_layer_pattern", "is missing; which layers attend fully cannot be known without it")
    slides = [kind == 1 for kind in pattern] if pattern else [kind == "sliding_attention" for kind in kinds or []]
    full = attention(keys, family)
    assert isinstance(full, Attention), "MiMo compresses no keys"
    full = replace(full, value_dim=keys.whole("v_head_dim", full.head_dim))
    window = keys.first_whole(("sliding_window", "sliding_window_size", "attention_chunk_size"))
    sliding = replace(
        full,
        heads=keys.whole("swa_num_attention_heads", full.heads),
        kv_heads=keys.whole("swa_num_key_value_heads", 2 * full.kv_heads),
        head_dim=keys.whole("swa_head_dim", full.head_dim),
        value_dim=keys.whole("swa_v_head_dim", full.value_dim),
        window=window,
        sinks=keys.get("add_swa_attention_sink_bias") is not False,
    )
    keys.get("swa_rope_theta")
    full = replace(full, sinks=keys.flag("add_full_attention_sink_bias"))
    for here, following in zip(slides, _feed_forwards(keys, family, layers), strict=True):
        yield Layer((sliding if here else full,), following)


def gemma4(keys: Keys, family: Family) -> Iterable[Layer]:
    """Gemma 4: windows and wider full heads by turns, caches that the last layers share, inputs by layer."""
    layers, hidden = keys.whole("num_hidden_layers"), keys.whole("hidden_size")
    spans = windows(keys, family, layers)
    spans[-1] = None
    narrow = attention(keys, family)
    assert isinstance(narrow, Attention), "Gemma compresses no keys"
    same = keys.flag("attention_k_eq_v")
    wide = replace(
        narrow,
        head_dim=keys.whole("global_head_dim", 512),
        kv_heads=keys.whole("num_global_key_value_heads", narrow.kv_heads) if same else narrow.kv_heads,
        key_is_value=same,
    )
    keys.get("num_global_key_value_heads")
    stated = keys.get("per_layer_config") or {}
    shared = keys.whole("num_kv_shared_layers", 0)
    width, gate = keys.whole("intermediate_size"), keys.whole("hidden_size_per_layer_input", 0)
    mixture = experts(keys, family) if keys.flag("enable_moe_block") else None
    doubled = keys.flag("use_double_wide_mlp")
    for number, window in enumerate(spans):
        reuses = number >= layers - shared
        here = replace(wide if window is None else narrow, window=window, shares_cache=reuses)
        if isinstance(stated, dict) and isinstance(one := stated.get(f"{number:02}", stated.get(str(number))), dict):
            place = f"per_layer_config.{number}"
            here = replace(
                here,
                head_dim=keys.checked(place, one.get("head_dim", narrow.head_dim)),
                kv_heads=keys.checked(place, one.get("num_key_value_heads", narrow.kv_heads)),
            )
        dense = Dense(width * (2 if doubled and reuses else 1))
        own = Weights(named(extra=2 * hidden * gate), hidden * bool(gate))
        following: Dense | Experts = dense
        if mixture:
            # Beside the experts every token passes the dense feed-forward; the router scales inputs and experts.
            following = replace(mixture, shared=width, router_extra=hidden + mixture.total)
        yield Layer((here,), following, 7 if mixture else 4, own)
