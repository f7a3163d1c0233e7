"""The protocol of a public benchmark, request by request: a closed loop on a deployment, and its times. Knows no screen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferplan.deployment import Estimate
from inferplan.serving.front_end import front_end_wait_s
from inferplan.serving.requests import closed_loop
from inferplan.serving.schedule import Schedule, graph_sizes
from inferplan.serving.served import Served
from inferplan.serving.simulate import simulate
from inferplan.serving.steps import TableSteps, table_steps


@dataclass(frozen=True, slots=True)
class CaseTimes:
    """What a benchmark prints of a run, in seconds: TTFT and TPOT as mean and median over requests, and the rate of output tokens."""

    ttft_mean_s: float
    ttft_median_s: float
    tpot_mean_s: float
    tpot_median_s: float
    output_tokens_per_s: float
    served: Served


def case_steps(e: Estimate, schedule: Schedule, longest: int) -> TableSteps:
    """The step times of a deployment under a scheduler, for requests of at most so many tokens."""
    return table_steps(
        e.model, e.hardware, e.precision, e.setting, most_decodes=schedule.slots, most_context=longest,
        most_tokens=schedule.max_num_batched_tokens, graphs=graph_sizes(e.capacity),
    )  # fmt: skip


def simulate_case(
    e: Estimate, *, concurrency: int, input_tokens: int, output_tokens: int, prompts: int | None = None, ratio: float = 0.8, seed: int = 0,
    schedule: Schedule | None = None, steps: TableSteps | None = None,
) -> CaseTimes:  # fmt: skip
    """The protocol of InferenceMAX on a deployment: `concurrency` clients that start together, ten prompts each unless stated.

    Lengths are uniform from `ratio` to 1 of nominal. The scheduler is the engine's own, with as many slots as there are clients, as the
    benchmark starts its servers. Times to first token hold what the front end takes: in the mean with the opening burst. Raises
    DoesNotFit where the engine does not start or the cache cannot hold a request.

    >>> import inferplan as ip
    >>> e = ip.estimate(ip.model("llama-3.1-8b"), ip.hardware("h100"), ip.precision("fp8"), input_tokens=1024, output_tokens=1024)
    >>> found = simulate_case(e, concurrency=8, input_tokens=1024, output_tokens=64)
    >>> 0 < found.tpot_mean_s < 0.02 < found.ttft_mean_s + 0.02
    True
    """
    own = schedule or Schedule.of(e.capacity)
    chosen = own.but(max_num_seqs=max(1, min(own.max_num_seqs, concurrency)))
    asked = closed_loop(concurrency, input_tokens, output_tokens, prompts=prompts, ratio=ratio, seed=seed)
    served = simulate(asked, steps or case_steps(e, chosen, input_tokens + output_tokens), chosen)
    ttft, tpot = served.ttft_s, served.tpot_s
    known = tpot[np.isfinite(tpot)]
    middle = (float(known.mean()), float(np.median(known))) if known.size else (float("nan"), float("nan"))
    rate = float(asked.output_tokens.sum() / served.finish_s.max())
    each = float(e.front_end_s(float(np.mean(asked.input_tokens))))
    wait = float(front_end_wait_s(each, concurrency, len(ttft) / concurrency, e.apart_s))
    return CaseTimes(float(ttft.mean()) + wait, float(np.median(ttft)) + each, *middle, rate, served)
