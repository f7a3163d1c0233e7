"""What `import inferplan` gives, and the published form of its records."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import inferplan as ip
from inferplan.cli.app import main
from inferplan.report.estimates import SCHEMA
from inferplan.report.files import json_text
from inferplan.report.schema import estimate_schema
from inferplan.terms import TERMS

ROOT = Path(__file__).parents[1]
CASES = [
    ("7b", "h100", "fp8", {}),
    ("deepseek-v3", "h200", "fp8", {"batch": 64}),
    ("bert-base", "rtx-4090", "fp16", {"engine": "ideal"}),
    ("mamba-2.8b", "mi300x", "bf16", {"engine": "llama.cpp"}),
    ("llama-3.1-70b", "tpu-v5e", "int8", {"input_tokens": 100}),
    ("gpt-oss-20b", "m3-max", "mxfp4", {"engine": "llama.cpp", "output_tokens": 1}),
]


def of(name: str, part: str, dtype: str, more: dict[str, Any]) -> Any:
    return ip.estimate(ip.model(name), ip.hardware(part), ip.precision(dtype), **more)


def test_the_published_schema_is_the_one_in_force() -> None:
    published = json.loads((ROOT / "docs" / "schema" / f"estimate-{SCHEMA.rsplit('/', 1)[1]}.json").read_text())
    assert published == estimate_schema()
    jsonschema.Draft202012Validator.check_schema(published)


@pytest.mark.parametrize(("name", "part", "dtype", "more"), CASES)
def test_records_have_the_published_form(name: str, part: str, dtype: str, more: dict[str, Any]) -> None:
    jsonschema.validate(json.loads(json_text(of(name, part, dtype, more).record())), estimate_schema())


def test_the_schema_refuses_what_is_not_a_record() -> None:
    record = json.loads(json_text(of(*CASES[0]).record()))
    for wrong in ({**record, "tpot_s": -1}, {**record, "more": 1}, {k: v for k, v in record.items() if k != "fits"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, estimate_schema())


def test_the_json_of_the_command_has_the_published_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "-m", "mixtral", "-g", "h100", "--tp", "2", "--json"]) == 0
    jsonschema.validate(json.loads(capsys.readouterr().out), estimate_schema())


def test_every_key_of_a_record_is_in_the_glossary() -> None:
    record = of(*CASES[0]).record()
    keys = {*record, *record["prefill"], *record["decode"]}
    assert keys <= set(TERMS)


def test_frames_go_together() -> None:
    import pandas as pd

    both = pd.concat([of(*case).frame() for case in CASES[:2]], ignore_index=True)
    assert both["model"].tolist() == ["llama-2-7b", "deepseek-v3"]
    assert both.loc[0, "decode.time_s"] == pytest.approx(both.loc[0, "tpot_s"])


def test_the_frame_of_operators_adds_up_to_the_passes() -> None:
    e = of(*CASES[0])
    sums = e.operators().groupby("pass")[["flops", "time_s"]].sum()
    assert sums.loc["prefill", "flops"] == pytest.approx(float(np.mean(e.prefill.flops)), rel=1e-12)
    overhead = float(np.mean(e.decode.overhead_s))
    assert sums.loc["decode", "time_s"] + overhead == pytest.approx(e.tpot_s, rel=1e-12)


def test_the_frame_of_batches_starts_with_one() -> None:
    frame = of(*CASES[0]).batches()
    assert frame["batch"].iloc[0] == 1
    assert frame["usd_per_million_tokens"].is_monotonic_decreasing


def test_it_shows_itself() -> None:
    from rich.console import Console

    e = of(*CASES[0])
    page = Console(file=io.StringIO(), width=100)
    page.print(e)
    assert "Llama 2 7B on one NVIDIA H100" in page.file.getvalue()  # type: ignore[attr-defined]
    html = e._repr_html_()
    assert "<table" in html
    assert "decode step" in html


def test_the_page_is_written(tmp_path: Path) -> None:
    page, picture = tmp_path / "e.html", tmp_path / "e.svg"
    assert main(["estimate", "-m", "7b", "-g", "h100", "--html", str(page), "--plot", str(picture)]) == 0
    assert "<title>Llama 2 7B on one NVIDIA H100 SXM5 80GB</title>" in page.read_text()
    assert picture.read_text().lstrip().startswith("<?xml")
    both = tmp_path / "both.svg"
    assert main(["estimate", "-m", "7b,13b", "-g", "h100", "--plot", str(both)]) == 0
    assert both.read_text().lstrip().startswith("<?xml")


def test_shown_estimates_are_estimates() -> None:
    from inferplan.deployment import estimate

    plain = estimate(ip.model("7b"), ip.hardware("h100"), ip.precision("fp8"))
    assert of(*CASES[0]).tpot_s == plain.tpot_s


@pytest.mark.parametrize("loads", [{"rate_per_s": ()}, {"rate_per_s": "x"}, {"clients": 1.5}, {"clients": np.nan}, {"clients": [[1]]}])
def test_odd_loads_are_one_line(loads: dict[str, Any]) -> None:
    with pytest.raises(ip.SpecError, match=next(iter(loads))):
        ip.batching(ip.estimate("7b", "h100", "fp8"), **loads)


def test_no_part_and_one_column() -> None:
    with pytest.raises(ip.SpecError, match="hardware"):
        ip.quantize("7b", [])
    assert ip.validate("examples/cases.csv", by="quantity").by == ["quantity"]
