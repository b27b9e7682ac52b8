"""What bounds a scenario, before anything runs: the memory budget, what fits, the ridge; as plain tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servecast import memory
from servecast.errors import InputError
from servecast.plan import lessons
from servecast.scenario import check, serving
from servecast.scenario.serving import memory_budget
from servecast.specs import catalogue
from servecast.text import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from servecast.memory import MemoryBudget
    from servecast.scenario import Scenario
    from servecast.scenario.serving import Serving

GIB = 1 << 30
RIDGE = 140.0  # FLOP per byte: a round number near an A100's, to reckon with


def bare_scenario(model: str, device: str | None, profile: str | None, folder: Path) -> dict[str, Any]:
    """A model on a device with the engine's defaults, as the plain data of a scenario (its load is of no account)."""
    data: dict[str, Any] = {"name": "explain", "model": model, "device": device, "profile": profile}
    data["workload"] = {
        "arrivals": {"kind": "burst"},
        "prompt_tokens": {"kind": "fixed", "tokens": 1},
        "output_tokens": {"kind": "fixed", "tokens": 1},
        "requests": 1,
    }
    data["policies"] = [{"kind": "continuous"}]
    checked = check(data, folder)
    defaults = memory.engine_defaults(serving(checked).device, checked.engine.like)
    data["policies"] = [
        {
            "kind": "continuous",
            "max_num_seqs": defaults.max_num_seqs,
            "max_num_batched_tokens": defaults.max_num_batched_tokens,
        }
    ]
    return data


def explain(scenario: Scenario, lengths: Sequence[int] = ()) -> Iterator[Table]:
    """Memory budget, concurrency at ``lengths`` and ridge of a scenario.

    Raises InputError with vLLM's own start-up errors where the engine would not start, after the budget that shows why.
    """
    served = serving(scenario)
    steps: dict[tuple[int, int], list[str]] = {}
    for label, entry in zip(scenario.labels(), scenario.policies, strict=True):
        steps.setdefault(entry.build().set_aside, []).append(label)
    for step, labels in steps.items():
        try:
            budget = memory_budget(scenario, served, step)
        except memory.NotEnoughMemoryError:
            yield _overdrawn(scenario, served, step, ", ".join(labels))
            raise
        yield _budget(scenario, served, budget, step, ", ".join(labels))
        yield _concurrency(budget, lengths, ", ".join(labels))
    yield _ridge(served, budget)


def _spent(scenario: Scenario, served: Serving, step: tuple[int, int]) -> tuple[list[tuple[str, str, str]], float]:
    """The lines of the budget down to the KV cache, and the bytes they leave."""
    model, split = served.model, served.tensor_parallel
    usable = served.memory_share * served.device.memory_bytes
    eager = scenario.engine.enforce_eager
    rows = [
        ("device memory", float(served.device.memory_bytes), f"{served.device.name}, as the driver shows it"),
        ("usable", usable, f"gpu_memory_utilization {served.memory_share:g} x device memory ({scenario.engine.like})"),
        (
            "- weights",
            model.weight_bytes(split),
            f"{model.parameters():,} parameters" + (f" / {split} GPUs" if split > 1 else ""),
        ),
        (
            "- activation peak",
            model.activation_bytes_peak(*step, split),
            f"step of {step[0]:,} tokens, {step[1]:,} rows sampled",
        ),
        (
            "- runtime overhead",
            float(memory.overhead_bytes(split, eager)),
            ", ".join(["libraries", *([] if eager else ["CUDA graphs"]), *(["communicator"] if split > 1 else [])]),
        ),
    ]
    left = usable - sum(count for name, count, _ in rows if name.startswith("-"))
    return [(name, _gib(count), how) for name, count, how in rows], left


def _overdrawn(scenario: Scenario, served: Serving, step: tuple[int, int], label: str) -> Table:
    """The budget of an engine that would not start, as far as it goes."""
    rows, left = _spent(scenario, served, step)
    note = "less than nothing" if left < 0 else "too little: the error says for what"
    rows.append(("= left for KV", _gib(left), note))
    return Table(f"memory per GPU: {served.model.name}, {label}", ("", "", "how"), tuple(rows))


def _budget(scenario: Scenario, served: Serving, budget: MemoryBudget, step: tuple[int, int], label: str) -> Table:
    rows = [
        *_spent(scenario, served, step)[0],
        ("= KV cache", _gib(budget.kv_bytes), _cache(scenario, budget)),
        *_windows(served, budget),
        (
            "KV blocks",
            f"{budget.kv_blocks:,}",
            f"of {budget.block_size} tokens, {budget.block_bytes / 1024:,.0f} KiB; rounded down, less the null block",
        ),
        (
            "KV tokens",
            f"{budget.kv_tokens:,}",
            f"{budget.block_bytes / budget.block_size:,.0f} bytes per token in {budget.kv_dtype}",
        ),
        ("max_model_len", f"{budget.max_model_len:,}", "longest prompt plus answer"),
    ]
    return Table(f"memory per GPU: {served.model.name}, {label}", ("", "", "how"), tuple(rows))


def _windows(served: Serving, budget: MemoryBudget) -> Iterator[tuple[str, str, str]]:
    """What sliding windows take of the KV cache, and in which of the two layouts; nothing for a model without any."""
    aside = served.model.window_bytes(budget.block_size, budget.kv_dtype, served.tensor_parallel)
    if not aside:
        return
    each = f"{_mib(aside)} for each of {budget.max_num_seqs:,} sequences"
    if budget.window_bytes:
        how = f"set aside, {each}: a smaller max_num_seqs leaves more; blocks hold full layers alone"
    else:
        how = f"every layer counted in full, which holds more than {each} set aside; a smaller max_num_seqs may turn it"
    yield "- sliding windows", _gib(budget.window_bytes), how


def _cache(scenario: Scenario, budget: MemoryBudget) -> str:
    return "kv_blocks was given" if scenario.engine.kv_blocks is not None else "what is left"


def _concurrency(budget: MemoryBudget, lengths: Sequence[int], label: str) -> Table:
    asked = sorted({*(lengths or (1024, 4096, 16384)), budget.max_model_len})
    rows = []
    for length in asked:
        if budget.blocks_of(length) > budget.kv_blocks:
            rows.append((f"{length:,}", "0", _start_up_error(budget, length)))
        else:
            note = "max_model_len" if length == budget.max_model_len else ""
            rows.append((f"{length:,}", f"{budget.max_concurrency(length):,.2f}x", note))
    return Table(f"largest concurrency: {label}", ("tokens each", "sequences", ""), tuple(rows))


def _start_up_error(budget: MemoryBudget, length: int) -> str:
    """What vLLM says when it starts with a max_model_len of ``length``."""
    try:
        memory.budget(
            budget.model,
            budget.device,
            gpu_memory_utilization=budget.usable_bytes / budget.total_bytes,
            block_size=budget.block_size,
            max_num_batched_tokens=1,
            max_num_seqs=budget.max_num_seqs,
            kv_dtype=budget.kv_dtype,
            tensor_parallel=budget.tensor_parallel,
            kv_blocks=budget.kv_blocks,
            max_model_len=length,
        )
    except InputError as error:
        return error.problem
    return ""


def _ridge(served: Serving, budget: MemoryBudget) -> Table:
    ridge = served.device.ridge(served.model.dtype)
    crossing = lessons.ridge_crossing(ridge, dtype=served.model.dtype)
    context = budget.kv_blocks // crossing.weights_only * budget.block_size
    rows = [
        ("ridge", f"{ridge:,.1f} FLOP/byte", f"{served.device.name} in {served.model.dtype}, datasheet"),
        ("decode reaches it at batch", f"{crossing.weights_only:,}", "weights alone, ridge x bytes per value / 2"),
        (
            "KV memory stops it first from",
            f"{context + 1:,} tokens each" if context else "any context",
            f"{budget.kv_tokens:,} KV tokens / {crossing.weights_only:,} sequences, in whole blocks",
        ),
    ]
    return Table("ridge", ("", "", "how"), tuple(rows))


def worked_numbers() -> Iterator[Table]:
    """The lessons with their numbers: intensity, ridges, the memory wall, padding."""
    layers = [lessons.layer_intensity(batch) for batch in (1, 8, 64, 256)]
    yield Table(
        "a 4096 x 4096 bf16 layer: FLOP per byte",
        ("batch", "weights alone", "with activations"),
        tuple((f"{layer.batch}", f"{layer.weights_only:.1f}", f"{layer.with_activations:.2f}") for layer in layers),
    )
    crossing = lessons.ridge_crossing(RIDGE)
    reached = "never" if crossing.with_activations is None else f"{crossing.with_activations:,}"
    ridges = [("example, a ridge of 140", f"{RIDGE:g}", f"{crossing.weights_only:,}", reached)]
    for name, ridge in lessons.ridges().items():
        at = lessons.ridge_crossing(ridge)
        reached = "never" if at.with_activations is None else f"{at.with_activations:,}"
        ridges.append((name, f"{ridge:,.1f}", f"{at.weights_only:,}", reached))
    yield Table(
        "batch at which decode crosses the ridge (bf16)",
        ("device", "FLOP/byte", "batch, weights alone", "batch, with activations (width 4096)"),
        tuple(ridges),
    )
    # Both ridges of one device under each other: without a word they look like the same row twice.
    walls = [wall for pair in zip(lessons.memory_walls(RIDGE), lessons.memory_walls(), strict=True) for wall in pair]
    yield Table(
        "context from which KV memory stops the batch before the ridge does",
        ("model", "device", "ridge [FLOP/byte]", "batch there", "KV tokens", "context [tokens]"),
        tuple(
            (
                wall.model,
                wall.device,
                f"{wall.ridge:,.1f}, {'the example' if wall.ridge == RIDGE else 'its own'}",
                f"{wall.batch:,}",
                f"{wall.kv_tokens:,}",
                f"{wall.context:,}",
            )
            for wall in walls
        ),
    )
    waste = lessons.padding_waste()
    yield Table(
        "one prompt of 2,000 tokens padded together with seven of 50",
        ("", "computed", "useful", "padding"),
        (
            ("prompt tokens", f"{waste.computed_tokens:,}", f"{waste.useful_tokens:,}", f"{waste.tokens:.1%}"),
            ("attention pairs", f"{waste.computed_pairs:,}", f"{waste.useful_pairs:,}", f"{waste.pairs:.1%}"),
        ),
    )


def listing(what: str) -> Table:
    """What is shipped: models, devices, profiles, policies or scenarios."""
    return {
        "models": _models,
        "devices": _devices,
        "profiles": _profiles,
        "policies": _policies,
        "scenarios": _scenarios,
    }[what]()


def _models() -> Table:
    rows = tuple(
        (
            spec.name,
            f"{spec.parameters() / 1e9:.2f}",
            f"{spec.active_parameters() / 1e9:.2f}",
            _gib(spec.weight_bytes()),
            f"{spec.kv_bytes_per_token():,.0f}",
            f"{spec.max_position:,}" if spec.max_position else "",
        )
        for spec in catalogue.models()
    )
    heads = ("name", "parameters [B]", "active [B]", "weights", "KV bytes per token", "longest [tokens]")
    return Table("models", heads, rows)


def _devices() -> Table:
    rows = tuple(
        (
            spec.name,
            _gib(spec.memory_bytes),
            f"{spec.bandwidth_Bps / 1e12:.3g}",
            f"{spec.peak_flops('bf16') / 1e12:,.4g}",
            f"{spec.ridge('bf16'):,.1f}",
            f"{spec.tdp_w:g}",
        )
        for spec in catalogue.devices()
    )
    heads = ("name", "memory", "bandwidth [TB/s]", "bf16 [TFLOP/s]", "ridge [FLOP/byte]", "TDP [W]")
    return Table("devices (datasheets)", heads, rows)


def _profiles() -> Table:
    from servecast.cost import profile

    loaded = [profile.load(name) for name in profile.list_profiles()]
    rows = tuple(
        (one.name, one.model, f"{one.tensor_parallel} x {one.device}", one.provenance.engine, one.provenance.date)
        for one in loaded
    )
    return Table("profiles (calibrated)", ("name", "model", "device", "engine", "fitted"), rows)


def _policies() -> Table:
    from servecast.policies import POLICIES
    from servecast.scenario.schema import policy_keys

    rows = []
    for kind in POLICIES:
        for at, (key, default, text) in enumerate(policy_keys(kind)):
            rows.append((kind if at == 0 else "", key, default, text))
    return Table("policies", ("kind", "key", "default", ""), tuple(rows))


def _scenarios() -> Table:
    from servecast.scenario import find, names

    rows = tuple((name, _lesson(find(name).read_text(encoding="utf-8"))) for name in names())
    return Table("scenarios", ("name", "lesson"), rows)


def _lesson(text: str) -> str:
    """The first sentence of the comment that a scenario opens with."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines).split(". ")[0].removesuffix(".")


def _mib(count: float) -> str:
    return f"{count / (1 << 20):,.1f} MiB"


def _gib(count: float) -> str:
    return f"{count / GIB:,.2f} GiB"
