"""Judging plans by the true state."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rsd_planner.evaluation.judging import WORLD_FIGURES, judge_plan, judge_text
from rsd_planner.simulation import expert
from rsd_planner.simulation.chain_of_causation import Meaning, meaning
from rsd_planner.simulation.drive import drive
from rsd_planner.simulation.scenarios import build
from rsd_planner.simulation.snapshot import restore, snapshot
from rsd_planner.simulation.wording import write

T = 0.1 * np.arange(1, 65)


def _states(family: str, seed: int, seconds: float = 7.0) -> list[dict]:
    states: list[dict] = []
    drive(build(family, "train", seed), seconds, watch=lambda world: states.append(snapshot(world)))
    return states


def _judged(states: list[dict], xy: np.ndarray, yaw: np.ndarray, text: str = "") -> dict[str, float]:
    later = [(state["time_s"] - states[0]["time_s"], state) for state in states[1:]]
    return judge_plan(states[0], later, xy, yaw, 0.1, text)


def _straight(state: dict, speed: float) -> tuple[np.ndarray, np.ndarray]:
    ego = state["ego"]
    heading = np.array([math.cos(ego["yaw_rad"]), math.sin(ego["yaw_rad"])])
    return np.array([ego["x_m"], ego["y_m"]]) + speed * T[:, None] * heading, np.full(64, ego["yaw_rad"])


@pytest.mark.parametrize("family", ["follow", "red light", "static obstacle", "crossing traffic"])
def test_the_experts_plan_is_right_in_everything(family):
    states = _states(family, 4)
    world = restore(states[0])
    made = expert.plan(world)
    text = write(meaning(world, made), seed=1)
    found = _judged(states, np.stack([made.x_m, made.y_m], axis=1), made.yaw_rad, text)
    assert set(found) == set(WORLD_FIGURES)
    attributes = found.pop("coc_attributes")
    assert math.isnan(attributes) or attributes == 1.0
    assert {name: value for name, value in found.items() if name.startswith("coc")} == {
        "coc_parsed": 1.0,
        "coc_decision": 1.0,
        "coc_cause": 1.0,
    }
    assert not any(value for name, value in found.items() if not name.startswith("coc"))


def test_driving_on_into_somebody_is_a_collision_when_it_happens():
    states = _states("static obstacle", 0)
    obstacle = states[0]["actors"][0]
    ego = states[0]["ego"]
    gap = math.hypot(obstacle["pose"][0] - ego["x_m"], obstacle["pose"][1] - ego["y_m"])
    vehicle = states[0]["vehicle"]
    room = gap - obstacle["size_m"][0] / 2 - (vehicle["length_m"] - vehicle["rear_overhang_m"])
    xy = np.array([ego["x_m"], ego["y_m"]]) + np.outer(
        np.minimum(room / 1.5 * T, gap),
        [(obstacle["pose"][0] - ego["x_m"]) / gap, (obstacle["pose"][1] - ego["y_m"]) / gap],
    )
    yaw = np.full(64, math.atan2(obstacle["pose"][1] - ego["y_m"], obstacle["pose"][0] - ego["x_m"]))
    found = _judged(states, xy, yaw)  # touches after 1.5 s
    assert (found["collision_1s"], found["collision_2s"], found["collision_3s"]) == (0.0, 1.0, 1.0)
    # Where the states end before the horizon, nothing is claimed.
    found = _judged(states[:5], xy, yaw)
    assert math.isnan(found["collision_1s"]) and math.isnan(found["collision_3s"])


def test_red_lights_and_the_edge_of_the_road():
    states = _states("red light", 1, 1.0)
    xy, yaw = _straight(states[0], 20.0)  # 128 m: past the light while it is red
    assert _judged(states, xy, yaw)["red_light"] == 1.0
    xy, yaw = _straight(states[0], 2.0)
    found = _judged(states, xy, yaw)
    assert found["red_light"] == 0.0 and found["off_road"] == 0.0
    left = np.stack([-np.sin(yaw), np.cos(yaw)], axis=1)
    assert _judged(states, xy + 6.0 * left, yaw)["off_road"] == 1.0


def test_texts_are_scored_by_what_they_say():
    truth = Meaning("slow down", "keep lane", "lead", what="car", colour="red", distance="near")
    right = "Slow down because the red car a short way ahead is slower."
    assert judge_text(right, truth) == {"coc_parsed": 1, "coc_decision": 1, "coc_cause": 1, "coc_attributes": 1}
    partly = judge_text("Slow down because the blue car a short way ahead is slower.", truth)
    assert partly["coc_attributes"] == pytest.approx(2 / 3) and partly["coc_cause"] == 1.0
    other = judge_text("Speed up because the road ahead is clear.", truth)
    assert (other["coc_decision"], other["coc_cause"]) == (0.0, 0.0) and math.isnan(other["coc_attributes"])
    assert judge_text("Slow down, cars.", truth)["coc_parsed"] == 0.0
