"""Staying out of the way of whoever else needs the disk: the I/O priority of a thread."""

import os
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30, "ppc64le": 273, "s390x": 282}
_OF_A_THREAD, _IDLE = 1, 3 << 13


def idle_io_priority() -> bool:
    """Let this thread use the disk only while nobody else does; False where that is not possible.

    It lasts as long as the thread: for threads of our own. Where nobody else uses the disk, and
    with most schedulers of fast disks, it costs nothing.
    """
    number = _IOPRIO_SET.get(os.uname().machine)
    syscall = _syscall()
    return (
        number is not None and syscall is not None and syscall(number, _OF_A_THREAD, 0, _IDLE) == 0
    )


@lru_cache(maxsize=1)
def _syscall() -> "ctypes._NamedFuncPointer | None":
    import ctypes  # late: it takes a while, and most commands read little

    if os.uname().sysname != "Linux":
        return None
    return ctypes.CDLL(None, use_errno=True).syscall
