"""The expert: solves the families, comfortably, and for the reasons it gives."""

from __future__ import annotations

import numpy as np
import pytest

from rsd_planner.control.vehicle import VehicleState
from rsd_planner.simulation import expert
from rsd_planner.simulation.actors import Actor, Kind
from rsd_planner.simulation.drive import drive
from rsd_planner.simulation.expert_plan import Cause
from rsd_planner.simulation.road import Road
from rsd_planner.simulation.scenarios import FAMILIES, build
from rsd_planner.simulation.world import LightState, TrafficLight, World

STRAIGHT = Road.from_segments([(400.0, 0.0)])


@pytest.mark.parametrize("family", FAMILIES)
def test_it_solves_every_family(family):
    """One held-out seed each; `rsd-planner sim check` drives as many as one likes."""
    log = drive(build(family, "held-out", 100), 16.0)
    assert log.violations == []
    assert log.distance_m > 20.0
    assert np.sqrt(np.mean(np.square(log.lateral_errors_m))) < 0.15
    assert np.sqrt(np.mean(np.square(log.speed_errors_mps))) < 0.3


def _world(**more: object) -> World:
    return World(STRAIGHT, VehicleState(x_m=30.0, speed_mps=10.0), **more)  # type: ignore[arg-type]


def test_a_plan_is_drivable_and_comfortable():
    lead = Actor("lead", Kind.CAR, "red", STRAIGHT, 75.0, 0.0, 6.0)
    made = expert.plan(_world(actors=[lead]))
    speed = np.concatenate([[10.0], made.speed_mps])
    acceleration = np.diff(speed) / 0.1
    assert acceleration.min() > -3.0
    assert np.abs(np.diff(acceleration)).max() <= 0.31  # 3 m/s^3
    # The points are where the speeds lead.
    travelled = np.cumsum((speed[1:] + speed[:-1]) / 2) * 0.1
    np.testing.assert_allclose(made.x_m - 30.0, travelled, atol=1e-6)
    # It never comes closer than the lead's tail.
    assert np.all(made.x_m + 3.7 < 75.0 + 6.0 * np.arange(1, 65) * 0.1 - 2.25)


def _light(at_s_m: float, state: LightState) -> World:
    return _world(lights=[TrafficLight(at_s_m, ((0.0, state),))])


def _other(kind: Kind, s_m: float, d_m: float, speed_mps: float = 0.0, **more: object) -> World:
    return _world(actors=[Actor("it", kind, "red", STRAIGHT, s_m, d_m, speed_mps, **more)])  # type: ignore[arg-type]


CASES = {
    # World, kind of cause, what to take out, whether that matters.
    "red light": (_light(80.0, LightState.RED), "red light", "light", True),
    "green light": (_light(80.0, LightState.GREEN), "free road", "light", False),
    "amber, too late to stop": (_light(42.0, LightState.AMBER), "free road", "light", False),
    "stop sign": (_world(stop_signs_s_m=[80.0]), "stop sign", "stop sign", True),
    "slow lead": (_other(Kind.TRUCK, 70.0, 0.0, 5.0), "truck", "it", True),
    "oncoming": (_other(Kind.CAR, 90.0, 3.5, 9.0, direction=-1), "free road", "it", False),
    "walker who crosses": (
        _other(Kind.PEDESTRIAN, 75.0, -3.0, drift_mps=1.4, drift_to_m=7.0),
        "pedestrian",
        "it",
        True,
    ),
    "walker who has crossed": (
        _other(Kind.PEDESTRIAN, 75.0, 4.0, drift_mps=1.4, drift_to_m=7.0),
        "free road",
        "it",
        False,
    ),
    "walker who stands": (_other(Kind.PEDESTRIAN, 75.0, -5.0), "free road", "it", False),
}


@pytest.mark.parametrize("case", CASES)
def test_a_cause_is_what_changes_the_plan(case):
    """The named cause, and only it, makes a difference when it is taken out of the world."""
    world, kind, name, matters = CASES[case]
    made, without = expert.plan(world), expert.plan(world.without(name))
    assert made.cause.kind == kind
    changed = np.abs(made.speed_mps - without.speed_mps).max() > 0.3
    assert changed == matters
    if matters:
        assert made.cause.name == name


def test_what_is_hidden_is_not_reacted_to():
    bus = Actor("bus", Kind.BUS, "blue", STRAIGHT, 68.0, -3.4)
    walker = Actor("it", Kind.PEDESTRIAN, "red", STRAIGHT, 75.0, -3.4, drift_mps=1.2, drift_to_m=7.0)
    hidden = _world(actors=[bus, walker])
    assert not expert.is_visible(hidden, walker)
    np.testing.assert_array_equal(expert.plan(hidden).speed_mps, expert.plan(hidden.without("it")).speed_mps)
    walker.d_m = -0.5
    assert expert.is_visible(hidden, walker)
    assert expert.plan(hidden).cause.name == "it"
    # At a crossing the bus itself is a reason to slow down.
    crossing = _world(actors=[bus], crossings_s_m=[75.0])
    assert expert.plan(crossing).cause == Cause("hidden crossing", "bus")


def test_it_goes_around_what_stands_and_waits_for_who_comes():
    cones = Actor("cones", Kind.CONES, "orange", STRAIGHT, 90.0, -0.8)
    free = expert.plan(_world(actors=[cones]))
    beside = np.abs(free.s_m + 1.35 - 90.0) < 4.0
    # Clear of the cones by at least 0.5 m, and back in the lane at the end.
    assert free.nudge_for == "cones" and (free.d_m[beside] - 0.95 - (-0.8 + 0.6)).min() > 0.5
    assert free.speed_mps.min() > 5.0
    cones.d_m = -0.4
    comes = Actor("it", Kind.CAR, "red", STRAIGHT, 140.0, 3.5, 8.0, direction=-1)
    waits = expert.plan(_world(actors=[cones, comes]))
    assert waits.nudge_for is None and waits.cause == Cause("oncoming traffic", "it")
    assert np.abs(waits.d_m).max() < 0.3
    assert expert.plan(_world(actors=[cones])).nudge_for == "cones"


def test_crossing_traffic_is_yielded_to_only_if_it_comes():
    world = build("crossing traffic", "train", 1)
    for actor in world.actors:
        middle = world.crossroad.length_m / 2
        arrive_s = (world.crossroad_s_m - 7.5 - world.ego_place()[0] - world.ego_front_m) / world.ego.speed_mps
        actor.s_m = middle - actor.direction * actor.speed_mps * (arrive_s + 1.0)
    assert expert.plan(world).cause.kind == "crossing traffic"
    for actor in world.actors:
        actor.s_m = world.crossroad.length_m / 2 + actor.direction * 30.0  # through already
    assert expert.plan(world).cause.kind == "free road"


def test_it_stands_for_a_second_at_a_stop_sign():
    world, seen = build("stop sign", "train", 0), []
    drive(world, 16.0, each_step=lambda world: seen.append((world.ego.speed_mps, dict(world.stood_at_sign_s))))
    (stood,) = world.stood_at_sign_s.values()
    assert 1.0 <= stood < 2.0 and not world.violations and world.ego.speed_mps > 3.0
    assert sum(speed < 0.2 for speed, _ in seen) == pytest.approx(100 * stood, abs=1)
