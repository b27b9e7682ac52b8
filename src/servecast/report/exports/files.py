"""All files of a set of runs: ``NAME.vllm.json``, ``NAME.llmd.yaml``, ``NAME.perfetto.json`` in one folder."""

from __future__ import annotations

import re
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from servecast.errors import InputError
from servecast.report.exports.llmd import write_llmd
from servecast.report.exports.perfetto import write_perfetto
from servecast.report.exports.vllm_json import write_vllm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from servecast.engine import Run
    from servecast.metrics import Slo

KINDS = ("vllm", "llmd", "perfetto")


def write_exports(
    folder: Path | str,
    kinds: Sequence[str],
    runs: Iterable[tuple[str, Run]],
    *,
    model: str,
    device: str,
    tensor_parallel: int = 1,
    slo: Slo | None = None,
    rate_rps: float | None = None,
    max_in_flight: int | None = None,
    native: Mapping[str, object] | None = None,
) -> list[Path]:
    """Writes each of ``runs`` (name and run) as each of ``kinds``; the paths written, in order.

    ``native`` is what was simulated (the scenario), ``rate_rps`` the rate asked for. An unknown kind, two runs of one
    name, or a place that cannot be written is an InputError.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise InputError("--export", f"'{kind}' is no export; choose from {', '.join(KINDS)}")
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(str(folder), f"cannot be made ({error.strerror or error}); choose another place") from error
    rate = inf if rate_rps is None or not isfinite(rate_rps) else rate_rps
    slo_ms = _targets(slo)
    written: list[Path] = []
    for name, run in runs:
        stem = re.sub(r"[^\w.=+-]+", "_", name).strip("_") or "run"
        for kind in kinds:
            path = folder / f"{stem}.{kind}.{'yaml' if kind == 'llmd' else 'json'}"
            if path in written:
                raise InputError("--export", f"two runs would be written to {path.name}; give policies other names")
            if kind == "vllm":
                write_vllm(
                    run, path, model_id=model, request_rate=rate, max_concurrency=max_in_flight, slo_ms=slo_ms,
                    metadata={"tensor_parallel_size": tensor_parallel, "device": device},
                )  # fmt: skip
            elif kind == "llmd":
                write_llmd(
                    run, path, model=model, device=device, tensor_parallel=tensor_parallel, rate_rps=rate_rps,
                    concurrency=max_in_flight, native=native,
                )  # fmt: skip
            else:
                write_perfetto(run, path)
            written.append(path)
    return written


def _targets(slo: Slo | None) -> dict[str, float]:
    """vLLM's names, in milliseconds."""
    if slo is None:
        return {}
    targets = {"ttft": slo.ttft_s, "tpot": slo.tpot_s, "e2el": slo.e2e_s}
    return {name: 1000 * target for name, target in targets.items() if target is not None}
