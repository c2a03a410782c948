"""Doing many jobs on all cores, their results in order: the caller's thread alone yields."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Self, TypeVar

import numpy as np

from ckpt import fs
from ckpt.numbers.decoding import Scratch

J = TypeVar("J")
R = TypeVar("R")

MOST_THREADS = 8


class Workers:
    """Threads that start when there is more than one job, each with its own memory."""

    def __init__(self) -> None:
        self._threads = min(_cores(), MOST_THREADS)
        self._pool: ThreadPoolExecutor | None = None
        self._own = threading.local()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def each(self, jobs: Iterable[J], work: Callable[[J, Scratch], R]) -> Iterator[tuple[J, R]]:
        """Yield each job with its result, in the order of the jobs; few are begun ahead."""
        waiting = iter(jobs)
        first = list(islice(waiting, 2))
        if self._threads == 1 or len(first) < 2:
            for job in (*first, *waiting):
                yield job, self._work(job, work)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "ckpt-tensors", _be_polite)
        begun: deque[tuple[J, Future[R]]] = deque()
        try:
            for job in (*first, *islice(waiting, 2 * self._threads)):
                begun.append((job, self._pool.submit(self._work, job, work)))
            while begun:
                job, result = begun.popleft()
                yield job, result.result()
                for following in islice(waiting, 1):
                    begun.append((following, self._pool.submit(self._work, following, work)))
        finally:
            for _, left in begun:
                left.cancel()

    def _work(self, job: J, work: Callable[[J, Scratch], R]) -> R:
        scratch = getattr(self._own, "scratch", None)
        if scratch is None:
            scratch = self._own.scratch = Scratch()
        with np.errstate(all="ignore"):  # of values that are not finite: they are counted
            return work(job, scratch)


def _be_polite() -> None:
    """Let a trainer's reads and writes go first."""
    fs.idle_io_priority()


def _cores() -> int:
    with suppress(AttributeError, OSError):  # no such call here
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
