"""AstrAI checkpoints: a directory of meta.json, config.json, weights and a sha256 manifest.

Older ones have no manifest: they can be read and never verified. The directory's name is a hint,
meta.json is the truth.
"""

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from ckpt import fs
from ckpt.checkpoint import (
    NOTHING,
    UNSUPPORTED_CODES,
    Checkpoint,
    Depth,
    FileEntry,
    Finding,
    Glance,
    Severity,
    Tensor,
    TensorStats,
)
from ckpt.errors import NoCheckpoint
from ckpt.formats.astrai_listing import (
    CONFIG,
    INDEX,
    META,
    WEIGHTS,
    compare_files,
    compare_tensors,
    missing,
)
from ckpt.formats.base import glance_of
from ckpt.formats.directory import (
    Listing,
    cannot_look,
    list_files,
    read_object,
    step_in_name,
    whole_number,
)
from ckpt.manifest import NAME as MANIFEST
from ckpt.manifest import Manifest, read_manifest
from ckpt.recorded import stats_of
from ckpt.tensorfile import read_header

_MAX_JSON_BYTES = 64 << 20
_QUARTER_HOUR_S, _WIDEST_ZONE_S = 900, 14.25 * 3600


class AstrAI:
    """AstrAI checkpoint directories, with and without a manifest."""

    name: ClassVar[str] = "astrai"
    label: ClassVar[str] = "AstrAI"

    def owns(self, path: Path) -> bool:
        """Whether it is a directory with a meta.json or a manifest.json."""
        try:
            names = fs.names_in(path)
        except OSError:
            return False
        return META in names or MANIFEST in names

    def is_slot(self, path: Path) -> bool:
        """Whether a trainer saved it; a lone meta.json or manifest.json is some other program's.

        Unless the directory is named after a step: then a save was cut off there.
        """
        try:
            names = fs.names_in(path)
        except OSError:
            return False
        beside = names & {META, CONFIG, WEIGHTS, INDEX, MANIFEST}
        is_claimed = META in names or MANIFEST in names
        return is_claimed and (len(beside) > 1 or step_in_name(path.name) is not None)

    def glance(self, path: Path) -> Glance:
        """Tell what meta.json, the manifest and the sizes of the files tell."""
        try:
            seen, manifest = self._read(path, Depth.NAMES)
        except NoCheckpoint as error:
            finding = Finding("missing-file", Severity.ERROR, error.message)
            return Glance(path, self.name, complete=False, findings=(finding,))
        count = None if manifest.tensors is None else len(manifest.tensors)
        return glance_of(seen, tensor_count=count, digest=manifest.digest, finite=manifest.finite)

    def read(self, path: Path, depth: Depth = Depth.HEADERS) -> Checkpoint:
        """Read the JSON files, the sizes, and at `HEADERS` the header of every weights file.

        Raises:
            NoCheckpoint: the path cannot be listed.
        """
        return self._read(path, depth)[0]

    def check(self, checkpoint: Checkpoint) -> Iterator[Finding]:
        """Yield a clash between the step in the directory's name and the one in meta.json."""
        named = step_in_name(checkpoint.path.name)
        recorded = whole_number(checkpoint.metadata.get("optimizer_step"))
        if named is not None and recorded is not None and named != recorded:
            text = f"the name says step {named:,}, {META} says {recorded:,}; {META} is the truth"
            yield Finding("name-mismatch", Severity.WARNING, text, META)

    def _read(self, path: Path, depth: Depth) -> tuple[Checkpoint, Manifest]:
        listing = list_files(path)
        meta, findings = _read_object(listing, META)
        manifest = _read_manifest(listing)
        listed = manifest.files.get(CONFIG)
        config: Mapping[str, Any] = NOTHING
        if depth > Depth.NAMES or listed is None or listed.size_bytes != listing.sizes.get(CONFIG):
            config, config_findings = _read_object(listing, CONFIG)
            findings += config_findings
        findings += [*manifest.findings, *listing.findings]
        findings += missing(listing, manifest)
        findings += compare_files(listing, manifest)
        errors = {finding.code for finding in findings if finding.severity is Severity.ERROR}
        tensors: list[Tensor] = []
        stats: Mapping[Tensor, TensorStats] = NOTHING
        if depth >= Depth.HEADERS:
            headers = [read_header(path / file, file) for file in _weights_files(listing)]
            tensors = [tensor for header in headers for tensor in header.tensors]
            unsound = [finding for header in headers for finding in header.findings]
            findings += unsound
            if headers and not unsound:
                findings += compare_tensors(tensors, manifest)
                stats = NOTHING if errors else stats_of(tensors, manifest.stats)
        step = whole_number(meta.get("optimizer_step"))
        checkpoint = Checkpoint(
            path,
            self.name,
            self.label,
            step=step if step is not None else step_in_name(path.name),
            epoch=_number(meta.get("epoch")),
            loss=_number(meta.get("loss")),
            created_at=_created_at(meta.get("timestamp"), listing),
            complete=_completeness(listing, errors),
            files=_entries(listing, manifest),
            tensors=tuple(tensors),
            metadata=meta,
            settings=config,
            findings=tuple(findings),
            generation=manifest.generation,
            parent=manifest.parent,
            stats=stats,
        )
        return checkpoint, manifest


# ---- the JSON files ------------------------------------------------------------------------


def _read_object(listing: Listing, name: str) -> tuple[Mapping[str, Any], list[Finding]]:
    """Read `meta.json` or `config.json`; what is wrong with it comes back as findings."""
    read = read_object(listing, name, code="bad-meta", most_bytes=_MAX_JSON_BYTES)
    value = read.value or NOTHING
    findings = [
        Finding("nonfinite", Severity.WARNING, f"{name}: {key} is {item}", name)
        for key, item in value.items()
        if isinstance(item, float) and not math.isfinite(item)
    ]
    if read.has_bom:
        text = f"{name}: starts with a byte order mark, which AstrAI does not read"
        findings.append(Finding("upstream-refuses", Severity.WARNING, text, name))
    return value, [*read.findings, *findings]


def _read_manifest(listing: Listing) -> Manifest:
    if MANIFEST not in listing.sizes:
        text = "no manifest.json: nothing is recorded that the bytes could be compared with"
        finding = Finding("no-manifest", Severity.WARNING, text, MANIFEST)
        return Manifest(findings=(finding,))
    try:
        data = fs.read_small(f"{listing.directory}/{MANIFEST}", _MAX_JSON_BYTES)
    except OSError as error:
        return Manifest(findings=(cannot_look(error, MANIFEST),))
    manifest = read_manifest(data)
    if manifest.generation is not None:
        return manifest  # it names itself: its digest would be asked for by nobody
    return replace(manifest, digest=hashlib.sha256(data).hexdigest()[:12])


# ---- facts ---------------------------------------------------------------------------------


def _weights_files(listing: Listing) -> tuple[str, ...]:
    if WEIGHTS in listing.sizes:
        return (WEIGHTS,)
    return tuple(sorted(name for name in listing.sizes if name.endswith(".safetensors")))


def _entries(listing: Listing, manifest: Manifest) -> tuple[FileEntry, ...]:
    has_list = bool(manifest.files)
    names = sorted(listing.sizes.keys() | manifest.files.keys() | listing.links.keys())
    return tuple(
        FileEntry(
            name,
            listing.sizes.get(name),
            sha256=manifest.files[name].sha256 if name in manifest.files else None,
            listed=None if not has_list or name == MANIFEST else name in manifest.files,
            chunks=manifest.chunks.get(name, ()) if name in manifest.files else (),
            chunk_bytes=manifest.chunk_bytes,
        )
        for name in names
    )


def _completeness(listing: Listing, errors: Collection[str]) -> bool | None:
    """Whether all of it is there; of what a newer program wrote that cannot be told."""
    if not UNSUPPORTED_CODES.issuperset(errors):
        return False
    return True if MANIFEST in listing.sizes and not errors else None


def _created_at(timestamp: Any, listing: Listing) -> float | None:
    """When it was saved: by its timestamp, unless that is off by a time zone from its own file.

    AstrAI writes local time without a zone; a file that was not copied since tells which zone.
    """
    written = listing.modified.get(META, listing.newest)
    if not isinstance(timestamp, str):
        return written
    try:
        parsed = datetime.fromisoformat(timestamp)
        said = parsed.timestamp()
    except (ValueError, OverflowError, OSError):
        return written
    if parsed.tzinfo is not None or written is None:
        return said
    off = written - said
    beside = abs(off - round(off / _QUARTER_HOUR_S) * _QUARTER_HOUR_S)
    return written if abs(off) <= _WIDEST_ZONE_S and beside < 120 else said


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer of more than 308 digits
        return None


def _error(code: str, message: str, file: str) -> Finding:
    return Finding(code, Severity.ERROR, message, file)
