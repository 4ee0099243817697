"""The controller node: trajectory and odometry in, a command 50 times a second out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nav_msgs.msg import Odometry
from rclpy.clock import Clock, ClockType, JumpThreshold
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.subscription import Subscription
from std_msgs.msg import Header

from rsd_planner.control.reference import ImplausiblePlan
from rsd_planner.control.supervisor import Mode
from rsd_planner.control.tracking import TrackingResult
from rsd_planner.messages import odometry_sample, yaw_of
from rsd_planner.msg import ControlCommand, ControllerStatus, Trajectory
from rsd_planner.ros import conversions
from rsd_planner.ros.command_formats import available_formats
from rsd_planner.ros.controller_parameters import ControllerParameters
from rsd_planner.ros.parameters import declare
from rsd_planner.ros.process import run_node
from rsd_planner.ros.qos import PLAN_QOS, STATUS_QOS, sensor_qos

_STATUS_PERIOD_NS = 100_000_000


class ControllerNode(Node):
    """See the module. Raises ValueError if it cannot be configured."""

    def __init__(self) -> None:
        super().__init__("controller")
        self.parameters = declare(self, ControllerParameters)
        try:
            self._controller = self.parameters.controller()
        except OSError as error:
            raise ValueError(f"parameter vehicle: {error.filename} cannot be read: {error.strerror}") from error
        self._commands = self.create_publisher(ControlCommand, "~/command", PLAN_QOS)
        self._formats = [
            (self.create_publisher(kind, topic, PLAN_QOS), convert) for kind, topic, convert in available_formats()
        ]
        self._status = self.create_publisher(ControllerStatus, "~/status", STATUS_QOS)
        self._reported: tuple[Mode, int] = (Mode.WAITING, 0)
        odometry_qos = sensor_qos(self.parameters.odometry_reliability, 10)
        self._inputs: list[tuple[Subscription, type, Callable[[Any], None]]] = [
            (self.create_subscription(kind, topic, callback, qos), kind, callback)
            for kind, topic, callback, qos in (
                (Odometry, "odometry", self._on_odometry, odometry_qos),
                (Trajectory, "trajectory", self._on_trajectory, PLAN_QOS),
            )
        ]
        threshold = JumpThreshold(min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=True)
        self._jump_handle = self.get_clock().create_jump_callback(threshold, post_callback=self._on_clock_jump)
        self.create_timer(1.0 / self.parameters.rate_hz, self._step)
        # Who waits for this node before time begins must hear of it.
        self.create_timer(1.0, self._beat, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _on_trajectory(self, message: Trajectory) -> None:
        try:
            self._controller.on_plan(conversions.reference(message), self._now_ns())
        except ImplausiblePlan as error:
            self.get_logger().warning(f"plan refused: {error}", throttle_duration_sec=1.0)

    def _on_odometry(self, message: Odometry) -> None:
        try:
            sample = odometry_sample(message)
            x, y, _ = sample.position
            yaw = yaw_of(message.pose.pose.orientation)
            self._controller.on_odometry(sample.stamp_ns, x, y, yaw, sample.speed_mps)
        except ValueError as error:
            self.get_logger().warning(f"odometry refused: {error}", throttle_duration_sec=1.0)

    def _take_waiting(self) -> None:
        """Handles what has arrived and not been handled yet: the executor may well run the timer before it."""
        for subscription, kind, callback in self._inputs:
            with subscription.handle:
                while (taken := subscription.handle.take_message(kind, False)) is not None:
                    callback(taken[0])

    def _on_clock_jump(self, _: object) -> None:
        self._controller.clear()
        self._report(self._now_ns(), None)  # a simulator in lock-step waits for it

    def _step(self) -> None:
        self._take_waiting()
        now_ns = self._now_ns()
        output = self._controller.step(now_ns)
        command = output.command
        message = ControlCommand(
            header=Header(stamp=conversions.time_message(now_ns), frame_id="base_link"),
            plan_id=output.plan_id,
            steering_tire_angle=command.steering_rad,
            steering_tire_rotation_rate=output.steering_rate_radps,
            speed=output.target_speed_mps,
            acceleration=command.acceleration_mps2,
            jerk=self.parameters.stop_jerk_mps3,
            minimum_risk=output.mode is Mode.MINIMUM_RISK,
        )
        self._commands.publish(message)
        for publisher, convert in self._formats:
            publisher.publish(convert(message))
        mode, reported_ns = self._reported
        if output.mode is not mode or not 0 <= now_ns - reported_ns < _STATUS_PERIOD_NS:
            if output.mode is not mode:
                self.get_logger().info(f"{output.mode.name.lower()}: {output.reason or f'plan {output.plan_id}'}")
            self._report(now_ns, output.tracking)

    def _beat(self) -> None:
        if self._controller.supervisor.mode is Mode.WAITING:
            self._report(self._now_ns(), None)

    def _report(self, now_ns: int, tracking: TrackingResult | None) -> None:
        supervisor = self._controller.supervisor
        self._reported = (supervisor.mode, now_ns)
        reference = supervisor.reference
        status = ControllerStatus(
            header=Header(stamp=conversions.time_message(now_ns)),
            mode=int(supervisor.mode),
            reason=supervisor.reason,
            plan_id=reference.plan_id if reference else 0,
            plan_age=(now_ns - reference.t0_ns) / 1e9 if reference else -1.0,
            solver_failures=self._controller.solver_failures,
            rejected_plans=supervisor.rejected_plans,
            connected=all(self.count_publishers(subscription.topic_name) for subscription, *_ in self._inputs),
        )
        if tracking is not None:
            status.lateral_error = tracking.error.lateral_m
            status.heading_error = tracking.error.heading_rad
            status.along_error = tracking.error.along_m
            status.speed_error = tracking.speed_error_mps
            status.solve_time = tracking.solve_s
        self._status.publish(status)

    def _now_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)


def main() -> None:
    """Runs the node until SIGINT or SIGTERM. Exit code 1 if it cannot be configured."""
    run_node(ControllerNode)


if __name__ == "__main__":
    main()
