"""What scenario families draw alike: roads, looks, vehicles, and who is there besides."""

from __future__ import annotations

from typing import Any

import numpy as np

from rsd_planner.control.vehicle import VehicleState
from rsd_planner.simulation.actors import COLOURS, Actor, Kind
from rsd_planner.simulation.road import LANE_WIDTH_M, Road
from rsd_planner.simulation.world import SLOW_ZONE_MPS, Surroundings, World

START_S_M = 30.0
"""Where the ego car starts on its route."""
Random = np.random.Generator


def pick(random: Random, options: tuple[str, ...]) -> str:
    """One of the options."""
    return options[int(random.integers(len(options)))]


def drawn_world(random: Random, speed_mps: float, straight: bool = False, slow_zone: bool = False) -> World:
    """A road with gentle bends, looks, and the ego in its lane. slow_zone: 30 km/h instead of 50."""
    segments = [(80.0, 0.0)]
    for _ in range(6):
        bend = 0.0 if straight else float(random.uniform(-0.004, 0.004))
        segments.append((float(random.uniform(50.0, 120.0)), bend))
    road = Road.from_segments(segments)
    x, y, yaw = road.pose(START_S_M, float(random.uniform(-0.15, 0.15)))
    surroundings = Surroundings(
        light=pick(random, ("day", "day", "dusk", "fog")),
        scenery_seed=int(random.integers(2**31)),
        density=float(random.uniform(0.5, 1.5)),
    )
    ego = VehicleState(x, y, yaw, speed_mps)
    return World(road, ego, speed_limit_mps=SLOW_ZONE_MPS if slow_zone else 13.9, surroundings=surroundings)


def colour(random: Random) -> str:
    """A colour of clothes or paint."""
    return pick(random, COLOURS)


def vehicle(random: Random, name: str, s_m: float, d_m: float = 0.0, **more: Any) -> Actor:
    """A vehicle of a drawn class and colour. more: fields of Actor."""
    kind = (Kind.CAR, Kind.CAR, Kind.CAR, Kind.TRUCK, Kind.BUS)[int(random.integers(5))]
    fields: dict[str, Any] = {"kind": kind, "colour": colour(random), "d_m": d_m} | more
    return Actor(name=name, s_m=s_m, **fields)


def oncoming(random: Random, world: World, count: int, first_s_m: float) -> None:
    """Cars that come the other way and matter to nobody."""
    s = first_s_m
    for number in range(count):
        s += float(random.uniform(20.0, 60.0))
        speed = float(random.uniform(8.0, 13.0))
        moves = {"road": world.road, "speed_mps": speed, "direction": -1, "follows": True}
        world.actors.append(vehicle(random, f"oncoming {number}", s, LANE_WIDTH_M, **moves))


def bystanders(
    random: Random, world: World, until_s_m: float = 250.0, keep_clear: tuple[float, float] = (0.0, 0.0)
) -> None:
    """Who is there and concerns nobody: cars parked on the shoulder and people beside the road.

    keep_clear (m along the route) stays free of parked cars, since others move there.
    """
    s = START_S_M + float(random.uniform(5.0, 40.0))
    for number in range(int(random.integers(0, 4))):
        if s < until_s_m and not keep_clear[0] < s < keep_clear[1]:
            parked = Actor(
                f"parked {number}", Kind.CAR, colour(random), world.road, s, float(random.uniform(-3.7, -3.3))
            )
            world.actors.append(parked)
        s += float(random.uniform(8.0, 50.0))
    s = START_S_M + float(random.uniform(10.0, 50.0))
    for number in range(int(random.integers(0, 3))):
        if s < until_s_m:
            d = -5.4 if random.random() < 0.5 else 8.6
            world.actors.append(Actor(f"bystander {number}", Kind.PEDESTRIAN, colour(random), world.road, s, d))
        s += float(random.uniform(5.0, 60.0))


def crossroads(world: World, at_s_m: float) -> None:
    """A straight road across the route at a place."""
    x, y, yaw = world.road.pose(at_s_m, LANE_WIDTH_M / 2)
    half = 150.0
    across = yaw + np.pi / 2
    start = (x - half * np.cos(across), y - half * np.sin(across), across)
    world.crossroad = Road.from_segments([(2 * half, 0.0)], start)
    world.crossroad_s_m = at_s_m
