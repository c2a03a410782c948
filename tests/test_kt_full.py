"""KT Full: index and shards, damaged in every way, and generations side by side."""

import json
import shutil

import pytest

from ckpt import fs
from ckpt.checkpoint import Depth, Severity, State
from ckpt.errors import NoCheckpoint, TornRead, UnreadableCheckpoint
from ckpt.formats.base import generations_inside
from ckpt.formats.kt_full import KtFull
from ckpt.formats.kt_index import INDEX_NAME, is_temporary, parse_index, shard_name

KT = KtFull()
TINY = "32a98748c1884c4ba7b8f68403572ecf"
OTHER = "0123456789abcdef0123456789abcdef"


def shard(layer, generation=TINY):
    return f"kt_full_experts-{generation}-layer-{layer:05d}.safetensors"


def codes(seen):
    return [finding.code for finding in seen.findings]


@pytest.fixture
def tiny(golden, tmp_path):
    """A good checkpoint that a test may damage."""
    directory = tmp_path / "ckpt"
    shutil.copytree(golden / "kt_full" / "tiny3" / "tree" / "ckpt", directory)
    for path in directory.iterdir():
        path.chmod(0o644)
    return directory


def change_index(directory, change):
    path = directory / INDEX_NAME
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index, sort_keys=True, indent=2) + "\n")


# ---- the real ones ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["tiny3", "sparse_layers", "second_save", "odd_flipped_shard_byte"]
)
def test_a_checkpoint_gives_the_facts_of_its_program(golden, name):
    facts = json.loads((golden / "kt_full" / name / "EXPECTED.json").read_bytes())
    directory = golden / "kt_full" / name / "tree" / "ckpt"
    seen = KT.read(directory)
    assert (seen.findings, list(KT.check(seen)), seen.complete) == ((), [], True)
    assert list(seen.metadata["layers"]) == facts["layers"]
    assert all(entry.sha256 is None for entry in seen.files)
    if "facts" not in facts:
        return
    assert seen.generation == facts["facts"]["index"]["generation"]
    told = {
        (tensor.file, tensor.name): (tensor.dtype, list(tensor.shape), tensor.size_bytes)
        for tensor in seen.tensors
    }
    assert told == {
        (file, name): (each["dtype"], each["shape"], each["nbytes"])
        for file, found in facts["facts"]["shards"].items()
        for name, each in found["tensors"].items()
    }


def test_the_sizes_of_the_model_are_in_the_metadata(tiny):
    assert dict(KT.read(tiny).metadata) == {
        "format": "kt_full_experts",
        "dtype": "BF16",
        "generation": TINY,
        "layers": (0, 1, 2),
        "experts": 2,
        "intermediate_size": 3,
        "hidden_size": 4,
    }


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("bad_missing_layer", "missing-layer"),
        ("bad_missing_shard", "missing-file"),
        ("bad_other_generation", "generation-mismatch"),
        ("bad_path_in_file", "bad-entry-name"),
        ("bad_truncated_shard", "size-mismatch"),
        ("bad_index_is_list", "bad-index"),
        ("bad_index_truncated", "bad-index"),
    ],
)
def test_a_damaged_checkpoint_is_seen_at_a_glance(golden, name, code):
    glance = KT.glance(golden / "kt_full" / name / "tree" / "ckpt")
    assert code in codes(glance)
    assert glance.complete is False


def test_an_index_that_is_a_list_is_a_finding_and_its_shards_are_still_known(golden):
    directory = golden / "kt_full" / "bad_index_is_list" / "tree" / "ckpt"
    assert codes(KT.read(directory)) == ["bad-index"]
    (generation,) = generations_inside(KT, directory).generations
    assert (generation.state, generation.layers) == (State.RETIRED, (0, 1, 2))
    assert generation.complete is None


def test_half_an_index_is_a_torn_read(golden):
    with pytest.raises(TornRead) as torn:
        KT.read(golden / "kt_full" / "bad_index_truncated" / "tree" / "ckpt")
    assert torn.value.finding_code == "bad-index"


def test_another_generation_in_the_index_is_an_error_of_each_shard(golden):
    seen = KT.read(golden / "kt_full" / "bad_other_generation" / "tree" / "ckpt")
    errors = [each for each in seen.findings if each.severity is Severity.ERROR]
    assert [(each.code, each.file) for each in errors] == [
        ("generation-mismatch", shard(layer)) for layer in (0, 1, 2)
    ]


# ---- damage ----------------------------------------------------------------------------------

INDEX_DAMAGE = {
    "a format of another kind": (lambda i: i.update(format="x"), "bad-index", "format is 'x'"),
    "a true version": (lambda i: i.update(version=True), "bad-index", "version is True"),
    "a text version": (lambda i: i.update(version="1"), "bad-index", "version is '1'"),
    "a newer version": (lambda i: i.update(version=2), "unsupported-version", "version (2)"),
    "another dtype": (lambda i: i.update(dtype="F16"), "bad-index", "dtype is 'F16'"),
    "no generation": (lambda i: i.pop("generation"), "bad-index", "generation is None"),
    "an empty generation": (lambda i: i.update(generation=""), "bad-index", "generation is ''"),
    "no layers": (lambda i: i.update(layers={}), "bad-index", "layers is an empty object"),
    "layers as a list": (lambda i: i.update(layers=[1]), "bad-index", "layers is an array"),
    "a padded key": (
        lambda i: i["layers"].update({"02": i["layers"].pop("2")}),
        "bad-index",
        "layer key '02'",
    ),
    "a negative key": (
        lambda i: i["layers"].update({"-2": i["layers"].pop("2")}),
        "bad-index",
        "layer key '-2'",
    ),
    "a layer that is a text": (
        lambda i: i["layers"].update({"2": "x"}),
        "bad-index",
        "layer 2 is a string",
    ),
    "a path": (
        lambda i: i["layers"]["0"].update(file="../../etc/passwd"),
        "bad-entry-name",
        "'../../etc/passwd'",
    ),
    "two dots": (lambda i: i["layers"]["0"].update(file=".."), "bad-entry-name", "'..'"),
    "a number as name": (lambda i: i["layers"]["0"].update(file=3), "bad-entry-name", "3 is no"),
    "a true size": (
        lambda i: i["layers"]["1"].update(size_bytes=True),
        "bad-index",
        "size_bytes is True",
    ),
    "another size": (
        lambda i: i["layers"]["1"].update(size_bytes=481),
        "size-mismatch",
        "size 480 bytes, the index says 481",
    ),
    "shapes without one": (
        lambda i: i["layers"]["1"]["shapes"].pop("up_proj"),
        "bad-index",
        "expected ['down_proj', 'gate_proj', 'up_proj']",
    ),
    "a shape of two": (
        lambda i: i["layers"]["1"]["shapes"].update(up_proj=[2, 3]),
        "bad-index",
        "shape of up_proj is [2, 3]",
    ),
    "shapes that do not fit": (
        lambda i: i["layers"]["1"]["shapes"].update(down_proj=[2, 3, 4]),
        "shape-mismatch",
        "shapes do not fit together",
    ),
    "a layer twice": (
        lambda i: i["layers"]["1"].update(file=shard(0)),
        "bad-index",
        "layers 0 and 1 name the same",
    ),
    "a file that is no shard": (
        lambda i: i["layers"]["1"].update(file="optimizer.pt"),
        "name-mismatch",
        "names optimizer.pt",
    ),
}


@pytest.mark.parametrize(("change", "code", "words"), INDEX_DAMAGE.values(), ids=INDEX_DAMAGE)
def test_each_fault_of_an_index_is_a_finding_of_its_own(tiny, change, code, words):
    change_index(tiny, change)
    found = [each for each in KT.read(tiny).findings if words in each.message]
    assert [each.code for each in found] == [code]


@pytest.mark.parametrize("value", [None, 1, "x", True, [], {}])
def test_any_json_for_an_index_is_read_into_findings(value):
    index = parse_index(value)
    assert not index.is_usable
    assert index.shards == ()


def test_a_shape_that_differs_from_the_header_is_found(tiny):
    shapes = {"gate_proj": [1, 6, 4], "up_proj": [1, 6, 4], "down_proj": [1, 4, 6]}
    change_index(tiny, lambda index: index["layers"]["2"].update(shapes=shapes))
    found = KT.read(tiny).findings
    assert [(each.code, each.tensor) for each in found] == [
        ("shape-mismatch", name) for name in ("down_proj", "gate_proj", "up_proj")
    ]
    assert KT.read(tiny, Depth.NAMES).findings == ()


HEADER_DAMAGE = [
    (b"kt_full_experts", b"kt_full_experT5", "metadata-mismatch", "format is 'kt_full_experT5'"),
    (b'"version":"1"', b'"version":"2"', "metadata-mismatch", "version is '2'"),
    (b'"layer_idx":"1"', b'"layer_idx":"9"', "layer-mismatch", "layer_idx is '9'"),
    (TINY.encode(), OTHER.encode(), "generation-mismatch", f"generation is '{OTHER}'"),
    (b"gate_proj", b"gate_prOj", "tensor-list-mismatch", "'gate_prOj'"),
    (b'"BF16"', b'"F16" ', "dtype-mismatch", "is F16, expected BF16"),
]


@pytest.mark.parametrize(("old", "new", "code", "words"), HEADER_DAMAGE)
def test_a_header_that_does_not_fit_the_index_is_found(tiny, old, new, code, words):
    path = tiny / shard(1)
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    (finding,) = KT.read(tiny).findings
    assert (finding.code, finding.file) == (code, shard(1))
    assert words in finding.message


def test_a_key_given_twice_in_the_index_is_found(tiny):
    path = tiny / INDEX_NAME
    path.write_text(path.read_text().replace('"version": 1', '"version": 1, "version": 1'))
    assert codes(KT.read(tiny)) == ["duplicate-key"]


def test_a_linked_shard_is_not_followed(tiny):
    (tiny / shard(1)).rename(tiny.parent / "elsewhere")
    (tiny / shard(1)).symlink_to(tiny.parent / "elsewhere")
    opened = []
    with fs.hooked(lambda call: opened.append(call.path) if call.name == "open" else None):
        assert codes(KT.read(tiny)) == ["symlink"]
    assert str(tiny / shard(1)) not in opened
    (tiny.parent / "elsewhere").unlink()
    assert codes(KT.read(tiny)) == ["dangling-link"]


def test_an_empty_shard_is_found(tiny):
    (tiny / shard(0)).write_bytes(b"")
    assert codes(KT.read(tiny)) == ["empty-file"]


def test_shards_without_an_index_are_incomplete_with_a_way_out(tiny):
    (tiny / INDEX_NAME).unlink()
    assert KT.owns(tiny)
    seen = KT.read(tiny)
    assert codes(seen) == ["missing-file"]
    assert "made anew" in (seen.findings[0].hint or "")
    assert seen.complete is False


def test_an_index_file_and_a_single_shard_are_read_too(tiny):
    by_index = KT.read(tiny / INDEX_NAME)
    assert (by_index.complete, len(by_index.tensors), by_index.findings) == (True, 9, ())
    alone = KT.read(tiny / shard(2))
    assert (len(alone.tensors), alone.findings, alone.generation) == (3, (), TINY)
    assert KT.is_slot(tiny / INDEX_NAME)
    assert not KT.is_slot(tiny / shard(2))


def test_no_payload_is_read(tiny):
    read = 0

    def count(call):
        nonlocal read
        if call.path.endswith(".safetensors"):
            read += call.size_bytes

    with fs.hooked(count):
        KT.glance(tiny)
    assert read == 0


def test_a_save_in_the_middle_of_a_read_gives_the_new_generation_whole(golden, tmp_path):
    sample = golden / "kt_full" / "second_save"
    directory = tmp_path / "ckpt"
    shutil.copytree(sample / "generation1", directory)
    saved = []

    def save(call):
        if call.name == "open" and call.path.endswith(INDEX_NAME) and not saved:
            saved.append(call.path)
            old = list(directory.glob("*.safetensors"))
            shutil.copytree(sample / "tree" / "ckpt", directory, dirs_exist_ok=True)
            for path in old:
                path.unlink()

    (directory / INDEX_NAME).chmod(0o644)
    with fs.hooked(save):
        seen = KT.read(directory)
    assert saved
    assert (seen.findings, seen.complete, len(seen.tensors)) == ((), True, 9)


def test_an_index_among_thousands_of_files_looks_at_its_own_only(tiny):
    for number in range(50):
        (tiny / f"file-{number}").touch()
    calls = []
    with fs.hooked(lambda call: calls.append(call.name)):
        KT.glance(tiny / INDEX_NAME)
    assert calls.count("stat") == 4


def test_a_directory_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(NoCheckpoint):
        KT.read(tmp_path / "gone")
    assert codes(KT.glance(tmp_path / "gone")) == ["missing-file"]
    assert generations_inside(KT, tmp_path / "gone").generations == ()
    assert not KT.owns(tmp_path / "gone")
    assert not KT.owns(tmp_path)


# ---- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (shard(0), (TINY, 0)),
        (shard(61), (TINY, 61)),
        (shard(123456), (TINY, 123456)),
        (f"kt_full_experts-{TINY}-layer-000001.safetensors", None),
        (f"kt_full_experts-{TINY.upper()}-layer-00001.safetensors", None),
        (shard(0) + ".tmp", None),
        ("optimizer.pt", None),
    ],
)
def test_a_shard_name_has_one_spelling(name, found):
    assert shard_name(name) == found


@pytest.mark.parametrize(
    ("name", "is_one"),
    [(shard(1) + ".tmp", True), (INDEX_NAME + ".tmp", True), (shard(1), False), ("x.tmp", False)],
)
def test_temporary_names_are_known(name, is_one):
    assert is_temporary(name) is is_one


# ---- generations -----------------------------------------------------------------------------


def test_a_second_save_leaves_one_live_generation(golden):
    inside = generations_inside(KT, golden / "kt_full" / "second_save" / "tree" / "ckpt")
    assert [(each.state, each.layers, each.size_bytes) for each in inside.generations] == [
        (State.LIVE, (0, 1, 2), 1440)
    ]
    assert inside.leftovers == ()


def test_a_save_killed_before_its_cleanup_leaves_a_whole_retired_generation(golden, tmp_path):
    sample = golden / "kt_full" / "second_save"
    directory = tmp_path / "ckpt"
    shutil.copytree(sample / "tree" / "ckpt", directory)
    for path in (sample / "generation1").glob("*.safetensors"):
        shutil.copy(path, directory)
    inside = generations_inside(KT, directory)
    assert [(each.state, each.layers, each.complete) for each in inside.generations] == [
        (State.LIVE, (0, 1, 2), True),
        (State.RETIRED, (0, 1, 2), True),
    ]
    assert inside.generations[1].id == "41188b0245094f59a375e177cd176496"
    assert all(entry.listed is False for entry in inside.generations[1].files)
    seen = KT.read(directory)
    assert (seen.findings, seen.complete) == ((), True)
    assert KT.glance(directory).size_bytes == 3 * 480 + (directory / INDEX_NAME).stat().st_size


def test_a_save_killed_in_the_middle_leaves_a_partial_generation(golden):
    directory = golden / "kt_full" / "killed_mid_save" / "tree" / "ckpt"
    facts = json.loads((golden / "kt_full" / "killed_mid_save" / "EXPECTED.json").read_bytes())
    inside = generations_inside(KT, directory)
    live, partial = inside.generations
    assert (live.id, live.state, live.complete) == (facts["old_generation"], State.LIVE, True)
    assert (partial.state, partial.layers, partial.complete) == (None, (0,), False)
    assert sorted(each.path.name for each in inside.leftovers) == sorted(facts["orphans"])
    assert {each.kind for each in inside.leftovers} == {"partial-generation", "temporary-file"}
    seen = KT.read(directory)
    assert [(each.code, each.severity) for each in seen.findings] == [
        ("partial-generation", Severity.WARNING)
    ]
    assert seen.findings[0].message == (
        f"generation {partial.id}: 1 of 3 layers (0), a save that was cut off"
    )
    assert (seen.complete, seen.generation) == (True, facts["index_generation"])


# ---- in an HF Trainer's directory ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step", "loss", "complete", "errors"),
    [
        ("checkpoint-2", 2, 1.0, True, []),
        ("checkpoint-4", 4, 0.5, True, []),
        ("checkpoint-6", 6, None, False, ["missing-file"]),
    ],
)
def test_a_checkpoint_of_the_trainer_has_its_step_and_completeness(
    golden, name, step, loss, complete, errors
):
    directory = golden / "kt_full" / "hf_run" / "tree" / "exp1" / name
    glance = KT.glance(directory)
    assert (glance.step, glance.loss, glance.complete) == (step, loss, complete)
    assert codes(glance) == errors
    seen = KT.read(directory)
    assert codes(seen) == errors
    pickles = [each.file for each in KT.check(seen) if each.severity is Severity.WARNING]
    assert pickles == ["optimizer.pt", "rng_state.pth", "scheduler.pt"]


@pytest.fixture
def in_trainer(tiny):
    directory = tiny.rename(tiny.parent / "checkpoint-7")
    (directory / "optimizer.pt").write_bytes(b"")
    return directory


TRAINER_STATES = {
    "a good one": (b'{"epoch": 0.5, "global_step": 7, "log_history": []}', 7, True, []),
    "another step": (b'{"global_step": 8}', 8, False, ["name-mismatch"]),
    "half of it": (b'{"global_step": 7, "log_hi', 7, False, ["bad-state"]),
    "an empty one": (b"", 7, False, ["bad-state"]),
    "no step": (b'{"epoch": 1}', 7, False, ["bad-state"]),
    "a list": (b"[]", 7, False, ["bad-state"]),
    "a NaN loss": (b'{"global_step": 7, "log_history": [{"loss": NaN}]}', 7, True, []),
}


@pytest.mark.parametrize(
    ("data", "step", "complete", "found"), TRAINER_STATES.values(), ids=TRAINER_STATES
)
def test_completeness_hangs_on_the_trainers_state(in_trainer, data, step, complete, found):
    (in_trainer / "trainer_state.json").write_bytes(data)
    glance = KT.glance(in_trainer)
    assert (glance.step, glance.complete, codes(glance)) == (step, complete, found)


@pytest.mark.parametrize("rows", [1, 20_000])
def test_a_long_history_is_read_at_its_two_ends(in_trainer, rows):
    history = [{"epoch": 0.1, "loss": 1 / row, "step": row} for row in range(1, rows + 1)]
    state = {"epoch": 0.25, "global_step": 7, "log_history": history, "max_steps": 9}
    path = in_trainer / "trainer_state.json"
    path.write_text(json.dumps(state, indent=2))
    sizes = []

    def seen(call):
        if call.path == str(path):
            sizes.append(call.size_bytes)

    with fs.hooked(seen):
        glance = KT.glance(in_trainer)
    assert (glance.step, glance.epoch, glance.loss) == (7, 0.25, 1 / rows)
    assert sum(sizes) <= 2 << 16
    path.write_text(json.dumps(state, indent=2)[:-1])
    assert KT.glance(in_trainer).complete is False


def test_rank_files_without_their_marker_are_incomplete(in_trainer):
    (in_trainer / "trainer_state.json").write_text('{"global_step": 7}')
    (in_trainer / "optimizer.pt").rename(in_trainer / "optimizer_rank_00000.pt")
    assert codes(KT.glance(in_trainer)) == ["missing-file"]
    (in_trainer / "kt_optimizer.index.json").write_text("{}")
    assert (codes(KT.glance(in_trainer)), KT.glance(in_trainer).complete) == ([], True)


def test_weights_without_an_optimizer_are_noted(in_trainer):
    (in_trainer / "trainer_state.json").write_text('{"global_step": 7}')
    (in_trainer / "optimizer.pt").unlink()
    glance = KT.glance(in_trainer)
    assert [(each.code, each.severity) for each in glance.findings] == [
        ("no-optimizer", Severity.NOTE)
    ]
    assert glance.complete is True


def test_a_directory_that_may_not_be_listed_is_not_called_missing(tiny):
    def refuse(call):
        if call.name == "scan":
            raise PermissionError(13, "Permission denied", call.path)

    with fs.hooked(refuse):
        assert codes(KT.glance(tiny)) == ["permission-denied"]
        with pytest.raises(UnreadableCheckpoint, match="permission denied"):
            KT.read(tiny)


def test_a_link_that_leads_to_itself_hides_no_neighbour(tiny):
    (tiny / "loop").symlink_to("loop")
    assert (KT.read(tiny).findings, KT.read(tiny).complete) == ((), True)


def test_an_index_that_may_not_be_read_says_so(tiny):
    def refuse(call):
        if call.name == "open" and call.path.endswith(INDEX_NAME):
            raise PermissionError(13, "Permission denied", call.path)

    with fs.hooked(refuse):
        assert codes(KT.read(tiny)) == ["permission-denied"]
