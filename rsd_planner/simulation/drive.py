"""Closed-loop drives without ROS: a planning function, the controller and the world, in lock-step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rsd_planner.control.controller import Controller
from rsd_planner.control.mpc import Mpc
from rsd_planner.control.reference import Reference
from rsd_planner.control.supervisor import SafetyLimits
from rsd_planner.control.vehicle import Command, VehicleState
from rsd_planner.simulation import expert
from rsd_planner.simulation.world import STEP_S, World

PLAN_EVERY, CONTROL_EVERY = 10, 2
"""Physics steps between plans (10 Hz) and commands (50 Hz)."""


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


def drive(
    world: World,
    seconds: float,
    policy: Callable[[World], Reference] = expert_policy,
    watch: Callable[[World], None] | None = None,
) -> DriveLog:
    """Drives the world's ego by a policy at 10 Hz; watch sees the world before each plan. Changes the world.

    Stops early after a collision.
    """
    vehicle, log = world.vehicle, DriveLog()
    period_s = CONTROL_EVERY * STEP_S
    controller = Controller(vehicle, Mpc(vehicle), SafetyLimits(), period_s)
    waiting: deque[Command] = deque([Command()] * round(vehicle.dead_time_s / STEP_S))
    command = Command()
    begin_s, _ = world.ego_place()
    for step in range(round(seconds / STEP_S)):
        now_ns = round(world.time_s * 1e9)
        ego = world.ego
        controller.on_odometry(now_ns, ego.x_m, ego.y_m, ego.yaw_rad, ego.speed_mps)
        if step % PLAN_EVERY == 0:
            if watch is not None:
                watch(world)
            controller.on_plan(policy(world), now_ns)
        if step % CONTROL_EVERY == 0:
            output = controller.step(now_ns)
            command = output.command
            if output.tracking is not None:
                log.lateral_errors_m.append(output.tracking.error.lateral_m)
                log.speed_errors_mps.append(output.tracking.speed_error_mps)
        waiting.append(command)
        world.step(waiting.popleft())
        log.states.append(world.ego)
        if any(violation.startswith("collision") for violation in world.violations):
            break
    log.violations = list(world.violations)
    log.distance_m = world.ego_place()[0] - begin_s
    return log
