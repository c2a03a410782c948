"""Which payload a reader should use for a slot, and why. Read-only, without a lock."""

from pathlib import Path

from ckpt import fs
from ckpt.checkpoint import Generation, Resolved, Slot, State, Verdict, first_error
from ckpt.errors import CheckpointError, NoCheckpoint
from ckpt.generations.find import home_of, slot_name
from ckpt.generations.payload import look
from ckpt.generations.scanner import scan_slot
from ckpt.manifest import NAME as MANIFEST
from ckpt.manifest import read_manifest
from ckpt.operation import drive
from ckpt.reflog import read
from ckpt.verify import verify

_MOST_BYTES = 64 << 20


def resolve(slot: Slot) -> Resolved:
    """Name the payload to use for a slot.

    Looks at what stands at the name; if that is missing or faulty, at what an interrupted swap
    was to make live and what was live before; then at a whole payload in staging every hash of
    which is compared (this reads all of it), then at the newest retired one.
    """
    live = slot.live
    if live is not None and _is_good(live):
        proven = "" if live.complete else "; nothing proves that it is whole"
        return _use(slot, live, f"{slot.name} is published{proven}")
    if slot.state is State.WITHDRAWN:
        return Resolved(slot.name, None, None, f"{slot.name} was withdrawn on purpose")
    trouble = _trouble(slot, live)
    for each in slot.candidates:
        which = f"generation {each.id}" if each.path == slot.path else each.path.name
        if slot.interrupted is not None and each.id in slot.interrupted and _is_good(each):
            role = "new" if each.id == slot.interrupted[1] else "old"
            return _use(slot, each, f"{trouble}; {which} is the {role} payload of that swap")
        if each.state is State.SEALED and _is_intact(each):
            return _use(
                slot, each, f"{trouble}; {which} is the new payload, every hash of it fits"
            )
        if each.state is State.RETIRED and _is_good(each):
            return _use(slot, each, f"{trouble}; {which} is the newest retired payload")
    return Resolved(slot.name, None, None, f"{trouble}; no other payload of it is usable")


def resolve_path(target: Path, *, run_dir: Path | None = None) -> Resolved:
    """Name the payload to use for a published name, without looking at the rest of its run.

    `run_dir` None: the run that the path lies in.

    Raises:
        NoCheckpoint: nothing was ever saved there.
        OSError: the directory around it cannot be listed.
    """
    if _fits_its_manifest(target):
        return Resolved(target.name, target, None, f"{target.name} is published")
    glance = look(target).glance
    if glance is not None and glance.complete is not False and not first_error(glance.findings):
        proven = "" if glance.complete else "; nothing proves that it is whole"
        return Resolved(target.name, target, None, f"{target.name} is published{proven}")
    run = run_dir or home_of(target)
    name = slot_name(run, target)
    slot = scan_slot(run, name, read(run))
    if slot is None:
        hint = "look at what there is: ckpt list"
        raise NoCheckpoint(f"{target}: no checkpoint", path=str(target), hint=hint)
    return resolve(slot)


def _fits_its_manifest(target: Path) -> bool:
    """Whether a manifest lies there without fault, and every file it lists with its size."""
    try:
        manifest = read_manifest(fs.read_small(f"{target}/{MANIFEST}", _MOST_BYTES))
        sizes = [fs.stamp(f"{target}/{name}") for name in manifest.files]
    except OSError:
        return False
    if not manifest.files or first_error(manifest.findings) is not None:
        return False
    listed = [each.size_bytes for each in manifest.files.values()]
    return [found.size_bytes if found else None for found in sizes] == listed


def _use(slot: Slot, generation: Generation, reason: str) -> Resolved:
    return Resolved(slot.name, generation.path, generation, reason)


def _is_good(generation: Generation) -> bool:
    if generation.verified is not None and generation.verified.verdict is Verdict.DAMAGED:
        return False
    return generation.complete is not False and first_error(generation.findings) is None


def _trouble(slot: Slot, live: Generation | None) -> str:
    if live is None:
        wrong = first_error(slot.findings)
        return wrong.message if wrong else f"{slot.name} is missing"
    if live.verified is not None and live.verified.verdict is Verdict.DAMAGED:
        return f"{slot.name} is damaged: verified so"
    wrong = first_error(live.findings)
    return f"{slot.name} is damaged: {wrong.message}" if wrong else f"{slot.name} is incomplete"


def _is_intact(generation: Generation) -> bool:
    try:
        return drive(verify(generation.path)).verdict is Verdict.INTACT
    except (CheckpointError, OSError):
        return False
