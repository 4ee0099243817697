"""Chains of causation: true to the world, honest about causes, and readable back."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsd_planner.control.vehicle import VehicleState
from rsd_planner.simulation import expert
from rsd_planner.simulation.actors import COLOURS, Actor, Kind
from rsd_planner.simulation.chain_of_causation import CAUSES, DISTANCES, LATERAL, LONGITUDINAL, SIDES, Meaning, meaning
from rsd_planner.simulation.drive import drive
from rsd_planner.simulation.road import Road
from rsd_planner.simulation.scenarios import FAMILIES, build
from rsd_planner.simulation.wording import parse, write
from rsd_planner.simulation.world import LightState, TrafficLight, World

STRAIGHT = Road.from_segments([(400.0, 0.0)])
_VEHICLES = [Kind.CAR.value, Kind.TRUCK.value, Kind.BUS.value]
_ATTRIBUTES = {
    "free road": {},
    "curve": {"side": ["left", "right"]},
    "red light": {"distance": DISTANCES},
    "amber light": {"distance": DISTANCES},
    "stop sign": {"distance": DISTANCES},
    "lead": {"what": [*_VEHICLES, Kind.CYCLIST.value], "colour": COLOURS, "distance": DISTANCES},
    "braking lead": {"what": _VEHICLES, "colour": COLOURS, "distance": DISTANCES},
    "pedestrian": {"colour": COLOURS, "side": SIDES, "distance": DISTANCES},
    "hidden crossing": {"what": _VEHICLES, "colour": COLOURS, "side": SIDES},
    "obstacle": {"what": [Kind.CONES.value, Kind.BROKEN_DOWN_VEHICLE.value], "side": SIDES},
    "oncoming traffic": {"what": _VEHICLES, "colour": COLOURS},
    "crossing traffic": {"what": _VEHICLES, "colour": COLOURS, "side": SIDES},
}


@st.composite
def meanings(draw: st.DrawFn) -> Meaning:
    cause = draw(st.sampled_from(CAUSES))
    attributes = {name: draw(st.sampled_from(list(values))) for name, values in _ATTRIBUTES[cause].items()}
    lateral = draw(st.sampled_from(LATERAL))
    around = None
    if lateral != "keep lane" and cause != "obstacle":
        around = draw(st.sampled_from([Kind.CONES.value, Kind.BROKEN_DOWN_VEHICLE.value]))
    return Meaning(draw(st.sampled_from(LONGITUDINAL)), lateral, cause, around=around, **attributes)


@settings(max_examples=1500, deadline=None)
@given(meanings(), st.integers(0, 2**32))
def test_what_is_written_is_read_back(said, seed):
    text = write(said, seed)
    assert parse(text) == said
    assert text[0].isupper() and text.endswith(".")
    assert not re.search(r"\ba [aeo]", text) and "{" not in text and "  " not in text


@settings(max_examples=100, deadline=None)
@given(meanings(), st.integers(0, 1000), st.data())
def test_any_other_text_is_refused(said, seed, data):
    words = write(said, seed).split()
    k = data.draw(st.integers(0, len(words) - 1))
    broken = " ".join([*words[:k], "perhaps", *words[k:]])
    assert parse(broken) is None
    assert parse(" ".join(words) + " Really.") is None
    assert parse("") is None


def test_wordings_vary():
    """People prefer some wordings, but no text is that of most."""
    said = Meaning("stop", "keep lane", "red light", distance="near")
    told = [write(said, seed) for seed in range(300)]
    texts = set(told)
    assert len(texts) > 70 and 0.1 < max(told.count(text) for text in texts) / 300 < 0.25
    lengths = [len(text.split()) for text in texts]
    assert min(lengths) >= 6 and max(lengths) <= 25 and 11 <= np.median(lengths) <= 18


def _world(**more: object) -> World:
    return World(STRAIGHT, VehicleState(x_m=30.0, speed_mps=10.0), **more)  # type: ignore[arg-type]


def test_attributes_are_the_worlds():
    lead = Actor("it", Kind.TRUCK, "green", STRAIGHT, 30.0 + 3.7 + 20.0 + 4.0, 0.0, 4.0)
    assert meaning(_world(actors=[lead])) == Meaning("slow down", "keep lane", "lead", "truck", "green", None, "near")
    for at_s_m, distance in ((30 + 3.7 + 10, "close"), (30 + 3.7 + 20, "near"), (30 + 3.7 + 40, "far")):
        light = TrafficLight(at_s_m, ((0.0, LightState.RED),))
        slow = dataclasses.replace(_world(lights=[light]), ego=VehicleState(x_m=30.0, speed_mps=6.0))
        assert (meaning(slow).cause, meaning(slow).distance) == ("red light", distance)
    walker = Actor("it", Kind.PEDESTRIAN, "red", STRAIGHT, 60.0, -3.0, drift_mps=1.4, drift_to_m=7.0)
    said = meaning(_world(actors=[walker]))
    assert (said.longitudinal, said.cause, said.colour, said.side) == ("stop", "pedestrian", "red", "right")
    cones = Actor("it", Kind.CONES, "red", STRAIGHT, 80.0, -0.8)
    said = meaning(_world(actors=[cones]))
    assert (said.lateral, said.cause, said.what, said.side) == ("nudge left", "obstacle", "cones", "right")
    assert meaning(_world()) == Meaning("speed up", "keep lane", "free road")


def test_redundant_causes_are_still_causes():
    """With two cars coming, taking out either alone changes nothing; they are the reason together."""
    cones = Actor("cones", Kind.CONES, "red", STRAIGHT, 90.0, -0.4)
    cars = [Actor(f"car {k}", Kind.CAR, "blue", STRAIGHT, 135.0 + 12 * k, 3.5, 8.0, direction=-1) for k in range(2)]
    world = _world(actors=[cones, *cars])
    alone = expert.plan(world.without("car 0"))
    np.testing.assert_allclose(alone.speed_mps, expert.plan(world).speed_mps, atol=0.3)
    assert meaning(world).cause == "oncoming traffic"


@pytest.mark.parametrize("family", FAMILIES)
def test_moments_of_every_family(family):
    """No braking for nothing, every text reads back, and lights that are named are there and in that state."""
    seen = []

    def watch(world: World) -> None:
        if round(world.time_s * 10) % 10:
            return
        said = meaning(world)
        seen.append(said)
        assert parse(write(said, len(seen))) == said
        assert not (said.longitudinal in ("stop", "wait") and said.cause in ("free road", "curve"))
        if said.cause.endswith("light"):
            assert world.lights[0].state(world.time_s).value == said.cause.split()[0]
        if said.cause in ("lead", "pedestrian", "oncoming traffic", "crossing traffic"):
            assert any(actor.colour == said.colour for actor in world.actors)

    drive(build(family, "validation", 3), 10.0, watch=watch)
    assert len(seen) == 10
