"""Puts a profile together of a folder of measured operators: reads, adds up, thins, judges, and gathers what the file
keeps.

A folder with `dense.csv` is one of layer tables, one with `gemm_perf.parquet` one of kernel tables. The tables that
are stored are sums over kernels and layers at knots of their own: a knot goes where the line between its neighbours
reaches it within `TOLERANCE`. With ``tolerance`` 0 the model is exact at every point that was measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from servecast.batch import StepShape
from servecast.calibration import kernel_tables, layer_tables, operators
from servecast.calibration.fit import Report
from servecast.calibration.robust import rising_points, settled_curve
from servecast.cost import host as hosts
from servecast.cost.curves import Curve, surface
from servecast.cost.profile import Composition, Tables, TabulatedProfile, error_cells, provenance, rounded
from servecast.errors import InputError
from servecast.text import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from servecast.calibration.operators import Least, Parts, Per, Points
    from servecast.cost.host import Host
    from servecast.cost.model import StepKind
    from servecast.cost.profile import Coefficient
    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import ModelSpec

TOLERANCE: Final = 0.003
"""Relative: a tenth of what leaving a point out costs in the median, and it shortens the tables by 20 to 30 %."""

#: Steps whose composition the profile states: name, prefill tokens of one fresh prompt, decode rows, context of each.
REFERENCES: Final = (
    ("decode 1 x 1,024", 0, 1, 1024),
    ("decode 64 x 1,024", 0, 64, 1024),
    ("prompt of 2,048", 2048, 0, 0),
)


def fit_operators(
    folder: str | Path,
    model: ModelSpec,
    device: DeviceSpec,
    *,
    name: str,
    tensor_parallel: int = 1,
    engine: str = "",
    source: str = "",
    host: Host | None = None,
    all_reduce: str | Path | None = None,
    tolerance: float = TOLERANCE,
    memory_bytes: dict[str, float] | None = None,
    date: str | None = None,
) -> TabulatedProfile:
    """A profile of ``model`` on each of ``tensor_parallel`` GPUs from a folder of operator tables.

    host : what the engine adds to the kernels; without it the middle of what recorded engines show
    all_reduce : folder of kernel tables whose all-reduce joins a split of layer tables
    tolerance : relative error that thinning a table may cost
    Raises InputError with file and remedy for a folder that does not hold what this model and split need.
    """
    folder = Path(folder)
    if (folder / layer_tables.DENSE).is_file():
        parts = layer_tables.read(folder, model, device, tensor_parallel, Path(all_reduce) if all_reduce else None)
    elif (folder / kernel_tables.GEMM).is_file():
        parts = kernel_tables.read(folder, model, device, tensor_parallel)
    else:
        problem = f"holds neither {layer_tables.DENSE} nor {kernel_tables.GEMM}: name a folder of tables"
        raise InputError(str(folder), problem)
    names, digest = operators.fingerprint(parts.files)
    profile = TabulatedProfile(
        name=name,
        model=model.name,
        device=device.name,
        tensor_parallel=tensor_parallel,
        host=(host or hosts.unknown())._asdict(),  # type: ignore[arg-type]  # its two fields are the keys
        held_out=parts.left_out,
        domain=_domain(parts),
        memory_bytes=memory_bytes,
        notes=(*parts.notes, f"knots dropped where a straight line is within {tolerance:.1%} of them"),
        provenance=provenance(
            date,
            source=source,
            engine=engine or folder.name.rpartition("-")[2],
            files=names,
            sha256=digest,
            rows=parts.rows,
            seed=0,
            rows_each=1,
        ),
        tables=_tables(parts, operators.Least(model, device, tensor_parallel), tolerance),
    )
    return profile.model_copy(update={"composition": _composition(profile, parts)})


def with_host(profile: TabulatedProfile, host: Host) -> TabulatedProfile:
    """The same kernels under another engine's overhead; the composition is that of the first."""
    return profile.model_copy(update={"host": host._asdict()})


def report(profile: TabulatedProfile) -> Report:
    """The profile as tables of text."""

    def row(name: str, c: Coefficient) -> tuple[str, ...]:
        low, high = c.low * 1e3, c.high * 1e3
        return (name, f"{c.value * 1e3:.4g} ms", f"{low:.4g} .. {high:.4g} ms", c.origin, c.how)

    hosted = tuple(row(name, c) for name, c in profile.host.items())
    errors = tuple((e.operator, e.along, str(e.count), *error_cells(e)) for e in profile.held_out)
    shares = tuple((name, *(f"{share:.1%}" for _, share in c)) for name, c in profile.composition.items())
    tables = (
        Table("host", ("name", "value", "interval", "what it is", "how"), hosted),
        Table("left out", ("operator", "along", "points", "median", "p95", "signed mean"), errors),
        Table("composition", ("step", *Composition.model_fields), shares),
    )
    return Report(tables, profile.notes)


def _tables(parts: Parts, least: Least, tolerance: float) -> Tables:
    """The tables that are written: none falls as work grows, and none is below its FLOPs and bytes at the peaks."""

    def written(curve: Curve, floor: Callable[[float], float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        thin = curve.thinned(tolerance).at_least(floor)
        return thin.knots, tuple(rounded(value, 6) for value in thin.seconds)

    def summed(per: Per) -> Curve:
        """The sum of all terms, at the knots of all."""
        curves = [term.curve for term in parts.terms if term.per == per]
        knots = sorted({knot for curve in curves for knot in curve.knots})
        return settled_curve(Curve(tuple(knots), tuple(sum(curve.at(knot) for curve in curves) for knot in knots)))

    def attention(
        points: Points, floor: Callable[[float, float], float], both: bool
    ) -> tuple[tuple[tuple[float, ...], ...], ...]:
        of = surface(rising_points(points, both=both))
        curves = zip(of.outer, of.curves, strict=True)
        return tuple(((at,), *written(curve, lambda inner, at=at: floor(at, inner))) for at, curve in curves)  # type: ignore[misc]

    def prefill(outer: float, inner: float) -> float:
        tokens = outer if parts.prefill_by == "tokens" else inner
        return float(least.prefill(tokens, outer * inner))

    def decode(rows: float, context: float) -> float:
        return float(least.decode(rows, context))

    return Tables(
        tokens=written(summed("tokens"), least.tokens),
        sampled_rows=written(summed("rows"), least.rows),
        decode_attention=attention(parts.decode, decode, both=True),
        prefill_by=parts.prefill_by,
        prefill_attention=attention(parts.prefill, prefill, both=False),
        mixed_attention=attention(parts.mixed, decode, both=True) if parts.mixed else (),
        mixed_tile_s=rounded(parts.mixed_tile_s),
        launch_s=rounded(parts.launch_s),
        cached_s=rounded(least.cached()),
    )


def _domain(parts: Parts) -> dict[StepKind, dict[str, tuple[float, float]]]:
    """Boxes around what was measured, one number at a time."""
    rows = (1.0, float(parts.most_rows))
    context = (0.0, max(float(r) * c for r, c, _ in parts.decode))
    decode = {"decode_rows": rows, "decode_context": context}
    prefill = {
        "prefill_tokens": (1.0, float(parts.most_tokens)),
        "prefill_pairs": (1.0, max(outer * inner for outer, inner, _ in parts.prefill)),
    }
    return {"decode": decode, "mixed": {**prefill, **decode}, "prefill": prefill}


def _composition(profile: TabulatedProfile, parts: Parts) -> dict[str, Composition]:
    cost = profile.cost()
    found = {}
    for name, prompt, rows, context in REFERENCES:
        shape = StepShape(
            int(prompt > 0), prompt, prompt * (prompt + 1) // 2, 0, rows, rows * context, max(prompt, context)
        )
        total = float(np.asarray(cost.seconds(shape)))
        sequences = int(prompt > 0) + rows
        shares = dict.fromkeys(("measured", "interpolated", "roofline"), 0.0)
        for term in parts.terms:
            shares[term.origin] += term.curve.at(prompt + rows if term.per == "tokens" else sequences)
        host = cost.step_s + cost.row_s * sequences
        shares[parts.attention_origin] += total - host - sum(shares.values())
        found[name] = Composition(
            **{origin: rounded(max(0.0, value) / total, 3) for origin, value in shares.items()},
            host=rounded(host / total, 3),
        )
    return found
