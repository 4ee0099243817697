"""The controller node in a process of its own, over DDS, driving a simulated car in real time."""

from __future__ import annotations

import math
import subprocess
import sys
import time

import numpy as np
import pytest
import rclpy
from drives import TruePath
from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rsd_planner.msg import ControlCommand, ControllerStatus, Trajectory

from rsd_planner.control.vehicle import Command, Vehicle, VehicleState, advance
from rsd_planner.plan import ChainOfCausation, Plan, PlannedTrajectory
from rsd_planner.ros import conversions
from rsd_planner.ros.bringup import local_environment
from rsd_planner.ros.qos import PLAN_QOS, STATUS_QOS, sensor_qos
from rsd_planner.scene import EgoHistory

CAR = Vehicle()
PATH = TruePath(lambda t: 8.0, lambda t: 0.02 * math.sin(0.8 * t), 14.0)


def trajectory_message(path: TruePath, t_s: float, stamp_ns: int, plan_id: int) -> Trajectory:
    """The message that a planner would send for a plan cut from the true path."""
    (x, y, yaw), speed, points = path.points(t_s)
    history = EgoHistory(
        xyz=np.zeros((1, 3)),
        rotation=np.eye(3)[None],
        dt_s=0.1,
        speed_mps=speed,
        yaw_rate_radps=0.0,
        position_in_odometry=np.array([x, y, 0.0]),
        quaternion_in_odometry=np.array([0.0, 0.0, math.sin(yaw / 2), math.cos(yaw / 2)]),
    )
    xyz = np.column_stack([points[:, 1:3], np.zeros(64)])
    accel = np.diff(points[:, 4], prepend=speed) / 0.1
    planned = PlannedTrajectory(0.1, xyz, points[:, 3], points[:, 4], accel, points[:, 5])
    plan = Plan(plan_id, stamp_ns, ChainOfCausation("", (), (), (), False), planned, history, speed, False)
    return conversions.trajectory_message(plan)


class SimulatedCar(Node):
    def __init__(self, context: rclpy.Context) -> None:
        super().__init__("car", context=context)
        self.commands: list[ControlCommand] = []
        self.statuses: list[ControllerStatus] = []
        self.state = VehicleState(speed_mps=8.0)
        self.odometry = self.create_publisher(Odometry, "odometry", sensor_qos("best_effort", 10))
        self.trajectory = self.create_publisher(Trajectory, "trajectory", PLAN_QOS)
        self.create_subscription(ControlCommand, "controller/command", self.commands.append, PLAN_QOS)
        self.create_subscription(ControllerStatus, "controller/status", self.statuses.append, STATUS_QOS)

    def send_odometry(self, stamp_ns: int) -> None:
        message = Odometry()
        message.header.stamp = conversions.time_message(stamp_ns)
        message.pose.pose.position.x, message.pose.pose.position.y = self.state.x_m, self.state.y_m
        message.pose.pose.orientation.z = math.sin(self.state.yaw_rad / 2)
        message.pose.pose.orientation.w = math.cos(self.state.yaw_rad / 2)
        message.twist.twist.linear.x = self.state.speed_mps
        self.odometry.publish(message)


def test_it_follows_and_then_stops_when_the_plans_end(processes):
    context = rclpy.Context()
    context.init()
    car = SimulatedCar(context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(car)
    processes.start("controller", [sys.executable, "-m", "rsd_planner.ros.nodes.controller"])
    deadline = time.monotonic() + 30
    while not car.commands:
        executor.spin_once(timeout_sec=0.1)
        assert time.monotonic() < deadline
    assert not car.commands[-1].minimum_risk and car.commands[-1].plan_id == 0  # held: no plan yet

    begin_ns, lateral, last_command = time.time_ns(), [], Command()
    for step in range(900):
        due_s = step * 0.01
        while (left := begin_ns / 1e9 + due_s - time.time()) > 0:
            executor.spin_once(timeout_sec=left)
        now_ns = begin_ns + round(due_s * 1e9)
        car.send_odometry(now_ns)
        if step % 10 == 0 and due_s < 5.0:
            car.trajectory.publish(trajectory_message(PATH, due_s, now_ns, plan_id=step + 1))
        if car.commands:
            last_command = Command(car.commands[-1].steering_tire_angle, car.commands[-1].acceleration)
        car.state = advance(CAR, car.state, last_command, 0.01)
        lateral.append(PATH.lateral(car.state))
        if step == 450:
            following = len(car.commands)
    modes = [status.mode for status in car.statuses]
    assert ControllerStatus.MODE_FOLLOWING in modes
    # The real-time loop of the test itself jitters, so the bounds are wider than in the simulated loops.
    assert np.sqrt(np.mean(np.square(lateral[200:500]))) < 0.15
    assert following > 150 and car.commands[following - 1].plan_id > 0
    last = car.statuses[-1]
    assert last.mode == ControllerStatus.MODE_MINIMUM_RISK and "the newest plan is" in last.reason
    assert car.commands[-1].minimum_risk and car.state.speed_mps == pytest.approx(0.0, abs=0.05)
    assert last.solver_failures == 0 and last.rejected_plans == 0
    assert processes.stop() == {"controller": 0}
    executor.shutdown()
    car.destroy_node()
    context.try_shutdown()


def test_before_time_begins_it_says_whether_it_is_connected(processes):
    """Simulated time, and no clock: only then does the simulator know that a plan will reach the controller."""
    context = rclpy.Context()
    context.init()
    watcher, statuses = rclpy.create_node("watcher", context=context), []
    watcher.create_subscription(ControllerStatus, "controller/status", statuses.append, STATUS_QOS)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(watcher)
    clockless = ["--ros-args", "-p", "use_sim_time:=true"]
    processes.start("controller", [sys.executable, "-m", "rsd_planner.ros.nodes.controller", *clockless])

    def wait_for(connected: bool) -> None:
        deadline = time.monotonic() + 30
        while not statuses or statuses[-1].connected is not connected:
            executor.spin_once(timeout_sec=0.1)
            assert time.monotonic() < deadline

    odometry = watcher.create_publisher(Odometry, "odometry", sensor_qos("best_effort", 10))
    wait_for(connected=False)
    plans = watcher.create_publisher(Trajectory, "trajectory", PLAN_QOS)
    wait_for(connected=True)
    assert statuses[-1].mode == ControllerStatus.MODE_WAITING and statuses[-1].reason == "no plan yet"
    assert odometry.get_subscription_count() == plans.get_subscription_count() == 1
    executor.shutdown()
    watcher.destroy_node()
    context.try_shutdown()


def test_a_controller_that_cannot_start_says_why(tmp_path):
    command = [sys.executable, "-m", "rsd_planner.ros.nodes.controller", "--ros-args", "-p"]
    for override, message in (
        (f"vehicle:={tmp_path / 'no.yaml'}", "no.yaml cannot be read: No such file"),
        ("tracker:=luck", "parameter tracker is 'luck'; it must be one of mpc, pure_pursuit"),
    ):
        run = subprocess.run([*command, override], env=local_environment(), capture_output=True, text=True, timeout=60)
        assert run.returncode == 1 and message in run.stderr and "Traceback" not in run.stderr, run.stderr
