"""Reads the shape of a model from a Hugging Face ``config.json``, whole or abridged to the keys that matter.

``model_type`` decides how: `families` lists those that are known, and anything else is refused. So is a key that
changes the shape and that the family does not read. Multimodal files nest the language model in ``text_config``: that
part alone is read. Activation functions are not looked at: none changes a size.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servecast.errors import InputError
from servecast.specs import quantization
from servecast.specs.config_keys import Keys
from servecast.specs.decoder import said
from servecast.specs.dtypes import dtype_name
from servecast.specs.families import FAMILIES, REFUSED
from servecast.specs.layers.layer import Layer, LayerGroup, Split, Weights, named
from servecast.specs.model import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servecast.specs.decoder import Family
    from servecast.specs.quantization import Quantization


_NO_GENERATOR = re.compile(r"For(MaskedLM|SequenceClassification|TokenClassification|QuestionAnswering|ImageClass\w*)$")


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
    """A model from the keys of a config; ``place`` is where errors say they are.

    Raises InputError for a model type that is not known, and for a key that changes the shape in a way that is not.
    """
    keys = Keys(config, place)
    language_part = len(keys.levels) > 1 or any(config.get(f"{part}_config") for part in ("vision", "audio"))
    family = _family(keys)
    keys.assume(family.defaults)
    hidden, vocab = keys.whole("hidden_size"), keys.whole("vocab_size")
    quantized = quantization.read(keys.get("quantization_config"), f"{place}: quantization_config")
    groups = _groups(keys, family, quantized)
    tied = keys.get("tie_word_embeddings")
    lookup, extra = _outside(keys, family, hidden, vocab)
    for key in family.inert:
        keys.get(key)
    if unread := keys.unread():
        problem = (
            f"changes the shape of a model, and is not read for model_type {keys.get('model_type')!r}: sizes would be "
            "wrong without a word. What is needed is a reader for it (docs/extending.md); take it out only if the "
            "model does without"
        )
        raise keys.refused(unread, problem)
    if not any(mixer.reads("bf16", Split()) for group in groups for mixer in group.layer.mixers):
        raise keys.refused("model_type", "no layer attends: a model without a cache has nothing for blocks to hold")
    return ModelSpec(
        name=name,
        source=source,
        hidden=hidden,
        vocab=vocab,
        groups=groups,
        max_position=keys.whole("max_position_embeddings", 0) or None,
        tied_embeddings=family.tied if tied is None else bool(tied),
        extra=extra,
        lookup=lookup,
        dtype=_dtype(keys),
        weight_dtype=quantized.name if quantized else None,
        head=quantized.head if quantized else None,
        kv_dtype=quantized.kv_dtype if quantized else None,
        language_part=language_part,
    )


def _family(keys: Keys) -> Family:
    """The family of the language model.

    Raises InputError naming ``model_type`` where it is not known.
    """
    if keys.get("is_encoder_decoder"):
        raise keys.refused("is_encoder_decoder", "true is not supported; use a decoder-only model")
    text = keys.levels[0].get("model_type") or (keys.get("model_type") if len(keys.levels) > 1 else None)
    wanted = str(text) if text else _by_architecture(keys)
    for name in (str(keys.levels[-1].get("model_type")), wanted):  # the whole before the language model in it
        if name in REFUSED:
            raise keys.refused("model_type", f"{name!r} is not supported: {REFUSED[name]}")
    classes = keys.get("architectures")
    if isinstance(classes, list) and classes and _NO_GENERATOR.search(str(classes[0])):
        raise keys.refused("architectures", f"{classes[0]} makes no tokens: give a model that generates text")
    if wanted in FAMILIES:
        return FAMILIES[wanted]
    close = difflib.get_close_matches(wanted, FAMILIES, n=3, cutoff=0.6)
    hint = f"closest are {', '.join(close)}" if close else f"{len(FAMILIES)} types are, llama and qwen3 among them"
    raise keys.refused(
        "model_type",
        f"{wanted!r} is not known ({hint}); what its layers hold would be a guess. What is needed is an entry in "
        "specs/families.py with a parameter count to check it (docs/extending.md)",
    )


def _by_architecture(keys: Keys) -> str:
    """The family of a class of models, where ``model_type`` is missing: LlamaForCausalLM is llama."""
    named_classes = keys.get("architectures")
    if isinstance(named_classes, list) and named_classes:
        stem = re.sub(r"For[A-Z]\w*$|Model$|LMHeadModel$", "", str(named_classes[0])).lower()
        for family in FAMILIES:
            if family.replace("_", "") == stem:
                return family
    raise keys.refused(
        "model_type", "is missing; it says which layers a model has. Add it, as in the config.json of the checkpoint"
    )


def _groups(keys: Keys, family: Family, quantized: Quantization | None) -> tuple[LayerGroup, ...]:
    """Equal layers gathered, in order of first appearance, with the formats of their matrices."""
    counted: Counter[Layer] = Counter()
    ready: list[LayerGroup] = []
    for number, each in enumerate(family.read(keys, family)):
        group = each if isinstance(each, LayerGroup) else None
        layer = group.layer if group else each
        assert isinstance(layer, Layer)
        if quantized:
            layer = replace(layer, formats=quantized.formats(number))
        if group is None:
            counted[layer] += 1
        elif group.layers:
            ready.append(group._replace(layer=layer))
    return (*ready, *(LayerGroup(count, layer) for layer, count in counted.items()))


def _outside(keys: Keys, family: Family, hidden: int, vocab: int) -> tuple[int, Weights]:
    """Values of tables beside the embedding, and weights outside the layers."""
    plain = (family.ends - 1) * hidden + vocab * said(keys, family.head_bias)
    width = keys.whole("hidden_size_per_layer_input", 0) * keys.whole("num_hidden_layers", 1)
    if not width:  # Gemma 4: an embedding of its own for each layer, and what the hidden state adds to it
        return 0, Weights(plain=plain)
    rows = keys.whole("vocab_size_per_layer_input", vocab)
    norm = keys.whole("hidden_size_per_layer_input")
    return rows * width, Weights(named(extra=hidden * width), plain + norm)


def _dtype(keys: Keys) -> str:
    """The format that vLLM's ``auto`` serves the checkpoint in: its own, or bf16 where that is fp32 or not said."""
    key = "dtype" if keys.get("torch_dtype") is None else "torch_dtype"
    given = keys.get(key)
    name = "bf16" if given is None else dtype_name(given, f"{keys.place}: {key}")
    return "bf16" if name == "fp32" else name
