"""The profile: the file of a cost model, with what is needed to judge it.

YAML that people read and diff, of one of two kinds. A `Profile` is fitted to measured steps: coefficients with units
and 90 % intervals, whether the data told them or physics pinned them, the held-out errors, the domain, the residuals,
the covariance and the provenance. A `TabulatedProfile` (it says ``kind: tabulated``) is put together of operators
measured one by one: tables of seconds, what the host adds, the errors of interpolating, and which share of a step was
measured at all. Loading is strict: an unknown key, a wrong type or a number that is not finite is refused with its
place.
"""

from __future__ import annotations

import difflib
import json
import math
from abc import abstractmethod
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from servecast import resources
from servecast.cost.curves import Curve, Surface
from servecast.cost.fitted import COEFFICIENTS, FittedCost, Window
from servecast.cost.model import STEP_KINDS, Domain, StepKind
from servecast.cost.tabulated import PrefillBy, TabulatedCost
from servecast.errors import InputError
from servecast.files import write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from servecast.cost.model import CostModel
    from servecast.cost.physics import Physics

#: Probabilities at which residuals are kept; the 5 % and 95 % ones bound a 90 % interval of a single step.
PROBABILITIES: Final = (0.005, 0.05, 0.25, 0.5, 0.75, 0.95, 0.995)

Finite = Annotated[float, Field(allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


#: What a number is: told by the data; fitted, but on what is pinned or stated beside it as much as on the data; physics
#: at a stated efficiency; another run's; somebody's word; or nothing, because other numbers hold it.
Origin = Literal["fitted", "partly fitted", "pinned", "borrowed", "stated", "contained"]


class Coefficient(_Section):
    """A coefficient with its 90 % interval. ``identified``: the data told it; ``how`` says how it was come by."""

    value: NonNegative
    unit: str
    low: NonNegative
    high: NonNegative
    identified: bool
    origin: Origin
    how: str

    @model_validator(mode="before")
    @classmethod
    def _older(cls, data: Any) -> Any:
        """Profiles written before ``origin`` was say only whether the data told a number."""
        if isinstance(data, dict) and "origin" not in data:
            how, told = str(data.get("how")), data.get("identified") is True
            words = {"fitted": "partly fitted", "taken from": "borrowed", "contained": "contained", "stated": "stated",
                     "given": "stated"}  # fmt: skip
            untold = next((origin for start, origin in words.items() if how.startswith(start)), "pinned")
            return {**data, "origin": "fitted" if told else untold}
        return data

    @classmethod
    def of(cls, value: float, low: float, high: float, unit: str, *, origin: Origin, how: str) -> Coefficient:
        """Rounded as it is written; an interval of a bootstrap that lies beside the value is widened to hold it."""
        value = rounded(value)
        low, high = rounded(min(float(low), value)), rounded(max(float(high), value))
        return cls(
            value=value, unit=unit, low=low, high=high, identified=origin == "fitted", origin=origin, how=how
        )  # fmt: skip


class Form(_Section):
    """The shape of the model that no step table tells: experts and sliding windows (see `FittedCost`)."""

    expert_share: NonNegative = 0.0
    expert_untouched: NonNegative = 0.0
    windows: tuple[tuple[NonNegative, Annotated[int, Field(ge=1)]], ...] = ()

    @classmethod
    def of(cls, physics: Physics) -> Form:
        """The form of a model at a device's peak."""
        return cls(
            expert_share=rounded(physics.expert_share),
            expert_untouched=rounded(physics.expert_untouched),
            windows=tuple((rounded(window.share), window.tokens) for window in physics.windows),
        )


class HeldOut(_Section):
    """Relative error of predictions of steps that the fit did not see: (predicted - measured) / measured."""

    part: Literal["random", "largest"]
    regime: Literal["all", "decode", "mixed", "prefill"]
    rows_each: Annotated[int, Field(ge=1)]
    count: Annotated[int, Field(ge=1)]
    median: NonNegative
    p95: NonNegative
    signed_mean: Finite


class Residuals(_Section):
    """Quantiles (at `PROBABILITIES`) of measured over predicted time of single steps, for each kind of step."""

    steps: Annotated[int, Field(ge=1)]
    quantiles: tuple[NonNegative, ...]


class Provenance(_Section):
    """Where the measurements came from, and how they were fitted."""

    source: str
    engine: str
    date: str
    files: tuple[str, ...]
    sha256: str
    rows: Annotated[int, Field(ge=1)]
    seed: int
    rows_each: Annotated[int, Field(ge=1)]


class ProfileFile(_Section):
    """What every profile tells, whatever its kind: for which model, device and split, and where it holds."""

    schema_version: Literal[1] = 1
    name: str
    model: str
    device: str
    tensor_parallel: Annotated[int, Field(ge=1)] = 1
    kv_dtype: str | None = None

    @abstractmethod
    def cost(self) -> CostModel:
        """The cost model, ready to price steps."""

    def require(self, model: str, tensor_parallel: int = 1, kv_dtype: str | None = None) -> None:
        """Refuse to price another model, another split or another KV dtype than was measured.

        Raises InputError that names both sides.
        """
        for place, value, measured in (
            ("model", model, self.model),
            ("engine.tensor_parallel_size", tensor_parallel, self.tensor_parallel),
            ("engine.kv_cache_dtype", kv_dtype, self.kv_dtype),
        ):
            if value != measured:
                raise InputError(
                    place,
                    f"{value}, but profile {self.name} was measured with {measured}: "
                    "choose another profile, or `device:` for the datasheet roofline",
                )


class Profile(ProfileFile):
    """A cost model fitted to measured steps and everything known about it."""

    coefficients: dict[str, Coefficient]
    sharpness: Coefficient
    form: Form = Form()
    held_out: tuple[HeldOut, ...] = ()
    domain: dict[StepKind, dict[str, tuple[Finite, Finite]]] = Field(default_factory=dict)
    residuals: dict[StepKind, Residuals] = Field(default_factory=dict)
    covariance: tuple[tuple[Finite, ...], ...] = ()
    memory_bytes: dict[str, NonNegative] | None = None
    notes: tuple[str, ...] = ()
    provenance: Provenance

    def cost(self) -> FittedCost:
        """The cost model. Raises InputError if the coefficients make no step time above 0."""
        return FittedCost(
            **{name: self.coefficients[name].value for name in COEFFICIENTS},
            sharpness=self.sharpness.value,
            expert_share=self.form.expert_share,
            expert_untouched=self.form.expert_untouched,
            windows=tuple(Window(share, tokens) for share, tokens in self.form.windows),
            pinned=tuple(name for name, each in self.coefficients.items() if each.origin == "pinned"),
            domain=Domain({kind: dict(box) for kind, box in self.domain.items()}),
            name=self.name,
        )


class LeftOut(_Section):
    """Relative error of the points of one operator's table, each predicted from the others or from its parts."""

    operator: str
    along: str
    count: Annotated[int, Field(ge=1)]
    median: NonNegative
    p95: NonNegative
    signed_mean: Finite


class Composition(_Section):
    """Which share of a step comes from where: points of a table, lines between them, the roofline, the host."""

    measured: NonNegative
    interpolated: NonNegative
    roofline: NonNegative
    host: NonNegative


#: A curve as it is written: knots and seconds, or position, knots and seconds where it is one of a surface.
_Points = tuple[tuple[NonNegative, ...], ...]


class Tables(_Section):
    """Seconds by knots (see `servecast.cost.tabulated`); a curve of a surface is [[position], [knots], [seconds]]."""

    tokens: _Points
    sampled_rows: _Points
    decode_attention: tuple[_Points, ...]
    prefill_by: PrefillBy
    prefill_attention: tuple[_Points, ...]
    mixed_attention: tuple[_Points, ...] = ()
    mixed_tile_s: NonNegative = 0.0
    launch_s: NonNegative = 0.0
    cached_s: NonNegative = 0.0


class TabulatedProfile(ProfileFile):
    """A cost model put together of measured operators and everything known about it.

    host : ``step_s`` and ``row_s``, what the engine adds to the kernels, each with its interval and how it was come by
    """

    kind: Literal["tabulated"] = "tabulated"
    host: dict[Literal["step_s", "row_s"], Coefficient]
    held_out: tuple[LeftOut, ...] = ()
    composition: dict[str, Composition] = Field(default_factory=dict)
    domain: dict[StepKind, dict[str, tuple[Finite, Finite]]] = Field(default_factory=dict)
    memory_bytes: dict[str, NonNegative] | None = None
    notes: tuple[str, ...] = ()
    provenance: Provenance
    tables: Tables

    def cost(self) -> TabulatedCost:
        """The cost model. Raises InputError for tables whose knots do not rise, or that hold no time."""
        tables = self.tables
        decode = _surface(tables.decode_attention, "decode_attention")
        return TabulatedCost(
            tokens=_curve(tables.tokens, "tokens"),
            sampled=_curve(tables.sampled_rows, "sampled_rows"),
            decode=decode,
            prefill=_surface(tables.prefill_attention, "prefill_attention"),
            prefill_by=tables.prefill_by,
            mixed=_surface(tables.mixed_attention, "mixed_attention") if tables.mixed_attention else decode,
            mixed_tile_s=tables.mixed_tile_s,
            launch_s=tables.launch_s,
            cached_s=tables.cached_s,
            step_s=self.host["step_s"].value,
            row_s=self.host["row_s"].value,
            domain=Domain({kind: dict(box) for kind, box in self.domain.items()}),
            name=self.name,
        )


def dump(profile: ProfileFile) -> str:
    """The profile as YAML text; the same profile gives the same bytes."""
    import yaml

    return yaml.dump(profile.model_dump(mode="json"), Dumper=_dumper(), sort_keys=False, width=120, allow_unicode=True)


def save(profile: ProfileFile, path: str | Path) -> None:
    """Write the profile; never half a file."""
    write(path, dump(profile))


def load(name_or_path: str | Path) -> Profile | TabulatedProfile:
    """Read a profile of either kind: a path, or the name of a shipped one.

    Raises InputError with file and key path for anything the file should not hold.
    """
    path = _find(name_or_path)
    from servecast import plain_yaml

    data = plain_yaml.read(path)
    if not isinstance(data, dict):
        problem = f"holds {type(data).__name__}, not the keys of a profile: write one with servecast fit"
        raise InputError(str(path), problem)
    try:
        # Through JSON, because there strict validation takes a list for a tuple and nothing else for anything else.
        kind = TabulatedProfile if "kind" in data else Profile
        profile: Profile | TabulatedProfile = kind.model_validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        problem = "is no key of a profile: remove it" if first["type"] == "extra_forbidden" else _problem(first)
        raise InputError(f"{path}: {key}", problem) from error
    for key, problem in _problems(profile):
        raise InputError(f"{path}: {key}", problem)
    return profile


def list_profiles() -> list[str]:
    """Names of the shipped profiles."""
    return sorted(path.stem for path in resources.directory("calibration").glob("*.yaml"))


def _find(name_or_path: str | Path) -> Path:
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        if not path.is_file():
            raise InputError(str(path), "no such profile: give the path of one, or the name of a shipped one")
        return path
    shipped = resources.directory("calibration") / f"{name_or_path}.yaml"
    if not shipped.is_file():
        known = list_profiles()
        close = difflib.get_close_matches(str(name_or_path), known, n=3, cutoff=0.3) or known
        raise InputError("profile", f"{name_or_path!r} is not shipped: did you mean {', '.join(close)}? Or give a path")
    return shipped


def _problem(error: Any) -> str:
    value = error["input"]
    shown = f"{value!r}: " if isinstance(value, str | int | float | bool) or value is None else ""
    return f"{shown}{error['msg'].lower()}"


def _problems(profile: Profile | TabulatedProfile) -> Iterator[tuple[str, str]]:
    """Key and problem of what types alone cannot say."""
    if isinstance(profile, TabulatedProfile):
        missing = (name for name in ("step_s", "row_s") if name not in profile.host)
        yield from ((f"host.{name}", "is missing: fit again") for name in missing)
    else:
        has, size = profile.coefficients, len(COEFFICIENTS)
        yield from ((f"coefficients.{name}", "is missing: fit again") for name in COEFFICIENTS if name not in has)
        strange = (name for name in has if name not in COEFFICIENTS)
        yield from ((f"coefficients.{name}", "is no coefficient of the model: remove it") for name in strange)
        if profile.covariance and {len(profile.covariance), *map(len, profile.covariance)} != {size}:
            yield "covariance", f"must be {size} x {size}, in the order of the coefficients"
        for kind, residual in profile.residuals.items():
            if len(residual.quantiles) != len(PROBABILITIES):
                yield f"residuals.{kind}.quantiles", f"must hold {len(PROBABILITIES)} numbers"
    try:
        profile.cost()
    except InputError as error:
        yield ("coefficients", str(error)) if isinstance(profile, Profile) else (error.place, error.problem)


def _curve(points: _Points, name: str) -> Curve:
    if len(points) != 2:
        raise InputError(f"tables.{name}", f"holds {len(points)} rows, not knots and seconds: fit again")
    try:
        return Curve(*points)
    except InputError as error:
        raise InputError(f"tables.{name}", error.problem) from error


def _surface(curves: Sequence[_Points], name: str) -> Surface:
    for points in curves:
        if len(points) != 3 or len(points[0]) != 1:
            raise InputError(f"tables.{name}", "a curve must be its position, its knots and its seconds: fit again")
    try:
        return Surface(tuple(points[0][0] for points in curves), tuple(_curve(p[1:], name) for p in curves))
    except InputError as error:
        raise InputError(f"tables.{name}", error.problem) from error


def error_figures(errors: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Count, median, p95 and signed mean of relative errors, as `HeldOut` and `LeftOut` have them."""
    sizes = np.abs(errors)
    return {
        "count": len(errors),
        "median": rounded(float(np.median(sizes)), 4),
        "p95": rounded(float(np.quantile(sizes, 0.95)), 4),
        "signed_mean": rounded(float(errors.mean()), 4),
    }


def errors_by_kind(
    errors: npt.NDArray[np.float64], kinds: npt.NDArray[np.str_]
) -> Iterator[tuple[Literal["all", "decode", "mixed", "prefill"], dict[str, Any]]]:
    """The figures of all errors, and of those of each kind of step that is there."""
    if len(errors):
        yield "all", error_figures(errors)
    for kind in STEP_KINDS:
        if (kinds == kind).any():
            yield kind, error_figures(errors[kinds == kind])


def error_cells(of: HeldOut | LeftOut) -> tuple[str, str, str]:
    """Median, p95 and signed mean as tables print them."""
    return f"{of.median:.2%}", f"{of.p95:.2%}", f"{of.signed_mean:+.2%}"


def provenance(date: str | None, **known: Any) -> Provenance:
    """Where measurements came from; fitted today where no ``date`` is given."""
    return Provenance(date=date or datetime.now(UTC).date().isoformat(), **known)


def rounded(value: float, digits: int = 7) -> float:
    """``value`` as it is written: to so many significant digits."""
    return value if value == 0 or not math.isfinite(value) else float(f"{value:.{digits - 1}e}")


def _dumper() -> Any:
    """YAML in which rows of numbers stand on one line and small numbers are readable."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def number(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
        text = repr(value)
        if "e" in text and "." not in text:
            text = text.replace("e", ".0e")  # YAML 1.1 reads 1e-05 as a string
        return dumper.represent_scalar("tag:yaml.org,2002:float", text)

    def sequence(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.SequenceNode:
        flat = all(isinstance(v, float | int) for v in values)
        return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=flat)

    Dumper.add_representer(float, number)
    Dumper.add_representer(list, sequence)
    return Dumper
