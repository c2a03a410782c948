"""A run in one line: for tmux, a prompt, a list of runs."""

from pathlib import PurePath

from ckpt.phrases import MINUTE
from ckpt.present.header import generation_named, health_cell, loss_cells, percent
from ckpt.present.words import age, estimate, integer, shorten, to_ascii, visible
from ckpt.view import HealthState, RunView

LONGEST_NAME = 24


def status_line(view: RunView, now: float, *, ascii_only: bool = False) -> str:
    """Say in one line how a run is: `exp1 ● training 12,400/50,000 24.8 % loss 1.8342 ↓ …`."""
    name = shorten(visible(PurePath(view.run).name or str(view.run)), LONGEST_NAME)
    parts = [name, health_cell(view).text]
    if not view.is_reachable:
        parts.append("! not reachable")
    if view.step is not None:
        total = f"/{integer(view.total_steps)}" if percent(view) is not None else ""
        parts.append(f"step {integer(view.step)}{total}")
    if view.loss is not None:
        parts.append("".join(cell.text for cell in loss_cells(view)))
    if view.eta_seconds is not None and view.health.state is not HealthState.FINISHED:
        parts.append(f"eta {estimate(view.eta_seconds)}")
    if view.updated_at is not None and now - view.updated_at >= MINUTE:
        parts.append(age(view.updated_at, now))
    verified = generation_named(view, view.newest_verified)
    if verified is not None and verified.step is not None:
        parts.append(f"✓ {integer(verified.step)}")
    text = "  ".join(parts)
    return to_ascii(text) if ascii_only else text
