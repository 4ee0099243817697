"""Cameras: what is drawn is where the pinhole model says, and looks like what it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rsd_planner.control.vehicle import VehicleState
from rsd_planner.simulation.actors import Actor, Kind
from rsd_planner.simulation.cameras import Renderer, Rig
from rsd_planner.simulation.road import Road
from rsd_planner.simulation.scenarios import FAMILIES, build
from rsd_planner.simulation.world import SLOW_ZONE_MPS, LightState, Surroundings, TrafficLight, World

RIG = Rig.from_yaml(Path(__file__).resolve().parents[2] / "config" / "cameras.yaml")
STRAIGHT = Road.from_segments([(300.0, 0.0)])
BARE = Surroundings(density=0.01)


@pytest.fixture(scope="module")
def renderer():
    made = Renderer(RIG)
    yield made
    made.close()


def _pictures(renderer: Renderer, world: World) -> dict[str, np.ndarray]:
    renderer.load(world)
    return renderer.render(world)


def test_the_rig_is_the_public_models():
    assert [(camera.name, camera.index, camera.field_of_view_deg) for camera in RIG.cameras] == [
        ("cross_left", 0, 120.0), ("front_wide", 1, 120.0), ("cross_right", 2, 120.0), ("front_tele", 6, 30.0),
    ]  # fmt: skip


@pytest.mark.parametrize(("ahead", "left"), [(15.0, 3.0), (25.0, -4.0), (40.0, 0.0), (12.0, 9.0)])
def test_things_are_drawn_where_the_pinhole_model_says(renderer, ahead, left):
    """The pixels that a bright box adds to the picture surround its projected middle."""
    ego = VehicleState(x_m=50.0, y_m=0.5, yaw_rad=0.2)
    cos, sin = np.cos(0.2), np.sin(0.2)
    x, y = 50.0 + cos * ahead - sin * left, 0.5 + sin * ahead + cos * left
    s, d = STRAIGHT.project(x, y)
    box = Actor("box", Kind.BUS, "yellow", STRAIGHT, s, d)
    without = _pictures(renderer, World(STRAIGHT, ego, surroundings=BARE))
    pictures = _pictures(renderer, World(STRAIGHT, ego, actors=[box], surroundings=BARE))
    corners = np.array(
        [
            (ahead + u * np.cos(-0.2) - v * np.sin(-0.2), left + u * np.sin(-0.2) + v * np.cos(-0.2), z)
            for u in (-5.5, 5.5)
            for v in (-1.25, 1.25)
            for z in (0.0, 3.1)
        ]
    )
    seen = 0
    for camera in RIG.cameras:
        changed = np.any(pictures[camera.name] != without[camera.name], axis=2)
        projected = camera.project(corners, *RIG.resolution)
        u, v = projected[:, 0], projected[:, 1]
        visible = projected[:, 2].min() > 0.5 and u.min() > 0 and u.max() < 320 and v.min() > 0 and v.max() < 180
        if not visible:
            continue
        seen += 1
        rows, columns = np.nonzero(changed)
        assert (columns.min(), columns.max()) == pytest.approx((u.min(), u.max()), abs=2.5)
        assert rows.min() == pytest.approx(v.min(), abs=2.5)
        assert rows.max() == pytest.approx(v.max(), abs=5.0)  # only the wheels reach the ground
    assert seen >= 1


@pytest.mark.parametrize("colour", ["red", "blue", "green", "yellow", "white"])
def test_colours_are_the_actors(renderer, colour):
    car = Actor("car", Kind.CAR, colour, STRAIGHT, 80.0, 0.0)
    picture = _pictures(renderer, World(STRAIGHT, VehicleState(x_m=50.0), actors=[car], surroundings=BARE))[
        "front_tele"
    ]
    tele = RIG.cameras[3]
    tail = tele.project(np.array([[80.0 - 2.25 - 50.0, 0.0, 0.6]]), *RIG.resolution)[0]
    red, green, blue = picture[round(tail[1]), round(tail[0])].astype(int)
    dominant = {
        "red": red > 2 * max(green, blue),
        "blue": blue > 2 * max(red, green),
        "green": green > 2 * max(red, blue),
        "yellow": min(red, green) > 2 * blue,
        "white": min(red, green, blue) > 150,
    }
    assert dominant[colour], (red, green, blue)


@pytest.mark.parametrize("state", list(LightState))
def test_lights_show_their_state(renderer, state):
    light = TrafficLight(90.0, ((0.0, state),))
    world = World(STRAIGHT, VehicleState(x_m=60.0), lights=[light], surroundings=BARE)
    picture = _pictures(renderer, world)["front_tele"].astype(int)
    red, green, blue = picture[:, :, 0], picture[:, :, 1], picture[:, :, 2]
    counts = {
        LightState.RED: np.sum((red > 170) & (green < 60) & (blue < 60)),
        LightState.AMBER: np.sum((red > 170) & (green > 100) & (green < 200) & (blue < 40)),
        LightState.GREEN: np.sum((green > 170) & (red < 60) & (blue < 120)),
    }
    assert counts[state] >= 8
    assert all(counts[other] <= 2 for other in LightState if other is not state), counts


@pytest.mark.parametrize("kind", [Kind.CAR, Kind.TRUCK, Kind.BUS])
def test_who_brakes_or_waits_shows_it(renderer, kind):
    """Pixels that change against the same vehicle at its ease: red ones behind, none for who is parked."""

    def seen(**state) -> np.ndarray:
        moving = {"speed_mps": 8.0} | state
        actor = Actor("lead", kind, "black", STRAIGHT, 85.0, 0.0, **moving)
        world = World(STRAIGHT, VehicleState(x_m=60.0), actors=[actor], surroundings=BARE)
        return _pictures(renderer, world)["front_tele"].astype(int)

    at_ease = seen()
    for lit in (seen(acceleration_mps2=-2.0), seen(speed_mps=0.0, target_speed_mps=5.0)):
        changed = np.any(lit != at_ease, axis=2)
        assert changed.sum() >= 30
        red, green, _ = lit[changed].mean(axis=0)
        assert red > 200 and red > 2 * green
    np.testing.assert_array_equal(seen(speed_mps=0.0), at_ease)
    np.testing.assert_array_equal(seen(acceleration_mps2=1.0), at_ease)


def test_indicators_blink_on_the_side_that_is_moved_to(renderer):
    def seen(time_s: float, **state) -> np.ndarray:
        actor = Actor("car", Kind.CAR, "black", STRAIGHT, 80.0, 0.0, speed_mps=8.0, **state)
        ego = VehicleState(x_m=60.0)
        world = World(STRAIGHT, ego, actors=[actor], surroundings=BARE, time_s=time_s)
        return _pictures(renderer, world)["front_tele"].astype(int)

    for drift in (1.0, -1.0):
        lit = np.any(seen(0.1, drift_mps=drift) != seen(0.1), axis=2)
        columns = np.nonzero(lit)[1]
        middle = lit.shape[1] / 2
        assert len(columns) > 10 and ((columns < middle) if drift > 0 else (columns > middle)).all()
        np.testing.assert_array_equal(seen(0.5, drift_mps=drift), seen(0.5))
        again = np.any(seen(0.1, drift_mps=-drift, direction=-1) != seen(0.1, direction=-1), axis=2)
        assert again.any()  # an oncoming one that moves to its own left drifts to our right


def test_pictures_are_repeatable_and_differ(renderer):
    first = {family: _pictures(renderer, build(family, "train", 0))["front_wide"] for family in FAMILIES}
    again = {family: _pictures(renderer, build(family, "train", 0))["front_wide"] for family in FAMILIES}
    families = list(FAMILIES)
    for k, family in enumerate(families):
        np.testing.assert_array_equal(first[family], again[family])
        for other in families[:k]:
            assert np.mean(np.any(first[family] != first[other], axis=2)) > 0.05


def test_fog_hides_the_distance(renderer):
    def contrast(light: str, distance: float) -> float:
        ego = VehicleState(x_m=50.0)
        looks = Surroundings(light=light, density=0.01)
        bus = Actor("bus", Kind.BUS, "black", STRAIGHT, 50.0 + distance, 0.0)
        with_bus = _pictures(renderer, World(STRAIGHT, ego, actors=[bus], surroundings=looks))["front_tele"].astype(int)
        without = _pictures(renderer, World(STRAIGHT, ego, surroundings=looks))["front_tele"].astype(int)
        return float(np.abs(with_bus - without).max())

    assert contrast("fog", 90.0) < 0.45 * contrast("day", 90.0)
    assert contrast("fog", 15.0) > 0.6 * contrast("day", 15.0)


def test_fog_leaves_the_road_before_the_car(renderer):
    """The nearest curtain hangs 12 m ahead: what lies nearer looks as it does without fog, but for its brightness."""

    def nearest_rows(light: str) -> NDArray[np.float64]:
        world = World(STRAIGHT, VehicleState(x_m=50.0), surroundings=Surroundings(light=light, density=0.01))
        return _pictures(renderer, world)["front_wide"][-20:].astype(float)

    day, fog = nearest_rows("day"), nearest_rows("fog")
    assert day.std() > 20.0
    np.testing.assert_allclose(fog, 0.88 * day, atol=0.03 * 255)


def test_a_slow_zone_is_surfaced_in_red(renderer):
    def road(limit_mps: float) -> NDArray[np.float64]:
        world = World(STRAIGHT, VehicleState(x_m=50.0), speed_limit_mps=limit_mps)
        picture = _pictures(renderer, world)["front_wide"]
        return np.median(picture[-10:, 60:100].reshape(-1, 3).astype(float), axis=0)

    (red, green, _), (grey, as_grey, _) = road(SLOW_ZONE_MPS), road(13.9)
    assert red > 1.5 * green and grey == pytest.approx(as_grey, rel=0.05)


def test_rigs_with_mistakes_are_refused(tmp_path):
    rig = tmp_path / "rig.yaml"
    rig.write_text("cameras: []\n")
    with pytest.raises(ValueError, match=r"rig\.yaml: a rig has the keys"):
        Rig.from_yaml(rig)
    rig.write_text("cameras: [{name: a, index: 0, position: [0, 0, 1]}]\n")
    with pytest.raises(ValueError, match=r"rig\.yaml: a camera is not described: .*yaw_deg"):
        Rig.from_yaml(rig)
