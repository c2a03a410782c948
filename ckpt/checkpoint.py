"""The nouns: what a checkpoint is, what it holds, and what a check found about it.

Pure values. Text in them is as it stands on disk (names that are no UTF-8 hold surrogate escapes);
`present.visible` makes it fit for a terminal and `present.jsonable` for JSON.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

NOTHING: Mapping[Any, Any] = MappingProxyType({})
UNSUPPORTED_CODES = frozenset({"unsupported-version", "unsupported-dtype", "foreign-state"})
"""Codes of findings that say nothing of the bytes: newer, or of a kind that we do not read."""


class Severity(StrEnum):
    """How bad a finding is. Only an error makes a checkpoint `damaged`."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Depth(IntEnum):
    """How much of a checkpoint is looked at; each depth includes the ones before it."""

    NAMES = 0  # file names and sizes, small JSON
    HEADERS = 1  # safetensors headers too
    BYTES = 2  # every byte that something recorded lets us compare


class Verdict(StrEnum):
    """What a verification may say of a checkpoint. Order of badness: see `worst_verdict`."""

    INTACT = "intact"
    UNVERIFIABLE = "unverifiable"
    UNSUPPORTED = "unsupported"
    DAMAGED = "damaged"


class State(StrEnum):
    """The state of a generation, or of a slot (`BROKEN` is a slot's only)."""

    LIVE = "live"
    RETIRED = "retired"
    WITHDRAWN = "withdrawn"
    SEALED = "sealed"
    TRASH = "trash"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact that a check found. `code` is stable kebab-case; `file` is relative to the path."""

    code: str
    severity: Severity
    message: str
    file: str | None = None
    tensor: str | None = None
    hint: str | None = None


class Tensor(NamedTuple):
    """One tensor as its header tells it; a tuple because a model can have a hundred thousand.

    `dtype` is spelt as safetensors does (`BF16`); `start` and `end` are byte offsets from the
    beginning of `file`, `end` exclusive; `size_bytes` = `end - start`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    file: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TensorStats:
    """What the values of one tensor are like; complex numbers count by their magnitude.

    `count` is how many values there are; `minimum`, `maximum`, `mean` and `norm` (L2) are of the
    finite ones, None when there is none. Those of integers are exact but for mean and norm, and
    those of BOOL are 0 and 1. Every number is None when nothing was computed: `problem` says why.
    """

    count: int | None = None
    nan_count: int | None = None
    inf_count: int | None = None
    zero_count: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    norm: float | None = None
    problem: Finding | None = None

    @property
    def nonfinite_count(self) -> int | None:
        """How many values are NaN or infinite."""
        if self.nan_count is None or self.inf_count is None:
            return None
        return self.nan_count + self.inf_count

    @property
    def finite(self) -> bool | None:
        """Whether every value is finite; None when nothing was computed."""
        count = self.nonfinite_count
        return None if count is None else count == 0


class FileEntry(NamedTuple):
    """One file of a checkpoint; a tuple, as lists of a thousand checkpoints hold many.

    `size_bytes` is what the disk says (None: it is not there); `sha256` is the recorded hash in
    lower case (None: nothing recorded); `listed` says whether the manifest or index names it
    (None: there is no list). `chunks` are the recorded BLAKE3 hashes of each `chunk_bytes` bytes,
    as they are written there.
    """

    name: str
    size_bytes: int | None
    sha256: str | None = None
    listed: bool | None = None
    chunks: tuple[str, ...] = ()
    chunk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Glance:
    """What names, stat and small JSON files tell of a checkpoint: for lists of a thousand.

    `complete` is None when it cannot be proven; `finite` says whether all values of its tensors
    were, None where that was not recorded at the save. `created_at` is epoch seconds (the newest
    file's time where nothing is recorded, and never trusted for order). `generation` and `parent`
    are the identity its writer recorded, None for a foreign payload (see `generations`); `digest`
    is that of its manifest's bytes, None where there is none.
    """

    path: Path
    format: str
    step: int | None = None
    epoch: float | None = None
    loss: float | None = None
    created_at: float | None = None
    size_bytes: int | None = None
    file_count: int | None = None
    tensor_count: int | None = None
    complete: bool | None = None
    finite: bool | None = None
    generation: str | None = None
    parent: str | None = None
    digest: str | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint, read down to its headers and never to its payload.

    `metadata` is what the checkpoint says of itself (meta.json, safetensors `__metadata__`);
    `settings` is what a trainer was set to (LoRA rank, alpha, targets; optimizer and scaler).
    `tensors` is empty at `Depth.NAMES`. `stats` is what was recorded of their values at the save:
    nothing was read for it, and it is only as true as the bytes are unchanged.
    """

    path: Path
    format: str
    format_label: str
    step: int | None = None
    epoch: float | None = None
    loss: float | None = None
    created_at: float | None = None
    complete: bool | None = None
    files: tuple[FileEntry, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    settings: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    findings: tuple[Finding, ...] = ()
    generation: str | None = None
    parent: str | None = None
    stats: Mapping[Tensor, TensorStats] = field(default_factory=lambda: NOTHING)

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of the files that are there."""
        return sum(entry.size_bytes or 0 for entry in self.files)


@dataclass(frozen=True, slots=True)
class Damage:
    """Which bytes of a file are not what was recorded, and what they belong to.

    `ranges` are (start, end) offsets in the file, end exclusive, in order. `tensors` are those
    that lie in them, in file order, of the `tensor_count` that its header names; `proven_count`
    others are proven good. Where only the whole file has a hash, the one range is all of it,
    `is_located` is False and no tensor is named.
    """

    file: str
    ranges: tuple[tuple[int, int], ...]
    tensors: tuple[str, ...] = ()
    tensor_count: int = 0
    proven_count: int = 0
    is_located: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """What a verification of one path said.

    `damage` has what a repair needs of each file whose bytes differ. `sealed_at` (epoch s) is when
    the hashes were recorded that the bytes were compared with; None when they came with it.
    """

    path: Path
    format: str
    depth: Depth
    verdict: Verdict
    findings: tuple[Finding, ...]
    bytes_read: int
    seconds: float
    damage: tuple[Damage, ...] = ()
    sealed_at: float | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """What the verified cache remembers of a payload: the verdict, how deep, when (epoch s).

    `worst` is the worst of what was found, None where that was no more than notes; `hurt` are the
    first of the `hurt_count` tensors of its file that are damaged, where that is known.
    """

    verdict: Verdict
    depth: Depth
    at: float
    worst: Finding | None = None
    hurt: tuple[str, ...] = ()
    hurt_count: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """One complete payload that is, or was, behind a slot.

    `id` is stable while the payload lives; `path` is where it lies now; `complete` is None when it
    cannot be proven, `finite` when its values were not looked at as it was saved. `verified` is
    None when nothing was compared, or what was no longer fits.
    """

    id: str
    state: State
    format: str
    path: Path
    step: int | None = None
    epoch: float | None = None
    loss: float | None = None
    created_at: float | None = None
    size_bytes: int | None = None
    file_count: int | None = None
    tensor_count: int | None = None
    verified: Verified | None = None
    pinned: bool = False
    complete: bool | None = None
    finite: bool | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a dead writer left beside a slot and no reader may use.

    `kind` is one of `staging`, `trash`, `temporary-file`, `partial-generation`, `dangling-link`.
    """

    path: Path
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Slot:
    """One published name in a run, with every generation known behind it, live first.

    `name` is relative to the run (`step_1000`, `checkpoints/step_1000`, `adapter.safetensors`);
    `state` is LIVE, BROKEN (the name is missing or unusable) or WITHDRAWN. `interrupted` is the
    swap that was begun and never ended: the ids that were live before and meant to be after.
    """

    name: str
    format: str
    path: Path
    state: State
    generations: tuple[Generation, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    findings: tuple[Finding, ...] = ()
    interrupted: tuple[str | None, str | None] | None = None

    @property
    def live(self) -> Generation | None:
        """The live generation, None for a broken or withdrawn slot."""
        return next((g for g in self.generations if g.state is State.LIVE), None)

    def is_live_too(self, generation: Generation) -> bool:
        """Whether it is the live payload once more, under a hidden name: a copy, or links."""
        live = self.live
        if live is None or generation.state is State.LIVE:
            return False
        begin, _, number = generation.id.rpartition("-")
        return begin == live.id and number.isdigit()

    def beside(self, generation: str | None) -> Generation | None:
        """Return the payload of that id which could take the name, None when there is none."""
        for each in self.generations:
            if each.id == generation and each.state not in (State.LIVE, State.TRASH):
                return each
        return None

    @property
    def candidates(self) -> tuple[Generation, ...]:
        """What a reader may load, the best first.

        The live one; of an interrupted swap the new one, then the old one; what is whole in
        staging; the retired ones, newest first. Empty for a slot that was withdrawn on purpose.
        """
        if self.state is State.WITHDRAWN:
            return ()
        before, after = self.interrupted or (None, None)
        swapped = [g for id_ in (after, before) for g in self.generations if g.id == id_]
        order = (State.SEALED, State.RETIRED)
        rest = [g for state in order for g in self.generations if g.state is state]
        live = [self.live] if self.live is not None else []
        return tuple(dict.fromkeys([*live, *swapped, *rest]))

    @property
    def step(self) -> int | None:
        """The step of the live generation, else of the newest one known."""
        return next((g.step for g in self.generations if g.step is not None), None)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The payload a reader should use for a slot, and the sentence that says why.

    `path` is None when no usable payload is known.
    """

    slot: str
    path: Path | None
    generation: Generation | None
    reason: str


_SEVERITY_RANK = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
_VERDICT_RANK = {
    Verdict.DAMAGED: 3,
    Verdict.UNSUPPORTED: 2,
    Verdict.UNVERIFIABLE: 1,
    Verdict.INTACT: 0,
}


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, keep the order in which they were found otherwise, drop twins."""
    unique = dict.fromkeys(findings)
    return tuple(sorted(unique, key=lambda finding: _SEVERITY_RANK[finding.severity]))


def first_error(findings: Iterable[Finding]) -> Finding | None:
    """Return the first finding that damns, None when there is none."""
    return next((finding for finding in findings if finding.severity is Severity.ERROR), None)


def is_unsupported(findings: Iterable[Finding]) -> bool:
    """Whether all that damns it is that it is newer, or of a kind that is not read here."""
    codes = {finding.code for finding in findings if finding.severity is Severity.ERROR}
    return bool(codes) and codes <= UNSUPPORTED_CODES


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of some verdicts; with none of them there is nothing to trust."""
    return max(verdicts, key=_VERDICT_RANK.__getitem__, default=Verdict.UNVERIFIABLE)
