"""What the simulated car's sensors and the simulator itself say, as messages."""

from __future__ import annotations

import json
import math
from typing import Any

import cv2
import numpy as np
from geometry_msgs.msg import Quaternion, TransformStamped, Vector3
from nav_msgs.msg import Odometry
from numpy.typing import NDArray
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from std_msgs.msg import Header, String
from tf2_msgs.msg import TFMessage

from rsd_planner.plan import ChainOfCausation, Plan, PlannedTrajectory
from rsd_planner.ros.conversions import time_message
from rsd_planner.scene import EgoHistory
from rsd_planner.simulation.cameras import CameraSpec, Rig
from rsd_planner.simulation.expert_plan import STEP_S, ExpertPlan
from rsd_planner.simulation.snapshot import snapshot
from rsd_planner.simulation.world import World

_JPEG_QUALITY = 92


def odometry_message(world: World, stamp_ns: int) -> Odometry:
    """Pose of base_link in odom and its twist."""
    ego = world.ego
    message = Odometry(header=Header(stamp=time_message(stamp_ns), frame_id="odom"), child_frame_id="base_link")
    message.pose.pose.position.x, message.pose.pose.position.y = ego.x_m, ego.y_m
    message.pose.pose.orientation = _yaw(ego.yaw_rad)
    message.twist.twist.linear.x = ego.speed_mps
    message.twist.twist.angular.z = ego.speed_mps * world.vehicle.curvature(ego.steering_rad)
    return message


def transform_message(world: World, stamp_ns: int) -> TFMessage:
    """odom -> base_link."""
    ego = world.ego
    header = Header(stamp=time_message(stamp_ns), frame_id="odom")
    transform = TransformStamped(header=header, child_frame_id="base_link")
    transform.transform.translation = Vector3(x=ego.x_m, y=ego.y_m, z=0.0)
    transform.transform.rotation = _yaw(ego.yaw_rad)
    return TFMessage(transforms=[transform])


def static_transforms(rig: Rig) -> TFMessage:
    """base_link -> the optical frame of each camera."""
    transforms = []
    for camera in rig.cameras:
        transform = TransformStamped(header=Header(frame_id="base_link"), child_frame_id=camera_frame(camera))
        x, y, z = camera.position
        transform.transform.translation = Vector3(x=x, y=y, z=z)
        x, y, z, w = camera.optical_quaternion()
        transform.transform.rotation = Quaternion(x=x, y=y, z=z, w=w)
        transforms.append(transform)
    return TFMessage(transforms=transforms)


def camera_frame(camera: CameraSpec) -> str:
    """Name of a camera's optical frame."""
    return f"camera_{camera.name}"


def camera_info_message(camera: CameraSpec, rig: Rig, stamp_ns: int) -> CameraInfo:
    """Intrinsics of an undistorted pinhole."""
    width, height = rig.resolution
    k = camera.intrinsics(width, height)
    message = CameraInfo(width=width, height=height, distortion_model="plumb_bob", d=[0.0] * 5)
    message.header = Header(stamp=time_message(stamp_ns), frame_id=camera_frame(camera))
    message.k = k.reshape(-1)
    message.r = np.eye(3).reshape(-1)
    message.p = np.hstack([k, np.zeros((3, 1))]).reshape(-1)
    return message


def image_message(
    camera: CameraSpec, picture: NDArray[np.uint8], stamp_ns: int, compressed: bool
) -> Image | CompressedImage:
    """A picture, RGB uint8 [H, W, 3], as rgb8 or JPEG."""
    header = Header(stamp=time_message(stamp_ns), frame_id=camera_frame(camera))
    if compressed:
        options = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
        data = cv2.imencode(".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), options)[1].tobytes()
        return CompressedImage(header=header, format="rgb8; jpeg compressed bgr8", data=data)
    height, width, _ = picture.shape
    message = Image(header=header, height=height, width=width, encoding="rgb8", step=3 * width)
    message.data = picture.tobytes()
    return message


def world_message(world: World, stamp_ns: int) -> String:
    """The true state, see simulation.snapshot, and its stamp_ns."""
    return String(data=json.dumps({"stamp_ns": stamp_ns, **snapshot(world)}))


def expert_plan(world: World, made: ExpertPlan, plan_id: int, t0_ns: int, text: str) -> Plan:
    """The expert's plan as the planner's own kind of plan, so that it goes out as the same messages."""
    ego = world.ego
    points = made.in_base_link(world)
    quaternion = np.array([0.0, 0.0, math.sin(ego.yaw_rad / 2), math.cos(ego.yaw_rad / 2)])
    history = EgoHistory(
        xyz=np.zeros((1, 3)),
        rotation=np.eye(3)[None],
        dt_s=STEP_S,
        speed_mps=ego.speed_mps,
        yaw_rate_radps=ego.speed_mps * world.vehicle.curvature(ego.steering_rad),
        position_in_odometry=np.array([ego.x_m, ego.y_m, 0.0]),
        quaternion_in_odometry=quaternion,
    )
    trajectory = PlannedTrajectory(
        dt_s=STEP_S,
        xyz=np.column_stack([points[:, :2], np.zeros(len(points))]),
        yaw_rad=points[:, 2],
        speed_mps=made.speed_mps,
        accel_mps2=made.acceleration_mps2,
        curvature_radpm=made.curvature_radpm,
    )
    reasoning = ChainOfCausation(text, (), (), (), truncated=False)
    return Plan(plan_id, t0_ns, reasoning, trajectory, history, made.speed_now_mps, v0_from_twist=False)


def world_state(message: String) -> dict[str, Any]:
    """The snapshot in a message. Raises ValueError if it is none."""
    state = json.loads(message.data)
    if not isinstance(state, dict):
        raise ValueError("the world's state is not a JSON object")
    return state


def _yaw(yaw_rad: float) -> Quaternion:
    return Quaternion(z=math.sin(yaw_rad / 2), w=math.cos(yaw_rad / 2))
