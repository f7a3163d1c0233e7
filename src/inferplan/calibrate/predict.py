"""The prediction of a case: counts, memory and times of the deployment and load that its row names. Knows no measured value.

What rows have in common, such as step tables of a deployment, is worked out once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from inferplan.calibrate.banded import Banded
from inferplan.calibrate.cases import Case
from inferplan.calibrate.deployed import Deployment, launch_of, model_of, precision_of, served_precision
from inferplan.calibrate.loads import Batch, Loop, load_of, share_of
from inferplan.calibrate.pools import Pools, Side, pool_times, pools_of
from inferplan.calibrate.times import TIMES, Times, batch_times, loop_times
from inferplan.deployment import Estimate
from inferplan.engine.cache_bytes import kv_bytes_per_token, kv_bytes_per_token_unbounded, state_bytes_per_sequence
from inferplan.errors import DoesNotFit, InferplanError, Unsupported
from inferplan.memory.capacity import Capacity
from inferplan.memory.case_columns import capacity_of
from inferplan.memory.weights import weight_bytes
from inferplan.roofline.efficiency import Efficiency
from inferplan.serving.protocol import case_steps
from inferplan.serving.schedule import Schedule, graph_sizes
from inferplan.serving.steps import TableSteps
from inferplan.specs.counts import counts

LEAST_SLOTS, LEAST_TOKENS = 64, 2048


def _capacity(case: Case) -> Capacity:
    launch_of(case)
    return capacity_of(model_of(case).model, served_precision(case), case.row)


COUNTED: dict[str, Callable[[Case], Any]] = {
    "params": lambda case: counts(model_of(case).model).total,
    "active_params": lambda case: counts(model_of(case).model).active,
    "kv_bytes_per_token": lambda case: kv_bytes_per_token(model_of(case).model, precision_of(case)),
    "kv_bytes_per_token_unbounded": lambda case: kv_bytes_per_token_unbounded(model_of(case).model, precision_of(case)),
    "state_bytes_per_sequence": lambda case: state_bytes_per_sequence(model_of(case).model, precision_of(case)),
    "weight_bytes": lambda case: weight_bytes(model_of(case).model, precision_of(case)),
    "weight_bytes_per_gpu": lambda case: _capacity(case).weight_bytes_per_gpu,
    "kv_cache_bytes_per_gpu": lambda case: _capacity(case).reserved_cache_bytes,
    "kv_cache_tokens": lambda case: _capacity(case).kv_cache_tokens,
    "max_concurrency": lambda case: _capacity(case).max_concurrency,
}
"""Quantities that are counted, from the model alone or from what an engine reserves: they have no error band."""
PREDICTED = (*COUNTED, *TIMES)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A value, and the band in which four of five measurements are expected; a counted value is its own band, None: no band is known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(slots=True)
class Predictor:
    """Predicts cases under one calibration of times, and keeps what later rows may need again.

    >>> from pathlib import Path
    >>> Predictor().predict(Case("a", "params", 7e9, {"model": "7b"}, Path())).value
    6738415616.0
    """

    efficiency: Efficiency = field(default_factory=Efficiency.default)
    _estimates: dict[Any, Any] = field(default_factory=dict)
    _tables: dict[Any, TableSteps] = field(default_factory=dict)
    _times: dict[Any, tuple[Times, Banded] | InferplanError] = field(default_factory=dict)

    def predict(self, case: Case) -> Prediction:
        """The prediction of a case; raises the errors of what its row asks for, Unsupported for an unknown quantity."""
        if case.quantity in COUNTED:
            value = _finite(float(COUNTED[case.quantity](case)), case.quantity)
            return Prediction(value, value, value)
        if case.quantity not in TIMES:
            raise Unsupported(f"the quantity '{case.quantity}' is not predicted; those that are: {', '.join(PREDICTED)}")
        share = share_of(case.text("statistic"))
        times, bands = self.times(case)
        value = _finite(float(times.value(case.quantity, share)), case.quantity)
        return Prediction(value, *(bands.ends(times, case.quantity, share, value) or (None, None)))

    def times(self, case: Case) -> tuple[Times, Banded]:
        """Times of the load and deployment that a row names, and their bands, as they were found at its first row."""
        key = Deployment.of(case), load_of(case), pools_of(case)
        found = self._times.get(key)
        if found is None:
            try:
                found = self._new_times(case, *key)
            except InferplanError as e:
                found = e
            self._times[key] = found
        if isinstance(found, InferplanError):
            raise found.with_traceback(None)
        return found

    def _new_times(self, case: Case, deployment: Deployment, load: Loop | Batch, pools: Pools | None) -> tuple[Times, Banded]:
        if pools is not None:
            return self._pool_times(case, deployment, load, pools), Banded(None, load)  # too few such runs to know a band
        estimated = self._estimates.get(deployment)
        if estimated is None:
            estimated = self._estimates[deployment] = deployment.estimator(case, self.efficiency)
        if isinstance(load, Batch):
            try:
                found = batch_times(estimated, load)
            except DoesNotFit:
                queue = load.queued()
                if queue is None:
                    raise
                load = queue
            else:
                return found, Banded.of(found.estimate, load)
        if not model_of(case).model.generates:
            raise Unsupported(f"{model_of(case).model.title} makes no tokens one by one: only a static batch of its passes is predicted")
        # passes are asked for at one point only, since step tables give the times
        e = estimated(input_tokens=load.input_tokens, output_tokens=load.output_tokens, context=load.input_tokens, batch=load.clients or 1)

        def tables(schedule: Schedule, longest: int) -> TableSteps:
            return self._steps(deployment, e, schedule, longest)

        return loop_times(e, load, deployment.scheduler_settings, tables), Banded.of(e, load)

    def _pool_times(self, case: Case, deployment: Deployment, load: Loop | Batch, pools: Pools) -> Times:
        if isinstance(load, Batch):
            raise Unsupported("pools are simulated for a closed loop: name concurrency")
        lengths = {"input_tokens": load.input_tokens, "output_tokens": load.output_tokens, "context": load.input_tokens}
        sides = []
        for pool in (pools.prefill, pools.decode):
            own = replace(deployment, parallel=pool.parallel)
            e = own.estimator(case, self.efficiency)(**lengths)
            sides.append(Side(pool, e, partial(self._steps, own, e)))
        return pool_times(sides[0], sides[1], load)

    def _steps(self, deployment: Deployment, e: Estimate, schedule: Schedule, longest: int) -> TableSteps:
        """Step times for so many slots and tokens, from a table that reaches to the next power of two: rows of all sizes share a few."""
        slots, tokens = _reach(schedule.slots, LEAST_SLOTS), _reach(longest, LEAST_TOKENS)
        key = deployment, slots, tokens, schedule.max_num_batched_tokens
        if key not in self._tables:
            self._tables[key] = case_steps(e, schedule.but(max_num_seqs=slots), tokens)
        return replace(self._tables[key], graphs=graph_sizes(e.capacity), known={})


def _finite(value: float, quantity: str) -> float:
    if not np.isfinite(value):
        raise Unsupported(f"{quantity} has no finite value here")
    return value


def _reach(count: int, least: int) -> int:
    return max(least, 1 << (count - 1).bit_length())
