"""The job for a GPU box: every stage is tried, each leaves one archive, and what the others made is kept."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
STAGES = ["doctor", "cliff", "calibrate", "continuous", "static", "padded", "loads"]


def ran(folder, python, **settings):
    stub = folder / "python"
    stub.write_text("#!/usr/bin/env bash\nshift 2\n" + python)
    stub.chmod(0o755)
    environment = (
        os.environ
        | {"DEVICE": "cpu", "MODEL": "cpu-small", "DTYPE": "fp32", "OUT": str(folder / "out"), "PYTHON": str(stub)}
        | settings
    )
    job = ROOT / "calibration" / "job" / "gpu.sh"
    return subprocess.run(["bash", str(job)], env=environment, capture_output=True, text=True, check=False, timeout=60)


def archived(folder, stage):
    with tarfile.open(folder / "out" / f"{stage}.tgz") as archive:
        return archive.getnames()


def test_each_stage_leaves_one_archive_and_a_failed_one_stops_nothing(tmp_path):
    done = ran(tmp_path, 'echo "$@"; [[ $1 != cliff ]] || exit 1; [[ $1 != calibrate ]] || touch "${@: -1}"\n')
    assert done.returncode == 1, done.stderr
    made = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert made == sorted([*(f"{stage}.tgz" for stage in STAGES), "job.log"])
    assert "cpu-cpu-small.yaml" in archived(tmp_path, "calibrate")
    assert "cliff.txt" in archived(tmp_path, "cliff")
    told = (tmp_path / "out" / "job.log").read_text().splitlines()
    assert [line.split(":")[0] for line in told] == STAGES


def test_a_second_try_does_the_stages_it_is_told_with_what_the_first_left(tmp_path):
    ran(tmp_path, '[[ $1 != calibrate ]] || touch "${@: -1}"\n', STAGES="calibrate")
    done = ran(tmp_path, 'echo "$@"; ls "$(dirname "$2")"\n', STAGES="static")
    assert done.returncode == 0, done.stderr
    assert "cpu-cpu-small.yaml" in done.stdout


@pytest.mark.parametrize("stage", ["continuous", "static", "padded", "loads"])
def test_the_validation_files_are_ones_that_are_read(tmp_path, stage):
    pytest.importorskip("torch", reason="torch is not installed: pip install 'servecast[device]'")
    from servecast.against.device import gates

    ran(tmp_path, "true\n", STAGES=stage)
    file = gates.read(tmp_path / "out.work" / f"{stage}.yaml")
    policies = [policy["kind"] for policy in file.scenario["policies"]]
    assert policies == ([stage] if stage != "loads" else ["static", "padded", "continuous"])
    assert file.burst == (stage != "loads")
    assert yaml.safe_load((tmp_path / "out.work" / f"{stage}.yaml").read_text())["gates"]


def test_a_stage_that_is_not_there_is_said(tmp_path):
    done = ran(tmp_path, "true\n", STAGES="smoke")
    assert done.returncode == 2
    assert "STAGES: there is no stage smoke" in done.stdout
