"""Everything that stands: ground, roads and their markings, signals, signs, houses and trees."""

from __future__ import annotations

import numpy as np
from panda3d.core import NodePath

from rsd_planner.simulation.models import Colour, Mesh, noise_texture, strip
from rsd_planner.simulation.road import LANE_WIDTH_M, Road
from rsd_planner.simulation.world import SLOW_ZONE_MPS, LightState, World

_SKY: dict[str, Colour] = {"day": (0.55, 0.74, 0.95), "dusk": (0.58, 0.42, 0.46), "fog": (0.74, 0.76, 0.78)}
_BRIGHTNESS: dict[str, Colour] = {"day": (1.0, 1.0, 1.0), "dusk": (0.70, 0.60, 0.62), "fog": (0.88, 0.88, 0.90)}
_LAMPS: dict[LightState, tuple[float, Colour]] = {
    LightState.RED: (1.0, (1.0, 0.05, 0.03)),
    LightState.AMBER: (0.6, (1.0, 0.65, 0.0)),
    LightState.GREEN: (0.2, (0.05, 1.0, 0.25)),
}
_ASPHALT: Colour = (0.33, 0.33, 0.35)
_BRICK: Colour = (0.52, 0.29, 0.24)
_PAINT: Colour = (0.95, 0.95, 0.93)


def signal_heads(road: Road, stop_s_m: float) -> list[tuple[float, float, float, float]]:
    """x, y, height of the lower edge (m) and yaw (rad) of a light's two heads: at the line, and beyond the crossing."""
    places = ((stop_s_m + 0.5, -LANE_WIDTH_M / 2 - 1.0, 2.6), (stop_s_m + 17.0, 0.0, 4.6))
    return [(x, y, z, yaw) for s, d, z in places for x, y, yaw in (road.pose(s, d),)]


def stop_sign_place(road: Road, stop_s_m: float) -> tuple[float, float, float]:
    """x, y (m) and yaw (rad) of a stop sign's pole."""
    return road.pose(stop_s_m + 0.3, -LANE_WIDTH_M / 2 - 1.0)


class Scenery:
    """The standing part of a world under a root node."""

    def __init__(self, world: World, root: NodePath) -> None:
        looks = world.surroundings
        self.sky = _SKY[looks.light]
        self.brightness = _BRIGHTNESS[looks.light]
        self._node = root.attach_new_node("scenery")
        self._random = np.random.default_rng(looks.scenery_seed)
        self._lamps: list[dict[LightState, NodePath]] = []
        self._count = 0
        self._ground(world)
        # The limit must be seen wherever the car is: no picture goes back to a sign that was passed.
        slow = world.speed_limit_mps <= SLOW_ZONE_MPS
        self._road(world.road, z_m=0.0, surface=_BRICK if slow else _ASPHALT)
        if world.crossroad is not None:
            self._road(world.crossroad, z_m=0.004, gap=(world.road, 6.0))
            self._square(world)
        self._markings(world)
        for light in world.lights:
            self._signal(world, light.stop_s_m)
        for sign in world.stop_signs_s_m:
            self._stop_sign(world, sign)
        self._houses_and_trees(world, looks.density)
        for node in self._node.get_children():
            if node.name != "lamp":
                node.set_color_scale(*self.brightness, 1.0)

    def remove(self) -> None:
        """Takes everything out of the scene."""
        self._node.remove_node()

    def update(self, world: World) -> None:
        """Shows the lights as they are now."""
        for light, lamps in zip(world.lights * 2, self._lamps, strict=True):
            shown = light.state(world.time_s)
            for state, node in lamps.items():
                node.show() if state is shown else node.hide()

    def _attach(self, mesh: Mesh, name: str, flat: bool = False) -> NodePath:
        """Adds a mesh; what is flat lies on the ground and is painted in the order of its arrival.

        A fixed order makes pictures repeatable, and painting spares the depth buffer the millimetres
        between ground, road and lines.
        """
        node = mesh.node(name)
        node.reparent_to(self._node)
        self._count += 1
        node.set_bin("fixed", self._count)
        if flat:
            node.set_depth_test(False)
        return node

    def _ground(self, world: World) -> None:
        random, mesh = self._random, Mesh()
        middle = world.road.pose(world.road.length_m / 2)
        tint = random.uniform(0.0, 1.0)
        for x in np.arange(-600.0, 600.0, 60.0):
            for y in np.arange(-600.0, 600.0, 60.0):
                shade = float(random.uniform(0.85, 1.1))
                colour = ((0.30 + 0.25 * tint) * shade, (0.48 - 0.05 * tint) * shade, 0.22 * shade)
                x0, y0 = x + middle[0], y + middle[1]
                corners = [(x0, y0), (x0 + 60, y0), (x0 + 60, y0 + 60), (x0, y0 + 60)]
                mesh.quad([(cx, cy, -0.08) for cx, cy in corners], colour, texture_m=9.0)
        self._attach(mesh, "ground", flat=True).set_texture(noise_texture(1, 0.25))

    def _road(self, road: Road, z_m: float, gap: tuple[Road, float] | None = None, surface: Colour = _ASPHALT) -> None:
        offsets = [lane.offset_m for lane in road.lanes]
        right, left = min(offsets) - LANE_WIDTH_M / 2, max(offsets) + LANE_WIDTH_M / 2
        mesh = Mesh()
        places = [road.pose(s) for s in np.arange(-40.0, road.length_m + 40.0, 3.0)]
        strip(mesh, places, left + 0.6, right - 0.6, z_m - 0.03, surface)
        strip(mesh, places, right - 0.6, right - 3.2, z_m - 0.04, (0.45, 0.43, 0.38))
        strip(mesh, places, left + 3.2, left + 0.6, z_m - 0.04, (0.45, 0.43, 0.38))
        self._attach(mesh, "road", flat=True).set_texture(noise_texture(2, 0.12))
        lines = Mesh()
        for s in np.arange(-40.0, road.length_m + 40.0, 3.0):
            if gap is not None and abs(gap[0].project(*road.pose(s + 1.5)[:2])[1]) < gap[1] + 4.0:
                continue
            part = [road.pose(s), road.pose(s + 3.0)]
            for d in (right + 0.12, left - 0.12):
                strip(lines, part, d + 0.08, d - 0.08, z_m, _PAINT)
            if round(s / 3.0) % 3 != 0:
                middle = (max(offsets) + min(offsets)) / 2
                strip(lines, part, middle + 0.08, middle - 0.08, z_m, (0.95, 0.80, 0.25))
        self._attach(lines, "lines", flat=True)

    def _square(self, world: World) -> None:
        """Asphalt without lines where the roads cross."""
        mesh = Mesh()
        at = world.crossroad_s_m
        places = [world.road.pose(at - 6.5), world.road.pose(at + 6.5)]
        strip(mesh, places, LANE_WIDTH_M * 1.5 + 0.6, -LANE_WIDTH_M / 2 - 0.6, 0.012, _ASPHALT)
        self._attach(mesh, "square", flat=True).set_texture(noise_texture(2, 0.12))

    def _markings(self, world: World) -> None:
        mesh, road, half = Mesh(), world.road, LANE_WIDTH_M / 2
        for line in [light.stop_s_m for light in world.lights] + world.stop_signs_s_m:
            strip(mesh, [road.pose(line), road.pose(line + 0.45)], half, -half, 0.02, _PAINT)
        for crossing in world.crossings_s_m:
            for d in np.arange(-half + 0.2, LANE_WIDTH_M + half, 0.9):
                strip(mesh, [road.pose(crossing - 1.5), road.pose(crossing + 1.5)], d + 0.5, d, 0.02, _PAINT)
        self._attach(mesh, "markings", flat=True)

    def _signal(self, world: World, stop_s_m: float) -> None:
        """A head on a pole at the line and one over the far side of the crossroads."""
        for (x, y, z, yaw), arm in zip(signal_heads(world.road, stop_s_m), (0.0, 4.5), strict=True):
            mesh = Mesh()
            mesh.box((0.0, -arm, 0.0), (0.16, 0.16, z + 1.2), (0.25, 0.25, 0.27))
            if arm:
                mesh.box((0.0, -arm / 2, z + 1.25), (0.14, arm, 0.12), (0.25, 0.25, 0.27))
            mesh.box((-0.1, 0.0, z), (0.3, 0.5, 1.3), (0.05, 0.05, 0.05))
            node = self._attach(mesh, "signal")
            node.set_pos_hpr(x, y, 0.0, float(np.degrees(yaw)), 0.0, 0.0)
            lamps = {}
            for state, (height, colour) in _LAMPS.items():
                lamp = Mesh()
                lamp.box((-0.28, 0.0, z + height - 0.12), (0.1, 0.36, 0.34), colour)
                lamps[state] = self._attach(lamp, "lamp")
                lamps[state].set_pos_hpr(x, y, 0.0, float(np.degrees(yaw)), 0.0, 0.0)
            self._lamps.append(lamps)

    def _stop_sign(self, world: World, stop_s_m: float) -> None:
        x, y, yaw = stop_sign_place(world.road, stop_s_m)
        mesh = Mesh()
        mesh.box((0.0, 0.0, 0.0), (0.08, 0.08, 2.1), (0.6, 0.6, 0.6))
        rim, face = 0.5, 0.44
        for radius, colour, front in ((rim, _PAINT, -0.05), (face, (0.85, 0.03, 0.05), -0.07)):
            corners = [(np.pi / 8 + k * np.pi / 4) for k in range(8)]
            ring = [(front, float(radius * np.cos(a)), 2.4 + float(radius * np.sin(a))) for a in corners]
            for k in range(1, 7):
                mesh.quad([ring[0], ring[k + 1], ring[k], ring[k]], colour)
        mesh.box((-0.09, 0.0, 2.3), (0.02, 0.62, 0.2), _PAINT)
        self._attach(mesh, "stop sign").set_pos_hpr(x, y, 0.0, float(np.degrees(yaw)), 0.0, 0.0)

    def _houses_and_trees(self, world: World, density: float) -> None:
        random, road = self._random, world.road
        houses, trees = Mesh(), Mesh()
        for s in np.arange(-20.0, road.length_m + 60.0, 14.0 / density):
            for side in (-1.0, 1.0):
                if world.crossroad is not None and abs(s - world.crossroad_s_m) < 22.0:
                    continue
                d = side * float(random.uniform(13.0, 34.0)) + (LANE_WIDTH_M if side > 0 else 0.0)
                x, y, _ = road.pose(s + float(random.uniform(-5.0, 5.0)), d)
                if abs(road.project(x, y)[1] - LANE_WIDTH_M / 2) < 10.0:
                    continue  # a bend comes back here
                if random.random() < 0.35:
                    tone = [float(value) for value in random.uniform(0.35, 0.9, 3)]
                    width, depth, height = (float(v) for v in random.uniform((7.0, 7.0, 4.0), (14.0, 12.0, 13.0)))
                    houses.box((x, y, 0.0), (width, depth, height), (tone[0], tone[1] * 0.95, tone[2] * 0.85))
                    for floor in np.arange(1.2, height - 1.0, 2.8):
                        houses.box((x, y, float(floor)), (width + 0.1, depth + 0.1, 1.1), (0.25, 0.28, 0.33))
                    houses.box((x, y, height), (width + 0.6, depth + 0.6, 0.4), (0.35, 0.2, 0.16))
                else:
                    height = float(random.uniform(3.5, 8.0))
                    leaf = float(random.uniform(0.25, 0.5))
                    trees.box((x, y, 0.0), (0.4, 0.4, height * 0.4), (0.33, 0.22, 0.12))
                    crown = (0.12 + 0.2 * (1 - leaf), leaf, 0.10)
                    trees.pyramid((x, y, height * 0.3), height * 0.55, height * 0.8, crown)
        self._attach(houses, "houses")
        self._attach(trees, "trees")
