"""What tables of operators give for one model on one GPU: terms to add up, attention, how far they can be trusted.

The readers (`layer_tables`, `kernel_tables`) turn a folder of measured operators into `Parts`; `assemble` makes a
profile of them. What no table holds comes from here: kernels that only move memory take a launch and their bytes at
the peak bandwidth, the sampler a launch and a few passes over the logits.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from servecast.batch import StepShape
from servecast.calibration.steps import numeric, table_of
from servecast.cost.curves import Curve, curve, left_out
from servecast.cost.profile import LeftOut, error_figures
from servecast.cost.roofline import peak_flops
from servecast.errors import InputError
from servecast.specs.dtypes import bytes_per_value
from servecast.specs.layers.layer import Split

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import numpy.typing as npt
    import pandas as pd

    from servecast.cost.model import Scalars
    from servecast.cost.tabulated import PrefillBy
    from servecast.specs.device import DeviceSpec
    from servecast.specs.layers.attention import Attention
    from servecast.specs.layers.feed_forward import Dense
    from servecast.specs.model import ModelSpec

#: Where a term comes from: a point of a table, a line between its points, or datasheet arithmetic.
Origin = Literal["measured", "interpolated", "roofline"]

#: What a term of a step counts.
Per = Literal["tokens", "rows"]

#: (outer, inner, seconds) of an attention table, all layers together.
Points = list[tuple[float, float, float]]

KERNEL_S: Final = 2.4e-6
"""The least that a kernel takes on the GPU: norms, rotary embedding and activation of one token take 1.9 to 4.2 us,
2.4 in the median, in the layer tables of RTX PRO 6000 and RTX 4090 (vLLM 0.19). There, kernels that only move memory
reach 1.0 to 1.4 of the peak bandwidth at 1,024 tokens and more: part of what they read is still in the L2."""

SAMPLER_S: Final = 20e-6
SAMPLER_PASS_BYTES: Final = 8.5
"""The sampler, where no table has it: a few launches, and bytes moved per row and vocabulary entry (logits in 16 bits
and fp32, read again). In the layer tables 12 to 25 us at 1 row, and 7.6 to 9.5 bytes at the peak bandwidth."""


class Term(NamedTuple):
    """One summand of a step: a function of its ``tokens`` or of its ``rows`` [s]."""

    name: str
    per: Per
    origin: Origin
    curve: Curve


class Least(NamedTuple):
    """The least time of each part of a step [s]: all its FLOPs at the device's peak, or all its bytes."""

    model: ModelSpec
    device: DeviceSpec
    tensor_parallel: int

    def tokens(self, count: float) -> float:
        """Of everything but attention that so many tokens pass."""
        shape = StepShape(0, count, 0, 0, 0, 0, 1)  # type: ignore[arg-type]  # knots are floats
        moved = self.model.linear_bytes(shape, tensor_parallel=self.tensor_parallel) / self.device.bandwidth_Bps
        return float(max(self._linear_flops_s(shape), moved))

    def rows(self, count: float) -> float:
        """Of the lm_head for so many sequences."""
        shape = StepShape(count, 0, 0, 0, 0, 0, 1)  # type: ignore[arg-type]
        moved = self.model.vocab_table_bytes(self.tensor_parallel) / self.device.bandwidth_Bps
        return float(max(self._linear_flops_s(shape), moved))

    def decode(self, rows: Scalars, context: Scalars) -> Scalars:
        """Of the attention of so many rows, each over so many cached tokens."""
        return self._attention_s(StepShape(0, 0, 0, 0, rows, rows * context, context))

    def prefill(self, tokens: Scalars, pairs: Scalars) -> Scalars:
        """Of the attention of so many new tokens over so many query-key pairs."""
        return self._attention_s(StepShape(1, tokens, pairs, 0, 0, 0, tokens))

    def cached(self) -> float:
        """Of reading one cached token."""
        return float(self.decode(1, 1_000_001) - self.decode(1, 1)) / 1e6

    def _attention_s(self, shape: StepShape) -> Scalars:
        flops = self.model.attention_flops(shape, tensor_parallel=self.tensor_parallel)
        moved = self.model.attention_bytes(shape, tensor_parallel=self.tensor_parallel)
        return np.maximum(flops / peak_flops(self.model, self.device), moved / self.device.bandwidth_Bps)

    def _linear_flops_s(self, shape: StepShape) -> float:
        flops = self.model.linear_flops(shape, tensor_parallel=self.tensor_parallel)
        return float(flops) / peak_flops(self.model, self.device)


class Parts(NamedTuple):
    """All that a step is put together of.

    decode, mixed : (rows, context of a mean row, seconds)      prefill : by ``prefill_by`` and the other, seconds
    most_tokens, most_rows : the largest that were measured
    """

    terms: tuple[Term, ...]
    decode: Points
    prefill: Points
    prefill_by: PrefillBy
    mixed: Points
    mixed_tile_s: float
    launch_s: float
    attention_origin: Origin
    most_tokens: int
    most_rows: int
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    files: Sequence[Path]
    rows: int


def require_dense(model: ModelSpec) -> tuple[Attention, Dense]:
    """The attention and the feed-forward that every layer of a model has.

    Raises InputError for models whose operators the tables do not hold: experts, windows, kinds of attention.
    """
    if model.plain is None:
        problem = f"{model.name} has {model.not_plain}: tables of operators are put together for dense models only"
        raise InputError("--model", problem)
    return model.plain


def elementwise(model: ModelSpec, device: DeviceSpec, knots: Sequence[int], tensor_parallel: int) -> Term:
    """Norms, activation, rotary embedding, writing keys and values, and the embedding: what GEMM tables leave out.

    Bytes as vLLM's kernels move them: a norm with its residual reads and writes the hidden state twice (4 x hidden),
    the activation reads gate and up and writes their product, rotary embedding and the norm of queries and keys read
    and write them, and the cache write reads and writes keys and values.
    """
    value = bytes_per_value(model.dtype)
    attention, mlp = require_dense(model)
    split = Split(tensor_parallel, model.name)
    queries = attention.heads // tensor_parallel * attention.head_dim
    keys = attention.kv_heads_per_gpu(split) * attention.head_dim
    inner = mlp.matrices * mlp.intermediate // tensor_parallel
    turned, normed = 2 * (queries + keys), attention.qk_norm or attention.whole_qk_norm
    layer = 8 * model.hidden + inner + turned * (2 if normed else 1) + 4 * keys
    launches = 6 if normed else 5
    once, moved = (model.layers * launches + 2) * KERNEL_S, (model.layers * layer + 6 * model.hidden) * value
    points = ((n, once + moved * n / device.bandwidth_Bps) for n in knots)
    return Term("elementwise kernels", "tokens", "roofline", curve(points))


def sampler(model: ModelSpec, device: DeviceSpec, knots: Sequence[int], tensor_parallel: int) -> Term:
    """Sampling, and gathering the logits of all GPUs before it."""
    per_row = model.vocab * SAMPLER_PASS_BYTES / device.bandwidth_Bps
    once = SAMPLER_S
    if tensor_parallel > 1:
        share = (tensor_parallel - 1) / tensor_parallel
        per_row += model.padded_vocab * bytes_per_value(model.dtype) * share / device.interconnect_Bps
        once += KERNEL_S
    return Term("sampler", "rows", "roofline", curve((n, once + per_row * n) for n in knots))


def summary(operator: str, along: str, errors: Iterable[float]) -> list[LeftOut]:
    """The errors of one operator's points, each predicted from the others; nothing where there are none."""
    found = np.array(list(errors))
    found = found[np.isfinite(found)]
    return [LeftOut(operator=operator, along=along, **error_figures(found))] if len(found) else []


def errors_along(points: Points, outer: bool) -> list[float]:
    """Errors of leaving points out along the inner number at each outer one, or the other way round."""
    rows: dict[float, list[tuple[float, float]]] = {}
    for first, second, seconds in points:
        rows.setdefault(second if outer else first, []).append((first if outer else second, seconds))
    return [error for row in rows.values() for error in left_out(curve(row))]


def decode_errors(points: Points) -> list[LeftOut]:
    """Errors of leaving out points of decode attention."""
    along = (("context", False), ("rows", True))
    return [e for name, outer in along for e in summary("decode attention", name, errors_along(points, outer))]


def read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """A table with at least these columns.

    Raises InputError with the file for what is missing, not a number, or a time that is not above 0.
    """

    table = table_of(path, "a folder of operator tables holds it")
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise InputError(str(path), f"column {', '.join(missing)} is missing: it must hold {', '.join(columns)}")
    time = columns[-1]
    times = numeric(table[time])
    bad = np.flatnonzero(~(np.isfinite(times) & (times > 0)))
    if len(bad):
        raise InputError(
            f"{path}:{bad[0] + (1 if path.suffix == '.parquet' else 2)}",
            f"{time} is {table[time].iloc[bad[0]]!r}: a time must be a number above 0, remove the row",
        )
    return table


def fingerprint(files: Sequence[Path]) -> tuple[tuple[str, ...], str]:
    """Names (with their folder) and one hash over all files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return tuple(f"{file.parent.name}/{file.name}" for file in files), digest.hexdigest()


def array(column: Any) -> npt.NDArray[np.float64]:
    """A column as floats."""
    found: npt.NDArray[np.float64] = column.to_numpy(dtype=float)
    return found
