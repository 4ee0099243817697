"""Evaluation through the real node: a bag played over DDS at its own speed, and the plans that came of it."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor

from rsd_planner.buffers import NotReady
from rsd_planner.evaluation.evaluate import Job
from rsd_planner.evaluation.reading import BagReader
from rsd_planner.messages import stamp_ns, yaw_of
from rsd_planner.msg import ChainOfCausation as ReasoningMessage
from rsd_planner.msg import Trajectory
from rsd_planner.plan import ChainOfCausation, Plan, PlannedTrajectory
from rsd_planner.planner_parameters import PlannerParameters
from rsd_planner.reasoning.economy import Round
from rsd_planner.reasoning.target import TokenSource
from rsd_planner.ros.bringup import NodeDescription, local_environment, planner_nodes
from rsd_planner.ros.monitor import Monitor
from rsd_planner.ros.processes import Processes
from rsd_planner.scene import EgoHistory, Scene

HISTORY_POSES = 16
_START_TIMEOUT_S = 120.0
_SETTLE_S = 2.0  # for the last plans after the bag has ended


class RecordedPlans:
    """What a node said, by t0."""

    def __init__(self, reasonings: dict[int, ReasoningMessage], trajectories: dict[int, Trajectory]) -> None:
        self._messages = {
            stamp_ns(trajectory.header.stamp): (reasonings[plan_id], trajectory)
            for plan_id, trajectory in trajectories.items()
            if plan_id in reasonings
        }

    @property
    def history_poses(self) -> int:
        """Poses of history that a scene must have."""
        return HISTORY_POSES

    def plan(self, scene: Scene) -> Plan:
        """The plan that the node made of this t0. Raises NotReady if it made none."""
        if scene.t0_ns not in self._messages:
            raise NotReady("the node made no plan: it was busy, or its inputs were not complete")
        return plan_of(*self._messages[scene.t0_ns], scene.history)


def plan_of(reasoning: ReasoningMessage, message: Trajectory, history: EgoHistory) -> Plan:
    """The planner's own plan behind its messages; token ids are not in them."""
    points = message.points
    trajectory = PlannedTrajectory(
        dt_s=points[0].time_from_start.sec + points[0].time_from_start.nanosec * 1e-9,
        xyz=np.array([[p.pose.position.x, p.pose.position.y, p.pose.position.z] for p in points]),
        yaw_rad=np.unwrap([yaw_of(point.pose.orientation) for point in points]),
        speed_mps=np.array([point.longitudinal_velocity for point in points]),
        accel_mps2=np.array([point.acceleration for point in points]),
        curvature_radpm=np.array([point.curvature for point in points]),
    )
    return Plan(
        plan_id=message.plan_id,
        t0_ns=stamp_ns(message.header.stamp),
        reasoning=ChainOfCausation(
            text=reasoning.text,
            tokens=tuple(reasoning.tokens),
            ids=(),
            sources=tuple(TokenSource(source) for source in reasoning.sources),
            truncated=reasoning.truncated,
            rounds=tuple(
                Round(*one)
                for one in zip(
                    reasoning.drafted,
                    reasoning.accepted,
                    reasoning.draft_durations,
                    reasoning.verify_durations,
                    reasoning.judge_durations,
                    strict=True,
                )
            ),
        ),
        trajectory=trajectory,
        history=history,
        v0_mps=message.initial_velocity,
        v0_from_twist=message.initial_velocity_from_twist,
        notes=tuple(reasoning.notes),
        stages_s=dict(zip(reasoning.stages, reasoning.stage_durations, strict=True)),
    )


def record(job: Job) -> RecordedPlans:
    """Plays a job's bag into a planner node and returns its plans. Raises RuntimeError if the node does not start."""
    reader = BagReader(job.bag, job.parameters.cameras(), job.topics)
    remappings = {}
    compressed = False
    for camera in job.parameters.cameras():
        topic = reader.topic_of(f"camera/{camera.name}") or ""
        compressed = reader.is_compressed(topic)
        remappings[f"camera/{camera.name}/image" + "/compressed" * compressed] = topic
    remappings["odometry"] = reader.topic_of("odometry") or ""
    reader.close()
    defaults = PlannerParameters()
    overrides = {
        field.name: getattr(job.parameters, field.name)
        for field in dataclasses.fields(PlannerParameters)
        if getattr(job.parameters, field.name) != getattr(defaults, field.name) and field.name != "model"
    }
    overrides["camera_transport"] = "compressed" if compressed else "raw"
    (node,) = planner_nodes(model=job.parameters.model, use_sim_time=True, overrides=overrides)
    node = dataclasses.replace(node, remappings=remappings)
    monitor = replay(job.bag, node, job.out / "log" / job.name)
    return RecordedPlans(monitor.reasonings, monitor.trajectories)


def replay(bag: Path, planner: NodeDescription, log_directory: Path) -> Monitor:
    """Plays a bag into a planner, each in a process of its own, and returns what was heard.

    Raises RuntimeError with the planner's log if it does not start or ends early.
    """
    environment = local_environment()
    os.environ.update(environment)
    context = rclpy.Context()
    context.init()
    monitor = Monitor(planner.name, context)
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
            play = [sys.executable, "-m", "rsd_planner.cli", "bag", "play", str(bag)]
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
