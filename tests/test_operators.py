"""Profiles put together of tables of operators: what was measured comes out as it went in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from specs import remade

from servecast.batch import StepShape
from servecast.calibration import assemble, kernel_tables, layer_tables, operators
from servecast.calibration.steps import from_frame
from servecast.cost import host
from servecast.cost import profile as profiles
from servecast.errors import InputError
from servecast.specs import catalogue

WIDTHS = (32, 64, 96, 128, 256, 512)
M = (1, 2, 4, 16, 64, 256, 1024)
DEVICE = catalogue.device("h100-sxm")
LATENT = catalogue.model("deepseek-v3")
TINY = catalogue.model("tiny")  # hidden 64, 4 heads, 2 KV heads of 16, 128 wide inside, vocabulary 256, 2 layers


def product(m, n, k):
    """Made-up GEMM time [s]: linear in n and in k each, so that lines between neighbours are exact."""
    return 3e-6 + 1e-11 * n * k + 1e-13 * m * n * k


def write_kernels(folder, gpus=(2, 4), dtype="bfloat16", heads=(2, 4), missing=()):
    grid = [(m, n, k) for m in M for n in WIDTHS for k in WIDTHS if (m, n, k) not in missing]
    gemm = pd.DataFrame(grid, columns=["m", "n", "k"])
    gemm["gemm_dtype"] = dtype
    gemm["latency"] = 1e3 * product(gemm["m"], gemm["n"], gemm["k"])
    gemm.to_parquet(folder / kernel_tables.GEMM)
    kind = {"head_dim": 16, "kv_cache_dtype": "bfloat16", "window_size": 0}
    shapes = [(b, s, h, kv) for b in (1, 2, 8) for s in (1, 16, 64, 512) for h in heads for kv in (1, 2)]
    for name, length, per in ((kernel_tables.DECODE, "step", 1e-8), (kernel_tables.PREFILL, "isl", 1e-7)):
        table = pd.DataFrame(shapes, columns=["batch_size", length, "num_heads", "num_key_value_heads"]).assign(**kind)
        work = table["batch_size"] * table[length] * table["num_heads"]
        table["latency"] = 1e3 * (5e-6 + per * work)
        table.to_parquet(folder / name)
    sizes = [2**i for i in range(5, 22)]
    reduce = pd.DataFrame(
        [(g, s, b) for g in gpus for s in sizes for b in ("vllm_graph", "vllm_eager")],
        columns=["num_gpus", "message_size", "backend"],
    )
    reduce["latency"] = 1e3 * np.where(reduce["backend"] == "vllm_graph", 4e-6 + 1e-12 * reduce["message_size"], 1.0)
    reduce.to_parquet(folder / kernel_tables.ALL_REDUCE)
    return folder


def write_layers(folder, without=()):
    kernels = [name for name in (*layer_tables.IN_LAYER, *layer_tables.ONCE) if name not in (*without, "qk_norm")]
    dense = [(name, t, 2.0 + i + 0.01 * t * (1 + i)) for i, name in enumerate(kernels) for t in (1, 2, 16, 128, 512)]
    pd.DataFrame(dense, columns=["layer", "tokens", "time_us"]).to_csv(folder / layer_tables.DENSE, index=False)
    sequences = [(name, n, 20.0 + n) for name in ("lm_head", "sampler") for n in (1, 2, 16, 64)]
    pd.DataFrame(sequences, columns=["layer", "sequences", "time_us"]).to_csv(
        folder / layer_tables.PER_SEQUENCE, index=False
    )
    rows = []
    for chunk in (0, 16, 64, 256):
        for cached in (0, 64, 512):
            for n in (0, 1, 4, 16):
                for context in (16, 128, 1024):
                    if (chunk == 0 and (n == 0 or cached)) or (n == 0 and context > 16):
                        continue
                    alone = 5 + 0.001 * chunk * (cached + chunk / 2) if chunk else 0
                    decode = (0.004 if chunk else 0.002) * n * context + (0 if chunk else 8)
                    tile = 0.001 * n * chunk
                    rows.append((chunk, cached, n, context if n else 0, alone + (decode if n else 0) + tile))
    columns = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"]
    pd.DataFrame(rows, columns=columns).to_csv(folder / layer_tables.ATTENTION, index=False)
    return folder


def decode_step(rows, context):
    return StepShape(0, 0, 0, 0, rows, rows * context, context + 1)


def prompt_step(tokens, cached=0, rows=0, context=0):
    return StepShape(
        1, tokens, tokens * cached + tokens * (tokens + 1) // 2, cached, rows, rows * context, cached + tokens
    )


@pytest.fixture
def kernels(tmp_path):
    return write_kernels(tmp_path)


@pytest.fixture
def layers(tmp_path):
    return write_layers(tmp_path)


def fit(folder, model=TINY, **options):
    options = {"host": host.given(0.0), "tolerance": 0.0, "name": "made", **options}
    return assemble.fit_operators(folder, model, DEVICE, **options)


class TestKernelTables:
    def test_a_decode_step_is_its_kernels(self, kernels):
        profile = fit(kernels)
        rows, context = 4, 64
        matrices = [(64 + 2 * 32, 64), (64, 64), (2 * 128, 64), (64, 128)]  # qkv, output, gate and up, down
        expected = 2 * sum(product(rows, n, k) for n, k in matrices) + product(rows, 256, 64)
        expected += operators.elementwise(TINY, DEVICE, [1, rows], 1).curve.at(rows)
        expected += operators.sampler(TINY, DEVICE, [1, rows], 1).curve.at(rows)
        one, two = (2 * (5e-6 + 1e-8 * b * context * 4) for b in (2, 8))
        expected += one + (two - one) * (rows - 2) / 6  # batches of 2 and 8 were measured
        assert profile.cost().seconds(decode_step(rows, context)) == pytest.approx(expected, rel=1e-5)

    def test_a_prompt_pays_its_attention(self, kernels):
        cost = fit(kernels).cost()
        longer = cost.seconds(prompt_step(512)) - cost.seconds(prompt_step(256))
        assert cost.prefill.at((512 + 1) / 2, 512) == pytest.approx(2 * (5e-6 + 1e-7 * 512 * 4), rel=1e-5)
        assert longer > 0

    def test_widths_off_the_grid_are_linear_between_neighbours(self, kernels):
        wide = remade(
            TINY, feed_forward={"intermediate": 80}
        )  # gate and up 160 wide, down from 80: neither on the grid
        profile = fit(kernels, wide)
        expected = 2 * (product(1, 160, 64) + product(1, 64, 80))
        before = 2 * (product(1, 256, 64) + product(1, 64, 128))
        moved = operators.elementwise(wide, DEVICE, [1, 2], 1).curve.at(1) - operators.elementwise(
            TINY, DEVICE, [1, 2], 1
        ).curve.at(1)
        change = profile.cost().tokens.at(1) - fit(kernels).cost().tokens.at(1)
        assert change == pytest.approx(expected - before + moved, rel=1e-3)
        assert any("gate and up projection, down projection" in note for note in profile.notes)

    def test_a_vocabulary_beyond_the_grid_is_proportional(self, kernels):
        profile = fit(kernels, replace(TINY, vocab=2048))
        step = profile.cost().sampled.at(1) - operators.sampler(replace(TINY, vocab=2048), DEVICE, [1], 1).curve.at(1)
        assert step == pytest.approx(4 * product(1, 512, 64), rel=1e-4)
        assert any("lm_head" in note and "roofline" in note for note in profile.notes)
        assert profile.composition["decode 1 x 1,024"].roofline > 0.1

    def test_a_split_adds_its_all_reduces_and_takes_its_share(self, kernels):
        alone, split = fit(kernels).cost(), fit(kernels, tensor_parallel=2).cost()
        reduce = kernel_tables.all_reduce(kernels, TINY, [1, 2], 2)[0].curve
        assert reduce.at(1) == pytest.approx(5 * (4e-6 + 1e-12 * 64))
        saved = 2 * sum(
            product(1, n, k) - product(1, m, j)
            for n, k, m, j in [(128, 64, 64, 64), (64, 64, 64, 32), (256, 64, 128, 64), (64, 128, 64, 64)]
        )
        elementwise = [operators.elementwise(TINY, DEVICE, [1, 2], n).curve.at(1) for n in (1, 2)]
        expected = reduce.at(1) - saved + elementwise[1] - elementwise[0]
        assert split.tokens.at(1) - alone.tokens.at(1) == pytest.approx(expected, rel=1e-3)

    def test_heads_off_the_grid_are_linear_between_neighbours(self, tmp_path):
        cost = fit(write_kernels(tmp_path, heads=(2, 8))).cost()
        assert cost.decode.at(1, 64) == pytest.approx(2 * (5e-6 + 1e-8 * 64 * 4), rel=1e-5)

    def test_decode_rows_beside_a_prompt_read_their_context_again(self, kernels):
        cost = fit(kernels, remade(TINY, heads=4, kv_heads=1)).cost()
        assert cost.mixed.at(8, 512) >= cost.decode.at(8, 512)
        assert cost.launch_s > 0

    def test_reads_out_of_the_l2_are_raised_to_the_bandwidth(self, kernels):
        slow = replace(DEVICE, bandwidth_Bps=1e6)
        profile = assemble.fit_operators(kernels, TINY, slow, name="made", host=host.given(0.0), tolerance=0.0)
        cost = profile.cost()
        assert cost.decode.at(8, 512) == pytest.approx(8 * 513 * TINY.kv_bytes_per_token() / 1e6, rel=1e-5)
        assert cost.seconds(decode_step(1, 16)) > TINY.weight_bytes() / 1e6 / 2
        assert any("came from the L2" in note and not note.startswith("0 ") for note in profile.notes)

    def test_a_point_that_was_not_measured_lies_on_the_line(self, tmp_path):
        whole = fit(write_kernels(tmp_path)).cost().tokens.at(16)
        gone = fit(write_kernels(tmp_path, missing={(16, 64, 64)})).cost().tokens.at(16)
        assert gone == pytest.approx(whole, rel=1e-5)

    def test_the_cheapest_linear_table_has_no_error(self, kernels):
        gemm = [error for error in fit(kernels).held_out if error.operator == "GEMM"]
        assert {error.along for error in gemm} == {"n", "k", "m"} or not gemm  # widths under 1,024 are not counted

    @pytest.mark.parametrize(
        ("model", "problem"),
        [
            (catalogue.model("mixtral-8x7b"), "mixture of experts"),
            (replace(LATENT, groups=(LATENT.groups[0],)), "latent attention"),
            (remade(TINY, window=64), "sliding window"),
            (replace(TINY, weight_dtype="mxfp4"), "mxfp4"),
            (replace(TINY, weight_dtype="fp8"), "holds no fp8"),
            (remade(TINY, head_dim=32), "no attention near 4 heads"),
        ],
    )
    def test_models_that_the_tables_do_not_hold_are_refused(self, kernels, model, problem):
        with pytest.raises(InputError, match=problem):
            fit(kernels, model)

    def test_fp8_weights_take_the_fp8_products(self, tmp_path):
        write_kernels(tmp_path)
        table = pd.read_parquet(tmp_path / kernel_tables.GEMM)
        faster = table.assign(gemm_dtype="fp8", latency=table["latency"] / 2)
        pd.concat([table, faster]).to_parquet(tmp_path / kernel_tables.GEMM)
        plain, quantized = fit(tmp_path).cost(), fit(tmp_path, replace(TINY, weight_dtype="fp8")).cost()
        assert quantized.tokens.at(1024) < plain.tokens.at(1024)
        assert quantized.sampled.at(4) == plain.sampled.at(4)

    def test_a_split_without_its_all_reduce_is_refused(self, tmp_path):
        with pytest.raises(InputError, match="no all-reduce of 2 GPUs: it has 4"):
            fit(write_kernels(tmp_path, gpus=(4,)), tensor_parallel=2)

    def test_a_hole_in_the_grid_is_refused(self, tmp_path):
        hole = {(m, 128, 64) for m in M}
        with pytest.raises(InputError, match="no neighbours of n 128, k 64"):
            fit(write_kernels(tmp_path, missing=hole))


class TestLayerTables:
    def test_exact_at_every_measured_point(self, layers):
        cost = fit(layers).cost()
        dense = pd.read_csv(layers / layer_tables.DENSE).set_index(["layer", "tokens"])["time_us"]
        for tokens in (1, 16, 512):
            once = sum(dense[name, tokens] for name in layer_tables.ONCE)
            layer = sum(
                times * dense[name, tokens] for name, times in layer_tables.IN_LAYER.items() if name != "qk_norm"
            )
            assert cost.tokens.at(tokens) == pytest.approx((once + 2 * layer) * 1e-6, rel=1e-5)
        for rows, context in [(1, 16), (4, 1024), (16, 128)]:
            assert cost.decode.at(rows, context) == pytest.approx(2e-6 * (0.002 * rows * context + 8), rel=1e-5)
        for chunk, cached in [(16, 0), (64, 512), (256, 64)]:
            attention = cost.prefill.at(chunk, cached + (chunk + 1) / 2)
            assert attention == pytest.approx(2e-6 * (5 + 0.001 * chunk * (cached + chunk / 2)), rel=1e-5)

    def test_the_joint_attention_is_taken_apart(self, layers):
        profile = fit(layers)
        assert profile.tables.mixed_tile_s == pytest.approx(2e-9, rel=1e-3)
        assert profile.cost().mixed.at(4, 1024) == pytest.approx(2e-6 * 0.004 * 4 * 1024, rel=1e-3)
        joint = next(error for error in profile.held_out if error.operator == "joint attention")
        assert joint.p95 < 1e-3

    def test_a_mixed_step_is_exact_too(self, layers):
        cost = fit(layers).cost()
        alone = cost.seconds(prompt_step(64))
        both = cost.seconds(prompt_step(64, rows=4, context=128))
        passed = cost.tokens.at(68) - cost.tokens.at(64) + cost.sampled.at(5) - cost.sampled.at(1)
        assert both - alone == pytest.approx(passed + 2e-6 * (0.004 * 4 * 128 + 0.001 * 4 * 64), rel=1e-3)

    def test_thinning_costs_no_more_than_it_says(self, layers):
        exact, thin = fit(layers).cost(), fit(layers, tolerance=0.01).cost()
        for shape in (
            decode_step(4, 128),
            decode_step(16, 700),
            prompt_step(256, 64),
            prompt_step(64, rows=4, context=9),
        ):
            assert thin.seconds(shape) == pytest.approx(exact.seconds(shape), rel=0.011)

    def test_a_missing_kernel_is_refused(self, tmp_path):
        with pytest.raises(InputError, match=r"dense\.csv: down_proj: is missing"):
            fit(write_layers(tmp_path, without=("down_proj",)))

    def test_a_split_needs_its_all_reduce(self, layers, tmp_path_factory):
        with pytest.raises(InputError, match="holds no collective"):
            fit(layers, tensor_parallel=2)
        others = write_kernels(tmp_path_factory.mktemp("kernels"))
        joined = fit(layers, tensor_parallel=2, all_reduce=others)
        assert joined.cost().tokens.at(1) > fit(layers).cost().tokens.at(1)

    def test_tables_without_joint_rows_fall_back_to_decode(self, layers):
        table = pd.read_csv(layers / layer_tables.ATTENTION)
        table[(table["prefill_chunk"] == 0) | (table["n_decode"] == 0)].to_csv(
            layers / layer_tables.ATTENTION, index=False
        )
        cost = fit(layers).cost()
        assert cost.mixed == cost.decode


class TestReading:
    def test_a_folder_of_neither_kind_is_refused(self, tmp_path):
        with pytest.raises(InputError, match="holds neither"):
            fit(tmp_path)

    def test_a_missing_table_is_named(self, kernels):
        (kernels / kernel_tables.DECODE).unlink()
        with pytest.raises(InputError, match="generation_attention_perf"):
            fit(kernels)

    def test_a_broken_table_is_named(self, kernels):
        (kernels / kernel_tables.GEMM).write_bytes(b"no parquet")
        with pytest.raises(InputError, match="cannot be read"):
            fit(kernels)

    def test_a_missing_column_is_named(self, layers):
        (layers / layer_tables.DENSE).write_text("layer,tokens\na,1\n")
        with pytest.raises(InputError, match="column time_us is missing"):
            fit(layers)

    def test_a_time_of_0_is_refused_with_its_line(self, layers):
        (layers / layer_tables.PER_SEQUENCE).write_text("layer,sequences,time_us\nlm_head,1,5\nlm_head,2,0\n")
        with pytest.raises(InputError, match=r"per_sequence\.csv:3: time_us"):
            fit(layers)


class TestProfile:
    def test_what_is_written_is_what_is_read(self, layers, tmp_path):
        profile = fit(layers, tolerance=0.003)
        path = tmp_path / "made.yaml"
        profiles.save(profile, path)
        assert profiles.load(path) == profile
        assert profiles.load(path).cost().seconds(decode_step(4, 128)) == profile.cost().seconds(decode_step(4, 128))

    def test_it_prices_its_own_model_only(self, layers):
        profile = fit(layers)
        profile.require("tiny")
        with pytest.raises(InputError, match="measured with tiny"):
            profile.require("llama-3.1-8b")

    def test_shares_of_a_step_add_up(self, kernels):
        for shares in fit(kernels, host=host.given(0.001)).composition.values():
            assert shares.measured + shares.interpolated + shares.roofline + shares.host == pytest.approx(1, abs=2e-3)

    def test_the_report_tells_host_errors_and_composition(self, layers):
        report = assemble.report(fit(layers))
        assert [table.title for table in report.tables] == ["host", "left out", "composition"]
        assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)

    @pytest.mark.parametrize(
        ("edit", "place"),
        [
            (lambda data: data["host"].pop("row_s"), "host.row_s"),
            (lambda data: data["tables"].update(tokens=[[1.0]]), "tables.tokens"),
            (lambda data: data["tables"].update(tokens=[[2.0, 1.0], [1.0, 1.0]]), "tables.tokens"),
            (lambda data: data["tables"].update(decode_attention=[[[1.0], [1.0]]]), "tables.decode_attention"),
            (
                lambda data: data["tables"].update(prefill_attention=[[[1.0], [1.0], [1.0]]] * 2),
                "tables.prefill_attention",
            ),
            (lambda data: data.update(kind="fitted"), "kind"),
        ],
    )
    def test_a_broken_file_is_refused_with_its_place(self, layers, tmp_path, edit, place):
        import yaml

        path = tmp_path / "made.yaml"
        profiles.save(fit(layers), path)
        data = yaml.safe_load(path.read_text())
        edit(data)
        path.write_text(yaml.safe_dump(data))
        with pytest.raises(InputError) as refused:
            profiles.load(path)
        assert refused.value.place == f"{path}: {place}"


class TestHost:
    def steps(self, cost, step_s, row_s, count=2000):
        random = np.random.default_rng(1)
        rows = random.integers(1, 16, count)
        shape = StepShape(
            *(np.zeros(count, int) for _ in range(4)), rows, rows * random.integers(16, 1000, count), rows
        )
        seconds = (np.asarray(cost.seconds(shape)) + step_s + row_s * rows) * random.normal(1, 0.02, count)
        fields = ("prefill_rows", "prefill_tokens", "prefill_pairs", "decode_rows", "decode_context")
        return from_frame(pd.DataFrame({name: getattr(shape, name) for name in fields} | {"seconds": seconds}))

    def test_it_is_found_again(self, layers):
        cost = fit(layers).cost()
        found = host.from_steps(cost, self.steps(cost, 8e-4, 2e-5), "here")
        assert found.step_s.value == pytest.approx(8e-4, rel=0.05)
        assert found.row_s.value == pytest.approx(2e-5, rel=0.1)
        assert found.step_s.low <= 8e-4 <= found.step_s.high
        assert found.step_s.identified and found.step_s.how == "here"

    def test_overhead_already_in_the_model_is_not_counted_twice(self, layers):
        profile = fit(layers)
        steps = self.steps(profile.cost(), 8e-4, 2e-5)
        loaded = assemble.with_host(profile, host.given(5e-4, 1e-5)).cost()
        assert host.from_steps(loaded, steps, "here").step_s.value == pytest.approx(8e-4, rel=0.05)

    @pytest.mark.parametrize(("step_s", "row_s"), [(-3e-5, 0.0), (3e-5, -1e-6), (-3e-5, 1e-4)])
    def test_it_is_never_negative(self, layers, step_s, row_s):
        profile = assemble.with_host(fit(layers), host.given(1e-3, 1e-4))
        found = host.from_steps(profile.cost(), self.steps(profile.cost(), step_s - 1e-3, row_s - 1e-4), "here")
        assert min(found.step_s.value, found.row_s.value) >= 0

    def test_rows_all_alike_leave_it_to_the_step(self, layers):
        cost = fit(layers).cost()
        shape = StepShape(0, 0, 0, 0, 4, 400, 100)
        seconds = cost.durations(shape, 1)[0] + 1e-3
        steps = from_frame(pd.DataFrame([{**shape._asdict(), "seconds": seconds}] * 50))
        found = host.from_steps(cost, steps, "here")
        assert found.step_s.value + 4 * found.row_s.value == pytest.approx(1e-3)

    def test_given_and_unknown_say_so(self):
        assert not host.unknown().step_s.identified
        assert host.unknown().step_s.high == host.MOST_S
        with pytest.raises(InputError, match="at least 0"):
            host.given(-1.0)
