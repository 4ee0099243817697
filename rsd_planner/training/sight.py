"""Teaching where things are and how they move: what covers each patch of a picture, and heads that say so in training.

The heads are not part of the model. A chain of causation or a description tells the tower too little of where to look:
after 10,000 samples the words alone had not begun to depend on single things in the pictures. What changes from
picture to picture only the text layers can see, so they are asked for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from rsd_planner.simulation.actors import COLOURS, Actor, Kind
from rsd_planner.simulation.cameras import CameraSpec, Rig
from rsd_planner.simulation.chain_of_causation import in_base_link
from rsd_planner.simulation.road import LANE_WIDTH_M
from rsd_planner.simulation.scenery import signal_heads, stop_sign_place
from rsd_planner.simulation.world import LightState, World

THINGS = (
    "nothing",
    *(kind.value for kind in Kind),
    *(f"{state.value} light" for state in LightState),
    "stop sign",
)
PATCH, CELLS = 16, 4
"""Pixels of a patch's side, and patches that the tower merges into one token (2 x 2)."""
_UNKNOWN = -100
_LEAST_PIXELS = 6
_RANGE_M, _LANE_AHEAD_M, _STRIP_M = 90.0, 60.0, 3.0
_PLACE_SCALE = (30.0, 10.0)
_MOTION_SCALE = (10.0, 3.0, 3.0)
_FINE = 0.1
"""Where errors of place and motion begin to count in proportion, of their scales."""
_NOTHING_WEIGHT = 0.1


@dataclass(frozen=True)
class Sights:
    """What the newest pictures of B samples show, for each token's 4 patches: [B, cameras, tokens, 4].

    thing: index into THINGS; colour: index into COLOURS or -100; place [..., 2]: metres ahead / 30 and left / 10 of
    base_link (NaN where there is nothing); motion [..., 3]: its velocity ahead / 10 and to the left / 3 as seen from
    the car (m/s), and its own acceleration / 3 (m/s^2); lane: share of the patch that our own lane covers.
    """

    thing: Tensor
    colour: Tensor
    place: Tensor
    motion: Tensor
    lane: Tensor


@dataclass(frozen=True)
class _Box:
    """Something that can be seen: corners [8, 3] in base_link (m), motion as in Sights."""

    corners: NDArray[np.float64]
    thing: int
    colour: int
    motion: tuple[float, float, float]


def look(world: World, rig: Rig) -> dict[str, NDArray[np.float32]]:
    """By camera: thing, colour, place (2), motion (3), lane of each patch, [8, height / 16, width / 16]; see Sights.

    Nearer things hide farther ones; buildings and trees are not things.
    """
    boxes = sorted(_boxes(world), key=lambda box: -float(np.hypot(*box.corners[:, :2].mean(axis=0))))
    width, height = rig.resolution
    lane = _own_lane(world)
    return {camera.name: _patches(camera, boxes, lane, width, height) for camera in rig.cameras}


def stack(looks: Sequence[dict[str, NDArray[np.float32]]], cameras: Sequence[str]) -> Sights:
    """Batches what `look` found, in the tower's order of patches."""
    grids = np.stack([[found[name] for name in cameras] for found in looks])  # [B, cameras, 8, rows, columns]
    batch, count, channels, rows, columns = grids.shape
    split = grids.reshape(batch, count, channels, rows // 2, 2, columns // 2, 2)
    merged = split.transpose(0, 1, 3, 5, 4, 6, 2).reshape(batch, count, rows * columns // CELLS, CELLS, channels)
    tensor = torch.from_numpy(np.ascontiguousarray(merged))
    thing, colour = tensor[..., 0].long(), tensor[..., 1].long()
    return Sights(thing, colour, tensor[..., 2:4], tensor[..., 4:7], tensor[..., 7])


class SightHeads(nn.Module):
    """Linear heads on the tokens that the tower gives, its last ones and each DeepStack level's."""

    def __init__(self, levels: int, size: int) -> None:
        super().__init__()
        self._outputs = len(THINGS) + len(COLOURS) + 3
        self.heads = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(size), nn.Linear(size, CELLS * self._outputs)) for _ in range(levels)
        )

    def forward(self, levels: Sequence[Tensor], sights: Sights) -> tuple[Tensor, Tensor]:
        """Tokens [B, cameras, tokens, D] of each level -> loss, and the share of things rightly named by the last."""
        losses, right = [], levels[0].new_zeros(())
        there = sights.thing > 0
        for level, head in zip(levels, self.heads, strict=True):
            said = head(level.float()).unflatten(-1, (CELLS, self._outputs))
            thing, colour, place, lane = said.split([len(THINGS), len(COLOURS), 2, 1], dim=-1)
            weight = thing.new_ones(len(THINGS))
            weight[0] = _NOTHING_WEIGHT
            loss = F.cross_entropy(thing.flatten(0, -2), sights.thing.flatten(), weight=weight)
            loss = loss + F.mse_loss(lane.squeeze(-1), sights.lane)
            if bool(there.any()):
                loss = loss + F.smooth_l1_loss(place[there], sights.place[there])
                right = (thing.argmax(-1) == sights.thing)[there].float().mean()
            if bool((sights.colour != _UNKNOWN).any()):
                loss = loss + F.cross_entropy(colour.flatten(0, -2), sights.colour.flatten(), ignore_index=_UNKNOWN)
            losses.append(loss)
        return torch.stack(losses).mean(), right


class MotionHead(nn.Module):
    """A linear head on what a text layer makes of the newest pictures' tokens."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._outputs = len(_PLACE_SCALE) + len(_MOTION_SCALE)
        self.head = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, CELLS * self._outputs))

    def forward(self, tokens: Tensor, sights: Sights) -> tuple[Tensor, Tensor]:
        """Tokens [B, cameras, tokens, D] -> loss, and the mean error of the velocity ahead (m/s) where there is one."""
        there = sights.thing > 0
        if not bool(there.any()):
            return tokens.new_zeros(()), tokens.new_zeros(())
        said = self.head(tokens.float()).unflatten(-1, (CELLS, self._outputs))[there]
        true = torch.cat([sights.place, sights.motion], dim=-1)[there]
        ahead = len(_PLACE_SCALE)
        error = (said[:, ahead] - true[:, ahead]).abs().mean() * _MOTION_SCALE[0]
        return F.smooth_l1_loss(said, true, beta=_FINE), error


def _patches(
    camera: CameraSpec, boxes: Sequence[_Box], lane: NDArray[np.float64], width: int, height: int
) -> NDArray[np.float32]:
    owner = np.full((height, width), -1, dtype=np.int32)
    shapes = [*(box.corners for box in boxes), *lane]
    seen = camera.project(np.concatenate(shapes), width, height)
    outlines = [_outline(points, width, height) for points in np.split(seen, np.cumsum([len(s) for s in shapes])[:-1])]
    for number, outline in enumerate(outlines[: len(boxes)]):
        if outline is not None:
            cv2.fillConvexPoly(owner, outline, number)
    rows, columns = height // PATCH, width // PATCH
    found = np.full((8, rows, columns), np.nan, dtype=np.float32)
    found[0], found[1] = 0.0, _UNKNOWN
    tiles = owner.reshape(rows, PATCH, columns, PATCH).transpose(0, 2, 1, 3).reshape(rows, columns, -1)
    for row, column in np.argwhere((tiles >= 0).sum(axis=-1) >= _LEAST_PIXELS):
        numbers, counts = np.unique(tiles[row, column][tiles[row, column] >= 0], return_counts=True)
        box = boxes[int(numbers[counts.argmax()])]
        middle = box.corners.mean(axis=0)
        place = middle[:2] / _PLACE_SCALE
        found[:7, row, column] = box.thing, box.colour, *place, *np.divide(box.motion, _MOTION_SCALE)
    mask = np.zeros((height, width), dtype=np.uint8)
    for outline in outlines[len(boxes) :]:
        if outline is not None:
            cv2.fillConvexPoly(mask, outline, 1)
    found[7] = mask.reshape(rows, PATCH, columns, PATCH).mean(axis=(1, 3))
    return found


def _outline(seen: NDArray[np.float64], width: int, height: int) -> NDArray[np.int32] | None:
    """Convex outline in pixels of points (u, v, depth) before the camera; None if it is out of sight."""
    seen = seen[seen[:, 2] > 0.3]
    if len(seen) < 3:
        return None
    points = np.clip(seen[:, :2], -4.0 * width, 5.0 * width).astype(np.float32)
    (left, top), (right, bottom) = points.min(axis=0), points.max(axis=0)
    if right < 0 or bottom < 0 or left > width or top > height:
        return None
    return np.asarray(np.round(cv2.convexHull(points)), dtype=np.int32)


def _motion(world: World, actor: Actor) -> tuple[float, float, float]:
    """See Sights, in SI units."""
    yaw = actor.road.pose(actor.s_m, actor.d_m)[2] - world.ego.yaw_rad
    along, left = actor.direction * actor.speed_mps, actor.drift_mps
    ahead = along * math.cos(yaw) - left * math.sin(yaw) - world.ego.speed_mps
    return ahead, along * math.sin(yaw) + left * math.cos(yaw), actor.acceleration_mps2


def _boxes(world: World) -> list[_Box]:
    boxes, stands = [], (-world.ego.speed_mps, 0.0, 0.0)
    for actor in world.actors:
        length, wide, high = actor.kind.size_m
        colour = _UNKNOWN if actor.kind.is_static else COLOURS.index(actor.colour)
        corners = _corners(world, actor.pose(), (length, wide, high), 0.0)
        boxes.append(_Box(corners, THINGS.index(actor.kind.value), colour, _motion(world, actor)))
    for light in world.lights:
        thing = THINGS.index(f"{light.state(world.time_s).value} light")
        for x, y, z, yaw in signal_heads(world.road, light.stop_s_m):
            boxes.append(_Box(_corners(world, (x, y, yaw), (0.3, 0.5, 1.3), z), thing, _UNKNOWN, stands))
    for sign in world.stop_signs_s_m:
        x, y, yaw = stop_sign_place(world.road, sign)
        corners = _corners(world, (x, y, yaw), (0.1, 0.9, 0.9), 1.7)
        boxes.append(_Box(corners, THINGS.index("stop sign"), _UNKNOWN, stands))
    return [box for box in boxes if math.hypot(*box.corners[:, :2].mean(axis=0)) < _RANGE_M]


def _corners(
    world: World, pose: tuple[float, float, float], size: tuple[float, float, float], low_m: float
) -> NDArray[np.float64]:
    """Corners [8, 3] in base_link of a box on a pose in the world."""
    x, y, yaw = pose
    length, width, height = size
    grid = np.meshgrid([-length / 2, length / 2], [-width / 2, width / 2], [low_m, low_m + height])
    u, v, w = (axis.ravel() for axis in grid)
    return _from_car(world, x + u * np.cos(yaw) - v * np.sin(yaw), y + u * np.sin(yaw) + v * np.cos(yaw), w)


def _from_car(
    world: World, x: NDArray[np.float64], y: NDArray[np.float64], z: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.column_stack([*in_base_link(world, x, y), z])


def _own_lane(world: World) -> NDArray[np.float64]:
    """Strips [N, 4, 3] of our lane on the ground, _STRIP_M long each, in base_link."""
    place, _ = world.ego_place()
    along = np.arange(place, place + _LANE_AHEAD_M, _STRIP_M)
    edges = []
    for offset in (LANE_WIDTH_M / 2, -LANE_WIDTH_M / 2):
        points = np.array([world.road.pose(float(s), offset)[:2] for s in along])
        edges.append(_from_car(world, points[:, 0], points[:, 1], np.zeros(len(points))))
    left, right = edges
    return np.stack([left[:-1], left[1:], right[1:], right[:-1]], axis=1)
