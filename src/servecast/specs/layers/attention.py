"""Attention over cached keys and values: full or within a window, latent (MLA), and sparse behind an index.

    KV bytes    kv_heads x (head_dim + value_dim) a token; kv_rank + rope for MLA (whole on every GPU); an index adds
                its own cache
    FLOPs       2 x heads x (head_dim + value_dim) a query-key pair

MLA (DeepSeek-V2, section 2.1) replaces keys and values by one compressed vector for all heads. It prefills with
decompressed heads and decodes in the compressed space (absorbed projections), which takes more FLOPs a pair and fewer
bytes. DeepSeek-V3.2 scores every cached token with a small index and attends to the best ``top`` of them alone, in the
compressed space for prompts too (vLLM 0.11 and later).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from servecast.specs.dtypes import bytes_per_value
from servecast.specs.layers.layer import Read, Split, Weights, named

_SPARSE_FP8_BYTES = 656
"""A token of sparse MLA in an fp8 cache: 512 fp8 values, 4 fp32 scales, 64 rotary values in 16 bits
(vLLM 0.11, `fp8_ds_mla`)."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention. Widths in values.

    window : tokens a query sees (None: all). A chunk of Llama 4 counts as a window of its length: no row sees more
    value_dim : width of a value head (None: as ``head_dim``); inputs : width of the input (None: the hidden size)
    qk_norm : norms of queries and keys, one weight for all heads; ``whole_qk_norm``: a weight for each column
    gated : the output is multiplied by a gate as wide as the queries; key_is_value : no value projection
    shares_cache : reads the cache of an earlier layer, and has neither key nor value projection
    extra : small parameters beside those
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    value_dim: int | None = None
    inputs: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    whole_qk_norm: bool = False
    sinks: bool = False
    gated: bool = False
    key_is_value: bool = False
    shares_cache: bool = False
    extra: int = 0

    @property
    def kind(self) -> str:
        """Full or sliding."""
        cached = "full attention" if self.window is None else f"sliding window of {self.window:,}"
        return f"{cached} (shared cache)" if self.shares_cache else cached

    @property
    def plain(self) -> bool:
        """Whether queries, keys, values and the output are all there is, as wide as each other."""
        return not (self.gated or self.value_dim or self.inputs or self.key_is_value or self.shares_cache)

    def kv_heads_per_gpu(self, split: Split) -> int:
        """KV heads on each GPU: an equal share, or one replicated head where GPUs outnumber them."""
        split.share("attention heads", self.heads)
        return split.share_or_copy("KV heads", self.kv_heads)

    def weights(self, hidden: int, split: Split) -> Weights:
        """Query, key, value and output projections, with norms, biases and sinks."""
        heads, kv_heads = split.share("attention heads", self.heads), self.kv_heads_per_gpu(split)
        query, output, key = heads * self.head_dim, heads * self._value_dim, kv_heads * self.head_dim
        value = 0 if self.key_is_value else kv_heads * self._value_dim
        if self.shares_cache:
            key = value = 0
        plain = (query + key + value) * self.qkv_bias + hidden * self.output_bias + heads * self.sinks + self.extra
        plain += (2 - self.shares_cache) * self.head_dim * self.qk_norm
        plain += (self.heads + self.kv_heads) * self.head_dim * self.whole_qk_norm
        width = self.inputs or hidden
        queries = query * (2 if self.gated else 1)
        into = named(query=width * queries, key=width * key, value=width * value)
        return Weights((*into, ("output", hidden * output)), plain)

    def kv_bytes(self, kv_dtype: str, split: Split) -> float:
        """Keys and values of one token."""
        if self.shares_cache:
            return 0.0
        return self.kv_heads_per_gpu(split) * (self.head_dim + self._value_dim) * bytes_per_value(kv_dtype)

    def state_bytes(self, dtype: str, split: Split) -> float:
        """None: what it keeps grows with the sequence."""
        return 0.0

    def reads(self, kv_dtype: str, split: Split) -> tuple[Read, ...]:
        """Keys and values of the window; a shared cache is read as any other."""
        heads, kv_heads = split.share("attention heads", self.heads), self.kv_heads_per_gpu(split)
        pair = 2.0 * heads * (self.head_dim + self._value_dim)
        token = kv_heads * (self.head_dim + self._value_dim) * bytes_per_value(kv_dtype)
        return (Read(self.window, pair, pair, token),)

    def state_flops(self, split: Split) -> float:
        """None."""
        return 0.0

    def width(self, split: Split) -> int:
        """Queries, keys, values and the output."""
        heads = split.share("attention heads", self.heads) * (2 if self.gated else 1)
        return (heads + self.kv_heads_per_gpu(split)) * (self.head_dim + self._value_dim)

    @property
    def _value_dim(self) -> int:
        return self.value_dim or self.head_dim


class Index(NamedTuple):
    """The index of sparse attention: ``heads`` queries a token against one key of ``dim``; the ``top`` are attended."""

    heads: int
    dim: int
    top: int

    @property
    def token_bytes(self) -> int:
        """One cached key: fp8 with a 4-byte scale a 128 values."""
        return self.dim + 4 * -(-self.dim // 128)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention: ranks of the compressed query (None: uncompressed) and KV, widths per head.

    extra : small parameters beside those of the projections and the two norms of the compressed vectors
    """

    heads: int
    query_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int
    index: Index | None = None
    extra: int = 0

    @property
    def window(self) -> int | None:
        """None: every token stays in the cache, sparse or not."""
        return None

    @property
    def kind(self) -> str:
        """Latent, or sparse."""
        return f"sparse attention (top {self.index.top:,})" if self.index else "latent attention"

    def weights(self, hidden: int, split: Split) -> Weights:
        """Projections down, which every GPU holds whole, and up, which are split by heads."""
        heads = split.share("attention heads", self.heads)
        width = heads * (self.nope + self.rope)
        matrices = named(
            query_down=hidden * (self.query_rank or 0),
            query_up=(self.query_rank or hidden) * width,
            kv_down=hidden * (self.kv_rank + self.rope),
            kv_up=self.kv_rank * heads * (self.nope + self.value),
            output=heads * self.value * hidden,
        )
        plain = (self.query_rank or 0) + self.kv_rank + self.extra
        if self.index:
            # Queries from the compressed query, one key and the heads' weights from the hidden state: not split.
            queries = self.index.heads * self.index.dim * (self.query_rank or hidden)
            matrices += named(index=queries + hidden * (self.index.dim + self.index.heads))
            plain += 2 * self.index.dim
        return Weights(matrices, plain)

    def kv_bytes(self, kv_dtype: str, split: Split) -> float:
        """The compressed vector of one token and, of sparse attention, its index key."""
        split.share("attention heads", self.heads)
        return self._latent_bytes(kv_dtype) + (self.index.token_bytes if self.index else 0)

    def state_bytes(self, dtype: str, split: Split) -> float:
        """None: what it keeps grows with the sequence."""
        return 0.0

    def reads(self, kv_dtype: str, split: Split) -> tuple[Read, ...]:
        """Compressed vectors of all tokens; of sparse attention those of the best, and the index keys of all."""
        heads = split.share("attention heads", self.heads)
        prefill = 2.0 * heads * (self.nope + self.rope + self.value)
        decode = 2.0 * heads * (2 * self.kv_rank + self.rope)
        token = self._latent_bytes(kv_dtype)
        if self.index is None:
            return (Read(None, prefill, decode, token),)
        score = 2.0 * self.index.heads * self.index.dim
        return Read(None, score, score, self.index.token_bytes), Read(self.index.top, decode, decode, token)

    def state_flops(self, split: Split) -> float:
        """None."""
        return 0.0

    def width(self, split: Split) -> int:
        """Queries, keys, values and the output of the decompressed heads."""
        return 2 * split.share("attention heads", self.heads) * (self.nope + self.rope + self.value)

    def _latent_bytes(self, kv_dtype: str) -> float:
        if self.index and bytes_per_value(kv_dtype) == 1 and (self.kv_rank, self.rope) == (512, 64):
            return _SPARSE_FP8_BYTES
        return (self.kv_rank + self.rope) * bytes_per_value(kv_dtype)
