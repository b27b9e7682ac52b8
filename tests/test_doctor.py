"""`servecast doctor`: it passes where the device computes what it should, and says what is off where it does not."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'servecast[device]'")

from servecast.cli.app import main  # noqa: E402
from servecast.device import attention, doctor, ragged  # noqa: E402


def examined(device="cpu"):
    return {check.name: check for check in doctor.examine(device)}


def test_a_cpu_passes_every_check():
    found = examined()
    assert list(found) == [
        "versions",
        "device",
        "rows",
        "rectangles",
        "graphs",
        "out of memory",
        "first calls",
        "roofs",
    ]
    assert all(check.passed and check.found and not check.remedy for check in found.values())


def test_attention_that_sees_too_much_is_found(monkeypatch):
    def seeing_all(q, keys, values, rows):
        return attention.reference(q, keys, values, rows._replace(used=rows.used * 0 + int(rows.used.max())))

    made = []

    def broken(device):  # the plain model comes first in each pair, the examined one second
        made.append(device)
        return attention.reference if len(made) % 2 else seeing_all

    monkeypatch.setattr(ragged, "attention_for", broken)
    assert not examined()["rows"].passed


def test_a_check_that_fails_in_torch_is_one_of_the_results_and_the_others_are_made(monkeypatch):
    def failing(patient):
        raise RuntimeError("CUDA error:\nan illegal memory access")

    failing.__name__ = "_rows_are_the_reference"
    monkeypatch.setattr(doctor, "_rows_are_the_reference", failing)
    found = examined()
    assert not found["rows are the reference"].passed
    assert found["rows are the reference"].found == "CUDA error: an illegal memory access"
    assert found["rectangles"].passed


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_the_command_ends_with_1_where_something_is_off(monkeypatch, capsys, passed, code):
    checks = [
        doctor.Check("versions", True, "torch"),
        doctor.Check("graphs", passed, "6 of 24", "" if passed else "use --eager"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda device, entry: iter(checks))
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--device", "cpu"])
    assert ended.value.code == code
    told = capsys.readouterr()
    assert told.out.startswith("ok    versions: torch\n")
    assert ("WRONG graphs: 6 of 24\n      use --eager" in told.out) == (not passed)


def test_a_device_that_is_not_there_is_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--device", "tpu"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "--device: 'tpu' is no device: use cpu, cuda or cuda:N\n"
