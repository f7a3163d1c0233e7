"""Queues in closed form: waits, percentiles and numbers in system from rates and service times. Knows no model, part or token.

Arguments broadcast: scalars or arrays in, arrays out. A queue that is asked for more than it can serve has infinite waits, never an
error. `load` is the utilisation rho of all servers together, `..._cv2` a squared coefficient of variation. Means are exact for the
named queue; the approximations say for which loads they hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferplan.formula import formula
from inferplan.ops import Numeric

KLEINROCK = "Kleinrock, Queueing Systems I, 1975"


def over_idle(numerator: Numeric, load: Numeric) -> Numeric:
    """A numerator over 1 - load; infinite from load 1 on."""
    idle = 1 - np.asarray(load, dtype=float)
    found: Numeric = np.where(idle > 0, numerator / np.where(idle > 0, idle, 1.0), np.inf)
    return found


@formula("rate_per_s * service_s / servers", unit="1", ref=f"{KLEINROCK}: rho")
def load_of(rate_per_s: Numeric, service_s: Numeric, servers: Numeric = 1) -> Numeric:
    """The share of the servers' time that arrivals ask for; stable below 1.

    >>> load_of(4.0, 1.0, 5)
    0.8
    """
    return rate_per_s * service_s / servers


@formula("rate_per_s * time_s", unit="requests", ref="Little 1961: L = lambda W, for any stable system")
def in_system(rate_per_s: Numeric, time_s: Numeric) -> Numeric:
    """Requests within something in the mean, from how often they enter it and how long they stay.

    >>> in_system(2.0, 1.2)
    2.4
    """
    return rate_per_s * time_s


@formula("where(load < 1, service_s / (1 - load + (load == 1)), inf)", unit="s", ref=f"{KLEINROCK}: M/M/1; Poisson arrivals, load < 1")
def mm1_time_s(load: Numeric, service_s: Numeric) -> Numeric:
    """Mean time in an M/M/1 queue, service included.

    >>> round(float(mm1_time_s(0.8, 1.0)), 9)
    5.0
    """
    return over_idle(service_s, load)


@formula(
    "where(load < 1, waiting * service_s / servers / (1 - load + (load == 1)), inf)",
    unit="s",
    ref="Erlang 1917: M/M/c; Poisson arrivals, exponential service, load < 1",
)
def mmc_wait_s(load: Numeric, service_s: Numeric, servers: Numeric, waiting: Numeric) -> Numeric:
    """Mean wait in an M/M/c queue in which a share `waiting` of requests has to wait (Erlang C).

    >>> round(float(mmc_wait_s(0.8, 1.0, 5, erlang_c(4.0, 5))), 8)
    0.55411255
    """
    return over_idle(waiting * service_s / servers, load)


@formula("offered * before / (server + offered * before)", unit="1", ref="Erlang B recurrence; exact, stable for any size")
def erlang_b_step(offered: Numeric, before: Numeric, server: Numeric) -> Numeric:
    """The share of requests lost by `server` servers, from the share lost by one fewer.

    >>> erlang_b_step(0.7, 1.0, 1)
    0.4117647058823529
    """
    return offered * before / (server + offered * before)


def erlang_b(offered: Numeric, servers: Numeric) -> np.ndarray:
    """The share of requests lost where nobody can wait (M/G/c/c): `offered` is rate times service time. Exact for any law of service.

    >>> round(float(erlang_b(7.0, 10)), 8)
    0.07874088
    """
    load, count = np.broadcast_arrays(np.asarray(offered, dtype=float), np.asarray(servers))
    found = np.ones(load.shape)
    for server in range(1, int(np.max(count, initial=0)) + 1):
        found = np.where(server <= count, erlang_b_step(load, found, server), found)
    return found


def erlang_c(offered: Numeric, servers: Numeric) -> np.ndarray:
    """The share of requests that wait in an M/M/c queue: C = B / (1 - rho (1 - B)); 1 from load 1 on.

    >>> round(float(erlang_c(4.0, 5)), 8)
    0.55411255
    """
    lost, load = erlang_b(offered, servers), np.asarray(offered, dtype=float) / servers
    return np.where(load < 1, lost / (1 - np.minimum(load, 1) * (1 - lost)), 1.0)


@formula(
    "where(load < 1, waiting * exp(-t_s * servers / service_s * maximum(1 - load, 0)), 1)",
    unit="1",
    ref="M/M/c: the wait, where there is one, is exponential; load < 1",
)
def wait_tail(t_s: Numeric, load: Numeric, service_s: Numeric, servers: Numeric, waiting: Numeric) -> Numeric:
    """The share of requests that wait longer than `t_s` in an M/M/c queue.

    >>> round(float(wait_tail(1.0, 0.8, 1.0, 5, erlang_c(4.0, 5))), 8)
    0.20384662
    """
    rest = np.maximum(1 - np.asarray(load, dtype=float), 0)
    found: Numeric = np.where(np.asarray(load) < 1, waiting * np.exp(-np.asarray(t_s, dtype=float) * servers / service_s * rest), 1.0)
    return found


@formula(
    "where(load < 1, (1 + service_cv2) / 2 * maximum(log(waiting / left), 0) * service_s / servers / (1 - load + (load == 1)), inf)",
    unit="s",
    ref="M/M/c: exact for service_cv2 1; else Kimura's factor for M/G/c, good in heavy traffic (load from about 0.7)",
)
def wait_quantile_s(
    load: Numeric, service_s: Numeric, servers: Numeric, waiting: Numeric, left: Numeric, service_cv2: Numeric = 1
) -> Numeric:
    """The wait that a share `left` of requests exceeds: 0.01 gives the 99th percentile.

    >>> round(float(wait_quantile_s(0.8, 1.0, 5, erlang_c(4.0, 5), 0.01)), 5)
    4.01478
    """
    tail = np.maximum(np.log(np.asarray(waiting, dtype=float) / left), 0)
    return over_idle((1 + service_cv2) / 2 * tail * service_s / servers, load)


@formula(
    "where(load < 1, rate_per_s * second_moment / 2 / (1 - load + (load == 1)), inf)",
    unit="s",
    ref="Pollaczek 1930, Khinchine 1932: M/G/1, first come first served; Poisson arrivals, load < 1",
)
def mg1_wait_s(rate_per_s: Numeric, load: Numeric, second_moment: Numeric) -> Numeric:
    """Mean wait in an M/G/1 queue from the second moment of the service time.

    >>> round(float(mg1_wait_s(0.8, 0.8, 1.0)), 9), round(float(mg1_wait_s(0.8, 0.8, 5.0)), 9)
    (2.0, 10.0)
    """
    return over_idle(rate_per_s * second_moment / 2, load)


@formula("second_moment / (2 * mean)", unit="s", ref="renewal theory: the mean rest of an interval that is looked into at random")
def residual_s(mean: Numeric, second_moment: Numeric) -> Numeric:
    """The mean rest of what runs when somebody arrives: of an engine's step, or the vacation that an M/G/1 wait grows by.

    >>> residual_s(0.5, 0.25)
    0.25
    """
    return second_moment / (2 * mean)


@formula(
    "where(load < 1, load * service_s * (arrival_cv2 + service_cv2) / 2 / (1 - load + (load == 1)), inf)",
    unit="s",
    ref="Kingman 1961: G/G/1; an upper bound that is close in heavy traffic, exact for M/G/1",
)
def kingman_wait_s(load: Numeric, service_s: Numeric, arrival_cv2: Numeric, service_cv2: Numeric) -> Numeric:
    """Mean wait in a G/G/1 queue, about.

    >>> round(float(kingman_wait_s(0.8, 1.0, 4.0, 1.0)), 9)
    10.0
    """
    return over_idle(load * service_s * (arrival_cv2 + service_cv2) / 2, load)


@formula("mmc_wait * (arrival_cv2 + service_cv2) / 2", unit="s", ref="Allen 1978, Cunneen: G/G/c; close in heavy traffic, exact for M/M/c")
def allen_cunneen_wait_s(mmc_wait: Numeric, arrival_cv2: Numeric, service_cv2: Numeric) -> Numeric:
    """Mean wait in a G/G/c queue from that of the M/M/c queue of the same load, about.

    >>> round(float(allen_cunneen_wait_s(0.5541125541, 2.0, 0.5)), 8)
    0.69264069
    """
    return mmc_wait * (arrival_cv2 + service_cv2) / 2


@formula(
    "where(load < 1, (arrival_cv2 + service_cv2) / 2 * load ** (sqrt(2 * (servers + 1)) - 1) * service_s"
    " / servers / (1 - load + (load == 1)), inf)",
    unit="s",
    ref="Sakasegawa 1977: G/G/c without Erlang C; a few per cent high at load 0.8, better above",
)
def sakasegawa_wait_s(load: Numeric, service_s: Numeric, servers: Numeric, arrival_cv2: Numeric, service_cv2: Numeric) -> Numeric:
    """Mean wait in a G/G/c queue, about.

    >>> round(float(sakasegawa_wait_s(0.8, 1.0, 5, 1.0, 1.0)), 8)
    0.57703729
    """
    power = np.asarray(load, dtype=float) ** (np.sqrt(2 * (np.asarray(servers) + 1)) - 1)
    return over_idle((arrival_cv2 + service_cv2) / 2 * power * service_s / servers, load)


@formula(
    "minimum((1 + abs(1 - load) * (servers - 1) * (sqrt(4 + 5 * servers) - 2) / (16 * load * servers)) / 2, servers / (servers + 1))",
    unit="1",
    ref="Cosmetatos 1975: M/D/c over M/M/c, within 2 % at loads from 0.3; at most its limit in light traffic",
)
def fixed_service_factor(load: Numeric, servers: Numeric) -> Numeric:
    """The wait where every service takes the same time, over that of exponential ones: a half for one server.

    >>> float(fixed_service_factor(0.8, 1)), round(float(fixed_service_factor(0.675, 16)), 3)
    (0.5, 0.601)
    """
    count = np.asarray(servers, dtype=float)
    more = np.abs(1 - np.asarray(load, dtype=float)) * (count - 1) * (np.sqrt(4 + 5 * count) - 2) / (16 * load * count)
    found: Numeric = np.minimum((1 + more) / 2, count / (count + 1))
    return found


@formula(
    "where(service_cv2 < 1, service_cv2 + (1 - service_cv2) * fixed, (1 + service_cv2) / 2)",
    unit="1",
    ref="Page 1982: between fixed and exponential service; above those Allen-Cunneen",
)
def service_factor(service_cv2: Numeric, fixed: Numeric) -> Numeric:
    """The wait in an M/G/c queue over that of M/M/c, from the factor of fixed service.

    >>> float(service_factor(0.0, 0.6)), float(service_factor(1.0, 0.6)), float(service_factor(3.0, 0.6))
    (0.6, 1.0, 2.0)
    """
    cv2 = np.asarray(service_cv2, dtype=float)
    return np.where(cv2 < 1, cv2 + (1 - cv2) * fixed, (1 + cv2) / 2)


@formula(
    "where(load < 1, work_s / (1 - load + (load == 1)), inf)",
    unit="s",
    ref="Sakata, Noguchi, Oizumi 1969: M/G/1 processor sharing; insensitive to the law of the work",
)
def sharing_time_s(load: Numeric, work_s: Numeric) -> Numeric:
    """Mean time of a request of `work_s` where all requests in the system share one server evenly.

    >>> round(float(sharing_time_s(0.8, 3.0)), 9)
    15.0
    """
    return over_idle(work_s, load)


def harmonic(count: Numeric) -> np.ndarray:
    """H_n = 1 + 1/2 + ... + 1/n: the mean of the longest of n exponential times over their mean. For whole numbers from 0.

    >>> round(float(harmonic(8)), 5), round(float(harmonic(32)), 5)
    (2.71786, 4.0585)
    """
    whole = np.asarray(count, dtype=int)
    sums = np.append(0.0, np.cumsum(1 / np.arange(1, int(np.max(whole, initial=0)) + 1)))
    return np.asarray(sums[whole])


@dataclass(frozen=True, slots=True)
class Queue:
    """What an open queue does: shares and mean times of the shape of what went in."""

    rate_per_s: Numeric
    load: Numeric
    service_s: Numeric
    servers: Numeric
    waiting: Numeric
    wait_s: Numeric

    @property
    def time_s(self) -> Numeric:
        """Mean time from arrival to departure."""
        return self.wait_s + self.service_s

    @property
    def queued(self) -> Numeric:
        """Requests that wait in the mean."""
        return in_system(self.rate_per_s, self.wait_s)

    @property
    def in_system(self) -> Numeric:
        """Requests that wait or are served in the mean."""
        return in_system(self.rate_per_s, self.time_s)

    def wait_quantile_s(self, q: Numeric, service_cv2: Numeric = 1) -> Numeric:
        """The wait that a share q of requests does not exceed."""
        return wait_quantile_s(self.load, self.service_s, self.servers, self.waiting, 1 - np.asarray(q, dtype=float), service_cv2)


def mmc(rate_per_s: Numeric, service_s: Numeric, servers: Numeric = 1) -> Queue:
    """The M/M/c queue; with one server M/M/1. Poisson arrivals, exponential service, an unbounded queue; stable below load 1.

    >>> found = mmc(2.0, 1 / 1.5, 2)
    >>> round(float(found.waiting), 8), round(float(found.time_s), 8), round(float(found.in_system), 8)
    (0.53333333, 1.2, 2.4)
    """
    load = load_of(rate_per_s, service_s, servers)
    waiting = erlang_c(rate_per_s * np.asarray(service_s, dtype=float), servers)
    return Queue(rate_per_s, load, service_s, servers, waiting, mmc_wait_s(load, service_s, servers, waiting))


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """How often so many requests are in a system.

    probability
        of 0, 1, ... N requests, shape (..., N + 1); zero where the system is not stable.
    ratio
        by which the probabilities fall beyond N, shape (...,); 0 where there is nothing beyond.
    """

    probability: np.ndarray
    ratio: np.ndarray

    @property
    def stable(self) -> np.ndarray:
        """Where the number in the system does not grow without bound."""
        return np.asarray(self.ratio < 1)

    @property
    def beyond(self) -> np.ndarray:
        """The probability of more than N."""
        return np.asarray(self.probability[..., -1] * over_idle(self.ratio, np.where(self.stable, self.ratio, 0.0)))

    @property
    def mean(self) -> np.ndarray:
        """The mean number in the system; infinite where it is not stable."""
        counts = np.arange(self.probability.shape[-1])
        whole = self.probability @ counts + self.beyond * counts[-1] + self.queued
        return np.where(self.stable, whole, np.inf)

    @property
    def queued(self) -> np.ndarray:
        """The mean number beyond N; infinite where it is not stable."""
        return np.where(self.stable, over_idle(self.beyond, np.where(self.stable, self.ratio, 0.0)), np.inf)

    def expect(self, values: Numeric) -> np.ndarray:
        """The mean of a value that each state has, shape (..., N + 1); beyond N that of N holds. Zero where it is not stable."""
        per_state = np.broadcast_to(np.asarray(values, dtype=float), self.probability.shape)
        return np.asarray((self.probability * per_state).sum(axis=-1) + self.beyond * per_state[..., -1])

    def quantile(self, q: float) -> np.ndarray:
        """The least number that a share q of time does not exceed; infinite where it is not stable."""
        sums = np.cumsum(self.probability, axis=-1)
        inside = (sums < q - 1e-12).sum(axis=-1)
        last = self.probability.shape[-1] - 1
        with np.errstate(divide="ignore", invalid="ignore"):
            further = np.ceil(np.log((1 - q) / self.beyond) / np.log(self.ratio))
        found = np.where(inside <= last, inside, last + np.where(np.isfinite(further), np.maximum(further, 0), 0))
        return np.where(self.stable, found, np.inf)


def birth_death(births: Numeric, deaths: Numeric, *, repeats: bool = False) -> States:
    """The stationary law of a birth-death process with state-dependent rates.

    births, deaths
        rates per second from n to n + 1 and back, for n = 0 ... N - 1, shapes (..., N) that broadcast. A birth rate of zero ends the chain.
    repeats
        whether the last pair of rates holds for all numbers beyond N too; else N is the most.

    Exact for exponential service, and for any law of service where requests share the server evenly (a symmetric queue).

    >>> lost = birth_death([3.0] * 4, [2.0, 4.0, 4.0, 4.0])  # M/M/2/4
    >>> round(float(lost.probability[-1]), 8), round(float(lost.mean), 8)
    (0.12404288, 1.72741194)
    """
    up, down = np.broadcast_arrays(np.asarray(births, dtype=float), np.asarray(deaths, dtype=float))
    ratio = up[..., -1] / down[..., -1] if repeats else np.zeros(up.shape[:-1])
    with np.errstate(divide="ignore"):
        logs = np.cumsum(np.log(up) - np.log(down), axis=-1)
    logs = np.concatenate([np.zeros((*logs.shape[:-1], 1)), logs], axis=-1)
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    stable = ratio < 1
    tail = weights[..., -1] * over_idle(ratio, np.where(stable, ratio, 0.0))
    whole = weights.sum(axis=-1) + np.where(stable, tail, 0.0)
    return States(np.where(stable[..., None], weights / whole[..., None], 0.0), np.asarray(ratio))


def mmck(rate_per_s: Numeric, service_s: Numeric, servers: Numeric, most: Numeric) -> States:
    """The M/M/c/K queue, in which at most `most` requests are in the system and others are lost; shape (..., max(most) + 1).

    The share lost is the probability of `most`; those served are the rate times what is not lost.

    >>> round(float(mmck(1.0, 1.0, 1, 3).mean), 9)
    1.5
    """
    rate, service, count, room = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (rate_per_s, service_s, servers, most)))
    n = np.arange(int(room.max()))
    births = np.where(n < room[..., None], rate[..., None], 0.0)
    return birth_death(births, np.minimum(n + 1, count[..., None]) / service[..., None])


def mmc_states(rate_per_s: Numeric, service_s: Numeric, servers: int) -> States:
    """The number in an M/M/c queue, which is also that of capacitated processor sharing (R-PS: all share, as if by c servers).

    >>> round(float(mmc_states(10.0, 1 / 12, 3).probability[0]), 5)
    0.43213
    """
    rate, service = np.broadcast_arrays(np.asarray(rate_per_s, dtype=float), np.asarray(service_s, dtype=float))
    return birth_death(rate[..., None], np.arange(1, servers + 1) / service[..., None], repeats=True)


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed system of clients: how often requests are served, how long they take, how many are at each station (..., stations)."""

    throughput_per_s: Numeric
    time_s: Numeric
    at_station: np.ndarray


def mva(demands_s: Numeric, clients: Numeric, think_s: Numeric = 0.0) -> Closed:
    """A closed network of single servers by exact mean value analysis (Reiser, Lavenberg 1980): R = D (1 + Q before), X = N / (Z + sum R).

    demands_s
        seconds a request needs at each station, shape (..., stations); exponential, or of any law where a station shares evenly.
    clients, think_s
        whole numbers of clients from 1, and seconds between an answer and a client's next request, shapes (...,).

    >>> found = mva([0.05, 0.08, 0.1], 20, 1.0)
    >>> round(float(found.throughput_per_s), 8), round(float(found.time_s), 8)
    (9.59152381, 1.08517441)
    """
    demand = np.asarray(demands_s, dtype=float)
    count, think, _ = np.broadcast_arrays(np.asarray(clients), np.asarray(think_s, dtype=float), demand[..., 0])
    queued = np.zeros((*count.shape, demand.shape[-1]))
    rate, time = np.zeros(count.shape), np.zeros(count.shape)
    for n in range(1, int(count.max()) + 1):
        stay = demand * (1 + queued)
        goes_on = n <= count
        time = np.where(goes_on, stay.sum(axis=-1), time)
        rate = np.where(goes_on, n / (think + time), rate)
        queued = np.where(goes_on[..., None], rate[..., None] * stay, queued)
    return Closed(rate, time, queued)


def machine_repair(service_s: Numeric, clients: Numeric, think_s: Numeric) -> Closed:
    """Clients that think and one exponential server (M/M/1//N).

    >>> found = machine_repair(1.0, 10, 9.0)
    >>> round(float(found.throughput_per_s), 8), round(float(found.time_s), 8)
    (0.83203677, 3.01869955)
    """
    return mva(np.asarray(service_s, dtype=float)[..., None], clients, think_s)


@formula("clients / time_s", unit="1/s", ref="Little 1961, in a closed loop without think time")
def closed_rate_per_s(clients: Numeric, time_s: Numeric) -> Numeric:
    """Requests served per second where `clients` are always in the system, each for `time_s` at that number.

    >>> round(closed_rate_per_s(8, 200 * (0.01 + 0.0005 * 8)), 6)
    2.857143
    """
    return clients / time_s


def closed_station(times_s: Numeric, clients: Numeric, think_s: Numeric = 0.0) -> Closed:
    """One station whose speed depends on how many it holds, and clients that think in between; exact for even sharing.

    times_s
        seconds in which a request is served while n are there, for n = 1 ... N, shape (N,), with N at least the most clients.
    clients, think_s
        as in `mva`.

    >>> times = 200 * (0.01 + 0.0005 * np.arange(1, 33))
    >>> found = closed_station(times, np.array([1, 8, 32]), 1.0)
    >>> found.throughput_per_s.round(6).tolist()
    [0.322581, 2.221306, 5.672254]
    """
    times = np.asarray(times_s, dtype=float)
    count, think = np.broadcast_arrays(np.asarray(clients), np.asarray(think_s, dtype=float))
    n = np.arange(int(count.max()))
    births = np.maximum(count[..., None] - n, 0) / np.where(think > 0, think, 1.0)[..., None]
    states = birth_death(births, (n + 1) / times[: n.size])
    served = np.append(0.0, (n + 1) / times[: n.size])
    rate = np.where(think > 0, states.expect(served), served[count])
    return Closed(rate, count / rate - think, np.where(think > 0, states.mean, count)[..., None])
