"""The picture of a simulated drive: from above with its plans, and one moment through the cameras with its reasons."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rsd_planner.evaluation.drawing import PLAN, draw_path
from rsd_planner.simulation.cameras import CameraSpec, Rig
from rsd_planner.simulation.outlines import Box, actor_box
from rsd_planner.simulation.road import LANE_WIDTH_M
from rsd_planner.simulation.snapshot import restore
from rsd_planner.simulation.world import World

_BEFORE_M, _AHEAD_M = 20.0, 30.0


@dataclass(frozen=True)
class Moment:
    """One plan with what was true at its t0.

    world: see simulation.snapshot; pictures by camera, RGB uint8 [H, W, 3]; xy [N, 2] (m, base_link), speed_mps [N].
    """

    world: dict[str, Any]
    pictures: dict[str, NDArray[np.uint8]]
    xy: NDArray[np.float64]
    speed_mps: NDArray[np.float64]
    text: str


def draw_drive(path: Path, rig: Rig, moments: Sequence[Moment], title: str) -> Path:
    """Draws the drive; the moment shown is the one whose plan changes the speed most. Returns path."""
    shown = max(moments, key=lambda moment: float(np.abs(moment.speed_mps - moment.world["ego"]["speed_mps"]).max()))
    rows = (len(rig.cameras) + 1) // 2
    with mpl.rc_context({"font.size": 9}):
        figure = Figure(figsize=(13.0, 3.2 + 2.0 * rows), layout="constrained")
        grid = figure.add_gridspec(rows, 3, width_ratios=(1.3, 1.0, 1.0))
        _from_above(figure.add_subplot(grid[:, 0]), moments, shown)
        for number, camera in enumerate(rig.cameras):
            axes = figure.add_subplot(grid[number // 2, 1 + number % 2])
            picture = shown.pictures.get(camera.name)
            if picture is not None:
                axes.imshow(draw_path(picture, _calibration(camera, rig), shown.xy, PLAN), interpolation="nearest")
            axes.set_title(camera.name)
            axes.set_axis_off()
        told = textwrap.fill(f"{shown.world['time_s']:.1f} s: “{shown.text}”", 110)
        figure.suptitle(f"{title}\n{told}", fontsize=11)
        partial = path.with_name(f"{path.stem}.partial{path.suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        FigureCanvasAgg(figure).print_figure(partial, dpi=110)
    partial.rename(path)
    return path


def _calibration(camera: CameraSpec, rig: Rig) -> dict[str, Any]:
    width, height = rig.resolution
    return {
        "translation": list(camera.position),
        "rotation": list(camera.optical_quaternion()),
        "k": camera.intrinsics(width, height).reshape(-1).tolist(),
        "d": [],
        "width": width,
    }


def _from_above(axes: Axes, moments: Sequence[Moment], shown: Moment) -> None:
    drawn = restore(shown.world)
    ways = [_in_world(moment) for moment in moments]
    driven = np.array([[moment.world["ego"]["x_m"], moment.world["ego"]["y_m"]] for moment in moments])
    everything = np.vstack([driven, *ways])
    _road(axes, drawn, everything)
    for way in ways:
        axes.plot(way[:, 0], way[:, 1], color="tab:green", alpha=0.15, linewidth=1.0)
    axes.plot(driven[:, 0], driven[:, 1], color="black", linewidth=1.5, label="driven")
    now = _in_world(shown)
    axes.plot(now[:, 0], now[:, 1], color="tab:green", linewidth=2.5, label="plan shown")
    for actor in drawn.actors:
        _outline(axes, actor_box(actor), actor.colour if actor.colour != "white" else "whitesmoke")
    _outline(axes, drawn.ego_box(), "deepskyblue")
    for light in drawn.lights:
        x, y, _ = drawn.road.pose(light.stop_s_m, -LANE_WIDTH_M / 2)
        colour = light.state(drawn.time_s).value
        axes.plot(x, y, marker="o", color="orange" if colour == "amber" else colour, markersize=8)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel("x in odom (m)")
    axes.set_ylabel("y in odom (m)")
    axes.legend(loc="upper left")


def _road(axes: Axes, world: World, near: NDArray[np.float64]) -> None:
    places = [world.road.project(float(x), float(y))[0] for x, y in near[:: max(1, len(near) // 50)]]
    along = np.arange(min(places) - _BEFORE_M, max(places) + _AHEAD_M, 1.0)
    roads = [(world.road, along)]
    if world.crossroad is not None:
        middle, _ = world.crossroad.project(*world.road.pose(world.crossroad_s_m)[:2])
        roads.append((world.crossroad, np.arange(middle - _AHEAD_M, middle + _AHEAD_M, 1.0)))
    for road, places_m in roads:
        for edge in {lane.offset_m + side for lane in road.lanes for side in (-LANE_WIDTH_M / 2, LANE_WIDTH_M / 2)}:
            line = np.array([road.pose(float(s), edge)[:2] for s in places_m])
            axes.plot(line[:, 0], line[:, 1], color="grey", linewidth=0.8)


def _in_world(moment: Moment) -> NDArray[np.float64]:
    """A plan's way [N, 2] in odom."""
    ego = moment.world["ego"]
    cos, sin = np.cos(ego["yaw_rad"]), np.sin(ego["yaw_rad"])
    x, y = moment.xy.T
    return np.column_stack([ego["x_m"] + cos * x - sin * y, ego["y_m"] + sin * x + cos * y])


def _outline(axes: Axes, box: Box, colour: str) -> None:
    u = np.array([1, 1, -1, -1]) * box.length_m / 2
    v = np.array([1, -1, -1, 1]) * box.width_m / 2
    cos, sin = np.cos(box.yaw_rad), np.sin(box.yaw_rad)
    axes.fill(box.x_m + u * cos - v * sin, box.y_m + u * sin + v * cos, facecolor=colour, edgecolor="black")
