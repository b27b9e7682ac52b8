"""What a step takes of memory: the most bytes of activations alive at one time, beside weights and cache.

On CUDA the allocator counts (`torch.cuda.max_memory_allocated`). On a CPU nobody does, so every operation is looked at
(`TorchDispatchMode`): bytes of new storages are added, and taken off when the storage dies. That is deterministic, and
leaves out what kernels allocate inside themselves.

Peaks of small steps tell those of large ones: the larger of two moments, as in `servecast.specs.start_up`. In
the layers bytes go with the tokens; when sampling with the rows, beside the residual stream that all tokens still hold.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


LONG = 16


class Activations(NamedTuple):
    """Peak bytes of a step: the larger of ``token * tokens`` and ``row * rows + carried * tokens``."""

    token: float
    row: float
    carried: float

    def peak(self, tokens: int, rows: int) -> float:
        """Bytes of a step of so many tokens that samples for so many rows."""
        return max(self.token * tokens, self.row * rows + self.carried * tokens)


def peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    """The most bytes alive at one time during ``step`` beyond those alive before it.

    It runs once before: workspaces that libraries make at a first call (cuBLAS, 8 to 33 MiB) stay, and are not its own.
    """
    if device.type == "cuda":
        step()
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device)) - int(before)
    with _LiveBytes() as live:
        step()
    return int(live.peak)


class _LiveBytes(TorchDispatchMode):  # type: ignore[misc]  # torch leaves it untyped
    """Counts bytes of storages that operations make while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and _storage(leaf) not in given | self._known:
                self._born(leaf)
        return out

    def _born(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = _storage(tensor), storage.nbytes()
        self._known.add(key)
        self.alive += size
        self.peak = max(self.peak, self.alive)

        def died() -> None:
            self._known.discard(key)
            self.alive -= size

        weakref.finalize(storage, died)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def fitted(peaks: Sequence[tuple[int, int, int]], carried: float) -> Activations:
    """Activations from (tokens, rows, peak bytes) of some steps: some that decode (tokens = rows), some whose rows have
    so many tokens (`LONG`) that the layers decide the peak."""
    token = max(peak / tokens for tokens, rows, peak in peaks if tokens >= LONG * rows)
    row = max(peak / rows for tokens, rows, peak in peaks if tokens == rows)
    return Activations(token, max(0.0, row - carried), carried)
