"""The README is short, and its sample is how the verdict of the command beside it begins. `test_docs` runs the rest of it."""

from __future__ import annotations

import re
from pathlib import Path

from servecast import load, simulate
from servecast.report import verdict

TEXT = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def sample(name: str) -> str:
    (found,) = re.findall(rf"<!-- sample: {name} -->\n```text\n(.*?)```", TEXT, flags=re.DOTALL)
    return " ".join(found.split())


def test_OUT_06_the_sample_is_how_the_verdict_begins():
    assert "servecast run quickstart --set 'sweep={workload.arrivals.rate_rps: [8]}'" in TEXT
    results = simulate(load("quickstart", {"sweep": {"workload.arrivals.rate_rps": [8]}}))
    assert sample("quickstart-8") == verdict(results.summary, results.scenario["slo"], calibrated=True).headline


def test_it_is_read_in_five_minutes():
    assert len(TEXT.splitlines()) <= 150
    assert TEXT.count("](docs/how-to/") >= 6
