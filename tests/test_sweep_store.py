"""A sweep that is stopped, by whatever means, goes on where it was and ends with the table of one that was not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from servecast.cli import terminal
from servecast.errors import InputError
from servecast.files import write_tables
from servecast.run import store as stores
from servecast.run import sweep
from servecast.run.results import Failure, Made
from servecast.run.store import fingerprint, opened
from servecast.run.sweep import Progress, Sweep, simulate, tasks_of
from servecast.scenario import check

TABLES = ("summary.csv", "requests.parquet", "decisions.parquet", "oom.csv")


def scenario(folder=".", **changes):
    data = {
        "name": "tiny",
        "model": "llama-3.1-8b",
        "device": "a100-80gb",
        "workload": {
            "arrivals": {"kind": "poisson", "rate_rps": 4},
            "prompt_tokens": {"kind": "fixed", "tokens": 100},
            "output_tokens": {"kind": "fixed", "tokens": 10},
            "requests": 12,
            "seed": 1,
        },
        "policies": [{"kind": "static", "batch_size": 4}, {"kind": "continuous"}],
        "sweep": {"workload.arrivals.rate_rps": [2, 4, 8]},
        **changes,
    }
    return check(data, folder)


def written(results, folder) -> dict[str, bytes]:
    folder.mkdir()
    frames = {name: getattr(results, name) for name in ("summary", "requests", "decisions", "oom")}
    write_tables(folder, results.scenario, frames)
    return {name: (folder / name).read_bytes() for name in TABLES}


def rows(out, columns="digest") -> list:
    """What stands in the store, seen by somebody who knows nothing of it."""
    file = out / ".tiny.sqlite"
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        return connection.execute(f"SELECT {columns} FROM runs").fetchall() if file.stat().st_size else []


def stop_after(monkeypatch, count: int) -> None:
    """Interrupt the sweep, once, at the next run after ``count``."""
    made, run = [], sweep.run

    def once(task, *rest):
        made.append(task)
        if len(made) == count + 1:
            raise KeyboardInterrupt
        return run(task, *rest)

    monkeypatch.setattr(sweep, "run", once)


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """The folder of a sweep of six runs that was interrupted after two."""
    with monkeypatch.context() as patch, opened(tmp_path / "tiny") as store:
        stop_after(patch, 2)
        assert simulate(scenario(), store=store).missing == 4
    return tmp_path


# --- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 2])
def test_two_sittings_give_the_bytes_of_one(stopped, tmp_path, jobs):
    whole = written(simulate(scenario()), tmp_path / "whole")
    with opened(tmp_path / "tiny") as store:
        results = simulate(scenario(), jobs=jobs, store=store)
    assert (results.resumed, results.missing) == (2, 0)
    assert written(results, tmp_path / "parts") == whole
    with opened(tmp_path / "tiny") as store:
        again = simulate(scenario(), store=store)
    assert again.resumed == 6
    assert written(again, tmp_path / "again") == whole
    assert again.notes == results.notes == simulate(scenario()).notes


def test_out_of_memory_events_and_notes_are_kept_too(tmp_path):
    cliff = scenario(
        engine={"kv_blocks": 40},
        policies=[{"kind": "padded", "batch_size": 8}, {"kind": "continuous"}],
        workload={
            "arrivals": {"kind": "burst"},
            "prompt_tokens": {"kind": "fixed", "tokens": 100},
            "output_tokens": {"kind": "fixed", "tokens": 50},
            "requests": 12,
        },
        sweep={"policies[0].batch_size": [2, 8]},
    )
    made = []
    for _ in range(2):
        with opened(tmp_path / "tiny") as store:
            made.append(simulate(cliff, store=store))
    first, second = made
    assert second.resumed == 3
    assert len(first.oom) > 0
    assert first.notes == second.notes
    assert any("computes a batch's prompts" in note for note in first.notes)
    assert written(first, tmp_path / "first") == written(second, tmp_path / "second")


def test_a_calibrated_run_keeps_how_far_it_went_beyond(tmp_path):
    far = scenario(model="qwen3-14b", device=None, profile="h100-qwen3-14b", sweep={})
    with opened(tmp_path / "tiny") as store:
        first = simulate(far, store=store)
    with opened(tmp_path / "tiny") as store:
        second = simulate(far, store=store)
    assert second.resumed == 2
    assert [outcome.made.extrapolation for outcome in first.outcomes] == [
        outcome.made.extrapolation for outcome in second.outcomes
    ]


def test_fresh_begins_anew(stopped):
    with opened(stopped / "tiny", fresh=True) as store:
        assert simulate(scenario(), store=store).resumed == 0


def test_progress_counts_what_was_there(stopped):
    told = []
    with opened(stopped / "tiny") as store:
        simulate(scenario(), store=store, progress=told.append)
    assert {each.total for each in told} == {6}
    assert told[0].made == 2
    assert {each.found for each in told} == {2}
    assert told[-1].made == 6


def test_the_time_left_counts_nothing_that_was_there(monkeypatch, capsys):
    """96 of 100 were found, two more took a minute: the two that are left take another, not two seconds."""
    assert Progress(98, 100, "", 96).seconds_left(60.0) == 60.0
    assert Progress(96.5, 100, "", 96).seconds_left(10.0) == pytest.approx(70.0)
    assert Progress(96, 100, "", 96).seconds_left(10.0) is None
    assert Progress(25, 100, "").seconds_left(10.0) == 30.0
    now = [1000.0]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    with terminal.progress("tiny", clock=lambda: now[0]) as tell:
        now[0] += 500.0  # reading what was there
        tell(Progress(96, 100, "tiny", 96))
        now[0] += 60.0
        tell(Progress(98, 100, "static", 96))
    assert "0:01:00 left" in capsys.readouterr().err
    assert [terminal._time_left(seconds) for seconds in (None, 59.6, 3723.0)] == ["", "0:01:00 left", "1:02:03 left"]


def test_a_longer_sweep_finds_what_it_shares_and_forgets_the_rest(tmp_path):
    for rates, resumed in (([2, 4], 0), ([4, 8, 16], 2), ([4, 8, 16], 6), ([2], 0)):
        with opened(tmp_path / "tiny") as store:
            results = simulate(scenario(sweep={"workload.arrivals.rate_rps": rates}), store=store)
        assert results.resumed == resumed, rates
        assert len(rows(tmp_path)) == 2 * len(rates)
        assert all(tables for (tables,) in rows(tmp_path, "tables"))


# --- keys ------------------------------------------------------------------------------------------------------------


def keys(each) -> list[str]:
    return [task.digest for task in tasks_of(each)]


def test_what_changes_numbers_changes_the_key():
    base = keys(scenario())
    assert len(set(base)) == len(base) == 6
    for changes in ({"slo": {"ttft_s": 1}}, {"engine": {"block_size": 32}}, {"model": "llama-2-7b"}, {"warmup_s": 1}):
        assert not set(keys(scenario(**changes))) & set(base), changes
    policies = [{"kind": "static", "batch_size": 5}, {"kind": "continuous"}]
    assert [new in base for new in keys(scenario(policies=policies))] == [False, True] * 3


def test_names_and_order_do_not():
    policies = [{"kind": "continuous", "name": "ours"}, {"kind": "static", "batch_size": 4}]
    assert set(keys(scenario(name="other", policies=policies, seeds=2))) > set(keys(scenario()))


def test_a_label_is_the_present_scenarios(tmp_path):
    for name in ("mine", "yours"):
        policies = [{"kind": "static", "batch_size": 4, "name": name}]
        with opened(tmp_path / "tiny") as store:
            results = simulate(scenario(policies=policies), store=store)
        assert set(results.summary["policy"]) == {name}
    assert results.resumed == 3


def test_a_file_counts_by_what_it_holds(tmp_path):
    trace = tmp_path / "t.csv"
    found = []
    for tokens in (10, 10, 11):
        trace.write_text(f"arrival_s,prompt_tokens,output_tokens\n0,{tokens},1\n")
        os.utime(trace, ns=(len(found), len(found)))
        found.append(keys(scenario(workload={"trace": {"path": str(trace)}}, sweep={}))[0])
    assert found[0] == found[1] != found[2]


def test_the_program_counts(monkeypatch):
    before = keys(scenario())
    monkeypatch.setattr(stores, "fingerprint", lambda: "another")
    assert not set(keys(scenario())) & set(before)
    assert len(fingerprint()) == 16


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_errors_of_a_point_lose_no_other_and_are_tried_again(tmp_path):
    poor = scenario(sweep={"engine.gpu_memory_utilization": [0.1, 0.9]})
    for resumed in (0, 2):
        with opened(tmp_path / "tiny") as store:
            results = simulate(poor, store=store)
        assert (len(results.outcomes), len(results.failures), results.resumed) == (2, 2, resumed)
        assert results.missing == 0
    assert [which.point for which in results.failures] == ["gpu_memory_utilization=0.1"] * 2


def test_where_nothing_was_made_nothing_is_left(tmp_path):
    with pytest.raises(InputError), opened(tmp_path / "out/deep/tiny") as store:
        simulate(scenario(engine={"gpu_memory_utilization": 0.1}), store=store)
    assert list(tmp_path.iterdir()) == []


def test_two_sweeps_into_one_folder_are_refused(tmp_path):
    with opened(tmp_path / "tiny"):
        with pytest.raises(InputError) as refused, opened(tmp_path / "tiny"):
            pytest.fail("both are in")
        said = str(refused.value)
        assert said.startswith(f"{tmp_path / 'tiny'}: process {os.getpid()} is writing these results")
        assert "\n" not in said
        with opened(tmp_path / "other"):
            pass
    with opened(tmp_path / "tiny"):
        pass


def test_a_lock_whose_file_went_away_locks_out_nobody(tmp_path, monkeypatch):
    """The holder removed the empty store between this one's open and its lock."""
    flock, first = fcntl.flock, []

    def race(file, how):
        flock(file, how)
        if not first:
            first.append(file)
            (tmp_path / ".tiny.lock").unlink()

    monkeypatch.setattr(fcntl, "flock", race)
    with opened(tmp_path / "tiny"):
        assert (tmp_path / ".tiny.lock").read_text() == f"{os.getpid()}\n"
        monkeypatch.undo()
        with pytest.raises(InputError), opened(tmp_path / "tiny"):
            pass


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"), opened(tmp_path / "file/tiny"):
        pass


SWEEP = """
import resource, signal, sys
sys.path[:0] = {paths!r}
from pathlib import Path
from test_sweep_store import scenario
from servecast.errors import InputError
from servecast.run.store import opened
from servecast.run.sweep import simulate
if {limit}:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    with opened(Path({out!r}) / "tiny") as store:
        simulate(scenario(sweep={{"workload.seed": list(range(300))}}), jobs={jobs}, store=store)
except InputError as error:
    sys.exit(str(error))
"""


def sweeping(out, jobs=1, limit=0) -> subprocess.Popen:
    code = SWEEP.format(paths=[p for p in sys.path if p], out=str(out), jobs=jobs, limit=limit)
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("jobs", [1, 2])
def test_killed_it_loses_nothing_that_was_finished(tmp_path, jobs):
    with sweeping(tmp_path, jobs) as process:
        until = time.monotonic() + 60
        while not ((tmp_path / ".tiny.sqlite").exists() and finished(tmp_path) >= 10):
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    seeds = scenario(sweep={"workload.seed": list(range(300))})
    with opened(tmp_path / "tiny") as store:
        found = Sweep(tasks_of(seeds), store)
        assert 10 <= found.resumed == len(store) < 600
    for place, outcome in list(found.results.items())[:3]:
        again = sweep.run(found.tasks[place])
        assert isinstance(again, Made)
        assert outcome.row == again.row
        for name, column in again.run.requests.items():
            assert column.tobytes() == outcome.run.requests[name].tobytes()


def finished(out) -> int:
    """Rows of a store that is being written; 0 while it is locked or not yet made."""
    try:
        return len(rows(out))
    except sqlite3.OperationalError:
        return 0


def test_a_full_disk_is_one_line_and_keeps_what_was_finished(tmp_path):
    with sweeping(tmp_path, limit=150_000) as process:
        said = process.stderr.read()
    assert process.returncode == 1
    assert said.startswith(f"{tmp_path / '.tiny.sqlite'}: cannot be written (")
    assert len(said.splitlines()) == 1
    with opened(tmp_path / "tiny") as store:
        assert len(store) == len(rows(tmp_path)) > 5
        assert simulate(scenario(sweep={"workload.seed": [0, 1]}), store=store).resumed == 4


# --- more than can be held -------------------------------------------------------------------------------------------


def test_a_large_sweep_holds_rows_and_the_tables_that_figures_show(tmp_path, monkeypatch):
    whole = simulate(scenario())
    monkeypatch.setattr(sweep, "MOST_REQUESTS", 40)
    with monkeypatch.context() as patch, opened(tmp_path / "tiny") as store:
        stop_after(patch, 5)
        assert simulate(scenario(), store=store).missing == 1
    assert rows(tmp_path, "tables") == [(None,)] * 5
    with opened(tmp_path / "tiny") as store:
        results = simulate(scenario(), store=store)
    assert results.resumed == 5
    assert results.summary.equals(whole.summary)
    assert "are of the 2 that the figures show, of 6" in results.notes[-1]
    assert results.requests["workload.arrivals.rate_rps"].nunique() == 1
    assert len(results.requests) == 2 * 12
    shown = whole.requests[whole.requests["workload.arrivals.rate_rps"] == results.requests.iloc[0, 1]]
    assert shown.reset_index(drop=True).equals(results.requests)


def test_tables_that_turn_out_too_many_are_let_go(tmp_path, monkeypatch):
    """How long a trace is shows as it is read."""
    monkeypatch.setattr(sweep, "MOST_REQUESTS", 40)
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{at},100,10\n" for at in range(12)))
    traced = scenario(workload={"trace": {"path": str(trace)}}, sweep={"engine.block_size": [8, 16, 32]})
    for resumed in (0, 6):
        with opened(tmp_path / "tiny") as store:
            results = simulate(traced, store=store)
        assert results.resumed == resumed
        assert len(results.requests) == 2 * 12
        assert rows(tmp_path, "tables") == [(None,)] * 6


def test_policies_alone_are_no_sweep(monkeypatch):
    monkeypatch.setattr(sweep, "MOST_REQUESTS", 1)
    assert len(simulate(scenario(sweep={})).requests) == 2 * 12


def test_failures_of_a_large_sweep_stay_where_they_are(monkeypatch):
    monkeypatch.setattr(sweep, "MOST_REQUESTS", 1)
    results = simulate(scenario(sweep={"engine.gpu_memory_utilization": [0.1, 0.9, 0.8]}))
    assert len(results.failures) == 2
    assert all(isinstance(each, Failure) for each in results.failures)
    assert len(results.summary) == 4
