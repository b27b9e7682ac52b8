"""What is kept beside results, and where results go: edited, torn, linked or occupied, it is one line and never a crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from servecast import report
from servecast.cost import profile
from servecast.errors import InputError
from servecast.files import replacing, write
from servecast.plan import store as plan_store
from servecast.run import kept
from servecast.run.kept import Lines, text_of
from servecast.run.points_store import opened
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
BEGIN_ANEW = "is no finished run: begin anew with --fresh"


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
            page = report.write(simulate(scenario(), store=store), tmp_path / "out")
    assert page.is_file()
    assert link.is_symlink()
    assert (target / "report.html").is_file()
    assert left(tmp_path / "out") == ["tiny"]
    assert left(tmp_path / "other") == [".deep.points", "deep"]
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


# --- lines -----------------------------------------------------------------------------------------------------------


def changed(line: str, how) -> str:
    data = json.loads(line)
    how(data)
    return json.dumps(data)


EDITS = {
    "a renamed part": lambda data: data.update(rows=data.pop("row")),
    "nothing": lambda data: data.update(row=None),
    "no notes": lambda data: data.pop("notes"),
    "another number": lambda data: data["row"].update(ttft_p99_s=1e-9),
    "text for a number": lambda data: data["row"].update(ttft_p99_s="fast"),
    "another key": lambda data: data.update(key="0" * 32),
    "more": lambda data: data.update(more=1),
    "a checksum of something else": lambda data: data.update(sum="0" * 16),
    "a checksum that is none": lambda data: data.update(sum=1),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_run_is_told_and_never_taken(tmp_path, edit):
    with opened(tmp_path / "tiny") as store:
        simulate(scenario(), store=store)
    file = tmp_path / ".tiny.points/points.jsonl"
    first, *others = file.read_text().splitlines()
    file.write_text("\n".join([*others, changed(first, EDITS[edit])]) + "\n")
    with pytest.raises(InputError, match=f"points.jsonl:2: {BEGIN_ANEW}"), opened(tmp_path / "tiny"):
        pass
    with opened(tmp_path / "tiny", fresh=True) as store:
        assert simulate(scenario(), store=store).resumed == 0


def test_a_line_of_before_there_were_checksums_is_made_again(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_bytes(b'{"key": "old", "row": 1}\n' + text_of({"key": "new", "row": 2}))
    assert Lines(file).read() == {"new": {"key": "new", "row": 2}}


@pytest.mark.parametrize("text", [b"[1]", b"1", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b"\0" * 40, b""])
def test_a_line_that_is_none_is_told(tmp_path, text):
    file = tmp_path / "x.jsonl"
    file.write_bytes(text + b"\n")
    with pytest.raises(InputError, match=BEGIN_ANEW):
        Lines(file).read()
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        Lines(tmp_path / "folder").read()


def test_a_line_is_read_as_it_was_written(tmp_path):
    line = {"key": "k", "row": {"a": 0.1, "b": None, "c": "sum", "d": float("inf"), "é\u2028": [1, {"sum": "x"}]}}
    lines = Lines(tmp_path / "x.jsonl")
    lines.add(line)
    lines.close()
    assert lines.read() == {"k": line}


def test_lines_reach_the_disk_but_not_each_by_itself(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(kept.os, "fdatasync", synced.append)
    monkeypatch.setattr(kept, "_SYNC_S", 1e9)
    lines = Lines(tmp_path / "x.jsonl")
    lines._synced_s = kept.time.monotonic()
    for key in range(20):
        lines.add({"key": str(key)})
    assert not synced
    lines.close()
    assert len(synced) == 1
    monkeypatch.setattr(kept, "_SYNC_S", 0.0)
    lines.add({"key": "last"})
    assert len(synced) == 2
    lines.close()


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-100],
        lambda text: b"garbage",
        lambda text: b"",
        lambda text: text[:200] + bytes([text[200] ^ 1]) + text[201:],
        None,
    ],
)
def test_a_damaged_table_is_not_there_and_its_run_is_made_again(tmp_path, damage):
    with opened(tmp_path / "tiny") as store:
        whole = simulate(scenario(), store=store)
    table = sorted((tmp_path / ".tiny.points/tables").glob("*.npz"))[0]
    if damage is None:
        table.unlink()
    else:
        table.write_bytes(damage(table.read_bytes()))
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


PLAN_EDITS = {
    "a renamed part": lambda data: data.update(samples=data.pop("sample")),
    "an unknown field": lambda data: data["sample"].update(more=1),
    "text for tokens": lambda data: data["sample"].update(tokens="x"),
    "text for a statistic": lambda data: data["sample"]["row"].update(ttft_p99_s="fast"),
}


def test_an_edited_load_of_a_plan_is_one_line(planned):
    for file in (planned / "out/.tiny-plan.points").glob("*.jsonl"):
        kept_text = file.read_text()
        for name, how in PLAN_EDITS.items():
            first, *others = kept_text.splitlines()
            file.write_text("\n".join([changed(first, how), *others]) + "\n")
            with pytest.raises(InputError, match=BEGIN_ANEW):
                plan_store.KeptLoads(file.parent, file.name.partition("-")[0])
            assert name
    done = servecast(planned, "plan", "tiny.yaml", "--out", "out")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert BEGIN_ANEW in done.stderr
    assert servecast(planned, "plan", "tiny.yaml", "--out", "out", "--fresh").returncode == 0


def test_what_stands_in_the_way_of_a_plan_is_said_before_it_is_made(tmp_path):
    results = tmp_path / "p-plan"
    results.write_text("mine")
    with pytest.raises(InputError, match=r"p-plan: is a file, .*--out"), plan_store.opened(results):
        raise AssertionError("nothing is simulated")
    assert left(tmp_path) == ["p-plan"]
    results.unlink()
    for name in plan_store.FILES:
        (results / name).mkdir(parents=True)
        with pytest.raises(InputError, match=f"{name}: is a folder, .*--out"), plan_store.opened(results):
            raise AssertionError("nothing is simulated")
        (results / name).rmdir()


def test_a_plan_goes_where_a_link_leads(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/tiny-plan").symlink_to("../other/plan")  # nothing is there yet
    assert servecast(tmp_path, "plan", "tiny.yaml", "--out", "out").returncode == 0
    assert {"plan.html", "plan.json", "options.csv"} <= set(left(tmp_path / "other/plan"))
    assert left(tmp_path / "out") == ["tiny-plan"]


def test_a_plan_writes_what_it_says_and_leaves_no_folder_without_one(tmp_path, planned):
    assert set(left(planned / "out/tiny-plan")) <= set(plan_store.FILES)
    with plan_store.opened(tmp_path / "new/p"):
        assert (tmp_path / "new/p").is_dir()
    assert not (tmp_path / "new").exists()


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
    with pytest.raises(InputError, match="cannot be written"), plan_store.opened(tmp_path / "p"):
        raise AssertionError("nothing is simulated")
