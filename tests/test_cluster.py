"""A sweep on a cluster gives the table of one machine, even if a worker dies on the way."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from test_sweep_store import scenario

from servecast.errors import InputError
from servecast.run import cluster
from servecast.run.store import opened
from servecast.run.sweep import simulate


def paths() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def started(*arguments: str, wanted: str) -> tuple[subprocess.Popen, str]:
    """A process and the line of its log that says ``wanted``."""
    code = [sys.executable, "-m", *arguments]
    process = subprocess.Popen(code, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=paths())
    for line in process.stderr:
        if wanted in line:
            # What it says later must not fill the pipe.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, line
    raise AssertionError(f"{arguments} ended with {process.wait()}")


@pytest.fixture
def running():
    """Starts schedulers and workers, and ends those that are left."""
    found = []

    def start(*arguments, wanted):
        process, line = started(*arguments, wanted=wanted)
        found.append(process)
        return process, line

    yield start
    for process in found:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture
def scheduler(running):
    pytest.importorskip("distributed")
    options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show")
    _, line = running("distributed.cli.dask_scheduler", *options, wanted="Scheduler at:")
    return line.split()[-1]


@pytest.fixture
def workers(running, scheduler, tmp_path):
    def start() -> subprocess.Popen:
        options = ("--no-nanny", "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1")
        options += ("--local-directory", str(tmp_path / "dask"))
        return running("distributed.cli.dask_worker", scheduler, *options, wanted="Registered to:")[0]

    return [start() for _ in range(2)]


def test_a_worker_that_dies_changes_nothing(scheduler, workers, tmp_path):
    seeds = scenario(sweep={"workload.seed": list(range(30)), "workload.requests": [500]})
    here = simulate(seeds)
    first = []

    def told(progress):
        if not first:
            first.append(progress)
            workers[0].send_signal(signal.SIGKILL)
            workers[0].wait()

    with cluster.chosen("dask", scheduler) as there, opened(tmp_path / "tiny") as store:
        assert there.threads == 2
        results = simulate(seeds, store=store, cluster=there, progress=told)
    assert first[0].made < 60
    assert workers[0].returncode == -signal.SIGKILL
    assert not results.failures
    for table in ("summary", "requests", "decisions"):
        assert getattr(results, table).equals(getattr(here, table)), table
    with opened(tmp_path / "tiny") as store:
        assert simulate(seeds, store=store).resumed == 60


def test_a_point_that_cannot_be_is_told_as_here(scheduler, workers):
    poor = scenario(sweep={"engine.gpu_memory_utilization": [0.1, 0.9]})
    with cluster.dask(scheduler) as there:
        results = simulate(poor, cluster=there)
    assert results.failures == simulate(poor).failures
    assert len(results.outcomes) == 2


def test_another_servecast_is_refused(scheduler, workers, monkeypatch):
    """Runs of two programs would stand in one table."""
    monkeypatch.setattr(cluster, "_here", lambda: "another")
    with pytest.raises(InputError, match="2 of 2 workers have another servecast"), cluster.dask(scheduler):
        pass


def test_workers_without_servecast_are_refused(scheduler, monkeypatch):
    """A worker that cannot import what it is sent says so with its own ModuleNotFoundError."""
    import distributed

    def missing(client, function):
        raise ModuleNotFoundError("No module named 'servecast'")

    monkeypatch.setattr(distributed.Client, "run", missing)
    with pytest.raises(InputError, match="have no servecast"), cluster.dask(scheduler):
        pass


def test_no_workers_is_one_line(scheduler):
    with pytest.raises(InputError, match="has no workers"), cluster.dask(scheduler):
        pass


def test_nobody_there_is_one_line():
    pytest.importorskip("distributed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    begun = time.monotonic()
    for wrong in (address, "nonsense://x"):
        with pytest.raises(InputError) as refused, cluster.dask(wrong, wait_s=1):
            pass
        assert str(refused.value).startswith(f"--scheduler: no Dask scheduler answers at {wrong!r}")
        assert "\n" not in str(refused.value)
    assert time.monotonic() - begun < 30


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install 'servecast\[cluster\]'"), cluster.dask("tcp://127.0.0.1:1"):
        pass


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "scheduler"), [("dask", None), ("local", "tcp://127.0.0.1:8786")])
def test_backend_and_scheduler_go_together(backend, scheduler):
    with pytest.raises(InputError, match="go together"):
        cluster.chosen(backend, scheduler)


def test_here_alone_there_is_no_cluster():
    with cluster.chosen("local", None) as there:
        assert there is None
