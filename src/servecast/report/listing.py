"""What is shipped, as tables: models, devices, profiles, policies and scenarios."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from servecast.report.tables import table_of
from servecast.specs import catalogue
from servecast.text import gibibytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servecast.text import Table


def listing(what: str) -> Table:
    """One of ``models``, ``devices``, ``profiles``, ``policies`` and ``scenarios``."""
    title = {"devices": "devices (datasheets)", "profiles": "profiles (calibrated)"}.get(what, what)
    rows = {each.__name__.lstrip("_"): each for each in (_models, _devices, _profiles, _policies, _scenarios)}[what]
    return table_of(title, list(rows()))


def _models() -> Iterator[dict[str, str]]:
    for spec in catalogue.models():
        yield {
            "name": spec.name,
            "parameters [B]": f"{spec.parameters() / 1e9:.2f}",
            "active [B]": f"{spec.active_parameters() / 1e9:.2f}",
            "weights": gibibytes(spec.weight_bytes()),
            "KV bytes per token": f"{spec.kv_bytes_per_token():,.0f}",
            "longest [tokens]": f"{spec.max_position:,}" if spec.max_position else "",
        }


def _devices() -> Iterator[dict[str, str]]:
    for spec in catalogue.devices():
        yield {
            "name": spec.name,
            "memory": gibibytes(spec.memory_bytes),
            "bandwidth [TB/s]": f"{spec.bandwidth_Bps / 1e12:.3g}",
            "bf16 [TFLOP/s]": f"{spec.peak_flops('bf16') / 1e12:,.4g}",
            "ridge [FLOP/byte]": f"{spec.ridge('bf16'):,.1f}",
            "TDP [W]": f"{spec.tdp_w:g}",
        }


def _profiles() -> Iterator[dict[str, str]]:
    from servecast.cost import profile

    for each in map(profile.load, profile.list_profiles()):
        device = f"{each.tensor_parallel} x {each.device}"
        origin = {"engine": each.provenance.engine, "fitted": each.provenance.date}
        yield {"name": each.name, "model": each.model, "device": device, **origin}


def _policies() -> Iterator[dict[str, str]]:
    from servecast.policies import POLICIES
    from servecast.scenario.schema import policy_keys

    for kind in POLICIES:
        for at, (key, default, text) in enumerate(policy_keys(kind)):
            yield {"kind": "" if at else kind, "key": key, "default": default, "": text}


def _scenarios() -> Iterator[dict[str, str]]:
    from servecast.scenario import find, names

    for name in names():  # the lesson: the first sentence of the comment that a scenario opens with
        lines = takewhile(lambda line: line.startswith("#"), find(name).read_text(encoding="utf-8").splitlines())
        text = " ".join(line.lstrip("# ") for line in lines)
        yield {"name": name, "lesson": text.split(". ")[0].removesuffix(".")}
