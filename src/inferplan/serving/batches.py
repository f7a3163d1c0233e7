"""Batches that run until their last member is done: static and dynamic batching. Knows no policy of admission beyond forming a batch."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from inferplan.serving.inbox import NEVER, Inbox
from inferplan.serving.machine import NONE, Book
from inferplan.serving.steps import ENDLESS, Steps


class Batches(Inbox):
    """An engine that admits a batch, pads it to its longest prompt, and admits the next one when all of it are done.

    size
        requests of a batch at most; a static batch waits until it is full or nothing more is to come.
    waits
        whether it does; a dynamic one takes what is there when the engine is idle.
    tokens
        of cache: a batch must find room for its longest prompt and longest declared output, times its size.

    Answers are handed back together, at the end of the batch; tokens are made in step with each other before.
    """

    def __init__(self, book: Book, steps: Steps, *, size: int, tokens: int, waits: bool) -> None:
        super().__init__(book)
        self.steps, self.size, self.tokens, self.waits = steps, size, tokens, waits
        self.n, self.slot_steps, self.part = 0, 0, NONE
        self.on_end: Callable[[int, float], None] | None = None
        self.series: tuple[array[float], array[int], array[float]] | None = None

    def advance(self, until: float = NEVER, moves: int = ENDLESS) -> bool:
        """Run batches that begin before `until`, at most so many; false once there is nothing more to do before it."""
        while moves > 0 and self.now < until:
            if self.next_at <= self.now:
                self.pull()
            more_to_come = self.next_at < NEVER or until < NEVER
            if self.waiting and not (self.waits and len(self.waiting) < self.size and more_to_come):
                self.run(self.batch())
                moves -= 1
            elif self.next_at < until:
                self.now = self.next_at
            else:
                return False
        return self.now < until

    def batch(self) -> list[int]:
        """The next batch, in order of arrival, as far as its padded cache fits."""
        book, prompt, answer = self.book, 0, 0
        chosen: list[int] = []
        while self.waiting and len(chosen) < self.size:
            i = self.waiting[0]
            prompt, answer = max(prompt, book.input[i]), max(answer, book.most[i])
            if chosen and (len(chosen) + 1) * (prompt + answer) > self.tokens:
                break
            chosen.append(self.waiting.popleft())
        return chosen

    def run(self, chosen: list[int]) -> None:
        """One batch, from its prompts to its last token."""
        book, n, start = self.book, len(chosen), self.now
        prompt = max(book.input[i] for i in chosen)
        first = start + self.steps.mixed(0, 0, n * prompt, n * prompt * (prompt + 1) / 2, n)
        ends = {1: (first, 0.0)} | dict(self.decodes(n, n * prompt, first, sorted({book.output[i] for i in chosen})))
        self.now = max(end for end, _ in ends.values())
        longest = max(book.output[i] for i in chosen)
        self.slot_steps += n * longest
        if self.series is not None:
            for column, values in zip(self.series, ((start, self.now), (n, 0), (n * (prompt + longest), 0)), strict=True):
                column.extend(values)  # type: ignore[attr-defined]
        for i in chosen:
            book.begun[i], book.first[i] = start, first
            book.last[i], book.gap[i] = ends[book.output[i]]
            book.finish[i] = self.now
            if self.on_end is not None:
                self.on_end(i, self.now)

    def decodes(self, n: int, held: int, now: float, outputs: list[int]) -> Iterator[tuple[int, tuple[float, float]]]:
        """For each length of an answer the time of its last token, and the longest gap up to there."""
        made, longest = 1, 0.0
        for tokens in outputs:
            while made < tokens:
                first, more, valid = self.steps.decode(n, held)
                steps = min(tokens - made, valid)
                now += steps * (first + more * (steps - 1) / 2)
                longest = max(longest, first, first + more * (steps - 1))
                made, held = made + steps, held + n * steps
            yield tokens, (now, longest)
