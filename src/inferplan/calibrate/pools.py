"""Rows of a case file about separate pools of workers, one that reads prompts and one that decodes, and their times. Knows no file.

Requests are simulated one by one: a prompt is read by the worker whose turn it is, its cache crosses to a worker of the other pool, where
it waits for a slot and blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferplan.calibrate.cases import Case
from inferplan.calibrate.loads import Loop
from inferplan.calibrate.times import RunTimes, StepTables, no_steady_state, run_times
from inferplan.deployment import Estimate
from inferplan.errors import SpecError, Unsupported
from inferplan.memory.case_columns import split_of
from inferplan.roofline.comm import tiers
from inferplan.serving.requests import closed_loop
from inferplan.serving.schedule import Schedule
from inferplan.serving.simulate import MAX_REPLICAS, Prefilling, simulate
from inferplan.specs.parallel import Parallel

DISAGGREGATED = "disaggregated"
SPLIT = ("tp", "pp", "dp", "ep")
SCHEDULER = "vllm-v1"


@dataclass(frozen=True, slots=True)
class Pool:
    """So many workers alike, each over the devices of its split."""

    workers: int
    parallel: Parallel

    @property
    def gpus(self) -> int:
        """Devices of one worker."""
        return int(np.asarray(self.parallel.gpus))


@dataclass(frozen=True, slots=True)
class Pools:
    """The two pools of a row."""

    prefill: Pool
    decode: Pool


def pools_of(case: Case) -> Pools | None:
    """The pools that a row names by `prefill_workers`, `prefill_tp` ... `decode_ep`; None for a row of workers that do both.

    Raises Unsupported where a row says that it has pools and not how many workers, SpecError for numbers outside their range, or where
    the columns of one pool alone are filled.

    >>> from pathlib import Path
    >>> row = {"prefill_workers": "2", "prefill_tp": "4", "decode_workers": "1", "decode_dp": "8", "decode_ep": "8"}
    >>> pools = pools_of(Case("a", "tpot_s", 0.01, row, Path()))
    >>> pools.prefill.workers, pools.prefill.gpus, pools.decode.gpus
    (2, 4, 8)
    """
    named = [side for side in ("prefill", "decode") if any(case.text(f"{side}_{name}") for name in ("workers", *SPLIT))]
    if not named:
        if case.text("protocol") == DISAGGREGATED:
            raise Unsupported("the row names no pools: prefill_workers and decode_workers, and how each worker is split")
        return None
    return Pools(_pool(case, "prefill"), _pool(case, "decode"))


def _pool(case: Case, side: str) -> Pool:
    workers = case.count(f"{side}_workers", 1, MAX_REPLICAS)
    if workers is None:
        raise SpecError("must be given where a row names pools", field=f"{side}_workers")
    return Pool(workers, split_of({name: str(case.count(f"{side}_{name}", 1, 10**4) or 1) for name in SPLIT}))


@dataclass(frozen=True, slots=True)
class Side:
    """One pool ready to run: an estimate of one of its workers, and step times under a scheduler for requests of so many tokens."""

    pool: Pool
    estimate: Estimate
    tables: StepTables


def pool_times(prefill: Side, decode: Side, load: Loop) -> RunTimes:
    """Times of a closed loop through two pools, in the mean with what the front end takes; both schedule as vLLM does, in chunks.

    Raises Unsupported for arrivals at a rate and shared prefixes, DoesNotFit where an engine does not start.
    """
    if load.clients is None or load.cached:
        raise Unsupported("pools are simulated for a closed loop without cached tokens: name concurrency")
    asked = closed_loop(load.clients, load.input_tokens, load.output_tokens, prompts=load.requests, ratio=load.ratio)
    longest = load.input_tokens + load.output_tokens
    reading, writing = (Schedule.of(s.estimate.capacity, SCHEDULER).but(max_num_seqs=load.clients, chunked=True) for s in (prefill, decode))
    latency_s, per_token_s = transfer(prefill, decode)
    front = Prefilling(reading, prefill.tables(reading, longest), prefill.pool.workers, latency_s, per_token_s)
    served = simulate(asked, decode.tables(writing, longest), writing, replicas=decode.pool.workers, prefilling=front)
    ranks = int(np.asarray(prefill.pool.parallel.dp))  # each schedules requests of its own
    return run_times(served, prefill.estimate, no_steady_state, prefill.pool.workers * ranks)


def transfer(prefill: Side, decode: Side) -> tuple[float, float]:
    """Seconds until a cache has crossed: a start-up, and per token.

    The devices of the smaller worker send at once, over the scale-up link where it joins all devices of both pools, else over the network.
    """
    setting, hardware = prefill.estimate.setting, prefill.estimate.hardware
    near, far = tiers(hardware, network=setting.network)
    devices = sum(side.pool.workers * side.pool.gpus for side in (prefill, decode))
    way = near if devices <= (near.domain or np.inf) else far
    rate = setting.efficiency.link(way.name, way.kind)
    lanes = min(prefill.pool.gpus, decode.pool.gpus)
    return rate.base, decode.estimate.kv_bytes_per_token / (way.bandwidth * rate.eff * lanes)
