"""Traces in the forms that public ones have, lengths and arrivals as text, limits, load curves."""

import contextlib
import io
import json

import numpy as np
import pytest

from inferplan.errors import NoFeasiblePlan, SpecError
from inferplan.serving import arrivals
from inferplan.serving.lengths import Lengths
from inferplan.serving.requests import Requests
from inferplan.serving.reuse import cached_blocks, cached_share
from inferplan.serving.schedule import Schedule
from inferplan.serving.simulate import simulate
from inferplan.serving.slo import Slo
from inferplan.serving.steps import LinearSteps
from inferplan.serving.summary import curve_of, knee, summary
from inferplan.serving.traces import read_trace

PLAIN = "arrival_s,input_tokens,output_tokens\n0.5,100,10\n1.75,200,20\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,100,10\n2023-11-16 18:15:47.9305900,200,20\n"
AZURE_2024 = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00.001+00:00,100,10\n2024-05-12 00:00:01.251+00:00,200,20\n"
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,100,10,110,API log\n6.25,GPT-4,200,20,220,API log\n7,GPT-4,9,0,9,x\n"
)
MOONCAKE = "".join(
    json.dumps({"timestamp": t, "input_length": i, "output_length": o, "hash_ids": h}) + "\n"
    for t, i, o, h in ((1000, 100, 10, [7, 8]), (2250, 200, 20, [7, 9]))
)
FORMS = [
    ("plain", "a.csv", PLAIN),
    ("azure", "a.csv", AZURE),
    ("azure", "a.csv", AZURE_2024),
    ("burstgpt", "a.csv", BURST),
    ("mooncake", "a.jsonl", MOONCAKE),
]


@pytest.mark.parametrize(("form", "name", "text"), FORMS, ids=["plain", "azure 2023", "azure 2024", "burstgpt", "mooncake"])
def test_public_forms(tmp_path, form, name, text):
    path = tmp_path / name
    path.write_text(text)
    read = read_trace(str(path))
    assert read.form == form
    assert read.dropped == (form == "burstgpt")
    np.testing.assert_allclose(read.requests.arrival_s, [0.0, 1.25], atol=1e-6)
    assert read.requests.input_tokens.tolist() == [100, 200]
    assert read.requests.output_tokens.tolist() == [10, 20]
    if form == "mooncake":
        assert (read.requests.prefixes, read.requests.hash_tokens) == ([(0, 1), (0, 2)], 512)


def test_rows_out_of_order_are_sorted_and_limited(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,hash_ids\n9,1,1,5 6\n3,2,2,5\n7,3,3,\n")
    read = read_trace(str(path))
    assert read.requests.arrival_s.tolist() == [0.0, 4.0, 6.0]
    assert read.requests.prefixes == [(0,), (), (0, 1)]
    assert len(read_trace(str(path), limit=2).requests) == 2


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "a,b\n1,2\n", "has none of the known sets of columns"),
        ("a.csv", "", "is empty"),
        ("a.csv", "arrival_s,input_tokens,output_tokens\n", "has a header and no requests"),
        ("a.csv", PLAIN + "3,4\n", "line 4: has 2 cells under 3 columns"),
        ("a.csv", PLAIN.replace("200", "nan"), "input_tokens, row 2: nan"),
        ("a.csv", PLAIN.replace("200", "-3"), "input_tokens, row 2: -3"),
        ("a.csv", PLAIN.replace("200", "2.5"), "must be a whole number"),
        ("a.csv", PLAIN.replace("1.75", "soon"), "arrival_s, row 2: soon: must be a number"),
        ("a.csv", AZURE.replace("2023-11-16 18:15:47.9305900", "yesterday"), "TIMESTAMP, row 2: yesterday: must be a date"),
        ("a.jsonl", MOONCAKE + "{\n", "line 3: {: must be a JSON object"),
        ("a.jsonl", MOONCAKE + "[1]\n", "must be a JSON object"),
        ("a.jsonl", MOONCAKE + '{"timestamp": 1}\n', "row 3: differs from the first row"),
        ("a.csv", "arrival_s,input_tokens,output_tokens\n1,0,0\n", "no request with a prompt and an output"),
        ("a.csv", PLAIN.replace("200", "9" * 12), "must be a whole number from 1"),
    ],
)
def test_bad_traces_are_refused_in_one_line(tmp_path, name, text, words):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(SpecError, match=words.replace("{", r"\{")) as told:
        read_trace(str(path))
    assert "\n" not in str(told.value)
    assert str(path) in str(told.value)


def test_binary_and_missing_files(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(SpecError, match="is not CSV text"):
        read_trace(str(tmp_path / "a.csv"))
    with pytest.raises(SpecError, match="No such file"):
        read_trace(str(tmp_path / "b.csv"))


def parquet_of(path, text):
    import pandas as pd

    rows = [json.loads(line) for line in text.splitlines()] if text.startswith("{") else None
    frame = pd.DataFrame(rows) if rows else pd.read_csv(io.StringIO(text))
    if "TIMESTAMP" in frame:
        frame["TIMESTAMP"] = pd.to_datetime(frame["TIMESTAMP"])
    frame.to_parquet(path, index=False)


@pytest.mark.parametrize(("form", "name", "text"), FORMS, ids=["plain", "azure 2023", "azure 2024", "burstgpt", "mooncake"])
def test_parquet_holds_the_same_requests(tmp_path, form, name, text):
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_text(text)
    parquet_of(tmp_path / "a.parquet", text)
    want, got = read_trace(str(tmp_path / name)), read_trace(str(tmp_path / "a.parquet"))
    assert (got.form, got.dropped) == (form, want.dropped)
    np.testing.assert_allclose(got.requests.arrival_s, want.requests.arrival_s, atol=1e-6)
    assert got.requests.input_tokens.tolist() == want.requests.input_tokens.tolist()
    assert got.requests.output_tokens.tolist() == want.requests.output_tokens.tolist()
    assert got.requests.prefixes == want.requests.prefixes
    assert len(read_trace(str(tmp_path / "a.parquet"), limit=1).requests) == 1


def test_damaged_parquet_is_refused_in_one_line(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    parquet_of(path, MOONCAKE)
    whole, rng, refused = path.read_bytes(), np.random.default_rng(0), 0
    cuts = [whole[:n] for n in (0, 3, 4, 10, len(whole) // 2, len(whole) - 9, len(whole) - 1)]
    damaged = []
    for _ in range(60):
        data = np.frombuffer(whole, dtype=np.uint8).copy()
        data[rng.integers(len(whole), size=8)] = rng.integers(256, size=8)
        damaged.append(data.tobytes())
    for data in cuts:
        path.write_bytes(data)
        with pytest.raises(SpecError, match="cannot be read as Parquet: .") as told:
            read_trace(str(path))
        assert "\n" not in str(told.value)
    for data in damaged:  # most still are Parquet, and say other numbers
        path.write_bytes(data)
        with contextlib.suppress(SpecError):
            read_trace(str(path))
            refused -= 1
        refused += 1
    assert refused > 5


@pytest.mark.parametrize("cells", ["7 8,7 9", '"[7, 8]","[7, 9]"'], ids=["words", "lists"])
def test_hashes_in_csv(tmp_path, cells):
    path, (first, second) = tmp_path / "a.csv", cells.split(",", 1) if '"' not in cells else ('"[7, 8]"', '"[7, 9]"')
    path.write_text(f"timestamp,input_length,output_length,hash_ids\n0,600,5,{first}\n2000,700,6,{second}\n")
    read = read_trace(str(path))
    assert (read.form, read.requests.hash_tokens, read.requests.prefixes) == ("mooncake", 512, [(0, 1), (0, 2)])


def brute_cached(chains, blocks):
    """A list of blocks, the least recently used first; every block of a request is moved to its end, or put there."""
    kept, found = [], []
    for chain in chains:
        found.append(0)
        while found[-1] < len(chain) and chain[found[-1]] in kept:
            found[-1] += 1
        for block in chain:
            kept = [b for b in kept if b != block] + [block]
            kept = kept[-blocks:] if blocks else kept
    return found


@pytest.mark.parametrize("seed", range(8))
def test_what_a_cache_of_blocks_spares_against_a_list(tmp_path, seed):
    rng = np.random.default_rng(seed)
    chains = []
    for _ in range(120):
        head = chains[int(rng.integers(len(chains)))] if chains and rng.random() < 0.6 else []
        kept = head[: int(rng.integers(0, len(head) + 1))]
        chains.append(kept + [int(x) for x in rng.integers(10**9, size=int(rng.integers(0, 6)))])
    path = tmp_path / "a.jsonl"
    rows = [{"timestamp": 100 * i, "input_length": max(1, 512 * len(c)), "output_length": 1, "hash_ids": c} for i, c in enumerate(chains)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = read_trace(str(path)).requests
    shares = []
    for blocks in (1, 3, 10, 40, 200, None):
        want = brute_cached(chains, blocks)
        assert cached_blocks(asked, blocks).tolist() == want
        shares.append(cached_share(asked, blocks))
        assert shares[-1] == pytest.approx(sum(want) / sum(map(len, chains)))
    assert shares == sorted(shares)
    assert shares[-1] > 0.1


def test_an_engine_that_serves_one_after_another_finds_what_the_cache_holds():
    """All prompts a token longer than their blocks, so that none is found whole; answers of one token; room for all."""
    rng = np.random.default_rng(3)
    chains = [tuple(range(1000 * g, 1000 * g + n)) for g, n in zip(rng.integers(0, 5, 80), rng.integers(1, 9, 80), strict=True)]
    tokens = [512 * len(c) + 1 for c in chains]
    asked = Requests.of(np.arange(80.0) * 100, tokens, 1, prefixes=chains, hash_tokens=512)
    found = simulate(asked, LinearSteps(1.0), Schedule(prefix_caching=True, kv_tokens=10**6, max_num_batched_tokens=10**5))
    assert (found.cached_tokens // 512).tolist() == cached_blocks(asked).tolist()


def test_reuse_needs_hashes_and_room():
    with pytest.raises(SpecError, match="hash_ids"):
        cached_blocks(Requests.of([0.0], [5], [5]))
    with pytest.raises(SpecError, match="whole number from 1"):
        cached_blocks(Requests.of([0.0], [5], [5], prefixes=[(1,)]), 0)


@pytest.mark.parametrize(
    ("text", "mean", "second"),
    [
        ("512", 512, 512**2),
        ("uniform:800-1000", 900, 900**2 + (201**2 - 1) / 12),
        ("uniform:0.8-1.0:1000", 900, 900**2 + (201**2 - 1) / 12),
        ("exponential:128", 128, 128**2 * 2 - 128),
    ],
)
def test_lengths_have_their_moments(text, mean, second):
    found = Lengths.parse(text)
    assert found.mean == pytest.approx(mean, rel=1e-6)
    assert found.second_moment == pytest.approx(second, rel=1e-5)
    sample = found.sample(np.random.default_rng(0), 100_000)
    assert sample.mean() == pytest.approx(mean, rel=0.02)
    assert found.cdf(found.longest) == pytest.approx(1.0)
    assert found.cdf(found.shortest - 1) == 0.0


def test_lognormal_by_mean_and_percentile():
    found = Lengths.parse("lognormal:512,1500")
    assert found.mean == pytest.approx(512, rel=1e-3)
    assert found.quantile(0.95) == pytest.approx(1500, rel=0.01)


def test_the_mean_of_the_longest_of_some():
    law = Lengths.parse("uniform:1-3")
    brute = np.mean([max(a, b) for a in (1, 2, 3) for b in (1, 2, 3)])
    assert float(law.mean_of_max(2)) == pytest.approx(brute)
    assert law.mean_of_max(np.array([1, 2, 10**6])).tolist() == pytest.approx([2.0, brute, 3.0])


@pytest.mark.parametrize(
    "text", ["", "x", "uniform:5", "uniform:9-3", "exponential:", "lognormal:512", "lognormal:512,9999", "nan", "-5", "1.5", "1e30"]
)
def test_bad_lengths_are_refused(text):
    with pytest.raises(SpecError, match="^--isl: "):
        Lengths.parse(text, "--isl")


def test_lengths_from_a_file(tmp_path):
    path = tmp_path / "l.csv"
    path.write_text("input_tokens,output_tokens\n10,1\n10,3\n40,3\n")
    assert Lengths.parse(f"file:{path}").mean == 20
    assert Lengths.parse(f"file:{path}:output_tokens").longest == 3
    with pytest.raises(SpecError, match="has no column 'x'"):
        Lengths.parse(f"file:{path}:x")
    path.write_text("tokens\n5\nfive\n")
    with pytest.raises(SpecError, match="line 3: five: must be a whole number"):
        Lengths.parse(f"file:{path}")


@pytest.mark.parametrize(("text", "cv"), [("poisson:4", 1.0), ("gamma:4,cv=2.5", 2.5), ("constant:4", 0.0)])
def test_streams_have_their_gaps(text, cv):
    law = arrivals.parse(text)
    gaps = np.diff(law.times(np.random.default_rng(1), 200_000))
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03, abs=1e-9)
    assert law.second_moment == pytest.approx(0.0625 * (1 + cv**2))


def test_a_day_has_its_peak():
    law = arrivals.parse("diurnal:50,peak=1.8,period=1000")
    t = law.times(np.random.default_rng(1), 200_000)
    inside = t[t < 4000] % 1000
    assert np.mean((inside > 450) & (inside < 550)) / 0.1 == pytest.approx(1.8, rel=0.03)
    assert np.mean((inside < 50) | (inside > 950)) / 0.1 == pytest.approx(0.2, rel=0.15)
    assert t[-1] == pytest.approx(4000, rel=0.02)


BAD_STREAMS = ("", "poisson", "poisson:", "poisson:x", "poisson:0", "poisson:nan", "poisson:5,cv=2", "gamma:5,cv=-1", "burst:5")
BAD_OTHERS = ("closed:1.5", "closed:0", "at-once:3", "diurnal:5,peak=3")


@pytest.mark.parametrize("text", [*BAD_STREAMS, *BAD_OTHERS])
def test_bad_arrivals_are_refused(text):
    with pytest.raises(SpecError, match="^--arrivals"):
        arrivals.parse(text, "--arrivals")


STEPS = LinearSteps(0.010, 0.0005)


def stream(n=400, seed=0):
    return Requests.drawn(arrivals.poisson(1.0), Lengths.fixed(10), Lengths.fixed(50), n, seed=seed)


def test_goodput_counts_who_keeps_all_limits():
    found = simulate(Requests.of([0.0, 0.0, 10.0], [4, 4, 4], [3, 9, 1]), LinearSteps(1.0))
    slo = Slo.parse("ttft=1s,e2e=5s,share=0.6")
    assert slo.kept(found).tolist() == [True, False, True]
    assert slo.met(found)
    told = summary(found, slo)
    assert (told["slo_share"], told["served"], told["makespan_s"]) == (pytest.approx(2 / 3), 3, 11.0)
    assert told["goodput_per_s"] == pytest.approx(2 / 11)
    assert told["ttft_s"]["p50"] == 1.0
    assert told["tpot_s"]["max"] == 1.0


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=5", "ttft=5 GB", "ttft=0s", "x=1s", "share=0.9", "ttft=1s,share=2", "ttft=1s,ttft=2s", "ttft=1s,share=x"]
)
def test_bad_limits_are_refused(text):
    with pytest.raises(SpecError, match="^--slo: "):
        Slo.parse(text)


def test_the_largest_rate_that_meets_limits():
    """TPOT of processor sharing is (a + b) / (1 - rho): 25 ms at rho = 0.58, hence 23.2 requests/s of 50 tokens at 0.5 ms."""
    asked, slo = stream(3000), Slo.parse("tpot=25ms,share=0.5")
    found = curve_of(asked, lambda r: simulate(r, STEPS, Schedule()), points=5, slo=slo)
    assert found.largest_per_s == pytest.approx(0.58 / (50 * 0.0005), rel=0.1)
    below = simulate(asked.scaled(found.largest_per_s), STEPS, Schedule())
    above = simulate(asked.scaled(found.largest_per_s * 1.03), STEPS, Schedule())
    assert slo.met(below)
    assert not slo.met(above)
    rates = [r for r, _ in found.points]
    assert rates == sorted(rates)
    means = [s["e2e_s"]["mean"] for _, s in found.points]
    assert means == sorted(means)


def test_no_rate_meets_what_is_below_one_step():
    with pytest.raises(NoFeasiblePlan, match="no load meets TPOT"):
        curve_of(stream(), lambda r: simulate(r, STEPS, Schedule()), points=4, slo=Slo.parse("tpot=5ms"))


def test_a_curve_needs_an_open_stream():
    with pytest.raises(SpecError, match="needs an open stream"):
        curve_of(Requests.drawn(arrivals.ClosedLoop(3), Lengths.fixed(1), Lengths.fixed(2), 9), lambda r: simulate(r, STEPS))
    assert np.isnan(knee([1, 2, 3], [3.0, 2.0, 1.0]))
