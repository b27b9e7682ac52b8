"""A sweep on a cluster: the same runs, made by the workers of a Dask scheduler that somebody has started.

joblib hands the runs to Dask; Dask gives those of a worker that dies to the others. What a run gives depends on its
scenario alone, so the table is the same as on one machine. The workers need this same servecast, and the files that the
scenario names (traces, profiles of one's own) under the same absolute paths, on a shared file system.

Left out: starting schedulers and workers. dask-jobqueue (Slurm), dask-kubernetes and ``dask worker`` do.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from servecast.errors import InputError
from servecast.planning.points_store import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

CONNECT_S = 10.0


class Cluster(NamedTuple):
    """A scheduler that answers: ``options`` for joblib's `parallel_config`, and how many runs go on at a time."""

    options: dict[str, Any]
    threads: int


def chosen(backend: str, scheduler: str | None) -> AbstractContextManager[Cluster | None]:
    """The cluster of ``--backend`` and ``--scheduler``; None for this machine alone.

    Raises InputError where the two do not go together.
    """
    if (backend == "dask") != (scheduler is not None):
        problem = "dask and the address of its scheduler go together: --backend dask --scheduler tcp://host:8786"
        raise InputError("--backend", problem)
    return nullcontext() if scheduler is None else dask(scheduler)


@contextmanager
def dask(scheduler: str, wait_s: float = CONNECT_S) -> Iterator[Cluster]:
    """The cluster whose scheduler is at this address (``tcp://host:8786``).

    Raises
    ------
    InputError : Dask is not installed, nobody answers, there is no worker, or one has no or another servecast
    """
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise InputError("--backend", "dask is not installed: pip install 'servecast[cluster]'") from None
    try:
        client = Client(scheduler, timeout=wait_s, set_as_default=False)
    except (OSError, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        problem = f"no Dask scheduler answers at {scheduler!r} ({said}): give its address, tcp://host:8786"
        raise InputError("--scheduler", problem) from None
    with client:
        _require_the_same_program(client, scheduler)
        yield Cluster({"backend": "dask", "client": client}, sum(client.nthreads().values()))


def _require_the_same_program(client: Any, scheduler: str) -> None:
    """Runs of different programs would stand in one table."""
    try:
        found = client.run(fingerprint)
    except ModuleNotFoundError:
        problem = f"the workers of {scheduler} have no servecast: install the version on them that is here"
        raise InputError("--scheduler", problem) from None
    if not found:
        raise InputError("--scheduler", f"{scheduler} has no workers: start some, dask worker {scheduler}")
    others = [address for address, theirs in found.items() if theirs != _here()]
    if others:
        problem = f"{len(others)} of {len(found)} workers have another servecast (first {others[0]}): install this one"
        raise InputError("--scheduler", problem)


def _here() -> str:
    return fingerprint()
