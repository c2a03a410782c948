"""What formats that are a directory of files share: the listing, small JSON files, numbers.

Looks at names, links and sizes; opens nothing but the JSON files it is asked for.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckpt import fs, jsontext
from ckpt.checkpoint import Finding, Severity
from ckpt.errors import DuplicateKey, NoCheckpoint, TornRead, UnreadableCheckpoint

_STEP = re.compile(r"(?:^|[^a-z])(?:step|checkpoint|ckpt|iter|global_?step)[-_]?(\d{1,15})(?!\d)")
_HIDDEN = re.compile(r"\.(?P<slot>.+)\.(?:tmp|retired|withdrawn|trash)-[^.]+")
_LITTER = re.compile(
    r"\._.*|\.DS_Store|\.nfs[0-9a-f]+|\.fuse_hidden[0-9a-f]+|Thumbs\.db|desktop\.ini"
)
_PICKLE = re.compile(r".*\.(?:pt|pth|bin|pkl|pickle|ckpt)", re.IGNORECASE | re.DOTALL)
_HUB_BLOB = re.compile(r"(?:\.\./)+blobs/[0-9a-f]{40,64}")


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of one directory. `sizes` and `modified` hold what may be opened as part of it.

    `links` maps every symlink to what it points at; only the Hub cache's own are followed and
    counted among `sizes`. `findings` are about names: links, litter, what cannot be looked at.
    `directories` are the names of its own subdirectories.
    """

    directory: Path
    sizes: Mapping[str, int]
    modified: Mapping[str, float]
    links: Mapping[str, str]
    findings: tuple[Finding, ...]
    directories: frozenset[str] = frozenset()

    @property
    def newest(self) -> float | None:
        """The newest file's modification time in epoch seconds."""
        return max(self.modified.values(), default=None)


def list_files(directory: Path, *, only: Callable[[str], bool] | None = None) -> Listing:
    """List a checkpoint's directory; its own subdirectories are not entered.

    With `only`, the files of those names: for a checkpoint that shares a directory with thousands.

    Raises:
        NoCheckpoint: it is not there, or is no directory.
        UnreadableCheckpoint: it may not be listed.
    """
    try:
        entries = sorted(fs.scan(directory), key=lambda entry: entry.name)
    except PermissionError as error:
        message = f"{directory}: permission denied"
        raise UnreadableCheckpoint(message, path=str(directory)) from error
    except OSError as error:
        message = f"{directory}: {sentence_of(error)}"
        raise NoCheckpoint(message, path=str(directory)) from error
    prefix = f"{directory}/"  # joining paths would cost more than the calls to the disk
    sizes: dict[str, int] = {}
    modified: dict[str, float] = {}
    links: dict[str, str] = {}
    findings: list[Finding] = []
    for entry in entries:
        if entry.is_directory or (only is not None and not only(entry.name)):
            continue
        if _LITTER.fullmatch(entry.name):
            findings.append(_note("litter", f"{entry.name}: left by the system", entry.name))
            continue
        if entry.is_symlink and not _follow(directory, entry.name, links, findings):
            continue
        try:
            found = fs.identity(prefix + entry.name)
        except OSError as error:
            findings.append(cannot_look(error, entry.name))
            continue
        if found is not None and found.is_file:
            sizes[entry.name] = found.size_bytes
            modified[entry.name] = found.modified_at
    directories = frozenset(entry.name for entry in entries if entry.is_directory)
    return Listing(directory, sizes, modified, links, tuple(findings), directories)


def _follow(directory: Path, name: str, links: dict[str, str], findings: list[Finding]) -> bool:
    """Judge a symlink; True where it may be followed."""
    target = fs.read_link(directory / name)
    links[name] = target
    try:
        is_there = fs.identity(directory / name) is not None
    except OSError:
        is_there = False
    if not is_there:
        text = f"{name}: a link to {target}, which is not there"
        findings.append(Finding("dangling-link", Severity.ERROR, text, name))
        return False
    if _HUB_BLOB.fullmatch(target):
        findings.append(_note("symlink", f"{name}: a link into the Hub's cache", name))
        return True
    text = f"{name}: a link to {target}, not a file of this directory"
    findings.append(Finding("symlink", Severity.ERROR, text, name))
    return False


@dataclass(frozen=True, slots=True)
class JsonObject:
    """What a small JSON file holds: `value` is None where it is not there or holds no object."""

    value: Mapping[str, Any] | None = None
    findings: tuple[Finding, ...] = ()
    has_bom: bool = False


def read_object(listing: Listing, name: str, *, code: str, most_bytes: int) -> JsonObject:
    """Read a small JSON file; whatever is wrong with it comes back as one error finding.

    `code` is what the format calls damage of it; a key given twice is `duplicate-key`. A file that
    is not listed is no finding.
    """
    if name not in listing.sizes:
        return JsonObject()
    try:
        data = fs.read_small(f"{listing.directory}/{name}", most_bytes)
        value = jsontext.parse(data, path=name)
    except DuplicateKey as error:
        return JsonObject(findings=(_error("duplicate-key", error.message, name),))
    except TornRead as error:
        return JsonObject(findings=(_error(code, error.message, name),))
    except OSError as error:
        return JsonObject(findings=(cannot_look(error, name),))
    if not isinstance(value, dict):
        text = f"{name}: expected an object, found {value!r:.40}"
        return JsonObject(findings=(_error(code, text, name),))
    return JsonObject(value, has_bom=jsontext.has_bom(data))


def sentence_of(error: OSError) -> str:
    """Say why something cannot be read, in lower case and without its path."""
    return (error.strerror or str(error)).lower()


def cannot_look(error: OSError, name: str) -> Finding:
    """Say why a file cannot be opened or looked at."""
    if isinstance(error, PermissionError):
        return Finding("permission-denied", Severity.ERROR, f"{name}: permission denied", name)
    text = f"{name}: cannot be read: {error.strerror or error}"
    return Finding("unreadable-file", Severity.ERROR, text, name)


def is_pickle(name: str) -> bool:
    """Whether a file of that name is loaded by unpickling, which runs what it says."""
    return _PICKLE.fullmatch(name) is not None


def slot_name(name: str) -> str:
    """Return the slot that a directory's name belongs to: `.step_5.retired-ab12` is `step_5`."""
    hidden = _HIDDEN.fullmatch(name)
    return hidden["slot"] if hidden else name


def step_in_name(name: str) -> int | None:
    """Return the step that a checkpoint's name holds (`epoch_1_step_9` → 9), None without one."""
    found = _STEP.findall(slot_name(name).lower())
    return int(found[-1]) if found else None


def whole_number(value: Any) -> int | None:
    """Read a step as trainers write it: 42, 42.0 or "42"; None for anything else or negative."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        value = int(value)
    return value if isinstance(value, int) and value >= 0 else None


def _error(code: str, text: str, name: str) -> Finding:
    return Finding(code, Severity.ERROR, text, name)


def _note(code: str, text: str, name: str) -> Finding:
    return Finding(code, Severity.NOTE, text, name)
