"""What bounds a scenario, before anything runs, as tables: the memory budget, what fits, the ridge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servecast import memory
from servecast.cost.roofline import ridge, ridge_batch
from servecast.errors import InputError
from servecast.plan import lessons
from servecast.report.priced import price_of_a_step
from servecast.report.tables import table_of
from servecast.scenario import check, serving
from servecast.scenario.serving import memory_budget
from servecast.specs.start_up import SORTED_BYTES, start_up
from servecast.text import Table, gibibytes, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from servecast.memory import MemoryBudget
    from servecast.scenario import Scenario
    from servecast.scenario.serving import Serving
    from servecast.specs.model import ModelSpec
    from servecast.specs.start_up import StartUp

    Row = tuple[str, str, str]

_RIDGE = 140.0  # FLOP per byte: a round number near an A100's, to reckon with
_LENGTHS = (1024, 4096, 16384)  # tokens of a sequence, where no lengths are asked for


def bare_scenario(model: str, device: str | None, profile: str | None, folder: Path) -> dict[str, Any]:
    """A model on a device with the engine's defaults, as the plain data of a scenario (its load is of no account)."""
    data: dict[str, Any] = {"name": "explain", "model": model, "device": device, "profile": profile}
    one = {"kind": "fixed", "tokens": 1}
    data["workload"] = {"arrivals": {"kind": "burst"}, "prompt_tokens": one, "output_tokens": one, "requests": 1}
    data["policies"] = [{"kind": "continuous"}]
    checked = check(data, folder)
    defaults = memory.engine_defaults(serving(checked).device, checked.engine.like)
    for key in ("max_num_seqs", "max_num_batched_tokens"):
        data["policies"][0][key] = getattr(defaults, key)
    return data


def explain(scenario: Scenario, lengths: Sequence[int] = ()) -> Iterator[Table]:
    """Memory budget, concurrency at ``lengths``, ridge and price of a step of a scenario.

    Raises InputError with vLLM's own start-up errors where the engine would not start, after the budget that shows why.
    """
    served = serving(scenario)
    yield _model(served)
    steps: dict[tuple[int, int], list[str]] = {}
    for label, entry in zip(scenario.labels(), scenario.policies, strict=True):
        steps.setdefault(entry.build().set_aside, []).append(label)
    for step, labels in steps.items():
        label = ", ".join(labels)
        title, heads = f"memory per GPU: {served.model.name}, {label}", ("", "", "how")
        rows, left = _spent(scenario, served, step)
        try:
            budget = memory_budget(scenario, served, step)
        except memory.NotEnoughMemoryError:
            note = "less than nothing" if left < 0 else "too little: the error says for what"
            yield Table(title, heads, (*rows, ("= left for KV", gibibytes(left), note)))
            raise
        yield Table(title, heads, (*rows, *_cache(scenario, served, budget)))
        yield _concurrency(budget, lengths, label)
    yield _ridge(served, budget)
    yield price_of_a_step(served)


def _model(served: Serving) -> Table:
    """What the model is made of, and what a token and a sequence of it take on each GPU."""
    model, split = served.model, served.tensor_parallel
    kv_dtype = served.kv_dtype or model.cache_dtype
    token, state = model.kv_bytes_per_token(kv_dtype, split), model.state_bytes(split)
    caches = model.windows(kv_dtype, split).items()
    lasting = sum(layers * each for (window, each), layers in caches if window is None)
    windows = "" if lasting == token else f"; {lasting:,.0f} of them beyond the windows"
    parameters, active = model.parameters(), model.active_parameters()
    part = (("counted", "", "the language model alone: what reads images or sound comes on top"),)
    rows = (
        *(part if model.language_part else ()),
        ("parameters", f"{parameters:,}", "all are used" if active == parameters else f"{active:,} for one token"),
        *(("layers", f"{layers:,}", kind) for kind, layers in model.kinds.items()),
        *(("feed-forwards", f"{layers:,}", kind) for kind, layers in model.feed_forwards.items()),
        ("KV bytes a token", f"{token:,.0f}", f"in {kv_dtype}, on each GPU{windows}"),
        ("state bytes a sequence", f"{state:,.0f}", "on each GPU, however long it is" if state else "none"),
    )
    return Table(f"model: {model.name}", ("", "", ""), rows)


def _spent(scenario: Scenario, served: Serving, step: tuple[int, int]) -> tuple[list[Row], float]:
    """The lines of the budget down to the KV cache, and the bytes they leave."""
    model, split = served.model, served.tensor_parallel
    usable = served.memory_share * served.device.memory_bytes
    eager = scenario.engine.enforce_eager
    parameters = f"{model.parameters():,} parameters" + (f" / {split} GPUs" if split > 1 else "")
    version = start_up(scenario.engine.like)
    groups = [f"{version.communicators} communicator" + "s" * (version.communicators > 1)] if split > 1 else []
    overhead = ["libraries", *([] if eager else ["CUDA graphs"]), *groups]
    taken = (
        ("- weights", model.weight_bytes(split), parameters),
        ("- activation peak", version.activation_bytes(model, *step, split), _peak(model, version, step, split)),
        ("- runtime overhead", version.overhead_bytes(split, eager), ", ".join(overhead)),
    )
    share = f"gpu_memory_utilization {served.memory_share:g} x device memory ({scenario.engine.like})"
    lines = (
        ("device memory", served.device.memory_bytes, f"{served.device.name}, as the driver shows it"),
        ("usable", usable, share),
        *taken,
    )
    left = usable - sum(count for _, count, _ in taken)
    return [(name, gibibytes(count), how) for name, count, how in lines], left


def _held(model: ModelSpec, budget: MemoryBudget) -> str:
    """What a sequence holds beside blocks of all layers; '' where it is those alone."""
    growth = budget.growth
    parts = []
    if growth.sliding:
        window = f"{growth.sliding} slide and keep at most {growth.window} blocks each"
        parts.append(f"{growth.full + growth.sliding} groups of layers, of which {window}")
    elif any(window for window, _ in model.windows()):
        parts.append(f"every layer counts in full, sliding or not ({budget.like})")
    if growth.own:
        parts.append(f"{growth.own} for the states of recurrent layers, however long it is")
    return "at max_model_len: " + "; ".join(parts) if parts else ""


def _peak(model: ModelSpec, version: StartUp, step: tuple[int, int], gpus: int) -> str:
    """Which of the two moments the activation peak is, and what the other takes."""
    tokens, rows = step
    layers = gibibytes(model.forward_bytes_peak(tokens, gpus))
    sampling = gibibytes(model.hidden_bytes(tokens) + version.sampling_bytes(model, rows))
    drawn = f"{version.sampled_bytes} bytes a row and vocabulary entry"
    if version.sampled_bytes < SORTED_BYTES:
        drawn += (
            f"; before vLLM 0.17, which sorts, {SORTED_BYTES}: {gibibytes(SORTED_BYTES * rows * model.padded_vocab)}"
        )
    return f"the larger of {tokens:,} tokens in the layers, {layers}, and {rows:,} rows sampled, {sampling} ({drawn})"


def _cache(scenario: Scenario, served: Serving, budget: MemoryBudget) -> Iterator[Row]:
    """The lines of the KV cache."""
    given = scenario.engine.kv_blocks is not None
    yield "= KV cache", gibibytes(budget.kv_bytes), "kv_blocks was given" if given else "what is left"
    block = f"of {budget.block_size} tokens, {budget.block_bytes / 1024:,.0f} KiB"
    yield "KV blocks", f"{budget.kv_blocks:,}", f"{block}; rounded down, less the null block"
    if how := _held(served.model, budget):
        yield "blocks a sequence", f"{budget.blocks_of(budget.max_model_len):,}", how
    each = budget.block_bytes * budget.growth.full / budget.block_size
    token = f"{each:,.0f} bytes per token in {budget.kv_dtype}"
    yield "KV tokens", f"{budget.kv_tokens:,}", token
    yield "max_model_len", f"{budget.max_model_len:,}", "longest prompt plus answer"


def _concurrency(budget: MemoryBudget, lengths: Sequence[int], label: str) -> Table:
    rows = []
    for length in sorted({*(lengths or _LENGTHS), budget.max_model_len}):
        fits = budget.blocks_of(length) <= budget.kv_blocks
        note = "max_model_len" if length == budget.max_model_len else ""
        sequences = f"{budget.max_concurrency(length):,.2f}x" if fits else "0"
        rows.append((f"{length:,}", sequences, note if fits else _start_up_error(budget, length)))
    return Table(f"largest concurrency: {label}", ("tokens each", "sequences", ""), tuple(rows))


def _start_up_error(budget: MemoryBudget, length: int) -> str:
    """What vLLM says when it starts with a max_model_len of ``length``."""
    same = {name: getattr(budget, name) for name in
            ("block_size", "max_num_seqs", "kv_dtype", "tensor_parallel", "kv_blocks", "like")}  # fmt: skip
    try:
        memory.budget(
            budget.model, budget.device, gpu_memory_utilization=budget.usable_bytes / budget.total_bytes,
            max_num_batched_tokens=1, max_model_len=length, **same,
        )  # fmt: skip
    except InputError as error:
        return error.problem
    return ""


def _ridge(served: Serving, budget: MemoryBudget) -> Table:
    model, device, split = served.model, served.device, served.tensor_parallel
    peak = model.weight_dtype if model.weight_dtype in device.flops else model.dtype
    rows = [("ridge", f"{ridge(model, device):,.1f} FLOP/byte", f"{device.name} in {peak}, datasheet")]
    batch = ridge_batch(model, device, split)
    name = "decode reaches it at batch"
    if batch is None:
        rows.append((name, "never", "reading the linear layers takes longer at any batch"))
    else:
        rows += [
            (name, f"{batch:,}", "linear layers: FLOPs at the peak take as long as weights (experts touched) to read"),
            ("KV memory stops it first from", *_wall(budget, batch)),
        ]
    return Table("ridge", ("", "", "how"), tuple(rows))


def _wall(budget: MemoryBudget, batch: int) -> tuple[str, str]:
    """From which length on fewer sequences than ``batch`` fit into the cache."""
    context = budget.growth.longest(budget.kv_blocks // batch)
    stops = f"{context + 1:,} tokens each" if context else "any context"
    return stops, f"{budget.kv_tokens:,} KV tokens / {batch:,} sequences, in whole blocks"


def worked_numbers() -> Iterator[Table]:
    """The lessons with their numbers: intensity, ridges, the memory wall, padding."""
    layers = {batch: lessons.layer_intensity(batch) for batch in (1, 8, 64, 256)}
    yield Table(
        "a 4096 x 4096 bf16 layer: FLOP per byte",
        ("batch", "weights alone", "with activations"),
        tuple((f"{batch}", f"{it.weights_only:.1f}", f"{it.with_activations:.2f}") for batch, it in layers.items()),
    )
    yield Table(
        "batch at which decode crosses the ridge (bf16)",
        ("device", "FLOP/byte", "batch, weights alone", "batch, with activations (width 4096)"),
        (
            _crossing("example, a ridge of 140", _RIDGE, f"{_RIDGE:g}"),
            *(_crossing(name, ridge, f"{ridge:,.1f}") for name, ridge in lessons.ridges().items()),
        ),
    )
    # Both ridges of one device under each other: without a word they look like the same row twice.
    walls = [wall for pair in zip(lessons.memory_walls(_RIDGE), lessons.memory_walls(), strict=True) for wall in pair]
    yield table_of(
        "context from which KV memory stops the batch before the ridge does",
        [
            {
                "model": wall.model, "device": wall.device,
                "ridge [FLOP/byte]": f"{wall.ridge:,.1f}, {'the example' if wall.ridge == _RIDGE else 'its own'}",
                "batch there": f"{wall.batch:,}", "KV tokens": f"{wall.kv_tokens:,}",
                "context [tokens]": f"{wall.context:,}",
            }
            for wall in walls
        ],
    )  # fmt: skip
    waste = lessons.padding_waste()
    yield Table(
        "one prompt of 2,000 tokens padded together with seven of 50",
        ("", "computed", "useful", "padding"),
        (
            ("prompt tokens", f"{waste.computed_tokens:,}", f"{waste.useful_tokens:,}", percent(waste.tokens)),
            ("attention pairs", f"{waste.computed_pairs:,}", f"{waste.useful_pairs:,}", percent(waste.pairs)),
        ),
    )


def _crossing(name: str, ridge: float, label: str) -> tuple[str, ...]:
    at = lessons.ridge_crossing(ridge)
    reached = "never" if at.with_activations is None else f"{at.with_activations:,}"
    return name, label, f"{at.weights_only:,}", reached
