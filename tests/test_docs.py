"""Every page does what it says: its commands run, its Python runs, its scenarios load, its output is what is printed.

A page is run from top to bottom in a folder of its own. A block with a title is a file (```yaml title="my.yaml"), a
``text`` block right below commands is a part of what they print, and a line of ``sh`` that ends in one of `REASONS` is not
run: only its options are checked. `test_what_is_not_run_says_why` prints those lines (``pytest -rP``).
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
import yaml

from servecast.cli import app as cli
from servecast.scenario import Scenario, check

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REASONS = ("needs a GPU", "needs a server", "needs a cluster", "needs the recordings", "takes minutes")
#: Programs that pages name beside servecast: what can be checked of them is.
OTHERS = ("dask", "git", "make", "pip", "pytest", "python", "vllm")
COMMANDS = typer.main.get_command(cli.app).commands


class Block(NamedTuple):
    language: str
    title: str
    text: str
    before: str  # what stands between it and the block before


class Line(NamedTuple):
    command: str
    remark: str

    @property
    def reason(self) -> str:
        return next((reason for reason in REASONS if self.remark.startswith(reason)), "")


def blocks(page: Path) -> list[Block]:
    pattern = r'(.*?)^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$'
    found = re.findall(pattern, page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [Block(language, title, text, before) for before, language, title, text in found]


def lines(block: Block) -> list[Line]:
    joined = block.text.replace("\\\n", " ").splitlines()
    return [Line(*re.fullmatch(r"(.*?)(?:\s+#\s+(.*))?", line).groups(default="")) for line in joined if line.strip()]


def shell_lines(page: Path) -> list[Line]:
    return [line for block in blocks(page) if block.language == "sh" for line in lines(block)]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


#: The README uses the files that other pages make.
MADE_BY = {ROOT / "README.md": [ROOT / "docs/tutorial.md", ROOT / "docs/how-to/check-against-my-server.md"]}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_it_does_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for other in MADE_BY.get(page, []):
        make_files(other)
    names: dict[str, object] = {}
    printed = ""
    for block in blocks(page):
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        if block.language == "sh":
            printed = "".join(run(line) for line in lines(block))
        elif block.language == "text" and not block.before.strip() and printed:
            assert_part_of(block.text, printed)
        elif block.language == "python" and not block.title:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block.text, named(page), "exec"), names)
        elif block.language == "yaml":
            data = yaml.safe_load(block.text)
            if "policies" in data and "model" in data:
                check(data, tmp_path)


def make_files(page: Path) -> None:
    for block in blocks(page):
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.text, named(page), "exec"), {})


def run(line: Line) -> str:
    """What a line prints; nothing where it is not run."""
    program, *arguments = shlex.split(line.command)
    if program != "servecast":
        check_other(program, arguments, line)
        return ""
    command, *pipe = line.command.split(" | ")
    command, _, file = command.partition(" > ")
    arguments = shlex.split(command)[1:]
    if line.reason:
        COMMANDS[arguments[0]].make_context(arguments[0], arguments[1:], resilient_parsing=True)
        return ""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code in (0, None), line.command
    if pipe:
        json.loads(out.getvalue())
    if file:
        Path(file).write_text(out.getvalue(), encoding="utf-8")
    return out.getvalue()


def check_other(program: str, arguments: list[str], line: Line) -> None:
    assert program in OTHERS, line.command
    if program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line.command
    elif program == "python":
        assert (ROOT / arguments[0]).is_file(), line.command
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert set(re.findall(r"\[(\w+)\]", line.command)) <= set(extras), line.command
    elif program not in ("git", "pytest"):
        assert line.reason, f"{line.command}: say why it is not run: {', '.join(REASONS)}"


def assert_part_of(sample: str, printed: str) -> None:
    """Each line of a sample is printed, whatever stands around it and however wide the columns are."""
    squeezed = " ".join(printed.split())
    for line in sample.splitlines():
        assert " ".join(line.split()) in squeezed, f"{line!r} is not printed. What is:\n{printed}"


def test_what_is_not_run_says_why():
    left_out = [(named(page), line) for page in PAGES for line in shell_lines(page) if line.reason]
    for page, line in left_out:
        print(f"{line.reason}: {line.command} ({page})")
    assert {line.reason for _, line in left_out} <= set(REASONS)
    commands = {
        shlex.split(line.command)[1] for page in PAGES for line in shell_lines(page) if "servecast " in line.command
    }
    assert commands == set(COMMANDS), "each command has its place in the documentation"


def test_the_files_it_names_are_there():
    for page in PAGES:
        text = page.read_text("utf-8")
        for path in re.findall(
            r"`((?:results/validation|calibration|scenarios|benchmarks|tests|docs|tools)[\w/.-]+)`", text
        ):
            assert (ROOT / path).exists() or path.startswith("calibration/my-"), f"{named(page)}: {path}"


def test_every_key_of_a_scenario_has_a_meaning():
    schema = Scenario.model_json_schema()
    sections = {"Scenario": schema, **schema["$defs"]}
    silent = [
        f"{name}.{key}"
        for name, section in sections.items()
        for key, field in section["properties"].items()
        if key != "kind" and not field.get("description")
    ]
    assert silent == []
