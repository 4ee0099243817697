"""A small data set and a checkpoint with random weights."""

from __future__ import annotations

import pytest
import yaml
from small import SHAPE

from rsd_planner.simulation.cameras import Rig
from rsd_planner.training import clips
from rsd_planner.training.clips import write_shard
from rsd_planner.training.mini import new_model, train_tokenizer, write_skeleton
from rsd_planner.training.samples import Recorded, fitted_action_space
from rsd_planner.vla.prompt import Prompter


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Four training clips of two samples, two of validation, with two small cameras."""
    root = tmp_path_factory.mktemp("data")
    cameras = [
        {"name": name, "index": index, "position": [1.8, 0.0, 1.6], "yaw_deg": 0.0, "pitch_deg": 2.0,
         "field_of_view_deg": field}
        for name, index, field in (("front_wide", 1, 120.0), ("front_tele", 6, 30.0))
    ]  # fmt: skip
    (root / "rig.yaml").write_text(yaml.dump({"cameras": cameras, "resolution": [64, 32]}))
    rig = Rig.from_yaml(root / "rig.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clips, "CLIP_S", 2.5)
        for split, count in (("train", 4), ("validation", 2)):
            (root / split).mkdir()
            write_shard(root / split / "a.tar", split, range(count), rig)
    return root


@pytest.fixture(scope="module")
def recorded(data):
    return Recorded(data / "train")


@pytest.fixture(scope="module")
def fresh(recorded, tmp_path_factory):
    """A new model and its prompter."""
    directory = tmp_path_factory.mktemp("checkpoint")
    tokenizer = train_tokenizer([sample.text for sample in recorded.samples], SHAPE.vocabulary)
    write_skeleton(directory, SHAPE, tokenizer, fitted_action_space(recorded.samples))
    model = new_model(directory, seed=1)
    return directory, model, Prompter.from_directory(directory, model.config)
