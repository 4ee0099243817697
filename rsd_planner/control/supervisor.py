"""The first safety layer: when a plan may be followed, and how to stop when it may not.

A stop is a reference like any other: the last path, driven with a speed that falls by bounded
deceleration and jerk.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rsd_planner.control.reference import ImplausiblePlan, PlausibilityLimits, Reference
from rsd_planner.control.vehicle import VehicleState

NANOSECONDS = 1_000_000_000
STANDSTILL_AHEAD_S = 1.5


class Mode(enum.IntEnum):
    """What the controller does; the values are those of rsd_planner/ControllerStatus."""

    WAITING = 0
    FOLLOWING = 1
    MINIMUM_RISK = 2


@dataclass(frozen=True)
class SafetyLimits:
    """When to stop, and how hard. A plan's age is measured from its t0.

    A slow car (below standstill_speed_mps) whose plan stays below that speed for STANDSTILL_AHEAD_S is meant to stand.
    """

    max_plan_age_s: float = 0.5
    max_odometry_age_s: float = 0.25
    max_start_distance_m: float = 3.0
    stop_deceleration_mps2: float = 3.0
    stop_jerk_mps3: float = 6.0
    standstill_speed_mps: float = 0.6
    plausibility: PlausibilityLimits = PlausibilityLimits()  # noqa: RUF009 (frozen)


class Supervisor:
    """Holds the plan that may be followed. A stop is latched until a fresh valid plan is offered."""

    def __init__(self, limits: SafetyLimits) -> None:
        self._limits = limits
        self.mode = Mode.WAITING
        self.reason = "no plan yet"
        self.reference: Reference | None = None
        """What to drive now: the plan, or the stop along its path."""
        self.rejected_plans = 0
        self._newest_t0_ns: int | None = None

    def offer(self, plan: Reference, now_ns: int, state: VehicleState | None) -> None:
        """Takes a plan if it is fresh, newer than the last and plausible; else begins a stop.

        state is the car at about now, None if unknown. Raises ImplausiblePlan if the plan is refused.
        """
        try:
            plan.check(self._limits.plausibility)
            self._check_place(plan, now_ns, state)
        except ImplausiblePlan as error:
            self.rejected_plans += 1
            self.remark(str(error))
            if self.mode is Mode.FOLLOWING:
                self.begin_stop(now_ns, state, str(error))
            raise
        if self._age_s(plan.t0_ns, now_ns) > self._limits.max_plan_age_s:
            return
        if self._newest_t0_ns is not None and plan.t0_ns <= self._newest_t0_ns:
            return
        self._newest_t0_ns = plan.t0_ns
        self.mode, self.reason, self.reference = Mode.FOLLOWING, "", plan

    def watch(self, now_ns: int, odometry_ns: int | None, state: VehicleState | None) -> None:
        """Begins a stop if the plan or the odometry has become too old."""
        if self.mode is not Mode.FOLLOWING or self.reference is None:
            return
        if odometry_ns is None or self._age_s(odometry_ns, now_ns) > self._limits.max_odometry_age_s:
            self.begin_stop(now_ns, None, "odometry is lost")
        elif (age_s := self._age_s(self.reference.t0_ns, now_ns)) > self._limits.max_plan_age_s:
            self.begin_stop(now_ns, state, f"the newest plan is {age_s:.2f} s old")

    def begin_stop(self, now_ns: int, state: VehicleState | None, reason: str) -> None:
        """Latches the minimum-risk stop along the last plan's path."""
        self.mode, self.reason = Mode.MINIMUM_RISK, reason
        if self.reference is not None:
            now_s = (now_ns - self.reference.t0_ns) / NANOSECONDS
            planned = self.reference.at(np.array([now_s]))
            speed = state.speed_mps if state is not None else float(planned.speed_mps[0])
            acceleration = state.acceleration_mps2 if state is not None else float(planned.acceleration_mps2[0])
            self.reference = stop_along(self.reference, now_s, speed, acceleration, self._limits)

    def means_to_stand(self, now_s: float, speed_mps: float) -> bool:
        """Whether the plan that is followed, now_s after its t0, stops or holds the car, or creeps at most.

        A planner that learned to drive seldom says exactly 0 m/s; without this the car creeps over the line at which
        it is to wait.
        """
        limit, plan = self._limits.standstill_speed_mps, self.reference
        if self.mode is not Mode.FOLLOWING or plan is None or abs(speed_mps) >= limit:
            return False
        ahead = plan.at(now_s + np.linspace(0.0, STANDSTILL_AHEAD_S, 16)).speed_mps
        return bool(np.all(np.abs(ahead) < limit))

    def remark(self, reason: str) -> None:
        """Says why no plan is followed yet."""
        if self.mode is Mode.WAITING:
            self.reason = reason

    def clear(self) -> None:
        """Forgets the plan, as after a jump of the clock."""
        self.mode, self.reason, self.reference, self._newest_t0_ns = Mode.WAITING, "no plan yet", None, None

    def _check_place(self, plan: Reference, now_ns: int, state: VehicleState | None) -> None:
        if state is None:
            return
        here = plan.at(np.array([(now_ns - plan.t0_ns) / NANOSECONDS]))
        distance = float(np.hypot(here.x_m[0] - state.x_m, here.y_m[0] - state.y_m))
        if distance > self._limits.max_start_distance_m:
            raise ImplausiblePlan(f"plan {plan.plan_id}: it is {distance:.1f} m away from the car")

    @staticmethod
    def _age_s(stamp_ns: int, now_ns: int) -> float:
        return (now_ns - stamp_ns) / NANOSECONDS


def stop_profile(
    speed_mps: float, acceleration_mps2: float, limits: SafetyLimits, step_s: float = 0.05
) -> NDArray[np.float64]:
    """Speeds (m/s, step_s apart, the first one now) of a stop with bounded deceleration and jerk.

    The deceleration is eased off towards standstill by the same jerk.
    """
    speeds = [abs(speed_mps)]
    acceleration = min(acceleration_mps2, 0.0) if speed_mps >= 0 else 0.0
    step = limits.stop_jerk_mps3 * step_s
    while speeds[-1] > 0.0:
        # Easing off from here loses acceleration^2 / (2 jerk) of speed.
        ease = speeds[-1] <= acceleration**2 / (2 * limits.stop_jerk_mps3) + step * step_s
        target = -0.2 if ease else -limits.stop_deceleration_mps2
        acceleration += min(max(target - acceleration, -step), step)
        speeds.append(max(0.0, speeds[-1] + min(acceleration, -0.05) * step_s))
    return np.array([*speeds, 0.0]) * (1.0 if speed_mps >= 0 else -1.0)


def stop_along(
    path: Reference,
    now_s: float,
    speed_mps: float,
    acceleration_mps2: float,
    limits: SafetyLimits,
    step_s: float = 0.05,
) -> Reference:
    """The path of a reference from now on (seconds after its t0), with the speeds of a stop."""
    speed = stop_profile(speed_mps, acceleration_mps2, limits, step_s)
    travelled = np.concatenate([[0.0], np.cumsum((np.abs(speed[1:]) + np.abs(speed[:-1])) / 2) * step_s])
    # Where the old plan has driven that far; beyond its end (or its own stop) the path goes on straight.
    ahead = np.arange(now_s, max(now_s, path.time_s[-1]) + 1e-9, 0.02)
    old = path.at(ahead)
    distance = np.concatenate([[0.0], np.cumsum(np.hypot(np.diff(old.x_m), np.diff(old.y_m)))])
    distance += np.arange(len(distance)) * 1e-9  # strictly rising, for a plan that stands
    beyond = np.maximum(travelled - distance[-1], 0.0)
    yaw = np.interp(travelled, distance, old.yaw_rad)
    return replace(
        path,
        t0_ns=path.t0_ns + round(now_s * NANOSECONDS),
        time_s=np.arange(len(speed), dtype=np.float64) * step_s,
        x_m=np.interp(travelled, distance, old.x_m) + beyond * np.cos(old.yaw_rad[-1]),
        y_m=np.interp(travelled, distance, old.y_m) + beyond * np.sin(old.yaw_rad[-1]),
        yaw_rad=yaw,
        speed_mps=speed,
        acceleration_mps2=np.append(np.diff(speed) / step_s, 0.0),
        curvature_radpm=np.where(beyond > 0, 0.0, np.interp(travelled, distance, old.curvature_radpm)),
    )
