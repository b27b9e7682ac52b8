"""The profile file: what is written is what is read, and nothing else is read."""

from __future__ import annotations

import pytest
import yaml

from servecast import resources
from servecast.batch import StepShape
from servecast.cost import profile as profiles
from servecast.cost.profile import Coefficient, Form, HeldOut, Profile, Provenance, Residuals
from servecast.errors import InputError

UNITS = {
    "weight_read_s": ("s", 0.0104),
    "token_s": ("s/token", 3.95e-5),
    "pair_s": ("s/query-key pair", 1.22e-9),
    "context_s": ("s/cached token", 6e-8),
    "row_s": ("s/row", 4.2e-5),
    "step_s": ("s", 1e-05),
}


def coefficient(value, unit="s"):
    return Coefficient(value=value, unit=unit, low=value * 0.9, high=value * 1.1, identified=True, how="fitted")


@pytest.fixture
def profile():
    return Profile(
        name="toy",
        model="qwen3-14b",
        device="h100-sxm",
        coefficients={name: coefficient(value, unit) for name, (unit, value) in UNITS.items()},
        sharpness=coefficient(5.0, "1"),
        form=Form(windows=((0.5, 1024),)),
        held_out=(
            HeldOut(part="random", regime="all", rows_each=16, count=9, median=0.01, p95=0.02, signed_mean=-0.001),
        ),
        domain={"decode": {"decode_rows": (1.0, 13.0)}},
        residuals={"decode": Residuals(steps=100, quantiles=(0.9, 0.95, 0.99, 1.0, 1.01, 1.05, 1.1))},
        covariance=tuple(tuple(1e-12 if i == j else 0.0 for j in range(6)) for i in range(6)),
        notes=("a note",),
        provenance=Provenance(
            source="made up", engine="none", date="2026-01-01", files=("steps.csv",), sha256="0" * 64, rows=100, seed=0,
            rows_each=16,
        ),
    )  # fmt: skip


@pytest.fixture
def path(profile, tmp_path):
    path = tmp_path / "toy.yaml"
    profiles.save(profile, path)
    return path


def edited(path, edit):
    data = yaml.safe_load(path.read_text())
    edit(data)
    path.write_text(yaml.safe_dump(data))
    return path


def test_round_trip(profile, path):
    again = profiles.load(path)
    assert again == profile
    assert profiles.dump(again) == path.read_text()
    assert [p.name for p in path.parent.iterdir()] == ["toy.yaml"]


def test_the_cost_model_is_that_of_the_file(path):
    cost = profiles.load(path).cost()
    assert cost.calibrated
    assert cost.name == "toy"
    assert (cost.token_s, cost.sharpness, cost.windows) == (3.95e-5, 5.0, ((0.5, 1024),))
    assert cost.extrapolated(StepShape(0, 0, 0, 0, 14, 0, 0)) is True


@pytest.mark.parametrize(
    ("edit", "place", "problem"),
    [
        (lambda d: d.update(colour="red"), "colour", "is no key of a profile"),
        (lambda d: d.pop("model"), "model", "required"),
        (lambda d: d["coefficients"]["token_s"].update(value="fast"), "coefficients.token_s.value", "'fast'"),
        (lambda d: d["coefficients"]["token_s"].update(value=-1.0), "coefficients.token_s.value", "-1.0"),
        (lambda d: d["coefficients"]["token_s"].update(value=float("nan")), "coefficients.token_s.value", "finite"),
        (lambda d: d["coefficients"]["token_s"].update(value=True), "coefficients.token_s.value", "number"),
        (lambda d: d["coefficients"].pop("row_s"), "coefficients.row_s", "is missing"),
        (lambda d: d["coefficients"].update(tokens=d["sharpness"]), "coefficients.tokens", "is no coefficient"),
        (lambda d: d.update(tensor_parallel=0), "tensor_parallel", "0"),
        (lambda d: d.update(tensor_parallel=1.5), "tensor_parallel", "1.5"),
        (lambda d: d.update(schema_version=2), "schema_version", "2"),
        (lambda d: d["domain"].update(prefil={}), "domain.prefil", "'prefil'"),
        (lambda d: d["domain"]["decode"].update(decode_rows=[1.0]), "domain.decode.decode_rows", "required"),
        (lambda d: d.update(covariance=[[1.0]]), "covariance", "6 x 6"),
        (lambda d: d["residuals"]["decode"].update(quantiles=[1.0]), "residuals.decode.quantiles", "7 numbers"),
        (lambda d: d["sharpness"].update(value=0.2), "coefficients", "sharpness"),
        (
            lambda d: [d["coefficients"][n].update(value=0.0, low=0.0) for n in d["coefficients"]],
            "coefficients",
            "step time must be > 0",
        ),
    ],
)
def test_refuses_what_a_profile_does_not_hold(path, edit, place, problem):
    with pytest.raises(InputError) as refused:
        profiles.load(edited(path, edit))
    assert str(refused.value).startswith(f"{path}: {place}")
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["- 1\n- 2\n", "a: [1,\n", ""])
def test_refuses_what_is_no_profile(tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"bad\.yaml"):
        profiles.load(path)


def test_refuses_a_binary_file(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InputError, match="is not YAML"):
        profiles.load(path)


def test_names_what_is_there():
    with pytest.raises(InputError, match="h100-qwen3-14b"):
        profiles.load("h100-qwen3-14")
    with pytest.raises(InputError, match="no such profile"):
        profiles.load("nowhere/x.yaml")


def test_requires_its_own_model_split_and_cache(profile):
    profile.require("qwen3-14b")
    for wanted, place in (
        (("qwen3-32b", 1, None), "model"),
        (("qwen3-14b", 2, None), "engine.tensor_parallel_size"),
        (("qwen3-14b", 1, "fp8"), "engine.kv_cache_dtype"),
    ):
        with pytest.raises(InputError, match="toy") as refused:
            profile.require(*wanted)
        assert refused.value.place == place


def test_shipped_profiles_load_and_say_where_they_come_from():
    assert "h100-qwen3-14b" in profiles.list_profiles()
    for name in profiles.list_profiles():
        shipped = profiles.load(name)
        assert shipped.name == name
        assert shipped.provenance.source
        assert shipped.provenance.engine
        text = (resources.directory("calibration") / f"{name}.yaml").read_text()
        assert profiles.dump(shipped) == text
