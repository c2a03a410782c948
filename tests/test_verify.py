"""What a verification says of good, damaged, changing and strange checkpoints."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from trees import put_checkpoint, weights

from ckpt import fs
from ckpt.checkpoint import Depth, Finding, Report, Severity, Verdict
from ckpt.errors import NoCheckpoint
from ckpt.operation import Found, Progress, drive
from ckpt.verify import tally, verdict_of, verify


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def finding(code: str, severity: Severity) -> Finding:
    return Finding(code, severity, "")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return put_checkpoint(tmp_path / "step_1", 1, 1.0, 2.0)


GOLDEN = [
    ("astrai/good/tree/epoch_1_step_9", Verdict.INTACT, []),
    ("astrai/with_extras/tree/epoch_0_step_5", Verdict.INTACT, []),
    ("astrai/bad_flipped_weight_byte/tree/epoch_1_step_9", Verdict.DAMAGED, ["hash-mismatch"]),
    ("astrai/bad_meta_same_size/tree/epoch_1_step_9", Verdict.DAMAGED, ["hash-mismatch"]),
    ("astrai/bad_missing_config/tree/epoch_1_step_9", Verdict.DAMAGED, ["missing-file"]),
    ("astrai/bad_manifest_truncated/tree/epoch_1_step_9", Verdict.DAMAGED, ["bad-manifest"]),
    (
        "astrai/bad_manifest_version2/tree/epoch_1_step_9",
        Verdict.UNSUPPORTED,
        ["unsupported-version"],
    ),
    ("astrai/odd_unlisted_pt/tree/epoch_1_step_9", Verdict.DAMAGED, ["unlisted-pickle"]),
    ("kt_full/tiny3/tree/ckpt", Verdict.UNVERIFIABLE, ["no-hashes"]),
    ("kt_full/odd_flipped_shard_byte/tree/ckpt", Verdict.UNVERIFIABLE, ["no-hashes"]),
    ("kt_full/bad_missing_layer/tree/ckpt", Verdict.DAMAGED, ["missing-layer"]),
    ("kt_full/bad_index_truncated/tree/ckpt", Verdict.DAMAGED, ["bad-index"]),
    ("kt_full/adapter_bundle/tree/checkpoint-2", Verdict.INTACT, []),
    (
        "ferrotensor/bad_adapter_f64/tree/adapter.safetensors",
        Verdict.UNSUPPORTED,
        ["unsupported-dtype"],
    ),
    ("ferrotensor/adapter_f32/tree/adapter.safetensors", Verdict.UNVERIFIABLE, ["no-hashes"]),
]


@pytest.mark.parametrize(("sample", "verdict", "expected"), GOLDEN, ids=[row[0] for row in GOLDEN])
def test_a_sample_gets_its_verdict(
    golden: Path, sample: str, verdict: Verdict, expected: list[str]
) -> None:
    report = drive(verify(golden / sample))
    assert (report.verdict, codes(report)) == (verdict, expected)


@pytest.mark.parametrize(
    ("findings", "is_all_compared", "verdict"),
    [
        ([], True, Verdict.INTACT),
        ([], False, Verdict.UNVERIFIABLE),
        ([("unlisted-file", Severity.WARNING)], True, Verdict.INTACT),
        ([("no-manifest", Severity.WARNING)], False, Verdict.UNVERIFIABLE),
        ([("missing-file", Severity.ERROR)], True, Verdict.DAMAGED),
        ([("unsupported-version", Severity.ERROR)], False, Verdict.UNSUPPORTED),
        ([("foreign-state", Severity.WARNING)], False, Verdict.UNSUPPORTED),
        (
            [("unsupported-dtype", Severity.ERROR), ("truncated", Severity.ERROR)],
            False,
            Verdict.DAMAGED,
        ),
    ],
)
def test_errors_damage_and_warnings_change_nothing(
    findings: list[tuple[str, Severity]], is_all_compared: bool, verdict: Verdict
) -> None:
    found = [finding(code, severity) for code, severity in findings]
    assert verdict_of(found, is_all_compared=is_all_compared) is verdict


def test_an_intact_one_counts_every_byte_that_has_a_hash(good: Path) -> None:
    report = drive(verify(good))
    names = ("config.json", "meta.json", "model.safetensors")
    assert report.bytes_read == sum((good / name).stat().st_size for name in names)
    assert (report.path, report.format, report.depth) == (good, "astrai", Depth.BYTES)
    assert report.findings == ()


@pytest.mark.parametrize(
    ("depth", "words"),
    [(Depth.NAMES, "only file names and sizes"), (Depth.HEADERS, "only names, sizes and headers")],
)
def test_a_lesser_depth_never_says_intact_and_says_that_it_was_lesser(
    good: Path, depth: Depth, words: str
) -> None:
    (good / "model.safetensors").write_bytes(weights(1.0, 3.0))
    report = drive(verify(good, depth))
    assert (report.verdict, codes(report)) == (Verdict.UNVERIFIABLE, ["not-compared"])
    assert words in report.findings[0].message
    assert (report.findings[0].severity, report.bytes_read) == (Severity.NOTE, 0)


def test_a_cut_file_is_told_by_its_size_and_is_not_hashed(good: Path) -> None:
    model = good / "model.safetensors"
    whole = model.stat().st_size
    model.write_bytes(model.read_bytes()[:-3])
    reads: list[str] = []

    def watch(call: fs.Call) -> None:
        if call.name == "open":
            reads.append(call.path)

    events: list[Finding] = []
    operation = verify(good)
    with fs.hooked(watch):
        report = drive(
            operation, lambda event: isinstance(event, Found) and events.append(event.finding)
        )
    mismatch = next(each for each in report.findings if each.code == "size-mismatch")
    assert f"{whole}" in mismatch.message
    assert f"{whole - 3}" in mismatch.message
    assert report.verdict is Verdict.DAMAGED
    assert not any(
        path.startswith("/proc/") and path.endswith("model.safetensors") for path in reads
    )
    assert set(events) == set(report.findings)


def test_a_wrong_hash_is_shown_beside_the_recorded_one(good: Path) -> None:
    recorded = hashlib.sha256((good / "model.safetensors").read_bytes()).hexdigest()
    damaged = weights(1.0, 3.0)
    (good / "model.safetensors").write_bytes(damaged)
    report = drive(verify(good))
    found = hashlib.sha256(damaged).hexdigest()
    assert [each.message for each in report.findings] == [
        f"model.safetensors: sha256 is {found[:12]}…, recorded is {recorded[:12]}…"
    ]


def test_all_damage_is_collected_not_only_the_first(good: Path) -> None:
    (good / "config.json").unlink()
    (good / "meta.json").write_bytes(b'{"epoch": 1, "optimizer_step": 1}')
    (good / "model.safetensors").write_bytes(weights(1.0, 3.0))
    assert sorted(codes(drive(verify(good)))) == ["hash-mismatch", "hash-mismatch", "missing-file"]


def test_upper_case_hashes_are_the_same_hashes(good: Path) -> None:
    manifest = json.loads((good / "manifest.json").read_bytes())
    for entry in manifest["files"].values():
        entry["sha256"] = entry["sha256"].upper()
    (good / "manifest.json").write_text(json.dumps(manifest))
    assert drive(verify(good)).verdict is Verdict.INTACT


def test_a_link_to_outside_is_not_followed_and_its_hash_is_not_shown(
    good: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "secret.safetensors"
    shutil.move(good / "model.safetensors", outside)
    (good / "model.safetensors").symlink_to(outside)
    report = drive(verify(good))
    assert (report.verdict, codes(report)) == (Verdict.DAMAGED, ["symlink"])
    digest = hashlib.sha256(outside.read_bytes()).hexdigest()
    assert not any(digest[:8] in each.message for each in report.findings)


def test_a_file_that_may_not_be_read_is_a_finding(good: Path) -> None:
    def refuse(call: fs.Call) -> None:
        if call.name == "open" and call.path.endswith("model.safetensors"):
            raise PermissionError(13, "Permission denied", call.path)

    with fs.hooked(refuse):
        report = drive(verify(good))
    assert report.verdict is Verdict.DAMAGED
    assert set(codes(report)) == {"permission-denied"}


@pytest.mark.parametrize(
    "sample",
    [
        "astrai/with_extras/tree/epoch_0_step_5",
        "kt_full/tiny3/tree/ckpt",
        "kt_full/adapter_bundle/tree/checkpoint-2",
        "ferrotensor/adapter_f32/tree/adapter.safetensors",
        "ferrotensor/checkpoint_none/tree/training_checkpoint.json",
        "astrai/sharded_hf/tree/base",
    ],
)
def test_a_fault_at_any_call_is_no_traceback_and_never_hides_a_byte(
    golden: Path, sample: str
) -> None:
    path = golden / sample
    calls: list[fs.Call] = []
    with fs.hooked(calls.append):
        whole = drive(verify(path))
    for at in range(len(calls)):
        seen: list[fs.Call] = []

        def fail(call: fs.Call, at: int = at, seen: list[fs.Call] = seen) -> None:
            seen.append(call)
            if len(seen) == at + 1:
                raise OSError(5, "Input/output error", call.path)

        try:
            with fs.hooked(fail):
                report = drive(verify(path))
        except NoCheckpoint:
            continue
        if report.verdict is Verdict.INTACT:  # the call was not needed for the comparison
            assert (report.bytes_read, codes(report)) == (whole.bytes_read, []), calls[at]


def test_a_directory_that_may_not_be_listed_is_no_checkpoint_and_says_why(good: Path) -> None:
    def refuse(call: fs.Call) -> None:
        if call.name == "scan":
            raise PermissionError(13, "Permission denied", call.path)

    with fs.hooked(refuse), pytest.raises(NoCheckpoint, match="permission denied"):
        drive(verify(good))


def test_where_nothing_is_claimed_nothing_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpoint):
        drive(verify(tmp_path))
    with pytest.raises(NoCheckpoint, match="nothing is there"):
        drive(verify(tmp_path / "absent"))


def big(tmp_path: Path) -> Path:
    return put_checkpoint(tmp_path / "step_1", 1, 0.5, count=10_000_000)


def at_progress(operation, act) -> Report:
    """Drive, and act once at the first sign of progress in the middle of a file."""
    acted = []

    def on_event(event: object) -> None:
        if isinstance(event, Progress) and event.what == "model.safetensors" and not acted:
            acted.append(event)
            act()

    report = drive(operation, on_event)
    assert acted[0].done < acted[0].total
    return report


def test_a_file_cut_while_it_is_read_is_a_finding_and_no_signal(tmp_path: Path) -> None:
    path = big(tmp_path)
    report = at_progress(verify(path), lambda: os.truncate(path / "model.safetensors", 0))
    assert (report.verdict, codes(report)) == (Verdict.DAMAGED, ["changed-while-reading"])
    assert "cut from 40000088 to 0 bytes while it was read" in report.findings[0].message


def test_a_file_replaced_while_it_is_read_is_a_finding(tmp_path: Path) -> None:
    path = big(tmp_path)

    def act() -> None:
        (path / "new").write_bytes(b"x")
        os.replace(path / "new", path / "model.safetensors")

    report = at_progress(verify(path), act)
    assert codes(report) == ["changed-while-reading"]
    assert report.findings[0].message == (
        "model.safetensors: replaced or removed while it was read"
    )


def test_a_directory_swapped_while_it_is_read_is_still_verified_whole(tmp_path: Path) -> None:
    path = big(tmp_path)
    other = put_checkpoint(tmp_path / "other", 2)

    def act() -> None:
        os.rename(path, tmp_path / ".step_1.retired-abcdefgh")
        os.rename(other, path)

    report = at_progress(verify(path), act)
    assert (report.verdict, report.findings) == (Verdict.INTACT, ())


def test_a_directory_removed_while_it_is_read_is_not_called_damaged(tmp_path: Path) -> None:
    path = big(tmp_path)
    operation = verify(path)
    other = put_checkpoint(tmp_path / "other", 2)

    def on_event(event: object) -> None:
        if isinstance(event, Progress) and event.what == "config.json":
            os.rename(path, tmp_path / "gone")
            os.rename(other, path)
            shutil.rmtree(tmp_path / "gone")

    report = drive(operation, on_event)
    assert report.verdict is Verdict.UNVERIFIABLE
    assert set(codes(report)) == {"changed-while-reading"}
    assert {each.severity for each in report.findings} == {Severity.WARNING}


def test_closing_stops_the_reading_at_once(tmp_path: Path) -> None:
    operation = verify(big(tmp_path))
    seen = next(event for event in operation if isinstance(event, Progress) and event.done > 1000)
    assert seen.done < seen.total
    calls: list[fs.Call] = []
    with fs.hooked(calls.append):
        operation.close()
    assert calls == []
    assert not any("step_1" in os.readlink(f"/proc/self/fd/{fd}") for fd in open_descriptors())


def open_descriptors() -> list[str]:
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        found.append(descriptor)
    return found


def test_progress_comes_in_strides_and_ends_at_the_total(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "TELL_EVERY_S", 60.0)
    events = []
    drive(verify(big(tmp_path)), events.append)
    done = [event.done for event in events if isinstance(event, Progress)]
    total = next(event.total for event in events if isinstance(event, Progress))
    assert done == sorted(done)
    assert done[-1] == total
    assert len([each for each in done if each > 1000]) == 3


def test_an_index_replaced_between_two_reads_is_read_again(golden: Path, tmp_path: Path) -> None:
    """The trainer of KT unlinks the old shards right after it replaced the index."""
    ckpt = tmp_path / "ckpt"
    shutil.copytree(golden / "kt_full/second_save/generation1", ckpt)
    new = golden / "kt_full/second_save/tree/ckpt"
    pending = [True]

    def swap(call: fs.Call) -> None:
        if pending and call.name == "open" and "layer-00001" in call.path:
            pending.clear()
            for old in list(ckpt.iterdir()):
                old.unlink()
            for file in new.iterdir():
                shutil.copy(file, ckpt)

    with fs.hooked(swap):
        report = drive(verify(ckpt))
    assert not pending
    assert (report.verdict, codes(report)) == (Verdict.UNVERIFIABLE, ["no-hashes"])
