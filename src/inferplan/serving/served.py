"""What has become of requests: a row each, and what follows from the rows. Knows no engine."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferplan.serving.requests import Requests
from inferplan.serving.schedule import Schedule
from inferplan.shown import Shown

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One replica over time, a row per move: its end in seconds, requests that run, tokens in cache."""

    t_s: Floats
    running: NDArray[np.int64]
    kv_tokens: Floats

    @classmethod
    def of(cls, columns: tuple[array[float], array[int], array[float]]) -> Series:
        """The series that a machine has noted."""
        return cls(np.array(columns[0]), np.array(columns[1]), np.array(columns[2]))


@dataclass(frozen=True, slots=True, eq=False)
class Served(Shown):
    """A row per request; times in seconds, NaN where a partial run did not serve it.

    begun_s, first_s, last_s, finish_s
        when its first prompt token was scheduled, its first and last token were made, and its answer was complete.
    itl_max_s
        longest gap between two of its tokens; 0 for one token.
    preempted, cached_tokens, replica
        times its blocks were taken, prompt tokens found in cache, and which replica served it.
    slot_steps
        of static batching: decode steps of all slots, used or not.
    front_s
        what host and front end take for each prompt beside the engine's steps; times that begin with the arrival have it, no other does.
    """

    requests: Requests
    begun_s: Floats
    first_s: Floats
    last_s: Floats
    finish_s: Floats
    itl_max_s: Floats
    preempted: NDArray[np.int32]
    cached_tokens: NDArray[np.int32]
    replica: NDArray[np.int32]
    partial: bool
    schedule: Schedule
    series: list[Series]
    slot_steps: int = 0
    front_s: Floats | float = 0.0

    def with_front(self, front_s: Floats | float) -> Served:
        """The same where host and front end take so many seconds for each prompt."""
        return replace(self, front_s=front_s)

    @property
    def done(self) -> NDArray[np.bool_]:
        """Which requests are served."""
        return np.isfinite(self.finish_s)

    @property
    def queue_s(self) -> Floats:
        """From arrival until the first prompt token was scheduled."""
        return self.begun_s - self.requests.arrival_s

    @property
    def ttft_s(self) -> Floats:
        """From arrival to the first token, front end included."""
        return self.first_s - self.requests.arrival_s + self.front_s

    @property
    def e2e_s(self) -> Floats:
        """From arrival to the end of the answer, front end included."""
        return self.finish_s - self.requests.arrival_s + self.front_s

    @property
    def tpot_s(self) -> Floats:
        """Mean gap between tokens after the first; NaN for answers of one token."""
        gaps = self.requests.output_tokens - 1
        found: Floats = np.where(gaps > 0, (self.last_s - self.first_s) / np.maximum(gaps, 1), np.nan)
        return found

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The rows as columns, by the glossary's keys."""
        r = self.requests
        return {
            "arrival_s": r.arrival_s,
            "input_tokens": r.input_tokens,
            "output_tokens": r.output_tokens,
            "queue_s": self.queue_s,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "itl_max_s": self.itl_max_s,
            "e2e_s": self.e2e_s,
            "preemptions": self.preempted,
            "cached_tokens": self.cached_tokens,
            "replica": self.replica,
        }

    def frame(self) -> Any:
        """The rows as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.columns)
