"""The planner node in a process of its own, over DDS: what goes in, what comes out, what it says."""

from __future__ import annotations

import math
import signal
import subprocess
import time

import pytest
from car import SMALL
from nav_msgs.msg import Odometry
from rsd_planner.msg import PlannerStatus
from sensor_msgs.msg import Image

from rsd_planner.messages import stamp_ns
from rsd_planner.ros.bringup import local_environment, planner_nodes
from rsd_planner.ros.qos import sensor_qos


def test_it_plans_on_what_it_sees(car):
    car.drive(3.0)
    car.wait_for(lambda: len(car.trajectories) >= 5)
    for plan_id, trajectory in car.trajectories.items():
        reasoning = car.reasonings[plan_id]
        assert reasoning.header == trajectory.header
        assert len(reasoning.tokens) == len(reasoning.sources) <= 14
        assert trajectory.initial_velocity == pytest.approx(5.0, abs=0.1)
        placed = 5.0 * (stamp_ns(trajectory.header.stamp) - car.begin_ns) / 1e9
        assert trajectory.pose_at_t0.position.x == pytest.approx(placed, abs=1e-3)
    assert car.status.state == PlannerStatus.STATE_PLANNING
    assert list(car.status.input_gaps) == [0] * 5


def test_it_says_which_camera_it_waits_for(car):
    car.wait_for(lambda: car.waits_because("camera cross_left: no frame yet"))
    for name in ("cross_left", "front_wide", "cross_right"):
        car.send_image(name, time.time_ns())
    car.wait_for(lambda: car.waits_because("camera front_tele: no frame yet"))


def test_bad_input_is_named_and_survived(car, processes):
    car.drive(2.5)
    car.wait_for(lambda: len(car.trajectories) > 0)
    now = time.time_ns()
    car.send_image("front_wide", now, data=b"")
    car.send_image("cross_left", now, data=car.jpeg[: len(car.jpeg) // 2])
    for name in ("cross_right", "front_tele"):
        car.send_image(name, now)

    def zero_quaternion(message):
        message.pose.pose.orientation.w = 0.0

    def nan_position(message):
        message.pose.pose.position.y = math.nan

    car.send_pose(now, edit=zero_quaternion)
    car.send_pose(now, edit=nan_position)
    car.send_pose(now)
    car.send_pose(now)  # a duplicate
    car.send_pose(now - 500_000_000)  # a backward one
    car.spin(0.5)
    before = max(car.trajectories)
    car.drive(2.0)
    car.wait_for(lambda: max(car.trajectories) > before + 3)
    car.wait_for(lambda: car.status.state == PlannerStatus.STATE_PLANNING)
    car.spin(1.1)
    rejected = dict(zip(car.status.inputs, car.status.input_rejected, strict=True))
    assert rejected["odometry"] == 4
    assert rejected["cross_left"] + rejected["front_wide"] >= 1
    log = processes.log("planner").read_text()
    assert "odometry message refused: quaternion (0.0, 0.0, 0.0, 0.0) has norm 0, expected 1" in log
    assert "image refused: camera" in log
    assert car.status.failed_cycles == 0


def test_stale_frames_are_not_planned_on(car):
    long_ago = time.time_ns() - 3600 * 10**9
    for tick in range(120):
        car.send_pose(long_ago + tick * 20_000_000)
        if tick % 5 == 0:
            for name in car.cameras:
                car.send_image(name, long_ago + tick * 20_000_000)
    car.wait_for(lambda: car.waits_because("s old by this node's clock (use_sim_time is False)"))
    assert not car.trajectories


def test_an_implausible_speed_is_replaced(car):
    """The poses stand still, the twist says 8 m/s: the plan starts from the twist and says so."""

    def stuck(message):
        message.pose.pose.position.x = 1.0
        message.twist.twist.linear.x = 8.0

    car.drive(2.5, edit=stuck)
    car.wait_for(lambda: len(car.trajectories) > 0)
    trajectory = next(iter(car.trajectories.values()))
    assert trajectory.initial_velocity_from_twist and trajectory.initial_velocity == 8.0
    note = "speed fitted to the history 0.00 m/s, odometry 8.00 m/s: the latter is used"
    assert note in car.reasonings[trajectory.plan_id].notes


def _fails(overrides, model) -> str:
    (planner,) = planner_nodes(model=str(model), overrides=overrides)
    run = subprocess.run(planner.command(), env=local_environment(), capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "Traceback" not in run.stderr, run.stderr
    return run.stderr


def test_a_node_that_cannot_start_says_why(tmp_path, tiny_directory):
    assert "is empty; it should hold config.json" in _fails({}, tmp_path)
    assert "couldn't parse parameter override" in _fails({"model": ""}, "").lower()
    assert "parameter camera_transport is 'smoke'" in _fails({"camera_transport": "smoke"}, tiny_directory)
    assert "parameter rate_hz must be a float between 0.1 and 100.0" in _fails({"rate_hz": 0.0}, tiny_directory)
    assert "camera_names has 4 entries, camera_indices 2" in _fails({"camera_indices": "[0, 1]"}, tiny_directory)
    assert "top_p" in _fails({"top_p": 7.0}, tiny_directory)


def test_inputs_that_do_not_connect_are_explained(car, processes, tiny_directory):
    """Nobody there, another message type, a QoS that does not match: each with topic and policy."""
    (planner,) = planner_nodes(
        model=str(tiny_directory), overrides=SMALL | {"odometry_reliability": "reliable"}, namespace="other"
    )
    process = processes.start("other", planner.command())
    car.create_publisher(Odometry, "/other/odometry", sensor_qos("best_effort", 1))
    car.create_publisher(Image, "/other/camera/cross_left/image/compressed", 1)
    log = processes.log("other")
    expected = (
        "a publisher of odometry offers an incompatible QoS (RELIABILITY)",
        "/other/camera/cross_left/image/compressed is published as sensor_msgs/msg/Image, "
        "this node reads sensor_msgs/msg/CompressedImage",
        "nobody publishes /other/camera/front_wide/image/compressed",
    )
    car.wait_for(lambda: all(text in log.read_text() for text in expected))
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(15) == 0
    del processes.running["other"]
