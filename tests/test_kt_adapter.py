"""KT's adapter bundle: what its manifest records against what lies there."""

import json
import shutil

import pytest

from ckpt import fs
from ckpt.checkpoint import Depth
from ckpt.errors import NoCheckpoint, TornRead, UnreadableCheckpoint
from ckpt.formats.kt_adapter import FUSED_NAME, MANIFEST_NAME, KtAdapter

ADAPTER = KtAdapter()


def codes(seen):
    return [finding.code for finding in seen.findings]


@pytest.fixture
def bundle(golden, tmp_path):
    """A good bundle that a test may damage."""
    directory = tmp_path / "checkpoint-2"
    shutil.copytree(golden / "kt_full" / "adapter_bundle" / "tree" / "checkpoint-2", directory)
    for path in directory.iterdir():
        path.chmod(0o644)
    return directory


def change_manifest(directory, change):
    path = directory / MANIFEST_NAME
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_a_bundle_gives_the_facts_of_its_program(golden, bundle):
    facts = json.loads((golden / "kt_full" / "adapter_bundle" / "EXPECTED.json").read_bytes())
    seen = ADAPTER.read(bundle)
    assert (seen.findings, list(ADAPTER.check(seen)), seen.complete) == ((), [], True)
    assert seen.step == 2
    assert dict(seen.settings) == {"alpha": 4.0, "rank": 2}
    assert {
        entry.name: (entry.size_bytes, entry.sha256) for entry in seen.files if entry.listed
    } == {
        name: (each["size"], each["sha256"])
        for name, each in facts["manifest"]["artifacts"].items()
    }
    assert {(each.file, each.name): (each.dtype, list(each.shape)) for each in seen.tensors} == {
        (file, name): (each["dtype"], each["shape"])
        for file, found in facts["facts"].items()
        for name, each in found["tensors"].items()
    }


def test_the_directory_and_the_manifest_are_owned(bundle, tmp_path):
    assert ADAPTER.owns(bundle)
    assert ADAPTER.owns(bundle / MANIFEST_NAME)
    assert ADAPTER.is_slot(bundle)
    assert not ADAPTER.owns(tmp_path)
    assert not ADAPTER.owns(bundle / "adapter_config.json")
    assert codes(ADAPTER.read(bundle / MANIFEST_NAME)) == []


DAMAGE = {
    "a newer version": (lambda m: m.update(version=2), ["unsupported-version"]),
    "a true version": (lambda m: m.update(version=True), ["bad-manifest"]),
    "not ready": (lambda m: m.update(status="writing"), ["bad-manifest"]),
    "no artifacts": (lambda m: m.pop("artifacts"), ["bad-manifest"]),
    "no fused weights": (lambda m: m["artifacts"].pop(FUSED_NAME), ["bad-manifest"]),
    "a file too many": (
        lambda m: m["artifacts"].update(x={"size": 1, "sha256": "0" * 64}),
        ["missing-file"],
    ),
    "a path": (
        lambda m: m["artifacts"].update({"../x": {"size": 1, "sha256": "0" * 64}}),
        ["bad-entry-name"],
    ),
    "another size": (lambda m: m["artifacts"][FUSED_NAME].update(size=1), ["size-mismatch"]),
    "a short hash": (lambda m: m["artifacts"][FUSED_NAME].update(sha256="00"), ["bad-manifest"]),
    "an entry that is a list": (
        lambda m: m["artifacts"].update({"adapter_config.json": []}),
        ["bad-manifest", "bad-manifest"],
    ),
    "another count": (
        lambda m: m["artifacts"][FUSED_NAME].update(tensor_count=7),
        ["tensor-list-mismatch"],
    ),
    "another name": (
        lambda m: m["artifacts"][FUSED_NAME]["tensors"].update(x={}),
        ["tensor-list-mismatch"],
    ),
    "another dtype": (
        lambda m: m["artifacts"][FUSED_NAME]["tensors"]["layers.0.experts.down_lora_a"].update(
            dtype="F32"
        ),
        ["dtype-mismatch"],
    ),
    "another shape": (
        lambda m: m["artifacts"][FUSED_NAME]["tensors"]["layers.0.experts.down_lora_a"].update(
            shape=[12]
        ),
        ["shape-mismatch"],
    ),
}


@pytest.mark.parametrize(("change", "found"), DAMAGE.values(), ids=DAMAGE)
def test_each_fault_of_a_manifest_is_a_finding(bundle, change, found):
    change_manifest(bundle, change)
    seen = ADAPTER.read(bundle)
    assert codes(seen) == found
    assert seen.complete is False


def test_an_upper_case_hash_is_the_same_hash(bundle):
    before = ADAPTER.read(bundle, Depth.NAMES).files
    change_manifest(
        bundle,
        lambda m: m["artifacts"][FUSED_NAME].update(
            sha256=m["artifacts"][FUSED_NAME]["sha256"].upper()
        ),
    )
    after = ADAPTER.read(bundle, Depth.NAMES).files
    assert [entry.sha256 for entry in before] == [entry.sha256 for entry in after]


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda path: path.unlink(), "missing-file"),
        (lambda path: path.write_bytes(b""), "empty-file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "size-mismatch"),
    ],
)
def test_each_damaged_file_is_found_by_its_name(bundle, damage, code):
    damage(bundle / FUSED_NAME)
    found = ADAPTER.glance(bundle).findings
    assert [(each.code, each.file) for each in found] == [(code, FUSED_NAME)]


def test_a_linked_file_is_an_error(bundle):
    (bundle / "adapter_config.json").rename(bundle.parent / "elsewhere")
    (bundle / "adapter_config.json").symlink_to(bundle.parent / "elsewhere")
    assert codes(ADAPTER.read(bundle)) == ["symlink"]


def test_fused_weights_without_a_manifest_are_not_whole(bundle):
    (bundle / MANIFEST_NAME).unlink()
    assert ADAPTER.owns(bundle)
    assert codes(ADAPTER.read(bundle)) == ["missing-file"]
    assert ADAPTER.glance(bundle).complete is False


def test_half_a_manifest_is_a_torn_read(bundle):
    path = bundle / MANIFEST_NAME
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TornRead):
        ADAPTER.read(bundle)
    assert codes(ADAPTER.glance(bundle)) == ["bad-manifest"]
    path.write_text("[]")
    assert codes(ADAPTER.read(bundle)) == ["bad-manifest"]
    path.write_text('{"version": 1, "version": 1}')
    assert codes(ADAPTER.read(bundle)) == ["duplicate-key"]


def test_pickles_beside_the_adapter_are_warned_of(bundle):
    (bundle / "optimizer.pt").write_bytes(b"x")
    (bundle / "trainer_state.json").write_text("{}")
    seen = ADAPTER.read(bundle)
    assert (seen.findings, seen.complete) == ((), True)
    assert [(each.code, each.file) for each in ADAPTER.check(seen)] == [
        ("unlisted-pickle", "optimizer.pt")
    ]


def test_a_directory_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(NoCheckpoint):
        ADAPTER.read(tmp_path / "gone")
    assert codes(ADAPTER.glance(tmp_path / "gone")) == ["missing-file"]


def test_a_directory_that_may_not_be_listed_is_not_called_missing(bundle):
    def refuse(call):
        if call.name == "scan":
            raise PermissionError(13, "Permission denied", call.path)

    with fs.hooked(refuse):
        assert codes(ADAPTER.glance(bundle)) == ["permission-denied"]
        with pytest.raises(UnreadableCheckpoint, match="permission denied"):
            ADAPTER.read(bundle)
