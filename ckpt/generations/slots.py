"""From what lies at and around a name to a slot: states, reasons, leftovers. No disk, no clock."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from ckpt.checkpoint import (
    Finding,
    Generation,
    Glance,
    Leftover,
    Severity,
    Slot,
    State,
    first_error,
)
from ckpt.formats.base import InnerGeneration
from ckpt.generations.names import Hidden
from ckpt.generations.payload import Payload
from ckpt.reflog import UNTOLD, Told

Recorded: TypeAlias = Callable[[Generation, Payload], Generation]
"""Adds to a generation what the run's `.ckpt/` records of it."""

_ORDER = (State.LIVE, State.SEALED, State.RETIRED, State.WITHDRAWN, State.TRASH)
_STATES = {
    "tmp": State.SEALED,
    "retired": State.RETIRED,
    "withdrawn": State.WITHDRAWN,
    "trash": State.TRASH,
}


@dataclass(slots=True)
class Draft:
    """Everything found for one name, before it is judged; `name` is relative to the run.

    `is_taken`: something stands at the name, and it is no checkpoint.
    """

    name: str
    path: str
    live: Payload | None = None
    is_taken: bool = False
    hidden: list[tuple[Hidden, Payload]] = field(default_factory=list)
    leftovers: list[Leftover] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def parts(self) -> tuple[object, ...]:
        """What the slot is made of: a slot of equal parts is the same slot."""
        beside = tuple(self.hidden), tuple(self.leftovers), tuple(self.findings)
        return self.live, self.is_taken, *beside


def to_slot(draft: Draft, recorded: Recorded, told: Told = UNTOLD) -> Slot:
    """Judge what was found for one name; `told` is what the run's journal tells of it."""
    generations: list[Generation] = []
    leftovers = list(draft.leftovers)
    findings = list(draft.findings)
    live, is_live = draft.live, False
    if live is not None:
        trouble = list(_trouble(live))
        findings += trouble
        leftovers = [*live.inside.leftovers, *leftovers]  # the format knows the better reason
        is_live = not trouble
        if is_live and live.glance is not None:
            generations.append(recorded(_generation(live, live.glance, State.LIVE), live))
        inside = list(_retired_inside(live))
        if inside:
            bare = replace(live, stamp=None)  # what was verified of the live one is not theirs
            generations += [recorded(_inner(live, each), bare) for each in inside]
    for sibling, payload in draft.hidden:
        state = _state(sibling, payload, told)
        if payload.glance is not None and _is_usable(state, payload.glance):
            generations.append(recorded(_generation(payload, payload.glance, state), payload))
        else:
            leftovers.append(_leftover(sibling, payload))
    generations.sort(key=lambda each: _rank(each, told))
    state = State.LIVE if is_live else State.BROKEN
    if live is None and not findings:
        state, missing = _missing(draft, generations, told)
        findings += missing
    return Slot(
        draft.name,
        _format_name(live, draft.hidden),
        live.path if live is not None else Path(draft.path),
        state,
        _told_apart(generations),
        tuple({each.path: each for each in reversed(leftovers)}.values())[::-1],
        tuple(findings),
        interrupted=(told.pending.before, told.pending.after) if told.pending else None,
    )


# ---- what stands at the name ------------------------------------------------------------------


def _trouble(live: Payload) -> Iterator[Finding]:
    """Say why what stands at the name is no checkpoint at all; nothing when it is one."""
    name = live.path.name
    if live.error is not None:
        is_denied = isinstance(live.error, PermissionError)
        why = "permission denied" if is_denied else live.error.strerror or str(live.error)
        code = "permission-denied" if is_denied else "unreadable"
        yield Finding(code, Severity.ERROR, f"{name}: {why.lower()}")
        return
    if live.glance is not None and not _is_half(live, live.glance):
        return
    yield Finding("unfinished-save", Severity.ERROR, f"{name}: unfinished: {_holds(live.names)}")
    if live.glance is not None:
        yield from live.glance.findings


def _is_half(live: Payload, glance: Glance) -> bool:
    """Whether a directory has the small files of a checkpoint and not a single file of weights."""
    has_weights = any(name.endswith((".safetensors", ".index.json")) for name in live.names)
    return glance.complete is False and bool(live.names) and not has_weights


def _holds(names: Sequence[str]) -> str:
    if not names:
        return "the directory is empty"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"it holds only {', '.join(names[:3])}{more}, no weights"


def _retired_inside(live: Payload) -> Iterator[InnerGeneration]:
    return (each for each in live.inside.generations if each.state is State.RETIRED)


def _inner(live: Payload, inner: InnerGeneration) -> Generation:
    return Generation(
        inner.id,
        State.RETIRED,
        live.format.name if live.format else "",
        live.path,
        size_bytes=inner.size_bytes,
        file_count=len(inner.files),
        complete=inner.complete,
    )


# ---- what lies beside it ----------------------------------------------------------------------


def _state(sibling: Hidden, payload: Payload, told: Told) -> State:
    """The state that a hidden name tells; what was live before is retired under any name.

    Right after an exchange the old payload lies under the name that the new one was staged at.
    """
    state = _STATES[sibling.kind]
    if state is State.SEALED and payload.id != sibling.token and payload.id in told.lived:
        return State.RETIRED
    return state


def _is_usable(state: State, glance: Glance) -> bool:
    """Whether a hidden payload is a generation: staging only with a manifest that fits."""
    if state in (State.SEALED, State.TRASH):
        return glance.complete is True and first_error(glance.findings) is None
    return True


def _leftover(sibling: Hidden, payload: Payload) -> Leftover:
    kind = {"tmp": "staging", "trash": "trash"}.get(sibling.kind, "partial-generation")
    begun = {"tmp": "unfinished save", "trash": "being deleted"}.get(sibling.kind, "half deleted")
    return Leftover(payload.path, kind, f"{begun}: {_why(payload)}")


def _why(payload: Payload) -> str:
    if payload.error is not None:
        return (payload.error.strerror or str(payload.error)).lower()
    if payload.glance is None:
        return _holds(payload.names) if payload.names else "it is empty"
    wrong = first_error(payload.glance.findings)
    return wrong.message if wrong else "no manifest says that it is whole"


def _missing(
    draft: Draft, generations: Sequence[Generation], told: Told
) -> tuple[State, list[Finding]]:
    """Say what it means that nothing stands at a name which something was saved for."""
    if told.is_withdrawn:
        return State.WITHDRAWN, []
    kept = [each for each in generations if each.state in (State.SEALED, State.RETIRED)]
    if kept:
        words = {
            State.SEALED: "the new payload lies whole in",
            State.RETIRED: "the one before it lies in",
        }
        where = ", ".join(f"{words[each.state]} {each.path.name}" for each in kept)
        if draft.is_taken:
            message = f"{draft.name}: what stands there is no checkpoint; {where}"
            hint = "nothing is lost: move it away, and ckpt recover gives one of them the name"
            return State.BROKEN, [Finding("name-taken", Severity.ERROR, message, hint=hint)]
        message = f"interrupted publish: {draft.name} is missing; {where}"
        hint = "nothing is lost: ckpt recover gives one of them the name"
        return State.BROKEN, [Finding("interrupted-publish", Severity.ERROR, message, hint=hint)]
    if any(each.state is State.WITHDRAWN for each in generations):
        return State.WITHDRAWN, []
    message = f"{draft.name}: being saved for the first time, or that save was cut off"
    return State.BROKEN, [Finding("unfinished-save", Severity.NOTE, message)]


# ---- generations ------------------------------------------------------------------------------


def _generation(payload: Payload, glance: Glance, state: State) -> Generation:
    return Generation(
        payload.id,
        state,
        glance.format,
        payload.path,
        step=glance.step,
        epoch=glance.epoch,
        loss=glance.loss,
        created_at=glance.created_at,
        size_bytes=glance.size_bytes,
        file_count=glance.file_count,
        tensor_count=glance.tensor_count,
        complete=glance.complete,
        finite=glance.finite,
        findings=glance.findings,
    )


def _rank(generation: Generation, told: Told) -> tuple[float, ...]:
    """Live first, then by state; within a state the newest first.

    By when the journal says that it was live last, then by what it says of itself.
    """
    lived = told.lived.get(generation.id, -1)
    says = (generation.step, generation.epoch, generation.created_at)
    return _ORDER.index(generation.state), -lived, *(0.0 if n is None else -n for n in says)


def _told_apart(generations: Sequence[Generation]) -> tuple[Generation, ...]:
    """Give copies of one payload behind one slot ids of their own."""
    seen: dict[str, int] = {}
    result = []
    for each in generations:
        seen[each.id] = seen.get(each.id, 0) + 1
        times = seen[each.id]
        result.append(each if times == 1 else replace(each, id=f"{each.id}-{times}"))
    return tuple(result)


def _format_name(live: Payload | None, hidden: Sequence[tuple[Hidden, Payload]]) -> str:
    payloads = ([live] if live else []) + [payload for _, payload in hidden]
    return next((each.format.name for each in payloads if each.format is not None), "")
