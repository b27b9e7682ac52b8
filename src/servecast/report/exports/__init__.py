"""A run as the ecosystem's own files: vLLM's result JSON, an llm-d benchmark report, a Perfetto (Chrome) trace."""

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

ENDINGS = {"vllm": "json", "llmd": "yaml", "perfetto": "json"}


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
    """Write each of ``runs`` (name and run) as each of ``kinds``; the paths written, in order.

    native : what was simulated (the scenario)
    rate_rps : the rate asked for

    Raises InputError: an unknown kind, two runs of one name, or a place that cannot be written.
    """
    if unknown := [kind for kind in kinds if kind not in ENDINGS]:
        raise InputError("--export", f"'{unknown[0]}' is no export; choose from {', '.join(ENDINGS)}")
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(str(folder), f"cannot be made ({error.strerror or error}); choose another place") from error
    targets = {} if slo is None else {"ttft": slo.ttft_s, "tpot": slo.tpot_s, "e2el": slo.e2e_s}
    slo_ms = {name: 1000 * target for name, target in targets.items() if target is not None}
    rate = inf if rate_rps is None or not isfinite(rate_rps) else rate_rps
    written: list[Path] = []
    for name, run in runs:
        stem = re.sub(r"[^\w.=+-]+", "_", name).strip("_") or "run"
        for kind in kinds:
            path = folder / f"{stem}.{kind}.{ENDINGS[kind]}"
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
