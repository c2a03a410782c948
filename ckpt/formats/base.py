"""What the rest of the library must know of a format, and the little that formats share."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from ckpt.checkpoint import Checkpoint, Depth, FileEntry, Finding, Glance, Leftover, State


class Format(Protocol):
    """One on-disk format. Stateless; one instance lives in `formats.FORMATS`."""

    name: ClassVar[str]
    """Stable, in JSON: `astrai`."""

    label: ClassVar[str]
    """For people: `AstrAI`."""

    def owns(self, path: Path) -> bool:
        """Whether this format claims the path: by names only, cheap, never raises."""

    def is_slot(self, path: Path) -> bool:
        """Whether an owned path is a checkpoint of a run (a progress file or a base is not)."""

    def glance(self, path: Path) -> Glance:
        """Tell what names, stat and small JSON tell; problems become findings, never errors."""

    def read(self, path: Path, depth: Depth = Depth.HEADERS) -> Checkpoint:
        """Read names (and at `HEADERS` or deeper safetensors headers), never a payload.

        Raises:
            UnreadableCheckpoint: nothing can be said of the path.
            TornRead: a JSON file that everything depends on is half-written.
        """

    def check(self, checkpoint: Checkpoint) -> Iterator[Finding]:
        """Yield what only this format can know beyond what `read` already found."""


@dataclass(frozen=True, slots=True)
class InnerGeneration:
    """One generation among several that lie side by side in one slot (KT's shards of one hex).

    `state` is LIVE or RETIRED, None for a partial one that no reader can use. `files` lie in the
    slot's directory; `layers` is sorted. `complete` is None when the full set is not known.
    """

    id: str
    state: State | None
    files: tuple[FileEntry, ...]
    layers: tuple[int, ...]
    complete: bool | None

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of its files."""
        return sum(entry.size_bytes or 0 for entry in self.files)


@dataclass(frozen=True, slots=True)
class Inside:
    """What lies in or beside a slot apart from its live payload; live generation first."""

    generations: tuple[InnerGeneration, ...] = ()
    leftovers: tuple[Leftover, ...] = ()


def glance_of(
    seen: Checkpoint,
    *,
    tensor_count: int | None = None,
    digest: str | None = None,
    finite: bool | None = None,
) -> Glance:
    """Return what a reading at `Depth.NAMES` told, as a glance; files that are there count."""
    return Glance(
        seen.path,
        seen.format,
        step=seen.step,
        epoch=seen.epoch,
        loss=seen.loss,
        created_at=seen.created_at,
        size_bytes=seen.size_bytes,
        file_count=sum(entry.size_bytes is not None for entry in seen.files),
        tensor_count=tensor_count,
        complete=seen.complete,
        finite=finite,
        generation=seen.generation,
        parent=seen.parent,
        digest=digest,
        findings=seen.findings,
    )


NOTHING_INSIDE = Inside()


@runtime_checkable
class ChecksRun(Protocol):
    """A format some of whose faults lie between the files of a run, not inside one of them."""

    def check_run(self, run_dir: Path) -> Iterator[Finding]:
        """Yield what does not fit together; never raises."""


def generations_inside(format: Format, path: Path) -> Inside:  # noqa: A002 - the house word
    """Return what a slot of this format holds beside its live payload; most formats: nothing.

    Older generations and a dead writer's temporary files, told by names and stat alone.
    """
    holds = getattr(format, "generations_inside", None)  # isinstance would cost more than a look
    inside: Inside = holds(path) if holds else NOTHING_INSIDE
    return inside


def check_run(format: Format, run_dir: Path) -> Iterator[Finding]:  # noqa: A002 - the house word
    """Yield what this format sees wrong between the files of a run; most formats: nothing."""
    return format.check_run(run_dir) if isinstance(format, ChecksRun) else iter(())
