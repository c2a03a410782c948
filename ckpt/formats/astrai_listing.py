"""What an AstrAI directory holds against what its manifest lists: names, sizes, tensor names.

Judges a listing that was made; opens nothing.
"""

import re
from collections.abc import Iterator, Sequence
from unicodedata import normalize

from ckpt.checkpoint import Finding, Severity, Tensor
from ckpt.formats.directory import Listing, is_pickle
from ckpt.manifest import NAME as MANIFEST
from ckpt.manifest import Manifest

META, CONFIG, WEIGHTS, INDEX = (
    "meta.json",
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
)
_ADDED_LATER = re.compile(
    r"metric\.jsonl|tokenizer.*|special_tokens_map\.json|added_tokens\.json|vocab\..*|merges\.txt"
    r"|chat_template\..*|sentencepiece.*|spiece\.model"
)


def missing(listing: Listing, manifest: Manifest) -> Iterator[Finding]:
    """Every file that must be there and is not."""
    twins = _twins(listing, manifest)
    for name in sorted({META, CONFIG, *manifest.files}):
        if name not in listing.sizes and name not in listing.links:
            why = "listed in manifest.json and" if name in manifest.files else "required and"
            text = f"{name}: {why} not there"
            if name in twins:
                text += "; the same name in another Unicode composition is"
            yield _error("missing-file", text, name)
    if WEIGHTS not in manifest.files and not _has_weights(listing):
        yield _error("missing-file", f"{WEIGHTS}: required and not there", WEIGHTS)


def compare_files(listing: Listing, manifest: Manifest) -> Iterator[Finding]:
    """Sizes against the manifest, and files that it does not name."""
    for name, listed in manifest.files.items():
        size = listing.sizes.get(name)
        if size == 0 and listed.size_bytes:
            yield _error("empty-file", f"{name}: the file is empty", name)
        elif size is not None and size != listed.size_bytes:
            text = f"{name}: size {size:,} bytes, manifest.json says {listed.size_bytes:,}"
            hint = _line_ends_hint(name, size - listed.size_bytes)
            yield Finding("size-mismatch", Severity.ERROR, text, name, hint=hint)
    reported = set(_twins(listing, manifest).values())
    for name in sorted(listing.sizes.keys() - manifest.files.keys() - {MANIFEST, META, CONFIG}):
        if is_pickle(name):
            severity = Severity.ERROR if manifest.files else Severity.WARNING
            is_run = name.endswith(".pt")  # of every other name it is whoever loads it
            what = "AstrAI would run it while loading" if is_run else "it is never loaded here"
            text = f"{name}: a pickle that nothing lists; {what}"
            yield Finding("unlisted-pickle", severity, text, name)
        elif manifest.files and not _ADDED_LATER.fullmatch(name) and name not in reported:
            text = f"{name}: not listed in manifest.json"
            yield Finding("unlisted-file", Severity.WARNING, text, name)


def compare_tensors(tensors: Sequence[Tensor], manifest: Manifest) -> Iterator[Finding]:
    """Names in the headers of sound weights against the manifest's list."""
    if manifest.tensors is None:
        return
    found, listed = {tensor.name for tensor in tensors}, set(manifest.tensors)
    if found == listed:
        return
    absent, extra = sorted(listed - found), sorted(found - listed)
    parts = [
        f"{len(names)} {what} ({names[0]!r}{', …' if len(names) > 1 else ''})"
        for names, what in ((absent, "listed and not there"), (extra, "there and not listed"))
        if names
    ]
    text = f"tensors of manifest.json and {WEIGHTS} differ: {'; '.join(parts)}"
    yield _error("tensor-list-mismatch", text, MANIFEST)


def _has_weights(listing: Listing) -> bool:
    return any(name in listing.sizes or name in listing.links for name in (WEIGHTS, INDEX))


def _twins(listing: Listing, manifest: Manifest) -> dict[str, str]:
    """Listed names that are there in another Unicode composition: listed → what is there.

    A copy through macOS decomposes names; its bytes are then another file's for AstrAI.
    """
    absent = [name for name in manifest.files if name not in listing.sizes]
    if all(name.isascii() for name in absent):
        return {}
    there = {normalize("NFC", name): name for name in listing.sizes.keys() - manifest.files.keys()}
    composed = {name: normalize("NFC", name) for name in absent}
    return {name: there[key] for name, key in composed.items() if key in there}


def _line_ends_hint(name: str, added: int) -> str | None:
    if name.endswith(".json") and added > 0:
        return "a checkout that turns LF into CRLF adds a byte a line"
    return None


def _error(code: str, message: str, file: str) -> Finding:
    return Finding(code, Severity.ERROR, message, file)
