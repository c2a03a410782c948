"""How far an operation is, in one line of cells. Pure."""

from ckpt.present import Cell, Tone, shorten, size, visible
from monitor.job import At

BAR_WIDTHS = (24, 12, 8)
SHORTEST_TITLE = 12


def work_line(title: str, at: At, width: int) -> tuple[Cell, ...]:
    """Say what is at work and how far it is; the bar and the bytes go first where room is short.

    `roll back step_1000  verifying ▓▓▓▓▓▓░░░░░░  51 %  0.6 of 1.2 GB  esc cancels`
    """
    for parts in _ways(at):
        room = width - 1 - sum(len(part) for part in parts)
        if room >= min(len(title), SHORTEST_TITLE):
            break
    name = shorten(visible(title), max(1, room))
    return (Cell(f" {name}", Tone.ACCENT), *(Cell(part) for part in parts))


def _ways(at: At) -> list[tuple[str, ...]]:
    """What could be said, the fullest first."""
    if at.is_changing:
        return [("  changing the run: this ends by itself",), ("  at work",)]
    if not at.total:
        return [("  verifying", "  esc cancels"), ("  verifying",)]
    share = min(1.0, at.done / at.total)
    percent = f"  {int(share * 100):3d} %"
    told = f"  {size(at.done)} of {size(at.total)}"
    bars = [_bar(share, bar) for bar in BAR_WIDTHS]
    return [
        ("  verifying ", bars[0], percent, told, "  esc cancels"),
        ("  verifying ", bars[1], percent, "  esc cancels"),
        (" ", bars[2], percent, " esc cancels"),
        (percent, " esc cancels"),
        (percent,),
    ]


def _bar(share: float, width: int) -> str:
    filled = int(share * width)
    return "▓" * filled + "░" * (width - filled)
