"""Static beside continuous batching: exact waste, simulated batches, a published setting, the command with its record and picture."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.cli.app import main
from inferplan.cli.options import Asked
from inferplan.deployment import Estimate
from inferplan.engine.step import decode, prefill
from inferplan.errors import DoesNotFit, SpecError, Unsupported
from inferplan.report.batching import COLUMNS, compared, plot_batching, record, rows, screen, sentence
from inferplan.serving import static as s
from inferplan.serving.batch_times import Workload, held_at, reserved_tokens
from inferplan.serving.continuous import continuous
from inferplan.serving.lengths import Lengths
from inferplan.serving.queueing import harmonic
from inferplan.terms import TERMS

DATA = Path(__file__).parent / "data"
LLAMA = Asked("llama-3.1-8b", "h100", "bf16", isl=1024, osl=1024)
VARY = Workload(Lengths.uniform(200, 1024), Lengths.exponential(256, 1024))
SETTING = ("batching", "--model", "llama-3.1-8b", "--gpu", "h100", "--output-lengths", "exponential:256,max=1024")
_KEPT: dict[Asked, Estimate] = {}


def case(asked: Asked) -> Estimate:
    if asked not in _KEPT:
        _KEPT[asked] = asked.estimate()
    return _KEPT[asked]


def published(system: str) -> float:
    with (DATA / "continuous_batching_gains.csv").open() as stream:
        return next(float(row["gain_over_naive_static"]) for row in csv.DictReader(stream) if row["system"] == system)


@pytest.mark.parametrize("batch", [1, 8, 16, 32])
def test_waste_of_exponential_outputs_is_a_harmonic_number(batch: int) -> None:
    """Exact for exponential times: E[max of B] = m H_B; lengths in whole tokens lie half a token off."""
    law = Lengths.exponential(2000)
    assert float(law.mean_of_max(batch)) / law.mean == pytest.approx(float(harmonic(batch)), rel=5e-4)
    assert s.longest_of(law, batch).mean == pytest.approx(float(law.mean_of_max(batch)), rel=1e-9)
    assert float(s.waste(law.mean, law.mean_of_max(batch))) == pytest.approx(1 - 1 / float(harmonic(batch)), abs=5e-4)


def test_longest_of_a_small_law_counted_out() -> None:
    law = Lengths.of([1, 3, 4], [0.5, 0.25, 0.25], "three")
    pairs = [
        (max(a, b), p * q)
        for a, p in zip(law.values, law.probabilities, strict=True)
        for b, q in zip(law.values, law.probabilities, strict=True)
    ]
    assert s.longest_of(law, 2).mean == pytest.approx(sum(x * p for x, p in pairs))
    assert s.longest_of(law, 2).second_moment == pytest.approx(sum(x * x * p for x, p in pairs))
    assert s.longest_of(law, 1).mean == law.mean


def opt(engine: str = "vllm", version: str | None = None, most: int = 1536) -> tuple[Estimate, Workload]:
    """OPT-13B on one A100 of 40 GB: 1,000 requests of 512 tokens, exponential outputs of 128 in the mean, cut at `most`."""
    asked = Asked("opt-13b", "a100-40gb", "fp16", isl=512, osl=most, engine=engine, engine_version=version)
    return case(asked), Workload(Lengths.fixed(512), Lengths.exponential(128, most))


def test_reserved_against_used_cache() -> None:
    """819,200 B per token; a request keeps 512 + 1,536 tokens of them and holds 512 and 128 made in the mean of its life."""
    e, work = opt()
    assert e.kv_bytes_per_token == 819_200
    assert reserved_tokens(e, work) == 2048
    held = float(work.contexts.mean())
    assert held == pytest.approx(512 + 128, rel=0.005), "memoryless: as many tokens made as are to come"
    static, running = s.static(e, work, clients=1000), continuous(e, work, clients=1000)
    tokens = float(np.asarray(e.capacity.kv_cache_tokens))
    assert static.most == int(tokens / 2048) == 7
    assert running.times.most == int(tokens / held)
    assert running.times.most / static.most == pytest.approx(2048 / 640, rel=0.1), "3.2, but for whole requests"
    assert float(static.cache_reserved) == pytest.approx(7 * 2048 / tokens, rel=0.01)


def test_the_two_exact_factors() -> None:
    e, work = opt()
    found = s.gain(continuous(e, work, clients=1000), s.static(e, work, clients=1000))
    assert found.finished == pytest.approx(float(work.output.mean_of_max(7)) / 128, rel=1e-4)
    assert found.finished == pytest.approx(float(harmonic(7)), rel=0.005), "the cut at 1,536 takes little"
    assert found.places == pytest.approx(2048 / 640, rel=0.1)
    assert found.finished * found.places * found.steps == pytest.approx(found.total)


def test_the_published_gains_in_sign_and_size() -> None:
    """Published: over a naive loop, static batches with fast kernels 4, continuous batching 8, with paged cache 23.

    Here both kinds have the same kernels, so that it is the ratios to the fast static batches that are known: 2 and 5.75.
    """
    fast = published("FasterTransformer")
    whole, paged = (
        s.gain(continuous(e, w, clients=1000), s.static(e, w, clients=1000)).total for e, w in (opt("tgi"), opt("vllm", "0.4.3"))
    )
    assert whole == pytest.approx(published("TGI and Ray Serve") / fast, rel=0.4)
    assert paged == pytest.approx(published("vLLM") / fast, rel=0.4)
    assert 1 < whole < paged


def test_gains_grow_with_the_spread_of_lengths() -> None:
    """Published as a row of caps from 32 to 1,536: next to nothing at first, where all outputs are cut to the same length."""
    found = []
    for most in (32, 128, 512, 1536):
        e, work = opt("vllm", "0.4.3", most)
        found.append(s.gain(continuous(e, work, clients=1000), s.static(e, work, clients=1000)).total)
    assert found == sorted(found)
    assert found[0] < 1.2
    assert found[-1] > 4


def test_a_static_batch_by_hand() -> None:
    e = case(LLAMA)
    found = s.static(e, Workload(Lengths.fixed(1024), Lengths.fixed(256)), clients=16)
    first = prefill(e.model, e.hardware, e.precision, input_tokens=1024, batch=16, setting=e.setting)
    run = decode(e.model, e.hardware, e.precision, context=np.arange(1025, 1280), batch=16, setting=e.setting)
    whole = float(np.asarray(first.time_s)) + float(np.sum(run.time_s))
    assert float(found.returned_s) == pytest.approx(whole, rel=0.02)
    assert float(found.requests_per_s) == pytest.approx(16 / whole, rel=0.02)
    assert (float(found.padding), float(found.idle)) == (0, pytest.approx(0, abs=1e-9))


def test_clients_beyond_a_batch_wait_for_whole_batches() -> None:
    e = case(LLAMA)
    found = s.static(e, VARY, clients=np.array([4, 8, 24]), batch=8)
    assert found.most == 8
    assert found.requests_per_s[1] == found.requests_per_s[2]
    np.testing.assert_allclose(found.wait_s, [0, 0, 2 * found.returned_s[1]])
    np.testing.assert_allclose(found.requests_per_s * found.returned_s, [4, 8, 24])
    np.testing.assert_allclose(found.running, [4, 8, 8])


def test_one_static_load_is_one_of_many() -> None:
    e, rates = case(LLAMA), np.array([0.05, 0.4, 1.0, 3.0, 50.0])
    whole = s.static(e, VARY, rate_per_s=rates)
    each = [s.static(e, VARY, rate_per_s=r) for r in rates]
    for name in ("ttft_s", "tpot_s", "e2e_s", "wait_s", "returned_s", "running", "padding", "idle", "load", "cache_used", "requests_per_s"):
        np.testing.assert_allclose(getattr(whole, name), [float(getattr(one, name)) for one in each], rtol=1e-12)
    assert whole.stable.tolist() == [True, True, True, True, False]
    assert np.isinf(whole.wait_s[-1])
    assert float(whole.requests_per_s[-1]) == pytest.approx(whole.most / whole.run.time_s[-1])


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 64), st.floats(1.0, 3.0))
def test_waste_lies_between_none_and_all(batch: int, times: float) -> None:
    e = case(LLAMA)
    work = Workload(Lengths.uniform(100, round(100 * times)), Lengths.exponential(64 * times, 1024))
    found = s.static(e, work, clients=batch)
    for share in (found.padding, found.idle, found.cache_used, found.cache_reserved):
        assert 0 <= float(share) <= 1
    assert found.batch == batch
    assert float(found.cache_used) <= float(found.cache_reserved) + 1e-12
    assert float(found.idle) == pytest.approx(1 - work.output.mean / float(work.output.mean_of_max(batch)), abs=0.005)
    assert float(continuous(e, work, clients=batch).output_tokens_per_s) >= 0.95 * float(found.output_tokens_per_s)


def linear_run(law: Lengths, most: int) -> s.BatchRun:
    """Batches of b whose prefill takes 50 ms a prompt and whose steps take 20 ms and 0.3 ms a row."""
    sizes = np.arange(1.0, most + 1)
    laws = [s.longest_of(law, size) for size in sizes]
    mean, variance = np.array([x.mean for x in laws]), np.array([x.variance for x in laws])
    prefill_s, gap_s = 0.05 * sizes, 0.02 + 0.0003 * sizes
    return s.BatchRun(sizes, prefill_s, gap_s, 512 + 0 * sizes, mean, variance * gap_s**2 / (prefill_s + (mean - 1) * gap_s) ** 2)


def simulated(seed: int, rate: float, law: Lengths, most: int, count: int = 12_000) -> tuple[float, float]:
    """Mean wait for a batch and mean batch, by batches of whoever waits."""
    rng = np.random.default_rng(seed)
    arrivals, tokens = np.cumsum(rng.exponential(1 / rate, count)), law.sample(rng, count)
    clock, taken, waits, sizes = 0.0, 0, [], []
    while taken < count:
        clock = max(clock, arrivals[taken])
        last = min(int(np.searchsorted(arrivals, clock, "right")), taken + most)
        waits.append(np.sum(clock - arrivals[taken:last]))
        size = last - taken
        sizes.append(size)
        clock += 0.05 * size + (tokens[taken:last].max() - 1) * (0.02 + 0.0003 * size)
        taken = last
    return float(np.sum(waits) / count), float(np.mean(sizes))


def open_wait(law: Lengths, most: int, load: float) -> tuple[float, float, float]:
    """Rate, wait and batch of the closed form."""
    e, run = case(LLAMA), linear_run(law, most)
    rate = load * most / run.time_s[-1]
    found = s._open(e, Workload(Lengths.fixed(512), law), run, np.asarray(rate))
    return float(rate), float(found.wait_s), float(found.batch)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_waits_for_static_batches(load: float) -> None:
    rate, wait, batch = open_wait(Lengths.uniform(64, 192), 16, load)
    found = np.mean([simulated(seed, rate, Lengths.uniform(64, 192), 16, 6000) for seed in range(3)], axis=0)
    assert wait == pytest.approx(found[0], rel=0.15)
    assert batch == pytest.approx(found[1], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("law", [Lengths.fixed(128), Lengths.uniform(64, 192), Lengths.exponential(128)], ids=lambda x: x.text)
@pytest.mark.parametrize("most", [8, 32])
@pytest.mark.parametrize("load", [0.05, 0.2, 0.5, 0.8, 0.9])
def test_waits_for_static_batches_lie_within_a_quarter(law: Lengths, most: int, load: float) -> None:
    rate, wait, _ = open_wait(law, most, load)
    found = np.mean([simulated(seed, rate, law, most) for seed in range(6)], axis=0)
    assert wait == pytest.approx(found[0], rel=0.25)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(list(args))
    return code, *capsys.readouterr()


def test_the_screen_says_the_answer_first(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *SETTING, "--rate", "4")
    assert code == 0
    answer = out.split("\n\n")[1]
    assert answer.startswith("At 4.00 requests/s continuous batching gives the first token after")
    assert "At full load the gain is" in answer
    for words in ("finished rows", "padding", "cache set aside", "TTFT, p99", "Poisson", "within a quarter"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("columns", ["80", "100"])
def test_several_loads_make_a_table_each(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = run(capsys, *SETTING, "--concurrency", "1,16,256")
    assert code == 0
    for head in ("Static, clients", "Continuous, clients"):
        rows_of = out.split(head)[1].splitlines()[2:5]
        assert [row.split()[0] for row in rows_of] == ["1", "16", "256"]
    assert max(map(len, out.splitlines())) <= int(columns)


def test_without_a_load_clients_double(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *SETTING, "--json")
    found = json.loads(out)
    clients = [row["concurrency"] for row in found["rows"] if row["batching"] == "continuous"]
    assert code == 0
    assert clients == [2**i for i in range(len(clients))]
    assert clients[-2] < found["rows"][-1]["places"] <= clients[-1]


def test_the_record_has_the_glossarys_keys(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "rows.csv"
    code, out, _ = run(capsys, *SETTING, "--rate", "2,1000", "--json", "--csv", str(target))
    found = json.loads(out)
    assert code == 0
    assert {k for row in found["rows"] for k in row if "_p5" not in k and "_p9" not in k} <= set(TERMS)
    assert {row["batching"] for row in found["rows"]} == {"static", "continuous"}
    assert [row["stable"] for row in found["rows"]] == [True, True, False, False]
    assert found["rows"][-1]["ttft_s"] is None
    written = list(csv.DictReader(target.read_text().splitlines()))
    assert list(written[0]) == list(COLUMNS)
    assert float(written[1]["ttft_s"]) == found["rows"][1]["ttft_s"]
    assert written[-1]["ttft_s"] == ""


@pytest.mark.parametrize("ending", ["png", *(pytest.param(x, marks=pytest.mark.slow) for x in ("svg", "pdf"))])
def test_the_picture_is_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, ending: str) -> None:
    target = tmp_path / f"x.{ending}"
    assert run(capsys, *SETTING, "--rate", "4", "--plot", str(target))[0] == 0
    assert target.stat().st_size > 5000


@pytest.mark.parametrize("kind", ["rate_per_s", "clients"])
def test_the_picture_shows_what_was_asked(kind: str) -> None:
    found = compared(case(LLAMA), VARY, **{kind: np.array([2, 4])})
    ax = plot_batching(found)
    upper, lower = ax.figure.axes
    points = {line.get_gid(): line for line in upper.lines}
    name = "e2e_s" if kind == "rate_per_s" else "output_tokens_per_s"
    for which in ("static", "continuous"):
        shown = points[f"{which} asked"]
        np.testing.assert_allclose(shown.get_ydata(), getattr(getattr(found, which), name))
        np.testing.assert_allclose(shown.get_xdata(), [2, 4])
        line = points[which]
        x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
        kept = np.isfinite(y)
        np.testing.assert_allclose(np.interp([2, 4], x[kept], y[kept]), shown.get_ydata(), rtol=0.05)
    for line in lower.lines:
        values = np.asarray(line.get_ydata(), float)
        assert np.all((values[np.isfinite(values)] >= -1e-9) & (values[np.isfinite(values)] <= 100 + 1e-9))
    assert "finished rows" in " ".join(t.get_text() for t in lower.get_legend().get_texts())


def test_answers_for_every_outcome() -> None:
    e = case(LLAMA)
    said = {
        "neither keeps up": compared(e, VARY, rate_per_s=np.array([1e4])),
        "static batching cannot keep up": compared(e, VARY, rate_per_s=np.array([5.0]), batch=2),
        "static batching after": compared(e, VARY, rate_per_s=np.array([1.0])),
        "instead of": compared(e, VARY, clients=np.array([64])),
    }
    for words, found in said.items():
        assert words in sentence(found), sentence(found)


def test_where_static_batching_cannot_run() -> None:
    """vLLM 0.2 did not refuse a length that its cache cannot hold; with pages it runs what comes, shorter as a rule."""
    e = case(Asked("llama-3.1-8b", "4090", "bf16", isl=20_000, osl=9000, engine_version="0.2.0"))
    work = Workload(Lengths.fixed(20_000), Lengths.of([100, 9000], [0.999, 0.001], "rarely long"))
    assert float(held_at(e, reserved_tokens(e, work))) < 1
    found = compared(e, work, clients=np.array([4]))
    assert found.static is None
    assert "Static batching cannot run" in sentence(found)
    assert [row["batching"] for row in rows(found)] == ["continuous"]
    assert record(found)["rows"]
    assert plot_batching(found)
    assert "Waste" in "".join(str(getattr(piece, "columns", "")) for piece in screen(found, asked_model="m", asked_gpu="g"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rate", "0"), "--rate: 0: must be numbers above 0"),
        (("--rate", "1,x"), "--rate: x:"),
        (("--rate", "nan"), "--rate: nan:"),
        (("--rate", "1e300"), "--rate: 1e300:"),
        (("--rate", "-1"), "--rate: -1:"),
        (("--concurrency", "1.5"), "--concurrency: 1.5: must be whole numbers"),
        (("--concurrency", "99999999"), "--concurrency: 99999999:"),
        (("--rate", "1", "--concurrency", "1"), "not both"),
        (("--output-lengths", "foo"), "--output-lengths: foo: is no length"),
        (("--input-lengths", "exponential:-3"), "--input-lengths"),
        (("--input-lengths", "file:no.csv"), "no.csv: cannot be read"),
        (("--hit-rate", "1"), "--hit-rate: 1.0: must lie from 0 to below 1"),
        (("--static-batch", "0"), "--static-batch: 0: must be 1 or more"),
        (("--isl", "0"), "--isl: 0: must be 1 or more"),
        (("--rate", "1", "--plot", "x.foo"), "x.foo"),
        (("--rate", "1", "--batch", "4"), "--batch: 4: is of no account here"),
        (("--rate", ",".join(["1"] * 1001)), "at most 1,000 numbers"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str) -> None:
    code, out, err = run(capsys, "batching", "-m", "7b", "-g", "h100", *options)
    assert code == 2
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "batching", "-m", "llama-3.1-70b", "-g", "4090", "--rate", "1")
    assert code == 1
    assert "does not run under vLLM" in err
    code, out, _ = run(capsys, *SETTING, "--rate", "1000")
    assert code == 1
    assert "neither keeps up" in out


def test_what_is_refused() -> None:
    e = case(LLAMA)
    with pytest.raises(SpecError):
        s.static(e, VARY)
    with pytest.raises(SpecError):
        s.static(e, VARY, rate_per_s=1.0, clients=1)
    with pytest.raises(DoesNotFit):
        s.static(case(Asked("llama-3.1-70b", "4090", "bf16")), rate_per_s=1.0)
    with pytest.raises(Unsupported, match="writes no tokens"):
        compared(case(Asked("bert-base", "h100", "bf16")), Workload(Lengths.fixed(10), Lengths.fixed(10)))


def test_pandas_and_matplotlib_stay_out() -> None:
    code = (
        f"import sys; from inferplan.cli.app import main; main([*{SETTING!r}, '--rate', '1']); "
        "print([m for m in ('pandas', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"
