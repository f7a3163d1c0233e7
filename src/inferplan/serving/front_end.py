"""What host and front end take for prompts beside the engine's steps, request by request. Knows no step and no scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from inferplan.deployment import Estimate
from inferplan.serving.served import Served

if TYPE_CHECKING:
    from inferplan.serving.simulate import Prefilling


def front_end_s(
    steps_s: NDArray[np.float64], each_s: NDArray[np.float64], clients: int, front_ends: int = 1, apart_s: float = 0.0
) -> NDArray[np.float64]:
    """Seconds that a front end adds to times to first token `steps_s` of the engine's steps, `each_s` per prompt alone.

    Prompts pass it one after the other, but for `apart_s` of it, which they spend side by side. The `clients` of a closed loop start
    together: while the front end still reads the last prompts the engine works at the first, so that a prompt waits for the slower of the
    two queues, and once for the other. Later prompts, and arrivals of an open loop (`clients` 0), come alone. Ranks that read prompts apart
    have a front end each. The first axis may be of runs.

    >>> front_end_s(np.full(3, 1.0), np.full(3, 0.5), 0).tolist(), front_end_s(np.full(3, 1.0), np.full(3, 0.5), 3).tolist()
    ([0.5, 0.5, 0.5], [0.5, 1.0, 1.5])
    >>> front_end_s(np.array([1.0, 2.0, 3.0]), np.full(3, 0.5), 3).tolist()  # the engine is the slower: its queue hides the other
    [0.5, 0.5, 0.5]
    """
    waited = apart_s + np.cumsum(each_s - apart_s, axis=-1) / front_ends
    first = np.arange(each_s.shape[-1]) < clients
    idle = np.nanmin(np.where(first, steps_s, np.inf), axis=-1, keepdims=True)
    return np.where(first, np.fmax(each_s, waited - (steps_s - idle)), each_s)


def front_ends(e: Estimate, replicas: int = 1, prefilling: Prefilling | None = None) -> int:
    """How many read prompts side by side: one for each replica; where others prefill, one for each attention rank of those."""
    return replicas if prefilling is None else prefilling.replicas * int(np.asarray(e.setting.parallel.dp))


def with_front_end(served: Served, e: Estimate, front_ends: int = 1) -> Served:
    """A run with what host and front end of a deployment take for each of its prompts, as clients measure it.

    >>> import inferplan as ip
    >>> from inferplan.serving.requests import Requests
    >>> from inferplan.serving.simulate import simulate
    >>> from inferplan.serving.steps import LinearSteps
    >>> e = ip.estimate(ip.model("llama-3.1-8b"), ip.hardware("h100"), ip.precision("fp8"))
    >>> run = simulate(Requests.of([0.0], 8, 8), LinearSteps(0.01))
    >>> bool(with_front_end(run, e).ttft_s[0] == run.ttft_s[0] + e.front_end_s(8))
    True
    """
    asked = served.requests
    each = np.broadcast_to(np.asarray(e.front_end_s(asked.input_tokens), dtype=float), (len(asked),))
    return served.with_front(front_end_s(served.ttft_s, each, asked.clients or 0, front_ends, e.apart_s))
