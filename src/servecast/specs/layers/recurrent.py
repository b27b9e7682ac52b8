"""Layers with a fixed state a sequence in place of keys and values: state-space models, linear attention, convolutions.

    state bytes   recurrent values (heads x key x value, or inner x state) + the last inputs of a short convolution
    FLOPs         a few operations a state value and token: decay, update and readout
    step bytes    the state of each row read and written once

The state is as vLLM keeps it (0.11, `MambaStateShapeCalculator`): in the model's format, or the recurrent part in the
one that the config names. Left out: what chunked prefill kernels compute twice inside a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

from servecast.specs.dtypes import bytes_per_value
from servecast.specs.layers.layer import Read, Split, Weights, named


class _Recurrent:
    """What all of them have in common."""

    __slots__ = ()
    operations = 6
    """FLOPs a state value and token: decay, the outer product of the update, its addition, and a multiply-add to read
    out, rounded up to whole multiply-adds."""

    state_dtype: str | None

    @property
    def window(self) -> int | None:
        """None: nothing is cached."""
        return None

    def kv_bytes(self, kv_dtype: str, split: Split) -> float:
        """None."""
        return 0.0

    def reads(self, kv_dtype: str, split: Split) -> tuple[Read, ...]:
        """None."""
        return ()

    def state_bytes(self, dtype: str, split: Split) -> float:
        """The recurrent state and the inputs that the convolution looks back on."""
        recurrent = self.state_values(split) * bytes_per_value(self.state_dtype or dtype)
        return recurrent + self.conv_values(split) * bytes_per_value(dtype)

    def state_flops(self, split: Split) -> float:
        """FLOPs of one token on the recurrent state and in the convolution."""
        return float(self.operations * self.state_values(split) + 2 * self.conv_values(split))

    def state_values(self, split: Split) -> int:
        """Values of the recurrent state on one GPU."""
        raise NotImplementedError

    def conv_values(self, split: Split) -> int:
        """Values that the convolution keeps on one GPU."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Mamba2(_Recurrent):
    """A state-space layer of Mamba 2: ``heads`` of ``head_dim`` with a state of ``state`` each; B and C by ``groups``.

    gate_norm : an RMS norm before the output projection; bias, conv_bias : of the projections and the convolution
    """

    heads: int
    head_dim: int
    state: int
    groups: int
    kernel: int
    gate_norm: bool = True
    bias: bool = False
    conv_bias: bool = True
    state_dtype: str | None = None

    @property
    def kind(self) -> str:
        """State space."""
        return "state space"

    def weights(self, hidden: int, split: Split) -> Weights:
        """Input projection (gate, input, B, C, step), convolution, and output projection."""
        heads, inner = self._heads(split), self._inner(split)
        channels = self._channels(split)
        into = inner + channels + heads
        plain = channels * (self.kernel + self.conv_bias) + 3 * heads + inner * self.gate_norm
        plain += (into + hidden) * self.bias
        return Weights(named(state_in=hidden * into, state_out=inner * hidden), plain)

    def state_values(self, split: Split) -> int:
        """heads x head_dim x state."""
        return self._inner(split) * self.state

    def conv_values(self, split: Split) -> int:
        """Channels of input, B and C, each with kernel - 1 tokens."""
        return self._channels(split) * (self.kernel - 1)

    def width(self, split: Split) -> int:
        """Gate, and input, B and C before and after the convolution, and the output."""
        return 2 * (self._inner(split) + self._channels(split))

    def _heads(self, split: Split) -> int:
        return split.share("state-space heads", self.heads)

    def _inner(self, split: Split) -> int:
        return self._heads(split) * self.head_dim

    def _channels(self, split: Split) -> int:
        groups = split.share_or_copy("state-space groups", self.groups)
        return self._inner(split) + 2 * groups * self.state


@dataclass(frozen=True, slots=True)
class Mamba(_Recurrent):
    """A state-space layer of Mamba 1: ``inner`` channels with a state of ``state`` each.

    norms : RMS norms of the step, B and C (Jamba)
    """

    inner: int
    state: int
    step_rank: int
    kernel: int
    norms: bool = False
    bias: bool = False
    conv_bias: bool = True
    state_dtype: str | None = None

    @property
    def kind(self) -> str:
        """State space."""
        return "state space"

    def weights(self, hidden: int, split: Split) -> Weights:
        """Projections in, to step, B and C, from the step, and out; the state matrix is small and never quantised."""
        inner = split.share("state-space channels", self.inner)
        selected = self.step_rank + 2 * self.state
        matrices = named(
            state_in=hidden * 2 * inner, state_step=inner * (selected + self.step_rank), state_out=inner * hidden
        )
        plain = inner * (self.kernel + self.conv_bias) + inner * (2 + self.state)
        plain += selected * self.norms + (2 * inner + hidden) * self.bias
        return Weights(matrices, plain)

    def state_values(self, split: Split) -> int:
        """inner x state."""
        return split.share("state-space channels", self.inner) * self.state

    def conv_values(self, split: Split) -> int:
        """Channels, each with kernel - 1 tokens."""
        return split.share("state-space channels", self.inner) * (self.kernel - 1)

    def width(self, split: Split) -> int:
        """Input and gate, the convolved input and the output."""
        return 4 * split.share("state-space channels", self.inner)


@dataclass(frozen=True, slots=True)
class DeltaNet(_Recurrent):
    """Gated delta rule (Qwen3-Next): the state of each value head is key_dim x value_dim.

    rank : of the two low-rank gates of Kimi Delta Attention, which decays each key channel by itself (None: one decay
        a head, a full-rank gate)
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    rank: int | None = None
    state_dtype: str | None = None

    operations = 8
    """As above, and a multiply-add more: what the state predicts for the key is taken off the update."""

    @property
    def kind(self) -> str:
        """Linear attention."""
        return "linear attention"

    def weights(self, hidden: int, split: Split) -> Weights:
        """Queries, keys, values, gate, decay and strength of the update; convolution, norm and output projection."""
        heads, keys, values = self._sizes(split)
        plain = (2 * keys + values) * self.kernel + self.value_dim
        if self.rank is None:
            into = named(state_in=hidden * (2 * keys + 2 * values), state_step=hidden * 2 * heads)
            return Weights((*into, ("state_out", values * hidden)), plain + 2 * heads)
        gates = 2 * hidden * self.rank + self.rank * (keys + values) + hidden * heads
        into = named(state_in=hidden * (2 * keys + values), state_step=gates, state_out=values * hidden)
        return Weights(into, plain + heads + keys)

    def state_values(self, split: Split) -> int:
        """value_heads x key_dim x value_dim."""
        return self._sizes(split)[0] * self.key_dim * self.value_dim

    def conv_values(self, split: Split) -> int:
        """Channels of queries, keys and values, each with kernel - 1 tokens."""
        _, keys, values = self._sizes(split)
        return (2 * keys + values) * (self.kernel - 1)

    def width(self, split: Split) -> int:
        """Queries, keys and values before and after the convolution, the gate and the output."""
        _, keys, values = self._sizes(split)
        return 2 * (2 * keys + values) + 2 * values

    def _sizes(self, split: Split) -> tuple[int, int, int]:
        """Value heads, and widths of all keys and all values, on one GPU."""
        heads = split.share("value heads of linear attention", self.value_heads)
        keys = split.share("key heads of linear attention", self.key_heads)
        return heads, keys * self.key_dim, heads * self.value_dim


@dataclass(frozen=True, slots=True)
class Lightning(_Recurrent):
    """Linear attention with a fixed decay a head (Lightning Attention, MiniMax-01): a state of head_dim x head_dim."""

    heads: int
    head_dim: int
    state_dtype: str | None = None

    @property
    def kind(self) -> str:
        """Linear attention."""
        return "linear attention"

    def weights(self, hidden: int, split: Split) -> Weights:
        """Queries, keys, values, the output gate, a norm and the output projection."""
        inner = self._inner(split)
        return Weights(named(state_in=4 * hidden * inner, state_out=inner * hidden), inner)

    def state_values(self, split: Split) -> int:
        """heads x head_dim x head_dim."""
        return self._inner(split) * self.head_dim

    def conv_values(self, split: Split) -> int:
        """None."""
        return 0

    def width(self, split: Split) -> int:
        """Queries, keys, values, the gate and the output."""
        return 5 * self._inner(split)

    def _inner(self, split: Split) -> int:
        return split.share("heads of linear attention", self.heads) * self.head_dim


@dataclass(frozen=True, slots=True)
class ShortConvolution(_Recurrent):
    """A gated convolution over the last ``kernel`` tokens (LFM2): no recurrent state beside its inputs."""

    channels: int
    kernel: int
    bias: bool = False
    state_dtype: str | None = None

    @property
    def kind(self) -> str:
        """Convolution."""
        return f"convolution of {self.kernel}"

    def weights(self, hidden: int, split: Split) -> Weights:
        """Two gates and the input, the filter, and the output projection."""
        inner = split.share("convolution channels", self.channels)
        return Weights(
            named(state_in=3 * hidden * inner, state_out=inner * hidden),
            inner * self.kernel + (4 * inner + hidden) * self.bias,
        )

    def state_values(self, split: Split) -> int:
        """None."""
        return 0

    def conv_values(self, split: Split) -> int:
        """Channels, each with kernel - 1 tokens."""
        return split.share("convolution channels", self.channels) * (self.kernel - 1)

    def width(self, split: Split) -> int:
        """Gates, input and output."""
        return 4 * split.share("convolution channels", self.channels)
