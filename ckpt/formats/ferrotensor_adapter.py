"""ferrotensor's LoRA adapter: a safetensors file with its settings in the metadata."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ckpt.checkpoint import NOTHING, Checkpoint, Finding, Severity
from ckpt.formats.ferrotensor_state import MAX_INTEGER
from ckpt.tensorfile import Header, read_header

ADAPTER_FORMAT = "ferrotensor-lora"
READABLE_DTYPES = frozenset({"F32", "F16", "BF16"})
_UNSIGNED = re.compile(r"\+?[0-9]+")
_FLOAT = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE
)


def read_adapter(seen: Checkpoint) -> Checkpoint:
    """Add to a checkpoint of one file what its header tells; settings only where all parse."""
    name = seen.path.name
    header = read_header(seen.path, name)
    is_readable = not any(each.severity is Severity.ERROR for each in header.findings)
    settings: Mapping[str, Any] = NOTHING
    findings = list(header.findings)
    if is_readable:
        settings, reason = lora_settings(header.metadata)
        findings += _settings_findings(header, reason, name)
        findings += _tensor_findings(header, name)
    return replace(
        seen,
        complete=is_readable,
        tensors=header.tensors,
        metadata=MappingProxyType(dict(header.metadata or {})),
        settings=settings,
        findings=tuple(findings),
    )


def lora_settings(metadata: Mapping[str, str] | None) -> tuple[Mapping[str, Any], str | None]:
    """Return an adapter's `rank`, `alpha` and `target_modules`, or nothing and the reason.

    All three or none, as ferrotensor reads them: rank an unsigned integer, alpha a float, the
    target modules joined by commas (an empty text is an empty list).
    """
    if metadata is None:
        return NOTHING, "the file has no __metadata__"
    absent = [key for key in ("rank", "alpha", "target_modules") if key not in metadata]
    if absent:
        return NOTHING, f"the metadata has no {', '.join(absent)}"
    rank, alpha, targets = (metadata[key] for key in ("rank", "alpha", "target_modules"))
    if not _UNSIGNED.fullmatch(rank) or len(rank) > 21 or int(rank) > MAX_INTEGER:
        return NOTHING, f"rank is {rank!r}, expected an unsigned integer"
    if not _FLOAT.fullmatch(alpha):
        return NOTHING, f"alpha is {alpha!r}, expected a number"
    modules = tuple(targets.split(",")) if targets else ()
    settings = {"rank": int(rank), "alpha": float(alpha), "target_modules": modules}
    return MappingProxyType(settings), None


def _settings_findings(header: Header, reason: str | None, name: str) -> Iterator[Finding]:
    """Say why there are no settings: a fault of a file that claims to be ferrotensor's only."""
    if reason:
        is_own = (header.metadata or {}).get("format") == ADAPTER_FORMAT
        severity = Severity.WARNING if is_own else Severity.NOTE
        yield Finding("lora-settings", severity, f"{name}: no LoRA settings: {reason}", name)


def _tensor_findings(header: Header, name: str) -> Iterator[Finding]:
    for tensor in header.tensors:
        if tensor.dtype not in READABLE_DTYPES:
            message = (
                f"{name}: tensor {tensor.name} is {tensor.dtype}: ferrotensor reads F32, F16 and"
                " BF16 and refuses the whole file"
            )
            yield Finding("unsupported-dtype", Severity.ERROR, message, name, tensor.name)
    if not header.tensors:
        yield Finding("no-tensors", Severity.WARNING, f"{name}: holds no tensors", name)
