"""Closed-loop drives without ROS: a planning function, the controller and the world, in lock-step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from rsd_planner.control.controller import Controller, ControlOutput
from rsd_planner.control.mpc import Mpc
from rsd_planner.control.reference import ImplausiblePlan, Reference
from rsd_planner.control.supervisor import SafetyLimits
from rsd_planner.control.tracking import Tracker
from rsd_planner.control.vehicle import Command, VehicleState
from rsd_planner.simulation import expert
from rsd_planner.simulation.drive_by_wire import DriveByWire
from rsd_planner.simulation.world import STEP_S, World

PLAN_EVERY, CONTROL_EVERY = 10, 2
"""Physics steps between plans (10 Hz) and commands (50 Hz)."""
Policy = Callable[[World], Reference]


@dataclass
class DriveLog:
    """What happened: the ego's state at each physics step, and the world's verdict."""

    states: list[VehicleState] = field(default_factory=list)
    lateral_errors_m: list[float] = field(default_factory=list)
    speed_errors_mps: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    distance_m: float = 0.0


def expert_policy(world: World) -> Reference:
    """The expert's plan for a world, as the controller follows it."""
    return expert.plan(world).reference(world)


class Driver:
    """A policy at 10 Hz with a controller at 50 Hz behind it, asked at each physics step."""

    def __init__(self, world: World, policy: Policy = expert_policy, tracker: Tracker | None = None) -> None:
        self._policy = policy
        tracker = tracker or Mpc(world.vehicle)
        self._controller = Controller(world.vehicle, tracker, SafetyLimits(), CONTROL_EVERY * STEP_S)

    def drive(self, world: World, step: int) -> ControlOutput | None:
        """The command for a physics step, None where the last one stays."""
        now_ns, ego = round(world.time_s * 1e9), world.ego
        self._controller.on_odometry(now_ns, ego.x_m, ego.y_m, ego.yaw_rad, ego.speed_mps)
        if step % PLAN_EVERY == 0:
            # What must not be followed is not: the last plan stays.
            with contextlib.suppress(ImplausiblePlan):
                self._controller.on_plan(self._policy(world), now_ns)
        return self._controller.step(now_ns) if step % CONTROL_EVERY == 0 else None


def drive(
    world: World,
    seconds: float,
    policy: Policy = expert_policy,
    watch: Callable[[World], None] | None = None,
    each_step: Callable[[World], None] | None = None,
    disturbance: Callable[[float, Command], Command] | None = None,
    tracker: Tracker | None = None,
) -> DriveLog:
    """Drives the world's ego by a policy; watch sees the world before each plan, each_step at each physics step.

    disturbance changes what reaches the actuators at a time (s); tracker follows the plans (default MPC). Changes the
    world. Stops early after a collision.
    """
    log, driver, wire = DriveLog(), Driver(world, policy, tracker), DriveByWire(world.vehicle, STEP_S)
    begin_s, _ = world.ego_place()
    for step in range(round(seconds / STEP_S)):
        if each_step is not None:
            each_step(world)
        if watch is not None and step % PLAN_EVERY == 0:
            watch(world)
        output = driver.drive(world, step)
        if output is not None:
            wire.accept(output.command, world.time_s)
            if output.tracking is not None:
                log.lateral_errors_m.append(output.tracking.error.lateral_m)
                log.speed_errors_mps.append(output.tracking.speed_error_mps)
        command = wire.act(world.time_s)
        world.step(command if disturbance is None else disturbance(world.time_s, command))
        log.states.append(world.ego)
        if any(violation.startswith("collision") for violation in world.violations):
            break
    log.violations = list(world.violations)
    log.distance_m = world.ego_place()[0] - begin_s
    return log
