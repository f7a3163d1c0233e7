"""One serving engine as a machine: decodes as aggregates, stretches of them in one jump. Knows no policy, no route and no screen.

All decodes advance together, so a step needs only their number, the tokens they hold, how many stand at each place within a block
and the step at which each ends. Steps without prompt tokens run in one jump up to the next event. What a request holds follows from
the step at which it ends: its tokens at the end less the steps left.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import ceil, sqrt
from operator import mul

from inferplan.serving.blocks import PrefixCache
from inferplan.serving.steps import ENDLESS, Steps

NEVER = float("inf")
NONE = -1
"""No request."""
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
        self.begun, self.first, self.finish, self.gap = (array("d", [-1.0]) * self.count for _ in range(4))
        self.last: dict[int, float] = {}
        self.preempted, self.cached = array("i", [0]) * self.count, array("i", [0]) * self.count
        self.again: dict[int, int] = {}
        self.left: dict[int, int] = {}
        self.pace: array[float] | None = None
        self.rounds: array[int] | None = None
        self.prefixes: Sequence[Sequence[int]] | None = None
        self.unit = 0


class Machine:
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
    ready, claimed, pairs, prompts
        of the step to come: prompts that it completes and their blocks, pairs that its prompt tokens attend to, and its prompts.
    limit
        decode steps after which `select` wants to be asked again.
    cache, own, lent, part_lent
        blocks found by hash, the units that each running request uses, and the tokens in those: of decodes, of `part`.
    gaps, resumes
        a row per move with decodes: the longest gap that ends in it; where decodes wait for prompts, the end of its first step.
    """

    __slots__ = (
        "at", "block", "blocks", "book", "budget", "cache", "claimed", "due", "easy", "ends", "gaps", "grow", "held", "inbox", "joined",
        "k", "lent", "limit", "mixes", "n", "next_at", "now", "on_end", "own", "pairs", "part", "part_done", "part_goal", "part_lent",
        "previous", "prompts", "ready", "residues", "resumes", "running", "series", "since", "slots", "steps", "unit", "until",
        "waiting", "weights", "width", "within",
    )  # fmt: skip

    def __init__(self, book: Book, steps: Steps, *, block: int, blocks: int, budget: int, slots: int, mixes: bool = True) -> None:
        self.book, self.steps, self.mixes = book, steps, mixes
        self.block, self.blocks, self.budget, self.slots = block, blocks, budget, slots
        self.width, self.limit = 1, ENDLESS
        self.now, self.previous, self.next_at = 0.0, 0.0, NEVER
        self.k = self.n = self.claimed = self.prompts = self.at = self.part_done = self.part_goal = self.lent = self.part_lent = 0
        self.held: float = 0
        self.grow: float = 0
        self.pairs, self.part = 0.0, NONE
        self.residues = [0] * block
        self.weights = [[(r + place) % block for r in range(block)] for place in range(block)] if block <= 1024 else []
        self.due, self.joined = array("q", [NONE]) * book.count, array("d", [0.0]) * (0 if mixes else book.count)
        self.since, self.until = array("i", [0]) * book.count, array("i", [0]) * book.count
        self.gaps, self.resumes, self.within = array("d"), array("d"), array("d")
        self.ends: list[int] = []
        self.ready: list[int] = []
        self.running: list[int] = []
        self.waiting: deque[int] = deque()
        self.inbox: array[int] = array("q")
        self.cache: PrefixCache | None = None
        self.own: dict[int, list[int]] = {}
        self.unit, self.easy = 0, NONE
        self.on_end: Callable[[int, float], None] | None = None
        self.series: tuple[array[float], array[int], array[float]] | None = None

    # what comes in -------------------------------------------------------------------------------------------------------------

    def offer(self, i: int) -> None:
        """Another request, which arrives no earlier than those before it."""
        if self.at == len(self.inbox):
            self.next_at = self.book.arrival[i]
        self.inbox.append(i)

    def pull(self) -> None:
        """Move what has arrived into the queue."""
        arrival, inbox, at, size, now = self.book.arrival, self.inbox, self.at, len(self.inbox), self.now
        wait = self.waiting.append
        i = inbox[at]
        while arrival[i] <= now:
            wait(i)
            at += 1
            if at == size:
                self.at, self.next_at = at, NEVER
                return
            i = inbox[at]
        self.at, self.next_at = at, arrival[i]

    # moves ---------------------------------------------------------------------------------------------------------------------

    def advance(self, until: float = NEVER, moves: int = ENDLESS) -> bool:
        """Make moves that begin before `until`, at most so many; false once there is nothing more to do before it."""
        while moves > 0 and self.now < until:
            moves -= 1
            if self.next_at <= self.now:
                self.pull()
            tokens = self.select()
            if tokens:
                self.prompt_step(tokens)
            elif self.n:
                self.stretch(until)
            elif self.next_at < until:
                self.now = self.previous = self.next_at
            else:
                return False
        return self.now < until

    def select(self) -> int:
        """Prompt tokens of the next step, its prompts admitted and booked; 0 for a step of decodes alone."""
        raise NotImplementedError

    def prompt_step(self, tokens: int) -> None:
        """A step with prompt tokens; those whose prompt is complete emit a token at its end."""
        n = self.n if self.mixes else 0
        now = self.now
        self.now = end = now + self.steps.mixed(n, self.held if n else 0, tokens, self.pairs, self.prompts)
        if n:
            self.gaps.append(end - now)
            self.k += 1
            self.held += self.grow
            if self.ends[0] < (self.k + 1) * self.book.count:
                self.retire()
        if self.ready:
            self.join()
        self.pairs, self.prompts, self.claimed = 0.0, 0, 0
        if self.series is not None:
            self.note()

    def stretch(self, until: float) -> None:
        """Steps of decodes alone, up to the next that ends, the next arrival that may be admitted, or the last block."""
        ends, count, k, n = self.ends, self.book.count, self.k, self.n
        top = ends[0]
        while self.due[top % count] != top // count:
            heappop(ends)
            top = ends[0]
        first, more, steps = self.steps.decode(n, self.held)
        steps = min(steps, top // count - k, self.limit)
        if self.held - self.lent + self.grow * steps + n * self.block > self.blocks * self.block - self.part_done:
            steps = min(steps, self.steps_left())
        wake = until if self.waiting or until < self.next_at else self.next_at
        now = self.now
        end = now + steps * (first + more * (steps - 1) / 2)
        if end > wake:
            steps = crossing(first, more, wake - now, steps)
            end = now + steps * (first + more * (steps - 1) / 2)
        last = first + more * (steps - 1)
        self.gaps.append(last if last > first else first)
        if not self.mixes:
            self.stall(now + first, first, last, steps)
            self.previous = end
        self.now = end
        self.k = k = k + steps
        self.held += self.grow * steps
        if ends[0] < (k + 1) * count:
            self.retire()
        if self.series is not None:
            self.note()

    def stall(self, resumed: float, first: float, last: float, steps: int) -> None:
        """Decodes that have waited for prompts: the gap before their first step, and what a newcomer sees, who has not waited."""
        self.gaps[-1] = max(self.gaps[-1], resumed - self.previous)
        self.resumes.append(resumed)
        self.within.append(max(first + (last - first) / (steps - 1), last) if steps > 1 else 0.0)

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
        if self.book.begun[i] < 0:
            self.book.begun[i] = self.now
        self.running.append(i)
        self.pairs += take * (past + (take + 1) / 2)
        self.prompts += 1
        lent = 0 if self.cache is None else self.cover(i, past, past + take)
        if past + take == goal:
            self.ready.append(i)
            self.claimed += -(-(goal - lent) // self.block)
        else:
            self.part, self.part_done, self.part_goal, self.part_lent = i, past + take, goal, lent

    def continue_part(self, take: int) -> None:
        """Book more tokens of the prompt that is in progress."""
        self.pairs += take * (self.part_done + (take + 1) / 2)
        self.prompts += 1
        self.part_done += take
        if self.cache is not None:
            self.part_lent = self.cover(self.part, self.part_done - take, self.part_done)
        if self.part_done == self.part_goal:
            self.ready.append(self.part)
            self.claimed += -(-(self.part_goal - self.part_lent) // self.block)
            self.part = NONE
            self.part_done = self.part_lent = 0

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

    def enter(self, i: int, held: int, left: int) -> None:
        """A request that holds so many tokens, with so many to come, goes among the decodes."""
        book, k = self.book, self.k
        if book.rounds is not None:
            left = book.left.get(i) or book.rounds[i]
        self.due[i] = due = k + left
        heappush(self.ends, due * book.count + i)
        self.n += 1
        self.grow += 1 if book.pace is None else book.pace[i]
        self.held += held
        self.residues[(held - k) % self.block] += 1
        if not self.mixes:
            self.joined[i] = self.now
        self.since[i] = len(self.gaps)
        if self.cache is not None:
            self.lent += len(self.own[i]) * self.unit

    def return_of(self, i: int) -> int:
        """Tokens that a preempted request has made before; its gap is over."""
        book = self.book
        made = book.again.get(i, 0)
        if made:
            book.gap[i] = max(book.gap[i], self.now - book.last[i])
        return made

    def retire(self) -> None:
        """All decodes whose last token this step has made leave."""
        book, ends, due, k = self.book, self.ends, self.due, self.k
        limit, rows, inputs, outputs = (k + 1) * book.count, len(self.gaps), book.input, book.output
        plain, residues, block = self.cache is None and book.pace is None, self.residues, self.block
        if self.cache is not None:
            self.cache.settle(self.blocks - self.free())
        while ends and ends[0] < limit:
            i = heappop(ends) % book.count
            if due[i] != k:
                continue
            held = inputs[i] + outputs[i] - 1
            self.until[i] = rows
            if plain:
                due[i] = NONE
                self.n -= 1
                self.grow -= 1
                self.held -= held
                residues[(held - k) % block] -= 1
            else:
                self.leave(i, held)
            self.end(i)
        if len(self.running) > 8 * self.slots:
            self.live()

    def leave(self, i: int, held: int) -> None:
        """A request that holds so many tokens is no longer among the decodes."""
        self.due[i] = NONE
        self.n -= 1
        pace = self.book.pace
        self.grow -= 1 if pace is None else pace[i]
        self.held = self.held - held if self.n else 0
        self.residues[(held - self.k) % self.block] -= 1
        if self.cache is not None:
            self.lent -= len(self.own[i]) * self.unit
            self.release(i, held)

    def share_prefixes(self) -> None:
        """Find prompts' blocks by hash from now on; their hashes stand in the book."""
        self.unit, self.easy = self.book.unit, NONE
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
            self.part = NONE
            self.part_done = self.part_lent = 0
            return
        made = self.made(i)
        book.gap[i] = max(book.gap[i], self.longest_gap(i))
        book.last[i] = self.now if self.mixes else max(self.joined[i], self.previous)
        book.again[i] = made
        if book.rounds is not None:
            book.left[i] = self.due[i] - self.k
        self.leave(i, book.input[i] + made - 1)

    def longest_gap(self, i: int) -> float:
        """The longest gap of a request since it last joined the decodes, up to now; 0 where it has made no step."""
        since = self.since[i]
        if since == len(self.gaps):
            return 0.0
        if self.mixes:
            return max(self.gaps[since:])
        own = max(self.resumes[since] - self.joined[i], self.within[since])
        return max(own, max(self.gaps[since + 1 :], default=0.0))

    def live(self) -> list[int]:
        """Requests that run, in order of admission."""
        due, entering = self.due, {self.part, *self.ready}
        self.running = [i for i in self.running if due[i] != NONE or i in entering]
        return self.running

    # shared blocks -------------------------------------------------------------------------------------------------------------

    def found(self, i: int, goal: int) -> int:
        """Units of a prompt that lie in cache; a prompt that lies there whole still computes its last unit."""
        assert self.cache is not None
        assert self.book.prefixes is not None
        return self.cache.hits(self.book.prefixes[i], (goal - 1) // self.unit)

    def borrow(self, i: int, units: int) -> None:
        """A request that begins uses so many units that lie in cache."""
        assert self.cache is not None
        assert self.book.prefixes is not None
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
        block = self.block
        if block == 1:
            used = ceil(self.held - self.lent + self.grow * steps - TINY)
        else:
            over = sum(map(mul, self.residues, self.weights[(self.k - 1 + steps) % block]))
            used = (int(self.held) - self.lent + self.n * (steps - 1) - over) // block + self.n
        return self.blocks - used - -(-(self.part_done - self.part_lent) // block) - self.claimed

    def steps_left(self) -> int:
        """Steps of the decodes until one of them finds no block."""
        free, n, block = self.free(), self.n, self.block
        if block == 1:
            taken = self.held - self.lent + self.part_done - self.part_lent
            return int((self.blocks - self.claimed - taken + TINY) / self.grow)
        rounds, rest = divmod(free, n)
        steps = rounds * block
        for ahead in range(block):
            rest -= self.residues[-(self.k + ahead) % block]
            if rest < 0:
                return steps + ahead
        return steps + block


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
