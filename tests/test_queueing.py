"""Queues: published values to their digits, text = function, vector = scalar, exact identities, and a simulated queue beside each law."""

import importlib
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferplan.formula import FORMULAS
from inferplan.serving import queueing as q

importlib.import_module("inferplan.serving.continuous")
importlib.import_module("inferplan.serving.static")
NAMES = sorted(name for name, f in FORMULAS.items() if f.function.__module__.startswith("inferplan.serving."))
DEMANDS = [0.05, 0.08, 0.1]


def shown(value, digits: int = 8) -> float:
    return round(float(value), digits)


@pytest.mark.parametrize("name", NAMES)
def test_text_is_the_function(name: str) -> None:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    found = FORMULAS[name]
    assert found.unit
    assert found.ref
    for high in (0.99, 50.0):
        for _ in range(50):
            values = {a: rng.uniform(0.01, high) for a in found.arguments}
            assert found.function(**values) == pytest.approx(found.evaluate(**values), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_vector_is_its_scalars(name: str) -> None:
    rng, found = np.random.default_rng(7), FORMULAS[name]
    values = {a: rng.uniform(0.05, 2.0, 20) for a in found.arguments}
    each = [found.function(**{a: float(v[i]) for a, v in values.items()}) for i in range(20)]
    np.testing.assert_allclose(found.function(**values), each, rtol=1e-12)


@pytest.mark.parametrize(
    ("rate", "queued", "wait", "inside", "time"), [(0.8, 3.2, 4, 4, 5), (0.9, 8.1, 9, 9, 10)], ids=["load .8", "load .9"]
)
def test_one_server(rate: float, queued: float, wait: float, inside: float, time: float) -> None:
    found = q.mmc(rate, 1.0)
    assert [shown(x) for x in (found.queued, found.wait_s, found.in_system, found.time_s)] == [queued, wait, inside, time]
    assert shown(q.mm1_time_s(rate, 1.0)) == time


@pytest.mark.parametrize(("servers", "offered", "lost"), [(10, 7.0, 0.07874088), (100, 84.0, 0.00987253)])
def test_erlang_b(servers: int, offered: float, lost: float) -> None:
    assert shown(q.erlang_b(offered, servers)) == lost


@pytest.mark.parametrize(
    ("rate", "mu", "servers", "waiting", "wait"),
    [
        (2, 1.5, 2, 0.53333333, 0.53333333),
        (4, 1, 5, 0.55411255, 0.55411255),
        (8, 1, 10, 0.40918015, 0.20459008),
        (10, 1, 12, 0.44938822, 0.22469411),
        (45, 1, 50, 0.36386447, 0.07277289),
        (90, 1, 100, 0.21694048, 0.02169405),
        (0.2, 0.1, 3, 0.44444444, 4.44444444),
    ],
)
def test_erlang_c(rate: float, mu: float, servers: int, waiting: float, wait: float) -> None:
    found = q.mmc(float(rate), 1 / mu, servers)
    assert shown(found.waiting) == waiting
    assert shown(found.wait_s) == wait


def test_times_and_numbers_of_several_servers() -> None:
    found = q.mmc(np.array([2.0, 0.2]), 1 / np.array([1.5, 0.1]), np.array([2, 3]))
    np.testing.assert_allclose(found.time_s, [1.2, 14.44444444], atol=5e-9)
    np.testing.assert_allclose(found.in_system, [2.4, 2.88888889], atol=5e-9)


def test_the_tail_of_the_wait() -> None:
    found = q.mmc(4.0, 1.0, 5)
    assert shown(q.wait_tail(1.0, found.load, 1.0, 5, found.waiting)) == 0.20384662
    assert shown(found.wait_quantile_s(0.99), 5) == 4.01478
    assert float(found.wait_quantile_s(0.99, service_cv2=3)) == pytest.approx(8.02956, abs=1e-5)
    assert found.wait_quantile_s(0.2) == 0, "more than a fifth do not wait"


def test_the_quantile_inverts_the_tail() -> None:
    found, shares = q.mmc(np.linspace(3, 4.9, 9), 1.0, 5), 0.95
    at = found.wait_quantile_s(shares)
    np.testing.assert_allclose(q.wait_tail(at, found.load, 1.0, 5, found.waiting), np.minimum(1 - shares, found.waiting), rtol=1e-9)


def test_limited_room() -> None:
    two = q.mmck(3.0, 0.5, 2, 4)
    lost = two.probability[-1]
    assert shown(lost) == 0.12404288
    assert shown(two.mean) == 1.72741194
    assert shown(3 * (1 - lost)) == 2.62787136
    assert shown(two.mean / (3 * (1 - lost))) == 0.65734266
    one = q.mmck(1.0, 1.0, 1, 3)
    assert (shown(one.probability[-1]), shown(one.mean), shown(one.mean / (1 - one.probability[-1]))) == (0.25, 1.5, 2.0)


def test_limited_room_is_vectorised() -> None:
    rates, servers, room = np.array([3.0, 1.0, 5.0]), np.array([2, 1, 4]), np.array([4, 3, 9])
    whole = q.mmck(rates, np.array([0.5, 1.0, 0.3]), servers, room)
    each = [q.mmck(r, s, c, k).mean for r, s, c, k in zip(rates, (0.5, 1.0, 0.3), servers, room, strict=True)]
    np.testing.assert_allclose(whole.mean, each, rtol=1e-12)


@pytest.mark.parametrize(("second_moment", "wait"), [(1.0, 2), (1.5, 3), (5.0, 10)], ids=["M/D/1", "M/E2/1", "C2 4"])
def test_general_service(second_moment: float, wait: float) -> None:
    assert shown(q.mg1_wait_s(0.8, 0.8, second_moment)) == wait


def test_the_wait_for_a_running_step() -> None:
    assert shown(q.mg1_wait_s(0.8, 0.8, 1.0) + q.residual_s(0.5, 0.25)) == 2.25


def test_kingman() -> None:
    assert shown(q.kingman_wait_s(0.8, 1.0, 1.0, 1.0)) == 4
    assert shown(q.kingman_wait_s(0.8, 1.0, 4.0, 1.0)) == 10
    assert shown(q.kingman_wait_s(0.5, 1.0, 13.15**2, 1.0), 2) == 86.96, "86.96125; printed as 86.97 where the variation had more digits"


def test_many_servers_in_general() -> None:
    exact = q.mmc(4.0, 1.0, 5).wait_s
    assert shown(q.allen_cunneen_wait_s(exact, 2.0, 0.5)) == 0.69264069
    near = q.sakasegawa_wait_s(0.8, 1.0, 5, 1.0, 1.0)
    assert shown(near) == 0.57703729
    assert shown(100 * (near / exact - 1), 1) == 4.1


def test_sharing() -> None:
    assert (shown(q.sharing_time_s(0.8, 1.0)), shown(q.sharing_time_s(0.8, 3.0))) == (5, 15)
    assert shown(q.mmc_states(10.0, 1 / 12, 3).probability[0], 5) == 0.43213


def test_harmonic_numbers() -> None:
    np.testing.assert_allclose(q.harmonic(np.array([0, 1, 8, 16, 32])), [0, 1, 2.71786, 3.38073, 4.05850], atol=5e-6)


@pytest.mark.parametrize(("clients", "rate", "time"), [(1, 0.81300813, 0.23), (5, 3.83725813, 0.30301372), (20, 9.59152381, 1.08517441)])
def test_mean_value_analysis(clients: int, rate: float, time: float) -> None:
    found = q.mva(DEMANDS, clients, 1.0)
    assert (shown(found.throughput_per_s), shown(found.time_s)) == (rate, time)
    assert float(found.throughput_per_s) <= min(clients / 1.23, 10)


def test_mean_value_analysis_over_arrays() -> None:
    demands, clients, think = np.array([DEMANDS, [0.2, 0.01, 0.3]])[:, None, :], np.array([1, 5, 20]), 0.5
    whole = q.mva(demands, clients, think)
    each = [[float(q.mva(d[0], c, think).throughput_per_s) for c in clients] for d in demands]
    np.testing.assert_allclose(whole.throughput_per_s, each, rtol=1e-12)
    np.testing.assert_allclose(whole.at_station.sum(axis=-1) + whole.throughput_per_s * think, np.broadcast_to(clients, (2, 3)), rtol=1e-12)


def test_machine_repair_two_ways() -> None:
    found = q.machine_repair(1.0, 10, 9.0)
    assert (shown(found.throughput_per_s), shown(found.time_s)) == (0.83203677, 3.01869955)
    chain = q.closed_station(np.arange(1, 11) * 1.0, 10, 9.0)
    assert (shown(chain.throughput_per_s), shown(chain.time_s)) == (0.83203677, 3.01869955)


def test_a_station_that_slows_down() -> None:
    clients = np.array([1, 8, 32, 128, 512])
    times = 200 * (0.01 + 0.0005 * np.arange(1, 513))
    found = q.closed_station(times, clients)
    np.testing.assert_allclose(found.throughput_per_s, [0.476190, 2.857143, 6.153846, 8.648649, 9.624060], atol=5e-7)
    np.testing.assert_allclose(found.time_s, times[clients - 1], rtol=1e-12)
    thinks = q.closed_station(times, clients[:3], 1.0)
    np.testing.assert_allclose(thinks.throughput_per_s, [0.32258065, 2.22130568, 5.67225428], atol=5e-9)
    np.testing.assert_allclose(thinks.time_s, [2.1, 2.60148541, 4.64149603], atol=5e-9)


def test_more_than_can_be_served_is_infinite_and_no_error() -> None:
    rates = np.array([0.5, 1.0, 2.0])
    found = q.mmc(rates, 1.0)
    assert np.isfinite(found.wait_s).tolist() == [True, False, False]
    assert q.mmc_states(rates, 1.0, 1).stable.tolist() == [True, False, False]
    assert np.isfinite(q.mmc_states(rates, 1.0, 2).mean).tolist() == [True, True, False]
    assert np.isinf(q.mmc_states(2.0, 1.0, 1).quantile(0.5))


@given(st.floats(0.05, 0.98), st.integers(1, 40), st.floats(0.01, 100))
def test_the_chain_is_the_formula(load: float, servers: int, service_s: float) -> None:
    rate = load * servers / service_s
    found, chain = q.mmc(rate, service_s, servers), q.mmc_states(rate, service_s, servers)
    assert float(chain.mean) == pytest.approx(float(found.in_system), rel=1e-8)
    assert float(chain.queued) == pytest.approx(float(found.queued), rel=1e-8)
    assert float(chain.probability.sum() + chain.beyond) == pytest.approx(1)
    assert float(chain.expect(np.minimum(np.arange(servers + 1), servers))) == pytest.approx(load * servers, rel=1e-9)


@given(st.floats(0.05, 0.95), st.floats(0.5, 0.999))
def test_quantiles_of_a_geometric_number(load: float, share: float) -> None:
    exact = np.ceil(np.log(1 - share) / np.log(load) - 1 - 1e-9)
    for states in (1, 2, 7):
        found = float(q.mmc_states(load, 1.0, 1).quantile(share)) if states == 1 else float(_sliced(load, states).quantile(share))
        assert abs(found - max(exact, 0)) <= (1 if abs(load ** (found + 1) - (1 - share)) < 1e-9 else 0)


def _sliced(load: float, states: int) -> q.States:
    return q.birth_death([load] * states, [1.0] * states, repeats=True)


@given(st.floats(0.05, 5), st.integers(1, 30))
def test_a_lost_request_is_the_last_state(offered: float, servers: int) -> None:
    assert float(q.mmck(offered, 1.0, servers, servers).probability[-1]) == pytest.approx(float(q.erlang_b(offered, servers)), rel=1e-9)


def simulated_waits(rng: np.random.Generator, rate: float, services: np.ndarray, servers: int) -> np.ndarray:
    """Waits of requests served in order of arrival."""
    arrivals = np.cumsum(rng.exponential(1 / rate, services.size))
    free, waits = [0.0] * servers, np.empty(services.size)
    for i, (at, takes) in enumerate(zip(arrivals.tolist(), services.tolist(), strict=True)):
        soonest = min(range(servers), key=free.__getitem__)
        start = max(at, free[soonest])
        waits[i], free[soonest] = start - at, start + takes
    return waits[services.size // 10 :]


CASES = {
    "M/M/1": (0.7, 1, lambda rng, n: rng.exponential(1.0, n), q.mmc(0.7, 1.0).wait_s),
    "M/D/1": (0.7, 1, lambda rng, n: np.ones(n), q.mg1_wait_s(0.7, 0.7, 1.0)),
    "M/M/4": (2.8, 4, lambda rng, n: rng.exponential(1.0, n), q.mmc(2.8, 1.0, 4).wait_s),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_simulated_queue_agrees(name: str) -> None:
    """The mean of 10 runs lies within a 99.9 % interval (t of 9 degrees: 4.781)."""
    rate, servers, law, exact = CASES[name]
    means = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        means.append(simulated_waits(rng, rate, law(rng, 20_000), servers).mean())
    assert abs(np.mean(means) - float(exact)) < 4.781 * np.std(means, ddof=1) / np.sqrt(10)
