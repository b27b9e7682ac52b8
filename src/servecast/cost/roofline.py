"""The roofline: what a datasheet says a step must take at least, divided by stated efficiencies. Not calibrated.

    step = max(linear FLOPs / F, linear bytes / B) + max(attention FLOPs / F, attention bytes / B)
         + all-reduce + overhead
    F = compute_efficiency x peak FLOP/s of the model's dtype      B = bandwidth_efficiency x peak bytes/s
    all-reduce = n x 2 (t-1)/t x tokens x hidden x bytes per value / interconnect   on t GPUs

(Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009; the n all-reduces are rings, two in most layers, their
latency left to the overhead.) Both efficiencies are at most 1, so no step is faster than its bytes or its FLOPs allow.
Left out: small kernels, launch gaps, waves, and the softness of the knee, of which the fitted model knows more.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from servecast.batch import StepShape
from servecast.cost.model import keep, require_tokens
from servecast.errors import InputError
from servecast.specs.dtypes import bytes_per_value

if TYPE_CHECKING:
    from servecast.cost.model import Scalars
    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import Attended, Linear, ModelSpec

COMPUTE_EFFICIENCY: Final = 0.70
"""Share of peak FLOP/s that matrix multiplications reach inside a running engine. Alone, Qwen3-14B's layers reach 0.80
of an H100's 989 TFLOP/s (fit of public GEMM tables, vLLM 0.19 and 0.24, see calibration/README.md); under the power
limit of a serving load 0.67 to 0.69 (the shipped profile)."""

BANDWIDTH_EFFICIENCY: Final = 0.80
"""Share of peak bytes/s that reading weights reaches: 0.80 to 0.81 in the same GEMM tables at 1 to 64 tokens."""

OVERHEAD_S: Final = 0.001
"""Host and small kernels of one step: 0 to 1.2 ms were seen on recorded engines; 0.7 ms in the shipped profile."""

#: No batch is larger; what has not crossed by then never does.
_MOST_ROWS: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Roofline:
    """Step times of ``model`` on each of ``tensor_parallel`` GPUs ``device``, from datasheets.

    overhead_s : constant time of every step [s]; efficiencies are shares of the peaks, in (0, 1]
    Raises InputError for impossible efficiencies and for a device that has no peak for the model's dtype.
    """

    model: ModelSpec
    device: DeviceSpec
    tensor_parallel: int = 1
    kv_dtype: str | None = None
    compute_efficiency: float = COMPUTE_EFFICIENCY
    bandwidth_efficiency: float = BANDWIDTH_EFFICIENCY
    overhead_s: float = OVERHEAD_S
    _flops: float = field(init=False, repr=False, compare=False)
    _bandwidth: float = field(init=False, repr=False, compare=False)
    _reduce_s: float = field(init=False, repr=False, compare=False)
    _pair_s: float = field(init=False, repr=False, compare=False)
    _decode_pair_s: float = field(init=False, repr=False, compare=False)
    _context_s: float = field(init=False, repr=False, compare=False)
    _attended: Attended = field(init=False, repr=False, compare=False)
    _matmuls: Linear = field(init=False, repr=False, compare=False)
    _layers: tuple[tuple[int | None, float, float], ...] = field(init=False, repr=False, compare=False)
    _linear: dict[tuple[int, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("compute_efficiency", "bandwidth_efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"roofline.{name}", f"{getattr(self, name)} must be above 0 and at most 1")
        if not (math.isfinite(self.overhead_s) and self.overhead_s >= 0):
            raise InputError("roofline.overhead_s", f"{self.overhead_s} must be a finite number of seconds, at least 0")
        derive = object.__setattr__
        derive(self, "_flops", peak_flops(self.model, self.device) * self.compute_efficiency)
        derive(self, "_bandwidth", self.device.bandwidth_Bps * self.bandwidth_efficiency)
        share = 2 * (self.tensor_parallel - 1) / self.tensor_parallel
        message = self.model.hidden * bytes_per_value(self.model.dtype)
        reduced = self.model.all_reduces * share * message
        alone = self.tensor_parallel == 1  # a device may state no interconnect
        derive(self, "_reduce_s", 0.0 if alone else reduced / self.device.interconnect_Bps)
        attended = self.model.attended(self.kv_dtype, self.tensor_parallel)
        derive(self, "_attended", attended)
        derive(self, "_matmuls", self.model.linear(self.tensor_parallel))
        # Every kind of read as so many layers of the first kind: what a pair or a cached token costs in one of those.
        reads, first = attended.reads, attended.reads[0][1]
        compute = [layers * (read.decode_pair / first.decode_pair) for layers, read in reads]
        memory = [layers * (read.token_bytes / first.token_bytes) for layers, read in reads]
        windows = [read.window for _, read in reads]
        derive(self, "_layers", tuple(zip(windows, compute, memory, strict=True)))
        derive(self, "_pair_s", sum(n * read.prefill_pair for n, read in reads) / self._flops / sum(compute))
        derive(self, "_decode_pair_s", sum(n * read.decode_pair for n, read in reads) / self._flops / sum(compute))
        derive(self, "_context_s", sum(n * read.token_bytes for n, read in reads) / self._bandwidth / sum(memory))

    @property
    def calibrated(self) -> bool:
        return False

    @property
    def name(self) -> str:
        return f"{self.device.name} (roofline, uncalibrated)"

    def seconds(self, shape: StepShape) -> Scalars:
        attention = np.maximum(self._attention_flops_s(shape), self._attention_bytes_s(shape))
        total = self._linear_s(shape) + attention
        return total if np.ndim(total) else float(total)

    def durations(self, shape: StepShape, iterations: int) -> tuple[float, float, int]:
        prefill_rows, prefill_tokens, pairs, prefill_context, rows, context, _ = shape
        tokens = prefill_tokens + rows
        linear = self._linear.get((tokens, prefill_rows + rows))
        if linear is None:
            linear = self._remember(shape)
        compute_layers, memory_layers, count = self._growing(rows, context, iterations)
        if len(self._layers) > 1 or self._layers[0][0] is not None:
            compute = self._attention_flops_s(shape)
            memory = self._attention_bytes_s(shape)
        else:
            compute = compute_layers * (self._pair_s * pairs + self._decode_pair_s * (context + rows))
            memory = memory_layers * self._context_s * (context + prefill_context + tokens)
            compute += self._attended.token_flops * tokens / self._flops
            memory += self._attended.row_bytes * (prefill_rows + rows) / self._bandwidth
        compute_slope = compute_layers * self._decode_pair_s * rows
        memory_slope = memory_layers * self._context_s * rows
        # The piece ends where the lower of the two lines overtakes the other.
        if memory > compute or (memory == compute and memory_slope >= compute_slope):
            if compute_slope > memory_slope:
                count = min(count, math.floor((memory - compute) / (compute_slope - memory_slope)) + 1)
            return linear + memory, memory_slope, count
        if memory_slope > compute_slope:
            count = min(count, math.floor((compute - memory) / (memory_slope - compute_slope)) + 1)
        return linear + compute, compute_slope, count

    def extrapolated(self, shape: StepShape) -> Scalars:
        """Never: it was not measured anywhere, which `calibrated` says."""
        outside = np.zeros(np.broadcast_shapes(*(np.shape(v) for v in shape)), dtype=bool)
        return outside if outside.ndim else False

    def _growing(self, rows: int, context: int, iterations: int) -> tuple[float, float, int]:
        """Layers that meet one token more in each iteration, by FLOPs and by bytes, and for how many that holds."""
        compute = memory = 0.0
        for window, flops_layers, bytes_layers in self._layers:
            if window is not None:
                left = rows * (window - 1) - context
                if left <= 0:
                    continue
                iterations = min(iterations, left // rows + 1)
            compute += flops_layers
            memory += bytes_layers
        return compute, memory, iterations

    def _remember(self, shape: StepShape) -> float:
        tokens = shape.prefill_tokens + shape.decode_rows
        require_tokens(self.name, tokens)
        return keep(self._linear, (tokens, shape.prefill_rows + shape.decode_rows), float(self._linear_s(shape)))

    def _linear_s(self, shape: StepShape) -> Scalars:
        """Everything but attention [s]: a function of tokens and rows alone."""
        compute = self._matmuls.flops(shape) / self._flops
        memory = self._matmuls.bytes(shape) / self._bandwidth
        tokens = shape.prefill_tokens + shape.decode_rows
        return np.maximum(compute, memory) + self._reduce_s * tokens + self.overhead_s

    def _attention_flops_s(self, shape: StepShape) -> Scalars:
        return self._attended.flops(shape) / self._flops

    def _attention_bytes_s(self, shape: StepShape) -> Scalars:
        return self._attended.bytes(shape) / self._bandwidth


def peak_flops(model: ModelSpec, device: DeviceSpec) -> float:
    """Dense peak FLOP/s of the format in which ``model`` multiplies: its weights', where the device computes in that.

    Raises InputError if the device states no peak for the model's own format either.
    """
    if model.weight_dtype is not None and model.weight_dtype in device.flops:
        return float(device.flops[model.weight_dtype])
    return device.peak_flops(model.dtype)


def ridge(model: ModelSpec, device: DeviceSpec) -> float:
    """FLOP per byte of ``device`` in the format in which ``model`` multiplies: above it compute sets the time."""
    return peak_flops(model, device) / device.bandwidth_Bps


def ridge_batch(model: ModelSpec, device: DeviceSpec, tensor_parallel: int = 1) -> int | None:
    """The fewest decode rows whose linear layers take as long to compute as to read; None where no batch does.

    FLOPs over the peak of the format in which ``model`` multiplies, against bytes over the bandwidth, both of
    ``tensor_parallel`` GPUs' share: weights once, and of the routed experts those that so many rows touch. Attention is
    left out, since rows share nothing of it. FLOPs grow in proportion to the rows and bytes ever more slowly, so that
    they cross once or never.
    """
    least = ridge(model, device)

    def reached(rows: int) -> bool:
        shape = StepShape(0, 0, 0, 0, rows, 0, 1)
        flops = float(model.linear_flops(shape, tensor_parallel=tensor_parallel))
        return flops >= least * float(model.linear_bytes(shape, tensor_parallel=tensor_parallel))

    rows = range(1, _MOST_ROWS)
    found = bisect_left(rows, True, key=reached)
    return rows[found] if found < len(rows) else None
