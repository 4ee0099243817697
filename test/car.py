"""A car that feeds a planner process and hears it."""

from __future__ import annotations

import time
from collections.abc import Callable

import rclpy
from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from rsd_planner.msg import PlannerStatus
from sensor_msgs.msg import CompressedImage

from rsd_planner.ros.conversions import time_message
from rsd_planner.ros.monitor import Monitor
from rsd_planner.ros.qos import sensor_qos

CAMERAS = ("cross_left", "front_wide", "cross_right", "front_tele")
SMALL = {"camera_transport": "compressed", "min_pixels": 2048, "max_pixels": 8192, "token_budget": 12, "greedy": True}


class Car(Monitor):
    """Drives straight at 5 m/s, sends what a test tells it to and hears the planner."""

    def __init__(self, context: rclpy.Context, jpeg: bytes) -> None:
        super().__init__("planner", context)
        self.jpeg = jpeg
        self.begin_ns = time.time_ns()
        self.spinner = SingleThreadedExecutor(context=context)
        self.spinner.add_node(self)
        reliable = sensor_qos("reliable", 20)
        self.odometry = self.create_publisher(Odometry, "odometry", reliable)
        self.cameras = {
            name: self.create_publisher(CompressedImage, f"camera/{name}/image/compressed", reliable)
            for name in CAMERAS
        }

    def send_pose(self, stamp_ns: int, speed_mps: float = 5.0, edit: Callable[[Odometry], None] | None = None) -> None:
        message = Odometry(child_frame_id="base_link")
        message.header.stamp, message.header.frame_id = time_message(stamp_ns), "odom"
        message.pose.pose.position.x = speed_mps * ((stamp_ns - self.begin_ns) / 1e9)
        message.twist.twist.linear.x = speed_mps
        if edit is not None:
            edit(message)
        self.odometry.publish(message)

    def send_image(self, name: str, stamp_ns: int, data: bytes | None = None) -> None:
        message = CompressedImage(format="jpeg", data=self.jpeg if data is None else data)
        message.header.stamp = time_message(stamp_ns)
        self.cameras[name].publish(message)

    def drive(self, seconds: float, **pose: object) -> None:
        """Odometry at 50 Hz and all cameras at 10 Hz from now on, in real time, with even stamps.

        A machine that is held up sends late, but leaves no gap.
        """
        begin_ns = time.time_ns()
        for tick in range(round(seconds * 50)):
            now = begin_ns + tick * 20_000_000
            self.send_pose(now, **pose)  # type: ignore[arg-type]
            if tick % 5 == 0:
                for name in CAMERAS:
                    self.send_image(name, now)
            self.spin(max(0.0, (now + 20_000_000 - time.time_ns()) / 1e9))

    def spin(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.spinner.spin_once(timeout_sec=left)

    def wait_for(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not in {seconds} s; the last status: {self.status}"
            self.spin(0.1)

    def waits_because(self, text: str) -> bool:
        status = self.status
        return status is not None and status.state == PlannerStatus.STATE_WAITING and text in status.message
