"""AstrAI checkpoints, written into a staging directory so that AstrAI loads them.

Everything is checked before the first byte is written, and every file is durable before the
manifest that lists it. Publishing is not done here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt import fs, jsontext
from ckpt.checkpoint import NOTHING
from ckpt.errors import PublishError
from ckpt.formats.astrai_listing import CONFIG, META, WEIGHTS
from ckpt.manifest import NAME as MANIFEST
from ckpt.manifest import Listed, Origin, build, extension_of, is_safe_name
from ckpt.onepass import CHUNK_BYTES, Sink, write_hashed
from ckpt.tensorwriter import Buffer, write_tensors

if TYPE_CHECKING:
    from ckpt.numbers.measuring import Measuring

_MOST_NAME_BYTES = 255


def write_checkpoint(  # noqa: PLR0913 - the parts of a checkpoint, the later ones by name
    directory: Path,
    meta: Mapping[str, Any],
    config: Mapping[str, Any],
    buffers: Sequence[Buffer],
    *,
    origin: Origin,
    tied: Mapping[str, str] = NOTHING,
    extras: Mapping[str, Callable[[Sink], object]] = NOTHING,
    stats: bool = False,
) -> None:
    """Fill a staging directory with a checkpoint that AstrAI loads; the manifest comes last.

    `meta` and `config` are written as they are, but for numbers that are not finite: they become
    null, as strict JSON has no word for them. `tied` maps a name that is not written to the one
    that stands for it; it becomes the `__metadata__` of the weights, as safetensors' own
    `save_model` records it (AstrAI itself cannot save such a state dict). Each of `extras` writes
    itself into `<key>.pt`. With `stats` the manifest says what the values of each tensor are like,
    which takes about as long again as writing them; not without numpy.

    Raises:
        PublishError: a tensor, a key or a value cannot be written as it is.
        OSError: the disk refused.
    """
    meta = jsontext.without_nonfinite(meta)
    texts = {META: _encoded(META, meta), CONFIG: _encoded(CONFIG, config)}
    check_extras(extras)
    measuring = _measuring() if stats else None
    look = None if measuring is None else measuring.take
    written = {WEIGHTS: write_tensors(directory / WEIGHTS, buffers, tied or None, look=look)}
    for key, write in extras.items():
        name = extra_name(key)
        written[name] = write_hashed(directory / name, write)
    for name, text in texts.items():
        written[name] = write_hashed(directory / name, partial(_write_text, text))
    listed = {name: Listed(file.size_bytes, file.sha256) for name, file in written.items()}
    chunks = {name: file.chunks for name, file in written.items()}
    found = None if measuring is None else measuring.found
    extension = extension_of(origin, chunk_bytes=CHUNK_BYTES, chunks=chunks, stats=found)
    names = [buffer[0] for buffer in buffers]
    fs.replace_bytes(directory / MANIFEST, build(listed, names, meta=meta, extension=extension))


def check_extras(keys: Iterable[str]) -> None:
    """Refuse keys that cannot name files in the checkpoint's own directory.

    Raises:
        PublishError: a key is no text, empty, hidden or too long, holds a separator, or differs
            from another one by case alone.
    """
    seen: dict[str, str] = {}
    for key in keys:
        if not isinstance(key, str) or not is_safe_name(key) or key.startswith("."):
            hint = f"use a plain name such as optimizer; it becomes {extra_name('optimizer')}"
            raise PublishError(f"extras: {key!r:.80} cannot name a file", hint=hint)
        try:
            size = len(extra_name(key).encode())
        except UnicodeEncodeError:
            message = f"extras: {key!r:.80} cannot name a file: it is no UTF-8"
            raise PublishError(message) from None
        if size > _MOST_NAME_BYTES:
            raise PublishError(f"extras: {key!r:.80} is too long to name a file")
        if (other := seen.setdefault(key.casefold(), key)) != key:
            raise PublishError(f"extras: {other!r:.80} and {key!r:.80} differ by case alone")


def extra_name(key: str) -> str:
    """Return the name of the file that an extra is saved as."""
    return f"{key}.pt"


def _measuring() -> "Measuring | None":
    """Return what measures tensors; None where numpy is missing, which is no reason to fail."""
    try:
        from ckpt.numbers.measuring import Measuring  # late: numpy is loaded to measure only
    except ImportError:
        return None
    return Measuring()


def _encoded(name: str, value: Mapping[str, Any]) -> bytes:
    for key, item in value.items():  # one by one, so that the message can name the key
        try:
            jsontext.dumps({key: jsontext.without_nonfinite(item)}).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise PublishError(f"{name}: {key!r:.80} cannot be written: {error}") from None
    return jsontext.dumps(jsontext.without_nonfinite(value), indent=2).encode()


def _write_text(text: bytes, sink: Sink) -> None:
    sink.write(text)
