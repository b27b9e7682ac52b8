"""What a decoder-only transformer holds and computes: parameters, weight bytes, KV bytes, FLOPs and bytes of a step.

A model is hidden size, vocabulary and groups of equal layers. A group attends fully or within a window, and its
feed-forward is dense or a mixture of experts; latent attention (MLA, DeepSeek-V2 section 2.1) replaces keys and values
by one compressed vector for all heads. From these follow, per GPU of a tensor-parallel group:

    parameters    every matrix, bias, norm weight, router and sink: the count of the checkpoint, exactly
    weight bytes  heads, intermediate columns and vocabulary rows are split; norms, routers and MLA down-projections are
                  replicated, and so are KV heads once there are fewer than GPUs (vLLM, `QKVParallelLinear`)
    KV bytes      2 x kv_heads x head_dim per token and layer, or kv_rank + rope for MLA (whole on every GPU)
    step FLOPs    2 x parameters used x tokens (linear) + 4 x heads x head_dim x query-key pairs (attention)
    step bytes    weights read once + cached keys and values read + new ones written

Left out: vision and audio towers, activations that travel through memory inside a step (fused or cached for the most
part), soft-max and norm arithmetic (under 1 % of the FLOPs), collectives, speculative heads.

The step methods take `StepShape` fields as numbers or as equally long numpy arrays. They use nothing but operators that
both have; `_smaller` is the minimum of the two kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from servecast.errors import InputError
from servecast.specs.dtypes import bytes_per_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.batch import StepShape

Sum: TypeAlias = Any  # a float, or an array of them where the fields of the shape are arrays

_VOCAB_MULTIPLE = 64  # rows the vocabulary is padded to before it is split (vLLM, DEFAULT_VOCAB_PADDING_SIZE)

_MXFP4_MULTIPLES = 256, 128
"""What the hidden and intermediate widths of mxfp4 experts are padded to in memory (vLLM, Marlin kernels): explains the
13.72 GiB logged for gpt-oss-20b and the 65.97 GiB for gpt-oss-120b, 7 to 9 % over their checkpoints."""

_SAMPLER_BYTES = 26
"""Bytes alive per row and vocabulary entry while tokens are drawn: logits in 16 bits (2) and fp32 (4), their sorted
copy (4) with int64 indices (8), its soft-max (4) and cumulative sum (4): vLLM V1, `apply_top_k_top_p` on the worst case
that `profile_run` measures. Every GPU holds the whole vocabulary here: logits are gathered before sampling."""


class LayerGroup(NamedTuple):
    """Equal layers: how many, the attention window in tokens (None: full), and whether they route to experts."""

    layers: int
    window: int | None = None
    sparse: bool = False


class Experts(NamedTuple):
    """The mixture of experts of a sparse layer: ``total`` routed ones of which a token takes ``active``.

    ``shared`` is the intermediate width of what every token passes beside them (0: nothing), ``shared_gate`` whether a
    learned scalar weighs it (Qwen2-MoE); ``router_bias`` and ``biases`` say whether router and experts have biases.
    """

    total: int
    active: int
    intermediate: int
    shared: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    biases: bool = False


class Latent(NamedTuple):
    """Multi-head latent attention: ranks of the compressed query (None: uncompressed) and KV, widths per head."""

    query_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int


class _LayerWeights(NamedTuple):
    """Parameters of one layer on one GPU."""

    linear: int  # matrices that every token passes
    expert: int  # matrices of one routed expert
    expert_stored: int  # the same with the padding they have in memory
    router: int
    plain: int  # norms, biases and sinks, never quantised
    expert_plain: int  # biases of one routed expert


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer, by its shape. Widths in elements; see the module for what is counted.

    ``gated`` feed-forwards have three matrices (SwiGLU, GeGLU), others two. ``dtype`` is that of activations,
    embeddings and norms; ``weight_dtype`` that of the linear layers (None: the same), of the routed experts alone when
    ``quantized_experts_only``. ``norms`` counts norm weights of full width in a layer.
    """

    name: str
    source: str
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    groups: tuple[LayerGroup, ...]
    max_position: int | None = None
    experts: Experts | None = None
    latent: Latent | None = None
    tied_embeddings: bool = False
    gated: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    norms: int = 2
    dtype: str = "bf16"
    weight_dtype: str | None = None
    quantized_experts_only: bool = False

    @property
    def layers(self) -> int:
        """Decoder layers in all."""
        return sum(group.layers for group in self.groups)

    @property
    def padded_vocab(self) -> int:
        """Vocabulary rows in memory: padded to a multiple of 64 before any split."""
        return _padded(self.vocab, _VOCAB_MULTIPLE)

    def parameters(self) -> int:
        """Parameters of the checkpoint, all experts counted."""
        return self._parameters(self.experts.total if self.experts else 0)

    def active_parameters(self) -> int:
        """Parameters one token can touch: all but the experts it is not routed to."""
        return self._parameters(self.experts.active if self.experts else 0)

    def weight_bytes(self, tensor_parallel: int = 1) -> float:
        """Bytes of weights that each GPU holds.

        Raises InputError where heads, KV heads or widths cannot be split over ``tensor_parallel`` GPUs.
        """
        tables = 1 if self.tied_embeddings else 2
        total = tables * self.vocab_table_bytes(tensor_parallel) + self.hidden * self._value_bytes
        for group, layer in self._group_weights(tensor_parallel):
            total += group.layers * self._layer_bytes(layer, self.experts.total if self.experts else 0)
        return total

    def vocab_table_bytes(self, tensor_parallel: int = 1) -> float:
        """Bytes of one embedding or lm_head table on each GPU."""
        return self._share("padded vocabulary", self.padded_vocab, tensor_parallel) * self.hidden * self._value_bytes

    def kv_heads_per_gpu(self, tensor_parallel: int = 1) -> int:
        """KV heads on each GPU: an equal share, or one replicated head where GPUs outnumber them."""
        self._share("attention heads", self.heads, tensor_parallel)
        if self.kv_heads % tensor_parallel and tensor_parallel % self.kv_heads:
            heads = f"the {self.kv_heads} KV heads of {self.name}; use a divisor or a multiple of it"
            raise _not_split(f"{tensor_parallel} GPUs can neither share nor replicate {heads}")
        return max(1, self.kv_heads // tensor_parallel)

    def kv_bytes_per_token(self, kv_dtype: str | None = None, tensor_parallel: int = 1) -> float:
        """KV bytes of one token on each GPU, every layer counted as if it attended fully."""
        return self.layers * self._kv_layer_bytes(kv_dtype, tensor_parallel)

    def kv_bytes(self, tokens: int, kv_dtype: str | None = None, tensor_parallel: int = 1) -> float:
        """KV bytes on each GPU of one sequence of ``tokens``; a sliding layer keeps no more than its window."""
        kept = sum(group.layers * min(tokens, group.window or tokens) for group in self.groups)
        return kept * self._kv_layer_bytes(kv_dtype, tensor_parallel)

    def full_kv_bytes_per_token(self, kv_dtype: str | None = None, tensor_parallel: int = 1) -> float:
        """KV bytes of one token on each GPU in the layers that attend fully: what a long sequence grows by."""
        full = sum(group.layers for group in self.groups if group.window is None)
        return full * self._kv_layer_bytes(kv_dtype, tensor_parallel)

    def window_bytes(self, block_size: int, kv_dtype: str | None = None, tensor_parallel: int = 1) -> float:
        """Most KV bytes on each GPU that the sliding layers of one sequence keep, in whole blocks: one more than the
        window fills, since it can begin anywhere in a block."""
        kept = sum(group.layers * (-(-group.window // block_size) + 1) for group in self.groups if group.window)
        return kept * block_size * self._kv_layer_bytes(kv_dtype, tensor_parallel)

    def activation_bytes_peak(self, tokens: int, sampled_rows: int = 1, tensor_parallel: int = 1) -> float:
        """Most bytes of activations alive on a GPU at one time while a step of ``tokens`` runs.

        The larger of two moments. In the feed-forward: its input, the residual and its output (3 x hidden) with the
        gate and up projections and their product (3 x intermediate, split), or the experts' buffers, which hold a copy
        per expert taken; in MLA prefill the decompressed queries, keys, values and output can be larger. When sampling:
        the final hidden states of all tokens and `_SAMPLER_BYTES` for each of ``sampled_rows`` and vocabulary entry.
        Checked against a log: 20,000 and 29,000 tokens of Llama-3.1-8B, vLLM 0.6, 110.5 kB a token, 110,592 B here.
        """
        forward = max(self._forward_width(group, tensor_parallel) for group in self.groups) * tokens * self._value_bytes
        sampling = tokens * self.hidden * self._value_bytes + _SAMPLER_BYTES * sampled_rows * self.padded_vocab
        return max(forward, sampling)

    def step_flops(self, shape: StepShape, tensor_parallel: int = 1) -> Sum:
        """FLOPs of one step on each GPU, a multiply-add counted as two."""
        return self.linear_flops(shape, tensor_parallel) + self.attention_flops(shape, tensor_parallel)

    def step_bytes(self, shape: StepShape, kv_dtype: str | None = None, tensor_parallel: int = 1) -> Sum:
        """Bytes each GPU must move in one step: weights once, cached keys and values, and the new ones."""
        return self.linear_bytes(shape, tensor_parallel) + self.attention_bytes(shape, kv_dtype, tensor_parallel)

    def linear_flops(self, shape: StepShape, tensor_parallel: int = 1) -> Sum:
        """FLOPs of the linear layers: all tokens through the layers, one row per sequence through the lm_head."""
        tokens = shape.prefill_tokens + shape.decode_rows
        used = 0
        for group, layer in self._group_weights(tensor_parallel):
            routed = self.experts.active * layer.expert if self.experts and group.sparse else 0
            used += group.layers * (layer.linear + layer.router + routed)
        lm_head = self.hidden * self._share("padded vocabulary", self.padded_vocab, tensor_parallel)
        return 2.0 * used * tokens + 2.0 * lm_head * (shape.prefill_rows + shape.decode_rows)

    def linear_bytes(self, shape: StepShape, tensor_parallel: int = 1) -> Sum:
        """Bytes of weights read: dense ones once, the lm_head if a row samples, and the experts touched.

        Of E experts, t tokens that take k each touch E (1 - (1 - k/E)^t) distinct ones, if routing is uniform and
        independent: an upper bound, real routing is skewed.
        """
        tokens = shape.prefill_tokens + shape.decode_rows
        samples = (shape.prefill_rows + shape.decode_rows) > 0
        experts, touched = self.experts, 0.0
        if experts:
            touched = experts.total * (1.0 - (1.0 - experts.active / experts.total) ** tokens)
        total = self.hidden * self._value_bytes + samples * self.vocab_table_bytes(tensor_parallel)
        total = total + tokens * self.hidden * self._value_bytes  # rows of the embedding table
        for group, layer in self._group_weights(tensor_parallel):
            total = total + group.layers * self._layer_bytes(layer, touched)
        return total

    def attention_flops(self, shape: StepShape, tensor_parallel: int = 1) -> Sum:
        """FLOPs of scores and weighted values over causal query-key pairs.

        MLA prefills with decompressed heads and decodes in the compressed space (absorbed projections), which takes
        more FLOPs per pair and fewer bytes.
        """
        heads = self._share("attention heads", self.heads, tensor_parallel)
        if self.latent:
            per_prefill_pair = 2.0 * heads * (self.latent.nope + self.latent.rope + self.latent.value)
            per_decode_pair = 2.0 * heads * (2 * self.latent.kv_rank + self.latent.rope)
        else:
            per_prefill_pair = per_decode_pair = 4.0 * heads * self.head_dim
        total = 0.0
        for group in self.groups:
            prefill, decode = pairs_in_window(shape, group.window)
            total = total + group.layers * (per_prefill_pair * prefill + per_decode_pair * decode)
        return total

    def attention_bytes(self, shape: StepShape, kv_dtype: str | None = None, tensor_parallel: int = 1) -> Sum:
        """Bytes of keys and values: cached tokens read by each row, new tokens written."""
        tokens = shape.prefill_tokens + shape.decode_rows
        moved = 0.0
        for group in self.groups:
            moved = moved + group.layers * (cached_in_window(shape, group.window) + tokens)
        return moved * self._kv_layer_bytes(kv_dtype, tensor_parallel)

    @property
    def _value_bytes(self) -> float:
        return bytes_per_value(self.dtype)

    def _parameters(self, experts: int) -> int:
        total = (1 if self.tied_embeddings else 2) * self.vocab * self.hidden + self.hidden
        for group, layer in self._group_weights(1):
            routed = experts * (layer.expert + layer.expert_plain) if group.sparse else 0
            total += group.layers * (layer.linear + layer.router + layer.plain + routed)
        return total

    def _share(self, what: str, width: int, tensor_parallel: int) -> int:
        if tensor_parallel < 1 or width % tensor_parallel:
            columns = f"the {width} {what} of {self.name}"
            raise _not_split(f"{columns} are not divisible by {tensor_parallel}; use a divisor of {width}")
        return width // tensor_parallel

    def _group_weights(self, tensor_parallel: int) -> Iterator[tuple[LayerGroup, _LayerWeights]]:
        attention, attention_plain = self._attention_weights(tensor_parallel)
        for group in self.groups:
            plain = attention_plain + self.norms * self.hidden
            if not group.sparse:
                width = self._share("intermediate columns", self.intermediate, tensor_parallel)
                if self.mlp_bias:
                    plain += (2 if self.gated else 1) * width + self.hidden
                yield group, _LayerWeights(attention + self._mlp_matrices * self.hidden * width, 0, 0, 0, plain, 0)
                continue
            assert self.experts is not None, f"{self.name} has sparse layers but no experts"
            width = self._share("expert columns", self.experts.intermediate, tensor_parallel)
            shared = self._share("shared expert columns", self.experts.shared, tensor_parallel)
            plain += self.experts.total * self.experts.router_bias + self.hidden * self.experts.shared_gate
            rows, columns = _MXFP4_MULTIPLES if self.weight_dtype == "mxfp4" else (1, 1)
            layer = _LayerWeights(
                linear=attention + self._mlp_matrices * self.hidden * shared,
                expert=self._mlp_matrices * self.hidden * width,
                expert_stored=self._mlp_matrices * _padded(self.hidden, rows) * _padded(width, columns),
                router=self.hidden * self.experts.total,
                plain=plain,
                expert_plain=(2 * width + self.hidden) * self.experts.biases,
            )
            yield group, layer

    @property
    def _mlp_matrices(self) -> int:
        return 3 if self.gated else 2

    def _attention_weights(self, tensor_parallel: int) -> tuple[int, int]:
        """Matrices, and norms with biases and sinks, of one layer's attention on one GPU."""
        heads = self._share("attention heads", self.heads, tensor_parallel)
        if self.latent:
            lat = self.latent
            width = heads * (lat.nope + lat.rope)
            query = self.hidden * width if lat.query_rank is None else lat.query_rank * (self.hidden + width)
            compress = self.hidden * (lat.kv_rank + lat.rope)
            expand = lat.kv_rank * heads * (lat.nope + lat.value)
            return query + compress + expand + heads * lat.value * self.hidden, (lat.query_rank or 0) + lat.kv_rank
        query_width = heads * self.head_dim
        kv_width = 2 * self.kv_heads_per_gpu(tensor_parallel) * self.head_dim
        plain = (query_width + kv_width) * self.qkv_bias + self.hidden * self.output_bias
        plain += 2 * self.head_dim * self.qk_norm + heads * self.sinks
        return self.hidden * (2 * query_width + kv_width), plain

    def _layer_bytes(self, layer: _LayerWeights, experts: Sum) -> Sum:
        """Bytes of one layer with ``experts`` of its routed experts (a number or an array)."""
        plain = self._value_bytes
        expert = bytes_per_value(self.weight_dtype or self.dtype)
        linear = plain if self.quantized_experts_only else expert
        routed = layer.expert_stored * expert + layer.expert_plain * plain
        return layer.linear * linear + (layer.router + layer.plain) * plain + experts * routed

    def _kv_layer_bytes(self, kv_dtype: str | None, tensor_parallel: int) -> float:
        value = bytes_per_value(kv_dtype or self.dtype)
        if self.latent:
            self._share("attention heads", self.heads, tensor_parallel)
            return (self.latent.kv_rank + self.latent.rope) * value
        return 2 * self.kv_heads_per_gpu(tensor_parallel) * self.head_dim * value

    def _forward_width(self, group: LayerGroup, tensor_parallel: int) -> int:
        """Elements per token alive at the widest moment of a layer."""
        if group.sparse and self.experts:
            # vLLM `fused_experts`: one buffer serves gate-up outputs and the results, another their product
            width = self._share("expert columns", self.experts.intermediate, tensor_parallel)
            inner = self.experts.active * (max(2 * width, self.hidden) + width)
            inner = max(inner, 3 * self._share("shared expert columns", self.experts.shared, tensor_parallel))
        else:
            inner = self._mlp_matrices * self._share("intermediate columns", self.intermediate, tensor_parallel)
        heads = self._share("attention heads", self.heads, tensor_parallel)
        if self.latent:
            attention = 2 * heads * (self.latent.nope + self.latent.rope + self.latent.value)
        else:
            attention = 2 * (heads + self.kv_heads_per_gpu(tensor_parallel)) * self.head_dim
        return max(3 * self.hidden + inner, 2 * self.hidden + attention)


def _not_split(problem: str) -> InputError:
    return InputError("engine.tensor_parallel_size", problem)


def _padded(width: int, multiple: int) -> int:
    return -(-width // multiple) * multiple


def _smaller(a: Sum, b: Sum) -> Sum:
    """min(a, b) for numbers and, element by element, for arrays: (a + b - |a - b|) / 2."""
    return (a + b - abs(a - b)) / 2


def pairs_in_window(shape: StepShape, window: int | None) -> tuple[Sum, Sum]:
    """Query-key pairs of prefill and decode that a layer with ``window`` computes; a token sees itself.

    A shape knows sums over rows only, so the pairs cut off are those of a mean row. They are a convex function of the
    row's length: rows of unlike length cut off more, and the pairs here are then an upper bound. Equal rows and rows
    within the window are exact.
    """
    decode = shape.decode_context + shape.decode_rows
    if window is None:
        return shape.prefill_pairs, decode
    rows = shape.prefill_rows + (shape.prefill_rows == 0)
    cached = shape.prefill_context / rows
    total = cached + shape.prefill_tokens / rows
    beyond = total - _smaller(total, window)
    beyond_before = cached - _smaller(cached, window)
    cut = rows * (beyond * (beyond + 1) - beyond_before * (beyond_before + 1)) / 2
    prefill = _smaller(shape.prefill_pairs - cut, shape.prefill_tokens * window)
    return prefill, _smaller(decode, shape.decode_rows * window)


def cached_in_window(shape: StepShape, window: int | None) -> Sum:
    """Cached tokens that the rows of a step read in a layer with ``window``, by the mean row as above."""
    if window is None:
        return shape.prefill_context + shape.decode_context
    return _smaller(shape.prefill_context, shape.prefill_rows * (window - 1)) + _smaller(
        shape.decode_context, shape.decode_rows * (window - 1)
    )
