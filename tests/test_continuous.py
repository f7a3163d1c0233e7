"""Continuous batching in closed form: known values, limits, percentiles, and an iteration-level simulation beside it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.cli.options import Asked
from inferplan.deployment import Estimate
from inferplan.engine.step import decode, mixed
from inferplan.errors import DoesNotFit, SpecError
from inferplan.serving import continuous as c
from inferplan.serving.arrivals import poisson
from inferplan.serving.batch_times import (
    BatchTimes,
    Workload,
    ages,
    batch_times,
    cache_slots,
    held_at,
    points_of,
    prefill_steps,
    slots,
    used_slots,
)
from inferplan.serving.lengths import Lengths
from inferplan.serving.requests import Requests
from inferplan.serving.schedule import Schedule
from inferplan.serving.simulate import simulate
from inferplan.serving.steps import LinearSteps

FIXED, PER_SEQUENCE, TOKENS = 0.01, 0.0005, 200
LAWS = {"fixed": Lengths.fixed(TOKENS), "exponential": Lengths.exponential(TOKENS), "two": Lengths.of([20, 1820], [0.9, 0.1], "two")}
PERCENTS = (0.5, 0.9, 0.99)
_KEPT: dict[Asked, Estimate] = {}


def linear(most: int = 4000, prefill_s: float = 0.0) -> BatchTimes:
    return BatchTimes.linear(FIXED, PER_SEQUENCE, most, TOKENS - 1, prefill_s=prefill_s)


def case(asked: Asked) -> Estimate:
    if asked not in _KEPT:
        _KEPT[asked] = asked.estimate()
    return _KEPT[asked]


@pytest.mark.parametrize(
    ("rate", "load", "running", "time"), [(2, 0.2, 5.25, 2.625), (5, 0.5, 21, 4.2), (8, 0.8, 84, 10.5), (9, 0.9, 189, 21)]
)
def test_a_linear_step_has_its_formula(rate: float, load: float, running: float, time: float) -> None:
    found = c.open_loop(linear(), LAWS["fixed"], rate)
    assert float(found.running) == pytest.approx(running, rel=1e-9)
    assert float(found.running / rate) == pytest.approx(time, rel=1e-9)
    assert float(found.tpot_s) == pytest.approx(time / TOKENS, rel=1e-9)
    rho = c.shared_load(rate, TOKENS, PER_SEQUENCE)
    assert rho == pytest.approx(load)
    assert float(c.shared_running(rho, TOKENS, FIXED, PER_SEQUENCE)) == pytest.approx(running)
    assert float(c.shared_time_s(rho, TOKENS, FIXED, PER_SEQUENCE)) == pytest.approx(time)
    assert float(c.shared_tpot_s(rho, FIXED, PER_SEQUENCE)) == pytest.approx(time / TOKENS)


@pytest.mark.parametrize("rate", [2, 5, 8])
def test_the_batch_is_negative_binomial(rate: float) -> None:
    rho, more = rate * TOKENS * PER_SEQUENCE, FIXED / PER_SEQUENCE
    found = c.open_loop(linear(), LAWS["fixed"], rate).states.probability
    for n in (0, 1, 10, 50, 200):
        logs = math.lgamma(n + more + 1) - math.lgamma(n + 1) - math.lgamma(more + 1) + (1 + more) * math.log(1 - rho) + n * math.log(rho)
        assert float(found[n]) == pytest.approx(math.exp(logs), rel=1e-8)


@pytest.mark.parametrize(("prefill_s", "time"), [(0.01, 4.689), (0.03, 6.086)])
def test_prefills_in_the_same_steps(prefill_s: float, time: float) -> None:
    found = c.open_loop(linear(prefill_s=prefill_s), LAWS["fixed"], 5.0)
    assert round(float(found.running / 5), 3) == time
    assert (
        round(float(c.shared_time_s(c.shared_load(5.0, TOKENS, PER_SEQUENCE, prefill_s), TOKENS, FIXED, PER_SEQUENCE, prefill_s)), 3)
        == time
    )


@pytest.mark.parametrize(("most", "inside", "time"), [(64, 14.0, 3.5), (16, 18.289, 4.57225)])
def test_at_most_so_many_at_once(most: int, inside: float, time: float) -> None:
    found = c.open_loop(linear(most), LAWS["exponential"], 4.0)
    assert round(float(found.states.mean), 4) == inside
    assert round(float(found.states.mean / 4), 5) == time
    assert float(linear(16).rates_per_s[-1]) == pytest.approx(4.4444, abs=5e-5)


def test_a_closed_loop_is_n_over_s() -> None:
    clients = np.array([1, 8, 32, 128, 512])
    found = c.closed_loop(linear(), LAWS["fixed"], clients)
    np.testing.assert_allclose(found.requests_per_s, [0.476190, 2.857143, 6.153846, 8.648649, 9.624060], atol=5e-7)
    np.testing.assert_allclose(found.tpot_s, FIXED + PER_SEQUENCE * clients, rtol=1e-12)
    held = c.closed_loop(linear(16), LAWS["fixed"], clients)
    assert held.waiting.tolist() == [0, 0, 16, 112, 496]
    np.testing.assert_allclose(held.wait_s[2:], held.waiting[2:] / held.requests_per_s[2:])
    np.testing.assert_allclose(held.requests_per_s[2:], 16 / (TOKENS * (FIXED + PER_SEQUENCE * 16)))


def test_more_than_can_be_served_is_a_mask() -> None:
    found = c.open_loop(linear(16), LAWS["fixed"], np.array([1.0, 4.4, 4.5, 100.0]))
    assert found.stable.tolist() == [True, True, False, False]
    for values in (found.ttft_s, found.e2e_s, found.wait_s, found.waiting, found.ttft_quantile_s(0.9), found.e2e_quantile_s(0.9)):
        assert np.isfinite(values).tolist() == [True, True, False, False]
    np.testing.assert_allclose(found.requests_per_s[2:], linear(16).rates_per_s[-1])
    np.testing.assert_allclose(found.tpot_s[2:], FIXED + PER_SEQUENCE * 16)
    assert found.running[2:].tolist() == [16, 16]
    assert np.all(np.isfinite(found.tpot_quantile_s(0.99)))


def test_an_array_of_loads_is_its_loads() -> None:
    rates = np.array([[0.5, 3.0], [6.0, 4.2]])
    whole = c.open_loop(linear(32, 0.004), LAWS["exponential"], rates)
    for place in np.ndindex(2, 2):
        one = c.open_loop(linear(32, 0.004), LAWS["exponential"], rates[place])
        for name in ("ttft_s", "tpot_s", "e2e_s", "wait_s", "running", "waiting", "load", "busy", "requests_per_s"):
            np.testing.assert_allclose(getattr(whole, name)[place], getattr(one, name), rtol=1e-12)
        for law in ("ttft_quantile_s", "tpot_quantile_s", "itl_quantile_s", "e2e_quantile_s", "running_quantile"):
            np.testing.assert_allclose(getattr(whole, law)(0.9)[place], getattr(one, law)(0.9), rtol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(1e-4, 0.05), st.floats(1e-6, 0.01), st.integers(1, 80), st.integers(1, 600), st.floats(0, 0.1), st.sampled_from(list(LAWS))
)
def test_more_load_is_slower(fixed_s: float, per_sequence_s: float, most: int, tokens: int, prefill_s: float, law: str) -> None:
    times = BatchTimes.linear(fixed_s, per_sequence_s, most, tokens - 1, prefill_s=prefill_s)
    output = Lengths.fixed(tokens) if law == "fixed" else LAWS[law]
    rates = times.rates_per_s[-1] * np.array([0.1, 0.4, 0.7, 0.9, 0.97, 1.1])
    found = c.open_loop(times, output, rates)
    for values in (found.ttft_s, found.tpot_s, found.e2e_s, found.running, found.waiting, found.busy):
        assert np.all(np.diff(np.where(np.isfinite(values), values, 1e300)) >= -1e-9 * np.abs(values[:-1]))
    np.testing.assert_allclose(found.e2e_s, found.ttft_s + (output.mean - 1) * found.tpot_s)
    within = found.stable
    assert np.all(found.running[within] <= most + 1e-9)
    for name in ("ttft", "tpot", "itl", "e2e"):
        each = [getattr(found, f"{name}_quantile_s")(q)[within] for q in PERCENTS]
        assert np.all(np.diff(each, axis=0) >= -1e-12)


@pytest.mark.parametrize("rate", [0.5, 3.0, 4.2])
def test_littles_law(rate: float) -> None:
    """Requests in the system are those at work and those that wait; the rest of the step that a request meets comes on top."""
    found = c.open_loop(linear(16), LAWS["exponential"], rate)
    rest = float(found.states.expect(np.append(linear(16).rest_s, linear(16).rest_s[-1])))
    assert float(found.running + found.waiting) == pytest.approx(rate * (float(found.e2e_s) - rest), rel=0.002)


def test_what_runs_alone_is_never_stretched() -> None:
    times = linear(8, 0.03)
    assert times.ahead[0] == 0
    assert times.time_s[0] == times.alone_s[0]
    assert np.all(np.diff(times.time_s / times.alone_s) > 0)
    found = c.open_loop(times, LAWS["fixed"], 1e-6)
    assert float(found.ttft_s) == pytest.approx(0.0105 + 0.03, rel=1e-4)
    assert float(found.tpot_s) == pytest.approx(0.0105, rel=1e-4)
    assert float(found.busy) == pytest.approx(float(found.running), rel=1e-4)


def test_tails_of_the_known_setting() -> None:
    """5.7 s where all outputs are alike, 19.2 s where they are exponential, both simulated."""
    assert float(c.open_loop(linear(), LAWS["fixed"], 5.0).e2e_quantile_s(0.99)) == pytest.approx(5.7, rel=0.06)
    assert float(c.open_loop(linear(), LAWS["exponential"], 5.0).e2e_quantile_s(0.99)) == pytest.approx(19.2, rel=0.06)


def simulated(seed: int, rate: float, lengths: Lengths, prefill_s: float, most: int, count: int) -> np.ndarray:
    """First-token and last-token times of requests, step by step: whoever has come joins, each runs for its number of tokens."""
    rng = np.random.default_rng(seed)
    arrivals, tokens = np.cumsum(rng.exponential(1 / rate, count)).tolist(), lengths.sample(rng, count).tolist()
    clock, steps, at_work, came = 0.0, 0, 0, 0
    ends: dict[int, list[int]] = {}
    first, last = [0.0] * count, [0.0] * count
    while came < count or at_work:
        clock = max(clock, arrivals[came]) if not at_work else clock
        new = came
        while came < count and arrivals[came] <= clock and at_work + came - new < most:
            ends.setdefault(steps + tokens[came], []).append(came)
            came += 1
        at_work += came - new
        clock += FIXED + PER_SEQUENCE * at_work + prefill_s * (came - new)
        steps += 1
        first[new:came] = [clock] * (came - new)
        for i in ends.pop(steps, ()):
            last[i], at_work = clock, at_work - 1
    kept = slice(count // 10, None)
    return np.array([np.array(first) - arrivals, np.array(last) - arrivals, tokens])[:, kept]


def near(rate: float, law: str, prefill_s: float = 0.0, most: int = 4000, *, seeds: int = 6, count: int = 4000) -> dict[str, float]:
    """Closed form over simulation, less 1, with half of a 95 % interval."""
    lengths = LAWS[law]
    found = c.open_loop(linear(most, prefill_s), lengths, rate)
    runs = [simulated(seed, rate, lengths, prefill_s, most, count) for seed in range(seeds)]
    e2e, ttft = (np.array([run[i].mean() for run in runs]) for i in (1, 0))
    tpot = np.mean([(run[1] - run[0]).sum() / (run[2] - 1).sum() for run in runs])
    spread = 2.6 * e2e.std(ddof=1) / np.sqrt(seeds) / e2e.mean()
    return {
        "e2e": float(found.e2e_s) / e2e.mean() - 1,
        "ttft": float(found.ttft_s) / ttft.mean() - 1,
        "tpot": float(found.tpot_s) / float(tpot) - 1,
        "spread": float(spread),
        "e2e_p99": float(found.e2e_quantile_s(0.99)) / np.mean([np.quantile(run[1], 0.99) for run in runs]) - 1,
        "ttft_p99": float(found.ttft_quantile_s(0.99)) / np.mean([np.quantile(run[0], 0.99) for run in runs]) - 1,
    }


@pytest.mark.parametrize("law", ["fixed", "exponential"])
@pytest.mark.parametrize(("rate", "prefill_s"), [(2.0, 0.0), (5.0, 0.0), (5.0, 0.03)])
def test_within_five_per_cent_of_a_simulation(law: str, rate: float, prefill_s: float) -> None:
    found = near(rate, law, prefill_s, seeds=3, count=2500)
    for name in ("e2e", "tpot", "ttft"):
        assert abs(found[name]) < 0.05 + found["spread"], (name, found)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("rate", "prefill_s"), [(2.0, 0.0), (5.0, 0.0), (8.0, 0.0), (5.0, 0.01), (5.0, 0.03)])
def test_long_runs_agree(law: str, rate: float, prefill_s: float) -> None:
    found = near(rate, law, prefill_s, seeds=8, count=12_000)
    for name in ("e2e", "tpot", "ttft"):
        assert abs(found[name]) < 0.05 + found["spread"], (name, found)
    assert abs(found["e2e_p99"]) < 0.13 + found["spread"], found
    assert abs(found["ttft_p99"]) < 0.13, found


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("rate", [3.0, 4.0])
def test_waits_for_a_place_agree(law: str, rate: float) -> None:
    """With 16 places: about a tenth at a load of 0.9, where single runs are far from one another."""
    found = near(rate, law, most=16, seeds=8, count=12_000)
    assert abs(found["e2e"]) < 0.05 + found["spread"], found
    assert abs(found["ttft"]) < 0.15 + 5 * found["spread"], found


def test_ages_of_running_requests() -> None:
    law = Lengths.of([2, 5, 11], [0.5, 0.3, 0.2], "three")
    met = [i for n, p in zip(law.values, law.probabilities, strict=True) for i in range(1, int(n)) for _ in range(round(10 * p))]
    assert float(ages(law).mean()) == pytest.approx(np.mean(met), rel=1e-9)
    assert np.all(ages(law) > 0)
    assert ages(Lengths.fixed(1)).tolist() == [1.0]


def test_points_keep_the_mean() -> None:
    for law in (*LAWS.values(), Lengths.lognormal(500, 1500)):
        assert float(points_of(law).mean()) == pytest.approx(law.mean, rel=1e-12)


def test_quantiles_by_weight() -> None:
    values, weights = np.array([[5.0, 1.0, 3.0]]), np.array([[0.1, 0.6, 0.3]])
    assert [float(c.weighted_quantile(values, weights, q)[0]) for q in (0.5, 0.6, 0.61, 0.9, 0.95)] == [1, 1, 3, 3, 5]


LLAMA = Asked("llama-3.1-8b", "h100", "bf16", isl=1024, osl=256)


def test_times_are_the_engines_own() -> None:
    e = case(LLAMA)
    work = Workload.of(e)
    found = batch_times(e, work, 256)
    for n in (1, 20, 100, 101, 256):
        contexts = np.arange(1025, 1280)
        run = decode(e.model, e.hardware, e.precision, context=contexts, batch=n, setting=e.setting)
        assert found.decode_s[n - 1] == pytest.approx(float(np.mean(run.time_s)), rel=0.005)
        both = mixed(e.model, e.hardware, e.precision, batch=n - 1, context=1153, chunk=1024, setting=e.setting)
        assert found.decode_s[n - 1] + found.prefill_s[n - 1] == pytest.approx(float(np.mean(both.time_s)), rel=0.02)


def test_long_prompts_are_cut_into_chunks() -> None:
    e = case(Asked("llama-3.1-8b", "h100", "bf16", isl=20_000, osl=256))
    budget = float(np.asarray(e.capacity.launch.max_num_batched_tokens))
    found = batch_times(e, Workload.of(e), 16)
    assert found.passes[0, 0] == math.ceil(20_000 / budget)
    whole = float(np.asarray(e.prefill.time_s))
    assert found.first_s[0] == pytest.approx(whole, rel=0.05), "one after the other they cost about the whole prompt"
    half = batch_times(e, Workload(Lengths.fixed(20_000), Lengths.fixed(256), 0.5), 16)
    assert 0.4 * found.prefill_s[0] < half.prefill_s[0] < 0.75 * found.prefill_s[0], "the second half looks back at the first"


def test_places() -> None:
    e = case(LLAMA)
    work = Workload.of(e)
    tokens = float(np.asarray(e.capacity.kv_cache_tokens))
    assert used_slots(e, work) == pytest.approx(tokens / 1152, rel=0.01)
    assert slots(e, work) == int(used_slots(e, work))
    held = case(Asked("llama-3.1-8b", "h100", "bf16", isl=1024, osl=256, max_num_seqs=32))
    assert slots(held, work) == 32
    tgi = case(Asked("llama-3.1-8b", "h100", "bf16", isl=1024, osl=256, engine="tgi"))
    assert slots(tgi, work) == min(int(held_at(tgi, 1280)), int(np.asarray(tgi.capacity.launch.max_num_seqs)))
    longer = case(Asked("llama-3.1-8b", "h100", "bf16", isl=1024, osl=1024, engine="tgi"))
    vary = Workload(Lengths.fixed(1024), Lengths.exponential(256, 1024))
    assert cache_slots(longer, vary) == pytest.approx(float(held_at(longer, 2048)))
    assert cache_slots(longer, vary) < 0.7 * used_slots(longer, vary), "TGI sets the longest output aside"


@pytest.mark.parametrize(("engine", "version", "how"), [("vllm", None, "mixed"), ("vllm", "0.6.0", "alone"), ("sglang", None, "alone")])
def test_how_engines_prefill(engine: str, version: str | None, how: str) -> None:
    e = case(Asked("llama-3.1-8b", "h100", "bf16", isl=1024, osl=256, engine=engine, engine_version=version))
    assert prefill_steps(e) == how
    found = batch_times(e, Workload.of(e), 8)
    assert np.all(found.passes == (1 if how == "mixed" else 0))
    whole = found.first_s[0]
    assert whole == pytest.approx(float(np.asarray(e.prefill.time_s)), rel=0.05)


def test_a_closed_loop_of_one_is_the_estimate() -> None:
    e = case(LLAMA)
    found = c.continuous(e, clients=1)
    assert float(found.tpot_s) == pytest.approx(e.tpot_s, rel=1e-3)
    assert float(found.ttft_s) == pytest.approx(e.prefill_s, rel=0.05)
    seen = found.with_front(e.prompt_front_end_s)
    assert float(seen.ttft_s) == pytest.approx(e.ttft_s, rel=0.02)
    assert float(seen.e2e_s) == pytest.approx(e.e2e_s, rel=0.002)
    assert float(seen.ttft_quantile_s(0.9) - found.ttft_quantile_s(0.9)) == pytest.approx(e.prompt_front_end_s, rel=1e-9)
    assert float(seen.e2e_quantile_s(0.9) - found.e2e_quantile_s(0.9)) == pytest.approx(e.prompt_front_end_s, rel=1e-9)
    assert float(found.requests_per_s) == pytest.approx(1 / (e.e2e_s - e.prompt_front_end_s), rel=0.01)


def test_groups_and_stages_block_a_part_of_the_others() -> None:
    for asked, blocked in (
        (Asked("llama-3.1-70b", "h100", "bf16", tp=2, pp=2), 0.5),
        (Asked("deepseek-v3", "h200", "fp8", dp=8, ep=8), 0.125),
    ):
        e = case(asked)
        found = batch_times(e, Workload.of(e), 64)
        assert found.blocked == blocked
        assert np.all(np.isfinite(found.time_s))
        assert np.all(np.diff(found.rates_per_s) > 0)


def test_a_prefix_cache_leaves_less_to_do() -> None:
    e = case(LLAMA)
    cold, warm = (c.continuous(e, Workload(Lengths.fixed(1024), Lengths.fixed(256), share), rate_per_s=10.0) for share in (0.0, 0.9))
    assert float(warm.ttft_s) < float(cold.ttft_s)
    assert float(warm.tpot_s) < float(cold.tpot_s)
    assert float(warm.load) < float(cold.load)


def test_what_is_refused() -> None:
    e = case(LLAMA)
    for given_load in (
        {},
        {"rate_per_s": 1.0, "clients": 2},
        {"rate_per_s": 0.0},
        {"rate_per_s": np.nan},
        {"clients": 0},
        {"clients": 1.5},
    ):
        with pytest.raises(SpecError):
            c.continuous(e, **given_load)
    with pytest.raises(SpecError, match="hit_rate"):
        c.continuous(e, Workload(Lengths.fixed(10), Lengths.fixed(10), 1.0), rate_per_s=1.0)
    with pytest.raises(DoesNotFit, match="weights"):
        c.continuous(case(Asked("llama-3.1-70b", "4090", "bf16")), rate_per_s=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("law", ["fixed", "exponential"])
@pytest.mark.parametrize("load", [0.2, 0.5])
def test_the_simulated_engine_agrees(law: str, load: float) -> None:
    """vLLM's scheduler with chunked prefill: prompts of 72 ms beside steps of 6 ms, where prefills are most of the load."""
    base_s, each_s, prompt_s, output = 0.006, 6e-5, 7e-5 * 1024, Lengths.fixed(256) if law == "fixed" else Lengths.exponential(256)
    n, room = np.arange(1, 321), 8192
    times = BatchTimes(base_s + each_s * n, np.full((1, n.size), prompt_s), np.ones((1, n.size)), output.mean - 1, filled=1024 / (room - n))
    rate = load * float(times.rates_per_s[-1])
    found, runs = c.open_loop(times, output, rate), []
    for seed in range(4):
        asked = Requests.drawn(poisson(rate), Lengths.fixed(1024), output, 6000, seed=seed)
        schedule = Schedule("vllm-v1", max_num_seqs=n.size, max_num_batched_tokens=room)
        served = simulate(asked, LinearSteps(base_s, each_s, 0.0, 7e-5), schedule)
        kept = slice(600, 5600)
        first, last = (served.first_s - asked.arrival_s)[kept], (served.last_s - asked.arrival_s)[kept]
        runs.append((first.mean(), last.mean(), np.quantile(first, 0.99)))
    ttft, e2e, tail = np.mean(runs, axis=0)
    assert float(found.ttft_s) == pytest.approx(ttft, rel=0.04)
    assert float(found.e2e_s) == pytest.approx(e2e, rel=0.06)
    assert float(found.ttft_quantile_s(0.99)) == pytest.approx(tail, rel=0.1)
