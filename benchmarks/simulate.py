"""How fast the simulator is: requests per second of one core on a trace, linear in its length, memory of a million requests.

    python benchmarks/simulate.py [trace.csv]

Without a trace, requests are drawn with the mean lengths and rate of the Azure 2023 conversation trace. Times are of the process, not
of the wall. Growth with length is measured at a load that the engine keeps up with, as a mean over a million requests for each length:
the best of many short runs would be set against one long run, which meets every slow moment of the machine; and under an overload the
queue, preemptions and so the steps per request grow with the length, whatever a step costs. That one is printed beside it.
"""

import resource
import subprocess
import sys
import time

from inferplan.engine.step import Setting
from inferplan.memory.capacity import capacity
from inferplan.names import hardware, model, precision
from inferplan.roofline.efficiency import Efficiency
from inferplan.serving.arrivals import poisson
from inferplan.serving.lengths import Lengths
from inferplan.serving.requests import Requests
from inferplan.serving.schedule import Schedule, graph_sizes
from inferplan.serving.simulate import simulate
from inferplan.serving.steps import linear_steps, table_steps
from inferplan.serving.traces import read_trace

RATE, STEADY = 5.5, 4.0
"""Requests per second: of the trace, which is slightly more than the engine serves; and what it keeps up with."""


def drawn(count: int, rate: float = RATE) -> Requests:
    prompts, outputs = Lengths.lognormal(1155, 3800, 14050), Lengths.lognormal(211, 600, 1000)
    return Requests.drawn(poisson(rate), prompts, outputs, count)


def setting(longest: int):
    m, h, p = model("llama-2-7b"), hardware("a100"), precision("bf16")
    held = capacity(m, h, p, engine="vllm", max_model_len=longest)
    schedule = Schedule.of(held)
    table = table_steps(
        m, h, p, Setting(efficiency=Efficiency.default()), most_decodes=schedule.slots, most_context=longest,
        most_tokens=schedule.max_num_batched_tokens, graphs=graph_sizes(held),
    )  # fmt: skip
    return schedule, table


def best(asked: Requests, steps, schedule: Schedule, runs: int) -> tuple[float, object]:
    least = float("inf")
    for _ in range(runs):
        start = time.process_time()
        found = simulate(asked, steps, schedule)
        least = min(least, time.process_time() - start)
    return least, found


def mean_us(asked: Requests, steps, schedule: Schedule, total: int) -> float:
    """Microseconds per request, over as many runs as make `total` requests."""
    runs = total // len(asked)
    start = time.process_time()
    for _ in range(runs):
        simulate(asked, steps, schedule)
    return 1e6 * (time.process_time() - start) / (runs * len(asked))


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--million":
        schedule, table = setting(16384)
        simulate(drawn(int(sys.argv[2])), linear_steps(table), schedule)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    asked = read_trace(sys.argv[1]).requests if len(sys.argv) > 1 else drawn(20_000)
    schedule, table = setting(max(asked.longest, 16384))
    print(f"{len(asked):,} requests, {schedule.scheduler}, cache of {schedule.kv_tokens:,} tokens")
    for name, steps in (("linear", linear_steps(table)), ("table", table)):
        seconds, found = best(asked, steps, schedule, 7)
        figures = f"{int(found.preempted.sum()):,} preemptions, mean TTFT {found.ttft_s.mean():.2f} s"
        print(f"{name:7s} {len(asked) / seconds:10,.0f} requests/s, {figures}")
    for rate, load in ((STEADY, "which the engine keeps up with"), (RATE, "an overload")):
        each = [mean_us(drawn(count, rate), linear_steps(table), schedule, 10**6) for count in (10_000, 100_000, 1_000_000)]
        print(f"{rate} requests/s, {load}: {' '.join(f'{us:.2f}' for us in each)} us each of 1e4 1e5 1e6, x{each[-1] / each[0]:.2f}")
    peak = subprocess.run([sys.executable, __file__, "--million", "1000000"], capture_output=True, text=True, check=True).stdout
    print(f"peak memory of 1,000,000: {float(peak):.0f} MiB")


if __name__ == "__main__":
    main()
