"""Data sets become bags: small ones in the documented layouts, and a real second of comma2k19's poses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import av
import cv2
import numpy as np
import pandas as pd
import pytest
from rosbags.highlevel import AnyReader
from scipy.spatial.transform import Rotation

from rsd_planner.buffers import Camera
from rsd_planner.evaluation.bags import read_odometry
from rsd_planner.evaluation.convert.comma2k19 import read_segment
from rsd_planner.evaluation.convert.nuscenes import NuScenes
from rsd_planner.evaluation.convert.physical_ai import CAMERAS, open_data_set, read_clip
from rsd_planner.evaluation.convert.recording import write_recording
from rsd_planner.evaluation.reading import BagReader, OdometryEvent

DATA = Path(__file__).parents[1] / "data" / "comma2k19"
REVISION = "0" * 40


def _messages(bag: Path) -> dict[str, list]:
    found: dict[str, list] = {}
    with AnyReader([bag]) as reader:
        for connection, _, data in reader.messages():
            found.setdefault(connection.topic, []).append(reader.deserialize(data, connection.msgtype))
    return found


def _video(path: Path, frames: int, size: tuple[int, int]) -> None:
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=20)
        stream.width, stream.height = size
        for number in range(frames):
            picture = np.full((size[1], size[0], 3), 20 + 3 * number, dtype=np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def _in_order(pictures: list[np.ndarray]) -> bool:
    """They grow brighter by 3 a frame, as `_video` made them, but for the codec's coarse steps."""
    greys = np.array([picture.mean() for picture in pictures])
    return bool(np.abs(greys - greys[0] - 3.0 * np.arange(len(greys))).max() < 8.0)


# comma2k19 ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def segment(tmp_path):
    directory = tmp_path / "b0c9d2329ad1606b|2018-08-02--08-34-47" / "40"
    shutil.copytree(DATA / "global_pose", directory / "global_pose")
    _video(directory / "video.hevc", 60, (194, 146))
    return directory


def test_comma_poses_are_those_of_an_independent_conversion(segment, tmp_path):
    """The table in the test data was made from the same segment by other code."""
    recording = read_segment(segment)
    table = read_odometry(DATA / "segment_40_odometry.csv")[:60]
    for row, expected in zip(recording.odometry, table, strict=True):
        assert row.t_s == pytest.approx(expected.t_s, abs=1e-5)
        np.testing.assert_allclose(row.position, expected.position, atol=0.02)
        angle = (Rotation.from_quat(row.quaternion).inv() * Rotation.from_quat(expected.quaternion)).magnitude()
        assert angle < 1e-3
        np.testing.assert_allclose(row.velocity, expected.velocity, atol=0.02)
        assert row.yaw_rate_radps == pytest.approx(expected.yaw_rate_radps, abs=0.05)
    assert write_recording(recording, tmp_path / "bag") == 1 + 4 * 60
    found = _messages(tmp_path / "bag")
    assert len(found["/camera/front_wide/image/compressed"]) == len(found["/odometry"]) == len(found["/tf"]) == 60
    pictures = [cv2.imdecode(image.data, cv2.IMREAD_COLOR) for image in found["/camera/front_wide/image/compressed"]]
    assert pictures[0].shape == (146, 194, 3) and _in_order(pictures)
    info = found["/camera/front_wide/camera_info"][0]
    assert info.k[0] == 910.0 and (info.width, info.height) == (1164, 874)
    reader = BagReader(tmp_path / "bag", [Camera("front_wide", 1)])
    rotation = Rotation.from_quat(reader.calibration()["front_wide"]["rotation"])
    np.testing.assert_allclose(rotation.apply([0.0, 0.0, 1.0]), [1.0, 0.0, 0.0], atol=1e-9)  # it looks ahead
    speeds = [event.sample.speed_mps for _, event in reader.events() if isinstance(event, OdometryEvent)]
    assert speeds[0] == pytest.approx(7.927, abs=0.05)


def test_bad_segments_are_named(segment, tmp_path):
    (segment / "video.hevc").write_bytes(b"no video")
    with pytest.raises(ValueError, match=r"video.hevc ends after 0 of 60 frames"):
        write_recording(read_segment(segment), tmp_path / "bag")
    assert not (tmp_path / "bag").exists()
    (segment / "video.hevc").unlink()
    with pytest.raises(ValueError, match=r"has no video\.hevc"):
        read_segment(segment)
    (segment / "global_pose" / "frame_times").unlink()
    with pytest.raises(ValueError, match="frame_times is not a NumPy array"):
        read_segment(segment)


# nuScenes -------------------------------------------------------------------------------------------------------------

ACROSS = Rotation.from_euler("z", 30, degrees=True)


@pytest.fixture
def nuscenes(tmp_path):
    """A scene with two samples, two cameras at 12 Hz and a lidar, driving at 5 m/s along 30 degrees."""
    root = tmp_path / "nuscenes"
    (root / "samples").mkdir(parents=True)
    x, y, z, w = ACROSS.as_quat()
    begin = 1_532_402_927_647_951
    tables: dict[str, list] = {
        "scene": [{"token": "s1", "name": "scene-0061"}, {"token": "s2", "name": "scene-0103"}],
        "sample": [
            {"token": "a", "scene_token": "s1", "timestamp": begin},
            {"token": "b", "scene_token": "s2", "timestamp": begin},
        ],
        "sensor": [
            {"token": "f", "channel": "CAM_FRONT"},
            {"token": "l", "channel": "CAM_FRONT_LEFT"},
            {"token": "top", "channel": "LIDAR_TOP"},
        ],
        "calibrated_sensor": [
            {"token": f"c{channel}", "sensor_token": channel, "translation": [1.7, 0.1, 1.5],
             "rotation": [0.5, -0.5, 0.5, -0.5],
             "camera_intrinsic": [[1266.4, 0, 816.3], [0, 1266.4, 491.5], [0, 0, 1]]}
            for channel in ("f", "l", "top")
        ],
        "sample_data": [],
        "ego_pose": [],
    }  # fmt: skip
    for number in range(10):
        for channel, delay in (("f", 0), ("l", 7_000), ("top", 20_000)):
            token, stamp = f"{channel}{number}", begin + number * 83_333 + delay
            metres = 5.0 * (stamp - begin) / 1e6
            place = [600.0 + metres * np.cos(np.pi / 6), 1600.0 + metres * np.sin(np.pi / 6), 0.0]
            tables["ego_pose"].append(
                {"token": token, "timestamp": stamp, "translation": place, "rotation": [w, x, y, z]}
            )
            name = f"samples/{token}.jpg"
            cv2.imwrite(str(root / name), np.full((18, 32, 3), 10 * number, dtype=np.uint8))
            tables["sample_data"].append(
                {"token": token, "sample_token": "a", "ego_pose_token": token, "timestamp": stamp, "filename": name,
                 "calibrated_sensor_token": f"c{channel}", "width": 32, "height": 18, "is_key_frame": number == 0}
            )  # fmt: skip
    (root / "v1.0-mini").mkdir()
    for name, rows in tables.items():
        (root / "v1.0-mini" / f"{name}.json").write_text(json.dumps(rows))
    return root


def test_a_nuscenes_scene(nuscenes, tmp_path):
    tables = NuScenes(nuscenes, "v1.0-mini")
    assert tables.scenes == ["scene-0061", "scene-0103"]
    recording = tables.read_scene("scene-0061")
    assert len(recording.odometry) == 30  # the lidar's poses too
    for row in recording.odometry:
        np.testing.assert_allclose(
            row.position, [5 * row.t_s * np.cos(np.pi / 6), 5 * row.t_s * np.sin(np.pi / 6), 0], atol=1e-6
        )
        np.testing.assert_allclose(row.velocity, [5.0, 0.0, 0.0], atol=1e-6)
        np.testing.assert_allclose(row.quaternion, ACROSS.as_quat(), atol=1e-9)
    write_recording(recording, tmp_path / "bag")
    found = _messages(tmp_path / "bag")
    assert len(found["/camera/front_wide/image/compressed"]) == len(found["/camera/cross_left/camera_info"]) == 10
    assert found["/camera/front_wide/camera_info"][0].k[2] == 816.3
    stamp = found["/camera/cross_left/image/compressed"][0].header.stamp
    assert stamp.sec * 10**9 + stamp.nanosec == (1_532_402_927_647_951 + 7_000) * 1000
    calibration = BagReader(tmp_path / "bag", [Camera("front_wide", 1)]).calibration()["front_wide"]
    np.testing.assert_allclose(Rotation.from_quat(calibration["rotation"]).apply([0, 0, 1]), [1, 0, 0], atol=1e-9)


def test_bad_nuscenes(nuscenes, tmp_path):
    tables = NuScenes(nuscenes, "v1.0-mini")
    with pytest.raises(ValueError, match="has no scene scene-9; it has scene-0061"):
        tables.read_scene("scene-9")
    with pytest.raises(ValueError, match="scene scene-0103 has no data"):
        tables.read_scene("scene-0103")
    (nuscenes / "samples" / "f3.jpg").unlink()
    with pytest.raises(ValueError, match=r"f3.jpg cannot be read"):
        write_recording(tables.read_scene("scene-0061"), tmp_path / "bag")
    with pytest.raises(ValueError, match=r"v1.0-trainval/scene.json is not a table"):
        NuScenes(nuscenes, "v1.0-trainval")
    command = [sys.executable, "-m", "rsd_planner.cli", "convert", "nuscenes", str(nuscenes), "--out", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and run.stderr.count("\n") >= 2 and "Traceback" not in run.stderr


# PhysicalAI-AV --------------------------------------------------------------------------------------------------------

CLIP = "030c760c-ae38-49aa-9ad8-f5650a545d26"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A cache of the hub's client with one chunk of one clip, in the data set's layout."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    root = tmp_path / "hub" / "datasets--nvidia--PhysicalAI-Autonomous-Vehicles"
    files = root / "snapshots" / REVISION
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(REVISION)
    (files / "metadata").mkdir(parents=True)
    features = [("egomotion", "labels", "labels/egomotion/egomotion.chunk_{chunk_id:04d}.zip",
                 {"egomotion": "{clip_id}.egomotion.parquet"})]  # fmt: skip
    features += [
        (camera, "camera", f"camera/{camera}/{camera}.chunk_{{chunk_id:04d}}.zip",
         {"video": f"{{clip_id}}.{camera}.mp4", "frame_timestamps": f"{{clip_id}}.{camera}.timestamps.parquet"})
        for camera in CAMERAS
    ]  # fmt: skip
    features += [
        (name, "calibration", f"calibration/{name}/{name}.chunk_{{chunk_id:04d}}.parquet", None)
        for name in ("sensor_extrinsics", "camera_intrinsics")
    ]
    table = pd.DataFrame(features, columns=["feature", "directory", "chunk_path", "clip_files_in_zip"])
    table["clip_files_in_zip"] = [json.dumps(entry) if entry else None for entry in table["clip_files_in_zip"]]
    table.to_csv(files / "features.csv", index=False)
    index = pd.Index([CLIP], name="clip_id")
    pd.DataFrame({"chunk": [0]}, index=index).to_parquet(files / "clip_index.parquet")
    presence = pd.DataFrame({name: [True] for name, *_ in features}, index=index)
    presence.to_parquet(files / "metadata" / "feature_presence.parquet")
    pd.DataFrame({"country": ["x"]}, index=index).to_parquet(files / "metadata" / "data_collection.parquet")

    stamps = np.arange(0, 2_000_001, 10_000)
    metres = 6.0 * stamps / 1e6
    motion = pd.DataFrame(
        {"timestamp": stamps, "x": metres, "y": 0.0, "z": 0.0, "qx": 0.0, "qy": 0.0, "qz": 0.0, "qw": 1.0, "vx": 6.0,
         "vy": 0.0, "vz": 0.0, "ax": 0.0, "ay": 0.0, "az": 0.0, "curvature": 0.0}
    )  # fmt: skip
    _zipped(files / "labels/egomotion/egomotion.chunk_0000.zip", {f"{CLIP}.egomotion.parquet": motion.to_parquet()})
    for camera in CAMERAS:
        video = tmp_path / f"{camera}.mp4"
        _video(video, 20, (96, 54))
        times = pd.DataFrame({"timestamp": np.arange(20) * 50_000 + 3_000})
        members = {
            f"{CLIP}.{camera}.mp4": video.read_bytes(),
            f"{CLIP}.{camera}.timestamps.parquet": times.to_parquet(),
        }
        _zipped(files / f"camera/{camera}/{camera}.chunk_0000.zip", members)
    rows = pd.MultiIndex.from_product([[CLIP], list(CAMERAS)], names=["clip_id", "sensor_name"])
    optical = dict(zip(("qx", "qy", "qz", "qw"), (-0.5, 0.5, -0.5, 0.5), strict=True))
    extrinsics = pd.DataFrame([{"x": 1.7, "y": 0.0, "z": 1.4, **optical}] * 4, index=rows)
    intrinsics = {"width": 96, "height": 54, "cx": 48.0, "cy": 27.0}
    intrinsics |= {f"fw_poly_{k}": value for k, value in enumerate((0.0, 46.0, 0.5, -0.2, 0.01))}
    intrinsics |= {f"bw_poly_{k}": value for k, value in enumerate((0.0, 1 / 46, 0.0, 0.0, 0.0))}
    for name, frame in (("sensor_extrinsics", extrinsics), ("camera_intrinsics", pd.DataFrame([intrinsics] * 4, rows))):
        path = files / f"calibration/{name}/{name}.chunk_0000.parquet"
        path.parent.mkdir(parents=True)
        frame.to_parquet(path)
    return tmp_path / "hub"


def _zipped(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_a_physical_ai_clip(hub, tmp_path):
    data_set = open_data_set(REVISION, str(hub))
    recording = read_clip(data_set, CLIP, download=False)
    for row in recording.odometry:
        np.testing.assert_allclose(row.position, [6.0 * row.t_s, 0.0, 0.0], atol=1e-6)
        np.testing.assert_allclose(row.velocity, [6.0, 0.0, 0.0], atol=1e-4)
    write_recording(recording, tmp_path / "bag")
    found = _messages(tmp_path / "bag")
    for name in CAMERAS.values():
        pictures = [cv2.imdecode(image.data, cv2.IMREAD_COLOR) for image in found[f"/camera/{name}/image/compressed"]]
        assert len(pictures) == 20 and pictures[0].shape == (54, 96, 3)
        assert _in_order(pictures)
        info = found[f"/camera/{name}/camera_info"][0]
        assert info.distortion_model == "ftheta" and info.k[0] == 46.0 and list(info.d) == [0.0, 46.0, 0.5, -0.2, 0.01]
    begin = found["/odometry"][0].header.stamp
    frame = found["/camera/front_wide/image/compressed"][0].header.stamp
    assert (frame.sec - begin.sec) * 10**9 + frame.nanosec - begin.nanosec == 3_000_000
    # A lens that no pinhole describes is not drawn into.
    assert BagReader(tmp_path / "bag", [Camera("front_wide", 1)]).calibration() == {}


def test_a_clip_that_is_not_there(hub):
    with pytest.raises(ValueError, match="clip no-such-clip cannot be read"):
        read_clip(open_data_set(REVISION, str(hub)), "no-such-clip", download=False)
