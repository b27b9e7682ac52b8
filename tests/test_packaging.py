"""The package: what is in the wheel, that shipped files are found, and what the project promises about itself."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import servecast
from servecast import resources
from servecast.errors import InputError

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (file,) = out.glob("*.whl")
    return zipfile.ZipFile(file)


def test_the_wheel_carries_code_catalogues_profiles_and_scenarios(wheel):
    held = set(wheel.namelist())
    for name in (
        "specs/models.yaml",
        "specs/devices.yaml",
        "workload/azure_2023_quantiles.csv",
        "py.typed",
        "cli/app.py",
    ):
        assert f"servecast/{name}" in held
    for folder in ("calibration", "scenarios"):
        for file in (ROOT / folder).rglob("*"):
            if file.is_file():
                assert f"servecast/_shipped/{folder}/{file.relative_to(ROOT / folder)}" in held
    assert not any(name.startswith(("tests/", "benchmarks/", "results/")) for name in held)


def test_a_wheel_asks_for_no_torch(wheel):
    (metadata,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    needed = [line for line in wheel.read(metadata).decode().splitlines() if line.startswith("Requires-Dist:")]
    assert any("simpy" in line for line in needed)
    torch = [line for line in needed if "torch" in line]
    assert "Requires-Dist: torch>=2.11; extra == 'device'" in torch
    assert all("extra ==" in line for line in torch)


def test_an_unpacked_wheel_runs_a_shipped_scenario_from_any_folder(wheel, tmp_path):
    wheel.extractall(tmp_path / "site")
    there = tmp_path / "elsewhere"
    there.mkdir()
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import servecast; from servecast import resources;"
        "print(resources.directory('scenarios')); print(servecast.load('ridge').name)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path / "site")],
        cwd=there,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [str(tmp_path / "site/servecast/_shipped/scenarios"), "ridge"]


def test_shipped_files_are_found_in_the_tree_or_in_the_package(tmp_path):
    assert resources.directory("scenarios") == ROOT / "scenarios"
    package = tmp_path / "site-packages" / "servecast"
    (package / "_shipped" / "scenarios").mkdir(parents=True)
    assert resources.directory("scenarios", package) == package / "_shipped" / "scenarios"
    with pytest.raises(InputError, match="install servecast again"):
        resources.directory("nothing", package)


def test_one_version_and_a_pinned_environment_for_tests():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == servecast.__version__
    pinned = {
        line.split("==")[0].lower() for line in (ROOT / "constraints-test.txt").read_text().splitlines() if "==" in line
    }
    named = [
        *project["dependencies"],
        *project["optional-dependencies"]["dev"],
        *project["optional-dependencies"]["device"],
    ]
    for requirement in named:
        assert requirement.split(">=")[0].split("[")[0].lower() in pinned, requirement


def test_python_dash_m_is_the_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "servecast", "list", "policies"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "continuous" in done.stdout


def test_load_and_simulate_are_the_python_interface(tmp_path):
    overrides = {"workload.trace": None, "profile": None, "device": "a100-80gb", "model": "llama-3.1-8b"}
    overrides |= {"workload.arrivals": {"kind": "burst"}, "workload.requests": 4}
    overrides |= {f"workload.{side}_tokens": {"kind": "fixed", "tokens": 8} for side in ("prompt", "output")}
    results = servecast.simulate(servecast.load("straggler", overrides))
    assert list(results.summary["policy"]) == ["static", "continuous"]
    assert len(results.requests) == 8
    assert set(results.decisions["policy"]) == {"static", "continuous"}
    assert len(results.oom) == 0
