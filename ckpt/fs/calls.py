"""The one door to the disk: every call passes `call`, so that a test can see, fail or stop it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One disk call about to be made: its name, its path, and bytes asked for (0: no payload).

    `other` is the second path of a rename, an exchange or a link (the source; `path` is the
    target); `data` is what a write is about to put there, from byte `offset` on (None: appended).
    """

    name: str
    path: str
    size_bytes: int = 0
    other: str = ""
    data: bytes | memoryview | None = None
    offset: int | None = None


Hook: TypeAlias = Callable[[Call], None]
_hooks: list[Hook] = []


@contextmanager
def hooked(hook: Hook) -> Iterator[None]:
    """Let `hook` see every disk call before it is made; what it raises is what the call raises."""
    _hooks.append(hook)
    try:
        yield
    finally:
        _hooks.remove(hook)


def call(name: str, path: str | Path, function: Callable[[], T], size_bytes: int = 0) -> T:
    """Make one disk call that reads, or that changes nothing but `path`."""
    for hook in _hooks:
        hook(Call(name, str(path), size_bytes))
    return function()


def call_between(
    name: str, source: str | Path, target: str | Path, function: Callable[[], T]
) -> T:
    """Make one disk call that concerns two names."""
    for hook in _hooks:
        hook(Call(name, str(target), other=str(source)))
    return function()


def call_writing(
    name: str,
    path: str | Path,
    data: bytes | memoryview,
    function: Callable[[], T],
    *,
    offset: int | None = None,
) -> T:
    """Make one disk call that puts `data` into a file."""
    for hook in _hooks:
        hook(Call(name, str(path), len(data), data=data, offset=offset))
    return function()
