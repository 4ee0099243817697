"""nuScenes scenes (CC BY-NC-SA 4.0): six cameras at 12 Hz and ego poses, from the tables in DATAROOT/VERSION/*.json.

The tables are read as they are documented; quaternions are (w, x, y, z), timestamps in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from rsd_planner.evaluation.convert.recording import RecordedCamera, Recording, odometry_rows

CAMERAS = {
    "CAM_FRONT": "front_wide",
    "CAM_FRONT_LEFT": "cross_left",
    "CAM_FRONT_RIGHT": "cross_right",
    "CAM_BACK": "rear_tele",
    "CAM_BACK_LEFT": "rear_left",
    "CAM_BACK_RIGHT": "rear_right",
}
"""nuScenes channel -> the planner's name for a camera that looks that way."""


class NuScenes:
    """The tables of one version, such as v1.0-mini."""

    def __init__(self, root: Path, version: str) -> None:
        self._root, self._version = root, version
        names = ("scene", "sample", "sample_data", "ego_pose", "calibrated_sensor", "sensor")
        self._tables = {name: self._table(name) for name in names}

    @property
    def scenes(self) -> list[str]:
        """Names of the scenes."""
        return [scene["name"] for scene in self._tables["scene"].values()]

    def read_scene(self, name: str) -> Recording:
        """A scene. Raises ValueError for an unknown one or tables that do not fit together."""
        scene = next((scene for scene in self._tables["scene"].values() if scene["name"] == name), None)
        if scene is None:
            raise ValueError(f"{self._root}/{self._version} has no scene {name}; it has {', '.join(self.scenes)}")
        try:
            return self._recording(scene)
        except KeyError as error:
            raise ValueError(f"{self._root}/{self._version}: scene {name} names {error}, which no table has") from error

    def _recording(self, scene: dict[str, Any]) -> Recording:
        samples = {token for token, sample in self._tables["sample"].items() if sample["scene_token"] == scene["token"]}
        by_channel: dict[str, list[dict[str, Any]]] = {}
        poses: dict[int, dict[str, Any]] = {}
        for data in self._tables["sample_data"].values():
            if data["sample_token"] not in samples:
                continue
            pose = self._tables["ego_pose"][data["ego_pose_token"]]
            poses[pose["timestamp"]] = pose
            channel = self._channel(data)
            if channel in CAMERAS:
                by_channel.setdefault(channel, []).append(data)
        if not poses:
            raise ValueError(f"{self._root}/{self._version}: scene {scene['name']} has no data")
        stamps_us = sorted(poses)
        start_ns = stamps_us[0] * 1000
        time_s = np.array([(stamp - stamps_us[0]) / 1e6 for stamp in stamps_us])
        position = np.array([poses[stamp]["translation"] for stamp in stamps_us])
        attitude = Rotation.from_quat([_xyzw(poses[stamp]["rotation"]) for stamp in stamps_us])
        rows = odometry_rows(time_s, position - position[0], attitude, None)
        cameras = [self._camera(channel, frames) for channel, frames in sorted(by_channel.items())]
        return Recording(f"{self._version}_{scene['name']}", start_ns, rows, cameras)

    def _camera(self, channel: str, frames: list[dict[str, Any]]) -> RecordedCamera:
        frames = sorted(frames, key=lambda data: data["timestamp"])
        calibrated = self._tables["calibrated_sensor"][frames[0]["calibrated_sensor_token"]]

        def pictures() -> Iterator[bytes]:
            for data in frames:
                path = self._root / data["filename"]
                try:
                    yield path.read_bytes()
                except OSError as error:
                    raise ValueError(f"{path} cannot be read: {error.strerror}") from error

        return RecordedCamera(
            name=CAMERAS[channel],
            width=int(frames[0]["width"]),
            height=int(frames[0]["height"]),
            k=np.array(calibrated["camera_intrinsic"], dtype=np.float64),
            translation=np.array(calibrated["translation"], dtype=np.float64),
            rotation=np.array(_xyzw(calibrated["rotation"])),
            stamps_ns=[data["timestamp"] * 1000 for data in frames],
            frames=pictures,
        )

    def _channel(self, data: dict[str, Any]) -> str:
        calibrated = self._tables["calibrated_sensor"][data["calibrated_sensor_token"]]
        return str(self._tables["sensor"][calibrated["sensor_token"]]["channel"])

    def _table(self, name: str) -> dict[str, dict[str, Any]]:
        path = self._root / self._version / f"{name}.json"
        try:
            return {row["token"]: row for row in json.loads(path.read_text())}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a table of nuScenes: {error}") from error


def _xyzw(quaternion: list[float]) -> list[float]:
    w, x, y, z = quaternion
    return [x, y, z, w]
