"""The expert's plan and its causes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rsd_planner.control.reference import Reference
from rsd_planner.simulation.world import World

STEPS, STEP_S = 64, 0.1


@dataclass(frozen=True)
class Cause:
    """Why the expert does not simply drive on: what kind of thing, and which (an actor's name, or the kind)."""

    kind: str
    name: str


CRUISE = Cause("free road", "free road")


@dataclass(frozen=True)
class ExpertPlan:
    """64 steps of 0.1 s. s_m, d_m (route), x_m, y_m, yaw_rad (world), speed_mps, curvature_radpm [64].

    cause is what holds the car back most in the next three seconds, CRUISE if nothing does; later_cause the
    same over the whole plan; nudge_for names the obstacle that it goes around.
    """

    speed_now_mps: float
    s_m: NDArray[np.float64]
    d_m: NDArray[np.float64]
    x_m: NDArray[np.float64]
    y_m: NDArray[np.float64]
    yaw_rad: NDArray[np.float64]
    speed_mps: NDArray[np.float64]
    acceleration_mps2: NDArray[np.float64]
    curvature_radpm: NDArray[np.float64]
    cause: Cause
    later_cause: Cause
    nudge_for: str | None

    def in_base_link(self, world: World) -> NDArray[np.float64]:
        """The points from the car at the plan's moment [64, 3]: x, y (m), yaw (rad, unwrapped)."""
        ego = world.ego
        cos, sin = math.cos(ego.yaw_rad), math.sin(ego.yaw_rad)
        dx, dy = self.x_m - ego.x_m, self.y_m - ego.y_m
        yaw = np.unwrap(np.concatenate([[0.0], self.yaw_rad - ego.yaw_rad]))
        yaw = yaw[1:] - 2 * math.pi * round(yaw[1] / (2 * math.pi))
        return np.stack([cos * dx + sin * dy, -sin * dx + cos * dy, yaw], axis=1)

    def reference(self, world: World, plan_id: int = 1) -> Reference:
        """The plan as the controller follows it, in the world's frame."""
        ego, times = world.ego, np.arange(1, STEPS + 1) * STEP_S
        points = np.column_stack([times, self.in_base_link(world), self.speed_mps, self.curvature_radpm])
        pose = (ego.x_m, ego.y_m, ego.yaw_rad)
        return Reference.from_plan(round(world.time_s * 1e9), plan_id, pose, self.speed_now_mps, points)
