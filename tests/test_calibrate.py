"""Calibrations fitted to rows of one's own: known factors found again, what is not identified, the file, and bad input."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from inferplan.calibrate.cases import Case, read_cases
from inferplan.calibrate.fit import calibrate, spread_over
from inferplan.calibrate.parameters import Parameter, kernels_of, parameters_of, scaled
from inferplan.calibrate.predict import Predictor
from inferplan.calibrate.validate import outcomes
from inferplan.cli.app import main
from inferplan.deployment import estimate
from inferplan.errors import Unsupported
from inferplan.names import hardware, model, precision
from inferplan.report.calibration_file import calibration_yaml
from inferplan.roofline.efficiency import Efficiency

ROOT = Path(__file__).parents[1]
BASE = {"model": "llama-3.1-8b", "gpu": "h100", "engine": "vllm", "weights": "bf16"}


def batches(**own: str) -> list[Case]:
    """Static batches of several sizes and lengths, without known values."""
    rows = []
    for batch in (1, 4, 16, 64, 256):
        for tokens in (128, 1024, 8192):
            cells = {**BASE, "input_tokens": str(tokens), "output_tokens": "64", "batch": str(batch), **own}
            rows += [Case(f"{batch}-{tokens}-{q}", q, 1.0, cells, Path()) for q in ("tpot_s", "ttft_s")]
    return rows


def truth(cases: list[Case], efficiency: Efficiency) -> list[Case]:
    """The same with what a calibration predicts as known values; rows that do not fit left out."""
    found = outcomes(cases, Predictor(efficiency))
    return [Case(o.case.name, o.case.quantity, o.predicted, o.case.row, o.case.folder) for o in found if o.predicted is not None]


def known(**factors: float) -> tuple[list[Case], Efficiency]:
    """Rows of a machine whose factors on the shipped calibration are known."""
    base = Efficiency.default()
    e = estimate(model("llama-3.1-8b"), hardware("h100"), precision("bf16"))
    chosen = {p: factors[p.field] for p in parameters_of([e], base) if p.field in factors}
    assert len(chosen) == len(factors)
    made = scaled(base, kernels_of(e), chosen)
    return truth(batches(), made), made


def test_factors_are_found_again() -> None:
    """Rows of a known machine: 0.9 of the shipped bandwidth share, 0.8 of the FLOP share, three times the time per sequence."""
    cases, _ = known(bandwidth=0.9, compute=0.8, per_sequence=3.0)
    found = calibrate(cases, Efficiency.default())
    factor = {f.parameter.field: f.factor for f in found.fitted}
    assert factor["bandwidth"] == pytest.approx(0.9, rel=0.05)
    assert factor["compute"] == pytest.approx(0.8, rel=0.05)
    assert 1.5 < factor["per_sequence"] < 3.2
    assert np.median(np.abs(found.after)) < 0.1 * np.median(np.abs(found.before))


def test_what_rows_do_not_tell_stays_at_its_prior() -> None:
    """One kind of row, decode of one sequence: products' FLOP share cannot be told from it."""
    cells = {**BASE, "context": "1000", "batch": "1"}
    cases = [Case(str(n), "tpot_s", 0.008, {**cells, "context": str(500 * n)}, Path()) for n in range(1, 5)]
    found = {f.parameter.field: f for f in calibrate(cases, Efficiency.default()).fitted}
    assert not found["compute"].identified
    assert found["compute"].factor == pytest.approx(1.0, abs=0.05)
    assert found["bandwidth"].identified


def test_a_fit_without_need_changes_nothing() -> None:
    base = Efficiency.default()
    found = calibrate(truth(batches()[::5], base), base)
    assert all(f.factor == pytest.approx(1.0, abs=1e-6) for f in found.fitted)


def test_rows_far_off_do_not_carry_the_fit() -> None:
    cases, _ = known(bandwidth=0.9)
    spoilt = [Case(c.name, c.quantity, c.value * (5 if i % 10 == 0 else 1), c.row, c.folder) for i, c in enumerate(cases)]
    found = {f.parameter.field: f.factor for f in calibrate(spoilt, Efficiency.default()).fitted}
    assert found["bandwidth"] == pytest.approx(0.9, rel=0.08)


def test_shares_stay_below_the_sheet() -> None:
    base = Efficiency.default()
    e = estimate(model("llama-3.1-8b"), hardware("h100"), precision("bf16"))
    wild = scaled(base, kernels_of(e), {Parameter("bandwidth", e.hardware.name, "bandwidth", 0.25): 5.0})
    fast = estimate(model("llama-3.1-8b"), hardware("h100"), precision("bf16"), efficiency=wild)
    assert fast.tpot_s >= fast.floor_tpot_s


def test_the_file_reads_back_to_the_same_times(tmp_path: Path) -> None:
    cases, _ = known(bandwidth=0.9, per_step=3.0)
    found = calibrate(cases[::2], Efficiency.default())
    path = tmp_path / "own.yaml"
    path.write_text(calibration_yaml(found, name="own", source="rows", date="2026-11-30"))
    read = Efficiency.load(path)
    assert read.sources["cases"].date == "2026-11-30"
    for case in cases[1::6]:
        assert Predictor(read).predict(case).value == pytest.approx(Predictor(found.efficiency).predict(case).value, rel=1e-3)
    assert "identified" in path.read_text() or all(f.identified for f in found.fitted)


def test_an_interrupt_keeps_the_best_fit_so_far() -> None:
    cases, _ = known(bandwidth=0.8)

    def stop(done: int, total: int) -> None:
        if done > 12 * len(cases):
            raise KeyboardInterrupt

    found = calibrate(cases, Efficiency.default(), progress=stop)
    assert found.partial
    assert np.median(np.abs(found.after)) < np.median(np.abs(found.before))


LLAMA = {"model": "llama-3.1-8b", "gpu": "rtx-4090", "engine": "llama.cpp", "weights": "q4_k_m"}


def llama_rows() -> list[Case]:
    """Prompts and decode steps of llama.cpp, in two formats, without known values."""
    decode = [{"context": str(n), "quantity": "decode_tokens_per_s"} for n in (64, 1024, 8192, 32768)]
    prompts = [{"input_tokens": str(n), "quantity": "prefill_tokens_per_s"} for n in (64, 512, 4096)]
    return [
        Case(f"{weights}-{i}", cells["quantity"], 1.0, {**LLAMA, **cells, "weights": weights, "batch": "1"}, Path())
        for weights in ("q4_k_m", "f16")
        for i, cells in enumerate(decode + prompts)
    ]


def test_kernels_that_an_engine_ships_itself_are_fitted_too(tmp_path: Path) -> None:
    """llama.cpp at 0.85 of the shipped bandwidth share and 0.75 of the FLOP share: both are found again, and the file keeps them."""
    base = Efficiency.default()
    e = estimate(model("llama-3.1-8b"), hardware("rtx-4090"), precision("q4_k_m"), engine="llama.cpp")
    kernels = kernels_of(e) | kernels_of(estimate(model("llama-3.1-8b"), hardware("rtx-4090"), precision("f16"), engine="llama.cpp"))
    assert {k.engine for k in kernels if k.kind in ("matmul", "attention_decode", "attention_prefill")} == {"llama.cpp"}
    wanted = {"bandwidth": 0.85, "compute": 0.75}
    chosen = {p: wanted[p.field] for p in parameters_of([e], base) if p.field in wanted}
    made = scaled(base, kernels, chosen)
    found = calibrate(truth(llama_rows(), made), base)
    factor = {f.parameter.field: f.factor for f in found.fitted}
    assert factor["bandwidth"] == pytest.approx(0.85, rel=0.05)
    assert factor["compute"] == pytest.approx(0.75, rel=0.05)
    path = tmp_path / "own.yaml"
    path.write_text(calibration_yaml(found, name="own", source="rows", date="2026-11-30"))
    read = Efficiency.load(path)
    for case in llama_rows():
        assert Predictor(read).predict(case).value == pytest.approx(Predictor(found.efficiency).predict(case).value, rel=1e-3)
    kept, own = (of.engine_kernels["llama.cpp"]["matmul"]["k-quant"] for of in (base, read))
    assert {level: entry for level, entry in own.items() if level != "rtx-4090"} == kept  # of no other part


@pytest.mark.parametrize(("gpu", "most"), [("dgx-spark", 0.5), ("m5", 0.5)])
def test_twenty_rows_of_one_part_under_llama_cpp(gpu: str, most: float) -> None:
    """Public rows: 20 are fitted, evenly spread, and the error of the others comes down to half and less."""
    rows = [c for c in read_cases(ROOT / "validation" / "llama.csv")[0] if c.row["gpu"] == gpu and c.row["host_class"] != "board"]
    fitted = spread_over(rows, 20)
    rest = [c for c in rows if c not in fitted]
    before, after = (errors_of(rest, of) for of in (Efficiency.default(), calibrate(fitted, Efficiency.default()).efficiency))
    assert len(rest) >= 10
    assert after <= most * before


def errors_of(cases: list[Case], efficiency: Efficiency) -> float:
    """The median error of cases."""
    return float(np.median([abs(o.error) for o in outcomes(cases, Predictor(efficiency)) if o.error is not None]))


def test_no_usable_row_is_an_error() -> None:
    with pytest.raises(Unsupported, match="no row"):
        calibrate([Case("a", "params", 1.0, {"model": "7b"}, Path())], Efficiency.default())


def test_rows_are_chosen_evenly() -> None:
    assert spread_over(list(range(100)), 5) == [0, 24, 49, 74, 99]


def write_rows(path: Path, cases: list[Case]) -> None:
    with path.open("w", newline="") as f:
        table = csv.DictWriter(f, ["case", "quantity", "value", *cases[0].row])
        table.writeheader()
        table.writerows({"case": c.name, "quantity": c.quantity, "value": c.value, **c.row} for c in cases)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases, made = known(bandwidth=0.9, per_step=3.0)
    write_rows(tmp_path / "rows.csv", cases)
    own = tmp_path / "own.yaml"
    assert main(["calibrate", str(tmp_path / "rows.csv"), "-o", str(own), "--quiet"]) == 0
    assert "identified" in capsys.readouterr().out
    assert yaml.safe_load(own.read_text())["base"] == "default"
    assert main(["validate", str(tmp_path / "rows.csv"), "--efficiency", str(own), "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["all"]["median_error"] < 0.02
    asked = ["estimate", "--model", "llama-3.1-8b", "--gpu", "h100", "--efficiency", str(own), "--json"]
    assert main(asked) == 0
    e = estimate(model("llama-3.1-8b"), hardware("h100"), precision("bf16"), efficiency=made)
    assert json.loads(capsys.readouterr().out)["tpot_s"] == pytest.approx(e.tpot_s, rel=0.02)


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ("case,model\n", [], "quantity"),
        ("case,model,quantity,value\na,7b,params,7\n", [], "no row"),
        ("case,model,gpu,engine,batch,context,tpot_s\na,7b,h100,vllm,1,100,0.004\n", ["--rows", "0"], "--rows"),
    ],
)
def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: str, options: list[str], said: str) -> None:
    (tmp_path / "rows.csv").write_text(rows)
    own = tmp_path / "own.yaml"
    assert main(["calibrate", str(tmp_path / "rows.csv"), "-o", str(own), *options]) == 2
    assert said in capsys.readouterr().err
    assert not own.exists()


def test_the_output_must_be_yaml_and_not_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("case,model,gpu,engine,batch,context,tpot_s\na,7b,h100,vllm,1,100,0.004\n")
    assert main(["calibrate", str(rows), "-o", str(rows)]) == 2
    assert main(["calibrate", str(rows), "-o", str(tmp_path / "own.txt")]) == 2
    assert "yaml" in capsys.readouterr().err
    assert rows.read_text().startswith("case")


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    [
        ("serving.csv", "openai/gpt-oss-120b", "h200-sxm", "vllm", "0.18.0", "mxfp4", "2"),
        ("offline.csv", "meta-llama/Llama-2-70b-chat-hf", "mi300x", "vllm", "", "fp8", "1"),
    ],
)
def test_twenty_rows_halve_the_error_of_a_deployment_s_others(key: tuple[str, ...]) -> None:
    """As validation/CALIBRATE.md says of these two, fitted and judged anew."""
    sys.path.insert(0, str(ROOT / "tools"))
    import calibration_gain

    before, after, rest = calibration_gain.gain(calibration_gain.deployments()[key])
    assert rest >= 14
    assert after <= before / 2


def test_a_plan_takes_a_calibration_by_either_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("name: own\nbase: default\nengines:\n  vllm: {per_step: 40 ms}\n")
    asked = ["plan", "-m", "llama-3.1-8b", "--rate", "2", "--slo", "tpot.p95=60ms", "--gpu", "l40s", "-d", "fp8", "--finalists", "0"]
    found = []
    for option in ([], ["--calibration", str(own)], ["--efficiency", str(own)]):
        assert main([*asked, "--tp", "1", *option, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["choices"][0]["replica_rate_per_s"])
    assert found[1] == found[2] < found[0]
