"""Memory as engines reserve it, held against what they printed on real machines (tests/data/kvlogs.csv, one source per row).

`proves` says what a row is: config_formula follows from the model's shape, log_identity from other numbers of the same log,
fitted had a parameter chosen to match, measured is a plain reading.
"""

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.engine.cache_bytes import sequence_bytes
from inferplan.errors import NotFound, SpecError, Unsupported
from inferplan.memory.activations import activation_bytes, compute_buffer_bytes
from inferplan.memory.capacity import capacity
from inferplan.memory.case_columns import QUANTITIES, capacity_of, split_of
from inferplan.memory.layer_kinds import layer_kinds
from inferplan.memory.paging import paging
from inferplan.memory.reserve import rope_table_bytes, total_bytes
from inferplan.memory.shards import Holding, Padding, padding_of, stage_layers
from inferplan.memory.stage_weights import latent_copy_bytes, rounding_of, stage_weight_bytes
from inferplan.readers.opening import open_model
from inferplan.specs.catalog import INDEX, folders, index_text, names
from inferplan.specs.engine import Engine, version_key
from inferplan.specs.hardware import Accelerator
from inferplan.specs.parallel import ONE, Parallel
from inferplan.specs.precision import Precision

GIB = 2.0**30
UNITS = {"GiB": GIB, "MiB": 2.0**20, "": 1.0}
CELLS = ("llama.cpp", "ik-llama.cpp")
EXPANDED = ("ik-230", "ik-271", "ik-389-r1")
PRINTED = ("num_gpu_blocks", "kv_cache_tokens", "max_concurrency")


class Case:
    """The rows of one launch: its columns, and what was printed by quantity."""

    def __init__(self, row):
        self.row, self.values, self.proves = row, {}, {}

    @property
    def name(self):
        return self.row["case"]

    def model(self):
        return opened(self.row["model"])

    def precision(self):
        opened, row = self.model(), self.row
        return Precision.named(row["weights"] or opened.precision or opened.model.dtype, kv=row["kv"] or None)

    def capacity(self, **columns):
        return capacity_of(self.model().model, self.precision(), {**self.row, **columns})


@cache
def opened(name):
    return open_model(name)


@cache
def cases():
    found = {}
    with (Path(__file__).parent / "data" / "kvlogs.csv").open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            case = found.setdefault(row["case"], Case(row))
            case.values[row["quantity"]] = float(row["value"]) * UNITS[row["unit"]]
            case.proves[row["quantity"]] = row["proves"]
    return found


def logs(*quantities, engines=None):
    """Cases with one of the quantities whose engine is one of those asked for."""
    return [c for c in cases().values() if set(quantities) & set(c.values) and (engines is None or c.row["engine"] in engines)]


def model(name):
    return opened(name).model


def h100():
    return Accelerator.find("h100")


def test_the_table_has_sources_and_kinds():
    assert len(cases()) > 120
    for case in cases().values():
        assert case.row["source"]
        assert set(case.proves.values()) <= {"config_formula", "log_identity", "fitted", "measured"}


# weights


def weight_errors(proves):
    found = {}
    for case in logs("weight_bytes_per_gpu"):
        if case.proves["weight_bytes_per_gpu"] in proves:
            gpu = case.row["gpu"] or "h100"
            predicted = QUANTITIES["weight_bytes_per_gpu"](case.capacity(gpu=gpu))
            found[case.name] = predicted / case.values["weight_bytes_per_gpu"] - 1
    return found


def test_weights_per_gpu():
    sure = weight_errors({"config_formula"})
    assert len(sure) >= 40
    assert sum(abs(e) <= 0.015 for e in sure.values()) >= 0.9 * len(sure), sure
    every = weight_errors({"config_formula", "measured", "fitted", "log_identity"})
    assert sum(abs(e) <= 0.015 for e in every.values()) >= 0.93 * len(every), every


def loaded_errors(**how: bool):
    """Weights of the fullest rank against the printed GiB, with or without what an engine holds beside its tensors."""
    found = {}
    for case in logs("weight_bytes_per_gpu"):
        engine = Engine.find(case.row["engine"], case.row["engine_version"] or None)
        part = Accelerator.find(case.row["gpu"] or "h100")
        holding = replace(Holding.of(engine, part), **how)
        stages = stage_weight_bytes(case.model().model, case.precision(), split_of(case.row), holding)
        predicted = max(float(b) for b in stages) + rope_table_bytes(case.model().model, engine)
        found[case.name] = abs(predicted / case.values["weight_bytes_per_gpu"] - 1)
    return found


def test_what_lies_beside_the_weights():
    """The allocator's whole 2 MiB and the factors of latent up-projections make the printed GiB of two in three to 1 in 1,000."""
    without, beside = (loaded_errors(latent_copies=kept, rounded=kept) for kept in (False, True))
    assert sum(e <= 0.001 for e in beside.values()) >= 0.7 * len(beside), beside
    assert sum(e <= 0.001 for e in without.values()) < 0.55 * len(without)
    assert sum(e <= 0.015 for e in beside.values()) >= 0.95 * len(beside), beside
    for name in (
        "llmd-qwen-qwen2-5-7b-instruct--tp1pp1--8192",
        "llmd-microsoft-phi-4--tp1pp1--8192",
        "llmd-google-gemma-2-2b-it--tp1pp1--8192",
    ):
        if name in beside:
            assert beside[name] < 5e-4 < without[name], name


def test_the_allocator_keeps_whole_2_mib():
    mib = 2.0**20
    sizes = np.array([9.9, 10.0, 10.5, 11.0, 12.0, 31.5, 259.0]) * mib
    assert (rounding_of(sizes) / mib).tolist() == [0.0, 0.0, 0.0, 1.0, 0.0, 0.5, 1.0]


def test_copies_of_latent_projections_are_split_over_heads_and_stages():
    deepseek, bf16 = model("deepseek-v3"), Precision.named("bf16")
    one, sixteen = (sum(latent_copy_bytes(deepseek, bf16, Parallel(tp=tp))) for tp in (1, 16))
    assert one == 16 * sixteen == 61 * 512 * 128 * 256 * 2
    assert [float(b) for b in latent_copy_bytes(deepseek, bf16, Parallel(pp=4))] == pytest.approx([one * n / 61 for n in (15, 15, 16, 15)])
    assert latent_copy_bytes(model("llama-3.1-8b"), bf16, Parallel()) == [0.0]


def test_padding_is_that_of_the_kernel():
    """gpt-oss-120b: 65.97 GiB under marlin, 64.38 under the triton kernels; kernels of FlashInfer pad both sides to 256."""
    of = {name: padding_of(Engine.find("vllm", version), Accelerator.find(part)) for name, version, part in KERNELS}
    assert of == {"marlin": Padding(128, 256), "ampere": Padding(128, 256), "triton": Padding(64, 256), "flashinfer": Padding(256, 256)}
    gpt, mxfp4 = model("gpt-oss-120b"), Precision.named("mxfp4")
    marlin, triton = (float(stage_weight_bytes(gpt, mxfp4, ONE, Holding(of[k]))[0]) / GIB for k in ("marlin", "triton"))
    assert (marlin, triton) == pytest.approx((65.965, 64.38), rel=4e-3)


KERNELS = [("marlin", "0.10.1", "h100"), ("ampere", "0.14.1", "a100"), ("triton", "0.14.1", "h100"), ("flashinfer", "0.14.1", "b200")]


def test_a_passing_need_is_counted_for_recurrent_layers_alone():
    def peak(name, version, seqs):
        return float(activation_bytes(model(name), Engine.find("vllm", version), tokens=8192, sequences=seqs))

    assert peak("qwen3.5-27b", "0.28.0", 1024) > peak("qwen3.5-27b", "0.24.0", 1024) + 7.5 * GIB
    assert peak("qwen3.5-27b", "0.28.0", 8) < peak("qwen3.5-27b", "0.24.0", 8) + 0.2 * GIB
    assert peak("llama-3.1-8b", "0.28.0", 1024) == peak("llama-3.1-8b", "0.24.0", 1024)


def test_stages_of_a_pipeline():
    assert stage_layers(61, 4) == [15, 15, 16, 15]
    llama, bf16 = model("llama-3.1-8b"), Precision.named("bf16")
    four = [float(b) / GIB for b in stage_weight_bytes(llama, bf16, Parallel(pp=4))]
    assert four == pytest.approx([4.23, 3.25, 3.25, 4.23], abs=0.02), "edge stages hold the table and the head"
    assert sum(four) * GIB == pytest.approx(2 * llama.params, rel=1e-9)
    with pytest.raises(SpecError, match="pp"):
        stage_layers(32, 33)


# tokens, blocks and concurrency from the logged cache


def logged_cache(case):
    if "free_bytes" in case.values:
        return case.values["free_bytes"] * float(case.row["utilization"])
    return case.values.get("least_rank_cache_bytes") or case.values.get("kv_cache_bytes_per_gpu")


MIN_RANK = {
    "vllm-13061": "the printed GiB are of one rank, the tokens of a rank with less",
    "vllm-21348-vllm": "the same",
}


def test_printed_tokens_from_the_logged_cache():
    """Within what two printed decimals leave open; every miss is listed with its reason."""
    missed, count = {}, 0
    for case in logs(*PRINTED, engines=("vllm", "tensorrt-llm", "sglang")):
        if logged_cache(case) is None:
            continue
        found = case.capacity(gpu=case.row["gpu"] or "h100")
        slack = (0.01 if case.row["engine"] == "sglang" else 0.005) * GIB
        low, high = found.holding(logged_cache(case) - slack), found.holding(logged_cache(case) + slack)
        for quantity in set(PRINTED) & set(case.values):
            read = (lambda c: float(c.blocks)) if quantity == "num_gpu_blocks" else QUANTITIES[quantity]
            count += 1
            if not read(low) - 0.0051 <= case.values[quantity] <= read(high) + 0.0051:
                missed[case.name] = (quantity, read(low), read(high), case.values[quantity])
    assert count > 100
    assert set(missed) == set(MIN_RANK), missed


def test_blocks_on_the_host_are_exact():
    for case in logs("swap_blocks"):
        pages = case.capacity(gpu=case.row["gpu"] or "h100").stages[0].paging
        assert 4 * GIB // float(pages.block_bytes) == case.values["swap_blocks"], case.name


@pytest.mark.parametrize(
    ("name", "kv", "version", "tp", "draft", "block"),
    [
        ("qwen3.5-27b", "bf16", "0.19.0", 1, 0, 784),
        ("qwen3.5-27b", "fp8", "0.19.0", 1, 0, 1568),
        ("qwen3.5-27b", "nvfp4", "0.24.0", 1, 0, 2784),
        ("qwen3.5-35b-a3b", "fp8", "0.24.0", 1, 0, 2096),
        ("qwen3.5-27b", "fp8", "0.28.0", 1, 3, 1600),
        ("qwen3.5-27b", "nvfp4", "0.28.0", 1, 3, 2848),
        ("qwen3.5-122b-a10b", "bf16", "0.24.0", 8, 3, 544),
    ],
)
def test_attention_blocks_are_inflated_to_hold_a_state(name, kv, version, tp, draft, block):
    pages = paging(model(name), Precision.named("bf16", kv=kv), Engine.find("vllm", version), Parallel(tp=tp), draft_tokens=draft)
    assert [float(g.block) for g in pages.groups if g.kind.kept == "full"] == [block]


@pytest.mark.parametrize(
    ("name", "kv", "version", "draft", "blocks", "length", "tokens", "concurrency"),
    [
        ("qwen3.5-27b", "bf16", "0.19.0", 0, 1487, 32768, 290864, 33.04),
        ("qwen3.5-35b-a3b", "fp8", "0.24.0", 0, 300, 131072, 569878, 4.35),
        ("qwen3.5-35b-a3b", "fp8", "0.24.0", 0, 299, 131072, 567978, 4.33),
        ("qwen3.5-27b", "fp8", "0.28.0", 3, 1195, 262144, 1750067, 6.68),
        ("qwen3.5-27b", "nvfp4", "0.28.0", 3, 1202, 262144, 2917565, 11.13),
    ],
)
def test_printed_tokens_of_hybrids(name, kv, version, draft, blocks, length, tokens, concurrency):
    pages = paging(model(name), Precision.named("bf16", kv=kv), Engine.find("vllm", version), draft_tokens=draft)
    assert float(pages.tokens(blocks, length, 8192)) == tokens
    assert float(pages.concurrency(blocks, length, 8192)) == pytest.approx(concurrency, abs=0.0051)


def test_groups_of_windowed_models():
    engine, bf16 = Engine.find("vllm", "0.19.0"), Precision.named("bf16")
    gemma = paging(model("gemma-3-27b"), bf16, engine)
    assert (sum(g.groups for g in gemma.groups), gemma.padding_layers) == (7, 8)
    drafted = paging(model("qwen3.5-27b"), bf16, engine, draft_tokens=3)
    assert drafted.padding_layers == 3, "48 recurrent layers padded to 51 beside 17 of attention"
    gpt = paging(model("gpt-oss-120b"), Precision.named("mxfp4"), engine)
    assert float(gpt.request_bytes(131072, 1024)) / GIB == pytest.approx(4.54, abs=0.005)
    whole = paging(model("gemma-3-27b"), bf16, Engine.find("vllm", "0.8.5"))
    assert len(whole.groups) == 1, "before groups, windowed layers keep every token"


def test_latents_lie_on_every_rank_and_heads_repeat():
    latent, engine = model("deepseek-v3"), Engine.find("vllm", "0.19.0")
    one, eight = (paging(latent, Precision.named("bf16"), engine, Parallel(tp=tp)).token_bytes for tp in (1, 8))
    assert float(one) == float(eight) == 61 * 576 * 2
    qwen = model("qwen2.5-1.5b")
    two, four = (float(paging(qwen, Precision.named("bf16"), engine, Parallel(tp=tp)).token_bytes) for tp in (2, 4))
    assert two == four == 28 * 2 * 128 * 2, "one KV head per rank at least"


def test_need_of_one_request():
    """Needed GiB that engines printed when they refused a length."""
    engine = Engine.find("vllm", "0.12")
    bf16 = Precision.named("bf16")
    assert float(paging(model("mistral-small-4-119b"), bf16, engine, Parallel(tp=2)).request_bytes(1048576, 8192)) / GIB == 22.5
    sparse = paging(model("deepseek-v3.2"), Precision.named("fp8-block", kv="fp8"), engine, Parallel(tp=8))
    assert float(sparse.token_bytes) == 61 * (656 + 132)
    coder = paging(model("qwen3-coder-480b-a35b"), bf16, engine)
    assert float(coder.request_bytes(262144, 8192)) / GIB == pytest.approx(62.0, abs=0.005)


# SGLang


def test_sglang_pools():
    mimo = paging(model("mimo-v2-flash"), Precision.named("fp8-block", kv="bf16"), Engine.find("sglang", "0.5.7"), Parallel(tp=4))
    assert mimo.window_tokens(375360) == 300288
    keys = sum(k.layers for k in layer_kinds(model("mimo-v2-flash"), Precision.named("bf16"), Parallel(tp=4)) if k.kept == "window")
    per_token = float(mimo.window_bytes)
    assert keys == 39
    assert per_token * 300288 / GIB == pytest.approx(8.38 + 5.59, abs=0.01)
    forgetful = paging(model("deepseek-v3.2"), Precision.named("fp8-block", kv="fp8"), Engine.find("sglang", "2025-10"))
    assert float(forgetful.token_bytes) * 1462784 / GIB == pytest.approx(54.52, abs=0.01), "printed without the index keys"


def test_sglang_fraction():
    found = capacity(model("llama-3.1-8b"), h100(), Precision.named("bf16"), engine="sglang", version="0.5.10")
    assert float(found.launch.utilization) == pytest.approx(0.830, abs=0.0005)


# llama.cpp


def test_llama_cpp_caches():
    """Cells, windows, states and mixed types, to the printed two decimals; one release of Ollama budgeted windows otherwise."""
    missed = {}
    for case in logs("cache_bytes", "window_cache_bytes", "state_cache_bytes", engines=CELLS):
        precision = Precision.named(case.row["weights"] or "q4_k_m", kv=case.row["kv"] or "fp16")
        latent = "expanded" if case.name in EXPANDED else None
        pages = paging(case.model().model, precision, Engine.find(case.row["engine"]), latent=latent)
        length, slots, batch = (
            float(case.row[c] or d) for c, d in zip(("max_model_len", "max_num_seqs", "max_num_batched_tokens"), (0, 1, 512), strict=True)
        )
        for quantity, kept in (("cache_bytes", "full"), ("window_cache_bytes", "window"), ("state_cache_bytes", "state")):
            if quantity in case.values:
                total = slots * sum(float(pages.kind_bytes(k, length, batch)) for k in pages.kinds if k.kept == kept)
                if abs(total - case.values[quantity]) > 0.0051 * 2**20:
                    missed[case.name] = (total / case.values[quantity], quantity)
    assert set(missed) == {"ollama-11711", "ollama-9181"}, missed
    assert missed["ollama-9181"][0] == pytest.approx(20000 / 19968), "19.5 GiB is a rounded print"


BUFFERS = {
    "llamasharp-1099": True, "ik-230": True, "ik-334": True, "ik-389": True, "ik-389-r1": True, "ik-503": True,
    "xj-llama3-8b": False, "ik-333": False, "ik-539-qwen": False,
}  # fmt: skip


@pytest.mark.parametrize(("name", "flash"), BUFFERS.items())
def test_llama_cpp_compute_buffers(name, flash):
    case = cases()[name]
    batch, cells = float(case.row["max_num_batched_tokens"] or 512), float(case.row["max_model_len"])
    found = compute_buffer_bytes(case.model().model, batch=batch, cells=cells, flash_attention=flash)
    assert float(found) == pytest.approx(case.values["compute_buffer_bytes"], abs=0.02 * 2**20)


def test_llama_cpp_capacity_is_what_is_asked_for():
    precision = Precision.named("q4_k_m", kv="fp16")
    asked = {"max_model_len": 8192, "max_num_seqs": 4}
    found = capacity(model("llama-3-8b"), Accelerator.find("rtx-3090"), precision, engine="llama.cpp", **asked)
    assert QUANTITIES["kv_cache_bytes_per_gpu"](found) == 4 * GIB
    assert QUANTITIES["kv_cache_tokens"](found) == 4 * 8192
    assert bool(found.fits)
    full = capacity(model("llama-3-8b"), Accelerator.find("rtx-3090"), precision, engine="llama.cpp", max_model_len=8192, max_num_seqs=40)
    assert not bool(full.fits)
    assert "40.00 GiB" in full.reason()


# from nothing but the launch line


def deciding_cache(case, found):
    """Printed GiB of the rank that decides: another rank's where the printed tokens prove that it had less."""
    if case.name in MIN_RANK:
        return case.values["kv_cache_tokens"] * float(found.kv_bytes_per_token_per_gpu)
    return case.values.get("least_rank_cache_bytes") or case.values["kv_cache_bytes_per_gpu"]


def available_errors():
    found = {}
    for case in logs("kv_cache_bytes_per_gpu", engines=("vllm", "sglang", "tensorrt-llm", "tgi")):
        try:
            held = case.capacity()
        except Unsupported:
            continue
        found[case.name] = abs(QUANTITIES["kv_cache_bytes_per_gpu"](held) / deciding_cache(case, held) - 1)
    return found


def test_available_cache_from_the_launch_line():
    errors = available_errors()
    assert len(errors) >= 50
    assert np.median(list(errors.values())) <= 0.005, errors
    assert np.quantile(list(errors.values()), 0.9) <= 0.12, errors
    others = [e for name, e in errors.items() if not name.startswith(("llmd-", "docs-"))]
    assert np.median(others) <= 0.1, errors
    assert np.quantile(others, 0.75) <= 0.17, errors


def test_reserve_from_the_launch_line():
    activation = [c.capacity().activation_bytes / c.values["activation_bytes"] - 1 for c in logs("activation_bytes") if c.row["gpu"]]
    assert np.median(np.abs(activation)) <= 0.03
    assert np.quantile(np.abs(activation), 0.8) <= 0.10


MISSED_VERDICTS = {
    "vllm-7553": "graphs come on top of the budget",
    "llmd-openai-gpt-oss-20b--tp1pp1--8192": "while graphs were captured",
    "tgi-832": "a prefill larger than the warm-up's",
    "tgi-710": "the same",
    "kaito-2132": "a utilization below the default that the log does not state",
    "vllm-44376": "pages of compressed entries",
    "recipes-831-nvfp4": "which layers of the checkpoint are in 4 bit is not known",
}


def test_verdicts():
    """Nine launches in ten start or do not start as they did, more where the log states the length; each miss has its reason."""
    right, wrong, stated = [], [], set()
    for case in logs("oom", "kv_cache_bytes_per_gpu", "activation_bytes", engines=("vllm", "sglang", "tensorrt-llm", "tgi")):
        if case.name == "dsv4spark1-4-2048":
            continue  # its weights are in a format the log does not name
        try:
            fits = bool(case.capacity().fits)
        except Unsupported:
            continue
        (right if fits == ("oom" not in case.values) else wrong).append(case.name)
        stated |= {case.name} if case.row["max_model_len"] else set()
    assert set(wrong) == set(MISSED_VERDICTS)
    assert len(right) >= 0.895 * (len(right) + len(wrong)), (len(right), len(wrong))
    assert len(stated & set(right)) >= 0.94 * len(stated)


def test_reasons_say_what_is_missing():
    bf16 = Precision.named("bf16")
    refused = capacity(model("llama-3.1-8b"), Accelerator.find("rtx-3090"), bf16, version="0.6.4", max_model_len=29000, utilization=0.9)
    assert not bool(refused.fits)
    assert refused.reason().startswith("one request of 29,000 tokens needs 3.54 GiB, 2.8")
    longer = capacity(model("llama-3.1-8b"), Accelerator.find("rtx-3090"), bf16, version="0.6.4", max_model_len=35000, utilization=0.9)
    assert bool(longer.fits), "above 32,768 tokens that release prefills in chunks"
    heavy = capacity(model("llama-3.1-70b"), h100(), bf16, version="0.19.0", max_model_len=1024)
    assert heavy.reason().startswith("weights of 131.4")
    states = capacity(model("qwen3.5-27b"), h100(), bf16, version="0.19.0", max_model_len=4096, utilization=0.95)
    assert "recurrent states" in states.reason()
    staged = cases()["vllm-32105"].capacity()
    assert "over all stages" in staged.reason()
    assert float(staged.max_concurrency) > 1


# engines as data


def test_engine_files():
    assert names("engines") == [
        "deepspeed", "fastertransformer", "gpt-fast", "ideal", "ik-llama.cpp", "llama.cpp", "lmdeploy", "mlc-llm", "mlx", "neuronx",
        "pytorch", "sglang", "tensorrt-llm", "tgi", "transformers", "vllm",
    ]  # fmt: skip
    for folder in folders("engines"):
        assert (folder / INDEX).read_text(encoding="utf-8") == index_text(folder)
    for name in names("engines"):
        for field, number in Engine.find(name).numbers().items():
            assert number.source, (name, field)
            assert number.kind in ("published", "measured", "fitted", "assumed", "derived"), (name, field)


@pytest.mark.parametrize(
    ("text", "version", "core"),
    [
        ("0.19.0", "0.19.0", "v1"), ("0.6.4-ish (V0)", "0.6.4", "v0"), ("0.8.3 V0", "0.7.3", "v0"), ("0.7.0 V1", "0.8.0", "v1"),
        ("nightly 2026-01", "0.14.0", "v1"), ("0.1.dev19754", "0.33.0", "v1"), ("0.10.1.dev101", "0.10.1", "v1"), ("", "0.33.0", "v1"),
    ],
)  # fmt: skip
def test_versions(text, version, core):
    engine = Engine.find("vllm", text)
    assert (engine.version, engine.choice("core")) == (version, core)


def test_defaults_by_part_and_release():
    engine, big, small = Engine.find("vllm", "0.12"), h100(), Accelerator.find("a100")
    assert [engine.number("max_num_seqs", part) for part in (big, small)] == [1024, 256], "the A100 is on the small tier"
    assert engine.number("max_num_batched_tokens", Accelerator.find("rtx-4090")) == 2048
    assert Engine.find("vllm", "0.33").number("max_num_batched_tokens", Accelerator.find("b200")) == 16384
    assert list(engine.number("non_torch_bytes", big, ranks=np.array([1, 2])) / GIB) == pytest.approx([0.13, 0.55])
    assert version_key("0.10") > version_key("0.9.2")


def test_engine_errors():
    with pytest.raises(NotFound, match="near it"):
        Engine.find("vlm")
    with pytest.raises(Unsupported, match="max num seqs"):
        Engine.find("vllm").model_copy(update={"settings": {}}).number("max_num_seqs")
    bad = {"name": "x", "title": "X", "policy": "rest", "newest": "1", "settings": {"utilization": [{"value": 0.9}]}}
    with pytest.raises(SpecError, match="source"):
        Engine.from_mapping(bad)
    bad["settings"] = {"utilization": [{"value": 0.9, "kind": "assumed", "since": "v2"}]}
    with pytest.raises(SpecError, match="release number"):
        Engine.from_mapping(bad)


def test_case_columns():
    assert split_of({"tp": "8", "dp": "8", "gpus": "8"}).tp == 1
    llama, bf16 = model("llama-3.1-8b"), Precision.named("bf16")
    with pytest.raises(Unsupported, match="gpu"):
        capacity_of(llama, bf16, {"engine": "vllm"})
    with pytest.raises(SpecError, match="must be a number"):
        capacity_of(llama, bf16, {"engine": "vllm", "gpu": "h100", "max_model_len": "long"})


# arrays and properties


def test_arrays_equal_single_points():
    splits, lengths = np.array([1, 2, 4, 8])[:, None], np.array([2048, 8192, 100_000])
    for name, engine in (("gemma-3-27b", "vllm"), ("qwen3.5-27b", "vllm"), ("gpt-oss-120b", "sglang"), ("llama-3.1-8b", "tensorrt-llm")):
        whole = capacity(model(name), h100(), Precision.named("bf16"), Parallel(tp=splits), engine, max_model_len=lengths)
        for i, tp in enumerate(splits[:, 0]):
            for j, length in enumerate(lengths):
                one = capacity(model(name), h100(), Precision.named("bf16"), Parallel(tp=int(tp)), engine, max_model_len=int(length))
                for field in ("kv_cache_bytes_per_gpu", "kv_cache_tokens", "max_concurrency", "max_context", "fits", "max_sequences"):
                    shaped = np.broadcast_to(getattr(whole, field), (4, 3))
                    assert shaped[i, j] == pytest.approx(getattr(one, field), rel=1e-12), (name, field)


NAMES = ("llama-3.1-8b", "gemma-3-27b", "qwen3.5-27b", "deepseek-v3.2", "gpt-oss-20b", "mimo-v2-flash")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(NAMES), st.sampled_from(("vllm", "sglang", "tensorrt-llm", "llama.cpp")), st.integers(1, 10**6), st.integers(1, 16384)
)
def test_reserved_is_never_below_the_ideal(name, engine, length, chunk):
    """What an engine reserves for a request is at least the ideal, and grows with the length."""
    precision = Precision.named("bf16")
    pages = paging(model(name), precision, Engine.find(engine))
    reserved = float(pages.request_bytes(length, chunk))
    assert reserved >= float(sequence_bytes(model(name), precision, length)) * (1 - 1e-9)
    assert float(pages.request_bytes(length + 4096, chunk)) >= reserved


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), st.sampled_from(("vllm", "sglang", "tensorrt-llm")), st.floats(2**28, 2**38), st.integers(1, 16384))
def test_the_longest_request_is_the_longest(name, engine, available, chunk):
    pages = paging(model(name), Precision.named("bf16"), Engine.find(engine))
    blocks = pages.blocks(available)
    longest = float(pages.longest(blocks, chunk))
    if longest > 0:
        assert float(pages.concurrency(blocks, longest, chunk)) >= 1 - 1e-9
    assert float(pages.concurrency(blocks, longest + 1, chunk)) < 1


@settings(max_examples=40, deadline=None)
@given(st.floats(0.3, 0.97), st.integers(256, 65536), st.integers(1, 2048))
def test_more_memory_holds_more(utilization, chunk, sequences):
    def found(share, tokens, seqs):
        return capacity(
            model("llama-3.1-8b"), h100(), Precision.named("bf16"), ONE, "vllm", version="0.19.0", max_model_len=4096,
            utilization=share, max_num_batched_tokens=tokens, max_num_seqs=seqs,
        ).kv_cache_bytes_per_gpu  # fmt: skip

    here = found(utilization, chunk, sequences)
    assert found(utilization + 0.01, chunk, sequences) > here
    assert found(utilization, chunk * 2, sequences) <= here
    assert found(utilization, chunk, sequences * 2) <= here


def test_the_ideal_engine_is_the_ideal_cache():
    for name in ("llama-3.1-8b", "gemma-3-27b", "qwen3.5-27b", "gpt-oss-120b", "mamba-2.8b"):
        found = capacity(model(name), h100(), Precision.named("bf16"), engine="ideal", max_model_len=5000)
        assert float(found.request_bytes) == pytest.approx(float(sequence_bytes(model(name), Precision.named("bf16"), 5000)), rel=1e-12)


def test_fixed_and_per_token_bytes_make_a_request():
    pages = paging(model("gemma-3-27b"), Precision.named("bf16"), Engine.find("vllm", "0.19.0"))
    whole = float(pages.fixed_bytes(65536, 2048)) + 65536 * float(pages.token_bytes)
    assert whole == pytest.approx(float(pages.request_bytes(65536, 2048)), rel=1e-12)


@pytest.mark.parametrize(
    ("part", "gib"),
    [("h100", 79.19), ("b200", 178.36), ("rtx-3090", 23.58), ("rtx-5090", 31.37), ("h100-nvl", 93.02), ("a10", 22.09), ("mi300x", 191.98)],
)
def test_what_programs_see_of_a_part(part, gib):
    assert total_bytes(Accelerator.find(part)) / GIB == pytest.approx(gib, rel=0.003)


def test_an_encoder_needs_no_cache_and_holds_what_the_engine_allows():
    held = capacity(model("bert-base"), h100(), Precision.named("bf16"))
    assert bool(held.fits)
    assert float(held.request_bytes) == 0
    assert float(held.max_sequences) == float(held.launch.max_num_seqs)


@pytest.mark.parametrize("engine", ["ideal", "llama.cpp"])
def test_a_model_of_states_alone_has_room_for_as_many_as_memory_holds(engine):
    held = capacity(model("mamba-2.8b"), h100(), Precision.named("bf16"), engine=engine, max_model_len=1280, max_num_seqs=4)
    assert bool(held.fits)
    assert float(held.max_sequences) == pytest.approx(float(held.kv_cache_bytes_per_gpu / held.request_bytes), abs=1)


def test_heads_must_come_out_even():
    """28 heads do not divide over 8 devices: engines that divide them refuse, llama.cpp does not; in a sweep it is a mask."""
    qwen, bf16, h100 = model("qwen2.5-7b"), Precision.named("bf16"), Accelerator.find("h100")
    held = capacity(qwen, h100, bf16, Parallel(tp=np.array([1, 2, 3, 4, 7, 8])), "vllm", max_model_len=4096)
    assert held.fits.tolist() == [True, True, False, True, False, False]
    eight = capacity(qwen, h100, bf16, Parallel(tp=8), "vllm", max_model_len=4096)
    assert eight.reason() == "28 query heads and 4 KV heads do not come out even over 8 devices"
    assert capacity(qwen, h100, bf16, Parallel(tp=8), "ideal", max_model_len=4096).fits
