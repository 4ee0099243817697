"""What the planner decides: a chain of causation with the source of every token, and a trajectory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rsd_planner.reasoning.economy import Round
from rsd_planner.reasoning.target import TokenSource
from rsd_planner.scene import EgoHistory


@dataclass(frozen=True)
class ChainOfCausation:
    """Why the car drives so. tokens, ids and sources have one entry a token, the end tokens included.

    rounds of drafting and verifying, if the two reasoners wrote it together.
    """

    text: str
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    sources: tuple[TokenSource, ...]
    truncated: bool
    rounds: tuple[Round, ...] = ()


@dataclass(frozen=True)
class PlannedTrajectory:
    """Waypoint k lies at t0 + (k + 1) dt_s, in base_link at t0.

    xyz [N, 3] m; yaw_rad, speed_mps [N] at the waypoint; accel_mps2, curvature_radpm [N] held over
    the step that ends there.
    """

    dt_s: float
    xyz: NDArray[np.float64]
    yaw_rad: NDArray[np.float64]
    speed_mps: NDArray[np.float64]
    accel_mps2: NDArray[np.float64]
    curvature_radpm: NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """One cycle's decision. plan_id counts a planner's cycles; t0_ns is the stamp of its input."""

    plan_id: int
    t0_ns: int
    reasoning: ChainOfCausation
    trajectory: PlannedTrajectory
    history: EgoHistory
    v0_mps: float
    """Speed at t0 that the trajectory starts from."""
    v0_from_twist: bool
    """True if the speed fitted to the history was implausible and the odometry's twist took its place."""
    notes: tuple[str, ...] = ()
    """What a person should know about this plan."""
    stages_s: dict[str, float] = field(default_factory=dict)
    """Seconds of each stage, in order; total_s is their sum."""
    alternatives: tuple[PlannedTrajectory, ...] = ()
    """Further samples of the trajectory, if they were asked for."""
    alternative_reasonings: tuple[ChainOfCausation, ...] = ()
    """Their chains of causation, if they have their own."""

    @property
    def total_s(self) -> float:
        """Seconds of the whole cycle."""
        return sum(self.stages_s.values())
