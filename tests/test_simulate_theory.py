"""The simulator made into queues with known answers, in confidence intervals over seeds."""

import math

import numpy as np
import pytest

from inferplan.serving.arrivals import ClosedLoop, constant, poisson
from inferplan.serving.lengths import Lengths
from inferplan.serving.requests import Requests
from inferplan.serving.schedule import Schedule
from inferplan.serving.simulate import simulate
from inferplan.serving.steps import LinearSteps

SEEDS = 10
T999 = 4.781  # two-sided 99.9 % point of Student's t with 9 degrees of freedom


def within(values, exact, slack=0.0):
    """Whether an exact value lies in the 99.9 % interval of independent runs, widened by a known bias."""
    mean, half = np.mean(values), T999 * np.std(values, ddof=1) / math.sqrt(len(values))
    assert abs(mean - exact) <= half + slack * exact, f"{mean} +- {half}, not {exact}"
    assert half < 0.15 * exact, "too wide to tell anything"


def sojourns(requests, steps, schedule, seconds):
    """Mean of a time over the later nine tenths of each run."""
    found = []
    for seed in range(SEEDS):
        served = simulate(requests(seed), steps, schedule, seed=seed)
        values = getattr(served, seconds)
        found.append(float(values[values.size // 10 :].mean()))
    return found


ONE_SERVER = Schedule(max_num_seqs=1, max_num_batched_tokens=10**6)
PER_TOKEN = LinearSteps(0.0, per_prompt_token_s=0.001)


@pytest.mark.parametrize(
    ("law", "rate"), [(Lengths.fixed(1000), 0.7), (Lengths.exponential(1000), 0.6), (Lengths.uniform(500, 1500), 0.7)],
    ids=["M/D/1", "M/M/1", "M/U/1"],
)  # fmt: skip
def test_one_server_waits_as_pollaczek_and_khinchin_say(law, rate):
    """One slot and answers of one token: service is the prompt's time, Wq = lambda E[S2] / (2 (1 - rho))."""
    second, mean = law.second_moment * 1e-6, law.mean * 1e-3
    exact = rate * second / (2 * (1 - rate * mean))
    waits = sojourns(lambda s: Requests.drawn(poisson(rate), law, Lengths.fixed(1), 12_000, seed=s), PER_TOKEN, ONE_SERVER, "queue_s")
    within(waits, exact)


@pytest.mark.slow
def test_many_servers_wait_as_erlang_says():
    """Slots whose steps take the same however many run are servers: M/M/5 at a = 4 has Wq 0.5541 of a mean service."""
    law = Lengths.exponential(200)
    steps = LinearSteps(0.005)
    waits = sojourns(
        lambda s: Requests.drawn(poisson(4.0), Lengths.fixed(1), law, 20_000, seed=s), steps, Schedule(max_num_seqs=5), "queue_s"
    )
    within(waits, 0.55411255, slack=0.02)  # a request waits half a step more, and its slot is free a step later


@pytest.mark.parametrize(("rate", "exact", "slack"), [(2.0, 2.625, 0.02), (5.0, 4.2, 0.03)])
@pytest.mark.parametrize("law", [Lengths.fixed(200), Lengths.exponential(200)], ids=["fixed", "exponential"])
def test_continuous_batching_is_processor_sharing(rate, exact, slack, law):
    """Steps of a + b n make W = m (a + b) / (1 - lambda m b), whatever the law of the lengths; a step's end is waited for."""
    steps = LinearSteps(0.010, 0.0005)
    times = sojourns(
        lambda s: Requests.drawn(poisson(rate), Lengths.fixed(1), law, 4000, seed=s), steps, Schedule(max_num_seqs=2048), "e2e_s"
    )
    within(times, exact, slack=slack)


@pytest.mark.parametrize("clients", [1, 8, 32])
def test_a_closed_loop_serves_n_over_s_of_n(clients):
    """Fixed lengths keep clients in step: a prompt's step at a + 0 b, then m - 1 at a + N b."""
    steps = LinearSteps(0.010, 0.0005)
    asked = Requests.drawn(ClosedLoop(clients), Lengths.fixed(1), Lengths.fixed(200), 20 * clients)
    found = simulate(asked, steps, Schedule())
    cycle = 0.010 + 199 * (0.010 + 0.0005 * clients)
    np.testing.assert_allclose(found.e2e_s, cycle)
    assert found.finish_s.max() == pytest.approx(20 * cycle)


def test_little():
    """Requests that run, seen over time, are the rate times the time that they run."""
    asked = Requests.drawn(poisson(5.0), Lengths.uniform(10, 500), Lengths.exponential(100), 4000, seed=1)
    found = simulate(asked, LinearSteps(0.010, 0.0005, 1e-7, 2e-5), Schedule(max_num_seqs=40), series=True)
    s = found.series[0]
    last = np.concatenate([[0.0], s.t_s[:-1]])
    running = np.concatenate([[0], s.running[:-1]])  # what a move ends with runs during the next one
    area = float(((s.t_s - last) * running).sum())
    assert area == pytest.approx(float((found.finish_s - found.begun_s).sum()), rel=0.05)


def test_a_static_batch_waits_for_its_longest():
    """Slots' steps over tokens made: E[max of B] / E[N], the harmonic number for exponential lengths."""
    for size, harmonic in ((8, 2.71786), (16, 3.38073)):
        law = Lengths.exponential(512)
        ratios = []
        for seed in range(SEEDS):
            asked = Requests.drawn(constant(1e6), Lengths.fixed(512), law, 250 * size, seed=seed)
            found = simulate(asked, LinearSteps(0.01), Schedule("static", max_num_seqs=size))
            ratios.append(found.slot_steps / asked.output_tokens.sum())
        exact = float(law.mean_of_max(size)) / law.mean
        assert exact == pytest.approx(harmonic, rel=0.002)
        within(ratios, exact)
