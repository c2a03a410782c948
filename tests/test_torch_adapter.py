"""ferrotensor's adapters as torch's tensors: saved, loaded, applied wholly or not at all."""

import logging
from pathlib import Path
from typing import Any

import pytest

from ckpt.errors import DoesNotFit, PublishError
from ckpt.ferrotensor import AdamW, LoraSettings, TrainingCheckpoint, TrainingState
from ckpt.tensorfile import read_header

torch = pytest.importorskip("torch")

from ckpt.torch.adapter import (  # noqa: E402 - needs torch
    apply_adapter,
    load_adapter,
    load_set,
    load_weights,
    save_adapter,
    save_set,
)

pytestmark = pytest.mark.torch

SETTINGS = LoraSettings(8, 16.0, ("q_proj", "v_proj"))


def weights() -> dict[str, Any]:
    return {
        "q.lora_a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "q.lora_b": torch.tensor([1.5, -2.5], dtype=torch.bfloat16),
    }


def test_what_is_saved_is_f32_with_four_strings(tmp_path: Path) -> None:
    path = save_adapter(tmp_path / "adapter.safetensors", weights(), SETTINGS)
    header = read_header(path, "x")
    assert {(tensor.name, tensor.dtype, tensor.shape) for tensor in header.tensors} == {
        ("q.lora_a", "F32", (2, 3)),
        ("q.lora_b", "F32", (2,)),
    }
    assert header.metadata == {
        "format": "ferrotensor-lora",
        "rank": "8",
        "alpha": "16",
        "target_modules": "q_proj,v_proj",
    }
    found = load_adapter(path)
    assert found.settings == SETTINGS
    assert {name: tensor.tolist() for name, tensor in found.tensors.items()} == {
        "q.lora_a": [[0, 1, 2], [3, 4, 5]],
        "q.lora_b": [1.5, -2.5],
    }


def test_the_safetensors_library_reads_it(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    tensors = {**weights(), "strided": torch.arange(6.0).reshape(2, 3).T, "one": torch.tensor(2.5)}
    loaded = load_file(save_adapter(tmp_path / "adapter.safetensors", tensors, None))
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor.float())


def test_a_parameter_is_saved_and_written_to_in_place(tmp_path: Path) -> None:
    source = torch.nn.Parameter(torch.ones(2, 3))
    path = save_adapter(tmp_path / "adapter.safetensors", {"q.lora_a": source}, SETTINGS)
    target = torch.nn.Parameter(torch.zeros(2, 3, dtype=torch.bfloat16))
    same = target.data_ptr()
    assert apply_adapter({"q.lora_a": target}, load_adapter(path)) == 1
    assert (target.data_ptr(), target.requires_grad) == (same, True)
    assert target.tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    ("name", "spoilt", "message"),
    [
        ("a.missing", torch.zeros(1), "the adapter has no tensor 'a.missing'"),
        ("q.lora_b", torch.zeros(3), "q.lora_b: expected shape [3], the adapter has [2]"),
        (
            "q.lora_b",
            torch.zeros(2, dtype=torch.int64),
            "q.lora_b: is torch.int64 on cpu, expected floats that can be written",
        ),
    ],
)
def test_an_adapter_is_applied_wholly_or_not_at_all(
    tmp_path: Path, name: str, spoilt: Any, message: str
) -> None:
    adapter = load_adapter(save_adapter(tmp_path / "adapter.safetensors", weights(), None))
    target = torch.zeros(2, 3)
    with pytest.raises(DoesNotFit) as caught:
        apply_adapter({"q.lora_a": target, name: spoilt}, adapter)
    assert caught.value.message == message
    assert not target.any()


def test_lenient_loading_tells_each_name_it_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save_adapter(tmp_path / "adapter.safetensors", weights(), None)
    targets = {"q.lora_b": torch.zeros(2), "z": torch.ones(1)}
    with caplog.at_level(logging.WARNING):
        assert load_weights(targets, path) == ("z",)
    assert targets["q.lora_b"].tolist() == [1.5, -2.5]
    assert [record.getMessage() for record in caplog.records] == [
        "adapter.safetensors: no tensor 'z': the model keeps its own"
    ]


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (
            torch.zeros(1, dtype=torch.float64),
            "tensor 'a': torch.float64 cannot be written as F32",
        ),
        (torch.zeros(1, dtype=torch.int32), "tensor 'a': torch.int32 cannot be written as F32"),
        (
            torch.zeros(1, device="meta"),
            "tensor 'a': a tensor without memory (device meta) cannot",
        ),
    ],
)
def test_what_cannot_be_an_adapter_is_refused_by_name(
    tmp_path: Path, tensor: Any, message: str
) -> None:
    with pytest.raises(PublishError) as caught:
        save_adapter(tmp_path / "adapter.safetensors", {"a": tensor}, None)
    assert caught.value.message.startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_a_set_keeps_adapter_state_and_moments_together(tmp_path: Path) -> None:
    moments = {"q.lora_a": torch.tensor([[0.1, 1e-8]])}
    optimizer = AdamW(1e-4, 0.9, 0.999, 1e-8, 0.0, 5.0, moments, moments)
    checkpoint = TrainingCheckpoint(TrainingState(step=5, total_steps=9), optimizer)
    found = load_set(save_set(tmp_path / "lora", weights(), SETTINGS, checkpoint))
    assert found.adapter.settings == SETTINGS
    assert torch.equal(found.adapter.tensors["q.lora_a"], weights()["q.lora_a"])
    assert found.checkpoint.state.remaining_steps == 4
    assert found.checkpoint.optimizer is not None
    loaded = torch.tensor(found.checkpoint.optimizer.m_states["q.lora_a"])
    assert torch.equal(loaded, moments["q.lora_a"])
    text = (tmp_path / "lora" / "training_checkpoint.json").read_text()
    assert "1e-8\n" in text
    assert "0.1,\n" in text
