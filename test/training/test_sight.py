"""What covers a patch: against geometry worked out by hand, and heads that can learn it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rsd_planner.control.vehicle import VehicleState
from rsd_planner.simulation.actors import COLOURS, Actor, Kind
from rsd_planner.simulation.cameras import CameraSpec, Renderer, Rig
from rsd_planner.simulation.road import Road
from rsd_planner.simulation.scenarios import build
from rsd_planner.simulation.world import LightState, TrafficLight, World
from rsd_planner.training.sight import THINGS, MotionHead, SightHeads, Sights, look, stack

STRAIGHT = Road.from_segments([(400.0, 0.0)])
# 160 x 96, 90 degrees: a focal length of 80 pixels; level, 1.5 m above the ground, in base_link.
RIG = Rig((CameraSpec("front", 1, (0.0, 0.0, 1.5), 0.0, 0.0, 90.0),), (160, 96))


def _world(*actors: Actor, **more) -> World:
    return World(road=STRAIGHT, ego=VehicleState(100.0, 0.0, 0.0, 8.0, 0.0), actors=list(actors), **more)


def _actor(kind: Kind, colour: str, ahead_m: float, left_m: float) -> Actor:
    return Actor(f"{kind.value} {ahead_m}", kind, colour, STRAIGHT, 100.0 + ahead_m, left_m)


def test_patches_of_a_car_by_hand():
    """A truck 8 x 2.4 x 3.2 m, its middle 20 m ahead: its rear is 16 m away."""
    found = look(_world(_actor(Kind.TRUCK, "blue", 20.0, 0.0)), RIG)["front"]
    # Rear: u = 80 -+ 80 * 1.2 / 16 = 74 .. 86; v = 48 - 80 * 1.7 / 16 = 39.5 .. 48 + 80 * 1.5 / 16 = 55.5.
    rows, columns = np.nonzero(found[0])
    assert set(zip(rows.tolist(), columns.tolist(), strict=True)) == {(2, 4), (2, 5), (3, 4), (3, 5)}
    assert set(found[0][rows, columns]) == {float(THINGS.index("truck"))}
    assert set(found[1][rows, columns]) == {float(COLOURS.index("blue"))}
    np.testing.assert_allclose(found[2][rows, columns], 20.0 / 30.0, atol=1e-5)
    np.testing.assert_allclose(found[3][rows, columns], 0.0, atol=1e-5)
    assert np.isnan(found[2][0, 0]) and found[1][0, 0] == -100


def test_what_is_near_hides_what_is_far():
    near, far = _actor(Kind.CAR, "red", 10.0, 0.0), _actor(Kind.CAR, "green", 40.0, 0.0)
    for actors in ((near, far), (far, near)):
        colours = look(_world(*actors), RIG)["front"][1]
        assert set(colours[colours >= 0]) == {float(COLOURS.index("red"))}


def test_motion_is_how_places_change():
    """Against places a moment later: a car that brakes, an oncoming one, a walker, one on a crossing road, a light."""
    crossing = Road.from_segments([(400.0, 0.0)], start=(130.0, -60.0, 1.2))
    actors = [
        Actor("lead", Kind.CAR, "red", STRAIGHT, 110.0, 0.3, speed_mps=6.0, target_speed_mps=2.0, rate_mps2=2.5),
        Actor("oncoming", Kind.TRUCK, "blue", STRAIGHT, 135.0, 9.0, speed_mps=9.0, direction=-1),
        Actor("walker", Kind.PEDESTRIAN, "green", STRAIGHT, 118.0, -4.0, drift_mps=1.4, drift_to_m=5.0),
        Actor("crossing", Kind.BUS, "white", crossing, 66.0, 0.0, speed_mps=5.0),
    ]
    light = TrafficLight(125.0, ((0.0, LightState.RED),))
    world = _world(*actors, lights=[light])
    world.ego = VehicleState(100.0, 0.0, 0.1, 8.0, 0.0)
    for actor in actors:
        actor.step(0.0, 100.0, None, 1e-6)  # its acceleration is known once it has moved
    before = look(world, RIG)["front"]
    step = 1e-2
    for actor in actors:
        actor.step(0.0, 100.0, None, step)
    world.ego = VehicleState(100.0 + 8.0 * step * np.cos(0.1), 8.0 * step * np.sin(0.1), 0.1, 8.0, 0.0)
    after = look(world, RIG)["front"]
    seen = set()
    for row, column in zip(*np.nonzero((before[0] > 0) & (before[0] == after[0])), strict=True):
        seen.add(THINGS[int(before[0, row, column])])
        moved = (after[2:4] - before[2:4])[:, row, column] * (30.0, 10.0) / step
        np.testing.assert_allclose(before[4:6, row, column] * (10.0, 3.0), moved, atol=0.03)
        braking = -2.5 if THINGS[int(before[0, row, column])] == "car" else 0.0
        assert before[6, row, column] * 3.0 == pytest.approx(braking, abs=1e-5)
    assert seen == {"car", "truck", "pedestrian", "bus", "red light"}


def test_our_lane_is_below_the_horizon_and_in_the_middle():
    lane = look(_world(), RIG)["front"][7]
    assert not lane[:3].any() and (lane[4, 4:6] == 1.0).all() and lane[4, 0] == 0.0
    # That row's middle is v = 72: 80 * 1.5 / 24 = 5 m ahead; the lane's edges are u = 80 -+ 80 * 1.75 / 5 = 52 .. 108.
    assert abs(lane[4].sum() * 16 - 56.0) < 4.0 and np.allclose(lane[4], lane[4, ::-1], atol=0.1)


def test_lights_tell_their_state():
    light = TrafficLight(112.0, ((0.0, LightState.RED), (5.0, LightState.GREEN)))
    world = _world(lights=[light])
    assert THINGS.index("red light") in look(world, RIG)["front"][0]
    world.time_s = 6.0
    things = look(world, RIG)["front"][0]
    assert THINGS.index("green light") in things and THINGS.index("red light") not in things


def test_what_is_labelled_is_what_is_painted():
    """Red cars' patches are redder than the rest of real pictures."""
    rig = Rig((CameraSpec("front", 1, (1.8, 0.0, 1.6), 0.0, 2.0, 90.0),), (160, 96))
    world = build("follow", "train", 0)
    world.surroundings = type(world.surroundings)(light="day", scenery_seed=world.surroundings.scenery_seed)
    for actor in world.actors:
        actor.colour = "red"
    renderer = Renderer(rig)
    renderer.load(world)
    picture = renderer.render(world)["front"].astype(float)
    renderer.close()
    coloured = look(world, rig)["front"][1] >= 0
    assert coloured.any()
    redness = (picture[..., 0] - picture[..., 1:].mean(axis=-1)).reshape(6, 16, 10, 16).mean(axis=(1, 3))
    assert redness[coloured].mean() > redness[~coloured].mean() + 10


def test_batches_have_the_towers_order_of_patches():
    """Qwen's tower goes through 2 x 2 blocks of patches, row by row."""
    grid = np.arange(60, dtype=np.float32).reshape(6, 10)
    looks = [{"front": np.stack([grid] * 8)}]
    thing = stack(looks, ["front"]).thing
    assert thing.shape == (1, 1, 15, 4)
    assert thing[0, 0, 0].tolist() == [0, 1, 10, 11] and thing[0, 0, 6].tolist() == [22, 23, 32, 33]


def test_heads_learn_what_the_tokens_hold():
    """Tokens that hold thing and colour as one-hot values: the loss falls, and things are named."""
    random = np.random.default_rng(0)
    thing = torch.from_numpy(random.integers(0, len(THINGS), (4, 2, 15, 4)))
    colour = torch.where(thing > 0, thing % len(COLOURS), torch.tensor(-100))
    place = torch.where(thing[..., None] > 0, thing[..., None].float().expand(-1, -1, -1, -1, 2), torch.nan)
    sights = Sights(thing, colour, place, torch.zeros(*thing.shape, 3), torch.zeros(thing.shape))
    tokens = torch.nn.functional.one_hot(thing, len(THINGS)).flatten(-2).float()
    torch.manual_seed(0)
    heads = SightHeads(2, tokens.shape[-1])
    optimiser = torch.optim.Adam(heads.parameters(), lr=0.02)
    first = None
    for _ in range(150):
        loss, right = heads([tokens, tokens], sights)
        first = first or float(loss.detach())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert first is not None and float(loss.detach()) < 0.2 * first and float(right) > 0.95


def test_the_motion_head_learns_what_the_tokens_hold():
    """Tokens that hold place and motion: the loss falls, and its error of the velocity ahead is that of its words."""
    generator = torch.Generator().manual_seed(0)
    thing = torch.randint(0, 2, (4, 2, 15, 4), generator=generator)
    values = torch.randn(*thing.shape, 5, generator=generator)
    values[thing == 0] = torch.nan
    sights = Sights(thing, torch.full_like(thing, -100), values[..., :2], values[..., 2:], torch.zeros(thing.shape))
    tokens = values.nan_to_num().flatten(-2)
    torch.manual_seed(0)
    head = MotionHead(tokens.shape[-1])
    optimiser = torch.optim.Adam(head.parameters(), lr=0.02)
    losses, errors = [], []
    for _ in range(300):
        loss, error = head(tokens, sights)
        losses.append(float(loss.detach()))
        errors.append(float(error.detach()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert losses[-1] < 0.3 * losses[0] and errors[-1] < 0.5 * errors[0]
    said = head(tokens, sights)
    nowhere = Sights(torch.zeros_like(thing), *list(vars(sights).values())[1:])
    assert float(head(tokens, nowhere)[0].detach()) == 0.0 and float(said[0].detach()) > 0.0
