"""ferrotensor: LoRA adapters, training states and training checkpoints, one file each.

Claims `training_state.json`, `adapter*.safetensors` (PEFT's `adapter_model*` is not its) and any
`*.json` that no other system is known to write; only a look inside such a file tells whether it is
a training checkpoint. Nothing ties the three files of a run together: `check_run` compares them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from ckpt import fs
from ckpt.checkpoint import (
    NOTHING,
    Checkpoint,
    Depth,
    FileEntry,
    Finding,
    Glance,
    Leftover,
    Severity,
)
from ckpt.errors import NoCheckpoint, TornRead
from ckpt.formats.base import Inside, glance_of
from ckpt.formats.directory import sentence_of, slot_name
from ckpt.tensorfile import read_header

if TYPE_CHECKING:  # each of the three kinds of file imports its reader when one is met
    from ckpt.formats.ferrotensor_checkpoint import TrainingCheckpoint
    from ckpt.formats.ferrotensor_state import ParsedState, TrainingState

STATE_NAME = "training_state.json"
ADAPTER_NAME = "adapter.safetensors"
CHECKPOINT_NAME = "training_checkpoint.json"
_MAX_JSON_BYTES = 64 << 20
_FOREIGN_JSON = re.compile(
    r"(?:\..*|meta|config|manifest|run|trainer_state|all_results|train_results|eval_results"
    r"|adapter_config|generation_config|.*tokenizer.*|special_tokens_map|added_tokens|vocab"
    r"|kt_.*|.*\.index)\.json",
    re.IGNORECASE,
)
_ERROR, _WARNING = Severity.ERROR, Severity.WARNING


class Ferrotensor:
    """The files of a ferrotensor LoRA run; each is read by itself."""

    name: ClassVar[str] = "ferrotensor"
    label: ClassVar[str] = "ferrotensor"

    def owns(self, path: Path) -> bool:
        """Whether the name is ferrotensor's, or a JSON file that nobody else is known for."""
        name = slot_name(path.name)
        return _is_adapter(name) or _may_be_checkpoint(name) or name == STATE_NAME

    def is_slot(self, path: Path) -> bool:
        """Whether it is an adapter or a training checkpoint; a state is progress."""
        name = slot_name(path.name)
        if name == STATE_NAME:
            return False
        if _is_adapter(name) or name == CHECKPOINT_NAME:
            return True
        from ckpt.formats.ferrotensor_checkpoint import has_training_state

        return has_training_state(path)

    def glance(self, path: Path) -> Glance:
        """Tell what the ends of a JSON file, or the header of an adapter, tell."""
        try:
            seen = self.read(path)
        except TornRead as torn:
            finding = Finding(torn.finding_code or "bad-state", _ERROR, torn.message, path.name)
            return Glance(path, self.name, complete=False, findings=(finding,))
        except NoCheckpoint as error:
            finding = Finding("missing-file", _ERROR, error.message, path.name)
            return Glance(path, self.name, complete=False, findings=(finding,))
        count = len(seen.tensors) if _is_adapter(slot_name(path.name)) else None
        return glance_of(seen, tensor_count=count)

    def read(self, path: Path, depth: Depth = Depth.HEADERS) -> Checkpoint:
        """Read one file; only at `Depth.BYTES` the middle of a training checkpoint.

        Raises:
            NoCheckpoint: nothing is there, or a JSON file of another shape.
            TornRead: a JSON text does not parse.
        """
        try:
            found = fs.identity(path)
            if found is None:
                raise NoCheckpoint(f"{path}: nothing is there", path=str(path))
            seen = Checkpoint(
                path,
                self.name,
                self.label,
                created_at=found.modified_at,
                files=(FileEntry(path.name, found.size_bytes),),
            )
            return _read_kind(seen, depth)
        except OSError as error:
            code = "permission-denied" if isinstance(error, PermissionError) else "unreadable"
            message = f"{path.name}: {sentence_of(error)}"
            finding = Finding(code, _ERROR, message, path.name)
            return Checkpoint(path, self.name, self.label, complete=None, findings=(finding,))

    def check(self, checkpoint: Checkpoint) -> Iterator[Finding]:
        """Yield nothing: each file is judged as it is read."""
        del checkpoint
        return iter(())

    def generations_inside(self, path: Path) -> Inside:
        """Tell of `NAME.tmp` beside the file: a save that was cut off."""
        temporary = path.with_name(path.name + ".tmp")
        try:
            is_there = fs.identity(temporary, follow=False) is not None
        except OSError:
            return Inside()
        if not is_there:
            return Inside()
        reason = f"a save of {path.name} did not finish"
        return Inside(leftovers=(Leftover(temporary, "temporary-file", reason),))

    def check_run(self, run_dir: Path) -> Iterator[Finding]:
        """Yield `torn-set` where state, newest training checkpoint and adapter do not fit."""
        try:
            names = [entry.name for entry in fs.scan(run_dir) if not entry.is_directory]
        except OSError:
            return
        checkpoints = list(_checkpoints_among(run_dir, names, self))
        if not checkpoints:
            return
        newest = max(
            checkpoints, key=lambda each: each[1].step if each[1].step is not None else -1
        )
        state = _state_beside(run_dir) if STATE_NAME in names else None
        adapters = [name for name in names if _is_adapter(name)]
        tensors = _names_in(run_dir / adapters[0]) if len(adapters) == 1 else None
        finding = torn_set(state, newest[1], tensors, newest[0])
        if finding:
            yield finding


def torn_set(
    state: "TrainingState | None",
    checkpoint: "TrainingCheckpoint",
    adapter_tensors: frozenset[str] | None,
    checkpoint_name: str = CHECKPOINT_NAME,
) -> Finding | None:
    """Say how a run's state, training checkpoint and adapter contradict each other, None if not.

    Unknown parts (None) contradict nothing. An optimizer that took fewer steps than the state says
    does not either while a loss scaler may skip steps.
    """
    problems: list[str] = []
    step, taken = checkpoint.step, checkpoint.steps_taken
    if state is not None and step is not None and state.step != step:
        problems.append(f"{STATE_NAME} says step {state.step}, {checkpoint_name} step {step}")
    may_skip = bool(checkpoint.scaler and checkpoint.scaler.get("enabled"))
    if step is not None and taken is not None:
        fewest = 0 if may_skip else step
        if not fewest <= taken <= step:
            problems.append(f"the optimizer took {taken:g} steps, its state says step {step}")
    if adapter_tensors is not None:
        strangers = [name for name in checkpoint.parameters if name not in adapter_tensors]
        if strangers:
            more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
            problems.append(f"the adapter has no tensor {strangers[0]!r}{more} of the optimizer's")
    if not problems:
        return None
    hint = "the files are of different saves: a resume would mix them"
    return Finding("torn-set", _WARNING, "; ".join(problems), checkpoint_name, hint=hint)


def _is_adapter(name: str) -> bool:
    is_one = name.startswith("adapter") and name.endswith(".safetensors")
    return is_one and not name.startswith("adapter_model")


def _may_be_checkpoint(name: str) -> bool:
    return name.endswith(".json") and name != STATE_NAME and not _FOREIGN_JSON.fullmatch(name)


def _read_kind(seen: Checkpoint, depth: Depth) -> Checkpoint:
    name = slot_name(seen.path.name)
    if name == STATE_NAME:
        return _read_state(seen)
    if _is_adapter(name):
        from ckpt.formats.ferrotensor_adapter import read_adapter

        return read_adapter(seen) if depth >= Depth.HEADERS else seen
    from ckpt.formats.ferrotensor_checkpoint import has_training_state

    if name != CHECKPOINT_NAME and not has_training_state(seen.path):
        message = f"{seen.path}: no training checkpoint: it has no training_state"
        raise NoCheckpoint(message, path=str(seen.path))
    return _read_checkpoint(seen, depth)


def _read_state(seen: Checkpoint) -> Checkpoint:
    from ckpt.formats.ferrotensor_state import parse_state

    parsed = parse_state(fs.read_small(seen.path, _MAX_JSON_BYTES), seen.path.name)
    return _with_state(seen, parsed, parsed.findings)


def _read_checkpoint(seen: Checkpoint, depth: Depth) -> Checkpoint:
    from ckpt.formats.ferrotensor_checkpoint import read_training_checkpoint

    found = read_training_checkpoint(seen.path, whole=depth >= Depth.BYTES)
    settings: dict[str, Any] = {}
    if found.optimizer is not None:
        settings["optimizer"] = MappingProxyType({"type": "AdamW", **found.optimizer})
    if found.scaler is not None:
        settings["grad_scaler"] = found.scaler
    if found.is_whole and found.optimizer is not None:
        settings["optimizer_parameters"] = len(found.parameters)
    return _with_state(seen, found.parsed, found.findings, settings)


def _with_state(
    seen: Checkpoint,
    parsed: "ParsedState | None",
    findings: Iterable[Finding],
    settings: Mapping[str, Any] = NOTHING,
) -> Checkpoint:
    state = parsed.state if parsed else None
    metadata = {**(state.as_mapping() if state else {}), **(parsed.extra if parsed else {})}
    found = tuple(findings)
    return Checkpoint(
        seen.path,
        seen.format,
        seen.format_label,
        step=state.step if state else None,
        epoch=state.epoch if state else None,
        loss=parsed.number("loss") if parsed else None,
        created_at=seen.created_at,
        complete=state is not None and not any(each.severity is _ERROR for each in found),
        files=seen.files,
        metadata=MappingProxyType(metadata),
        settings=MappingProxyType(dict(settings)),
        findings=found,
    )


def _checkpoints_among(
    run_dir: Path, names: Iterable[str], format_: Ferrotensor
) -> "Iterator[tuple[str, TrainingCheckpoint]]":
    from ckpt.formats.ferrotensor_checkpoint import read_training_checkpoint

    for name in sorted(names):
        path = run_dir / name
        if not _may_be_checkpoint(name) or not format_.is_slot(path):
            continue
        try:
            yield name, read_training_checkpoint(path)
        except (OSError, TornRead):
            continue


def _state_beside(run_dir: Path) -> "TrainingState | None":
    from ckpt.formats.ferrotensor_state import parse_state

    try:
        return parse_state(fs.read_small(run_dir / STATE_NAME, _MAX_JSON_BYTES), STATE_NAME).state
    except (OSError, TornRead):
        return None


def _names_in(path: Path) -> frozenset[str] | None:
    header = read_header(path, path.name)
    if any(finding.severity is _ERROR for finding in header.findings):
        return None
    return frozenset(tensor.name for tensor in header.tensors)
