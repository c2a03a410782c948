"""What the rest of the library must know of a format, and the little that formats share."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Protocol

from ckpt.checkpoint import Checkpoint, Depth, Finding, Glance


class Format(Protocol):
    """One on-disk format. Stateless; one instance lives in `formats.FORMATS`."""

    name: ClassVar[str]
    """Stable, in JSON: `astrai`."""

    label: ClassVar[str]
    """For people: `AstrAI`."""

    def owns(self, path: Path) -> bool:
        """Whether this format claims the path: by names only, cheap, never raises."""

    def is_slot(self, path: Path) -> bool:
        """Whether an owned path is a checkpoint of a run (a progress file or base model is not)."""

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
