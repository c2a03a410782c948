"""ferrotensor's training checkpoint: state, optimizer and loss scaler in one JSON text.

The text can be hundreds of MB of decimal moments. The quick way reads its head and its tail and
nothing between; the whole way goes through every byte and builds no moment. Where the quick way is
not sure the whole way is taken, so both give the same answer, but for what only the middle can
tell: a null in a moment, a torn middle, a third copy of a key.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ckpt import fs, jsontext
from ckpt.checkpoint import Finding, Severity
from ckpt.errors import DuplicateKey, TornRead
from ckpt.formats.ferrotensor_scan import BadText, CutText, Scanned, scan
from ckpt.formats.ferrotensor_state import ParsedState, describe, is_number, state_from

WINDOW_BYTES = 1 << 15
OPTIMIZER = "AdamW"
_HYPERPARAMETERS = ("lr", "beta1", "beta2", "eps", "weight_decay", "t")
_SCALER_NUMBERS = ("scale", "growth_factor", "backoff_factor", "growth_interval",
                   "consecutive_good_steps")  # fmt: skip
_SCALER_FLAGS = ("found_overflow", "enabled")
_MEMBER = re.compile(rb'[{,][ \t\r\n]*"(?:training_state|optimizer_state|grad_scaler_state)"'
                     rb"[ \t\r\n]*:")  # fmt: skip
_NAMED_FINDINGS = 20


@dataclass(frozen=True, slots=True)
class TrainingCheckpoint:
    """What a training checkpoint says of itself.

    `optimizer` holds AdamW's numbers (`lr`, …, `t`, a float), `scaler` the loss scaler's fields;
    None where the file says null or nothing. `parameters` are the names that moments were met for,
    all of them only where `is_whole`: every byte of the text was looked at.
    """

    parsed: ParsedState | None = None
    optimizer: Mapping[str, Any] | None = None
    scaler: Mapping[str, Any] | None = None
    parameters: tuple[str, ...] = ()
    is_whole: bool = False
    findings: tuple[Finding, ...] = ()

    @property
    def step(self) -> int | None:
        """The step of the training state, None where it cannot be read."""
        return self.parsed.state.step if self.parsed and self.parsed.state else None

    @property
    def steps_taken(self) -> float | None:
        """The optimizer's own count of steps, `t`."""
        t: Any = self.optimizer.get("t") if self.optimizer else None
        return float(t) if is_number(t) else None


def read_training_checkpoint(path: Path, *, whole: bool = False) -> TrainingCheckpoint:
    """Read a training checkpoint: every byte with `whole`, else its two ends if they suffice.

    Raises:
        TornRead: the text does not parse.
        OSError: the file cannot be read.
    """
    with fs.File(path) as file:
        if not whole:
            found = _scan_ends(file)
            if found is not None:
                return _judge(found, path.name, is_whole=False)
        return _scan_whole(file, path.name)


def has_training_state(path: Path) -> bool:
    """Whether one of the two ends of a file shows the key of a training state. Never raises."""
    try:
        with fs.File(path) as file:
            return any(b'"training_state"' in window for window in _ends_of(file))
    except OSError:
        return False


def trailing_members(tail: bytes) -> dict[str, Any] | None:
    """Return the last members of a text's outermost object, from a known key in `tail` on.

    None when the tail does not show them up to the closing brace, or holds a key twice. Where the
    text is JSON a match is never inside a string (a quote there has a backslash before it), and
    never of an inner object (that would leave a brace over).
    """
    for match in islice(_MEMBER.finditer(tail), 16):
        try:
            value = jsontext.parse(b"{" + tail[match.start() + 1 :], path="")
        except TornRead:
            continue
        except DuplicateKey:
            return None
        return value if isinstance(value, dict) else None
    return None


def _ends_of(file: fs.File) -> tuple[bytes, bytes]:
    size = file.identity().size_bytes
    head = file.read_at(0, WINDOW_BYTES)
    tail_from = max(len(head), size - WINDOW_BYTES)
    return head, file.read_at(tail_from, WINDOW_BYTES)


def _scan_ends(file: fs.File) -> Scanned | None:
    head, tail = _ends_of(file)
    found = Scanned()
    try:
        scan(iter((head,)), found)
        return None  # nothing is cut off: the whole way costs the same
    except CutText:
        pass
    except (BadText, DuplicateKey):
        return None
    members = trailing_members(tail)
    if members is None or found.twice or found.keys & members.keys():
        return None
    if "optimizer_state" in members and found.optimizer_tag is None:
        return None
    found.training_state = members.get("training_state", found.training_state)
    found.scaler = members.get("grad_scaler_state", found.scaler)
    found.keys |= members.keys()
    return found if "training_state" in found.keys else None


def _scan_whole(file: fs.File, name: str) -> TrainingCheckpoint:
    found = Scanned()
    try:
        scan((bytes(block) for block in file.blocks()), found)
    except CutText:
        size = file.identity().size_bytes
        if not size:
            raise _torn(name, "the file is empty, expected JSON", "empty-file") from None
        raise _torn(name, f"the text ends too early, after {size:,} bytes") from None
    except BadText as bad:
        raise _torn(name, f"not JSON: {bad}") from None
    except DuplicateKey as twice:
        message = f"{name}: {twice.message.removeprefix(': ')}"
        finding = Finding("duplicate-key", Severity.ERROR, message, name)
        return TrainingCheckpoint(is_whole=True, findings=(finding,))
    return _judge(found, name, is_whole=True)


def _torn(name: str, what: str, code: str = "bad-state") -> TornRead:
    return TornRead(f"{name}: {what}", path=name, finding_code=code)


def _judge(found: Scanned, name: str, *, is_whole: bool) -> TrainingCheckpoint:
    findings = [_bad(f"{name}: {problem}", name) for problem in found.odd]
    findings += [
        Finding("duplicate-key", Severity.ERROR, f"{name}: duplicate key {key!r}", name)
        for key in found.twice
    ]
    parsed = None
    if "training_state" in found.keys:
        parsed = state_from(found.training_state, f"{name}: training_state", name)
        findings += parsed.findings
    elif not found.odd:
        findings.append(_bad(f"{name}: missing field training_state", name))
    findings += _optimizer_findings(found, name, is_whole=is_whole)
    findings += _scaler_findings(found.scaler, name)
    has_optimizer = found.optimizer_tag == OPTIMIZER
    return TrainingCheckpoint(
        parsed,
        MappingProxyType(found.optimizer) if has_optimizer else None,
        MappingProxyType(found.scaler) if isinstance(found.scaler, dict) else None,
        tuple(dict.fromkeys(key for kind in found.moments.values() for key in kind)),
        is_whole,
        tuple(findings),
    )


def _optimizer_findings(found: Scanned, name: str, *, is_whole: bool) -> Iterator[Finding]:
    tag = found.optimizer_tag
    if tag is None:
        return
    if tag != OPTIMIZER:
        message = f"{name}: optimizer_state is {tag!r}, ferrotensor reads only {OPTIMIZER!r}"
        yield _bad(message, name)
        return
    for key in _HYPERPARAMETERS:
        if key in found.optimizer:
            yield from _number_findings(key, found.optimizer[key], name)
    if is_whole:
        needed = (*_HYPERPARAMETERS, "m_states", "v_states")
        for key in needed:
            if key not in found.optimizer and key not in found.moments:
                yield _bad(f"{name}: missing field {key} of {OPTIMIZER}", name)
        yield from _moment_findings(found, name)


def _number_findings(key: str, value: Any, name: str) -> Iterator[Finding]:
    if value is None:
        message = f"{name}: {key} of {OPTIMIZER} is null: it was a NaN, and cannot be resumed from"
        yield Finding("nonfinite", Severity.ERROR, message, name)
    elif not is_number(value):
        yield _bad(f"{name}: {key} of {OPTIMIZER} is {describe(value)}, expected a number", name)


def _moment_findings(found: Scanned, name: str) -> Iterator[Finding]:
    lost = [
        (kind, parameter, moment)
        for kind, moments in found.moments.items()
        for parameter, moment in moments.items()
        if moment.lost
    ]
    for kind, parameter, moment in lost[:_NAMED_FINDINGS]:
        message = (
            f"{name}: {kind} of {parameter!r} holds {moment.lost} null or NaN among"
            f" {moment.numbers + moment.lost} values: unusable for resume"
        )
        hint = "resume from an earlier checkpoint; the adapter's weights may hold NaN too"
        yield Finding("nonfinite", Severity.ERROR, message, name, parameter, hint)
    if len(lost) > _NAMED_FINDINGS:
        message = f"{name}: {len(lost) - _NAMED_FINDINGS} more moments hold null or NaN"
        yield Finding("nonfinite", Severity.ERROR, message, name)
    first, second = (found.moments.get(kind, {}) for kind in ("m_states", "v_states"))
    for parameter in sorted(first.keys() ^ second.keys())[:_NAMED_FINDINGS]:
        kind = "v_states" if parameter in first else "m_states"
        message = f"{name}: {kind} has no {parameter!r}, the other moments have"
        yield Finding("bad-state", Severity.WARNING, message, name, parameter)


def _scaler_findings(scaler: Any, name: str) -> Iterator[Finding]:
    if scaler is None:
        return
    if not isinstance(scaler, dict):
        yield _bad(f"{name}: grad_scaler_state is {describe(scaler)}, expected an object", name)
        return
    for key in (*_SCALER_NUMBERS, *_SCALER_FLAGS):
        if key not in scaler:
            yield _bad(f"{name}: missing field {key} of grad_scaler_state", name)
        elif key in _SCALER_FLAGS and not isinstance(scaler[key], bool):
            got = describe(scaler[key])
            yield _bad(f"{name}: {key} is {got}, expected true or false", name)
        elif key in _SCALER_NUMBERS and not is_number(scaler[key]):
            yield _bad(f"{name}: {key} is {describe(scaler[key])}, expected a number", name)


def _bad(message: str, name: str) -> Finding:
    return Finding("bad-state", Severity.ERROR, message, name)
