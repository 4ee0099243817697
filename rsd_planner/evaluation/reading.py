"""Recorded bags as streams of what the planner takes, with everything that is wrong with them told.

rosbag2 in sqlite3 and MCAP, split, compressed; a directory or a single storage file. Nothing is held in memory but the
message at hand.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rosbags.interfaces import Connection
from rosbags.rosbag2 import Reader, ReaderError
from rosbags.typesys import Stores, get_typestore

from rsd_planner.buffers import Camera, Frame, OdometrySample
from rsd_planner.images import decode_compressed_image, decode_image
from rsd_planner.messages import odometry_sample, posed_sample, stamp_ns

ODOMETRY_TYPES = (
    "nav_msgs/msg/Odometry",
    "geometry_msgs/msg/PoseStamped",
    "geometry_msgs/msg/PoseWithCovarianceStamped",
)
IMAGE_TYPES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
WORLD_TOPIC = "/simulator/world"
_STATIC_MESSAGES = 50
_PINHOLES = ("", "plumb_bob", "rational_polynomial")
_DAMAGE = (ReaderError, OSError, ValueError, KeyError, EOFError, sqlite3.Error, AssertionError, IndexError)
"""What a reader raises in the middle of a damaged file."""


class BagError(Exception):
    """A bag that cannot be evaluated at all; the message says why."""


@dataclass(frozen=True)
class OdometryEvent:
    """A usable odometry message and its frames."""

    sample: OdometrySample
    frame: str
    base_frame: str


@dataclass(frozen=True)
class FrameEvent:
    """A camera frame; its picture is decoded when it is needed."""

    camera: str
    frame: Frame


@dataclass(frozen=True)
class WorldEvent:
    """The simulator's true state, see simulation.snapshot."""

    stamp_ns: int
    state: dict[str, Any]


Event = OdometryEvent | FrameEvent | WorldEvent


@dataclass
class BagReader:
    """One bag. topics maps `odometry`, `world` and `camera/NAME` to topics that differ from the planner's own names."""

    path: Path
    cameras: Sequence[Camera]
    topics: dict[str, str] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)
    """What is wrong with the bag, with how often."""

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise BagError(f"{self.path} does not exist")
        if self.path.is_dir() and not (self.path / "metadata.yaml").exists():
            files = sorted(path.name for path in self.path.glob("*") if path.suffix in (".mcap", ".db3"))
            hint = f"; evaluate its file {files[0]} directly, or run ros2 bag reindex" if files else ""
            raise BagError(f"{self.path} has no metadata.yaml{hint}")
        try:
            self._reader = Reader(self.path)
            self._reader.open()
        except _DAMAGE as error:
            raise BagError(f"{self.path} cannot be opened: {error}") from error
        self._store = get_typestore(Stores.ROS2_JAZZY)
        self._roles = self._assign()

    def close(self) -> None:
        """Gives the files back."""
        if self._reader.is_open:
            self._reader.close()

    @property
    def duration_s(self) -> float:
        """Recorded time, as the bag itself says."""
        return self._reader.duration / 1e9

    @property
    def start_ns(self) -> int:
        """Bag time of the first message."""
        return self._reader.start_time

    def topic_of(self, role: str) -> str | None:
        """Topic that plays a role (`odometry`, `world`, `camera/NAME`)."""
        return next((topic for topic, (name, _) in self._roles.items() if name == role), None)

    def is_compressed(self, topic: str) -> bool:
        """Whether a topic that plays a role holds CompressedImage."""
        return self._roles[topic][1].endswith("CompressedImage")

    def calibration(self) -> dict[str, dict[str, Any]]:
        """Intrinsics and pose in base_link of the pinhole cameras that the bag tells both of (camera_info, /tf_static).

        k [9], d [..], width, height (pixels), translation [3] (m), rotation [4] (x, y, z, w) of the optical frame.
        """
        infos = {f"/camera/{camera.name}/camera_info": camera.name for camera in self.cameras}
        for camera in self.cameras:
            topic = self.topic_of(f"camera/{camera.name}") or ""
            infos[f"{topic.removesuffix('/compressed').rsplit('/', 1)[0]}/camera_info"] = camera.name
        found: dict[str, dict[str, Any]] = {}
        frames: dict[str, str] = {}
        transforms: dict[str, Any] = {}
        for connection in self._reader.connections:
            if connection.topic not in infos and connection.topic != "/tf_static":
                continue
            try:
                for _, _, data in itertools.islice(self._reader.messages([connection]), _STATIC_MESSAGES):
                    message: Any = self._store.deserialize_cdr(data, connection.msgtype)
                    if connection.topic == "/tf_static":
                        transforms |= {entry.child_frame_id: entry for entry in message.transforms}
                    elif infos[connection.topic] not in found and message.distortion_model in _PINHOLES:
                        name = infos[connection.topic]
                        frames[name] = message.header.frame_id
                        found[name] = {"width": message.width, "height": message.height}
                        found[name] |= {"k": [float(v) for v in message.k], "d": [float(v) for v in message.d]}
                        break
            except _DAMAGE as error:
                self.problems[f"{connection.topic}: {str(error)[:120] or type(error).__name__}"] += 1
        placed = {}
        for name, camera_found in found.items():
            entry = transforms.get(frames[name])
            if entry is not None and entry.header.frame_id == "base_link":
                t, q = entry.transform.translation, entry.transform.rotation
                placed[name] = camera_found | {"translation": [t.x, t.y, t.z], "rotation": [q.x, q.y, q.z, q.w]}
        return placed

    def events(self) -> Iterator[tuple[int, Event]]:
        """(bag time ns, event) in the bag's order. A bag that breaks off ends here, and says so in `problems`."""
        messages = self._reader.messages([c for c in self._reader.connections if c.topic in self._roles])
        while True:
            try:
                connection, at_ns, data = next(messages)
            except StopIteration:
                return
            except _DAMAGE as error:
                self.problems[f"the bag breaks off: {type(error).__name__}: {str(error)[:120]}"] += 1
                return
            role, kind = self._roles[connection.topic]
            try:
                event = self._event(role, kind, self._store.deserialize_cdr(data, kind))
            except _DAMAGE as error:
                self.problems[f"{connection.topic}: {str(error)[:120] or type(error).__name__}"] += 1
                continue
            if event is not None:
                yield at_ns, event

    def _event(self, role: str, kind: str, message: Any) -> Event | None:
        if role == "world":
            state = json.loads(message.data)
            return WorldEvent(int(state["stamp_ns"]), state)
        stamp = stamp_ns(message.header.stamp)
        if role != "odometry":
            decode = decode_compressed_image if kind.endswith("CompressedImage") else decode_image
            return FrameEvent(role.removeprefix("camera/"), Frame(stamp, partial(decode, message)))
        if kind == ODOMETRY_TYPES[0]:
            return OdometryEvent(
                odometry_sample(message), message.header.frame_id or "odom", message.child_frame_id or "base_link"
            )
        return OdometryEvent(posed_sample(message), message.header.frame_id or "odom", "base_link")

    def _assign(self) -> dict[str, tuple[str, str]]:
        """Topic -> (role, type). Raises BagError that says what the bag holds instead."""
        by_topic = {connection.topic: connection for connection in self._reader.connections}
        roles: dict[str, tuple[str, str]] = {}
        unknown = sorted(
            set(self.topics) - {"odometry", "world", *(f"camera/{camera.name}" for camera in self.cameras)}
        )
        if unknown:
            raise BagError(f"{self.path}: --map names {', '.join(unknown)}; there are odometry, world, camera/NAME")
        for camera in self.cameras:
            role = f"camera/{camera.name}"
            usual = [f"/camera/{camera.name}/image", f"/camera/{camera.name}/image/compressed"]
            candidates = [self.topics[role]] if role in self.topics else usual
            roles |= self._role(role, candidates, IMAGE_TYPES, by_topic)
        odometry = [self.topics["odometry"]] if "odometry" in self.topics else ["/odometry"]
        if "odometry" not in self.topics and odometry[0] not in by_topic:
            others = [topic for topic, connection in by_topic.items() if connection.msgtype == ODOMETRY_TYPES[0]]
            if len(others) == 1:
                odometry = others
        roles |= self._role("odometry", odometry, ODOMETRY_TYPES, by_topic)
        world = by_topic.get(self.topics.get("world", WORLD_TOPIC))
        if world is not None and world.msgtype == "std_msgs/msg/String":
            roles[world.topic] = ("world", world.msgtype)
        return roles

    def _role(
        self, role: str, candidates: Sequence[str], kinds: Sequence[str], by_topic: dict[str, Connection]
    ) -> dict[str, tuple[str, str]]:
        for topic in candidates:
            connection = by_topic.get(topic)
            if connection is None:
                continue
            if connection.msgtype not in kinds:
                wanted = " or ".join(kinds)
                raise BagError(f"{self.path}: {topic} holds {connection.msgtype}; {role} needs {wanted}")
            return {topic: (role, connection.msgtype)}
        has = (
            ", ".join(f"{c.topic} ({c.msgtype})" for c in by_topic.values() if c.msgtype in kinds)
            or "none of that kind"
        )
        raise BagError(f"{self.path}: no topic {' or '.join(candidates)} for {role}; it has {has} (see --map)")


def parse_map(entries: Sequence[str]) -> dict[str, str]:
    """ROLE=TOPIC entries of the command line. Raises ValueError for any other."""
    pairs = [entry.partition("=") for entry in entries]
    bad = [
        entry for entry, (role, _, topic) in zip(entries, pairs, strict=True) if not role or not topic.startswith("/")
    ]
    if bad:
        raise ValueError(f"--map {bad[0]!r} is not ROLE=/TOPIC, such as odometry=/localization/odometry")
    return {role: topic for role, _, topic in pairs}
