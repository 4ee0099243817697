"""Cameras on the car: a rig from YAML and the renderer that looks through it.

Panda3D's software renderer draws without any GL; shading is painted into the models, fog is drawn as
translucent curtains before each camera, since the software renderer has neither shaders nor fog.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from panda3d.core import (
    BitMask32,
    Camera,
    CardMaker,
    FrameBufferProperties,
    GraphicsEngine,
    GraphicsOutput,
    GraphicsPipe,
    GraphicsPipeSelection,
    NodePath,
    PerspectiveLens,
    Texture,
    TransparencyAttrib,
    WindowProperties,
    load_prc_file_data,
)
from scipy.spatial.transform import Rotation

from rsd_planner.simulation.actors import Actor
from rsd_planner.simulation.models import ActorModel
from rsd_planner.simulation.scenery import Scenery
from rsd_planner.simulation.world import World

load_prc_file_data("", "audio-library-name null\nnotify-level error\nnotify-level-display fatal\n")

_FOG_DISTANCES_M = (12.0, 20.0, 30.0, 42.0, 56.0, 75.0, 100.0)
_FOG_ALPHA = 0.28
_OPTICAL = Rotation.from_matrix(np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]]))
"""An optical frame in a body frame."""
_ACTOR_BIN, _FOG_BIN = 1000, 3000  # drawn in this order, after the scenery


@dataclass(frozen=True)
class CameraSpec:
    """A camera in base_link: position (m), yaw to the left and pitch down (deg), horizontal field of view (deg)."""

    name: str
    index: int
    position: tuple[float, float, float]
    yaw_deg: float
    pitch_deg: float
    field_of_view_deg: float

    def intrinsics(self, width: int, height: int) -> NDArray[np.float64]:
        """Pinhole matrix [3, 3] in pixels, the principal point in the middle."""
        focal = width / 2 / math.tan(math.radians(self.field_of_view_deg) / 2)
        return np.array([[focal, 0.0, width / 2], [0.0, focal, height / 2], [0.0, 0.0, 1.0]])

    def optical_quaternion(self) -> tuple[float, float, float, float]:
        """x, y, z, w of the optical frame (REP-103: z forward, x right, y down) in base_link."""
        body = Rotation.from_euler("ZY", [self.yaw_deg, self.pitch_deg], degrees=True)
        x, y, z, w = (float(value) for value in (body * _OPTICAL).as_quat())
        return x, y, z, w

    def project(self, points: NDArray[np.float64], width: int, height: int) -> NDArray[np.float64]:
        """Points [N, 3] in base_link -> u, v (pixels) and depth (m) [N, 3]; depth <= 0 lies behind."""
        yaw, pitch = math.radians(self.yaw_deg), math.radians(self.pitch_deg)
        relative = points - np.array(self.position)
        ahead = relative[:, 0] * math.cos(yaw) + relative[:, 1] * math.sin(yaw)
        left = -relative[:, 0] * math.sin(yaw) + relative[:, 1] * math.cos(yaw)
        depth = ahead * math.cos(pitch) - relative[:, 2] * math.sin(pitch)
        up = ahead * math.sin(pitch) + relative[:, 2] * math.cos(pitch)
        focal = self.intrinsics(width, height)[0, 0]
        safe = np.where(np.abs(depth) < 1e-6, 1e-6, depth)
        return np.stack([width / 2 - focal * left / safe, height / 2 - focal * up / safe, depth], axis=1)


@dataclass(frozen=True)
class Rig:
    """Cameras and what they have in common. resolution is width, height (pixels)."""

    cameras: tuple[CameraSpec, ...]
    resolution: tuple[int, int] = (320, 180)
    rate_hz: float = 10.0
    latency_s: float = 0.0
    jitter_s: float = 0.0

    @classmethod
    def from_yaml(cls, path: Path) -> Rig:
        """Reads a rig. Raises ValueError that names file and key."""
        content = yaml.safe_load(path.read_text())
        known = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or not content.get("cameras") or not known >= content.keys():
            raise ValueError(f"{path}: a rig has the keys {', '.join(sorted(known))}, with at least one camera")
        try:
            entries = [entry | {"position": tuple(entry["position"])} for entry in content["cameras"]]
            cameras = tuple(CameraSpec(**entry) for entry in entries)
        except (TypeError, KeyError) as error:
            raise ValueError(f"{path}: a camera is not described: {error}") from error
        content["resolution"] = tuple(content.get("resolution", (320, 180)))
        return cls(**(content | {"cameras": cameras}))


class Renderer:
    """Draws a world through a rig. One renderer at a time in a process."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self._engine = GraphicsEngine.get_global_ptr()
        selection = GraphicsPipeSelection.get_global_ptr()
        pipe = selection.make_pipe("TinyOffscreenGraphicsPipe", "p3tinydisplay")
        if pipe is None:
            raise RuntimeError("Panda3D's software renderer (p3tinydisplay) cannot be loaded")
        self._root = NodePath("world")
        self._ego = self._root.attach_new_node("ego")
        self._outputs: list[tuple[GraphicsOutput, Texture]] = []
        self._curtains: list[NodePath] = []
        width, height = rig.resolution
        for number, spec in enumerate(rig.cameras):
            output = self._engine.make_output(
                pipe,
                spec.name,
                number,
                FrameBufferProperties(FrameBufferProperties.get_default()),
                WindowProperties(size=(width, height)),
                GraphicsPipe.BF_refuse_window,
            )
            texture = Texture()
            output.add_render_texture(texture, GraphicsOutput.RTM_copy_ram)
            output.make_display_region().set_camera(self._camera(spec, number))
            self._outputs.append((output, texture))
        self._scenery: Scenery | None = None
        self._actors: dict[str, ActorModel] = {}

    def close(self) -> None:
        """Gives the buffers back."""
        for output, _ in self._outputs:
            self._engine.remove_window(output)
        self._outputs.clear()

    def load(self, world: World) -> None:
        """Builds what the world looks like; to be called once for a world before `render`."""
        if self._scenery is not None:
            self._scenery.remove()
        for model in self._actors.values():
            model.node.remove_node()
        self._actors.clear()
        self._scenery = Scenery(world, self._root)
        sky = self._scenery.sky
        for output, _ in self._outputs:
            output.set_clear_color((*sky, 1.0))
        for curtain in self._curtains:
            curtain.set_color(*sky, _FOG_ALPHA)
            curtain.show() if world.surroundings.light == "fog" else curtain.hide()

    def render(self, world: World) -> dict[str, NDArray[np.uint8]]:
        """Pictures by camera name, RGB uint8 [H, W, 3], of the world as it is now."""
        assert self._scenery is not None, "load a world first"
        self._scenery.update(world)
        ego = world.ego
        self._ego.set_pos(ego.x_m, ego.y_m, 0.0)
        self._ego.set_h(math.degrees(ego.yaw_rad))
        for actor in world.actors:
            self._place(actor, world.time_s)
        self._engine.render_frame()
        return {spec.name: _pixels(texture) for spec, (_, texture) in zip(self.rig.cameras, self._outputs, strict=True)}

    def _place(self, actor: Actor, time_s: float) -> None:
        model = self._actors.get(actor.name)
        if model is None:
            model = self._actors[actor.name] = ActorModel(actor)
            model.node.reparent_to(self._root)
            model.node.set_bin("fixed", _ACTOR_BIN + len(self._actors))
            if self._scenery is not None:
                model.node.set_color_scale(*self._scenery.brightness, 1.0)
        x, y, yaw = actor.pose()
        model.node.set_pos(x, y, 0.0)
        model.node.set_h(math.degrees(yaw))
        model.signal(actor, time_s)

    def _camera(self, spec: CameraSpec, number: int) -> NodePath:
        width, height = self.rig.resolution
        lens = PerspectiveLens()
        lens.set_aspect_ratio(width / height)
        lens.set_fov(spec.field_of_view_deg)
        lens.set_near_far(0.3, 400.0)
        mask = BitMask32.bit(number)
        camera = Camera(spec.name, lens)
        camera.set_camera_mask(mask)
        node = self._ego.attach_new_node(camera)
        node.set_pos(*spec.position)
        # Panda3D's cameras look along +y.
        node.set_hpr(spec.yaw_deg - 90.0, -spec.pitch_deg, 0.0)
        for distance in _FOG_DISTANCES_M:
            half = distance * math.tan(math.radians(min(spec.field_of_view_deg, 150.0)) / 2) * 1.1
            maker = CardMaker("fog")
            maker.set_frame(-half, half, -half, half)
            card = node.attach_new_node(maker.generate())
            card.set_y(distance)
            card.set_transparency(TransparencyAttrib.M_alpha)
            card.set_depth_write(False)
            card.set_bin("fixed", _FOG_BIN - round(distance))  # from afar to near
            card.hide(BitMask32.all_on() & ~mask)
            self._curtains.append(card)
        return node


def _pixels(texture: Texture) -> NDArray[np.uint8]:
    height, width = texture.get_y_size(), texture.get_x_size()
    data = np.frombuffer(texture.get_ram_image_as("RGB"), dtype=np.uint8)
    return np.ascontiguousarray(data.reshape(height, width, 3)[::-1])
