"""Sealing a payload: hashing every file of it once, and recording that in its run.

For formats that record no hashes. Nothing is written into the checkpoint, and nothing at all when
it is damaged or changes meanwhile.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from ckpt import control
from ckpt.checkpoint import Depth, FileEntry, Generation, Severity, first_error
from ckpt.errors import Refused
from ckpt.generations.find import is_run
from ckpt.generations.inside import open_inside
from ckpt.generations.kt_slot import kt_slot
from ckpt.generations.names import looks_like_checkpoint
from ckpt.generations.payload import look
from ckpt.generations.verified import control_home, in_run
from ckpt.operation import Note, Operation, Progress
from ckpt.seals import Seal, SealedFile, write_seal
from ckpt.verify import USUAL, Care, Read, open_settled
from ckpt.verify.crew import Step, read_all
from ckpt.verify.hashing import Part, Stretch

CHUNK_BYTES = 1 << 26
STRIDE_BYTES = 16 << 20
_ADDED_LATER = "metric.jsonl"
_AGAIN = "it is being written: seal it again when the save is done"


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a sealing came to: where the `seal` was written; None: it has hashes of its own."""

    path: Path
    format: str
    run_dir: Path
    bytes_read: int
    seconds: float
    seal: Seal | None = None
    written: Path | None = None


def seal(
    path: Path,
    *,
    run_dir: Path | None = None,
    generation: Generation | None = None,
    care: Care = USUAL,
) -> Operation[Sealed]:
    """Record the hashes of a checkpoint that has none, durable when this returns.

    `generation` is one that lies in its slot beside the live one. `run_dir` None: the run is found
    around the path, else it is the directory that the checkpoint lies in.

    Raises:
        NoCheckpoint: nothing there that any format claims.
        Refused: it is damaged, is not understood, or changed meanwhile; nothing was recorded.
        OSError: the run cannot be written to.
    """
    started = time.monotonic()
    home = kt_slot(path).run_dir if generation else run_dir or _home_for_seal(path)
    with ExitStack() as stack:
        if generation is not None:
            read, id_ = open_inside(generation, Depth.HEADERS), generation.id
        else:
            read, id_ = open_settled(path, Depth.HEADERS, stack), look(path).id
        seen = read.seen
        _refuse_unsound(path, read)
        if any(entry.sha256 is not None for entry in seen.files):
            return Sealed(path, seen.format, home, 0, time.monotonic() - started)
        entries = [
            entry
            for entry in seen.files
            if entry.size_bytes is not None and entry.name != _ADDED_LATER
        ]
        parts = yield from _hash_all(path, read, entries, care)
        if not read.is_there():
            raise _changed(path, "it was replaced while it was read")
    files = {part.stretch.name: _sealed(path, part) for part in parts}
    made = Seal(id_, in_run(path, home), seen.format, time.time(), CHUNK_BYTES, files)
    written = write_seal(home, made)
    size = sum(part.read_bytes for part in parts)
    return Sealed(path, seen.format, home, size, time.monotonic() - started, made, written)


# ---- private ----------------------------------------------------------------------------------


def _home_for_seal(path: Path) -> Path:
    found = control_home(path)
    if found is not None:
        return found
    if not looks_like_checkpoint(path.name) and is_run(path):
        return path
    return path.absolute().parent


def _refuse_unsound(path: Path, read: Read) -> None:
    wrong = first_error(read.seen.findings)
    if wrong is not None:
        message = f"{path}: not sealed, it is not sound: {wrong.message}"
        raise Refused(
            message, path=str(path), hint="a seal would say that this is how it should be"
        )
    opaque = [each for each in read.seen.findings if each.code == "opaque-weights"]
    if opaque:
        assert opaque[0].severity is Severity.NOTE
        raise Refused(f"{path}: not sealed: {opaque[0].message}", path=str(path))


def _hash_all(
    path: Path, read: Read, entries: Sequence[FileEntry], care: Care
) -> Operation[list[Part]]:
    """Read every file once; nothing of it may have changed so shortly before that times lie."""
    links = {each.file for each in read.seen.findings if each.code == "symlink"}
    stretches = [
        Stretch(
            entry.name,
            read.where(entry.name),
            entry.size_bytes or 0,
            0,
            entry.size_bytes or 0,
            CHUNK_BYTES,
            may_be_link=entry.name in links,
        )
        for entry in entries
    ]
    yield from _until_settled(path)
    total = sum(stretch.size_bytes for stretch in stretches)
    done = told = 0
    parts: list[Part] = []
    with closing(read_all(stretches, is_forgetful=care.is_polite)) as reading:
        for each in reading:
            if isinstance(each, Part):
                _refuse_part(path, each)
                parts.append(each)
                yield Progress(done, total, each.stretch.name)
            elif isinstance(each, Step):
                done += each.count
                if not each.count or done - told >= STRIDE_BYTES:
                    told = done
                    yield Progress(done, total, each.name)
    return parts


def _until_settled(path: Path) -> Operation[None]:
    """Wait until a file that changed just now cannot change again without its time telling."""
    stamp = look(path, with_stamp=True).stamp
    newest_at = stamp.newest_at if stamp is not None else 0.0
    left = newest_at + control.SETTLED_S - time.time()
    if not 0 < left <= control.SETTLED_S:
        return
    yield Note(f"waiting {left:.0f} s: it was written just now")
    while time.time() < newest_at + control.SETTLED_S:
        time.sleep(0.05)


def _refuse_part(path: Path, part: Part) -> None:
    name, stretch = part.stretch.name, part.stretch
    if part.error is not None:
        reason = part.error.strerror or str(part.error)
        message = f"{path}: not sealed: {name}: cannot be read: {reason}"
        raise Refused(message, path=str(path))
    if part.before is None or part.after is None or part.named is None:
        raise _changed(path, f"{name} is not there any more, or a link")
    is_same = part.before[:5] == part.after[:5] == part.named[:5]
    if not is_same or part.read_bytes != stretch.size_bytes or part.sha256 is None:
        raise _changed(path, f"{name} changed while it was read")


def _sealed(path: Path, part: Part) -> SealedFile:
    if part.before is None or part.sha256 is None or None in part.chunks:
        raise _changed(path, f"{part.stretch.name} could not be read")
    chunks = tuple(each for each in part.chunks if each is not None)
    return SealedFile(part.stretch.size_bytes, part.before.mtime_ns, part.sha256, chunks)


def _changed(path: Path, what: str) -> Refused:
    return Refused(f"{path}: not sealed: {what}", path=str(path), hint=_AGAIN)
