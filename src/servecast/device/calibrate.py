"""Measures a device: a grid of steps in rounds, the roofs, the memory; and fits a profile to it.

`NAME.steps.csv` has a row for each step and round: the median of its repeats with their spread, in the schema of steps
that every other table has, so that it can be fitted again. `NAME.json` says on which machine, and what else was found.
`NAME.yaml` is the profile, fitted by `calibration.whole_steps`. Rows are written as they are measured; a run that
ended early goes on where it stopped.

The rounds go over all steps in another order each, so that drift spreads evenly; two reference steps are measured again
and again to show it. What is fitted is each step's median over the rounds. The *noise floor* is the device against
itself: a round's time of a step over the median of its other rounds, less one.

A model too deep for the device or for the time can be cut to fewer layers: a step then takes what it takes without
layers plus the rest scaled up, ``t = t_0 + (t_n - t_0) layers / n``. Where few layers fit a cache that all do not, that
is too little: one layer of four, on a CPU, gave up to 40 % less than the whole. So where memory holds the whole model,
a decode step and a prompt are timed at full depth first, and a cut that is more than 10 % off is refused.
"""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from servecast.batch import StepShape
from servecast.calibration import whole_steps
from servecast.calibration.fit import Report
from servecast.cost import physics
from servecast.cost.model import Domain, step_kind
from servecast.cost.profile import Coefficient, LeftOut, Tables, TabulatedProfile, error_cells, provenance, rounded
from servecast.device import footprint, grid, machine
from servecast.device.calibration_files import COLUMNS, REFERENCES, Files
from servecast.device.limit import out_of_memory
from servecast.device.machine import ceilings
from servecast.device.model import DTYPES, Transformer, require_dense, transformer
from servecast.device.padded import Padded
from servecast.device.quality import by_step, coverage, errors, intervals, noise, shapes
from servecast.device.steps import Steps
from servecast.device.timing import open_device
from servecast.errors import InputError
from servecast.text import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pandas as pd

    from servecast.device.grid import Limits, Point
    from servecast.device.ragged import Ragged
    from servecast.device.timing import Timing
    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import ModelSpec

ROUNDS = 4
REFERENCE_EVERY = 20
FEWEST = 24  # what a fit takes at least
LAYERS_OFF = 0.10  # of a step at full depth, beyond which cut layers do not stand for all
DRIFT = 0.10  # of a reference step, beyond which a run tells little
_CEILINGS_SHARE = 0.1  # of the budget


class Progress(NamedTuple):
    """How far the measuring is: steps measured, in all, wall seconds left, and the last step's time [s]."""

    made: int
    total: int
    left_s: float
    last: str


@dataclass(frozen=True)
class Request:
    """What to calibrate.

    device : torch's name; entry : the catalogue's (None: found by the GPU's name)
    fresh : measure anew what a finished or another calibration has left at ``output``
    """

    model: ModelSpec
    device: str
    output: Path
    budget_s: float = 300.0
    dtype: str | None = None
    entry: str | None = None
    limits: Limits | None = None
    layers: int | None = None
    rounds: int = ROUNDS
    graphs: bool = True
    seed: int = 0
    fresh: bool = False


@dataclass(frozen=True)
class Calibration:
    """What was found; ``steps`` has a row a step, its median over the rounds; ``facts`` is what `NAME.json` says."""

    profile: TabulatedProfile
    steps: pd.DataFrame
    facts: dict[str, Any]
    complete: bool


def calibrate(request: Request, progress: Callable[[Progress], None] = lambda progress: None) -> Calibration:
    """Measure, fit and write, within the budget; goes on with what an earlier call left behind.

    Raises InputError for a device or model that cannot be had, a budget too small to fit anything, a full disk, or
    files of another calibration in the way.
    """
    begun = time.monotonic()
    deadline = begun + request.budget_s
    require_dense(request.model)
    device = open_device(request.device)
    spec = machine.spec_of(device, request.entry)
    dtype = request.dtype or request.model.dtype
    _check(request, device, dtype)
    limits = _fitting_limits(request, device, dtype)
    with Files(request.output) as files:
        facts = files.begin(_identity(request, dtype, spec, limits), machine.described(device), fresh=request.fresh)
        with torch.inference_mode():
            model = _built(request, device, dtype, limits, deadline)
            steps = Steps(model, limits, layers=request.model.layers, graphs=request.graphs, seed=request.seed)
            if "ceilings" not in facts:
                try:
                    facts["layers_scaled"] = _layers_scaled(request, device, dtype, steps, limits, deadline)
                except InputError:
                    files.discard()  # nothing is measured yet, and another cut must find no unfinished one
                    raise
                roofs = ceilings(device, DTYPES[dtype], begun + _CEILINGS_SHARE * request.budget_s)
                facts["ceilings"] = roofs._asdict()
                facts["memory"] = _memory(model, steps, limits, request.model)
                files.note(facts)
            complete = _measure(request, limits, steps, files, deadline, progress)
            facts["conditions_after"] = machine.conditions(device)
            facts["padded_over_ragged"] = None
            found = _finished(request, spec, dtype, files, facts, complete)
            if complete:  # after the profile is there
                facts["padded_over_ragged"] = _padded_over_ragged(model, steps, limits, deadline)
                files.note(facts)
        return found


def _check(request: Request, device: torch.device, dtype: str) -> None:
    machine.refuse_dtype(dtype, device, "--dtype")
    model, layers = request.model, request.layers
    if layers is not None and not 0 < layers <= model.layers:
        raise InputError("--layers", f"{layers} is outside 1 to {model.layers}, the layers of {model.name}")
    if not request.budget_s > 0:
        raise InputError("--budget-s", f"{request.budget_s:g} must be > 0; 60 does for a small model on a CPU")


def _fitting_limits(request: Request, device: torch.device, dtype: str) -> Limits:
    """Limits asked for, or defaults cut to what memory holds. Raises InputError where it does not hold the weights."""
    model = request.model.unquantized(dtype)
    layers = request.layers or model.layers
    room = machine.require_room(request.model, dtype, device, "--model", layers)
    per_token = model.kv_bytes_per_token() * layers / model.layers
    if (asked := request.limits) is not None:
        wanted = asked.rows * asked.length * per_token
        if wanted > 0.8 * room:
            raise InputError(
                "--max-rows",
                f"{asked.rows} rows of {asked.length} tokens take {wanted / 1e9:.3g} GB of KV cache, "
                f"{room / 1e9:.3g} GB are free beside the weights: give less --max-rows or --max-length",
            )
        return asked
    rows, longest, tokens = (256, 8192, 8192) if device.type == "cuda" else (32, 1024, 2048)
    longest = min(model.max_position or longest, longest)
    while rows > 2 and rows * longest * per_token > 0.6 * room:
        if longest > 2048:
            longest //= 2
        else:
            rows //= 2
    most = model.max_position or longest
    stretch = 4 if device.type == "cuda" and 4 * longest <= most and rows >= 4 else 1
    return grid.Limits(rows, longest, tokens, stretch)


def _built(
    request: Request, device: torch.device, dtype: str, limits: Limits, deadline: float = math.inf
) -> Transformer:
    def in_time(made: int, layers: int) -> None:
        if time.monotonic() > deadline:
            raise InputError(
                "--budget-s",
                f"{request.budget_s:g} s made {made} of {layers} layers of {request.model.name} on {request.device}: "
                "give more time, or use fewer --layers",
            )

    try:
        return transformer(
            request.model, device, dtype, max_positions=limits.longest, layers=request.layers, seed=request.seed,
            made=in_time,
        )  # fmt: skip
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        problem = f"{request.model.name} does not fit into the memory of {request.device}: use fewer --layers"
        raise InputError("--model", problem) from None


def _identity(request: Request, dtype: str, spec: DeviceSpec, limits: Limits) -> dict[str, Any]:
    """What must agree for one calibration to go on with another's rows."""
    return {
        "model": request.model.name,
        "device": spec.name,
        "dtype": dtype,
        "layers": request.layers or request.model.layers,
        "limits": asdict(limits),
        "graphs": request.graphs and request.device != "cpu",
        "rounds": request.rounds,
        "seed": request.seed,
    }


def _layers_scaled(
    request: Request, device: torch.device, dtype: str, steps: Steps, limits: Limits, deadline: float
) -> dict[str, float] | None:
    """Scaled-up time over that at full depth, less 1, of a decode step and a prompt; None without a cut, or the memory
    for all layers. Raises InputError where the cut is too far off."""
    if steps.scale == 1:
        return None
    try:
        machine.require_room(request.model, dtype, device, "--model")
        whole = transformer(request.model, device, dtype, max_positions=limits.longest, seed=request.seed)
        full = Steps(whole, limits, graphs=request.graphs, seed=request.seed)
    except InputError:
        return None  # the reason to cut it
    prompt = grid.Point(((0, min(limits.length, limits.tokens)),))
    found = {
        name: steps.time(point, deadline).seconds / full.time(point, deadline).seconds - 1
        for name, point in (("decode", grid.references(limits)["decode"]), ("prefill", prompt))
    }
    worst = max(found.values(), key=abs)
    if abs(worst) > LAYERS_OFF:
        raise InputError(
            "--layers",
            f"{request.layers} of {request.model.layers} layers scaled up are {worst:+.0%} off a step at full depth, "
            f"more than {LAYERS_OFF:.0%}: give more, or leave --layers out (memory holds them all)",
        )
    return found


# --- measuring ------------------------------------------------------------------------------------------------------


def _measure(
    request: Request, limits: Limits, steps: Steps, files: Files, deadline: float,
    progress: Callable[[Progress], None],
) -> bool:  # fmt: skip
    """Measure every point in every round that is not in the files yet; whether there was time for all."""
    points = grid.points(limits, seed=request.seed)
    draw = np.random.default_rng(request.seed + 1)
    work = [(0, point) for point in points]
    for number in range(1, request.rounds):
        work += [(number, points[i]) for i in draw.permutation(len(points))]
    done = {(row["rows"], row["round"]) for row in files.rows(points)}
    left = [(number, point) for number, point in work if (point.label, number) not in done]
    references = grid.references(limits)
    references_s: dict[str, float] = {}
    begun, first = time.monotonic(), len(work) - len(left)
    for at, (number, point) in enumerate(left):
        if time.monotonic() > deadline:
            return False
        if at % REFERENCE_EVERY == 0:
            references_s = {name: steps.time(point, deadline).seconds for name, point in references.items()}
        taken = steps.time(point, deadline)
        files.write(_row(point, number, taken, references_s))
        rate = (time.monotonic() - begun) / (at + 1)
        remaining = max(0.0, min(rate * (len(left) - at - 1), deadline - time.monotonic()))
        progress(Progress(first + at + 1, len(work), remaining, f"{point.label}: {taken.seconds * 1e3:.3g} ms"))
    return True


def _row(point: Point, number: int, taken: Timing, references_s: Mapping[str, float]) -> dict[str, Any]:
    return {
        **taken._asdict(),
        "spread": rounded(taken.spread, 4),
        "iterations": 1,
        **point.shape._asdict(),
        "part": point.part,
        "rows": point.label,
        "round": number,
        **{REFERENCES[name]: seconds for name, seconds in references_s.items()},
    }


def _memory(model: Transformer, steps: Steps, limits: Limits, spec: ModelSpec) -> dict[str, float]:
    """Weights, cache a token and peak activations [bytes], the latter by tokens and sampled rows."""
    found = activations(steps.ragged, limits)
    facts = {
        "weights": float(model.weight_bytes()),
        "kv_per_token": steps.cache.bytes() / steps.cache.keys[0].shape[:2].numel() * spec.layers / len(model.layers),
        "activations_per_token": found.token,
        "activations_per_row": found.row,
    }
    if model.device.type == "cuda":
        torch.cuda.empty_cache()  # what is only kept for later is nobody's overhead
        free, total = torch.cuda.mem_get_info(model.device)
        reserved = torch.cuda.memory_reserved(model.device)
        facts["allocator_overhead"] = float(reserved - torch.cuda.memory_allocated(model.device))
        facts["runtime"] = float(total - free - reserved)
    return facts


def activations(ragged: Ragged, limits: Limits) -> footprint.Activations:
    """Peak activations of steps, measured on small ones."""
    peaks = []
    eager = replace(ragged, graphs=False)
    for new, rows in ((16, 1), (64, 1), (256, 1), (64, 4), (64, 8), (1, 1), (1, 8), (1, 32)):
        if rows <= limits.rows and new <= limits.length and rows * new <= limits.tokens:
            point = grid.Point(((0 if new > 1 else min(16, limits.length - 1), new),) * rows)
            tokens = torch.zeros(new * rows, dtype=torch.int64, device=ragged.model.device)
            peak = footprint.peak_bytes(partial(eager.step, point.spans, tokens), ragged.model.device)
            peaks.append((new * rows, rows, peak))
    return footprint.fitted(peaks, ragged.model.spec.hidden * ragged.model.dtype.itemsize)


def _padded_over_ragged(model: Transformer, steps: Steps, limits: Limits, deadline: float) -> dict[str, float]:
    """A padded decode step over a ragged one of the same shape: median and extremes of the ratio, less 1."""
    ratios = []
    padded = Padded(model, steps.cache)
    for rows in sorted({1, max(1, limits.rows // 4), limits.rows}):
        for context in (limits.length // 8, limits.length // 2):
            point = grid.Point(((context, 1),) * rows)
            tokens = torch.zeros(rows, dtype=torch.int64, device=model.device)
            prompts = [max(1, context - 3 * row) for row in range(rows)]

            def step(prompts: Sequence[int] = prompts, context: int = context, tokens: torch.Tensor = tokens) -> None:
                padded.begin(prompts, context)
                padded.decode(tokens).argmax(-1)

            taken = steps.timed(step, deadline, warm_up=2).seconds
            ratios.append(taken / steps.time(point, deadline, warm_up=2).seconds - 1)
    return {"median": float(np.median(ratios)), "least": min(ratios), "most": max(ratios)}


# --- the fit --------------------------------------------------------------------------------------------------------


def _finished(
    request: Request, spec: DeviceSpec, dtype: str, files: Files, facts: dict[str, Any], complete: bool
) -> Calibration:
    import pandas as pd

    limits = grid.Limits(**facts["identity"]["limits"])
    raw = pd.DataFrame(files.rows(grid.points(limits, seed=request.seed)), columns=list(COLUMNS))
    steps = by_step(raw) if len(raw) else raw
    seen = steps[steps["part"] == "grid"]
    if len(seen) < FEWEST or not {"decode", "prefill"} <= set(step_kind(shapes(seen))):
        raise InputError(
            "--budget-s",
            f"{request.budget_s:g} s measured {len(seen)} of the grid's steps, a fit takes {FEWEST} with both kinds: "
            "give more time and call again, what was measured is kept",
        )
    facts["noise"] = noise(raw)
    facts["references_s"] = {name: float(raw[column].median()) for name, column in REFERENCES.items()}
    facts["drift"] = max(float(raw[column].max() / raw[column].min() - 1) for column in REFERENCES.values())
    try:
        _refuse_impossible(request, spec, dtype, seen)
    except InputError:
        facts["identity"]["device"] = None  # the rows are good whatever the GPU is called: the next call may say
        files.note(facts)
        raise
    facts["complete"] = complete
    profile, found = _fit_grid(request, spec, dtype, seen, facts, files.steps)
    steps["predicted_s"] = profile.cost().seconds(shapes(steps))
    steps["unseen_s"] = steps["predicted_s"]
    grid_rows = steps["part"] == "grid"
    apart = whole_steps.unseen(shapes(seen), seen["seconds"].to_numpy(), found, seed=request.seed)
    steps.loc[grid_rows, "unseen_s"] = apart
    held_out = steps[~grid_rows]
    facts["held_out"] = list(errors(held_out, "predicted_s"))
    facts["intervals"] = intervals(steps[grid_rows])
    facts["coverage"] = coverage(facts["intervals"], held_out)
    facts["steps"] = {"grid": len(seen), "held_out": len(held_out), "rounds": int(raw["round"].max()) + 1}

    def left_out(regime: str, **figures: Any) -> LeftOut:
        return LeftOut(operator="whole step", along=regime, **figures)

    profile = profile.model_copy(update={"held_out": tuple(left_out(**e) for e in facts["held_out"])})
    files.save(profile)  # first: facts that say "complete" are of a profile that is there
    files.note(facts)
    return Calibration(profile, steps, facts, complete)


def _refuse_impossible(request: Request, spec: DeviceSpec, dtype: str, seen: pd.DataFrame) -> None:
    """Steps faster than a GPU's peaks allow are not that GPU's. A CPU's peaks are of no one's machine."""
    if spec.name == "cpu":
        return
    floor = physics.floor_seconds(shapes(seen), replace(request.model, dtype=dtype), spec)
    ratio = float(np.median(seen["seconds"].to_numpy() / floor))
    if ratio < 1:
        problem = f"the median step takes {ratio:.2f} of the least time that {spec.name} needs: name the right GPU"
        raise InputError("--as", problem)


def _fit_grid(
    request: Request, spec: DeviceSpec, dtype: str, seen: pd.DataFrame, facts: dict[str, Any], table: Path
) -> tuple[TabulatedProfile, whole_steps.WholeSteps]:
    """The profile of the grid's steps, and the fit that it is made of."""
    shape = shapes(seen)
    roofs = facts["ceilings"]
    attention = (
        request.model.attention_bytes(StepShape(0, 0, 0, 0, 0, 1, 1), kv_dtype=dtype) / roofs["copy_Bps"],
        request.model.attention_flops(StepShape(1, 1, 1, 0, 0, 0, 1)) / roofs["matmul_flops"],
    )
    # A CPU's peaks are of no one's machine.
    peaks = None if spec.name == "cpu" else physics.of(replace(request.model, dtype=dtype), spec)
    least = (0.0, 0.0) if peaks is None else (peaks.context_s, peaks.pair_s)
    attention = max(attention[0], least[0]), max(attention[1], least[1])
    found = whole_steps.fit(shape, seen["seconds"].to_numpy(), request.seed, physics=attention, peaks=least)
    limits = grid.Limits(**facts["identity"]["limits"])
    how = "contained in the tables, which are of whole steps"
    contained = Coefficient.of(0.0, 0.0, 0.0, "s", origin="contained", how=how)
    profile = TabulatedProfile(
        name=request.output.stem,
        model=request.model.name,
        device=spec.name,
        host={"step_s": contained, "row_s": contained},
        domain=Domain.of(shape).boxes,  # type: ignore[arg-type]  # kinds are STEP_KINDS
        memory_bytes={name: float(round(value)) for name, value in facts["memory"].items()},
        notes=tuple(_notes(request, found, facts, dtype)),
        provenance=provenance(
            None,
            source=f"servecast calibrate on {facts['machine'].get('gpu', facts['machine']['processor'])}",
            engine=f"servecast kernels, torch {facts['machine']['torch']}",
            files=(table.name,),
            sha256=hashlib.sha256(table.read_bytes()).hexdigest(),
            rows=len(seen),
            seed=request.seed,
            rows_each=1,
        ),
        tables=Tables(**found.tables(limits.rows, limits.longest, limits.tokens, limits.longest)),
    )
    return profile, found


def _notes(request: Request, found: whole_steps.WholeSteps, facts: dict[str, Any], dtype: str) -> Iterator[str]:
    """What a reader of the profile should know, a sentence each."""
    terms = (("decode", found.context_s, "cached token"), ("prefill", found.pair_s, "query-key pair"))
    for name, (value, low, high), unit in terms:
        interval = f"(90 % interval {1e6 * low:.4g} to {1e6 * high:.4g})"
        yield f"{name} attention takes {1e6 * value:.4g} us a {unit} {interval}"
    if found.pinned:
        yield f"no step told {' or '.join(found.pinned)}: pinned to bytes and FLOPs at the measured roofs"
    yield f"measured in {dtype}, {facts['identity']['layers']} of {request.model.layers} layers computed"
    if facts.get("layers_scaled"):
        errors_by_kind = ", ".join(f"{kind} {off:+.1%}" for kind, off in facts["layers_scaled"].items())
        yield f"the rest scaled up, checked at full depth: {errors_by_kind}"
    elif facts["identity"]["layers"] != request.model.layers:
        yield "the rest scaled up, unchecked: memory does not hold all layers"
    if facts["noise"]["median"] is None:
        yield "noise floor unknown: a step was timed in one round only"
    else:
        yield "noise floor, the device against itself: {median:.2%} median, {p95:.2%} p95".format(**facts["noise"])
    if not facts["complete"]:
        yield "the budget ended before the last round of steps: call servecast calibrate again to go on"
    if facts["drift"] > DRIFT:
        yield f"a reference step varied by {facts['drift']:.0%} while this was measured, more than {DRIFT:.0%}"


def report(calibration: Calibration) -> Report:
    """What the command prints: quality beside noise, roofs, memory, and what the reader should know."""
    facts, profile = calibration.facts, calibration.profile
    noisy = facts["noise"]["median"]
    floor = "-" if noisy is None else f"{noisy:.2%}"
    quality = tuple((e.along, str(e.count), *error_cells(e), floor) for e in profile.held_out)
    roofs, memory, padded = facts["ceilings"], facts["memory"], facts["padded_over_ragged"]
    measured = [
        ("copy bandwidth", f"{roofs['copy_Bps'] / 1e9:.1f} GB/s"),
        ("matrix product", f"{roofs['matmul_flops'] / 1e12:.3f} TFLOP/s"),
        *((name.replace("_", " "), f"{value:,.0f} B") for name, value in memory.items()),
        ("drift of the reference steps", f"{facts['drift']:.1%}"),
        ("held-out steps in their 90 % interval", "-" if facts["coverage"] is None else f"{facts['coverage']:.0%}"),
    ]
    if padded is not None:
        ratio = f"{padded['median']:+.1%} ({padded['least']:+.1%} .. {padded['most']:+.1%})"
        measured.append(("padded over ragged decode", ratio))
    heads = ("steps", "count", "median", "p95", "signed mean", "noise floor")
    tables = (
        Table("steps the fit has not seen", heads, quality),
        Table("measured beside the steps", ("", ""), tuple(measured)),
    )
    return Report(tables, profile.notes)
