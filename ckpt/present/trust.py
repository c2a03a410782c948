"""What is known of each file of a checkpoint: compared, bad, not listed, a pickle. Pure.

A file whose bytes are unchanged is said to be that, and never to be safe.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ckpt.checkpoint import (
    Checkpoint,
    Damage,
    Depth,
    FileEntry,
    Finding,
    Severity,
    Verdict,
    Verified,
    worst_first,
)
from ckpt.present.words import Cell, Column, Row, Tone, age, size, spelt, visible

FILE_STATE_COLUMNS = (
    Column("file"),
    Column("size", is_right=True, rank=1),
    Column("state"),
    Column("hash", rank=2),
)
_SHOWN_DIGITS = 12
_UNSAFE = "unsafe-pickle"


@dataclass(frozen=True, slots=True)
class Known:
    """What is known beside the headers: `findings` of a verification, and its verdict.

    `is_all` says that all findings of it are known, and not only the worst. `damage` is where
    bytes differ; out of a cache it has no ranges, and as `tensor_count` the number of those hurt.
    """

    findings: tuple[Finding, ...] = ()
    verified: Verified | None = None
    is_all: bool = False
    damage: tuple[Damage, ...] = ()

    @property
    def hurt(self) -> frozenset[tuple[str, str]]:
        """The damaged tensors, as (file, name); empty while only the first of them are known."""
        known = (each for each in self.damage if each.ranges)
        return frozenset((each.file, name) for each in known for name in each.tensors)

    @classmethod
    def from_cache(cls, verified: Verified | None) -> "Known":
        """Return what a run's cache tells."""
        if verified is None:
            return cls()
        worst = verified.worst
        is_all = verified.verdict is Verdict.INTACT
        if worst is None or worst.file is None or not verified.hurt:
            return cls(() if worst is None else (worst,), verified, is_all=is_all)
        damage = Damage(worst.file, (), verified.hurt, verified.hurt_count)
        return cls((worst,), verified, is_all=is_all, damage=(damage,))


def all_findings(checkpoint: Checkpoint, known: Known) -> tuple[Finding, ...]:
    """Return what the headers and the bytes told, the worst first."""
    return worst_first((*known.findings, *checkpoint.findings))


def file_state_rows(
    checkpoint: Checkpoint, known: Known, now: float, *, ascii_only: bool = False
) -> tuple[Row, ...]:
    """One row per file; cells as FILE_STATE_COLUMNS."""
    told: dict[str, list[Finding]] = {}
    for finding in all_findings(checkpoint, known):
        if finding.file is not None:
            told.setdefault(finding.file, []).append(finding)
    is_sealed = not any(entry.sha256 or entry.chunks for entry in checkpoint.files)
    rows = []
    for entry in checkpoint.files:
        found = told.get(entry.name, ())
        hurt = next((each for each in known.damage if each.file == entry.name), None)
        state = _state(entry, found, hurt, _bytes_cell(entry, known, now, is_sealed))
        digest = entry.sha256[:_SHOWN_DIGITS] if entry.sha256 else "\N{EN DASH}"
        cells = (
            Cell(visible(entry.name)),
            Cell(size(entry.size_bytes)),
            state,
            Cell(digest, Tone.DIM),
        )
        rows.append(Row(entry.name, spelt(cells) if ascii_only else cells))
    return tuple(rows)


def _state(
    entry: FileEntry, findings: Sequence[Finding], hurt: Damage | None, compared: Cell
) -> Cell:
    """The worst that is known of a file; of a pickle what loading it would run, too."""
    if entry.size_bytes is None:
        return Cell("✗ missing", Tone.BAD)
    error = next((each for each in findings if each.severity is Severity.ERROR), None)
    if error is not None:
        names = hurt.tensors if hurt is not None else ()
        first = error.tensor or next(iter(names), None)
        count = max(len(names), hurt.tensor_count if hurt is not None and not hurt.ranges else 0)
        what = f": {visible(first)}" if first else ""
        more = f" and {count - 1:,} more" if count > 1 else ""
        return Cell(f"✗ {visible(error.code)}{what}{more}", Tone.BAD)
    unsafe = next((each for each in findings if each.code == _UNSAFE), None)
    if unsafe is not None:
        said = visible(unsafe.message.partition(": ")[2] or unsafe.message)
        sign, tone = ("!", Tone.WARN) if unsafe.severity is Severity.WARNING else ("·", Tone.DIM)
        return Cell(f"{compared.text}; {sign} pickle: {said}", tone)
    warned = next((each for each in findings if each.severity is Severity.WARNING), None)
    if warned is not None:
        return Cell(f"! {visible(warned.code)}", Tone.WARN)
    if entry.listed is False:
        return Cell("! unlisted: compared with nothing", Tone.WARN)
    return compared


def _bytes_cell(entry: FileEntry, known: Known, now: float, is_sealed: bool) -> Cell:
    """Whether the bytes of a file were compared, as far as that is known."""
    verified = known.verified
    has_hash = bool(entry.sha256 or entry.chunks)
    if verified is not None and verified.depth is Depth.BYTES:
        when = age(verified.at, now)
        if known.is_all and has_hash:
            return Cell(f"✓ compared {when}", Tone.GOOD)
        if known.is_all and is_sealed and verified.verdict is Verdict.INTACT:
            return Cell(f"✓ compared with its seal {when}", Tone.GOOD)
        if has_hash:  # another file of it is damaged, and no more is remembered
            return Cell("? verified with the damaged one: v tells", Tone.DIM)
    if has_hash:
        return Cell("\N{EN DASH} hash recorded, not compared", Tone.DIM)
    if entry.listed:
        return Cell("\N{EN DASH} size only, no hash recorded", Tone.DIM)
    return Cell("\N{EN DASH} nothing recorded of it", Tone.DIM)
