"""KT Full written, swapped and pruned: at every moment the index names shards that are whole."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from kt_runs import EXPERTS, HIDDEN, INNER, OLD, layer_buffers, live_value, save, writer
from trees import snapshot

from ckpt import fs, reflog
from ckpt.errors import PublishError, Refused, UnreadableCheckpoint
from ckpt.formats.kt_index import INDEX_NAME, group_shards
from ckpt.formats.kt_write import (
    index_text,
    new_generation,
    rebuilt_index,
    shard_file,
    write_shard,
)
from ckpt.generations.kt import make_live, publish_kt
from ckpt.generations.kt_retired import RetiredIndex, abandoned, list_retired, prune_kt
from ckpt.generations.kt_slot import kt_slot, live_generation
from ckpt.lock import writing
from ckpt.operation import drive
from ckpt.tensorfile import read_header
from ckpt.tensorwriter import Buffer


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose checkpoint holds a trainer's own files."""
    directory = tmp_path / "run"
    (directory / "checkpoint-6").mkdir(parents=True)
    (directory / "checkpoint-6" / "optimizer.pt").write_bytes(b"foreign")
    (directory / "checkpoint-6" / "trainer_state.json").write_text('{"global_step": 6}')
    return directory


# ---- the files --------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", ["tiny3", "sparse_layers"])
def test_what_is_written_is_what_the_real_program_wrote(
    golden: Path, tmp_path: Path, sample: str
) -> None:
    source = golden / "kt_full" / sample / "tree" / "ckpt"
    index = json.loads((source / INDEX_NAME).read_text())
    shards = []
    for layer, entry in index["layers"].items():
        data = (source / entry["file"]).read_bytes()
        tensors = read_header(source / entry["file"], entry["file"]).tensors
        buffers = [(t.name, t.dtype, t.shape, memoryview(data)[t.start : t.end]) for t in tensors]
        shards.append(write_shard(tmp_path, index["generation"], int(layer), buffers))
    assert index_text(index["generation"], shards) == (source / INDEX_NAME).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for path in source.iterdir() if path.name != INDEX_NAME
    )
    for path in tmp_path.iterdir():
        theirs, ours = read_header(source / path.name, "x"), read_header(path, "x")
        assert (ours.tensors, ours.metadata) == (theirs.tensors, theirs.metadata)
        start = 8 + ours.header_bytes
        assert path.read_bytes()[start:] == (source / path.name).read_bytes()[start:]


def test_an_index_is_made_anew_from_what_the_real_program_left(golden: Path) -> None:
    source = golden / "kt_full" / "tiny3" / "tree" / "ckpt"
    ((generation, files),) = group_shards(path.name for path in source.iterdir()).items()
    assert rebuilt_index(source, generation, files) == (source / INDEX_NAME).read_bytes()


def test_a_generations_name_is_32_hex_digits_and_new() -> None:
    first, second = new_generation(), new_generation()
    assert first != second
    assert shard_file(first, 7) == f"kt_full_experts-{first}-layer-00007.safetensors"
    assert len(first) == 32
    assert int(first, 16) >= 0


def bad(name: str, dtype: str, shape: tuple[int, ...]) -> list[Buffer]:
    data = memoryview(bytes(2))
    return [(name, dtype, shape, data), *layer_buffers(1)[1:]]


@pytest.mark.parametrize(
    ("layer", "buffers", "message"),
    [
        (-1, layer_buffers(1), "layer -1: a layer's number is not negative"),
        (
            3,
            layer_buffers(1)[:2],
            "layer 3: tensors ['gate_proj', 'up_proj'], expected ",
        ),
        (
            3,
            bad("gate_proj", "F16", (EXPERTS, INNER, HIDDEN)),
            "layer 3: gate_proj is F16, expected BF16",
        ),
        (
            3,
            bad("gate_proj", "BF16", (1,)),
            "layer 3: gate_proj has shape [1], expected three extents",
        ),
        (
            3,
            bad("gate_proj", "BF16", (1, 1, 1)),
            "layer 3: up_proj has shape [2, 3, 4], expected gate_proj's [1, 1, 1]",
        ),
        (
            3,
            [
                *layer_buffers(1)[:2],
                ("down_proj", "BF16", (EXPERTS, INNER, HIDDEN), memoryview(b"")),
            ],
            "layer 3: down_proj has shape [2, 3, 4], expected [2, 4, 3]",
        ),
    ],
)
def test_what_is_no_layer_is_refused_before_anything_is_written(
    tmp_path: Path, layer: int, buffers: list[Buffer], message: str
) -> None:
    with pytest.raises(PublishError) as caught:
        write_shard(tmp_path, OLD, layer, buffers)
    assert caught.value.message.startswith(message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: os.truncate(path, 100), "header of"),
        (lambda path: path.rename(path.with_name(shard_file(OLD, 9))), "metadata layer_idx"),
    ],
)
def test_an_index_is_not_made_of_shards_that_are_not_what_their_names_say(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    write_shard(tmp_path, OLD, 0, layer_buffers(1))
    damage(tmp_path / shard_file(OLD, 0))
    ((generation, files),) = group_shards(path.name for path in tmp_path.iterdir()).items()
    with pytest.raises(UnreadableCheckpoint, match=message):
        rebuilt_index(tmp_path, generation, files)


# ---- publish ----------------------------------------------------------------------------------


def test_a_save_keeps_the_generation_before_it_and_touches_no_other_file(run: Path) -> None:
    directory = run / "checkpoint-6"
    foreign = snapshot(directory)
    first, second = save(run, 1), save(run, 2)
    assert live_value(directory) == 2
    after = snapshot(directory)
    assert {name: after[name] for name in foreign} == foreign
    assert sorted(after.keys() - foreign.keys()) == sorted(
        [INDEX_NAME, *(shard_file(each, layer) for each in (first, second) for layer in (0, 1))]
    )
    kept = run / ".ckpt" / "kt" / "checkpoint-6"
    assert [path.name for path in kept.iterdir()] == [f"{first}.json"]
    assert list_retired(directory, run_dir=run) == (
        RetiredIndex(first, is_kept=True, missing=(), size_bytes=2 * 480),
    )
    journal = reflog.read(run)
    assert [(entry.verb, entry.outcome, entry.changes) for entry in journal.entries] == [
        ("publish", "done", (reflog.Change("checkpoint-6", None, first),)),
        ("publish", "done", (reflog.Change("checkpoint-6", first, second),)),
    ]


def test_a_save_makes_the_directory_and_finds_its_run(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "trainer_log.jsonl").write_text("")
    drive(publish_kt(tmp_path / "out" / "checkpoint-2", writer(3)))
    drive(publish_kt(tmp_path / "out", writer(4)))
    assert live_value(tmp_path / "out" / "checkpoint-2") == 3
    assert live_value(tmp_path / "out") == 4
    names = [entry.changes[0].slot for entry in reflog.read(tmp_path / "out").entries]
    assert names == ["checkpoint-2", INDEX_NAME]
    assert not (tmp_path / ".ckpt").exists()


def test_the_order_makes_it_durable(run: Path) -> None:
    """Every shard before its name, the names before the kept index, the intent before the swap."""
    save(run, 1)
    seen: list[tuple[str, str]] = []

    def see(call: fs.Call) -> None:
        if call.name in ("fsync", "fsync-directory", "rename"):
            seen.append((call.name, label(Path(call.path))))

    with fs.hooked(see):
        save(run, 2)
    assert seen == [
        ("fsync", "shard 0, unnamed"),
        ("rename", "shard 0"),
        ("fsync", "shard 1, unnamed"),
        ("rename", "shard 1"),
        ("fsync-directory", "run/checkpoint-6"),
        ("fsync-directory", "run/.ckpt"),
        ("fsync-directory", ".ckpt/kt"),
        ("fsync", "kept index, unnamed"),
        ("rename", "kept index"),
        ("fsync-directory", "kt/checkpoint-6"),
        ("fsync", ".ckpt/reflog"),
        ("fsync", "index, unnamed"),
        ("rename", "index"),
        ("fsync-directory", "run/checkpoint-6"),
    ]


def label(path: Path) -> str:
    unnamed = ", unnamed" if ".new-" in path.name or path.name.endswith(".tmp") else ""
    if "-layer-" in path.name:
        return f"shard {int(path.name.split('-layer-')[1][:5])}{unnamed}"
    if path.parent.name == "checkpoint-6":
        kind = "kept index" if path.parent.parent.name == "kt" else "index"
        return kind + unnamed
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize(
    ("put", "message"),
    [
        (lambda path: path.write_text("x"), "a file, expected the directory of a checkpoint"),
        (lambda path: path.symlink_to("."), "a link, expected the directory of a checkpoint"),
        (
            lambda path: (path.mkdir(), (path / INDEX_NAME).symlink_to("elsewhere")),
            "a link, expected an index or nothing",
        ),
        (
            lambda path: (path.mkdir(), (path / INDEX_NAME).mkdir()),
            "no file, expected an index or nothing",
        ),
    ],
)
def test_what_cannot_hold_a_checkpoint_is_refused_untouched(
    tmp_path: Path, put: Callable[[Path], object], message: str
) -> None:
    put(tmp_path / "target")
    before = snapshot(tmp_path)
    with pytest.raises(PublishError, match=message):
        drive(publish_kt(tmp_path / "target", writer(1), run_dir=tmp_path))
    assert snapshot(tmp_path) == before


def test_what_is_not_whole_is_not_published(run: Path) -> None:
    first = save(run, 1)
    before = snapshot(run / "checkpoint-6")

    def short(directory: Path, generation: str) -> bytes:
        index = writer(2)(directory, generation)
        os.truncate(directory / shard_file(generation, 1), 479)
        return index

    def other(directory: Path, generation: str) -> bytes:
        return writer(2)(directory, generation).replace(generation.encode(), OLD.encode())

    for write, message in (
        (short, "layer-00001.safetensors is not whole"),
        (other, f"the index says generation {OLD}"),
        (lambda _directory, _generation: b"[]\n", "expected an object"),
    ):
        with pytest.raises(PublishError, match=message):
            drive(publish_kt(run / "checkpoint-6", write, run_dir=run))
        assert snapshot(run / "checkpoint-6") == before
    assert live_generation(kt_slot(run / "checkpoint-6", run)) == first


def test_an_index_that_does_not_parse_is_kept_by_its_bytes(run: Path) -> None:
    (run / "checkpoint-6" / INDEX_NAME).write_bytes(b"{torn")
    save(run, 1)
    (kept,) = (run / ".ckpt" / "kt" / "checkpoint-6").iterdir()
    assert kept.name.startswith("damaged-")
    assert kept.read_bytes() == b"{torn"
    assert list_retired(run / "checkpoint-6", run_dir=run) == ()


def test_a_generation_that_is_no_name_for_a_file_leads_nowhere(run: Path) -> None:
    """The name comes from a foreign index and must not become a path."""
    index = {"generation": "../../evil", "layers": {}}
    (run / "checkpoint-6" / INDEX_NAME).write_text(json.dumps(index))
    save(run, 1)
    assert [path.name for path in run.parent.iterdir()] == ["run"]
    with pytest.raises(Refused, match="no generation"):
        make_live(run / "checkpoint-6", "../../evil", run_dir=run)


# ---- roll back --------------------------------------------------------------------------------


def test_a_roll_back_writes_the_index_alone_and_gives_the_time_back(run: Path) -> None:
    directory = run / "checkpoint-6"
    first, second = save(run, 1), save(run, 2)
    os.utime(directory, ns=(1_000_000_000, 1_000_000_000))
    before = snapshot(directory)
    make_live(directory, first, run_dir=run)
    assert live_value(directory) == 1
    assert directory.stat().st_mtime_ns == 1_000_000_000
    after = snapshot(directory)
    assert {name for name in before if before[name] != after[name]} == {INDEX_NAME}
    assert before.keys() == after.keys()
    make_live(directory, second, run_dir=run)
    assert snapshot(directory) == before


def test_a_generation_of_the_real_program_is_made_live_by_a_new_index(
    golden: Path, tmp_path: Path
) -> None:
    """The trainer was killed before its clean-up: the shards it superseded are all there."""
    directory = tmp_path / "checkpoint-1"
    shutil.copytree(golden / "kt_full" / "second_save" / "generation1", directory)
    old = (directory / INDEX_NAME).read_bytes()
    for path in (golden / "kt_full" / "second_save" / "tree" / "ckpt").iterdir():
        shutil.copy(path, directory / path.name)
    old_id, new_id = "41188b0245094f59a375e177cd176496", "a96de4813a7e413696e2b4f47ba41584"
    assert list_retired(directory, run_dir=tmp_path) == (
        RetiredIndex(old_id, is_kept=False, missing=(), size_bytes=3 * 480),
    )
    make_live(directory, old_id, run_dir=tmp_path)
    assert (directory / INDEX_NAME).read_bytes() == old
    assert list_retired(directory, run_dir=tmp_path) == (
        RetiredIndex(new_id, is_kept=True, missing=(), size_bytes=3 * 480),
    )


def test_a_generation_whose_shard_is_gone_is_refused(run: Path) -> None:
    first = save(run, 1)
    save(run, 2)
    (run / "checkpoint-6" / shard_file(first, 1)).unlink()
    before = snapshot(run)
    with pytest.raises(Refused) as caught:
        make_live(run / "checkpoint-6", first, run_dir=run)
    assert caught.value.message == (
        f"checkpoint-6: generation {first} is not whole: {shard_file(first, 1)} is missing"
    )
    assert snapshot(run) == before
    (retired,) = list_retired(run / "checkpoint-6", run_dir=run)
    assert retired.missing == (shard_file(first, 1),)


# ---- prune ------------------------------------------------------------------------------------


def test_a_prune_removes_the_shards_of_that_generation_and_no_other_file(run: Path) -> None:
    directory = run / "checkpoint-6"
    first, second, third = save(run, 1), save(run, 2), save(run, 3)
    lookalike = f"kt_full_experts-{first}-layer-7.safetensors"
    (directory / lookalike).write_bytes(b"mine")
    os.utime(directory, ns=(1_000_000_000, 1_000_000_000))
    assert prune_kt(directory, {first}, run_dir=run) == 2 * 480
    assert directory.stat().st_mtime_ns == 1_000_000_000
    assert sorted(path.name for path in directory.iterdir()) == sorted(
        [INDEX_NAME, "optimizer.pt", "trainer_state.json", lookalike]
        + [shard_file(each, layer) for each in (second, third) for layer in (0, 1)]
    )
    assert [each.generation for each in list_retired(directory, run_dir=run)] == [second]
    assert live_value(directory) == 3


def test_a_shard_that_the_live_index_names_stays_whatever_generation_its_name_says(
    run: Path,
) -> None:
    directory = run / "checkpoint-6"
    first = save(run, 1)
    save(run, 2)
    index = json.loads((directory / INDEX_NAME).read_text())
    index["layers"]["1"]["file"] = shard_file(first, 1)
    (directory / INDEX_NAME).write_text(json.dumps(index))
    prune_kt(directory, {first}, run_dir=run)
    assert (directory / shard_file(first, 1)).exists()
    assert not (directory / shard_file(first, 0)).exists()


def test_an_index_that_names_other_files_makes_no_prune_remove_them(run: Path) -> None:
    directory = run / "checkpoint-6"
    first = save(run, 1)
    second = save(run, 2)
    kept = run / ".ckpt" / "kt" / "checkpoint-6" / f"{first}.json"
    kept.write_text(kept.read_text().replace(shard_file(first, 1), "optimizer.pt"))
    prune_kt(directory, {first}, run_dir=run)
    assert (directory / "optimizer.pt").read_bytes() == b"foreign"
    assert not (directory / shard_file(first, 1)).exists()
    assert live_generation(kt_slot(directory, run)) == second


def test_what_is_live_or_being_written_or_unknown_is_not_pruned(run: Path) -> None:
    directory = run / "checkpoint-6"
    first, second = save(run, 1), save(run, 2)
    before = snapshot(directory)
    with pytest.raises(Refused, match=f"generation {second} is live"):
        prune_kt(directory, {first, second}, run_dir=run)
    with (
        writing(run, first, "checkpoint-6"),
        pytest.raises(Refused, match=f"generation {first} is being written by the save of"),
    ):
        prune_kt(directory, {first}, run_dir=run)
    assert snapshot(directory) == before
    (directory / INDEX_NAME).write_text("{torn")
    with pytest.raises(Refused, match="nothing pruned"):
        prune_kt(directory, {first}, run_dir=run)


def test_what_a_killed_save_left_is_told_and_can_be_pruned(golden: Path, tmp_path: Path) -> None:
    directory = tmp_path / "ckpt"
    shutil.copytree(golden / "kt_full" / "killed_mid_save" / "tree" / "ckpt", directory)
    partial = "d858239095574998b367ef710d209d71"
    assert abandoned(directory, run_dir=tmp_path) == (partial,)
    assert list_retired(directory, run_dir=tmp_path) == ()
    with writing(tmp_path, partial, "ckpt"):
        assert abandoned(directory, run_dir=tmp_path) == ()
    left = f"{shard_file(partial, 1)}.tmp"
    size = 480 + (directory / left).stat().st_size
    assert prune_kt(directory, {partial}, run_dir=tmp_path) == size
    assert not [path for path in directory.iterdir() if partial in path.name]
    assert abandoned(directory, run_dir=tmp_path) == ()
