"""ferrotensor's training state: what its own program accepts, and what of it we can read.

Pure: bytes or parsed JSON in, values out. Validated by hand: each field that is wrong is its own
finding, a value in an odd form is still read, and the first sight of a run does not wait for a
validator to be imported. `ferrotensor.py` and the progress sources use it.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from ckpt import jsontext
from ckpt.checkpoint import NOTHING, Finding, Severity
from ckpt.errors import DuplicateKey, TornRead

MAX_INTEGER = 2**64 - 1
FIELDS = (
    "step", "total_steps", "best_loss", "lr", "epoch", "batch_size", "grad_accum_steps",
    "sequence_length", "fp16", "train_modules", "task", "model_path", "dataset_path", "seed",
)  # fmt: skip
OPTIONAL = frozenset({"best_loss", "task", "model_path", "dataset_path", "seed"})
RESUME_ORDER = ("train_modules", "task", "sequence_length", "model_path")
REQUIRED = tuple(name for name in FIELDS if name not in OPTIONAL)


@dataclass(frozen=True, slots=True)
class TrainingState:
    """How far a run is, in ferrotensor's fields; the defaults are those of a fresh state.

    `best_loss` is the lowest loss so far (None: not recorded, or it was a NaN), never the current
    one. `lr` is None where a NaN was written as null. `epoch` is an integer unless another program
    wrote a fraction. `seed` goes up to 2^64 - 1.
    """

    step: int = 0
    total_steps: int = 0
    best_loss: float | None = None
    lr: float | None = 0.0
    epoch: float = 0
    batch_size: int = 1
    grad_accum_steps: int = 1
    sequence_length: int = 128
    fp16: bool = False
    train_modules: str = "lora"
    task: str = "sft"
    model_path: str = ""
    dataset_path: str = ""
    seed: int = 0

    @property
    def remaining_steps(self) -> int:
        """How many steps are left to do; 0 also where the run went on past its end."""
        return max(0, self.total_steps - self.step)

    def as_mapping(self) -> Mapping[str, Any]:
        """Return the 14 fields in the file's order."""
        return MappingProxyType({each.name: getattr(self, each.name) for each in fields(self)})


@dataclass(frozen=True, slots=True)
class ParsedState:
    """What a state file says: `state` is None when it is another program's or cannot be read.

    `extra` holds every key that is not ferrotensor's, ours (`loss`, `grad_norm`, `tokens`,
    `updated_at`) among them.
    """

    state: TrainingState | None
    extra: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    findings: tuple[Finding, ...] = ()

    def number(self, name: str) -> float | None:
        """Return one of the extra keys as a number (NaN included), None where it is none."""
        value: Any = self.extra.get(name)
        return to_float(value) if is_number(value) else None


def parse_state(data: bytes, path: str) -> ParsedState:
    """Parse the text of a `training_state.json`; `path` is what messages and findings call it.

    What ferrotensor refuses is a finding; the state is there all the same where it can be read.

    Raises:
        TornRead: the text does not parse: it is empty or half-written, or text trails it.
    """
    try:
        value = jsontext.parse(data, path=path)
    except DuplicateKey as twice:
        return ParsedState(None, findings=(_finding("duplicate-key", twice.message, path),))
    except TornRead as torn:
        code = "bad-state" if data.strip() else "empty-file"
        raise TornRead(torn.message, path=torn.path, finding_code=code) from None
    parsed = state_from(value, path)
    if not jsontext.has_bom(data):
        return parsed
    message = f"{path}: starts with a byte order mark, which ferrotensor does not read"
    bom = _finding("upstream-refuses", message, path, Severity.WARNING)
    return ParsedState(parsed.state, parsed.extra, (bom, *parsed.findings))


def state_from(value: Any, path: str, file: str | None = None) -> ParsedState:
    """Read a training state out of parsed JSON: an object, or an array of the 14 values.

    `path` starts every message; `file` is what findings name, `path` when not given.
    """
    named = file or path
    if isinstance(value, list):
        if len(value) != len(FIELDS):
            message = f"{path}: an array of {len(value)} values, expected {len(FIELDS)}"
            return ParsedState(None, findings=(_finding("bad-state", message, named),))
        value = dict(zip(FIELDS, value, strict=True))
    if not isinstance(value, dict):
        message = f"{path}: {describe(value)}, expected an object"
        return ParsedState(None, findings=(_finding("bad-state", message, named),))
    extra = MappingProxyType({key: value[key] for key in value if key not in FIELDS})
    missing = [name for name in REQUIRED if name not in value]
    if missing:
        return ParsedState(None, extra, (_missing(missing, path, named),))
    return _read_fields(value, extra, path, named)


def resume_mismatch(recorded: TrainingState, wanted: TrainingState) -> str | None:
    """Say which setting of a resume first differs from the checkpoint's, None: they fit.

    Compared in ferrotensor's order; an empty text or 0 in the checkpoint is not recorded.
    """
    for name in RESUME_ORDER:
        was, now = getattr(recorded, name), getattr(wanted, name)
        if was not in ("", 0) and was != now:
            return f"{name}: the checkpoint says {was!r}, the resume {now!r}"
    return None


def describe(value: Any) -> str:
    """Say what a JSON value is, for a message: `null`, `the string 'x'`, `an array`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    text = repr(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"the string {text}" if isinstance(value, str) else text


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number; `true` is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def to_float(value: float) -> float:
    """Return a JSON number as a float, infinite where it is too long for one."""
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf if value > 0 else -math.inf


@dataclass(frozen=True, slots=True)
class _Reading:
    """A field as we read it; `problem` says why ferrotensor refuses it, None when it does not.

    `is_harmless`: nothing but ferrotensor's own rule stands against the value.
    """

    value: Any
    problem: str | None = None
    is_harmless: bool = False


_UNREADABLE = object()


def _missing(names: list[str], path: str, file: str) -> Finding:
    keys = ", ".join(names)
    if len(names) * 2 > len(REQUIRED):
        message = f"{path}: not a ferrotensor state, it has no {keys}"
        hint = "another program writes a file of this name; its progress cannot be read"
        return Finding("foreign-state", Severity.ERROR, message, file, hint=hint)
    message = f"{path}: missing field {keys}"
    return _finding("bad-state", message, file)


def _read_fields(
    value: Mapping[str, Any], extra: Mapping[str, Any], path: str, file: str
) -> ParsedState:
    found: dict[str, Any] = {}
    findings = list(_bare_words(extra, path, file))
    for name in FIELDS:
        if name not in value:
            continue
        reading = _READERS[name](value[name])
        found[name] = reading.value
        if reading.problem:
            code = "upstream-refuses" if reading.is_harmless else "bad-state"
            severity = Severity.WARNING if reading.is_harmless else Severity.ERROR
            findings.append(_finding(code, f"{path}: {name} {reading.problem}", file, severity))
    if _UNREADABLE in found.values():
        return ParsedState(None, extra, tuple(findings))
    return ParsedState(TrainingState(**found), extra, tuple(findings))


def _bare_words(extra: Mapping[str, Any], path: str, file: str) -> Iterator[Finding]:
    for name, value in extra.items():
        if isinstance(value, float) and not math.isfinite(value):
            message = f"{path}: {name} is {value}, which ferrotensor does not read"
            yield _finding("upstream-refuses", message, file, Severity.WARNING)


def _integer(value: Any) -> _Reading:
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value <= MAX_INTEGER:
            return _Reading(value)
        return _Reading(_UNREADABLE, f"is {describe(value)}, expected 0 to 2^64 - 1")
    is_whole = isinstance(value, float) and value.is_integer() and 0 <= value < 2**53
    problem = f"is {describe(value)}, expected a non-negative integer"
    return _Reading(int(value) if is_whole else _UNREADABLE, problem)


def _epoch(value: Any) -> _Reading:
    """An epoch; a fraction, as other trainers write it, is a number all the same."""
    if isinstance(value, float) and math.isfinite(value) and value >= 0:
        return _Reading(value, f"is {describe(value)}, expected a non-negative integer")
    return _integer(value)


def _best_loss(value: Any) -> _Reading:
    return _Reading(None) if value is None else _rate(value)


def _rate(value: Any) -> _Reading:
    if value is None:
        return _Reading(None, "is null: it was a NaN when it was written", is_harmless=True)
    if not is_number(value):
        return _Reading(_UNREADABLE, f"is {describe(value)}, expected a number")
    number = to_float(value)
    if math.isfinite(number):
        return _Reading(number)
    return _Reading(number, f"is {number}, which ferrotensor does not read", is_harmless=True)


def _flag(value: Any) -> _Reading:
    if isinstance(value, bool):
        return _Reading(value)
    is_bit = isinstance(value, int) and value in (0, 1)
    problem = f"is {describe(value)}, expected true or false"
    return _Reading(bool(value) if is_bit else _UNREADABLE, problem)


def _text(value: Any) -> _Reading:
    if isinstance(value, str):
        return _Reading(value)
    return _Reading(_UNREADABLE, f"is {describe(value)}, expected a string")


_READERS: Mapping[str, Callable[[Any], _Reading]] = {
    "step": _integer,
    "total_steps": _integer,
    "best_loss": _best_loss,
    "lr": _rate,
    "epoch": _epoch,
    "batch_size": _integer,
    "grad_accum_steps": _integer,
    "sequence_length": _integer,
    "fp16": _flag,
    "train_modules": _text,
    "task": _text,
    "model_path": _text,
    "dataset_path": _text,
    "seed": _integer,
}


def _finding(code: str, message: str, file: str, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(code, severity, message, file)
