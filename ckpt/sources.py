"""What lies in a run → run events: `RunReader` follows one, `read_run` looks once.

Owns which files a run has and when each is looked at. What is in a file is the business of
`ckpt.progress`, what a checkpoint is that of `ckpt.formats` and `ckpt.generations`.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ckpt import fs
from ckpt.checkpoint import Slot
from ckpt.errors import CheckpointError, NoSuchRun
from ckpt.health import judge
from ckpt.progress import astrai_metric, run_record, trainer_state
from ckpt.progress.astrai_metric import AstraiMetrics
from ckpt.progress.base import RETRY_S, ProgressFile, sentence
from ckpt.progress.line_source import LineSource
from ckpt.progress.records import MetricsRecords, TrainerLogRecords
from ckpt.progress.run_record import RunRecord
from ckpt.progress.samples import Samples
from ckpt.progress.trainer_state import TrainerState
from ckpt.progress.training_state import TrainingState
from ckpt.run import (
    DiskMeasured,
    LookedAt,
    Noticed,
    ReachableChanged,
    RunEvent,
    RunView,
    SlotsScanned,
    SourceGone,
    SourceRead,
    Warned,
    apply,
)

if TYPE_CHECKING:
    from ckpt.reflog import Journal
    from ckpt.watch import Targets

STATE, METRICS, TRAINER_LOG = "training_state.json", "metrics.jsonl", "trainer_log.jsonl"
WATCHED_NAMES = (STATE, METRICS, TRAINER_LOG, trainer_state.NAME, run_record.NAME)
_FOLLOWED = frozenset({STATE, METRICS, TRAINER_LOG})
_ALL_NAMES = _FOLLOWED | {trainer_state.NAME, astrai_metric.NAME}
DISK_EVERY_S = 30.0
SAVING_S = 60.0
EXACT_BYTES = 16 << 20
MAX_DIRECTORIES = 1000
RETRIES = 4


@dataclass(frozen=True, slots=True)
class _Directory:
    """A directory that was looked into: what it was then, and what of it matters."""

    identity: fs.Identity
    files: frozenset[str]
    directories: tuple[Path, ...]


class RunReader:
    """Follows one run; for one thread. The events of one `read` belong together.

    `record_samples`: append what is seen to the run's `.ckpt/samples.jsonl`, for a trainer that
    leaves no history.
    """

    def __init__(self, run_dir: Path, *, record_samples: bool = False) -> None:
        self.run_dir = run_dir
        self._records_samples = record_samples
        self._is_reachable = True
        self._run_id: tuple[int, int] | None = None
        self._keys: set[str] = set()
        self._free_bytes: int | None = None
        self._disk_at: float | None = None
        self._begin()

    def _begin(self) -> None:
        """Know nothing of the run's files: at the start, and when another run took its place."""
        from ckpt.control import samples_path
        from ckpt.generations import Scanner

        self._scanner = Scanner(self.run_dir)
        self._slots: tuple[Slot, ...] = ()
        self._journal: Journal | None = None
        self._saving_at: float | None = None
        self._noticed: dict[str, tuple[Warned, ...]] = {}
        self._directories: dict[Path, _Directory] = {}
        self._files: dict[Path, TrainingState | LineSource] = {}
        self._record = RunRecord(self.run_dir / run_record.NAME)
        self._astrai = AstraiMetrics()
        self._trainer = TrainerState(self.run_dir)
        path = samples_path(self.run_dir)
        self._samples = Samples(self.run_dir, path, records=self._records_samples)

    @property
    def has_more(self) -> bool:
        """Whether `read` should be called again at once: a large file is read in slices."""
        return any(file.has_more for file in self._all_files())

    @property
    def retry_at(self) -> float | None:
        """When `read` should be called again though nothing may have changed, None: no need."""
        return min((at for f in self._all_files() if (at := f.retry_at) is not None), default=None)

    @property
    def backlog_bytes(self) -> int:
        """Roughly how many bytes `has_more` stands for."""
        return sum(file.backlog_bytes for file in self._all_files())

    @property
    def targets(self) -> "Targets":
        """What to watch; it changes with what `read` finds."""
        from ckpt.control import pins_path, verified_path
        from ckpt.reflog import reflog_path
        from ckpt.watch import Targets

        control = (verified_path, pins_path, reflog_path)
        names = [self.run_dir / name for name in WATCHED_NAMES]
        files = dict.fromkeys((*names, *self._files, *self._merged_paths()))
        below = [path for path in self._directories if path != self.run_dir]
        return Targets(
            state_files=(*files, *(path(self.run_dir) for path in control)),
            run_directories=(self.run_dir, *below),
            checkpoint_directories=tuple(slot.path for slot in self._slots),
        )

    def read(self, changed: Iterable[Path] | None, now: float) -> Iterator[RunEvent]:
        """Yield what is new. `changed`: paths of `targets` that may have changed, None: all.

        Only what may have changed is looked at and only what did is parsed. With an empty
        `changed` it goes on with what is due by time: slices, retries, the process, the disk.
        """
        is_empty = True
        for event in self._read(None if changed is None else frozenset(changed), now):
            is_empty = False
            if isinstance(event, SourceRead):
                self._keys.add(event.source.identity)
            yield event
        if not is_empty:
            yield LookedAt(now)

    def _read(self, changed: frozenset[Path] | None, now: float) -> Iterator[RunEvent]:
        was_reachable = self._is_reachable
        yield from self._arrive()
        if not self._is_reachable:
            return
        if changed is None or not was_reachable:
            is_wide, changed = True, frozenset()
        else:
            is_wide = any(path not in self._files for path in changed)
        yield from self._record.read(now)
        if is_wide:
            yield from self._list(self.run_dir)
        yield from self._read_files(changed, now, is_wide=is_wide)
        if is_wide:
            yield from self._look_at_slots()
            yield from self._list_below()
            self._astrai.paths, self._trainer.paths = self._paths_of_merged()
            yield from self._read_files(changed, now, is_wide=True)
        yield from self._look_at_staging(now)
        for merged in (self._astrai, self._trainer):
            if is_wide or _wants(merged, now):
                yield from merged.read(now)
        yield from self._sample(now)
        yield from self._measure_disk(now)

    # ---- the run's directory -------------------------------------------------------------------

    def _arrive(self) -> Iterator[RunEvent]:
        """Tell whether the run's directory is there, and whether it is another one than before.

        One that came back empty is taken for a mount that dropped out: what was known is kept.
        """
        run_id = self._look_for_run()
        is_other = self._run_id is not None and run_id != self._run_id
        if run_id is not None and is_other and not self._holds_anything():
            run_id = None
        if (run_id is not None) != self._is_reachable:
            self._is_reachable = run_id is not None
            yield ReachableChanged(self._is_reachable)
        if run_id is None:
            return
        self._run_id = run_id
        if is_other:
            yield from (SourceGone(key) for key in sorted(self._keys))
            yield from (Noticed(subject, ()) for subject in self._noticed)
            self._keys.clear()
            self._begin()

    def _look_for_run(self) -> tuple[int, int] | None:
        try:
            identity = fs.identity(self.run_dir)
        except OSError:
            return None
        if identity is None or not identity.is_directory:
            return None
        return identity.device, identity.inode

    def _holds_anything(self) -> bool:
        try:
            return bool(fs.scan(self.run_dir))
        except OSError:
            return False

    def _list(self, directory: Path) -> Iterator[RunEvent]:
        """List a directory of the run when it has changed; follow the progress files in it."""
        try:
            identity = fs.identity(directory)
            known = self._directories.get(directory)
            if identity is None:
                self._directories.pop(directory, None)
                return
            if known is not None and known.identity == identity and directory != self.run_dir:
                return
            entries = fs.scan(directory)
        except OSError as error:
            message = f"{directory}: {sentence(error)}, what lies in it is not shown"
            code = "permission-denied" if isinstance(error, PermissionError) else "unreadable"
            yield from self._notice(str(directory), (Warned(code, message, str(directory)),))
            return
        yield from self._notice(str(directory), ())
        # a link leads to a file, a directory of that name is an error to tell: neither is skipped
        files = frozenset(entry.name for entry in entries if entry.name in _ALL_NAMES)
        visible = [e.name for e in entries if e.is_directory and not e.name.startswith(".")]
        self._directories[directory] = _Directory(
            identity, files, tuple(directory / name for name in sorted(visible))
        )
        for name in files & _FOLLOWED:
            path = directory / name
            if path not in self._files:
                self._files[path] = self._make(path)

    def _list_below(self) -> Iterator[RunEvent]:
        """List the two levels below the run, but no checkpoint and nothing hidden or linked."""
        inside = self._payloads()
        level = [self.run_dir]
        for _ in range(2):
            below = [path for parent in level for path in self._directories[parent].directories]
            level = [path for path in below if path not in inside][:MAX_DIRECTORIES]
            for path in level:
                yield from self._list(path)
            level = [path for path in level if path in self._directories]

    def _make(self, path: Path) -> TrainingState | LineSource:
        if path.name == STATE:
            return TrainingState(path)
        if path.name == METRICS:
            return LineSource(
                path, "metrics", lambda: MetricsRecords(lambda: self._record.started_at)
            )
        return LineSource(path, "trainer-log", TrainerLogRecords)

    # ---- progress files ------------------------------------------------------------------------

    def _all_files(self) -> tuple[ProgressFile, ...]:
        return (self._record, *self._files.values(), self._astrai, self._trainer)

    def _read_files(
        self, changed: frozenset[Path], now: float, *, is_wide: bool
    ) -> Iterator[RunEvent]:
        for path, file in list(self._files.items()):
            if is_wide or path in changed or _wants(file, now):
                yield from file.read(now)

    def _sample(self, now: float) -> Iterator[RunEvent]:
        """Make a history of what the state file tells, where no other file does."""
        states = [file for file in self._files.values() if isinstance(file, TrainingState)]
        if not states or states[0].seen is None:
            return
        others = len(self._files) > len(states) or self._astrai.is_found or self._trainer.is_found
        if not others:
            yield from self._samples.add(states[0].seen, states[0].path, now)

    # ---- checkpoints ---------------------------------------------------------------------------

    def _look_at_slots(self) -> Iterator[RunEvent]:
        try:
            slots = self._scanner.scan()
        except (OSError, CheckpointError) as error:
            why = sentence(error) if isinstance(error, OSError) else error.message
            message = f"{self.run_dir}: checkpoints cannot be listed: {why}"
            yield from self._notice("slots", (Warned("unreadable", message, str(self.run_dir)),))
            return
        yield from self._notice("slots", ())
        if slots != self._slots or self._scanner.journal is not self._journal:
            self._slots, self._journal = slots, self._scanner.journal
            yield SlotsScanned(slots, self._saving_at, self._journal)
        yield from self._notice("set", tuple(self._set_warnings()))

    def _set_warnings(self) -> Iterator[Warned]:
        """What does not fit together between the files of the run, as its formats see it."""
        from ckpt.formats import FORMATS
        from ckpt.formats.base import check_run

        named = {slot.format for slot in self._slots}
        for each in FORMATS:
            if each.name in named:
                for finding in check_run(each, self.run_dir):
                    yield Warned(finding.code, finding.message, finding.file)

    def _payloads(self) -> set[Path]:
        generations = {g.path for slot in self._slots for g in slot.generations}
        return generations | {slot.path for slot in self._slots}

    def _paths_of_merged(self) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """Where the files lie that trainers keep beside each checkpoint, by their trainer."""
        astrai, trainer = [], [self.run_dir / trainer_state.NAME]
        for slot in self._slots:
            if slot.format == "astrai":
                astrai += [g.path / astrai_metric.NAME for g in slot.generations]
            elif slot.format not in ("ferrotensor", "kt_adapter"):
                trainer.append(slot.path / trainer_state.NAME)
        for path, directory in self._directories.items():
            if astrai_metric.NAME in directory.files:
                astrai.append(path / astrai_metric.NAME)
            if trainer_state.NAME in directory.files:
                trainer.append(path / trainer_state.NAME)
        return tuple(dict.fromkeys(astrai)), tuple(dict.fromkeys(trainer))

    def _merged_paths(self) -> tuple[Path, ...]:
        """The newest of them: what is written beside a checkpoint after it was published."""
        return (*self._astrai.paths[:2], *self._trainer.paths[:3])

    def _look_at_staging(self, now: float) -> Iterator[RunEvent]:
        """Tell when a checkpoint that is being written was last touched."""
        staging = [
            leftover.path
            for slot in self._slots
            for leftover in slot.leftovers
            if leftover.kind == "staging"
        ]
        touched = [at for path in staging if (at := _touched_at(path)) is not None]
        saving_at = max(touched, default=None)
        if saving_at is not None and now - saving_at > SAVING_S:
            saving_at = None
        if saving_at != self._saving_at:
            self._saving_at = saving_at
            yield SlotsScanned(self._slots, saving_at, self._journal)

    # ---- the rest ------------------------------------------------------------------------------

    def _measure_disk(self, now: float) -> Iterator[RunEvent]:
        if self._disk_at is not None and 0 <= now - self._disk_at < DISK_EVERY_S:
            return
        self._disk_at = now
        try:
            free_bytes: int | None = fs.disk_usage(self.run_dir)[0]
        except OSError:
            free_bytes = None
        if free_bytes != self._free_bytes:
            self._free_bytes = free_bytes
            yield DiskMeasured(free_bytes)

    def _notice(self, subject: str, warnings: tuple[Warned, ...]) -> Iterator[RunEvent]:
        if self._noticed.get(subject, ()) != warnings:
            self._noticed[subject] = warnings
            yield Noticed(subject, warnings)


def read_run(run_dir: Path, now: float, *, exact: bool = False) -> RunView:
    """Look at a run once and judge it.

    Files of up to `EXACT_BYTES` are read exactly, larger ones sampled unless `exact`; a file that
    is being written is waited for, as long as a reader that follows it would.

    Raises:
        NoSuchRun: there is no directory of that name.
    """
    reader = RunReader(run_dir)
    view = apply(RunView(run=run_dir), list(reader.read(None, now)))
    if not view.is_reachable:
        raise NoSuchRun(f"{run_dir}: no such directory", path=str(run_dir))
    while reader.has_more and (exact or reader.backlog_bytes <= EXACT_BYTES):
        view = apply(view, list(reader.read((), now)))
    for _ in range(RETRIES):
        if reader.retry_at is None or view.step is not None:
            break
        time.sleep(RETRY_S)
        now += RETRY_S
        view = apply(view, list(reader.read((), now)))
    return judge(view, now)


def _wants(file: ProgressFile, now: float) -> bool:
    return file.has_more or (file.retry_at is not None and now >= file.retry_at)


def _touched_at(directory: Path) -> float | None:
    """The newest time of a directory and of what lies in it."""
    try:
        own = fs.identity(directory, follow=False)
        if own is None:
            return None
        names = fs.scan(directory) if own.is_directory else ()
        found = [fs.identity(directory / entry.name, follow=False) for entry in names]
    except OSError:
        return None
    return max(identity.modified_at for identity in (own, *found) if identity is not None)
