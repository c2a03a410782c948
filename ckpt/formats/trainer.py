"""What the HF Trainer keeps in a `checkpoint-N`: how far it is, is it all there.

Reads `trainer_state.json` (written last; hundreds of MB late in a run, so only its two ends then)
and looks for the optimizer's files by name. Opens no pickle.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckpt import fs, jsontext
from ckpt.checkpoint import Finding, Severity
from ckpt.errors import DuplicateKey, TornRead
from ckpt.formats.directory import sentence_of

STATE_NAME = "trainer_state.json"
OPTIMIZER_INDEX = "kt_optimizer.index.json"
WINDOW_BYTES = 1 << 16
_SUFFIX = re.compile(r"checkpoint-([0-9]{1,18})")
_RANK_FILE = re.compile(r"optimizer_rank_[0-9]{5}\.pt")
_LOSS = re.compile(rb'"loss"[ \t\r\n]*:[ \t\r\n]*(-?(?:[0-9][0-9.eE+-]*|Infinity)|NaN)')


@dataclass(frozen=True, slots=True)
class Trainer:
    """How far the trainer was; `is_complete` None: no trainer has to do with this directory."""

    step: int | None = None
    epoch: float | None = None
    loss: float | None = None
    saved_at: float | None = None
    is_complete: bool | None = None
    findings: tuple[Finding, ...] = ()


def read_trainer(directory: Path, names: Collection[str]) -> Trainer:
    """Read what is there of the trainer's own files; every problem is a finding."""
    suffix = checkpoint_step(directory.name)
    if STATE_NAME not in names:
        if suffix is None:
            return Trainer()
        message = f"{STATE_NAME}: not there; the trainer writes it last, so this save is not whole"
        finding = Finding("missing-file", Severity.ERROR, message, STATE_NAME)
        return Trainer(step=suffix, is_complete=False, findings=(finding,))
    try:
        fields, saved_at = _read_state(directory / STATE_NAME)
    except (TornRead, DuplicateKey, OSError) as error:
        finding = Finding(_code_of(error), Severity.ERROR, _message_of(error), STATE_NAME)
        return Trainer(step=suffix, is_complete=False, findings=(finding,))
    findings = list(_judge(fields, suffix, names))
    step = fields.get("global_step")
    return Trainer(
        step if jsontext.is_whole(step) else suffix,
        _number(fields.get("epoch")),
        _last_loss(fields),
        saved_at,
        not any(finding.severity is Severity.ERROR for finding in findings),
        tuple(findings),
    )


def is_trainers(name: str) -> bool:
    """Whether a name is one that this module looks for."""
    is_optimizers = name.startswith("optimizer.") or bool(_RANK_FILE.fullmatch(name))
    return is_optimizers or name in (STATE_NAME, OPTIMIZER_INDEX)


def checkpoint_step(name: str) -> int | None:
    """Return N of a directory name `checkpoint-N`, None for any other name."""
    match = _SUFFIX.fullmatch(name)
    return int(match.group(1)) if match else None


def _read_state(path: Path) -> tuple[Mapping[str, Any], float]:
    with fs.File(path) as file:
        found = file.identity()
        head = file.read_at(0, WINDOW_BYTES)
        if found.size_bytes <= len(head):
            fields = jsontext.parse(head, path=STATE_NAME)
            return fields if isinstance(fields, dict) else {}, found.modified_at
        tail = file.read_at(max(len(head), found.size_bytes - WINDOW_BYTES), WINDOW_BYTES)
    if not tail.rstrip().endswith(b"}"):
        raise TornRead(f"{STATE_NAME}: the text ends too early", path=STATE_NAME)
    losses = _LOSS.findall(tail)
    last = [{"loss": float(losses[-1])}] if losses else []
    return {"log_history": last} | jsontext.leading_members(head), found.modified_at


def _judge(
    fields: Mapping[str, Any], suffix: int | None, names: Collection[str]
) -> Iterator[Finding]:
    step = fields.get("global_step")
    if not jsontext.is_whole(step):
        message = f"{STATE_NAME}: global_step is {step!r}, expected a step"
        yield Finding("bad-state", Severity.ERROR, message, STATE_NAME)
    elif suffix is not None and step != suffix:
        message = f"{STATE_NAME}: global_step is {step}, the directory's name says {suffix}"
        yield Finding("name-mismatch", Severity.ERROR, message, STATE_NAME)
    has_ranks = any(_RANK_FILE.fullmatch(name) for name in names)
    if has_ranks and OPTIMIZER_INDEX not in names:
        message = f"{OPTIMIZER_INDEX}: not there; it marks the optimizer's rank files as whole"
        yield Finding("missing-file", Severity.ERROR, message, OPTIMIZER_INDEX)
    has_optimizer = has_ranks or any(name.startswith("optimizer.") for name in names)
    if suffix is not None and not has_optimizer and OPTIMIZER_INDEX not in names:
        message = "no optimizer state: these weights can be loaded, not resumed exactly"
        yield Finding("no-optimizer", Severity.NOTE, message)


def _last_loss(fields: Mapping[str, Any]) -> float | None:
    history = fields.get("log_history")
    for row in reversed(history if isinstance(history, list) else []):
        if isinstance(row, dict) and "loss" in row:
            return _number(row["loss"])
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    return value if isinstance(value, float) else None


def _code_of(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return "permission-denied"
    return "duplicate-key" if isinstance(error, DuplicateKey) else "bad-state"


def _message_of(error: Exception) -> str:
    return f"{STATE_NAME}: {sentence_of(error)}" if isinstance(error, OSError) else str(error)
