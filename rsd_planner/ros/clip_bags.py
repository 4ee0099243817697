"""Clips of expert driving as rosbag2: what the car's sensors say, the true state, and the expert's plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rclpy.serialization import serialize_message
from rosbags.rosbag2 import Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosgraph_msgs.msg import Clock

from rsd_planner.buffers import NANOSECONDS
from rsd_planner.evaluation.bags import LATCHED, new_bag
from rsd_planner.ros import conversions
from rsd_planner.ros import world_messages as messages
from rsd_planner.ros.bringup import share_directory
from rsd_planner.simulation import expert
from rsd_planner.simulation.cameras import Renderer, Rig
from rsd_planner.simulation.chain_of_causation import meaning
from rsd_planner.simulation.drive import drive
from rsd_planner.simulation.scenarios import SPLITS, build
from rsd_planner.simulation.wording import write
from rsd_planner.simulation.world import World
from rsd_planner.training.clips import CLIP_S, clip_source, text_seed
from rsd_planner.training.data_set import in_parallel

_START_NS = 1_700_000_000 * NANOSECONDS


class _Recorder:
    """Writes messages of the installed types; a topic's connection is made by its first message."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._store = get_typestore(Stores.ROS2_JAZZY)
        for definition in sorted((share_directory() / "msg").glob("*.msg")):
            self._store.register(get_types_from_msg(definition.read_text(), f"rsd_planner/msg/{definition.stem}"))
        self._connections: dict[str, Any] = {}

    def write(self, topic: str, stamp_ns: int, message: Any) -> None:
        if topic not in self._connections:
            kind = type(message)
            name = f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}"
            qos = [LATCHED] if topic == "/tf_static" else []
            self._connections[topic] = self._writer.add_connection(
                topic, name, typestore=self._store, offered_qos_profiles=qos
            )
        self._writer.write(self._connections[topic], stamp_ns, serialize_message(message))


def write_clip_bag(out: Path, split: str, clip: int, rig: Rig, storage: str) -> None:
    """Drives a clip (see training.clips) into a bag that appears under its name when it is complete."""
    family, seed = clip_source(clip)
    world = build(family, split, seed)
    renderer = Renderer(rig)
    try:
        renderer.load(world)
        with new_bag(out, storage) as writer:
            recorder = _Recorder(writer)

            def each_step(world: World) -> None:
                now_ns = _START_NS + round(world.time_s * NANOSECONDS)
                recorder.write("/clock", now_ns, Clock(clock=conversions.time_message(now_ns)))
                recorder.write("/odometry", now_ns, messages.odometry_message(world, now_ns))
                recorder.write("/tf", now_ns, messages.transform_message(world, now_ns))

            def watch(world: World) -> None:
                now_ns = _START_NS + round(world.time_s * NANOSECONDS)
                pictures = renderer.render(world)
                for camera in rig.cameras:
                    image = messages.image_message(camera, pictures[camera.name], now_ns, compressed=True)
                    recorder.write(f"/camera/{camera.name}/image/compressed", now_ns, image)
                    info = messages.camera_info_message(camera, rig, now_ns)
                    recorder.write(f"/camera/{camera.name}/camera_info", now_ns, info)
                recorder.write("/simulator/world", now_ns, messages.world_message(world, now_ns))
                made = expert.plan(world)
                text = write(meaning(world, made), text_seed(world))
                plan = messages.expert_plan(world, made, round(world.time_s * 10) + 1, now_ns, text)
                recorder.write("/expert/trajectory", now_ns, conversions.trajectory_message(plan))
                recorder.write("/expert/reasoning", now_ns, conversions.reasoning_message(plan))

            recorder.write("/tf_static", _START_NS, messages.static_transforms(rig))
            drive(world, CLIP_S, watch=watch, each_step=each_step)
    finally:
        renderer.close()


def make_bags(split: str, clips: int, out: Path, rig_file: Path, workers: int, storage: str) -> str:
    """Writes a bag for each of the clips 0 .. clips - 1; those that are there are kept. Returns what it did.

    Raises ValueError for an unknown split or a clip count below 1.
    """
    if split not in SPLITS or clips < 1:
        raise ValueError(f"split {split!r} ({', '.join(SPLITS)}) and --clips {clips} (at least 1)")
    rig = Rig.from_yaml(rig_file)
    out.mkdir(parents=True, exist_ok=True)
    bags = [out / f"{split}-{clip:06d}" for clip in range(clips)]
    jobs = [(bag, split, clip, rig, storage) for clip, bag in enumerate(bags) if not bag.exists()]
    took = in_parallel(write_clip_bag, jobs, [1] * len(jobs), workers)
    size = sum(file.stat().st_size for bag in bags for file in bag.iterdir())
    speed = f", {len(jobs) / took:.2f} clips/s" if jobs else ""
    return f"{out}: {clips} bags, {round(size / clips)} bytes a clip{speed}"
