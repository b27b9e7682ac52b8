"""The README shows what its commands print: samples are made again and compared, and every command in it exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from servecast import load, simulate
from servecast.cli import app as cli
from servecast.report import verdict
from servecast.scenario import check

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")
SHELL = "\n".join(re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL))


def sample(name: str) -> str:
    (found,) = re.findall(rf"<!-- sample: {name} -->\n```text\n(.*?)```", TEXT, flags=re.DOTALL)
    return " ".join(found.split())


def test_OUT_06_the_sample_is_what_the_command_prints():
    assert "servecast run quickstart --set 'sweep={workload.arrivals.rate_rps: [8]}'" in TEXT
    results = simulate(load("quickstart", {"sweep": {"workload.arrivals.rate_rps": [8]}}))
    assert sample("quickstart-8") == str(verdict(results.summary, results.scenario["slo"], calibrated=True))


def test_the_scenario_in_it_is_one():
    (block,) = [text for text in re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL) if "name: chat-h100" in text]
    scenario = check(yaml.safe_load(block), README.parent)
    assert [entry.kind for entry in scenario.policies] == ["static", "padded", "continuous"]


@pytest.mark.parametrize(
    "command", sorted({line.split()[1] for line in re.findall(r"^servecast \S.*", SHELL, flags=re.MULTILINE)})
)
def test_commands_in_it_exist(command):
    names = [each.name or each.callback.__name__ for each in cli.app.registered_commands]
    assert command in [name.rstrip("_") for name in names]


def test_the_files_it_names_are_there():
    for path in re.findall(
        r"`((?:results|calibration|scenarios|benchmarks|tests|docs)/[\w./-]+\.(?:md|py|sh|yaml))`", TEXT
    ):
        assert (README.parent / path).is_file() or path.startswith("results/quickstart"), path
    for path in re.findall(r"\]\(((?:docs|results)/[^)]+)\)", TEXT):
        assert (README.parent / path).is_file(), path
