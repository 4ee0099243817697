"""Where the car is along a plan, and the two trackers' common language."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rsd_planner.control.reference import Reference
from rsd_planner.control.vehicle import Command, VehicleState

_SEARCH_S = 1.5
_SEARCH_STEP_S = 0.02
_TIME_WEIGHT_M2PS2 = 0.05  # decides between equal places of a standing plan


@dataclass(frozen=True)
class PathError:
    """The car against the plan's path.

    time_s: the plan's time at the nearest point; lateral_m (left positive) and heading_rad there;
    along_m: how far the car is ahead of where it should be now.
    """

    time_s: float
    lateral_m: float
    heading_rad: float
    along_m: float


@dataclass(frozen=True)
class TrackingResult:
    """A command with its rates, and how it came about."""

    command: Command
    steering_rate_radps: float
    jerk_mps3: float
    target_speed_mps: float
    error: PathError
    speed_error_mps: float
    solved: bool
    """False if a fallback made the command."""
    solve_s: float = 0.0


class Tracker(Protocol):
    """Turns a plan and the car's state into a command, once every control period."""

    def track(self, reference: Reference, now_s: float, state: VehicleState, previous: Command) -> TrackingResult:
        """Command for the car in `state` at `now_s` after the plan's t0; previous is the last command."""


def path_error(reference: Reference, now_s: float, state: VehicleState) -> PathError:
    """Projects the car onto the plan's path near where it should be now."""
    times = np.arange(now_s - _SEARCH_S, now_s + _SEARCH_S, _SEARCH_STEP_S)
    path = reference.at(times)
    distance = (path.x_m - state.x_m) ** 2 + (path.y_m - state.y_m) ** 2
    best = int(np.argmin(distance + _TIME_WEIGHT_M2PS2 * (times - now_s) ** 2))
    dx, dy = state.x_m - path.x_m[best], state.y_m - path.y_m[best]
    cos, sin = math.cos(path.yaw_rad[best]), math.sin(path.yaw_rad[best])
    ahead = dx * cos + dy * sin
    speed = path.speed_mps[best]
    # The rest of the way to the foot of the perpendicular, as far as the grid's step leaves one.
    shift = ahead / speed if abs(speed) > 0.5 else 0.0
    shift = min(max(shift, -_SEARCH_STEP_S), _SEARCH_STEP_S)
    between = np.linspace(now_s, times[best], 16)
    along = float(np.trapezoid(reference.at(between).speed_mps, between)) + ahead
    return PathError(
        time_s=float(times[best] + shift),
        lateral_m=float(-dx * sin + dy * cos),
        heading_rad=math.remainder(state.yaw_rad - float(path.yaw_rad[best]), 2 * math.pi),
        along_m=along,
    )
