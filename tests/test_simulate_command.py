"""`inferplan simulate` and `inferplan load-curve` as a user meets them: answers, files, refusals, interrupts."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from inferplan.calibrate.cases import Case
from inferplan.calibrate.predict import Predictor
from inferplan.cli.app import main
from inferplan.report.serving import csv_columns, waiting_at
from inferplan.serving.front_end import front_end_wait_s
from inferplan.serving.requests import Requests
from inferplan.serving.schedule import Schedule
from inferplan.serving.simulate import simulate
from inferplan.serving.steps import LinearSteps

ON = ["--model", "7b", "--gpu", "a100"]
FEW = [*ON, "--arrivals", "poisson:3", "-n", "60", "--isl", "300", "--osl", "20"]


def table_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def run(capsys, *words):
    code = main([*words])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_answer_comes_first(capsys):
    code, out, _ = run(capsys, "simulate", *FEW, "--slo", "ttft=2s,tpot=200ms")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "Llama 2 7B on one NVIDIA A100 SXM4 80GB"
    assert any(line.startswith("All 60 requests served in ") for line in lines)
    assert "Meets TTFT <= 2.00 s, TPOT <= 200 ms for 99 % of requests: 100 % keep the limits" in " ".join(lines)
    assert max(map(len, lines)) <= 100


def test_rows_series_and_record(capsys, tmp_path):
    rows, series = tmp_path / "rows.csv", tmp_path / "series.csv"
    code, out, err = run(capsys, "simulate", *FEW, "--csv", str(rows), "--series", str(series), "--json")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert (told["requests"], told["served"], told["partial"], told["scheduler"]) == (60, 60, False, "vllm-v1")
    table = table_of(rows)
    assert len(table) == 60
    assert float(table[0]["e2e_s"]) >= float(table[0]["ttft_s"]) > float(table[0]["queue_s"]) >= 0
    assert np.mean([float(r["ttft_s"]) for r in table]) == pytest.approx(told["ttft_s"]["mean"])
    moves = table_of(series)
    assert max(int(m["running"]) for m in moves) >= 1
    again = run(capsys, "simulate", *FEW, "--json")[1]
    assert again == out
    assert run(capsys, "simulate", *FEW, "--seed", "1", "--json")[1] != out


EIGHT = ["--model", "llama-3.1-8b", "--gpu", "h100", "--dtype", "fp8", "--isl", "512", "--osl", "64", "--json"]


def test_a_closed_loop_is_what_validate_predicts(capsys):
    """Times to first token hold the front end, and hold it once."""
    told = json.loads(run(capsys, "simulate", *EIGHT, "--concurrency", "8")[1])
    cells = {"model": "llama-3.1-8b", "gpu": "h100", "engine": "vllm", "weights": "fp8", "input_tokens": 512, "output_tokens": 64}
    predictor = Predictor()
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        row = {key: str(value) for key, value in {**cells, "concurrency": 8}.items()}
        assert predictor.predict(Case("a", name, 1.0, row, Path())).value == pytest.approx(told[name]["mean"], rel=1e-3), name
    each = 32 * 362e-6 + 512 * 5.6e-6
    assert told["front_end_s"] == pytest.approx(float(front_end_wait_s(each, 8, 10)), rel=1e-9)
    assert told["mean_in_flight"] <= 8 * (1 + 1e-9)
    assert told["ttft_s"]["mean_low"] < told["ttft_s"]["mean"] < told["ttft_s"]["mean_high"]


def test_arrivals_come_alone_and_steps_of_ones_own_have_no_front_end(capsys):
    base = [*EIGHT, "--rate", "5", "-n", "40"]
    told = json.loads(run(capsys, "simulate", *base)[1])
    assert told["front_end_s"] == pytest.approx(32 * 362e-6 + 512 * 5.6e-6, rel=1e-9)
    own = json.loads(run(capsys, "simulate", *base, "--steps", "linear:0.01")[1])
    assert own["front_end_s"] == 0
    assert own["ttft_s"]["mean"] <= 0.02
    said = " ".join(run(capsys, "simulate", *base[:-5], "--rate", "5", "-n", "40", "--steps", "linear:0.01")[1].split())
    assert "TTFT is that of the steps alone, without host and front end." in said
    ideal = json.loads(run(capsys, "simulate", *base, "--efficiency", "ideal")[1])
    assert ideal["front_end_s"] == 0


def test_replicas_have_a_front_end_each(capsys):
    one, four = (json.loads(run(capsys, "simulate", *EIGHT, "--concurrency", "8", "--replicas", n)[1]) for n in ("1", "4"))
    assert four["front_end_s"] < one["front_end_s"]
    each = 32 * 362e-6 + 512 * 5.6e-6
    assert four["front_end_s"] == pytest.approx((sum(max(i * each / 4, each) for i in range(1, 9)) + 72 * each) / 80, rel=1e-9)


@pytest.mark.parametrize("command", [("simulate",), ("load-curve", "--points", "4")])
def test_pictures(capsys, tmp_path, command):
    path = tmp_path / "p.svg"
    code, _, _ = run(capsys, *command, *FEW, "--slo", "ttft=2s", "--plot", str(path))
    assert code == 0
    assert path.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    "words",
    [
        ("--engine", "sglang"),
        ("--engine", "tgi", "--max-tokens", "100"),
        ("--engine", "tensorrt-llm"),
        ("--engine", "vllm", "--engine-version", "0.6.3"),
        ("--scheduler", "static", "--max-num-seqs", "8", "--output-lengths", "exponential:20"),
        ("--replicas", "2", "--routing", "least-requests"),
        ("--prefill-replicas", "1", "--transfer-bandwidth", "50GB/s", "--transfer-latency", "5ms"),
        ("--draft-tokens", "3", "--accept", "0.8", "--draft-time", "1ms"),
        ("--shared-prefix", "128", "--prefix-caching"),
        ("--steps", "linear"),
        ("--steps", "linear:0.01,0.0001"),
        ("--arrivals", "closed:4", "-n", "30"),
        ("--kv-tokens", "1000"),
    ],
)
def test_every_kind_of_run(capsys, words):
    code, out, err = run(capsys, "simulate", *FEW, *words)
    assert (code, err) == (0, ""), err
    assert "requests served in" in out


def test_a_trace(capsys, tmp_path):
    path = tmp_path / "t.jsonl"
    lines = [{"timestamp": 1000 * i, "input_length": 1100, "output_length": 9, "hash_ids": [1, 2, 10 + i]} for i in range(20)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, out, _ = run(capsys, "simulate", *ON, "--trace", str(path), "--prefix-caching", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["cached_share"] == pytest.approx(19 * 1024 / (20 * 1100))
    assert run(capsys, "simulate", *ON, "--trace", str(path), "--csv", str(path))[0] == 2
    assert path.read_text().count("\n") == 20


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--arrivals", "poisson:-1"), "--arrivals: poisson:-1: needs a rate"),
        (("--rate", "2"), "--rate: poisson:2: give one of --arrivals, --rate"),
        (("--concurrency", "2", "--rate", "3"), "give one of --arrivals, --rate, --concurrency"),
        (("--input-lengths", "long"), "--input-lengths: long: is no length"),
        (("--isl", "0"), "--isl: 0: lengths must be whole numbers from 1"),
        (("-n", "0"), "requests: 0: must be from 1"),
        (("-n", "100000000"), "requests: 100000000: must be from 1"),
        (("--scheduler", "orca"), "scheduler: orca: is no scheduler"),
        (("--slo", "ttft=fast"), "--slo: fast: ttft needs a number with its unit"),
        (("--limit", "3"), "--limit: 3: needs --trace"),
        (("--trace", "nope.csv", "--max-tokens", "5"), "of no account with --trace"),
        (("--seed", "-1"), "--seed: -1: must be 0 or more"),
        (("--batch", "4"), "--batch: 4: is of no account here"),
        (("--max-model-len", "100"), "--max-model-len: 100: is less than the longest request, 320 tokens"),
        (("--replicas", "0"), "replicas: 0: must be from 1"),
        (("--routing", "random"), "routing: random: is no rule"),
        (("--prefix-caching",), "prefix caching: finds nothing"),
        (("--transfer-bandwidth", "50GB/s"), "--transfer-bandwidth: 50GB/s: needs --prefill-replicas"),
        (("--prefill-replicas", "1", "--transfer-bandwidth", "50"), "--transfer-bandwidth: 50: the unit is missing"),
        (("--draft-tokens", "3", "--draft-time", "5"), "--draft-time: 5: the unit is missing"),
        (("--steps", "linear:x"), "--steps: linear:x: takes 1 to 5 numbers"),
        (("--steps", "nope.csv"), "nope.csv: cannot be read"),
        (("--plot", "p.gif"), "p.gif: gif: must end in"),
        (("--engine", "llama.cpp"), "no scheduler is known for llama.cpp"),
        (("--watermark", "2"), "watermark: 2.0: must be a share"),
    ],
)
def test_wrong_input_is_one_line(capsys, words, message):
    code, out, err = run(capsys, "simulate", *FEW, *words)
    assert code == 2
    assert out == ""
    assert err.startswith("inferplan: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("short", "law"), [(("--rate", "3"), "poisson:3"), (("--concurrency", "4"), "closed:4")])
def test_short_forms_of_a_law_are_the_law(capsys, short, law):
    rest = ("-n", "60", "--isl", "300", "--osl", "20", "--json")
    told = [json.loads(run(capsys, "simulate", *ON, *words, *rest)[1]) for words in (short, ("--arrivals", law))]
    assert told[0].pop("source").startswith(law)
    told[1].pop("source")
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rate", "nan"), "--rate: poisson:nan: is no law"),
        (("--rate", "0"), "--rate: poisson:0: needs a rate"),
        (("--concurrency", "0"), "--concurrency: closed:0: needs a whole number of clients"),
        (("--rate", "2", "--trace", "t.csv"), "--rate: 2.0: is of no account with --trace"),
    ],
)
def test_wrong_short_forms_are_one_line(capsys, words, message):
    code, out, err = run(capsys, "simulate", *ON, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_missing_trace(capsys):
    code, _, err = run(capsys, "simulate", *ON, "--trace", "nope.csv")
    assert (code, "nope.csv: cannot be read: No such file" in err) == (2, True)


def test_what_does_not_fit_ends_with_one(capsys):
    code, _, err = run(capsys, "simulate", *FEW, "--kv-tokens", "200")
    assert (code, "takes 320 tokens of cache, and there are 200" in err) == (1, True)
    assert run(capsys, "simulate", "--model", "llama-3.1-70b", "--gpu", "a100", "-n", "9")[0] == 1
    code, _, err = run(capsys, "load-curve", *FEW, "--points", "3", "--slo", "tpot=1ms")
    assert (code, "no load meets TPOT <= 1.00 ms" in err) == (1, True)
    assert run(capsys, "load-curve", *FEW, "--arrivals", "closed:4")[0] == 2


def test_a_curve(capsys, tmp_path):
    path = tmp_path / "c.csv"
    code, out, _ = run(capsys, "load-curve", *FEW, "--points", "4", "--csv", str(path), "--slo", "ttft=1s,share=0.9", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["largest_per_s"] > 0
    rows = table_of(path)
    assert [float(r["offered_per_s"]) for r in rows] == [p["offered_per_s"] for p in told["points"]]
    code, out, _ = run(capsys, "load-curve", *FEW, "--points", "4", "--most", "5")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 100


def test_an_interrupt_ends_with_130_and_keeps_the_rows(capsys, tmp_path, monkeypatch):
    from inferplan.serving import machine

    stretch, calls = machine.Machine.stretch, []

    def interrupted(self, until):
        calls.append(1)
        if len(calls) == 60:
            raise KeyboardInterrupt
        stretch(self, until)

    monkeypatch.setattr(machine.Machine, "stretch", interrupted)
    path = tmp_path / "rows.csv"
    code, out, _ = run(capsys, "simulate", *FEW, "--csv", str(path))
    assert code == 130
    assert "Interrupted: " in out
    rows = table_of(path)
    assert len(rows) == 60
    assert 0 < sum(r["e2e_s"] != "" for r in rows) < 60


def test_rows_as_parquet_are_the_rows_as_csv(capsys, tmp_path):
    pytest.importorskip("pyarrow")
    import pandas as pd

    paths = tmp_path / "a.csv", tmp_path / "a.parquet"
    code, _, _ = run(capsys, "simulate", *FEW, "--csv", str(paths[0]), "--parquet", str(paths[1]))
    assert code == 0
    pd.testing.assert_frame_equal(pd.read_csv(paths[0]), pd.read_parquet(paths[1]), check_dtype=False, rtol=1e-12)
    code, out, _ = run(capsys, "simulate", *ON, "--trace", str(paths[1]))
    assert (code, "60 requests" in out) == (0, True)


def test_parquet_says_what_it_needs(capsys, tmp_path, monkeypatch):
    import pandas as pd

    def lacking(*args, **named):
        raise ImportError

    monkeypatch.setattr(pd.DataFrame, "to_parquet", lacking)
    monkeypatch.setattr(pd, "read_parquet", lacking)
    path = tmp_path / "a.parquet"
    code, _, err = run(capsys, "simulate", *FEW, "--parquet", str(path))
    assert (code, "pip install 'inferplan[parquet]'" in err, path.exists()) == (2, True, False)
    path.write_bytes(b"PAR1")
    code, _, err = run(capsys, "simulate", *ON, "--trace", str(path))
    assert (code, "pip install 'inferplan[parquet]'" in err) == (2, True)


def test_who_waits():
    found = simulate(Requests.of([0.0, 0.5, 0.5], [4, 4, 4], [3, 2, 2]), LinearSteps(1.0), Schedule(max_num_seqs=1), series=True)
    s = found.series[0]
    assert waiting_at(found, np.array([0.2, 0.7, 2.5, 4.0]), np.array([1, 1, 1, 1]), 0).tolist() == [0, 2, 2, 1]
    assert s.t_s[-1] == 7.0


def test_unknown_numbers_are_empty_cells():
    assert csv_columns({"a": np.array([1.5, np.nan]), "b": np.array([1, 2])}) == "a,b\n1.5,1\n,2\n"


@pytest.mark.parametrize("command", ["simulate", "load-curve", "quantize"])
def test_an_encoder_writes_no_tokens(capsys, command):
    code, _, err = run(capsys, command, "-m", "bert-base", "-g", "h100")
    assert code == 2
    assert "BERT base, encoder writes no tokens" in err
