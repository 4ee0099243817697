"""The simulator node over DDS, and what its messages say of the world."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest
import yaml
from car import SMALL
from rsd_planner.msg import ControlCommand
from scipy.spatial.transform import Rotation

from rsd_planner.cli import _parser
from rsd_planner.images import decode_compressed_image, decode_image
from rsd_planner.messages import odometry_sample, yaw_of
from rsd_planner.ros import closed_loop, conversions, world_messages
from rsd_planner.ros.bringup import local_environment, planner_nodes, share_directory, simulation_nodes
from rsd_planner.ros.command_formats import available_formats
from rsd_planner.ros.processes import Processes
from rsd_planner.simulation import expert
from rsd_planner.simulation.cameras import Rig
from rsd_planner.simulation.scenarios import build
from rsd_planner.simulation.snapshot import restore, snapshot
from rsd_planner.simulation.verdict import Verdict, read_verdicts

RIG = Rig.from_yaml(share_directory() / "config" / "cameras.yaml")


def _drive(tmp_path, name: str, planner=None, **parameters) -> list[Verdict]:
    results = tmp_path / f"{name}.jsonl"
    simulator = {"split": "held-out", "pace": "lock_step", "cameras": False, "results": str(results)} | parameters
    processes = Processes(local_environment(), tmp_path / name)
    with processes:
        for node in simulation_nodes(planner, simulator):
            processes.start(node.name, node.command())
        assert processes.running["simulator"].wait(120) == 0, processes.log("simulator").read_text()
        assert set(processes.ended()) == {"simulator"}
    return read_verdicts(results)


def test_lock_step_drives_are_repeatable_and_solved(tmp_path):
    """Two scenarios one after another (the clock jumps back between them), twice, in new processes."""
    some = {"scenario": "cut-in", "seeds": 2, "seconds": 6.0}
    first = _drive(tmp_path, "first", **some)
    second = _drive(tmp_path, "second", cameras=True, camera_transport="compressed", **some)
    assert [verdict.seed for verdict in first] == [0, 1]
    for one, two in zip(first, second, strict=True):
        assert one.success and one.violations == () and one.notes == ()
        assert one.lateral_rms_m < 0.15 and one.speed_rms_mps < 0.3
        record_one, record_two = vars(one) | {"real_time_factor": 0}, vars(two) | {"real_time_factor": 0}
        assert record_one == record_two


def test_drives_are_resumed_under_the_same_settings_only(tmp_path, capsys):
    """Before the hand-over nothing counts as success, so the exit code is 1; it is the verdicts that matter here."""
    results = tmp_path / closed_loop.RESULTS
    command = ["drive", "--policy", "expert", "--scenario", "follow", "--seconds", "1", "--out", str(tmp_path)]

    def drive(*more: str) -> int:
        return closed_loop.run(_parser().parse_args([*command, *more]))

    assert drive("--seeds", "1") == 1
    (first,) = results.read_text().splitlines()
    assert drive("--seeds", "2", "--resume") == 1
    assert results.read_text().splitlines()[0] == first
    assert [verdict.seed for verdict in read_verdicts(results)] == [0, 1]
    assert "2 drives" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"another seconds \(1\.0, now 2\.0\)"):
        drive("--resume", "--seconds", "2")
    assert len(read_verdicts(results)) == 2


def test_a_model_drives_in_lock_step_and_repeatably(tmp_path, tiny_directory):
    """The checkpoint is untrained, so nothing is said of where it drives."""
    runs = []
    for name in ("first", "second"):
        (planner,) = planner_nodes(model=str(tiny_directory), use_sim_time=True, overrides=SMALL)
        (verdict,) = _drive(
            tmp_path, name, planner, scenario="follow", seconds=2.2, cameras=True, camera_transport="compressed"
        )
        assert verdict.notes == () and not any("no plan" in violation for violation in verdict.violations)
        assert verdict.seconds == pytest.approx(2.2)
        runs.append(vars(verdict) | {"real_time_factor": 0})
    assert runs[0] == runs[1]


def test_a_drive_that_nobody_took_over_is_no_success(tmp_path):
    (verdict,) = _drive(tmp_path, "drive", scenario="follow", seconds=1.0, hand_over_s=2.0)
    assert verdict.violations == () and verdict.progress >= 0.8
    assert not verdict.taken_over and not verdict.success
    assert verdict.notes == ("no hand-over: the controller says 'no plan yet'",)


def test_real_time_keeps_the_pace(tmp_path):
    (verdict,) = _drive(tmp_path, "drive", scenario="red light", pace="real_time", seconds=5.0)
    assert verdict.violations == () and not verdict.collided
    assert 0.8 < verdict.real_time_factor < 1.05


def test_a_planner_that_dies_ends_the_drive_and_nothing_hangs(tmp_path):
    results = tmp_path / "results.jsonl"
    simulator = {"scenario": "follow", "pace": "lock_step", "cameras": False, "results": str(results)}
    with Processes(local_environment(), tmp_path / "log") as processes:
        for node in simulation_nodes(None, simulator | {"answer_timeout_s": 1.0, "seconds": 3600.0}):
            processes.start(node.name, node.command())
        deadline = time.monotonic() + 60
        while "following" not in processes.log("controller").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        processes.running["planner"].kill()
        assert processes.running["simulator"].wait(60) == 0
    (verdict,) = read_verdicts(results)
    assert not verdict.success and "no plan for" in verdict.violations[0]


def test_a_simulator_that_cannot_start_says_why(tmp_path):
    command = [sys.executable, "-m", "rsd_planner.ros.nodes.simulator", "--ros-args", "-p"]
    for override, message in (
        ("scenario:=tailgate", "'tailgate' is not one of free curve"),
        (f"rig:={tmp_path / 'no.yaml'}", "no.yaml cannot be read: No such file"),
        ("pace:=slow", "parameter pace is 'slow'; it must be one of real_time, lock_step"),
    ):
        run = subprocess.run([*command, override], env=local_environment(), capture_output=True, text=True, timeout=60)
        assert run.returncode == 1 and message in run.stderr and "Traceback" not in run.stderr, run.stderr


def test_transforms_and_intrinsics_project_as_the_cameras_do():
    """A point goes through /tf_static and camera_info as a consumer would use them."""
    points = np.random.default_rng(0).uniform((5.0, -6.0, -1.0), (40.0, 6.0, 4.0), (50, 3))
    width, height = RIG.resolution
    for camera, transform in zip(RIG.cameras, world_messages.static_transforms(RIG).transforms, strict=True):
        assert transform.header.frame_id == "base_link" and transform.child_frame_id == f"camera_{camera.name}"
        t, q = transform.transform.translation, transform.transform.rotation
        rotation = Rotation.from_quat([q.x, q.y, q.z, q.w])
        optical = rotation.inv().apply(points - np.array([t.x, t.y, t.z]))
        info = world_messages.camera_info_message(camera, RIG, 7)
        assert (info.width, info.height) == (width, height)
        pixels = optical @ np.array(info.k).reshape(3, 3).T
        expected = camera.project(points, width, height)
        np.testing.assert_allclose(pixels[:, 2], expected[:, 2], atol=1e-9)
        front = expected[:, 2] > 1.0
        assert front.any()
        np.testing.assert_allclose(pixels[front, :2] / pixels[front, 2:], expected[front, :2], atol=1e-6)


def test_messages_say_what_the_world_is():
    world = build("free curve", "train", 4)
    ego = world.ego
    sample = odometry_sample(world_messages.odometry_message(world, 5_000_000_007))
    assert sample.stamp_ns == 5_000_000_007 and sample.position == (ego.x_m, ego.y_m, 0.0)
    assert sample.speed_mps == ego.speed_mps
    (transform,) = world_messages.transform_message(world, 5_000_000_007).transforms
    assert yaw_of(transform.transform.rotation) == pytest.approx(ego.yaw_rad)
    state = json.loads(world_messages.world_message(world, 5_000_000_007).data)
    assert state.pop("stamp_ns") == 5_000_000_007
    assert snapshot(restore(state)) == snapshot(world)

    picture = np.random.default_rng(0).integers(0, 255, (180, 320, 3), dtype=np.uint8)
    raw = world_messages.image_message(RIG.cameras[0], picture, 1, compressed=False)
    np.testing.assert_array_equal(decode_image(raw), picture)
    smooth = np.full((180, 320, 3), (200, 40, 90), dtype=np.uint8)
    jpeg = world_messages.image_message(RIG.cameras[0], smooth, 1, compressed=True)
    assert np.abs(decode_compressed_image(jpeg).astype(int) - smooth).max() < 6


def test_the_experts_message_is_the_experts_plan():
    world = build("static obstacle", "train", 2)
    made = expert.plan(world)
    plan = world_messages.expert_plan(world, made, 3, 10, "text")
    path = conversions.reference(conversions.trajectory_message(plan))
    np.testing.assert_allclose(path.x_m[1:], made.x_m, atol=1e-9)
    np.testing.assert_allclose(path.y_m[1:], made.y_m, atol=1e-9)
    np.testing.assert_allclose(path.speed_mps[1:], made.speed_mps)
    np.testing.assert_allclose(np.cos(path.yaw_rad[1:] - made.yaw_rad), 1.0)


def test_commands_in_the_types_of_others():
    command = ControlCommand(steering_tire_angle=0.1, steering_tire_rotation_rate=-0.2, speed=3.0, acceleration=-1.5)
    command.header.stamp.sec, command.jerk = 9, 4.0
    formats = {topic: convert(command) for _, topic, convert in available_formats()}
    drive = formats["~/ackermann"].drive
    assert (drive.steering_angle, drive.steering_angle_velocity) == pytest.approx((0.1, 0.2))
    assert (drive.speed, drive.acceleration, drive.jerk) == (3.0, -1.5, 4.0)
    control = formats["~/autoware"]
    assert control.stamp.sec == control.lateral.stamp.sec == control.longitudinal.stamp.sec == 9
    assert control.lateral.steering_tire_angle == pytest.approx(0.1)
    assert control.lateral.steering_tire_rotation_rate == pytest.approx(-0.2)
    assert (control.longitudinal.velocity, control.longitudinal.acceleration) == (3.0, -1.5)
    assert control.longitudinal.is_defined_acceleration and math.isfinite(control.longitudinal.jerk)


def test_the_demo_shows_a_drive(tmp_path, tiny_directory):
    """A line for each plan, tables, and a picture with the road, four cameras and the words."""
    command = [sys.executable, "-m", "rsd_planner.cli", "demo", "--model", tiny_directory, "--seconds", "2.2"]
    parameters = tmp_path / "planner.yaml"
    parameters.write_text(yaml.dump({"/**": {"ros__parameters": {**SMALL, "camera_transport": "raw"}}}))
    command += ["--scenario", "follow", "--params-file", parameters, "--out", tmp_path / "out"]
    run = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    plans = [line for line in run.stdout.splitlines() if re.match(r" *\d+\.\d s +\d+\.\d m/s +\d+ ms", line)]
    assert len(plans) == 7  # awaited from 1.5 s on, ten a second
    assert "7 plans" in run.stdout and "whole cycle" in run.stdout and re.search(r"^follow +[01]/1", run.stdout, re.M)
    picture = cv2.imread(str(tmp_path / "out" / "drive.png"))
    assert picture.shape[0] > 500 and picture.shape[1] > 1200 and picture.std() > 20
    # The planned way is painted into the cameras' part: green stands out there.
    blue, green, red = cv2.split(picture[:, picture.shape[1] // 2 :].astype(int))
    assert ((green - red > 25) & (green - blue > 25)).mean() > 0.002
