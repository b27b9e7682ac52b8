"""The house stays as small as it is: `tools/bars.py` measures it, and this holds it to its bars."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parent.parent / "tools" / "bars.py"


@pytest.fixture(scope="module")
def bars():
    spec = importlib.util.spec_from_file_location("bars", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_house_is_within_its_bars(bars):
    figures, longest, circles = bars.measured()
    assert figures.keys() == bars.MOST.keys()
    beyond = {name: figures[name] for name, most in bars.MOST.items() if figures[name] > most}
    assert beyond == {}, (longest[:3], circles)


def test_the_measure_sees_what_it_is_for(bars):
    tree = ast.parse(
        "def one():\n    pass\n\n\nclass Two:\n    def three(self): ...\n\n\n_four = 4\ndef _five(): ...\n"
    )
    assert bars.public_names(tree) == {"one", "Two"}
    assert bars.cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == [["b", "c"]]
