"""What the system tells of mounts, processes and inotify, from /proc."""

from dataclasses import dataclass
from pathlib import Path

from ckpt.fs.calls import call
from ckpt.fs.looking import real_path, scan

LOCAL_TYPES = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "f2fs", "bcachefs",
     "overlay", "jfs", "reiserfs", "ntfs3", "exfat", "vfat"}
)  # fmt: skip


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

    return call("proc", path, read)


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


def _unescape_mount(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
