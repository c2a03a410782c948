"""Reading many stretches on all cores, told to one caller: its thread alone yields and decides.

Little is read in the caller's own thread. Threads of ours read with idle I/O priority, so that a
trainer's reads and writes go first, and are gone when the reading ends or is cancelled.
"""

import os
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self, TypeAlias

from ckpt import fs
from ckpt.verify.hashing import BLOCK_BYTES, Manner, Part, Stretch, read_stretch

ALONE_BYTES = 48 << 20
"""Up to here threads would cost more than they save."""

MOST_WORKERS = 16
STEP_BYTES = 1 << 22
TELL_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Step:
    """So many more bytes of a file were read; 0: the reading takes long, and goes on."""

    name: str
    count: int


Told: TypeAlias = "Step | Part"


def read_all(
    stretches: Iterable[Stretch], *, is_forgetful: bool = False
) -> Generator[Told, None, None]:
    """Read stretches and yield each part, and now and then how far it is; in no certain order.

    Closing the iterator stops the reading, and returns when no thread is left.
    """
    waiting = deque(stretches)
    if sum(stretch.end - stretch.start for stretch in waiting) <= ALONE_BYTES:
        buffer = memoryview(bytearray(BLOCK_BYTES))
        for stretch in waiting:
            reading = read_stretch(stretch, buffer, Manner(is_forgetful=is_forgetful))
            while True:
                try:
                    yield Step(stretch.name, next(reading))
                except StopIteration as stop:
                    yield stop.value
                    break
        return
    with _Crew(waiting, is_forgetful=is_forgetful) as crew:
        yield from crew.told()


class _Crew:
    """The threads that read; the first failure that is not the disk's ends the work of all."""

    def __init__(self, waiting: deque[Stretch], *, is_forgetful: bool) -> None:
        # the long ones first, so that none is left to one thread in the end
        self._waiting = deque(sorted(waiting, key=lambda each: each.start - each.end))
        long = sum(each.end - each.start > BLOCK_BYTES for each in waiting)
        self._manner = Manner(is_forgetful, is_ahead=long < _cores())
        self._told: SimpleQueue[Told | BaseException | None] = SimpleQueue()
        self._is_over = False
        self._name = waiting[0].name
        count = min(_cores(), MOST_WORKERS, len(waiting))
        # daemons, so that one whose start was interrupted cannot keep the process from ending
        self._threads = [
            threading.Thread(target=self._work, name="ckpt-verify", daemon=True)
            for _ in range(count)
        ]

    def __enter__(self) -> Self:
        try:
            for place, thread in enumerate(self._threads):
                try:
                    thread.start()
                except RuntimeError:  # no more threads for this user: those that run do it
                    del self._threads[place:]
                    break
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for every thread; a Ctrl-C meanwhile has to wait for it too."""
        self._is_over = True
        interruption: KeyboardInterrupt | None = None
        while any(thread.is_alive() for thread in self._threads):
            try:
                for thread in filter(threading.Thread.is_alive, self._threads):
                    thread.join()
            except KeyboardInterrupt as again:
                interruption = again
        if interruption is not None:
            raise interruption

    def told(self) -> Iterator[Told]:
        """Yield what the threads tell, until all of them are done."""
        working = len(self._threads)
        if not working:
            self._work()
            working = 1
        while working:
            try:
                each = self._told.get(timeout=TELL_EVERY_S)
            except Empty:
                yield Step(self._name, 0)
                continue
            if each is None:
                working -= 1
            elif isinstance(each, BaseException):
                raise each
            else:
                self._name = each.name if isinstance(each, Step) else each.stretch.name
                yield each

    def _work(self) -> None:
        try:
            fs.idle_io_priority()
            buffer = memoryview(bytearray(BLOCK_BYTES))
            while not self._is_over:
                try:
                    stretch = self._waiting.popleft()
                except IndexError:
                    return
                part = self._read(stretch, buffer)
                if part is not None:
                    self._told.put(part)
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            self._told.put(error)
        finally:
            self._told.put(None)

    def _read(self, stretch: Stretch, buffer: memoryview) -> Part | None:
        """Read one stretch, and tell how far it is; None when the reading is over."""
        reading = read_stretch(stretch, buffer, self._manner)
        untold = 0
        while not self._is_over:
            try:
                untold += next(reading)
            except StopIteration as stop:
                self._told.put(Step(stretch.name, untold))
                part: Part = stop.value
                return part
            if untold >= STEP_BYTES:
                self._told.put(Step(stretch.name, untold))
                untold = 0
        reading.close()
        return None


def _cores() -> int:
    with suppress(AttributeError, OSError):  # no such call here
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
