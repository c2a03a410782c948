"""Scanning a run: its slots, the generations behind them, and what dead writers left.

Reads names, stat and small JSON of the run and two levels below it; writes nothing. A scanner
remembers what it saw, so that scanning again costs little more than a stat per slot.
"""

import time
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import Finding, Generation, Leftover, Severity, Slot, first_error
from ckpt.control import VerifiedCache, read_pins
from ckpt.generations import names
from ckpt.generations.kt_kept import KeptIndices
from ckpt.generations.payload import Payload, Payloads, is_settled
from ckpt.generations.slots import Draft, to_slot
from ckpt.reflog import Journal, JournalReader

LEVELS_BELOW = 2
NEWEST_LOOKED_AT = 2
FAULTY_LOOKED_AT = 8
SWEEP_PARTS = 50
FILE_SUFFIXES = (".safetensors", ".json")
"""Only files of these kinds are ever asked about: 10,000 others cost nothing."""

_SMALL_PARTS = frozenset(
    {"meta.json", "config.json", "manifest.json", "metric.jsonl", "trainer_state.json"}
)


def scan(run_dir: Path) -> tuple[Slot, ...]:
    """Return the slots of a run, newest first by (step, epoch), then by the numbers in the name.

    Raises:
        OSError: the run's directory cannot be listed.
    """
    return Scanner(run_dir).scan()


@dataclass(frozen=True, slots=True)
class _Listing:
    identity: fs.Identity | None
    listed_at: float
    entries: tuple[fs.Entry, ...]


@dataclass(frozen=True, slots=True)
class _Made:
    parts: tuple[object, ...]
    slot: Slot
    age: tuple[object, ...]


class Scanner:
    """Scans one run again and again.

    Every scan is exact about names. A file that was overwritten in place, in a directory that did
    not change, is noticed at once in the newest slots and within 50 scans in the others.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._payloads = Payloads()
        self._kept = KeptIndices(run_dir)
        self._listings: dict[str, _Listing] = {}
        self._verified = VerifiedCache(run_dir)
        self._pins: frozenset[str] = frozenset()
        self._reader = JournalReader(run_dir)
        self._journal = Journal()
        self._made: dict[str, _Made] = {}
        self._slots: tuple[Slot, ...] = ()
        self._scans = 0

    def scan(self) -> tuple[Slot, ...]:
        """Return the slots as they are now; an unchanged slot is the same object as before.

        Raises:
            OSError: the run's directory cannot be listed.
        """
        self._look_again_at_some()
        pins, journal = read_pins(self.run_dir), self._reader.read()
        if self._verified.refresh() or pins != self._pins:
            self._pins = pins
            self._made.clear()
        told_before, self._journal = self._journal, journal
        with_stamps = not self._verified.is_empty
        walk = _Walk(self._payloads, self._kept, self._listings, with_stamps=with_stamps)
        made: dict[str, _Made] = {}
        for name, draft in walk.drafts(str(self.run_dir)).items():
            known = self._made.get(name)
            parts = draft.parts
            told = journal.of_slot(name)
            if known is None or known.parts != parts or told != told_before.of_slot(name):
                slot = to_slot(draft, self._recorded, told)
                known = _Made(parts, slot, _age(slot))
            made[name] = known
        self._made = made
        self._payloads.drop_unseen()
        self._listings = walk.listings
        newest_first = sorted(made.values(), key=attrgetter("age"), reverse=True)
        self._slots = tuple(each.slot for each in newest_first)
        self._scans += 1
        return self._slots

    @property
    def journal(self) -> Journal:
        """The run's journal as it was at the last scan."""
        return self._journal

    def _look_again_at_some(self) -> None:
        slots = self._slots
        faulty = [slot for slot in slots if _is_faulty(slot)][:FAULTY_LOOKED_AT]
        for slot in (
            *slots[:NEWEST_LOOKED_AT],
            *faulty,
            *slots[self._scans % SWEEP_PARTS :: SWEEP_PARTS],
        ):
            for path in (slot.path, *(each.path for each in slot.generations)):
                self._payloads.forget(str(path))

    def _recorded(self, generation: Generation, payload: Payload) -> Generation:
        return _recorded(generation, payload, self._verified, self._pins)


def scan_slot(run_dir: Path, name: str, journal: Journal) -> Slot | None:
    """Return one slot of a run, None when nothing was ever saved there; the others cost nothing.

    Raises:
        OSError: the directory that holds it cannot be listed.
    """
    verified = VerifiedCache(run_dir)
    verified.refresh()
    pins = read_pins(run_dir)
    directory, _, base = name.rpartition("/")
    walk = _Walk(Payloads(), KeptIndices(run_dir), {}, with_stamps=not verified.is_empty)
    above = f"{run_dir}/{directory}" if directory else str(run_dir)
    prefix = f"{directory}/" if directory else ""
    draft = walk.drafts(above, prefix, levels=0, only=base).get(name)
    if draft is None:
        return None
    return to_slot(
        draft,
        lambda each, payload: _recorded(each, payload, verified, pins),
        journal.of_slot(name),
    )


def _recorded(
    generation: Generation, payload: Payload, cache: VerifiedCache, pins: frozenset[str]
) -> Generation:
    """Add to a generation what the run's `.ckpt/` records of it."""
    verified = cache.lookup(payload.stamp) if payload.stamp else None
    is_pinned = generation.id in pins
    if verified is None and not is_pinned:
        return generation
    return replace(generation, verified=verified, pinned=is_pinned)


def _is_faulty(slot: Slot) -> bool:
    live = slot.live
    return live is None or live.complete is False or first_error(live.findings) is not None


def _age(slot: Slot) -> tuple[object, ...]:
    first = slot.generations[0] if slot.generations else None
    return names.age_key(slot.name, slot.step, first.epoch if first else None)


class _Walk:
    """One pass over the directories of a run."""

    def __init__(
        self,
        payloads: Payloads,
        kept: KeptIndices,
        listings: dict[str, _Listing],
        *,
        with_stamps: bool,
    ) -> None:
        self._payloads = payloads
        self._kept = kept
        self._before = listings
        self._with_stamps = with_stamps
        self.listings: dict[str, _Listing] = {}

    def drafts(
        self, directory: str, prefix: str = "", levels: int = LEVELS_BELOW, only: str | None = None
    ) -> dict[str, Draft]:
        """Return what was found for each name in a directory and `levels` below it.

        With `only` nothing else is looked at than that name and what lies beside it for it.
        """
        found: dict[str, Draft] = {}
        hidden: list[tuple[names.Hidden, str]] = []
        standing: set[str] = set()
        for entry in self._list(directory):
            name, path = entry.name, f"{directory}/{entry.name}"
            if only is not None and not names.belongs_to(name, only):
                continue
            if name.startswith("."):
                sibling = names.hidden(name)
                if sibling and not entry.is_symlink:
                    hidden.append((sibling, path))
                continue
            standing.add(name)
            if entry.is_symlink:
                self._link(found, prefix, path, name)
            elif (slot := names.unfinished_of(name)) is not None:
                reason = "a temporary name: a save was cut off, or is being written"
                kind = "staging" if entry.is_directory else "temporary-file"
                leftover = Leftover(Path(path), kind, reason)
                _draft(found, prefix, directory, slot).leftovers.append(leftover)
            elif entry.is_directory:
                self._directory(found, prefix, path, levels)
            elif entry.is_file and name.endswith(FILE_SUFFIXES):
                payload = self._look(path)
                is_there = payload.glance is not None or payload.error is not None
                if is_there and not payload.is_gone:
                    _draft(found, prefix, directory, name).live = payload
        for sibling, path in hidden:
            payload = self._look(path)
            if not payload.is_gone:
                slot = only if only is not None else _owner(sibling.slot, prefix, found)
                draft = _draft(found, prefix, directory, slot)
                draft.hidden.append((sibling, payload))
                draft.is_taken = draft.live is None and slot in standing
        return {name: draft for name, draft in found.items() if _is_of_a_checkpoint(draft)}

    def _directory(self, found: dict[str, Draft], prefix: str, path: str, levels: int) -> None:
        payload = self._look(path)
        directory, _, name = path.rpartition("/")
        if payload.is_gone:
            return
        if payload.glance is not None or (payload.error is not None and name != "lost+found"):
            _draft(found, prefix, directory, name).live = payload
            return
        if payload.format is not None or payload.error is not None:
            return
        try:
            inner = self.drafts(path, f"{prefix}{name}/", levels - 1) if levels else {}
        except FileNotFoundError:
            return
        found |= inner
        is_named_so = names.looks_like_checkpoint(name) or (name.isdigit() and not prefix)
        is_bare = not inner and not payload.has_subdirectories
        if is_named_so and is_bare and _SMALL_PARTS.issuperset(payload.names):
            _draft(found, prefix, directory, name).live = payload

    def _link(self, found: dict[str, Draft], prefix: str, path: str, name: str) -> None:
        """Say of a link that should lead to a checkpoint that it leads nowhere; follow none."""
        try:
            target = fs.read_link(Path(path))
            is_meant = names.looks_like_pointer(name) or names.looks_like_checkpoint(target)
            if not is_meant or fs.identity(path) is not None:
                return
            why = "which is not there"
        except OSError as error:
            target, why = "itself", (error.strerror or str(error)).lower()
        message = f"{name} is a link to {target}, {why}"
        draft = _draft(found, prefix, path.rpartition("/")[0], name)
        draft.findings.append(Finding("dangling-link", Severity.ERROR, message, name))
        draft.leftovers.append(Leftover(Path(path), "dangling-link", message))

    def _look(self, path: str) -> Payload:
        return self._kept.tell(self._payloads.look(path, with_stamp=self._with_stamps))

    def _list(self, directory: str) -> tuple[fs.Entry, ...]:
        before = self._before.get(directory)
        found = fs.identity(directory)
        is_same = before is not None and found == before.identity
        if before and is_same and is_settled(found, before.listed_at):
            self.listings[directory] = before
            return before.entries
        listed_at = time.time()
        entries = tuple(sorted(fs.scan(directory), key=lambda entry: entry.name))
        self.listings[directory] = _Listing(found, listed_at, entries)
        return entries


def _draft(found: dict[str, Draft], prefix: str, directory: str, name: str) -> Draft:
    full = prefix + name
    if full not in found:
        found[full] = Draft(full, f"{directory}/{name}")
    return found[full]


def _owner(slot: str, prefix: str, found: dict[str, Draft]) -> str:
    """The slot of a hidden name whose slot's own name may have been too long for it."""
    if "~" not in slot or prefix + slot in found:
        return slot
    candidates = (name.removeprefix(prefix) for name in found if name.startswith(prefix))
    return next((name for name in candidates if names.shortened(name) == slot), slot)


def _is_of_a_checkpoint(draft: Draft) -> bool:
    """Whether a name matters: a stray `notes.json.tmp` alone does not."""
    name = draft.name.rpartition("/")[2]
    if draft.live is not None or draft.hidden or draft.findings:
        return True
    return name.endswith(".safetensors") or names.looks_like_checkpoint(name) or name.isdigit()
