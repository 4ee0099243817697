"""The controller's command in the types of other stacks, where their packages are installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from rsd_planner.msg import ControlCommand


def _ackermann(module: Any, command: ControlCommand) -> Any:
    drive = module.AckermannDrive(
        steering_angle=command.steering_tire_angle,
        steering_angle_velocity=abs(command.steering_tire_rotation_rate),
        speed=command.speed,
        acceleration=command.acceleration,
        jerk=command.jerk,
    )
    return module.AckermannDriveStamped(header=command.header, drive=drive)


def _autoware(module: Any, command: ControlCommand) -> Any:
    stamp = command.header.stamp
    lateral = module.Lateral(
        stamp=stamp,
        control_time=stamp,
        steering_tire_angle=command.steering_tire_angle,
        steering_tire_rotation_rate=command.steering_tire_rotation_rate,
        is_defined_steering_tire_rotation_rate=True,
    )
    longitudinal = module.Longitudinal(
        stamp=stamp,
        control_time=stamp,
        velocity=command.speed,
        acceleration=command.acceleration,
        jerk=command.jerk,
        is_defined_acceleration=True,
        is_defined_jerk=True,
    )
    return module.Control(stamp=stamp, control_time=stamp, lateral=lateral, longitudinal=longitudinal)


# package, type, topic, conversion
_FORMATS: tuple[tuple[str, str, str, Callable[[Any, ControlCommand], Any]], ...] = (
    ("ackermann_msgs", "AckermannDriveStamped", "~/ackermann", _ackermann),
    ("autoware_control_msgs", "Control", "~/autoware", _autoware),
)


def available_formats() -> list[tuple[type, str, Callable[[ControlCommand], Any]]]:
    """Message type, topic and conversion of each format whose package is installed."""
    found: list[tuple[type, str, Callable[[ControlCommand], Any]]] = []
    for package, kind, topic, convert in _FORMATS:
        try:
            module = importlib.import_module(f"{package}.msg")
        except ModuleNotFoundError:
            continue
        found.append((getattr(module, kind), topic, partial(convert, module)))
    return found
