"""comma2k19 segments (MIT licence): one road camera and global poses.

Layout: ROUTE/SEGMENT/video.hevc and global_pose/frame_{times,positions,orientations,velocities}, NumPy arrays without
a suffix; positions and velocities in ECEF, orientations Hamilton (w, x, y, z), of a camera frame with axes forward,
right, down. base_link is put at the camera (its place in the car is not told), with axes forward, left, up.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from rsd_planner.buffers import NANOSECONDS
from rsd_planner.evaluation.convert.recording import RecordedCamera, Recording, odometry_rows, video_frames

WIDTH, HEIGHT, FOCAL = 1164, 874, 910.0
_CAMERA = "front_wide"
_FORWARD_LEFT_UP = Rotation.from_matrix(np.diag([1.0, -1.0, -1.0]))
_OPTICAL = Rotation.from_matrix(np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]]))
_START_NS = 1_500_000_000 * NANOSECONDS
"""Boot time has no epoch; stamps count from here."""


def read_segment(directory: Path) -> Recording:
    """A segment. Raises ValueError that names what is missing or does not fit."""
    arrays = {name: _array(directory, name) for name in ("times", "positions", "orientations", "velocities")}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"{directory}/global_pose: arrays of different lengths {lengths}")
    video = directory / "video.hevc"
    if not video.exists():
        raise ValueError(f"{directory} has no video.hevc")
    time_s = arrays["times"] - arrays["times"][0]
    position, attitude, velocity = _local(arrays["positions"], arrays["orientations"], arrays["velocities"])
    stamps = [_START_NS + round(t * NANOSECONDS) for t in time_s]
    camera = RecordedCamera(
        name=_CAMERA,
        width=WIDTH,
        height=HEIGHT,
        k=np.array([[FOCAL, 0.0, WIDTH / 2], [0.0, FOCAL, HEIGHT / 2], [0.0, 0.0, 1.0]]),
        translation=np.zeros(3),
        rotation=_OPTICAL.as_quat(),
        stamps_ns=stamps,
        frames=lambda: video_frames(video, len(stamps)),
    )
    # Route names hold a bar, which topics, shells and some file systems do not like.
    name = f"{directory.parent.name}_{directory.name}".replace("|", "_")
    return Recording(name, _START_NS, odometry_rows(time_s, position, attitude, velocity), [camera])


def _local(
    positions: NDArray[np.float64], orientations: NDArray[np.float64], velocities: NDArray[np.float64]
) -> tuple[NDArray[np.float64], Rotation, NDArray[np.float64]]:
    """ECEF to east, north, up at the first pose."""
    enu_from_ecef = _east_north_up(positions[0])
    ecef_from_camera = Rotation.from_quat(orientations[:, [1, 2, 3, 0]])
    attitude = Rotation.from_matrix(enu_from_ecef) * ecef_from_camera * _FORWARD_LEFT_UP
    return (positions - positions[0]) @ enu_from_ecef.T, attitude, velocities @ enu_from_ecef.T


def _east_north_up(ecef: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows: east, north and up (normal of the WGS 84 ellipsoid) at a place, in ECEF."""
    a, e2 = 6378137.0, 6.69437999014e-3
    x, y, z = ecef
    longitude = np.arctan2(y, x)
    p = np.hypot(x, y)
    latitude = np.arctan2(z, p * (1 - e2))
    for _ in range(5):  # converges to far below a millimetre
        n = a / np.sqrt(1 - e2 * np.sin(latitude) ** 2)
        height = p / np.cos(latitude) - n
        latitude = np.arctan2(z, p * (1 - e2 * n / (n + height)))
    sin_lat, cos_lat, sin_lon, cos_lon = np.sin(latitude), np.cos(latitude), np.sin(longitude), np.cos(longitude)
    return np.array(
        [
            [-sin_lon, cos_lon, 0.0],
            [-sin_lat * cos_lon, -sin_lat * sin_lon, cos_lat],
            [cos_lat * cos_lon, cos_lat * sin_lon, sin_lat],
        ]
    )


def _array(directory: Path, name: str) -> NDArray[np.float64]:
    path = directory / "global_pose" / f"frame_{name}"
    try:
        return np.asarray(np.load(path), dtype=np.float64)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a NumPy array: {error}") from error
