"""A model of power cuts: which states of a directory a trace of disk calls may leave behind.

What no fsync covers may be lost, each change of a directory and each write for itself. A rename
or an exchange is one change: every journalled file system keeps it whole. Touches no disk.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TypeAlias

from ckpt.fs import Call
from ckpt.selftest.tree import Picture

MOST_OPEN = 6
"""So many changes that may be lost are tried in all combinations."""

SAMPLES = 24
"""Of more than that, so many combinations are drawn, beside the ones that lose or keep one."""

_ROOT = 0
_Name: TypeAlias = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that a power cut may undo, and the trace's call that makes it durable.

    Of a directory: what names stand for afterwards (None: nothing). Of a file: bytes from `offset`
    on, or its new size alone. `durable_at` is None when nothing makes it durable.
    """

    at: int
    durable_at: int | None = None
    names: tuple[tuple[_Name, int | None], ...] = ()
    file: int = -1
    offset: int = 0
    data: bytes = b""
    size: int | None = None


@dataclass(slots=True)
class _Disk:
    """Directories and files by number, as they are when everything was kept."""

    directories: dict[int, dict[str, int]] = field(default_factory=lambda: {_ROOT: {}})
    files: dict[int, bytearray] = field(default_factory=dict)

    def find(self, path: str) -> int | None:
        """Return the number of what stands at a path below the root, None for nothing."""
        at = _ROOT
        for part in path.split("/") if path else ():
            found = self.directories.get(at, {}).get(part)
            if found is None:
                return None
            at = found
        return at

    def name(self, path: str) -> _Name | None:
        """Return the directory and the last part of a path, None when there is no directory."""
        parent, _, last = path.rpartition("/")
        directory = self.find(parent)
        return None if directory not in self.directories else (directory, last)

    def take(self, change: Change) -> None:
        for (directory, name), number in change.names:
            if number is None:
                self.directories[directory].pop(name, None)
            else:
                self.directories[directory][name] = number
        if change.file >= 0:
            content = self.files[change.file]
            end = change.offset + len(change.data)
            if change.size is not None:
                del content[change.size :]
                end = change.size
            content.extend(bytes(max(0, end - len(content))))
            content[change.offset : change.offset + len(change.data)] = change.data

    def copy(self) -> "_Disk":
        return _Disk(
            {number: dict(names) for number, names in self.directories.items()},
            {number: bytearray(content) for number, content in self.files.items()},
        )

    def picture(self) -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}
        self._draw(_ROOT, "", found)
        return found

    def _draw(self, directory: int, prefix: str, found: dict[str, bytes | None]) -> None:
        for name, number in self.directories[directory].items():
            if number in self.directories:
                found[prefix + name] = None
                self._draw(number, f"{prefix}{name}/", found)
            else:
                found[prefix + name] = bytes(self.files[number])


class PowerCuts:
    """The changes that a trace made to a directory, and what a power cut may leave of them.

    `without` are places in the trace of fsyncs that are taken as not made. `root` is the directory
    that `before` is the picture of; calls elsewhere are passed over.
    """

    def __init__(
        self, root: str, before: Picture, trace: Sequence[Call], without: Iterable[int] = ()
    ) -> None:
        self._root = root.rstrip("/")
        self._before = _Disk()  # knows every file and directory that is ever made, empty at first
        self._now = _Disk()
        self._changes: list[Change] = []
        self._open: set[int] = set()
        self._synced_at: dict[tuple[int, int], int] = {}
        self._written: dict[int, int] = {}
        self.length = len(trace)
        for name, data in sorted(before.items()):
            self._add(name, data)
        passed_over = frozenset(without)
        for at, call in enumerate(trace):
            path = self._inside(call.path)
            if path is not None and at not in passed_over:
                self._see(at, call, path)

    @property
    def after(self) -> dict[str, bytes | None]:
        """The picture of the directory when nothing was lost."""
        return self._now.picture()

    def states(self, *, seed: int = 0) -> Iterator[tuple[int, dict[str, bytes | None]]]:
        """Yield (calls made, picture) of all that a cut before any call, or after all, may leave.

        A state may come more than once.
        """
        for made in sorted({each.at + 1 for each in self._changes} | {0, self.length}):
            for picture in self.states_after(made, seed=seed):
                yield made, picture

    def states_after(self, made: int, *, seed: int = 0) -> Iterator[dict[str, bytes | None]]:
        """Yield what a power cut may leave after the first `made` calls of the trace."""
        base = self._before.copy()
        changes = [each for each in self._changes if each.at < made]
        is_open = [each.durable_at is None or each.durable_at >= made for each in changes]
        first = is_open.index(True) if True in is_open else len(changes)
        for change in changes[:first]:
            base.take(change)
        rest = changes[first:]
        places = [place for place, each in enumerate(is_open[first:]) if each]
        chance = random.Random(seed * 7919 + made)  # noqa: S311 - chosen again alike, not secret
        for lost in _subsets(places, chance):
            state = base.copy()
            for place, change in enumerate(rest):
                if place not in lost:
                    state.take(change)
            yield state.picture()

    # ---- reading the trace --------------------------------------------------------------------

    def _inside(self, path: str) -> str | None:
        if path == self._root:
            return ""
        return path.removeprefix(f"{self._root}/") if path.startswith(f"{self._root}/") else None

    def _add(self, path: str, data: bytes | None) -> None:
        number = self._new(is_directory=data is None)
        name = self._now.name(path)
        if name is None:
            raise ValueError(path)
        for disk in (self._before, self._now):
            disk.take(Change(-1, names=((name, number),)))
            if data:
                disk.take(Change(-1, file=number, data=data))

    def _new(self, *, is_directory: bool) -> int:
        number = len(self._now.directories) + len(self._now.files)
        for disk in (self._before, self._now):
            if is_directory:
                disk.directories[number] = {}
            else:
                disk.files[number] = bytearray()
        return number

    def _see(self, at: int, call: Call, path: str) -> None:
        if call.name in ("fsync-directory", "fsync"):
            self._sync(at, self._now.find(path))
        elif call.name == "mkdir":
            self._make(at, path, is_directory=True)
        elif call.name == "create":
            self._make(at, path, is_directory=False)
            self._written[self._now.find(path) or 0] = 0
        elif call.name in ("unlink", "rmdir"):
            self._name(at, {path: None})
        elif call.name in ("rename", "exchange", "link"):
            self._give(at, call.name, self._inside(call.other), path)
        elif call.name in ("write", "append", "reserve", "truncate", "describe"):
            self._write(at, call, path)

    def _make(self, at: int, path: str, *, is_directory: bool) -> None:
        parent = path.rpartition("/")[0]
        if is_directory and parent and self._now.find(parent) is None:
            self._make(at, parent, is_directory=True)
        if self._now.find(path) is None:
            self._name(at, {path: self._new(is_directory=is_directory)})

    def _give(self, at: int, kind: str, source: str | None, target: str) -> None:
        """Take a rename, exchange or link into account; one that must have failed is none."""
        moved = self._now.find(source) if source is not None else None
        found = self._now.find(target)
        if source is None or moved is None or moved == found:
            return
        if kind == "exchange":
            if found is not None:
                self._name(at, {source: found, target: moved})
        elif kind == "link":
            if found is None:
                self._name(at, {target: moved})
        elif found is None or self._may_be_replaced(found, moved):
            self._name(at, {source: None, target: moved})

    def _may_be_replaced(self, found: int, by: int) -> bool:
        if found in self._now.directories:
            return by in self._now.directories and not self._now.directories[found]
        return by in self._now.files

    def _name(self, at: int, meanings: Mapping[str, int | None]) -> None:
        names = []
        for path, number in meanings.items():
            name = self._now.name(path)
            if name is None or (number is None and self._now.find(path) is None):
                return
            names.append((name, number))
        self._record(Change(at, names=tuple(names)))

    def _write(self, at: int, call: Call, path: str) -> None:
        if call.name == "append":
            self._make(at, path, is_directory=False)
        number = self._now.find(path)
        if number in self._now.files:
            self._record(self._content(at, call, number))

    def _content(self, at: int, call: Call, number: int) -> Change:
        held = len(self._now.files[number])
        if call.name == "truncate":
            return Change(at, file=number, size=call.size_bytes)
        if call.name == "reserve":
            return Change(at, file=number, size=max(call.size_bytes, held))
        data = bytes(call.data or b"")
        if call.name == "describe":
            return Change(at, file=number, size=len(data), data=data)
        offset = call.offset
        if offset is None:
            offset = held if call.name == "append" else self._written.get(number, 0)
        self._written[number] = offset + len(data)
        return Change(at, file=number, offset=offset, data=data)

    def _record(self, change: Change) -> None:
        self._open.add(len(self._changes))
        self._changes.append(change)
        self._now.take(change)

    def _sync(self, at: int, number: int | None) -> None:
        """Mark what an fsync makes durable: a change of two directories needs both."""
        for place in sorted(self._open):
            change = self._changes[place]
            concerned = {directory for (directory, _), _ in change.names} or {change.file}
            if number not in concerned:
                continue
            self._synced_at[place, number] = at
            if all((place, each) in self._synced_at for each in concerned):
                self._changes[place] = replace(change, durable_at=at)
                self._open.remove(place)


def _subsets(places: Sequence[int], chance: random.Random) -> Iterator[frozenset[int]]:
    """Yield which changes are lost: all combinations of a few, a choice of many."""
    if len(places) <= MOST_OPEN:
        for chosen in product((False, True), repeat=len(places)):
            yield frozenset(
                place for place, is_lost in zip(places, chosen, strict=True) if is_lost
            )
        return
    every = frozenset(places)
    yield from (frozenset(), every)
    for place in places:
        yield frozenset({place})
        yield every - {place}
    for at in range(1, len(places)):
        yield frozenset(places[at:])
    for _ in range(SAMPLES):
        yield frozenset(place for place in places if chance.random() < 0.5)
