"""Layers and experts in host memory: what moves where, what bounds a pass, what engines allow, known answers."""

import numpy as np
import pytest

from inferplan import names
from inferplan.deployment import estimate
from inferplan.engine.step import Setting, decode, prefill
from inferplan.errors import SpecError, Unsupported
from inferplan.memory.capacity import capacity
from inferplan.memory.offloading import offload_of
from inferplan.memory.weights import weight_bytes
from inferplan.roofline.comm import host_link
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.engine import Engine
from inferplan.specs.offload import Offload
from inferplan.specs.parallel import Parallel

LLAMA, MOE = names.model("llama-3.1-8b"), names.model("gpt-oss-120b")
CARD, HOST = names.hardware("rtx-4090"), names.hardware("ryzen-9950x")
Q4, BF16 = names.precision("q4_k_m"), names.precision("bf16")


def setting(offload: Offload, *, ideal: bool = False) -> Setting:
    return Setting(efficiency=Efficiency.ideal() if ideal else Efficiency.default(), engine="llama.cpp", offload=offload, host=HOST)


def test_a_model_on_the_host_reads_at_the_hosts_bandwidth() -> None:
    """8B in 16 bit on two channels of DDR5-5600: 16 GB at 89.6 GB/s are 0.18 s, whatever the card."""
    whole = setting(Offload(layers=32, head=True, computed=True))
    step = decode(LLAMA, CARD, BF16, context=1, setting=whole)
    read = weight_bytes(LLAMA, BF16) - LLAMA.vocab * LLAMA.hidden * 2  # one row of the token table
    assert float(step.host_s) == pytest.approx(read / 89.6e9, rel=1e-3)
    assert step.bound == "host"


def test_streamed_weights_cross_the_link_in_every_pass() -> None:
    """10 GB over PCIe 4 x16 at 31.5 GB/s are 317 ms at the least, however long the prompt is."""
    e = estimate(LLAMA, CARD, BF16, cpu_offload_bytes=10e9, batch=1)
    name, bandwidth = host_link(CARD)
    assert (name, bandwidth) == ("pcie-4", 31.5e9)
    assert float(np.mean(e.decode.link_s)) == pytest.approx(10e9 / 31.5e9, rel=2e-3)
    assert float(e.prefill.link_s) == pytest.approx(10e9 / 31.5e9, rel=2e-3)
    assert e.tpot_s > e.floor_tpot_s > 10e9 / 31.5e9 * 0.99
    assert float(e.capacity.host_bytes) == pytest.approx(10e9, rel=2e-3)


def test_layers_split_between_host_and_device_add_up() -> None:
    """Operators apart do the same work as operators together, and each part reads its own share."""
    plain = decode(LLAMA, CARD, Q4, context=700, setting=setting(Offload()))
    split = decode(LLAMA, CARD, Q4, context=700, setting=setting(Offload(layers=12, computed=True)))
    for stream in ("flops", "weight_bytes", "kv_bytes"):
        assert float(getattr(split, stream)) == pytest.approx(float(getattr(plain, stream)), rel=1e-12)
    hosted = sum(float(op.kv_bytes) for op in split.ops if op.hosted)
    assert hosted == pytest.approx(12 / 32 * float(plain.kv_bytes), rel=1e-12)


@pytest.mark.parametrize("ideal", [True, False])
def test_more_layers_on_the_device_are_never_slower_where_it_is_the_faster(ideal: bool) -> None:
    times = [
        float(decode(LLAMA, CARD, Q4, context=700, setting=setting(Offload(layers=n, computed=True), ideal=ideal)).time_s)
        for n in range(32, -1, -4)
    ]
    assert np.all(np.diff(times) < 0)


def test_long_passes_stream_what_short_ones_compute_on_the_host() -> None:
    """llama.cpp hands batches of 32 tokens and more to the device; both sides of the edge come out of one call."""
    offload = Offload(layers=32, computed=True, stream_from=32)
    step = prefill(LLAMA, CARD, Q4, input_tokens=np.array([1.0, 31.0, 32.0, 512.0]), setting=setting(offload))
    assert step.bound.tolist() == ["host", "host", "link", "link"]
    assert np.all(np.asarray(step.time_s) >= np.asarray(step.floor_s))
    assert np.ptp(step.floor_s) < 0.02 * np.min(step.floor_s), "the rule is the engine's, not physics"
    alone = [float(prefill(LLAMA, CARD, Q4, input_tokens=n, setting=setting(offload)).time_s) for n in (1, 31, 32, 512)]
    assert np.asarray(step.time_s) == pytest.approx(alone, rel=1e-12)


def test_a_cache_on_the_host_stays_there() -> None:
    """31 and 32 sequences of 8,000 tokens: 33 GB of cache at 89.6 GB/s take a third of a second whoever has the weights."""
    offload = Offload(layers=32, computed=True, stream_from=32)
    step = decode(LLAMA, CARD, Q4, context=8000, batch=np.array([31.0, 32.0]), setting=setting(offload))
    cache = 32 * 8000 * 131072 / 89.6e9
    assert np.all(np.asarray(step.time_s) > 0.96 * cache)
    assert np.all(np.asarray(step.floor_s) > 0.96 * cache)


def test_devices_share_the_memory_of_their_host() -> None:
    slow = names.hardware("desktop-ddr4-3200")
    one, eight = (host_link(names.hardware("h100"), slow, devices=n)[1] for n in (1, 8))
    assert (one, eight) == (31.5e9, 51.2e9 / 8)
    whole = estimate(LLAMA, names.hardware("a100"), BF16, cpu_offload_bytes=4e9, parallel=Parallel(dp=2))
    assert float(whole.capacity.host_bytes) == pytest.approx(8e9, rel=1e-3)


def test_experts_alone_go_to_the_host() -> None:
    e = estimate(MOE, CARD, names.precision("mxfp4"), engine="llama.cpp", cpu_experts=36, host=HOST)
    hosted = [op for op in e.decode.ops if op.hosted]
    assert {op.part for op in hosted} == {"experts"}
    assert sum(op.count for op in hosted) == 36
    assert float(e.capacity.host_bytes) > 0.9 * 60e9
    assert float(e.capacity.weight_bytes_per_gpu) < 4e9


def test_memory_of_the_device_falls_by_what_the_host_holds() -> None:
    """Weights and caches of hosted layers leave the device; device and host together hold everything once."""
    engine = Engine.find("llama.cpp")
    whole = capacity(LLAMA, CARD, BF16, engine=engine, max_model_len=8192)
    part = capacity(LLAMA, CARD, BF16, engine=engine, max_model_len=8192, offload=Offload(layers=16, head=True, computed=True))
    assert float(part.request_bytes) == pytest.approx(float(whole.request_bytes) / 2)
    both = float(part.weight_bytes_per_gpu) + float(part.host_bytes) - float(whole.request_bytes) / 2
    assert both == pytest.approx(weight_bytes(LLAMA, BF16), rel=1e-9)


def test_stages_share_the_layers_that_stay() -> None:
    engine = Engine.find("llama.cpp")
    two = capacity(LLAMA, CARD, BF16, Parallel(pp=2), engine, max_model_len=8192, offload=Offload(layers=12, computed=True))
    caches = [float(s.paging.request_bytes(8192, 512)) for s in two.stages]
    assert caches[0] == caches[1] == 10 * 8192 * 4096


def test_options_mean_what_the_engine_makes_of_them() -> None:
    cpp, vllm = Engine.find("llama.cpp"), Engine.find("vllm")
    assert offload_of(LLAMA, Q4, cpp, gpu_layers=99) == Offload(0.0, 0, False, True, 32.0)
    assert offload_of(LLAMA, Q4, cpp, gpu_layers=32).head
    assert offload_of(LLAMA, Q4, cpp, gpu_layers=0).layers == 32
    half = offload_of(LLAMA, BF16, vllm, cpu_offload_bytes=weight_bytes(LLAMA, BF16) / 4)
    assert 8 < half.layers < 11
    assert not half.computed
    shared = offload_of(LLAMA, BF16, vllm, Parallel(tp=2), cpu_offload_bytes=weight_bytes(LLAMA, BF16) / 8)
    assert shared.layers == pytest.approx(half.layers, rel=1e-3)  # norms lie on every rank


@pytest.mark.parametrize(
    ("engine", "options", "error", "said"),
    [
        ("tgi", {"gpu_layers": 3}, Unsupported, "keeps no weights in host memory"),
        ("vllm", {"gpu_layers": 3}, Unsupported, "--cpu-offload"),
        ("llama.cpp", {"cpu_offload_bytes": 1e9}, Unsupported, "--gpu-layers"),
        ("llama.cpp", {"gpu_layers": 3}, SpecError, "must name the host"),
        ("llama.cpp", {"cpu_experts": 3, "host": HOST}, SpecError, "has none"),
        ("llama.cpp", {"gpu_layers": 3, "host": HOST, "parallel": Parallel(tp=2)}, Unsupported, "pipeline stages"),
        ("vllm", {"cpu_offload_bytes": 1e9, "parallel": Parallel(pp=2)}, SpecError, "must be 1"),
        ("vllm", {"cpu_offload_bytes": float("nan")}, SpecError, "0 or more"),
        ("vllm", {"cpu_offload_bytes": 1e12}, SpecError, "is more than the 13.0 GiB of layers"),
        ("vllm", {"host": HOST}, SpecError, "says nothing"),
        ("llama.cpp", {"gpu_layers": 3, "host": CARD}, SpecError, "must be a processor"),
        ("vllm", {"max_num_batched_tokens": 10**21}, SpecError, "must lie between"),
    ],
)
def test_what_cannot_be_is_refused(engine: str, options: dict, error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        estimate(LLAMA, CARD, BF16, engine=engine, **options)


def test_parts_that_share_their_memory_have_no_link() -> None:
    with pytest.raises(Unsupported, match="shares its memory with the host"):
        _ = estimate(LLAMA, names.hardware("m3-max"), BF16, cpu_offload_bytes=1e9).tpot_s
