"""How far an operation is, in one line of cells. Pure."""

from ckpt.present import Cell, Tone, shorten, size, visible
from monitor.job import At

BAR_WIDTHS = (24, 12, 8)
SHORTEST_TITLE = 30
WIDE = 100  # from this width on there is room for a long bar and the bytes


def work_line(
    title: str, at: At, width: int, *, doing: str = "verifying", can_cancel: bool = True
) -> tuple[Cell, ...]:
    """Say what is at work and how far it is; the bar and the bytes go first where room is short.

    `roll back step_1000  verifying ▓▓▓▓▓▓░░░░░░  51 %  0.6 of 1.2 GB  esc cancels`
    """
    for parts in _ways(at, f"  {doing}" if doing else "", "esc cancels" if can_cancel else ""):
        room = width - 1 - sum(len(part) for part in parts)
        if room >= min(len(title), SHORTEST_TITLE):
            break
    name = shorten(visible(title), max(1, room))
    return (Cell(f" {name}", Tone.ACCENT), *(Cell(part) for part in parts))


def bar_line(at: At, width: int) -> str:
    """How far a verification is, on a screen so wide: `▓▓▓▓▓▓░░░░░░  51 %  0.6 of 1.2 GB`."""
    if not at.total:
        return ""
    share = min(1.0, at.done / at.total)
    if width < WIDE:
        return f"{_bar(share, BAR_WIDTHS[2])}{_percent(share)}"
    return f"{_bar(share, BAR_WIDTHS[0])}{_percent(share)}  {size(at.done)} of {size(at.total)}"


def _ways(at: At, doing: str, key: str) -> list[tuple[str, ...]]:
    """What could be said, the fullest first."""
    if at.is_changing:
        return [("  changing the run: this ends by itself",), ("  at work",)]
    key = f"  {key}" if key else ""
    if not at.total:
        return [(doing, key), (doing,)]
    share = min(1.0, at.done / at.total)
    percent = _percent(share)
    told = f"  {size(at.done)} of {size(at.total)}"
    bars = [_bar(share, bar) for bar in BAR_WIDTHS]
    gap = f"{doing} " if doing else "  "
    return [
        (gap, bars[0], percent, told, key),
        (gap, bars[1], percent, key),
        (" ", bars[2], percent, key[1:]),
        (percent, key[1:]),
        (percent,),
    ]


def _percent(share: float) -> str:
    return f"  {int(share * 100):3d} %"


def _bar(share: float, width: int) -> str:
    filled = int(share * width)
    return "▓" * filled + "░" * (width - filled)
