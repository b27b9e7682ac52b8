"""How the matrices of a checkpoint are stored: bits a weight with its scales, matrix by matrix and layer by layer.

Read from ``quantization_config`` of a config.json, or from the ``hf_quant_config.json`` that modelopt writes beside it.
A weight takes its own bits, and its share of the scales of its group:

    int4, groups of 32            4 + 16/32 = 4.5      scales in 16 bits; with a zero of 4 bits (AWQ) 4/32 more
    NVFP4                         4 + 8/16  = 4.5      an fp8 scale per 16 values
    MXFP4                         4 + 8/32  = 4.25     an 8-bit exponent per 32 values
    fp8, blocks of 128 x 128      8 + 32/16,384        an fp32 scale a block
    bitsandbytes nf4              4 + 32/64 = 4.5      vLLM expands double-quantised scales while it loads

Scales of a row or a tensor (under 0.2 %) are left out. Which matrices stay as they are is said in many ways: exact
names, parts of names, wildcards, regular expressions after ``re:``; a name stands for all below it. Embeddings and
routers are never quantised, the lm_head only where the file says so (as vLLM loads it).
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from servecast.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


class WeightFormat(NamedTuple):
    """A number format, and the bits a weight takes in it with its share of the scales."""

    name: str
    bits: float


Formats: TypeAlias = tuple[tuple[str, WeightFormat], ...]
"""The quantised matrices of one layer, each with its format; others have the model's own."""

_SELF_ATTENTION = ("self_attn", "attention", "attn", "mixer")
_FEED_FORWARD = ("mlp", "feed_forward", "block_sparse_moe", "mixer")


def _below(parents: Iterable[str], *names: str) -> tuple[str, ...]:
    return tuple(f"{parent}.{name}" for parent in parents for name in names)


_NAMES: dict[str, tuple[str, ...]] = {
    "query": _below(_SELF_ATTENTION, "q_proj", "qkv_proj"),
    "key": _below(_SELF_ATTENTION, "k_proj", "qkv_proj"),
    "value": _below(_SELF_ATTENTION, "v_proj", "qkv_proj"),
    "output": _below(_SELF_ATTENTION, "o_proj", "dense"),
    "query_down": ("self_attn.q_a_proj",),
    "query_up": ("self_attn.q_b_proj", "self_attn.q_proj"),
    "kv_down": ("self_attn.kv_a_proj_with_mqa",),
    "kv_up": ("self_attn.kv_b_proj",),
    "index": ("self_attn.indexer.wq_b", "self_attn.indexer.wk", "self_attn.indexer.weights_proj"),
    "state_in": ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_qkv", "mamba.in_proj", "mixer.in_proj"),
    "state_step": ("linear_attn.in_proj_ba", "linear_attn.in_proj_b", "mamba.x_proj", "mixer.x_proj"),
    "state_out": ("linear_attn.out_proj", "mamba.out_proj", "mixer.out_proj"),
    "gate": _below(_FEED_FORWARD, "gate_proj", "gate_up_proj", "w1"),
    "up": _below(_FEED_FORWARD, "up_proj", "gate_up_proj", "w3", "c_fc"),
    "down": _below(_FEED_FORWARD, "down_proj", "w2", "c_proj"),
    "experts": _below(
        _FEED_FORWARD, "experts.0.gate_proj", "experts.0.up_proj", "experts.0.w1", "experts.gate_up_proj"
    ),
    "latent": _below(_FEED_FORWARD, "fc1_latent_proj", "fc2_latent_proj"),
    "shared": _below(_FEED_FORWARD, "shared_experts.gate_proj", "shared_expert.gate_proj", "shared_experts.up_proj"),
}
"""Matrices of a layer as `servecast.specs.layers` calls them, and their names in checkpoints."""

_ROOTS = ("model.", "model.language_model.", "language_model.model.", "backbone.", "transformer.", "")
_ROOT = re.compile(r"^((model|language_model|backbone|transformer)\.)+")


def _regex(text: str, pattern: str, place: str) -> re.Pattern[str]:
    if len(text) > 500 or re.search(r"[+*}]\)[+*{]|\|[^()]*\)[+*{]", text) or len(re.findall(r"[+*]", text)) > 6:
        raise InputError(place, f"{pattern[:200]!r} may take for ever to match; write it without repeats of repeats")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(place, f"{pattern[:200]!r} is no regular expression ({error}); mend the pattern") from None


class _Names:
    """A set of modules by names, parts of names, wildcards and regular expressions."""

    def __init__(self, patterns: Iterable[str], place: str) -> None:
        self.plain: set[str] = set()
        self.regexes: list[re.Pattern[str]] = []
        for pattern in patterns:
            if pattern.startswith("re:"):
                self.regexes.append(_regex(pattern[3:], pattern, place))
            elif re.fullmatch(r"[^*?]*\d\*", pattern):  # layers.1* is layer 1 and what is below it, not layer 10
                self.plain.add(_ROOT.sub("", pattern[:-1]))
            elif "*" in pattern or "?" in pattern:
                self.regexes.append(_regex(fnmatch.translate(pattern)[:-2] + r"(\..*)?\Z", pattern, place))
            else:
                self.plain.add(_ROOT.sub("", pattern) or pattern)

    def hold(self, module: str) -> bool:
        """Whether ``module`` (without the root's name) is one of them, or below one."""
        words = module.split(".")
        spans = ((i, j) for i in range(len(words)) for j in range(i + 1, len(words) + 1))
        if any(".".join(words[i:j]) in self.plain for i, j in spans):
            return True
        return any(regex.match(root + module) for regex in self.regexes for root in _ROOTS)


class _Rule(NamedTuple):
    """Modules, and the format they have (None: as the model's activations)."""

    names: _Names
    format: WeightFormat | None


@dataclass(frozen=True, slots=True)
class Quantization:
    """The formats of a checkpoint. The first rule that holds a module decides, else ``usual`` does.

    head : format of the lm_head, where it is quantised; kv_dtype : what the cache is kept in, where the file says so
    """

    usual: WeightFormat | None
    rules: tuple[_Rule, ...] = ()
    head: WeightFormat | None = None
    kv_dtype: str | None = None
    experts_only: bool = False

    @property
    def name(self) -> str | None:
        """The format of most matrices."""
        stored = self.usual or next((rule.format for rule in self.rules if rule.format), None)
        return stored.name if stored else None

    def formats(self, layer: int) -> Formats:
        """The quantised matrices of the layer of that index."""
        found = ((matrix, self._format(matrix, layer)) for matrix in _NAMES)
        return tuple((matrix, stored) for matrix, stored in found if stored is not None)

    def _format(self, matrix: str, layer: int) -> WeightFormat | None:
        if self.experts_only and matrix != "experts":
            return None
        modules = [f"layers.{layer}.{name}" for name in _NAMES[matrix]]
        for rule in self.rules:
            if any(rule.names.hold(module) for module in modules):
                return rule.format
        return self.usual


class _Stated:
    """The keys of one quantisation, and where they stand."""

    def __init__(self, keys: Mapping[str, Any], place: str) -> None:
        self.keys = keys
        self.place = place

    def refused(self, problem: str) -> InputError:
        return InputError(self.place, problem)

    def number(self, *names: str, default: float | None = None) -> float:
        """The first of several spellings that is there: a positive number, or -1 for one group."""
        for name in names:
            value = self.keys.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not (value == -1 or 0 < value <= 1e6):
                raise self.refused(f"{name} is {value!r}, no number of bits or weights")
            return value
        if default is None:
            raise self.refused(f"{names[0]} is missing: without it the size of a weight is not known; state it")
        return default

    def section(self, name: str) -> Mapping[str, Any]:
        """A mapping, empty where it is absent."""
        value = self.keys.get(name) or {}
        if not isinstance(value, Mapping):
            raise self.refused(f"{name} is {value!r}, not an object")
        return value

    def names(self, *keys: str) -> tuple[_Rule, ...]:
        """The rule of the modules that are left as they are, or none."""
        listed: list[str] = []
        for key in keys:
            value = self.keys.get(key) or []
            if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
                raise self.refused(f"{key} is no list of module names")
            listed += value
        return (_Rule(_Names(listed, self.place), None),) if listed else ()

    def overrides(self, key: str, stored: Callable[[_Stated, str], WeightFormat | None]) -> tuple[_Rule, ...]:
        """Rules of a mapping from modules to what is other there: modules of one format in one rule."""
        grouped: dict[WeightFormat | None, list[str]] = {}
        for name, change in self.section(key).items():
            merged = _Stated({**self.keys, **(change if isinstance(change, Mapping) else {})}, f"{self.place}.{key}")
            pattern = re.sub(r"^[-+]:", "re:", str(name))
            if set(pattern) & set("\\()[]|+^$") and not pattern.startswith("re:"):
                pattern = "re:" + pattern
            grouped.setdefault(stored(merged, str(name)), []).append(pattern)
        return tuple(_Rule(_Names(names, self.place), stored) for stored, names in grouped.items())


def read(stated: object, place: str) -> Quantization | None:
    """The quantisation of a ``quantization_config``; None where nothing is quantised.

    Raises InputError naming the method or the key where the size of a weight cannot be told.
    """
    if not stated:
        return None
    if not isinstance(stated, Mapping):
        raise InputError(place, f"{stated!r} is not an object")
    keys = _Stated(stated, place)
    method = str(stated.get("quant_method") or ("modelopt" if "quant_algo" in stated else "")).lower()
    reader = _METHODS.get(method.replace("_", "-"))
    if reader is None:
        known = ", ".join(sorted(_METHODS))
        raise keys.refused(
            f"{method or 'no quant_method'} is not supported: what a weight takes in it is not known here (known are "
            f"{known}); give the config of a checkpoint in one of those, or of the unquantised model with "
            "engine.quantization"
        )
    return reader(keys)


def beside(folder: Path) -> object:
    """The quantisation that modelopt writes into ``hf_quant_config.json``; None where there is no such file."""
    path = folder / "hf_quant_config.json"
    if not path.is_file():
        return None
    try:
        stated = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(str(path), f"cannot be read ({error}); mend it, or take its keys into config.json") from error
    inner = stated.get("quantization") if isinstance(stated, dict) else None
    if not isinstance(inner, dict):
        raise InputError(str(path), "holds no quantization; it says how the weights are stored")
    return {"quant_method": "modelopt", **inner}


def _integers(bits: float, group: float, zeros: bool) -> WeightFormat:
    """Integers with a 16-bit scale a group and, unless symmetric, a zero of as many bits as a weight."""
    whole = int(bits)
    if whole != bits or not 1 <= whole <= 8:
        raise ValueError(bits)
    scales = 0.0 if group == -1 else (16 + bits * zeros) / group
    return WeightFormat(f"int{whole}", bits + scales)


_NVFP4 = WeightFormat("nvfp4", 4 + 8 / 16)
_MXFP4 = WeightFormat("mxfp4", 4 + 8 / 32)
_MXFP8 = WeightFormat("fp8", 8 + 8 / 32)
_FP8 = WeightFormat("fp8", 8.0)
_PLAIN = {"fp8": _FP8, "int8": WeightFormat("int8", 8.0), "int4": _integers(4, 128, True)}


def _fp8_blocks(keys: _Stated, key: str) -> WeightFormat:
    block = keys.keys.get(key)
    if block is None:
        return _FP8
    sides = block if isinstance(block, (list, tuple)) else ()
    if len(sides) != 2 or not all(isinstance(side, int) and 0 < side <= 1 << 20 for side in sides):
        raise keys.refused(f"{key} is {block!r}; it must be two numbers of weights, as in [128, 128]")
    return WeightFormat("fp8", 8 + 32 / (sides[0] * sides[1]))


def _whole_numbers(keys: _Stated, bits: float, group: float, zeros: bool) -> WeightFormat:
    try:
        return _integers(bits, group, zeros)
    except ValueError:
        raise keys.refused(f"{bits:g} bits a weight is no format of {_ONE_TO_EIGHT}") from None


_ONE_TO_EIGHT = "1 to 8 whole bits"


def _gptq(keys: _Stated) -> Quantization:
    """GPTQ, its ``dynamic`` overrides (those after ``-:`` stay as they are), and the lm_head where it says so."""

    def stored(keys: _Stated, name: str = "") -> WeightFormat | None:
        if name.startswith("-"):
            return None
        group = keys.number("group_size", default=128)
        return _whole_numbers(keys, keys.number("bits"), group, keys.keys.get("sym", True) is False)

    usual = stored(keys)
    rules = (*keys.overrides("dynamic", stored), *keys.names("modules_to_not_convert"))
    return Quantization(usual, rules, usual if keys.keys.get("lm_head") is True else None)


def _awq(keys: _Stated) -> Quantization:
    bits, group = keys.number("bits", "w_bit"), keys.number("group_size", "q_group_size", default=128)
    usual = _whole_numbers(keys, bits, group, keys.keys.get("zero_point", True) is not False)
    return Quantization(usual, keys.names("modules_to_not_convert"))


def _autoround(keys: _Stated) -> Quantization:
    """AutoRound: other bits for the modules of ``extra_config``, 16 of them for those left as they are."""
    usual = _autoround_format(keys)
    rules = (*keys.overrides("extra_config", _autoround_format), *keys.names("modules_to_not_convert"))
    return Quantization(usual, rules, usual if keys.keys.get("lm_head") is True else None)


def _autoround_format(keys: _Stated, name: str = "") -> WeightFormat | None:
    bits, kind = keys.number("bits"), str(keys.keys.get("data_type") or "int").lower()
    if bits >= 16:
        return None
    if kind.startswith(("mx_fp", "mxfp")):
        return {4: _MXFP4, 8: _MXFP8}.get(int(bits)) or _unknown_kind(keys, kind, bits)
    if kind.startswith(("nv_fp", "nvfp")):
        return _NVFP4 if bits == 4 else _unknown_kind(keys, kind, bits)
    if kind.startswith("fp"):
        return _FP8 if bits == 8 else _unknown_kind(keys, kind, bits)
    group = keys.number("group_size", default=128)
    return _whole_numbers(keys, bits, group, keys.keys.get("sym", True) is False)


def _unknown_kind(keys: _Stated, kind: str, bits: float) -> WeightFormat:
    raise keys.refused(f"{kind} with {bits:g} bits is not supported: what its scales take is not known here")


def _compressed(keys: _Stated) -> Quantization:
    """compressed-tensors: formats by group of targets; a target that is a class of modules is every matrix."""
    usual: WeightFormat | None = None
    rules = list(keys.names("ignore"))
    for name, group in keys.section("config_groups").items():
        if not isinstance(group, Mapping):
            raise keys.refused(f"config_groups.{name} is not an object")
        stored = _scheme(_Stated(group.get("weights") or {}, f"{keys.place}.config_groups.{name}"))
        named = [target for target in group.get("targets") or ["Linear"] if target not in _CLASSES]
        if len(named) < len(group.get("targets") or ["Linear"]):
            usual = stored if usual is None else usual
        if named:
            rules.append(_Rule(_Names(map(str, named), keys.place), stored))
    if usual is None and len(rules) == bool(keys.keys.get("ignore")):
        raise keys.refused("config_groups names no weights; without them the size of a weight is not known")
    cache = keys.section("kv_cache_scheme")
    return Quantization(usual, tuple(rules), kv_dtype="fp8" if cache.get("num_bits") == 8 else None)


_CLASSES = {"Linear", "FusedMoE", "RoutedExperts", "MoE"}


def _scheme(keys: _Stated) -> WeightFormat | None:
    """Weights of one group of compressed-tensors; None where it leaves them as they are."""
    if not keys.keys:
        return None
    bits, kind = keys.number("num_bits"), str(keys.keys.get("type") or "int").lower()
    strategy = str(keys.keys.get("strategy") or "")
    group = keys.number("group_size", default=-1) if strategy not in {"tensor", "channel", "block"} else -1
    if kind == "float":
        if bits == 8 and group == -1:
            return _fp8_blocks(keys, "block_structure")
        known = {(4, 16): _NVFP4, (4, 32): _MXFP4, (8, 32): _MXFP8}.get((int(bits), int(group)))
        return known or _unknown_kind(keys, f"float with groups of {group:g}", bits)
    if bits >= 16:
        return None
    return _whole_numbers(keys, bits, group, keys.keys.get("symmetric", True) is False)


def _fp8(keys: _Stated) -> Quantization:
    return Quantization(_fp8_blocks(keys, "weight_block_size"), keys.names("modules_to_not_convert", "ignored_layers"))


def _mxfp4(keys: _Stated) -> Quantization:
    """gpt-oss: the routed experts alone (vLLM, `Mxfp4Config`)."""
    return Quantization(_MXFP4, keys.names("modules_to_not_convert"), experts_only=True)


def _modelopt(keys: _Stated) -> Quantization:
    """modelopt: one algorithm, or one for each module of ``quantized_layers``."""
    left = keys.names("exclude_modules", "ignore", "modules_to_not_convert")
    fp8_cache = str(keys.keys.get("kv_cache_quant_algo")).upper() == "FP8"
    kv_dtype = "fp8" if fp8_cache or keys.section("kv_cache_scheme").get("num_bits") == 8 else None
    if str(keys.keys.get("quant_algo")).upper() != "MIXED_PRECISION":
        return Quantization(_algorithm(keys), left, kv_dtype=kv_dtype)
    rules = keys.overrides("quantized_layers", _algorithm)
    if not rules:
        raise keys.refused("MIXED_PRECISION without quantized_layers: which modules have which format is not said")
    return Quantization(None, (*left, *rules), kv_dtype=kv_dtype)


def _algorithm(keys: _Stated, module: str = "") -> WeightFormat:
    name = str(keys.keys.get("quant_algo")).upper()
    if name.startswith(("W4A16", "W4A8", "INT4")):
        return _integers(4, keys.number("group_size", default=128), False)
    if name not in _ALGORITHMS:
        raise keys.refused(f"quant_algo {name} is not supported; known are W4A16, W4A8 and {', '.join(_ALGORITHMS)}")
    return _ALGORITHMS[name]


_ALGORITHMS = {
    **dict.fromkeys(("FP8", "FP8_PER_CHANNEL_PER_TOKEN"), _FP8),
    "FP8_PB_WO": WeightFormat("fp8", 8 + 32 / 128**2),
    **dict.fromkeys(("NVFP4", "NVFP4_AWQ"), _NVFP4),
    **dict.fromkeys(("W8A8_SQ_PER_CHANNEL", "INT8_SQ"), _PLAIN["int8"]),
    "MXFP4": _MXFP4,
    "MXFP8": _MXFP8,
}


def _quark(keys: _Stated) -> Quantization:
    """AMD Quark: one scheme, others for the patterns of ``layer_quant_config``."""
    usual = _quark_format(_Stated(keys.section("global_quant_config"), keys.place))
    return Quantization(usual, (*keys.names("exclude"), *keys.overrides("layer_quant_config", _quark_format)))


def _quark_format(keys: _Stated, module: str = "") -> WeightFormat | None:
    weight = _Stated(keys.section("weight"), keys.place)
    kind = str(weight.keys.get("dtype") or "").lower()
    if not kind:
        return None
    if kind.startswith("fp8"):
        return _FP8
    if kind == "fp4":
        return _MXFP4 if weight.number("group_size", default=32) == 32 else _NVFP4
    bits = re.fullmatch(r"(u?)int([1-8])", kind)
    if bits:
        return _integers(int(bits[2]), weight.number("group_size", default=-1), bool(bits[1]))
    raise keys.refused(f"weights in {kind} are not supported; known are fp8, fp4, int4 and int8")


def _bitsandbytes(keys: _Stated) -> Quantization:
    left = keys.names("llm_int8_skip_modules")
    if keys.keys.get("load_in_4bit") or keys.keys.get("_load_in_4bit"):
        return Quantization(WeightFormat("int4", 4 + 32 / 64), left)
    if keys.keys.get("load_in_8bit") or keys.keys.get("_load_in_8bit"):
        return Quantization(_PLAIN["int8"], left)
    raise keys.refused("bitsandbytes with neither load_in_4bit nor load_in_8bit: say which")


def _hqq(keys: _Stated) -> Quantization:
    """HQQ: a scale and a zero of 16 bits a group."""
    weights = _Stated(_Stated(keys.section("quant_config"), keys.place).section("weight_quant_params"), keys.place)
    bits, group = weights.number("nbits"), weights.number("group_size", default=64)
    usual = _whole_numbers(keys, bits, -1, False)
    return Quantization(WeightFormat(usual.name, bits + (0 if group == -1 else 32 / group)), keys.names("skip_modules"))


def _torchao(keys: _Stated) -> Quantization:
    """torchao, by the name of its type where that says how many bits."""
    kind: object = keys.keys.get("quant_type")
    data: Mapping[str, Any] = keys.section("quant_type_kwargs")
    if isinstance(kind, Mapping):
        stated = kind.get("default")
        inner: Mapping[str, Any] = stated if isinstance(stated, Mapping) else {}
        kind, data = inner.get("_type"), _Stated(inner, keys.place).section("_data")
    name = re.sub(r"[^a-z0-9]", "", str(kind or "").lower())
    left = keys.names("modules_to_not_convert")
    if "int4weightonly" in name or "activationint4weight" in name:
        group = _Stated(data, keys.place).number("group_size", default=128 if "only" in name else 32)
        return Quantization(WeightFormat("int4", 4 + 32 / group), left)
    if "int8" in name:
        return Quantization(_PLAIN["int8"], left)
    if "float8" in name:
        return Quantization(_FP8, left)
    raise keys.refused(
        f"torchao with quant_type {kind!r} is not supported; known are int4 and int8 weights, and float8"
    )


_METHODS: dict[str, Callable[[_Stated], Quantization]] = {
    **dict.fromkeys(("gptq", "gptq-marlin"), _gptq),
    **dict.fromkeys(("awq", "awq-marlin"), _awq),
    **dict.fromkeys(("auto-round", "intel/auto-round", "inc"), _autoround),
    **dict.fromkeys(("compressed-tensors",), _compressed),
    **dict.fromkeys(("fp8", "fbgemm-fp8"), _fp8),
    **dict.fromkeys(("mxfp4",), _mxfp4),
    **dict.fromkeys(("modelopt", "modelopt-fp4", "modelopt-mxfp8", "modelopt-mixed"), _modelopt),
    **dict.fromkeys(("quark",), _quark),
    **dict.fromkeys(("bitsandbytes",), _bitsandbytes),
    **dict.fromkeys(("hqq",), _hqq),
    **dict.fromkeys(("torchao",), _torchao),
}
