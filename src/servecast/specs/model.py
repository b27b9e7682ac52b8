"""What a decoder holds and computes: parameters, weight bytes, KV and state bytes, FLOPs and bytes of a step.

A model is hidden size, vocabulary and groups of equal layers. `servecast.specs.layers` holds the kinds of layer with
the arithmetic of one; from these follow, per GPU of a tensor-parallel group:

    parameters    every matrix, bias, norm weight, router and sink: the count of the checkpoint, exactly
    weight bytes  heads, intermediate columns and vocabulary rows are split; norms, routers and MLA down-projections are
                  replicated, and so are KV heads once there are fewer than GPUs (vLLM, `QKVParallelLinear`)
    KV bytes      what attention layers cache a token          state bytes   what recurrent layers keep a sequence
    step FLOPs    2 x parameters used x tokens (linear) + query-key pairs (attention) + tokens on the state (recurrent)
    step bytes    weights read once + cached keys and values read + new ones written + states read and written

Left out: vision and audio towers, multi-token prediction, activations that travel through memory inside a step (fused
or cached for the most part), soft-max and norm arithmetic (under 1 % of the FLOPs), collectives.

The step methods take `StepShape` fields as numbers or as equally long numpy arrays. They use nothing but operators that
both have.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from servecast.specs.dtypes import bytes_per_value
from servecast.specs.layers.attention import Attention
from servecast.specs.layers.feed_forward import Dense, Experts
from servecast.specs.layers.layer import (
    NOTHING,
    LayerGroup,
    Read,
    Split,
    Sum,
    Weights,
    cached_in_window,
    pairs_in_window,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from servecast.batch import StepShape
    from servecast.specs.layers.layer import Layer, Mixer
    from servecast.specs.quantization import WeightFormat

_VOCAB_MULTIPLE = 64  # rows the vocabulary is padded to before it is split (vLLM, DEFAULT_VOCAB_PADDING_SIZE)

_MXFP4_MULTIPLES = 256, 128
"""What the hidden and intermediate widths of mxfp4 experts are padded to in memory (vLLM, Marlin kernels): explains the
13.72 GiB logged for gpt-oss-20b and the 65.97 GiB for gpt-oss-120b, 7 to 9 % over their checkpoints."""

_NEVER_QUANTIZED = {"router", "extra"}


class Attended(NamedTuple):
    """What a step costs beside the weights, in all layers together on one GPU.

    reads : kinds of cached tokens, each with the number of layers that meet them so
    token_flops : FLOPs of recurrent layers for one token; row_bytes : their state of one row, read and written
    """

    reads: tuple[tuple[int, Read], ...]
    token_flops: float
    row_bytes: float

    def flops(self, shape: StepShape) -> Sum:
        """FLOPs of scores and weighted values over causal query-key pairs, and of recurrent states."""
        total = self.token_flops * (shape.prefill_tokens + shape.decode_rows)
        for layers, read in self.reads:
            prefill, decode = pairs_in_window(shape, read.window)
            total = total + layers * (read.prefill_pair * prefill + read.decode_pair * decode)
        return total

    def bytes(self, shape: StepShape) -> Sum:
        """Bytes of cached tokens read by each row and of new ones written, and of recurrent states."""
        tokens = shape.prefill_tokens + shape.decode_rows
        moved = self.row_bytes * (shape.prefill_rows + shape.decode_rows)
        for layers, read in self.reads:
            moved = moved + layers * (cached_in_window(shape, read.window) + tokens) * read.token_bytes
        return moved


class Linear(NamedTuple):
    """What a step costs in the linear layers on one GPU.

    multiplied : parameters that a token is multiplied by in the layers; lm_head : those that a row is
    once_bytes, head_bytes, row_bytes : read in every step, by those that sample, and for each token (its embedding)
    groups : of equal layers: how many, bytes read in every step, the experts (None: dense) and the bytes of one
    """

    multiplied: int
    lm_head: int
    once_bytes: float
    head_bytes: float
    row_bytes: float
    groups: tuple[tuple[int, float, Experts | None, float], ...]

    def flops(self, shape: StepShape) -> Sum:
        """A multiply-add counted as two."""
        tokens, rows = shape.prefill_tokens + shape.decode_rows, shape.prefill_rows + shape.decode_rows
        return 2.0 * self.multiplied * tokens + 2.0 * self.lm_head * rows

    def bytes(self, shape: StepShape) -> Sum:
        """Weights read once, the lm_head if a row samples, the experts touched, rows of the embedding."""
        tokens = shape.prefill_tokens + shape.decode_rows
        samples = (shape.prefill_rows + shape.decode_rows) > 0
        total = self.once_bytes + samples * self.head_bytes + tokens * self.row_bytes
        for layers, dense, experts, routed in self.groups:
            total = total + layers * (dense + (experts.touched(tokens) * routed if experts else 0.0))
        return total


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder, by its shape. Widths in values; see the module for what is counted.

    ``dtype`` is that of activations, embeddings and norms; ``weight_dtype`` that of the linear layers (None: the same),
    of most of them where the layers say matrix by matrix; ``head`` that of a quantised lm_head; ``kv_dtype`` what the
    checkpoint wants its cache in. ``language_part``: the whole model sees or hears as well. ``extra`` counts weights
    outside the layers beside the embeddings, the lm_head and one final norm; ``lookup`` values of further tables of
    which a token reads a row.
    """

    name: str
    source: str
    hidden: int
    vocab: int
    groups: tuple[LayerGroup, ...]
    max_position: int | None = None
    tied_embeddings: bool = False
    extra: Weights = NOTHING
    lookup: int = 0
    dtype: str = "bf16"
    weight_dtype: str | None = None
    head: WeightFormat | None = None
    kv_dtype: str | None = None
    language_part: bool = False

    @property
    def layers(self) -> int:
        """Decoder layers in all."""
        return sum(group.layers for group in self.groups)

    @property
    def kinds(self) -> Mapping[str, int]:
        """How many layers mix tokens in which way: {"full attention": 12, "linear attention": 36}."""
        counted: Counter[str] = Counter()
        for group in self.groups:
            counted[group.layer.kind] += group.layers
        return counted

    @property
    def all_reduces(self) -> int:
        """All-reduces of one step on several GPUs: after what mixes tokens in a layer, and after its feed-forward."""
        return sum(g.layers * (bool(g.layer.mixers) + (g.layer.feed_forward is not None)) for g in self.groups)

    @property
    def feed_forwards(self) -> Mapping[str, int]:
        """How many layers have which feed-forward: {"dense of 18,432": 3, "8 of 256 experts of 2,048": 58}."""
        counted: Counter[str] = Counter()
        for group in self.groups:
            if group.layer.feed_forward:
                counted[group.layer.feed_forward.kind] += group.layers
        return counted

    @property
    def experts(self) -> Experts | None:
        """The mixture of experts of the first layer that has one; None in a dense model."""
        feed_forwards = (group.layer.feed_forward for group in self.groups)
        return next((one for one in feed_forwards if isinstance(one, Experts)), None)

    @property
    def plain(self) -> tuple[Attention, Dense] | None:
        """Attention and feed-forward of every layer where all are equal, attend fully and are dense; else None."""
        layer = self.groups[0].layer
        if self.not_plain or not (isinstance(layer.mixers[0], Attention) and isinstance(layer.feed_forward, Dense)):
            return None
        return layer.mixers[0], layer.feed_forward

    @property
    def not_plain(self) -> str:
        """What a model has beyond equal layers of full attention and a dense feed-forward, in words; '' if nothing."""
        if self.experts:
            return "a mixture of experts"
        if unlike := [kind for kind in self.kinds if kind != "full attention"]:
            return unlike[0]
        if not all(isinstance(mixer, Attention) and mixer.plain for _, mixer in self._mixers()):
            return "attention with a gate, or with values of another width"
        return "layers of several kinds" if len(self.groups) > 1 else ""

    @property
    def padded_vocab(self) -> int:
        """Vocabulary rows in memory: padded to a multiple of 64 before any split."""
        return _padded(self.vocab, _VOCAB_MULTIPLE)

    @property
    def cache_dtype(self) -> str:
        """What keys and values are kept in unless the engine says otherwise."""
        return self.kv_dtype or self.dtype

    def parameters(self) -> int:
        """Parameters of the checkpoint, all experts counted."""
        return self._parameters(every_expert=True)

    def active_parameters(self) -> int:
        """Parameters one token can touch: all but the experts it is not routed to."""
        return self._parameters(every_expert=False)

    def weight_bytes(self, tensor_parallel: int = 1) -> float:
        """Bytes of weights that each GPU holds.

        Raises InputError where heads, KV heads or widths cannot be split over ``tensor_parallel`` GPUs.
        """
        total = self.vocab_table_bytes(tensor_parallel)
        total += 0 if self.tied_embeddings else self._head_bytes(tensor_parallel)
        total += (self.hidden + self.extra.total + self.lookup) * self._value_bytes
        for group in self.groups:
            feed_forward = group.layer.feed_forward
            experts = feed_forward.total if isinstance(feed_forward, Experts) else 0
            total += group.weight_sets * self._layer_bytes(group.layer, experts, self._split(tensor_parallel))
        return total

    def unquantized(self, dtype: str) -> ModelSpec:
        """The same shape with every value in ``dtype``."""
        groups = tuple(group._replace(layer=replace(group.layer, formats=None)) for group in self.groups)
        return replace(self, groups=groups, dtype=dtype, weight_dtype=None, head=None, kv_dtype=None)

    def vocab_table_bytes(self, tensor_parallel: int = 1) -> float:
        """Bytes of one embedding or lm_head table on each GPU."""
        rows = self._split(tensor_parallel).share("padded vocabulary", self.padded_vocab)
        return rows * self.hidden * self._value_bytes

    def kv_bytes_per_token(self, kv_dtype: str | None = None, tensor_parallel: int = 1) -> float:
        """KV bytes of one token on each GPU, every attention layer counted as if it attended fully."""
        return sum(layers * each for layers, _, each in self._caches(kv_dtype, tensor_parallel))

    def kv_bytes(self, tokens: int, kv_dtype: str | None = None, tensor_parallel: int = 1) -> float:
        """KV bytes on each GPU of one sequence of ``tokens``; a sliding layer keeps no more than its window."""
        caches = self._caches(kv_dtype, tensor_parallel)
        return sum(layers * min(tokens, mixer.window or tokens) * each for layers, mixer, each in caches)

    def windows(self, kv_dtype: str | None = None, tensor_parallel: int = 1) -> dict[tuple[int | None, float], int]:
        """Attention layers by window [tokens] (None: full) and by the KV bytes of one token in one of them."""
        counted = Counter[tuple[int | None, float]]()
        for layers, mixer, each in self._caches(kv_dtype, tensor_parallel):
            if each:
                counted[mixer.window, each] += layers
        return counted

    def state_bytes(self, tensor_parallel: int = 1) -> float:
        """Bytes that the recurrent layers of one sequence keep on each GPU, however long it is; 0 for attention."""
        split = self._split(tensor_parallel)
        return sum(layers * mixer.state_bytes(self.dtype, split) for layers, mixer in self._mixers())

    def forward_bytes_peak(self, tokens: int, tensor_parallel: int = 1) -> float:
        """Most bytes of activations alive on a GPU at one time while ``tokens`` pass the layers.

        In the feed-forward: its input, the residual and its output (3 x hidden) with the gate and up projections and
        their product (3 x intermediate, split), or the experts' buffers, which hold a copy per expert taken; what a
        mixer holds (in MLA prefill the decompressed queries, keys, values and output) can be larger.
        Checked against a log: 20,000 and 29,000 tokens of Llama-3.1-8B, vLLM 0.6, 110.5 kB a token, 110,592 B here.
        """
        split = self._split(tensor_parallel)
        return max(self._forward_width(group.layer, split) for group in self.groups) * tokens * self._value_bytes

    def hidden_bytes(self, tokens: int) -> float:
        """Bytes of the hidden states of so many tokens."""
        return tokens * self.hidden * self._value_bytes

    def step_flops(self, shape: StepShape, tensor_parallel: int = 1) -> Sum:
        """FLOPs of one step on each GPU, a multiply-add counted as two."""
        return self.linear_flops(shape, tensor_parallel) + self.attention_flops(shape, tensor_parallel)

    def step_bytes(self, shape: StepShape, kv_dtype: str | None = None, tensor_parallel: int = 1) -> Sum:
        """Bytes each GPU must move in one step: weights once, cached keys and values, and the new ones."""
        return self.linear_bytes(shape, tensor_parallel) + self.attention_bytes(shape, kv_dtype, tensor_parallel)

    def linear_flops(self, shape: StepShape, tensor_parallel: int = 1) -> Sum:
        """FLOPs of the linear layers: all tokens through the layers, one row per sequence through the lm_head."""
        return self.linear(tensor_parallel).flops(shape)

    def linear_bytes(self, shape: StepShape, tensor_parallel: int = 1) -> Sum:
        """Bytes of weights read: dense ones once, the lm_head if a row samples, and the experts touched."""
        return self.linear(tensor_parallel).bytes(shape)

    def linear(self, tensor_parallel: int = 1) -> Linear:
        """What the linear layers cost a step, gathered once for many steps."""
        split, groups = self._split(tensor_parallel), []
        for group in self.groups:
            experts = group.layer.feed_forward if isinstance(group.layer.feed_forward, Experts) else None
            dense = self._layer_bytes(group.layer, 0, split)
            routed = self._layer_bytes(group.layer, 1, split) - dense
            groups.append((group.layers, dense, experts, routed))
        return Linear(
            multiplied=self.extra.multiplied + sum(g.layers * self._used_matrices(g.layer, split) for g in self.groups),
            lm_head=self.hidden * split.share("padded vocabulary", self.padded_vocab),
            once_bytes=(self.hidden + self.extra.total) * self._value_bytes,
            head_bytes=self._head_bytes(tensor_parallel),
            row_bytes=self.hidden * self._value_bytes,
            groups=tuple(groups),
        )

    def attention_flops(self, shape: StepShape, tensor_parallel: int = 1) -> Sum:
        """FLOPs of scores and weighted values over causal query-key pairs, and of recurrent states."""
        return self.attended(None, tensor_parallel).flops(shape)

    def attention_bytes(self, shape: StepShape, kv_dtype: str | None = None, tensor_parallel: int = 1) -> Sum:
        """Bytes of keys and values: cached tokens read by each row, new tokens written; and of recurrent states."""
        return self.attended(kv_dtype, tensor_parallel).bytes(shape)

    def attended(self, kv_dtype: str | None = None, tensor_parallel: int = 1) -> Attended:
        """What attention and recurrent layers cost a step, gathered once for many steps."""
        split, counted = self._split(tensor_parallel), Counter[Read]()
        token_flops = row_bytes = 0.0
        for layers, mixer in self._mixers():
            for read in mixer.reads(kv_dtype or self.cache_dtype, split):
                counted[read] += layers
            token_flops += layers * mixer.state_flops(split)
            row_bytes += 2 * layers * mixer.state_bytes(self.dtype, split)
        return Attended(tuple((layers, read) for read, layers in counted.items()), token_flops, row_bytes)

    @property
    def _value_bytes(self) -> float:
        return bytes_per_value(self.dtype)

    def _split(self, tensor_parallel: int) -> Split:
        return Split(tensor_parallel, self.name)

    def _mixers(self) -> Iterator[tuple[int, Mixer]]:
        """Every kind of mixer with the number of layers that have it."""
        for group in self.groups:
            for mixer in group.layer.mixers:
                yield group.layers, mixer

    def _caches(self, kv_dtype: str | None, tensor_parallel: int) -> Iterator[tuple[int, Mixer, float]]:
        """Layers, mixer and KV bytes of one token in one layer."""
        split = self._split(tensor_parallel)
        for layers, mixer in self._mixers():
            yield layers, mixer, mixer.kv_bytes(kv_dtype or self.cache_dtype, split)

    def _parameters(self, every_expert: bool) -> int:
        split = Split(1, self.name)
        total = (1 if self.tied_embeddings else 2) * self.vocab * self.hidden + self.hidden
        total += self.lookup + self.extra.total
        for group in self.groups:
            total += group.weight_sets * sum(part.total for part in self._parts(group.layer, split))
            if isinstance(experts := group.layer.feed_forward, Experts):
                taken = experts.total if every_expert else experts.active
                total += group.weight_sets * taken * experts.expert(self.hidden, split).total
        return total

    def _parts(self, layer: Layer, split: Split) -> Iterator[Weights]:
        """What every token passes in a layer: its mixers, a dense feed-forward or shared experts, and the router."""
        for mixer in layer.mixers:
            yield mixer.weights(self.hidden, split)
        feed_forward = layer.feed_forward
        if isinstance(feed_forward, Dense):
            yield feed_forward.weights(self.hidden, split)
        elif feed_forward is not None:
            yield feed_forward.shared_weights(self.hidden, split)
            yield feed_forward.router(self.hidden)
        yield Weights(plain=layer.norms * self.hidden)
        yield layer.extra

    def _used_matrices(self, layer: Layer, split: Split) -> int:
        """Parameters of the matrices that one token is multiplied by in a layer."""
        experts = layer.feed_forward
        routed = experts.active * experts.expert(self.hidden, split).multiplied if isinstance(experts, Experts) else 0
        return sum(part.multiplied for part in self._parts(layer, split)) + routed

    def _head_bytes(self, tensor_parallel: int) -> float:
        """Bytes of the lm_head on each GPU."""
        bits = 8 * self._value_bytes if self.head is None else self.head.bits
        return self.vocab_table_bytes(tensor_parallel) * bits / (8 * self._value_bytes)

    def _layer_bytes(self, layer: Layer, experts: Sum, split: Split) -> Sum:
        """Bytes of one layer with so many of its routed experts (a number or an array)."""
        formats, total = dict(layer.formats or ()), 0.0
        for part in self._parts(layer, split):
            total += part.plain * self._value_bytes
            for name, count in part.matrices:
                total += count * self._matrix_bytes(layer, formats, name)
        if not isinstance(feed_forward := layer.feed_forward, Experts):
            return total
        padded = "mxfp4" in (formats.get("experts", ("",))[0], None if layer.formats else self.weight_dtype)
        value = self._matrix_bytes(layer, formats, "experts")
        return total + experts * self._expert_bytes(feed_forward, split, value, padded)

    def _matrix_bytes(self, layer: Layer, formats: Mapping[str, WeightFormat], name: str) -> float:
        """Bytes of one value of a matrix, its scales included."""
        if layer.formats is not None:
            return formats[name].bits / 8 if name in formats else self._value_bytes
        quantized = self.weight_dtype is not None and name not in _NEVER_QUANTIZED
        return bytes_per_value(str(self.weight_dtype)) if quantized else self._value_bytes

    def _expert_bytes(self, experts: Experts, split: Split, value_bytes: float, padded: bool) -> float:
        """Bytes of one routed expert, with the padding that it has in memory."""
        rows, columns = _MXFP4_MULTIPLES if padded else (1, 1)
        expert = experts.expert(self.hidden, split)
        width, inner = split.share("expert columns", experts.intermediate), experts.latent or self.hidden
        stored = experts.matrices * _padded(inner, rows) * _padded(width, columns)
        return stored * value_bytes + expert.plain * self._value_bytes

    def _forward_width(self, layer: Layer, split: Split) -> int:
        """Elements per token alive at the widest moment of a layer."""
        inner = layer.feed_forward.width(self.hidden, split) if layer.feed_forward else 0
        return max(3 * self.hidden + inner, 2 * self.hidden + sum(mixer.width(split) for mixer in layer.mixers))


def _padded(width: int, multiple: int) -> int:
    return -(-width // multiple) * multiple
