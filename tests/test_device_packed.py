"""The way of CUDA without CUDA: one attention operator for rows of any lengths, graphs with padding, fused kernels.

What only a GPU runs stands behind three seams, `flash`, a graph's capture and Triton. Each is tested here against what
a CPU runs in its place, and `flash` against the schema of the installed torch.
"""

import dataclasses
import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specs import remade

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'servecast[device]'")

from servecast.device import calibrate, grid  # noqa: E402
from servecast.device.attention import TILE, Rows, flash, reference  # noqa: E402
from servecast.device.cache import KVCache  # noqa: E402
from servecast.device.grid import Limits, Span  # noqa: E402
from servecast.device.model import transformer  # noqa: E402
from servecast.device.ragged import GRAPH_ROWS, GRAPH_TOKENS, Layout, Ragged  # noqa: E402
from servecast.errors import InputError  # noqa: E402
from servecast.specs import catalogue  # noqa: E402

SPEC = dataclasses.replace(catalogue.model("tiny"), dtype="fp32")
SLOTS, LENGTH = 24, 200


@pytest.fixture(autouse=True)
def _no_gradients():
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def model():
    return transformer(remade(SPEC, qk_norm=True), torch.device("cpu"), "fp32", max_positions=LENGTH)


def plain(q, k, v):
    """Causal attention of q (new, heads, d), the last tokens of k, v (keys, kv_heads, d), written out."""
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    hidden = torch.full((len(q), len(k)), -torch.inf).triu(len(k) - len(q) + 1)
    return torch.einsum("hqk,khd->qhd", (scores + hidden).softmax(-1), v)


@given(st.lists(st.tuples(st.integers(0, 150), st.integers(1, TILE + 9)), min_size=1, max_size=5))
def test_the_reference_is_causal_attention_of_each_row_in_its_slot(rows):
    torch.manual_seed(0)
    news, useds = [new for _, new in rows], [min(cached, 300 - new) + new for cached, new in rows]
    q, keys, values = torch.randn(sum(news), 4, 8), torch.randn(5 * 300, 2, 8), torch.randn(5 * 300, 2, 8)
    starts = np.concatenate(([0], np.cumsum(news)))
    slots = np.array([300 * (4 - row) for row in range(len(rows))] + [0])
    tensors = [torch.from_numpy(np.asarray(a, np.int32)) for a in (starts, slots, useds)]
    out = reference(q, keys, values, Rows(*tensors, max(news), max(useds)))
    for row, (at, used) in enumerate(zip(slots, useds, strict=False)):
        part = slice(starts[row], starts[row + 1])
        torch.testing.assert_close(
            out[part], plain(q[part], keys[at : at + used], values[at : at + used]), rtol=1e-4, atol=1e-5
        )


def test_the_operator_of_cuda_takes_what_flash_gives_it():
    schema = torch.ops.aten._flash_attention_forward.default._schema
    taken = [argument.name for argument in schema.arguments]
    assert taken[:10] == [
        "query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal", "return_debug_mask",
    ]  # fmt: skip
    assert "seqused_k" in taken
    required = [a.name for a in schema.arguments[10:] if not a.has_default_value()]
    assert required == []


def test_flash_packs_the_heads_of_a_group_only_for_single_tokens(monkeypatch):
    calls = []

    def operator(q, *args, **options):
        calls.append((args, options))
        return (torch.zeros_like(q),)

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", operator)
    q, keys, marks = torch.zeros(3, 4, 8), torch.zeros(10, 2, 8), torch.zeros(4, dtype=torch.int32)
    for longest_new in (1, 3):
        flash(q, keys, keys, Rows(marks, marks, marks[:3], longest_new, 7))
    causal = [args[7] for args, _ in calls]
    assert causal == [False, True]
    for args, options in calls:
        assert args[2] is marks and args[3] is marks  # both set: (None for one of them is refused by torch 2.13)
        assert set(options) == {"seqused_k"}  # no window: one of (-1, 0) would switch flash decoding off


def steps(draw):
    """Rows of a random step: some prompts, some behind a cached prefix, then rows that decode; slots in any order."""
    prompts = [(draw(st.sampled_from([0, 0, 1, 37])), draw(st.integers(1, 60))) for _ in range(draw(st.integers(0, 5)))]
    decodes = [(draw(st.integers(1, LENGTH - 2)), 1) for _ in range(draw(st.integers(0 if prompts else 1, 14)))]
    slots = draw(st.permutations(range(SLOTS - 1)))
    return [Span(slot, cached, new) for slot, (cached, new) in zip(slots, prompts + decodes, strict=False)]


@given(st.composite(steps)())
def test_a_padded_replay_gives_the_tokens_and_the_cache_of_the_exact_step(model, spans):
    torch.manual_seed(1)
    tokens = torch.randint(SPEC.vocab, (sum(span.new for span in spans),))
    captured = []

    def capture(step):
        captured.append(step)
        return step

    caches = [KVCache(model, SLOTS, LENGTH, spare=True) for _ in range(2)]
    exact = Ragged(model, caches[0], graphs=False).step(spans, tokens)
    replayed = Ragged(model, caches[1], capture=capture)
    assert torch.equal(replayed.step(spans, tokens), exact)
    replayed.step([Span(SLOTS - 1, 5, 1)], tokens[:1])  # of another size
    assert torch.equal(replayed.step(spans, tokens), exact)  # what an earlier replay left behind is not read
    for ours, theirs in zip(caches[1].keys + caches[1].values, caches[0].keys + caches[0].values, strict=True):
        touched = [span.slot for span in spans]
        torch.testing.assert_close(ours[touched], theirs[touched])
    assert len(captured) <= 2  # the size of these rows once, and that of the other step


@given(st.integers(0, 600), st.integers(0, 20), st.integers(0, 300))
def test_what_a_kernel_reads_begins_on_16_bytes_and_overlaps_nothing(prompt_tokens, prompts, decodes):
    layout = Layout(prompt_tokens, prompts, decodes)
    assert [place.stop - place.start for place in layout.places] == list(layout.parts)
    assert all(place.start * 4 % 16 == 0 for place in layout.places)
    assert all(after.start >= before.stop for before, after in zip(layout.places, layout.places[1:], strict=False))


@given(st.integers(0, 600), st.integers(0, 20), st.integers(0, 300))
def test_a_captured_size_holds_the_step_and_is_the_only_one_for_it(prompt_tokens, prompts, decodes):
    prompts = min(prompts, prompt_tokens)
    layout = Layout(prompt_tokens if prompts else 0, prompts, decodes)
    size = layout.captured()
    if size is None:
        assert layout.tokens > GRAPH_TOKENS or prompts > 16 or decodes > GRAPH_ROWS[-1]
    else:
        assert all(there >= here for there, here in zip(size, layout, strict=True))
        assert bool(size.prompts) == bool(prompts)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_every_size_that_so_many_rows_can_meet_is_captured_beforehand(model, rows):
    made = []
    ragged = Ragged(model, KVCache(model, 8, LENGTH, spare=True), capture=lambda step: made.append(step) or step)
    ragged.capture_all(rows)
    before = len(made)
    for prompts in range(rows + 1):
        for new in (2, 31, 100):
            spans = [Span(row, 0, new if row < prompts else 1) for row in range(rows)]
            tokens = torch.zeros(sum(span.new for span in spans), dtype=torch.int64)
            if len(tokens) <= GRAPH_TOKENS:
                ragged.step(spans, tokens)
    assert len(made) == before


# --- Triton, in its interpreter -----------------------------------------------------------------------------------------

_AGAINST_TORCH = """
import torch
from servecast.device.kernels import Angles, Heads, InTorch, Store
from servecast.device.triton_kernels import InTriton

torch.manual_seed(0)
for dtype, near in ((torch.float32, dict(rtol=1e-5, atol=1e-6)), (torch.bfloat16, dict(rtol=2e-2, atol=2e-2))):
    for tokens, width in ((1, 64), (7, 96), (3, 2000)):
        x, residual, weight = (torch.randn(*s).to(dtype) for s in ((tokens, width), (tokens, width), (width,)))
        for ours, theirs in zip(InTriton().add_norm(x, residual.clone(), weight), InTorch().add_norm(x, residual, weight)):
            torch.testing.assert_close(ours, theirs, **near)
        both = torch.randn(tokens, 2 * width).to(dtype)
        torch.testing.assert_close(InTriton().gated(both), InTorch().gated(both), **near)
    for heads in (Heads(4, 2, 16), Heads(3, 1, 80), Heads(2, 2, 8)):
        tokens, places = 5, 11
        qkv = torch.randn(tokens, sum(heads.parts)).to(dtype)
        cos, sin = (torch.randn(20, heads.width // 2).repeat(1, 2).to(dtype) for _ in range(2))
        angles = Angles(cos, sin, torch.tensor([0, 19, 3, 3, 7], dtype=torch.int32))
        where = torch.tensor([10, 0, 4, 5, 9], dtype=torch.int32)
        for qk_norm in (None, (torch.randn(heads.width).to(dtype), torch.randn(heads.width).to(dtype))):
            stores = [Store(torch.zeros(places, heads.kv, heads.width, dtype=dtype), torch.zeros(places, heads.kv, heads.width, dtype=dtype), where) for _ in range(2)]
            for ours, theirs in (
                (InTriton().rotary(qkv, heads, angles, stores[0], qk_norm), InTorch().rotary(qkv, heads, angles, stores[1], qk_norm)),
                (stores[0].keys, stores[1].keys), (stores[0].values, stores[1].values),
            ):
                torch.testing.assert_close(ours, theirs, **near)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_triton_kernels_compute_what_the_torch_forms_do(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # read when Triton is imported: in a process of its own
    done = subprocess.run([sys.executable, "-c", _AGAINST_TORCH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


# --- long rows in the memory of many ------------------------------------------------------------------------------------


def test_a_stretched_cache_is_the_same_memory_in_longer_rows(model):
    cache = KVCache(model, 8, 32, spare=True)
    long = cache.stretched(4)
    assert (long.slots, long.max_length) == (2, 128)
    tokens = torch.arange(100) % SPEC.vocab
    whole = Ragged(model, long).logits([Span(1, 0, 100)], tokens)
    apart = Ragged(model, KVCache(model, 1, 128)).logits([Span(0, 0, 100)], tokens)
    torch.testing.assert_close(whole, apart)
    assert long.keys[0].data_ptr() == cache.keys[0].data_ptr()


def test_long_rows_are_measured_where_the_memory_of_the_others_holds_them():
    limits = Limits(16, 64, 96, stretch=4)
    usual, points = grid.points(Limits(16, 64, 96)), grid.points(limits)
    longer = [point for point in points if point.shape.max_context > limits.length]
    assert {point.part for point in longer} == {"grid"}
    assert max(point.shape.max_context for point in longer) == limits.longest
    assert all(len(point.rows) <= 4 for point in longer)
    assert {len(point.rows) for point in longer if point.shape.decode_rows} >= {1, 4}
    assert len(points) >= len(usual)


def test_a_budget_below_the_first_step_says_so(tmp_path):
    request = calibrate.Request(SPEC, "cpu", tmp_path / "x.yaml", limits=Limits(4, 64, 96))
    with pytest.raises(InputError, match=r"--budget-s: .* measured 0 of the grid's steps, a fit takes 24"):
        calibrate._finished(
            request,
            catalogue.device("cpu"),
            "fp32",
            _Nothing(),
            {"identity": {"limits": dataclasses.asdict(request.limits)}},
            False,
        )


class _Nothing:
    def rows(self, points):
        return []
