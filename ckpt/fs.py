"""The only module that touches the disk (the mount table and /proc too).

Every call goes through `_call`, so `hooked()` lets a test see it, count its bytes, make it fail or
stop the process there. Paths are taken as they are; nothing here knows what a checkpoint is.
"""

import errno
import os
import stat as stat_module
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

T = TypeVar("T")

BLOCK_BYTES = 1 << 20
LOCAL_TYPES = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "f2fs", "bcachefs",
     "overlay", "jfs", "reiserfs", "ntfs3", "exfat", "vfat"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """One disk call about to be made: its name, its path, and bytes asked for (0: no payload)."""

    name: str
    path: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory. `is_directory` and `is_file` do not follow a symlink."""

    name: str
    is_directory: bool
    is_file: bool
    is_symlink: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells that a path's content may have changed."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    mode: int

    @property
    def is_directory(self) -> bool:
        """Whether the path is a directory."""
        return stat_module.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Whether the path is a regular file."""
        return stat_module.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        """Whether the path itself is a link (only `identity(..., follow=False)` says so)."""
        return stat_module.S_ISLNK(self.mode)

    @property
    def modified_at(self) -> float:
        """Modification time in epoch seconds."""
        return self.mtime_ns / 1e9


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table: where, and the file system's type."""

    point: str
    type: str
    is_read_only: bool

    @property
    def sends_events(self) -> bool:
        """Whether every change here can send an event: known local; unknown counts as remote."""
        return self.type in LOCAL_TYPES


class Stamp(NamedTuple):
    """The least that tells a path's content from before; a tuple, made by the thousand."""

    inode: int
    size_bytes: int
    mtime_ns: int


Hook = Callable[[Call], None]
_hooks: list[Hook] = []


@contextmanager
def hooked(hook: Hook) -> Iterator[None]:
    """Let `hook` see every disk call before it is made; what it raises is what the call raises."""
    _hooks.append(hook)
    try:
        yield
    finally:
        _hooks.remove(hook)


def _call(name: str, path: str | Path, function: Callable[[], T], size_bytes: int = 0) -> T:
    for hook in _hooks:
        hook(Call(name, str(path), size_bytes))
    return function()


# ---- looking --------------------------------------------------------------------------------


def identity(path: Path | str, *, follow: bool = True) -> Identity | None:
    """Return what the path is now, or None when nothing is there.

    Raises:
        OSError: the path cannot be looked at (permission, link loop, input/output error).
    """
    try:
        found = _call("stat", path, lambda: os.stat(path, follow_symlinks=follow))  # noqa: PTH116 - half the cost of Path.stat
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _identity_of(found)


def stamp(path: Path | str) -> Stamp | None:
    """Return what a path looks like now; one that cannot be looked at looks like its error."""
    try:
        found = _call("stat", path, lambda: os.stat(path))  # noqa: PTH116 - half the cost of Path.stat
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return Stamp(0, 0, -(error.errno or 1))
    return Stamp(found.st_ino, found.st_size, found.st_mtime_ns)


def is_directory(path: Path | str) -> bool:
    """Whether a directory stands there; False also where that cannot be known."""
    try:
        found = identity(path)
    except OSError:
        return False
    return found is not None and found.is_directory


def scan(directory: Path | str) -> tuple[Entry, ...]:
    """List a directory, unsorted, without a stat per entry."""
    listed = _listed.get()
    if listed is not None and (known := listed.get(str(directory))) is not None:
        return known

    def names() -> tuple[Entry, ...]:
        with os.scandir(directory) as entries:
            return tuple(
                Entry(
                    entry.name,
                    entry.is_dir(follow_symlinks=False),
                    entry.is_file(follow_symlinks=False),
                    entry.is_symlink(),
                )
                for entry in entries
            )

    found = _call("scan", directory, names)
    if listed is not None:
        listed[str(directory)] = found
    return found


_listed: ContextVar[dict[str, tuple[Entry, ...]] | None] = ContextVar("listed", default=None)


@contextmanager
def listing_once() -> Iterator[None]:
    """Within it each directory is listed once: whoever asks sees the same names, and cheaply."""
    token = _listed.set({})
    try:
        yield
    finally:
        _listed.reset(token)


def names_and_inodes(directory: Path | str) -> list[tuple[str, int]]:
    """List a directory's names with their inodes: what tells that one took another's name."""

    def names() -> list[tuple[str, int]]:
        with os.scandir(directory) as entries:
            return [(entry.name, entry.inode()) for entry in entries]

    return _call("scan", directory, names)


def read_link(path: Path) -> str:
    """Return what a symlink points at, as it is written."""
    return _call("readlink", path, lambda: os.readlink(path))  # noqa: PTH115 - keep the text as is


def real_path(path: Path) -> Path:
    """Resolve every symlink; a link loop raises OSError (ELOOP) instead of going on for ever."""

    def resolve() -> Path:
        try:
            return path.resolve(strict=False)
        except RuntimeError as loop:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from loop

    return _call("realpath", path, resolve)


def read_bytes(path: Path | str, *, limit: int | None = None) -> bytes:
    """Read a small file as long as it was when it was opened, or its first `limit` bytes."""
    with File(path) as file:
        size = file.opened_as.size_bytes
        return file.read_at(0, size if limit is None else min(size, limit))


def read_small(path: Path | str, most: int) -> bytes:
    """Read a file that should be small, whole.

    Raises:
        OSError: it cannot be read, or it holds more than `most` bytes (EFBIG).
    """
    with File(path) as file:
        size = file.opened_as.size_bytes
        if size > most:
            words = f"{size:,} bytes, expected at most {most:,}"
            raise OSError(errno.EFBIG, words, str(path))
        return file.read_at(0, size)


class File:
    """An open file read by offset: never mapped, so a file cut short cannot kill the process.

    Opening does not block on a FIFO and refuses anything but a regular file. `opened_as` is what
    it was then.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self._descriptor = _call("open", path, lambda: os.open(path, flags))
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket cannot even be opened
                raise OSError(errno.EINVAL, "not a regular file", self.path) from None
            raise
        try:
            self.opened_as = self.identity()
            if not self.opened_as.is_file:
                raise OSError(errno.EINVAL, "not a regular file", self.path)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def identity(self) -> Identity:
        """Return what the open file is now, whatever stands at its name."""
        return _identity_of(_call("fstat", self.path, lambda: os.fstat(self._descriptor)))

    def read_at(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes from `offset`; fewer only where the file ends."""
        parts: list[bytes] = []
        while size > 0:
            part = self._read_once(offset, min(size, 1 << 26))
            if not part:
                break
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_once(self, offset: int, size: int) -> bytes:
        return _call("read", self.path, lambda: os.pread(self._descriptor, size, offset), size)

    def _fill(self, buffer: bytearray, offset: int) -> int:
        return _call(
            "read", self.path, lambda: os.preadv(self._descriptor, [buffer], offset), len(buffer)
        )

    def blocks(self, block_bytes: int = BLOCK_BYTES) -> Iterator[memoryview]:
        """Yield the file from its start; each block is overwritten by the next."""
        buffer = bytearray(block_bytes)
        view = memoryview(buffer)
        offset = 0
        while True:
            count = self._fill(buffer, offset)
            if not count:
                return
            yield view[:count]
            offset += count


class Directory:
    """An open directory: reads through it go on seeing the same one, whatever takes its name.

    Where there is no /proc, its files are reached by name. `opened_as` is what it was then; its
    device and inode stay.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._descriptor = _call("open", path, lambda: os.open(path, flags))
        through = f"/proc/self/fd/{self._descriptor}"
        self._root = through if os.path.isdir(through) else self.path  # noqa: PTH112 - one call
        try:
            self.opened_as = _identity_of(_call("fstat", path, lambda: os.fstat(self._descriptor)))
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def inside(self, name: str) -> str:
        """Return a path that leads to `name` in this very directory while it is open."""
        return f"{self._root}/{name}"


def disk_usage(path: Path) -> tuple[int, int]:
    """Return (free, total) bytes of the file system that holds `path`, free as a user gets."""
    found = _call("statvfs", path, lambda: os.statvfs(path))
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def mount_of(path: Path) -> Mount | None:
    """Return the mount that holds the real path; None where there is no mount table."""
    try:
        table = read_proc("self/mountinfo")
    except OSError:
        return None
    return find_mount(table, str(real_path(path)))


def find_mount(table: str, real: str) -> Mount | None:
    """Return the mount with the longest prefix of a real path; of several there, the last."""
    best: Mount | None = None
    for line in table.splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if not separator or len(fields) < 6 or not tail[0]:
            continue
        point = _unescape_mount(fields[4])
        inside = point in ("/", real) or real.startswith(point + "/")
        if inside and (best is None or len(point) >= len(best.point)):
            best = Mount(point, tail[0], "ro" in fields[5].split(","))
    return best


def read_proc(name: str) -> str:
    """Read a file under /proc as text (`self/mountinfo`, `1234/stat`)."""
    path = f"/proc/{name}"

    def read() -> str:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - a plain path
            return file.read()

    return _call("proc", path, read)


def is_process_alive(pid: int) -> bool:
    """Whether a process of that number exists on this host (a zombie does not count)."""
    try:
        fields = read_proc(f"{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return False
    return bool(fields) and fields[0] not in ("Z", "X")


def process_start_ticks(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process: with its pid and boot id, its identity."""
    try:
        return int(read_proc(f"{pid}/stat").rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def boot_id() -> str | None:
    """What tells one boot of this host from the next; None where the kernel does not say."""
    try:
        return read_proc("sys/kernel/random/boot_id").strip()
    except OSError:
        return None


def inotify_inodes() -> frozenset[int]:
    """Inodes that the kernel really watches for this process by inotify.

    At the limit of watches some are silently not among them.
    """
    found = set()
    for entry in scan("/proc/self/fdinfo"):
        try:
            text = read_proc(f"self/fdinfo/{entry.name}")
        except OSError:
            continue  # closed since it was listed
        for line in text.splitlines():
            if line.startswith("inotify "):
                found |= {int(part[4:], 16) for part in line.split() if part.startswith("ino:")}
    return frozenset(found)


# ---- changing --------------------------------------------------------------------------------


def make_directory(path: Path, *, parents: bool = False) -> None:
    """Make a directory, mode 0777 & ~umask; with `parents` one that is there is fine."""
    if parents:
        _call("mkdir", path, lambda: os.makedirs(path, exist_ok=True))  # noqa: PTH103 - one call style
    else:
        _call("mkdir", path, lambda: os.mkdir(path))  # noqa: PTH102 - one call style


class NewFile:
    """A file being written: made exclusively, with mode 0666 & ~umask; fsynced by `sync`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = _call("create", path, lambda: os.open(path, flags, 0o666))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def reserve(self, size: int) -> None:
        """Reserve space now, so that a full disk is met before the first byte, where it can be."""
        if size == 0:
            return
        try:
            _call("reserve", self.path, lambda: os.posix_fallocate(self._descriptor, 0, size))
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise

    def write(self, data: bytes | memoryview) -> None:
        """Write all of `data`."""
        rest = memoryview(data).cast("B") if len(data) else memoryview(b"")
        while rest:
            rest = rest[self._write_once(rest[: 1 << 26]) :]

    def _write_once(self, part: memoryview) -> int:
        return _call("write", self.path, lambda: os.write(self._descriptor, part), len(part))

    def sync(self) -> None:
        """Make the content durable. A failure is final: the caller must not publish the file."""
        _call("fsync", self.path, lambda: os.fsync(self._descriptor))


def write_new(path: Path, data: bytes) -> None:
    """Write a new file, durable, exclusively created."""
    with NewFile(path) as file:
        file.write(data)
        file.sync()


def replace_bytes(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file's content atomically: a reader sees the old or the new one, never half.

    With `durable` the content is on the disk before it takes the name, and the name after.
    """
    temporary = path.with_name(f".{path.name[:200]}.new-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with NewFile(temporary) as file:
            file.write(data)
            if durable:
                file.sync()
        _call("rename", path, lambda: os.replace(temporary, path))  # noqa: PTH105 - one call style
    except BaseException:
        _remove_own(temporary)
        raise
    if durable:
        sync_directory(path.parent)


def append_bytes(path: Path, data: bytes) -> None:
    """Append `data` in one write, so that a reader never meets half a line of it from us.

    Opening does not wait for the reader of a FIFO and refuses anything but a regular file.
    """

    def append() -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o666)
        try:
            if not stat_module.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            return os.write(descriptor, data)
        finally:
            os.close(descriptor)

    written = _call("append", path, append, len(data))
    if written != len(data):
        raise OSError(
            errno.ENOSPC, f"only {written} of {len(data)} bytes were appended", str(path)
        )


@contextmanager
def appending(path: Path) -> Iterator[int]:
    """Yield a descriptor that appends to `path`: where a child process writes its output."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    descriptor = _call("create", path, lambda: os.open(path, flags, 0o666))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_temporary_directory(prefix: str) -> Path:
    """Make a directory of our own where the system keeps temporary ones."""
    import tempfile  # late: it is used by writers only, and takes a while

    return Path(_call("mkdir", prefix, lambda: tempfile.mkdtemp(prefix=prefix)))


def rename_to_free_name(source: Path, target: Path) -> None:
    """Give a directory a name that must be free.

    Raises:
        FileExistsError: something stands there (xfs says EEXIST where others say ENOTEMPTY).
    """
    if identity(target, follow=False) is not None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    try:
        _call("rename", target, lambda: os.rename(source, target))  # noqa: PTH104 - one call style
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        raise


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""

    def sync() -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    _call("fsync-directory", path, sync)


def remove_tree(path: Path) -> None:
    """Remove a directory that the caller itself made."""
    import shutil  # late: it is used by writers only, and takes a while

    _call("remove", path, lambda: shutil.rmtree(path))


def _remove_own(path: Path) -> None:
    try:
        os.unlink(path)  # noqa: PTH108 - not hooked: cleaning up after a failed call
    except FileNotFoundError:
        return


def _identity_of(found: os.stat_result) -> Identity:
    return Identity(
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_mode,
    )


def _unescape_mount(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
