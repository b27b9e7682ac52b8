"""What the coefficients of a fitted cost model would be if every FLOP and every byte ran at the device's peak.

The fit takes its bounds from here (no coefficient below its value at the peak: no step beats the roofline), and the
ratios by which it pins what the data cannot tell: pairs to matmuls by FLOPs, context to weights by bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from servecast.batch import StepShape
from servecast.cost.fitted import Window
from servecast.cost.roofline import peak_flops

if TYPE_CHECKING:
    from servecast.cost.model import Scalars
    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import ModelSpec


class Physics(NamedTuple):
    """Coefficients at the peaks, in the units of `servecast.cost.fitted.COEFFICIENTS`, and the shape of the model."""

    weight_read_s: float
    token_s: float
    pair_s: float
    context_s: float
    row_s: float
    expert_share: float
    expert_untouched: float
    windows: tuple[Window, ...]


def of(model: ModelSpec, device: DeviceSpec, tensor_parallel: int = 1, kv_dtype: str | None = None) -> Physics:
    """Physics of one GPU of a tensor-parallel group."""
    peak, bandwidth = peak_flops(model, device), device.bandwidth_Bps

    def linear(tokens: int, rows: int) -> float:
        return float(model.linear_flops(StepShape(rows, tokens, tokens, 0, 0, 0, 1), tensor_parallel=tensor_parallel))

    def weights(tokens: int) -> float:
        shape = StepShape(0, 0, 0, 0, tokens, 0, 1)
        return float(model.linear_bytes(shape, tensor_parallel=tensor_parallel)) - tokens * embedding_row

    embedding_row = model.vocab_table_bytes() / model.padded_vocab
    share, untouched = 0.0, 0.0
    if model.experts:
        everything = weights(1_000_000)
        untouched = 1 - model.experts.active / model.experts.total
        share = (1 - weights(1) / everything) / untouched
    else:
        everything = weights(1)

    met = model.attended(kv_dtype, tensor_parallel)
    pair = sum(layers * read.prefill_pair for layers, read in met.reads) / peak
    # A decode row reads its cached tokens, or computes over them where that takes longer (latent attention).
    cached = float(sum(layers * read.token_bytes for layers, read in met.reads))
    context = max(cached / bandwidth, sum(layers * read.decode_pair for layers, read in met.reads) / peak)
    windows = tuple(
        Window(layers * read.token_bytes / cached, read.window) for layers, read in met.reads if read.window is not None
    )
    return Physics(
        weight_read_s=everything / bandwidth,
        token_s=((linear(1001, 1) - linear(1, 1)) / 1000 + met.token_flops) / peak,
        pair_s=pair,
        context_s=context,
        row_s=(linear(1, 2) - linear(1, 1)) / peak + met.row_bytes / bandwidth,
        expert_share=share,
        expert_untouched=untouched,
        windows=windows,
    )


def floor_seconds(
    shape: StepShape, model: ModelSpec, device: DeviceSpec, tensor_parallel: int = 1, kv_dtype: str | None = None
) -> Scalars:
    """The least time a step can take: all its FLOPs at the peak, or all its bytes, whichever is longer [s]."""
    flops = model.step_flops(shape, tensor_parallel=tensor_parallel) / peak_flops(model, device)
    moved = model.step_bytes(shape, kv_dtype=kv_dtype, tensor_parallel=tensor_parallel) / device.bandwidth_Bps
    return np.maximum(flops, moved)
