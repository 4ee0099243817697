"""Outlines on the ground: rectangles that overlap, and sight lines that they block."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rsd_planner.simulation.actors import Actor


@dataclass(frozen=True)
class Box:
    """A rectangle on the ground: middle (m), heading (rad), length and width (m)."""

    x_m: float
    y_m: float
    yaw_rad: float
    length_m: float
    width_m: float


def actor_box(actor: Actor) -> Box:
    """An actor's outline on the ground."""
    x, y, yaw = actor.pose()
    return Box(x, y, yaw, actor.length_m, actor.width_m)


def overlap(a: Box, b: Box) -> bool:
    """Whether two rectangles share a point (separating axes)."""
    dx, dy = b.x_m - a.x_m, b.y_m - a.y_m
    if math.hypot(dx, dy) > (math.hypot(a.length_m, a.width_m) + math.hypot(b.length_m, b.width_m)) / 2:
        return False
    turn = abs(math.cos(a.yaw_rad - b.yaw_rad)), abs(math.sin(a.yaw_rad - b.yaw_rad))
    for own, other in ((a, b), (b, a)):
        cos, sin = math.cos(own.yaw_rad), math.sin(own.yaw_rad)
        along, across = abs(dx * cos + dy * sin), abs(-dx * sin + dy * cos)
        reach_along = (own.length_m + other.length_m * turn[0] + other.width_m * turn[1]) / 2
        reach_across = (own.width_m + other.length_m * turn[1] + other.width_m * turn[0]) / 2
        if along > reach_along or across > reach_across:
            return False
    return True


def crosses(box: Box, start: tuple[float, float], end: tuple[float, float]) -> bool:
    """Whether a segment passes through a rectangle (slab method in the rectangle's frame)."""
    cos, sin = math.cos(box.yaw_rad), math.sin(box.yaw_rad)
    near, far = 0.0, 1.0
    for (ax, ay), half in (((cos, sin), box.length_m / 2), ((-sin, cos), box.width_m / 2)):
        a = (start[0] - box.x_m) * ax + (start[1] - box.y_m) * ay
        b = (end[0] - box.x_m) * ax + (end[1] - box.y_m) * ay
        if abs(b - a) < 1e-9:
            if abs(a) > half:
                return False
            continue
        first, last = sorted(((-half - a) / (b - a), (half - a) / (b - a)))
        near, far = max(near, first), min(far, last)
    return near < far
