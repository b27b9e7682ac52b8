"""Where a run's computed tokens and busy seconds went: useful, padding, idle slots; and what bound them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from servecast.metrics.log import chunks, mean_shapes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from servecast.batch import StepShape
    from servecast.engine import Run
    from servecast.metrics.log import Columns


class StepModel(Protocol):
    """FLOPs and bytes of steps, for arrays of shapes (a `ModelSpec`)."""

    def step_flops(self, shape: StepShape, *, tensor_parallel: int = 1) -> Any:
        """FLOPs per GPU."""

    def step_bytes(self, shape: StepShape, *, kv_dtype: str | None = None, tensor_parallel: int = 1) -> Any:
        """Bytes moved per GPU."""


class StepCost(Protocol):
    """Seconds of steps and whether they lie outside what was measured, for arrays of shapes (a `CostModel`)."""

    def seconds(self, shape: StepShape) -> Any:
        """Seconds a step takes."""

    def extrapolated(self, shape: StepShape) -> Any:
        """Whether a step lies outside the calibrated domain."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What steps are judged against: the model they run, the device's ridge [FLOP/byte] and the cost model."""

    model: StepModel
    ridge: float
    cost: StepCost
    kv_dtype: str | None = None
    tensor_parallel: int = 1

    def work(self, shape: StepShape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """FLOPs and bytes of each step of ``shape`` per GPU: (steps,) each."""
        flops = self.model.step_flops(shape, tensor_parallel=self.tensor_parallel)
        moved = self.model.step_bytes(shape, kv_dtype=self.kv_dtype, tensor_parallel=self.tensor_parallel)
        return np.asarray(flops, dtype=np.float64), np.asarray(moved, dtype=np.float64)


def waste(decisions: Columns) -> dict[str, float | None]:
    """Where the computed tokens went, in tokens and for slots in seconds of the whole GPU.

    Finished rows of a padded batch are computed, so they are padding, and hold a slot, so they are slot waste too;
    ``idle_slot_tokens`` has only what was held and not computed. Slot waste is of slots that finished rows hold: in a
    closed batch until its last member has ended, with asynchronous scheduling for one decision more. A row that stands
    still for a step has not finished: it waits, and its latency says so.
    """
    iterations, slots = decisions["iterations"], decisions["slots"]
    rows = decisions["prefill_rows"] + decisions["decode_rows"]
    computed = int((decisions["prefill_tokens"] + iterations * decisions["decode_rows"]).sum())
    useful = int((decisions["useful_prefill_tokens"] + iterations * decisions["useful_decode_rows"]).sum())
    active = slots - decisions["stalled_rows"]
    finished = active - decisions["useful_decode_rows"] - decisions["prefill_rows"]
    share = np.divide(finished, slots, out=np.zeros(len(slots)), where=slots > 0)
    return {
        "computed_tokens": computed,
        "useful_tokens": useful,
        "padding_tokens": computed - useful,
        "idle_slot_tokens": int((iterations * np.maximum(active - rows, 0)).sum()),
        "padding_waste": ratio(computed - useful, computed),
        "slot_waste": ratio(float((iterations * finished).sum()), float((iterations * slots).sum())),
        "slot_waste_s": float((decisions["seconds"] * share).sum()),
    }


def judged(run: Run, decisions: Columns, hardware: Hardware | None) -> dict[str, float | None]:
    """Shares of the busy seconds under the roofline's ridge and outside the calibrated domain; seconds of padding.

    Padding takes of each step's seconds the share by which its useful part alone is cheaper. All None without
    ``hardware``.
    """
    if hardware is None:
        return dict.fromkeys(("padding_waste_s", "bandwidth_bound_fraction", "extrapolated_fraction"))
    bound = outside = wasted = busy = 0.0
    shares = _useful_shares(run)
    for part in chunks(decisions):
        shape, seconds = mean_shapes(part), part["seconds"]
        busy += float(seconds.sum())
        flops, moved = hardware.work(shape)
        bound += float(seconds[flops < hardware.ridge * moved].sum())
        outside += float(seconds[np.broadcast_to(hardware.cost.extrapolated(shape), seconds.shape)].sum())
        padded = (part["useful_prefill_tokens"] < part["prefill_tokens"]) | (
            part["useful_decode_rows"] < part["decode_rows"]
        )
        if padded.any():
            part = {name: column[padded] for name, column in part.items()}
            full, needed = mean_shapes(part), _useful_shapes(part, *shares)
            share = 1 - hardware.cost.seconds(needed) / hardware.cost.seconds(full)
            wasted += float((part["seconds"] * share).sum())
    return {
        "padding_waste_s": wasted,
        "bandwidth_bound_fraction": ratio(bound, busy),
        "extrapolated_fraction": ratio(outside, busy),
    }


def _useful_shapes(decisions: Columns, pairs_share: float, context_share: float) -> StepShape:
    """The shapes without their padding. The log counts useful tokens, not useful pairs and contexts: these are taken in
    proportion, times the shares which make the totals of the run those of its requests."""
    shape = mean_shapes(decisions)
    tokens = _share(decisions["useful_prefill_tokens"], decisions["prefill_tokens"])
    rows = _share(decisions["useful_decode_rows"], decisions["decode_rows"])
    return shape._replace(
        prefill_tokens=cast("Any", decisions["useful_prefill_tokens"]),
        prefill_pairs=shape.prefill_pairs * tokens * pairs_share,
        decode_rows=cast("Any", decisions["useful_decode_rows"]),
        decode_context=shape.decode_context * rows * context_share,
    )


def _useful_shares(run: Run) -> tuple[float, float]:
    """Pairs and contexts that the requests needed, as a share of those logged in proportion to useful tokens."""
    decisions, requests = run.decisions, run.requests
    shape = mean_shapes(decisions)
    tokens = _share(decisions["useful_prefill_tokens"], decisions["prefill_tokens"])
    rows = _share(decisions["useful_decode_rows"], decisions["decode_rows"])
    logged_pairs = float((shape.prefill_pairs * tokens).sum())
    logged_context = float((decisions["iterations"] * shape.decode_context * rows).sum())
    begun = requests["generated_tokens"] > 0
    prompt = requests["prompt_tokens"][begun].astype(np.float64)
    later = requests["generated_tokens"][begun].astype(np.float64) - 1
    needed_pairs = float((prompt * (prompt + 1) / 2).sum())
    needed_context = float((later * prompt + later * (later - 1) / 2).sum())
    return min(ratio(needed_pairs, logged_pairs) or 1.0, 1.0), min(ratio(needed_context, logged_context) or 1.0, 1.0)


def _share(part: NDArray[Any], whole: NDArray[Any]) -> Any:
    return np.divide(part, whole, out=np.ones(len(whole)), where=whole > 0)


def ratio(part: float | None, whole: float) -> float | None:
    """``part`` / ``whole``, or None where there is none of either."""
    return part / whole if part is not None and whole > 0 else None
