"""Reads tables of a layer's kernels: dense ones by tokens, attention by what is in the step, the rest by sequences.

The layout of LLMServingSim's profiles (casys-kaist/LLMServingSim, MIT): `dense.csv` (layer, tokens, time_us),
`attention.csv.gz` (prefill_chunk, kv_prefill, n_decode, kv_decode, time_us) and `per_sequence.csv` (layer, sequences,
time_us), microseconds of one layer, eager. A step is the embedding, the layers (each kernel, the norm twice), the final
norm, lm_head and sampler. They belong to one model, one GPU and one split; a split holds no collective.

Attention was also measured with prompts and decode rows in one launch. There, decode rows cost

    joint = prefill alone + m(rows, context) + x rows chunk

with m the median over all prompts beside them and x fitted: neither the sum of both alone nor the larger of them is
near it (decode rows lose their own kernel: 1.3 to 5 times their time alone).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from servecast.calibration import operators, robust
from servecast.calibration.operators import Parts, Points, Term
from servecast.cost.curves import curve, left_out
from servecast.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt
    import pandas as pd

    from servecast.calibration.operators import Per
    from servecast.cost.profile import LeftOut
    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import ModelSpec

    Floats = npt.NDArray[np.float64]

DENSE: Final = "dense.csv"
ATTENTION: Final = "attention.csv.gz"
PER_SEQUENCE: Final = "per_sequence.csv"

#: Kernels of a layer and how often each runs in it; the last ones run once a step.
IN_LAYER: Final = {
    "layernorm": 2,
    "qkv_proj": 1,
    "qk_norm": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
ONCE: Final = ("embedding", "final_layernorm")
_OPTIONAL: Final = ("qk_norm",)


def read(
    folder: Path, model: ModelSpec, device: DeviceSpec, tensor_parallel: int, all_reduce: Path | None = None
) -> Parts:
    """The parts of a step of the model that the tables belong to.

    all_reduce : folder of kernel tables of the same GPU, whose all-reduce joins the GPUs of a split
    Raises InputError with the file for a missing table or layer, and for a split without an all-reduce.
    """
    operators.require_dense(model)
    dense = operators.read_table(folder / DENSE, ("layer", "tokens", "time_us"))
    sequences = operators.read_table(folder / PER_SEQUENCE, ("layer", "sequences", "time_us"))
    attention = operators.read_table(
        folder / ATTENTION, ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    )
    terms, judged, lone = _terms(folder, model, dense, sequences)
    attention, lone_attention = _settled(attention)
    points = f"{lone} of {len(dense) + len(sequences)} kernels and {lone_attention} of {len(attention)} of attention"
    notes = ["every kernel but the joint attention is a point of the tables or on the line between two"]
    notes.append(f"lone points put on the line of their neighbours: {points}")
    files = [folder / DENSE, folder / ATTENTION, folder / PER_SEQUENCE]
    if tensor_parallel > 1:
        if all_reduce is None:
            problem = f"a split over {tensor_parallel} GPUs holds no collective: give --all-reduce a folder with one"
            raise InputError(str(folder), problem)
        from servecast.calibration import kernel_tables

        knots = [int(knot) for knot in terms[0].curve.knots]
        reduce, errors = kernel_tables.all_reduce(all_reduce, model, knots, tensor_parallel)
        terms.append(reduce)
        judged += errors
        files.append(all_reduce / kernel_tables.ALL_REDUCE)
        notes.append(f"the all-reduce is that of {all_reduce.name}")
    layers = model.layers
    alone = attention[attention["n_decode"] == 0]
    decode = _points(attention[attention["prefill_chunk"] == 0], "n_decode", "kv_decode", layers)
    prefill = [
        (chunk, cached + (chunk + 1) / 2, seconds)
        for chunk, cached, seconds in _points(alone, "prefill_chunk", "kv_prefill", layers)
    ]
    launch = min(seconds for *_, seconds in [*decode, *prefill])
    mixed, tile, joint = _joint(attention, alone, layers)
    judged += operators.decode_errors(decode)
    judged += operators.summary("prefill attention", "cached prefix", operators.errors_along(prefill, outer=False))
    judged += operators.summary("joint attention", "from its parts", joint)
    return Parts(
        terms=tuple(terms),
        decode=decode,
        prefill=[*((chunk, 0.0, launch) for chunk in sorted({chunk for chunk, *_ in prefill})), *prefill],
        prefill_by="tokens",
        mixed=mixed,
        mixed_tile_s=tile,
        launch_s=0.0,
        attention_origin="measured",
        most_tokens=int(dense["tokens"].max()),
        most_rows=int(attention["n_decode"].max()),
        left_out=tuple(judged),
        notes=(*notes, "several prompts in one step were not measured: priced by their tokens and pairs"),
        files=files,
        rows=len(dense) + len(sequences) + len(attention),
    )


def _terms(
    folder: Path, model: ModelSpec, dense: pd.DataFrame, sequences: pd.DataFrame
) -> tuple[list[Term], list[LeftOut], int]:
    """Everything but attention, with the errors of leaving points out, and how many lone points were replaced."""
    qk_norm = operators.require_dense(model)[0].qk_norm
    made = [
        _term(dense, folder / DENSE, name, "tokens", times * (model.layers if name in IN_LAYER else 1))
        for name, times in (*IN_LAYER.items(), *((name, 1) for name in ONCE))
        if name in set(dense["layer"]) or name not in _OPTIONAL or qk_norm
    ]
    made += [_term(sequences, folder / PER_SEQUENCE, name, "rows", 1) for name in ("lm_head", "sampler")]
    terms = [term for term, _ in made]
    judged: list[LeftOut] = []
    for name, per in (("dense", "tokens"), ("lm_head and sampler", "rows")):
        errors = [error for term in terms if term.per == per for error in left_out(term.curve)]
        judged += operators.summary(f"{name} kernels", per, errors)
    return terms, judged, sum(lone for _, lone in made)


def _settled(attention: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The table without lone points among its decode steps and among its prompts alone; joint ones count by medians."""
    table, lone = attention, 0
    for kind, axes in (
        (attention["prefill_chunk"] == 0, ("n_decode", "kv_decode")),
        (attention["n_decode"] == 0, ("prefill_chunk", "kv_prefill")),
    ):
        whole, found = robust.settled(table[kind], axes, "time_us")
        table, lone = table.assign(time_us=table["time_us"].where(~kind, whole["time_us"])), lone + found
    return table, lone


def _term(table: pd.DataFrame, path: Path, name: str, per: Per, times: int) -> tuple[Term, int]:
    rows = table[table["layer"] == name]
    if rows.empty:
        raise InputError(f"{path}: {name}", "is missing: a step cannot be put together without it")
    column = "tokens" if per == "tokens" else "sequences"
    rows, lone = robust.settled(rows, (column,), "time_us")
    knots = rows[column]
    points = curve(zip(knots.tolist(), (rows["time_us"] * times / 1e6).tolist(), strict=True))
    return Term(name, per, "measured", points), lone


def _points(table: pd.DataFrame, outer: str, inner: str, layers: int) -> Points:
    rows = zip(table[outer], table[inner], table["time_us"] * layers / 1e6, strict=True)
    return [(float(first), float(second), float(seconds)) for first, second, seconds in rows]


def _joint(attention: pd.DataFrame, alone: pd.DataFrame, layers: int) -> tuple[Points, float, list[float]]:
    """m by (rows, context), x, and the relative errors of the joint rows put together of them."""
    both = attention[(attention["prefill_chunk"] > 0) & (attention["n_decode"] > 0)]
    both = both.merge(
        alone[["prefill_chunk", "kv_prefill", "time_us"]], on=["prefill_chunk", "kv_prefill"], suffixes=("", "_alone")
    )
    if both.empty:
        return [], 0.0, []
    seconds = operators.array(both["time_us"]) * layers / 1e6
    prefill = operators.array(both["time_us_alone"]) * layers / 1e6
    tiles = operators.array(both["n_decode"]) * operators.array(both["prefill_chunk"])
    # Within one (rows, context) only the tiles and what the prompts do vary: a slope of relative errors.
    both["weight"] = seconds**-2.0
    both["tiles"], both["excess"] = tiles, seconds - prefill
    cell = [both["n_decode"], both["kv_decode"]]

    def centred(name: str) -> Floats:
        weighted, weights = (of.groupby(cell).transform("sum") for of in (both[name] * both["weight"], both["weight"]))
        return operators.array(both[name] - weighted / weights)

    weight, across = operators.array(both["weight"]), centred("tiles")
    spread = float((weight * across**2).sum())
    tile = max(0.0, float((weight * across * centred("excess")).sum()) / spread) if spread > 0 else 0.0
    both["marginal"] = seconds - prefill - tile * tiles
    groups = both.groupby(["n_decode", "kv_decode"])["marginal"]
    marginal = operators.array(groups.transform("median"))
    medians = groups.median().reset_index()
    columns = (operators.array(medians[name]).tolist() for name in ("n_decode", "kv_decode", "marginal"))
    # One row behind a prompt is free within the noise, and a table of seconds holds none below 0.
    points = [(rows, context, max(0.0, value)) for rows, context, value in zip(*columns, strict=True)]
    errors = (prefill + np.maximum(marginal, 0.0) + tile * tiles) / seconds - 1
    return points, tile, errors.tolist()
