"""What is kept beside results, and where results go: edited, torn, linked or occupied, it is one line and never a crash."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pages
import pytest

from servecast import report
from servecast.cost import profile
from servecast.errors import InputError
from servecast.files import replacing, write
from servecast.report import plan_page
from servecast.run import store as stores
from servecast.run.store import StoreError, opened
from servecast.run.sweep import simulate
from servecast.scenario import check

SCENARIO = """
name: tiny
model: llama-3.1-8b
device: a100-80gb
workload:
  arrivals: {kind: poisson, rate_rps: 4}
  prompt_tokens: {kind: fixed, tokens: 100}
  output_tokens: {kind: fixed, tokens: 10}
  requests: 12
policies: [{kind: static, batch_size: 4}, {kind: continuous}]
goal: {slo: {ttft_p99_s: 1.0}}
search: {seeds: 1, draws: 0, try_changes: false, tolerance: 0.5, most_requests: 1}
"""
BEGIN_ANEW = "is damaged, or holds no finished runs: begin anew with --fresh"


def scenario(folder="."):
    import yaml

    return check(yaml.safe_load(SCENARIO), folder)


def servecast(folder, *arguments) -> subprocess.CompletedProcess:
    """The command in a process of its own; it never ends with a traceback."""
    code = f"import sys; sys.path[:0] = {[p for p in sys.path if p]!r}; from servecast.cli.app import main; main()"
    (folder / "tiny.yaml").write_text(SCENARIO)
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert "Aborted" not in done.stderr
    return done


def left(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [True, False])
def test_results_go_where_a_link_leads(tmp_path, there):
    target = tmp_path / "other/deep"
    if there:
        target.mkdir(parents=True)
    (tmp_path / "out").mkdir()
    link = tmp_path / "out/tiny"
    link.symlink_to("../other/deep")
    for _ in range(2):
        with opened(link) as store:
            page = report.write_run(simulate(scenario(), store=store), tmp_path / "out")
    assert page.is_file()
    assert link.is_symlink()
    assert (target / "report.html").is_file()
    assert left(tmp_path / "out") == ["tiny"]
    assert left(tmp_path / "other") == [".deep.sqlite", "deep"]
    with opened(target) as store:  # by its own name it is the same
        assert simulate(scenario(), store=store).resumed == 2


def test_what_stands_in_the_way_of_a_run_is_said_before_it_is_made(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/diary.txt").write_text("")
    with pytest.raises(InputError, match="holds no results"), opened(tmp_path / "tiny"):
        raise AssertionError("nothing is simulated")
    assert left(tmp_path) == ["tiny"]
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with pytest.raises(InputError, match="cannot be written"), replacing(loop):
        pass
    assert left(tmp_path) == ["loop", "tiny"]


# --- the store --------------------------------------------------------------------------------------------------------


def edited(file, statement, *values) -> None:
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement, values)


EDITS = {
    "another number": "UPDATE runs SET value = replace(value, '\"seed\": 0', '\"seed\": 1')",
    "no JSON": "UPDATE runs SET value = '{'",
    "another digest": "UPDATE runs SET value = (SELECT max(value) FROM runs)",
    "a checksum of something else": "UPDATE runs SET checksum = 'x'",
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_run_is_told_and_never_taken(tmp_path, edit):
    with opened(tmp_path / "tiny") as store:
        simulate(scenario(), store=store)
    edited(tmp_path / ".tiny.sqlite", EDITS[edit])
    with pytest.raises(InputError, match=BEGIN_ANEW), opened(tmp_path / "tiny") as store:
        simulate(scenario(), store=store)
    with opened(tmp_path / "tiny", fresh=True) as store:
        assert simulate(scenario(), store=store).resumed == 0


DAMAGE = {
    "no database": lambda data: b"garbage" * 1000,
    "cut": lambda data: data[: len(data) // 2],
    "pages of zeros": lambda data: data[:4096] + bytes(len(data) - 4096),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_one_line(tmp_path, damage):
    with opened(tmp_path / "tiny") as store:
        simulate(scenario(), store=store)
    file = tmp_path / ".tiny.sqlite"
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    told = servecast(tmp_path, "run", "tiny.yaml", "--out", ".")
    assert told.returncode == 2
    assert len(told.stderr.splitlines()) == 1
    assert BEGIN_ANEW in told.stderr
    assert servecast(tmp_path, "run", "tiny.yaml", "--out", ".", "--fresh").returncode == 0


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    "made",
    [
        ["CREATE TABLE diary (text TEXT)"],
        ["CREATE TABLE diary (text TEXT)", "PRAGMA user_version = 1"],
        ["CREATE TABLE runs (id INTEGER)", "PRAGMA user_version = 7"],
        ["CREATE TABLE runs (id INTEGER)", "PRAGMA application_id = 42", "PRAGMA user_version = 1"],
    ],
)
def test_a_database_of_another_program_is_one_line_and_stays(tmp_path, made, fresh):
    file = tmp_path / ".tiny.sqlite"
    for statement in made:
        edited(file, statement)
    before = file.read_bytes()
    with pytest.raises(InputError, match="a database of another program: move"), opened(tmp_path / "tiny", fresh=fresh):
        pass
    assert file.read_bytes() == before and left(tmp_path) == [".tiny.sqlite"]


@pytest.mark.parametrize("unmarked", [False, True])
def test_a_store_of_another_version_holds_nothing_to_take(tmp_path, unmarked):
    with opened(tmp_path / "tiny") as store:
        simulate(scenario(), store=store)
    edited(tmp_path / ".tiny.sqlite", f"PRAGMA {'application_id = 0' if unmarked else 'user_version = 99'}")
    for resumed in (0, 2):
        with opened(tmp_path / "tiny") as store:
            assert simulate(scenario(), store=store).resumed == resumed


def test_an_empty_file_is_no_store_yet(tmp_path):
    (tmp_path / ".tiny.sqlite").write_bytes(b"")
    with opened(tmp_path / "tiny") as store:
        assert simulate(scenario(), store=store).resumed == 0


def test_a_store_that_may_not_be_written_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "_BUSY_S", 0.1)
    with opened(tmp_path / "tiny") as store:
        simulate(scenario(), store=store)
    with contextlib.closing(sqlite3.connect(tmp_path / ".tiny.sqlite")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match=r"cannot be written \(database is locked\)"), opened(tmp_path / "tiny"):
            pass


def test_a_copy_of_a_store_in_another_process_writes_the_same_file(tmp_path):
    with opened(tmp_path / "tiny") as store:
        copy = pickle.loads(pickle.dumps(store))
        copy.add("a", {"from": "a worker"})
        store.add("b", {"from": "here"})
        assert (store.found("a"), copy.found("b")) == ({"from": "a worker"}, {"from": "here"})
        assert store.count(["a", "b", "c"]) == len(store) == 2


def test_a_value_is_read_as_it_was_written(tmp_path):
    value = {"a": 0.1, "b": None, "c": "sum", "d": float("inf"), "é\u2028": [1, {"sum": "x"}]}
    with opened(tmp_path / "tiny") as store:
        store.add("k", value, "8.0 1 2")
    with opened(tmp_path / "tiny") as store:
        assert store.found("k", "8.0 1 2") == value
        assert store.found("k") is None


@pytest.mark.parametrize(
    "damage", ["substr(tables, 1, length(tables) - 100)", "x'00'", "zeroblob(length(tables))", "NULL"]
)
def test_a_damaged_table_is_not_there_and_its_run_is_made_again(tmp_path, damage):
    with opened(tmp_path / "tiny") as store:
        whole = simulate(scenario(), store=store)
    edited(
        tmp_path / ".tiny.sqlite", f"UPDATE runs SET tables = {damage} WHERE digest = (SELECT min(digest) FROM runs)"
    )
    for resumed in (1, 2):
        with opened(tmp_path / "tiny") as store:
            results = simulate(scenario(), store=store)
        assert results.resumed == resumed
        assert results.requests.equals(whole.requests)
        assert results.summary.equals(whole.summary)


# --- plans -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def planned(tmp_path):
    assert servecast(tmp_path, "plan", "tiny.yaml", "--out", "out").returncode == 0
    return tmp_path


def test_an_edited_load_of_a_plan_is_one_line(planned):
    edited(planned / "out/.tiny-plan.sqlite", "UPDATE runs SET value = replace(value, 'ttft', 'tpot')")
    done = servecast(planned, "plan", "tiny.yaml", "--out", "out")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert BEGIN_ANEW in done.stderr
    assert servecast(planned, "plan", "tiny.yaml", "--out", "out", "--fresh").returncode == 0


def test_what_stands_in_the_way_of_a_plan_is_said_before_it_is_made(tmp_path):
    results = tmp_path / "p-plan"
    results.write_text("mine")
    with (
        pytest.raises(InputError, match=r"p-plan: is a file, .*--out"),
        opened(results, refuse=plan_page.refuse_strangers),
    ):
        raise AssertionError("nothing is simulated")
    assert left(tmp_path) == ["p-plan"]
    results.unlink()
    for name in plan_page.FILES:
        (results / name).mkdir(parents=True)
        with (
            pytest.raises(InputError, match=f"{name}: is a folder, .*--out"),
            opened(results, refuse=plan_page.refuse_strangers),
        ):
            raise AssertionError("nothing is simulated")
        (results / name).rmdir()


def test_a_plan_goes_where_a_link_leads(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/tiny-plan").symlink_to("../other/plan")  # nothing is there yet
    assert servecast(tmp_path, "plan", "tiny.yaml", "--out", "out").returncode == 0
    assert {"plan.html", "plan.json", "options.csv"} <= set(left(tmp_path / "other/plan"))
    assert left(tmp_path / "out") == ["tiny-plan"]


def test_a_plan_writes_what_it_says_and_leaves_no_folder_without_one(tmp_path, planned):
    assert set(left(planned / "out/tiny-plan")) <= set(plan_page.FILES)
    with opened(tmp_path / "new/p", refuse=plan_page.refuse_strangers):
        assert (tmp_path / "new/.p.lock").is_file()
    assert not (tmp_path / "new").exists()


def test_on_a_full_disk_the_folder_of_a_plan_stays_as_it_was(tmp_path, monkeypatch):
    folder = tmp_path / "p-plan"
    plan = pages.made_plan()
    write_text = Path.write_text

    def full(path, content, **options):
        if path.name == "plan.html":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_text(path, content, **options)

    def refused(plan):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_text", full)
            with pytest.raises(InputError, match=r"No space left on device.*--out"):
                plan_page.write(plan, folder)

    refused(plan)
    assert left(tmp_path) == []
    folder.mkdir()
    write_text(folder / "mine.png", "mine")
    plan_page.write(plan, folder)
    assert set(left(folder)) == {"mine.png", "options.csv", "plan.html", "plan.json"}
    before = (folder / "plan.json").read_bytes()
    refused(replace(plan, notes=("other",)))
    assert (folder / "plan.json").read_bytes() == before
    assert left(tmp_path) == ["p-plan"]
    assert (folder / "mine.png").read_text() == "mine"


def test_no_half_file_stays(tmp_path):
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write(tmp_path / "plan.json", "{}")
    assert left(tmp_path) == ["plan.json"]
    (tmp_path / "profile.yaml").mkdir()
    with pytest.raises(InputError, match="directory"):
        profile.save(profile.load("h100-qwen3-14b"), tmp_path / "profile.yaml")
    assert left(tmp_path) == ["plan.json", "profile.yaml"]
    with pytest.raises(RuntimeError):
        write(tmp_path / "trace.csv", broken())
    assert left(tmp_path) == ["plan.json", "profile.yaml"]


def broken():
    yield "half\n"
    raise RuntimeError


def test_what_a_link_leads_to_is_written_and_a_pipe_is_not_replaced(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "there")
    write(tmp_path / "link", "whole\n")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_text() == "whole\n"
    write("/dev/null", "gone")
    assert not Path("/dev/null").is_file()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_said_before(tmp_path):
    (tmp_path / "p").mkdir(mode=0o500)
    with (
        pytest.raises(InputError, match="cannot be written"),
        opened(tmp_path / "p", refuse=plan_page.refuse_strangers),
    ):
        raise AssertionError("nothing is simulated")
