"""NVIDIA PhysicalAI-AV clips (NVIDIA's data set licence, gated), through the package physical-ai-av.

Egomotion is of the rig, whose axes are forward, left, up. Cameras are f-theta: camera_info names the model `ftheta`,
with the polynomial from angle to radius as `d` and its slope at the centre as focal length in `k`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rsd_planner.evaluation.convert.recording import RecordedCamera, Recording, odometry_rows

CAMERAS = {
    "camera_cross_left_120fov": "cross_left",
    "camera_front_wide_120fov": "front_wide",
    "camera_cross_right_120fov": "cross_right",
    "camera_front_tele_30fov": "front_tele",
}
_EGO_RATE_HZ = 100.0
_FRAMES_AT_ONCE = 8
_START_NS = 1_600_000_000 * 1_000_000_000
"""Clip time begins near 0 and may be negative; stamps count from here."""


def open_data_set(revision: str | None = None, cache_dir: str | None = None) -> Any:
    """The package's interface to the data set. Raises ValueError with what to install or to set."""
    try:
        from physical_ai_av import PhysicalAIAVDatasetInterface
    except ImportError as error:
        raise ValueError(f"converting PhysicalAI-AV needs the package physical-ai-av ({error})") from error
    try:
        return PhysicalAIAVDatasetInterface(revision, cache_dir=cache_dir)
    except Exception as error:  # a dozen types of the hub's client
        raise ValueError(f"the PhysicalAI-AV data set cannot be reached: {error}") from error


def read_clip(data_set: Any, clip_id: str, download: bool = True) -> Recording:
    """A clip. Raises ValueError that names the clip and what it lacks."""
    try:
        egomotion = data_set.get_clip_feature(clip_id, "egomotion", maybe_stream=download)
        extrinsics = data_set.get_clip_feature(clip_id, "sensor_extrinsics", maybe_stream=download).sensor_poses
        intrinsics = data_set.get_clip_feature(clip_id, "camera_intrinsics", maybe_stream=download).camera_models
        videos = {
            name: data_set.get_clip_feature(clip_id, feature, maybe_stream=download)
            for feature, name in CAMERAS.items()
        }
    except (KeyError, FileNotFoundError, OSError, ValueError) as error:
        raise ValueError(f"PhysicalAI-AV clip {clip_id} cannot be read: {error}") from error
    first_us, last_us = (float(value) for value in egomotion.time_range)
    times_us = np.arange(first_us, last_us, 1e6 / _EGO_RATE_HZ)
    states = egomotion(times_us)
    rows = odometry_rows(times_us / 1e6, states.pose.translation, states.pose.rotation, None)
    cameras = []
    for feature, name in CAMERAS.items():
        model, pose, video = intrinsics[feature], extrinsics[feature], videos[name]
        coefficients = [float(value) for value in model.th2r.coef]
        cx, cy = (float(value) for value in model.principal_point)
        cameras.append(
            RecordedCamera(
                name=name,
                width=model.width,
                height=model.height,
                k=np.array([[coefficients[1], 0.0, cx], [0.0, coefficients[1], cy], [0.0, 0.0, 1.0]]),
                translation=np.asarray(pose.translation),
                rotation=np.asarray(pose.rotation.as_quat()),
                stamps_ns=[_START_NS + int(stamp) * 1000 for stamp in video.timestamps],
                frames=partial(_frames, video),
                d=coefficients,
                distortion_model="ftheta",
            )
        )
    return Recording(f"physical_ai_av_{clip_id}", _START_NS, rows, cameras)


def _frames(video: Any) -> Iterator[NDArray[np.uint8]]:
    """A few at a time: a clip's frames do not fit into memory together."""
    numbers = np.arange(len(video.timestamps))
    for some in np.array_split(numbers, max(1, len(numbers) // _FRAMES_AT_ONCE)):
        yield from np.asarray(video.decode_images_from_frame_indices(some), dtype=np.uint8)
