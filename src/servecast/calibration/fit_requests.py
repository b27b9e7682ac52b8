"""A coarse profile from recorded requests alone: when each was sent, its first token, its last.

Nobody measured a step, but the requests tell who was decoding when. An answer of n + 1 tokens took n steps, each with
the rows and the cached tokens that its neighbours' times tell, and prompts that came in between held it up:

    e2e - ttft = n (c + max(W, m rows) + k context + r rows) + sum over prompts between (their step, less a decode step)
    ttft       = offset + half a decode step + its own step             (requests with nobody else before their token)

with the smooth maximum, the pairs and the meaning of the coefficients of `servecast.cost.fitted`. Told by the data are
c, m and r together with the offset of the client; W, k and the knee are physics at an efficiency that nobody measured.
Of m and r, what the requests do not hold apart from the rest (rows, where all ran alone; prompts of one length that
held nobody up) is physics too.
So each interval is that of fits to requests drawn anew *and* to efficiencies and knees drawn from their whole range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from servecast.calibration.fit import SHARPNESS
from servecast.calibration.steps import fingerprint
from servecast.cost import physics
from servecast.cost.fitted import COEFFICIENTS, smooth_maximum
from servecast.cost.profile import Coefficient, Form, HeldOut, Profile, error_figures, provenance, rounded
from servecast.cost.roofline import BANDWIDTH_EFFICIENCY, COMPUTE_EFFICIENCY
from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt
    import pandas as pd

    from servecast.cost.physics import Physics
    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import ModelSpec

    Floats = npt.NDArray[np.float64]

COLUMNS: Final = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "e2e_s")
FEWEST: Final = 40

BANDWIDTH_RANGE: Final = (0.60, 0.95)
SHARPNESS_RANGE: Final = (3.0, 8.0)
COMPUTE_RANGE: Final = (0.5, 0.9)
ROW_RANGE_S: Final = (1e-6, 5e-5)
"""What W and k, the knee, and m and r where no request tells them are drawn from: shares of the peaks that engines
reach, knees of GEMM tables, rows of recorded engines."""

_REPLICATES: Final = 60
_HELD_OUT: Final = 0.25


class _Timeline(NamedTuple):
    """Recorded requests in order of first token, all (n,), times in seconds.

    steps : decode steps of each      decode_s : how long they took      rows, context : means over them
    before, after : which prompts (positions) came in between
    own_rows, own_context : what decoded when its own prompt was computed      alone : nobody else before its token
    """

    prompt: Floats
    steps: Floats
    decode_s: Floats
    ttft_s: Floats
    rows: Floats
    context: Floats
    before: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]
    own_rows: Floats
    own_context: Floats
    alone: npt.NDArray[np.bool_]


class _Pins(NamedTuple):
    bandwidth: float
    sharpness: float


_STATED: Final = _Pins(BANDWIDTH_EFFICIENCY, SHARPNESS)
_FITTED: Final = ("token_s", "row_s", "step_s")

#: What a term must add to the times of requests that the others cannot add, as a share of these (root mean square).
_APART: Final = 0.002
#: Places of (c, m, r, offset); r and then m are pinned where requests do not tell them.
_STEP, _TOKEN, _ROW, _OFFSET = range(4)


def fit_requests(
    requests: pd.DataFrame,
    model: ModelSpec,
    device: DeviceSpec,
    *,
    name: str,
    engine: str = "",
    source: str = "",
    files: tuple[str, ...] = ("requests",),
    tensor_parallel: int = 1,
    kv_dtype: str | None = None,
    seed: int = 0,
    date: str | None = None,
) -> Profile:
    """Fit recorded requests; the same requests and seed give the same profile.

    requests : columns `COLUMNS`, and ``send_s`` where that differs from ``arrival_s``
    Raises InputError for missing columns, impossible times, too few requests, or none that decodes.
    """
    line = timeline(requests, files[0])
    physical = physics.of(model, device, tensor_parallel, kv_dtype)
    slowest = _slowest_reading(line, physical, files[0])
    random = np.random.default_rng(seed)
    n = len(line.prompt)
    left_out = np.isin(np.arange(n), random.permutation(n)[: round(_HELD_OUT * n)])
    free = _told(line, physical)
    trial = _solve(line, physical, _STATED, np.flatnonzero(~left_out), free)
    values = _solve(line, physical, _STATED, np.arange(n), free)
    drawn = _redrawn(line, physical, slowest, random, free)
    coefficients = _intervals(_coefficients(values, physical, _STATED), drawn, free)
    return Profile(
        name=name,
        model=model.name,
        device=device.name,
        tensor_parallel=tensor_parallel,
        kv_dtype=kv_dtype,
        coefficients=coefficients,
        sharpness=Coefficient.of(
            SHARPNESS, *SHARPNESS_RANGE, "1", origin="pinned", how="pinned: requests do not tell the knee"
        ),
        form=Form.of(physical),
        held_out=_held_out(line, trial, physical, left_out),
        domain=_domain(line),  # type: ignore[arg-type]  # kinds are STEP_KINDS
        covariance=tuple(tuple(rounded(v, 5) for v in row) for row in np.cov(drawn, rowvar=False).tolist()),
        notes=tuple(_notes(line, coefficients, float(values[3]))),
        provenance=provenance(
            date, source=source, engine=engine, files=files, sha256=fingerprint(requests[list(COLUMNS)]), rows=n,
            seed=seed, rows_each=1,
        ),
    )  # fmt: skip


def _told(line: _Timeline, physical: Physics) -> list[int]:
    """Which of (c, m, r, offset) the requests tell apart."""
    start = np.array([1e-3, physical.token_s / COMPUTE_EFFICIENCY, 3e-5, 5e-3])
    some = line.steps > 0

    def times(values: Floats) -> Floats:
        decode, first = _predicted(line, values, physical, _STATED)
        return np.concatenate([np.log(decode[some]), np.log(first[line.alone])])

    terms = np.column_stack([(times(start * (1 + 0.01 * one)) - times(start)) / 0.01 for one in np.eye(4)])
    free = list(range(4))
    for index in (_ROW, _TOKEN):
        others = terms[:, [i for i in free if i != index]]
        own = terms[:, index] - others @ np.linalg.lstsq(others, terms[:, index], rcond=1e-8)[0]
        if np.sqrt(np.mean(own**2)) < _APART:
            free.remove(index)
    return free


def _redrawn(
    line: _Timeline, physical: Physics, slowest: float, random: np.random.Generator, free: list[int]
) -> Floats:
    """Coefficients (replicates, 6) of requests drawn anew, each with another efficiency and another knee."""
    n = len(line.prompt)
    found = []
    for _ in range(_REPLICATES):
        pins = _Pins(random.uniform(slowest, BANDWIDTH_RANGE[1]), random.uniform(*SHARPNESS_RANGE))
        stated = np.array([0.0, physical.token_s / random.uniform(*COMPUTE_RANGE), random.uniform(*ROW_RANGE_S), 0.0])
        values = _solve(line, physical, pins, random.integers(0, n, n), free, stated)
        found.append(_coefficients(values, physical, pins))
    return np.array(found)


def _intervals(fitted: Floats, drawn: Floats, free: list[int]) -> dict[str, Coefficient]:
    """The coefficients with the 90 % interval of those drawn, and how each was come by."""
    told = [name for name, index in (("token_s", _TOKEN), ("row_s", _ROW), ("step_s", _STEP)) if index in free]
    how = dict.fromkeys(COEFFICIENTS, "pinned: physics, not told by these requests")
    how |= dict.fromkeys(("weight_read_s", "context_s"), "pinned: physics, efficiency not measured (0.60 to 0.95)")
    how |= dict.fromkeys(told, "fitted to requests")
    how["pair_s"] = "pinned: its FLOPs at the efficiency of token_s"
    bounds = np.quantile(drawn, (0.05, 0.95), axis=0).T
    return {
        name: Coefficient.of(
            float(value), low, high, unit, origin="fitted" if name in told else "pinned", how=how[name]
        )
        for (name, unit), value, (low, high) in zip(COEFFICIENTS.items(), fitted, bounds, strict=True)
    }


def _notes(line: _Timeline, coefficients: Mapping[str, Coefficient], offset_s: float) -> Iterator[str]:
    """How little this is: what was fitted from how many requests, how well it is known, and what was not fitted."""
    decoding, alone = int((line.steps > 0).sum()), int(line.alone.sum())
    yield (
        f"coarse: fitted to the times of {len(line.prompt):,} requests, no step was measured; {decoding:,} of them "
        f"decode, and only the {alone:,} that waited for nobody say what a first token takes"
    )
    known = []
    told = [name for name in _FITTED if coefficients[name].origin == "fitted"]
    for name in told:
        value, half = coefficients[name].value, (coefficients[name].high - coefficients[name].low) / 2
        known.append(f"{name} {half / value:.0%}" if value else f"{name} {half:.1g} s")
    fitted = f"{('no number', 'one number', 'two numbers', 'three numbers')[len(told)]} and the client's way are fitted"
    yield f"{fitted}; half of each 90 % interval, of its value: {', '.join(known)}"
    pinned = ", ".join(name for name in COEFFICIENTS if name not in told)
    bandwidth, knee = (f"{low:g} to {high:g}" for low, high in (BANDWIDTH_RANGE, SHARPNESS_RANGE))
    yield (
        f"pinned, not fitted: {pinned} and the knee; their intervals are stated ranges (bandwidth {bandwidth} of the "
        f"peak, knee {knee})"
    )
    yield f"{1e3 * offset_s:.1f} ms of the time to first token are not its prompt's (the client's way)"


def is_requests(columns: object) -> bool:
    """Whether a table with these columns holds recorded requests."""
    return set(COLUMNS) <= set(columns)  # type: ignore[call-overload, no-any-return]  # names of a data frame


def timeline(requests: pd.DataFrame, place: str) -> _Timeline:
    """Who decoded when. Raises InputError as `fit_requests` does."""
    columns = _checked(requests, place)
    order = np.argsort(columns["sent_s"] + columns["ttft_s"], kind="stable")
    sent, ttft, e2e, prompt, output = (
        columns[name][order] for name in ("sent_s", "ttft_s", "e2e_s", "prompt_tokens", "output_tokens")
    )
    first, last, steps = sent + ttft, sent + e2e, output - 1
    span = last - first
    pace = np.divide(steps, span, out=np.zeros_like(span), where=span > 0)
    # Rows and cached tokens at any time are sums of lines that begin at a first token and end at a last one.
    times = np.concatenate([first, last])
    at = np.argsort(times, kind="stable")
    times = times[at]
    sign = np.concatenate([np.ones(len(first)), -np.ones(len(last))])[at]
    level = np.concatenate([prompt - pace * first] * 2)[at]
    rate = np.concatenate([pace, pace])[at]
    rows, held, growth = (np.cumsum(sign * column) for column in (np.ones(len(times)), level, rate))
    width = np.diff(times)
    row_area = np.concatenate([[0.0], np.cumsum(rows[:-1] * width)])
    middle = (times[1:] + times[:-1]) / 2
    context_area = np.concatenate([[0.0], np.cumsum((held[:-1] + growth[:-1] * middle) * width)])

    def mean(area: Floats) -> Floats:
        between = np.interp(last, times, area) - np.interp(first, times, area)
        return np.asarray(np.divide(between, span, out=np.zeros_like(span), where=span > 0))

    position = np.arange(len(first))
    just_before = np.searchsorted(times, first, side="left") - 1
    inside = just_before >= 0
    others_sent = np.searchsorted(np.sort(sent), first) - np.searchsorted(np.sort(sent), sent, side="right")
    others_first = position - np.searchsorted(first, sent)
    return _Timeline(
        prompt=prompt,
        steps=steps,
        decode_s=span,
        ttft_s=first - sent,
        rows=mean(row_area),
        context=mean(context_area),
        before=position + 1,
        after=np.searchsorted(first, last),
        own_rows=np.maximum(np.where(inside, rows[just_before], 0.0), 0.0),
        own_context=np.maximum(np.where(inside, held[just_before] + growth[just_before] * first, 0.0), 0.0),
        alone=(others_sent <= 0) & (others_first <= 0),
    )


def _checked(requests: pd.DataFrame, place: str) -> dict[str, Floats]:
    """The columns as numbers, ``sent_s`` among them."""
    missing = [name for name in COLUMNS if name not in requests.columns]
    if missing:
        raise InputError(place, f"column {', '.join(missing)} is missing: recorded requests have {', '.join(COLUMNS)}")
    columns = {name: requests[name].to_numpy(dtype=float) for name in COLUMNS}
    bad = np.flatnonzero(
        ~np.all([np.isfinite(column) for column in columns.values()], axis=0)
        | (columns["ttft_s"] <= 0)
        | (columns["e2e_s"] < columns["ttft_s"])
        | (columns["prompt_tokens"] < 1)
    )
    if len(bad):
        raise InputError(f"{place}:{bad[0] + 2}", "times must be numbers with 0 < ttft_s <= e2e_s: remove the row")
    if len(requests) < FEWEST or not (columns["output_tokens"] > 1).any():
        raise InputError(place, f"{len(requests)} requests are too few, or none decodes: give at least {FEWEST}")
    if all(np.ptp(column) == 0 for column in columns.values()):
        problem = f"all {len(requests)} requests are the same one: record requests that vary in time and in length"
        raise InputError(place, problem)
    sent_s = requests["send_s"].to_numpy(dtype=float) if "send_s" in requests else columns["arrival_s"]
    return {**columns, "sent_s": sent_s}


def _slowest_reading(line: _Timeline, physical: Physics, place: str) -> float:
    """The least share of the bandwidth with which the weights can be read as often as the fastest answers' tokens came.

    Raises InputError where that is more than engines reach.
    """
    some = line.steps > 0
    fastest = float(np.quantile(line.decode_s[some] / line.steps[some], 0.02))
    least = physical.weight_read_s / fastest
    if least > BANDWIDTH_RANGE[1]:
        raise InputError(
            place,
            f"a token every {fastest * 1e3:.3g} ms reads the weights at {least:.2f} of the peak bandwidth: check the "
            "model, the device, the split, and that seconds are seconds",
        )
    return max(BANDWIDTH_RANGE[0], least)


def _coefficients(values: Floats, physical: Physics, pins: _Pins) -> Floats:
    """In the order of `COEFFICIENTS`, from (c, m, r, offset)."""
    step, token, row, _ = values
    read, cached = physical.weight_read_s / pins.bandwidth, physical.context_s / pins.bandwidth
    return np.array([read, token, physical.pair_s * token / physical.token_s, cached, row, step])


def _predicted(line: _Timeline, values: Floats, physical: Physics, pins: _Pins) -> tuple[Floats, Floats]:
    """Decode time and time to first token of each request [s]."""
    read, token, pair, cached, row, step = _coefficients(values, physical, pins)
    pairs = line.prompt * (line.prompt + 1) / 2
    decode_before = smooth_maximum(read, token * line.own_rows, pins.sharpness)
    prompts = smooth_maximum(read, token * (line.prompt + line.own_rows), pins.sharpness)
    held_up = prompts - decode_before + pair * pairs + row
    total = np.concatenate([[0.0], np.cumsum(held_up)])
    each = step + smooth_maximum(read, token * line.rows, pins.sharpness) + cached * line.context + row * line.rows
    decode = line.steps * each + total[np.maximum(line.after, line.before)] - total[line.before]
    own = step + prompts + pair * pairs + cached * line.own_context + row * (line.own_rows + 1)
    waited = np.where(line.own_rows > 0, (step + decode_before + cached * line.own_context) / 2, 0.0)
    return decode, values[3] + waited + own


def _solve(
    line: _Timeline,
    physical: Physics,
    pins: _Pins,
    chosen: npt.NDArray[np.int64],
    free: list[int],
    stated: Floats | None = None,
) -> Floats:
    """(c, m, r, offset) of the chosen requests: soft-L1 on the logarithm of predicted over recorded.

    free : those that are fitted; the others are ``stated``, by default physics at stated efficiencies
    """
    from scipy.optimize import least_squares

    decoding = chosen[line.steps[chosen] > 0]
    alone = chosen[line.alone[chosen]]
    scale = np.array([1e-3, physical.token_s / 0.7, 1e-5, 5e-3])

    held = stated
    if held is None:
        held = np.array([0.0, physical.token_s, physical.row_s, 0.0]) / COMPUTE_EFFICIENCY

    def whole(x: Floats) -> Floats:
        values = held.copy()
        values[free] = x * scale[free]
        return values

    def residuals(x: Floats) -> Floats:
        decode, first = _predicted(line, whole(x), physical, pins)
        found = np.log(decode[decoding] / line.decode_s[decoding])
        return np.concatenate([found, 0.5 * np.log(first[alone] / line.ttft_s[alone])])

    start, low, high = np.array([[0.5, 1.0, 1.0, 1.0], [0.0, 0.7, 0.0, 0.0], [20.0, 5.0, 50.0, 20.0]])[:, free]
    solved = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.03, max_nfev=60)
    return whole(solved.x)


def _held_out(line: _Timeline, values: Floats, physical: Physics, rows: npt.NDArray[np.bool_]) -> tuple[HeldOut, ...]:
    decode, _ = _predicted(line, values, physical, _STATED)
    judged = rows & (line.steps > 0)
    if not judged.any():
        return ()
    figures = error_figures(decode[judged] / line.decode_s[judged] - 1)
    steps = max(1, round(float(line.steps[judged].mean())))
    return (HeldOut(part="random", regime="all", rows_each=steps, **figures),)


def _domain(line: _Timeline) -> dict[str, dict[str, tuple[float, float]]]:
    """What the requests went through, by their means and at their first tokens."""
    some = line.steps > 0
    decode = {
        "decode_rows": _range(np.maximum(1.0, np.concatenate([line.rows[some], line.own_rows]))),
        "decode_context": _range(np.concatenate([line.context[some], line.own_context])),
    }
    prefill = {
        "prefill_rows": (1.0, 1.0),
        "prefill_tokens": _range(line.prompt),
        "prefill_pairs": _range(line.prompt * (line.prompt + 1) / 2),
    }
    boxes = {"decode": decode, "mixed": {**prefill, **decode}}
    if (line.own_rows == 0).any():
        boxes["prefill"] = prefill
    return boxes


def _range(values: Floats) -> tuple[float, float]:
    return rounded(float(values.min())), rounded(float(values.max()))
