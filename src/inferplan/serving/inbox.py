"""What reaches one engine: requests on their way, and those that wait. Knows no step and no policy."""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferplan.serving.machine import Book

NEVER = float("inf")


class Inbox:
    """Requests of one engine that have yet to arrive, in order of time, and the queue of those that have.

    now
        seconds on the engine's clock.
    next_at
        when the next request arrives; never where none is known.
    """

    __slots__ = ("at", "book", "inbox", "next_at", "now", "waiting")

    def __init__(self, book: Book) -> None:
        self.book, self.now, self.next_at, self.at = book, 0.0, NEVER, 0
        self.inbox: array[int] = array("i")
        self.waiting: deque[int] = deque()

    def offer(self, i: int) -> None:
        """Another request, which arrives no earlier than those before it."""
        if self.at == len(self.inbox):
            self.next_at = self.book.arrival[i]
        self.inbox.append(i)

    def offer_all(self, rows: range) -> None:
        """Many of them at once, to an engine that expects none."""
        self.inbox = array("i", rows)
        if self.inbox:
            self.next_at = self.book.arrival[self.inbox[0]]

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
