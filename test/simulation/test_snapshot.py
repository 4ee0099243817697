"""Snapshots: a world that came through JSON goes on as the original does."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rsd_planner.control.vehicle import Command
from rsd_planner.simulation import expert
from rsd_planner.simulation.scenarios import FAMILIES, build
from rsd_planner.simulation.snapshot import restore, snapshot
from rsd_planner.simulation.world import World


@pytest.mark.parametrize("family", FAMILIES)
def test_the_future_of_a_restored_world_is_the_same(family):
    world = build(family, "validation", 3)
    for _ in range(400):
        world.step(Command(0.005, -0.4))
    copy = restore(json.loads(json.dumps(snapshot(world))))
    assert snapshot(copy) == snapshot(world)
    np.testing.assert_array_equal(expert.plan(copy).s_m, expert.plan(world).s_m)
    for _ in range(400):
        world.step(Command(-0.005, 0.3))
        copy.step(Command(-0.005, 0.3))
    assert snapshot(copy) == snapshot(world)


def test_what_is_no_snapshot_is_refused():
    world = build("follow", "train", 0)
    state = snapshot(world)
    with pytest.raises(ValueError, match=r"not of \('follow', 'train', 1\)"):
        restore(state, build("follow", "train", 1))
    del state["ego"]
    with pytest.raises(ValueError, match="not complete: 'ego'"):
        restore(state)
    with pytest.raises(ValueError, match="only a world of a scenario"):
        snapshot(World(world.road, world.ego))
