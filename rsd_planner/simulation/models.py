"""What things look like: coloured boxes and strips for the renderer. Forward is +x, left +y, up +z."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from panda3d.core import (
    Geom,
    GeomNode,
    GeomTriangles,
    GeomVertexData,
    GeomVertexFormat,
    NodePath,
    PNMImage,
    SamplerState,
    Texture,
)

from rsd_planner.simulation.actors import Actor, Kind

Colour = tuple[float, float, float]
PAINT: dict[str, Colour] = {
    "red": (0.80, 0.08, 0.08),
    "blue": (0.10, 0.22, 0.75),
    "white": (0.93, 0.93, 0.93),
    "black": (0.07, 0.07, 0.08),
    "yellow": (0.93, 0.80, 0.10),
    "green": (0.08, 0.50, 0.18),
    "grey": (0.50, 0.51, 0.53),
    "orange": (0.95, 0.45, 0.05),
}
_GLASS: Colour = (0.12, 0.15, 0.20)
_TYRE: Colour = (0.04, 0.04, 0.04)
_SKIN: Colour = (0.85, 0.65, 0.52)
_TAIL_LIGHT: Colour = (0.45, 0.02, 0.02)
_BRAKE_LIGHT: Colour = (1.0, 0.42, 0.36)
_INDICATOR: Colour = (1.0, 0.78, 0.2)
_BLINKS_HZ = 1.5
# Light from above and the front: how bright each face of a box is (+x, -x, +y, -y, +z, -z).
_SHADES = (0.86, 0.80, 0.70, 0.66, 1.0, 0.4)
_FACES = ((1, 3, 7, 5), (2, 0, 4, 6), (3, 2, 6, 7), (0, 1, 5, 4), (4, 5, 7, 6), (2, 3, 1, 0))


class Mesh:
    """Collects coloured, textured quads and makes one node of them."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, ...]] = []

    def quad(self, corners: Sequence[Sequence[float]], colour: Colour, texture_m: float = 4.0) -> None:
        """Four corners (x, y, z), counter-clockwise seen from outside; the texture repeats every texture_m."""
        for x, y, z in corners:
            self._rows.append((x, y, z, *colour, 1.0, (x + z) / texture_m, (y + z) / texture_m))

    def box(self, middle: Sequence[float], size: Sequence[float], colour: Colour) -> None:
        """A box by the middle of its floor and its length, width and height, shaded by face."""
        cx, cy, z0 = middle
        hx, hy, height = size[0] / 2, size[1] / 2, size[2]
        corner = [(cx + sx * hx, cy + sy * hy, z0 + sz * height) for sz in (0, 1) for sy in (-1, 1) for sx in (-1, 1)]
        for face, shade in zip(_FACES, _SHADES, strict=True):
            self.quad([corner[k] for k in face], (colour[0] * shade, colour[1] * shade, colour[2] * shade))

    def pyramid(self, middle: Sequence[float], width: float, height: float, colour: Colour) -> None:
        """A four-sided pyramid by the middle of its floor."""
        cx, cy, z0 = middle
        h = width / 2
        base = [(cx - h, cy - h, z0), (cx + h, cy - h, z0), (cx + h, cy + h, z0), (cx - h, cy + h, z0)]
        top = (cx, cy, z0 + height)
        for k, shade in enumerate((0.7, 0.86, 0.75, 0.9)):
            tint = (colour[0] * shade, colour[1] * shade, colour[2] * shade)
            self.quad([base[k], base[(k + 1) % 4], top, top], tint)

    def node(self, name: str) -> NodePath:
        """The node; empty meshes give an empty one."""
        data = GeomVertexData(name, GeomVertexFormat.get_v3c4t2(), Geom.UH_static)
        data.unclean_set_num_rows(len(self._rows))
        rows = np.array(self._rows, dtype=np.float32).reshape(-1, 9)
        packed = np.empty((len(rows), 24), dtype=np.uint8)
        packed[:, :12] = np.ascontiguousarray(rows[:, :3]).view(np.uint8)
        packed[:, 12:16] = np.clip(rows[:, 3:7] * 255.0, 0, 255).astype(np.uint8)
        packed[:, 16:] = np.ascontiguousarray(rows[:, 7:9]).view(np.uint8)
        memoryview(data.modify_array(0)).cast("B")[:] = packed.reshape(-1).tobytes()
        triangles = GeomTriangles(Geom.UH_static)
        for first in range(0, len(rows), 4):
            triangles.add_vertices(first, first + 1, first + 2)
            triangles.add_vertices(first, first + 2, first + 3)
        geom = Geom(data)
        geom.add_primitive(triangles)
        node = GeomNode(name)
        node.add_geom(geom)
        return NodePath(node)


def noise_texture(seed: int, contrast: float) -> Texture:
    """A repeating grey texture of several scales, for ground and asphalt."""
    random = np.random.default_rng(seed)
    size, field = 64, np.zeros((64, 64))
    for cells in (8, 16, 32, 64):
        field += np.kron(random.uniform(-1, 1, (cells, cells)), np.ones((size // cells, size // cells))) / 2
    image = PNMImage(size, size, 1)
    for y in range(size):
        for x in range(size):
            image.set_gray(x, y, float(np.clip(0.8 + contrast * field[y, x], 0.0, 1.0)))
    texture = Texture()
    texture.load(image)
    texture.set_wrap_u(SamplerState.WM_repeat)
    texture.set_wrap_v(SamplerState.WM_repeat)
    texture.set_minfilter(SamplerState.FT_linear_mipmap_nearest)
    return texture


class ActorModel:
    """An actor's body around its middle on the ground, with the lamps that it lights now and then."""

    def __init__(self, actor: Actor) -> None:
        self.node = NodePath(actor.name)
        _body(actor).reparent_to(self.node)
        self._lamps: dict[str, NodePath] = {}
        if actor.kind in (Kind.CAR, Kind.TRUCK, Kind.BUS):
            for name, mesh in _signals(actor).items():
                self._lamps[name] = mesh.node(name)
                self._lamps[name].reparent_to(self.node)

    def signal(self, actor: Actor, time_s: float) -> None:
        """Lights the brake lights of who brakes or waits, and the indicators, blinking, of who moves to a side."""
        moves = actor.direction * actor.drift_mps
        blinks = time_s * _BLINKS_HZ % 1.0 < 0.5
        lit = {
            "brake lights": actor.shows_brake_lights,
            "left indicators": moves > 0 and blinks,
            "right indicators": moves < 0 and blinks,
        }
        for name, node in self._lamps.items():
            node.show() if lit[name] else node.hide()


def _signals(actor: Actor) -> dict[str, Mesh]:
    """Lit lamps by name, a little before those that are out."""
    length, width, height = actor.kind.size_m
    low = 0.5 if actor.kind is Kind.CAR else 0.6
    brakes, left, right = Mesh(), Mesh(), Mesh()
    for y in (-width / 2 + 0.26, width / 2 - 0.26):
        brakes.box((-length / 2 - 0.06, y, low), (0.08, 0.46, 0.3), _BRAKE_LIGHT)
    brakes.box((-length / 2 - 0.06, 0.0, height - 0.45), (0.08, width * 0.4, 0.14), _BRAKE_LIGHT)
    for mesh, side in ((left, 1.0), (right, -1.0)):
        for x in (-length / 2 - 0.06, length / 2 + 0.06):
            mesh.box((x, side * (width / 2 - 0.14), low + 0.32), (0.1, 0.3, 0.22), _INDICATOR)
    return {"brake lights": brakes, "left indicators": left, "right indicators": right}


def _body(actor: Actor) -> NodePath:
    mesh = Mesh()
    paint = PAINT[actor.colour]
    length, width, height = actor.kind.size_m
    if actor.kind in (Kind.CAR, Kind.BROKEN_DOWN_VEHICLE):
        _car(mesh, length, width, height, paint)
        if actor.kind is Kind.BROKEN_DOWN_VEHICLE:
            mesh.box((-length / 2 - 0.05, width / 2 - 0.2, 0.75), (0.1, 0.3, 0.25), (1.0, 0.6, 0.0))
            mesh.box((-length / 2 - 0.05, -width / 2 + 0.2, 0.75), (0.1, 0.3, 0.25), (1.0, 0.6, 0.0))
            mesh.box((length / 2 - 0.6, 0.0, 1.0), (0.1, width * 0.9, 0.8), paint)  # the bonnet is open
            mesh.pyramid((-length / 2 - 2.0, 0.0, 0.0), 0.7, 0.8, (1.0, 0.1, 0.05))
    elif actor.kind is Kind.TRUCK:
        mesh.box((length / 2 - 1.0, 0.0, 0.5), (2.0, width, 2.2), paint)
        mesh.box((length / 2 - 0.02, 0.0, 1.6), (0.08, width * 0.85, 0.8), _GLASS)
        mesh.box((-1.1, 0.0, 0.8), (length - 2.3, width, height - 0.8), (0.82, 0.82, 0.80))
        mesh.box((-length / 2 - 0.02, 0.0, 1.0), (0.06, width * 0.92, height - 1.2), paint)
        _wheels(mesh, length, width, 0.5)
        _lamps(mesh, length, width, 0.6)
    elif actor.kind is Kind.BUS:
        mesh.box((0.0, 0.0, 0.4), (length, width, height - 0.4), paint)
        mesh.box((0.0, 0.0, 1.5), (length * 0.96, width + 0.06, 0.9), _GLASS)
        mesh.box((length / 2, 0.0, 1.2), (0.08, width * 0.9, 1.5), _GLASS)
        mesh.box((-length / 2, 0.0, 1.7), (0.08, width * 0.8, 0.8), _GLASS)
        _wheels(mesh, length, width, 0.5)
        _lamps(mesh, length, width, 0.7)
    elif actor.kind is Kind.PEDESTRIAN:
        _person(mesh, 0.0, 0.0, paint)
    elif actor.kind is Kind.CYCLIST:
        for x in (-0.6, 0.6):
            mesh.box((x, 0.0, 0.0), (0.62, 0.06, 0.62), _TYRE)
        mesh.box((0.0, 0.0, 0.5), (1.1, 0.08, 0.1), PAINT["grey"])
        _person(mesh, -0.1, 0.35, paint)
    else:
        for x, y in ((-0.9, -0.4), (0.0, 0.0), (0.9, 0.4), (-0.9, 0.4), (0.9, -0.4)):
            mesh.box((x, y, 0.0), (0.45, 0.45, 0.06), (0.1, 0.1, 0.1))
            mesh.pyramid((x, y, 0.05), 0.4, height, (1.0, 0.38, 0.02))
            mesh.box((x, y, 0.3), (0.24, 0.24, 0.12), (1.0, 1.0, 1.0))
    return mesh.node(actor.name)


def _car(mesh: Mesh, length: float, width: float, height: float, paint: Colour) -> None:
    mesh.box((0.0, 0.0, 0.3), (length, width, 0.55), paint)
    mesh.box((-0.25, 0.0, 0.85), (length * 0.52, width * 0.86, height - 0.95), _GLASS)
    mesh.box((-0.25, 0.0, height - 0.12), (length * 0.46, width * 0.84, 0.1), paint)
    _wheels(mesh, length, width, 0.34)
    _lamps(mesh, length, width, 0.55)


def _wheels(mesh: Mesh, length: float, width: float, radius: float) -> None:
    for x in (-0.32 * length, 0.32 * length):
        for y in (-width / 2 + 0.1, width / 2 - 0.1):
            mesh.box((x, y, 0.0), (2 * radius, 0.28, 2 * radius), _TYRE)


def _lamps(mesh: Mesh, length: float, width: float, z: float) -> None:
    for y in (-width / 2 + 0.22, width / 2 - 0.22):
        mesh.box((length / 2, y, z), (0.08, 0.34, 0.16), (1.0, 1.0, 0.85))
        mesh.box((-length / 2, y, z), (0.08, 0.34, 0.18), _TAIL_LIGHT)


def _person(mesh: Mesh, x: float, z: float, paint: Colour) -> None:
    mesh.box((x, 0.12, z), (0.2, 0.16, 0.8), (0.15, 0.16, 0.25))
    mesh.box((x, -0.12, z), (0.2, 0.16, 0.8), (0.15, 0.16, 0.25))
    mesh.box((x, 0.0, z + 0.78), (0.28, 0.5, 0.62), paint)
    mesh.box((x, 0.0, z + 1.42), (0.24, 0.24, 0.28), _SKIN)


def strip(
    mesh: Mesh, places: Iterable[tuple[float, float, float]], left_m: float, right_m: float, z_m: float, colour: Colour
) -> None:
    """A band along places (x, y, heading), from right_m to left_m beside the line, at height z_m."""
    previous = None
    for x, y, yaw in places:
        cos, sin = float(np.cos(yaw)), float(np.sin(yaw))
        edge = [(x - d * sin, y + d * cos, z_m) for d in (right_m, left_m)]
        if previous is not None:
            mesh.quad([previous[0], edge[0], edge[1], previous[1]], colour)
        previous = edge
