"""The car as a kinematic bicycle with lagging actuators; the model of simulator and controller alike."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Vehicle:
    """Geometry and limits of a car. The reference point is the middle of the rear axle (base_link).

    Lags are first-order time constants, dead_time_s passes before a command acts at all. Steering is the
    angle of the front wheels.
    """

    wheelbase_m: float = 2.85
    length_m: float = 4.7
    width_m: float = 1.9
    rear_overhang_m: float = 1.0
    max_steering_rad: float = 0.55
    max_steering_rate_radps: float = 0.6
    steering_lag_s: float = 0.12
    max_acceleration_mps2: float = 2.5
    max_deceleration_mps2: float = 8.0
    acceleration_lag_s: float = 0.2
    dead_time_s: float = 0.04

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            positive = field.name != "dead_time_s"
            if not math.isfinite(value) or value < 0 or (positive and value == 0):
                raise ValueError(
                    f"vehicle {field.name} must be {'positive' if positive else 'at least 0'}, not {value}"
                )
        if self.max_steering_rad >= math.pi / 2:
            raise ValueError(f"vehicle max_steering_rad must be below pi / 2, not {self.max_steering_rad}")

    @classmethod
    def from_yaml(cls, path: Path) -> Vehicle:
        """Reads a mapping of field names to numbers. Raises ValueError that names file and key."""
        content = yaml.safe_load(path.read_text())
        known = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or not known >= content.keys():
            unknown = sorted(set(content) - known) if isinstance(content, dict) else content
            raise ValueError(f"{path}: unknown keys {unknown}; known are {', '.join(sorted(known))}")
        return cls(**{key: float(value) for key, value in content.items()})

    def curvature(self, steering_rad: float) -> float:
        """Curvature (1/m) of the rear axle's path."""
        return math.tan(steering_rad) / self.wheelbase_m

    def steering_for(self, curvature_radpm: float) -> float:
        """Steering (rad) that gives a curvature, within the limits."""
        steering = math.atan(curvature_radpm * self.wheelbase_m)
        return min(max(steering, -self.max_steering_rad), self.max_steering_rad)


@dataclass(frozen=True)
class VehicleState:
    """Pose of base_link in a fixed frame (m, rad), signed speed, and what the actuators really do."""

    x_m: float = 0.0
    y_m: float = 0.0
    yaw_rad: float = 0.0
    speed_mps: float = 0.0
    acceleration_mps2: float = 0.0
    steering_rad: float = 0.0


@dataclass(frozen=True)
class Command:
    """What is asked of the actuators."""

    steering_rad: float = 0.0
    acceleration_mps2: float = 0.0


def advance(vehicle: Vehicle, state: VehicleState, command: Command, duration_s: float) -> VehicleState:
    """The state after a command has acted for a short time (dead time is the caller's).

    The actuators approach the command exponentially, inside the vehicle's limits; braking ends at
    standstill. The pose moves along the arc of the step's mean speed and steering.
    """
    steering_target = min(max(command.steering_rad, -vehicle.max_steering_rad), vehicle.max_steering_rad)
    wanted = (steering_target - state.steering_rad) * (1.0 - math.exp(-duration_s / vehicle.steering_lag_s))
    reach = vehicle.max_steering_rate_radps * duration_s
    steering = state.steering_rad + min(max(wanted, -reach), reach)

    target = min(max(command.acceleration_mps2, -vehicle.max_deceleration_mps2), vehicle.max_acceleration_mps2)
    gain = 1.0 - math.exp(-duration_s / vehicle.acceleration_lag_s)
    acceleration = state.acceleration_mps2 + (target - state.acceleration_mps2) * gain
    mean = (state.acceleration_mps2 + acceleration) / 2
    speed = state.speed_mps + mean * duration_s
    if state.speed_mps >= 0.0 > speed:  # brakes hold, they do not drive backwards
        speed, acceleration = 0.0, max(acceleration, 0.0)

    distance = (state.speed_mps + speed) / 2 * duration_s
    turn = distance * vehicle.curvature((state.steering_rad + steering) / 2)
    heading = state.yaw_rad + turn / 2
    chord = distance * (math.sin(turn / 2) / (turn / 2) if abs(turn) > 1e-9 else 1.0)
    return VehicleState(
        x_m=state.x_m + chord * math.cos(heading),
        y_m=state.y_m + chord * math.sin(heading),
        yaw_rad=math.remainder(state.yaw_rad + turn, 2 * math.pi),
        speed_mps=speed,
        acceleration_mps2=acceleration,
        steering_rad=steering,
    )
