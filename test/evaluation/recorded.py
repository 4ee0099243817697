"""Small bags of a car that drives a known way, made with rosbags alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from rsd_planner.buffers import Camera

STORE = get_typestore(Stores.ROS2_JAZZY)
START_NS = 1_700_000_000 * 10**9
SPEED, YAW_RATE = 8.0, 0.1
CAMERAS = [Camera("left", 0), Camera("front", 1)]


def pose_at(t_s: float) -> tuple[float, float, float]:
    """On a circle of 80 m, from the origin eastwards."""
    yaw = YAW_RATE * t_s
    radius = SPEED / YAW_RATE
    return radius * math.sin(yaw), radius * (1 - math.cos(yaw)), yaw


def header(t_s: float, frame: str = "") -> Any:
    ns = START_NS + round(t_s * 1e9)
    time = STORE.types["builtin_interfaces/msg/Time"](sec=ns // 10**9, nanosec=ns % 10**9)
    return STORE.types["std_msgs/msg/Header"](stamp=time, frame_id=frame)


def odometry(t_s: float) -> Any:
    types = STORE.types
    vector, covariance = types["geometry_msgs/msg/Vector3"], np.zeros(36)
    twist = types["geometry_msgs/msg/Twist"](linear=vector(SPEED, 0.0, 0.0), angular=vector(0.0, 0.0, YAW_RATE))
    return types["nav_msgs/msg/Odometry"](
        header=header(t_s, "odom"),
        child_frame_id="base_link",
        pose=types["geometry_msgs/msg/PoseWithCovariance"](pose=pose(t_s), covariance=covariance),
        twist=types["geometry_msgs/msg/TwistWithCovariance"](twist=twist, covariance=covariance),
    )


def pose(t_s: float) -> Any:
    x, y, yaw = pose_at(t_s)
    types = STORE.types
    return types["geometry_msgs/msg/Pose"](
        position=types["geometry_msgs/msg/Point"](x, y, 0.0),
        orientation=types["geometry_msgs/msg/Quaternion"](0.0, 0.0, math.sin(yaw / 2), math.cos(yaw / 2)),
    )


def image(t_s: float, grey: int = 120) -> Any:
    picture = np.full((32, 48, 3), grey, dtype=np.uint8)
    return STORE.types["sensor_msgs/msg/CompressedImage"](
        header=header(t_s), format="jpeg", data=cv2.imencode(".jpg", picture)[1].reshape(-1)
    )


def write(
    path: Path,
    *,
    seconds: float = 4.0,
    storage: StoragePlugin = StoragePlugin.MCAP,
    topics: dict[str, str] | None = None,
    edit: Callable[[str, float, Any], Any] | None = None,
    setup: Callable[[Writer], None] | None = None,
    odometry_message: Callable[[float], Any] = odometry,
) -> Path:
    """A bag with two cameras at 10 Hz and odometry at 50 Hz. edit may replace a message (None leaves it out)."""
    names = {"odometry": "/odometry", "camera/left": "/camera/left/image/compressed",
             "camera/front": "/camera/front/image/compressed"} | (topics or {})  # fmt: skip
    writer = Writer(path, version=9, storage_plugin=storage)
    if setup is not None:
        setup(writer)
    with writer:
        connections: dict[str, Any] = {}
        for step in range(round(seconds * 50)):
            t_s = step / 50
            roles = ["odometry", *(["camera/left", "camera/front"] if step % 5 == 0 else [])]
            for role in roles:
                message = odometry_message(t_s) if role == "odometry" else image(t_s, 40 + step % 200)
                if edit is not None:
                    message = edit(role, t_s, message)
                if message is None:
                    continue
                if role not in connections:
                    kind = message.__msgtype__
                    connections[role] = writer.add_connection(names[role], kind, typestore=STORE)
                at_ns = START_NS + round(t_s * 1e9)
                writer.write(connections[role], at_ns, STORE.serialize_cdr(message, message.__msgtype__))
    return path
