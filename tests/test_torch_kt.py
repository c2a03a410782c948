"""KT's MoE layers saved and loaded in place: all of it or nothing, on every rank the same."""

import json
import multiprocessing
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trees import snapshot

from ckpt import fs
from ckpt.errors import CheckpointError, DamagedCheckpoint, DoesNotFit, NoCheckpoint
from ckpt.formats.kt_index import INDEX_NAME
from ckpt.generations.kt_retired import list_retired, prune_kt
from ckpt.retention import Policy

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from ckpt.torch.kt import load_kt, load_kt_layer, resolve_kt, save_kt  # noqa: E402 - needs torch

pytestmark = pytest.mark.torch

EXPERTS, INNER, HIDDEN = 2, 3, 4
NAMES = ("gate_proj_buf", "up_proj_buf", "down_proj_buf")
SHAPES = {
    "gate_proj": (EXPERTS, INNER, HIDDEN),
    "up_proj": (EXPERTS, INNER, HIDDEN),
    "down_proj": (EXPERTS, HIDDEN, INNER),
}


def layer(number: int, value: float = 0.0, *, full: bool = True) -> Any:
    """A wrapper as KT's trainer has it; its tensors count up from `value`."""
    backend = SimpleNamespace()
    for name in NAMES:
        shape = SHAPES[name.removesuffix("_buf")]
        data = torch.arange(24, dtype=torch.float32).reshape(shape) + value
        setattr(backend, name, torch.nn.Parameter(data.to(torch.bfloat16)))
    return SimpleNamespace(
        layer_idx=number,
        hidden_size=HIDDEN,
        moe_config=SimpleNamespace(expert_num=EXPERTS, intermediate_size=INNER),
        _full_weight_grad=full,
        wrapper=backend,
    )


def values(wrapper: Any) -> list[float]:
    """The first value of each of a layer's three Parameters."""
    return [float(getattr(wrapper.wrapper, name).detach().flatten()[0]) for name in NAMES]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run whose checkpoint holds the layers 3 and 7."""
    assert save_kt([layer(7, 70), layer(3, 30)], tmp_path / "run" / "checkpoint-1")
    return tmp_path / "run" / "checkpoint-1"


# ---- what takes part --------------------------------------------------------------------------


def test_without_a_full_layer_nothing_is_saved_or_loaded(tmp_path: Path) -> None:
    assert save_kt([layer(0, full=False)], tmp_path / "out") is False
    assert save_kt([], tmp_path / "out") is False
    assert load_kt([layer(0, full=False)], tmp_path / "out") is False
    assert list(tmp_path.iterdir()) == []


def change(**attributes: Any) -> Callable[[Any], None]:
    def apply(wrapper: Any) -> None:
        for name, value in attributes.items():
            setattr(wrapper.wrapper, name, value)

    return apply


def number(value: int) -> Callable[[Any], None]:
    return lambda wrapper: setattr(wrapper, "layer_idx", value)


def parameter(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.nn.Parameter(torch.zeros(shape, dtype=dtype))


BAD_LAYERS = [
    (number(-1), "layer -1: expected a number that is not negative"),
    (number(True), "layer True: expected a number that is not negative"),
    (number(3), "layer 3: given twice"),
    (lambda wrapper: setattr(wrapper, "wrapper", None), "layer 7: no backend on rank 0"),
    (change(gate_proj_buf=None), "layer 7: gate_proj_buf is not there"),
    (change(up_proj_buf=torch.zeros(2)), "layer 7: up_proj_buf is a Tensor, expected a Parameter"),
    (
        change(down_proj_buf=parameter(2, 3, 4)),
        "layer 7: down_proj_buf has shape [2, 3, 4], expected [2, 4, 3]",
    ),
    (
        change(gate_proj_buf=parameter(2, 3, 4, dtype=torch.float32)),
        "layer 7: gate_proj_buf is torch.float32, expected torch.bfloat16",
    ),
    (
        change(gate_proj_buf=torch.nn.Parameter(parameter(2, 3, 4).to("meta"))),
        "layer 7: gate_proj_buf is on meta, expected the CPU",
    ),
    (
        change(gate_proj_buf=torch.nn.Parameter(parameter(2, 4, 3).detach().transpose(1, 2))),
        "layer 7: gate_proj_buf is not contiguous",
    ),
    (
        change(gate_proj_buf=torch.nn.Parameter(parameter(2, 3, 4).detach(), requires_grad=False)),
        "layer 7: gate_proj_buf does not require gradients",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "message"), BAD_LAYERS, ids=[each[1] for each in BAD_LAYERS])
def test_a_layer_that_is_not_as_it_must_be_is_named_and_nothing_happens(
    saved: Path, spoil: Callable[[Any], None], message: str
) -> None:
    wrappers = [layer(3, 1), layer(7, 2)]
    spoil(wrappers[1])
    before = snapshot(saved)
    for action in (lambda: save_kt(wrappers, saved), lambda: load_kt(wrappers, saved)):
        with pytest.raises(DoesNotFit) as caught:
            action()
        assert caught.value.message == message
    assert snapshot(saved) == before
    assert values(wrappers[0]) == [1, 1, 1]


# ---- save, load -------------------------------------------------------------------------------


def test_what_is_saved_is_loaded_in_place(saved: Path) -> None:
    wrappers = [layer(3), layer(7), layer(5, full=False)]
    parameters = [getattr(each.wrapper, name) for each in wrappers for name in NAMES]
    assert load_kt(wrappers, saved) is True
    assert [values(each) for each in wrappers] == [[30] * 3, [70] * 3, [0] * 3]
    after = [getattr(each.wrapper, name) for each in wrappers for name in NAMES]
    assert all(one is other for one, other in zip(parameters, after, strict=True))
    flags = [vars(each.wrapper) for each in wrappers[:2]]
    assert [each["_base_weights_dirty"] for each in flags] == [True, True]
    assert [each["_kt_full_checkpoint_load_failed"] for each in flags] == [False, False]
    assert "_base_weights_dirty" not in vars(wrappers[2].wrapper)


def test_every_value_comes_back_through_the_index_too(saved: Path) -> None:
    source, target = layer(3, 30), layer(3)
    save_kt([source], saved.parent / "other")
    assert load_kt([target], saved.parent / "other" / INDEX_NAME)
    for name in NAMES:
        assert torch.equal(getattr(source.wrapper, name), getattr(target.wrapper, name))


def test_the_safetensors_library_reads_every_shard(saved: Path) -> None:
    from safetensors import safe_open

    (generation,) = {path.name.split("-")[1] for path in saved.glob("*.safetensors")}
    for number, value in ((3, 30), (7, 70)):
        name = f"kt_full_experts-{generation}-layer-{number:05d}.safetensors"
        with safe_open(saved / name, "pt") as shard:
            assert shard.metadata() == {
                "format": "kt_full_experts",
                "version": "1",
                "generation": generation,
                "layer_idx": str(number),
            }
            assert sorted(shard.keys()) == ["down_proj", "gate_proj", "up_proj"]
            down = shard.get_tensor("down_proj")
        expected = torch.arange(24, dtype=torch.float32).reshape(2, 4, 3) + value
        assert torch.equal(down, expected.to(torch.bfloat16))


def test_a_second_save_keeps_the_first(saved: Path) -> None:
    assert save_kt([layer(3, 31), layer(7, 71)], saved)
    (retired,) = list_retired(saved)
    assert (retired.is_kept, retired.missing) == (True, ())
    wrappers = [layer(3), layer(7)]
    load_kt(wrappers, saved)
    assert [values(each) for each in wrappers] == [[31] * 3, [71] * 3]


def test_a_policy_says_which_generations_stay(saved: Path) -> None:
    (saved / "trainer_state.json").write_text('{"global_step": 1}')
    for value in (31, 32):
        save_kt([layer(3, value), layer(7, value)], saved)
    assert len(list_retired(saved)) == 2
    save_kt([layer(3, 33), layer(7, 33)], saved, keep=Policy(keep_last=1))
    (retired,) = list_retired(saved)
    assert retired.missing == ()
    assert len(list(saved.glob("*.safetensors"))) == 4
    assert not list(saved.glob(".*"))


def test_one_layer_comes_as_three_new_contiguous_tensors(saved: Path) -> None:
    gate, up, down = load_kt_layer(saved, 7, SHAPES)
    assert [tuple(each.shape) for each in (gate, up, down)] == [(2, 3, 4), (2, 3, 4), (2, 4, 3)]
    assert all(each.is_contiguous() and each.dtype == torch.bfloat16 for each in (gate, up, down))
    expected = (torch.arange(24, dtype=torch.float32) + 70).to(torch.bfloat16)
    assert all(torch.equal(each.flatten(), expected) for each in (gate, up, down))
    with pytest.raises(DoesNotFit, match="layer 5 is not in it"):
        load_kt_layer(saved, 5, SHAPES)
    with pytest.raises(DoesNotFit) as caught:
        load_kt_layer(saved, 7, {**SHAPES, "up_proj": (2, 3, 5)})
    assert caught.value.message == "layer 7: up_proj has shape [2, 3, 4], expected [2, 3, 5]"


def test_one_layer_can_be_had_although_another_is_damaged(saved: Path) -> None:
    (damaged,) = saved.glob("*-layer-00003.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    gate, _, _ = load_kt_layer(saved, 7, SHAPES)
    assert float(gate.flatten()[0]) == 70
    with pytest.raises(DamagedCheckpoint, match="size 479 bytes, the index says 480"):
        load_kt_layer(saved, 3, SHAPES)
    with pytest.raises(DamagedCheckpoint, match="size 479 bytes, the index says 480"):
        load_kt([layer(3), layer(7)], saved)


def test_what_the_real_program_wrote_is_loaded(golden: Path) -> None:
    source = golden / "kt_full" / "tiny3" / "tree" / "ckpt"
    wrappers = [layer(number) for number in (0, 1, 2)]
    assert load_kt(wrappers, source)
    (shard,) = source.glob("*layer-00001*")
    down, gate, up = (shard.read_bytes()[at : at + 48] for at in (336, 384, 432))
    for name, data in zip(NAMES, (gate, up, down), strict=True):
        found = getattr(wrappers[1].wrapper, name).detach().flatten().view(torch.uint8)
        assert bytes(found.tolist()) == data


def test_a_path_is_resolved_or_is_none(saved: Path) -> None:
    assert resolve_kt(None) is None
    assert resolve_kt(str(saved)) == saved
    assert resolve_kt(saved / INDEX_NAME) == saved
    assert resolve_kt(saved.parent) is None
    assert resolve_kt(saved / "kt_full_experts-x") is None
    with pytest.raises(NoCheckpoint, match="looked for kt_full_experts"):
        load_kt([layer(3)], saved.parent)


# ---- bad checkpoints --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((3,), "the model has no layer 7 of it"),
        ((3, 7, 8), "it has no layer 8 of the model"),
        ((3, 4), "it has no layer 4 of the model; the model has no layer 7 of it"),
    ],
)
def test_the_layers_must_be_the_models(
    saved: Path, numbers: tuple[int, ...], message: str
) -> None:
    wrappers = [layer(number, 1) for number in numbers]
    with pytest.raises(DoesNotFit) as caught:
        load_kt(wrappers, saved)
    assert caught.value.message == f"{saved}: {message}"
    assert [values(each) for each in wrappers] == [[1] * 3] * len(numbers)


@pytest.mark.parametrize(
    "sample",
    [
        "bad_index_is_list", "bad_index_truncated", "bad_missing_layer", "bad_missing_shard",
        "bad_other_generation", "bad_path_in_file", "bad_truncated_shard",
    ],
)  # fmt: skip
def test_what_the_real_program_refuses_is_refused_before_a_byte_is_copied(
    golden: Path, sample: str
) -> None:

    wrappers = [layer(number, 1) for number in (0, 1, 2)]
    with pytest.raises(CheckpointError):
        load_kt(wrappers, golden / "kt_full" / sample / "tree" / "ckpt")
    assert [values(each) for each in wrappers] == [[1] * 3] * 3
    assert "_kt_full_checkpoint_load_failed" not in vars(wrappers[0].wrapper)


def test_a_failure_while_copying_is_told_to_all_backends(saved: Path) -> None:
    wrappers = [layer(3), layer(7)]
    reads = 0

    def fail(call: fs.Call) -> None:
        nonlocal reads
        if call.name == "read" and call.size_bytes == 48:
            reads += 1
            if reads == 5:
                raise OSError(5, "Input/output error", call.path)

    with fs.hooked(fail), pytest.raises(OSError, match="Input/output error"):
        load_kt(wrappers, saved)
    assert [each.wrapper._kt_full_checkpoint_load_failed for each in wrappers] == [True, True]
    assert "_base_weights_dirty" not in vars(wrappers[0].wrapper)
    load_kt(wrappers, saved)
    assert [each.wrapper._kt_full_checkpoint_load_failed for each in wrappers] == [False, False]


def test_shards_that_vanish_under_a_load_are_looked_for_anew(saved: Path) -> None:
    """KT's own trainer replaces the index and then removes the shards that it named before."""
    wrappers = [layer(3), layer(7)]
    old = list(saved.glob("*.safetensors"))
    is_done = False

    def publish(call: fs.Call) -> None:
        nonlocal is_done
        if not is_done and call.name == "open" and call.path.endswith(".safetensors"):
            is_done = True
            save_kt([layer(3, 31), layer(7, 71)], saved)
            for path in old:
                path.unlink()

    with fs.hooked(publish):
        load_kt(wrappers, saved)
    assert is_done
    assert [values(each) for each in wrappers] == [[31] * 3, [71] * 3]


def test_shards_removed_after_they_were_opened_are_read_all_the_same(saved: Path) -> None:
    wrappers = [layer(3), layer(7)]

    def remove(call: fs.Call) -> None:
        if call.name == "read" and call.size_bytes == 48:
            for path in saved.glob("*.safetensors"):
                path.unlink()

    with fs.hooked(remove):
        load_kt(wrappers, saved)
    assert [values(each) for each in wrappers] == [[30] * 3, [70] * 3]


def test_no_read_is_torn_while_generations_come_and_go(saved: Path) -> None:
    """One thread publishes and prunes as fast as it can, the other loads all the time."""
    is_over = threading.Event()

    def publish() -> None:
        value = 31.0
        while not is_over.is_set():
            save_kt([layer(3, value), layer(7, value)], saved)
            prune_kt(saved, [each.generation for each in list_retired(saved)])
            value = value + 1 if value < 90 else 31.0

    save_kt([layer(3, 30), layer(7, 30)], saved)
    thread = threading.Thread(target=publish)
    thread.start()
    seen = set()
    try:
        while len(seen) < 6:
            wrappers = [layer(3), layer(7)]
            load_kt(wrappers, saved)
            (value,) = {value for each in wrappers for value in values(each)}
            seen.add(value)
    finally:
        is_over.set()
        thread.join()


# ---- two ranks --------------------------------------------------------------------------------


def in_two_ranks(home: Path, job: Callable[[int], list[str]]) -> list[list[str]]:
    """Run a job in two processes that meet over gloo; forked, as torch takes long to import."""

    def work(rank: int) -> None:
        torch.set_num_threads(1)  # threads of the parent are not there after a fork
        dist.init_process_group(
            "gloo",
            init_method=f"file://{home}/meeting",
            rank=rank,
            world_size=2,
            timeout=timedelta(seconds=60),
        )
        (home / f"told-{rank}").write_text(json.dumps(job(rank)))
        dist.destroy_process_group()

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(rank,)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    return [json.loads((home / f"told-{rank}").read_text()) for rank in (0, 1)]


def test_every_rank_meets_what_rank_0_meets(saved: Path, golden: Path, tmp_path: Path) -> None:
    bad = golden / "kt_full" / "bad_missing_shard" / "tree" / "ckpt"

    def job(rank: int) -> list[str]:
        wrappers = [layer(3), layer(7)]
        if rank:
            for each in wrappers:
                each.wrapper = None
        told = [str(save_kt(wrappers, tmp_path / "new")), str(load_kt(wrappers, saved))]
        told.append(str([each.wrapper and values(each) for each in wrappers]))
        for number, path in ((7, bad), (8, saved)):
            wrappers[1].layer_idx = number
            try:
                load_kt(wrappers, path)
            except CheckpointError as error:
                told.append(f"{type(error).__name__}: {error}")
        return told

    shard = "kt_full_experts-32a98748c1884c4ba7b8f68403572ecf-layer-00002.safetensors"
    same = [
        f"DamagedCheckpoint: {bad}: {shard}: layer 2 is not there",
        f"DoesNotFit: {saved}: it has no layer 8 of the model; the model has no layer 7 of it",
    ]
    assert in_two_ranks(tmp_path, job) == [
        ["True", "True", "[[30.0, 30.0, 30.0], [70.0, 70.0, 70.0]]", *same],
        ["False", "True", "[None, None]", *same],
    ]
