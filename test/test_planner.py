"""The planning cycle on a scene, without ROS."""

from __future__ import annotations

import dataclasses
import itertools
import math

import cv2
import numpy as np
import pytest
import torch

from rsd_planner.planner import Planner, PlannerSettings, PlanningError
from rsd_planner.reasoning.decoding import decode_autoregressively
from rsd_planner.reasoning.routine import RoutineConfig, RoutineNetwork
from rsd_planner.reasoning.routine_checkpoint import routine_beside, save_routine
from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.scene import CameraFrames, EgoHistory, Scene
from rsd_planner.vla.checkpoint import Checkpoint

SETTINGS = PlannerSettings(sampling=Sampling(seed=5), token_budget=12, min_pixels=2048, max_pixels=8192)


@pytest.fixture(scope="module")
def pictures(data):
    files = sorted((data / "udacity_highway").glob("*.jpg"))
    return [cv2.resize(cv2.imread(str(file)), (160, 90))[:, :, ::-1].copy() for file in files]


@pytest.fixture
def scene(tiny_record, pictures) -> Scene:
    history = EgoHistory(
        xyz=tiny_record["history_xyz"][1].astype(float),
        rotation=tiny_record["history_rot"][1].astype(float),
        dt_s=0.1,
        speed_mps=float(tiny_record["v0"][1]),
        yaw_rate_radps=0.0,
        position_in_odometry=np.zeros(3),
        quaternion_in_odometry=np.array([0.0, 0.0, 0.0, 1.0]),
    )
    cameras = tuple(CameraFrames(f"camera {k}", index, (0, 1, 2, 3), tuple(pictures)) for k, index in enumerate((6, 1)))
    return Scene(123, cameras, history)


@pytest.fixture(scope="module")
def planner(tiny_directory) -> Planner:
    return Planner.from_checkpoint(Checkpoint.open(tiny_directory), SETTINGS)


def test_a_plan_repeats_and_its_parts_fit_together(planner, scene, tiny):
    one, two = planner.plan(scene), planner.plan(scene)
    assert (one.plan_id, two.plan_id) == (1, 2) and one.t0_ns == 123
    assert one.reasoning == two.reasoning
    np.testing.assert_array_equal(one.trajectory.xyz, two.trajectory.xyz)
    assert len(one.reasoning.tokens) == len(one.reasoning.ids) == len(one.reasoning.sources)
    assert one.reasoning.ids[-1] == tiny.config.future_start_token
    path = one.trajectory
    assert path.xyz.shape == (64, 3) and np.all(path.xyz[:, 2] == 0.0)
    # Speeds and positions tell the same story: the first step's mean speed along its heading.
    mean = (one.v0_mps + path.speed_mps[0]) / 2
    assert np.hypot(*path.xyz[0, :2]) == pytest.approx(abs(mean) * 0.1, rel=1e-2)
    assert one.total_s == pytest.approx(sum(one.stages_s.values()))
    assert list(one.stages_s) == ["preprocess", "encode", "prefill", "decode", "action"]


def test_the_seed_and_the_pictures_matter(tiny_directory, planner, scene):
    other = dataclasses.replace(SETTINGS, sampling=Sampling(seed=6))
    plan = Planner.from_checkpoint(Checkpoint.open(tiny_directory), other).plan(scene)
    first = planner.plan(scene)
    assert not np.array_equal(plan.trajectory.xyz, first.trajectory.xyz)
    blank = tuple(
        dataclasses.replace(camera, images=tuple(np.zeros_like(image) for image in camera.images))
        for camera in scene.cameras
    )
    changed = planner.plan(dataclasses.replace(scene, cameras=blank))
    assert not np.array_equal(changed.trajectory.xyz, first.trajectory.xyz)


def test_the_plan_starts_in_the_middle_of_the_noise(tiny_directory, scene):
    """The plan's flow starts at zero whatever the seed; alternatives, and the plan at scale 1, start at random."""

    def planned(seed: int, **changed) -> list[np.ndarray]:
        settings = dataclasses.replace(SETTINGS, sampling=Sampling(greedy=True, seed=seed), samples=3, **changed)
        plan = Planner.from_checkpoint(Checkpoint.open(tiny_directory), settings).plan(scene)
        return [path.xyz for path in (plan.trajectory, *plan.alternatives)]

    middle, *others = planned(1)
    np.testing.assert_array_equal(planned(2)[0], middle)
    drawn, *same = planned(1, flow_noise=1.0)
    np.testing.assert_array_equal(same, others)
    paths = [middle, drawn, planned(2, flow_noise=1.0)[0], *others]
    assert all(np.abs(one - two).max() > 1e-3 for one, two in itertools.combinations(paths, 2))

    planner = Planner.from_checkpoint(Checkpoint.open(tiny_directory), SETTINGS)
    model, context = planner.model, planner.prefill(scene)
    rows = planner.sampling, planner.ending, planner.budget
    decode_autoregressively(context, *rows)
    action = model.sample_action(model.velocity(context), torch.zeros(1, 64, 2))[0].double()
    plan = planner.plan(scene)
    expected = model.action_space.trajectory_from_action(action, torch.tensor(plan.v0_mps), torch.tensor(0.0))
    np.testing.assert_allclose(plan.trajectory.xyz, expected.xyz.numpy(), atol=1e-6)


def test_cameras_are_in_the_models_order(planner, scene):
    turned = dataclasses.replace(scene, cameras=scene.cameras[::-1])
    np.testing.assert_array_equal(planner.plan(turned).trajectory.xyz, planner.plan(scene).trajectory.xyz)


def test_bfloat16_plans_too(tiny_directory, planner, scene):
    half = Planner.from_checkpoint(Checkpoint.open(tiny_directory), SETTINGS, dtype=torch.bfloat16)
    plan = half.plan(scene)
    assert np.isfinite(plan.trajectory.xyz).all()
    assert plan.v0_mps == pytest.approx(planner.plan(scene).v0_mps, abs=1e-6)  # the action space stays float64


def test_an_implausible_speed_is_replaced_and_said(planner, scene):
    wrong = dataclasses.replace(scene.history, speed_mps=scene.history.speed_mps + 5.0)
    plan = planner.plan(dataclasses.replace(scene, history=wrong))
    assert plan.v0_from_twist and plan.v0_mps == wrong.speed_mps
    assert any("the latter is used" in note for note in plan.notes)
    unknown = dataclasses.replace(scene.history, speed_mps=math.nan)
    plan = planner.plan(dataclasses.replace(scene, history=unknown))
    assert not plan.v0_from_twist and "the odometry has no usable twist" in plan.notes


def test_a_trajectory_that_is_not_finite_is_no_plan(tiny_directory, scene):
    broken = Planner.from_checkpoint(Checkpoint.open(tiny_directory), SETTINGS)
    broken.model.action_out_proj.bias = torch.nn.Parameter(torch.full((2,), torch.nan), requires_grad=False)
    with pytest.raises(PlanningError, match="not finite"):
        broken.plan(scene)


def _draft(directory, tiny, **differs):
    text = tiny.config.vlm.text_config
    torch.manual_seed(0)
    config = RoutineConfig(text.hidden_size, (0, text.num_hidden_layers), heads=2, kv_heads=1, head_dim=16, **differs)
    save_routine(RoutineNetwork(dataclasses.replace(config, sections=(4, 2, 2))), directory, torch.float32)


def test_two_reasoners_plan_as_one(tmp_path, tiny_directory, tiny, planner, scene):
    """A draft that was never trained changes who proposes, not what is said, and the car drives the same way."""
    _draft(tmp_path, tiny, block=5)
    together = Planner.from_checkpoint(
        Checkpoint.open(tiny_directory), dataclasses.replace(SETTINGS, draft=str(tmp_path))
    )
    alone, plan = planner.plan(scene), together.plan(scene)
    assert plan.reasoning.ids == alone.reasoning.ids and plan.reasoning.text == alone.reasoning.text
    np.testing.assert_allclose(plan.trajectory.xyz, alone.trajectory.xyz, rtol=1e-3, atol=1e-2)
    rounds = plan.reasoning.rounds
    forced = 2 if plan.reasoning.truncated else 0
    assert rounds and sum(1 + one.accepted for one in rounds) == len(plan.reasoning.ids) - forced
    assert max(one.drafted for one in rounds) == 4 and not alone.reasoning.rounds


def test_a_draft_is_found_and_must_fit(tmp_path, tiny_directory, tiny):
    target = tmp_path / "mini"
    target.symlink_to(tiny_directory)
    assert routine_beside(target) is None
    _draft(tmp_path / "mini-routine", tiny)
    assert routine_beside(target) == tmp_path / "mini-routine"
    wrong = tmp_path / "wrong"
    network = RoutineNetwork(RoutineConfig(2 * tiny.config.vlm.text_config.hidden_size, (0,)))
    save_routine(network, wrong)
    with pytest.raises(ValueError, match="wrong reads layers"):
        Planner.from_checkpoint(Checkpoint.open(tiny_directory), dataclasses.replace(SETTINGS, draft=str(wrong)))


@pytest.mark.parametrize("with_draft", [False, True])
def test_samples_with_chains_of_their_own(tmp_path, tiny_directory, tiny, planner, scene, with_draft):
    """One prefill; the chains are the rows of a batch that decodes them side by side, the first the single plan's."""
    _draft(tmp_path, tiny)
    draft = str(tmp_path) if with_draft else "none"
    settings = dataclasses.replace(SETTINGS, samples=3, own_chains=True, draft=draft)
    several = Planner.from_checkpoint(Checkpoint.open(tiny_directory), settings)
    plan, alone = several.plan(scene), planner.plan(scene)
    assert plan.reasoning.ids == alone.reasoning.ids
    rows = decode_autoregressively(planner.prefill(scene).fork(3), planner.sampling, planner.ending, planner.budget)
    found = [plan.reasoning, *plan.alternative_reasonings]
    assert [list(chain.ids) for chain in found] == [row.tokens for row in rows]
    assert len({chain.ids for chain in found}) == 3 and len(plan.alternatives) == 2
    np.testing.assert_allclose(plan.trajectory.xyz, alone.trajectory.xyz, rtol=1e-3, atol=1e-2)
