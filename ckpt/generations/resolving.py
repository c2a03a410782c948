"""Which payload a reader should use for a slot, and why. Read-only, without a lock."""

from ckpt.checkpoint import Generation, Resolved, Slot, State, Verdict, first_error
from ckpt.errors import CheckpointError
from ckpt.operation import drive
from ckpt.verify import verify


def resolve(slot: Slot) -> Resolved:
    """Name the payload to use for a slot.

    Looks at what stands at the name; if that is missing or faulty, at a whole payload in staging
    every hash of which is compared (this reads all of it), then at the newest retired one.
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
        if each.state is State.SEALED and _is_intact(each):
            return _use(
                slot, each, f"{trouble}; {which} is the new payload, every hash of it fits"
            )
        if each.state is State.RETIRED and _is_good(each):
            return _use(slot, each, f"{trouble}; {which} is the newest retired payload")
    return Resolved(slot.name, None, None, f"{trouble}; no other payload of it is usable")


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
