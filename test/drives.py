"""Recorded-looking drives for controller tests: a true path, plans cut from it, a simulated car."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rsd_planner.control.controller import Controller, ControlOutput
from rsd_planner.control.reference import ImplausiblePlan, Reference
from rsd_planner.control.vehicle import Command, Vehicle, VehicleState, advance

STEP_S = 0.01


class TruePath:
    """The path of given speed (m/s) and curvature (1/m) over time, integrated finely from the origin."""

    def __init__(self, speed: Callable[[float], float], curvature: Callable[[float], float], seconds: float) -> None:
        time = np.arange(0.0, seconds + 8.0, STEP_S)
        self.speed = np.array([speed(t) for t in time])
        self.curvature = np.array([curvature(t) for t in time])

        def integral(rate: np.ndarray) -> np.ndarray:
            return np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2) * STEP_S])

        self.yaw = integral(self.speed * self.curvature)
        self.x = integral(self.speed * np.cos(self.yaw))
        self.y = integral(self.speed * np.sin(self.yaw))

    def points(self, t_s: float) -> tuple[tuple[float, float, float], float, np.ndarray]:
        """Pose at t0, speed at t0 and a plan's 64 points as Reference.from_plan takes them."""
        i = round(t_s / STEP_S)
        ahead = i + 10 * np.arange(1, 65)
        cos, sin = np.cos(self.yaw[i]), np.sin(self.yaw[i])
        dx, dy = self.x[ahead] - self.x[i], self.y[ahead] - self.y[i]
        columns = [
            0.1 * np.arange(1, 65),
            cos * dx + sin * dy,
            -sin * dx + cos * dy,
            self.yaw[ahead] - self.yaw[i],
            self.speed[ahead],
            self.curvature[ahead - 5],
        ]
        return (self.x[i], self.y[i], self.yaw[i]), float(self.speed[i]), np.stack(columns, axis=1)

    def plan(self, t_s: float, plan_id: int = 1) -> Reference:
        pose, speed, points = self.points(t_s)
        return Reference.from_plan(round(t_s * 1e9), plan_id, pose, speed, points)

    def lateral(self, state: VehicleState) -> float:
        k = int(np.argmin((self.x - state.x_m) ** 2 + (self.y - state.y_m) ** 2))
        return float(-(state.x_m - self.x[k]) * np.sin(self.yaw[k]) + (state.y_m - self.y[k]) * np.cos(self.yaw[k]))


@dataclass
class Drive:
    """What a closed loop did, one entry a simulation step (states) or a control period (outputs)."""

    states: list[VehicleState] = field(default_factory=list)
    outputs: list[ControlOutput] = field(default_factory=list)
    lateral: list[float] = field(default_factory=list)
    refused: int = 0


def drive(
    path: TruePath,
    controller: Controller,
    vehicle: Vehicle,
    seconds: float,
    start: VehicleState,
    plan_age_s: float = 0.15,
    plans_until_s: float = np.inf,
    odometry_until_s: float = np.inf,
) -> Drive:
    """Car, controller at 50 Hz, odometry at 100 Hz and plans at 10 Hz that arrive plan_age_s late."""
    state, result = start, Drive()
    acting: deque[Command] = deque([Command()] * round(vehicle.dead_time_s / STEP_S))
    command = Command()
    for step in range(round(seconds / STEP_S)):
        now_s = step * STEP_S
        now_ns = round(now_s * 1e9)
        if now_s <= odometry_until_s:
            controller.on_odometry(now_ns, state.x_m, state.y_m, state.yaw_rad, state.speed_mps)
        t0_s = now_s - plan_age_s
        if step % 10 == 5 and 0 <= t0_s <= plans_until_s:
            try:
                controller.on_plan(path.plan(round(t0_s, 2), step), now_ns)
            except ImplausiblePlan:
                result.refused += 1
        if step % 2 == 0:
            result.outputs.append(controller.step(now_ns))
            command = result.outputs[-1].command
        acting.append(command)
        state = advance(vehicle, state, acting.popleft(), STEP_S)
        result.states.append(state)
        result.lateral.append(path.lateral(state))
    return result
