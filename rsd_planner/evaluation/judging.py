"""Judging plans by the true state of a simulated world: collisions, rules, and whether the reasoning is right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rsd_planner.simulation.chain_of_causation import Meaning, meaning
from rsd_planner.simulation.outlines import Box, overlap
from rsd_planner.simulation.road import LANE_WIDTH_M
from rsd_planner.simulation.snapshot import restore
from rsd_planner.simulation.wording import parse
from rsd_planner.simulation.world import LightState, World

_COLLISION_S = (1.0, 2.0, 3.0)
_ATTRIBUTES = ("what", "colour", "side", "distance", "around")

WORLD_FIGURES = (
    *(f"collision_{horizon:g}s" for horizon in _COLLISION_S),
    *("red_light", "off_road", "coc_parsed", "coc_decision", "coc_cause", "coc_attributes"),
)
"""Names of what `judge_plan` finds."""


def judge_plan(
    now: dict[str, Any],
    later: Sequence[tuple[float, dict[str, Any]]],
    xy_in_odometry: NDArray[np.float64],
    yaw_in_odometry: NDArray[np.float64],
    dt_s: float,
    text: str,
) -> dict[str, float]:
    """Figures of one plan.

    now: the state at t0; later: (seconds after t0, state) as the others really moved. The plan [N] is in the world's
    frame. collision_1s .. 3s: 1 if the planned car overlaps anybody by then, at the states' times (as in UniAD, Hu et
    al. 2023; NaN where the states end earlier); off_road, red_light over the whole plan; for the text see `judge_text`.
    """
    world = restore(now)
    found = {f"collision_{horizon:g}s": math.nan for horizon in _COLLISION_S}
    hit_s = _first_collision(world, later, xy_in_odometry, yaw_in_odometry, dt_s)
    known_s = max((after for after, _ in later), default=0.0)
    for horizon in _COLLISION_S:
        if hit_s <= horizon or known_s >= horizon - 1e-6:
            found[f"collision_{horizon:g}s"] = float(hit_s <= horizon)
    return found | _rules(world, xy_in_odometry, dt_s) | judge_text(text, meaning(world))


def judge_text(text: str, truth: Meaning) -> dict[str, float]:
    """parsed: the text is one that the writer could have written; the others are NaN if not.

    coc_decision: longitudinal and lateral decision are right; coc_cause: the kind of cause is right; coc_attributes:
    share of the true attributes that the text names rightly (NaN if the cause is wrong or has none).
    """
    said = parse(text)
    if said is None:
        return {"coc_parsed": 0.0, "coc_decision": 0.0, "coc_cause": 0.0, "coc_attributes": math.nan}
    cause = said.cause == truth.cause
    named = [
        getattr(said, name) == getattr(truth, name)
        for name in _ATTRIBUTES
        # An attribute that this wording does not mention is not wrong.
        if getattr(truth, name) is not None and getattr(said, name) is not None
    ]
    return {
        "coc_parsed": 1.0,
        "coc_decision": float((said.longitudinal, said.lateral) == (truth.longitudinal, truth.lateral)),
        "coc_cause": float(cause),
        "coc_attributes": float(np.mean(named)) if cause and named else math.nan,
    }


def _first_collision(
    world: World,
    later: Sequence[tuple[float, dict[str, Any]]],
    xy: NDArray[np.float64],
    yaw: NDArray[np.float64],
    dt_s: float,
) -> float:
    """Seconds after t0 at which the planned car first overlaps somebody, inf if never."""
    vehicle = world.vehicle
    ahead = vehicle.length_m / 2 - vehicle.rear_overhang_m
    for after, state in later:
        k = round(after / dt_s) - 1
        if not 0 <= k < len(xy):
            continue
        cos, sin = math.cos(yaw[k]), math.sin(yaw[k])
        ego = Box(xy[k, 0] + ahead * cos, xy[k, 1] + ahead * sin, float(yaw[k]), vehicle.length_m, vehicle.width_m)
        if any(overlap(ego, _box(actor)) for actor in state["actors"]):
            return after
    return math.inf


def _box(actor: Mapping[str, Any]) -> Box:
    (x, y, yaw), (length, width, _) = actor["pose"], actor["size_m"]
    return Box(x, y, yaw, length, width)


def _rules(world: World, xy: NDArray[np.float64], dt_s: float) -> dict[str, float]:
    places = [world.road.project(float(x), float(y)) for x, y in xy]
    fronts = np.array([world.ego_place()[0], *(s for s, _ in places)]) + world.ego_front_m
    red = 0.0
    for light in world.lights:
        crossed = np.flatnonzero((fronts[:-1] <= light.stop_s_m) & (fronts[1:] > light.stop_s_m))
        if len(crossed) and light.state(world.time_s + (int(crossed[0]) + 1) * dt_s) is LightState.RED:
            red = 1.0
    half = world.vehicle.width_m / 2
    lanes = [lane.offset_m for lane in world.road.lanes]
    low, high = min(lanes) - LANE_WIDTH_M / 2 - 0.3, max(lanes) + LANE_WIDTH_M / 2
    off = any(d - half < low or d + half > high for _, d in places)
    return {"red_light": red, "off_road": float(off)}
