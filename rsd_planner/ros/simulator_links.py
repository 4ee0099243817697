"""The topics of the simulator: what it says, what it hears, and waiting for what is to come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from std_msgs.msg import String
from tf2_msgs.msg import TFMessage

from rsd_planner.messages import stamp_ns
from rsd_planner.msg import ChainOfCausation, ControlCommand, ControllerStatus, Trajectory
from rsd_planner.ros import world_messages as messages
from rsd_planner.ros.conversions import time_message
from rsd_planner.ros.qos import PLAN_QOS, STATUS_QOS, sensor_qos
from rsd_planner.ros.simulator_parameters import SimulatorParameters
from rsd_planner.simulation.cameras import Rig
from rsd_planner.simulation.world import World

_REPEAT_S = 0.5


class Stopped(Exception):
    """The node is to end."""


class NoAnswer(Exception):
    """An answer did not come in time; the message says which."""


class SimulatorLinks:
    """Publishers and subscriptions of the simulator's node; messages come in on the executor's thread."""

    def __init__(self, node: Node, parameters: SimulatorParameters, rig: Rig) -> None:
        self._node, self._parameters, self._rig = node, parameters, rig
        self._lock = threading.Condition()
        self._stopping = False
        self._command: ControlCommand | None = None
        self._controller = ControllerStatus()
        self._answered_ns = 0
        self._plan: Trajectory | None = None
        self._clock = node.create_publisher(Clock, "/clock", QoSProfile(depth=1))
        self._odometry = node.create_publisher(Odometry, "odometry", sensor_qos("reliable", 100))
        self._transforms = node.create_publisher(TFMessage, "/tf", sensor_qos("reliable", 100))
        self._static_transforms = node.create_publisher(TFMessage, "/tf_static", STATUS_QOS)
        self._world = node.create_publisher(String, "~/world", PLAN_QOS)
        self._images: dict[str, tuple[Publisher, Publisher]] = {}
        if parameters.cameras:
            self._make_camera_publishers()
        self._static_transforms.publish(messages.static_transforms(rig))
        node.create_subscription(ControlCommand, "command", self._on_command, PLAN_QOS)
        node.create_subscription(ControllerStatus, "controller_status", self._on_status, STATUS_QOS)
        node.create_subscription(Trajectory, "trajectory", self._on_trajectory, PLAN_QOS)
        node.create_subscription(ChainOfCausation, "reasoning", self._on_reasoning, PLAN_QOS)

    def stop(self) -> None:
        """Wakes whoever waits here; they get Stopped."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()

    def _on_command(self, message: ControlCommand) -> None:
        with self._lock:
            self._command = message
            self._lock.notify_all()

    def _on_status(self, message: ControllerStatus) -> None:
        with self._lock:
            self._controller = message
            self._lock.notify_all()

    def _on_trajectory(self, message: Trajectory) -> None:
        with self._lock:
            self._plan = message
            self._lock.notify_all()

    def _on_reasoning(self, message: ChainOfCausation) -> None:
        with self._lock:
            self._answered_ns = stamp_ns(message.header.stamp)
            self._lock.notify_all()

    def wait_for_the_others(self) -> None:
        """Until planner and controller are there, or start_timeout_s."""
        deadline = time.monotonic() + self._parameters.start_timeout_s
        while missing := [topic for topic in ("command", "trajectory") if not self._has_publisher(topic)]:
            if time.monotonic() > deadline:
                self._node.get_logger().warning(
                    f"nobody publishes {' and '.join(missing)}: this drive's own driver drives on"
                )
                return
            self.pause(0.1)
        # Each must know the other, not only this node: a plan that finds no controller is lost.
        speaks = self._has_publisher("controller_status")
        while speaks and not self.controller_status().connected and time.monotonic() < deadline:
            self.pause(0.1)
        self.pause(0.5)  # for the other direction of each match

    def _has_publisher(self, topic: str) -> bool:
        return (
            self._node.count_publishers(self._node.resolve_topic_name(topic)) > 0
        )  # counting alone ignores remappings

    def pause(self, seconds: float) -> None:
        """Sleeps. Raises Stopped when the node is to end."""
        with self._lock:
            if self._lock.wait_for(lambda: self._stopping, seconds):
                raise Stopped

    def wait_for(self, there: Callable[[], bool], what: str, repeat: Callable[[], None]) -> None:
        """Until something is there; `repeat` says again, now and then, what is to be answered. Raises NoAnswer."""
        deadline = time.monotonic() + self._parameters.answer_timeout_s
        while True:
            with self._lock:
                if self._lock.wait_for(lambda: self._stopping or there(), _REPEAT_S):
                    if self._stopping:
                        raise Stopped
                    return
            if time.monotonic() > deadline:
                raise NoAnswer(f"{what} within {self._parameters.answer_timeout_s:.0f} s")
            repeat()

    def _make_camera_publishers(self) -> None:
        compressed = self._parameters.camera_transport == "compressed"
        for camera in self._rig.cameras:
            topic = f"camera/{camera.name}"
            kind = CompressedImage if compressed else Image
            image = self._node.create_publisher(
                kind, f"{topic}/image{'/compressed' * compressed}", sensor_qos("reliable", 10)
            )
            self._images[camera.name] = (
                image,
                self._node.create_publisher(CameraInfo, f"{topic}/camera_info", sensor_qos("reliable", 10)),
            )

    def publish_tick(self, world: World, now_ns: int) -> None:
        """Odometry, transform and time."""
        self._odometry.publish(messages.odometry_message(world, now_ns))
        self._transforms.publish(messages.transform_message(world, now_ns))
        self._clock.publish(Clock(clock=time_message(now_ns)))

    def publish_world(self, message: String) -> None:
        """The true state."""
        self._world.publish(message)

    def publish_image(self, name: str, image: Any, info: CameraInfo) -> None:
        """A camera's picture with its intrinsics."""
        picture, calibration = self._images[name]
        picture.publish(image)
        calibration.publish(info)

    def begin(self) -> None:
        """Forgets what belongs to an earlier drive."""
        with self._lock:
            self._command = self._plan = None
            self._answered_ns, self._controller = 0, ControllerStatus()

    def newest_command(self) -> ControlCommand | None:
        """The newest command, of this drive or the last."""
        with self._lock:
            return self._command

    def answered_ns(self) -> int:
        """Stamp of the newest chain of causation.

        A planner publishes it after the trajectory: once it is here, the trajectory has left for the controller too.
        """
        with self._lock:
            return self._answered_ns

    def controller_status(self) -> ControllerStatus:
        """What the controller said last of itself, in this drive."""
        with self._lock:
            return self._controller

    def newest_plan(self) -> Trajectory | None:
        """The newest plan."""
        with self._lock:
            return self._plan
