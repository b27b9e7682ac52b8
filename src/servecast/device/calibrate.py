"""Measures a device: a grid of steps in rounds, the roofs, the memory; and fits a profile to it.

`NAME.steps.csv` has a row for each step and round: the median of its repeats with their spread, in the schema of steps
that every other table has, so that it can be fitted again. `NAME.json` says on which machine, and what else was found.
`NAME.yaml` is the profile, fitted by `servecast.cost.whole_steps`. Rows are written as they are measured; a run that
ended early goes on where it stopped.

The rounds go over all steps in another order each, so that drift spreads evenly; a reference step is measured again and
again to show it. What is fitted is each step's median over the rounds. The *noise floor* is the device against itself:
a round's time of a step over the median of its other rounds, less one.

A model too deep for the device or for the time can be cut to fewer layers: a step then takes what it takes without
layers plus the rest scaled up, ``t = t_0 + (t_n - t_0) layers / n``. Where few layers fit a cache that all do not, that
is too little: one layer of four, on a CPU, gave up to 40 % less than the whole. So where memory holds the whole model,
a decode step and a prompt are timed at full depth first, and a cut that is more than 10 % off is refused.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from servecast.batch import StepShape
from servecast.cost import physics, whole_steps
from servecast.cost.domain import Domain
from servecast.cost.fit import Report, Table
from servecast.cost.model import REGIMES, regime
from servecast.cost.profile import Coefficient, LeftOut, Provenance, Tables, TabulatedProfile, rounded, save
from servecast.device import footprint, grid, machine
from servecast.device.ceilings import ceilings
from servecast.device.executor import allocated
from servecast.device.limit import out_of_memory
from servecast.device.model import DTYPES, Transformer, refuse_unsupported, transformer
from servecast.device.serving import Padded, Ragged
from servecast.device.timing import Timing, clock, measure, open_device
from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pandas as pd

    from servecast.device.grid import Limits, Point
    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import ModelSpec

ROUNDS = 4
REFERENCE_EVERY = 20
FEWEST = 24  # what a fit takes at least
LAYERS_OFF = 0.10  # of a step at full depth, beyond which cut layers do not stand for all
DRIFT = 0.10  # of the reference step, beyond which a run tells little
_CEILINGS_SHARE = 0.1  # of the budget

COLUMNS = (
    "seconds", "iterations", *StepShape._fields, "part", "rows", "round", "repeats", "dropped", "least_s", "most_s",
    "spread", "reference_s",
)  # fmt: skip


class Progress(NamedTuple):
    """How far the measuring is: steps measured, in all, wall seconds left, and the last step's time [s]."""

    made: int
    total: int
    left_s: float
    last: str


@dataclass(frozen=True)
class Request:
    """What to calibrate. ``device`` is torch's name, ``entry`` the catalogue's (None: found by the GPU's name)."""

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


@dataclass(frozen=True)
class Calibration:
    """What a calibration found.

    steps : one row a step, its median over the rounds, with the prediction; facts : what `NAME.json` says
    """

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
    refuse_unsupported(request.model)
    device = open_device(request.device)
    spec = machine.spec_of(device, request.entry)
    dtype = request.dtype or request.model.dtype
    _check(request, device, dtype)
    limits = _fitting_limits(request, device, dtype)
    files = _Files(request.output)
    facts = files.begin(_identity(request, dtype, spec, limits), machine.described(device))
    with torch.inference_mode():
        model = _built(request, device, dtype, limits)
        steps = _Steps(model, allocated(model, limits.rows, limits.length), request)
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
        facts["padded_over_ragged"] = _padded_over_ragged(model, steps, limits, deadline) if complete else None
    facts["conditions_after"] = machine.conditions(device)
    return _finished(request, spec, dtype, files, facts, complete)


def _check(request: Request, device: torch.device, dtype: str) -> None:
    machine.refuse_dtype(dtype, device, "--dtype")
    if request.layers is not None and not 0 < request.layers <= request.model.layers:
        raise InputError(
            "--layers", f"{request.layers} is outside 1 to {request.model.layers}, the layers of {request.model.name}"
        )
    if not request.budget_s > 0:
        raise InputError("--budget-s", f"{request.budget_s:g} must be > 0; 60 does for a small model on a CPU")


def _fitting_limits(request: Request, device: torch.device, dtype: str) -> Limits:
    """Limits asked for, or defaults cut to what memory holds beside the weights.

    Raises InputError where the weights alone do not fit.
    """
    model = replace(request.model, dtype=dtype, weight_dtype=None)
    layers = request.layers or model.layers
    room = machine.require_room(request.model, dtype, device, "--model", layers)
    if request.limits is not None:
        return request.limits
    longest = min(model.max_position or 1 << 20, 8192 if device.type == "cuda" else 1024)
    rows, tokens = (256, 8192) if device.type == "cuda" else (32, 2048)
    per_token = model.kv_bytes_per_token() * layers / model.layers
    while rows > 2 and rows * longest * per_token > 0.6 * room:
        if longest > 2048:
            longest //= 2
        else:
            rows //= 2
    return grid.Limits(rows, longest, tokens)


def _built(request: Request, device: torch.device, dtype: str, limits: Limits) -> Transformer:
    try:
        return transformer(
            request.model, device, dtype, max_positions=limits.length, layers=request.layers, seed=request.seed
        )
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise InputError(
            "--model", f"{request.model.name} does not fit into the memory of {request.device}: use fewer --layers"
        ) from None


def _identity(request: Request, dtype: str, spec: DeviceSpec, limits: Limits) -> dict[str, Any]:
    """What must agree for one calibration to go on with another's rows."""
    return {
        "model": request.model.name,
        "device": spec.name,
        "dtype": dtype,
        "layers": request.layers or request.model.layers,
        "limits": {"rows": limits.rows, "length": limits.length, "tokens": limits.tokens},
        "graphs": request.graphs and request.device != "cpu",
        "rounds": request.rounds,
        "seed": request.seed,
    }


def _layers_scaled(
    request: Request, device: torch.device, dtype: str, steps: _Steps, limits: Limits, deadline: float
) -> dict[str, float] | None:
    """Scaled-up time over that at full depth, less 1, of a decode step and a prompt; None without a cut, or without the
    memory for all layers.

    Raises InputError where the cut is too far off.
    """
    if steps.scale == 1:
        return None
    try:
        machine.require_room(request.model, dtype, device, "--model")
        whole = transformer(request.model, device, dtype, max_positions=limits.length, seed=request.seed)
        cache = allocated(whole, limits.rows, limits.length)
    except InputError:
        return None  # the reason to cut it
    full = Ragged(whole, cache, graphs=request.graphs)
    prompt = grid.Point(((0, min(limits.length, limits.tokens)),))
    found = {}
    for name, point in (("decode", grid.reference(limits)), ("prefill", prompt)):
        taken = measure(steps.step(full, point), steps.now, warm_up=steps.warm_up, deadline=deadline).seconds
        found[name] = steps.time(point, deadline).seconds / taken - 1
    worst = max(found.values(), key=abs)
    if abs(worst) > LAYERS_OFF:
        raise InputError(
            "--layers",
            f"{request.layers} of {request.model.layers} layers scaled up are {worst:+.0%} off a step at full depth, "
            f"more than {LAYERS_OFF:.0%}: give more, or leave --layers out (memory holds them all)",
        )
    return found


# --- measuring ------------------------------------------------------------------------------------------------------


class _Steps:
    """The steps of points on a device, and their times."""

    def __init__(self, model: Transformer, cache: Any, request: Request) -> None:
        self.model = model
        self.cache = cache
        self.ragged = Ragged(model, cache, graphs=request.graphs)
        # Without layers nothing attends: what is left is the embedding, the head and sampling.
        self.headless = Ragged(replace(model, layers=()), cache, graphs=False)
        self.scale = request.model.layers / len(model.layers)
        self.now = clock(model.device)
        self.warm_up = 1 if model.dtype == torch.float32 else 2
        self._draw = torch.Generator(device="cpu").manual_seed(request.seed)

    def step(self, ragged: Ragged, point: Point) -> Callable[[], object]:
        """The step of a point, ready to run."""
        spans = point.spans
        count = sum(span.new for span in spans)
        tokens = torch.randint(self.model.spec.vocab, (count,), generator=self._draw).to(self.model.device)
        return lambda: ragged.step(spans, tokens)

    def time(self, point: Point, deadline: float) -> Timing:
        """How long a step takes, layers that were cut off included."""
        taken = measure(self.step(self.ragged, point), self.now, warm_up=self.warm_up, deadline=deadline)
        if self.scale == 1:
            return taken
        fixed = measure(self.step(self.headless, point), self.now, warm_up=self.warm_up, deadline=deadline).seconds

        def scaled(seconds: float) -> float:
            return fixed + max(0.0, seconds - fixed) * self.scale

        return taken._replace(seconds=scaled(taken.seconds), least_s=scaled(taken.least_s), most_s=scaled(taken.most_s))


def _measure(
    request: Request,
    limits: Limits,
    steps: _Steps,
    files: _Files,
    deadline: float,
    progress: Callable[[Progress], None],
) -> bool:
    """Measure every point in every round that is not in the files yet; whether there was time for all."""
    work = _work(request, limits)
    done = files.done()
    left = [(number, point) for number, point in work if (point.label, number) not in done]
    reference = grid.reference(limits)
    reference_s = steps.time(reference, deadline).seconds
    begun, first = time.monotonic(), len(work) - len(left)
    for at, (number, point) in enumerate(left):
        if time.monotonic() > deadline:
            return False
        if at % REFERENCE_EVERY == 0:
            reference_s = steps.time(reference, deadline).seconds
        taken = steps.time(point, deadline)
        files.write(_row(point, number, taken, reference_s))
        rate = (time.monotonic() - begun) / (at + 1)
        remaining = min(rate * (len(left) - at - 1), deadline - time.monotonic())
        progress(
            Progress(first + at + 1, len(work), max(0.0, remaining), f"{point.label}: {taken.seconds * 1e3:.3g} ms")
        )
    return True


def reference_s(model: Transformer, identity: Mapping[str, Any]) -> float:
    """The reference step of a calibration on a model, now [s]."""
    limits = grid.Limits(**identity["limits"])
    point = grid.reference(limits)
    with torch.inference_mode():
        ragged = Ragged(model, allocated(model, len(point.rows), limits.length), graphs=identity["graphs"])
        step = _stepping(ragged, point)
        taken = measure(step, clock(model.device), warm_up=3, least=9, most=25, precision=0.01)
    return taken.seconds


def held_out_times(model: Transformer, identity: Mapping[str, Any]) -> pd.DataFrame:
    """The held-out steps of a calibration, timed anew on a model."""
    import pandas as pd

    limits = grid.Limits(**identity["limits"])
    points = [point for point in grid.plan(limits, seed=identity["seed"]) if point.part == "held_out"]
    rows = []
    with torch.inference_mode():
        ragged = Ragged(model, allocated(model, limits.rows, limits.length), graphs=identity["graphs"])
        for point in points:
            taken = measure(_stepping(ragged, point), clock(model.device), warm_up=2)
            rows.append({"seconds": taken.seconds, **point.shape._asdict()})
    return pd.DataFrame(rows)


def _stepping(ragged: Ragged, point: Point) -> Callable[[], object]:
    """The step of a point on tokens that do not matter, ready to run."""
    spans = point.spans
    tokens = torch.zeros(sum(span.new for span in spans), dtype=torch.int64, device=ragged.model.device)
    return lambda: ragged.step(spans, tokens)


def _work(request: Request, limits: Limits) -> list[tuple[int, Point]]:
    points = grid.plan(limits, seed=request.seed)
    draw = np.random.default_rng(request.seed + 1)
    work = [(0, point) for point in points]
    for number in range(1, request.rounds):
        work += [(number, points[i]) for i in draw.permutation(len(points))]
    return work


def _row(point: Point, number: int, taken: Timing, reference_s: float) -> dict[str, Any]:
    return {
        "seconds": taken.seconds,
        "iterations": 1,
        **point.shape._asdict(),
        "part": point.part,
        "rows": point.label,
        "round": number,
        "repeats": taken.repeats,
        "dropped": taken.dropped,
        "least_s": taken.least_s,
        "most_s": taken.most_s,
        "spread": rounded(taken.spread, 4),
        "reference_s": reference_s,
    }


def _memory(model: Transformer, steps: _Steps, limits: Limits, spec: ModelSpec) -> dict[str, float]:
    """Weights, cache a token and peak activations [bytes], the latter by tokens and sampled rows."""
    found = activations(steps.ragged, limits)
    facts = {
        "weights": float(model.weight_bytes()),
        "kv_per_token": steps.cache.bytes() / steps.cache.keys[0].shape[:2].numel() * spec.layers / len(model.layers),
        "activations_per_token": found.token,
        "activations_per_row": found.row,
    }
    if model.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(model.device)
        reserved = torch.cuda.memory_reserved(model.device)
        facts["allocator_overhead"] = float(reserved - torch.cuda.memory_allocated(model.device))
        facts["runtime"] = float(total - free - reserved)
    return facts


def activations(ragged: Ragged, limits: Limits) -> footprint.Activations:
    """Peak activations of steps, measured on small ones."""
    some = [(16, 1), (64, 1), (256, 1), (64, 4), (64, 8), (1, 1), (1, 8), (1, 32)]
    peaks = []
    eager = replace(ragged, graphs=False)
    for new, rows in some:
        if rows <= limits.rows and new <= limits.length and rows * new <= limits.tokens:
            point = grid.Point(((0 if new > 1 else min(16, limits.length - 1), new),) * rows)
            step = _stepping(eager, point)
            peaks.append((new * rows, rows, footprint.peak_bytes(step, ragged.model.device)))
    return footprint.fitted(peaks, ragged.model.spec.hidden * ragged.model.dtype.itemsize)


def _padded_over_ragged(model: Transformer, steps: _Steps, limits: Limits, deadline: float) -> dict[str, float]:
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
                padded.decode(tokens)

            taken = measure(step, steps.now, warm_up=2, deadline=deadline).seconds
            ratios.append(taken / measure(steps.step(steps.ragged, point), steps.now, deadline=deadline).seconds - 1)
    return {"median": float(np.median(ratios)), "least": min(ratios), "most": max(ratios)}


# --- files ----------------------------------------------------------------------------------------------------------


class _Files:
    """The three files of a calibration: profile, steps, facts."""

    def __init__(self, output: Path) -> None:
        if output.suffix not in {".yaml", ".yml"}:
            raise InputError("--output", f"{str(output)!r} is no YAML file: name it like calibration/mine.yaml")
        if not output.parent.is_dir():
            raise InputError("--output", f"there is no folder {output.parent}: make it first")
        self.profile = output
        self.steps = output.with_suffix(".steps.csv")
        self.facts = output.with_suffix(".json")

    def begin(self, identity: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
        """The facts to go on with: those of a run that ended early, or fresh ones beside an empty table."""
        fresh = {"identity": identity, "machine": described, "complete": False}
        if self.facts.is_file():
            before: dict[str, Any] = json.loads(self.facts.read_text(encoding="utf-8"))
            if not before["complete"] and self.steps.is_file():
                for key, value in identity.items():
                    if before["identity"].get(key) != value:
                        raise InputError(
                            str(self.facts),
                            f"an unfinished calibration with {key} {before['identity'].get(key)} stands here, asked is "
                            f"{value}: finish that one, remove its files, or choose another --output",
                        )
                return before
        with self._written(self.steps), self.steps.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(COLUMNS)
        self.note(fresh)
        return fresh

    def note(self, facts: dict[str, Any]) -> None:
        """Write the facts, never half of them."""
        partial = self.facts.with_name(self.facts.name + ".partial")
        with self._written(self.facts):
            partial.write_text(json.dumps(facts, indent=2, allow_nan=False) + "\n", encoding="utf-8")
            partial.replace(self.facts)

    def write(self, row: dict[str, Any]) -> None:
        """Append one measured step; it is on disk when this returns."""
        with self._written(self.steps), self.steps.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)

    def discard(self) -> None:
        """Remove what `begin` has written."""
        self.steps.unlink()
        self.facts.unlink()

    def done(self) -> set[tuple[str, int]]:
        """Label and round of the rows that are there. A last row cut short by a crash is taken off."""
        text = self.steps.read_text(encoding="utf-8")
        if not text.endswith("\n"):
            text = text[: text.rfind("\n") + 1]
            with self._written(self.steps):
                self.steps.write_text(text, encoding="utf-8")
        return {(row["rows"], int(row["round"])) for row in csv.DictReader(text.splitlines())}

    @contextlib.contextmanager
    def _written(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                str(path), f"cannot be written ({error.strerror}): make room and call again, what was measured is kept"
            ) from None


# --- the fit --------------------------------------------------------------------------------------------------------


def _finished(
    request: Request, spec: DeviceSpec, dtype: str, files: _Files, facts: dict[str, Any], complete: bool
) -> Calibration:
    import pandas as pd

    raw = pd.read_csv(files.steps)
    steps = by_step(raw)
    seen = steps[steps["part"] == "grid"]
    if len(seen) < FEWEST or not {"decode", "prefill"} <= set(regime(shapes(seen))):
        raise InputError(
            "--budget-s",
            f"{request.budget_s:g} s measured {len(seen)} of the grid's steps, a fit takes {FEWEST} with both kinds: "
            "give more time and call again, what was measured is kept",
        )
    facts["noise"] = noise(raw)
    facts["reference_s"] = float(raw["reference_s"].median())
    facts["drift"] = float(raw["reference_s"].max() / raw["reference_s"].min() - 1)
    _refuse_impossible(request, spec, dtype, seen)
    profile = fit_grid(request, spec, dtype, seen, facts, files.steps)
    steps["predicted_s"] = profile.cost().seconds(shapes(steps))
    held_out = steps[steps["part"] == "held_out"]
    facts["held_out"] = list(errors(held_out, "predicted_s"))
    facts["intervals"] = intervals(steps[steps["part"] == "grid"])
    facts["coverage"] = coverage(facts["intervals"], held_out)
    facts["complete"] = complete
    facts["steps"] = {"grid": len(seen), "held_out": len(held_out), "rounds": int(raw["round"].max()) + 1}
    profile = profile.model_copy(
        update={
            "held_out": tuple(
                LeftOut(
                    operator="whole step",
                    along=e["regime"],
                    **{key: value for key, value in e.items() if key != "regime"},
                )
                for e in facts["held_out"]
            )
        }
    )
    files.note(facts)
    save(profile, files.profile)
    return Calibration(profile, steps, facts, complete)


def _refuse_impossible(request: Request, spec: DeviceSpec, dtype: str, seen: pd.DataFrame) -> None:
    """Steps faster than a GPU's peaks allow are not that GPU's. A CPU's peaks are of no one's machine."""
    if spec.name == "cpu":
        return
    floor = physics.floor_seconds(shapes(seen), replace(request.model, dtype=dtype), spec)
    ratio = float(np.median(seen["seconds"].to_numpy() / floor))
    if ratio < 1:
        raise InputError(
            "--as", f"the median step takes {ratio:.2f} of the least time that {spec.name} needs: name the right GPU"
        )


def by_step(raw: pd.DataFrame) -> pd.DataFrame:
    """One row a step: the median of its rounds."""
    grouped = raw.groupby("rows", sort=False)
    steps = grouped.first()
    steps["seconds"] = grouped["seconds"].median()
    return steps.reset_index()


def noise(raw: pd.DataFrame) -> dict[str, float | None]:
    """The device against itself: each round of a step over the median of its other rounds, less one."""
    deviations: list[float] = []
    for _, seconds in raw.groupby("rows")["seconds"]:
        values = seconds.to_numpy()
        if len(values) > 1:
            deviations += [abs(values[i] / np.median(np.delete(values, i)) - 1) for i in range(len(values))]
    if not deviations:
        return {"median": None, "p95": None}
    return {"median": float(np.median(deviations)), "p95": float(np.quantile(deviations, 0.95))}


def fit_grid(
    request: Request, spec: DeviceSpec, dtype: str, seen: pd.DataFrame, facts: dict[str, Any], table: Path
) -> TabulatedProfile:
    """The profile of the grid's steps."""
    shape = shapes(seen)
    found = whole_steps.fit(shape, seen["seconds"].to_numpy(), request.seed)
    limits = grid.Limits(**facts["identity"]["limits"])
    domain = Domain.of(shape)
    contained = Coefficient(
        value=0.0,
        unit="s",
        low=0.0,
        high=0.0,
        identified=False,
        how="contained in the tables, which are of whole steps",
    )
    return TabulatedProfile(
        name=request.output.stem,
        model=request.model.name,
        device=spec.name,
        host={"step_s": contained, "row_s": contained},
        domain={kind: dict(box) for kind, box in domain.boxes.items()},  # type: ignore[misc]  # kinds are REGIMES
        memory_bytes={name: rounded(value) for name, value in facts["memory"].items()},
        notes=tuple(_notes(request, found, facts, dtype)),
        provenance=Provenance(
            source=f"servecast calibrate on {facts['machine'].get('gpu', facts['machine']['processor'])}",
            engine=f"servecast kernels, torch {facts['machine']['torch']}",
            date=datetime.now(UTC).date().isoformat(),
            files=(table.name,),
            sha256=hashlib.sha256(table.read_bytes()).hexdigest(),
            rows=len(seen),
            seed=request.seed,
            rows_each=1,
        ),
        # Through JSON, because there a list stands for a tuple.
        tables=Tables.model_validate_json(
            json.dumps(found.tables(limits.rows, limits.length, limits.tokens, limits.length))
        ),
    )


def _notes(request: Request, found: whole_steps.WholeSteps, facts: dict[str, Any], dtype: str) -> Iterator[str]:
    """What a reader of the profile should know, a sentence each."""
    for name, (value, low, high), unit in (
        ("decode attention", found.context_s, "cached token"),
        ("prefill attention", found.pair_s, "query-key pair"),
    ):
        yield f"{name} takes {value:.4g} s a {unit} (90 % interval {low:.4g} to {high:.4g})"
    yield f"measured in {dtype}, {facts['identity']['layers']} of {request.model.layers} layers computed"
    if facts.get("layers_scaled"):
        told = ", ".join(f"{kind} {off:+.1%}" for kind, off in facts["layers_scaled"].items())
        yield f"the rest scaled up, checked at full depth: {told}"
    elif facts["identity"]["layers"] != request.model.layers:
        yield "the rest scaled up, unchecked: memory does not hold all layers"
    if facts["noise"]["median"] is not None:
        median, p95 = facts["noise"]["median"], facts["noise"]["p95"]
        yield f"noise floor, the device against itself: {median:.2%} median, {p95:.2%} p95"


def intervals(steps: pd.DataFrame) -> dict[str, list[float]]:
    """For each kind of step the 5 % and 95 % quantiles of measured over predicted: a 90 % interval of one step."""
    ratio = (steps["seconds"] / steps["predicted_s"]).to_numpy()
    kinds = np.asarray(regime(shapes(steps)))
    return {
        kind: [rounded(float(value), 5) for value in np.quantile(ratio[kinds == kind], (0.05, 0.95))]
        for kind in REGIMES
        if (kinds == kind).any()
    }


def coverage(intervals: dict[str, list[float]], held_out: pd.DataFrame) -> float | None:
    """Share of held-out steps within the 90 % interval of their kind; None without any."""
    if not len(held_out):
        return None
    ratio = (held_out["seconds"] / held_out["predicted_s"]).tolist()
    kinds = np.asarray(regime(shapes(held_out))).tolist()
    inside = [
        kind in intervals and intervals[kind][0] <= value <= intervals[kind][1]
        for kind, value in zip(kinds, ratio, strict=True)
    ]
    return float(np.mean(inside))


def errors(steps: pd.DataFrame, predicted: str) -> Iterator[dict[str, Any]]:
    """Relative errors of the column ``predicted``, over all steps and by kind."""
    error = (steps[predicted] / steps["seconds"] - 1).to_numpy()
    kinds = np.asarray(regime(shapes(steps)))
    for name in ("all", *REGIMES):
        chosen = error if name == "all" else error[kinds == name]
        if len(chosen):
            yield {
                "regime": name,
                "count": len(chosen),
                "median": rounded(float(np.median(np.abs(chosen))), 4),
                "p95": rounded(float(np.quantile(np.abs(chosen), 0.95)), 4),
                "signed_mean": rounded(float(chosen.mean()), 4),
            }


def shapes(steps: pd.DataFrame) -> StepShape:
    """The shapes of a table of steps, as arrays."""
    columns: list[Any] = [steps[name].to_numpy() for name in StepShape._fields]
    return StepShape(*columns)


def report(calibration: Calibration) -> Report:
    """What the command prints: quality beside noise, roofs, memory, and what the reader should know."""
    facts, profile = calibration.facts, calibration.profile
    noisy = facts["noise"]
    floor = "-" if noisy["median"] is None else f"{noisy['median']:.2%}"
    quality = [
        (e["regime"], str(e["count"]), f"{e['median']:.2%}", f"{e['p95']:.2%}", f"{e['signed_mean']:+.2%}", floor)
        for e in facts["held_out"]
    ]
    roofs, memory = facts["ceilings"], facts["memory"]
    measured = [
        ("copy bandwidth", f"{roofs['copy_Bps'] / 1e9:.1f} GB/s"),
        ("matrix product", f"{roofs['matmul_flops'] / 1e12:.3f} TFLOP/s"),
        *((name.replace("_", " "), f"{value:,.0f} B") for name, value in memory.items()),
        ("drift of the reference step", f"{facts['drift']:.1%}"),
        ("held-out steps in their 90 % interval", "-" if facts["coverage"] is None else f"{facts['coverage']:.0%}"),
    ]
    padded = facts["padded_over_ragged"]
    if padded is not None:
        measured.append(
            ("padded over ragged decode", f"{padded['median']:+.1%} ({padded['least']:+.1%} .. {padded['most']:+.1%})")
        )
    heads = ("steps", "count", "median", "p95", "signed mean", "noise floor")
    tables = (
        Table("steps the fit has not seen", heads, tuple(quality)),
        Table("measured beside the steps", ("", ""), tuple(measured)),
    )
    notes = list(profile.notes)
    if not calibration.complete:
        notes.append("the budget ended before the last round: call again to go on")
    if facts["drift"] > DRIFT:
        notes.append(
            f"the reference step varied by {facts['drift']:.0%}, more than {DRIFT:.0%}: measure on a quieter machine"
        )
    return Report(tables, tuple(notes))
