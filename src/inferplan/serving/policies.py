"""Schedulers as engines run them: who joins a step, with how many tokens, and who goes when blocks run out. Knows no step time."""

from __future__ import annotations

from typing import Any

from inferplan.serving.inbox import NEVER
from inferplan.serving.machine import NONE, Machine
from inferplan.serving.steps import ENDLESS

PLENTY = ENDLESS


class Scheduler(Machine):
    """What first-come-first-served schedulers have in common.

    chunked
        whether a prompt may be divided over steps.
    whole
        whether a request needs free blocks for its whole prompt before its first chunk.
    watermark
        blocks that an admission must leave free while others run.
    easy
        tokens in cache up to which no step can run out of blocks, so that they need not be counted.
    asked
        free blocks without which the head of the queue was refused, so that it need not be looked at before they are there.
    """

    __slots__ = ("asked", "chunked", "watermark", "whole")

    def __init__(self, *args: Any, chunked: bool = True, whole: bool = True, watermark: int = 0, **named: Any) -> None:
        super().__init__(*args, **named)
        self.chunked, self.whole, self.watermark, self.asked = chunked, whole, watermark, 0
        self.easy = (self.blocks - watermark - self.slots - 2) * self.block - 2 * self.budget

    def at_work(self) -> int:
        """Requests that hold a place: decodes, prompts that this step completes, and the one in progress."""
        return self.n + len(self.ready) + (self.part != NONE)

    def goal(self, i: int) -> int:
        """Tokens that a request must have in cache before it emits its next one: prompt, and what it made before it was preempted."""
        book = self.book
        return book.input[i] + (book.again.get(i, 0) if book.preempted[i] else 0)

    def admissions(self, budget: int, free: int, most: int | None = None) -> int:
        """Tokens of prompts that begin in this step, at most so many prompts: in turn, up to the first that does not fit."""
        running = self.at_work()
        slots = self.slots - running if most is None else min(self.slots - running, most)
        if self.cache is not None:
            return self.shared_admissions(budget, free, slots)
        waiting, book, block, left = self.waiting, self.book, self.block, budget
        spare, self.asked = self.watermark if running else 0, 0
        while waiting and left and slots:
            i = waiting[0]
            goal = take = self.goal(i) if book.preempted[i] else book.input[i]
            if take > left:
                if not self.chunked:
                    break
                take = left
            if free != PLENTY or goal > self.budget:
                if free == PLENTY:
                    free = self.free(1)
                need = -(-(goal if self.whole else take) // block) + spare
                if need > free:
                    self.asked = need if self.whole else 0
                    break
                free -= -(-take // block)
            waiting.popleft()
            self.admit(i, goal, take)
            left -= take
            slots -= 1
            spare = self.watermark
        return budget - left

    def shared_admissions(self, budget: int, free: int, slots: int) -> int:
        """The same where prompts may lie in cache in part."""
        waiting, left, block, per_unit = self.waiting, budget, self.block, self.unit // self.block
        while waiting and left and slots:
            i = waiting[0]
            goal = self.goal(i)
            units = self.found(i, goal)
            past = units * self.unit
            take = min(goal - past, left)
            if past + take < goal and not self.chunked:
                break
            revived = self.revived(i, units)
            spare = self.watermark if self.at_work() else 0
            if -(-((goal if self.whole else past + take) - past) // block) + revived + spare > free:
                break
            free -= -(-(past + take) // block) - units * per_unit + revived
            waiting.popleft()
            self.borrow(i, units)
            self.admit(i, goal, take, past)
            left -= take
            slots -= 1
        return budget - left

    def preempt(self, i: int) -> None:
        """As `Machine` says."""
        super().preempt(i)
        self.asked = 0

    def settled(self, steps: int) -> int:
        """Blocks left once every decode has made `steps` more, the youngest having gone where that takes more than there are."""
        free = self.free(steps)
        if free >= 0:
            if self.cache is not None:
                self.cache.settle(self.blocks - free)
            return free
        if self.cache is not None:
            self.cache.settle(self.blocks - self.free())
        self.make_room()
        self.limit = 1
        free = self.free(steps)
        if self.cache is not None:
            self.cache.settle(self.blocks - free)
        return free

    def make_room(self) -> None:
        """The youngest go until every decode that is left finds the blocks that it needs."""
        running, due = self.running, self.due
        while self.free(1) < 0:
            victim = running.pop()
            if victim == self.part or victim in due:
                self.preempt(victim)


class Mixed(Scheduler):
    """Decodes first, prompts with what the budget leaves, in one step; the youngest goes when blocks run out, and computes again.

    vLLM V1, chunked prefill in vLLM V0, and TensorRT-LLM at maximal utilization.
    """

    __slots__ = ()

    def select(self) -> int:
        """As `Machine` says."""
        self.limit = ENDLESS
        if self.held + self.part_done <= self.easy:
            free = PLENTY
        elif self.cache is not None or (free := self.free(1)) < 0:
            free = self.settled(1)
        tokens, part = 0, self.part
        if part == NONE and not self.waiting:
            return 0
        budget = self.budget - self.n * self.width
        if part != NONE:
            tokens, free = self.resume(budget, free)
        if (free >= self.asked or not self.n) and self.waiting and tokens < budget and self.limit > 1:
            tokens += self.admissions(budget - tokens, free)
        return tokens

    def resume(self, budget: int, free: int) -> tuple[int, int]:
        """Tokens of the prompt in progress that this step computes, and blocks left; where it finds none, it is the one that goes."""
        take, lent = min(self.part_goal - self.part_done, budget), self.part_lent
        if free != PLENTY:
            free -= -(-(self.part_done + take - lent) // self.block) - self.part_blocks
            if free < 0:
                self.preempt(self.part)
                self.running.pop()
                self.limit = 1
                return 0, 0
        self.continue_part(take)
        return take, free


class Receiving(Mixed):
    """The decoding side of a disaggregated deployment: prompts come with their cache; only what is preempted is computed here again."""

    __slots__ = ("fresh",)

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.fresh: list[int] = []

    def select(self) -> int:
        """As `Machine` says; a request's first gap reaches back to the token that the prefilling side made."""
        book = self.book
        for i in self.fresh:
            book.gap[i] = max(book.gap[i], self.now - book.first[i])
        self.fresh.clear()
        waiting = self.waiting
        while waiting and not book.preempted[waiting[0]] and self.at_work() < self.slots:
            i = waiting[0]
            spare = self.watermark if self.at_work() else 0
            if -(-(book.input[i] + 1) // self.block) + spare > self.free(1):
                break
            waiting.popleft()
            self.asked = 0
            book.begun[i] = self.now
            self.running.append(i)
            self.enter(i, book.input[i], book.output[i] - 1)
            self.fresh.append(i)
        tokens = super().select()
        if self.fresh:
            self.limit = 1
        return tokens

    def admissions(self, budget: int, free: int, most: int | None = None) -> int:
        """As `Scheduler` says; only what was preempted has prompts to compute."""
        preempted = self.book.preempted
        own = next((place for place, i in enumerate(self.waiting) if not preempted[i]), len(self.waiting))
        return super().admissions(budget, free, own)


class Reserving(Scheduler):
    """Decodes and prompts in one step; a request is admitted once prompt and declared output of all that run are sure of their blocks.

    TensorRT-LLM with guaranteed completion, and TGI with chunks.
    """

    __slots__ = ("reserved",)

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.reserved = 0

    def need(self, i: int) -> int:
        """Blocks that a request may come to hold."""
        return -(-(self.book.input[i] + self.book.most[i]) // self.block)

    def select(self) -> int:
        """As `Machine` says."""
        self.limit = ENDLESS
        budget = self.budget - self.n * self.width
        tokens = 0
        if self.part != NONE:
            tokens = min(self.part_goal - self.part_done, budget)
            self.continue_part(tokens)
        return tokens + self.reservations(budget - tokens) if self.waiting else tokens

    def reservations(self, budget: int) -> int:
        """Tokens of prompts that begin in this step."""
        waiting, left, slots = self.waiting, budget, self.slots - self.at_work()
        while waiting and left > 0 and slots:
            i = waiting[0]
            goal, need = self.book.input[i], self.need(i)
            take = min(goal, left)
            if (take < goal and not self.chunked) or self.reserved + need > self.blocks:
                break
            waiting.popleft()
            self.reserved += need
            self.admit(i, goal, take)
            left -= take
            slots -= 1
        return budget - left

    def end(self, i: int) -> None:
        """As `Machine` says."""
        self.reserved -= self.need(i)
        super().end(i)


class Alternating(Reserving):
    """TGI before chunks: prompts have steps of their own, which the decodes wait for; a few of them wait until more have come.

    served_ratio
        share of the running requests that must wait before prompts interrupt them.
    patience
        decode steps after which any number may.
    """

    __slots__ = ("patience", "prefilled_at", "served_ratio")

    def __init__(self, *args: Any, served_ratio: float, patience: int, **named: Any) -> None:
        super().__init__(*args, mixes=False, **named)
        self.served_ratio, self.patience, self.prefilled_at = served_ratio, patience, 0

    def select(self) -> int:
        """As `Machine` says."""
        self.limit = 1 if self.waiting else ENDLESS
        if not self.waiting or (self.n and not self.may_interrupt()):
            return 0
        tokens = self.reservations(self.budget)
        if tokens:
            self.prefilled_at = self.k
        return tokens

    def may_interrupt(self) -> bool:
        """Whether enough wait, or have waited long enough."""
        waited = self.k - self.prefilled_at + 1
        return waited >= self.patience or len(self.waiting) >= int(self.n * self.served_ratio)


class PrefillFirst(Scheduler):
    """While prompts can be admitted they run in steps of their own, and decodes wait; the youngest goes when blocks run out: vLLM V0."""

    __slots__ = ()

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, mixes=False, **named)

    def select(self) -> int:
        """As `Machine` says."""
        self.limit = ENDLESS
        if self.waiting:
            tokens = self.admissions(self.budget, self.settled(0))
            if tokens:
                return tokens
        if self.held > self.easy:
            self.settled(1)
        return 0


class Retracting(Scheduler):
    """SGLang: prompts first, divided over steps of their own; admission foresees a share of the outputs to come; those that have
    made least go when the cache is full.

    ratio, least, decay
        share of the declared outputs that is foreseen: at first, at least, and what it falls by with each decode step.
    clip
        declared tokens of a request that count at most.
    headroom
        decode steps that must find room after a retraction.
    interval, polled_at
        decode steps between two looks at the inbox, and the step of the last one; after prompts, and while nothing runs, it looks at once.
    """

    __slots__ = ("clip", "decay", "full_at", "headroom", "interval", "least", "polled_at", "ratio", "ratio_at")

    def __init__(
        self, *args: Any, ratio: float, least: float, decay: float, clip: int, headroom: int, interval: int = 1, **named: Any
    ) -> None:
        super().__init__(*args, mixes=False, **named)
        self.ratio, self.least, self.decay, self.clip, self.headroom = ratio, least, decay, clip, headroom
        self.ratio_at, self.full_at, self.interval, self.polled_at = 0, NONE, interval, -interval

    def pull(self) -> None:
        """As `Inbox` says, when it looks."""
        if self.k - self.polled_at >= self.interval or not self.n:
            super().pull()

    def prompt_step(self, tokens: int) -> None:
        """As `Machine` says."""
        super().prompt_step(tokens)
        self.polled_at = self.k - self.interval

    def stretch(self, until: float) -> None:
        """As `Machine` says; what arrives before the next look does not end it."""
        if self.interval == 1:
            super().stretch(until)
            return
        if self.k - self.polled_at >= self.interval:
            self.polled_at = self.k
        self.limit = min(self.limit, self.interval - (self.k - self.polled_at))
        arrives, self.next_at = self.next_at, NEVER
        super().stretch(until)
        self.next_at = min(arrives, self.next_at)

    def select(self) -> int:
        """As `Machine` says."""
        self.limit = ENDLESS
        tokens = 0
        if self.cache is not None:
            self.cache.settle(self.blocks - self.free())
        if self.part != NONE:
            tokens = min(self.part_goal - self.part_done, self.budget)
            self.continue_part(tokens)
        if self.waiting and (self.n != self.full_at or not (self.n or tokens)):
            tokens += self.foreseen_admissions(self.budget - tokens)
        if not tokens and self.n and self.free(1) < 0:
            self.retract()
            self.limit = 1
        return tokens

    def foreseen(self) -> float:
        """The share of declared outputs that is foreseen now."""
        return max(self.least, self.ratio - self.decay * (self.k - self.ratio_at))

    def foreseen_tokens(self) -> float:
        """Tokens that the running requests are foreseen to make yet."""
        book, due = self.book, self.due
        left = (book.most[i] - self.made(i) for i in self.live() if i in due)
        return self.foreseen() * sum(min(tokens, self.clip) for tokens in left)

    def foreseen_admissions(self, budget: int) -> int:
        """Tokens of prompts that begin in this step."""
        waiting, book, left = self.waiting, self.book, budget
        if not left:
            return 0
        room = self.free() - self.foreseen_tokens() - sum(min(book.most[i], self.clip) for i in self.ready)
        self.full_at = NONE
        while waiting and left:
            i = waiting[0]
            goal = self.goal(i)
            units = self.found(i, goal) if self.cache is not None else 0
            past = units * self.unit
            revived = self.revived(i, units) if self.cache is not None else 0
            asked = goal - past + revived + min(book.most[i] - book.again.get(i, 0), self.clip)
            take = min(goal - past, left)
            if self.slots == self.at_work() or asked >= room or (past + take < goal and not self.chunked):
                self.full_at = self.n
                break
            waiting.popleft()
            if self.cache is not None:
                self.borrow(i, units)
            self.admit(i, goal, take, past)
            room -= asked
            left -= take
        return budget - left

    def retract(self) -> None:
        """Those that have made least go to the end of the queue, the longest prompt first, until the rest has headroom; one stays."""
        book, due = self.book, self.due
        left = sorted((i for i in self.live() if i in due), key=lambda i: (-self.made(i), book.input[i]))
        if self.cache is not None:
            self.cache.settle(self.blocks - self.free())
        first = True
        while len(left) > 1 and (first or self.free() < len(left) * self.headroom * self.block):
            first = False
            victim = left.pop()
            self.drop(victim)
            self.waiting.append(victim)
        self.live()
        made, most = sum(map(self.made, left)), sum(book.most[i] for i in left)
        self.ratio, self.ratio_at = min(1.0, (made + self.headroom * len(left)) / (most + 1)), self.k
        self.full_at = NONE
