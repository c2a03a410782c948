"""A safetensors file by itself: no format's own names around it, nothing recorded to compare."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from ckpt import fs
from ckpt.checkpoint import Checkpoint, Depth, FileEntry, Finding, Glance, Severity
from ckpt.errors import NoCheckpoint
from ckpt.formats.directory import slot_name, step_in_name
from ckpt.tensorfile import Header, read_header


class Plain:
    """Any `*.safetensors` file that no other format claims."""

    name: ClassVar[str] = "safetensors"
    label: ClassVar[str] = "safetensors file"

    def owns(self, path: Path) -> bool:
        """Whether its name ends as such a file's does, and it is a file."""
        if not slot_name(path.name).endswith(".safetensors") or path.name.startswith("._"):
            return False
        try:
            found = fs.identity(path)
        except OSError:
            return True
        return found is None or not found.is_directory

    def is_slot(self, path: Path) -> bool:
        """Whether a run may have saved it: a lone file in a run is one of its checkpoints."""
        return self.owns(path)

    def glance(self, path: Path) -> Glance:
        """Tell its size and time; an empty or missing file is a finding."""
        try:
            found = fs.identity(path)
        except OSError as error:
            text = f"{path.name}: {(error.strerror or str(error)).lower()}"
            finding = Finding("unreadable-file", Severity.ERROR, text, path.name)
            return Glance(path, self.name, complete=False, findings=(finding,))
        if found is None or found.size_bytes == 0:
            code, what = (
                ("missing-file", "not there") if found is None else ("empty-file", "empty")
            )
            finding = Finding(code, Severity.ERROR, f"{path.name}: {what}", path.name)
            return Glance(path, self.name, complete=False, findings=(finding,))
        return Glance(
            path,
            self.name,
            step=step_in_name(path.stem),
            created_at=found.modified_at,
            size_bytes=found.size_bytes,
            file_count=1,
        )

    def read(self, path: Path, depth: Depth = Depth.HEADERS) -> Checkpoint:
        """Read its header at `HEADERS`, its size at `NAMES`.

        Raises:
            NoCheckpoint: it is not there.
        """
        glance = self.glance(path)
        if any(finding.code == "missing-file" for finding in glance.findings):
            raise NoCheckpoint(f"{path}: nothing is there", path=str(path))
        header = read_header(path, path.name) if depth >= Depth.HEADERS else Header()
        findings = header.findings if depth >= Depth.HEADERS else glance.findings
        if depth >= Depth.HEADERS and not findings and not header.tensors:
            text = f"{path.name}: holds no tensor"
            findings = (Finding("no-tensors", Severity.NOTE, text, path.name),)
        is_damaged = any(finding.severity is Severity.ERROR for finding in findings)
        return Checkpoint(
            path,
            self.name,
            self.label,
            step=glance.step,
            created_at=glance.created_at,
            complete=False if is_damaged else None,
            files=(FileEntry(path.name, glance.size_bytes),),
            tensors=header.tensors,
            metadata=header.metadata or {},
            findings=findings,
        )

    def check(self, checkpoint: Checkpoint) -> Iterator[Finding]:  # noqa: ARG002 - the protocol names it
        """Yield nothing: a lone file has no more to fit together than its own header."""
        yield from ()
