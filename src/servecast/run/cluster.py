"""A sweep on a cluster: the same runs, made by the workers of a Dask scheduler that somebody started.

Each run is a task of its own, and one whose worker dies is given to another. What a run gives depends on its scenario
alone, so the table is the same as on one machine. The workers need this same servecast, and the files that the scenario
names (traces, profiles of one's own) under the same absolute paths, on a shared file system.

Left out: starting schedulers and workers. dask-jobqueue (Slurm), dask-kubernetes and ``dask worker`` do.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from servecast.errors import InputError
from servecast.run.store import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

CONNECT_S = 10.0


class Cluster(NamedTuple):
    """A scheduler that answers, by its Dask client; ``threads`` is how many runs go on at a time."""

    client: Any
    threads: int


def chosen(backend: str, scheduler: str | None) -> AbstractContextManager[Cluster | None]:
    """The cluster of ``--backend`` and ``--scheduler``, which go together; None for this machine alone."""
    if (backend == "dask") != (scheduler is not None):
        problem = "a cluster and the address of its scheduler go together: --backend dask --scheduler tcp://host:8786"
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
        try:
            found = client.run(fingerprint)
        except ModuleNotFoundError:
            problem = f"the workers of {scheduler} have no servecast: install the version on them that is here"
            raise InputError("--scheduler", problem) from None
        _require_the_same_program(found, scheduler)
        yield Cluster(client, sum(client.nthreads().values()))


def _require_the_same_program(found: dict[str, str], scheduler: str) -> None:
    """Runs of different programs would stand in one table."""
    if not found:
        raise InputError("--scheduler", f"{scheduler} has no workers: start some, dask worker {scheduler}")
    others = [address for address, theirs in found.items() if theirs != _here()]
    if others:
        problem = f"{len(others)} of {len(found)} workers have another servecast (first {others[0]}): install this one"
        raise InputError("--scheduler", problem)


def _here() -> str:
    return fingerprint()
