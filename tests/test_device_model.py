"""What the device computes: against a plain fp32 reference, against transformers, and against itself."""

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'servecast[device]'")

from specs import remade  # noqa: E402

from servecast.device import grid  # noqa: E402
from servecast.device.attention import TILE  # noqa: E402
from servecast.device.cache import KVCache  # noqa: E402
from servecast.device.grid import Limits, Point, Span  # noqa: E402
from servecast.device.model import transformer  # noqa: E402
from servecast.device.padded import Padded  # noqa: E402
from servecast.device.ragged import Ragged  # noqa: E402
from servecast.errors import InputError  # noqa: E402
from servecast.specs import catalogue  # noqa: E402

SPEC = dataclasses.replace(catalogue.model("tiny"), dtype="fp32")
VARIANTS = {
    "grouped": SPEC,
    "all heads": remade(SPEC, kv_heads=4),
    "one kv head": remade(SPEC, kv_heads=1),
    "tied": dataclasses.replace(SPEC, tied_embeddings=True),
    "biased": remade(SPEC, qkv_bias=True),
    "normed": remade(SPEC, qk_norm=True),
}
LENGTH = 320


@pytest.fixture(autouse=True)
def _no_gradients():
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


def built(spec=SPEC, device="cpu", dtype="fp32", slots=6):
    model = transformer(spec, torch.device(device), dtype, max_positions=LENGTH, seed=3)
    for layer in model.layers:  # norms that do something
        for norm in (layer.attention_norm, layer.feed_norm):
            norm.normal_(1.0, 0.1)
    return model, KVCache(model, slots, LENGTH)


def drawn(*lengths, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(SPEC.vocab, (length,), generator=draw) for length in lengths]


def reference(model, tokens):
    """Logits (T, vocab) of one sequence, written out without caches, fused matrices or fused attention."""
    attention = model.attention

    def norm(x, weight):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight

    def rotated(x):
        half = attention.head_dim // 2
        angle = torch.outer(torch.arange(len(x)).float(), 10_000.0 ** (-torch.arange(half).float() / half))
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        return torch.cat((x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin), -1)

    x = model.embedding[tokens]
    hidden = torch.triu(torch.full((len(x), len(x)), -torch.inf), 1)
    for layer in model.layers:
        h = norm(x, layer.attention_norm)
        qkv = h @ layer.qkv.T + (0 if layer.qkv_bias is None else layer.qkv_bias)
        q, k, v = qkv.split([attention.heads * attention.head_dim, *[attention.kv_heads * attention.head_dim] * 2], -1)
        q, k, v = (t.reshape(len(x), -1, attention.head_dim) for t in (q, k, v))
        if layer.query_norm is not None:
            q, k = norm(q, layer.query_norm), norm(k, layer.key_norm)
        q, k = rotated(q), rotated(k)
        k, v = (t.repeat_interleave(attention.heads // attention.kv_heads, 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / attention.head_dim**0.5 + hidden
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(len(x), -1)
        x = x + attended @ layer.output.T
        h = norm(x, layer.feed_norm)
        gate, up = (h @ layer.gate_up.T).chunk(2, -1)
        x = x + (gate * torch.sigmoid(gate) * up) @ layer.down.T
    return norm(x, model.norm) @ model.head.T


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_ragged_prefill_and_decode_are_those_of_the_plain_reference(variant):
    model, cache = built(VARIANTS[variant])
    ragged = Ragged(model, cache)
    prompts = drawn(5, 1, 40)
    spans = [Span(slot, 0, len(prompt)) for slot, prompt in enumerate(prompts)]
    logits = ragged.logits(spans, torch.cat(prompts))
    close(logits, torch.stack([reference(model, prompt)[-1] for prompt in prompts]))
    more = drawn(3, seed=1)[0]
    logits = ragged.logits([Span(s.slot, s.new, 1) for s in spans], more)
    close(logits, torch.stack([reference(model, torch.cat((p, more[i : i + 1])))[-1] for i, p in enumerate(prompts)]))


def test_prefill_equals_decoding_token_by_token():
    model, cache = built()
    ragged = Ragged(model, cache)
    [prompt] = drawn(12)
    whole = ragged.logits([Span(0, 0, 12)], prompt)
    for at in range(12):
        logits = ragged.logits([Span(1, at, 1)], prompt[at : at + 1])
    close(logits, whole)


@pytest.mark.parametrize("cut", [1, 7, TILE, TILE + 3])
def test_chunks_equal_the_whole_prompt(cut):
    model, cache = built()
    ragged = Ragged(model, cache)
    [prompt] = drawn(300)
    whole = ragged.logits([Span(0, 0, 300)], prompt)
    ragged.logits([Span(1, 0, cut)], prompt[:cut])
    close(ragged.logits([Span(1, cut, 300 - cut)], prompt[cut:]), whole)


def test_a_mixed_step_equals_its_parts():
    model, cache = built()
    ragged = Ragged(model, cache)
    first, second, chunk = drawn(9, 30, 20)
    ragged.logits([Span(0, 0, 9), Span(1, 0, 30)], torch.cat((first, second)))
    [token] = drawn(1, seed=5)
    mixed = ragged.logits([Span(2, 0, 20), Span(0, 9, 1)], torch.cat((chunk, token)))
    close(mixed, torch.stack([reference(model, chunk)[-1], reference(model, torch.cat((first, token)))[-1]]))


def test_padded_equals_ragged_on_the_useful_rows():
    model, cache = built()
    padded, ragged = Padded(model, cache), Ragged(model, KVCache(model, 6, LENGTH))
    prompts = drawn(3, 17, 40, 1)
    rectangle = torch.zeros((4, 40), dtype=torch.int64)
    for row, prompt in zip(rectangle, prompts, strict=True):
        row[: len(prompt)] = prompt
    padded.begin([len(prompt) for prompt in prompts])
    spans = [Span(slot, 0, len(prompt)) for slot, prompt in enumerate(prompts)]
    ours, theirs = padded.prefill(rectangle), ragged.logits(spans, torch.cat(prompts))
    for _ in range(6):
        close(ours, theirs)
        following = theirs.argmax(-1)
        spans = [Span(s.slot, s.cached + s.new, 1) for s in spans]
        ours, theirs = padded.decode(following), ragged.logits(spans, following)


def test_same_weights_give_the_logits_of_transformers_llama():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model, cache = built()
    attention, mlp = SPEC.plain
    config = transformers.LlamaConfig(
        vocab_size=SPEC.vocab, hidden_size=SPEC.hidden, intermediate_size=mlp.intermediate,
        num_hidden_layers=SPEC.layers, num_attention_heads=attention.heads, num_key_value_heads=attention.kv_heads,
        head_dim=attention.head_dim, rms_norm_eps=1e-5, max_position_embeddings=LENGTH, tie_word_embeddings=False,
    )  # fmt: skip
    llama = transformers.LlamaForCausalLM(config).eval()
    query = attention.heads * attention.head_dim
    with torch.no_grad():
        llama.model.embed_tokens.weight.copy_(model.embedding[: SPEC.vocab])
        llama.lm_head.weight.copy_(model.head[: SPEC.vocab])
        llama.model.norm.weight.copy_(model.norm)
        for theirs, ours in zip(llama.model.layers, model.layers, strict=True):
            q, k, v = ours.qkv.split([query, *[attention.kv_heads * attention.head_dim] * 2])
            gate, up = ours.gate_up.chunk(2)
            for target, source in (
                (theirs.self_attn.q_proj, q), (theirs.self_attn.k_proj, k), (theirs.self_attn.v_proj, v),
                (theirs.self_attn.o_proj, ours.output), (theirs.mlp.gate_proj, gate), (theirs.mlp.up_proj, up),
                (theirs.mlp.down_proj, ours.down), (theirs.input_layernorm, ours.attention_norm),
                (theirs.post_attention_layernorm, ours.feed_norm),
            ):  # fmt: skip
                target.weight.copy_(source)
    prompts = drawn(30, 9)
    logits = Ragged(model, cache).logits([Span(0, 0, 30), Span(1, 0, 9)], torch.cat(prompts))
    close(logits[:, : SPEC.vocab], torch.stack([llama(prompt[None]).logits[0, -1] for prompt in prompts]))


def test_weights_weigh_what_the_catalogue_says():
    for spec in VARIANTS.values():
        model, cache = built(spec)
        assert model.weight_bytes() == spec.weight_bytes()
        assert cache.bytes() == 6 * LENGTH * spec.kv_bytes_per_token()


def test_bf16_on_cpu_is_near_fp32():
    small, _ = built(dtype="bf16")
    [prompt] = drawn(50)
    ours = Ragged(small, KVCache(small, 1, LENGTH)).logits([Span(0, 0, 50)], prompt).float()
    layers = tuple(
        dataclasses.replace(
            layer, **{f.name: w.float() for f in dataclasses.fields(layer) if (w := getattr(layer, f.name)) is not None}
        )
        for layer in small.layers
    )
    exact = dataclasses.replace(
        small, layers=layers, **{n: getattr(small, n).float() for n in ("embedding", "norm", "head", "cos", "sin")}
    )
    theirs = reference(exact, prompt)[-1]
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < 0.05


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "gemma-2-2b"])
def test_what_is_not_computed_is_refused_by_name(name):
    with pytest.raises(InputError, match=f"{name} has .* choose a dense model"):
        transformer(catalogue.model(name), torch.device("cpu"), "fp32", max_positions=8)


def test_a_grid_holds_each_shape_once_and_stays_within_its_limits():
    limits = Limits(32, 1024, 2048)
    points = grid.points(limits)
    assert len({point.label for point in points}) == len(points)
    assert {point.part for point in points[:10]} == {"grid"}
    assert sum(point.part == "held_out" for point in points) >= 30
    for point in points:
        shape = point.shape
        assert len(point.rows) <= limits.rows
        assert shape.max_context <= limits.length
        assert shape.prefill_tokens + shape.decode_rows <= limits.tokens
    assert any(p.shape.prefill_context for p in points)
    assert grid.points(limits) == points
    even, uneven = Point(((100, 1),) * 4).shape, Point(((50, 1), (150, 1)) * 2).shape
    assert even._replace(max_context=0) == uneven._replace(max_context=0)


@pytest.mark.parametrize("limits", [Limits(1, 16, 16), Limits(2, 16, 16), Limits(3, 40, 30), Limits(256, 8192, 8192)])
def test_any_limits_make_a_grid(limits):
    points = grid.points(limits)
    kinds = {bool(point.shape.prefill_rows) for point in points}
    assert kinds == {True, False}
    assert np.all([point.shape.max_context <= limits.length for point in points])
    assert np.all([len(point.rows) <= limits.rows for point in points])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_cuda_gives_the_tokens_of_the_reference():
    model, cache = built(device="cuda", dtype="bf16")
    prompts = drawn(5, 40, 130)
    spans = [Span(slot, 0, len(prompt)) for slot, prompt in enumerate(prompts)]
    tokens = {}
    for graphs in (False, True):
        ragged = Ragged(model, cache, graphs=graphs)
        following = ragged.step(spans, torch.cat(prompts).cuda())
        rows = [following]
        for step in range(5):
            following = ragged.step([Span(s.slot, s.new + step, 1) for s in spans], following).clone()
            rows.append(following)
        tokens[graphs] = torch.stack(rows)
    assert torch.equal(tokens[False], tokens[True])
