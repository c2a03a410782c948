"""The one shape of every long job: a generator that yields events and returns its result.

Yield only where stopping is safe: `close()` on the generator cancels it there. `yield from`
composes. Knows nothing of threads, terminals or disks.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from ckpt.checkpoint import Finding


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is: `done` of `total` bytes (`total` None when unknown) of `what`."""

    done: int
    total: int | None
    what: str


@dataclass(frozen=True, slots=True)
class Found:
    """A check found something."""

    finding: Finding


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for whoever watches the job."""

    text: str


Event: TypeAlias = Progress | Found | Note
T = TypeVar("T")
Operation: TypeAlias = Generator[Event, None, T]


def ignore(_event: Event) -> None:
    """Take an event and do nothing with it."""


def drive(operation: Operation[T], on_event: Callable[[Event], None] = ignore) -> T:
    """Run an operation to its end, hand each event to `on_event`, return its result."""
    while True:
        try:
            event = next(operation)
        except StopIteration as stop:
            result: T = stop.value
            return result
        on_event(event)
