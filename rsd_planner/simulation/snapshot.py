"""A world's state as JSON values, for topics, bags and data sets, and back.

What never changes (roads, looks, phases of the lights) is told by the scenario's name and drawn again.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from rsd_planner.control.vehicle import Vehicle, VehicleState
from rsd_planner.simulation.scenarios import build
from rsd_planner.simulation.world import World

_ACTOR_STATE = ("s_m", "d_m", "speed_mps", "acceleration_mps2", "drift_mps", "drift_to_m", "target_speed_mps",
                "rate_mps2", "actions_begun")  # fmt: skip


def snapshot(world: World) -> dict[str, Any]:
    """The state of a world that `scenarios.build` made. Besides what `restore` needs it tells what a reader wants.

    Raises ValueError for a world without a scenario.
    """
    if world.scenario is None:
        raise ValueError("only a world of a scenario has a snapshot")
    family, split, seed = world.scenario
    return {
        "family": family,
        "split": split,
        "seed": seed,
        "time_s": world.time_s,
        "vehicle": dataclasses.asdict(world.vehicle),
        "ego": dataclasses.asdict(world.ego),
        "violations": list(world.violations),
        "stood_at_sign_s": sorted(world.stood_at_sign_s.items()),
        "speed_limit_mps": world.speed_limit_mps,
        "light": world.surroundings.light,
        "scenery_seed": world.surroundings.scenery_seed,
        "lights": [{"stop_s_m": light.stop_s_m, "state": light.state(world.time_s).value} for light in world.lights],
        "actors": [
            {
                "name": actor.name,
                "kind": actor.kind.value,
                "colour": actor.colour,
                "pose": list(actor.pose()),
                "size_m": list(actor.kind.size_m),
                **{name: getattr(actor, name) for name in _ACTOR_STATE},
            }
            for actor in world.actors
        ],
    }


def restore(state: dict[str, Any], drawn: World | None = None) -> World:
    """The world of a snapshot. drawn, the scenario's world, saves drawing it again; it is not changed.

    Raises ValueError if the snapshot lacks something or belongs to another scenario than drawn.
    """
    try:
        scenario = (str(state["family"]), str(state["split"]), int(state["seed"]))
        if drawn is not None and drawn.scenario != scenario:
            raise ValueError(f"the snapshot is of {scenario}, not of {drawn.scenario}")
        world = build(*scenario) if drawn is None else drawn.copy()
        world.time_s = float(state["time_s"])
        world.vehicle = Vehicle(**state["vehicle"])
        world.ego = VehicleState(**state["ego"])
        world.violations = list(state["violations"])
        if "stopped_at_sign" in state:  # recorded when a stop of any length was a stop
            world.stood_at_sign_s = dict.fromkeys(map(float, state["stopped_at_sign"]), math.inf)
        else:
            world.stood_at_sign_s = {float(sign): float(stood) for sign, stood in state["stood_at_sign_s"]}
        states = {entry["name"]: entry for entry in state["actors"]}
        for actor in world.actors:
            for name in _ACTOR_STATE:
                setattr(actor, name, states[actor.name][name])
    except (KeyError, TypeError) as error:
        raise ValueError(f"the snapshot is not complete: {error}") from error
    return world
