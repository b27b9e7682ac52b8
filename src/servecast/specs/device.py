"""What a GPU (or CPU) offers: peak FLOP/s by number format, memory and its bandwidth, links and power, with the source.

Peaks are dense: vendors' figures "with sparsity" are twice these. Memory is what the driver lets a process see (torch's
``total_memory``), 1 to 8 % under the size on the box: a serving engine takes its share of that. The ridge is the
arithmetic intensity at which peak FLOP/s and bandwidth take equally long (Williams, Waterman, Patterson: Roofline,
CACM 2009).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from servecast.errors import InputError
from servecast.specs.dtypes import dtype_name

if TYPE_CHECKING:
    from collections.abc import Mapping

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One accelerator. ``flops`` maps a number format to dense FLOP/s; ``interconnect_Bps`` is one way, per GPU."""

    name: str
    memory_bytes: int
    bandwidth_Bps: float  # noqa: N815 - the unit is in the name, as everywhere
    flops: Mapping[str, float] = field(hash=False)
    interconnect_Bps: float  # noqa: N815
    tdp_w: float
    source: str

    def peak_flops(self, dtype: str) -> float:
        """Dense FLOP/s in ``dtype``; fp16 and bf16 stand for each other.

        Raises InputError where the device does not compute in that format.
        """
        name = dtype_name(dtype, "dtype")
        for candidate in (name, *{"fp16": ("bf16",), "bf16": ("fp16",)}.get(name, ())):
            if candidate in self.flops:
                return self.flops[candidate]
        raise InputError("dtype", f"{self.name} has no peak for {name}; it computes in {', '.join(self.flops)}")

    def ridge(self, dtype: str = "bf16") -> float:
        """FLOP per byte above which compute, not bandwidth, sets the time."""
        return self.peak_flops(dtype) / self.bandwidth_Bps


_KEYS = ("memory_gib", "bandwidth_Bps", "flops", "interconnect_Bps", "tdp_w", "source")


def parse(entry: Mapping[str, Any], *, name: str, place: str) -> DeviceSpec:
    """A device from the keys of a catalogue entry (memory in GiB).

    Raises InputError naming the key of a value that is missing, unknown, or not a positive finite number.
    """
    if not isinstance(entry, dict):
        raise InputError(place, f"{entry!r} is not a mapping with the keys {', '.join(_KEYS)}")
    if unknown := sorted(set(map(str, entry)) - set(_KEYS)):
        raise InputError(f"{place}.{unknown[0]}", f"is an unknown key; use {', '.join(_KEYS)}")
    if missing := [key for key in _KEYS if key not in entry]:
        raise InputError(f"{place}.{missing[0]}", "is missing")
    peaks = entry["flops"]
    if not isinstance(peaks, dict) or not peaks:
        raise InputError(f"{place}.flops", f"{peaks!r} is not a mapping from number format to dense FLOP/s")
    sizes = {key: _positive(entry[key], f"{place}.{key}") for key in _KEYS if key not in {"flops", "source"}}
    memory_bytes = round(sizes.pop("memory_gib") * _GIB)
    flops = {
        dtype_name(dtype, f"{place}.flops"): _positive(value, f"{place}.flops.{dtype}")
        for dtype, value in peaks.items()
    }
    return DeviceSpec(name=name, memory_bytes=memory_bytes, flops=flops, source=str(entry["source"]), **sizes)


def _positive(value: object, place: str) -> float:
    # Beyond these no device is: products of such values would leave the range of numbers.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1e-9 <= value <= 1e24:
        raise InputError(place, f"{value!r:.60} is not a positive finite number; write for instance 3.35e+12")
    return float(value)
