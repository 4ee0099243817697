"""Scenario families: each draws a world from a seed. Train, validation and held-out seeds never meet."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from rsd_planner.control.vehicle import VehicleState
from rsd_planner.simulation.actors import Action, Actor, Kind
from rsd_planner.simulation.draws import (
    START_S_M,
    Random,
    bystanders,
    colour,
    crossroads,
    drawn_world,
    oncoming,
    vehicle,
)
from rsd_planner.simulation.road import LANE_WIDTH_M, Road
from rsd_planner.simulation.world import AMBER_S, LightState, TrafficLight, World

SPLITS = ("train", "validation", "held-out")

Builder = Callable[[Random], World]
FAMILIES: dict[str, Builder] = {}
"""Builders by family name; the docstring of each says what happens."""


def build(family: str, split: str, seed: int) -> World:
    """The world of a family's seed. Raises ValueError that names unknown families and splits."""
    if family not in FAMILIES:
        raise ValueError(f"scenario family {family!r} is not one of {', '.join(FAMILIES)}")
    if split not in SPLITS:
        raise ValueError(f"split {split!r} is not one of {', '.join(SPLITS)}")
    if seed < 0:
        raise ValueError(f"a seed is at least 0, not {seed}")
    # The split is part of the entropy: equal seeds of two splits have nothing in common.
    entropy = [SPLITS.index(split), zlib.crc32(family.encode()), seed]
    world = FAMILIES[family](np.random.default_rng(np.random.SeedSequence(entropy)))
    world.scenario = (family, split, seed)
    return world


def _family(name: str) -> Callable[[Builder], Builder]:
    def register(builder: Builder) -> Builder:
        FAMILIES[name] = builder
        return builder

    return register


@_family("free curve")
def _free_curve(random: Random) -> World:
    """An empty road with a bend too tight for the speed limit."""
    speed = float(random.uniform(9.0, 13.0))
    world = drawn_world(random, speed)
    bend = float(random.uniform(0.015, 0.035)) * (1 if random.random() < 0.5 else -1)
    road = Road.from_segments([(80.0 + float(random.uniform(0.0, 40.0)), 0.0), (60.0, bend), (200.0, 0.0)])
    x, y, yaw = road.pose(START_S_M)
    world.road, world.ego = road, VehicleState(x, y, yaw, speed)
    bystanders(random, world)
    oncoming(random, world, int(random.integers(0, 3)), 80.0)
    return world


@_family("follow")
def _follow(random: Random) -> World:
    """Behind somebody who drives or rides slower than the limit."""
    speed = float(random.uniform(7.0, 12.0))
    world = drawn_world(random, speed)
    cycles = random.random() < 0.3
    lead = float(random.uniform(4.0, 6.5)) if cycles else float(random.uniform(5.0, 10.0))
    gap = float(random.uniform(14.0, 35.0)) + speed + (10.0 if cycles else 0.0)
    rides: dict[str, Any] = {"kind": Kind.CYCLIST, "d_m": float(random.uniform(-0.9, 0.0))} if cycles else {}
    world.actors.append(vehicle(random, "lead", START_S_M + gap, **rides, road=world.road, speed_mps=lead))
    bystanders(random, world)
    oncoming(random, world, int(random.integers(0, 4)), 60.0)
    return world


@_family("hard-braking lead")
def _hard_braking_lead(random: Random) -> World:
    """The vehicle ahead brakes hard, stands, and goes on."""
    speed = float(random.uniform(8.0, 12.5))
    world = drawn_world(random, speed)
    begin = float(random.uniform(1.0, 4.0))
    actions = (
        Action(after_s=begin, speed_mps=0.0, rate_mps2=float(random.uniform(4.0, 6.5))),
        Action(after_s=begin + 7.0, speed_mps=speed, rate_mps2=1.5),
    )
    gap = 1.8 * speed + 8.0 + float(random.uniform(0.0, 8.0))
    world.actors.append(vehicle(random, "lead", START_S_M + gap, road=world.road, speed_mps=speed, actions=actions))
    bystanders(random, world)
    oncoming(random, world, int(random.integers(0, 3)), 60.0)
    return world


@_family("parking lead")
def _parking_lead(random: Random) -> World:
    """The vehicle ahead slows, pulls over to the shoulder and parks."""
    speed = float(random.uniform(7.0, 11.0))
    world = drawn_world(random, speed, slow_zone=speed < 8.0)
    begin = float(random.uniform(1.0, 4.0))
    actions = (
        Action(after_s=begin, speed_mps=float(random.uniform(3.0, 5.0)), rate_mps2=1.5),
        Action(after_s=begin + 2.5, drift_mps=-float(random.uniform(0.8, 1.2)), drift_to_m=-3.5),
        Action(after_s=begin + 5.0, speed_mps=0.0, rate_mps2=1.5),
    )
    gap = 1.6 * speed + float(random.uniform(6.0, 16.0))
    kind = (Kind.CAR, Kind.CAR, Kind.TRUCK)[int(random.integers(3))]
    lead = vehicle(random, "lead", START_S_M + gap, kind=kind, road=world.road, speed_mps=speed, actions=actions)
    world.actors.append(lead)
    oncoming(random, world, int(random.integers(0, 3)), 60.0)
    return world


@_family("cut-in")
def _cut_in(random: Random) -> World:
    """Somebody on the shoulder pulls into the lane ahead, slower than us."""
    speed = float(random.uniform(8.0, 12.5))
    world = drawn_world(random, speed)
    slow = float(random.uniform(5.0, 7.0))
    action = Action(
        ego_within_m=14.0 + 3.0 * (speed - slow) + float(random.uniform(4.0, 12.0)),
        drift_mps=float(random.uniform(0.9, 1.5)),
        drift_to_m=0.0,
        speed_mps=slow,
        rate_mps2=1.0,
    )
    kind = (Kind.CAR, Kind.CAR, Kind.TRUCK)[int(random.integers(3))]
    s = START_S_M + float(random.uniform(55.0, 70.0))
    world.actors.append(
        vehicle(random, "cutter", s, -3.2, kind=kind, road=world.road, speed_mps=slow - 1.0, actions=(action,))
    )
    oncoming(random, world, int(random.integers(0, 3)), 60.0)
    return world


def _light_world(random: Random, phases: tuple[tuple[float, LightState], ...], stop_in_m: float) -> World:
    world = drawn_world(random, float(random.uniform(8.0, 12.0)), straight=True)
    stop_s = START_S_M + world.ego_front_m + stop_in_m
    world.lights = [TrafficLight(stop_s, phases)]
    crossroads(world, stop_s + 8.0)
    bystanders(random, world, until_s_m=stop_s - 6.0)
    oncoming(random, world, int(random.integers(0, 3)), stop_s + 30.0)
    if phases[0][1] is not LightState.GREEN:
        assert world.crossroad is not None
        for number in range(int(random.integers(1, 3))):
            speed = float(random.uniform(7.0, 10.0))
            start = 150.0 - float(random.uniform(10.0, 60.0)) - 30.0 * number
            moves = {"road": world.crossroad, "speed_mps": speed, "follows": True}
            car = vehicle(random, f"crossing {number}", start, 0.0, **moves)
            world.actors.append(car)
    return world


@_family("red light")
def _red_light(random: Random) -> World:
    """A red light that turns green after a while."""
    green = float(random.uniform(9.0, 13.0))
    phases = ((0.0, LightState.RED), (green, LightState.GREEN))
    return _light_world(random, phases, float(random.uniform(45.0, 70.0)))


@_family("green light")
def _green_light(random: Random) -> World:
    """A green light that stays green."""
    return _light_world(random, ((0.0, LightState.GREEN),), float(random.uniform(40.0, 70.0)))


@_family("turning-amber light")
def _amber_light(random: Random) -> World:
    """A light that turns amber while we approach: stop if it can be done comfortably, else go."""
    amber = float(random.uniform(0.5, 4.5))
    phases = (
        (0.0, LightState.GREEN),
        (amber, LightState.AMBER),
        (amber + AMBER_S, LightState.RED),
        (amber + 11.0, LightState.GREEN),
    )
    return _light_world(random, phases, float(random.uniform(40.0, 60.0)))


@_family("stop sign")
def _stop_sign(random: Random) -> World:
    """A stop sign at crossroads."""
    world = drawn_world(random, float(random.uniform(7.0, 11.0)), straight=True)
    stop_s = START_S_M + world.ego_front_m + float(random.uniform(40.0, 65.0))
    world.stop_signs_s_m = [stop_s]
    crossroads(world, stop_s + 7.5)
    bystanders(random, world, until_s_m=stop_s - 6.0)
    return world


@_family("pedestrian stepping out")
def _pedestrian(random: Random) -> World:
    """Somebody crosses from the right or the left, at a crossing or not."""
    speed = float(random.uniform(7.0, 11.0))
    world = drawn_world(random, speed, slow_zone=speed < 8.0)
    s = START_S_M + float(random.uniform(45.0, 65.0))
    if random.random() < 0.6:
        world.crossings_s_m = [s]
    right = random.random() < 0.6
    walk = float(random.uniform(1.1, 1.7))
    begin, end = (-5.0, 7.5) if right else (8.0, -4.5)
    action = Action(
        ego_within_m=3.4 * speed + float(random.uniform(4.0, 12.0)),
        drift_mps=walk if right else -walk,
        drift_to_m=end,
    )
    world.actors.append(Actor("pedestrian", Kind.PEDESTRIAN, colour(random), world.road, s, begin, actions=(action,)))
    bystanders(random, world, keep_clear=(s - 9.0, s + 9.0))
    return world


@_family("occluded pedestrian")
def _occluded_pedestrian(random: Random) -> World:
    """Somebody steps out from behind a parked bus or truck at a crossing."""
    speed = float(random.uniform(6.0, 8.0))
    world = drawn_world(random, speed, straight=True, slow_zone=True)
    s = START_S_M + float(random.uniform(45.0, 60.0))
    world.crossings_s_m = [s]
    kind = Kind.BUS if random.random() < 0.5 else Kind.TRUCK
    parked = Actor("parked", kind, colour(random), world.road, s - 3.0 - kind.size_m[0] / 2, -3.4)
    action = Action(ego_within_m=2.6 * speed + 8.0, drift_mps=float(random.uniform(1.0, 1.3)), drift_to_m=7.5)
    walker = Actor("pedestrian", Kind.PEDESTRIAN, colour(random), world.road, s, -4.2, actions=(action,))
    world.actors += [parked, walker]
    return world


def _blocked_world(random: Random) -> World:
    world = drawn_world(random, float(random.uniform(7.0, 11.0)))
    kind = Kind.CONES if random.random() < 0.5 else Kind.BROKEN_DOWN_VEHICLE
    s = START_S_M + float(random.uniform(60.0, 80.0))
    d = float(random.uniform(-1.4, -0.6)) if kind is Kind.CONES else float(random.uniform(-1.1, -0.4))
    world.actors.append(Actor("obstacle", kind, colour(random), world.road, s, d))
    bystanders(random, world, keep_clear=(s - 20.0, s + 20.0))
    return world


@_family("static obstacle")
def _static_obstacle(random: Random) -> World:
    """Cones or a broken-down vehicle in the lane, and room to go around."""
    return _blocked_world(random)


@_family("oncoming while nudging")
def _oncoming_while_nudging(random: Random) -> World:
    """Something stands in the lane while others come the other way."""
    world = _blocked_world(random)
    obstacle = world.actors[0]
    obstacle.d_m = float(np.clip(obstacle.d_m, -0.7, -0.3))
    for number in range(int(random.integers(1, 3))):
        s = obstacle.s_m + float(random.uniform(25.0, 50.0)) + 40.0 * number
        speed = float(random.uniform(7.0, 10.0))
        moves = {"road": world.road, "speed_mps": speed, "direction": -1, "follows": True}
        car = vehicle(random, f"oncoming {number}", s, LANE_WIDTH_M, **moves)
        world.actors.append(car)
    return world


@_family("crossing traffic")
def _crossing_traffic(random: Random) -> World:
    """Crossroads without lights where others have the right of way."""
    speed = float(random.uniform(7.0, 10.0))
    world = drawn_world(random, speed, straight=True)
    at = START_S_M + world.ego_front_m + float(random.uniform(50.0, 70.0))
    crossroads(world, at)
    bystanders(random, world, until_s_m=at - 14.0)
    assert world.crossroad is not None
    middle = world.crossroad.length_m / 2
    for number in range(int(random.integers(1, 3))):
        other = float(random.uniform(7.0, 11.0))
        late = float(random.uniform(-1.0, 3.0)) + 3.0 * number
        back = other * ((at - START_S_M) / speed + late)
        side = 1 if random.random() < 0.5 else -1
        lane = 0.0 if side > 0 else LANE_WIDTH_M
        car = vehicle(
            random,
            f"crossing {number}",
            middle - side * back,
            lane,
            road=world.crossroad,
            speed_mps=other,
            direction=side,
            follows=True,
        )
        world.actors.append(car)
    return world
