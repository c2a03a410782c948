"""New files written and hashed in one pass: sha256 of the whole, BLAKE3 of each chunk.

Small files are written by the caller's thread alone, in order. From a few MiB on a second thread
computes the sha256, which is what takes longest, and two write; memory stays bounded.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

from ckpt import fs

if TYPE_CHECKING:
    import hashlib

    from _typeshed import ReadableBuffer

CHUNK_BYTES = 1 << 26
_BLOCK_BYTES = 1 << 22  # a multiple of the alignment of direct writes
_BLOCKS = 12  # 48 MiB: how far the disk may lag behind the hash
_WRITERS = 2
_PIECE_BYTES = 1 << 19  # copied and chunk-hashed while it is in the processor's cache


@dataclass(frozen=True, slots=True)
class Written:
    """What was written of one file: its size, its sha256, and the BLAKE3 of each of its chunks.

    Chunks are of `chunk_bytes` bytes of the file, the last one shorter; hashes are in lower case.
    """

    size_bytes: int
    sha256: str
    chunk_bytes: int
    chunks: tuple[str, ...]


class Sink(Protocol):
    """What `torch.save` and the like can write to."""

    def write(self, data: "ReadableBuffer", /) -> int:
        """Take all of `data`; return its length."""

    def flush(self) -> None:
        """Do nothing: what is durable is decided when the file is finished."""


def write_hashed(path: Path, write: Callable[[Sink], object]) -> Written:
    """Write a new file with what `write` puts into the sink it is given; durable on return.

    Raises:
        OSError: the disk refused; what `write` made of that is its cause.
    """
    with HashedFile(path) as file:
        try:
            write(file)
        except BaseException as error:
            if file.failure is not None and file.failure is not error:
                raise file.failure from error
            raise
        return file.finish()


class HashedFile:
    """A file being written, hashed on the way; made exclusively, complete after `finish`.

    Closing it without `finish` leaves what was written so far: its directory is the caller's to
    remove.
    """

    def __init__(self, path: Path) -> None:
        import hashlib  # late: only a writer hashes

        self._digest = hashlib.sha256()
        self._chunks = _ChunkHashes()
        self._block = _Block(is_first=True)
        self._crew: _Crew | None = None
        self._file = fs.DirectFile(path)  # last: what fails before leaves no file behind

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._crew is not None:
                self._crew.end()
        finally:
            self._file.__exit__(kind, error, trace)

    @property
    def failure(self) -> BaseException | None:
        """What went wrong in a thread of ours; `write` and `finish` raise it."""
        return None if self._crew is None else self._crew.failure

    def reserve(self, size: int) -> None:
        """Reserve space, so that a full disk is met before the first byte, where it can be."""
        self._file.reserve(size)

    def write(self, data: "ReadableBuffer", /) -> int:
        """Take a copy of all of `data`; return its length."""
        view = memoryview(data)
        if not view.nbytes:
            return 0
        rest = view.cast("B")
        while rest:
            rest = rest[self._take(rest[:_PIECE_BYTES]) :]
        return view.nbytes

    def flush(self) -> None:
        """Do nothing: it is `finish` that makes the file durable."""

    def finish(self) -> Written:
        """Write what is left and make the content durable.

        Raises:
            OSError: the disk refused.
        """
        block = self._block
        if self._crew is None:
            self._file.write(block.content)
            self._digest.update(block.content)
        else:
            aligned = block.filled - block.filled % fs.ALIGNMENT
            self._crew.take(block, aligned)
            self._crew.end_writing()
            self._crew.check()
            self._file.write_at(block.memory[aligned : block.filled], block.offset + aligned)
        self._file.sync()
        if self._crew is not None:  # it hashed the last blocks while the disk was awaited
            self._crew.end()
            self._crew.check()
        size = block.offset + block.filled
        return Written(size, self._digest.hexdigest(), CHUNK_BYTES, self._chunks.all())

    def _take(self, data: memoryview) -> int:
        block = self._block
        if block.filled == _BLOCK_BYTES:
            block = self._next_block()
        part = data[: _BLOCK_BYTES - block.filled]
        place = block.memory[block.filled : block.filled + len(part)]
        place[:] = part
        self._chunks.update(place)
        block.filled += len(part)
        return len(part)

    def _next_block(self) -> "_Block":
        full = self._block
        if self._crew is None:
            self._file.bypass_cache()
            self._crew = _Crew(self._file, self._digest)
            self._crew.start()
        self._crew.take(full, full.filled)
        self._block = self._crew.free_block()
        self._block.offset = full.offset + _BLOCK_BYTES
        self._block.filled = 0
        return self._block


class _Block:
    """Memory that is filled, hashed and written, and then used again."""

    __slots__ = ("filled", "memory", "offset", "users", "written")

    def __init__(self, *, is_first: bool = False) -> None:
        # a small file has no other block than the first and fills little of it
        self.memory = fs.aligned_memory(_BLOCK_BYTES, in_large_pages=not is_first)
        self.filled = 0
        self.offset = 0
        self.written = 0  # how much of it a thread is to write
        self.users = 0

    @property
    def content(self) -> memoryview:
        return self.memory[: self.filled]


_Jobs: TypeAlias = "SimpleQueue[_Block | None]"


class _Crew:
    """The threads that hash and write full blocks; the first failure stops the work of all."""

    def __init__(self, file: fs.DirectFile, digest: "hashlib._Hash") -> None:
        self.failure: BaseException | None = None
        self._file = file
        self._digest = digest
        self._lock = threading.Lock()
        self._free: SimpleQueue[_Block] = SimpleQueue()
        self._to_hash: _Jobs = SimpleQueue()
        self._to_write: _Jobs = SimpleQueue()
        self._hashers: list[threading.Thread] = []
        self._writers: list[threading.Thread] = []
        for _ in range(_BLOCKS - 1):
            self._free.put(_Block())

    def start(self) -> None:
        self._hashers.append(self._started(self._to_hash, self._hash))
        while len(self._writers) < _WRITERS:
            self._writers.append(self._started(self._to_write, self._write))

    def take(self, block: _Block, written: int) -> None:
        """Hash a block, and write the first `written` bytes of it."""
        block.users, block.written = 2, written
        self._to_hash.put(block)
        self._to_write.put(block)

    def free_block(self) -> _Block:
        """Wait for a block that can be filled anew."""
        block = self._free.get()
        self.check()
        return block

    def check(self) -> None:
        """Raise what went wrong in a thread, if anything did."""
        if self.failure is not None:
            raise self.failure

    def end_writing(self) -> None:
        """Wait until all that was taken is written."""
        self._end(self._to_write, self._writers)

    def end(self) -> None:
        """Wait for all that was taken and for every thread."""
        self._end(self._to_write, self._writers)
        self._end(self._to_hash, self._hashers)

    def _end(self, jobs: _Jobs, threads: list[threading.Thread]) -> None:
        """Let the threads finish; a Ctrl-C has to wait for it.

        The file is closed next, and a thread that still wrote could write to whatever gets its
        descriptor.
        """
        interruption: KeyboardInterrupt | None = None
        while threads:
            try:
                for _ in threads:
                    jobs.put(None)
                for thread in threads:
                    thread.join()
                threads.clear()
            except KeyboardInterrupt as error:
                interruption = error
        if interruption is not None:
            raise interruption

    def _started(self, jobs: _Jobs, do: Callable[[_Block], None]) -> threading.Thread:
        # a daemon, so that one whose start was interrupted cannot keep the process from ending
        thread = threading.Thread(
            target=self._work, args=(jobs, do), name="ckpt-write", daemon=True
        )
        thread.start()
        return thread

    def _work(self, jobs: _Jobs, do: Callable[[_Block], None]) -> None:
        while (block := jobs.get()) is not None:
            try:
                if self.failure is None:
                    do(block)
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                self.failure = self.failure or error
            with self._lock:
                block.users -= 1
                is_free = block.users == 0
            if is_free:
                self._free.put(block)

    def _hash(self, block: _Block) -> None:
        self._digest.update(block.content)

    def _write(self, block: _Block) -> None:
        if block.written:
            self._file.write_at(block.memory[: block.written], block.offset)


class _ChunkHashes:
    """BLAKE3 of every `CHUNK_BYTES` bytes; pieces never span two chunks."""

    def __init__(self) -> None:
        import blake3  # late: only a writer hashes

        self._new = blake3.blake3
        self._hashes: list[str] = []
        self._hash = self._new()
        self._filled = 0

    def update(self, data: memoryview) -> None:
        self._hash.update(data)
        self._filled += len(data)
        if self._filled == CHUNK_BYTES:
            self._close()

    def all(self) -> tuple[str, ...]:
        if self._filled:
            self._close()
        return tuple(self._hashes)

    def _close(self) -> None:
        self._hashes.append(self._hash.hexdigest())
        self._hash = self._new()
        self._filled = 0
