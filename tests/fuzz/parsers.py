"""What is fuzzed: each parser with samples that the real programs wrote, and how it is asked."""

import io
import json
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import mutations

from ckpt import control, jsontext, reflog, seals
from ckpt.checkpoint import (
    Checkpoint,
    Depth,
    FileEntry,
    Finding,
    Severity,
    Verdict,
    Verified,
)
from ckpt.formats import inspect
from ckpt.formats.ferrotensor_checkpoint import read_training_checkpoint
from ckpt.formats.ferrotensor_state import parse_state
from ckpt.formats.kt_index import parse_text
from ckpt.generations import scan
from ckpt.health import judge
from ckpt.manifest import read_manifest
from ckpt.operation import drive
from ckpt.pickles import check, walk
from ckpt.present import (
    file_rows,
    finding_rows,
    header_lines,
    log_rows,
    metadata_rows,
    show_json,
    status_json,
    status_line,
    tensor_rows,
)
from ckpt.progress.line_source import LineSource
from ckpt.progress.records import MetricsRecords, Records, TrainerLogRecords
from ckpt.progress.trainer_state import TrainerState
from ckpt.run import RunView, apply
from ckpt.sources import RunReader
from ckpt.tensorfile import read_header

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
NOW = 2e9


@dataclass(frozen=True)
class Parser:
    """`ask` reads an input; `file` is where it lies in a scratch directory, None: in memory.

    Of what reads a whole run or directory, and so parses what another parser here does too, only
    one in `share` inputs is asked.
    """

    samples: Callable[[], Sequence[bytes]]
    make: Callable[[Random, Sequence[bytes]], bytes]
    ask: Callable[[Path, bytes], object]
    file: str | None = None
    share: int = 1
    beside: Callable[[], dict[str, bytes]] = dict


def golden(*patterns: str) -> Callable[[], Sequence[bytes]]:
    """All different files of the samples that match, none of them large."""

    def load() -> Sequence[bytes]:
        paths = [path for pattern in patterns for path in sorted(GOLDEN.glob(pattern))]
        found = {path.read_bytes() for path in paths if path.stat().st_size < 1 << 16}
        return sorted(found)

    return load


def files_of(*parts: str) -> Callable[[], dict[str, bytes]]:
    """A whole checkpoint of the samples, by name."""

    def load() -> dict[str, bytes]:
        directory = GOLDEN.joinpath(*parts)
        return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}

    return load


def follow(path: Path, _data: bytes) -> object:
    """Read a run's progress as the monitor does, twice, judge it and draw what is wrong."""
    reader = RunReader(path.parent, record_samples=False)
    view = RunView(run=path.parent)
    for now in (NOW, NOW + 1, NOW + 2):
        view = apply(view, list(reader.read(None, now)))
    view = judge(view, NOW + 2)
    lines = header_lines(view, NOW + 2, 80)
    told = jsontext.dumps(status_json(view, series=True)).encode()
    return told, lines, status_line(view, NOW + 2)


def lines(make: Callable[[], Records]) -> Callable[[Path, bytes], object]:
    """Read a file of lines as a source does: at once, and once more when a line was added."""

    def ask(path: Path, data: bytes) -> object:
        source = LineSource(path, "lines", make)
        told = list(source.read(NOW))
        with path.open("ab") as file:
            file.write(b'{"step": 5, "loss": 1}\n')
        return told, list(source.read(NOW + 1))

    return ask


def trainer_state(path: Path, _data: bytes) -> object:
    source = TrainerState(path.parent)
    return [list(source.read(NOW + second)) for second in range(3)]


def look(path: Path, _data: bytes) -> object:
    """Read a checkpoint of which one file is the input, as `show` does, and draw the findings."""
    return drawn(inspect(path.parent))


def look_at(path: Path, _data: bytes) -> object:
    return drawn(inspect(path))


def drawn(found: Checkpoint) -> object:
    """All that `show` says of a checkpoint, for people and as strict JSON."""
    rows = [*metadata_rows(found), *tensor_rows(found.tensors), *file_rows(found.files)]
    return jsontext.dumps(show_json(found)).encode(), rows, finding_rows(found.findings)


def journal(path: Path, data: bytes) -> object:
    run = path.parent.parent
    reader = reflog.JournalReader(run)
    told = reader.read()
    targets = told.undo_target, told.redo_target, told.in_undo_window
    return log_rows(told, NOW), targets, reflog.last_sequence(run)


def cache(path: Path, _data: bytes) -> object:
    run = path.parent.parent
    return control.VerifiedCache(run).is_empty, control.read_pins(run)


def slots(path: Path, _data: bytes) -> object:
    return scan(path.parent.parent)


def text(_path: Path, data: bytes) -> object:
    jsontext.leading_members(data)
    jsontext.parse_table(data, path="x")
    return jsontext.parse(data, path="x")


def weights(path: Path, _data: bytes) -> object:
    return finding_rows(read_header(path, "w").findings)


def checkpoint(path: Path, _data: bytes) -> object:
    read_training_checkpoint(path)
    return read_training_checkpoint(path, whole=True)


def unpickled(path: Path, data: bytes) -> object:
    walk(path)
    return drive(check(path, FileEntry("x.pt", len(data)), Depth.BYTES))


def pickles() -> Sequence[bytes]:
    values: list[Any] = [
        {"a": [1, 2.5, "x", None, True]}, OrderedDict(a=1), datetime(2026, 12, 1), Path("/x"),
        {"step": 2**70, "b": b"x" * 300}, ({1, 2}, frozenset([3]), slice(1, 2)), print, [[]] * 40,
    ]  # fmt: skip
    found = [pickle.dumps(value, protocol) for value in values for protocol in range(6)]
    found += [path.read_bytes() for path in sorted(GOLDEN.glob("**/*.pt"))]
    found += [
        b"cposix\nsystem\n(Vls\ntR.",
        b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
    ]
    return [*found, archive(found[0]), archive(found[9], deflated=True)]


def archive(content: bytes, *, deflated: bool = False) -> bytes:
    """What torch.save writes: a zip archive of a pickle and raw bytes."""
    out = io.BytesIO()
    how = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", how) as file:
        file.writestr("model/data.pkl", content)
        file.writestr("model/data/0", bytes(64))
        file.writestr("model/version", "3\n")
    return out.getvalue()


def headers() -> Sequence[bytes]:
    many = {
        f"layer.{n}": {"dtype": "F4", "shape": [2], "data_offsets": [n, n + 1]} for n in range(300)
    }
    packed = json.dumps(many).encode()
    made = struct.pack("<Q", len(packed)) + packed + bytes(300)
    return [*golden("**/*.safetensors")(), made]


def journals() -> Sequence[bytes]:
    change = {"slot": "step_5", "before": "a" * 12, "after": "b" * 12}
    lines: list[dict[str, Any]] = []
    for number, verb in enumerate(("publish", "rollback", "undo", "redo", "withdraw", "prune"), 1):
        undoes = number - 1 if verb in ("undo", "redo") else None
        lines.append({"sequence": number, "at": 1.7e9, "verb": verb, "changes": [change],
                      "by": "x (pid 1 on h)", "undoes": undoes})  # fmt: skip
        lines.append({"of": number, "outcome": "done", "at": 1.7e9})
    return [b"".join(reflog._line(line) for line in lines[:end]) for end in (2, 7, 12)]


def verdicts() -> Sequence[bytes]:
    worst = Finding("hash-mismatch", Severity.ERROR, "w: differs", "w", "t", hint="x")
    said = [
        Verified(Verdict.INTACT, Depth.BYTES, 1.7e9),
        Verified(Verdict.DAMAGED, Depth.HEADERS, 1.7e9, worst, ("t",), 1),
    ]
    entries = [control.VerifiedEntry("step_5", "a" * 12, "0" * 32, each) for each in said]
    written = [control._line(entry).encode() + b"\n" for entry in entries]
    return [*written, b"".join(written) * 3]


def sealed() -> Sequence[bytes]:
    file = seals.SealedFile(9, 10**18, "0" * 64, ("0" * 64,))
    seal = seals.Seal("a" * 12, "step_5", "safetensors", 1.7e9, 1 << 26, {"w": file, "x": file})
    return [json.dumps(seals._fields(seal)).encode()]


def seal(path: Path, data: bytes) -> object:
    """Ask for a seal whose check is made to fit again, where the text can be read at all."""
    try:
        fields = json.loads(data)
        fields["check"] = seals._check(fields)
    except (ValueError, TypeError, RecursionError):
        pass
    else:
        path.write_text(json.dumps(fields))
    return seals.find_seal(path.parents[2], generation="a" * 12, path="step_5")


def logs() -> Sequence[bytes]:
    rows = [
        {"step": n, "time": 1.7e9 + n, "loss": 1 / n, "lr": 1e-4, "epoch": 0.1}
        for n in range(1, 30)
    ]
    ours = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return [ours, *golden("**/metric*.jsonl", "**/trainer_log.jsonl")()]


JSON = mutations.of(mutations.in_json)
LINES = mutations.of(mutations.in_lines)
ASTRAI = files_of("astrai", "good", "tree", "epoch_1_step_9")
KT = files_of("kt_full", "tiny3", "tree", "ckpt")
BUNDLE = files_of("kt_full", "adapter_bundle", "tree", "checkpoint-2")
STATES = golden("**/training_state.json")
KT_INDEX, KT_BUNDLE = "kt_full_experts.index.json", "kt_adapter_manifest.json"
HF_INDEX = "model.safetensors.index.json"


def trainer_states() -> Sequence[bytes]:
    rows = [
        {"step": n, "loss": 1 / n, "epoch": n / 30, "learning_rate": 1e-4} for n in range(1, 30)
    ]
    state = {"global_step": 29, "max_steps": 100, "epoch": 0.9, "best_metric": 0.5,
             "best_model_checkpoint": "/x/checkpoint-9", "log_history": rows}  # fmt: skip
    found = [json.dumps(state, indent=2).encode(), json.dumps(state).encode()]
    return [*found, *golden("**/trainer_state.json")()]


BYTES_AND_ARCHIVES = mutations.of(mutations.in_bytes, mutations.in_archive)
PARSERS: dict[str, Parser] = {
    "headers": Parser(headers, mutations.of(mutations.in_header), weights, "w.safetensors"),
    "manifests": Parser(golden("**/manifest.json"), JSON, lambda _, data: read_manifest(data)),
    "kt-indices": Parser(golden(f"**/{KT_INDEX}"), JSON, lambda _, data: parse_text(data)),
    "states": Parser(STATES, JSON, lambda _, data: parse_state(data, "s")),
    "training-checkpoints": Parser(
        golden("**/training_checkpoint.json"), JSON, checkpoint, "training_checkpoint.json"
    ),
    "lines": Parser(logs, LINES, lines(MetricsRecords), "metrics.jsonl"),
    "trainer-logs": Parser(logs, LINES, lines(TrainerLogRecords), "trainer_log.jsonl"),
    "trainer-states": Parser(trainer_states, JSON, trainer_state, "trainer_state.json"),
    "journals": Parser(
        journals, mutations.of(mutations.in_journal, mutations.in_lines), journal, ".ckpt/reflog"
    ),
    "pickles": Parser(pickles, BYTES_AND_ARCHIVES, unpickled, "x.pt"),
    "json": Parser(golden("**/*.json"), mutations.of(mutations.in_json, mutations.in_lines), text),
    "caches": Parser(verdicts, LINES, cache, ".ckpt/verified"),
    "seals": Parser(sealed, JSON, seal, f".ckpt/seals/{'a' * 12}.x.json"),
    "kt-bundles": Parser(golden(f"**/{KT_BUNDLE}"), JSON, look, KT_BUNDLE, beside=BUNDLE),
    "hf-indices": Parser(
        golden(f"**/{HF_INDEX}"), JSON, look, HF_INDEX,
        beside=files_of("astrai", "sharded_hf", "tree", "base"),
    ),
    "adapters": Parser(
        golden("ferrotensor/**/*.safetensors"), mutations.of(mutations.in_header), look_at,
        "adapter.safetensors",
    ),
    "runs-with-lines": Parser(logs, LINES, follow, "metrics.jsonl", 10),
    "runs-with-logs": Parser(logs, LINES, follow, "trainer_log.jsonl", 10),
    "runs-with-states": Parser(STATES, JSON, follow, "training_state.json", 10),
    "runs-with-trainer-states": Parser(trainer_states, JSON, follow, "trainer_state.json", 10),
    "astrai-directories": Parser(
        golden("**/manifest.json"), JSON, look, "manifest.json", 10, ASTRAI
    ),
    "astrai-metas": Parser(golden("**/meta.json"), JSON, look, "meta.json", 10, ASTRAI),
    "kt-directories": Parser(golden(f"**/{KT_INDEX}"), JSON, look, KT_INDEX, 10, KT),
    "scans": Parser(golden("**/manifest.json"), JSON, slots, "step_5/manifest.json", 10),
}  # fmt: skip
