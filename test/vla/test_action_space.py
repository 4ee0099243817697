"""The action space against the recorded reference, closed forms and what cars do."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from conftest import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st

from rsd_planner.vla.action_space import ActionSpace, yaw_rotation
from rsd_planner.vla.trajectory_tokens import FutureTokenizer, HistoryTokenizer

SPACE = ActionSpace()


def test_speed_at_t0_is_the_references(record):
    recorded = record("action_space")
    exact = SPACE.estimate_v0(recorded("hist_xyz").double(), recorded("hist_rot").double())
    np.testing.assert_allclose(exact, recorded["v0_f64"], atol=1e-12)
    assert_close(SPACE.estimate_v0(recorded("hist_xyz"), recorded("hist_rot")), recorded["v0"])


def test_actions_are_the_references(record):
    recorded = record("action_space")
    poses = [recorded(name) for name in ("hist_xyz", "hist_rot", "fut_xyz", "fut_rot")]
    exact = SPACE.action_from_trajectory(*[pose.double() for pose in poses])
    np.testing.assert_allclose(exact, recorded["action_from_traj_f64"], atol=1e-6)
    # The reference's float32 run is itself 3.3e-4 from its float64 run, at a scale of 9.
    assert_close(SPACE.action_from_trajectory(*poses), recorded["action_from_traj"])


def test_trajectories_are_the_references(record):
    recorded = record("action_space")
    z0 = recorded("hist_xyz")[:, -1, 2]
    for action, name in (("rand_action", "rand_action"), ("action_from_traj", "roundtrip")):
        rollout = SPACE.trajectory_from_action(recorded(action), recorded("v0"), z0)
        np.testing.assert_allclose(rollout.xyz, recorded[f"{name}_xyz"], atol=1e-4)
        np.testing.assert_allclose(rollout.rotation, recorded[f"{name}_rot"], atol=1e-5)
    zero = SPACE.trajectory_from_action(torch.zeros(11, 64, 2), recorded("v0"), z0)
    np.testing.assert_allclose(zero.xyz, recorded["zero_action_xyz"], atol=1e-4)
    assert torch.equal(SPACE.in_bounds(recorded("rand_action")), recorded("rand_action_in_bounds"))
    assert torch.equal(SPACE.in_bounds(9 * recorded("rand_action")), recorded("in_bounds_x9"))


def test_tokens_are_the_references(record):
    recorded = record("action_space")
    history = HistoryTokenizer()
    assert torch.equal(history.encode(recorded("hist_xyz")), recorded("hist_tokens"))
    np.testing.assert_array_equal(history.decode(recorded("hist_tokens")), recorded["hist_tokens_decoded_xyz"])
    future = FutureTokenizer(SPACE)
    assert torch.equal(future.encode(recorded("action_from_traj")), recorded("fut_tokens"))
    decoded = future.decode(recorded("fut_tokens"), recorded("v0"), recorded("hist_xyz")[:, -1, 2])
    np.testing.assert_allclose(decoded.xyz, recorded["fut_tokens_decoded_xyz"], atol=1e-4)
    np.testing.assert_allclose(decoded.rotation, recorded["fut_tokens_decoded_rot"], atol=1e-5)


def test_real_drives_of_the_tiny_reference(tiny, tiny_record):
    space = tiny.action_space
    poses = [tiny_record(name) for name in ("history_xyz", "history_rot", "future_xyz", "future_rot")]
    assert_close(space.estimate_v0(*poses[:2]), tiny_record["v0"])
    # 1.25e-4 at a scale of 5: the reference computes in float32, we in float64.
    assert_close(space.action_from_trajectory(*poses), tiny_record["action"])
    rollout = space.trajectory_from_action(tiny_record("action"), tiny_record("v0"), poses[0][:, -1, 2])
    np.testing.assert_allclose(rollout.xyz, tiny_record["reconstructed_xyz"], atol=1e-4)
    np.testing.assert_allclose(rollout.rotation, tiny_record["reconstructed_rot"], atol=1e-5)
    tokenizer = tiny.config.history_tokenizer
    assert torch.equal(tokenizer.encode(poses[0]), tiny_record("history_token_bins"))


def _circle(speed_mps: float, curvature: float, times_s: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Poses on a circle through the origin, heading along x at time 0."""
    yaw = curvature * speed_mps * times_s
    radius = 1.0 / curvature
    xyz = np.stack([radius * np.sin(yaw), radius * (1 - np.cos(yaw)), np.zeros_like(yaw)], axis=1)
    return torch.from_numpy(xyz), yaw_rotation(torch.from_numpy(yaw))


@settings(max_examples=25, deadline=None)
@given(st.floats(2.0, 30.0), st.floats(0.002, 0.05), st.sampled_from([-1.0, 1.0]))
def test_a_circle_gives_its_speed_and_curvature_back(speed_mps, curvature, side):
    curvature = side * min(curvature, 8.0 / speed_mps**2)
    history = _circle(speed_mps, curvature, np.arange(-15, 1) * 0.1)
    future = _circle(speed_mps, curvature, np.arange(1, 65) * 0.1)
    # Chords between 10 Hz poses are shorter than arcs by (kappa v dt)^2 / 24; the ridge shrinks by about 1e-4.
    assert float(SPACE.estimate_v0(*history)) == pytest.approx(speed_mps, rel=1e-3)
    accel, kappa = SPACE.denormalise(SPACE.action_from_trajectory(*history, *future))
    assert accel.abs().max() < 0.05
    np.testing.assert_allclose(kappa[5:-5], curvature, rtol=0.02, atol=1e-4)


def test_constant_acceleration_rolls_out_by_the_textbook():
    accel, v0 = -2.0, 20.0
    action = torch.zeros(64, 2, dtype=torch.float64)
    action[:, 0] = (accel - SPACE.accel_mean) / SPACE.accel_std
    action[:, 1] = -SPACE.curvature_mean / SPACE.curvature_std
    rollout = SPACE.trajectory_from_action(action, torch.tensor(v0), torch.tensor(1.5))
    time = np.arange(1, 65) * 0.1
    np.testing.assert_allclose(rollout.xyz[:, 0], v0 * time + accel * time**2 / 2, atol=1e-6)
    np.testing.assert_allclose(rollout.speed_mps, v0 + accel * time, atol=1e-6)
    assert torch.all(rollout.xyz[:, 1].abs() < 1e-9)
    assert torch.all(rollout.xyz[:, 2] == 1.5)


@pytest.mark.parametrize("speed_mps", [0.0, 0.05, 0.5, -1.0, -3.0])
def test_standing_creeping_and_reversing(speed_mps):
    time = np.arange(-15, 1) * 0.1
    xyz = torch.from_numpy(np.stack([speed_mps * time, 0 * time, 0 * time], axis=1))
    rotation = torch.eye(3, dtype=torch.float64).expand(16, 3, 3)
    assert float(SPACE.estimate_v0(xyz, rotation)) == pytest.approx(speed_mps, abs=1e-3)


def test_standing_start():
    time = np.arange(-15, 1) * 0.1
    distance = np.where(time > -0.5, 1.0 * (time + 0.5) ** 2, 0.0)  # stands, then 2 m/s^2 for 0.5 s
    xyz = torch.from_numpy(np.stack([distance - distance[-1], 0 * time, 0 * time], axis=1))
    rotation = torch.eye(3, dtype=torch.float64).expand(16, 3, 3)
    assert float(SPACE.estimate_v0(xyz, rotation)) == pytest.approx(1.0, abs=0.1)


def test_a_u_turn_across_the_yaw_wrap_keeps_its_speed():
    """5 m/s on a 4 m radius: 107 degrees in the history, with the heading passing 180 degrees."""
    xyz, rotation = _circle(5.0, 0.25, np.arange(-15, 1) * 0.1)
    for offset in (0.0, math.radians(170), math.radians(-170)):
        turn = yaw_rotation(torch.tensor(offset, dtype=torch.float64))
        moved = SPACE.estimate_v0(xyz @ turn.T, turn @ rotation)
        assert float(moved) == pytest.approx(5.0, rel=2e-3)


def test_a_trajectory_that_is_not_finite_is_refused():
    xyz = torch.zeros(16, 3)
    xyz[3, 0] = torch.nan
    with pytest.raises(ValueError, match="finite"):
        SPACE.estimate_v0(xyz, torch.eye(3).expand(16, 3, 3))


def test_history_bins_clamp_and_round_to_even():
    tokenizer = HistoryTokenizer()
    xyz = torch.tensor([[-400.0, 400.0, 0.0], [-400.0, 400.0, 0.0]])
    assert tokenizer.encode(xyz).tolist() == [0, 999, 500, 500, 500, 500]  # 499.5 rounds to 500
