"""The planned path in the camera's picture, and the scene from above."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

PLAN, _TRUTH = (60, 200, 90), (255, 190, 40)  # RGB
_HALF_WIDTH_M = 0.9
_NEAREST_M = 1.0


def project(calibration: dict[str, Any], points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points [N, 3] in base_link -> u, v (pixels of the calibrated size) and depth (m) [N, 3].

    Points behind the camera have a depth that is not positive and no meaningful pixel.
    """
    rotation = Rotation.from_quat(calibration["rotation"])
    optical = rotation.inv().apply(points - np.array(calibration["translation"]))
    k = np.array(calibration["k"]).reshape(3, 3)
    depth = optical[:, 2]
    safe = np.where(depth[:, None] > 1e-3, optical, [0.0, 0.0, 1.0])
    pixels, _ = cv2.projectPoints(safe, np.zeros(3), np.zeros(3), k, np.array(calibration["d"] or [0.0] * 5))
    return np.column_stack([pixels[:, 0], depth])


def draw_path(
    picture: NDArray[np.uint8], calibration: dict[str, Any], xy: NDArray[np.float64], colour: tuple[int, int, int]
) -> NDArray[np.uint8]:
    """A copy of a picture (RGB uint8 [H, W, 3], any size) with a path [N, 2] (base_link, on the ground) as a band."""
    points = np.vstack([[0.0, 0.0], xy])
    heading = np.arctan2(*np.gradient(points, axis=0)[:, ::-1].T)
    left = _HALF_WIDTH_M * np.stack([-np.sin(heading), np.cos(heading)], axis=1)
    scale = picture.shape[1] / calibration["width"]
    layer = picture.copy()
    edges = []
    for side in (points + left, points - left):
        pixels = project(calibration, np.column_stack([side, np.zeros(len(side))]))
        edges.append(np.column_stack([pixels[:, :2] * scale, pixels[:, 2]]))
    for k in range(len(points) - 1):
        corners = np.array([edges[0][k], edges[0][k + 1], edges[1][k + 1], edges[1][k]])
        if corners[:, 2].min() > _NEAREST_M and np.abs(corners[:, :2]).max() < 1e5:
            cv2.fillPoly(layer, [np.round(corners[:, :2]).astype(np.int32)], colour)
    return np.asarray(cv2.addWeighted(layer, 0.55, picture, 0.45, 0.0), dtype=np.uint8)


def draw_plan(picture: NDArray[np.uint8], calibration: dict[str, Any], row: dict[str, Any]) -> NDArray[np.uint8]:
    """A cycle's true way (amber) below its plan (green) in a picture."""
    true = np.column_stack([row["truth_x"], row["truth_y"]]).astype(np.float64)
    true = true[np.isfinite(true).all(axis=1)]
    if len(true):
        picture = draw_path(picture, calibration, true, _TRUTH)
    return draw_path(picture, calibration, np.column_stack([row["plan_x"], row["plan_y"]]), PLAN)


def from_above(row: dict[str, Any], world: dict[str, Any] | None) -> go.Figure:
    """Plan, samples, truth and, where the true state is known, the others: ahead is up."""
    figure = go.Figure()
    for x, y in zip(row["samples_x"] or [], row["samples_y"] or [], strict=True):
        figure.add_scatter(x=_left(y), y=x, mode="lines", line={"color": "rgba(60,160,90,0.35)"}, showlegend=False)
    for name, colour in (("truth", "rgb(220,150,20)"), ("plan", "rgb(30,140,60)")):
        x, y = [0.0, *row[f"{name}_x"]], [0.0, *row[f"{name}_y"]]
        figure.add_scatter(x=_left(y), y=x, mode="lines+markers", name=name, line={"color": colour}, marker={"size": 4})
    for actor in (world or {}).get("actors", []):
        outline = _outline(actor, row["pose"])
        if np.abs(outline).max() < 70.0:
            figure.add_scatter(
                x=_left(outline[:, 1]),
                y=outline[:, 0],
                fill="toself",
                mode="lines",
                name=f"{actor['colour']} {actor['kind']}",
                line={"color": "rgb(110,110,130)"},
                showlegend=False,
            )
    figure.update_layout(height=420, margin={"l": 40, "r": 10, "t": 10, "b": 40}, template="plotly_white")
    figure.update_xaxes(title="to the right (m)")
    figure.update_yaxes(title="ahead (m)", scaleanchor="x", scaleratio=1)
    return figure


def _left(values: Any) -> list[float | None]:
    """Left is left in the plot: y grows to the left, the plot's x to the right."""
    return [None if value is None or value != value else -float(value) for value in values]


def _outline(actor: dict[str, Any], pose: list[float]) -> NDArray[np.float64]:
    """Corners [5, 2] of an actor in base_link."""
    (x, y, yaw), (length, width, _) = actor["pose"], actor["size_m"]
    u = np.array([1, 1, -1, -1, 1]) * length / 2
    v = np.array([1, -1, -1, 1, 1]) * width / 2
    dx = x + u * np.cos(yaw) - v * np.sin(yaw) - pose[0]
    dy = y + u * np.sin(yaw) + v * np.cos(yaw) - pose[1]
    cos, sin = np.cos(pose[2]), np.sin(pose[2])
    return np.stack([dx * cos + dy * sin, -dx * sin + dy * cos], axis=1)
