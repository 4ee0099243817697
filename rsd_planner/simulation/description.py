"""A moment of the world in words: everything that there is to see, whether it matters for the driving or not.

What a model learns to see with: a chain of causation names one thing, a description all of them.
"""

from __future__ import annotations

import math

import numpy as np

from rsd_planner.simulation.chain_of_causation import distance_class, in_base_link, side_of
from rsd_planner.simulation.expert import is_visible
from rsd_planner.simulation.world import World

QUESTION = "What is around us?"
_RANGE_M, _SIGNAL_RANGE_M, _MOST = 60.0, 90.0, 5


def describe(world: World) -> str:
    """The answer to QUESTION.

    Light of the day, the road's bend and our place in the lane, signals, then who can be seen within 60 m, near ones
    first (at most five): colour, class, side, distance class, and metres from our front bumper.
    """
    place_m, offset_m = world.ego_place()
    parts = [world.surroundings.light, _bend(world, place_m), f"offset {_rounded(100 * offset_m, 20)}"]
    for light in world.lights:
        parts += _signal(f"{light.state(world.time_s).value} light", light.stop_s_m - place_m - world.ego_front_m)
    for sign in world.stop_signs_s_m:
        parts += _signal("stop sign", sign - place_m - world.ego_front_m)
    seen = []
    for actor in world.actors:
        ahead, left = in_base_link(world, *actor.pose()[:2])
        gap = ahead - world.ego_front_m - actor.length_m / 2
        if gap > -8.0 and math.hypot(ahead, left) < _RANGE_M and is_visible(world, actor):
            looks = actor.kind.value if actor.kind.is_static else f"{actor.colour} {actor.kind.value}"
            step = 2 if gap < 30.0 else 5
            words = f"{looks} {side_of(left)} {distance_class(gap)} {_rounded(gap, step)}"
            seen.append((math.hypot(ahead, left), f"{words} aside {_rounded(left, 1)}"))
    parts += [words for _, words in sorted(seen)[:_MOST]]
    return "; ".join(parts) + "."


def _rounded(value: float, step: int) -> int:
    return step * round(value / step)


def _bend(world: World, place_m: float) -> str:
    """The strongest curvature within 40 m, to 1/200 m."""
    ahead = world.road.curvature(place_m + np.arange(0.0, 40.0, 1.0))
    bend = float(ahead[int(np.argmax(np.abs(ahead)))])
    steps = round(200 * abs(bend))
    return f"{'left' if bend > 0 else 'right'} bend {steps}" if steps else "straight"


def _signal(name: str, distance_m: float) -> list[str]:
    if not 0.0 < distance_m < _SIGNAL_RANGE_M:
        return []
    return [f"{name} {distance_class(distance_m)} {_rounded(distance_m, 2 if distance_m < 30.0 else 5)}"]
