"""Which replica takes a request, and how replicas run side by side in order of time. Knows no step and no scheduler."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Protocol

from inferplan.errors import SpecError
from inferplan.serving.inbox import NEVER
from inferplan.serving.machine import NONE, Book

ROUTES = ("round-robin", "least-requests", "prefix-aware")
SPREAD = 8
"""Requests by which a replica may be ahead of the least loaded one and still be chosen for its prefix."""


class Replica(Protocol):
    """A machine as routes see it."""

    now: float
    next_at: float
    n: int
    part: int
    at: int
    waiting: deque[int]
    inbox: array[int]

    def offer(self, i: int) -> None:
        """Another request."""
        ...

    def advance(self, until: float = ..., moves: int = ...) -> bool:
        """Moves that begin before a time."""
        ...


class Router:
    """A rule with its state: requests on their way at each replica, and who has seen which prefix last."""

    def __init__(self, rule: str, replicas: int, book: Book) -> None:
        if rule not in ROUTES:
            raise SpecError(f"is no rule; there are {', '.join(ROUTES)}", field="routing", value=rule)
        if rule == "prefix-aware" and book.prefixes is None:
            raise SpecError("needs requests with prefixes: hash_ids in the trace, or a shared prefix", field="routing", value=rule)
        self.rule, self.book, self.load, self.turn = rule, book, [0] * replicas, -1
        self.seen: dict[int, int] = {}
        self.leaving: list[tuple[float, int]] = []

    def choose(self, i: int, now: float) -> int:
        """The replica for a request that arrives now; it counts as loaded from then on."""
        while self.leaving and self.leaving[0][0] <= now:
            self.load[heappop(self.leaving)[1]] -= 1
        if self.rule == "round-robin":
            self.turn = chosen = (self.turn + 1) % len(self.load)
        else:
            chosen = self.load.index(min(self.load))
            if self.rule == "prefix-aware":
                chosen = self._with_prefix(i, chosen)
        self.load[chosen] += 1
        return chosen

    def _with_prefix(self, i: int, least: int) -> int:
        """The replica that saw the longest head of the prompt last, unless it is far more loaded than the least."""
        assert self.book.prefixes is not None
        chain = self.book.prefixes[i]
        chosen = next((self.seen[h] for h in reversed(chain) if h in self.seen), least)
        if self.load[chosen] > self.load[least] + SPREAD:
            chosen = least
        self.seen.update((h, chosen) for h in chain)
        return chosen

    def leaves(self, replica: int, at: float) -> None:
        """A request leaves a replica at a time that may lie ahead."""
        heappush(self.leaving, (at, replica))


class Pending:
    """Requests on their way to a pool of replicas, by time."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, int]] = []

    def push(self, at: float, i: int, pool: int = 0) -> None:
        """A request that reaches a pool at a time."""
        heappush(self.heap, (at, i, pool))

    @property
    def due(self) -> float:
        """When the next one does."""
        return self.heap[0][0] if self.heap else NEVER


def together(
    machines: Sequence[Replica], pending: Pending, deliver: Callable[[float, int, int], Replica], tick: Callable[[], None]
) -> None:
    """Run replicas side by side; `deliver(time, request, pool)` offers a request to one of them and says to which.

    The replica whose clock is furthest behind moves, up to the next arrival or the clock of the next one. A step in progress is never
    interrupted, so whatever a finished request causes elsewhere finds that replica at the step it was in.
    """
    stuck: set[int] = set()
    while True:
        tick()
        clocks = sorted((clock(m), place) for place, m in enumerate(machines) if place not in stuck)
        first, place = clocks[0] if clocks else (NEVER, NONE)
        if first < pending.due:
            bound = min(pending.due, clocks[1][0] if len(clocks) > 1 else NEVER)
            machine = machines[place]
            machine.advance(max(bound, math.nextafter(first, NEVER)))
            if clock(machine) == first:
                stuck.add(place)
        elif pending.heap:
            at, i, pool = heappop(pending.heap)
            chosen = deliver(at, i, pool)
            stuck = {p for p in stuck if machines[p] is not chosen}
        elif stuck:
            for p in sorted(stuck):
                machines[p].advance(NEVER, 1)
            stuck.clear()
        else:
            return


def clock(machine: Replica) -> float:
    """When a replica's next move can begin; never where it has nothing to do."""
    if machine.n or machine.waiting or machine.part != NONE:
        return machine.now
    return max(machine.now, machine.next_at)
