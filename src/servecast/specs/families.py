"""The model types that are known, each with what its class has and a config.json does not say.

The source is the class in transformers 5.24; tests/test_families.py holds the parameter count of each one there. A type
that is missing is refused: read amiss, an unknown model would be plain attention, with a size that is wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from servecast.specs import hybrids
from servecast.specs.decoder import Family, expected
from servecast.specs.layers.layer import Weights

_LLAMA = Family()
_TIED = Family(tied=True)
_NO_WINDOW = {"use_sliding_window": False}
_QWEN2 = Family(qkv_bias=True, output_bias=False, defaults=_NO_WINDOW)
_QWEN3 = Family(qk_norm="head", defaults={"head_dim": 128, **_NO_WINDOW})
_GEMMA = Family(tied=True, defaults={"head_dim": 256})
_GEMMA2 = replace(_GEMMA, norms=4, every=2)
_GEMMA3_DEFAULTS = {
    "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
}  # fmt: skip
_GEMMA3 = replace(_GEMMA2, qk_norm="head", every=6, defaults=_GEMMA3_DEFAULTS)
_QK_MOE = Family(qk_norm="head")
_OLMO2 = Family(qk_norm="whole")
_HUNYUAN = Family(qk_norm="head", qk_norm_key="use_qk_norm", defaults=expected("use_qk_norm"))
_BIASED_NORMS = Family(norms=4, ends=2)
_GRANITE_HYBRID = Family(hybrids.granite_hybrid)
_DELTA = Family(
    hybrids.delta_net, qk_norm="head", shared_gate=True, attention_gate=True, output_bias="attention_bias",
    defaults={"head_dim": 256, "linear_conv_kernel_dim": 4},
)  # fmt: skip
_GEMMA4 = replace(_GEMMA3, read=hybrids.gemma4, defaults={"head_dim": 256})
_LLAMA4 = Family(hybrids.llama4, defaults={"attention_chunk_size": 8192})

FAMILIES: Final[dict[str, Family]] = {
    # every layer alike: attention and a gated feed-forward
    **dict.fromkeys(("llama", "granite", "helium", "cwm", "mistral", "ministral3", "iquestcoder", "exaone"), _LLAMA),
    **dict.fromkeys(("emu3_text_model", "smolvlm_text"), _LLAMA),
    "ministral": replace(_LLAMA, qkv_bias=False, output_bias=False),
    "phi3": replace(_LLAMA, qkv_bias=False, output_bias=False),
    "smollm3": replace(_TIED, defaults=_NO_WINDOW),
    "ernie4_5": replace(_TIED, qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias"),
    **dict.fromkeys(("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _QWEN2),
    **dict.fromkeys(("qwen3", "qwen3_vl", "qwen3_vl_text"), _QWEN3),
    "internlm3": Family(qkv_bias="qkv_bias", output_bias="bias", mlp_bias="bias"),
    "seed_oss": Family(output_bias="attention_out_bias", defaults=expected("attention_bias")),
    "glm": Family(output_bias=False, defaults=expected("attention_bias")),
    "glm4": Family(norms=4, output_bias=False, defaults=expected("attention_bias")),
    "hunyuan_v1_dense": _HUNYUAN,
    "exaone4": Family(qk_norm="head", every=4, qkv_bias=False, output_bias=False),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, every=4),
    "olmo": Family(norms=0, ends=0),
    "cohere": Family(tied=True, norms=1, qk_norm="whole", qk_norm_key="use_qk_norm"),
    "cohere2": Family(tied=True, norms=1, every=4),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "vaultgemma": replace(_GEMMA, every=2),
    **dict.fromkeys(("gemma3", "gemma3_text"), _GEMMA3),
    # two matrices, norms with biases
    "arcee": Family(gated=False),
    "apertus": Family(
        gated=False, qk_norm="head", qk_norm_key="qk_norm", defaults=expected("qk_norm"), extra=Weights(plain=2)
    ),
    "nanochat": Family(gated=False, norms=0, ends=0),
    "nemotron": replace(_BIASED_NORMS, gated=False),
    "jais2": replace(_BIASED_NORMS, gated=False, defaults=expected("attention_bias", "mlp_bias")),
    "starcoder2": replace(
        _BIASED_NORMS, gated=False, tied=True, qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias",
        defaults=expected("use_bias"),
    ),
    "stablelm": replace(
        _BIASED_NORMS, qkv_bias="use_qkv_bias", output_bias=False, qk_norm="whole", qk_norm_key="qk_layernorm"
    ),
    "phi": Family(norms=2, ends=2, gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, head_bias=True),
    "gpt_neox": replace(
        _BIASED_NORMS, gated=False, mlp_bias=True, defaults=expected("attention_bias"), inert=("use_parallel_residual",)
    ),
    # mixtures of experts
    "mixtral": Family(qkv_bias=False, output_bias=False),
    "phimoe": replace(_BIASED_NORMS, head_bias="lm_head_bias"),
    "qwen2_moe": replace(_QWEN2, qkv_bias="qkv_bias", shared_gate=True, defaults=expected("qkv_bias", **_NO_WINDOW)),
    **dict.fromkeys(("qwen3_moe", "qwen3_vl_moe", "qwen3_vl_moe_text"), replace(_QWEN3, defaults=_NO_WINDOW)),
    "gpt_oss": Family(
        sinks=True, every=2, router_bias=True, expert_biases=True, defaults=expected("attention_bias", head_dim=64)
    ),
    **dict.fromkeys(("granitemoe", "granitemoeshared"), _LLAMA),
    "granitemoehybrid": _GRANITE_HYBRID,
    "olmoe": _OLMO2,
    "flex_olmo": _OLMO2,
    "minimax_m2": Family(
        qk_norm="whole", qk_norm_key="use_qk_norm", qkv_bias=False, output_bias=False,
        defaults=expected("use_qk_norm"),
    ),
    "ernie4_5_moe": Family(
        tied=True, qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", head_bias="use_bias",
        router_bias=True,
    ),
    "glm4_moe": Family(qk_norm="head", qk_norm_key="use_qk_norm", output_bias=False),
    "glm4v_moe_text": Family(output_bias=False),
    "dots1": Family(qk_norm="head"),
    "hunyuan_v1_moe": replace(
        _HUNYUAN, defaults=expected("use_qk_norm", num_shared_expert=1), inert=("use_mixed_mlp_moe",)
    ),
    "hy_v3": Family(qk_norm="head"),
    "exaone_moe": Family(qk_norm="head", every=4, qkv_bias=False, output_bias=False),
    "afmoe": Family(norms=4, qk_norm="head", attention_gate=True, router_bias=True, every=4),
    "solar_open": Family(),
    "sarvam_moe": Family(
        qk_norm="head", qk_norm_key="use_qk_norm", defaults=expected("use_qk_norm")
    ),
    "mellum": _QK_MOE,
    **dict.fromkeys(("llama4", "llama4_text"), _LLAMA4),
    "mimo_v2_flash": Family(hybrids.mimo),
    # latent attention
    "deepseek_v2": _LLAMA,
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa"), _LLAMA),
    **dict.fromkeys(("sarvam_mla", "glm4_moe_lite"), _LLAMA),
    "minicpm3": _TIED,
    "youtu": _TIED,
    # a fixed state in most layers, or beside attention
    **dict.fromkeys(("qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_text"), _DELTA),
    "kimi_linear": Family(hybrids.kimi_linear),
    **dict.fromkeys(
        ("minimax", "minimax_text_01", "minimax_m1"), Family(hybrids.lightning, qkv_bias=False, output_bias=False)
    ),
    "nemotron_h": Family(hybrids.nemotron_h, gated=False),
    "falcon_h1": Family(hybrids.falcon_h1),
    "bamba": Family(hybrids.bamba),
    "jamba": Family(hybrids.jamba, qkv_bias=False, output_bias=False, mlp_bias=False),
    "zamba2": Family(hybrids.zamba2, tied=True),
    "lfm2": Family(hybrids.convolutions, tied=True, qk_norm="head", qkv_bias=False, output_bias=False),
    "lfm2_moe": Family(
        hybrids.convolutions, tied=True, qk_norm="head", qkv_bias=False, output_bias=False,
        inert=("use_expert_bias",),
    ),
    # windows and caches of several kinds
    **dict.fromkeys(("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"), _GEMMA4),
}  # fmt: skip

_STATE_ALONE = "it has a fixed state in every layer and no attention: nothing here would be cached in blocks"
_ENCODER = "it is an encoder, which makes no tokens one by one; give a decoder-only model"
_CROSS = "it reads images or an encoder's output by cross-attention, whose cache is not known here"

REFUSED: Final[dict[str, str]] = {
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"), _STATE_ALONE),
    **dict.fromkeys(
        (
            "bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "modernbert", "electra", "deberta", "deberta-v2",
            "distilbert", "albert", "mpnet", "nomic_bert", "camembert", "big_bird", "roformer", "rembert", "ernie",
            "bert-generation", "megatron-bert", "data2vec-text", "roc_bert", "xmod", "vit", "clip", "siglip",
            "eurobert",
        ),
        _ENCODER,
    ),
    **dict.fromkeys(("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "m2m_100", "whisper"), _CROSS),
    **dict.fromkeys(("t5gemma", "mllama", "mllama_text_model"), _CROSS),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), "its layers predict each other (AltUp), which is not known here"),
    **dict.fromkeys(
        ("gemma4_assistant", "gemma4_unified_assistant"), "it drafts for another model, with that one's cache"
    ),
    "deepseek_v4": "its caches are compressed at several ratios, which are not known here",
    "recurrent_gemma": "its gated linear recurrences are not known here",
}  # fmt: skip
"""Types that are refused with a reason of their own."""
