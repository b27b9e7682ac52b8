"""A sweep on a cluster: the same runs, made by the workers of a Dask scheduler or a Ray cluster that somebody started.

Each run is a task of its own, and one whose worker dies is given to another. What a run gives depends on its scenario
alone, so the table is the same as on one machine. The workers need this same servecast, and the files that the scenario
names (traces, profiles of one's own) under the same absolute paths, on a shared file system.

Dask takes its tasks from joblib. Ray takes them as they are: its own joblib backend gives all results at the end, and a
sweep keeps each as it comes.

Left out: starting schedulers and workers. dask-jobqueue (Slurm), dask-kubernetes, KubeRay, ``dask worker`` and
``ray start`` do.
"""

from __future__ import annotations

import socket
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from servecast.errors import InputError
from servecast.run.points_store import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

CONNECT_S = 10.0
#: How often a run is given to another worker after the one that had it died: it may be what kills them.
RETRIES = 3
_SCHEDULERS = {"dask": "tcp://host:8786", "ray": "host:6379"}


class Cluster(Protocol):
    """A cluster that answers."""

    @property
    def threads(self) -> int:
        """How many runs go on at a time."""

    def each(self, work: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """What ``work(*task)`` gives for each of the tasks, as soon as it is there, in any order.

        Tasks are taken as they are needed, a few ahead.
        """


def chosen(backend: str, scheduler: str | None) -> AbstractContextManager[Cluster | None]:
    """The cluster of ``--backend`` and ``--scheduler``; None for this machine alone.

    Raises InputError where the two do not go together.
    """
    if (backend in _SCHEDULERS) != (scheduler is not None):
        ways = " or ".join(f"--backend {name} --scheduler {address}" for name, address in _SCHEDULERS.items())
        raise InputError("--backend", f"a cluster and the address of its scheduler go together: {ways}")
    if scheduler is None:
        return nullcontext()
    return ray(scheduler) if backend == "ray" else dask(scheduler)


# --- Dask -------------------------------------------------------------------------------------------------------------


class _Dask(NamedTuple):
    client: Any
    threads: int

    def each(self, work: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        from joblib import Parallel, delayed, parallel_config

        with parallel_config(backend="dask", client=self.client):
            # One by one and in any order, so that what has ended is kept at once.
            parallel = Parallel(n_jobs=self.threads, return_as="generator_unordered", batch_size=1)
            yield from parallel(delayed(work)(*task) for task in tasks)


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
            raise _without_servecast(scheduler) from None
        _require_the_same_program(found, scheduler, f"dask worker {scheduler}")
        yield _Dask(client, sum(client.nthreads().values()))


# --- Ray --------------------------------------------------------------------------------------------------------------


class _Ray(NamedTuple):
    threads: int

    def each(self, work: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        import ray

        run = ray.remote(num_cpus=1, max_retries=RETRIES)(work).remote
        coming = iter(tasks)
        pending = [run(*task) for task in islice(coming, 2 * self.threads)]
        while pending:
            [ended], pending = ray.wait(pending, num_returns=1)
            try:
                result = ray.get(ended)
            except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError):
                problem = f"a run lost its worker {RETRIES + 1} times: give workers more memory, or look at their logs"
                raise InputError("--backend", problem) from None
            pending += [run(*task) for task in islice(coming, 1)]
            yield result


@contextmanager
def ray(scheduler: str, wait_s: float = CONNECT_S) -> Iterator[Cluster]:
    """The cluster whose head is at this address (``host:6379`` on one of its machines, else ``ray://host:10001``).

    Raises
    ------
    InputError : Ray is not installed, nobody answers, no machine has a CPU, or one has no or another servecast
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError("--backend", "ray is not installed: pip install 'servecast[ray]'") from None
    try:
        host, _, port = scheduler.removeprefix("ray://").rpartition(":")
        socket.create_connection((host, int(port)), timeout=wait_s).close()  # Ray itself would ask for minutes
        ray.init(address=scheduler, log_to_driver=False, logging_level="ERROR")
    except (OSError, OverflowError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        said = " ".join(str(error).split())[:200]
        problem = f"no Ray cluster answers at {scheduler!r} ({said}): give its head's address, host:6379"
        raise InputError("--scheduler", problem) from None
    try:
        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        _require_the_same_program(_on_each(nodes, scheduler), scheduler, f"ray start --address {scheduler}")
        yield _Ray(int(sum(node["Resources"]["CPU"] for node in nodes)))
    finally:
        ray.shutdown()


def _on_each(nodes: Sequence[dict[str, Any]], scheduler: str) -> dict[str, str]:
    """The fingerprint of servecast on each of Ray's machines, by address and id."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = ray.remote(num_cpus=0)(_program)
    found = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        found[f"{node['NodeManagerAddress']} {node['NodeID'][:8]}"] = asked.options(scheduling_strategy=there).remote()
    try:
        return dict(zip(found, ray.get(list(found.values())), strict=True))
    except ray.exceptions.RayTaskError:
        raise _without_servecast(scheduler) from None


# --- both -------------------------------------------------------------------------------------------------------------


def _require_the_same_program(found: dict[str, str], scheduler: str, start: str) -> None:
    """Runs of different programs would stand in one table."""
    if not found:
        raise InputError("--scheduler", f"{scheduler} has no workers: start some, {start}")
    others = [address for address, theirs in found.items() if theirs != _here()]
    if others:
        problem = f"{len(others)} of {len(found)} workers have another servecast (first {others[0]}): install this one"
        raise InputError("--scheduler", problem)


def _program() -> str:
    """The fingerprint as a plain function, which Ray insists on."""
    return fingerprint()


def _without_servecast(scheduler: str) -> InputError:
    problem = f"the workers of {scheduler} have no servecast: install the version on them that is here"
    return InputError("--scheduler", problem)


def _here() -> str:
    return fingerprint()
