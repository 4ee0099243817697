"""A recorded drive replayed over DDS into the planner, shown as it thinks."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from rsd_planner.buffers import NANOSECONDS
from rsd_planner.evaluation.bags import write_sample_bag
from rsd_planner.messages import stamp_ns
from rsd_planner.msg import ChainOfCausation, PlannerStatus, Trajectory
from rsd_planner.ros.bringup import NodeDescription, planner_nodes, process_environment
from rsd_planner.ros.processes import Processes
from rsd_planner.ros.qos import STATUS_QOS, sensor_qos

_START_TIMEOUT_S = 120.0
_SETTLE_S = 2.0  # for the last plans after the bag has ended
_STATES = {
    PlannerStatus.STATE_LOADING: "loading",
    PlannerStatus.STATE_WAITING: "waiting",
    PlannerStatus.STATE_PLANNING: "planning",
    PlannerStatus.STATE_ERROR: "error",
}


class Monitor(Node):
    """Listens to a planner and keeps what it says, in order of arrival."""

    def __init__(self, planner: str, context: rclpy.Context, show: bool = True) -> None:
        super().__init__("planner_monitor", context=context)
        self._show_plans = show
        self.reasonings: dict[int, ChainOfCausation] = {}
        self.trajectories: dict[int, Trajectory] = {}
        self.status: PlannerStatus | None = None
        # Deeper than the planner's own queue: a slow terminal must not lose a plan.
        reliable = sensor_qos("reliable", depth=100)
        self.create_subscription(ChainOfCausation, f"{planner}/reasoning", self._on_reasoning, reliable)
        self.create_subscription(Trajectory, f"{planner}/trajectory", self._on_trajectory, reliable)
        self.create_subscription(PlannerStatus, f"{planner}/status", self._on_status, STATUS_QOS)

    def planner_is_loaded(self) -> bool:
        """True once the planner says that it waits for inputs or plans."""
        return self.status is not None and self.status.state != PlannerStatus.STATE_LOADING

    def _on_reasoning(self, message: ChainOfCausation) -> None:
        self.reasonings[message.plan_id] = message
        self._show(message.plan_id)

    def _on_trajectory(self, message: Trajectory) -> None:
        self.trajectories[message.plan_id] = message
        self._show(message.plan_id)

    def _on_status(self, message: PlannerStatus) -> None:
        if self._show_plans and (self.status is None or message.state != self.status.state):
            print(f"[planner {_STATES[message.state]}] {message.message}", flush=True)
        self.status = message

    def _show(self, plan_id: int) -> None:
        reasoning, trajectory = self.reasonings.get(plan_id), self.trajectories.get(plan_id)
        if reasoning is None or trajectory is None or not self._show_plans:
            return
        last = trajectory.points[-1]
        stages = "  ".join(
            f"{name} {seconds * 1e3:.0f}"
            for name, seconds in zip(reasoning.stages, reasoning.stage_durations, strict=True)
        )
        print(
            f"plan {plan_id:3d}  t0 {stamp_ns(reasoning.header.stamp) / NANOSECONDS:.2f} s  "
            f"v0 {trajectory.initial_velocity:5.2f} m/s  in 6.4 s at x {last.pose.position.x:6.1f} "
            f"y {last.pose.position.y:6.1f} m  | ms: {stages}\n"
            f"          CoC ({len(reasoning.tokens)} tokens{', truncated' if reasoning.truncated else ''}): "
            f"{reasoning.text!r}",
            flush=True,
        )


def local_environment() -> dict[str, str]:
    """Environment for processes among which nothing outside this machine, and no other ROS on it, takes part.

    A ROS_DOMAIN_ID that is set already stays.
    """
    environment = process_environment()
    environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    environment.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))
    return environment


def replay(bag: Path, planner: NodeDescription, log_directory: Path, rate: float = 1.0, show: bool = True) -> Monitor:
    """Plays a bag into a planner, each in a process of its own, and returns what was heard.

    Raises RuntimeError with the planner's log if it does not start or ends early.
    """
    environment = local_environment()
    os.environ.update(environment)
    context = rclpy.Context()
    context.init()
    monitor = Monitor(planner.name, context, show)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(monitor)

    def listen_until(done: Callable[[], bool], timeout_s: float = math.inf) -> bool:
        deadline = time.monotonic() + timeout_s
        while not done():
            if processes.ended().keys() & {"planner"} or time.monotonic() > deadline:
                return False
            executor.spin_once(timeout_sec=0.1)
        return True

    try:
        with Processes(environment, log_directory) as processes:
            processes.start("planner", planner.command())
            play = [sys.executable, "-m", "rsd_planner.cli", "bag", "play", str(bag), "--rate", str(rate)]
            if listen_until(monitor.planner_is_loaded, _START_TIMEOUT_S):
                player = processes.start("player", play)
                if listen_until(lambda: player.poll() is not None):
                    listen_until(lambda: False, timeout_s=_SETTLE_S)
                    return monitor
            log = processes.log("planner").read_text(errors="replace")
            raise RuntimeError(f"the planner did not start or ended early; its log:\n{log}")
    finally:
        executor.shutdown()
        monitor.destroy_node()
        context.try_shutdown()


def run(arguments: argparse.Namespace) -> int:
    """Makes the bag, plays it into the planner, prints plans and a summary; returns the exit code."""
    out: Path = arguments.out
    tables = sorted(arguments.data.rglob("*odometry.csv"))
    pictures = sorted(arguments.data.rglob("*.jpg"))
    if not tables or not pictures:
        raise ValueError(f"{arguments.data} holds no *odometry.csv or no *.jpg")
    bag = out / f"drive_{arguments.storage}"
    shutil.rmtree(bag, ignore_errors=True)
    write_sample_bag(tables[0], pictures, bag, storage=arguments.storage, seconds=arguments.seconds, progress=True)
    overrides: dict[str, str | bool | int | float] = {
        "camera_transport": "compressed",
        # The tiny checkpoint names no bounds; full-size pictures would only cost time.
        "min_pixels": 8192,
        "max_pixels": 16384,
        "token_budget": 24,
    }
    (planner,) = planner_nodes(model=str(arguments.model), use_sim_time=True, overrides=overrides)
    try:
        monitor = replay(bag, planner, out / "log")
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return _summarise(monitor, out)


def _summarise(monitor: Monitor, out: Path) -> int:
    paired = sorted(monitor.reasonings.keys() & monitor.trajectories.keys())
    if not paired:
        print(f"no plan came; see {out / 'log'}", file=sys.stderr)
        return 1
    stamps = [stamp_ns(monitor.trajectories[plan_id].header.stamp) for plan_id in paired]
    stages: dict[str, list[float]] = defaultdict(list)
    for plan_id in paired:
        message = monitor.reasonings[plan_id]
        for name, seconds in zip(message.stages, message.stage_durations, strict=True):
            stages[name].append(seconds)
        stages["total"].append(sum(message.stage_durations))
    span_s = (stamps[-1] - stamps[0]) / NANOSECONDS
    print(f"\n{len(paired)} plans over {span_s:.1f} s of driving", end="")
    print(f" ({(len(paired) - 1) / span_s:.1f} a second)" if span_s > 0 else "")
    print(f"  {'stage':<14}{'median ms':>10}{'max ms':>10}")
    for name, seconds in stages.items():
        print(f"  {name:<14}{statistics.median(seconds) * 1e3:10.1f}{max(seconds) * 1e3:10.1f}")
    if monitor.status is not None:
        print(f"  {'input':<14}{'received':>10}{'missing':>10}{'refused':>10}")
        status = monitor.status
        counts = (status.input_received, status.input_gaps, status.input_rejected)
        for name, *row in zip(status.inputs, *counts, strict=True):
            print(f"  {name:<14}" + "".join(f"{count:>10}" for count in row))
    print(f"bag and logs: {out}")
    return 0
