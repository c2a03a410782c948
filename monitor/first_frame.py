"""What is on the screen while the app is still being imported: the run's name and where it is.

Plain lines from one small file; the app then reads everything.
"""

from pathlib import Path

from ckpt import fs, jsontext
from ckpt.errors import CheckpointError
from ckpt.phrases import loss
from ckpt.present.words import integer, to_ascii, visible

MOST_BYTES = 1 << 16
OWN_KEYS = frozenset(
    {"step", "total_steps", "lr", "epoch", "batch_size", "grad_accum_steps", "sequence_length",
     "fp16", "train_modules"}
)  # fmt: skip
"""What tells our kind of state from others of that name, without importing all that reads it."""


def first_frame(run_dir: Path, *, ascii_only: bool) -> list[str]:
    """Say the run's name, its step and its loss, as far as `training_state.json` tells them."""
    lines = [f" {run_dir}", f" {'   '.join([*_facts(run_dir), 'reading ...'])}"]
    spell = to_ascii if ascii_only else str
    return [spell(visible(line)) for line in lines]


def _facts(run_dir: Path) -> list[str]:
    try:
        data = fs.read_bytes(run_dir / "training_state.json", limit=MOST_BYTES)
        state = jsontext.parse(data, path="training_state.json")
    except (OSError, ValueError, CheckpointError):  # the app finds out, and says it
        return []
    if not isinstance(state, dict) or not state.keys() >= OWN_KEYS:
        return []
    step, total = state["step"], state["total_steps"]
    if not _is_count(step) or not _is_count(total):
        return []
    facts = [f"step {integer(step)}" + (f" / {integer(total)}" if total else "")]
    if isinstance(state.get("loss"), float):
        facts.append(f"loss {loss(state['loss'])}")
    return facts


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
