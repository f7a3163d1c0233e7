"""Error bands: what a calibration says of them, where estimates take them from, and how many measurements they hold."""

import sys
from pathlib import Path

import numpy as np
import pytest

from inferplan.calibrate.cases import Case, read_cases
from inferplan.calibrate.predict import Predictor
from inferplan.calibrate.summary import summary
from inferplan.calibrate.validate import outcomes
from inferplan.deployment import estimate
from inferplan.errors import SpecError
from inferplan.names import hardware, model, precision
from inferplan.roofline.bands import Band
from inferplan.roofline.bands import band as band_of
from inferplan.roofline.efficiency import Efficiency
from inferplan.serving.likely import Likely

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import fit_llama as llama  # noqa: E402
import fit_serving as tool  # noqa: E402
import llama_bands  # noqa: E402
import open_loop_bands  # noqa: E402
import residual_bands  # noqa: E402
import serving_results  # noqa: E402
import table_bands  # noqa: E402

CASE = {"model": "7b", "gpu": "h100", "weights": "fp16", "engine": "vllm", "input_tokens": "1000", "output_tokens": "100"}


def predicted(quantity: str, **cells: str) -> tuple[float, float | None, float | None]:
    found = Predictor().predict(Case("a", quantity, 1.0, {**CASE, **cells}, Path()))
    return found.value, found.low, found.high


def test_an_estimate_lies_in_its_band_and_the_band_above_the_floor() -> None:
    for part in ("h100", "mi300x", "rtx-4090", "m3-max-40c"):
        e = estimate(model("7b"), hardware(part), precision("fp16"))
        for name, floor in (("ttft", e.floor_ttft_s), ("tpot", e.floor_tpot_s)):
            low, high = getattr(e, f"{name}_band_s")
            assert floor <= low <= getattr(e, f"{name}_s") <= high
        low, high = e.e2e_band_s
        assert low <= e.e2e_s <= high


def test_the_band_of_a_first_token_is_a_share_of_what_is_shown() -> None:
    """The front end is in the estimate, so that both ends are shares of one number."""
    e = estimate(model("7b"), hardware("h100"), precision("fp16"))
    band = e.band("ttft")
    assert e.prompt_front_end_s > 0
    assert e.ttft_band_s == pytest.approx((e.ttft_s * band.low, e.ttft_s * band.high), rel=1e-12)
    assert e.ttft_band_s == pytest.approx(Likely(e).ends("ttft", e.ttft_s), rel=1e-12)


def test_floors_have_no_band() -> None:
    e = estimate(model("7b"), hardware("h100"), precision("fp16"), efficiency="ideal")
    assert e.tpot_band_s is None
    assert e.e2e_band_s is None
    assert e.basis == "ideal"


def test_what_was_not_measured_is_inherited() -> None:
    assert estimate(model("7b"), hardware("h100"), precision("fp16")).basis == "measured"
    assert estimate(model("7b"), hardware("mi300x"), precision("fp16")).basis == "inherited"
    assert estimate(model("7b"), hardware("h100"), precision("fp16"), engine="tgi").basis == "inherited"


def test_bands_of_inherited_times_are_as_wide_or_wider() -> None:
    shipped = Efficiency.default()
    for quantity in ("tpot", "ttft"):
        measured, inherited = (shipped.band(quantity, "vllm", "h100-sxm5-80gb", known) for known in ("measured", "inherited"))
        assert inherited.high / inherited.low >= 0.95 * measured.high / measured.low


def test_a_rate_has_the_inverse_of_a_time() -> None:
    gap, rate = predicted("tpot_s", batch="4"), predicted("decode_tokens_per_s", batch="4")
    assert rate[1] == pytest.approx(1 / gap[2])
    assert rate[2] == pytest.approx(1 / gap[1])
    whole, served = predicted("e2e_s", batch="4"), predicted("requests_per_s", batch="4")
    assert served[1] == pytest.approx(4 / whole[2])
    assert served[2] == pytest.approx(4 / whole[1])


def test_requests_that_wait_for_cache_have_a_band_of_their_own() -> None:
    few, many = (predicted("ttft_s", concurrency=n) for n in ("4", "512"))
    assert many[2] / many[0] > 2 * few[2] / few[0]


def test_a_rate_that_the_load_sets_has_no_band() -> None:
    assert predicted("requests_per_s", rate_per_s="1", requests="50")[1] is None
    assert predicted("tpot_s", rate_per_s="1", requests="50")[1] is not None


def test_a_band_that_is_upside_down_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("name: own\nbase: default\nbands: {tpot: {vllm: {measured: {low: 1.2, high: 0.9}}}}\n")
    with pytest.raises(SpecError, match="must not be above high"):
        Efficiency.load(path)


def test_a_file_of_ones_own_may_narrow_a_band(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("name: own\nbase: default\nbands: {tpot: {vllm on h100-sxm5-80gb: {measured: {low: 0.97, high: 1.03}}}}\n")
    own, shipped = Efficiency.load(path), Efficiency.default()
    assert own.band("tpot", "vllm", "h100-sxm5-80gb", "measured").high == 1.03
    assert own.band("tpot", "vllm", "h200-sxm-141gb", "measured") == shipped.band("tpot", "vllm", "h200-sxm-141gb", "measured")


@pytest.mark.parametrize(
    ("part", "engine", "precision_name", "quantity"),
    [
        ("mi300x", "sglang", "fp16", "tpot"), ("mi355x", "vllm", "fp16", "tpot"), ("gaudi3", "vllm", "fp16", "ttft"),
        ("trainium2", "vllm", "fp16", "tpot"), ("tpu-v5e", "vllm", "fp16", "ttft"), ("max-1550", "vllm", "fp16", "tpot"),
        ("h100", "transformers", "fp16", "tpot"), ("h100", "llama.cpp", "q4_k_m", "tpot"), ("rx-7900-xtx", "llama.cpp", "q4_k_m", "ttft"),
    ],
)  # fmt: skip
def test_what_was_measured_on_other_data_has_the_band_of_that_data(part: str, engine: str, precision_name: str, quantity: str) -> None:
    """Other makers, other engines, contradictory sources: wider than runs served on parts that were timed, and the estimate lies inside."""
    e = estimate(model("7b"), hardware(part), precision(precision_name), engine=engine)
    band, served = e.band(quantity), Efficiency.default().band(quantity, "vllm", "h100-sxm5-80gb", "measured", "nvidia-hopper")
    assert band.low <= 1 <= band.high
    assert band.high / band.low > served.high / served.low


def test_every_listed_band_holds_its_estimate_and_says_what_stands_behind_it() -> None:
    for quantity, places in Efficiency.default().bands.items():
        for place, known in places.items():
            for name, band in known.items():
                assert band.low <= 1 <= band.high, (quantity, place, name)
                assert band.note, (quantity, place, name)


def test_inherited_bands_hold_the_measured_ones() -> None:
    """On every class of parts that the calibration names, under every engine that it has bands of."""
    shipped = Efficiency.default()
    places = {place for table in shipped.bands.values() for place in table}
    classes = {place.split(" on ")[1] for place in places if " on " in place} | {"nvidia-hopper", "google-tpu", "cpu-x86"}
    for engine in {place.split(" on ")[0] for place in places}:
        for architecture in classes:
            for quantity in ("tpot", "ttft"):
                measured, inherited, waiting = (
                    shipped.band(quantity, engine, "", known, architecture) for known in ("measured", "inherited", "waiting")
                )
                for wider in (inherited, waiting):
                    assert wider.low <= measured.low <= measured.high <= wider.high, (engine, architecture, quantity)


def test_the_nearest_place_goes_first() -> None:
    made = {name: Band(low=0.5, high=high) for name, high in (("a on c-x", 1.1), ("a on c", 1.2), ("a", 1.3), ("default on c", 1.4))}
    table = {"tpot": {name: {"measured": band} for name, band in made.items()} | {"default": {"measured": Band(low=0.5, high=1.5)}}}
    for engine, architecture, high in (("a", "c-x", 1.1), ("a", "c-y", 1.2), ("a", "d-x", 1.3), ("b", "c-x", 1.4), ("b", "d", 1.5)):
        assert band_of(table, "tpot", engine, "p", "measured", architecture).high == high


def test_percentiles_are_never_surer_than_the_mean() -> None:
    likely = Likely(estimate(model("7b"), hardware("h100"), precision("fp16")))
    for part in ("ttft", "tpot"):
        spans = [likely.ends(part, 1.0, share) for share in (None, 0.5, 0.9, 0.99)]
        assert spans[1] == spans[0]
        assert all(low <= spans[0][0] <= 1 <= spans[0][1] <= high for low, high in spans)
    low, high = likely.whole(2.0, 0.5, 0.99)
    assert low <= likely.whole(2.0, 0.5)[0] < 2 < likely.whole(2.0, 0.5)[1] <= high


def test_waiting_requests_widen_what_clients_measure() -> None:
    e = estimate(model("7b"), hardware("h100"), precision("fp16"))
    plain, waiting = Likely(e), Likely(e, waiting=True)
    assert waiting.ends("ttft", 1.0)[1] > plain.ends("ttft", 1.0)[1]
    assert plain.ends("ttft", np.inf) is None


def test_bands_of_known_residuals() -> None:
    """Seven parts of which each is off by its own factor, the outer two outside of the others; then two that contradict."""
    part = np.repeat(np.arange(7), 20)
    ratio = np.linspace(-0.3, 0.3, 7)[part] + 0.1 * np.tile(np.linspace(-1, 1, 20), 7)
    found = residual_bands.made([ratio], np.ones(140), [part])
    assert found.agreed
    assert found.factor > 1
    assert found.covered >= 0.8
    two = np.where(np.arange(40) < 20, 1.0, -1.0)
    wide = residual_bands.made([two], np.ones(40), [two], general=residual_bands.Made(0.1, 2.0, 0, None, 1.0))
    assert not wide.agreed
    assert wide.covered == 0
    assert (wide.low, wide.high) == (0.1, pytest.approx(np.e))


def test_percentiles_and_what_moves_them_outwards() -> None:
    ratios, weight = np.linspace(-1, 1, 1001), np.ones(1001)
    assert residual_bands.ends(ratios, weight) == pytest.approx((-0.8, 0.8), abs=0.01)
    assert residual_bands.ends(ratios, weight, 1.2) == pytest.approx((-0.96, 0.96), abs=0.01)
    assert residual_bands.ends(ratios, weight, 3.0) == pytest.approx((-1.0, 1.0))  # not beyond the farthest
    assert residual_bands.ends(ratios + 5, weight) == pytest.approx((0.0, 5.8), abs=0.01)  # the estimate is in its band


@pytest.mark.slow
def test_bands_hold_four_of_five_runs_that_no_fit_has_seen() -> None:
    """Served runs with the model left out, and with the part left out: between 75 and 85 % (parts: 88 %) lie in the shipped band."""
    d, f, engine = tool.rows()
    waiting = tool.waits(d)
    shipped = Efficiency.default()
    for column, most in (("model", 0.85), ("gpu", 0.88)):
        inside = serving_results.held(d, tool.held_out(d, f, engine, column), "tpot", waiting, shipped)
        assert 0.75 <= inside.mean() <= most


@pytest.mark.slow
def test_bands_hold_runs_under_arrival_rates() -> None:
    """None of these runs was fitted to: 75 to 85 % of means lie in their bands, and of all figures, percentiles among them."""
    found = outcomes(read_cases(ROOT / "validation" / "open_loop.csv")[0])
    means = summary(o for o in found if o.case.row["statistic"] == "mean")
    assert means.banded == 213
    assert 0.75 <= means.covered <= 0.85
    assert 0.75 <= summary(found).covered <= 0.85
    for statistic in ("p90", "p99"):
        assert summary(o for o in found if o.case.row["statistic"] == statistic).covered >= 0.75


@pytest.mark.slow
def test_bands_of_llama_cpp_and_of_tables_are_written_by_their_scripts() -> None:
    """Byte for byte, from the committed measurements."""
    fit = llama.Fit(llama.Rows.read(llama.read()))
    x, found = llama.predictions(fit)
    found |= {f"one {column} out": llama.held_out(fit, x, column) for column in ("class", "maker")}
    lines = residual_bands.written(llama_bands.bands(fit.rows.d, found, fit.rows.weight, llama.ENGINE))
    assert llama.OUTPUT.read_text().endswith("\n".join(lines) + "\n")
    lines = residual_bands.written(table_bands.bands(*table_bands.rows()))
    assert table_bands.PATH.read_text() == table_bands.HEAD + "\n".join(lines) + "\n"
    first = open_loop_bands.bands(open_loop_bands.predicted(open_loop_bands.ROWS, "default"))
    assert open_loop_bands.FILE.read_text() == open_loop_bands.HEAD + "\n".join(residual_bands.written(first)) + "\n"
