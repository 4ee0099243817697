"""The chain of causation of a driving situation: what the driver decides, and because of what.

The meaning comes from the world's true state and the expert's plan. A cause is named only if the plan
changes when it is taken out of the world.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rsd_planner.simulation import expert
from rsd_planner.simulation.expert_plan import CRUISE, ExpertPlan
from rsd_planner.simulation.world import World

_Metres = TypeVar("_Metres", float, NDArray[np.float64])

LONGITUDINAL = ("keep speed", "speed up", "slow down", "stop", "wait", "set off")
LATERAL = ("keep lane", "nudge left", "nudge right")
DISTANCES = ("close", "near", "far")
SIDES = ("left", "ahead", "right")
CAUSES = (
    "free road",
    "curve",
    "red light",
    "amber light",
    "stop sign",
    "lead",
    "braking lead",
    "pedestrian",
    "hidden crossing",
    "obstacle",
    "oncoming traffic",
    "crossing traffic",
)
"""Kinds of causes. Which attributes a cause has depends on its kind, see Meaning."""

_SPEED_CHANGE_MPS, _OFFSET_CHANGE_M = 0.5, 0.3


@dataclass(frozen=True)
class Meaning:
    """What a chain of causation says.

    what (a class such as car), colour, side and distance describe the thing behind a cause: lead and braking lead
    (what, colour, distance), pedestrian (colour, side, distance), hidden crossing (what, colour, side), oncoming and
    crossing traffic (what, colour; the latter with side), obstacle (what, side), lights and stop sign (distance), curve
    (side).
    around is the class of what is nudged around, where that is not the cause itself.
    """

    longitudinal: str
    lateral: str
    cause: str
    what: str | None = None
    colour: str | None = None
    side: str | None = None
    distance: str | None = None
    around: str | None = None


def meaning(world: World, plan: ExpertPlan | None = None) -> Meaning:
    """The meaning of a moment. plan saves making the expert's plan again."""
    plan = plan or expert.plan(world)
    longitudinal = _longitudinal(plan)
    lateral, around = "keep lane", None
    if plan.nudge_for is not None and _changes(world, plan, plan.nudge_for):
        obstacle = next(actor for actor in world.actors if actor.name == plan.nudge_for)
        lateral = "nudge left" if _nudge_side(world, plan) > 0 else "nudge right"
        around = obstacle.kind.value
        if plan.cause == CRUISE or plan.cause.name in (obstacle.name, "curve"):
            side = "right" if lateral == "nudge left" else "left"
            return Meaning(longitudinal, lateral, "obstacle", what=around, side=side)
    # Who brakes for something that is further off says so; who drives on does not mention it yet.
    brakes = longitudinal in ("slow down", "stop", "wait") and plan.cause == CRUISE
    named = plan.later_cause if brakes else plan.cause
    kind, name = named.kind, named.name
    if kind in ("free road", "curve") or not _changes(world, plan, name):
        bend = _curve_side(world, plan) if kind == "curve" else None
        return Meaning(longitudinal, lateral, "curve" if bend else "free road", side=bend, around=around)
    if kind in ("red light", "amber light", "stop sign"):
        line = world.lights[0].stop_s_m if name == "light" else world.stop_signs_s_m[0]
        room = distance_class(line - world.ego_place()[0] - world.ego_front_m)
        return Meaning(longitudinal, lateral, kind, distance=room, around=around)
    actor = next(actor for actor in world.actors if actor.name == name)
    ahead, left = in_base_link(world, *actor.pose()[:2])
    gap = distance_class(ahead - world.ego_front_m - actor.length_m / 2)
    what, colour, side = actor.kind.value, actor.colour, side_of(left)
    if kind == "pedestrian":
        return Meaning(longitudinal, lateral, kind, None, colour, side, gap, around)
    if kind == "hidden crossing":
        return Meaning(longitudinal, lateral, kind, what, colour, side, None, around)
    if kind == "crossing traffic":
        return Meaning(longitudinal, lateral, kind, what, colour, side, None, around)
    if kind == "oncoming traffic":
        return Meaning(longitudinal, lateral, kind, what, colour, None, None, around)
    if actor.kind.is_static:
        return Meaning(longitudinal, lateral, "obstacle", what, None, "ahead", None, around)
    lead = "braking lead" if actor.shows_brake_lights else "lead"
    return Meaning(longitudinal, lateral, lead, what, colour, None, gap, around)


def distance_class(gap_m: float) -> str:
    """close within 12 m, near within 30 m, else far (from the front bumper)."""
    return "close" if gap_m < 12.0 else "near" if gap_m < 30.0 else "far"


def _longitudinal(plan: ExpertPlan) -> str:
    now, soon = plan.speed_now_mps, float(plan.speed_mps[29])
    if now < 0.5 and plan.speed_mps[:20].max() < 0.5:
        return "wait"
    if plan.speed_mps.min() < 0.3 and now >= 0.5:
        return "stop"
    if now < 2.0 and soon > now + 1.5:
        return "set off"
    if soon < now - 1.0:
        return "slow down"
    return "speed up" if soon > now + 1.0 else "keep speed"


def _changes(world: World, plan: ExpertPlan, name: str) -> bool:
    """The counterfactual: whether the plan is another one without the named thing.

    Others that would be a reason of the same kind in its place are taken out with it.
    """
    kind, other = plan.later_cause.kind, world.without(name)
    without = expert.plan(other)
    while without.later_cause.kind == kind and without.later_cause.name != name and name != plan.nudge_for:
        name = without.later_cause.name
        other = other.without(name)
        without = expert.plan(other)
    speed = float(np.abs(plan.speed_mps - without.speed_mps).max())
    return speed > _SPEED_CHANGE_MPS or float(np.abs(plan.d_m - without.d_m).max()) > _OFFSET_CHANGE_M


def _nudge_side(world: World, plan: ExpertPlan) -> float:
    furthest = plan.d_m[int(np.argmax(np.abs(plan.d_m)))]
    return float(furthest) if abs(furthest) > 0.2 else -world.ego_place()[1]


def _curve_side(world: World, plan: ExpertPlan) -> str:
    ahead = world.road.curvature(plan.s_m[0] + np.arange(0.0, 80.0, 1.0))
    bend = float(ahead[int(np.argmax(np.abs(ahead)))])
    return "left" if bend > 0 else "right"


def in_base_link(world: World, x_m: _Metres, y_m: _Metres) -> tuple[_Metres, _Metres]:
    """A point, or points, in base_link: ahead, left (m)."""
    dx, dy = x_m - world.ego.x_m, y_m - world.ego.y_m
    cos, sin = math.cos(world.ego.yaw_rad), math.sin(world.ego.yaw_rad)
    return dx * cos + dy * sin, -dx * sin + dy * cos


def side_of(left_m: float) -> str:
    """left or right of the lane, else ahead."""
    return "left" if left_m > 1.75 else "right" if left_m < -1.75 else "ahead"
