"""Times of a load on a deployment: one static batch, a simulated run, or the steady state. Knows no file and no measured value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inferplan.calibrate.loads import Batch, Loop
from inferplan.deployment import Estimate
from inferplan.errors import DoesNotFit, Unsupported
from inferplan.serving.arrivals import Gamma
from inferplan.serving.batch_times import Workload
from inferplan.serving.continuous import Continuous, continuous
from inferplan.serving.front_end import with_front_end
from inferplan.serving.lengths import Lengths
from inferplan.serving.protocol import simulate_case
from inferplan.serving.requests import Requests, closed_loop
from inferplan.serving.schedule import Schedule
from inferplan.serving.served import Served
from inferplan.serving.simulate import simulate
from inferplan.serving.steps import TableSteps
from inferplan.specs.engine import SLOTTED

TIMES = (
    "tpot_s", "ttft_s", "itl_s", "e2e_s", "decode_tokens_per_s", "prefill_tokens_per_s", "output_tokens_per_s", "total_tokens_per_s",
    "requests_per_s",
)  # fmt: skip
RATES = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
StepTables = Callable[[Schedule, int], TableSteps]


class Times(Protocol):
    """What is predicted of a load."""

    def value(self, quantity: str, share: float | None) -> float:
        """A quantity's mean, or the value that a share of requests does not exceed; raises Unsupported for what is not predicted."""
        ...


def _missing(name: str, quantity: str) -> Unsupported:
    return Unsupported(f"the row names no {name}, without which {quantity} cannot be told")


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Times of one static batch, in which all requests are alike: every statistic is the same.

    They are those of the engine's steps alone, as tables and offline benchmarks count them: no client, no front end.
    """

    estimate: Estimate
    load: Batch

    def value(self, quantity: str, share: float | None) -> float:
        """As `Times` says."""
        e, load = self.estimate, self.load
        if quantity in ("tpot_s", "itl_s", "decode_tokens_per_s"):
            return 1 / self._gap_s(quantity) if quantity == "decode_tokens_per_s" else self._gap_s(quantity)
        if quantity == "output_tokens_per_s" and load.context is not None:
            return load.batch / e.tpot_s
        if load.input_tokens is None:
            raise _missing("input_tokens", quantity)
        if quantity == "ttft_s":
            return e.prefill_s
        if quantity == "prefill_tokens_per_s":
            return load.batch * (load.input_tokens - load.cached) / e.prefill_s
        if load.output_tokens is None:
            raise _missing("output_tokens", quantity)
        per_request = {"requests_per_s": 1, "output_tokens_per_s": load.output_tokens}
        tokens = per_request.get(quantity, load.input_tokens + load.output_tokens)
        whole = e.prefill_s + (e.load.output_tokens - 1) * e.tpot_s
        return whole if quantity == "e2e_s" else load.batch * tokens / whole

    def _gap_s(self, quantity: str) -> float:
        if self.load.output_tokens == 1 and self.load.context is None:
            raise Unsupported(f"an output of one token has no {quantity}")
        if not self.estimate.model.generates:
            raise Unsupported(f"{self.estimate.model.title} makes no tokens one by one, so it has no {quantity}")
        return self.estimate.tpot_s


def batch_times(estimated: Callable[..., Estimate], load: Batch) -> BatchTimes:
    """Times of a static batch. Decode steps are looked at over the run of the output, or at `context`, or at the end of the prompt.

    Raises Unsupported where neither lengths nor a context are named, DoesNotFit where the engine does not hold the batch.
    """
    at = load.input_tokens or load.context
    if at is None:
        raise Unsupported("the row names neither input_tokens nor context")
    context = load.context if load.context or load.output_tokens else at
    e = estimated(input_tokens=at, output_tokens=load.output_tokens or 1, batch=load.batch, cached=load.cached, context=context)
    if not e.fits:
        held = f"the cache holds {e.max_sequences:,.4g} requests of {e.load.tokens:,} tokens at once, and the batch is {load.batch:,}"
        raise DoesNotFit(e.capacity.reason() or held)
    return BatchTimes(e, load)


@dataclass(frozen=True, slots=True, eq=False)
class RunTimes:
    """Times of a simulated run: samples over requests, and what the whole run yields per second."""

    samples: dict[str, NDArray[np.float64]]
    values: dict[str, float]
    steady: Callable[[], Continuous]

    def value(self, quantity: str, share: float | None) -> float:
        """As `Times` says; percentiles of single gaps are those of the steady state."""
        if quantity == "itl_s" and share is not None:
            return float(self.steady().itl_quantile_s(share))
        found = self.samples.get(quantity)
        if found is None:
            if quantity not in self.values:
                raise Unsupported(f"{quantity} is predicted of one static batch, not of requests that come and go")
            return self.values[quantity]
        if not found.size:
            raise Unsupported(f"outputs of one token have no {quantity}")
        return float(found.mean() if share is None else np.quantile(found, share))


def no_steady_state() -> Continuous:
    """Raises Unsupported: of requests through separate pools only runs are simulated."""
    raise Unsupported("percentiles of single gaps are those of a steady state, which is not predicted of separate pools")


def run_times(served: Served, e: Estimate, steady: Callable[[], Continuous], front_ends: int = 1) -> RunTimes:
    """Times of a run with what the engine's front end takes. A run that an interrupt cut short is none: the interrupt goes on."""
    if served.partial:
        raise KeyboardInterrupt
    asked, tpot = served.requests, served.tpot_s[np.isfinite(served.tpot_s)]
    seen = with_front_end(served, e, front_ends)
    span = float(served.finish_s.max() - asked.arrival_s.min())
    gaps = int(np.maximum(asked.output_tokens - 1, 0).sum())
    values = {
        "output_tokens_per_s": float(asked.output_tokens.sum()) / span,
        "total_tokens_per_s": asked.total_tokens / span,
        "requests_per_s": len(asked) / span,
    }
    if gaps:
        values["itl_s"] = float((served.last_s - served.first_s).sum()) / gaps
    samples = {"ttft_s": seen.ttft_s, "e2e_s": seen.e2e_s, "tpot_s": tpot, "decode_tokens_per_s": 1 / tpot}
    return RunTimes(samples, values, steady)


@dataclass(frozen=True, slots=True, eq=False)
class SteadyTimes:
    """Times of the steady state under arrivals at a rate.

    tokens
        of a request, prompt and output.
    front_s
        mean seconds that a prompt spends in the engine's front end, others before it included.
    """

    found: Continuous
    tokens: float
    front_s: float

    def value(self, quantity: str, share: float | None) -> float:
        """As `Times` says."""
        found = self.found
        if not bool(found.stable):
            raise Unsupported(f"more arrives than can be served (load {float(found.load):.3g}), so times depend on how many requests come")
        if quantity == "prefill_tokens_per_s":
            raise Unsupported(f"{quantity} is predicted of one static batch, not of requests that come and go")
        if quantity in RATES or share is None:
            return self._mean(quantity)
        if quantity == "decode_tokens_per_s":
            return 1 / float(found.tpot_quantile_s(1 - share))
        quantile = {
            "ttft_s": found.ttft_quantile_s, "tpot_s": found.tpot_quantile_s, "itl_s": found.itl_quantile_s, "e2e_s": found.e2e_quantile_s
        }  # fmt: skip
        return float(quantile[quantity](share)) + self._front_s(quantity)

    def _front_s(self, quantity: str) -> float:
        return self.front_s if quantity in ("ttft_s", "e2e_s") else 0.0

    def _mean(self, quantity: str) -> float:
        found = self.found
        if quantity == "total_tokens_per_s":
            return float(found.requests_per_s) * self.tokens
        if quantity == "decode_tokens_per_s":
            return 1 / float(found.tpot_s)
        return float(getattr(found, "tpot_s" if quantity == "itl_s" else quantity)) + self._front_s(quantity)


def loop_times(e: Estimate, load: Loop, settings: Mapping[str, int | None], tables: StepTables) -> Times:
    """Times of requests that come and go: simulated, or in steady state for arrivals whose number is not told.

    `settings` are those of the scheduler that differ from the engine's own; the steady state knows none of them.

    Raises DoesNotFit where the engine does not start or the cache cannot hold a request.
    """
    lengths = [Lengths.uniform(max(1, int(n * load.ratio)), n) for n in (load.input_tokens, load.output_tokens)]
    workload = Workload(lengths[0], lengths[1], load.cached / load.input_tokens)

    @cache
    def steady() -> Continuous:
        most = load.clients if e.engine.policy in SLOTTED else None
        return continuous(e, workload, rate_per_s=load.rate_per_s, clients=load.clients, max_num_seqs=most)

    if load.clients is None and load.requests is None:
        if load.cv != 1:
            raise Unsupported("the steady state is that of Poisson arrivals: with another arrival_cv the row must name requests")
        return SteadyTimes(steady(), workload.input.mean + workload.output.mean, float(e.front_end_s(workload.input.mean)))
    schedule = Schedule.of(e.capacity).but(**settings)
    stages = int(np.max(e.setting.parallel.pp))
    if stages > 1:
        return _staged(e, load, schedule, tables, stages, steady)
    return run_times(_closed(e, load, schedule, tables) if load.clients else _open(e, load, schedule, lengths, tables), e, steady)


def _staged(
    e: Estimate, load: Loop, schedule: Schedule, tables: StepTables, stages: int, steady: Callable[[], Continuous]
) -> RunTimes:  # fmt: skip
    """Times under pipeline stages: as many batches in flight as stages.

    Each has its share of requests, slots and cache, and each of its steps is as long as a pass through all stages.
    """
    shared = replace(
        load, clients=load.clients and max(1, load.clients // stages), rate_per_s=load.rate_per_s and load.rate_per_s / stages,
        requests=load.requests and max(1, load.requests // stages),
    )  # fmt: skip
    narrow = schedule.but(max_num_seqs=max(1, schedule.max_num_seqs // stages), kv_tokens=max(1, schedule.kv_tokens // stages))
    lengths = [Lengths.uniform(max(1, int(n * load.ratio)), n) for n in (load.input_tokens, load.output_tokens)]
    served = _closed(e, shared, narrow, tables) if load.clients else _open(e, shared, narrow, lengths, tables)
    found = run_times(served, e, steady)
    at_once = min(stages, load.clients or stages)
    return replace(found, values={name: value * (at_once if name in RATES else 1) for name, value in found.values.items()})


def _closed(e: Estimate, load: Loop, schedule: Schedule, tables: StepTables) -> Served:
    assert load.clients is not None
    narrow = schedule.but(max_num_seqs=max(1, min(schedule.max_num_seqs, load.clients)))
    steps = tables(narrow, load.input_tokens + load.output_tokens)
    if not load.cached:
        found = simulate_case(
            e, concurrency=load.clients, input_tokens=load.input_tokens, output_tokens=load.output_tokens, prompts=load.requests,
            ratio=load.ratio, schedule=schedule, steps=steps,
        )  # fmt: skip
        return found.served
    asked = closed_loop(load.clients, load.input_tokens, load.output_tokens, prompts=load.requests, ratio=load.ratio)
    return simulate(*_sharing(asked, load, steps, narrow))


def _open(e: Estimate, load: Loop, schedule: Schedule, lengths: list[Lengths], tables: StepTables) -> Served:
    assert load.rate_per_s is not None
    assert load.requests is not None
    asked = Requests.drawn(Gamma(load.rate_per_s, load.cv), lengths[0], lengths[1], load.requests)
    steps = tables(schedule, load.input_tokens + load.output_tokens)
    return simulate(*(_sharing(asked, load, steps, schedule) if load.cached else (asked, steps, schedule)))


def _sharing(asked: Requests, load: Loop, steps: TableSteps, schedule: Schedule) -> tuple[Requests, TableSteps, Schedule]:
    """Requests with a common head of `cached` tokens, and a scheduler that finds it again."""
    return asked.sharing(load.cached, block=schedule.block), steps, replace(schedule, prefix_caching=True)
