"""Pages to look at: of runs by hand, of a plan by hand, with names that somebody chose badly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pandas as pd
import toy_runs as toy

from servecast.against.device.validate import Case, Validation
from servecast.files import write_tables
from servecast.plan.answer import BreakEven, Change, Option, Plan, Tokens
from servecast.plan.basis import Basis
from servecast.plan.uncertainty import Estimate
from servecast.report import plan_page, validation_page
from servecast.report.run_page import run_page

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = """<script>alert(1)</script>"'&`\u2013\u202e naïve 名前 {{ 7*7 }}"""


def write(results: toy.ToyResults, folder: Path) -> Path:
    """Page and summary as `servecast.report.write_run` has them."""
    html = run_page(results, write_tables(folder, results.scenario, {"summary": results.summary}))
    (folder / "report.html").write_text(html, encoding="utf-8")
    return folder / "report.html"


def swept_results() -> toy.ToyResults:
    """Three policies at three rates, with two seeds."""
    return toy.chat_results(rates=(3, 6, 12), requests=70, seeds=2)


def swept(folder: Path) -> Path:
    """Its page."""
    return write(swept_results(), folder)


def single(folder: Path) -> Path:
    """One load, nothing swept."""
    return write(toy.chat_results(rates=(6,), requests=40), folder)


def hostile(folder: Path) -> Path:
    """A policy and a scenario of the worst names; a folder is named after neither."""
    results = toy.chat_results(rates=(3, 12), requests=30)
    for name in ("summary", "requests", "decisions", "oom"):
        table = getattr(results, name)
        table["policy"] = table["policy"].astype(str).replace("padded", HOSTILE)
    results.scenario |= {"name": "x", "model": HOSTILE, "note": HOSTILE}
    results.notes.append(HOSTILE)
    return write(results, folder)


def many(points: int) -> toy.ToyResults:
    """A sweep of so many points: rows of a summary alone, as of a sweep whose tables are not held."""
    base = toy.chat_results(rates=(3, 12), requests=30)
    key = "workload.arrivals.rate_rps"
    rows = base.summary.iloc[list(range(len(base.summary))) * (points // len(base.summary))].reset_index(drop=True)
    rates = [0.01 * (place // 3 + 1) for place in range(len(rows))]
    rows = rows.assign(**{key: rates, "request_throughput_rps": rates})
    shown = {key: rates[-1]}
    tables = {name: getattr(base, name).assign(**shown) for name in ("requests", "decisions", "oom")}
    return toy.ToyResults(base.scenario, rows, **tables, notes=[], profile=base.profile, roof=base.roof)


def option(label: str, each: float, parallel: int = 1, **fields: Any) -> Option:
    """A configuration that serves ``each`` requests a second."""
    capacity = Estimate(each, 0.95 * each, 1.04 * each)
    defaults: dict[str, Any] = {
        "changed": {"engine.max_num_seqs": 64}, "device": "toy-gpu", "calibrated": True, "tensor_parallel": parallel,
        "unit": "requests/s", "target": 20.0, "capacity": capacity, "target_replicas": 3, "target_gpus": 3 * parallel,
        "usd_per_hour": 2.5 * parallel, "tokens": Tokens(1000.0, 200.0), "binds": "KV memory",
        "usd_per_mtok": {"output": Estimate(0.4, 0.38, 0.42), "total": Estimate(0.07, 0.065, 0.075)},
        "usd_at_target": {"output": Estimate(0.48, 0.46, 0.5), "total": Estimate(0.084, 0.08, 0.09)},
    }  # fmt: skip
    return Option(label, **(defaults | fields))


def made_plan(name: str = "toy", label: str = "continuous") -> Plan:
    """Three configurations, one of which cannot be."""
    best = option(label, 24.0, replicas=3, usd_per_hour=7.5, at_target={"ttft_p99_s": Estimate(0.4, 0.38, 0.44)})
    refused = option(
        "static", 0.1, capacity=None, refused="out of memory", target_gpus=None, usd_per_mtok={}, usd_at_target={}
    )
    return Plan(
        name, {"ttft_p99_s": 1.0}, (option(label, 8.0), option("two GPUs", 13.0, 2, target_replicas=2, target_gpus=4), refused), best, True,
        headroom=Estimate(0.2, 0.14, 0.25), break_even=BreakEven(6.0, 0.25),
        changes=(Change("max_num_seqs=256", 9.0, 0.125), Change("fp8", 7.0, -0.05)), notes=("A note.",),
    )  # fmt: skip


def basis(name: str = "toy") -> Basis:
    """What such a plan rests on: a profile, and a data sheet."""
    profile = toy.chat_results(rates=(6,), requests=4).profile
    rests = {name: profile, "toy-sheet": None}
    return Basis({"name": name, "workload": {"requests": 40}, "goal": {"note": name}}, rests)


def plan(folder: Path) -> Path:
    """The page of a plan."""
    return plan_page.write(made_plan(), folder / "toy-plan", basis())


def bad_plan(folder: Path) -> Path:
    """The page of a plan of bad names."""
    return plan_page.write(made_plan(HOSTILE, HOSTILE), folder / "bad-plan", basis(HOSTILE))


def compared(folder: Path) -> Path:
    """The page of a comparison with a recording that is a little slower, its band and its twin."""
    import test_compare as made

    toy = made.scenario(folder, cap=3, network="{uplink_s: 0.003, downlink_s: 0.002}")
    run = made.record(folder / "run-vanilla.csv", made.load(toy), scale=1.02)
    made.record(folder / "run-patched.csv", made.load(toy))
    return made.write(made.command.compared(toy, run), folder)


def validated(folder: Path) -> Path:
    """The page of a validation in which the device was simulated too: nothing but the page is looked at."""
    load = toy.chat(40, 6)
    runs = {"static": toy.batched("static", *load, batch_size=16), "continuous": toy.continuous(*load)}
    cases = tuple(
        Case(
            policy, at, None if at == "burst" else 6.0, run, (SimpleNamespace(run=run), SimpleNamespace(run=run)), (), {},
            [{"regime": "decode", "count": 9, "total": 0.01, "median": 0.02, "p95": 0.04}],
            {name: {"median": 0.01, "p90": 0.03} for name in ("ttft", "tpot", "e2e")},
            drift=0.01, tries=1, conclusive=policy == "static", regime=("stable", "stable"),
        )
        for at in ("burst", 0.6)
        for policy, run in runs.items()
    )  # fmt: skip
    machine = {"processor": "a CPU", "torch": "2", "clock": "steady"}
    facts = {"identity": {}, "machine": machine, "noise": {}, "drift": {}, "references_s": {}}
    plan = SimpleNamespace(model_dump=lambda mode: {})
    return validation_page.write(Validation(plan, "toy", "cpu", facts, [], cases), folder / "toy")


def summary(page: Path) -> pd.DataFrame:
    """The table beside a page."""
    return pd.read_csv(page.with_name("summary.csv"))
