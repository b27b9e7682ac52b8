"""Whether a machine can calibrate and execute: half a minute of checks, each with its finding and its remedy.

Each check stands for something that has gone wrong, or would go unseen: a torch whose attention takes other arguments,
kernels that compute something else than the reference, a graph that replays stale inputs, a device that does not come
back from running out of memory, a GPU that another process holds or that runs far below its data sheet.

What is computed is compared with a plain fp32 computation of the same weights on the CPU. A dtype of 8 bits of mantissa
keeps logits to about a per cent; `_NEAR` is far above that and far below what a wrong kernel gives.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from servecast.device import kernels, machine
from servecast.device.ballast import DeviceLimit
from servecast.device.cache import KVCache
from servecast.device.grid import Span
from servecast.device.model import DTYPES, Transformer, transformer
from servecast.device.padded import Padded
from servecast.device.ragged import Ragged
from servecast.device.timing import clock, open_device
from servecast.errors import InputError
from servecast.executor import RanOutError
from servecast.specs import catalogue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NEAR = 0.06  # of the largest logit
_ROOFS = 0.4, 1.15  # of the data sheet: below, another process or a power cap; above, another GPU than named
_ROOFS_S = 8.0
_SLOTS, _LENGTH, _PROMPTS = 8, 96, (40, 3, 17, 1)


class Check(NamedTuple):
    """One check: whether it passed, what was found, and what would mend it (empty where nothing need be)."""

    name: str
    passed: bool
    found: str
    remedy: str = ""


def examine(device_name: str, entry: str | None = None) -> Iterator[Check]:
    """The checks of a device, one by one. Raises InputError where there is no such device or torch is too old."""
    device = open_device(device_name)
    yield _versions(device)
    yield _device(device, entry)
    dtype = "bf16" if device.type == "cuda" else "fp32"
    with torch.inference_mode():
        patient = _Patient.built(device, dtype)
        for check in (_rows_are_the_reference, _rectangles_are_rows, _graphs_are_eager, _memory_comes_back):
            yield _survived(lambda check=check: check(patient), check.__name__)  # type: ignore[misc]
        yield _survived(lambda: _first_calls(patient), "first calls")
        yield _survived(lambda: _roofs(device, dtype, entry), "roofs")


def _survived(check: Callable[[], Check], name: str) -> Check:
    """A check, or the error it ended in: the others are still to be made."""
    try:
        return check()
    except (RuntimeError, AssertionError) as error:  # what torch raises
        found = " ".join(str(error).split())[:300] or type(error).__name__
        remedy = "report it with this output; servecast run without --execute needs no device"
        return Check(name.strip("_").replace("_", " "), False, found, remedy)


@dataclass
class _Patient:
    """A small model on the device, the same in fp32 on the CPU, and prompts."""

    model: Transformer
    plain: Transformer
    prompts: list[torch.Tensor]

    @classmethod
    def built(cls, device: torch.device, dtype: str) -> _Patient:
        spec = replace(catalogue.model("tiny"), dtype=dtype)
        model = transformer(spec, device, dtype, max_positions=_LENGTH)
        draw = torch.Generator().manual_seed(0)
        return cls(model, _in_fp32(model), [torch.randint(spec.vocab, (n,), generator=draw) for n in _PROMPTS])

    @property
    def device(self) -> torch.device:
        return self.model.device

    def spans(self) -> list[Span]:
        """A row for each prompt."""
        return [Span(slot, 0, len(prompt)) for slot, prompt in enumerate(self.prompts)]

    def tokens(self) -> torch.Tensor:
        return torch.cat(self.prompts).to(self.device)

    def cache(self) -> KVCache:
        return KVCache(self.model, _SLOTS, _LENGTH)


def _in_fp32(model: Transformer) -> Transformer:
    def plain(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.float().cpu()

    layers = tuple(
        type(layer)(**{field.name: plain(getattr(layer, field.name)) for field in fields(layer)})
        for layer in model.layers
    )
    names = ("embedding", "norm", "head", "cos", "sin")
    others: dict[str, Any] = {name: plain(getattr(model, name)) for name in names}
    return replace(model, layers=layers, **others)


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, as a share of the largest value."""
    ours, theirs = ours.float().cpu(), theirs.float().cpu()
    return float((ours - theirs).abs().max() / theirs.abs().max())


def _near(name: str, distance: float, what: str) -> Check:
    found = f"{what}: off by {distance:.2%} of the largest logit"
    return Check(name, distance < _NEAR, found, "" if distance < _NEAR else "install another torch: this one is wrong")


def _versions(device: torch.device) -> Check:
    facts = machine.described(device)
    shown = [f"Python {facts['python']}", f"torch {facts['torch']}"]
    if device.type == "cpu":
        return Check("versions", True, ", ".join(shown))
    driver = machine.conditions(device).get("driver_version", "unknown")
    triton = kernels.has_triton()
    shown += [f"CUDA {facts['cuda']}", f"driver {driver}", "Triton" if triton else "no Triton"]
    remedy = "" if triton else "pip install triton: without it norms and rotary embeddings are several kernels each"
    return Check("versions", triton, ", ".join(shown), remedy)


def _device(device: torch.device, entry: str | None) -> Check:
    facts = machine.described(device)
    named = facts.get("gpu", facts["processor"])
    try:
        spec = machine.spec_of(device, entry)
    except InputError as error:
        return Check("device", False, str(named), error.problem)
    free = machine.memory_bytes(device, spec)
    found = f"{named}: {spec.name} of the catalogue, {free / 1e9:.1f} GB free"
    busy = device.type == "cuda" and free < 0.9 * facts["gpu_memory_bytes"]
    return Check("device", not busy, found, "end what else runs on it (nvidia-smi lists it)" if busy else "")


def _rows_are_the_reference(patient: _Patient) -> Check:
    cpu = torch.device("cpu")
    plain = Ragged(patient.plain, KVCache(patient.plain, _SLOTS, _LENGTH), graphs=False)
    ours = Ragged(patient.model, patient.cache(), graphs=False)
    spans, worst = patient.spans(), 0.0
    tokens = patient.tokens()
    for _ in range(4):
        theirs = plain.logits(spans, tokens.to(cpu))
        worst = max(worst, _distance(ours.logits(spans, tokens), theirs))
        tokens = theirs.argmax(-1).to(patient.device)
        spans = [Span(span.slot, span.cached + span.new, 1) for span in spans]
    kernel = "flash attention, " if patient.device.type == "cuda" else ""
    fused = type(kernels.fused_for(patient.device)).__name__.removeprefix("In")
    return _near("rows", worst, f"prompts and decode steps by {kernel}{fused} kernels against plain fp32")


def _rectangles_are_rows(patient: _Patient) -> Check:
    padded, ragged = Padded(patient.model, patient.cache()), Ragged(patient.model, patient.cache(), graphs=False)
    rectangle = torch.zeros((len(_PROMPTS), max(_PROMPTS)), dtype=torch.int64)
    for row, prompt in zip(rectangle, patient.prompts, strict=True):
        row[: len(prompt)] = prompt
    padded.begin(_PROMPTS)
    spans = patient.spans()
    ours = padded.prefill(rectangle.to(patient.device))
    theirs = ragged.logits(spans, patient.tokens())
    worst = _distance(ours, theirs)
    for _ in range(3):
        spans = [Span(span.slot, span.cached + span.new, 1) for span in spans]
        tokens = theirs.argmax(-1)
        ours, theirs = padded.decode(tokens), ragged.logits(spans, tokens)
        worst = max(worst, _distance(ours, theirs))
    return _near("rectangles", worst, "padded steps against ragged ones")


def _graphs_are_eager(patient: _Patient) -> Check:
    if patient.device.type == "cpu":
        return Check("graphs", True, "none on a CPU")
    cache = patient.cache()
    steps = [Ragged(patient.model, cache, graphs=graphs) for graphs in (False, True)]
    same = total = 0
    spans, tokens = patient.spans(), patient.tokens()
    for _ in range(6):
        eager, replayed = (ragged.step(spans, tokens).clone() for ragged in steps)
        same, total = same + int((eager == replayed).sum()), total + len(eager)
        tokens = eager
        spans = [Span(span.slot, span.cached + span.new, 1) for span in spans]
    passed = same >= 0.8 * total  # sums in another order may turn a near tie
    found = f"{same} of {total} next tokens of replayed graphs are those of eager steps"
    return Check("graphs", passed, found, "" if passed else "calibrate with --eager, and report it")


def _memory_comes_back(patient: _Patient) -> Check:
    if patient.device.type == "cpu":
        return Check("out of memory", True, "a limit on the process, set where it is needed")
    limit = DeviceLimit(patient.device, 1 << 28, 1 << 28)
    try:
        with limit.room(1 << 28, 0):
            torch.empty(1 << 29, dtype=torch.uint8, device=patient.device)
    except RanOutError as error:
        Ragged(patient.model, patient.cache(), graphs=False).step(patient.spans(), patient.tokens())
        found = f"{error.wanted_bytes / 1e6:.0f} MB were refused at a limit of {(1 << 28) / 1e6:.0f}, the next step ran"
        return Check("out of memory", True, found)
    remedy = "this allocator ignores its limit: unset PYTORCH_ALLOC_CONF, or use another torch"
    return Check("out of memory", False, "twice the limit was allocated", remedy)


def _first_calls(patient: _Patient) -> Check:
    ragged, now = Ragged(patient.model, patient.cache()), clock(patient.device)
    taken = []
    for _ in range(8):
        begun = now()
        ragged.step(patient.spans(), patient.tokens())
        taken.append(now() - begun)
    return Check(
        "first calls", True, f"a small step takes {taken[0] * 1e3:.3g} ms at first, {min(taken) * 1e3:.3g} then"
    )


def _roofs(device: torch.device, dtype: str, entry: str | None) -> Check:
    found = machine.ceilings(device, DTYPES[dtype], time.monotonic() + _ROOFS_S)
    shown = f"copies {found.copy_Bps / 1e9:,.0f} GB/s, matrix products {found.matmul_flops / 1e12:,.3g} TFLOP/s"
    if device.type == "cpu":
        return Check("roofs", True, shown)
    try:
        spec = machine.spec_of(device, entry)
    except InputError:
        return Check("roofs", True, f"{shown}; the data sheet is not known")
    shares = found.copy_Bps / spec.bandwidth_Bps, found.matmul_flops / spec.peak_flops("bf16")
    passed = all(_ROOFS[0] <= share <= _ROOFS[1] for share in shares)
    remedy = "another process, a power cap (nvidia-smi -q -d PERFORMANCE), or another GPU than --as names"
    text = f"{shown}: {shares[0]:.0%} and {shares[1]:.0%} of the data sheet"
    return Check("roofs", passed, text, "" if passed else remedy)
