"""Pure pursuit with proportional speed control: the simple tracker, and the MPC's fallback."""

from __future__ import annotations

import math
import time

import numpy as np

from rsd_planner.control.reference import Reference
from rsd_planner.control.tracking import TrackingResult, path_error
from rsd_planner.control.vehicle import Command, Vehicle, VehicleState


class PurePursuit:
    """Steers along the circle to a point ahead on the path (Coulter 1992); cannot fail."""

    def __init__(
        self,
        vehicle: Vehicle,
        period_s: float = 0.02,
        max_jerk_mps3: float = 8.0,
        lookahead_s: float = 0.7,
        lookahead_range_m: tuple[float, float] = (3.0, 20.0),
        speed_gain_per_s: float = 0.8,
        along_gain_per_s2: float = 0.2,
    ) -> None:
        self._vehicle = vehicle
        self._period_s = period_s
        self._max_jerk_mps3 = max_jerk_mps3
        self._lookahead_s = lookahead_s
        self._lookahead_range_m = lookahead_range_m
        self._speed_gain_per_s = speed_gain_per_s
        self._along_gain_per_s2 = along_gain_per_s2

    def track(self, reference: Reference, now_s: float, state: VehicleState, previous: Command) -> TrackingResult:
        """See Tracker."""
        begin = time.perf_counter()
        error = path_error(reference, now_s, state)
        low, high = self._lookahead_range_m
        lookahead = min(max(abs(state.speed_mps) * self._lookahead_s, low), high)
        times = error.time_s + np.arange(0.0, 6.0, 0.05)
        path = reference.at(times)
        dx, dy = path.x_m - state.x_m, path.y_m - state.y_m
        distance = np.hypot(dx, dy)
        far = np.flatnonzero(distance >= lookahead)
        k = int(far[0]) if len(far) else len(times) - 1
        left = -dx[k] * math.sin(state.yaw_rad) + dy[k] * math.cos(state.yaw_rad)
        curvature = 2.0 * left / max(float(distance[k]), low) ** 2
        now = reference.at(np.array([now_s]))
        target = float(now.speed_mps[0])
        acceleration = (
            float(now.acceleration_mps2[0])
            + self._speed_gain_per_s * (target - state.speed_mps)
            - self._along_gain_per_s2 * error.along_m
        )
        vehicle = self._vehicle
        acceleration = min(max(acceleration, -vehicle.max_deceleration_mps2), vehicle.max_acceleration_mps2)
        command = Command(
            _towards(
                previous.steering_rad, vehicle.steering_for(curvature), vehicle.max_steering_rate_radps * self._period_s
            ),
            _towards(previous.acceleration_mps2, acceleration, self._max_jerk_mps3 * self._period_s),
        )
        return TrackingResult(
            command=command,
            steering_rate_radps=(command.steering_rad - previous.steering_rad) / self._period_s,
            jerk_mps3=(command.acceleration_mps2 - previous.acceleration_mps2) / self._period_s,
            target_speed_mps=target,
            error=error,
            speed_error_mps=state.speed_mps - target,
            solved=True,
            solve_s=time.perf_counter() - begin,
        )


def _towards(value: float, target: float, step: float) -> float:
    """value moved towards target by at most step."""
    return value + min(max(target - value, -step), step)
