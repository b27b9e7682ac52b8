"""The roofs a device really has: bytes a second of a large copy, FLOP/s of a large matrix product.

Measured with the clock of the steps, so that a step's distance to its roof is one of the same kind of second. Buffers
are several times the last-level cache and hold random numbers: zeros cost less power, and so clock higher.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from servecast.device.timing import clock, measure


class Ceilings(NamedTuple):
    """Read plus write of a copy [B/s], dense matrix product in the model's dtype [FLOP/s]."""

    copy_Bps: float  # noqa: N815 - the unit is in the name, as everywhere
    matmul_flops: float


def ceilings(device: torch.device, dtype: torch.dtype, deadline: float) -> Ceilings:
    """Measure both; a second on CPU, and what is left until wall ``deadline`` [s] at most."""
    large = device.type == "cuda"
    count = (1 << 28) if large else (1 << 25)
    side = 8192 if large else 1024
    source = torch.randn(count, device=device, dtype=torch.float32)
    target = torch.empty_like(source)
    left = torch.randn(side, side, device=device).to(dtype)
    right = torch.randn(side, side, device=device).to(dtype)
    product = torch.empty_like(left)
    now = clock(device)
    with torch.inference_mode():
        copied = measure(lambda: target.copy_(source), now, warm_up=2, most=9, deadline=deadline)
        multiplied = measure(lambda: torch.mm(left, right, out=product), now, warm_up=2, most=9, deadline=deadline)
    return Ceilings(2 * 4 * count / copied.seconds, 2 * side**3 / multiplied.seconds)
