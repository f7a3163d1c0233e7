"""What host and front end take for prompts beside the engine's steps, request by request. Knows no step and no scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from inferplan.deployment import Estimate
from inferplan.formula import formula
from inferplan.ops import Numeric
from inferplan.serving.requests import Requests
from inferplan.serving.served import Served

if TYPE_CHECKING:
    from inferplan.serving.simulate import Prefilling


def front_end_s(asked: Requests, each_s: NDArray[np.float64], front_ends: int = 1, apart_s: float = 0.0) -> NDArray[np.float64]:
    """Seconds that prompts take in front of the engine's steps, `each_s` per prompt alone, `apart_s` of it side by side.

    In a closed loop clients that start together wait for each other once, and later prompts come alone (as `front_end_wait_s` has it in
    the mean); arrivals of an open loop come alone. Ranks that read prompts apart have a front end each.

    >>> front_end_s(Requests.of([0.0, 0.0, 5.0], 8, 8), np.full(3, 0.5)).tolist()
    [0.5, 0.5, 0.5]
    """
    waited = np.maximum(apart_s + np.cumsum(each_s - apart_s) / front_ends, each_s)
    return np.where(np.arange(each_s.size) < (asked.clients or 0), waited, each_s)


@formula(
    "apart_s + (each_s - apart_s) * ((clients + 1) / (2 * prompts_per_client) + 1 - 1 / prompts_per_client)",
    unit="s",
    ref="one server, deterministic service: clients that start together wait for each other once, later prompts come alone",
)
def front_end_wait_s(each_s: Numeric, clients: Numeric, prompts_per_client: Numeric, apart_s: Numeric = 0.0) -> Numeric:
    """Mean seconds that prompts of a closed loop spend in a front end, `each_s` per prompt alone.

    It takes them one after the other, but for `apart_s` of it, which they spend side by side.

    >>> round(front_end_wait_s(0.02, 64, 10), 3), round(front_end_wait_s(0.12, 64, 10, 0.1), 3)
    (0.083, 0.183)
    """
    return apart_s + (each_s - apart_s) * ((clients + 1) / (2 * prompts_per_client) + 1 - 1 / prompts_per_client)


def front_ends_of(e: Estimate, replicas: int = 1, prefilling: Prefilling | None = None) -> int:
    """How many read prompts side by side: one for each replica; where others prefill, one for each attention rank of those."""
    return replicas if prefilling is None else prefilling.replicas * int(np.asarray(e.setting.parallel.dp))


def with_front_end(served: Served, e: Estimate, front_ends: int = 1) -> Served:
    """A run with what host and front end of a deployment take for each of its prompts, as clients measure it.

    >>> import inferplan as ip
    >>> from inferplan.serving.simulate import simulate
    >>> from inferplan.serving.steps import LinearSteps
    >>> e = ip.estimate(ip.model("llama-3.1-8b"), ip.hardware("h100"), ip.precision("fp8"))
    >>> run = simulate(Requests.of([0.0], 8, 8), LinearSteps(0.01))
    >>> bool(with_front_end(run, e).ttft_s[0] == run.ttft_s[0] + e.front_end_s(8))
    True
    """
    asked = served.requests
    each = np.broadcast_to(np.asarray(e.front_end_s(asked.input_tokens), dtype=float), (len(asked),))
    return served.with_front(front_end_s(asked, each, front_ends, e.apart_s))
