"""What is read of messages by their fields, whether rclpy or a bag reader made them."""

from __future__ import annotations

import math
from typing import Any

from rsd_planner.buffers import NANOSECONDS, OdometrySample


def stamp_ns(time: Any) -> int:
    """Nanoseconds of a builtin_interfaces/Time."""
    return int(time.sec) * NANOSECONDS + int(time.nanosec)


def odometry_sample(message: Any) -> OdometrySample:
    """Pose and twist of a nav_msgs/Odometry. Raises ValueError that names what is not usable.

    A twist that is not finite is passed on as NaN speed: the pose alone is enough to plan.
    """
    pose, twist = message.pose.pose, message.twist.twist
    quaternion = (pose.orientation.x, pose.orientation.y, pose.orientation.z, pose.orientation.w)
    return OdometrySample(
        stamp_ns(message.header.stamp),
        (pose.position.x, pose.position.y, pose.position.z),
        quaternion,
        speed_mps=twist.linear.x if math.isfinite(twist.linear.x) else math.nan,
        yaw_rate_radps=twist.angular.z if math.isfinite(twist.angular.z) else math.nan,
    )


def posed_sample(message: Any) -> OdometrySample:
    """Pose of a geometry_msgs/PoseStamped or PoseWithCovarianceStamped; speed and yaw rate are unknown (NaN).

    Raises ValueError that names what is not usable.
    """
    pose = message.pose.pose if hasattr(message.pose, "pose") else message.pose
    position, q = pose.position, pose.orientation
    return OdometrySample(
        stamp_ns(message.header.stamp),
        (position.x, position.y, position.z),
        (q.x, q.y, q.z, q.w),
        speed_mps=math.nan,
        yaw_rate_radps=math.nan,
    )


def yaw_of(orientation: Any) -> float:
    """Heading (rad) of a quaternion's x axis in the horizontal plane."""
    x, y, z, w = orientation.x, orientation.y, orientation.z, orientation.w
    return math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
