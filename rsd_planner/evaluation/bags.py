"""Bags made of recorded odometry and pictures. Needs no ROS installation."""

from __future__ import annotations

import csv
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from rosbags.interfaces import Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore
from tqdm import tqdm

STORAGES = {"sqlite3": StoragePlugin.SQLITE3, "mcap": StoragePlugin.MCAP}
TRANSPORTS = ("compressed", "raw")
LATCHED = Qos(
    history=QosHistory.KEEP_LAST,
    depth=1,
    reliability=QosReliability.RELIABLE,
    durability=QosDurability.TRANSIENT_LOCAL,
    deadline=QosTime(0, 0),
    lifespan=QosTime(0, 0),
    liveliness=QosLiveliness.AUTOMATIC,
    liveliness_lease_duration=QosTime(0, 0),
    avoid_ros_namespace_conventions=False,
)
"""Offered QoS of /tf_static: who comes late gets the last one."""

_NANOSECONDS = 1_000_000_000
_ODOMETRY_COLUMNS = ["t_s", "x_m", "y_m", "z_m", "qx", "qy", "qz", "qw", "vx_mps", "vy_mps", "vz_mps", "yaw_rate_radps"]


@dataclass(frozen=True)
class OdometryRow:
    """One row of an odometry table: time (s), pose in a local east-north-up frame, twist in base_link."""

    t_s: float
    position: tuple[float, float, float]
    quaternion: tuple[float, float, float, float]
    velocity: tuple[float, float, float]
    yaw_rate_radps: float


def read_odometry(path: Path) -> list[OdometryRow]:
    """Rows of a CSV with the columns t_s, x_m .. qw, vx_mps .. yaw_rate_radps.

    Raises ValueError that names file and line.
    """
    rows = []
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _ODOMETRY_COLUMNS if name not in (reader.fieldnames or [])]
            if missing:
                raise ValueError(f"{path} lacks the columns {', '.join(missing)}")
            for record in reader:
                values = [float(record[name]) for name in _ODOMETRY_COLUMNS]
                if not all(map(math.isfinite, values)):
                    raise ValueError(f"{path}, line {reader.line_num}: a value is not finite")
                t, x, y, z, qx, qy, qz, qw, vx, vy, vz, yaw_rate = values
                rows.append(OdometryRow(t, (x, y, z), (qx, qy, qz, qw), (vx, vy, vz), yaw_rate))
    except (TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a CSV table of numbers: {error}") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if not rows:
        raise ValueError(f"{path} holds no rows")
    return rows


@contextmanager
def new_bag(out: Path, storage: str) -> Iterator[Writer]:
    """A writer of a rosbag2 that appears as `out` when it is complete, and not at all if an error interrupts it.

    Raises FileExistsError if out exists.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists already")
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    writer = Writer(partial / out.name, version=9, storage_plugin=STORAGES[storage])  # files have its name
    if storage == "mcap":
        writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
    with writer:
        yield writer
    (partial / out.name).rename(out)
    partial.rmdir()


def write_sample_bag(
    odometry: Path,
    pictures: Sequence[Path],
    out: Path,
    *,
    cameras: Sequence[str] = ("cross_left", "front_wide", "cross_right", "front_tele"),
    storage: str = "sqlite3",
    transport: str = "compressed",
    seconds: float = 10.0,
    size: tuple[int, int] | None = None,
    camera_rate_hz: float = 10.0,
    start_ns: int = 1_700_000_000 * _NANOSECONDS,
    progress: bool = False,
) -> int:
    """Writes a rosbag2 of recorded odometry with pictures cycled on several cameras; returns the messages.

    The pictures do not belong to the odometry: the bag exercises inputs, it says nothing of driving.
    size (width, height) resizes the pictures. Raises ValueError for unusable arguments and
    FileExistsError if out exists; out appears only when it is complete.
    """
    if storage not in STORAGES or transport not in TRANSPORTS:
        raise ValueError(
            f"storage {storage!r} / transport {transport!r}: {', '.join(STORAGES)} / {', '.join(TRANSPORTS)}"
        )
    rows = [row for row in read_odometry(odometry) if row.t_s <= seconds]
    images = [_read_picture(path, size, transport) for path in pictures]
    if not images:
        raise ValueError("no pictures were given")
    store = get_typestore(Stores.ROS2_JAZZY)
    image_type = "sensor_msgs/msg/CompressedImage" if transport == "compressed" else "sensor_msgs/msg/Image"
    suffix = "/compressed" if transport == "compressed" else ""
    count = 0
    with new_bag(out, storage) as writer:
        odometry_connection = writer.add_connection("/odometry", "nav_msgs/msg/Odometry", typestore=store)
        connections = [
            writer.add_connection(f"/camera/{name}/image{suffix}", image_type, typestore=store) for name in cameras
        ]
        events = sorted(_events(rows, len(cameras), camera_rate_hz), key=lambda event: event[0])
        for t_s, camera, item in tqdm(events, desc=f"writing {out.name}", unit="msg", disable=not progress):
            stamp_ns = start_ns + round(t_s * _NANOSECONDS)
            if camera is None:
                message, connection = odometry_message(store, stamp_ns, item), odometry_connection
            else:
                picture = images[item % len(images)]
                message, connection = _image_message(store, stamp_ns, cameras[camera], picture), connections[camera]
            writer.write(connection, stamp_ns, store.serialize_cdr(message, connection.msgtype))
            count += 1
    return count


def _events(rows: Sequence[OdometryRow], cameras: int, rate_hz: float) -> Iterator[tuple[float, int | None, Any]]:
    """(time, None, odometry row) and (time, camera, picture number); each camera starts at another picture."""
    for row in rows:
        yield row.t_s, None, row
    for frame in range(int(rows[-1].t_s * rate_hz) + 1):
        for camera in range(cameras):
            yield frame / rate_hz, camera, frame + camera


@dataclass(frozen=True)
class _Picture:
    """A file's bytes, or its pixels (RGB uint8 [H, W, 3]) for a raw topic."""

    data: np.ndarray
    raw: bool


def _read_picture(path: Path, size: tuple[int, int] | None, transport: str) -> _Picture:
    try:
        content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    pixels = cv2.imdecode(content, cv2.IMREAD_COLOR) if len(content) else None
    if pixels is None:
        raise ValueError(f"{path} is not a picture")
    if size is not None:
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    if transport == "raw":
        return _Picture(np.ascontiguousarray(pixels[:, :, ::-1]), raw=True)
    if size is None and path.suffix.lower() in (".jpg", ".jpeg"):
        return _Picture(content, raw=False)
    return _Picture(cv2.imencode(".jpg", pixels)[1].reshape(-1), raw=False)


def header(store: Any, stamp_ns: int, frame: str) -> Any:
    """std_msgs/Header of a type store."""
    time = store.types["builtin_interfaces/msg/Time"](sec=stamp_ns // _NANOSECONDS, nanosec=stamp_ns % _NANOSECONDS)
    return store.types["std_msgs/msg/Header"](stamp=time, frame_id=frame)


def _image_message(store: Any, stamp_ns: int, camera: str, picture: _Picture) -> Any:
    head = header(store, stamp_ns, f"camera_{camera}")
    if not picture.raw:
        return store.types["sensor_msgs/msg/CompressedImage"](header=head, format="jpeg", data=picture.data)
    height, width, channels = picture.data.shape
    return store.types["sensor_msgs/msg/Image"](
        header=head,
        height=height,
        width=width,
        encoding="rgb8",
        is_bigendian=0,
        step=width * channels,
        data=picture.data.reshape(-1),
    )


def odometry_message(store: Any, stamp_ns: int, row: OdometryRow) -> Any:
    """nav_msgs/Odometry of a type store: base_link in odom."""
    types = store.types
    vector = types["geometry_msgs/msg/Vector3"]
    pose = types["geometry_msgs/msg/Pose"](
        position=types["geometry_msgs/msg/Point"](*row.position),
        orientation=types["geometry_msgs/msg/Quaternion"](*row.quaternion),
    )
    twist = types["geometry_msgs/msg/Twist"](
        linear=vector(*row.velocity), angular=vector(x=0.0, y=0.0, z=row.yaw_rate_radps)
    )
    covariance = np.zeros(36)
    return types["nav_msgs/msg/Odometry"](
        header=header(store, stamp_ns, "odom"),
        child_frame_id="base_link",
        pose=types["geometry_msgs/msg/PoseWithCovariance"](pose=pose, covariance=covariance),
        twist=types["geometry_msgs/msg/TwistWithCovariance"](twist=twist, covariance=covariance),
    )
