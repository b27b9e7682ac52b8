"""The shipped scenarios teach what their comments say, to the digits that stand there."""

from __future__ import annotations

from functools import cache

import pytest

from servecast import load, report, simulate


@cache
def simulated(name: str):
    """The results of a shipped scenario."""
    return simulate(load(name))


def by(name: str, *keys: str):
    """The summary of a shipped scenario, by policy and swept values."""
    return simulated(name).summary.set_index(["policy", *keys])


def test_verdicts():
    """The first words are the lesson."""
    started = {
        "quickstart": "Continuous serves 7.88 req/s within the targets at rate_rps 8, 42 times static at rate_rps 1.",
        "straggler": "Continuous gives its first token after 1.31 s in the median, 13 times sooner than static.",
        "padding-waste": "Static serves 83.1 req/s, as many as continuous and 6.8 times padded.",
        "memory-cliff": "Continuous serves 5.77 req/s, 2.2 times static at batch_size 128.",
    }
    for name, words in started.items():
        results = simulated(name)
        assert report.verdict(results.summary, results.scenario["slo"]).headline == words, name
    assert "$0.421 of the whole bill per million output tokens" in str(report.verdict(simulated("quickstart").summary))


def test_quickstart():
    table = by("quickstart", "workload.arrivals.rate_rps")
    most = table["request_throughput_rps"].groupby("policy").max()
    assert most["static"] == pytest.approx(2.4, abs=0.05)
    assert most["padded"] == pytest.approx(1.5, abs=0.05)
    assert most["continuous"] == pytest.approx(11, abs=0.5)
    assert table.loc[("continuous", 8), "goodput_rps"] == pytest.approx(7.9, abs=0.05)
    assert (table["completed"] == 2000).all()


def test_padding_waste():
    table = by("padding-waste")
    assert table.loc["padded", "padding_waste"] == pytest.approx(0.853, abs=0.0005)
    assert table.loc["padded", "computed_tokens"] == 16_000
    assert table.loc["padded", "ttft_p50_s"] == pytest.approx(0.65, abs=0.01)
    assert table.loc["static", "ttft_p50_s"] == pytest.approx(0.10, abs=0.01)
    assert table.loc["static", "ttft_p50_s"] == table.loc["continuous", "ttft_p50_s"]


def test_straggler():
    table = by("straggler")
    assert table.loc["static", "slot_waste"] == pytest.approx(0.77, abs=0.005)
    assert table.loc["continuous", "slot_waste"] == 0
    assert table.loc["static", "ttft_p50_s"] == pytest.approx(17, abs=0.5)
    assert table.loc["continuous", "ttft_p50_s"] == pytest.approx(1.3, abs=0.05)


def test_memory_cliff():
    table = by("memory-cliff", "policies[*].batch_size")
    failed = table["oom_failed"].unstack("policy")
    assert failed["padded"].gt(0).idxmax() == 64
    assert failed["static"].gt(0).idxmax() == 192
    assert failed.loc[192, "static"] / 1024 == pytest.approx(0.94, abs=0.005)
    assert table["request_throughput_rps"].unstack("policy")["static"].idxmax() == 128
    assert failed["continuous"].dropna().tolist() == [0]  # it has no batch size, so it runs once
    assert "padded loses requests at batch_size 64 and above" in report.verdict(simulated("memory-cliff").summary).rest
    assert "static loses requests at batch_size 192 and above" in report.verdict(simulated("memory-cliff").summary).rest
    assert len(simulated("memory-cliff").oom) == table["oom_events"].sum()
    assert (table.loc["continuous", "preemptions"] > 0).all()
    assert (table.loc["continuous", "kv_peak_fraction"] > 0.99).all()


def test_ridge():
    table = by("ridge", "policies[0].max_num_seqs").loc["continuous"]
    paces, rates = table["tpot_p50_s"], table["output_throughput_tps"]
    assert paces[[1, 8, 32, 64, 128]].between(0.010, 0.0115).all()
    assert rates[128] / rates[64] == pytest.approx(2, rel=0.1)
    assert paces[512] / paces[256] == pytest.approx(2, rel=0.1)
    assert rates[1024] / rates[256] < 1.05
    assert table["bandwidth_bound_fraction"][128] > 0.9
    assert table["bandwidth_bound_fraction"][256] < 0.01
