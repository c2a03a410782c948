"""What the command line of `ckpt-monitor` said, as a value that the app can be made from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """How to watch and to draw. `poll_s` forces polling at that interval; None: events allowed."""

    is_read_only: bool = False
    poll_s: float | None = None
    is_ascii: bool = False
    has_mouse: bool = True
