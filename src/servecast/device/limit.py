"""A memory limit on executed steps of a CPU, under which allocations really fail, and a KV cache that grows under it.

The limit is one on the writable private memory of the process (`RLIMIT_DATA`), set before each step and lifted after
it, so that what the simulator itself keeps does not count. A step may take ``budget`` bytes less what the cache holds;
the cache may hold ``cache_bytes``. The kernel refuses what is beyond: `mprotect` for the cache, `mmap` for activations.

The cache is reserved as address space that counts for nothing, and committed a page at a time as rows grow, as
vAttention does on a GPU (arXiv 2405.04437): the kernels see one contiguous array of rows. A page holds several tokens
of one row, layer, and of keys or values, so a row holds up to a page in each more than its tokens.

With glibc, memory that was freed could be used again without the kernel's knowing. From `Limit` on large blocks are
mapped and unmapped one by one, and the holes left from before are filled. Small blocks are served from a reserve.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import mmap
import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from servecast.errors import InputError
from servecast.executor import RanOutError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8  # mallopt(3): M_MMAP_THRESHOLD and so on
_MAPPED_BYTES = 65536  # blocks from this size on are mapped
_RESERVE_BYTES = 4 * _MAPPED_BYTES  # for small blocks: libraries do not expect these to fail
_TRIED_TO = re.compile(r"tried to allocate (\d+) bytes")


class _Mallinfo2(ctypes.Structure):
    """struct mallinfo2 of <malloc.h>, glibc 2.33."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                     "keepcost")
    )  # fmt: skip


class Limit:
    """``budget`` bytes for cache and activations together, of which the cache may take ``cache_bytes``.

    block_size : tokens by which a row of the cache grows at a time
    """

    def __init__(self, budget: float, cache_bytes: float, block_size: int = 1) -> None:
        self.block_size = block_size
        self.budget = int(budget)
        self.cache_bytes = int(cache_bytes)
        give_back_freed_memory()

    def whole_blocks(self, tokens: int) -> int:
        """Tokens that the blocks of a row of ``tokens`` hold."""
        return -(-tokens // self.block_size) * self.block_size

    @contextlib.contextmanager
    def room(self, room: int, held: int) -> Iterator[None]:
        """No more than ``room`` bytes may be taken inside, beside the ``held`` ones of the cache.

        Raises RanOutError where more is wanted.
        """
        before = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + max(0, room), before[1]))
        failed: str | None = None  # not the error, whose frames hold memory
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            failed = str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)
        if failed is not None:
            asked = _TRIED_TO.search(failed)
            raise RanOutError(float(held + max(int(asked[1]) if asked else 0, room + 1)), float(held + room))


class Reserved:
    """Address space of keys and values of ``slots`` rows of ``max_length`` tokens, committed as rows grow.

    token_bytes : of one token of one row, in one layer, of keys or values
    """

    def __init__(self, tensors: int, slots: int, max_length: int, token_bytes: int) -> None:
        self.token_bytes = token_bytes
        # Rows start on pages, so that no page belongs to two of them, and hold whole tokens.
        unit = math.lcm(mmap.PAGESIZE, token_bytes)
        self.row_bytes = -(-max_length * token_bytes // unit) * unit
        self.held = 0
        self._pages = [0] * slots
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._maps = [mmap.mmap(-1, slots * self.row_bytes, flags) for _ in range(tensors)]
        self._starts = [ctypes.addressof(ctypes.c_char.from_buffer(space)) for space in self._maps]
        self._libc = ctypes.CDLL(None, use_errno=True)
        for start in self._starts:
            self._protect(start, slots * self.row_bytes, 0)

    def tensors(self, dtype: torch.dtype, kv_heads: int, head_dim: int) -> list[torch.Tensor]:
        """The tensors (slots, tokens, kv_heads, head_dim), with as many tokens as whole pages hold."""
        shape = (len(self._pages), -1, kv_heads, head_dim)
        return [torch.frombuffer(space, dtype=dtype).view(shape) for space in self._maps]

    def grow(self, lengths: Sequence[tuple[int, int]]) -> None:
        """Commit what the rows (slot, tokens) lack. Raises MemoryError where the kernel refuses."""
        for slot, tokens in lengths:
            pages, needed = self._pages[slot], -(-tokens * self.token_bytes // mmap.PAGESIZE)
            if needed > pages:
                size = (needed - pages) * mmap.PAGESIZE
                for start in self._starts:
                    at = start + slot * self.row_bytes + pages * mmap.PAGESIZE
                    self._protect(at, size, mmap.PROT_READ | mmap.PROT_WRITE)
                    self.held += size
                self._pages[slot] = needed

    def ready(self, longest: int) -> None:
        """Commit every row up to ``longest`` tokens, to run them once."""
        self.grow([(slot, longest) for slot in range(len(self._pages))])

    def release(self) -> None:
        """Give everything back to the kernel."""
        for space, start in zip(self._maps, self._starts, strict=True):
            # Forgetting the pages first: writable memory that was never touched counts as well.
            space.madvise(mmap.MADV_DONTNEED)
            self._protect(start, len(space), 0)
        self._pages = [0] * len(self._pages)
        self.held = 0

    def _protect(self, start: int, size: int, allowed: int) -> None:
        if self._libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), allowed):
            raise MemoryError(f"you tried to allocate {size} bytes of the KV cache")


def out_of_memory(error: Exception) -> bool:
    """Whether torch has failed for want of memory: CUDA's own error, that of the CPU's allocator, or that of oneDNN,
    whose bf16 kernels are compiled when they are first needed and say no more than that they could not be."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return "DefaultCPUAllocator" in str(error) or str(error) == "could not create a primitive"


def give_back_freed_memory() -> None:
    """From now on large blocks that are freed leave the address space (with glibc), and no older hole serves new ones.

    Holes between older blocks stay in the address space whatever is trimmed: they are filled, untouched, for good. What
    only waits for the collector goes now: collected later, it would make room that nobody counts.
    """
    gc.collect()
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return
    libc.mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
    libc.mallopt(_TRIM_THRESHOLD, 1 << 30)  # the reserve below stays
    libc.mallopt(_ARENA_MAX, 1)  # no further heap is begun where one is full
    libc.malloc_trim(0)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = (ctypes.c_size_t,)
    libc.free.argtypes = (ctypes.c_void_p,)
    libc.mallinfo2.restype = _Mallinfo2
    size = int(libc.mallinfo2().fordblks)  # free, in all holes together
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes(), before[1]))  # so that only holes can serve
    try:
        while size >= _MAPPED_BYTES:
            if not libc.malloc(size):
                size = size * 3 // 4
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    small = [libc.malloc(_MAPPED_BYTES // 2) for _ in range(2 * _RESERVE_BYTES // _MAPPED_BYTES)]
    for block in small:
        libc.free(block)


def data_bytes() -> int:
    """Writable private memory of this process [B], which `RLIMIT_DATA` limits."""
    return status_bytes("VmData")


def status_bytes(field: str) -> int:
    """A field of /proc/self/status [B]. Raises InputError where there is no such file."""
    path = Path("/proc/self/status")
    if not path.is_file():
        raise InputError("--device", "cpu needs Linux here: /proc/self/status tells the address space")
    found = re.search(rf"^{field}:\s*(\d+) kB", path.read_text(encoding="ascii"), re.MULTILINE)
    if not found:
        raise InputError("--device", f"/proc/self/status has no {field}: use a Linux machine")
    return int(found[1]) * 1024
