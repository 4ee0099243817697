"""Reasoning-action consistency: what texts state, and what speeds do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rsd_planner.evaluation.consistency import consistency, is_done, stated_decision
from rsd_planner.simulation import expert
from rsd_planner.simulation.chain_of_causation import LONGITUDINAL, meaning
from rsd_planner.simulation.drive import drive
from rsd_planner.simulation.scenarios import FAMILIES, build
from rsd_planner.simulation.wording import write


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        ("Slow down because the red car just in front of us is slower.", "slow down"),
        ("Decelerate to yield to the pedestrian crossing ahead.", "slow down"),
        ("Come to a stop at the stop sign.", "stop"),
        ("Accelerate to the speed limit since the road is clear.", "speed up"),
        ("Keep lane and maintain speed as there is no lead vehicle.", "keep speed"),
        ("Remain stopped for the red light.", "wait"),
        ("Start moving as the light has turned green.", "set off"),
        ("Yield at the stop sign.", "slow down"),
        ("The weather is fine.", None),
    ],
)
def test_what_a_text_states(text, decision):
    assert stated_decision(text) == decision


def _speeds(now: float, soon: float) -> np.ndarray:
    """Linear from now to soon in three seconds, then constant."""
    return np.interp(0.1 * np.arange(1, 65), [0.0, 3.0], [now, soon])


@pytest.mark.parametrize(
    ("decision", "now", "soon", "done"),
    [
        ("keep speed", 10.0, 10.4, True),
        ("keep speed", 10.0, 6.0, False),
        ("slow down", 10.0, 6.0, True),
        ("slow down", 10.0, 10.0, False),
        ("speed up", 5.0, 8.0, True),
        ("speed up", 5.0, 3.0, False),
        ("stop", 5.0, 0.0, True),
        ("stop", 5.0, 3.0, False),
        ("wait", 0.0, 0.0, True),
        ("wait", 0.0, 4.0, False),
        ("set off", 0.0, 4.0, True),
        ("set off", 0.0, 0.0, False),
    ],
)
def test_what_is_done(decision, now, soon, done):
    assert is_done(decision, now, _speeds(now, soon)) is done


def test_unknown_words():
    assert math.isnan(consistency("The weather is fine.", 5.0, _speeds(5.0, 5.0)))
    with pytest.raises(ValueError, match="'dance' is not one of keep speed"):
        is_done("dance", 5.0, _speeds(5.0, 5.0))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_does_what_it_says(family):
    seen = []

    def watch(world):
        made = expert.plan(world)
        said = write(meaning(world, made), seed=round(world.time_s * 10))
        seen.append(consistency(said, made.speed_now_mps, made.speed_mps))

    drive(build(family, "validation", 3), 8.0, watch=watch)
    assert seen == [1.0] * 80
    assert set(LONGITUDINAL) >= {"keep speed"}
