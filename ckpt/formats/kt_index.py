"""KT Full's index and shard names: parsing and grouping, without the disk.

Pure. Validated by hand: each fault of an index is its own finding, and what is right of a damaged
one is still read.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ckpt import jsontext
from ckpt.checkpoint import Finding, Severity
from ckpt.jsontext import is_whole
from ckpt.manifest import is_safe_name

INDEX_NAME = "kt_full_experts.index.json"
FORMAT = "kt_full_experts"
VERSION = 1
DTYPE = "BF16"
TEMPORARY_SUFFIX = ".tmp"
"""What a shard's name ends in while it is written."""

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_SHARD = re.compile(r"kt_full_experts-([0-9a-f]{32})-layer-([0-9]{5,18})\.safetensors")
_TEMPORARY = re.compile(
    r"kt_full_experts(?:\.index\.json|-[0-9a-f]{32}-layer-[0-9]{5,}\.safetensors).*\.tmp.*"
    r"|\.kt_full_experts.*"
)
_CANONICAL = re.compile(r"0|[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class Shard:
    """One layer as the index tells it.

    `file` is None where its name cannot be used as one, `size_bytes` where it is no size. `shapes`
    holds what is right of `gate_proj` and `up_proj` (E, I, H) and `down_proj` (E, H, I).
    """

    layer: int
    file: str | None
    size_bytes: int | None
    shapes: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Index:
    """What of an index can be read; `is_usable`: no reader would refuse it."""

    generation: str | None = None
    shards: tuple[Shard, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether nothing in the index itself keeps it from being read."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def file_names(self) -> frozenset[str]:
        """The names that the index gives its shards."""
        return frozenset(shard.file for shard in self.shards if shard.file is not None)


def shard_name(name: str) -> tuple[str, int] | None:
    """Return (generation, layer) of a shard's file name, None for any other name.

    The layer is padded to five digits and not further, so that a name has one spelling.
    """
    match = _SHARD.fullmatch(name) if name.startswith("kt_full_experts-") else None
    if not match:
        return None
    layer = int(match.group(2))
    return (match.group(1), layer) if match.group(2) == f"{layer:05d}" else None


def generation_of(name: str) -> str | None:
    """Return the generation of a shard or of one half-written, None for any other file."""
    named = shard_name(name.removesuffix(TEMPORARY_SUFFIX))
    return named[0] if named else None


def is_temporary(name: str) -> bool:
    """Whether a name is what a KT save leaves when it is killed while writing a file."""
    return bool(_TEMPORARY.fullmatch(name))


def group_shards(names: Iterable[str]) -> dict[str, dict[int, str]]:
    """Group shard names by generation: `{generation: {layer: name}}`, both sorted."""
    groups: dict[str, dict[int, str]] = {}
    for name in sorted(names):
        found = shard_name(name)
        if found:
            groups.setdefault(found[0], {})[found[1]] = name
    return {generation: dict(sorted(layers.items())) for generation, layers in groups.items()}


@lru_cache(maxsize=8)
def parse_text(data: bytes) -> Index:
    """Read the text of an index; the last few are remembered, as each look asks more than once.

    Raises:
        TornRead: it does not parse.
        DuplicateKey: an object in it holds one key twice.
    """
    return parse_index(jsontext.parse(data, path=INDEX_NAME))


def parse_index(value: Any) -> Index:
    """Read an index out of parsed JSON."""
    if not isinstance(value, dict):
        return Index(findings=(_bad(f"the index is {_kind(value)}, expected an object"),))
    findings = list(_head_findings(value))
    generation = value.get("generation")
    if not isinstance(generation, str) or not generation:
        findings.append(_bad(f"generation is {generation!r}, expected a text that is not empty"))
        generation = None
    layers = value.get("layers")
    if not isinstance(layers, dict) or not layers:
        findings.append(_bad(f"layers is {_kind(layers)}, expected an object of layers"))
        layers = {}
    shards: list[Shard] = []
    for key, entry in layers.items():
        if not _CANONICAL.fullmatch(key):
            findings.append(_bad(f"layer key {key!r} is no canonical decimal number"))
            continue
        shard, problems = _parse_shard(int(key), entry)
        shards.append(shard)
        findings += problems
    findings += _name_findings(shards, generation)
    return Index(generation, tuple(sorted(shards, key=lambda each: each.layer)), tuple(findings))


def _head_findings(value: Mapping[str, Any]) -> Iterator[Finding]:
    if value.get("format") != FORMAT:
        yield _bad(f"format is {value.get('format')!r}, expected {FORMAT!r}")
    version = value.get("version")
    if not is_whole(version, least=1):
        yield _bad(f"version is {version!r}, expected the integer {VERSION}")
    elif version != VERSION:
        message = (
            f"{INDEX_NAME}: made by a newer version ({version}), this program reads {VERSION}"
        )
        yield Finding("unsupported-version", Severity.ERROR, message, INDEX_NAME)
    if value.get("dtype") != DTYPE:
        yield _bad(f"dtype is {value.get('dtype')!r}, expected {DTYPE!r}")


def _parse_shard(layer: int, entry: Any) -> tuple[Shard, list[Finding]]:
    if not isinstance(entry, dict):
        problem = _bad(f"layer {layer} is {_kind(entry)}, expected an object")
        return Shard(layer, None, None, {}), [problem]
    findings: list[Finding] = []
    file, size = entry.get("file"), entry.get("size_bytes")
    if not isinstance(file, str) or not is_safe_name(file):
        message = f"{INDEX_NAME}: layer {layer}: {file!r} is no plain file name"
        findings.append(Finding("bad-entry-name", Severity.ERROR, message, INDEX_NAME))
        file = None
    if not is_whole(size):
        findings.append(_bad(f"layer {layer}: size_bytes is {size!r}, expected a size in bytes"))
        size = None
    shapes, problems = _parse_shapes(layer, entry.get("shapes"))
    return Shard(layer, file, size, shapes), findings + problems


def _parse_shapes(layer: int, value: Any) -> tuple[dict[str, tuple[int, ...]], list[Finding]]:
    if not isinstance(value, dict):
        return {}, [_bad(f"layer {layer}: shapes is {_kind(value)}, expected an object")]
    findings: list[Finding] = []
    if set(value) != set(PROJECTIONS):
        findings.append(
            _bad(f"layer {layer}: shapes of {sorted(value)}, expected {sorted(PROJECTIONS)}")
        )
    shapes: dict[str, tuple[int, ...]] = {}
    for name in PROJECTIONS:
        shape = value.get(name)
        if name not in value:
            continue
        if isinstance(shape, list) and len(shape) == 3 and all(map(is_whole, shape)):
            shapes[name] = tuple(shape)
        else:
            findings.append(_bad(f"layer {layer}: shape of {name} is {shape!r}, expected three"))
    if len(shapes) == len(PROJECTIONS) and not _fits(shapes):
        message = (
            f"{INDEX_NAME}: layer {layer}: shapes do not fit together: gate_proj"
            f" {list(shapes['gate_proj'])}, up_proj {list(shapes['up_proj'])}, down_proj"
            f" {list(shapes['down_proj'])}"
        )
        findings.append(Finding("shape-mismatch", Severity.ERROR, message, INDEX_NAME))
    return shapes, findings


def _fits(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    experts, intermediate, hidden = shapes["gate_proj"]
    is_same = shapes["up_proj"] == shapes["gate_proj"]
    return is_same and shapes["down_proj"] == (experts, hidden, intermediate)


def _name_findings(shards: Sequence[Shard], generation: str | None) -> Iterator[Finding]:
    """Say which names a KT save would not have given: its next save deletes files by them."""
    owners: dict[str, int] = {}
    for shard in shards:
        if shard.file is None:
            continue
        if shard.file in owners:
            yield _bad(f"layers {owners[shard.file]} and {shard.layer} name the same {shard.file}")
        owners.setdefault(shard.file, shard.layer)
        found = shard_name(shard.file)
        if found is None or found[1] != shard.layer:
            message = (
                f"{INDEX_NAME}: layer {shard.layer} names {shard.file}, which is not the name of"
                " its shard"
            )
            hint = "a second save by KT's own trainer into this directory deletes that file"
            yield Finding("name-mismatch", Severity.WARNING, message, INDEX_NAME, hint=hint)
    strangers = {
        found[0]
        for found in (shard_name(shard.file) for shard in shards if shard.file is not None)
        if found is not None and found[0] != generation
    }
    if generation is not None and strangers:
        others = ", ".join(sorted(strangers))
        message = f"{INDEX_NAME}: generation is {generation}, the names it lists say {others}"
        yield Finding("generation-mismatch", Severity.WARNING, message, INDEX_NAME)


def _bad(message: str) -> Finding:
    return Finding("bad-index", Severity.ERROR, f"{INDEX_NAME}: {message}", INDEX_NAME)


def _kind(value: Any) -> str:
    if value is None:
        return "missing or null"
    names = {bool: "a truth value", dict: "an empty object", list: "an array", str: "a string"}
    return names.get(type(value), "a number")
