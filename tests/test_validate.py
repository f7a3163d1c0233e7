"""`inferplan validate` on times: known answers, loops, refusals, summaries, bands, interrupts."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferplan as ip
from inferplan.calibrate import predict
from inferplan.calibrate.cases import Case, read_cases
from inferplan.calibrate.loads import share_of
from inferplan.calibrate.predict import PREDICTED, Predictor
from inferplan.calibrate.summary import grouped, summary
from inferplan.calibrate.validate import Outcome, outcomes
from inferplan.cli.app import main
from inferplan.errors import SpecError
from inferplan.roofline.efficiency import Efficiency
from inferplan.serving.continuous import continuous
from inferplan.serving.front_end import front_end_s, front_end_wait_s
from inferplan.serving.protocol import simulate_case
from inferplan.serving.requests import Requests, closed_loop
from inferplan.specs.parallel import Parallel

ROOT = Path(__file__).parents[1]
HERE = {"model": "llama-3.1-8b", "gpu": "h100", "engine": "vllm", "weights": "fp8"}


def case(quantity: str, **cells: object) -> Case:
    return Case("a", quantity, 1.0, {k: str(v) for k, v in {**HERE, **cells}.items()}, Path())


def predicted(quantity: str, predictor: Predictor | None = None, **cells: object) -> float:
    return (predictor or Predictor()).predict(case(quantity, **cells)).value


def refused(quantity: str = "tpot_s", **cells: object) -> str:
    return outcomes([case(quantity, **cells)])[0].refused


def estimate(**load: Any) -> ip.Estimate:
    return ip.estimate(ip.model("llama-3.1-8b"), ip.hardware("h100"), ip.precision("fp8", kv="bf16"), **load)


def of_batch(e: ip.Estimate, batch: int, sent: int, made: int) -> dict[str, float]:
    """What an offline benchmark of one static batch would print, if the estimate were the machine: steps alone, no front end."""
    whole = e.prefill_s + (made - 1) * e.tpot_s
    return {
        "ttft_s": e.prefill_s, "tpot_s": e.tpot_s, "itl_s": e.tpot_s, "e2e_s": whole,
        "decode_tokens_per_s": 1 / e.tpot_s, "prefill_tokens_per_s": batch * sent / e.prefill_s, "requests_per_s": batch / whole,
        "output_tokens_per_s": batch * made / whole, "total_tokens_per_s": batch * (sent + made) / whole,
    }  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["validate", *args])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("batch", [1, 32])
def test_cases_made_of_an_estimate_have_no_error_in_either_form(tmp_path: Path, batch: int) -> None:
    known = of_batch(estimate(input_tokens=700, output_tokens=90, batch=batch), batch, 700, 90)
    common = {**HERE, "input_tokens": 700, "output_tokens": 90, "batch": batch}
    wide = write(tmp_path / "wide.csv", [{**common, **known}])
    long = write(tmp_path / "long.csv", [{**common, "quantity": q, "value": v} for q, v in known.items()])
    found = [outcomes(read_cases(path)[0]) for path in (wide, long)]
    for rows in found:
        assert {o.case.quantity: o.error for o in rows} == dict.fromkeys(known, pytest.approx(0, abs=1e-12))
    assert {o.case.quantity: o.predicted for o in found[0]} == {o.case.quantity: o.predicted for o in found[1]}


def test_units_of_long_rows_become_seconds(tmp_path: Path) -> None:
    e = estimate(input_tokens=128, output_tokens=16)
    row = {**HERE, "input_tokens": 128, "output_tokens": 16, "quantity": "ttft_s", "value": 1e3 * e.prefill_s, "unit": "ms"}
    assert outcomes(read_cases(write(tmp_path / "a.csv", [row]))[0])[0].error == pytest.approx(0, abs=1e-12)


def test_decode_is_taken_at_its_context() -> None:
    at = 1 / estimate(input_tokens=3000, output_tokens=1, context=3000).tpot_s
    assert predicted("decode_tokens_per_s", context=3000) == pytest.approx(at, rel=1e-12)
    assert predicted("decode_tokens_per_s", input_tokens=3000) == pytest.approx(at, rel=1e-12)
    assert predicted("output_tokens_per_s", context=3000, batch=8) == pytest.approx(
        8 / estimate(input_tokens=3000, output_tokens=1, batch=8, context=3000).tpot_s, rel=1e-12
    )
    assert predicted("decode_tokens_per_s", input_tokens=3000, output_tokens=2000) < at


def test_prefill_counts_the_tokens_that_are_computed() -> None:
    e = estimate(input_tokens=4096, output_tokens=1, cached=3072)
    assert predicted("prefill_tokens_per_s", input_tokens=4096, cached_tokens=3072) == pytest.approx(1024 / e.prefill_s, rel=1e-12)


def test_under_the_ideal_calibration_a_time_is_near_its_floor() -> None:
    e = estimate(input_tokens=512, output_tokens=64, batch=4)
    ideal = predicted("tpot_s", Predictor(Efficiency.ideal()), input_tokens=512, output_tokens=64, batch=4)
    assert e.floor_tpot_s <= ideal == pytest.approx(e.floor_tpot_s, rel=0.02)
    assert ideal < 0.8 * e.tpot_s


LOOP = {"input_tokens": 512, "output_tokens": 64, "concurrency": 8}


def test_a_closed_loop_is_the_simulated_protocol() -> None:
    e = estimate(input_tokens=512, output_tokens=64)
    direct = simulate_case(e, concurrency=8, input_tokens=512, output_tokens=64)
    own, cells = Predictor(), {**LOOP, "protocol": "inferencemax"}
    assert predicted("tpot_s", own, **cells) == pytest.approx(direct.tpot_mean_s, rel=0.01)
    assert predicted("ttft_s", own, **cells) == pytest.approx(direct.ttft_mean_s, rel=0.01)
    assert predicted("ttft_s", own, statistic="median", **cells) == pytest.approx(direct.ttft_median_s, rel=0.05)
    assert predicted("output_tokens_per_s", own, **cells) == pytest.approx(direct.output_tokens_per_s, rel=0.01)
    assert predicted("tpot_s", own, statistic="p90", **cells) == pytest.approx(np.quantile(direct.served.tpot_s, 0.9), rel=0.01)


def test_prompts_that_start_together_wait_for_each_other() -> None:
    each = np.full(40, 0.02)
    loop = front_end_s(closed_loop(4, 512, 64), each)
    assert loop.tolist() == pytest.approx([0.02, 0.04, 0.06, 0.08] + [0.02] * 36)
    assert loop.mean() == pytest.approx(float(front_end_wait_s(0.02, 4, 10)))
    assert front_end_s(Requests.of([0.0, 0.01, 0.015, 0.5], 8, 8), each[:4]).tolist() == [0.02] * 4


def test_what_a_run_yields_hangs_together() -> None:
    own = Predictor()
    rate = predicted("requests_per_s", own, **LOOP)
    assert predicted("output_tokens_per_s", own, **LOOP) == pytest.approx(64 * rate, rel=1e-9)
    assert predicted("total_tokens_per_s", own, **LOOP) == pytest.approx(576 * rate, rel=1e-9)
    assert predicted("itl_s", own, **LOOP) == pytest.approx(predicted("tpot_s", own, **LOOP), rel=1e-9)
    assert predicted("e2e_s", own, **LOOP) == pytest.approx(
        predicted("ttft_s", own, **LOOP) + 63 * predicted("tpot_s", own, **LOOP), rel=1e-9
    )
    assert predicted("itl_s", own, statistic="p99", **LOOP) >= predicted("itl_s", own, statistic="p50", **LOOP) > 0


def test_lengths_vary_only_where_a_row_says_so() -> None:
    own = Predictor()
    fixed, varied = predicted("e2e_s", own, **LOOP), predicted("e2e_s", own, length_ratio=0.8, **LOOP)
    assert varied == predicted("e2e_s", own, protocol="inferencemax", **LOOP)
    assert varied == pytest.approx(0.9 * fixed, rel=0.05)


def test_cached_prompts_come_sooner() -> None:
    own, cells = Predictor(), {"input_tokens": 8192, "output_tokens": 16, "concurrency": 4}
    assert predicted("ttft_s", own, cached_tokens=8000, **cells) < 0.5 * predicted("ttft_s", own, **cells)
    arrivals = {"input_tokens": 8192, "output_tokens": 16, "rate_per_s": 1, "requests": 50}
    assert predicted("ttft_s", own, cached_tokens=8000, **arrivals) < 0.5 * predicted("ttft_s", own, **arrivals)


def test_arrivals_without_a_number_of_requests_are_the_steady_state() -> None:
    e, own = estimate(input_tokens=512, output_tokens=64), Predictor()
    steady, cells = continuous(e, rate_per_s=20.0), {"input_tokens": 512, "output_tokens": 64, "rate_per_s": 20}
    each = float(e.setting.efficiency.front_end_s("vllm", len(e.model.order), 512))
    front = each
    for quantity in ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "requests_per_s"):
        more = front if quantity in ("ttft_s", "e2e_s") else 0.0
        assert predicted(quantity, own, **cells) == pytest.approx(float(getattr(steady, quantity)) + more, rel=1e-12)
    assert predicted("ttft_s", own, statistic="p99", **cells) == pytest.approx(float(steady.ttft_quantile_s(0.99)) + front, rel=1e-12)
    assert predicted("tpot_s", own, requests=2000, **cells) == pytest.approx(float(steady.tpot_s), rel=0.1)


def test_even_arrivals_wait_less_than_poisson_ones() -> None:
    cells, own = {"input_tokens": 4096, "output_tokens": 16, "rate_per_s": 8, "requests": 400}, Predictor()
    assert predicted("ttft_s", own, arrival_cv=0, **cells) < predicted("ttft_s", own, **cells)


def test_step_tables_are_shared_and_do_not_depend_on_the_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = predict.case_steps
    monkeypatch.setattr(predict, "case_steps", lambda *args: made.append(1) or real(*args))
    own = Predictor()
    rows = [{**LOOP, "concurrency": n, "output_tokens": m} for n in (4, 8, 16) for m in (16, 64)]
    together = [predicted("tpot_s", own, **row) for row in rows]
    assert len(made) == 1
    assert [predicted("tpot_s", **row) for row in rows] == together


@pytest.mark.parametrize(
    ("words", "cells"),
    [
        ("the row names no gpu", {"gpu": "", "batch": 1}),
        ("the row names no engine", {"engine": "", "batch": 1}),
        ("no hardware called 'h1000'", {"gpu": "h1000", "input_tokens": 8}),
        ("no model called", {"model": "nothing-like-it", "input_tokens": 8}),
        ("names neither input_tokens nor context", {}),
        ("the row names no output_tokens", {"concurrency": 4, "input_tokens": 8}),
        ("names both concurrency and rate_per_s", {"concurrency": 4, "rate_per_s": 2, "input_tokens": 8, "output_tokens": 8}),
        ("concurrency: many: must be a number", {"concurrency": "many"}),
        ("concurrency: nan: must lie between", {"concurrency": "nan"}),
        ("input_tokens: -5: must lie between", {"input_tokens": -5}),
        ("requests: 1e+300: must lie between", {"rate_per_s": 1, "requests": 1e300, "input_tokens": 8, "output_tokens": 8}),
        ("cached_tokens", {"concurrency": 4, "input_tokens": 8, "output_tokens": 8, "cached_tokens": 8}),
        ("statistic: p0: must be mean", {"statistic": "p0", "input_tokens": 8}),
        ("drafts", {"draft_tokens": 3, "input_tokens": 8}),
        ("drafts", {"draft": "eagle", "input_tokens": 8}),
        ("eager", {"eager": "1", "input_tokens": 8}),
        ("names no pools", {"protocol": "disaggregated", "input_tokens": 8}),
        ("an output of one token has no tpot_s", {"input_tokens": 8, "output_tokens": 1}),
        ("more arrives than can be served", {"rate_per_s": 1e6, "input_tokens": 8, "output_tokens": 8}),
        ("Poisson", {"rate_per_s": 1, "arrival_cv": 0, "input_tokens": 8, "output_tokens": 8}),
        ("exceed the budget", {"model": "llama-3.1-405b", "weights": "bf16", **LOOP}),
        ("makes no tokens one by one", {"model": "bert-base", "weights": "", **LOOP}),
        ("has no tpot_s", {"model": "bert-base", "weights": "", "input_tokens": 128}),
        ("ep: 4: must divide tp x dp", {"tp": 2, "ep": 4, **LOOP}),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_predicted_say_why(words: str, cells: dict[str, Any]) -> None:
    assert words in refused(**cells)


def test_quantities_that_a_load_does_not_have_are_refused() -> None:
    assert "one static batch" in refused("prefill_tokens_per_s", **LOOP)
    assert "is not predicted; those that are: params" in refused("colour", **LOOP)
    assert "without which e2e_s cannot be told" in refused("e2e_s", input_tokens=8)
    assert "the cache holds" in refused("ttft_s", input_tokens=100_000, batch=500)


@pytest.mark.parametrize(("column", "value"), [("block_size", 0), ("max_model_len", 0), ("utilization", 2), ("total_gib", 1e9)])
@pytest.mark.parametrize("quantity", ["kv_cache_tokens", "tpot_s"])
def test_absurd_launches_are_refused(quantity: str, column: str, value: float) -> None:
    assert refused(quantity, **{**LOOP, column: value}).startswith(f"{column}: ")


def test_what_has_no_bound_has_no_value() -> None:
    assert "no finite value" in refused("max_concurrency", model="bert-base", weights="", max_model_len=512)


def test_a_refusal_stops_no_other_row() -> None:
    found = outcomes([case("tpot_s", gpu="none-such", **LOOP), case("tpot_s", **LOOP), case("ttft_s", gpu="none-such", **LOOP)])
    assert [bool(o.refused) for o in found] == [True, False, True]
    assert found[0].refused == found[2].refused


def test_splits_are_read_from_a_row() -> None:
    e = estimate(input_tokens=512, output_tokens=64, parallel=Parallel(2))
    assert predicted("ttft_s", input_tokens=512, output_tokens=64, tp=2) == pytest.approx(e.prefill_s, rel=1e-12)


@pytest.mark.parametrize(("text", "share"), [(None, None), ("avg", None), ("MEDIAN", 0.5), ("p50", 0.5), ("p99.9", 0.999)])
def test_statistics(text: str | None, share: float | None) -> None:
    assert share_of(text) == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize("text", ["p", "p100", "p-5", "pinf", "pnan", "max", "99"])
def test_texts_that_are_no_statistic(text: str) -> None:
    with pytest.raises(SpecError, match="statistic"):
        share_of(text)


def outcome(value: float, predicted: float | None, low: float | None = None, high: float | None = None, **row: str) -> Outcome:
    return Outcome(Case("a", "tpot_s", value, row, Path()), predicted, "" if predicted is not None else "why", low, high)


def test_the_summary_of_known_errors() -> None:
    found = summary([outcome(100, p) for p in (100, 95, 112, 125, 70, 300)] + [outcome(1, None)])
    assert (found.rows, found.predicted, found.exact) == (7, 6, 1)
    assert found.median_error == pytest.approx((0.12 + 0.25) / 2)
    assert found.mean_error == pytest.approx((0 + 0.05 + 0.12 + 0.25 + 0.3 + 2) / 6)
    assert found.p90_error == pytest.approx(0.5 * 0.3 + 0.5 * 2)
    assert found.worst_error == pytest.approx(2)
    assert found.signed_median == pytest.approx(0.06)
    assert found.within == {"0.005": 1 / 6, "0.1": 2 / 6, "0.2": 3 / 6, "0.3": 5 / 6}
    assert found.covered is None


def test_bands_cover_what_lies_in_them() -> None:
    rows = [
        outcome(10, 10, 9, 11),
        outcome(9, 10, 9, 11),
        outcome(11.01, 10, 9, 11),
        outcome(8, 10, 9, 11),
        outcome(5, 5),
        outcome(7, 7, 7, 7),
    ]
    found = summary(rows)
    assert (found.banded, found.covered) == (4, 0.5)
    assert [o.covered for o in rows] == [True, True, False, False, None, None]


def test_nothing_predicted_has_no_errors() -> None:
    found = summary([outcome(1, None)])
    assert (found.predicted, found.median_error, found.p90_error, found.covered) == (0, None, None, None)
    assert summary([]).rows == 0


def test_a_known_zero_is_right_or_infinitely_wrong() -> None:
    assert outcome(0, 0).error == 0
    assert summary([outcome(0, 1), outcome(1, 1), outcome(1, 1)]).worst_error == float("inf")


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=30))
def test_summaries_are_in_order(pairs: list[tuple[float, float]]) -> None:
    found = summary([outcome(v, p) for v, p in pairs])
    errors = [abs(p - v) / v for v, p in pairs]
    assert found.median_error == pytest.approx(float(np.median(errors)))
    assert found.p90_error == pytest.approx(float(np.quantile(errors, 0.9)))
    assert found.median_error <= found.p90_error + 1e-12 <= found.worst_error + 2e-12
    assert list(found.within.values()) == sorted(found.within.values())


def test_groups_are_by_value_of_the_columns() -> None:
    found = grouped([outcome(1, 1, gpu="h100"), outcome(1, 2, gpu="h100"), outcome(1, 1, gpu="b200")], ["gpu", "quantity"])
    assert {key: s.rows for key, s in found.items()} == {("b200", "tpot_s"): 1, ("h100", "tpot_s"): 2}


def test_every_quantity_is_predicted_or_refused_by_name() -> None:
    from inferplan.calibrate.cases import QUANTITIES

    assert set(QUANTITIES) == set(PREDICTED)


@pytest.fixture
def serving(tmp_path: Path) -> Path:
    loads = [LOOP, {**LOOP, "concurrency": 2}]
    rows = [{**HERE, "case": n, **load, "tpot_s": 0.004, "ttft_s": 0.03, "team": "x"} for n, load in enumerate(loads)]
    return write(tmp_path / "cases.csv", rows)


def test_the_record_on_the_command_line(capsys: pytest.CaptureFixture[str], serving: Path, tmp_path: Path) -> None:
    errors = tmp_path / "errors.csv"
    code, out, _ = run(capsys, str(serving), "--json", "--by", "team,quantity", "--csv", str(errors))
    found = json.loads(out)
    assert code == 0
    assert (found["schema"], found["partial"], found["by"]) == ("inferplan/validate/2", False, ["team", "quantity"])
    assert found["all"]["rows"] == found["all"]["predicted"] == 4
    assert [(g["team"], g["quantity"], g["rows"]) for g in found["groups"]] == [("x", "tpot_s", 2), ("x", "ttft_s", 2)]
    rows = list(csv.DictReader(errors.read_text().splitlines()))
    assert all(float(r["error"]) == pytest.approx((float(r["predicted"]) - float(r["value"])) / float(r["value"])) for r in rows)
    assert {r["low"] for r in rows} == {""} or all(float(r["low"]) < float(r["predicted"]) < float(r["high"]) for r in rows)


def test_the_screen(capsys: pytest.CaptureFixture[str], serving: Path) -> None:
    code, out, err = run(capsys, str(serving))
    assert code == 0
    assert err == ""
    assert "4 of 4 rows predicted." in out
    head = next(line for line in out.splitlines() if "median" in line)
    assert head.split()[:9] == ["quantity", "rows", "median", "mean", "signed", "p90", "worst", "<=10", "<=20"]
    assert "exact" not in head


def test_what_is_told_goes_before_the_file(capsys: pytest.CaptureFixture[str], serving: Path) -> None:
    args = (str(serving), "--json", "--gpu", "none-such", "--set", "length_ratio=0.8")
    code, out, _ = run(capsys, *args)
    assert code == 0
    assert list(json.loads(out)["refused"])[0].startswith("no hardware called 'none-such'")


def test_a_file_without_models_needs_one_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bare = write(tmp_path / "bare.csv", [{"params": 6738415616}])
    assert run(capsys, str(bare))[0] == 2
    code, out, _ = run(capsys, str(bare), "--model", "7b")
    assert code == 0
    assert "1 of 1 rows predicted, 1 of them exact" in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--set", "length_ratio"), "--set: length_ratio: must be COLUMN=VALUE"),
        (("--set", "value=3"), "is each row's own"),
        (("--by", "colour"), "--by: colour: is not a column"),
        (("--by", ","), "--by: ,: must name a column"),
        (("--efficiency", "none-such.yaml"), "none-such.yaml: cannot be read"),
        (("--plot", "parity.gif"), "must end in .png, .svg or .pdf"),
        (("--tp", "0"), "--tp"),
    ],
)
def test_wrong_options_are_one_line(capsys: pytest.CaptureFixture[str], serving: Path, args: tuple[str, ...], words: str) -> None:
    code, out, err = run(capsys, str(serving), *args)
    assert code == 2
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_an_interrupt_shows_what_is_done(
    capsys: pytest.CaptureFixture[str], serving: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, errors = Predictor.predict, tmp_path / "errors.csv"

    def predict(self: Predictor, case: Case) -> Any:
        if case.name == "1":
            raise KeyboardInterrupt
        return real(self, case)

    monkeypatch.setattr(Predictor, "predict", predict)
    code, out, err = run(capsys, str(serving), "--csv", str(errors))
    assert code == 130
    assert "Interrupted after 2 of 4 rows." in out
    assert err == "inferplan: interrupted\n"
    assert len(errors.read_text().splitlines()) == 3


def test_an_interrupt_within_a_run_leaves_no_half_predicted_row(monkeypatch: pytest.MonkeyPatch) -> None:
    import inferplan.serving.simulate as simulation

    def stop(self: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation._Run, "go", stop)
    assert outcomes([case("ttft_s", **LOOP)]) == []


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_picture(capsys: pytest.CaptureFixture[str], serving: Path, tmp_path: Path, ending: str) -> None:
    picture = tmp_path / f"parity.{ending}"
    assert run(capsys, str(serving), "--plot", str(picture))[0] == 0
    assert picture.stat().st_size > 5000


def test_what_the_picture_shows() -> None:
    from inferplan.report.parity import plot_parity

    rows = [outcome(v, p, engine=e) for v, p, e in ((0.01, 0.012, "vllm"), (0.02, 0.018, "vllm"), (0.05, 0.05, "sglang"))]
    ax = plot_parity([*rows, outcome(0.02, None, engine="tgi"), outcome(0.0, 0.1, engine="tgi")])
    dots = {c.get_gid(): np.asarray(c.get_offsets()).tolist() for c in ax.collections}
    assert dots == {"points:vllm": [[0.01, 0.012], [0.02, 0.018]], "points:sglang": [[0.05, 0.05]]}
    near = sorted(float(line.get_ydata()[0] / line.get_xdata()[0]) for line in ax.lines if line.get_gid() == "near")
    assert near == pytest.approx([0.8, 1.2])
    assert [t.get_text() for t in ax.figure.legends[0].get_texts()] == ["vllm", "sglang"]


def test_nothing_to_draw_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bare = write(tmp_path / "bare.csv", [{**HERE, "tpot_s": 0.01}])
    code, _, err = run(capsys, str(bare), "--plot", str(tmp_path / "a.png"))
    assert code == 2
    assert "nothing to draw" in err
    assert not (tmp_path / "a.png").exists()


def test_the_examples_are_all_predicted() -> None:
    found = summary(outcomes(read_cases(ROOT / "examples" / "serving.csv")[0]))
    assert found.predicted == found.rows == 10
