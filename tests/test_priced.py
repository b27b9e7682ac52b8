"""What each number of a step's price is: measured, fitted, pinned, borrowed or stated."""

from __future__ import annotations

import pytest

from servecast.report.explain import bare_scenario, explain
from servecast.scenario import check


@pytest.mark.parametrize(
    ("model", "device", "profile", "said"),
    [
        ("qwen3-14b", None, "h100-qwen3-14b", ["row_s: partly fitted", "context_s: pinned", "weight_read_s: pinned"]),
        ("llama-3.1-8b", None, "h200-llama-3.1-8b-ops", ["measured", "interpolated", "roofline"]),
        ("llama-3.1-8b", None, "a100-llama-3.1-8b-ops", ["stated: the middle of what recorded engines show"]),
        ("qwen3-32b", None, "rtx-pro-6000-qwen3-32b-ops", ["borrowed: taken from first third of an RTX PRO 6000 run"]),
        ("llama-3.1-8b", "h100-sxm", None, ["a datasheet's peaks at stated efficiencies, not measured"]),
    ],
)
def test_explain_says_where_each_term_comes_from(tmp_path, model, device, profile, said):
    priced = list(explain(check(bare_scenario(model, device, profile, tmp_path), tmp_path)))[-1]
    assert priced.title == "what a step takes"
    told = " ".join(row[-1] for row in priced.rows)
    assert all(word in told for word in said), told
    if profile == "h100-qwen3-14b":
        rows = {row[0]: row[2] for row in priced.rows}
        assert rows["rows"] == "10.86 ms"  # 256 rows of 42 us: fitted, not physics
