"""What is shipped, as values and as tables: models, devices, profiles, policies and scenarios."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from servecast.specs import catalogue
from servecast.text import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

_GIB = 1 << 30
#: How a table writes the numbers of a column.
_FORMS = {
    "parameters [B]": ".2f",
    "active [B]": ".2f",
    "weights [GiB]": ",.2f",
    "KV bytes per token": ",.0f",
    "state bytes": ",.0f",
    "longest [tokens]": ",",
    "memory [GiB]": ",.2f",
    "bandwidth [TB/s]": ".3g",
    "bf16 [TFLOP/s]": ",.4g",
    "ridge [FLOP/byte]": ",.1f",
    "TDP [W]": "g",
}


def rows(what: str) -> list[dict[str, Any]]:
    """``models``, ``devices``, ``profiles``, ``policies`` or ``scenarios``: a value for each column, None for none."""
    return list(
        {each.__name__.lstrip("_"): each for each in (_models, _devices, _profiles, _policies, _scenarios)}[what]()
    )


def listing(what: str) -> Table:
    """The same as a table."""
    title = {"devices": "devices (datasheets)", "profiles": "profiles (calibrated)"}.get(what, what)
    found = rows(what)
    texts = [tuple(_text(column, row[column]) for column in row) for row in found]
    if what == "policies":  # what is said of a kind stands below it
        kinds = [row["kind"] for row in found]
        texts = [(kind if kind not in kinds[:at] else "", *rest) for at, (kind, *rest) in enumerate(texts)]
    return Table(title, tuple(found[0]), tuple(texts))


def _text(column: str, value: Any) -> str:
    return "" if value is None else format(value, _FORMS[column]) if column in _FORMS else str(value)


def _models() -> Iterator[dict[str, Any]]:
    for spec in catalogue.models():
        yield {
            "name": spec.name,
            "parameters [B]": spec.parameters() / 1e9,
            "active [B]": spec.active_parameters() / 1e9,
            "weights [GiB]": spec.weight_bytes() / _GIB,
            "KV bytes per token": spec.kv_bytes_per_token(),
            "state bytes": spec.state_bytes() or None,
            "longest [tokens]": spec.max_position or None,
            "layers": ", ".join(f"{layers} {kind}" for kind, layers in spec.kinds.items()),
        }


def _devices() -> Iterator[dict[str, Any]]:
    for spec in catalogue.devices():
        yield {
            "name": spec.name,
            "memory [GiB]": spec.memory_bytes / _GIB,
            "bandwidth [TB/s]": spec.bandwidth_Bps / 1e12,
            "bf16 [TFLOP/s]": spec.peak_flops("bf16") / 1e12,
            "ridge [FLOP/byte]": spec.ridge("bf16"),
            "TDP [W]": spec.tdp_w,
        }


def _profiles() -> Iterator[dict[str, Any]]:
    from servecast.cost import profile

    for each in map(profile.load, profile.list_profiles()):
        yield {
            "name": each.name, "model": each.model, "GPUs": each.tensor_parallel, "device": each.device,
            "engine": each.provenance.engine, "fitted": each.provenance.date,
        }  # fmt: skip


def _policies() -> Iterator[dict[str, Any]]:
    from servecast.policies import POLICIES
    from servecast.scenario.schema import policy_keys

    for kind in POLICIES:
        for key, default, text in policy_keys(kind):
            yield {"kind": kind, "key": key, "default": default, "meaning": text}


def _scenarios() -> Iterator[dict[str, Any]]:
    from servecast.scenario import find, names

    for name in names():  # the lesson: the first sentence of the comment that a scenario opens with
        lines = takewhile(lambda line: line.startswith("#"), find(name).read_text(encoding="utf-8").splitlines())
        text = " ".join(line.lstrip("# ") for line in lines)
        yield {"name": name, "lesson": text.split(". ")[0].removesuffix(".")}
