"""The README is short, and its sample is how the verdict of the command beside it begins. `test_docs` runs the rest of it."""

from __future__ import annotations

import re
from pathlib import Path

from servecast import load, simulate
from servecast.report import verdict

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


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


def test_its_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_its_tree_has_a_place_for_everything():
    tree = TEXT.partition("## The tree")[2]
    names = {path.stem for path in (ROOT / "src/servecast").glob("*.py")} | {
        path.parent.name for path in (ROOT / "src/servecast").glob("*/__init__.py")
    }
    assert sorted(name for name in names if not name.startswith("_") and not re.search(rf"\b{name}\b", tree)) == []
    for path in ("specs/devices.yaml", "workload/traces", "policies/__init__.py", "metrics/table.py"):
        assert path.rpartition("/")[0] in tree
        assert (ROOT / "src/servecast" / path).exists()
    assert list((ROOT / "src/servecast/report").glob("*_charts.py"))
