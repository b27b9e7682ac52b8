"""What is shipped, as tables: models, devices, profiles, policies and scenarios."""

from __future__ import annotations

from servecast.specs import catalogue
from servecast.text import Table, gibibytes


def listing(what: str) -> Table:
    """One of ``models``, ``devices``, ``profiles``, ``policies`` and ``scenarios``."""
    tables = (_models, _devices, _profiles, _policies, _scenarios)
    return {table.__name__.lstrip("_"): table for table in tables}[what]()


def _models() -> Table:
    rows = tuple(
        (
            spec.name,
            f"{spec.parameters() / 1e9:.2f}",
            f"{spec.active_parameters() / 1e9:.2f}",
            gibibytes(spec.weight_bytes()),
            f"{spec.kv_bytes_per_token():,.0f}",
            f"{spec.max_position:,}" if spec.max_position else "",
        )
        for spec in catalogue.models()
    )
    heads = ("name", "parameters [B]", "active [B]", "weights", "KV bytes per token", "longest [tokens]")
    return Table("models", heads, rows)


def _devices() -> Table:
    rows = tuple(
        (
            spec.name,
            gibibytes(spec.memory_bytes),
            f"{spec.bandwidth_Bps / 1e12:.3g}",
            f"{spec.peak_flops('bf16') / 1e12:,.4g}",
            f"{spec.ridge('bf16'):,.1f}",
            f"{spec.tdp_w:g}",
        )
        for spec in catalogue.devices()
    )
    heads = ("name", "memory", "bandwidth [TB/s]", "bf16 [TFLOP/s]", "ridge [FLOP/byte]", "TDP [W]")
    return Table("devices (datasheets)", heads, rows)


def _profiles() -> Table:
    from servecast.cost import profile

    loaded = [profile.load(name) for name in profile.list_profiles()]
    rows = tuple(
        (one.name, one.model, f"{one.tensor_parallel} x {one.device}", one.provenance.engine, one.provenance.date)
        for one in loaded
    )
    return Table("profiles (calibrated)", ("name", "model", "device", "engine", "fitted"), rows)


def _policies() -> Table:
    from servecast.policies import POLICIES
    from servecast.scenario.schema import policy_keys

    rows = [
        (kind if at == 0 else "", key, default, text)
        for kind in POLICIES
        for at, (key, default, text) in enumerate(policy_keys(kind))
    ]
    return Table("policies", ("kind", "key", "default", ""), tuple(rows))


def _scenarios() -> Table:
    from servecast.scenario import find, names

    rows = tuple((name, _lesson(find(name).read_text(encoding="utf-8"))) for name in names())
    return Table("scenarios", ("name", "lesson"), rows)


def _lesson(text: str) -> str:
    """The first sentence of the comment that a scenario opens with."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines).split(". ")[0].removesuffix(".")
