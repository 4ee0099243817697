"""Descriptions of a moment against a world that was laid out by hand."""

from __future__ import annotations

from rsd_planner.control.vehicle import VehicleState
from rsd_planner.simulation.actors import Actor, Kind
from rsd_planner.simulation.description import describe
from rsd_planner.simulation.road import Road
from rsd_planner.simulation.scenarios import FAMILIES, build
from rsd_planner.simulation.world import LightState, TrafficLight, World

STRAIGHT = Road.from_segments([(400.0, 0.0)])


def _world(**more) -> World:
    return World(road=STRAIGHT, ego=VehicleState(100.0, 0.2, 0.0, 8.0, 0.0), **more)


def _actor(name: str, kind: Kind, colour: str, ahead_m: float, left_m: float) -> Actor:
    """Its rear is ahead_m before our front bumper."""
    front = 100.0 + World(road=STRAIGHT, ego=VehicleState(0.0, 0.0, 0.0, 0.0, 0.0)).ego_front_m
    return Actor(name, kind, colour, STRAIGHT, front + ahead_m + kind.size_m[0] / 2, 0.2 + left_m)


def test_everything_that_is_there_is_told_near_ones_first():
    world = _world(
        actors=[
            _actor("b", Kind.TRUCK, "blue", 41.0, 4.0),
            _actor("a", Kind.CAR, "red", 10.2, 0.0),
            _actor("c", Kind.CAR, "white", 80.0, 0.0),
        ],
        lights=[TrafficLight(100.0 + world_front() + 33.0, ((0.0, LightState.GREEN), (5.0, LightState.AMBER)))],
        stop_signs_s_m=[100.0 + world_front() - 2.0],
    )
    expected = (
        "day; straight; offset 20; green light far 35; red car ahead close 10 aside 0; blue truck left far 40 aside 4."
    )
    assert describe(world) == expected
    world.time_s = 6.0
    assert "amber light far 35" in describe(world)


def world_front() -> float:
    return _world().ego_front_m


def test_what_is_hidden_is_not_told():
    behind = _actor("b", Kind.PEDESTRIAN, "green", 30.0, 0.0)
    assert "green pedestrian" in describe(_world(actors=[behind]))
    assert "pedestrian" not in describe(_world(actors=[behind, _actor("a", Kind.TRUCK, "red", 8.0, 0.0)]))


def test_bends_have_a_side_and_a_strength():
    for curvature, words in ((1 / 50, "left bend 4"), (-1 / 100, "right bend 2"), (1e-4, "straight")):
        road = Road.from_segments([(10.0, 0.0), (200.0, curvature)])
        world = World(road=road, ego=VehicleState(0.0, 0.0, 0.0, 5.0, 0.0))
        assert describe(world).startswith(f"day; {words}; offset 0")


def test_every_family_can_be_told_and_numbers_are_whole():
    for family in FAMILIES:
        text = describe(build(family, "train", 3))
        assert text.endswith(".") and "." not in text[:-1]
