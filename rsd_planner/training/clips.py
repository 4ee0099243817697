"""Clips of expert driving: what the model sees, what the expert does next, and why.

A clip is one drive of a scenario; it gives two samples a second. Samples lie in tar shards of the webdataset
layout: `KEY.json` and one `KEY.CAMERA.FRAME.jpg` for each frame, frame 3 being the newest.
"""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from rsd_planner.control.pure_pursuit import PurePursuit
from rsd_planner.control.reference import Reference
from rsd_planner.control.vehicle import Command
from rsd_planner.simulation import expert
from rsd_planner.simulation.cameras import Renderer, Rig
from rsd_planner.simulation.chain_of_causation import Meaning, meaning
from rsd_planner.simulation.drive import drive, expert_policy
from rsd_planner.simulation.scenarios import FAMILIES, build
from rsd_planner.simulation.snapshot import snapshot
from rsd_planner.simulation.wording import write
from rsd_planner.simulation.world import World

HISTORY_POSES, FRAMES = 16, 4
CLIP_S = 12.0
_SAMPLE_EVERY = 5  # plan periods of 0.1 s
_JPEG_QUALITY = 92
_WANDERS_M = 1.3


@dataclass(frozen=True)
class Sample:
    """One moment. Positions in base_link at t0 (m), yaw in rad.

    frames: camera -> FRAMES pictures, RGB uint8 [H, W, 3], oldest first, 0.1 s apart, the last at t0. history [16, 3]
    and future [64, 3] hold x, y, yaw every 0.1 s, the history's last at t0, the future's first 0.1 s after it;
    future_speed_mps [64]; speed_mps at t0. text says the meaning. world is the true state, see simulation.snapshot.
    """

    key: str
    family: str
    split: str
    seed: int
    time_s: float
    frames: dict[str, list[NDArray[np.uint8]]]
    history: NDArray[np.float64]
    future: NDArray[np.float64]
    future_speed_mps: NDArray[np.float64]
    speed_mps: float
    text: str
    meaning: Meaning
    world: dict[str, Any]


class Wheel(Protocol):
    """Who drives a clip, from what the car has seen."""

    def begin(self) -> None:
        """A new clip begins."""

    def __call__(
        self, world: World, history: NDArray[np.float64], frames: Mapping[str, Sequence[NDArray[np.uint8]]]
    ) -> Reference:
        """The plan to follow now; history and frames as in Sample."""
        ...


def clip_source(clip: int) -> tuple[str, int]:
    """Family and seed of a clip by its number: the families take turns."""
    families = list(FAMILIES)
    return families[clip % len(families)], clip // len(families)


class Disturbance:
    """Leads the car off its way, so that a data set holds ways back (after Laskey et al. 2017, DART).

    Pulses of 0.3 to 0.8 s, one every few seconds, of steering or of acceleration; and wandering: for some seconds each
    the car keeps to another line, up to _WANDERS_M beside the lane's middle. Pulses alone are corrected at once: of
    such samples 95 % lay within 0.15 m of the middle, and a model that had learned from them did not come back.
    """

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._pulses: list[tuple[float, float, float, float]] = []  # begin s, end s, steering rad, acceleration
        time_s = float(random.uniform(0.5, 2.5))
        while time_s < CLIP_S:
            end = time_s + float(random.uniform(0.3, 0.8))
            steers = random.random() < 0.7
            steering = float(random.uniform(0.01, 0.045)) * (1 if random.random() < 0.5 else -1) if steers else 0.0
            self._pulses.append((time_s, end, steering, 0.0 if steers else float(random.uniform(-2.0, 1.5))))
            time_s = end + float(random.uniform(1.5, 4.0))
        self._lines: list[tuple[float, float]] = []  # begin s, offset m
        time_s = 0.0
        while time_s < CLIP_S:
            offset = float(random.uniform(-_WANDERS_M, _WANDERS_M)) if random.random() < 0.8 else 0.0
            self._lines.append((time_s, offset))
            time_s += float(random.uniform(1.5, 4.0))

    def aside_m(self, time_s: float) -> float:
        """The line that is kept to, left of the lane's middle."""
        return next(offset for begin, offset in reversed(self._lines) if begin <= time_s)

    def __call__(self, time_s: float, command: Command) -> Command:
        """What reaches the actuators."""
        for begin, end, steering, acceleration in self._pulses:
            if begin <= time_s < end:
                return Command(command.steering_rad + steering, command.acceleration_mps2 + acceleration)
        return command


def is_disturbed(split: str, clip: int) -> bool:
    """Half of the training clips are disturbed; what is judged on is not."""
    return split == "train" and (clip // len(FAMILIES)) % 2 == 1


def samples_of_a_clip() -> int:
    """How many samples a clip gives that is driven to its end."""
    return (round(CLIP_S * 10) - HISTORY_POSES) // _SAMPLE_EVERY + 1


def record_clip(
    split: str, clip: int, renderer: Renderer, wheel: Wheel | None = None, wanted: Collection[int] | None = None
) -> Iterator[Sample]:
    """Lets the expert, or who else is at the wheel, drive a clip and yields its samples with the expert's plans.

    wanted: numbers of the samples to be taken, from 0 (None: all).
    """
    family, seed = clip_source(clip)
    world = build(family, split, seed)
    renderer.load(world)
    disturbance = Disturbance(seed) if wheel is None and is_disturbed(split, clip) else None
    poses: deque[tuple[float, float, float]] = deque(maxlen=HISTORY_POSES)
    pictures: deque[dict[str, NDArray[np.uint8]]] = deque(maxlen=FRAMES)
    samples: list[Sample] = []

    def watch(world: World) -> None:
        poses.append((world.ego.x_m, world.ego.y_m, world.ego.yaw_rad))
        period = round(world.time_s * 10)
        number, phase = divmod(period - HISTORY_POSES, _SAMPLE_EVERY)
        takes = wanted is None or number + 1 in wanted
        if wheel is not None or (takes and phase >= _SAMPLE_EVERY - FRAMES):
            pictures.append(renderer.render(world))
        if takes and len(poses) == HISTORY_POSES and phase == _SAMPLE_EVERY - 1:
            samples.append(_sample(world, family, split, seed, list(poses), list(pictures)))

    def policy(world: World) -> Reference:
        if disturbance is not None:
            return expert.plan(world, disturbance.aside_m(world.time_s)).reference(world)
        if wheel is None or len(poses) < HISTORY_POSES:
            return expert_policy(world)
        history = np.array(poses)
        return wheel(world, from_pose(history, history[-1]), _by_camera(pictures))

    if wheel is not None:
        wheel.begin()
    # Pure pursuit follows the expert as closely as the MPC does, in a third of the time.
    seconds = CLIP_S if wanted is None else (HISTORY_POSES + _SAMPLE_EVERY * max(wanted)) / 10
    drive(world, seconds, policy, watch=watch, disturbance=disturbance, tracker=PurePursuit(world.vehicle))
    yield from samples


def _by_camera(pictures: Sequence[dict[str, NDArray[np.uint8]]]) -> dict[str, list[NDArray[np.uint8]]]:
    return {name: [picture[name] for picture in pictures] for name in pictures[-1]}


def _sample(
    world: World,
    family: str,
    split: str,
    seed: int,
    poses: Sequence[tuple[float, float, float]],
    pictures: Sequence[dict[str, NDArray[np.uint8]]],
) -> Sample:
    plan = expert.plan(world)
    said = meaning(world, plan)
    period = round(world.time_s * 10)
    key = f"{family.replace(' ', '-')}-{seed:06d}-{period:03d}"
    origin = np.array(poses[-1])
    return Sample(
        key=key,
        family=family,
        split=split,
        seed=seed,
        time_s=world.time_s,
        frames=_by_camera(pictures),
        history=from_pose(np.array(poses), origin),
        future=plan.in_base_link(world),
        future_speed_mps=plan.speed_mps,
        speed_mps=world.ego.speed_mps,
        text=write(said, text_seed(world)),
        meaning=said,
        world=snapshot(world),
    )


def text_seed(world: World) -> int:
    """Seed of the wording of a moment: another one for each moment of each drive."""
    return (world.scenario[2] if world.scenario else 0) * 1000 + round(world.time_s * 10)


def from_pose(poses: NDArray[np.float64], origin: NDArray[np.float64]) -> NDArray[np.float64]:
    """Poses [N, 3] (x, y, yaw) seen from an origin pose [3]; yaw within half a turn of it."""
    offset = poses - origin
    cos, sin = np.cos(origin[2]), np.sin(origin[2])
    yaw = np.remainder(offset[:, 2] + np.pi, 2 * np.pi) - np.pi
    return np.stack([cos * offset[:, 0] + sin * offset[:, 1], -sin * offset[:, 0] + cos * offset[:, 1], yaw], axis=1)


def write_shard(path: Path, split: str, clips: range, rig: Rig, wheel: Callable[[], Wheel] | None = None) -> int:
    """Records clips into a tar that appears under its name when it is complete; returns the samples."""
    at_the_wheel = wheel() if wheel is not None else None
    partial = path.with_name(path.name + ".partial")
    renderer, count = Renderer(rig), 0
    try:
        with tarfile.open(partial, "w") as tar:
            for clip in clips:
                for sample in record_clip(split, clip, renderer, at_the_wheel):
                    _add(tar, sample)
                    count += 1
    finally:
        renderer.close()
    partial.rename(path)
    return count


def _add(tar: tarfile.TarFile, sample: Sample) -> None:
    record = {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample) if field.name != "frames"}
    record["meaning"] = dataclasses.asdict(sample.meaning)
    for name in ("history", "future", "future_speed_mps"):
        record[name] = np.round(record[name], 5).tolist()
    _add_file(tar, f"{sample.key}.json", json.dumps(record).encode())
    for camera, frames in sample.frames.items():
        for number, frame in enumerate(frames):
            options = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
            data = cv2.imencode(".jpg", cv2.cvtColor(frame, cv2.COLOR_RGB2BGR), options)[1]
            _add_file(tar, f"{sample.key}.{camera}.{number}.jpg", data.tobytes())


def _add_file(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)  # without time and owner: the same clips give the same bytes
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def read_shard(path: Path, frames: bool = True) -> Iterator[Sample]:
    """Samples of a shard in order. Without frames only the records are read.

    Raises ValueError that names the shard and the member that is damaged.
    """
    record: dict[str, Any] | None = None
    pictures: dict[str, list[NDArray[np.uint8]]] = {}
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                content = tar.extractfile(member)
                if content is None:
                    continue
                if member.name.endswith(".json"):
                    if record is not None:
                        yield _from_record(record, pictures)
                    record, pictures = json.loads(content.read()), {}
                elif frames:
                    picture = cv2.imdecode(np.frombuffer(content.read(), np.uint8), cv2.IMREAD_COLOR)
                    if picture is None:
                        raise ValueError(f"{path}: {member.name} is no picture")
                    camera = member.name.split(".")[1]
                    pictures.setdefault(camera, []).append(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB).astype(np.uint8))
    except (tarfile.TarError, json.JSONDecodeError, OSError) as error:
        raise ValueError(f"{path} is not a readable shard: {error}") from error
    if record is not None:
        yield _from_record(record, pictures)


def _from_record(record: dict[str, Any], frames: dict[str, list[NDArray[np.uint8]]]) -> Sample:
    arrays = {name: np.array(record[name]) for name in ("history", "future", "future_speed_mps")}
    return Sample(**(record | arrays | {"meaning": Meaning(**record["meaning"]), "frames": frames}))
