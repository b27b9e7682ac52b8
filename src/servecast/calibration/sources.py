"""What people have to fit a profile from, told apart by content: measured steps, recorded requests, operator tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servecast.calibration import assemble, fit_requests, steps
from servecast.calibration import fit as fit_steps
from servecast.cost import host
from servecast.errors import InputError
from servecast.specs import catalogue

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from servecast.calibration.fit import Report
    from servecast.cost.profile import ProfileFile


def fit(
    paths: Sequence[Path],
    *,
    model: str,
    device: str,
    name: str,
    engine: str = "",
    source: str = "",
    tensor_parallel: int = 1,
    kv_dtype: str | None = None,
    seed: int = 0,
    host_s: float | None = None,
    host_steps: Path | None = None,
    all_reduce: Path | None = None,
) -> tuple[ProfileFile, Report]:
    """Fit a profile to tables of steps, one table of requests, or one folder of operators; it and what to tell of it.

    host_s, host_steps, all_reduce : for a folder only: the host's time of a step [s], given or fitted to measured steps
        of the same engine; another all-reduce table

    Raises InputError for an unknown name, a table that cannot be read, and options that have no use for the source.
    """
    common: dict[str, Any] = {"name": name, "engine": engine, "source": source, "tensor_parallel": tensor_parallel}
    folders = [path for path in paths if path.is_dir()]
    if folders:
        if len(paths) > 1:
            raise InputError(str(folders[0]), "is a folder of operator tables: fit it by itself")
        if kv_dtype is not None:
            raise InputError("--kv-cache-dtype", f"{kv_dtype}: operator tables hold 16-bit caches only; leave it out")
        overhead = None if host_s is None else host.given(host_s)
        spec, gpu = catalogue.model(model), catalogue.device(device)
        made = assemble.fit_operators(folders[0], spec, gpu, host=overhead, all_reduce=all_reduce, **common)
        if host_steps is not None:
            measured = steps.read([host_steps])
            made = assemble.with_host(made, host.from_steps(made.cost(), measured, f"fitted to {host_steps.name}"))
        return made, assemble.report(made)
    for option, given in (("--host-overhead-s", host_s), ("--host-steps", host_steps), ("--all-reduce", all_reduce)):
        if given is not None:
            raise InputError(option, "goes with a folder of operator tables: measured steps hold the host already")
    if len(paths) == 1 and fit_requests.is_requests((table := steps.table_of(paths[0])).columns):
        spec, gpu, files = catalogue.model(model), catalogue.device(device), (paths[0].name,)
        fitted = fit_requests.fit_requests(table, spec, gpu, kv_dtype=kv_dtype, seed=seed, files=files, **common)
    else:
        fitted = fit_steps.fit_file(paths, model=model, device=device, kv_dtype=kv_dtype, seed=seed, **common)
    return fitted, fit_steps.report(fitted)
