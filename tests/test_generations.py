"""Slots, states and leftovers as they are found after saves, kills and copies."""

import os
import shutil
from pathlib import Path

import pytest
from samples import floats
from trees import put_checkpoint, snapshot

from ckpt import fs
from ckpt.checkpoint import Severity, Slot, State
from ckpt.errors import NoSuchRun
from ckpt.generations import (
    Scanner,
    child_runs,
    find_run,
    is_run,
    require_run,
    resolve,
    run_of,
    scan,
)
from ckpt.tensorwriter import write_tensors

NEW, OLD = "cb0641b6c090", "3118428afca4"
RETIRED, STAGING = ".epoch_0_step_1.retired-n7l8kf_w", ".epoch_0_step_1.tmp-0ll_d68o"


def told(slot: Slot) -> tuple[str, list[tuple[str, str, str]], list[tuple[str, str]]]:
    """State; (state, id, name) of each generation; (kind, name) of each leftover."""
    return (
        slot.state.value,
        [(each.state.value, each.id, each.path.name) for each in slot.generations],
        [(each.kind, each.path.name) for each in slot.leftovers],
    )


def only(run: Path) -> Slot:
    (slot,) = scan(run)
    return slot


def codes(slot: Slot) -> list[str]:
    return [each.code for each in slot.findings]


# ---- what AstrAI leaves when it is killed -----------------------------------------------------


def test_a_kill_between_the_renames_is_an_interrupted_publish(golden: Path) -> None:
    run = golden / "astrai/crash_between_renames/tree"
    slot = only(run)
    assert (slot.name, slot.format, slot.path) == (
        "epoch_0_step_1",
        "astrai",
        run / "epoch_0_step_1",
    )
    assert told(slot) == (
        "broken",
        [("sealed", NEW, STAGING), ("retired", OLD, RETIRED)],
        [],
    )
    assert codes(slot) == ["interrupted-publish"]
    assert slot.findings[0].message == (
        "interrupted publish: epoch_0_step_1 is missing; the new payload lies whole in"
        f" {STAGING}, the one before it lies in {RETIRED}"
    )
    assert (slot.step, slot.live) == (1, None)


def test_the_new_payload_is_used_after_a_kill_between_the_renames(golden: Path) -> None:
    run = golden / "astrai/crash_between_renames/tree"
    found = resolve(only(run))
    assert found.path == run / STAGING
    assert found.generation is not None
    assert found.generation.id == NEW
    assert found.reason.endswith(f"{STAGING} is the new payload, every hash of it fits")


def test_a_staged_payload_with_a_wrong_hash_is_passed_over(golden: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(golden / "astrai/crash_between_renames/tree", run)
    config = run / STAGING / "config.json"
    config.chmod(0o644)
    config.write_text(config.read_text().replace("new", "neW"))
    found = resolve(only(run))
    assert found.path == run / RETIRED
    assert found.reason.endswith(f"{RETIRED} is the newest retired payload")


def test_a_kill_while_staging_leaves_the_old_payload_live(golden: Path) -> None:
    run = golden / "astrai/crash_mid_staging/tree"
    slot = only(run)
    assert told(slot) == (
        "live",
        [("live", OLD, "epoch_0_step_1")],
        [("staging", ".epoch_0_step_1.tmp-ujumndum")],
    )
    assert slot.leftovers[0].reason == "unfinished save: no manifest says that it is whole"
    assert slot.findings == ()
    found = resolve(slot)
    assert (found.path, found.reason) == (run / "epoch_0_step_1", "epoch_0_step_1 is published")


def test_a_kill_after_the_publish_leaves_a_retired_payload(golden: Path) -> None:
    run = golden / "astrai/crash_after_publish/tree"
    slot = only(run)
    assert told(slot) == (
        "live",
        [
            ("live", NEW, "epoch_0_step_1"),
            ("retired", OLD, ".epoch_0_step_1.retired-8ry9ehbn"),
        ],
        [],
    )
    assert resolve(slot).path == run / "epoch_0_step_1"


def test_what_a_kill_left_stays_beside_the_next_save(golden: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(golden / "astrai/crash_between_renames/tree", run)
    again = golden / "astrai/republished/tree/epoch_0_step_1"
    shutil.copytree(again, run / "epoch_0_step_1")
    slot = only(run)
    assert told(slot) == (
        "live",
        [
            ("live", "62a5db206415", "epoch_0_step_1"),
            ("sealed", NEW, STAGING),
            ("retired", OLD, RETIRED),
        ],
        [],
    )
    assert resolve(slot).path == run / "epoch_0_step_1"


def test_a_republished_slot_has_one_generation(golden: Path) -> None:
    slot = only(golden / "astrai/republished/tree")
    assert told(slot) == ("live", [("live", "62a5db206415", "epoch_0_step_1")], [])


def test_a_real_run_is_listed_newest_first(golden: Path) -> None:
    slots = scan(golden / "astrai/run_real/tree/exp1")
    assert [(slot.name, slot.step) for slot in slots] == [
        ("epoch_0_step_9", 9),
        ("epoch_0_step_6", 6),
        ("epoch_0_step_3", 3),
    ]
    assert all(slot.state is State.LIVE and slot.findings == () for slot in slots)
    assert {generation.complete for slot in slots for generation in slot.generations} == {True}


# ---- KT: generations inside one directory -----------------------------------------------------

KT_OLD, KT_NEW = "41188b0245094f59a375e177cd176496", "a96de4813a7e413696e2b4f47ba41584"


def test_a_killed_kt_save_leaves_the_index_in_force(golden: Path) -> None:
    run = golden / "kt_full/killed_mid_save/tree"
    slot = only(run)
    shard = "kt_full_experts-d858239095574998b367ef710d209d71-layer-0000"
    assert told(slot) == (
        "live",
        [("live", "5bf999f703a3438ca27e65106fd10981", "ckpt")],
        [
            ("partial-generation", f"{shard}0.safetensors"),
            ("temporary-file", f"{shard}1.safetensors.tmp"),
        ],
    )
    assert resolve(slot).path == run / "ckpt"


def test_a_second_kt_save_leaves_one_generation(golden: Path) -> None:
    assert told(only(golden / "kt_full/second_save/tree")) == (
        "live",
        [("live", KT_NEW, "ckpt")],
        [],
    )


def test_superseded_kt_shards_are_a_retired_generation_in_the_same_place(
    golden: Path, tmp_path: Path
) -> None:
    ckpt = tmp_path / "ckpt"
    shutil.copytree(golden / "kt_full/second_save/generation1", ckpt)
    shutil.copytree(golden / "kt_full/second_save/tree/ckpt", ckpt, dirs_exist_ok=True)
    slot = only(tmp_path)
    assert told(slot) == (
        "live",
        [("live", KT_NEW, "ckpt"), ("retired", KT_OLD, "ckpt")],
        [],
    )
    retired = slot.generations[1]
    assert (retired.file_count, retired.size_bytes, retired.complete) == (3, 1440, True)


def test_a_kt_slot_whose_index_lost_a_shard_falls_back_to_the_retired_generation(
    golden: Path, tmp_path: Path
) -> None:
    ckpt = tmp_path / "ckpt"
    shutil.copytree(golden / "kt_full/second_save/generation1", ckpt)
    shutil.copytree(golden / "kt_full/second_save/tree/ckpt", ckpt, dirs_exist_ok=True)
    next(ckpt.glob(f"*{KT_NEW}*layer-00001*")).unlink()
    found = resolve(only(tmp_path))
    assert found.path == ckpt
    assert found.generation is not None
    assert found.generation.id == KT_OLD
    assert found.reason.endswith(f"generation {KT_OLD} is the newest retired payload")


def test_the_checkpoints_of_an_hf_run_are_its_slots(golden: Path) -> None:
    slots = scan(golden / "kt_full/hf_run/tree/exp1")
    assert [(slot.name, slot.step) for slot in slots] == [
        ("checkpoint-6", 6),
        ("checkpoint-4", 4),
        ("checkpoint-2", 2),
    ]
    assert slots[0].live is not None
    assert slots[0].live.complete is False
    assert resolve(slots[0]).path is None


def test_an_index_in_the_run_itself_is_a_slot_in_place(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden / "kt_full/tiny3/tree/ckpt", tmp_path, dirs_exist_ok=True)
    slot = only(tmp_path)
    assert (slot.name, slot.format) == ("kt_full_experts.index.json", "kt_full")


# ---- states -----------------------------------------------------------------------------------


def test_a_hidden_sibling_belongs_to_its_slot_by_name(tmp_path: Path) -> None:
    for name in (
        "a.b",
        ".a.b.retired-11111111",
        ".a.b.withdrawn-22222222",
        ".a.b.trash-33333333",
        ".a.b.tmp-44444444",
    ):
        put_checkpoint(tmp_path / name, len(name))
    slot = only(tmp_path)
    assert slot.name == "a.b"
    assert [(each.state.value, each.path.name) for each in slot.generations] == [
        ("live", "a.b"),
        ("sealed", ".a.b.tmp-44444444"),
        ("retired", ".a.b.retired-11111111"),
        ("withdrawn", ".a.b.withdrawn-22222222"),
        ("trash", ".a.b.trash-33333333"),
    ]


def test_a_slot_with_only_withdrawn_payloads_is_withdrawn(tmp_path: Path) -> None:
    put_checkpoint(tmp_path / ".step_5.withdrawn-abcdefgh", 5)
    slot = only(tmp_path)
    assert (slot.state, slot.findings) == (State.WITHDRAWN, ())
    found = resolve(slot)
    assert (found.path, found.reason) == (None, "step_5 was withdrawn on purpose")


def test_a_half_deleted_payload_is_a_leftover(tmp_path: Path) -> None:
    put_checkpoint(tmp_path / "step_5", 5)
    for kind in ("trash", "retired"):
        half = tmp_path / f".step_5.{kind}-abcdefgh"
        half.mkdir()
        (half / "model.bin").write_bytes(b"x")
    assert told(only(tmp_path))[2] == [
        ("partial-generation", ".step_5.retired-abcdefgh"),
        ("trash", ".step_5.trash-abcdefgh"),
    ]


def test_a_first_save_that_is_not_done_is_no_error(tmp_path: Path) -> None:
    staging = tmp_path / ".step_5.tmp-abcdefgh"
    staging.mkdir()
    (staging / "meta.json").write_text("{}")
    slot = only(tmp_path)
    assert told(slot) == ("broken", [], [("staging", ".step_5.tmp-abcdefgh")])
    assert [(each.code, each.severity) for each in slot.findings] == [
        ("unfinished-save", Severity.NOTE)
    ]
    assert resolve(slot).path is None


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "step_5: unfinished: the directory is empty"),
        ({"meta.json": "{}"}, "step_5: unfinished: it holds only meta.json, no weights"),
        ({"metric.jsonl": "{}"}, "step_5: unfinished: it holds only metric.jsonl, no weights"),
    ],
)
def test_a_half_checkpoint_is_broken(tmp_path: Path, files: dict[str, str], message: str) -> None:
    (tmp_path / "step_5").mkdir()
    for name, text in files.items():
        (tmp_path / "step_5" / name).write_text(text)
    slot = only(tmp_path)
    assert (slot.state, slot.generations, slot.step) == (State.BROKEN, (), None)
    assert slot.findings[0].message == message
    assert slot.findings[0].severity is Severity.ERROR


def test_visible_damage_leaves_the_slot_live_with_its_findings(golden: Path) -> None:
    slot = only(golden / "astrai/bad_truncated_weights/tree")
    assert slot.state is State.LIVE
    assert slot.live is not None
    assert [each.code for each in slot.live.findings] == ["size-mismatch"]
    assert slot.live.complete is False


@pytest.mark.parametrize(
    ("name", "slot"),
    [
        ("checkpoint_300tmp", "checkpoint_300"),
        ("tmp-checkpoint-500", "checkpoint-500"),
        ("step_7.tmp", "step_7"),
    ],
)
def test_a_temporary_directory_is_never_a_checkpoint(tmp_path: Path, name: str, slot: str) -> None:
    put_checkpoint(tmp_path / name, 900)
    put_checkpoint(tmp_path / "step_1", 1)
    assert [(found.name, *told(found)) for found in scan(tmp_path)] == [
        (slot, "broken", [], [("staging", name)]),
        ("step_1", "live", [("live", scan(tmp_path)[1].generations[0].id, "step_1")], []),
    ]


def test_a_directory_that_is_only_a_number_and_has_no_weights_is_unfinished(
    tmp_path: Path,
) -> None:
    (tmp_path / "300").mkdir()
    slot = only(tmp_path)
    assert (slot.name, slot.state, codes(slot)) == ("300", State.BROKEN, ["unfinished-save"])


def test_a_temporary_file_hangs_on_its_slot_and_a_stray_one_on_none(
    golden: Path, tmp_path: Path
) -> None:
    adapter = golden / "ferrotensor/adapter_f32/tree/adapter.safetensors"
    shutil.copy(adapter, tmp_path / "adapter.safetensors")
    (tmp_path / "adapter.safetensors.tmp").write_bytes(b"x")
    (tmp_path / "notes.json.tmp").write_bytes(b"x")
    slot = only(tmp_path)
    assert told(slot)[2] == [("temporary-file", "adapter.safetensors.tmp")]


def test_a_dangling_latest_names_the_link_and_its_target(tmp_path: Path) -> None:
    put_checkpoint(tmp_path / "step_3", 3)
    (tmp_path / "step_latest").symlink_to("step_0400")
    (tmp_path / "latest").symlink_to("step_3")
    (tmp_path / "data").symlink_to("/nowhere/at/all")
    slots = {slot.name: slot for slot in scan(tmp_path)}
    assert sorted(slots) == ["step_3", "step_latest"]
    found = slots["step_latest"]
    assert (found.state, codes(found)) == (State.BROKEN, ["dangling-link"])
    assert found.findings[0].message == ("step_latest is a link to step_0400, which is not there")
    assert told(found)[2] == [("dangling-link", "step_latest")]


def test_litter_of_the_system_is_no_checkpoint(tmp_path: Path) -> None:
    put_checkpoint(tmp_path / "step_3", 3)
    (tmp_path / "._step_3").write_bytes(b"\x00\x05\x16\x07")
    (tmp_path / ".DS_Store").write_bytes(b"x")
    (tmp_path / "._model.safetensors").write_bytes(b"\x00\x05\x16\x07")
    (tmp_path / ".nfs0000000001").write_bytes(b"x")
    assert [slot.name for slot in scan(tmp_path)] == ["step_3"]


# ---- order and depth --------------------------------------------------------------------------


@pytest.mark.parametrize("direction", [0, 1, -1], ids=["equal", "rising", "falling"])
def test_order_is_by_number_and_never_by_time(tmp_path: Path, direction: int) -> None:
    steps = [*range(9000, 10000, 100), 10000, 200]
    for place, step in enumerate(steps):
        path = put_checkpoint(tmp_path / f"checkpoint-{step}", step)
        moment = 1_700_000_000 + direction * place
        for each in (*path.iterdir(), path):
            os.utime(each, (moment, moment))
    assert [slot.step for slot in scan(tmp_path)] == sorted(steps, reverse=True)


def test_names_order_what_has_no_step(tmp_path: Path) -> None:
    for name in ("v2", "v10", "v9"):
        path = put_checkpoint(tmp_path / name, 0)
        (path / "meta.json").write_text('{"epoch": 0}')
    (tmp_path / "checkpoint-10000").mkdir()
    (tmp_path / "checkpoint-9900").mkdir()
    assert [slot.name for slot in scan(tmp_path)] == [
        "checkpoint-10000",
        "checkpoint-9900",
        "v10",
        "v9",
        "v2",
    ]


def test_the_run_and_two_levels_below_it_are_read(tmp_path: Path) -> None:
    for step, place in enumerate(("s", "a/s", "a/b/s", "a/b/c/s", ".hidden/s", "s/inner")):
        put_checkpoint(tmp_path / place, step) if not (tmp_path / place).exists() else None
    (tmp_path / "linked").symlink_to(tmp_path / "a")
    assert [slot.name for slot in scan(tmp_path)] == ["a/b/s", "a/s", "s"]


def test_a_link_loop_ends(tmp_path: Path) -> None:
    put_checkpoint(tmp_path / "step_1", 1)
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "again").symlink_to(tmp_path / "loop")
    (tmp_path / "latest").symlink_to("latest")
    slots = {slot.name: slot for slot in scan(tmp_path)}
    assert sorted(slots) == ["latest", "step_1"]
    assert "too many levels of symbolic links" in slots["latest"].findings[0].message


def test_an_unreadable_directory_is_denied_and_not_missing(tmp_path: Path) -> None:
    put_checkpoint(tmp_path / "step_5", 5)
    put_checkpoint(tmp_path / "step_4", 4)

    def refuse(call: fs.Call) -> None:
        if call.name in ("scan", "open") and "step_5" in call.path:
            raise PermissionError(13, "Permission denied", call.path)

    with fs.hooked(refuse):
        slots = scan(tmp_path)
    assert [(slot.name, slot.state, codes(slot)) for slot in slots] == [
        ("step_5", State.BROKEN, ["permission-denied"]),
        ("step_4", State.LIVE, []),
    ]
    assert slots[0].findings[0].message == "step_5: permission denied"


@pytest.mark.parametrize(
    "name",
    [
        b"step_1\n2",
        b"step_1\x1b]0;PWNED\x07",
        b"step_\xff\xfe1",
        b"[bold]step_1[/]",
        b"step_1" + b"x" * 249,
    ],
)
def test_strange_names_survive(tmp_path: Path, name: bytes) -> None:
    text = os.fsdecode(name)
    put_checkpoint(tmp_path / text, 1)
    slot = only(tmp_path)
    assert (slot.name, slot.state, slot.path) == (text, State.LIVE, tmp_path / text)
    assert resolve(slot).path == tmp_path / text


# ---- ids --------------------------------------------------------------------------------------


def test_an_id_is_the_manifests_own_and_survives_a_rename(tmp_path: Path) -> None:
    path = put_checkpoint(tmp_path / "step_1", 1, ckpt={"v": 1, "generation": "0123456789ab"})
    foreign = put_checkpoint(tmp_path / "step_2", 2)
    first = {slot.name: slot.generations[0].id for slot in scan(tmp_path)}
    assert first["step_1"] == "0123456789ab"
    for each in (path, foreign):
        (each / "metric.jsonl").write_text("added later")
        os.utime(each / "model.safetensors", (1, 1))
        os.rename(each, each.with_name(f".{each.name}.retired-abcdefgh"))
    then = {slot.name: slot.generations[0].id for slot in scan(tmp_path)}
    assert then == first


def test_a_payload_without_a_manifest_has_an_id_of_its_names_sizes_and_json(
    golden: Path, tmp_path: Path
) -> None:
    source = golden / "astrai/legacy_no_manifest/tree/epoch_2_step_4"
    for name in ("a", "b", "c"):
        shutil.copytree(source, tmp_path / name)
    meta = tmp_path / "c" / "meta.json"
    meta.chmod(0o644)
    meta.write_text(meta.read_text().replace("2026", "2027"))
    ids = {slot.name: slot.generations[0].id for slot in scan(tmp_path)}
    assert ids["a"] == ids["b"] != ids["c"]
    assert len(ids["a"]) == 12


def test_copies_behind_one_slot_are_told_apart(tmp_path: Path) -> None:
    path = put_checkpoint(tmp_path / "step_1", 1)
    shutil.copytree(path, tmp_path / ".step_1.retired-abcdefgh")
    slot = only(tmp_path)
    first, second = (each.id for each in slot.generations)
    assert second == f"{first}-2"


def test_a_pinned_generation_is_known(tmp_path: Path) -> None:
    put_checkpoint(tmp_path / "step_1", 1)
    generation = only(tmp_path).generations[0]
    (tmp_path / ".ckpt").mkdir()
    (tmp_path / ".ckpt" / "pins").write_text(f"{generation.id}\n")
    assert (generation.pinned, only(tmp_path).generations[0].pinned) == (False, True)


# ---- scanning again ---------------------------------------------------------------------------


def settled(run: Path) -> Scanner:
    """A scanner whose memory holds: the times of everything are long past."""
    scanner = Scanner(run)
    scanner.scan()
    return scanner


@pytest.fixture
def long_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt.generations.payload.SETTLED_S", 0.0)


@pytest.mark.usefixtures("long_past")
def test_scanning_again_looks_at_stats_alone(tmp_path: Path) -> None:
    for step in range(100):
        put_checkpoint(tmp_path / f"step_{step}", step)
    scanner = settled(tmp_path)
    before = scanner.scan()
    calls: list[fs.Call] = []
    with fs.hooked(calls.append):
        after = scanner.scan()
    assert [id(slot) for slot in after] == [id(slot) for slot in before]
    looked_into = {Path(call.path).parent for call in calls if call.name == "open"}
    assert len(looked_into - {tmp_path / ".ckpt"}) <= 4
    assert sum(call.name == "stat" for call in calls) < 300


@pytest.mark.usefixtures("long_past")
def test_scanning_again_sees_what_came_went_and_changed(tmp_path: Path) -> None:
    for step in range(1, 6):
        put_checkpoint(tmp_path / f"step_{step}", step)
    scanner = settled(tmp_path)
    put_checkpoint(tmp_path / "step_7", 7)
    shutil.rmtree(tmp_path / "step_2")
    os.rename(tmp_path / "step_3", tmp_path / ".step_3.retired-abcdefgh")
    (tmp_path / "step_1" / "model.safetensors").unlink()
    assert [(slot.name, slot.state.value) for slot in scanner.scan()] == [
        ("step_7", "live"),
        ("step_5", "live"),
        ("step_4", "live"),
        ("step_3", "broken"),
        ("step_1", "broken"),
    ]


@pytest.mark.usefixtures("long_past")
def test_a_file_cut_in_place_is_noticed_at_once_in_the_newest_slot_and_soon_in_all(
    tmp_path: Path,
) -> None:
    for step in range(1, 61):
        put_checkpoint(tmp_path / f"step_{step}", step)
    scanner = settled(tmp_path)
    for step in (60, 17):
        os.truncate(tmp_path / f"step_{step}" / "model.safetensors", 10)

    def damaged(slots: tuple[Slot, ...]) -> list[str]:
        return [slot.name for slot in slots if slot.live and slot.live.complete is False]

    assert "step_60" in damaged(scanner.scan())
    assert any("step_17" in damaged(scanner.scan()) for _ in range(50))


def test_ten_thousand_other_files_cost_no_stat(tmp_path: Path) -> None:
    put_checkpoint(tmp_path / "step_1", 1)
    for number in range(10_000):
        (tmp_path / f"sample_{number}.png").touch()
    calls: list[fs.Call] = []
    with fs.hooked(calls.append):
        assert [slot.name for slot in scan(tmp_path)] == ["step_1"]
    assert len(calls) < 60


def test_a_scan_opens_no_payload_and_writes_nothing(golden: Path) -> None:
    calls: list[fs.Call] = []
    run = golden / "astrai/run_real/tree/exp1"
    before = snapshot(run)
    with fs.hooked(calls.append):
        scan(run)
    opened = {Path(call.path).name for call in calls if call.name == "open"}
    assert opened <= {"meta.json", "config.json", "manifest.json", "verified", "pins"}
    assert {call.name for call in calls} <= {"open", "fstat", "read", "scan", "stat", "readlink"}
    assert snapshot(run) == before


@pytest.mark.parametrize("name", ["step_1", ".step_2.retired-abcdefgh", "logs"])
@pytest.mark.parametrize("call_name", ["stat", "scan"])
def test_what_is_removed_during_a_scan_is_not_there(
    tmp_path: Path, name: str, call_name: str
) -> None:
    for each in ("step_1", "step_2", ".step_2.retired-abcdefgh", "logs/step_0"):
        put_checkpoint(tmp_path / each, 1)
    removed = []

    def remove(call: fs.Call) -> None:
        if call.name == call_name and call.path == str(tmp_path / name) and not removed:
            removed.append(call)
            shutil.rmtree(tmp_path / name)

    with fs.hooked(remove):
        slots = scan(tmp_path)
    assert removed
    whole = {"step_1": "step_1", "step_2": "step_2", "logs": "logs/step_0"}
    expected = [found for key, found in whole.items() if key != name]
    assert sorted(slot.name for slot in slots) == sorted(expected)
    assert all(slot.state is State.LIVE and not slot.leftovers for slot in slots)


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(5, "EIO")])
@pytest.mark.parametrize(
    "sample", ["astrai/crash_after_publish/tree", "kt_full/killed_mid_save/tree"]
)
def test_a_fault_at_any_call_of_a_scan_leaves_the_rest(
    golden: Path, sample: str, error: OSError
) -> None:
    run = golden / sample
    calls: list[fs.Call] = []
    with fs.hooked(calls.append):
        whole = scan(run)
    for at in range(len(calls)):
        seen: list[fs.Call] = []

        def fail(call: fs.Call, at: int = at, seen: list[fs.Call] = seen) -> None:
            seen.append(call)
            if len(seen) == at + 1:
                raise error

        with fs.hooked(fail):
            if calls[at].path == str(run):
                with pytest.raises(OSError, match=str(error.strerror)):
                    scan(run)
                continue
            slots = scan(run)
        assert [slot.name for slot in slots] == [slot.name for slot in whole], calls[at]


def test_a_run_that_went_away_raises(tmp_path: Path) -> None:
    scanner = Scanner(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        scanner.scan()
    put_checkpoint(tmp_path / "run" / "step_1", 1)
    assert len(scanner.scan()) == 1
    os.rename(tmp_path / "run", tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        scanner.scan()
    os.rename(tmp_path / "away", tmp_path / "run")
    assert len(scanner.scan()) == 1


# ---- what is a run ----------------------------------------------------------------------------


def test_a_run_is_known_by_progress_or_checkpoints_or_by_being_empty(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    put_checkpoint(tmp_path / "saved" / "step_1", 1)
    put_checkpoint(tmp_path / "deeper" / "checkpoints" / "step_1", 1)
    put_checkpoint(tmp_path / "broken" / ".step_1.retired-abcdefgh", 1)
    (tmp_path / "fresh").mkdir()
    (tmp_path / "fresh" / "training_state.json").write_text("")
    for name in ("empty", "saved", "deeper", "broken", "fresh"):
        assert is_run(tmp_path / name), name
        assert require_run(tmp_path / name) == tmp_path / name


def test_no_run_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert not is_run(tmp_path)
    with pytest.raises(NoSuchRun, match=r"no run: looked for a progress file .* two levels below"):
        require_run(tmp_path)


def test_each_reason_for_no_run_is_its_own_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    sentences = {
        "absent": "no such directory",
        "file": "a file, expected the directory of a run",
        "dangling": "a link that leads nowhere",
        "loop": "too many levels of symbolic links",
        "file/inside": "no such directory",
    }
    for name, sentence in sentences.items():
        with pytest.raises(NoSuchRun) as caught:
            require_run(tmp_path / name)
        assert caught.value.message == f"{tmp_path / name}: {sentence}"

    def refuse(call: fs.Call) -> None:
        if call.name == "scan":
            raise PermissionError(13, "Permission denied", call.path)

    with fs.hooked(refuse), pytest.raises(NoSuchRun, match="permission denied"):
        require_run(tmp_path)


def test_a_lone_file_of_weights_makes_no_run_of_a_directory_of_runs(tmp_path: Path) -> None:
    for name in ("exp1", "exp2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("")
    write_tensors(tmp_path / "base.safetensors", [floats("w", 1.0)])
    assert not is_run(tmp_path)
    assert child_runs(tmp_path) == (tmp_path / "exp1", tmp_path / "exp2")
    (tmp_path / "exp2" / "metrics.jsonl").unlink()
    assert is_run(tmp_path)


def test_a_directory_of_runs_names_them(tmp_path: Path) -> None:
    for name in ("exp1", "exp2"):
        put_checkpoint(tmp_path / name / "step_1", 1)
        (tmp_path / name / "metrics.jsonl").write_text("")
    (tmp_path / "other").mkdir()
    assert child_runs(tmp_path) == (tmp_path / "exp1", tmp_path / "exp2")
    assert not is_run(tmp_path)
    with pytest.raises(NoSuchRun) as caught:
        require_run(tmp_path)
    assert caught.value.message == f"{tmp_path}: a directory of 2 runs, expected one run"
    assert caught.value.hint == f"name one of them: {tmp_path / 'exp1'}, {tmp_path / 'exp2'}"
    assert child_runs(tmp_path / "exp1") == ()


def test_a_final_save_in_the_run_itself_does_not_hide_the_run(
    golden: Path, tmp_path: Path
) -> None:
    for name in ("exp1", "exp2"):
        shutil.copytree(golden / "kt_full/hf_run/tree/exp1", tmp_path / name)
        shutil.copytree(golden / "kt_full/tiny3/tree/ckpt", tmp_path / name, dirs_exist_ok=True)
    assert is_run(tmp_path / "exp1")
    assert child_runs(tmp_path) == (tmp_path / "exp1", tmp_path / "exp2")
    assert not is_run(tmp_path)


def test_the_run_of_the_current_directory_is_found(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "exp1"
    inner = put_checkpoint(run / "step_1", 1)
    (run / "run.json").write_text("{}")
    assert find_run(run) == run
    assert find_run(inner) == run
    assert find_run(tmp_path / "runs") == run
    assert run_of(inner) == run
    assert run_of(tmp_path / "nowhere") is None
