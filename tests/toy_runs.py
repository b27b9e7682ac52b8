"""Runs made by hand: what a replay returns, from schedulers of a few lines that share no code with the product.

It is here so that metrics and figures can be tested on runs whose every number follows from a page of code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from servecast import metrics
from servecast.batch import DECISION_COLUMNS, OutOfMemory, StepShape
from servecast.engine import GAP_COLUMNS
from servecast.report import Roof

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BLOCK = 16
COMPLETED, REJECTED, OOM, UNFINISHED = range(4)


@dataclass
class ToyRun:
    requests: dict[str, Any]
    decisions: dict[str, Any]
    gaps: Any = field(default_factory=lambda: gap_columns([]))
    oom: list[OutOfMemory] = field(default_factory=list)
    end_s: float = 0.0
    kv_blocks_total: int = 100
    respond: str = "stream"


def request_columns(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Columns of requests from rows; what a row leaves out is the obvious."""
    nan = float("nan")
    defaults: dict[str, Any] = {
        "scheduled_s": nan, "first_token_s": nan, "finish_s": nan, "prompt_tokens": 10, "output_tokens": 1,
        "generated_tokens": 0, "status": COMPLETED, "reject_reason": 0, "preemptions": 0, "recomputed_tokens": 0, "slot": 0,
        "arrival_s": 0.0,
    }  # fmt: skip
    full = [defaults | {"id": number} | row for number, row in enumerate(rows)]
    for row in full:
        row.setdefault("sent_s", row["arrival_s"])
        row.setdefault("output_limit", row["output_tokens"])
    names = [*defaults, "id", "sent_s", "output_limit"]
    times = {name for name in names if name.endswith("_s")}
    return {name: np.array([row[name] for row in full], float if name in times else np.int64) for name in names}


def gap_columns(rows: Sequence[tuple[float, float, float, int]]) -> dict[str, Any]:
    """Columns of gaps that are not one iteration long."""
    return dict(zip(GAP_COLUMNS, np.array(rows, float).reshape(-1, len(GAP_COLUMNS)).T, strict=True))


def decision_columns(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Columns of decisions from rows; counts left out are 0, useful parts all that was computed."""
    full = []
    for row in rows:
        row = {"iterations": 1, **row}
        row.setdefault("step_s", row["seconds"] / row["iterations"])
        row.setdefault("useful_prefill_tokens", row.get("prefill_tokens", 0))
        row.setdefault("useful_decode_rows", row.get("decode_rows", 0))
        row.setdefault("slots", row.get("prefill_rows", 0) + row.get("decode_rows", 0))
        full.append(row)
    times = {"start_s", "seconds", "step_s"}
    return {
        name: np.array([row.get(name, 0) for row in full], float if name in times else np.int64)
        for name in DECISION_COLUMNS
    }


def toy_seconds(shape: StepShape) -> Any:
    """A step of some 8 ms, growing with tokens and context."""
    return (
        0.008
        + 45e-6 * (shape.prefill_tokens + shape.decode_rows)
        + 12e-9 * (shape.decode_context + shape.prefill_context)
        + 3e-9 * shape.prefill_pairs
    )


class _Log:
    def __init__(self, seconds: Callable[[StepShape], Any], arrivals: Any, prompts: Any, outputs: Any) -> None:
        self.seconds = seconds
        self.rows: list[dict[str, float]] = []
        self.requests: list[dict[str, Any]] = [
            {"arrival_s": a, "prompt_tokens": p, "output_tokens": o, "status": UNFINISHED}
            for a, p, o in zip(arrivals, prompts, outputs, strict=True)
        ]

    def step(self, now: float, iterations: int, shape: StepShape, **counts: int) -> float:
        slope = self.seconds(shape._replace(decode_context=shape.decode_context + shape.decode_rows))
        first = self.seconds(shape)
        total = iterations * first + (slope - first) * iterations * (iterations - 1) / 2
        row = {"start_s": now, "iterations": iterations, "seconds": total, "step_s": first}
        self.rows.append(row | shape._asdict() | counts)
        return now + total

    def run(self, **fields: Any) -> ToyRun:
        return ToyRun(request_columns(self.requests), decision_columns(self.rows), **fields)


def batched(
    kind: str,
    arrivals: Sequence[float],
    prompts: Sequence[int],
    outputs: Sequence[int],
    batch_size: int = 8,
    max_wait_s: float = 0.5,
    capacity: int = 4000,
    seconds: Callable[[StepShape], Any] = toy_seconds,
    restart_s: float = 5.0,
) -> ToyRun:
    """Static or padded batching of requests in order of arrival."""
    log, oom, now, head, padded = _Log(seconds, arrivals, prompts, outputs), [], 0.0, 0, kind == "padded"
    while head < len(arrivals):
        opened = max(now, arrivals[head])
        full_at = arrivals[head + batch_size - 1] if head + batch_size <= len(arrivals) else np.inf
        now = max(opened, min(full_at, arrivals[head] + max_wait_s))
        upto = min(int(np.searchsorted(arrivals, now, side="right")), head + batch_size)
        members = list(range(head, max(upto, head + 1)))
        head = members[-1] + 1
        long = max(prompts[m] for m in members)
        size = [long if padded else prompts[m] for m in members]
        waiting = int(np.searchsorted(arrivals, now, side="right")) - head
        shape = StepShape(len(members), sum(size), sum(p * (p + 1) // 2 for p in size), 0, 0, 0, long)
        for slot, m in enumerate(members):
            log.requests[m] |= {"scheduled_s": now, "slot": slot}
        held = sum(-(-p // BLOCK) for p in size)
        if held > capacity:
            oom.append(OutOfMemory(now, len(members), held * 2e6, capacity * 2e6))
            for m in members:
                log.requests[m] |= {"finish_s": now, "status": OOM}
            now += restart_s
            continue
        useful = sum(prompts[m] for m in members)
        now = log.step(now, 1, shape, useful_prefill_tokens=useful, slots=len(members), kv_blocks=held, waiting=waiting)
        alive = [m for m in members if outputs[m] > 1]
        for m in members:
            log.requests[m] |= {"first_token_s": now, "generated_tokens": 1}
            if outputs[m] == 1:
                log.requests[m] |= {"finish_s": now, "status": COMPLETED}
        done = 1
        while alive:
            until = min(outputs[m] for m in alive)
            rows = members if padded else alive
            context = sum((long if padded else prompts[m]) + done for m in rows)

            def blocks(tokens: int, rows: list[int] = rows, long: int = long) -> int:
                return sum(-(-((long if padded else prompts[m]) + tokens) // BLOCK) for m in rows)

            while until > done and blocks(until) > capacity:
                until -= 1
            if until == done:
                oom.append(OutOfMemory(now, len(alive), blocks(done + 1) * 2e6, capacity * 2e6))
                for m in alive:
                    log.requests[m] |= {"finish_s": now, "status": OOM, "generated_tokens": done}
                now += restart_s
                break
            shape = StepShape(0, 0, 0, 0, len(rows), context, long + done)
            now = log.step(
                now, until - done, shape, useful_decode_rows=len(alive), slots=len(members), kv_blocks=blocks(until),
                waiting=int(np.searchsorted(arrivals, now, side="right")) - head,
                finished=sum(outputs[m] == until for m in alive),
            )  # fmt: skip
            done = until
            for m in [m for m in alive if outputs[m] == done]:
                log.requests[m] |= {"finish_s": now, "status": COMPLETED, "generated_tokens": done}
            alive = [m for m in alive if outputs[m] > done]
    return log.run(oom=oom, end_s=now, kv_blocks_total=capacity)


def continuous(
    arrivals: Sequence[float],
    prompts: Sequence[int],
    outputs: Sequence[int],
    max_num_seqs: int = 64,
    budget: int = 8192,
    capacity: int = 4000,
    seconds: Callable[[StepShape], Any] = toy_seconds,
) -> ToyRun:
    """Iteration-level batching with whole-prompt prefill and preemption of the last, FCFS."""
    log, gaps, now, head = _Log(seconds, arrivals, prompts, outputs), [], 0.0, 0
    running: list[int] = []
    back: list[int] = []
    done = [0] * len(arrivals)
    last_token = [0.0] * len(arrivals)
    free_slots = list(range(max_num_seqs))[::-1]

    def blocks(rows: list[int], ahead: int) -> int:
        return sum(-(-(prompts[m] + done[m] + ahead) // BLOCK) for m in rows)

    while running or back or head < len(arrivals):
        if not running and not back:
            now = max(now, arrivals[head])
        preempted = 0
        while blocks(running, 0) > capacity:
            victim = running.pop()
            back.insert(0, victim)
            free_slots.append(log.requests[victim]["slot"])
            entry = log.requests[victim]
            entry["preemptions"] = entry.get("preemptions", 0) + 1
            preempted += 1
        admitted: list[int] = []
        queue = back + list(range(head, int(np.searchsorted(arrivals, now, side="right"))))
        tokens = len(running)
        for m in [] if preempted else queue:
            new = prompts[m] + done[m]
            full = len(running) + len(admitted) == max_num_seqs
            if full or tokens + new > budget or blocks([*running, *admitted, m], 0) > capacity:
                break
            admitted.append(m)
            tokens += new
        again = [m for m in admitted if m in back]
        recomputed = sum(prompts[m] + done[m] for m in again)
        back = [m for m in back if m not in admitted]
        head += len(admitted) - len(again)
        size = [prompts[m] + done[m] for m in admitted]
        pairs = sum(p * (p + 1) // 2 for p in size)
        context = sum(prompts[m] + done[m] for m in running)
        longest = max([prompts[m] + done[m] for m in running + admitted], default=0)
        shape = StepShape(len(admitted), sum(size), pairs, 0, len(running), context, longest)
        iterations = 1
        if not admitted:
            iterations = min(outputs[m] - done[m] for m in running)
            while iterations > 1 and blocks(running, iterations - 1) > capacity:
                iterations -= 1
            if head < len(arrivals):
                iterations = max(min(iterations, int((arrivals[head] - now) / seconds(shape)) + 1), 1)
        for m in admitted:
            log.requests[m].setdefault("scheduled_s", now)
            log.requests[m]["slot"] = free_slots.pop()
        decoding, running = list(running), running + admitted
        now = log.step(
            now, iterations, shape, kv_blocks=blocks(running, iterations - 1), waiting=len(queue), preempted=preempted,
            recomputed_tokens=recomputed,
            finished=sum(done[m] + iterations >= outputs[m] for m in running),
        )  # fmt: skip
        for m in running:
            if m in again:
                gaps.append((m, now, now - last_token[m], 1))
                log.requests[m]["recomputed_tokens"] = (
                    log.requests[m].get("recomputed_tokens", 0) + prompts[m] + done[m]
                )
            done[m] += iterations if m in decoding else 1
            last_token[m] = now
            log.requests[m].setdefault("first_token_s", now)
            log.requests[m]["generated_tokens"] = done[m]
            if done[m] >= outputs[m]:
                log.requests[m] |= {"finish_s": now, "status": COMPLETED}
                free_slots.append(log.requests[m]["slot"])
        running = [m for m in running if done[m] < outputs[m]]
    return log.run(gaps=gap_columns(gaps), end_s=now, kv_blocks_total=capacity)


def chat(requests: int, rate_rps: float, seed: int = 1) -> tuple[Any, Any, Any]:
    """Poisson arrivals with lognormal lengths: arrivals [s], prompts and outputs [tokens]."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate_rps, requests))
    prompts = np.clip(rng.lognormal(6.3, 0.9, requests), 8, 6000).astype(int)
    outputs = np.clip(rng.lognormal(4.9, 0.7, requests), 2, 1000).astype(int)
    return arrivals.tolist(), prompts.tolist(), outputs.tolist()


class ToyModel:
    """Work of steps of a 14-billion-parameter model in bf16, as a `Hardware` wants it; priced by `toy_seconds`."""

    def step_flops(self, shape: Any, *, tensor_parallel: int = 1) -> Any:
        tokens = shape.prefill_tokens + shape.decode_rows
        attended = shape.prefill_pairs + shape.decode_context
        return (28e9 * tokens + 6e5 * attended) / tensor_parallel

    def step_bytes(self, shape: Any, *, kv_dtype: str | None = None, tensor_parallel: int = 1) -> Any:
        return (28e9 + 164e3 * (shape.decode_context + shape.prefill_tokens)) / tensor_parallel

    def seconds(self, shape: Any) -> Any:
        return toy_seconds(shape)

    def extrapolated(self, shape: Any) -> Any:
        return shape.max_context > 6000


@dataclass
class ToyResults:
    scenario: dict[str, Any]
    summary: pd.DataFrame
    requests: pd.DataFrame
    decisions: pd.DataFrame
    oom: pd.DataFrame
    notes: list[str]
    profile: dict[str, Any] | None
    roof: Roof | None
    warnings: tuple[str, ...] = ()
    tenants: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def kinds(self) -> dict[str, str]:
        """Toys are called after their kinds."""
        return {policy: policy for policy in dict.fromkeys(self.summary["policy"])}


def _keyed(frame: pd.DataFrame, keys: dict[str, Any]) -> pd.DataFrame:
    """The frame with constant columns first: policy, swept values, seed."""
    head = pd.DataFrame({name: [value] * len(frame) for name, value in keys.items()}, index=frame.index)
    return pd.concat([head, frame], axis=1)


def toy_results(points: Sequence[tuple[dict[str, Any], dict[str, ToyRun]]], **fields: Any) -> ToyResults:
    """Results of runs: (point keys with the seed last, runs by policy) each."""
    slo, hardware = metrics.Slo(ttft_s=1.0, tpot_s=0.05), metrics.Hardware(ToyModel(), 295.0, ToyModel())
    tables: dict[str, list[Any]] = {name: [] for name in ("summary", "requests", "decisions", "oom")}
    for keys, runs in points:
        for policy, run in runs.items():
            full = {"policy": policy, **keys}
            row = metrics.summarise(
                run, policy=policy, seed=keys["seed"], slo=slo, hardware=hardware, usd_per_hour=2.5, gpus=1
            )
            tables["summary"].append(full | {name: row[name] for name in row if name not in full})
            tables["requests"].append(_keyed(metrics.requests_frame(run), full))
            tables["decisions"].append(_keyed(metrics.decisions_frame(run, hardware), full))
            tables["oom"].append(_keyed(metrics.oom_frame(run), full))
    frames = {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items() if name != "summary"}
    defaults: dict[str, Any] = {
        "scenario": {"name": "toy", "model": "toy-14b", "slo": {"ttft_s": 1.0, "tpot_s": 0.05}, "policies": [1, 2]},
        "notes": ["A note with <angles> & ampersand."],
        "profile": {
            "name": "toy",
            "coefficients": {"weights": {"value": 0.008, "unit": "s"}, "matmul": {"value": 45e-6, "unit": "s"}},
            "held_out": [
                {
                    "part": "largest",
                    "regime": "mixed",
                    "count": 2000,
                    "median": 0.0041,
                    "p95": 0.0112,
                    "signed_mean": -0.003,
                }
            ],
            "domain": {"decode": {"decode_rows": [1, 256]}},
            "covariance": [[1.0, 0.0], [0.0, 1.0]],
            "notes": [],
            "provenance": {"source": "a table", "rows": 9000, "files": ["a.csv", "b.csv"]},
        },
        "roof": Roof("toy-gpu", 3.35e12, 989e12, calibrated=True),
    }
    return ToyResults(summary=pd.DataFrame(tables["summary"]), **frames, **(defaults | fields))


def chat_results(rates: Sequence[float] = (3, 6, 9), requests: int = 200, seeds: int = 1, **fields: Any) -> ToyResults:
    """A sweep over rates of the three policies."""
    points = []
    for rate in rates:
        for seed in range(1, seeds + 1):
            load = chat(requests, rate, seed)
            runs = {
                "static": batched("static", *load, batch_size=16),
                "padded": batched("padded", *load, batch_size=16, capacity=3500),
                "continuous": continuous(*load, capacity=1400),
            }
            keys = {"workload.arrivals.rate_rps": rate, "seed": seed} if len(rates) > 1 else {"seed": seed}
            points.append((keys, runs))
    return toy_results(points, **fields)
