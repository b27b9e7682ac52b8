"""Reads tables of kernels: GEMMs by (m, n, k), attention by (batch, length) and (batch, context), all-reduce by size.

The layout of aiconfigurator's collections (ai-dynamo/aiconfigurator, Apache-2.0): one folder a GPU and engine version
with `gemm_perf`, `context_attention_perf`, `generation_attention_perf` and `custom_allreduce_perf` (.parquet),
milliseconds under CUDA graphs. A layer is four matrix products (query-key-value, output, gate and up, down); the
vocabulary is one more.

- **m** (tokens) is on the grid; between its points, time is linear.
- **n, k** (widths) off the grid: linear in both between the four neighbours. Left out one by one, grid points of at
  least 1,024 are predicted to 2.8 to 5.5 % (median); the same between times over the roofline, or between logarithms,
  is worse. Several matrices are added, so errors average.
- **Beyond the grid** (a vocabulary of 151,936 where n ends at 65,536) time grows in proportion to the width, as FLOPs
  and bytes do.
- **Cold reads.** Tables are taken over and over on the same data. Where that fits the L2 (weights and caches of up to
  50 to 128 MB), times fall below what memory can deliver; an engine comes back only after all other layers, and reads
  it cold. Such points are raised to their bytes at the peak bandwidth, and counted.
- **Lone points**, far from their neighbours along every axis, are put on the line between these, and counted.
- **Prefill attention** is measured on fresh prompts of equal length; with a cached prefix it is priced by its pairs.
- **Heads** off the grid: linear between neighbours with as many KV heads.

Not in these tables: what only moves memory (quantising activations among it), the sampler, prompts and decode rows in
one launch.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from servecast.calibration import operators, robust
from servecast.calibration.operators import Parts, Points, Term
from servecast.cost.curves import curve, errors_between, left_out
from servecast.cost.roofline import peak_flops
from servecast.errors import InputError
from servecast.specs.dtypes import bytes_per_value
from servecast.specs.layers.layer import Split

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    from servecast.calibration.operators import Origin, Per
    from servecast.cost.model import Scalars
    from servecast.cost.profile import LeftOut
    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import ModelSpec

GEMM: Final = "gemm_perf.parquet"
PREFILL: Final = "context_attention_perf.parquet"
DECODE: Final = "generation_attention_perf.parquet"
ALL_REDUCE: Final = "custom_allreduce_perf.parquet"

REREAD: Final = 0.48
"""How often a decode row in one launch with a prompt reads its cached keys and values, for each query head that shares
a KV head (at least once): the prompt's kernel serves query heads one by one, at 0.44 to 0.55 of a read each. From six
layer tables of RTX PRO 6000 and RTX 4090 (vLLM 0.19; 4 and 8 query heads a KV head; 16 to 64 rows of 1,000 to 4,096
tokens). Carried over to these GPUs, and borne out by an H100: see calibration/README.md."""

_DTYPES: Final = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8"}

#: Widths from which leave-one-out errors are counted: matrices of models are that wide, narrow ones only take a launch.
_WIDE: Final = 1024

#: Most tokens whose knots are kept, and most rows that are sampled.
_MOST_TOKENS: Final = 16_384
_MOST_ROWS: Final = 1024


class _Grid(NamedTuple):
    """GEMM times: widths (w,) along n and k alike, m (t,), seconds (w, w, t), NaN where nothing was measured.

    lone : points put on the line of their neighbours
    """

    widths: tuple[int, ...]
    m: tuple[int, ...]
    seconds: npt.NDArray[np.float64]
    lone: int


def read(folder: Path, model: ModelSpec, device: DeviceSpec, tensor_parallel: int) -> Parts:
    """The parts of a step of ``model`` on each of ``tensor_parallel`` GPUs.

    Raises InputError with the file for a missing table, dtype, head shape or number of GPUs.
    """
    attention, _ = operators.require_dense(model)
    grid = _grid(folder / GEMM, _table_dtype(model), model, device)
    floor = operators.Least(model, device, tensor_parallel)
    knots = [m for m in grid.m if m <= _MOST_TOKENS]
    terms = _terms(folder, grid, knots, model, device, tensor_parallel)
    files = [folder / GEMM, folder / PREFILL, folder / DECODE]
    judged = _gemm_errors(grid)
    if tensor_parallel > 1:
        files.append(folder / ALL_REDUCE)
        reduce, errors = all_reduce(folder, model, knots, tensor_parallel)
        terms.append(reduce)
        judged += errors
    split = Split(tensor_parallel, model.name)
    heads, kv_heads = split.share("attention heads", attention.heads), attention.kv_heads_per_gpu(split)
    decode, exact_decode, raised, lone_decode = _attention(
        folder / DECODE, model, heads, kv_heads, "step", floor.decode
    )  # fmt: skip
    prefill, exact_prefill, _, lone_prefill = _attention(
        folder / PREFILL, model, heads, kv_heads, "isl",
        lambda batch, length: floor.prefill(batch * length, batch * length * (length + 1) / 2),
    )  # fmt: skip
    fresh = [((length + 1) / 2, batch * length, seconds) for batch, length, seconds in prefill if length > 1]
    launch = min(seconds for *_, seconds in decode)
    least: dict[float, float] = {}
    for outer, _, seconds in fresh:
        least[outer] = min(seconds, least.get(outer, seconds))
    judged += operators.decode_errors(decode)
    judged += operators.summary("prefill attention", "tokens", operators.errors_along(fresh, outer=False))
    return Parts(
        terms=tuple(terms),
        decode=decode,
        prefill=[*((outer, 0.0, min(launch, seconds)) for outer, seconds in sorted(least.items())), *fresh],
        prefill_by="pairs_per_token",
        mixed=_beside_prompts(decode, model, device, tensor_parallel),
        mixed_tile_s=0.0,
        launch_s=launch,
        attention_origin="measured" if exact_decode and exact_prefill else "interpolated",
        most_tokens=min(knots[-1], _MOST_TOKENS),
        most_rows=round(max(rows for rows, *_ in decode)),
        left_out=tuple(judged),
        notes=(
            *_notes(terms, tensor_parallel),
            f"{raised} of {len(decode)} points of decode attention came from the L2: raised to the peak bandwidth",
            (
                "lone points put on the line of their neighbours: "
                f"{grid.lone} of {np.isfinite(grid.seconds).sum():,} GEMMs, "
                f"{lone_decode} of {len(decode)} of decode and {lone_prefill} of {len(fresh)} of prefill attention"
            ),
        ),
        files=files,
        rows=len(decode) + len(fresh) + len(grid.m) * (len(_matrices(model, 1)) + 1),
    )


def _table_dtype(model: ModelSpec) -> str:
    """What the tables call the format that the model multiplies in."""
    dtype = model.weight_dtype or model.dtype
    if dtype not in _DTYPES:
        raise InputError("--model", f"{model.name} multiplies in {dtype}, the tables in {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def _terms(
    folder: Path, grid: _Grid, knots: list[int], model: ModelSpec, device: DeviceSpec, tensor_parallel: int
) -> list[Term]:
    """Everything but attention and the all-reduce."""
    rows = [m for m in grid.m if m <= _MOST_ROWS]
    weight_s = bytes_per_value(model.weight_dtype or model.dtype) / device.bandwidth_Bps
    matrices = _matrices(model, tensor_parallel)
    terms = [_gemm(grid, name, n, k, model.layers, knots, "tokens", weight_s) for name, n, k in matrices]
    vocabulary = model.padded_vocab // tensor_parallel
    plain = grid if _table_dtype(model) == _DTYPES[model.dtype] else None
    plain = plain or _grid(folder / GEMM, _DTYPES[model.dtype], model, device)
    plain_s = bytes_per_value(model.dtype) / device.bandwidth_Bps
    terms.append(_gemm(plain, "lm_head", vocabulary, model.hidden, 1, rows, "rows", plain_s))
    terms.append(operators.elementwise(model, device, knots, tensor_parallel))
    terms.append(operators.sampler(model, device, rows, tensor_parallel))
    return terms


def all_reduce(folder: Path, model: ModelSpec, knots: list[int], tensor_parallel: int) -> tuple[Term, list[LeftOut]]:
    """Two all-reduces of the hidden state a layer and one of the embedding, by tokens, with leave-one-out errors.

    Raises InputError if the folder has no table for as many GPUs.
    """
    path = folder / ALL_REDUCE
    table = operators.read_table(path, ("num_gpus", "message_size", "backend", "latency"))
    table = table[table["backend"].str.endswith("graph")]
    chosen = table[table["num_gpus"] == tensor_parallel]
    if chosen.empty:
        counts = ", ".join(str(n) for n in sorted(table["num_gpus"].unique()))
        raise InputError(str(path), f"holds no all-reduce of {tensor_parallel} GPUs: it has {counts}")
    chosen, _ = robust.settled(chosen, ("message_size",), "latency")
    sizes = curve(zip(chosen["message_size"].tolist(), (chosen["latency"] / 1e3).tolist(), strict=True))
    times = 2 * model.layers + 1
    points = [(tokens, times * sizes.at(tokens * model.hidden)) for tokens in knots]
    errors = operators.summary("all-reduce", "message size", left_out(sizes))
    return Term("all-reduce", "tokens", "interpolated", curve(points)), errors


def _matrices(model: ModelSpec, tensor_parallel: int) -> list[tuple[str, int, int]]:
    """(name, n, k) of a layer's matrix products on one GPU: the output and the input width."""
    attention, mlp = operators.require_dense(model)
    queries = attention.heads // tensor_parallel * attention.head_dim
    keys = attention.kv_heads_per_gpu(Split(tensor_parallel, model.name)) * attention.head_dim
    inner = mlp.intermediate // tensor_parallel
    return [
        ("qkv projection", queries + 2 * keys, model.hidden),
        ("output projection", model.hidden, queries),
        ("gate and up projection", (mlp.matrices - 1) * inner, model.hidden),
        ("down projection", model.hidden, inner),
    ]


def _grid(path: Path, dtype: str, model: ModelSpec, device: DeviceSpec) -> _Grid:
    table = operators.read_table(path, ("gemm_dtype", "m", "n", "k", "latency"))
    table = table[table["gemm_dtype"] == dtype]
    if table.empty:
        raise InputError(str(path), f"holds no {dtype} products: choose a model of another dtype")
    widths, m = np.unique(table[["n", "k"]]), np.unique(table["m"])
    seconds = np.full((len(widths), len(widths), len(m)), np.nan)
    places = (np.searchsorted(of, table[name]) for name, of in (("n", widths), ("k", widths), ("m", m)))
    seconds[tuple(places)] = operators.array(table["latency"]) / 1e3
    for row in seconds.reshape(-1, len(m)):
        known = np.isfinite(row)
        if known.any() and not known.all():  # a point that was not measured lies on the line between those that were
            row[~known] = np.interp(m[~known], m[known], row[known])
    # First to what memory and multipliers allow: where all of it lay in the L2, no neighbour tells.
    products = np.multiply.outer(np.multiply.outer(widths, widths), m).astype(float)
    value = bytes_per_value(model.dtype if dtype == _DTYPES[model.dtype] else model.weight_dtype or model.dtype)
    seconds = np.fmax(seconds, products * 2 / peak_flops(model, device)) + 0 * seconds
    seconds = np.fmax(seconds, products / m * value / device.bandwidth_Bps) + 0 * seconds
    whole, lone = robust.without_lone_points(seconds, [widths, widths, m])
    return _Grid(tuple(widths.tolist()), tuple(m.tolist()), whole, lone)


def _gemm(grid: _Grid, name: str, n: int, k: int, times: int, knots: list[int], per: Per, byte_s: float) -> Term:
    """``times`` products of these widths by m; linear between neighbours, in proportion beyond the grid.

    byte_s : least time for a weight [s]: its bytes at the peak bandwidth
    """
    origin: Origin = "measured" if n in grid.widths and k in grid.widths else "interpolated"
    most = grid.widths[-1]
    scale = max(1.0, n / most) * max(1.0, k / most)
    if scale > 1:
        origin = "roofline"
    found = np.zeros(len(grid.m))
    for i, share_n in _neighbours(grid.widths, min(n, most)):
        for j, share_k in _neighbours(grid.widths, min(k, most)):
            found = found + share_n * share_k * grid.seconds[i, j]
    if not np.isfinite(found).all():
        raise InputError(name, f"the GEMM table has no neighbours of n {n}, k {k}: choose another split")
    cold = n * k * byte_s
    taken = zip(grid.m, (scale * found).tolist(), strict=True)
    points = [(m, times * max(seconds, cold)) for m, seconds in taken if m in knots]
    return Term(name, per, origin, curve(points))


def _neighbours(widths: tuple[int, ...], width: int) -> list[tuple[int, float]]:
    """Positions on the grid around a width with their shares; one if it is on the grid."""
    i = bisect_right(widths, width) - 1
    assert i >= 0, f"no model has a matrix {width} wide"
    if widths[i] == width:
        return [(i, 1.0)]
    share = (width - widths[i]) / (widths[i + 1] - widths[i])
    return [(i, 1.0 - share), (i + 1, share)]


def _gemm_errors(grid: _Grid) -> list[LeftOut]:
    """Errors of points predicted from their neighbours along n, along k and along m."""
    wide = [i for i, width in enumerate(grid.widths) if width >= _WIDE]
    widths, block = [grid.widths[i] for i in wide], grid.seconds[np.ix_(wide, wide)]
    return [
        error
        for axis, (along, knots) in enumerate((("n", widths), ("k", widths), ("m", grid.m)))
        for error in operators.summary("GEMM", along, errors_between(knots, np.moveaxis(block, axis, 0)).ravel())
    ]


def _attention(
    path: Path, model: ModelSpec, heads: int, kv_heads: int, length: str, least: Callable[[Scalars, Scalars], Scalars]
) -> tuple[Points, bool, int, int]:
    """(batch, length, seconds) of all layers, whether so many heads were measured, and how many points were raised to
    ``least`` and put on the line of their neighbours.
    """
    columns = ("batch_size", length, "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "latency")
    table = operators.read_table(path, columns)
    head_dim = operators.require_dense(model)[0].head_dim
    chosen = (table["num_key_value_heads"] == kv_heads) & (table["head_dim"] == head_dim)
    chosen &= table["kv_cache_dtype"] == "bfloat16"
    if "window_size" in table:
        chosen &= table["window_size"] == 0
    table = table[chosen]
    measured = tuple(sorted(set(table["num_heads"].tolist())))
    if not (measured and measured[0] <= heads <= measured[-1]):
        raise InputError(
            str(path),
            f"holds no attention near {heads} heads, {kv_heads} KV heads of {head_dim}: choose another split or "
            "another GPU",
        )
    near = _neighbours(measured, heads)
    table = table[table["num_heads"].isin([measured[i] for i, _ in near])]
    # What was measured twice counts with its mean.
    means = table.groupby(["batch_size", length, "num_heads"])["latency"].mean().unstack().dropna() / 1e3
    seconds = model.layers * sum(share * means[measured[i]] for i, share in near)
    points = seconds.rename("seconds").reset_index()
    cold = np.maximum(points["seconds"], least(points["batch_size"], points[length]))
    raised = int((cold > points["seconds"]).sum())
    points, lone = robust.settled(points.assign(seconds=cold), ("batch_size", length), "seconds")
    rows = zip(points["batch_size"], points[length], points["seconds"], strict=True)
    return [(float(batch), float(size), float(value)) for batch, size, value in rows], len(near) == 1, raised, lone


def _beside_prompts(decode: Points, model: ModelSpec, device: DeviceSpec, tensor_parallel: int) -> Points:
    """Decode attention in one launch with prompts: what it takes alone, or reading keys and values again and again."""
    attention, _ = operators.require_dense(model)
    share = attention.heads // tensor_parallel / attention.kv_heads_per_gpu(Split(tensor_parallel, model.name))
    cached_s = model.kv_bytes_per_token(tensor_parallel=tensor_parallel) / device.bandwidth_Bps
    token_s = cached_s * max(1.0, REREAD * share)
    return [(rows, context, max(seconds, rows * context * token_s)) for rows, context, seconds in decode]


def _notes(terms: list[Term], tensor_parallel: int) -> list[str]:
    def named(origin: Origin) -> str:
        return ", ".join(term.name for term in terms if term.origin == origin) or "nothing"

    notes = [
        f"on the grid of the tables: {named('measured')}",
        f"linear between neighbours in n and k (or in size): {named('interpolated')}",
        f"by the roofline, no table reaches it: {named('roofline')}",
        "prompts and decode rows in one step were not measured: their attention is the sum less one launch",
        f"beside a prompt, cached tokens are read {REREAD} times for each query head of a KV head (from other GPUs)",
        "prompts behind a cached prefix were not measured: priced by their query-key pairs",
    ]
    if tensor_parallel > 1:
        notes.append("all-reduces as under CUDA graphs, not hidden behind other work")
    return notes
