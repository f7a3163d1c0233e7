"""One serving engine as a machine: decodes as aggregates, stretches of them in one jump. Knows no policy, no route and no screen.

All decodes advance together, so a step needs only their number, the tokens they hold, how many stand at each place within a block
and the step at which each ends. Steps without prompt tokens run in one jump up to the next event. What a request holds follows from
the step at which it ends: its tokens at the end less the steps left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from math import ceil, sqrt

from inferplan.serving.blocks import PrefixCache
from inferplan.serving.inbox import NEVER, Inbox
from inferplan.serving.steps import ENDLESS, Steps

NONE = -1
"""No request."""
STALE = 8
"""Times the slots that the list of running requests may grow to before those that have left are taken out of it."""
TINY = 1e-6
"""Tokens that a sum of shares of steps may be off by."""


class Book:
    """What is asked and what has become of each request, a column each; the machines of a deployment share it.

    begun
        seconds at which its first prompt token was scheduled; negative: not yet.
    first, finish
        seconds of the first token and of the answer's end; negative: not yet.
    last
        seconds of the last token before a preemption, and of those that wait for the others of their batch.
    gap
        longest time between two of its tokens.
    again, left
        of preempted requests: tokens made, and steps left where a step makes several.
    prefixes, unit
        hashes of each prompt's blocks, and tokens of one of those.
    pace, rounds
        where a step makes several tokens: tokens per step of each request, and the steps it takes.
    """

    __slots__ = (
        "again", "arrival", "begun", "cached", "count", "finish", "first", "gap", "input", "last", "left", "most", "output", "pace",
        "preempted", "prefixes", "rounds", "unit",
    )  # fmt: skip

    def __init__(self, arrival: array[float], inputs: array[int], outputs: array[int], most: array[int]) -> None:
        self.count = len(inputs)
        self.arrival, self.input, self.output, self.most = arrival, inputs, outputs, most
        self.begun, self.first, self.finish = (array("d", [-1.0]) * self.count for _ in range(3))
        self.gap = array("d", [0.0]) * self.count
        self.last: dict[int, float] = {}
        self.preempted, self.cached = array("i", [0]) * self.count, array("i", [0]) * self.count
        self.again: dict[int, int] = {}
        self.left: dict[int, int] = {}
        self.pace: array[float] | None = None
        self.rounds: array[int] | None = None
        self.prefixes: Sequence[Sequence[int]] | None = None
        self.unit = 0


class Machine(Inbox, ABC):
    """The state of one engine and its two kinds of move; a policy says in `select` what the next step computes.

    block, blocks
        tokens of a block of cache, and how many blocks there are.
    budget, slots
        tokens of one step and requests that run at once, at most.
    width
        tokens that a decode takes of the budget.
    mixes
        whether decodes share the steps of prompts, or wait.
    k, n, held, grow
        decode steps made; decodes, the tokens they hold, and the tokens that they gain with a step.
    part, part_done, part_goal
        the prompt in progress, its tokens done, and those it must reach.
    ready, pairs
        of the step to come: prompts that it completes, and pairs that its prompt tokens attend to.
    claimed, part_blocks
        blocks of prompts: of those that the step to come completes and of `part`, and of `part` alone.
    limit
        decode steps after which `select` wants to be asked again.
    cache, own, lent, part_lent
        blocks found by hash, the units that each running request uses, and the tokens in those: of decodes, of `part`.
    plain
        whether decodes make a token per step each and no blocks are shared.
    due, ends
        the step at which each decode ends; those as a heap, in which entries of what was preempted stay until they come up.
    used, residues
        blocks of decodes, and how many decodes would stand at each place of a block `k` steps ago; where a step makes one token each.
    gaps
        the longest gap of each move with decodes.
    since, until, broken
        how many of those there were when a request joined the decodes last, and when its answer ended; the same of the times that
        preemption ended.
    joined
        where decodes wait for prompts, seconds at which those joined that have made no step yet.
    """

    __slots__ = (
        "block", "blocks", "broken", "budget", "cache", "claimed", "count", "due", "easy", "ends", "gaps", "grow", "held", "joined",
        "k", "lent", "limit", "mixes", "n", "on_end", "own", "pairs", "part", "part_blocks", "part_done", "part_goal", "part_lent",
        "plain", "previous", "ready", "residues", "running", "series", "since", "slots", "steps", "unit", "until", "used", "width",
    )  # fmt: skip

    def __init__(self, book: Book, steps: Steps, *, block: int, blocks: int, budget: int, slots: int, mixes: bool = True) -> None:
        super().__init__(book)
        self.steps, self.mixes, self.count = steps, mixes, book.count
        self.block, self.blocks, self.budget, self.slots = block, blocks, budget, slots
        self.width, self.limit = 1, ENDLESS
        self.previous = 0.0
        self.k = self.n = self.claimed = self.lent = self.part_done = self.part_goal = self.part_lent = self.part_blocks = 0
        self.held: float = 0
        self.grow: float = 0
        self.pairs, self.part = 0.0, NONE
        self.residues, self.used = [0] * block, 0
        self.due: dict[int, int] = {}
        self.since, self.until = array("i", [0]) * book.count, array("i", [0]) * book.count
        self.broken: list[tuple[int, int, int]] = []
        self.joined: dict[int, float] = {}
        self.gaps = array("d")
        self.ends: list[int] = []
        self.ready: list[int] = []
        self.running: list[int] = []
        self.cache: PrefixCache | None = None
        self.own: dict[int, list[int]] = {}
        self.unit, self.easy, self.plain = 0, NONE, book.pace is None
        self.on_end: Callable[[int, float], None] | None = None
        self.series: tuple[array[float], array[int], array[float]] | None = None

    # moves ---------------------------------------------------------------------------------------------------------------------

    def advance(self, until: float = NEVER, moves: int = ENDLESS) -> bool:
        """Make moves that begin before `until`, at most so many; false once there is nothing more to do before it."""
        select, prompt_step, stretch = self.select, self.prompt_step, self.stretch
        for _ in range(moves):
            if self.now >= until:
                return False
            if self.next_at <= self.now:
                self.pull()
            tokens = select()
            if tokens:
                prompt_step(tokens)
            elif self.n:
                stretch(until)
            elif self.next_at < until:
                self.now = self.previous = self.next_at
            else:
                return False
        return self.now < until

    @abstractmethod
    def select(self) -> int:
        """Prompt tokens of the next step, its prompts admitted and booked; 0 for a step of decodes alone."""

    def prompt_step(self, tokens: int) -> None:
        """A step with prompt tokens; those whose prompt is complete emit a token at its end."""
        n = self.n if self.mixes else 0
        now, ready = self.now, self.ready
        prompts = len(ready) + (self.part != NONE)
        self.now = end = now + self.steps.mixed(n, self.held if n else 0, tokens, self.pairs, prompts)
        if n:
            self.used += self.residues[-self.k % self.block]
            self.k = k = self.k + 1
            self.held += self.grow
            self.gaps.append(end - now)
            if self.ends[0] < (k + 1) * self.count:
                self.retire()
        if ready:
            self.join()
        self.pairs, self.claimed = 0.0, self.part_blocks
        if self.series is not None:
            self.note()

    def stretch(self, until: float) -> None:
        """Steps of decodes alone, up to the next that ends, the next arrival that may be admitted, or the last block."""
        ends, count, due, k, n, held = self.ends, self.count, self.due, self.k, self.n, self.held
        top = ends[0]
        while due.get(top % count) != top // count:
            heappop(ends)
            top = ends[0]
        first, more, steps = self.steps.decode(n, held)
        steps = min(steps, top // count - k, self.limit)
        if held - self.lent + self.grow * steps + n * self.block > self.blocks * self.block:
            steps = min(steps, self.steps_left())
        wake = until if self.waiting or until < self.next_at else self.next_at
        now = self.now
        end = now + steps * (first + more * (steps - 1) / 2)
        if end > wake:
            steps = crossing(first, more, wake - now, steps)
            end = now + steps * (first + more * (steps - 1) / 2)
        last = first + more * (steps - 1)
        self.now = end
        self.used += self.crossings(steps)
        self.k = k = k + steps
        self.held = held + self.grow * steps
        self.gaps.append(max(first, last) if self.mixes else self.stall(now + first, first, last, steps))
        if ends[0] < (k + 1) * count:
            self.retire()
        if self.series is not None:
            self.note()

    def stall(self, resumed: float, first: float, last: float, steps: int) -> float:
        """The longest gap of decodes that may have waited for prompts; newcomers have waited only since they joined."""
        gap, since, row = self.book.gap, self.since, len(self.gaps) + 1
        within = max(first + (last - first) / (steps - 1), last) if steps > 1 else 0.0
        for i, joined in self.joined.items():
            gap[i] = max(gap[i], resumed - joined, within)
            since[i] = row
        self.joined.clear()
        longest = max(first, last, resumed - self.previous)
        self.previous = self.now
        return longest

    def note(self) -> None:
        """A row of the time series: end of the move, requests that run, tokens in cache."""
        assert self.series is not None
        when, running, tokens = self.series
        when.append(self.now)
        running.append(self.n + (self.part != NONE))
        tokens.append(self.held + self.part_done)

    # requests come and go ------------------------------------------------------------------------------------------------------

    def admit(self, i: int, goal: int, take: int, past: int = 0) -> None:
        """Book `take` prompt tokens of a request for this step, which must reach `goal`, after `past` that lie in cache."""
        begun = self.book.begun
        if begun[i] < 0:
            begun[i] = self.now
        self.running.append(i)
        self.pairs += take * (past + (take + 1) / 2)
        done = past + take
        lent = 0 if self.cache is None else self.cover(i, past, done)
        blocks = -(-(done - lent) // self.block)
        self.claimed += blocks
        if done == goal:
            self.ready.append(i)
        else:
            self.part, self.part_done, self.part_goal, self.part_lent, self.part_blocks = i, done, goal, lent, blocks

    def continue_part(self, take: int) -> None:
        """Book more tokens of the prompt that is in progress."""
        self.pairs += take * (self.part_done + (take + 1) / 2)
        self.part_done = done = self.part_done + take
        if self.cache is not None:
            self.part_lent = self.cover(self.part, done - take, done)
        blocks = -(-(done - self.part_lent) // self.block)
        self.claimed += blocks - self.part_blocks
        self.part_blocks = blocks
        if done == self.part_goal:
            self.ready.append(self.part)
            self.clear_part()

    def clear_part(self) -> None:
        """No prompt is in progress."""
        self.part = NONE
        self.part_done = self.part_lent = self.part_blocks = 0

    def join(self) -> None:
        """Complete prompts emit a token each, and the requests decode on unless that was their last."""
        book, now = self.book, self.now
        if not self.n:
            self.previous = now
        for i in self.ready:
            made = self.return_of(i) if book.preempted[i] else 0
            if not made:
                book.first[i] = now
            left = book.output[i] - made - 1
            held = book.input[i] + made
            if not left:
                if self.cache is not None:
                    self.release(i, held)
                self.end(i)
                continue
            self.enter(i, held, left)
        self.ready.clear()
        if len(self.running) > STALE * self.slots:
            self.live()

    def enter(self, i: int, held: int, left: int) -> None:
        """A request that holds so many tokens, with so many to come, goes among the decodes."""
        book, k = self.book, self.k
        if book.pace is None or book.rounds is None:
            self.residues[(held - k) % self.block] += 1
            self.used -= -held // self.block
            self.grow += 1
        else:
            left = book.left.get(i) or book.rounds[i]
            self.grow += book.pace[i]
        self.due[i] = due = k + left
        heappush(self.ends, due * self.count + i)
        self.n += 1
        self.held += held
        self.since[i] = len(self.gaps)
        if not self.mixes:
            self.joined[i] = self.now
        if self.cache is not None:
            lent = len(self.own[i]) * self.unit
            self.lent += lent
            self.used -= lent // self.block

    def return_of(self, i: int) -> int:
        """Tokens that a preempted request has made before; its gap is over."""
        book = self.book
        made = book.again.get(i, 0)
        if made:
            book.gap[i] = max(book.gap[i], self.now - book.last[i])
        return made

    def retire(self) -> None:
        """All decodes whose last token this step has made leave."""
        book, ends, due, until, k, rows = self.book, self.ends, self.due, self.until, self.k, len(self.gaps)
        inputs, outputs, count, plain = book.input, book.output, self.count, self.plain
        limit = (k + 1) * count
        if self.cache is not None:
            self.cache.settle(self.blocks - self.free())
        while ends and ends[0] < limit:
            i = heappop(ends) % count
            if due.get(i) != k:
                continue
            until[i] = rows
            held = inputs[i] + outputs[i] - 1
            if plain:  # as `leave` does it; a call for each request would be felt
                del due[i]
                self.n -= 1
                self.grow -= 1
                self.held -= held
                self.residues[(held - k) % self.block] -= 1
                self.used += -held // self.block
            else:
                self.leave(i, held)
            self.end(i)

    def leave(self, i: int, held: int) -> None:
        """A request that holds so many tokens is no longer among the decodes."""
        book = self.book
        del self.due[i]
        self.n -= 1
        self.held -= held
        if book.pace is None:
            self.grow -= 1
            self.residues[(held - self.k) % self.block] -= 1
            self.used += -held // self.block
        else:
            self.grow -= book.pace[i]
            if not self.n:
                self.held = 0
        if self.cache is not None:
            lent = len(self.own[i]) * self.unit
            self.lent -= lent
            self.used += lent // self.block
            self.release(i, held)

    def share_prefixes(self) -> None:
        """Find prompts' blocks by hash from now on; their hashes stand in the book."""
        self.unit, self.easy, self.plain = self.book.unit, NONE, False
        self.cache = PrefixCache(self.blocks, self.unit // self.block)

    def end(self, i: int) -> None:
        """A request is served."""
        self.book.finish[i] = self.now
        if self.on_end is not None:
            self.on_end(i, self.now)

    def made(self, i: int) -> int:
        """Tokens that a decoding request has emitted."""
        book = self.book
        if book.pace is None:
            return book.output[i] - (self.due[i] - self.k)
        return min(book.output[i] - 1, int(book.output[i] - (self.due[i] - self.k) * book.pace[i]))

    def preempt(self, i: int) -> None:
        """Take a request's blocks; it waits at the head of the queue and computes its tokens again."""
        self.drop(i)
        self.waiting.appendleft(i)

    def drop(self, i: int) -> None:
        """Take a request's blocks, and remember what it has made."""
        book = self.book
        book.preempted[i] += 1
        if i == self.part:
            if self.cache is not None:
                self.release(i, self.part_done)
            self.claimed -= self.part_blocks
            self.clear_part()
            return
        made = self.made(i)
        self.broken.append((i, self.since[i], len(self.gaps)))
        book.last[i] = self.now if self.mixes else self.joined.pop(i, self.previous)
        book.again[i] = made
        if book.rounds is not None:
            book.left[i] = self.due[i] - self.k
        self.leave(i, book.input[i] + made - 1)

    def live(self) -> list[int]:
        """Requests that run, in order of admission."""
        due, entering = self.due, {self.part, *self.ready}
        self.running = [i for i in self.running if i in due or i in entering]
        return self.running

    # shared blocks -------------------------------------------------------------------------------------------------------------

    def found(self, i: int, goal: int) -> int:
        """Units of a prompt that lie in cache; a prompt that lies there whole still computes its last unit."""
        assert self.cache is not None
        assert self.book.prefixes is not None
        return self.cache.hits(self.book.prefixes[i], (goal - 1) // self.unit)

    def revived(self, i: int, units: int) -> int:
        """Free blocks that it takes to use so many units of a prompt that lie in cache."""
        assert self.cache is not None
        assert self.book.prefixes is not None
        return self.cache.revived(self.book.prefixes[i][:units])

    def borrow(self, i: int, units: int) -> None:
        """A request that begins uses so many units that lie in cache; what its first admission finds is booked as cached."""
        assert self.cache is not None
        assert self.book.prefixes is not None
        if self.book.begun[i] < 0:
            self.book.cached[i] = units * self.unit
        chain = list(self.book.prefixes[i][:units])
        before = self.cache.shared_blocks
        self.cache.hold(chain)
        self.blocks -= self.cache.shared_blocks - before
        self.own[i] = chain

    def cover(self, i: int, before: int, done: int) -> int:
        """Let the units of a prompt that this step completes be found by hash; tokens of all that it shares."""
        cache, own = self.cache, self.own[i]
        assert cache is not None
        assert self.book.prefixes is not None
        lent, block = len(own) * self.unit, self.block
        cache.settle(cache.private + -(-(done - lent) // block) - -(-(before - lent) // block))
        for unit in self.book.prefixes[i][len(own) : done // self.unit]:
            if not cache.share(unit):
                break
            own.append(unit)
            self.blocks -= cache.per_unit
        return len(own) * self.unit

    def release(self, i: int, held: int) -> None:
        """A request that holds so many tokens frees its blocks; those found by hash stay until they are needed."""
        cache, own = self.cache, self.own.pop(i)
        assert cache is not None
        before = cache.shared_blocks
        cache.give(-(-(held - len(own) * self.unit) // self.block), own)
        self.blocks += before - cache.shared_blocks

    # blocks --------------------------------------------------------------------------------------------------------------------

    def free(self, steps: int = 0) -> int:
        """Blocks left once every decode has made `steps` (0 or 1) more steps, those in progress counted."""
        if self.book.pace is not None:
            used = ceil(self.held - self.lent + self.grow * steps - TINY)
        else:
            used = self.used + self.residues[-self.k % self.block] if steps else self.used
        return self.blocks - used - self.claimed

    def crossings(self, steps: int) -> int:
        """Blocks that the decodes begin within so many steps."""
        residues, block = self.residues, self.block
        rounds, rest = divmod(steps, block)
        turn = -self.k % block
        wrapped = rest - turn - 1
        part = sum(residues[turn + 1 - rest : turn + 1]) if wrapped <= 0 else sum(residues[: turn + 1]) + sum(residues[-wrapped:])
        return rounds * self.n + part

    def steps_left(self) -> int:
        """Steps of the decodes until one of them finds no block."""
        free, block = self.free(), self.block
        if block == 1:
            return int((self.blocks - self.claimed - self.held + self.lent + TINY) / self.grow)
        rounds, rest = divmod(free, self.n)
        turn = -self.k % block
        begun = accumulate(self.residues[turn::-1] + self.residues[:turn:-1])
        return rounds * block + bisect_right(list(begun), rest)


def crossing(first: float, more: float, gap: float, most: int) -> int:
    """The least number of steps, from 1 to `most`, that take `gap` seconds or longer together, when each takes `more` than the last.

    >>> crossing(1.0, 0.0, 2.5, 10), crossing(1.0, 1.0, 3.0, 10), crossing(1.0, 1.0, 3.1, 10)
    (3, 2, 3)
    """
    if more == 0.0:
        steps = ceil(gap / first) if first > 0 else most
    else:
        half = first - more / 2
        inside = half * half + 2 * more * gap
        steps = ceil((sqrt(inside) - half) / more) if inside > 0 else most
    steps = min(max(steps, 1), most)
    while steps < most and steps * (first + more * (steps - 1) / 2) < gap:
        steps += 1
    while steps > 1 and (steps - 1) * (first + more * (steps - 2) / 2) >= gap:
        steps -= 1
    return steps
