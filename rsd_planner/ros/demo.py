"""One scenario driven closed-loop by the model, shown as it thinks, with a picture at the end."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from numpy.typing import NDArray
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import Image
from std_msgs.msg import String

from rsd_planner.buffers import NANOSECONDS
from rsd_planner.evaluation.drive_picture import Moment, draw_drive
from rsd_planner.images import decode_image
from rsd_planner.messages import stamp_ns
from rsd_planner.msg import ChainOfCausation, PlannerStatus, Trajectory
from rsd_planner.ros.bringup import local_environment
from rsd_planner.ros.closed_loop import RESULTS, drive_nodes
from rsd_planner.ros.monitor import Monitor
from rsd_planner.ros.processes import Processes
from rsd_planner.ros.qos import PLAN_QOS, sensor_qos
from rsd_planner.ros.simulator_parameters import SimulatorParameters
from rsd_planner.ros.world_messages import world_state
from rsd_planner.simulation.cameras import Rig
from rsd_planner.simulation.scenarios import build
from rsd_planner.simulation.verdict import read_verdicts, table

_STATES = {
    PlannerStatus.STATE_LOADING: "loading",
    PlannerStatus.STATE_WAITING: "waiting",
    PlannerStatus.STATE_PLANNING: "planning",
    PlannerStatus.STATE_ERROR: "error",
}


class _Watcher(Monitor):
    """Prints each plan, and keeps pictures and the true state for the picture of the drive."""

    def __init__(self, context: rclpy.Context, rig: Rig) -> None:
        super().__init__("planner", context)
        self.worlds: dict[int, dict[str, Any]] = {}
        self.pictures: dict[int, dict[str, NDArray[np.uint8]]] = defaultdict(dict)
        self._begin_ns: int | None = None
        self.create_subscription(String, "simulator/world", self._on_world, PLAN_QOS)
        for camera in rig.cameras:
            self.create_subscription(
                Image,
                f"camera/{camera.name}/image",
                lambda message, name=camera.name: self._on_image(name, message),
                sensor_qos("reliable", depth=20),
            )

    def on_plan(self, reasoning: ChainOfCausation, trajectory: Trajectory) -> None:
        """One line."""
        now_ns = stamp_ns(trajectory.header.stamp)
        self._begin_ns = self._begin_ns or now_ns
        print(
            f"{(now_ns - self._begin_ns) / NANOSECONDS:5.1f} s  {trajectory.initial_velocity:5.1f} m/s  "
            f"{sum(reasoning.stage_durations) * 1e3:4.0f} ms  {reasoning.text}",
            flush=True,
        )

    def on_status(self, message: PlannerStatus) -> None:
        """Says what the planner does when that changes."""
        if self.status is None or message.state != self.status.state:
            print(f"[planner {_STATES[message.state]}] {message.message}", flush=True)
        super().on_status(message)

    def _on_world(self, message: String) -> None:
        state = world_state(message)
        self.worlds[int(state["stamp_ns"])] = state

    def _on_image(self, name: str, message: Image) -> None:
        self.pictures[stamp_ns(message.header.stamp)][name] = decode_image(message)

    def moments(self) -> list[Moment]:
        """The plans of which state and pictures are known, in order."""
        found = []
        for plan_id in sorted(self.trajectories.keys() & self.reasonings.keys()):
            trajectory = self.trajectories[plan_id]
            now_ns = stamp_ns(trajectory.header.stamp)
            if now_ns in self.worlds and now_ns in self.pictures:
                points = [(point.pose.position.x, point.pose.position.y) for point in trajectory.points]
                speeds = [point.longitudinal_velocity for point in trajectory.points]
                text = self.reasonings[plan_id].text
                found.append(
                    Moment(self.worlds[now_ns], self.pictures[now_ns], np.array(points), np.array(speeds), text)
                )
        return found


def run(arguments: argparse.Namespace) -> int:
    """Drives, prints plans and a summary, draws the picture; exit code 1 if no drive came about."""
    build(arguments.scenario, arguments.split, arguments.first_seed)
    out: Path = arguments.out
    results = out / RESULTS
    results.unlink(missing_ok=True)
    nodes = drive_nodes(arguments, results)
    rig = SimulatorParameters(rig=str(nodes[-1].overrides.get("rig", ""))).camera_rig()
    environment = local_environment()
    os.environ.update(environment)
    context = rclpy.Context()
    context.init()
    watcher = _Watcher(context, rig)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(watcher)
    try:
        with Processes(environment, out / "log") as processes:
            for node in nodes:
                processes.start(node.name, node.command())
            while not (ended := processes.ended()):
                executor.spin_once(timeout_sec=0.1)
            verdicts = read_verdicts(results)
            if not verdicts:
                name, code = next(iter(ended.items()))
                tail = processes.log(name).read_text(errors="replace")[-2000:]
                print(f"{name} ended early with exit code {code}; its log:\n{tail}", file=sys.stderr)
                return 1
    finally:
        executor.shutdown()
        watcher.destroy_node()
        context.try_shutdown()
    _summarise(watcher)
    print(table(verdicts))
    print("; ".join((*verdicts[0].failures, *verdicts[0].notes)) or "no rule was broken")
    moments = watcher.moments()
    if moments:
        title = f"{arguments.scenario}, {arguments.split} drive {arguments.first_seed}"
        print(f"picture of the drive: {draw_drive(out / 'drive.png', rig, moments, title)}")
    print(f"logs: {out / 'log'}")
    return 0


def _summarise(monitor: Monitor) -> None:
    """A table of the stages' times."""
    stages: dict[str, list[float]] = defaultdict(list)
    for message in monitor.reasonings.values():
        for name, seconds in zip(message.stages, message.stage_durations, strict=True):
            stages[name].append(seconds)
        stages["whole cycle"].append(sum(message.stage_durations))
    print(f"\n{len(monitor.reasonings)} plans\n  {'stage':<14}{'median ms':>10}{'max ms':>10}")
    for name, seconds in stages.items():
        print(f"  {name:<14}{statistics.median(seconds) * 1e3:10.1f}{max(seconds) * 1e3:10.1f}")
