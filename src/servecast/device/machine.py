"""What lets a measurement be judged later: the machine, its software, its clocks, and its roofs."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from servecast.device.timing import clock, measure
from servecast.errors import InputError

if TYPE_CHECKING:
    from servecast.specs.device import DeviceSpec
    from servecast.specs.model import ModelSpec

#: A GPU's own name as a whole, by the device of the catalogue: "GH200 480GB" is no H200, "RTX 4090 D" no RTX 4090.
_GPU_NAMES = {
    "a100-40gb": r"A100-(SXM4|PCIE)-40GB",
    "a100-80gb": r"A100-SXM4-80GB|A100 80GB PCIe|A100-PCIE-80GB",
    "h100-nvl": r"H100 NVL",
    "h100-pcie": r"H100 PCIe",
    "h100-sxm": r"H100 80GB HBM3|H100 SXM5?",
    "h200": r"H200",
    "b200": r"B200",
    "l40s": r"L40S",
    "l4": r"L4",
    "a10g": r"A10G",
    "rtx3090": r"GeForce RTX 3090",
    "rtx4090": r"GeForce RTX 4090",
    "rtx-pro-6000": r"RTX PRO 6000 Blackwell Workstation Edition",
}

_QUERIED = "name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"


def spec_of(device: torch.device, named: str | None) -> DeviceSpec:
    """The catalogue's entry of a device: the one ``named``, else found by the GPU's own name.

    Raises InputError for a GPU that the catalogue does not have.
    """
    from servecast.specs import catalogue

    if named is not None:
        return catalogue.device(named)
    if device.type == "cpu":
        return catalogue.device("cpu")
    name = torch.cuda.get_device_name(device)
    for entry, pattern in _GPU_NAMES.items():
        if re.fullmatch(f"(NVIDIA )?({pattern})", name):
            return catalogue.device(entry)
    known = ", ".join(spec.name for spec in catalogue.devices())
    raise InputError(
        "--device", f"{name} is not in the catalogue: say which entry it is with --as ({known}, or a YAML file)"
    )


def described(device: torch.device) -> dict[str, Any]:
    """The machine and its software, as plain values."""
    facts: dict[str, Any] = {
        "processor": _processor(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    if device.type == "cpu":
        return facts | {"threads": torch.get_num_threads(), "clock": "CPU time of the computing thread"}
    properties = torch.cuda.get_device_properties(device)
    return facts | {
        "gpu": properties.name,
        "gpu_memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
        "clock": "wall time between synchronisations",
    }


def conditions(device: torch.device) -> dict[str, str]:
    """Driver, clocks, power and temperature of a GPU now; nothing on a CPU, or where nvidia-smi is missing."""
    if device.type == "cpu" or shutil.which("nvidia-smi") is None:
        return {}
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    reply = subprocess.run(
        ["nvidia-smi", f"--query-gpu={_QUERIED}", "--format=csv,noheader", f"--id=GPU-{uuid.removeprefix('GPU-')}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    answers = reply.stdout.strip().split(", ") if reply.returncode == 0 else []
    return dict(zip(_QUERIED.split(","), answers, strict=False))


def memory_bytes(device: torch.device, spec: DeviceSpec) -> int:
    """Bytes a run may take: what is free on a GPU now, what the machine has available on a CPU (or the spec's)."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = _fields("/proc/meminfo").get("MemAvailable")
    return spec.memory_bytes if available is None else int(available.split()[0]) * 1024


def refuse_dtype(dtype: str, device: torch.device, place: str) -> None:
    """Raises InputError for a dtype that is not computed on a device."""
    allowed = ("bf16", "fp16") if device.type == "cuda" else ("bf16", "fp32")
    if dtype not in allowed:
        raise InputError(place, f"{dtype} is not computed on {device.type}: use {' or '.join(allowed)}")


def require_room(model: ModelSpec, dtype: str, device: torch.device, place: str, layers: int | None = None) -> int:
    """Bytes that are free beside the weights of a model, or of so many of its layers.

    Raises InputError where the weights alone do not fit.
    """
    from servecast.specs import catalogue

    free = memory_bytes(device, catalogue.device("cpu"))
    model = model.unquantized(dtype)
    computed = layers or model.layers
    tables = (1 if model.tied_embeddings else 2) * model.vocab_table_bytes()
    weights = tables + (model.weight_bytes() - tables) * computed / model.layers
    if weights > 0.9 * free:
        fewer = "fewer --layers, " if place.startswith("--") else ""
        raise InputError(
            place,
            f"the weights of {model.name} ({computed} layers, {dtype}) take {weights / 1e9:.2f} GB, {device} has "
            f"{free / 1e9:.2f} GB free: use {fewer}a smaller model, or a device with more memory",
        )
    return int(free - weights)


def _processor() -> str:
    named = _fields("/proc/cpuinfo").get("model name")
    return named or platform.processor() or platform.machine()


def _fields(path: str) -> dict[str, str]:
    """The fields of a file of ``name : value`` lines, the first of each name; none where there is no such file."""
    lines = Path(path).read_text().splitlines() if Path(path).is_file() else []
    pairs = [line.split(":", 1) for line in reversed(lines) if ":" in line]
    return {name.strip(): value.strip() for name, value in pairs}


class Ceilings(NamedTuple):
    """Read plus write of a copy [B/s], dense matrix product in the model's dtype [FLOP/s]."""

    copy_Bps: float  # noqa: N815 - the unit is in the name, as everywhere
    matmul_flops: float


def ceilings(device: torch.device, dtype: torch.dtype, deadline: float) -> Ceilings:
    """Measure both; a second on CPU, and what is left until wall ``deadline`` [s] at most.

    The clock is that of the steps. Buffers are several times the last-level cache and hold random numbers: zeros cost
    less power, and so clock higher.
    """
    count, side = (1 << 28, 8192) if device.type == "cuda" else (1 << 25, 1024)
    source = torch.randn(count, device=device, dtype=torch.float32)
    target = torch.empty_like(source)
    left = torch.randn(side, side, device=device).to(dtype)
    right = torch.randn(side, side, device=device).to(dtype)
    product = torch.empty_like(left)
    timed = partial(measure, now=clock(device), warm_up=2, most=9, deadline=deadline)
    with torch.inference_mode():
        copied, multiplied = timed(lambda: target.copy_(source)), timed(lambda: torch.mm(left, right, out=product))
    return Ceilings(2 * 4 * count / copied.seconds, 2 * side**3 / multiplied.seconds)
