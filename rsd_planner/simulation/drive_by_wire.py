"""What stands between a command and the actuators: its age, its numbers, its way."""

from __future__ import annotations

import math
from collections import deque

from rsd_planner.control.vehicle import Command, Vehicle

_LOST_BRAKING_MPS2 = -3.0


class DriveByWire:
    """Takes commands at any time and gives one for each physics step, dead time later.

    A command that is older than max_age_s is not followed any more: the steering stays and the car brakes with 3 m/s^2
    until a fresh one comes. The limits of the actuators are the vehicle model's.
    """

    def __init__(self, vehicle: Vehicle, step_s: float, max_age_s: float = 0.2) -> None:
        self._way = deque([Command()] * round(vehicle.dead_time_s / step_s))
        self._max_age_s = max_age_s
        self._newest: tuple[float, Command] | None = None
        self.refused = 0
        self.lost_steps = 0
        """Physics steps for which the command was missing or too old."""

    def accept(self, command: Command, time_s: float) -> None:
        """Takes a command by the time of its stamp; what is not finite or not newer is refused and counted."""
        finite = math.isfinite(command.steering_rad) and math.isfinite(command.acceleration_mps2)
        if not finite or (self._newest is not None and time_s <= self._newest[0]):
            self.refused += 1
            return
        self._newest = (time_s, command)

    def act(self, now_s: float) -> Command:
        """The command that reaches the actuators in the step that begins now."""
        command = self._newest[1] if self._newest else Command()
        if self._newest is None or now_s - self._newest[0] > self._max_age_s:
            self.lost_steps += 1
            command = Command(command.steering_rad, _LOST_BRAKING_MPS2)
        self._way.append(command)
        return self._way.popleft()
