"""Requests through engines, step by step: arrivals in, a row per request out. Knows step times, schedulers, routes; no part and no model.

The same seed gives the same rows. A step is never split over requests: see `machine` for how it stays exact without touching each of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferplan.errors import SpecError, Unsupported
from inferplan.serving.batches import Batches
from inferplan.serving.gaps import longest_gaps
from inferplan.serving.machine import Book, Machine
from inferplan.serving.policies import Receiving
from inferplan.serving.requests import Requests
from inferplan.serving.routing import Pending, Replica, Router, together
from inferplan.serving.schedule import Schedule
from inferplan.serving.served import Series, Served
from inferplan.serving.speculative import Acceptance
from inferplan.serving.steps import Steps

MOVES = 4096
"""Moves between two looks at the progress."""
MAX_REPLICAS = 4096
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Prefilling:
    """The prefilling side of a disaggregated deployment, and the way of a cache to the decoding side.

    transfer_s, per_token_s
        seconds until a prompt's cache has reached the other side: fixed, and per token of it.
    """

    schedule: Schedule
    steps: Steps
    replicas: int = 1
    transfer_s: float = 0.0
    per_token_s: float = 0.0


def simulate(
    requests: Requests | Any, steps: Steps, schedule: Schedule | None = None, *, seed: int = 0, replicas: int = 1,
    routing: str = "round-robin", prefilling: Prefilling | None = None, acceptance: Acceptance | None = None, series: bool = False,
    progress: Progress | None = None,
) -> Served:  # fmt: skip
    """What becomes of requests (columns of `Requests`, or a table with them) on engines under a scheduler.

    An interrupt from the keyboard ends it early: what is served by then is kept, and `partial` says so. Raises DoesNotFit for a
    request that the cache can never hold.

    >>> from inferplan.serving.steps import LinearSteps
    >>> found = simulate(Requests.of([0.0, 0.0], [10, 10], [3, 1]), LinearSteps(1.0))
    >>> found.ttft_s.tolist(), found.e2e_s.tolist()
    ([1.0, 1.0], [3.0, 1.0])
    """
    asked = requests if isinstance(requests, Requests) else table_of(requests)
    chosen = schedule or Schedule()
    _check(asked, chosen, replicas, prefilling, acceptance)
    run = _Run(asked, steps, chosen, seed, replicas, routing, prefilling, acceptance, series, progress)
    partial = False
    try:
        run.go()
    except KeyboardInterrupt:
        partial = True
    return run.served(partial)


def table_of(table: Any) -> Requests:
    """Requests of a table with the columns arrival_s, input_tokens, output_tokens, and maybe max_tokens; raises SpecError."""
    missing = [name for name in ("arrival_s", "input_tokens", "output_tokens") if name not in table]
    if missing:
        raise SpecError(f"lacks the column '{missing[0]}'", field="requests")
    columns = (table["arrival_s"], table["input_tokens"], table["output_tokens"])
    return Requests.of(*columns, max_tokens=table.get("max_tokens"))


def _check(asked: Requests, schedule: Schedule, replicas: int, prefilling: Prefilling | None, acceptance: Acceptance | None) -> None:
    for count in (replicas, prefilling.replicas if prefilling else 1):
        if not 1 <= count <= MAX_REPLICAS:
            raise SpecError(f"must be from 1 to {MAX_REPLICAS:,}", field="replicas", value=count)
    if (acceptance.draft if acceptance else 0) != schedule.draft_tokens:
        raise SpecError("must equal the draft of the acceptance", field="draft_tokens", value=schedule.draft_tokens)
    if (prefilling or acceptance) and (schedule.batching or schedule.prefix_caching):
        raise Unsupported("pools for prefill, and drafts, are simulated for continuous batching without prefix caching only")
    if prefilling and schedule.scheduler not in ("vllm-v1", "vllm-v0-chunked"):
        raise Unsupported(f"the decoding side is simulated as vLLM runs it, not as {schedule.scheduler}")
    if schedule.prefix_caching and asked.prefixes is None:
        raise SpecError("finds nothing: the requests have no prefixes (hash_ids in a trace, or a shared prefix)", field="prefix caching")
    if schedule.prefix_caching and asked.hash_tokens % schedule.block:
        rule = f"must be a multiple of the block of {schedule.block} tokens"
        raise SpecError(rule, field="tokens of a prefix hash", value=asked.hash_tokens)
    longest, prompt = asked.longest, int(asked.input_tokens.max())
    schedule.refuse(longest, prompt, int((asked.input_tokens + asked.max_tokens).max()))
    if prefilling:
        prefilling.schedule.refuse(prompt, prompt, prompt + 1)


def _column(values: NDArray[Any], kind: str) -> array[Any]:
    found = array(kind)
    found.frombytes(np.ascontiguousarray(values, dtype={"d": np.float64, "i": np.int32, "q": np.int64}[kind]).data.cast("B"))
    return found


class _Run:
    """One simulation under way."""

    def __init__(
        self, asked: Requests, steps: Steps, schedule: Schedule, seed: int, replicas: int, routing: str, prefilling: Prefilling | None,
        acceptance: Acceptance | None, series: bool, progress: Progress | None,
    ) -> None:  # fmt: skip
        self.asked, self.schedule, self.prefilling, self.progress = asked, schedule, prefilling, progress
        self.book = _book(asked)
        if acceptance is not None and acceptance.draft:
            self.speculate(acceptance, seed)
        self.pools: list[list[Any]] = [[schedule.machine(self.book, steps) for _ in range(replicas)]]
        if prefilling is not None:
            self.disaggregate(prefilling, replicas, steps)
        self.routers = [Router(routing, len(pool), self.book) for pool in self.pools]
        self.place = np.full(len(asked), -1, dtype=np.int32)
        self.machines = [m for pool in self.pools for m in pool]
        self.sent, self.pending = 0, Pending()
        if series:
            for machine in self.pools[-1]:
                machine.series = (array("d"), array("q"), array("d"))

    def speculate(self, acceptance: Acceptance, seed: int) -> None:
        """Draw how many steps each request takes."""
        more = self.asked.output_tokens - 1
        rounds = acceptance.rounds(more, np.random.default_rng([seed, 7]))
        self.book.rounds = _column(rounds, "q")
        self.book.pace = _column(more / np.maximum(rounds, 1), "d")

    def disaggregate(self, prefilling: Prefilling, replicas: int, steps: Steps) -> None:
        """A pool that makes first tokens before the pool that decodes."""
        self.front = _book(self.asked)
        self.front.output = self.front.most = array("q", [1]) * len(self.asked)
        s = self.schedule
        decoding = [
            Receiving(self.book, steps, block=s.block, blocks=s.blocks, budget=s.max_num_batched_tokens, slots=s.slots,
                      whole=s.whole_prompt, watermark=int(s.watermark * s.blocks))
            for _ in range(replicas)
        ]  # fmt: skip
        first = [prefilling.schedule.machine(self.front, prefilling.steps) for _ in range(prefilling.replicas)]
        self.pools = [first, decoding]

    def go(self) -> None:
        """Run to the end."""
        asked = self.asked
        if len(self.pools) == 1 and (len(self.machines) == 1 or (self.routers[0].rule == "round-robin" and not asked.clients)):
            self.apart()
            return
        for place, machine in enumerate(self.machines):
            machine.on_end = self.hook(place)
        count = min(asked.clients, len(asked)) if asked.clients else len(asked)
        for i in range(count):
            self.pending.push(float(self.book.arrival[i]), i)
        self.sent = count
        together(self.machines, self.pending, self.deliver, self.tick)

    def apart(self) -> None:
        """Replicas that need not look at each other."""
        size, asked = len(self.machines), self.asked
        count = min(asked.clients, len(asked)) if asked.clients else len(asked)
        for r, machine in enumerate(self.machines):
            machine.offer_all(range(r, count, size))
            self.place[r::size] = r
            if asked.clients:
                machine.on_end = self.next_of_client
            self.sent = count
            while machine.advance(moves=MOVES):
                self.tick()

    def next_of_client(self, i: int, now: float) -> None:
        """A client of a closed loop sends its next request to the only machine."""
        if self.sent < self.book.count:
            self.book.arrival[self.sent] = now + self.asked.think_s
            self.machines[0].offer(self.sent)
            self.sent += 1

    def hook(self, place: int) -> Callable[[int, float], None]:
        """What happens when a replica has served a request: the other side gets its cache, or a client sends the next one."""
        front = len(self.pools) == 2 and place < len(self.pools[0])
        router, own = (self.routers[0], place) if front or len(self.pools) == 1 else (self.routers[1], place - len(self.pools[0]))

        def ended(i: int, now: float) -> None:
            router.leaves(own, now)
            if front and self.book.output[i] > 1:
                assert self.prefilling is not None
                self.book.first[i] = now
                arrives = now + self.prefilling.transfer_s + self.prefilling.per_token_s * self.book.input[i]
                self.book.arrival[i] = arrives
                self.pending.push(arrives, i, 1)
                return
            if front:
                self.book.first[i] = self.book.finish[i] = now
            if self.asked.clients and self.sent < self.book.count:
                self.pending.push(now + self.asked.think_s, self.sent)
                self.sent += 1

        return ended

    def deliver(self, at: float, i: int, pool: int) -> Replica:
        """Offer a request to a replica of a pool."""
        book = self.front if len(self.pools) == 2 and pool == 0 else self.book
        book.arrival[i] = at
        place = self.routers[pool].choose(i, at)
        machine: Replica = self.pools[pool][place]
        machine.offer(i)
        self.place[i] = place
        return machine

    def tick(self) -> None:
        """Tell how many requests are served."""
        if self.progress is not None:
            under_way = sum(len(m.inbox) - m.at + len(m.waiting) + m.n + (m.part != -1) for m in self.pools[-1])
            self.progress(self.sent - under_way - len(self.pending.heap), self.book.count)

    def served(self, partial: bool) -> Served:
        """The rows."""
        book = self.book
        front = self.front if len(self.pools) == 2 else book
        finish, gap = np.frombuffer(book.finish), np.frombuffer(book.gap)
        for machine in self.machines:
            if isinstance(machine, Machine) and machine.book is book:
                _count_gaps(gap, machine)
        last = finish
        if self.schedule.batching and book.last:
            last = finish.copy()
            last[list(book.last)] = list(book.last.values())
        done = finish >= 0
        arrival = np.frombuffer(front.arrival)
        times = (np.frombuffer(front.begun), np.frombuffer(book.first), last, finish, gap)
        begun, first, last, finish, gap = times if done.all() else (np.where(done, c, np.nan) for c in times)
        asked = replace(self.asked, arrival_s=arrival if done.all() or not self.asked.clients else np.where(done, arrival, np.nan))
        kept = [Series.of(m.series) for m in self.pools[-1] if m.series is not None]
        slot_steps = sum(m.slot_steps for m in self.machines if isinstance(m, Batches))
        counts = (np.frombuffer(book.preempted, dtype=np.int32), np.frombuffer(book.cached, dtype=np.int32), self.place)
        return Served(asked, begun, first, last, finish, gap, *counts, partial, self.schedule, kept, slot_steps)


def _count_gaps(gap: NDArray[np.float64], machine: Machine) -> None:
    """Let the longest gaps of requests count those that a machine has made."""
    np.maximum(gap, longest_gaps(machine.gaps, np.frombuffer(machine.since, np.int32), np.frombuffer(machine.until, np.int32)), out=gap)
    if machine.broken:
        i, since, until = np.array(machine.broken, dtype=np.int32).T
        np.maximum.at(gap, i, longest_gaps(machine.gaps, since, until))


def _book(asked: Requests) -> Book:
    outputs = _column(asked.output_tokens, "i")
    most = outputs if asked.max_tokens is asked.output_tokens else _column(asked.max_tokens, "i")
    book = Book(_column(np.nan_to_num(asked.arrival_s), "d"), _column(asked.input_tokens, "i"), outputs, most)
    book.prefixes, book.unit = asked.prefixes, asked.hash_tokens
    return book
