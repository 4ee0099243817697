"""Checkpoint directories: whole, sharded, damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rsd_planner.vla.checkpoint import Checkpoint
from rsd_planner.vla.config import CheckpointError


@pytest.fixture
def copy(tiny_directory, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_directory, tmp_path / "checkpoint"))


def _edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_shards_load_like_one_file(copy, tiny):
    tensors = load_file(copy / "model.safetensors")
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    weight_map = {}
    for file, members in parts.items():
        save_file({name: tensors[name] for name in members}, copy / file)
        weight_map |= dict.fromkeys(members, file)
    (copy / "model.safetensors").unlink()
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    state = Checkpoint.open(copy).load().state_dict()
    assert state.keys() == tiny.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in tiny.state_dict().items())
    (copy / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        Checkpoint.open(copy)


def test_an_index_cannot_name_files_elsewhere(copy):
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../other.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"outside the checkpoint: \.\./other"):
        Checkpoint.open(copy)


def test_what_is_missing_is_named(copy, tmp_path):
    with pytest.raises(CheckpointError, match="not a directory"):
        Checkpoint.open(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"is empty; it should hold config\.json"):
        Checkpoint.open(tmp_path / "empty")
    (copy / "vlm_config.json").rename(copy / "hidden")
    with pytest.raises(CheckpointError, match=r"vlm_config\.json is missing"):
        Checkpoint.open(copy)
    (copy / "hidden").rename(copy / "vlm_config.json")
    (copy / "model.safetensors").write_bytes((copy / "model.safetensors").read_bytes()[:100_000])
    with pytest.raises(CheckpointError, match="not a readable safetensors"):
        Checkpoint.open(copy)
    (copy / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        Checkpoint.open(copy)
    (copy / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        Checkpoint.open(copy)


def test_all_tensors_that_do_not_fit_are_listed(copy):
    tensors = load_file(copy / "model.safetensors")
    del tensors["expert.norm.weight"]
    tensors["vlm.lm_head.weight"] = tensors["vlm.lm_head.weight"][:-1].clone()
    tensors["surplus.weight"] = torch.zeros(2)
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(copy).load()
    for part in (
        "missing expert.norm.weight [32]",
        "unexpected surplus.weight [2]",
        "vlm.lm_head.weight is [1232, 64]",
    ):
        assert part in str(caught.value)


def test_a_class_path_is_compared_and_never_imported(copy):
    _edit(copy / "config.json", diffusion_cfg={"_target_": "antigravity.FlowMatching"})
    Checkpoint.open(copy)
    import sys

    assert "antigravity" not in sys.modules
    _edit(copy / "config.json", diffusion_cfg={"_target_": "os.system"})
    with pytest.raises(CheckpointError, match=r"diffusion_cfg asks for 'os\.system'; only FlowMatching"):
        Checkpoint.open(copy)
    _edit(copy / "config.json", diffusion_cfg={}, model_type="alpamayo2_super")
    with pytest.raises(CheckpointError, match="alpamayo2_super"):
        Checkpoint.open(copy)
    _edit(copy / "config.json", model_type="alpamayo_r1", traj_token_ids={})
    with pytest.raises(CheckpointError, match="history_start"):
        Checkpoint.open(copy)


def test_version_1_5_has_no_saved_constants(copy, tiny):
    """1.5 does not save the buffers that R1 saves; they come from the configuration and are the same."""
    tensors = load_file(copy / "model.safetensors")
    saved = {name: tensor for name, tensor in tensors.items() if "freqs" not in name and "action_space" not in name}
    assert len(saved) == len(tensors) - 7
    save_file(saved, copy / "model.safetensors")
    _edit(copy / "config.json", model_type="alpamayo1_5")
    model = Checkpoint.open(copy).load()
    assert torch.equal(model.action_in_proj.frequencies, tiny.action_in_proj.frequencies)
    assert model.action_space.accel_std == pytest.approx(tiny.action_space.accel_std)
    assert model.config.camera_labels and not tiny.config.camera_labels


def test_bfloat16_rounds_the_constants_as_published(data):
    model = Checkpoint.open(data / "alpamayo_reference" / "checkpoint").load(dtype=torch.bfloat16)
    space = model.action_space
    found = (space.accel_mean, space.accel_std, space.curvature_mean, space.curvature_std)
    assert found == pytest.approx((0.029053, 0.679688, 0.00026894, 0.026123), rel=2e-5)
    assert model.action_in_proj.frequencies[0, :3].tolist() == [1.0, 1.671875, 2.78125]
    assert all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())


def test_weights_are_mapped_not_copied(tiny_directory):
    """A float32 model of a float32 file shares its memory map: private memory grows by far less than the file."""
    model = Checkpoint.open(tiny_directory).load()
    maps = Path("/proc/self/maps").read_text()
    assert str(tiny_directory / "model.safetensors") in maps
    assert model.vlm.lm_head.weight.shape == (1233, 64)


def test_describe_counts_what_is_there(tiny_directory, tiny):
    text = Checkpoint.open(tiny_directory).describe()
    parameters = sum(parameter.numel() for parameter in tiny.parameters()) + 4 + 30
    assert f"{parameters / 1e6:,.2f} M parameters" in text
    # 2 (keys, values) * 4 layers * 2 heads * 16 * 4 bytes * 1,000 tokens
    assert "1.02 MB of cache" in text
