"""The main job on real input: a bag of real driving goes in over DDS, reasoning and trajectory come out."""

from __future__ import annotations

import itertools
import math
import sys
import time

import numpy as np
import pytest
import rclpy
from car import SMALL
from rclpy.executors import SingleThreadedExecutor
from rsd_planner.msg import PlannerStatus

from rsd_planner.evaluation.bags import read_odometry, write_sample_bag
from rsd_planner.messages import stamp_ns
from rsd_planner.ros.bringup import planner_nodes
from rsd_planner.ros.live import replay
from rsd_planner.ros.monitor import Monitor

SECONDS = 6.0
START = 1_700_000_000 * 10**9


def test_a_bag_in_a_loop(data, tmp_path, tiny_directory, processes):
    """/clock and stamps jump back: buffers are cleared and planning goes on."""
    table = data / "comma2k19" / "segment_40_odometry.csv"
    pictures = sorted((data / "udacity_highway").glob("*.jpg"))
    write_sample_bag(table, pictures, tmp_path / "bag", seconds=3.0, size=(160, 90))
    (planner,) = planner_nodes(model=str(tiny_directory), use_sim_time=True, overrides=SMALL)
    context = rclpy.Context()
    context.init()
    monitor = Monitor("planner", context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(monitor)
    processes.start("planner", planner.command())
    play = [sys.executable, "-m", "rsd_planner.cli", "bag", "play", str(tmp_path / "bag"), "--loop"]
    processes.start("player", play)

    def laps() -> int:
        stamps = [stamp_ns(monitor.trajectories[k].header.stamp) for k in sorted(monitor.trajectories)]
        return 1 + sum(later < earlier for earlier, later in itertools.pairwise(stamps))

    deadline = time.monotonic() + 60
    while laps() < 3:
        assert time.monotonic() < deadline and not processes.ended()
        executor.spin_once(timeout_sec=0.1)
    assert "the clock jumped back" in processes.log("planner").read_text()
    assert monitor.status.failed_cycles == 0
    executor.shutdown()
    monitor.destroy_node()
    context.try_shutdown()


@pytest.mark.parametrize("storage", ["sqlite3", "mcap"])
def test_a_bag_of_real_driving(data, tmp_path, tiny_directory, storage):
    table = data / "comma2k19" / "segment_40_odometry.csv"
    pictures = sorted((data / "udacity_highway").glob("*.jpg"))
    write_sample_bag(table, pictures, tmp_path / "bag", storage=storage, seconds=SECONDS, size=(320, 180))
    overrides = {
        "camera_transport": "compressed",
        "rate_hz": 5.0,
        "min_pixels": 2048,
        "max_pixels": 8192,
        "token_budget": 12,
    }
    (planner,) = planner_nodes(model=str(tiny_directory), use_sim_time=True, overrides=overrides)
    monitor = replay(tmp_path / "bag", planner, tmp_path / "log")

    # Rates: 5 Hz from 1.5 s of history on. Half of it is asked for: the machine may be busy.
    ids = sorted(monitor.trajectories)
    possible = 5.0 * (SECONDS - 1.5)
    assert 0.5 * possible <= len(ids) <= possible + 2
    assert ids == sorted(monitor.reasonings) == list(range(1, len(ids) + 1))
    # Stamps: rising, each that of a camera frame.
    stamps = [stamp_ns(monitor.trajectories[k].header.stamp) for k in ids]
    assert all(later > earlier for earlier, later in itertools.pairwise(stamps))
    assert all((stamp - START) % 10**8 == 0 for stamp in stamps)
    rows = {round(row.t_s, 6): row for row in read_odometry(table)}
    times = np.array(sorted(rows))
    for k in ids:
        trajectory, reasoning = monitor.trajectories[k], monitor.reasonings[k]
        assert trajectory.plan_id == reasoning.plan_id == k and trajectory.header == reasoning.header
        # Frames: points in base_link at t0, which is placed in odom where the recorded drive was.
        assert (trajectory.header.frame_id, trajectory.odometry_frame_id) == ("base_link", "odom")
        t0_s = (stamp_ns(trajectory.header.stamp) - START) / 1e9
        recorded = rows[float(times[np.abs(times - t0_s).argmin()])]
        place = trajectory.pose_at_t0.position
        # The nearest row is at most 25 ms away, at most 20 m/s x 25 ms off.
        assert math.dist((place.x, place.y, place.z), recorded.position) < 0.55
        # The speed fitted to the poses is close to the recorded one.
        assert trajectory.initial_velocity == pytest.approx(recorded.velocity[0], abs=0.6)
        assert not trajectory.initial_velocity_from_twist
        numbers = [
            value
            for point in trajectory.points
            for value in (
                point.pose.position.x,
                point.pose.position.y,
                point.pose.orientation.z,
                point.pose.orientation.w,
                point.longitudinal_velocity,
                point.acceleration,
                point.yaw_rate,
                point.curvature,
            )
        ]
        assert len(trajectory.points) == 64 and np.isfinite(numbers).all()
        assert len(reasoning.tokens) == len(reasoning.sources) <= 12 + 2
        assert reasoning.truncated == (reasoning.SOURCE_FORCED in reasoning.sources)
        assert list(reasoning.stages) == ["image_decode", "preprocess", "encode", "prefill", "decode", "action"]
        assert all(0 <= seconds < 5 for seconds in reasoning.stage_durations)
    assert monitor.status.state in (PlannerStatus.STATE_PLANNING, PlannerStatus.STATE_WAITING)
    assert monitor.status.failed_cycles == 0
    assert list(monitor.status.input_rejected) == [0] * 5
