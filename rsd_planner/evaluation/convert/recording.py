"""A drive of any data set, and how it becomes a rosbag2 with TF, camera_info and ground-truth odometry."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from rosbags.typesys import Stores, get_typestore
from scipy.spatial.transform import Rotation
from tqdm import tqdm

from rsd_planner.buffers import NANOSECONDS
from rsd_planner.evaluation.bags import LATCHED, OdometryRow, header, new_bag, odometry_message


@dataclass(frozen=True)
class RecordedCamera:
    """A camera and its frames.

    name as the planner knows it. k [3, 3] pixels; d as distortion_model says; translation [3] (m) and rotation [4] (x,
    y, z, w) place the optical frame (x right, y down, z forward) in base_link. stamps_ns rise; frames gives for
    each of them JPEG bytes or pixels (RGB uint8 [H, W, 3]), in order.
    """

    name: str
    width: int
    height: int
    k: NDArray[np.float64]
    translation: NDArray[np.float64]
    rotation: NDArray[np.float64]
    stamps_ns: Sequence[int]
    frames: Callable[[], Iterator[bytes | NDArray[np.uint8]]]
    d: Sequence[float] = (0.0, 0.0, 0.0, 0.0, 0.0)
    distortion_model: str = "plumb_bob"


@dataclass(frozen=True)
class Recording:
    """A drive: odometry (times in s after start_ns) and cameras, with stamps of one clock."""

    name: str
    start_ns: int
    odometry: Sequence[OdometryRow]
    cameras: Sequence[RecordedCamera]
    notes: Sequence[str] = field(default=())


def write_recording(recording: Recording, out: Path, storage: str = "mcap") -> int:
    """Writes a rosbag2 in the order of the stamps; returns the messages.

    Raises FileExistsError if out exists. out appears only when it is complete; one frame is held at a time.
    """
    store = get_typestore(Stores.ROS2_JAZZY)
    count = 0
    with new_bag(out, storage) as writer:
        connections: dict[str, Any] = {}

        def write(topic: str, stamp_ns: int, message: Any) -> None:
            nonlocal count
            if topic not in connections:
                qos = [LATCHED] if topic == "/tf_static" else []
                connections[topic] = writer.add_connection(
                    topic, message.__msgtype__, typestore=store, offered_qos_profiles=qos
                )
            writer.write(connections[topic], stamp_ns, store.serialize_cdr(message, message.__msgtype__))
            count += 1

        write("/tf_static", recording.start_ns, _static_transforms(store, recording))
        streams = [_odometry(store, recording), *(_camera(store, camera) for camera in recording.cameras)]
        total = len(recording.odometry) + sum(len(camera.stamps_ns) for camera in recording.cameras)
        merged = heapq.merge(*streams, key=lambda entry: entry[0])
        for stamp_ns, messages in tqdm(merged, total=total, desc=recording.name, unit="msg", leave=False):
            for topic, message in messages:
                write(topic, stamp_ns, message)
    return count


def _odometry(store: Any, recording: Recording) -> Iterator[tuple[int, list[tuple[str, Any]]]]:
    types = store.types
    for row in recording.odometry:
        stamp_ns = recording.start_ns + round(row.t_s * NANOSECONDS)
        transform = types["geometry_msgs/msg/TransformStamped"](
            header=header(store, stamp_ns, "odom"),
            child_frame_id="base_link",
            transform=types["geometry_msgs/msg/Transform"](
                translation=types["geometry_msgs/msg/Vector3"](*row.position),
                rotation=types["geometry_msgs/msg/Quaternion"](*row.quaternion),
            ),
        )
        yield (
            stamp_ns,
            [
                ("/odometry", odometry_message(store, stamp_ns, row)),
                ("/tf", types["tf2_msgs/msg/TFMessage"](transforms=[transform])),
            ],
        )


def _camera(store: Any, camera: RecordedCamera) -> Iterator[tuple[int, list[tuple[str, Any]]]]:
    types = store.types
    for stamp_ns, frame in zip(camera.stamps_ns, camera.frames(), strict=True):
        head = header(store, stamp_ns, f"camera_{camera.name}")
        if not isinstance(frame, bytes):
            pixels = cv2.cvtColor(np.asarray(frame), cv2.COLOR_RGB2BGR)
            frame = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 92])[1].tobytes()
        image = types["sensor_msgs/msg/CompressedImage"](
            header=head, format="jpeg", data=np.frombuffer(frame, dtype=np.uint8)
        )
        projection = np.hstack([camera.k, np.zeros((3, 1))])
        info = types["sensor_msgs/msg/CameraInfo"](
            header=head,
            height=camera.height,
            width=camera.width,
            distortion_model=camera.distortion_model,
            d=np.array(camera.d, dtype=np.float64),
            k=camera.k.reshape(-1).astype(np.float64),
            r=np.eye(3).reshape(-1),
            p=projection.reshape(-1),
            binning_x=0,
            binning_y=0,
            roi=types["sensor_msgs/msg/RegionOfInterest"](x_offset=0, y_offset=0, height=0, width=0, do_rectify=False),
        )
        base = f"/camera/{camera.name}"
        yield stamp_ns, [(f"{base}/image/compressed", image), (f"{base}/camera_info", info)]


def _static_transforms(store: Any, recording: Recording) -> Any:
    types = store.types
    transforms = [
        types["geometry_msgs/msg/TransformStamped"](
            header=header(store, recording.start_ns, "base_link"),
            child_frame_id=f"camera_{camera.name}",
            transform=types["geometry_msgs/msg/Transform"](
                translation=types["geometry_msgs/msg/Vector3"](*map(float, camera.translation)),
                rotation=types["geometry_msgs/msg/Quaternion"](*map(float, camera.rotation)),
            ),
        )
        for camera in recording.cameras
    ]
    return types["tf2_msgs/msg/TFMessage"](transforms=transforms)


def odometry_rows(
    time_s: NDArray[np.float64], position: NDArray[np.float64], attitude: Rotation, velocity: NDArray[np.float64] | None
) -> list[OdometryRow]:
    """Rows of poses [N, 3], attitudes [N] and velocities [N, 3] in the fixed frame (None: from the positions).

    Twists are turned into base_link; the yaw rate comes from the attitudes.
    """
    if velocity is None:
        velocity = np.gradient(position, time_s, axis=0)
    local = attitude.inv().apply(velocity)
    yaw = np.unwrap(attitude.as_euler("ZYX")[:, 0])
    rate = np.gradient(yaw, time_s) if len(time_s) > 1 else np.zeros(1)
    quaternions = attitude.as_quat()
    return [
        OdometryRow(
            t_s=float(time_s[k]),
            position=_three(position[k]),
            quaternion=tuple(float(value) for value in quaternions[k]),  # type: ignore[arg-type]
            velocity=_three(local[k]),
            yaw_rate_radps=float(rate[k]) if math.isfinite(rate[k]) else 0.0,
        )
        for k in range(len(time_s))
    ]


def _three(values: NDArray[np.float64]) -> tuple[float, float, float]:
    x, y, z = (float(value) for value in values)
    return x, y, z


def video_frames(path: Path, count: int) -> Iterator[NDArray[np.uint8]]:
    """The first frames of a video, RGB. Raises ValueError if it is unreadable or ends early."""
    capture = cv2.VideoCapture(str(path))
    try:
        for number in range(count):
            read, frame = capture.read()
            if not read:
                raise ValueError(f"{path} ends after {number} of {count} frames")
            yield np.asarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB), dtype=np.uint8)
    finally:
        capture.release()
