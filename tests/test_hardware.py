"""The accelerator database: every figure against an independent table, and what bad files are told."""

import csv
import dataclasses
from pathlib import Path

import pytest

from inferplan.errors import SpecError, Unsupported
from inferplan.specs import catalog
from inferplan.specs.document import load_yaml
from inferplan.specs.hardware import DTYPES, Accelerator, architectures, prices
from inferplan.specs.link import links
from inferplan.specs.quantity import Quantity

DATA = Path(__file__).parent / "data"
HARDWARE = Path(__file__).parents[1] / "hardware"
FILES = sorted(HARDWARE.glob("*/*.yaml"))
ROWS = list(csv.DictReader((DATA / "hardware_ids.csv").read_text().splitlines()))
PARTS = {path.stem: Accelerator.load(path) for path in FILES}

GOOD = """
name: card
title: A card
vendor: Lab
architecture: nvidia-hopper
confidence: high
sources:
  ds: {title: A data sheet, url: https://example.org/ds.pdf, date: 2024, kind: vendor}
memory:
  type: HBM3
  capacity: {value: 80 GiB, source: ds}
  usable: {value: 81559 MiB, source: ds}
  bandwidth: {value: 3.35 TB/s, source: ds}
peak:
  bf16: {value: 989.4 TFLOP/s, source: ds}
  fp8: {value: 1978.9 TFLOP/s, source: ds}
vector: {value: 66.9 TFLOP/s, source: ds}
"""


def load(tmp_path, text):
    file = tmp_path / "card.yaml"
    file.write_text(text)
    return Accelerator.load(file)


def test_all_parts_are_there():
    assert len(ROWS) == 163
    assert {row["name"] for row in ROWS} <= set(PARTS)


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_figures_equal_the_table(row):
    path = catalog.find("hardware", row["id"])
    part = PARTS[path.stem]
    assert part.name == row["name"] == path.stem
    figures = {
        "bandwidth_gb_s": (part.memory.bandwidth, 1e9),
        "fp16_tflops": (part.peak.fp16, 1e12),
        "bf16_tflops": (part.peak.bf16, 1e12),
        "fp8_tflops": (part.peak.fp8, 1e12),
        "usable_mib": (part.memory.usable, 1024**2),
        "tdp_w": (part.power, 1.0),
    }
    for column, (quantity, scale) in figures.items():
        known = None if quantity is None else quantity.value
        assert known == (pytest.approx(float(row[column]) * scale, rel=1e-9) if row[column] else None), column


@pytest.mark.parametrize("name", PARTS)
def test_each_part_holds_together(name):
    part = PARTS[name]
    assert name == catalog.normalise(name)
    if part.memory.usable and part.memory.capacity:
        assert part.memory.usable.value <= part.memory.capacity.value
    rates = [rate.value for rate in (part.peak.fp8, part.peak.bf16, part.vector) if rate]
    assert rates == sorted(rates, reverse=True)
    for field, number in part.numbers().items():
        assert number.value > 0, field
        assert number.source in part.sources, field
        assert number.kind is not None, field
        assert number.confidence is not None, field
        assert number.kind == part.sources[number.source].kind or number.kind in ("assumed", "published"), field
    if part.link and part.link.name.startswith(("nvlink-", "pcie-", "xgmi-", "ici-", "roce-", "neuronlink-", "ub-")):
        links().find(part.link.name)


@pytest.mark.parametrize(("name", "dtype", "ridge"), [("a100-sxm4-80gb", "bf16", 153.0), ("h100", "bf16", 295.3), ("h100", "fp8", 590.7)])
def test_ridge_points(name, dtype, ridge):
    assert Accelerator.find(name).ridge(dtype) == pytest.approx(ridge, abs=0.05)


@pytest.mark.parametrize(
    ("name", "dtype", "computed"),
    [
        ("a100", "fp8", "bf16"),
        ("a100", "bf16", "bf16"),
        ("a100", "int8", "int8"),
        ("a100", "int4", "bf16"),
        ("h100", "fp8", "fp8"),
        ("h100", "mxfp4", "bf16"),
        ("h100", "fp4", "bf16"),
        ("b200", "fp4", "fp4"),
        ("b200", "nvfp4", "fp4"),
        ("b200", "mxfp4", "fp4"),
        ("b200", "mxfp8", "fp8"),
        ("rtx-5090", "mxfp8", "mxfp8"),
        ("mi355x", "mxfp4", "fp4"),
        ("mi355x", "nvfp4", "bf16"),
        ("v100", "bf16", "fp16"),
        ("v100", "fp8", "fp16"),
        ("t4", "bf16", "fp16"),
        ("p40", "fp16", "fp32"),
        ("tpu-v5e", "fp16", "bf16"),
        ("m2-ultra", "int4", "bf16"),
        ("epyc-9654", "fp16", "bf16"),
        ("grace", "bf16", "fp32"),
        ("b200", "int4", "bf16"),
        ("h100", "fp32", "fp32"),
    ],
)
def test_what_a_stored_type_is_computed_in(name, dtype, computed):
    assert Accelerator.find(name).computed_in(dtype) == computed


def test_int4_weights_run_wherever_16_bit_ones_do():
    for part in PARTS.values():
        if part.peak.bf16 or part.peak.fp16:
            assert part.computed_in("int4") in ("bf16", "fp16")
            assert part.peak_flops_per_s("int4") <= max(q.value for _, q in part.peak if q)


def test_a_narrow_type_without_a_peak_is_no_multiple_of_another():
    a100 = Accelerator.find("a100")
    assert a100.peak_flops_per_s("fp8") == a100.peak_flops_per_s("bf16") == pytest.approx(312e12)


def test_geforce_peaks_accumulate_in_fp32():
    card = Accelerator.find("4090")
    assert card.peak_flops_per_s("fp16") == pytest.approx(165.2e12)
    assert card.peak.fp16_fp16acc.value == pytest.approx(2 * 165.2e12, rel=1e-3)
    assert card.peak_flops_per_s("fp8") == pytest.approx(330.3e12)


def test_what_is_not_known_is_refused():
    with pytest.raises(Unsupported, match="no peak is known for bf16"):
        Accelerator.find("cerebras").computed_in("bf16")
    with pytest.raises(Unsupported, match="no memory bandwidth"):
        Accelerator.find("rubin-cpx").ridge("fp4")
    with pytest.raises(Unsupported, match="no memory size is known"):
        _ = Accelerator.find("epyc-9654").usable_bytes
    with pytest.raises(Unsupported, match="'fp7' is not a number type"):
        Accelerator.find("h100").peak_flops_per_s("fp7")


def test_capacity_stands_in_for_usable_memory_but_says_so():
    part = Accelerator.find("gaudi2")
    assert part.memory.usable is None
    assert part.usable_bytes == 96 * 1024**3
    assert part.usable.kind == "assumed"
    assert Accelerator.find("h100").usable.kind == "measured"


def test_doubts_are_listed():
    assert "memory.usable" in Accelerator.find("l20").doubts()
    assert not Accelerator.find("h100").doubts()
    assert len(Accelerator.find("rubin").doubts()) == len(Accelerator.find("rubin").numbers())


def test_cards_of_several_devices_say_so():
    assert {name for name, part in PARTS.items() if part.dies > 1} == {"mi250", "mi250x", "max-1550", "ascend-910c", "tpu-v7x"}


def test_every_class_resolves_every_type():
    table = architectures()
    assert set(table.fallback) == set(DTYPES)
    for name in table.classes:
        for dtype in DTYPES:
            chain = table.chain(name, dtype)
            assert chain
            assert set(chain) <= set(DTYPES)
    assert {part.architecture for part in PARTS.values()} | {"generic"} == set(table.classes)


def test_a_good_file(tmp_path):
    card = load(tmp_path, GOOD)
    assert card.memory.bandwidth == Quantity(value=3.35e12, unit="B/s", source="ds", kind="vendor", confidence="high")
    assert str(card.memory.capacity) == "80 GiB"
    assert card.domain == 1
    assert card.sources["ds"].date == "2024"


def test_a_part_may_state_its_own_fallback(tmp_path):
    assert load(tmp_path, GOOD).computed_in("int8") == "bf16"
    assert load(tmp_path, GOOD + "fallback: {int8: fp8, fp4: [fp8, bf16]}\n").computed_in("int8") == "fp8"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "{value: 3.35 TB/s, source: ds}",
            "3.35",
            "memory.bandwidth: 3.35: needs a value with its source, like {value: 3.35 TB/s, source: ...}",
        ),
        ("{value: 3.35 TB/s, source: ds}", "3.35 TB/s", "memory.bandwidth: 3.35 TB/s: needs a value with its source"),
        ("3.35 TB/s", "3.35", "memory.bandwidth.value: 3.35: needs a number with its unit, like '3.35 TB/s'"),
        ("3.35 TB/s", "3.35 TB", "memory.bandwidth.value: 3.35 TB: the unit 'TB' is not one of B/s"),
        ("3.35 TB/s", "-3.35 TB/s", "memory.bandwidth.value: -3.35 TB/s: must be finite and not negative"),
        ("3.35 TB/s", "0 TB/s", "memory.bandwidth.value: 0 TB/s: must be above zero"),
        ("3.35 TB/s", "1e999 TB/s", "memory.bandwidth.value: 1e999 TB/s: must be finite and not negative"),
        ("3.35 TB/s", ".inf", "memory.bandwidth.value: inf: must be a finite number"),
        ("3.35 TB/s", "3.35 PB/s", "peak.bf16: 989.4 TFLOP/s: with 3.35 PB/s of memory bandwidth gives a ridge of 0.295 FLOP/B"),
        ("3.35 TB/s", "3.35 GB/s", "peak.bf16: 989.4 TFLOP/s: with 3.35 GB/s of memory bandwidth gives a ridge of 2.95e+05"),
        ("81559 MiB", "81559 GiB", "memory.usable: 81559 GiB: is above the capacity of 80 GiB"),
        (
            "usable: {value: 81559 MiB, source: ds}",
            "usable: {value: 81559 MiB, source: smi}",
            "memory.usable.source: smi: is not among the file's sources (ds)",
        ),
        ("usable: {value: 81559 MiB, source: ds}", "usable: {value: 81559 MiB}", "memory.usable: names no source"),
        ("  bf16:", "  bf17:", "peak.bf17: is not a field that is known here"),
        ("  bf16:", "  bf16_sparse:", "peak.bf16_sparse: is not a field that is known here"),
        ("vendor: Lab", "vendor: Lab\ncolour: green", "colour: is not a field that is known here"),
        ("vendor: Lab\n", "", "vendor: is required and missing"),
        ("1978.9 TFLOP/s", "197.89 TFLOP/s", "peak.fp8: 197.89 TFLOP/s: is below the bf16 rate of 989.4 TFLOP/s"),
        ("66.9 TFLOP/s", "6690 TFLOP/s", "peak.bf16: 989.4 TFLOP/s: is below the fp32 rate of 6.69 PFLOP/s"),
        ("nvidia-hopper", "nvidia-hooper", "architecture: nvidia-hooper: is not a class of parts; known are"),
        ("kind: vendor", "kind: rumour", "sources.ds.kind: rumour:"),
        ("https://example.org", "javascript:alert(1)//", "sources.ds.url: javascript:alert(1)///ds.pdf:"),
        ("name: card", "name: cart", "name: cart: must equal the file name, 'card'"),
        ("vendor: Lab", "vendor: Lab\nyear: soon", "year: soon: must be a whole number"),
        ("vendor: Lab", "vendor: Lab\nfallback: {fp8: bf61}", "fallback: bf61: is not a number type"),
        ("type: HBM3", "type: [1, 2]", "memory.type: must be text"),
    ],
)
def test_bad_files_are_told_what_is_wrong(tmp_path, old, new, message):
    assert old in GOOD
    with pytest.raises(SpecError) as e:
        load(tmp_path, GOOD.replace(old, new))
    text = str(e.value)
    assert text.startswith(f"{tmp_path / 'card.yaml'}: {message}"), text
    assert "\n" not in text
    assert "Traceback" not in text


def test_a_part_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        PARTS["t4"].vendor = "me"


def test_links():
    table = links()
    nvlink = table.find("nvlink-4")
    assert nvlink.bandwidth.value == 450e9
    assert nvlink.lanes * nvlink.per_lane.value == pytest.approx(nvlink.bandwidth.value)
    assert table.find("InfiniBand NDR").bandwidth.value == 50e9
    assert table.pcie_bytes_per_s(4, 8) == pytest.approx(15.75e9)
    assert table.nccl.hop["nvlink"].ring["LL128"].value == pytest.approx(1.9e-6)
    for name, link in table.links.items():
        assert name == catalog.normalise(name)
        if link.per_lane:
            assert link.lanes * link.per_lane.value == pytest.approx(link.bandwidth.value, rel=0.01)
        if link.practical:
            assert 0 < link.practical.value <= 1
    with pytest.raises(Unsupported):
        table.pcie_bytes_per_s(9)


def test_links_of_parts_agree_with_the_table():
    """A part may have fewer links than its kind allows, never more, and torus links differ by rounding in the documentation."""
    table = links()
    for part in PARTS.values():
        if part.link and part.link.bandwidth and part.link.name in table.links:
            assert part.link.bandwidth.value <= table.links[part.link.name].bandwidth.value * 1.12, part.name


def test_prices():
    rows = list(prices())
    assert len(rows) > 150
    known = set(PARTS)
    for row in rows:
        assert row.gpu in known
        assert (row.usd_per_h is None) != (row.list_price_usd is None)
        assert (row.usd_per_h or row.list_price_usd) > 0
        assert row.source
        assert row.confidence in ("high", "medium", "low")
    aws = next(row for row in rows if row.instance == "p5.48xlarge" and row.price_type == "on-demand")
    assert dataclasses.astuple(aws)[:5] == ("h100-sxm5-80gb", "AWS", "p5.48xlarge", 8, 6.88)


def test_prices_of_a_broken_table(tmp_path):
    (tmp_path / "hardware").mkdir()
    head = "gpu,cloud,instance,gpus,usd_per_gpu_h,list_price_usd,price_type,date,source,confidence,note\n"
    (tmp_path / "hardware" / "prices.csv").write_text(head + "h100,AWS,x,eight,2.0,,on-demand,,here,low,\n")
    with pytest.raises(SpecError, match=r"prices\.csv: line 2: holds a number that cannot be read"):
        list(prices(environ={catalog.PATH_VARIABLE: str(tmp_path)}))


@pytest.mark.parametrize("title", ["a\nb", "a\x1b[31m", "a\u202eb", "x" * 201])
def test_a_title_is_one_line(title: str) -> None:
    told = "must be one line of at most 200 characters"
    data = load_yaml(FILES[0])
    with pytest.raises(SpecError, match=told):
        Accelerator.from_mapping({**data, "title": title})
    assert Accelerator.from_mapping({**data, "title": "\u4e00\u5f20 card"}).title.endswith("card")
