"""A plan as the controller follows it: where to be when, in a fixed frame."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class ImplausiblePlan(ValueError):
    """A plan that must not be followed; the message says why."""


@dataclass(frozen=True)
class PlausibilityLimits:
    """What a plan may ask of the car."""

    max_speed_mps: float = 45.0
    max_acceleration_mps2: float = 12.0
    max_lateral_acceleration_mps2: float = 9.0
    max_speed_step_mps: float = 3.0
    min_duration_s: float = 1.0


@dataclass(frozen=True)
class Reference:
    """Waypoints in the odometry frame, the pose at t0 first.

    time_s [N] after t0, rising; x_m, y_m, yaw_rad (unwrapped), speed_mps [N]; acceleration_mps2 and
    curvature_radpm [N] held over the step that begins at the point.
    """

    t0_ns: int
    plan_id: int
    time_s: NDArray[np.float64]
    x_m: NDArray[np.float64]
    y_m: NDArray[np.float64]
    yaw_rad: NDArray[np.float64]
    speed_mps: NDArray[np.float64]
    acceleration_mps2: NDArray[np.float64]
    curvature_radpm: NDArray[np.float64]

    @classmethod
    def from_plan(
        cls,
        t0_ns: int,
        plan_id: int,
        pose_at_t0: tuple[float, float, float],
        initial_speed_mps: float,
        points: NDArray[np.float64],
    ) -> Reference:
        """Places a plan's points by the pose (x m, y m, yaw rad) of base_link at t0.

        points [N, 6]: time (s), x, y (m), yaw (rad) in base_link at t0, speed (m/s), curvature (1/m, over
        the step that ends there). The order is the message's, so nothing is checked here but the shape.
        """
        x0, y0, yaw0 = pose_at_t0
        cos, sin = math.cos(yaw0), math.sin(yaw0)
        time, x, y, yaw, speed, curvature = points.T
        time = np.concatenate([[0.0], time])
        speed = np.concatenate([[initial_speed_mps], speed])
        step = np.diff(time)
        acceleration = np.diff(speed) / np.where(step > 0, step, np.nan)
        return cls(
            t0_ns=t0_ns,
            plan_id=plan_id,
            time_s=time,
            x_m=np.concatenate([[x0], x0 + cos * x - sin * y]),
            y_m=np.concatenate([[y0], y0 + sin * x + cos * y]),
            yaw_rad=np.unwrap(np.concatenate([[yaw0], yaw0 + yaw])),
            speed_mps=speed,
            acceleration_mps2=np.concatenate([acceleration, acceleration[-1:]]),
            curvature_radpm=np.concatenate([curvature, curvature[-1:]]),
        )

    def check(self, limits: PlausibilityLimits) -> None:
        """Raises ImplausiblePlan that names what is wrong with which point."""
        columns = {name: getattr(self, name) for name in ("time_s", "x_m", "y_m", "yaw_rad", "speed_mps")}
        columns |= {"curvature_radpm": self.curvature_radpm}
        for name, column in columns.items():
            bad = np.flatnonzero(~np.isfinite(column))
            if len(bad):
                raise ImplausiblePlan(f"plan {self.plan_id}: {name} of point {bad[0] - 1} is not finite")
        if len(self.time_s) < 2 or np.any(np.diff(self.time_s) <= 0):
            raise ImplausiblePlan(f"plan {self.plan_id}: its times do not rise")
        if self.time_s[-1] < limits.min_duration_s:
            raise ImplausiblePlan(f"plan {self.plan_id}: it ends after {self.time_s[-1]:.2f} s")
        lateral = self.speed_mps**2 * np.abs(self.curvature_radpm)
        travelled = np.hypot(np.diff(self.x_m), np.diff(self.y_m)) / np.diff(self.time_s)
        mean_speed = np.abs(self.speed_mps[:-1] + self.speed_mps[1:]) / 2
        for name, value, bound in (
            ("speed", np.abs(self.speed_mps), limits.max_speed_mps),
            ("acceleration", np.abs(self.acceleration_mps2), limits.max_acceleration_mps2),
            ("lateral acceleration", lateral, limits.max_lateral_acceleration_mps2),
            ("distance between points against their speed", np.abs(travelled - mean_speed), limits.max_speed_step_mps),
        ):
            worst = int(np.argmax(value))
            if value[worst] > bound:
                raise ImplausiblePlan(
                    f"plan {self.plan_id}: {name} of {value[worst]:.1f} at point {worst} (bound {bound})"
                )

    def at(self, time_s: NDArray[np.floating]) -> Sampled:
        """The plan at times after t0; beyond its end it goes on straight at its last speed.

        Positions are interpolated by cubic Hermite polynomials with the headings and speeds as slopes.
        """
        end = self.time_s[-1]
        inside = np.clip(time_s, 0.0, end)
        k = np.clip(np.searchsorted(self.time_s, inside, side="right") - 1, 0, len(self.time_s) - 2)
        step = self.time_s[k + 1] - self.time_s[k]
        u = (inside - self.time_s[k]) / step
        beyond = np.maximum(time_s - end, 0.0) + np.minimum(time_s, 0.0)
        yaw = self.yaw_rad[k] + u * (self.yaw_rad[k + 1] - self.yaw_rad[k])
        speed = self.speed_mps[k] + u * (self.speed_mps[k + 1] - self.speed_mps[k])
        position = []
        for values, direction in ((self.x_m, np.cos), (self.y_m, np.sin)):
            slope = self.speed_mps * direction(self.yaw_rad)
            position.append(
                (2 * u**3 - 3 * u**2 + 1) * values[k]
                + (u**3 - 2 * u**2 + u) * step * slope[k]
                + (3 * u**2 - 2 * u**3) * values[k + 1]
                + (u**3 - u**2) * step * slope[k + 1]
                + beyond * speed * direction(yaw)
            )
        held = beyond == 0.0
        return Sampled(
            x_m=position[0],
            y_m=position[1],
            yaw_rad=yaw,
            speed_mps=speed,
            acceleration_mps2=np.where(held, self.acceleration_mps2[k], 0.0),
            curvature_radpm=np.where(held, self.curvature_radpm[k], 0.0),
        )


@dataclass(frozen=True)
class Sampled:
    """A reference at given times: arrays of the same length."""

    x_m: NDArray[np.float64]
    y_m: NDArray[np.float64]
    yaw_rad: NDArray[np.float64]
    speed_mps: NDArray[np.float64]
    acceleration_mps2: NDArray[np.float64]
    curvature_radpm: NDArray[np.float64]
