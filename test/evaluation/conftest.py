"""An option to renew the golden plans, and small simulated bags."""

from __future__ import annotations

import pytest
import yaml

from rsd_planner.planner_parameters import PlannerParameters
from rsd_planner.simulation.cameras import Rig

CAMERA_NAMES = ["cross_left", "front_wide", "cross_right", "front_tele"]
SMALL = {"camera_transport": "compressed", "min_pixels": 2048, "max_pixels": 8192, "token_budget": 12}


def small_rig(path) -> Rig:
    """The public model's cameras, two of them, with small pictures."""
    cameras = [
        {"name": "front_wide", "index": 1, "position": [1.8, 0.0, 1.6], "yaw_deg": 0.0, "pitch_deg": 2.0,
         "field_of_view_deg": 120.0},
        {"name": "front_tele", "index": 6, "position": [1.8, 0.0, 1.6], "yaw_deg": 0.0, "pitch_deg": 1.0,
         "field_of_view_deg": 30.0},
    ]  # fmt: skip
    path.write_text(yaml.dump({"cameras": cameras, "resolution": [160, 96]}))
    return Rig.from_yaml(path)


@pytest.fixture(scope="session")
def small_parameters(tiny_directory) -> PlannerParameters:
    return PlannerParameters(
        model=str(tiny_directory), camera_names=["front_wide", "front_tele"], camera_indices=[1, 6], **SMALL
    )


@pytest.fixture(scope="session")
def simulated_bags(tmp_path_factory):
    """Two drives of 9 s: one behind somebody, one with a red light."""
    from rsd_planner.ros import clip_bags
    from rsd_planner.simulation.scenarios import FAMILIES

    directory = tmp_path_factory.mktemp("simulated")
    rig = small_rig(directory / "rig.yaml")
    bags = directory / "bags"
    bags.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clip_bags, "CLIP_S", 9.0)
        for family in ("follow", "red light"):
            clip = list(FAMILIES).index(family)
            clip_bags.write_clip_bag(bags / family.replace(" ", "_"), "train", clip, rig, "mcap")
    return bags
