"""What names say: whose hidden sibling a name is, what looks like a checkpoint, what is older.

Names are hints; what lies behind them decides. Pure.
"""

import hashlib
import re
from dataclasses import dataclass

from ckpt.formats.directory import step_in_name

MAX_NAME_BYTES = 255
TOKEN_LENGTH = 12
"""Length of the tokens that we make: a generation's id."""

_TOKEN_ROOM = 36
"""Kept free for a token in shortened names: an id, and a number behind it where it is taken."""

_HIDDEN = re.compile(
    r"\.(?P<slot>.+)\.(?P<kind>tmp|retired|withdrawn|trash)-(?P<token>[^./]{1,64})", re.DOTALL
)
_CHECKPOINT = re.compile(
    r"(?:.*[^a-z])?(?:checkpoint|ckpt|step|iter|epoch)[-_=]?[0-9]+.*", re.IGNORECASE | re.DOTALL
)
_POINTER = re.compile(r".*(?:latest|last|best|current|final).*", re.IGNORECASE | re.DOTALL)
_UNFINISHED = re.compile(
    r"(?:tmp[-_](?P<after>.+)|(?P<before>.+?)(?:[.\-_]?tmp|[.\-_]temp|\.partial))", re.DOTALL
)
_TOKEN = re.compile(r"[0-9A-Za-z_-]{1,32}")
_OWN_TOKEN = re.compile(r"[0-9a-f]{12}")
_PAYLOAD_FILE = re.compile(r".+\.(?:safetensors|json)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Hidden:
    """A hidden sibling's name, taken apart: `.step_5.retired-ab12cd34` belongs to `step_5`."""

    slot: str
    kind: str
    token: str


def hidden(name: str) -> Hidden | None:
    """Take a hidden sibling's name apart, None for any other name."""
    found = _HIDDEN.fullmatch(name)
    return Hidden(found["slot"], found["kind"], found["token"]) if found else None


def hidden_name(slot: str, kind: str, token: str) -> str:
    """Return `.SLOT.KIND-TOKEN`, with the slot's name shortened where it would be too long."""
    name = f".{slot}.{kind}-{token}"
    longest = f".{slot}.withdrawn-{'x' * _TOKEN_ROOM}"
    return name if _size(longest) <= MAX_NAME_BYTES else f".{shortened(slot)}.{kind}-{token}"


def fits_a_name(generation: str) -> bool:
    """Whether an id can be the token of a hidden name."""
    return _TOKEN.fullmatch(generation) is not None


def is_own_token(token: str) -> bool:
    """Whether a token is one of ours: another program's staging has a shorter one."""
    return _OWN_TOKEN.fullmatch(token) is not None


def shortened(slot: str) -> str:
    """Return the form of a slot's name in hidden names that would be longer than 255 bytes."""
    raw = slot.encode("utf-8", errors="surrogateescape")
    mark = f"~{hashlib.sha256(raw).hexdigest()[:8]}"
    room = MAX_NAME_BYTES - len(f"..withdrawn-{mark}") - _TOKEN_ROOM
    return raw[:room].decode("utf-8", errors="ignore") + mark


def looks_like_checkpoint(name: str) -> bool:
    """Whether a trainer would give that name to a checkpoint and hardly to anything else."""
    return _CHECKPOINT.fullmatch(name) is not None


def looks_like_pointer(name: str) -> bool:
    """Whether a link of that name is meant to lead to a checkpoint (`latest`, `step_latest`)."""
    return _POINTER.fullmatch(name) is not None or looks_like_checkpoint(name)


def unfinished_of(name: str) -> str | None:
    """Return the slot that a temporary name was meant for: `checkpoint_300tmp`, `x.json.tmp`."""
    found = _UNFINISHED.fullmatch(name)
    if not found:
        return None
    slot: str = found["after"] or found["before"]
    meant = looks_like_checkpoint(slot) or slot.isdigit() or _PAYLOAD_FILE.fullmatch(slot)
    return slot if meant else None


def belongs_to(name: str, slot: str) -> bool:
    """Whether a name is a slot's own, or one that lies beside it for it."""
    if name == slot or unfinished_of(name) == slot:
        return True
    sibling = hidden(name)
    return sibling is not None and sibling.slot in (slot, shortened(slot))


def age_key(name: str, step: int | None, epoch: float | None) -> tuple[object, ...]:
    """Return what sorts slots from old to new: step, epoch, then the numbers in the name."""
    numbers = tuple(int(digits) for digits in re.findall(r"[0-9]{1,18}", name))
    if step is None:
        step = step_in_name(name.rpartition("/")[2])
    if step is None:
        step = int(name) if name.isdigit() and len(name) < 19 else -1
    return step, -1.0 if epoch is None else epoch, numbers, name


def _size(name: str) -> int:
    return len(name.encode("utf-8", errors="surrogateescape"))
