"""Between messages and the planner's own types."""

from __future__ import annotations

import math

import numpy as np
from builtin_interfaces.msg import Duration, Time
from geometry_msgs.msg import Point, Pose, PoseStamped, Quaternion
from nav_msgs.msg import Path
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation
from std_msgs.msg import ColorRGBA, Header
from visualization_msgs.msg import Marker, MarkerArray

from rsd_planner.buffers import NANOSECONDS
from rsd_planner.control.reference import Reference
from rsd_planner.messages import stamp_ns, yaw_of
from rsd_planner.msg import ChainOfCausation, Trajectory, TrajectoryPoint
from rsd_planner.plan import Plan


def time_message(ns: int) -> Time:
    """builtin_interfaces/Time of nanoseconds."""
    return Time(sec=ns // NANOSECONDS, nanosec=ns % NANOSECONDS)


def reference(message: Trajectory) -> Reference:
    """A plan as the controller follows it, in the frame of its pose_at_t0."""
    pose = message.pose_at_t0
    points = [
        (
            point.time_from_start.sec + point.time_from_start.nanosec * 1e-9,
            point.pose.position.x,
            point.pose.position.y,
            yaw_of(point.pose.orientation),
            point.longitudinal_velocity,
            point.curvature,
        )
        for point in message.points
    ]
    return Reference.from_plan(
        stamp_ns(message.header.stamp),
        message.plan_id,
        (pose.position.x, pose.position.y, yaw_of(pose.orientation)),
        message.initial_velocity,
        np.array(points).reshape(-1, 6),
    )


def reasoning_message(plan: Plan) -> ChainOfCausation:
    """The chain of causation with the source of every token and the stage times."""
    return ChainOfCausation(
        header=_header(plan),
        plan_id=plan.plan_id,
        text=plan.reasoning.text,
        tokens=list(plan.reasoning.tokens),
        sources=[int(source) for source in plan.reasoning.sources],
        truncated=plan.reasoning.truncated,
        stages=list(plan.stages_s),
        stage_durations=list(plan.stages_s.values()),
        drafted=[one.drafted for one in plan.reasoning.rounds],
        accepted=[one.accepted for one in plan.reasoning.rounds],
        draft_durations=[one.draft_s for one in plan.reasoning.rounds],
        verify_durations=[one.verify_s for one in plan.reasoning.rounds],
        judge_durations=[one.judge_s for one in plan.reasoning.rounds],
        notes=list(plan.notes),
    )


def trajectory_message(plan: Plan) -> Trajectory:
    """The trajectory in base_link at t0. Raises ValueError if any number in it is not finite."""
    path = plan.trajectory
    numbers = (path.xyz, path.yaw_rad, path.speed_mps, path.accel_mps2, path.curvature_radpm)
    if not all(np.isfinite(column).all() for column in numbers):
        raise ValueError(f"plan {plan.plan_id} holds numbers that are not finite")
    step_ns = round(path.dt_s * NANOSECONDS)
    points = []
    for k in range(len(path.xyz)):
        after_ns = (k + 1) * step_ns
        points.append(
            TrajectoryPoint(
                time_from_start=Duration(sec=after_ns // NANOSECONDS, nanosec=after_ns % NANOSECONDS),
                pose=_pose(path.xyz[k], _yaw_quaternion(path.yaw_rad[k])),
                longitudinal_velocity=float(path.speed_mps[k]),
                acceleration=float(path.accel_mps2[k]),
                yaw_rate=float(path.speed_mps[k] * path.curvature_radpm[k]),
                curvature=float(path.curvature_radpm[k]),
            )
        )
    history = plan.history
    return Trajectory(
        header=_header(plan),
        plan_id=plan.plan_id,
        odometry_frame_id=history.odometry_frame,
        pose_at_t0=_pose(history.position_in_odometry, history.quaternion_in_odometry),
        initial_velocity=float(plan.v0_mps),
        initial_velocity_from_twist=plan.v0_from_twist,
        points=points,
    )


def path_message(plan: Plan) -> Path:
    """The trajectory as a nav_msgs/Path in the odometry frame, placed by the pose at t0."""
    xyz, attitude = _in_odometry(plan)
    step_ns = round(plan.trajectory.dt_s * NANOSECONDS)
    header = _header(plan, frame=plan.history.odometry_frame)
    poses = [
        PoseStamped(
            header=Header(stamp=time_message(plan.t0_ns + (k + 1) * step_ns), frame_id=header.frame_id),
            pose=_pose(xyz[k], attitude[k]),
        )
        for k in range(len(xyz))
    ]
    return Path(header=header, poses=poses)


def markers_message(plan: Plan) -> MarkerArray:
    """The path as a line and the chain of causation as text above the car, in the odometry frame."""
    xyz, _ = _in_odometry(plan)
    header = _header(plan, frame=plan.history.odometry_frame)
    line = Marker(header=header, ns="path", id=0, type=Marker.LINE_STRIP, action=Marker.ADD)
    line.scale.x = 0.3
    line.pose.orientation.w = 1.0
    line.color = ColorRGBA(r=0.1, g=0.8, b=0.3, a=0.9)
    line.points = [Point(x=float(x), y=float(y), z=float(z)) for x, y, z in xyz]
    text = Marker(header=header, ns="chain_of_causation", id=0, type=Marker.TEXT_VIEW_FACING, action=Marker.ADD)
    text.pose = _pose(plan.history.position_in_odometry + np.array([0.0, 0.0, 3.0]), np.array([0.0, 0.0, 0.0, 1.0]))
    text.scale.z = 1.0
    text.color = ColorRGBA(r=1.0, g=1.0, b=1.0, a=1.0)
    text.text = plan.reasoning.text
    for marker in (line, text):
        marker.lifetime = Duration(sec=1)
    return MarkerArray(markers=[line, text])


def _header(plan: Plan, frame: str | None = None) -> Header:
    return Header(stamp=time_message(plan.t0_ns), frame_id=frame or plan.history.base_frame)


def _pose(position: NDArray[np.float64], quaternion: NDArray[np.float64]) -> Pose:
    x, y, z = (float(value) for value in position)
    qx, qy, qz, qw = (float(value) for value in quaternion)
    return Pose(position=Point(x=x, y=y, z=z), orientation=Quaternion(x=qx, y=qy, z=qz, w=qw))


def _yaw_quaternion(yaw_rad: float) -> NDArray[np.float64]:
    return np.array([0.0, 0.0, math.sin(yaw_rad / 2), math.cos(yaw_rad / 2)])


def _in_odometry(plan: Plan) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Waypoints [N, 3] and attitudes [N, 4] (x, y, z, w) in the odometry frame."""
    base = Rotation.from_quat(plan.history.quaternion_in_odometry)
    xyz = base.apply(plan.trajectory.xyz) + plan.history.position_in_odometry
    yaw = Rotation.from_euler("z", np.asarray(plan.trajectory.yaw_rad)[:, None])
    return xyz, (base * yaw).as_quat()
