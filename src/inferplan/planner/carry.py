"""Work carried by many processes: a function over picklable tasks, on any executor of `concurrent.futures`. Knows no task's content.

Results come as they are ready, with few tasks on their way at once, so that memory stays bounded whatever their number. A worker that
dies takes nothing along: its tasks are given out again. The same layer carries sweeps, batches of simulations, or anything else.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from inferplan.errors import InferplanError, SpecError

T = TypeVar("T")
R = TypeVar("R")
TRIES = 4
"""Workers that one task may take down before it is given up."""
MAX_JOBS = 1024
ANSWERS_WITHIN = "10s"
"""For which a Dask scheduler is waited for."""


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def carry(
    function: Callable[[T], R], tasks: Iterable[T], *, executor: Executor | None = None, jobs: int = 1, ahead: int | None = None
) -> Iterator[tuple[T, R]]:
    """Each task with what the function made of it, in the order in which they are ready; with one job in the order given, right here.

    executor
        who does the work; None for `jobs` processes of this machine (spawned; function and tasks must be picklable), 1 for none.
    ahead
        tasks on their way at once; None for two to a worker (of an executor that does not say how many it has: 64).

    Raises what the function raises, and InferplanError where a task has taken down four workers.

    >>> [result for _, result in carry(abs, [-2, 3])]
    [2, 3]
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as pool:
    ...     sorted(carry(abs, range(-3, 0), executor=pool))
    [(-3, 3), (-2, 2), (-1, 1)]
    """
    if not 1 <= jobs <= MAX_JOBS:
        raise SpecError(f"must be from 1 to {MAX_JOBS:,}", field="jobs", value=jobs)
    if executor is not None:
        yield from _Carrier(function, lambda: executor, ahead or 2 * _size(executor)).run(tasks)
    elif jobs == 1:
        yield from ((task, function(task)) for task in tasks)
    else:
        with _Pools(jobs) as pools:
            yield from _Carrier(function, pools.fresh, ahead or 2 * jobs).run(tasks)


def _size(executor: Executor) -> int:
    return int(getattr(executor, "_max_workers", None) or 32)


class _Pools:
    """Process pools, one after another: a pool whose worker has died is broken, and a new one takes its place."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.pool: ProcessPoolExecutor | None = None

    def fresh(self) -> Executor:
        self.close()
        from multiprocessing import get_context

        self.pool = ProcessPoolExecutor(self.jobs, mp_context=get_context("spawn"), initializer=_follow_parent)
        return self.pool

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> _Pools:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _follow_parent() -> None:
    """A worker's first act: leave interrupts to its parent, and end with it, however it ends."""
    from multiprocessing import parent_process

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


class _Carrier:
    """Tasks given out a few at a time, and again where a worker died."""

    def __init__(self, function: Callable[[Any], Any], fresh: Callable[[], Executor], ahead: int) -> None:
        self.function, self.fresh, self.ahead = function, fresh, ahead
        self.executor = fresh()
        self.out: dict[Future[Any], tuple[Any, int]] = {}

    def run(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        waiting = iter(tasks)
        try:
            while self._fill(waiting) or self.out:
                done, _ = wait(self.out, return_when=FIRST_COMPLETED)
                yield from self._collect(done)
        finally:
            for future in self.out:
                future.cancel()

    def _fill(self, waiting: Iterator[Any]) -> bool:
        """Give out tasks until enough are on their way; whether any is."""
        for task in islice(waiting, max(0, self.ahead - len(self.out))):
            self._submit(task, 1)
        return bool(self.out)

    def _submit(self, task: Any, tries: int) -> None:
        self.out[self.executor.submit(self.function, task)] = (task, tries)

    def _collect(self, done: Iterable[Future[Any]]) -> Iterator[tuple[Any, Any]]:
        """What has come back; a broken executor loses all that was on its way, which a new one gets again."""
        for future in done:
            if isinstance(future.exception(), BrokenExecutor):
                self._again()
                return
            task, _ = self.out.pop(future)
            yield task, future.result()

    def _again(self) -> None:
        lost = list(self.out.items())
        self.out = {}
        kept = [(task, tries, future) for future, (task, tries) in lost]
        self.executor = self._replaced()
        for task, tries, future in kept:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.out[future] = (task, tries)
            elif tries >= TRIES:
                raise InferplanError(f"a worker died {TRIES} times over one piece of work; it may have run out of memory: use fewer jobs")
            else:
                self._submit(task, tries + 1)

    def _replaced(self) -> Executor:
        old, new = self.executor, self.fresh()
        if new is old:
            raise InferplanError("the executor that was given has lost a worker, and takes no more work")
        return new


@contextmanager
def dask_executor(scheduler: str | None = None, *, jobs: int | None = None) -> Iterator[Executor]:
    """An executor on Dask workers: those of the scheduler at an address, or `jobs` processes of this machine.

    Dask gives the tasks of a worker that died to another one, three times, and takes workers up as they come. Raises SpecError where
    `distributed` is not installed or the scheduler does not answer.
    """
    try:
        import distributed
    except ImportError:
        raise SpecError("needs Dask: pip install 'inferplan[distributed]'", field="scheduler", value=scheduler) from None
    if scheduler is not None:
        with _client(distributed.Client, scheduler) as client:
            yield _executor(client)
        return
    cluster: Any = distributed
    with (
        cluster.LocalCluster(n_workers=jobs or cores(), threads_per_worker=1, processes=True, dashboard_address=None) as local,
        cluster.Client(local) as client,
    ):
        yield _executor(client)


def _client(client: Any, scheduler: str) -> Any:
    try:
        return client(scheduler, timeout=ANSWERS_WITHIN)
    except (OSError, TimeoutError, ValueError) as e:
        raise SpecError(f"does not answer: {str(e).splitlines()[0][:100]}", field="scheduler", value=scheduler) from None


def _executor(client: Any) -> Executor:
    """Tasks are not pure in Dask's sense: equal ones may not share a result while one of them is lost."""
    found: Executor = client.get_executor(pure=False, retries=2)
    found._max_workers = max(1, sum(client.nthreads().values()))  # type: ignore[attr-defined]
    return found
