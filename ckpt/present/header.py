"""The head of a run: what is said on the first lines of the dashboard and of `ckpt status`.

A line is a list of pieces with ranks. What does not fit goes to one more line where the window is
wide enough for that, else away, the highest rank first; a piece is never cut.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from ckpt.checkpoint import Generation
from ckpt.phrases import duration, loss
from ckpt.present.words import (
    Cell,
    Tone,
    age,
    cell_width,
    estimate,
    integer,
    rate,
    shorten,
    size,
    spelt,
    to_ascii,
    visible,
)
from ckpt.view import HealthState, RunView, Source

HEALTH_SIGNS: Mapping[HealthState, tuple[str, Tone]] = {
    HealthState.WAITING: ("○", Tone.DIM),
    HealthState.TRAINING: ("●", Tone.GOOD),
    HealthState.EVALUATING: ("●", Tone.GOOD),
    HealthState.SAVING: ("●", Tone.GOOD),
    HealthState.STALLED: ("!", Tone.BAD),
    HealthState.DIVERGED: ("✗", Tone.BAD),
    HealthState.DEAD: ("✗", Tone.BAD),
    HealthState.FINISHED: ("✓", Tone.GOOD),
    HealthState.UNKNOWN: ("?", Tone.WARN),
}
QUIET_STATES = frozenset(
    {HealthState.TRAINING, HealthState.EVALUATING, HealthState.SAVING, HealthState.FINISHED}
)
"""States that need no reason on the screen."""

OVERFLOW_WIDTH = 72  # from here on a line more costs less than a fact less
MOST_SAVES_TOLD = 1000  # beyond, the bytes tell more, and a count would change all the time
BAR_WIDTHS = (24, 16, 10)
TREND_IS_FLAT = 0.001  # a relative change of the smoothed loss below this is drawn as a flat arrow


@dataclass(frozen=True, slots=True)
class Piece:
    """Some cells that stay together. `gap` blanks stand before it; the highest rank goes first."""

    rank: int
    cells: tuple[Cell, ...]
    gap: int = 2

    @property
    def width(self) -> int:
        """Columns without the gap."""
        return _columns_of(self.cells)


Line = tuple[Cell, ...]


def header_lines(
    view: RunView, now: float, width: int, *, ascii_only: bool = False
) -> tuple[Line, ...]:
    """Say what a run is doing in lines of at most `width` columns, the most telling first.

    1 name, task, health, how it is watched; 2 step and time; 3 loss and its source; 4 what is at
    risk; then the reason of a health that is not well, and what found no room above.
    """
    lines = [_name_line(view, width, ascii_only=ascii_only)]
    left_over: list[Piece] = []
    for pieces in (_step_pieces(view, width), _loss_pieces(view, now), _risk_pieces(view)):
        kept, dropped = _fit(_spelt(pieces, ascii_only=ascii_only), width - 1)
        lines.append(_joined(kept))
        left_over += dropped
    if width >= OVERFLOW_WIDTH:
        kept, _ = _fit([piece for piece in left_over if piece.gap], width - 1)
        if kept:
            lines.append(_joined(kept))
    lines[1:1] = _reason_lines(view, width, ascii_only=ascii_only)
    fitting = tuple(line for line in lines if line and _columns_of(line) <= width)
    return fitting or ((health_cell(view),),)


def health_cell(view: RunView) -> Cell:
    """The health as a sign and a word: `● training`."""
    sign, tone = HEALTH_SIGNS[view.health.state]
    return Cell(f"{sign} {view.health.state.value}", tone)


def trend_cell(view: RunView) -> Cell | None:
    """An arrow for where the loss is going; None when that is not known."""
    if view.loss_trend is None or not math.isfinite(view.loss_trend):
        return None
    if abs(view.loss_trend) < TREND_IS_FLAT:
        return Cell("→", Tone.DIM)
    return Cell("↓", Tone.GOOD) if view.loss_trend < 0 else Cell("↑", Tone.WARN)


def task_words(task: Mapping[str, Any]) -> tuple[str, ...]:
    """The few words that tell a run from its neighbours: `sft`, `lora r16`, `bf16`."""
    words: list[str] = []
    for key in ("task", "train_modules", "adapter", "strategy", "dtype"):
        value = task.get(key)
        if isinstance(value, str) and value.strip():
            words.append(shorten(visible(value.strip()), 24))
    rank = task.get("lora_rank")
    if isinstance(rank, int) and not any("lora" in word for word in words):
        words.append(f"lora r{rank}")
    words += [key for key in ("fp16", "bf16") if task.get(key) is True and key not in words]
    return tuple(dict.fromkeys(words))


def percent(view: RunView) -> float | None:
    """How much of the run is done, 0 to 100 and beyond; None without a total that makes sense."""
    if view.step is None or not view.total_steps or view.total_steps < 0:
        return None
    return 100.0 * view.step / view.total_steps


def generation_named(view: RunView, name: str | None) -> Generation | None:
    """Return the generation that `slot@generation` names."""
    if name is None:
        return None
    for slot in view.slots:
        if not name.startswith(slot.name + "@"):
            continue
        for generation in slot.generations:
            if name == f"{slot.name}@{generation.id}":
                return generation
    return None


def source_of(view: RunView, *values: str) -> Source | None:
    """Return the source of the first of these values that has one, else the freshest source."""
    for value in values:
        path = view.values_from.get(value)
        for source in view.sources:
            if path is not None and source.path == path:
                return source
    return max(view.sources, key=lambda source: source.modified_at or 0, default=None)


# ---- lines ----------------------------------------------------------------------------------


def _name_line(view: RunView, width: int, *, ascii_only: bool) -> Line:
    """The name at the left, shortened in its middle; health and watching at the right."""
    watching = Piece(2 if view.is_reachable else 0, _watching_cells(view), gap=3)
    right = [Piece(0, (health_cell(view),)), watching]
    right = _spelt(right, ascii_only=ascii_only)
    right, _ = _fit(right, max(12, width - 10))
    ending = _cells_of(right)
    name = visible(str(view.run))
    words = tuple(f" · {word}" for word in task_words(view.task))
    if ascii_only:
        name, words = to_ascii(name), tuple(to_ascii(word) for word in words)
    room = width - 2 - _columns_of(ending) - 2
    name = shorten(name, max(4, room), ellipsis="~" if ascii_only else "…")
    pieces = [Piece(0, (Cell(name, Tone.ACCENT),))]
    pieces += [Piece(at, (Cell(word, Tone.DIM),), gap=0) for at, word in enumerate(words, start=1)]
    kept, _ = _fit(pieces, room)
    cells = _joined(kept)
    used = _columns_of(cells) + _columns_of(ending)
    return (*cells, Cell(" " * max(1, width - 1 - used)), *ending)


def _step_pieces(view: RunView, width: int) -> list[Piece]:
    if view.step is None:
        is_told = any(source.error for source in view.sources) or bool(view.slots)
        return [Piece(0, (Cell("step unknown" if is_told else "no step yet", Tone.DIM),))]
    pieces = [Piece(0, (Cell("step ", Tone.DIM), Cell(integer(view.step), Tone.ACCENT)))]
    done = percent(view)
    if done is not None:
        pieces.append(Piece(2, (Cell(f" / {integer(view.total_steps)}"),), gap=0))
        pieces.append(Piece(1, (Cell(f"{_rounded_down(done)} %"),)))
    elif view.epoch is not None and math.isfinite(view.epoch):
        pieces.append(Piece(5, (Cell(f"epoch {view.epoch:.4g}"),)))
    if view.steps_per_second is not None and math.isfinite(view.steps_per_second):
        pieces.append(Piece(4, (Cell(speed(view.steps_per_second)),)))
    if view.eta_seconds is not None:
        pieces.append(Piece(3, (Cell("eta ", Tone.DIM), Cell(estimate(view.eta_seconds)))))
        if view.eta_error_seconds is not None:
            error = Cell(f" (±{estimate(view.eta_error_seconds)})", Tone.DIM)
            pieces.append(Piece(6, (error,), gap=0))
    room = width - 1 - _width_of(pieces) - 2
    bar = next((bar for bar in BAR_WIDTHS if bar <= room), 0)
    if done is not None and bar:
        pieces.insert(2, Piece(7, (Cell(_bar(done, bar), Tone.DIM),)))
    return pieces


def speed(steps_per_second: float) -> str:
    """A rate as people say it: `2.31 step/s`, or `12.5 s/step` where a step takes long."""
    if 0 < steps_per_second < 0.1:
        return f"{_digits(1 / steps_per_second)} s/step"
    return f"{_digits(steps_per_second)} step/s"


def _loss_pieces(view: RunView, now: float) -> list[Piece]:
    pieces = [Piece(0, loss_cells(view))] if view.loss is not None else []
    if view.loss_nonfinite:
        text = f"{integer(view.loss_nonfinite)} NaN or inf"
        pieces.append(Piece(1, (Cell("✗ " + text, Tone.BAD),)))
    if view.eval_loss is not None:
        pieces.append(Piece(3, (Cell("eval ", Tone.DIM), Cell(loss(view.eval_loss)))))
    if view.best_loss is not None:
        rank = 2 if view.loss is not None else 0
        at = "" if view.best_step is None else f" @ {integer(view.best_step)}"
        pieces.append(Piece(rank, (Cell("best ", Tone.DIM), Cell(loss(view.best_loss) + at))))
    if not pieces and view.step is not None:
        pieces.append(Piece(0, (Cell("no loss known", Tone.DIM),)))
    if view.learning_rate is not None:
        pieces.append(Piece(4, (Cell("lr ", Tone.DIM), Cell(rate(view.learning_rate)))))
    if view.grad_norm is not None:
        pieces.append(Piece(5, (Cell("grad ", Tone.DIM), Cell(_digits(view.grad_norm)))))
    source = source_of(view, "loss", "step")
    if source is not None:
        pieces.append(Piece(6, source_cells(source, now), gap=3))
    return pieces


def loss_cells(view: RunView) -> Line:
    """`loss 1.8342 ↓`; empty when no loss is known (a best loss is never shown as one)."""
    if view.loss is None:
        return ()
    is_finite = math.isfinite(view.loss)
    cells = [
        Cell("loss ", Tone.DIM),
        Cell(loss(view.loss), Tone.ACCENT if is_finite else Tone.BAD),
    ]
    arrow = trend_cell(view)
    if arrow is not None:
        cells.append(Cell(f" {arrow.text}", arrow.tone))
    return tuple(cells)


def source_cells(source: Source, now: float) -> Line:
    """Where numbers come from and how old they are: `training_state.json, just now`."""
    name = shorten(visible(PurePath(source.path).name), 32)
    cells = [Cell(f"{name}, {age(source.modified_at, now)}", Tone.DIM)]
    if source.writes_only_at_saves:
        cells.append(Cell(", written at saves only", Tone.DIM))
    if source.error is not None:
        cells.append(Cell(f" ! {shorten(visible(source.error), 40)}", Tone.WARN))
    return tuple(cells)


def _risk_pieces(view: RunView) -> list[Piece]:
    pieces = []
    lost = []
    if view.at_risk.steps is not None:
        lost.append(f"{integer(view.at_risk.steps)} step{'' if view.at_risk.steps == 1 else 's'}")
    if view.at_risk.seconds is not None:
        lost.append(duration(view.at_risk.seconds))
    if lost and view.health.state is not HealthState.FINISHED:
        is_dead = view.health.state is HealthState.DEAD
        title = "lost since the last save: " if is_dead else "if it died now: "
        pieces.append(Piece(0, (Cell(title, Tone.DIM), Cell(", ".join(lost)))))
    if view.slots:
        pieces.append(Piece(2, _verified_cells(view)))
    elif view.step is not None:
        pieces.append(Piece(0, (Cell("nothing was saved yet", Tone.WARN),)))
    disk = _disk_cells(view)
    if disk:
        pieces.append(Piece(3, disk))
    if view.warnings:
        count = len(view.warnings)
        text = f"! {count} warning{'' if count == 1 else 's'}"
        pieces.append(Piece(1, (Cell(text, Tone.WARN),)))
    return pieces


def _verified_cells(view: RunView) -> Line:
    title = Cell("newest verified: ", Tone.DIM)
    if view.newest_verified is None:
        return (title, Cell("none", Tone.WARN))
    generation = generation_named(view, view.newest_verified)
    if generation is None or generation.step is None:
        return (title, Cell(shorten(visible(view.newest_verified), 32), Tone.GOOD))
    return (title, Cell(f"step {integer(generation.step)}", Tone.GOOD))


def _disk_cells(view: RunView) -> Line:
    title = Cell("disk: ", Tone.DIM)
    left = view.disk.saves_left
    if left is not None and left < MOST_SAVES_TOLD:
        tone = Tone.BAD if left < 1 else Tone.WARN if left < 3 else Tone.PLAIN
        sign = "! " if left < 3 else ""
        return (title, Cell(f"{sign}{integer(left)} save{'' if left == 1 else 's'} left", tone))
    if view.disk.free_bytes is not None:
        return (title, Cell(f"{size(view.disk.free_bytes)} free"))
    return ()


def _watching_cells(view: RunView) -> Line:
    if not view.is_reachable:
        return (Cell("! not reachable", Tone.WARN),)
    reason = f" ({shorten(visible(view.watching.reason), 32)})" if view.watching.reason else ""
    return (Cell(f"{visible(view.watching.mode)}{reason}", Tone.DIM),)


def _reason_lines(view: RunView, width: int, *, ascii_only: bool) -> list[Line]:
    """Why a run is not well, or what it waits for; on two lines where one is too short."""
    if view.health.state in QUIET_STATES or not view.health.reasons:
        return []
    tone = Tone.DIM if view.health.state is HealthState.WAITING else Tone.WARN
    text = visible("; ".join(view.health.reasons))
    most = 2 if width >= OVERFLOW_WIDTH else 1
    words = _words(
        to_ascii(text) if ascii_only else text, width - 1, most, "~" if ascii_only else "…"
    )
    return [(Cell(" " + line, tone),) for line in words]


# ---- fitting --------------------------------------------------------------------------------


def _fit(pieces: Iterable[Piece], width: int) -> tuple[list[Piece], list[Piece]]:
    """Drop the highest ranks until the rest fits; return what is kept and what is dropped.

    A piece without a gap belongs to the one before it and goes when that goes.
    """
    kept = list(pieces)
    dropped: list[Piece] = []
    while len(kept) > 1 and _width_of(kept) > width:
        at = max(range(len(kept)), key=lambda at: (kept[at].rank, at))
        stop = at + 1
        while kept[at].gap and stop < len(kept) and not kept[stop].gap:
            stop += 1
        dropped += kept[at:stop]
        del kept[at:stop]
    order = {id(piece): place for place, piece in enumerate(pieces)}
    return kept, sorted(dropped, key=lambda piece: order[id(piece)])


def _width_of(pieces: list[Piece]) -> int:
    return sum(piece.width + (piece.gap if at else 0) for at, piece in enumerate(pieces))


def _columns_of(cells: Iterable[Cell]) -> int:
    return sum(cell_width(cell.text) for cell in cells)


def _cells_of(pieces: list[Piece]) -> Line:
    cells: list[Cell] = []
    for at, piece in enumerate(pieces):
        if at and piece.gap:
            cells.append(Cell(" " * piece.gap))
        cells += piece.cells
    return tuple(cells)


def _joined(pieces: list[Piece]) -> Line:
    return (Cell(" "), *_cells_of(pieces)) if pieces else ()


def _spelt(pieces: list[Piece], *, ascii_only: bool) -> list[Piece]:
    if not ascii_only:
        return pieces
    return [Piece(piece.rank, spelt(piece.cells), piece.gap) for piece in pieces]


def _words(text: str, width: int, most: int, dots: str) -> list[str]:
    """Break text between words into `most` lines; what is left over is dropped whole words."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_width(longer) <= width:
            lines[-1] = longer
        elif len(lines) < most and lines[-1]:
            lines.append(shorten(word, width, ellipsis=dots))
        else:
            while lines[-1] and cell_width(lines[-1]) + 2 > width:
                lines[-1] = lines[-1].rpartition(" ")[0]
            lines[-1] = f"{lines[-1].rstrip(',;:')} {dots}".lstrip()
            break
    return lines


def _bar(done: float, width: int) -> str:
    filled = min(width, max(0, int(done / 100 * width)))
    return "▓" * filled + "░" * (width - filled)


def _rounded_down(done: float) -> str:
    """99.97 is 99.9: only a finished run is at 100."""
    return f"{math.floor(done * 10) / 10:.1f}"


def _digits(value: float) -> str:
    if not math.isfinite(value):
        return loss(value)
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.1e}"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"
