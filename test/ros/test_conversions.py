"""Plans and messages: stamps, frames and numbers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from nav_msgs.msg import Odometry
from scipy.spatial.transform import Rotation

from rsd_planner.messages import odometry_sample, stamp_ns
from rsd_planner.plan import ChainOfCausation, Plan, PlannedTrajectory
from rsd_planner.reasoning.economy import Round
from rsd_planner.reasoning.target import TokenSource
from rsd_planner.ros import conversions
from rsd_planner.scene import EgoHistory

T0 = 1_700_000_000_123_456_789


@pytest.fixture
def plan() -> Plan:
    k = np.arange(1, 65)
    attitude = Rotation.from_euler("zyx", [2.0, 0.1, -0.05])
    history = EgoHistory(
        np.zeros((16, 3)),
        np.tile(np.eye(3), (16, 1, 1)),
        0.1,
        5.0,
        0.0,
        np.array([100.0, -50.0, 3.0]),
        attitude.as_quat(),
    )
    path = PlannedTrajectory(
        0.1,
        np.stack([0.5 * k, 0.01 * k**2, 0 * k], axis=1),
        0.02 * k,
        np.full(64, 5.0),
        np.zeros(64),
        np.full(64, 0.04),
    )
    sources = (TokenSource.DELIBERATIVE, TokenSource.FORCED)
    rounds = (Round(7, 0, 0.125, 0.25, 0.0625), Round(0, 0, 0.0, 0.5, 0.0))
    reasoning = ChainOfCausation("Stop.", ("Stop.", "<|cot_end|>"), (3, 4), sources, True, rounds)
    return Plan(7, T0, reasoning, path, history, 5.0, False, ("a note",), {"encode": 0.25, "decode": 0.5})


def test_the_trajectory_carries_exact_times(plan):
    message = conversions.trajectory_message(plan)
    assert stamp_ns(message.header.stamp) == T0
    assert (message.header.frame_id, message.odometry_frame_id, message.plan_id) == ("base_link", "odom", 7)
    times = [point.time_from_start.sec * 10**9 + point.time_from_start.nanosec for point in message.points]
    assert times == [(k + 1) * 10**8 for k in range(64)]
    tenth = message.points[9]
    assert (tenth.pose.position.x, tenth.pose.position.y) == pytest.approx((5.0, 1.0))
    assert 2 * math.atan2(tenth.pose.orientation.z, tenth.pose.orientation.w) == pytest.approx(0.2)
    assert tenth.yaw_rate == pytest.approx(5.0 * 0.04)
    assert message.points[0].longitudinal_velocity == 5.0


def test_the_path_is_placed_by_the_pose_at_t0(plan):
    path = conversions.path_message(plan)
    assert path.header.frame_id == path.poses[3].header.frame_id == "odom"
    assert stamp_ns(path.poses[3].header.stamp) == T0 + 4 * 10**8
    expected = Rotation.from_euler("zyx", [2.0, 0.1, -0.05]).as_matrix() @ [2.0, 0.16, 0.0] + [100.0, -50.0, 3.0]
    found = path.poses[3].pose.position
    np.testing.assert_allclose([found.x, found.y, found.z], expected)
    line, text = conversions.markers_message(plan).markers
    np.testing.assert_allclose([line.points[3].x, line.points[3].y, line.points[3].z], expected)
    assert text.text == "Stop." and text.header.frame_id == "odom"


def test_the_reasoning_says_who_said_what(plan):
    message = conversions.reasoning_message(plan)
    assert (message.text, message.tokens, list(message.sources)) == ("Stop.", ["Stop.", "<|cot_end|>"], [0, 3])
    assert message.truncated and message.plan_id == 7 and message.notes == ["a note"]
    assert message.stages == ["encode", "decode"] and list(message.stage_durations) == [0.25, 0.5]
    assert (list(message.drafted), list(message.accepted)) == ([7, 0], [0, 0])
    assert (list(message.draft_durations), list(message.verify_durations)) == ([0.125, 0.0], [0.25, 0.5])
    assert list(message.judge_durations) == [0.0625, 0.0]
    names = {"DELIBERATIVE": 0, "ROUTINE": 1, "PREVIOUS": 2, "FORCED": 3}
    for name, value in names.items():
        assert getattr(message, f"SOURCE_{name}") == TokenSource[name] == value


def test_no_nan_leaves(plan):
    xyz = plan.trajectory.xyz.copy()
    xyz[5, 1] = np.nan
    broken = dataclasses.replace(plan, trajectory=dataclasses.replace(plan.trajectory, xyz=xyz))
    with pytest.raises(ValueError, match="plan 7 holds numbers that are not finite"):
        conversions.trajectory_message(broken)


def test_odometry():
    message = Odometry()
    message.header.stamp = conversions.time_message(T0)
    message.pose.pose.position.x = 3.0
    message.twist.twist.linear.x = 4.0
    message.twist.twist.angular.z = math.nan
    sample = odometry_sample(message)
    assert sample.stamp_ns == T0 and sample.position[0] == 3.0 and sample.speed_mps == 4.0
    assert math.isnan(sample.yaw_rate_radps)
    message.pose.pose.orientation.w = 0.0
    with pytest.raises(ValueError, match="norm 0"):
        odometry_sample(message)
