"""Requests as columns: when they arrive, how long prompt and output are, what prefix they share. Knows no engine and no step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferplan.errors import SpecError, shown
from inferplan.serving.arrivals import Arrivals, ClosedLoop
from inferplan.serving.lengths import Lengths

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
MAX_TOKENS = 10**8
MAX_REQUESTS = 10**7
COLUMNS = ("arrival_s", "input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """What is asked, a row per request in order of arrival.

    arrival_s
        seconds, never decreasing; in a closed loop 0 for the first request of each client and NaN for those that wait for their turn.
    input_tokens, output_tokens
        whole numbers from 1.
    max_tokens
        declared bound of the output, which some schedulers reserve; the output itself unless stated.
    prefixes
        hashes of the prompt's blocks of `hash_tokens` tokens each, for prefix caching: one sequence of ints per request.
    clients, think_s
        of a closed loop; 0 clients: open.

    >>> Requests.of([0.0, 0.5], [100, 200], [10, 1]).total_tokens
    311
    """

    arrival_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    max_tokens: Ints
    prefixes: Sequence[Sequence[int]] | None = None
    hash_tokens: int = 16
    clients: int = 0
    think_s: float = 0.0

    @classmethod
    def of(
        cls, arrival_s: ArrayLike, input_tokens: ArrayLike, output_tokens: ArrayLike, *, max_tokens: ArrayLike | None = None,
        prefixes: Sequence[Sequence[int]] | None = None, hash_tokens: int = 16, clients: int = 0, think_s: float = 0.0,
    ) -> Requests:  # fmt: skip
        """Checked columns, sorted by arrival; scalars broadcast. Raises SpecError naming column and row of the first bad value."""
        when = np.atleast_1d(np.asarray(arrival_s, dtype=float))
        if not 1 <= when.size <= MAX_REQUESTS:
            raise SpecError(f"must be from 1 to {MAX_REQUESTS:,}", field="requests", value=when.size)
        tokens = [_whole(x, when.size, name) for name, x in zip(COLUMNS[1:], (input_tokens, output_tokens), strict=True)]
        most = np.maximum(_whole(max_tokens, when.size, "max_tokens"), tokens[1]) if max_tokens is not None else tokens[1]
        if clients:
            when = np.where(np.arange(when.size) < clients, 0.0, np.nan)
            order = np.arange(when.size)
        else:
            _refuse(when, ~(np.isfinite(when) & (np.abs(when) <= 1e12)), "arrival_s", "must be a finite number of seconds")
            order = np.argsort(when, kind="stable")
        ordered = None if prefixes is None else [prefixes[i] for i in order.tolist()]
        outputs = tokens[1][order]
        declared = outputs if most is tokens[1] else most[order]
        return cls(when[order], tokens[0][order], outputs, declared, ordered, hash_tokens, clients, think_s)

    @classmethod
    def drawn(
        cls, arrivals: Arrivals | ClosedLoop, input_lengths: Lengths, output_lengths: Lengths, count: int, *, seed: int = 0,
        max_tokens: int | None = None,
    ) -> Requests:  # fmt: skip
        """`count` requests from laws of arrivals and lengths; the same seed gives the same requests."""
        if not 1 <= count <= MAX_REQUESTS:
            raise SpecError(f"must be from 1 to {MAX_REQUESTS:,}", field="requests", value=count)
        streams = [np.random.default_rng([seed, part]) for part in range(3)]
        loop = arrivals if isinstance(arrivals, ClosedLoop) else None
        when = np.zeros(count) if loop else arrivals.times(streams[0], count)
        return cls.of(
            when, input_lengths.sample(streams[1], count), output_lengths.sample(streams[2], count), max_tokens=max_tokens,
            clients=loop.clients if loop else 0, think_s=loop.think_s if loop else 0.0,
        )  # fmt: skip

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    @property
    def total_tokens(self) -> int:
        """Tokens of prompts and outputs."""
        return int(self.input_tokens.sum() + self.output_tokens.sum())

    @property
    def longest(self) -> int:
        """Tokens of the longest request at its end."""
        return int((self.input_tokens + self.output_tokens).max())

    @property
    def rate_per_s(self) -> float:
        """Mean arrival rate of an open stream, NaN where it has no span."""
        span = float(self.arrival_s[-1] - self.arrival_s[0])
        return (len(self) - 1) / span if span > 0 else float("nan")

    def take(self, rows: Ints) -> Requests:
        """Some of the rows, in the given order, which must keep arrivals in order."""
        prefixes = None if self.prefixes is None else [self.prefixes[i] for i in rows.tolist()]
        tokens = (self.input_tokens[rows], self.output_tokens[rows], self.max_tokens[rows])
        return Requests(self.arrival_s[rows], *tokens, prefixes, self.hash_tokens, self.clients, self.think_s)

    def scaled(self, rate_per_s: float) -> Requests:
        """The same stream at another mean rate: all gaps stretched alike."""
        if self.clients or not self.rate_per_s > 0:
            raise SpecError("needs an open stream that takes some time", field="rate")
        first = self.arrival_s[0]
        when = (self.arrival_s - first) * (self.rate_per_s / rate_per_s)
        return Requests(when, self.input_tokens, self.output_tokens, self.max_tokens, self.prefixes, self.hash_tokens)

    def sharing(self, tokens: int, *, block: int = 16) -> Requests:
        """The same with `tokens` tokens at the head of every prompt that all share, such as a system prompt."""
        if not 0 <= tokens <= MAX_TOKENS:
            raise SpecError(f"must lie between 0 and {MAX_TOKENS:,}", field="shared prefix", value=tokens)
        chain = tuple(range(tokens // block))
        heads = [chain[: int(n) // block] for n in self.input_tokens]
        columns = (self.arrival_s, self.input_tokens, self.output_tokens, self.max_tokens)
        return Requests(*columns, heads, block, self.clients, self.think_s)


def closed_loop(
    concurrency: int, input_tokens: float, output_tokens: float, *, prompts: int | None = None, ratio: float = 0.8, seed: int = 0
) -> Requests:
    """The protocol of InferenceMAX: `concurrency` clients that start together, 10 prompts each, lengths uniform from `ratio` to 1.

    >>> found = closed_loop(4, 1024, 1024)
    >>> len(found), found.clients, int(found.input_tokens.min()) >= 819
    (40, 4, True)
    """
    prompt, output = (Lengths.uniform(max(1, int(n * ratio)), int(n)) for n in (input_tokens, output_tokens))
    return Requests.drawn(ClosedLoop(concurrency), prompt, output, prompts or 10 * concurrency, seed=seed)


def _whole(values: Any, size: int, name: str) -> Ints:
    try:
        given = np.broadcast_to(np.asarray(values, dtype=float), (size,))
    except ValueError:
        raise SpecError(f"must be {size:,} numbers, one per request", field=name) from None
    _refuse(
        given,
        ~((given >= 1) & (given <= MAX_TOKENS) & (given == np.floor(given))),
        name,
        f"must be a whole number from 1 to {MAX_TOKENS:,}",
    )
    return given.astype(np.int64)


def _refuse(values: Floats, wrong: NDArray[np.bool_], name: str, rule: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        raise SpecError(rule, field=f"{name}, row {row + 1:,}", value=shown(f"{values[row]:g}"))
