"""A node that listens to a planner."""

from __future__ import annotations

import rclpy
from rclpy.node import Node

from rsd_planner.msg import ChainOfCausation, PlannerStatus, Trajectory
from rsd_planner.ros.qos import STATUS_QOS, sensor_qos


class Monitor(Node):
    """Keeps what a planner says, by the numbers of its plans in order of arrival."""

    def __init__(self, planner: str, context: rclpy.Context) -> None:
        super().__init__("planner_monitor", context=context)
        self.reasonings: dict[int, ChainOfCausation] = {}
        self.trajectories: dict[int, Trajectory] = {}
        self.status: PlannerStatus | None = None
        # Deeper than the planner's own queue: a slow terminal must not lose a plan.
        reliable = sensor_qos("reliable", depth=100)
        self.create_subscription(ChainOfCausation, f"{planner}/reasoning", self._on_reasoning, reliable)
        self.create_subscription(Trajectory, f"{planner}/trajectory", self._on_trajectory, reliable)
        self.create_subscription(PlannerStatus, f"{planner}/status", self.on_status, STATUS_QOS)

    def planner_is_loaded(self) -> bool:
        """True once the planner says that it waits for inputs or plans."""
        return self.status is not None and self.status.state != PlannerStatus.STATE_LOADING

    def on_plan(self, reasoning: ChainOfCausation, trajectory: Trajectory) -> None:
        """Called once for each plan of which both parts are here."""

    def on_status(self, message: PlannerStatus) -> None:
        """Keeps the newest status."""
        self.status = message

    def _on_reasoning(self, message: ChainOfCausation) -> None:
        self.reasonings[message.plan_id] = message
        self._pair(message.plan_id)

    def _on_trajectory(self, message: Trajectory) -> None:
        self.trajectories[message.plan_id] = message
        self._pair(message.plan_id)

    def _pair(self, plan_id: int) -> None:
        reasoning, trajectory = self.reasonings.get(plan_id), self.trajectories.get(plan_id)
        if reasoning is not None and trajectory is not None:
            self.on_plan(reasoning, trajectory)
