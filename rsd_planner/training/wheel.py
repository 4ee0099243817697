"""A model at the wheel of a clip: it meets the situations that it brings itself into, and the expert says what it
should have done there (DAgger, Ross et al. 2011)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rsd_planner.control.reference import Reference
from rsd_planner.plan import Plan
from rsd_planner.planner import Planner, PlannerSettings, PlanningError
from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.simulation.drive import expert_policy
from rsd_planner.simulation.world import World
from rsd_planner.training.samples import scene_of
from rsd_planner.vla.checkpoint import Checkpoint


class ModelAtTheWheel:
    """Plans from what the car has seen, every few periods of 0.1 s; in between the last plan is followed."""

    def __init__(self, checkpoint: Path, every: int = 5, token_budget: int = 48) -> None:
        torch.set_num_threads(1)  # the processes are the parallelism
        settings = PlannerSettings(sampling=Sampling(greedy=True), token_budget=token_budget)
        self._planner = Planner.from_checkpoint(Checkpoint.open(checkpoint), settings)
        self._every = every
        self._plan: Reference | None = None
        self.said = ""
        """The chain of causation of the plan that is followed."""

    def begin(self) -> None:
        """Forgets the last clip's plan."""
        self._plan, self.said = None, ""

    def __call__(
        self, world: World, history: NDArray[np.float64], frames: Mapping[str, Sequence[NDArray[np.uint8]]]
    ) -> Reference:
        """The plan to follow now; see training.clips.Sample for history and frames."""
        due = self._plan is None or round(world.time_s * 10) % self._every == 0
        if due:
            try:
                plan = self._planner.plan(scene_of(world.time_s, history, world.ego.speed_mps, frames))
                self._plan, self.said = _reference(plan, world), plan.reasoning.text
            except PlanningError:
                pass  # the last plan is followed on
        return self._plan if self._plan is not None else expert_policy(world)


def _reference(plan: Plan, world: World) -> Reference:
    made = plan.trajectory
    times = np.arange(1, len(made.xyz) + 1) * made.dt_s
    yaw = np.unwrap(made.yaw_rad)
    points = np.column_stack([times, made.xyz[:, :2], yaw, made.speed_mps, made.curvature_radpm])
    pose = (world.ego.x_m, world.ego.y_m, world.ego.yaw_rad)
    return Reference.from_plan(round(world.time_s * 1e9), plan.plan_id, pose, plan.v0_mps, points)
