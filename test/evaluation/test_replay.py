"""Bags of every kind, and what is wrong with bad ones; plans measured against a way that is known."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest
import recorded
from recorded import CAMERAS, SPEED, STORE, YAW_RATE, pose_at
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin
from ruamel.yaml import YAML

from rsd_planner.evaluation.reading import BagError, BagReader, parse_map
from rsd_planner.evaluation.replay import Replay
from rsd_planner.plan import ChainOfCausation, Plan, PlannedTrajectory
from rsd_planner.planner_parameters import PlannerParameters
from rsd_planner.scene import Scene

T = 0.1 * np.arange(1, 65)
PARAMETERS = PlannerParameters(camera_names=["left", "front"], camera_indices=[0, 1])


class StraightOn:
    """Plans to drive straight on at the present speed."""

    history_poses = 16

    def __init__(self) -> None:
        self.scenes: list[Scene] = []

    def plan(self, scene: Scene) -> Plan:
        self.scenes.append(scene)
        speed = scene.history.speed_mps if math.isfinite(scene.history.speed_mps) else SPEED
        zeros = np.zeros(64)
        path = PlannedTrajectory(
            0.1, np.stack([speed * T, zeros, zeros], axis=1), zeros, np.full(64, speed), zeros, zeros
        )
        reasoning = ChainOfCausation("Keep the current speed because our lane is free.", ("a", "b"), (1, 2), (), False)
        number = len(self.scenes)
        return Plan(number, scene.t0_ns, reasoning, path, scene.history, speed, False, stages_s={"decode": 0.01})


def _replayed(path, topics=None) -> tuple[list[dict], BagReader, Replay]:
    reader = BagReader(path, CAMERAS, topics or {})
    replay = Replay(reader, StraightOn(), PARAMETERS)
    rows = [cycle.row for cycle in replay.cycles()]
    reader.close()
    return rows, reader, replay


def _errors() -> np.ndarray:
    """Distance of driving straight on from the circle, from the circle's formula."""
    radius = SPEED / YAW_RATE
    x, y = radius * np.sin(YAW_RATE * T), radius * (1 - np.cos(YAW_RATE * T))
    return np.hypot(SPEED * T - x, y)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return recorded.write(tmp_path_factory.mktemp("bags") / "whole", seconds=12.0)


def test_a_known_way_gives_known_errors(whole):
    rows, reader, replay = _replayed(whole)
    # From 1.5 s of history to the end, ten a second.
    assert [round(row["t_s"], 6) for row in rows] == [round(1.5 + 0.1 * k, 6) for k in range(105)]
    assert not reader.problems and sum(replay.not_planned.values()) == 15
    expected = _errors()
    first = rows[0]
    for horizon in (1, 2, 3, 5):
        assert first[f"ade_{horizon}s"] == pytest.approx(expected[: 10 * horizon].mean(), abs=2e-3)
        assert first[f"fde_{horizon}s"] == pytest.approx(expected[10 * horizon - 1], abs=2e-3)
    assert first["heading"] == pytest.approx(np.mean(YAW_RATE * T), abs=1e-3) and first["speed"] < 1e-6
    assert first["miss_6.4s"] == 1.0 and first["consistent"] == 1.0 and first["comfortable"] == 1.0
    x, y, yaw = pose_at(1.5)
    np.testing.assert_allclose(first["pose"], [x, y, yaw], atol=1e-3)
    # The next plan is the same one a tenth of a second further round the circle.
    assert 0 < rows[1]["jitter_3s"] < 0.5 and rows[1]["coc_same"] == 1.0 and math.isnan(first["jitter_3s"])
    # The truth ends at 11.98 s: no figure reaches beyond it.
    known = [row for row in rows if math.isfinite(row["ade_6.4s"])]
    assert max(row["t_s"] for row in known) == pytest.approx(11.98 - 6.4, abs=0.1)
    assert all(math.isfinite(row["ade_1s"]) == (row["t_s"] <= 10.98 + 1e-6) for row in rows)


def test_the_window_is_bounded(whole):
    reader = BagReader(whole, CAMERAS)
    replay = Replay(reader, StraightOn(), PARAMETERS)
    for _ in replay.cycles():
        assert len(replay._truth) < 50 * 8.5 and len(replay._waiting) <= 66


def _compressed(mode: CompressionMode):
    return lambda writer: writer.set_compression(mode, CompressionFormat.ZSTD)


@pytest.mark.parametrize(
    "how",
    [
        {"storage": StoragePlugin.SQLITE3},
        {"storage": StoragePlugin.SQLITE3, "setup": _compressed(CompressionMode.FILE)},
        {"storage": StoragePlugin.SQLITE3, "setup": _compressed(CompressionMode.MESSAGE)},
        {"setup": _compressed(CompressionMode.STORAGE)},
    ],
    ids=["sqlite3", "compressed file", "compressed messages", "compressed mcap"],
)
def test_every_storage_says_the_same(tmp_path, how):
    bag = recorded.write(tmp_path / "bag", seconds=3.0, **how)
    rows, reader, _ = _replayed(bag)
    reference, _, _ = _replayed(recorded.write(tmp_path / "plain", seconds=3.0))
    assert len(rows) == 15 and not reader.problems
    for row, other in zip(rows, reference, strict=True):
        assert row["t0_ns"] == other["t0_ns"] and row["plan_x"] == other["plan_x"]
        np.testing.assert_allclose(row["truth_x"], other["truth_x"])


def test_a_split_bag_is_one_drive(tmp_path):
    def part(begin: float, end: float):
        return lambda _, t_s, message: message if begin <= t_s < end else None

    first = recorded.write(tmp_path / "first", seconds=4.0, edit=part(0, 2), storage=StoragePlugin.SQLITE3)
    second = recorded.write(tmp_path / "second", seconds=4.0, edit=part(2, 4), storage=StoragePlugin.SQLITE3)
    bag = tmp_path / "split"
    bag.mkdir()
    shutil.copy(first / "first.db3", bag / "split_0.db3")
    shutil.copy(second / "second.db3", bag / "split_1.db3")
    yaml = YAML(typ="safe")
    content = yaml.load((first / "metadata.yaml").read_text())
    info = content["rosbag2_bagfile_information"]
    info["relative_file_paths"] = ["split_0.db3", "split_1.db3"]
    info["message_count"] *= 2
    info["duration"]["nanoseconds"] = 4 * 10**9
    with (bag / "metadata.yaml").open("w") as file:
        yaml.dump(content, file)
    rows, _, _ = _replayed(bag)
    whole, _, _ = _replayed(recorded.write(tmp_path / "whole", seconds=4.0))
    assert [row["t0_ns"] for row in rows] == [row["t0_ns"] for row in whole]


def test_a_single_file_will_do(tmp_path):
    bag = recorded.write(tmp_path / "bag", seconds=3.0)
    assert len(_replayed(bag / "bag.mcap")[0]) == 15


def test_foreign_names_and_poses(tmp_path):
    def posed(t_s: float):
        types = STORE.types
        return types["geometry_msgs/msg/PoseStamped"](header=recorded.header(t_s, "map"), pose=recorded.pose(t_s))

    topics = {"odometry": "/gnss/pose", "camera/front": "/sensing/front/jpeg"}
    bag = recorded.write(tmp_path / "bag", seconds=9.0, topics=topics, odometry_message=posed)
    with pytest.raises(
        BagError, match=r"no topic /camera/front/image or .* for camera/front; it has .*/sensing/front/jpeg"
    ):
        BagReader(bag, CAMERAS)
    rows, _, _ = _replayed(bag, parse_map(["odometry=/gnss/pose", "camera/front=/sensing/front/jpeg"]))
    # Without a twist the truth's speed is found from the positions.
    np.testing.assert_allclose(rows[0]["truth_speed"], SPEED, atol=1e-3)
    with pytest.raises(ValueError, match="'odometry' is not ROLE=/TOPIC"):
        parse_map(["odometry"])
    with pytest.raises(BagError, match="--map names lidar; there are odometry"):
        BagReader(bag, CAMERAS, {"lidar": "/points"})


def test_the_only_odometry_is_found(tmp_path):
    bag = recorded.write(tmp_path / "bag", seconds=3.0, topics={"odometry": "/localization/kinematic_state"})
    rows, reader, _ = _replayed(bag)
    assert len(rows) == 15 and reader.topic_of("odometry") == "/localization/kinematic_state"


# What is wrong with bags ----------------------------------------------------------------------------------------------


def test_bags_that_cannot_be_opened(tmp_path):
    with pytest.raises(BagError, match="does not exist"):
        BagReader(tmp_path / "no", CAMERAS)
    bag = recorded.write(tmp_path / "bag", seconds=2.0)
    (bag / "metadata.yaml").unlink()
    with pytest.raises(BagError, match=r"no metadata.yaml; evaluate its file bag.mcap directly, or run ros2 bag"):
        BagReader(bag, CAMERAS)
    (bag / "metadata.yaml").write_text("rosbag2_bagfile_information: 3")
    with pytest.raises(BagError, match="cannot be opened"):
        BagReader(bag, CAMERAS)


@pytest.mark.parametrize("storage", [StoragePlugin.SQLITE3, StoragePlugin.MCAP])
def test_a_truncated_bag_is_evaluated_as_far_as_it_goes_or_refused(tmp_path, storage):
    bag = recorded.write(tmp_path / "bag", seconds=8.0, storage=storage)
    (file,) = (path for path in bag.iterdir() if path.suffix != ".yaml")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    try:
        rows, reader, _ = _replayed(bag)
    except BagError as error:
        assert "cannot be opened" in str(error)
    else:
        assert any("breaks off" in problem for problem in reader.problems) and len(rows) < 65


def test_wrong_types_are_named(tmp_path):
    bag = recorded.write(tmp_path / "bag", seconds=1.0, topics={"odometry": "/camera/left/image"})
    with pytest.raises(BagError, match=r"/camera/left/image holds nav_msgs/msg/Odometry; camera/left needs"):
        BagReader(bag, CAMERAS)
    bag = recorded.write(tmp_path / "none", seconds=1.0, edit=lambda role, _, m: None if role == "odometry" else m)
    with pytest.raises(BagError, match=r"no topic /odometry for odometry; it has none of that kind"):
        BagReader(bag, CAMERAS)


def test_what_is_damaged_inside_is_told_and_the_rest_is_planned(tmp_path):
    def edit(role: str, t_s: float, message):
        if role == "odometry" and 2.0 <= t_s < 2.1:
            message.pose.pose.position.x = math.nan
        if role == "odometry" and 4.0 <= t_s < 4.5:
            return None  # a gap
        if role == "camera/front" and t_s < 1.95:
            return None  # starts late
        if role == "camera/left" and abs(t_s - 3.0) < 1e-6:
            message.header.stamp.sec = message.header.stamp.nanosec = 0
        if role == "camera/front" and abs(t_s - 3.5) < 1e-6:
            message.data = message.data[:-200]
        if role == "odometry" and abs(t_s - 5.0) < 1e-6:
            return recorded.odometry(4.9)  # out of order
        return message

    rows, reader, replay = _replayed(recorded.write(tmp_path / "bag", seconds=7.0, edit=edit))
    times = {round(row["t_s"], 1) for row in rows}
    told = " | ".join(reader.problems)
    assert "/odometry: position (nan" in told and reader.problems[next(p for p in reader.problems if "nan" in p)] == 1
    assert "camera left: messages with stamp 0" in told
    assert "odometry: messages out of order" in told
    assert "the JPEG of N bytes is truncated" in told
    assert any("camera front: no frame yet" in reason for reason in replay.not_planned)
    assert any("odometry has a gap of N s" in reason for reason in replay.not_planned)
    assert min(times) >= 2.2 and 3.0 not in times and 3.5 not in times and 4.8 not in times
    assert {2.5, 3.2, 3.9, 6.5} <= times
    # Truth across the gap is not made up.
    (before,) = (row for row in rows if round(row["t_s"], 1) == 3.9)
    assert math.isnan(before["truth_x"][3]) and math.isfinite(before["truth_x"][10])


def test_a_bag_that_begins_again_gives_two_drives(tmp_path):
    def looped(t_s: float):
        return recorded.odometry(t_s if t_s < 3.0 else t_s - 3.0)

    def edit(role: str, t_s: float, message):
        return recorded.image(t_s - 3.0) if role != "odometry" and t_s >= 3.0 else message

    rows, reader, _ = _replayed(recorded.write(tmp_path / "bag", seconds=6.0, odometry_message=looped, edit=edit))
    assert any("began anew" in problem for problem in reader.problems)
    assert len(rows) > 15 and rows[-1]["t0_ns"] < rows[len(rows) // 2]["t0_ns"] + 3 * 10**9
