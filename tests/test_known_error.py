"""What is known of each kind of profile holds for what ships and is printed."""

from __future__ import annotations

import numpy as np
import pytest

from servecast.batch import StepShape, causal_pairs
from servecast.cost import profile as profiles
from servecast.cost.known_error import KNOWN, known_error
from servecast.cost.roofline import Roofline
from servecast.specs import catalogue


def _shapes():
    for rows in (1, 4, 16, 64, 128, 256):
        for context in (256, 1024, 4096):
            yield StepShape(0, 0, 0, 0, rows, rows * context, context)
    for tokens in (128, 512, 2048, 8192):
        yield StepShape(1, tokens, causal_pairs(tokens), 0, 0, 0, tokens)
    for tokens in (256, 1024, 2048):
        for rows in (8, 32, 128):
            yield StepShape(1, tokens, causal_pairs(tokens), 0, rows, rows * 1024, 1024)


def test_nine_of_ten_steps_of_the_shipped_profiles_are_within_what_is_known_of_datasheets():
    ratios = []
    for name in profiles.list_profiles():
        profile = profiles.load(name)
        if profile.device == "cpu":
            continue
        model, device = catalogue.model(profile.model), catalogue.device(profile.device)
        sheet, cost = Roofline(model, device, profile.tensor_parallel, profile.kv_dtype), profile.cost()
        ratios += [float(cost.seconds(shape)) / float(sheet.seconds(shape)) for shape in _shapes()]
    known = KNOWN["datasheet"]
    assert np.quantile(ratios, [0.05, 0.95]) == pytest.approx([known.low, known.high], abs=0.02)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("h100-qwen3-14b", "steps"), ("cpu-tiny", "steps"), ("h100-qwen3-14b-ops", "operators"), (None, "datasheet")],
)
def test_the_kind_of_a_profile(name, kind):
    assert known_error(None if name is None else profiles.load(name)) is KNOWN[kind]


@pytest.mark.parametrize("kind", KNOWN)
def test_a_factor_at_a_rank(kind):
    known = KNOWN[kind]
    assert [known.at(rank) for rank in (0.05, 0.5, 0.95)] == pytest.approx([known.low, 1.0, known.high])
    assert known.at(0.01) < known.low < known.high < known.at(0.99)
    assert f"{known.low:g} to {known.high:g}" in known.words
