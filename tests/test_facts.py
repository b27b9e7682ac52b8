"""Known values of the field, and how near the memory model comes to them.

Every row of ``facts.csv`` that speaks of memory, size, padding or price is here with its value as a literal, so that
these tests bite without the file; where it is there (SERVECAST_SHARED), the literals must equal it, and no arithmetic
or logged row of those kinds may be missing. Arithmetic rows hold to the last printed digit, ten logged capacities and
the block counts of measured engines within 3 %, the rest is listed with its error and the likely reason or, where
the row does not say enough to predict anything, with what is missing
(``pytest -rP -k listed``).
"""

import csv
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from servecast.memory import GIB, budget
from servecast.plan.answer import Tokens, dollars
from servecast.plan.lessons import padding_waste
from servecast.plan.uncertainty import Estimate
from servecast.specs import catalogue, quantization
from servecast.specs.start_up import start_up

SHARED = Path(os.environ.get("SERVECAST_SHARED", Path(__file__).parents[2] / "shared"))
MIB = 1 << 20


def kv(name: str) -> float:
    return catalogue.model(name).kv_bytes_per_token("bf16")


def usd_per_mtok(usd_per_hour: float, tokens_per_s: float) -> float:
    return dollars(usd_per_hour, Estimate(tokens_per_s), Tokens(0.0, 1.0))["output"].value


class Arithmetic(NamedTuple):
    printed: str
    value: Callable[[], float]


ARITHMETIC = {
    "F001": Arithmetic("524288", lambda: kv("llama-2-7b")),
    "F002": Arithmetic("819200", lambda: kv("llama-2-13b")),
    "F003": Arithmetic("131072", lambda: kv("llama-3-8b")),
    "F005": Arithmetic("327680", lambda: kv("llama-3-70b")),
    "F006": Arithmetic("516096", lambda: kv("llama-3.1-405b")),
    "F007": Arithmetic("57344", lambda: kv("qwen2.5-7b")),
    "F009": Arithmetic("163840", lambda: kv("qwen3-14b")),
    "F011": Arithmetic("253952", lambda: kv("qwen3-coder-480b-a35b")),
    "F013": Arithmetic("70272", lambda: kv("deepseek-v3")),
    "F019": Arithmetic("15.62", lambda: catalogue.model("llama-3.1-8b").kv_bytes(128_000) / GIB),
    "F020": Arithmetic("39.06", lambda: catalogue.model("llama-3.1-70b").kv_bytes(128_000) / GIB),
    "F021": Arithmetic("640", lambda: catalogue.model("llama-2-70b").kv_bytes(16_384, tensor_parallel=8) / MIB),
    "F023": Arithmetic("8.578", lambda: catalogue.model("deepseek-v3").kv_bytes(131_072) / GIB),
    "F027": Arithmetic("2.049", lambda: catalogue.model("llama-2-7b").kv_bytes(4196) / GIB),
    "F037": Arithmetic("58.97", lambda: 71.29 - catalogue.model("llama-3-8b").weight_bytes(2) / GIB - 3.58 - 1.26),
    "F052": Arithmetic("14.957", lambda: catalogue.model("llama-3-8b").weight_bytes() / GIB),
    "F164": Arithmetic("37.5", lambda: 100 * padding_waste([10, 20, 30, 40]).tokens),
    "F173": Arithmetic("0.992", lambda: usd_per_mtok(2.5, 700)),
    "F175": Arithmetic("0.817", lambda: usd_per_mtok(10, 3400)),
    "F179": Arithmetic("0.254", lambda: usd_per_mtok(2.25, 2462)),
}
WHOLE_TRACES = {"F181", "F183"}  # statistics of two whole traces, of which slices lie there: tested by their readers


@pytest.mark.parametrize("fact", ARITHMETIC)
def test_arithmetic_holds_to_the_last_printed_digit(fact):
    printed = ARITHMETIC[fact].printed
    digits = len(printed.partition(".")[2])
    value = ARITHMETIC[fact].value()
    cut = int(value * 10**digits) / 10**digits  # F052 is cut, not rounded
    assert float(printed) in (round(value, digits), cut)


class Capacity(NamedTuple):
    """A logged capacity: what the log says, and what ran."""

    logged: float
    unit: str
    model: str
    device: str
    utilization: float
    batched_tokens: tuple[int, ...]
    sequences: tuple[int, ...]
    tensor_parallel: int = 1
    like: str = "vllm-0.15"
    weight_dtype: str | None = None


# Where a row does not say how many sequences or tokens its engine took, each plausible setting must hold: the rows of
# that project which say so have 128 sequences, vLLM's default was 256; 2,048 or 8,192 tokens.
CAPACITIES = {
    "F044": Capacity(36.56, "GiB", "gpt-oss-20b", "a100-80gb", 0.65, (2048,), (256,), 1, "vllm-0.19"),
    "F057": Capacity(41_408, "tokens", "llama-3.1-8b", "rtx4090", 0.9, (2048,), (256,), 1, "vllm-0.19"),
    "F059": Capacity(119_408, "tokens", "llama-2-7b", "h100-sxm", 0.9, (2048,), (128,)),
    "F060": Capacity(501_712, "tokens", "llama-2-70b", "h100-sxm", 0.9, (2048,), (128,), 4),
    "F061": Capacity(440_176, "tokens", "mixtral-8x7b", "h100-sxm", 0.9, (2048,), (128,), 2),
    "F063": Capacity(1_045_888, "tokens", "qwen2.5-7b", "h100-sxm", 0.9, (1024,), (128, 256)),
    "F064": Capacity(308_016, "tokens", "mistral-nemo-12b", "h100-sxm", 0.9, (2048, 8192), (128, 256)),
    "F065": Capacity(768_144, "tokens", "mistral-nemo-12b", "h100-sxm", 0.9, (2048, 8192), (128, 256), 2),
    "F067": Capacity(486_800, "tokens", "llama-3.1-70b", "h100-sxm", 0.9, (2048,), (128, 256), 4),
    "F068": Capacity(484_016, "tokens", "llama-3.1-70b", "h100-sxm", 0.9, (8192,), (128, 256), 4),
}


def predicted(capacity: Capacity, batched_tokens: int, sequences: int) -> float:
    """Capacity in the unit of the log; logged tokens include the null block's."""
    model = catalogue.model(capacity.model)
    made = budget(
        replace(model, weight_dtype=capacity.weight_dtype or model.weight_dtype),
        catalogue.device(capacity.device),
        gpu_memory_utilization=capacity.utilization,
        block_size=16,
        max_num_batched_tokens=batched_tokens,
        max_num_seqs=sequences,
        tensor_parallel=capacity.tensor_parallel,
        like=capacity.like,
    )
    return made.kv_bytes / GIB if capacity.unit == "GiB" else made.kv_tokens + 16


@pytest.mark.parametrize("fact", CAPACITIES)
def test_logged_capacities_within_3_percent(fact):
    capacity = CAPACITIES[fact]
    for tokens in capacity.batched_tokens:
        for sequences in capacity.sequences:
            assert predicted(capacity, tokens, sequences) == pytest.approx(capacity.logged, rel=0.03)


def test_a_larger_token_budget_leaves_fewer_blocks_as_f067_and_f068_log():
    for sequences in (128, 256):
        less, more = CAPACITIES["F067"], CAPACITIES["F068"]
        assert predicted(less, 2048, sequences) > predicted(more, 8192, sequences)


MEASURED = {
    "h100-qwen3-14b-vllm0.23": Capacity(
        18_038 * 16, "tokens", "qwen3-14b", "h100-sxm", 0.92, (8192,), (256,), 1, "vllm-0.23"
    )
}


@pytest.mark.parametrize("engine", MEASURED)
def test_blocks_of_measured_engines_within_3_percent(engine):
    capacity = MEASURED[engine]
    assert predicted(capacity, 8192, 256) == pytest.approx(capacity.logged, rel=0.03)


def test_every_measured_engine_that_logs_its_blocks_is_checked():
    engines = sorted(SHARED.glob("measured/*/engine.yaml"))
    if not engines:
        pytest.skip(f"no measured engines under {SHARED}: set SERVECAST_SHARED")
    for path in engines:
        engine = yaml.safe_load(path.read_text())
        if "num_gpu_blocks" in engine:
            assert MEASURED[path.parent.name].logged == engine["num_gpu_blocks"] * engine["block_size"]


# Mixtures of vLLM 0.9 and 0.10 at the 1,024 sequences and 8,192 tokens that are the default of an H100.
MIXTURES = {
    "F046": Capacity(-2.14, "GiB", "gpt-oss-120b", "h100-sxm", 0.9, (8192,), (1024,), 1, "vllm-0.10"),
    "F073": Capacity(8.11, "GiB", "qwen3-235b-a22b", "h100-sxm", 0.9, (8192,), (1024,), 4, "vllm-0.9"),
}
FP8_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}


@pytest.mark.parametrize("fact", MIXTURES)
def test_what_mixtures_of_experts_leave_within_0_3_gib(fact):
    logged = MIXTURES[fact]
    model = catalogue.model(logged.model)
    if model.weight_dtype is None:  # F073's checkpoint is in fp8
        fp8 = quantization.read(FP8_BLOCKS, "")
        [group] = model.groups
        model = replace(model, groups=(group._replace(layer=replace(group.layer, formats=fp8.formats(0))),))
    version, gpus = start_up(logged.like), logged.tensor_parallel
    taken = model.weight_bytes(gpus) + version.activation_bytes(model, 8192, 1024, gpus) + version.overhead_bytes(gpus)
    left = logged.utilization * catalogue.device(logged.device).memory_bytes - taken
    assert left / GIB == pytest.approx(logged.logged, abs=0.3)


LISTED = {
    "F036": (Capacity(53.29, "GiB", "llama-3-8b", "h100-sxm", 0.9, (8192,), (256,), 1, "vllm-0.6"),
             "vLLM 0.6 counted 1.79 GiB of CUDA context as non-torch memory inside the budget; V1 does not"),
    "F038": (Capacity(3.81, "GiB", "llama-3.1-8b", "rtx3090", 0.9, (20_000,), (256,), 1, "vllm-0.6"),
             "vLLM 0.6; the log implies 0.09 GiB more runtime overhead or 0.09 GiB less visible memory"),
    "F055": (Capacity(31_232, "tokens", "llama-3.1-8b", "rtx3090", 0.9, (20_000,), (256,), 1, "vllm-0.6"), "as F038"),
    "F056": (Capacity(23_648, "tokens", "llama-3.1-8b", "rtx3090", 0.9, (29_000,), (256,), 1, "vllm-0.6"), "as F038"),
    "F071": (Capacity(22_096, "tokens", "llama-3.1-70b", "h100-sxm", 0.98, (2048,), (256,), 1, "vllm-0.6", "fp8"),
             "vLLM 0.6: 2 GiB of CUDA context inside the budget, as F036; the weights agree (67.67 of 67.72 GiB)"),
}  # fmt: skip

NOT_MODELLED = {
    "F015": "a ratio of two tools' figures: test_specs (MEM-03) holds both",
    "F028": "visible memory: the catalogue's own source", "F029": "as F028", "F030": "as F028", "F032": "as F028",
    "F034": "A40 is not in the catalogue",
    "F040": "RTX 4060 and this 4-bit file are not in the catalogue; KV is negative there by 2 GiB",
    "F041": "vision tower: its profile run is not modelled",
    "F042": "model and part on the CPU not stated",
    "F048": "its FP8 file leaves attention and two layers in bf16; with every layer in fp8 47.74 GiB",
    "F054": "weights of F037, held there to its last digit",
    "F069": "Llama-4 mixes chunked attention and a vision tower; not in the catalogue",
    "F075": "MI308 is not in the catalogue, utilization not stated",
    "F077": "model and device not stated",
    "F079": "A40 with experts on the CPU: part of the weights is elsewhere",
    "F081": "H20 with data-parallel experts",
    "F083": "linear-attention layers with a fixed state", "F085": "as F083",
    "F087": "version not stated, Qwen1.5 is not in the catalogue", "F089": "as F087, device not stated",
    "F091": "device not stated", "F093": "AWQ on A10 with 50,000 batched tokens, vLLM 0.2",
    "F095": "TensorRT-LLM block size: a prompt of 16,000 tokens is 250 blocks of 64",
    "F098": "a run-time failure, utilization 1.0", "F100": "TGI, model not stated", "F102": "TGI, device not stated",
}  # fmt: skip


@pytest.mark.parametrize("fact", LISTED)
def test_listed_logs_with_their_error(fact):
    capacity, reason = LISTED[fact]
    value = predicted(capacity, capacity.batched_tokens[0], capacity.sequences[0])
    error = value - capacity.logged
    share = f"{error / capacity.logged:+.1%}" if capacity.logged > 0 else f"{error:+.2f} {capacity.unit}"
    print(f"{fact}: logged {capacity.logged:g} {capacity.unit}, predicted {value:g} ({share}): {reason}")
    token_gib = catalogue.model(capacity.model).kv_bytes_per_token(tensor_parallel=capacity.tensor_parallel) / GIB
    error_gib = error if capacity.unit == "GiB" else error * token_gib
    assert abs(error_gib) < 0.03 * catalogue.device(capacity.device).memory_bytes / GIB


TRAPS = {
    "F016": ("1605632", lambda: kv("qwen2.5-7b")),
    "F025": ("160", lambda: catalogue.model("llama-3-70b").kv_bytes(131_072) / GIB),
    "F096": ("559190", lambda: predicted(
        Capacity(0, "tokens", "llama-3.1-8b", "h100-sxm", 0.9, (2048,), (256,), 4), 2048, 256) / 16),
    "F166": ("95", lambda: 100 * padding_waste([4096] + 7 * [200]).pairs),
    "F177": ("0.01", lambda: usd_per_mtok(2.5, 300)),
}  # fmt: skip


@pytest.mark.parametrize("fact", TRAPS)
def test_traps_are_not_reproduced(fact):
    wrong, value = TRAPS[fact]
    assert abs(value() / float(wrong) - 1) > 0.05


def test_the_literals_here_are_those_of_the_file_and_none_is_missing():
    path = SHARED / "facts.csv"
    if not path.exists():
        pytest.skip(f"{path} is not there: set SERVECAST_SHARED to the folder that holds it")
    with path.open(encoding="utf-8", newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    for fact, case in ARITHMETIC.items():
        assert (fact, rows[fact]["confidence"], rows[fact]["value"]) == (fact, "arith", case.printed)
    named = CAPACITIES | {"F046": MIXTURES["F046"]} | {fact: capacity for fact, (capacity, _) in LISTED.items()}
    for fact, capacity in named.items():
        assert (fact, float(rows[fact]["value"]), rows[fact]["unit"]) == (fact, capacity.logged, capacity.unit)
    assert rows["F073"]["config"].startswith(f"{MIXTURES['F073'].logged} GiB per GPU")  # its value counts tokens
    assert all(rows[fact]["confidence"] == "trap" for fact in TRAPS)
    told = {*ARITHMETIC, *WHOLE_TRACES, *CAPACITIES, *MIXTURES, *LISTED, *NOT_MODELLED}
    assert {fact for fact, row in rows.items() if row["confidence"] in {"arith", "log"}} == told
