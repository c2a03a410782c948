"""One pass over a stretch of a file: what it hashes to, and what the file was meanwhile.

A pass yields the bytes of each block, so that whoever drives it can stop between two. It reads,
and never maps: a file cut short is a shorter read and no dead process. Compares nothing.
"""

from collections.abc import Generator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from ckpt import fs
from ckpt.verify.ahead import Ahead

BLOCK_BYTES = 1 << 19  # stays in the second-level cache between read and hash
FORGET_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes `start` to `end` (exclusive) of a file that was `size_bytes` long when it was listed.

    `where` leads to it and `name` is what it is called. `chunk_bytes` None: no chunk is hashed;
    else `start` is a multiple of it. `may_be_link`: its format saw the link and let it pass (the
    Hub cache's own).
    """

    name: str
    where: str
    size_bytes: int
    start: int
    end: int
    chunk_bytes: int | None = None
    with_sha256: bool = True
    may_be_link: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """What came of a stretch; hashes are in lower case, and None for what could not be read.

    `before` and `after` are what the open file was around the reading, `named` is what stood at
    its name in the end; all None where it was not opened. `error` is the first that the disk gave.
    """

    stretch: Stretch
    sha256: str | None = None
    chunks: tuple[str | None, ...] = ()
    read_bytes: int = 0
    before: fs.Identity | None = None
    after: fs.Identity | None = None
    named: fs.Identity | None = None
    is_link: bool = False
    error: OSError | None = None


@dataclass(frozen=True, slots=True)
class Manner:
    """How files are read.

    `is_forgetful`: what was read is dropped from the system's cache. `is_ahead`: a thread reads
    while this one hashes.
    """

    is_forgetful: bool = False
    is_ahead: bool = False


PLAINLY = Manner()


def read_stretch(
    stretch: Stretch, buffer: memoryview, manner: Manner = PLAINLY
) -> Generator[int, None, Part]:
    """Read and hash a stretch; what the disk refuses is in the part that is returned."""
    try:
        named = fs.identity(stretch.where, follow=False)
        if named is None or (named.is_symlink and not stretch.may_be_link):
            return Part(stretch, is_link=named is not None)
        with fs.File(stretch.where) as file:
            part = Part(stretch, before=file.opened_as)
            if file.opened_as.size_bytes == stretch.size_bytes:
                part = yield from _hashed(file, part, buffer, manner)
            after = file.identity()
        return replace(part, after=after, named=fs.identity(stretch.where))
    except OSError as error:
        return Part(stretch, error=error)


def _hashed(
    file: fs.File, part: Part, buffer: memoryview, manner: Manner
) -> Generator[int, None, Part]:
    stretch, hashes = part.stretch, _Hashes(part.stretch)
    at, forgotten, failure = stretch.start, stretch.start, None
    with ExitStack() as stack:
        ahead = None
        if manner.is_ahead and stretch.end - stretch.start > len(buffer):
            with suppress(RuntimeError):  # no more threads for this user
                ahead = stack.enter_context(Ahead(file, stretch.start, stretch.end))
        while at < stretch.end:
            size = min(len(buffer), stretch.end - at, hashes.room)
            try:
                if ahead is not None:
                    block = ahead.take(size)
                else:
                    block = buffer[: file.read_into([buffer[:size]], at)]
            except OSError as error:  # a bad place on the disk: chunks behind it can still be good
                failure, ahead = failure or error, None
                at += hashes.skip(stretch.end - at)
                continue
            if not block:
                break
            hashes.update(block)
            at += len(block)
            if manner.is_forgetful and (at - forgotten >= FORGET_BYTES or at >= stretch.end):
                file.forget(forgotten, at - forgotten)
                forgotten = at
            yield len(block)
    sha256, chunks = hashes.end(is_whole=failure is None)
    return replace(
        part, sha256=sha256, chunks=chunks, read_bytes=at - stretch.start, error=failure
    )


class _Hashes:
    """The digests of one stretch: of all of it, and of each chunk."""

    def __init__(self, stretch: Stretch) -> None:
        self._sha256 = None
        self._new_chunk = None
        if stretch.with_sha256:
            import hashlib

            self._sha256 = hashlib.sha256()
        if stretch.chunk_bytes is not None:
            import blake3

            self._new_chunk = blake3.blake3
            self._chunk = self._new_chunk()
        self._chunk_bytes = stretch.chunk_bytes or (1 << 62)
        self._chunks: list[str | None] = []
        self.room = self._chunk_bytes
        """Bytes until the next chunk begins: no block may span two."""

    def update(self, data: memoryview) -> None:
        if self._sha256 is not None:
            self._sha256.update(data)
        if self._new_chunk is not None:
            self._chunk.update(data)
            self.room -= len(data)
            if not self.room:
                self._close(self._chunk.hexdigest())

    def skip(self, left: int) -> int:
        """Give the current chunk up; return how many of the `left` bytes that passes over."""
        passed = min(left, self.room)
        self._close(None)
        return passed

    def end(self, *, is_whole: bool) -> tuple[str | None, tuple[str | None, ...]]:
        if self._new_chunk is not None and self.room < self._chunk_bytes:
            self._close(self._chunk.hexdigest())
        sha256 = self._sha256.hexdigest() if self._sha256 is not None and is_whole else None
        return sha256, tuple(self._chunks)

    def _close(self, digest: str | None) -> None:
        self._chunks.append(digest)
        if self._new_chunk is not None:
            self._chunk = self._new_chunk()
        self.room = self._chunk_bytes
