"""Keeps the generations of trainers that delete their own, by hard links, until it is stopped.

What such a trainer publishes by a rename becomes a retired generation too, at no extra space until
the trainer deletes its own. Never touches what the trainer published, nor waits for it.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import Generation, Slot, State, first_error
from ckpt.errors import CheckpointError
from ckpt.generations import names
from ckpt.generations.kt_links import keep_links, linked
from ckpt.generations.kt_slot import is_id, kt_slot, parsed, read_if_there
from ckpt.generations.payload import Payload, look
from ckpt.generations.plans import Known, Plan
from ckpt.generations.scanner import Scanner
from ckpt.generations.swap import free_name, rename
from ckpt.lock import swap_lock, writing
from ckpt.operation import Note, Operation, drive
from ckpt.reflog import Change, Journal, Outcome, conclude, intend, read
from ckpt.retention import Policy, always_kept, plan_prune, prune
from ckpt.watch import Targets, Watcher

KEEP_LAST = Policy(keep_last=1)
QUIET_S = 10.0
"""What is written in its place counts as whole when nothing in it changed for so long."""

LOOK_S = 5.0
_STOP_S = 0.2
_MANIFEST = "manifest.json"
_BY_RENAME = frozenset({"astrai", "kt_full"})
_BY_TRAINER = frozenset({"huggingface"})
_NO_LINKS = {
    errno.EPERM: "this file system has no hard links, or the files belong to somebody else",
    errno.EOPNOTSUPP: "this file system has no hard links",
    errno.EMLINK: "a file of it has as many names as the file system allows",
    errno.EXDEV: "it lies on another file system than what would be kept of it",
    errno.EROFS: "the run cannot be written to",
}


def guard(
    run_dir: Path,
    *,
    is_stopped: Callable[[], bool] = bool,
    keep: Policy = KEEP_LAST,
    poll_s: float | None = None,
) -> Operation[int]:
    """Keep what a run's trainer publishes until `is_stopped`; return how many were kept.

    `keep` says which retired generations of a slot stay once a newer one is kept. Tells each one
    that is kept, and what cannot be, as a note.
    """
    keeper = Guard(run_dir, keep=keep)
    watcher = Watcher(run_dir, poll_s=poll_s)
    try:
        yield Note(f"guarding {run_dir}: what is published there is kept by hard links")
        targets = keeper.targets
        watcher.watch(targets)
        while not is_stopped():
            for sentence in keeper.look():
                yield Note(sentence)
            if keeper.targets != targets:  # not watched while it was looked at: look once more
                targets = keeper.targets
                watcher.watch(targets)
                continue
            until = time.monotonic() + LOOK_S
            while not is_stopped() and time.monotonic() < until:
                if watcher.wait(_STOP_S):
                    break
    finally:
        watcher.stop()
    return keeper.count


class Guard:
    """Keeps the generations of one run: one look at a time."""

    def __init__(self, run_dir: Path, *, keep: Policy = KEEP_LAST) -> None:
        self.run_dir = run_dir
        self.count = 0
        self._keep = keep
        self._scanner = Scanner(run_dir)
        self._settled: dict[str, str] = {}
        self._told: set[tuple[str, str]] = set()
        self._directories: tuple[Path, ...] = (run_dir,)
        self._gone_since: dict[str, float] = {}

    @property
    def targets(self) -> Targets:
        """What to watch: the directories in which slots change, as of the last look."""
        return Targets(run_directories=self._directories)

    def look(self) -> tuple[str, ...]:
        """Keep what is live now and is not kept yet; return what there is to tell, in sentences.

        What fails is told once and tried again at every look.
        """
        try:
            slots = self._scanner.scan()
        except OSError as error:
            return self._once("", f"{self.run_dir}: {(error.strerror or str(error)).lower()}")
        changing = dict.fromkeys([self.run_dir, *(slot.path.parent for slot in slots)])
        changing |= {kt_slot(s.path, self.run_dir).directory: None for s in slots if _is_kt(s)}
        self._directories = tuple(changing)
        told: list[str] = []
        settled: list[tuple[Slot, Generation]] = []
        for slot in reversed(slots):  # the oldest first: the journal tells their order
            live = slot.live
            if live is not None and self._settled.get(slot.name) != live.id:
                told += self._guard(slot, live, settled)
        told += self._record(settled)
        for slot, _ in settled:
            if any(each.state is State.RETIRED for each in slot.generations):
                told += self._prune(slot.name)
        told += self._withdraw(slots)
        return tuple(told)

    def _guard(
        self, slot: Slot, live: Generation, settled: list[tuple[Slot, Generation]]
    ) -> Iterator[str]:
        try:
            outcome = _keep(self.run_dir, slot, live)
        except FileNotFoundError:
            return  # the trainer replaced it meanwhile: the next look sees what is there then
        except (CheckpointError, OSError) as error:
            yield from self._once(slot.name, f"{slot.name}: cannot be kept: {_why(error)}")
            return
        if outcome.reason is not None:
            self._settled[slot.name] = live.id
            yield from self._once(slot.name, f"{slot.name}: {outcome.reason}")
        elif outcome.is_final:
            settled.append((slot, live))
        if outcome.is_kept:
            self.count += 1
            step = "" if live.step is None else f", step {live.step:,}"
            yield f"{slot.name}: kept generation {live.id}{step}"

    def _record(self, settled: Sequence[tuple[Slot, Generation]]) -> Iterator[str]:
        """Let the journal tell what a trainer published: by it generations are put in order."""
        journal = self._scanner.journal
        new = [pair for pair in settled if _last(journal, pair[0]) != pair[1].id]
        try:
            if new:
                with swap_lock(self.run_dir, "guard"):
                    journal = read(self.run_dir)
                    for slot, live in new:
                        _publish(self.run_dir, slot, _last(journal, slot), live.id)
        except (CheckpointError, OSError) as error:
            yield from self._once("", f"{self.run_dir}: not in the journal yet: {_why(error)}")
            return
        self._settled |= {slot.name: live.id for slot, live in settled}

    def _withdraw(self, slots: Sequence[Slot]) -> Iterator[str]:
        """Say of a checkpoint that its trainer removed that it was: it is no broken publish.

        One after which nothing was saved is left to recovery: its trainer may have lost it.
        """
        newest = next((at for at, slot in enumerate(slots) if slot.live is not None), len(slots))
        gone = {slot.name: slot for slot in slots[newest:] if _is_removed(slot)}
        now = time.monotonic()
        self._gone_since = {name: self._gone_since.get(name, now) for name in gone}
        for name, since in self._gone_since.items():
            if now - since < QUIET_S:
                continue
            try:
                _set_withdrawn(self.run_dir, gone[name])
            except (CheckpointError, OSError) as error:
                yield from self._once(name, f"{name}: removed by its trainer: {_why(error)}")
                continue
            yield f"{name}: removed by its trainer, kept as withdrawn"
            yield from self._prune(None)

    def _prune(self, slot: str | None) -> Iterator[str]:
        """Let go what the policy does not keep any more of a slot, or of those removed (None)."""
        try:
            known = Known(self.run_dir, self._scanner.scan(), read(self.run_dir), time.time())
            if slot is None:
                plan = _plan_removed(known, self._keep)
            else:
                plan = plan_prune(known, self._keep, slot=slot)
            drive(prune(plan))
        except (CheckpointError, OSError) as error:
            yield f"{slot or self.run_dir}: older generations stay for now: {_why(error)}"
            return
        for change in plan.changes:
            yield f"{change.slot}: let go of generation {change.before}"

    def _once(self, slot: str, sentence: str) -> tuple[str, ...]:
        if (slot, sentence) in self._told:
            return ()
        self._told.add((slot, sentence))
        return (sentence,)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of one live generation; `is_final`: there is no need to look at it again."""

    is_kept: bool = False
    is_final: bool = False
    reason: str | None = None


def _keep(run_dir: Path, slot: Slot, live: Generation) -> _Outcome:
    payload = look(slot.path)
    if payload.glance is None or payload.id != live.id:
        return _Outcome()
    if _is_kt(slot):
        return _keep_shards(run_dir, slot, live)
    reason = _cannot(payload)
    if reason is not None:
        return _Outcome(is_final=True, reason=reason)
    is_own = payload.glance.generation is not None  # such a save retires what it replaces
    if is_own or any(map(slot.is_live_too, slot.generations)):
        return _Outcome(is_final=True)
    if not _is_whole(payload):
        return _Outcome()
    _keep_directory(run_dir, slot, payload)
    return _Outcome(is_kept=True, is_final=True)


def _is_kt(slot: Slot) -> bool:
    return slot.format == "kt_full"


def _cannot(payload: Payload) -> str | None:
    """Say why a payload cannot be guarded, None when it can.

    A hard link is the same file: what a trainer opens and writes anew changes under both names.
    """
    path, name = payload.path, payload.format.name if payload.format else ""
    if not payload.names:
        return (
            "cannot be guarded: its trainer writes the file in place, so that a link changes too"
        )
    if name in _BY_RENAME:
        return None
    if name in _BY_TRAINER and names.looks_like_checkpoint(path.name):
        return None
    return "cannot be guarded: its trainer writes the files in place, so that links change too"


def _is_whole(payload: Payload) -> bool:
    """Whether nothing of it is still being written, as far as names, sizes and times tell."""
    glance = payload.glance
    if glance is None or glance.complete is False or first_error(glance.findings) is not None:
        return False
    is_by_rename = payload.format is not None and payload.format.name in _BY_RENAME
    if glance.complete and is_by_rename:
        return True
    found = [fs.identity(payload.path / name) for name in payload.names]
    newest = max((each.modified_at for each in found if each is not None), default=0.0)
    return time.time() - newest > QUIET_S


# ---- what the trainer removed itself ----------------------------------------------------------


def _is_removed(slot: Slot) -> bool:
    """Whether nothing is left of a slot but what was kept of it: no publish was cut off there."""
    if slot.state is not State.BROKEN or slot.leftovers or slot.interrupted is not None:
        return False
    hidden = [names.hidden(each.path.name) for each in slot.generations]
    return bool(hidden) and all(
        each is not None and each.kind == "retired" and names.is_own_token(each.token[:12])
        for each in hidden
    )


def _set_withdrawn(run_dir: Path, slot: Slot) -> None:
    with swap_lock(run_dir, "guard"):
        if fs.identity(slot.path, follow=False) is not None:
            return
        for each in slot.generations:
            rename(each.path, free_name(slot.path, "withdrawn", each.id))
        fs.sync_directory(slot.path.parent)


def _plan_removed(known: Known, policy: Policy) -> Plan:
    """Plan which slots that their trainer removed go: `keep_last` counts over all of them."""
    removed = [
        (names.age_key(slot.name, each.step, each.epoch), slot, each)
        for slot in known.slots
        if slot.state is State.WITHDRAWN and not known.journal.of_slot(slot.name).is_withdrawn
        for each in slot.generations
    ]
    always = always_kept(known.slots, known.journal)
    oldest_first = sorted(removed, key=lambda each: each[0])
    most = len(removed) if policy.keep_last is None else policy.keep_last
    going = [
        (slot, each)
        for _, slot, each in oldest_first[: len(removed) - most]
        if (slot.name, each.id) not in always
    ]
    return Plan(
        "prune",
        known.run_dir,
        tuple(Change(slot.name, each.id, None) for slot, each in going),
        removed=tuple(each for _, each in going),
    )


# ---- a directory ------------------------------------------------------------------------------


def _keep_directory(run_dir: Path, slot: Slot, payload: Payload) -> None:
    """Make a retired generation of what stands at a name; its manifest is linked last."""
    path = slot.path
    token = os.urandom(names.TOKEN_LENGTH // 2).hex()
    staging = path.with_name(names.hidden_name(path.name, "tmp", token))
    with fs.Directory(path) as source, writing(run_dir, token, slot.name):
        fs.make_directory(staging, mode=source.opened_as.mode & 0o777)  # never wider than theirs
        try:
            _link_all(source.inside(""), staging)
            with swap_lock(run_dir, "guard"):
                _check(path, source.opened_as, staging, payload.id)
                rename(staging, free_name(path, "retired", payload.id))
                fs.sync_directory(path.parent)
        except BaseException:
            with suppress(OSError):  # the first failure is the one to tell; recovery sweeps it
                fs.remove_tree(staging, first=_MANIFEST)
            raise


def _link_all(source: str, target: Path) -> None:
    entries = sorted(fs.scan(source), key=lambda each: (each.name == _MANIFEST, each.name))
    for entry in entries:
        inside, place = Path(f"{source}/{entry.name}"), target / entry.name
        if entry.is_directory:
            found = fs.identity(inside)
            fs.make_directory(place, mode=found.mode & 0o777 if found else 0o700)
            _link_all(str(inside), place)
        elif entry.is_file:
            _share(inside, place)
        else:
            message = "it holds a link or a special file"
            raise OSError(errno.EOPNOTSUPP, message, str(place))
    fs.sync_directory(target)


def _share(source: Path, target: Path) -> None:
    """Give a file one more name, or a copy that shares its blocks where that cannot be."""
    try:
        fs.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            raise
        if not fs.clone(source, target):
            raise error from None
        fs.sync_file(target)


def _check(path: Path, opened_as: fs.Identity, staging: Path, generation: str) -> None:
    """Refuse what was replaced, or changed, while it was linked."""
    found = fs.identity(path)
    is_same = found is not None and found.is_same_file(opened_as)
    if not is_same or look(staging).id != generation:
        raise FileNotFoundError(errno.ENOENT, "replaced while it was being kept", str(path))


def _last(journal: Journal, slot: Slot) -> str | None:
    """Return what was live last in a slot, as far as the journal tells."""
    lived = journal.of_slot(slot.name).lived
    return max(lived, key=lived.__getitem__, default=None)


def _publish(run_dir: Path, slot: Slot, before: str | None, after: str) -> None:
    if before != after:
        sequence = intend(run_dir, "publish", (Change(slot.name, before, after),))
        conclude(run_dir, sequence, Outcome.DONE)


# ---- KT ---------------------------------------------------------------------------------------


def _keep_shards(run_dir: Path, slot: Slot, live: Generation) -> _Outcome:
    """Keep the live index, and links to its shards: their trainer removes superseded ones."""
    kt = kt_slot(slot.path, run_dir)
    data = read_if_there(kt.index)
    is_whole = live.complete is not False and first_error(live.findings) is None
    if data is None or not is_whole or parsed(data).generation != live.id or not is_id(live.id):
        return _Outcome()
    is_new = not linked(kt, live.id)
    if is_new:
        keep_links(kt, live.id, data)
    return _Outcome(is_kept=is_new, is_final=True)


def _why(error: CheckpointError | OSError) -> str:
    if isinstance(error, CheckpointError):
        return error.message
    return _NO_LINKS.get(error.errno or 0) or (error.strerror or str(error)).lower()
