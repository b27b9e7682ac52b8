"""Fits a profile to measured steps: reads nothing itself, holds out, fits, judges, and gathers what the file keeps.

How the coefficients are found stands in `calibration.solve`. Held out are a random part (in a log, whole stretches)
and the largest steps; what is stored is fitted to all rows, after the errors were taken with those parts left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from servecast.batch import StepShape
from servecast.calibration import solve
from servecast.calibration.steps import Steps, from_frame, read
from servecast.cost import physics
from servecast.cost.fitted import COEFFICIENTS
from servecast.cost.model import STEP_KINDS, Domain, StepKind, step_kind
from servecast.cost.profile import (
    PROBABILITIES,
    Coefficient,
    Form,
    HeldOut,
    Profile,
    Residuals,
    error_cells,
    errors_by_kind,
    provenance,
    rounded,
)
from servecast.cost.roofline import BANDWIDTH_EFFICIENCY, COMPUTE_EFFICIENCY
from servecast.errors import InputError
from servecast.text import Table, listed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt
    import pandas as pd

    from servecast.cost.fitted import FittedCost
    from servecast.cost.profile import Origin
    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import ModelSpec

    Bools = npt.NDArray[np.bool_]

#: Rows summed in a log of consecutive steps, against the jitter of a client's clock.
WINDOW: Final = 16

SHARPNESS: Final = 5.0
"""p of the smooth maximum where the data hold no knee. Public H100 GEMM tables (a layer of Qwen3-14B, put together of
its matrices, up to 257 tokens, matmuls at the efficiency of serving) give 3.3 to 5.3, see calibration/README.md."""

_HELD_OUT: Final = 0.2
_LARGEST: Final = 0.01
#: Rows from which on a log has enough sums of 16 to hold out eight neighbours at a time.
_LONG_LOG: Final = 2000


class Report(NamedTuple):
    """What `servecast fit` prints: tables and one-line notes."""

    tables: tuple[Table, ...]
    notes: tuple[str, ...]


def fit_file(paths: str | Path | Sequence[str | Path], *, model: str, device: str, **subject: Any) -> Profile:
    """Fit files of measured steps for a model and a device of the catalogue (or a config.json): see `fit`."""
    from servecast.specs import catalogue

    return fit(read(paths), catalogue.model(model), catalogue.device(device), **subject)


def fit(
    steps: Steps | pd.DataFrame,
    model: ModelSpec,
    device: DeviceSpec,
    *,
    name: str,
    engine: str = "",
    source: str = "",
    tensor_parallel: int = 1,
    kv_dtype: str | None = None,
    compute_efficiency: float = COMPUTE_EFFICIENCY,
    bandwidth_efficiency: float = BANDWIDTH_EFFICIENCY,
    sharpness: float = SHARPNESS,
    bounded_by_roofline: bool = True,
    memory_bytes: dict[str, float] | None = None,
    seed: int = 0,
    date: str | None = None,
) -> Profile:
    """Fit measured steps; the same steps and seed give the same profile.

    compute_efficiency, bandwidth_efficiency, sharpness : stated values for what the steps do not tell
    bounded_by_roofline : keep every coefficient at or above its value at the device's peak; without it, at or above 0
        (for a device whose peaks are not known, such as a CPU)
    date : of the fit, today's by default
    Raises InputError if all steps are of one shape, and if they are faster than the device's peaks allow: then model,
    device or split are not theirs.
    """
    if not isinstance(steps, Steps):
        steps = from_frame(steps)
    _refuse_one_shape(steps)
    if bounded_by_roofline:
        _refuse_impossible(steps, model, device, tensor_parallel, kv_dtype)
    physical = physics.of(model, device, tensor_parallel, kv_dtype)
    least = (*physical[:5], 0.0) if bounded_by_roofline else (0.0,) * 6
    setting = solve.Setting(
        physical,
        np.array([*least, 1.0]),
        compute_efficiency,
        bandwidth_efficiency,
        sharpness,
        WINDOW if steps.consecutive() else 1,
        seed,
    )
    train, random, largest = _split(steps, setting)
    trial = solve.cost_of(solve.solve(steps, train, setting).values, setting)
    held_out = [*_errors("random", steps, random, trial, setting), *_errors("largest", steps, largest, trial, setting)]
    identity = {
        "name": name,
        "tensor_parallel": tensor_parallel,
        "kv_dtype": kv_dtype,
        "memory_bytes": memory_bytes,
        "provenance": provenance(
            date, source=source, engine=engine, files=steps.files, sha256=steps.sha256, rows=len(steps), seed=seed,
            rows_each=setting.window,
        ),
    }  # fmt: skip
    everything = solve.solve(steps, np.ones(len(steps), dtype=bool), setting)
    return _profile(steps, everything, held_out, setting, model, device, identity)


def report(profile: Profile) -> Report:
    """The profile as tables of text."""

    def row(label: str, c: Coefficient) -> tuple[str, ...]:
        return (label, f"{c.value:.4g}", f"{c.low:.4g} .. {c.high:.4g}", c.unit, c.origin, c.how)

    def bounds(box: Mapping[str, tuple[float, float]], name: str) -> str:
        return "{:g} .. {:g}".format(*box[name]) if name in box else "not measured"

    coefficients = tuple(row(*named) for named in (*profile.coefficients.items(), ("sharpness", profile.sharpness)))
    errors = tuple((e.part, e.regime, f"{e.count} x {e.rows_each}", *error_cells(e)) for e in profile.held_out)
    boxes = tuple((kind, *(bounds(box, name) for name in StepShape._fields)) for kind, box in profile.domain.items())
    tables = (
        Table("coefficients", ("name", "value", "90 % interval", "unit", "what it is", "how"), coefficients),
        Table("held-out error", ("held out", "steps", "sums x rows", "median", "p95", "signed mean"), errors),
        Table("domain", ("steps", *StepShape._fields), boxes),
    )
    return Report(tables, profile.notes)


# --- held out, and what is stored ------------------------------------------------------------------------------------


def _split(steps: Steps, setting: solve.Setting) -> tuple[Bools, Bools, Bools]:
    """Rows to train on, a random part and the largest steps; in a log whole sums of consecutive rows stay together."""
    n = len(steps)
    at_peak = solve.cost_of(np.array([*setting.physics[:5], 0.0, setting.sharpness]), setting)
    sizes = np.asarray(at_peak.seconds(steps.shape))
    unit = np.arange(n) // setting.window
    block = unit if setting.window == 1 or n < _LONG_LOG else unit // 8
    largest_rows = sizes > np.quantile(sizes, 1 - _LARGEST)
    largest = np.isin(unit, unit[largest_rows])
    blocks = np.unique(block[~largest])
    drawn = np.random.default_rng(setting.seed).permutation(blocks)[: max(1, round(_HELD_OUT * len(blocks)))]
    random = np.isin(block, drawn) & ~largest
    train = ~largest & ~random
    if not train.any() or not random.any():
        raise InputError(steps.files[0], f"{n} steps leave nothing to hold out: give more")
    return train, random, largest


def _errors(
    part: Literal["random", "largest"], steps: Steps, rows: Bools, cost: FittedCost, setting: solve.Setting
) -> list[HeldOut]:
    """Errors of predictions over sums of consecutive rows (or single rows of a grid), by kind of step."""
    positions = np.flatnonzero(rows)
    window = setting.window
    starts = positions[solve.window_starts(positions, steps.run[rows], window)]
    if not len(starts):
        return []
    predicted = solve.window_sums(np.asarray(cost.seconds(steps.shape)), starts, window)
    error = predicted / solve.window_sums(steps.seconds, starts, window) - 1
    kinds = step_kind(steps.shape)[starts[:, None] + np.arange(window)]
    # A sum that holds prefill at all is priced by how well prefill is priced.
    kind = np.where((kinds == "mixed").any(1), "mixed", np.where((kinds == "prefill").any(1), "prefill", "decode"))
    by_kind = errors_by_kind(error, kind)
    return [HeldOut(part=part, regime=name, rows_each=window, **figures) for name, figures in by_kind]


def _profile(
    steps: Steps,
    result: solve.Solution,
    held_out: list[HeldOut],
    setting: solve.Setting,
    model: ModelSpec,
    device: DeviceSpec,
    identity: dict[str, Any],
) -> Profile:
    low, high = np.quantile(result.replicates, (0.05, 0.95), axis=0)
    values = [rounded(v) for v in result.values.tolist()]
    unknown = solve.unknown_coefficients(result, steps, np.ones(len(steps), dtype=bool))

    def coefficient(i: int, unit: str) -> Coefficient:
        origin: Origin = "pinned" if i in result.pinned else "partly fitted" if i in unknown else "fitted"
        leans = ", given what is pinned" if origin == "partly fitted" and result.how[i] == "fitted" else ""
        return Coefficient.of(values[i], low[i], high[i], unit, origin=origin, how=result.how[i] + leans)

    cost = solve.cost_of(np.array(values), setting)
    predicted = np.asarray(cost.seconds(steps.shape))
    kinds = step_kind(steps.shape)
    residuals: dict[StepKind, Residuals] = {}
    for kind in STEP_KINDS:
        ratio = steps.seconds[kinds == kind] / predicted[kinds == kind]
        if len(ratio):
            quantiles = tuple(rounded(float(q), 5) for q in np.quantile(ratio, PROBABILITIES))
            residuals[kind] = Residuals(steps=len(ratio), quantiles=quantiles)
    domain = Domain.of(steps.shape, steps.measured)
    covariance = np.cov(result.replicates[:, :6], rowvar=False)
    return Profile(
        model=model.name,
        device=device.name,
        coefficients={name: coefficient(i, unit) for i, (name, unit) in enumerate(COEFFICIENTS.items())},
        sharpness=coefficient(solve.P, "1"),
        form=Form.of(setting.physics),
        held_out=tuple(held_out),
        domain={kind: dict(box) for kind, box in domain.boxes.items()},  # type: ignore[misc]  # kinds are STEP_KINDS
        residuals=residuals,
        covariance=tuple(tuple(rounded(v, 5) for v in row) for row in covariance.tolist()),
        notes=tuple(_notes(values, result.pinned, setting, steps)),
        **identity,
    )


def _notes(values: Sequence[float], pinned: frozenset[int], setting: solve.Setting, steps: Steps) -> list[str]:
    compute, bandwidth = setting.physics.token_s / values[solve.M], setting.physics.weight_read_s / values[solve.W]
    notes = [
        f"matmuls at {compute:.3f} of the peak FLOP/s, weights read at {bandwidth:.3f} of the peak bandwidth",
        f"prefill pays for the matmuls from about {values[solve.W] / values[solve.M]:.0f} tokens in a step on",
    ]
    if setting.window > 1:
        sums = f"sums of {setting.window}"
        notes.append(f"rows are consecutive steps of a log: fitted on single rows and on {sums}, judged on {sums}")
    names = (*COEFFICIENTS, "sharpness")
    if pinned:
        words = listed([names[index] for index in sorted(pinned)])
        notes.append(f"not told by these steps, pinned: {words}; intervals are what engines reach, see `how`")
    shapes = len(np.unique(np.column_stack([np.asarray(column) for column in steps.shape]), axis=0))
    if shapes <= len(names):
        notes.append(
            f"{len(steps)} steps of {shapes} shapes: too few to tell {len(names)} numbers, however often timed"
        )
    elif shapes < len(steps) / 2 and setting.window == 1:
        notes.append(f"{len(steps)} steps of {shapes} shapes: a repeat tells the noise, not the coefficients")
    unseen: list[str] = [kind for kind in STEP_KINDS if not (step_kind(steps.shape) == kind).any()]
    if unseen:
        notes.append(f"no {listed(unseen, 'or')} step was measured: held-out errors say nothing of such steps")
    return notes


def _refuse_one_shape(steps: Steps) -> None:
    """One shape, however often it was timed, tells the sum of all terms and not one of them."""
    if any(np.ptp(np.asarray(column)) > 0 for column in steps.shape):
        return
    varied = ("prefill_tokens", "decode_rows", "decode_context")
    values = ", ".join(f"{name} {np.asarray(getattr(steps.shape, name))[0]:g}" for name in varied)
    raise InputError(
        steps.files[0],
        f"all {len(steps)} steps are of one shape ({values}), which does not tell what a token, a row or its context "
        "costs: measure steps that vary in these",
    )


def _refuse_impossible(
    steps: Steps, model: ModelSpec, device: DeviceSpec, tensor_parallel: int, kv_dtype: str | None
) -> None:
    floor = physics.floor_seconds(steps.shape, model, device, tensor_parallel, kv_dtype)
    ratio = float(np.median(steps.seconds / floor))
    if ratio < 1:
        raise InputError(
            steps.files[0],
            f"the median step takes {ratio:.2f} of the least time that {tensor_parallel} x {device.name} needs for "
            f"{model.name}: check the model, the device, the split, and that seconds are seconds",
        )
