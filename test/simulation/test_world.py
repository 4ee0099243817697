"""The world: deterministic, with rules that are noticed when broken."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsd_planner.control.vehicle import Command, VehicleState
from rsd_planner.simulation.actors import Actor, Idm, Kind
from rsd_planner.simulation.outlines import Box, overlap
from rsd_planner.simulation.road import Road
from rsd_planner.simulation.scenarios import FAMILIES, SPLITS, build
from rsd_planner.simulation.world import LightState, TrafficLight, World

STRAIGHT = Road.from_segments([(300.0, 0.0)])


def _state(world: World) -> list:
    return [dataclasses.astuple(world.ego), *[(a.name, a.s_m, a.d_m, a.speed_mps) for a in world.actors]]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_is_a_world_and_its_future(family):
    one, two = build(family, "train", 5), build(family, "train", 5)
    for _ in range(300):
        one.step(Command(0.01, 0.5))
        two.step(Command(0.01, 0.5))
    assert _state(one) == _state(two)
    assert _state(build(family, "train", 6)) != _state(build(family, "train", 5))


def test_splits_share_nothing():
    looks = {
        (split, seed): build("follow", split, seed).surroundings.scenery_seed for split in SPLITS for seed in range(50)
    }
    assert len(set(looks.values())) == len(looks)
    with pytest.raises(ValueError, match="'tailgate' is not one of free curve, follow"):
        build("tailgate", "train", 0)
    with pytest.raises(ValueError, match="split 'test' is not one of train, validation, held-out"):
        build("follow", "test", 0)


@settings(max_examples=200, deadline=None)
@given(st.floats(-6, 6), st.floats(-6, 6), st.floats(-4, 4), st.floats(-4, 4))
def test_overlap_is_what_sampling_says(x, y, yaw, other_yaw):
    a, b = Box(0.0, 0.0, yaw, 4.6, 1.9), Box(x, y, other_yaw, 3.0, 1.0)
    u, v = np.meshgrid(np.linspace(-0.5, 0.5, 121), np.linspace(-0.5, 0.5, 61))

    def inside(box: Box, px: np.ndarray, py: np.ndarray, margin: float) -> bool:
        dx, dy = px - box.x_m, py - box.y_m
        along = dx * math.cos(box.yaw_rad) + dy * math.sin(box.yaw_rad)
        across = -dx * math.sin(box.yaw_rad) + dy * math.cos(box.yaw_rad)
        return bool(np.any((np.abs(along) < box.length_m / 2 + margin) & (np.abs(across) < box.width_m / 2 + margin)))

    px = b.x_m + u * b.length_m * math.cos(other_yaw) - v * b.width_m * math.sin(other_yaw)
    py = b.y_m + u * b.length_m * math.sin(other_yaw) + v * b.width_m * math.cos(other_yaw)
    # The samples are up to 0.03 m apart: between the two answers either is right.
    if inside(a, px, py, -0.03):
        assert overlap(a, b)
    if not inside(a, px, py, 0.03):
        assert not overlap(a, b)


def test_idm_settles_at_its_equilibrium_gap():
    """Behind a leader at v the gap is (s0 + v T) / sqrt(1 - (v / v0)^4)."""
    leader = Actor("leader", Kind.CAR, "red", STRAIGHT, 60.0, 0.0, 9.0)
    follower = Actor("follower", Kind.CAR, "blue", STRAIGHT, 20.0, 0.0, 12.0, follows=True, target_speed_mps=13.0)
    world = World(STRAIGHT, VehicleState(y_m=500.0), actors=[leader, follower])
    for _ in range(6000):
        world.step(Command())
    gap = leader.s_m - follower.s_m - leader.length_m
    assert follower.speed_mps == pytest.approx(9.0, abs=0.05)
    model = Idm(13.0)
    assert gap == pytest.approx((2.5 + 9.0 * 1.5) / math.sqrt(1 - (9.0 / 13.0) ** 4), rel=0.02)
    assert model.acceleration(9.0, gap, 0.0) == pytest.approx(0.0, abs=0.05)


def _drive(world: World, seconds: float, acceleration: float = 0.0) -> list[str]:
    for _ in range(round(seconds * 100)):
        world.step(Command(0.0, acceleration))
    return world.violations


def test_broken_rules_are_noticed():
    ego = VehicleState(x_m=20.0, speed_mps=10.0)
    red = TrafficLight(60.0, ((0.0, LightState.RED), (20.0, LightState.GREEN)))
    assert _drive(World(STRAIGHT, ego, lights=[red]), 6.0) == ["ran a red light"]
    amber = TrafficLight(60.0, ((0.0, LightState.GREEN), (2.0, LightState.AMBER)))
    assert _drive(World(STRAIGHT, ego, lights=[amber]), 6.0) == []
    assert _drive(World(STRAIGHT, ego, stop_signs_s_m=[60.0]), 6.0) == ["ran a stop sign"]
    wall = Actor("wall", Kind.BUS, "red", STRAIGHT, 80.0, 0.0)
    assert _drive(World(STRAIGHT, ego, actors=[wall]), 6.0) == ["collision with wall"]
    beside = Actor("wall", Kind.BUS, "red", STRAIGHT, 80.0, -3.0)
    assert _drive(World(STRAIGHT, ego, actors=[beside]), 6.0) == []
    astray = VehicleState(x_m=20.0, yaw_rad=-0.1, speed_mps=10.0)
    assert _drive(World(STRAIGHT, astray), 6.0) == ["left the road"]
    assert _drive(World(STRAIGHT, ego, speed_limit_mps=8.0), 1.0) == ["speeding"]


def test_a_stop_at_the_sign_counts():
    world = World(STRAIGHT, VehicleState(x_m=50.0), stop_signs_s_m=[55.5])  # front bumper 1.8 m before the line
    assert _drive(world, 0.5) == []
    assert _drive(world, 6.0, acceleration=1.5) == []


def test_removing_a_cause_leaves_the_original_alone():
    world = build("red light", "train", 0)
    names = [actor.name for actor in world.actors]
    other = world.without("light").without(names[0])
    assert other.lights[0].state(0.0) is LightState.GREEN and names[0] not in [actor.name for actor in other.actors]
    assert world.lights[0].state(0.0) is LightState.RED and [actor.name for actor in world.actors] == names
    assert other.road is world.road
