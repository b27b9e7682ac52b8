"""The memory budget: its arithmetic, what it grows with, its two start-up errors, and the engine's defaults."""

import math
import re
from dataclasses import replace

import pytest
from specs import remade

from servecast import memory
from servecast.errors import InputError
from servecast.kvcache import Growth
from servecast.memory import GIB, MIB, NotEnoughMemoryError, engine_defaults, whole_blocks
from servecast.specs import catalogue
from servecast.specs.layers.layer import LayerGroup
from servecast.specs.layers.recurrent import Mamba2
from servecast.specs.start_up import start_up

LLAMA = catalogue.model("llama-3.1-8b")
H100 = catalogue.device("h100-sxm")
RTX3090 = catalogue.device("rtx3090")


def budget(model=LLAMA, device=H100, **changes):
    settings = {
        "gpu_memory_utilization": 0.9,
        "block_size": 16,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 256,
    }
    return memory.budget(model, device, **(settings | changes))


def test_the_lines_of_the_budget_add_up_and_blocks_are_rounded_down():
    made = budget()
    assert made.total_bytes == H100.memory_bytes
    assert made.usable_bytes == 0.9 * H100.memory_bytes
    assert made.weight_bytes == 8_030_261_248 * 2
    left = made.usable_bytes - made.weight_bytes - made.activation_bytes - made.overhead_bytes
    assert made.kv_bytes == left
    assert made.growth == Growth(16)
    assert made.block_bytes == 16 * 131_072
    assert made.kv_blocks == int(left / (16 * 131_072)) - 1  # the null block
    assert made.kv_tokens == made.kv_blocks * 16
    assert made.activation_bytes == made.activation_bytes_of(2048)


def test_mem_17_whole_blocks():
    assert whole_blocks(0.9 * 21.89 * GIB, 64 * 512 * 1024) == 630  # the log says 631: rounded


def test_blocks_and_concurrency():
    made = budget()
    assert [made.blocks_of(tokens) for tokens in (1, 16, 17, 160)] == [1, 1, 2, 10]
    assert made.max_concurrency(1600) == made.kv_blocks / 100
    assert replace(made, kv_blocks=1952).max_concurrency(20_000) == pytest.approx(1.56, abs=0.005)  # fact F055


def test_mem_10_capacity_differs_per_model():
    assert budget().kv_tokens > 3 * budget(catalogue.model("llama-2-7b"), max_model_len=4096).kv_tokens


@pytest.mark.parametrize(("tokens", "logged_gib"), [(20_000, 3.81), (29_000, 2.89)])
def test_mem_15_kv_falls_with_batched_tokens(tokens, logged_gib):
    made = budget(device=RTX3090, max_num_batched_tokens=tokens, like="vllm-0.6")
    assert made.kv_bytes / GIB == pytest.approx(logged_gib, rel=0.04)
    assert made.kv_bytes < budget(device=RTX3090).kv_bytes - 1.2 * GIB


def test_mem_15_kv_does_not_depend_on_max_model_len():
    assert budget(max_model_len=2048).kv_blocks == budget(max_model_len=100_000).kv_blocks == budget().kv_blocks


def test_activation_peak_never_falls_as_the_token_budget_grows():
    peaks = [budget(max_num_batched_tokens=tokens).activation_bytes for tokens in (256, 2048, 8192, 16_384, 32_768)]
    assert peaks == sorted(peaks)
    assert len(set(peaks)) == len(peaks)
    made = budget()
    assert made.activation_bytes_of(50_000) > made.activation_bytes
    assert made.activation_bytes_of(2048, rows=1) < made.activation_bytes


def test_mem_19_cuda_graphs_cost_memory_unless_eager():
    for like, graphs, communicators in (("vllm-0.10", 100, 5), ("vllm-0.15", 100, 1), ("vllm-0.23", 400, 1)):
        assert budget(enforce_eager=True, like=like).kv_bytes - budget(like=like).kv_bytes == graphs * MIB
        alone, two, eight = (start_up(like).overhead_bytes(gpus) for gpus in (1, 2, 8))
        assert two - alone == eight - alone == communicators * 392 * MIB


def test_par_01_capacity_on_four_gpus_is_not_counted_twice():
    made = budget(device=catalogue.device("a100-80gb"), tensor_parallel=4)
    # log: 52.89 sequences of 40,000 tokens on 4 x A100; the trap 559,190 blocks divides all GPUs' memory by one's bytes
    assert made.kv_tokens == pytest.approx(2_115_600, rel=0.03)
    assert made.kv_blocks < 140_000
    assert made.block_bytes == 16 * 131_072 / 4


def test_par_03_a_split_that_heads_do_not_allow_is_refused():
    with pytest.raises(InputError, match=r"engine.tensor_parallel_size: the 28 attention heads"):
        budget(catalogue.model("qwen2.5-7b"), tensor_parallel=8)


def test_fp8_cache_holds_twice_the_tokens():
    assert budget(kv_dtype="fp8_e4m3").kv_tokens == pytest.approx(2 * budget().kv_tokens, rel=1e-4)
    assert budget(kv_dtype="auto").kv_blocks == budget().kv_blocks
    with pytest.raises(InputError, match=r"engine.kv_cache_dtype: 'fp7'"):
        budget(kv_dtype="fp7")


def test_given_blocks_are_usable_blocks_whatever_the_budget():
    made = budget(kv_blocks=4)
    assert (made.kv_blocks, made.kv_tokens, made.max_model_len) == (4, 64, 64)
    assert made.kv_bytes == 5 * made.block_bytes
    assert budget(catalogue.model("llama-3.1-70b"), kv_blocks=1000).kv_blocks == 1000


def test_max_model_len_is_the_smaller_of_the_models_and_what_the_cache_holds():
    assert budget().max_model_len == 131_072
    held = budget(device=RTX3090)
    assert held.max_model_len == held.kv_tokens < 131_072
    assert budget(max_model_len=5000).max_model_len == 5000
    unknown = replace(LLAMA, max_position=None)
    made = budget(unknown)
    assert made.max_model_len == made.kv_tokens
    with pytest.raises(InputError, match=r"engine.max_model_len: 131073 is more than the 131072 positions"):
        budget(max_model_len=131_073)


def test_no_memory_for_blocks_is_the_first_start_up_error():
    with pytest.raises(InputError) as caught:
        budget(catalogue.model("llama-3.1-70b"))
    text = str(caught.value)
    assert text.startswith("engine.gpu_memory_utilization: No available memory for the cache blocks")
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d\d", text)]
    assert numbers[:2] == [71.30, 131.42]
    assert numbers[4] == pytest.approx(numbers[0] - sum(numbers[1:4]), abs=0.03)
    assert "whatever `gpu_memory_utilization` is: take a larger GPU" in text
    assert "\n" not in text
    with pytest.raises(InputError, match="Try increasing `gpu_memory_utilization`"):
        budget(gpu_memory_utilization=0.2)  # 16 GB of weights fit the device, only not this share of it


@pytest.mark.parametrize(("blocks", "usable"), [(3.5, 2), (2.5, 1), (1.5, None), (0.5, None), (-3.0, None)])
def test_the_null_block_alone_is_no_memory(blocks, usable):
    """What is left for KV, in blocks: one of them is vLLM's null block, and one at least must be left beside it."""
    made = budget()
    spoken_for = made.weight_bytes + made.activation_bytes + made.overhead_bytes
    share = (spoken_for + blocks * made.block_bytes) / H100.memory_bytes
    if usable is not None:
        found = budget(gpu_memory_utilization=share)
        assert (found.kv_blocks, found.max_model_len) == (usable, 16 * usable)
        return
    with pytest.raises(InputError, match=r"^engine.gpu_memory_utilization: No available memory for the cache blocks"):
        budget(gpu_memory_utilization=share)
    with pytest.raises(InputError, match="No available memory"):
        budget(gpu_memory_utilization=share, max_model_len=16)


def test_too_little_for_one_request_is_the_second_start_up_error():
    # as logged: 29,000 batched tokens leave 0.82 of a sequence of 29,000 (vLLM issue 10517)
    made = budget(device=RTX3090, max_num_batched_tokens=29_000)
    with pytest.raises(InputError) as caught:
        budget(device=RTX3090, max_num_batched_tokens=29_000, max_model_len=29_000)
    text = str(caught.value)
    assert text.startswith(
        "engine.max_model_len: To serve at least one request with the models's max seq len (29000), "
        "(3.54 GiB KV cache is needed, which is larger than the available KV cache memory ("
    )
    available, longest = re.search(r"memory \(([\d.]+) GiB\).*maximum model length is (\d+)", text).groups()
    assert float(available) == pytest.approx(made.kv_blocks * made.block_bytes / GIB, abs=0.005)
    assert int(longest) == made.kv_tokens
    budget(device=RTX3090, max_num_batched_tokens=29_000, max_model_len=int(longest))
    with pytest.raises(InputError, match="To serve at least one request"):
        budget(kv_blocks=4, max_model_len=65)
    assert budget(kv_blocks=4, max_model_len=64).max_model_len == 64


@pytest.mark.parametrize("utilization", [90, 0, 1.2, -0.1, float("nan"), float("inf")])
def test_cfg_03_utilization_is_a_fraction(utilization):
    with pytest.raises(InputError, match=r"engine.gpu_memory_utilization: .* outside \(0, 1\]"):
        budget(gpu_memory_utilization=utilization)
    assert budget(gpu_memory_utilization=1.0).usable_bytes == H100.memory_bytes


@pytest.mark.parametrize("key", ["block_size", "max_num_batched_tokens", "max_num_seqs", "kv_blocks", "max_model_len"])
def test_counts_are_positive(key):
    with pytest.raises(InputError, match=f"engine.{key}: 0 is not a positive"):
        budget(**{key: 0})
    with pytest.raises(InputError, match=r"engine.tensor_parallel_size: 0 is not"):
        budget(tensor_parallel=0)


@pytest.mark.parametrize("like", ["vllm-0.15", "vllm-0.20"])
def test_mem_03_before_the_hybrid_cache_every_layer_counts_in_full(like):
    model = catalogue.model("gemma-3-27b")
    made = budget(model, like=like)
    assert made.growth == Growth(16)
    assert made.block_bytes == 16 * 62 * 8192
    with pytest.raises(InputError, match=r"\(62.00 GiB KV cache is needed"):
        budget(model, like=like, max_model_len=131_072)


def test_mem_03_the_hybrid_cache_keeps_windows_and_grows_in_full_layers_alone():
    # gpt-oss-120b: 18 full layers, 18 of 128 tokens, which are 8 blocks of 16 and one more
    made = budget(catalogue.model("gpt-oss-120b"), max_num_seqs=64)
    assert made.block_bytes == 16 * 18 * 2048
    assert [made.blocks_of(tokens) for tokens in (16, 128, 144, 160, 1600)] == [2, 16, 18, 10 + 9, 100 + 9]
    assert made.kv_blocks == int(made.kv_bytes / made.block_bytes) - 1
    assert made.max_concurrency(1600) == made.kv_blocks / 109


def test_mem_03_a_long_context_of_gemma_3_fits_as_vllm_says():
    # 10 full layers x 131,072 x 8,192 B are 10 GiB; 52 windows are 6 groups of 10 layers (8 are padding), each of 65
    # blocks and those of 8,192 new tokens: 13.7 GiB and the padding's 0.57
    settings = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.92}
    made = budget(catalogue.model("gemma-3-27b"), max_model_len=131_072, **settings)
    assert made.block_bytes == 16 * 10 * 8192
    assert made.growth == Growth(16, 1, 6, 65)
    needed = (made.blocks_of(131_072) + 6 * 8192 // 16) * made.block_bytes
    assert needed / GIB == pytest.approx(13.66 + 0.57, abs=0.01)
    # short sequences hold what all layers take, and the padding
    assert made.blocks_of(300) * made.block_bytes == 7 * 304 * 10 * 8192


@pytest.mark.parametrize("window", [128, 1000, 1024])
@pytest.mark.parametrize(("full", "sliding"), [(10, 52), (18, 18), (12, 13), (24, 6)])
def test_layers_are_grouped_as_vllm_does(full, sliding, window):
    # vLLM 0.23, `_get_kv_cache_groups_uniform_page_size`: groups as large as the rarest kind, or as the commonest
    size = max(full, sliding) if max(full, sliding) < 1.5 * min(full, sliding) else min(full, sliding)
    [group] = LLAMA.groups
    slides = replace(group.layer, mixers=(replace(group.layer.mixers[0], window=window),))
    made = budget(replace(LLAMA, groups=(group._replace(layers=full), LayerGroup(sliding, slides))))
    assert made.block_bytes == 16 * size * 4096
    assert made.growth == Growth(16, -(-full // size), -(-sliding // size), -(-(window - 1) // 16) + 1)


def test_states_are_held_for_each_sequence():
    [group] = LLAMA.groups
    states = Mamba2(heads=64, head_dim=64, state=128, groups=8, kernel=4)
    recurrent = replace(group.layer, mixers=(states,))
    model = replace(LLAMA, groups=(group._replace(layers=8), LayerGroup(24, recurrent)))
    for like in ("vllm-0.15", "vllm-0.23"):
        made = budget(model, like=like)
        own = math.ceil(model.state_bytes() / made.block_bytes)
        assert (made.block_bytes, made.blocks_of(1600)) == (16 * 8 * 4096, 100 + own)
        assert made.kv_tokens == (made.kv_blocks - own) * 16
    alone = budget(replace(model, groups=(LayerGroup(24, recurrent),)))
    assert alone.block_bytes == model.state_bytes()
    assert alone.blocks_of(1) == alone.blocks_of(100_000) == 1


SPLITS = [
    ("deepseek-v3", "h100-sxm", 16),  # 671 GB of fp8 on GPUs of 80 GB, 128 heads
    ("llama-3.1-70b", "h100-sxm", 2),
    ("llama-3.1-405b", "h100-sxm", 16),
    ("qwen2.5-7b", "rtx4090", None),
]


@pytest.mark.parametrize(("name", "device", "gpus"), SPLITS)
def test_a_refusal_says_the_smallest_split_that_holds_the_model(name, device, gpus):
    model, device = catalogue.model(name), catalogue.device(device)
    if gpus is None:
        assert budget(model, device).kv_blocks > 0
        return
    with pytest.raises(NotEnoughMemoryError, match=f"the smallest tensor_parallel_size that holds it is {gpus}$"):
        budget(model, device)
    assert budget(model, device, tensor_parallel=gpus).kv_blocks > 0


def test_a_refusal_says_that_no_split_holds_the_model():
    tiny = replace(H100, memory_bytes=GIB)
    with pytest.raises(NotEnoughMemoryError, match=r"no tensor_parallel_size up to 64 holds it$"):
        budget(device=tiny)


def test_a_length_that_is_refused_names_the_split_too():
    with pytest.raises(
        NotEnoughMemoryError, match=r"maximum model length.*; the smallest tensor_parallel_size.* is 2$"
    ):
        budget(device=RTX3090, max_num_batched_tokens=29_000, max_model_len=29_000)


def test_a_model_of_sliding_layers_alone_is_counted_in_full():
    model = remade(LLAMA, window=4096)
    assert budget(model).kv_blocks == budget().kv_blocks


@pytest.mark.parametrize(
    ("device", "like", "utilization", "sequences", "tokens"),
    [
        ("h100-sxm", "vllm-0.19", 0.90, 1024, 8192),  # MEM-13
        ("h100-sxm", "vllm-0.21", 0.90, 1024, 8192),
        ("h100-sxm", "vllm-0.22", 0.92, 1024, 8192),
        ("h100-sxm", "vllm-0.23", 0.92, 1024, 8192),
        ("h100-sxm", "vllm-1.0", 0.92, 1024, 8192),
        ("h200", "vllm-0.23", 0.92, 1024, 8192),
        ("a100-80gb", "vllm-0.23", 0.92, 256, 2048),
        ("rtx4090", "vllm-0.19.1", 0.90, 256, 2048),
        ("b200", "vllm-0.23", 0.92, 1024, 16_384),
        ("mi300x", "vllm-0.23", 0.92, 1024, 16_384),
    ],
)
def test_mem_13_engine_defaults_by_version_and_device(device, like, utilization, sequences, tokens):
    defaults = engine_defaults(catalogue.device(device), like)
    assert defaults.like == like
    assert (defaults.gpu_memory_utilization, defaults.block_size) == (utilization, 16)
    assert (defaults.max_num_seqs, defaults.max_num_batched_tokens) == (sequences, tokens)


@pytest.mark.parametrize(("size_gib", "tokens"), [(69.9, 2048), (70, 8192), (159.9, 8192), (160, 16384)])
def test_the_defaults_change_at_70_and_at_160_gib(size_gib, tokens):
    device = replace(H100, memory_bytes=int(size_gib * GIB))
    assert engine_defaults(device).max_num_batched_tokens == tokens
    assert engine_defaults(device).max_num_seqs == (1024 if size_gib >= 70 else 256)


@pytest.mark.parametrize("like", ["sglang-0.5", "vllm", "vllm-0.x", ""])
def test_an_unknown_engine_version_is_refused(like):
    with pytest.raises(InputError, match=r"engine.like"):
        engine_defaults(H100, like)


def test_a_short_max_model_len_needs_no_room_for_more_new_tokens_than_it_has():
    model = catalogue.model("gpt-oss-20b")
    settings = {"max_num_batched_tokens": 8192, "kv_blocks": 300}
    assert budget(model, max_model_len=2048, **settings).max_model_len == 2048
    with pytest.raises(NotEnoughMemoryError, match="hold no sequence"):
        budget(model, **settings)
