"""Recorded samples as batches for the target: prompt and CoC tokens, patches, and the action to be learned."""

from __future__ import annotations

import copy
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from rsd_planner.buffers import NANOSECONDS
from rsd_planner.evaluation.reasoning_bench import Moment
from rsd_planner.scene import CameraFrames, EgoHistory, Scene
from rsd_planner.simulation.cameras import Renderer, Rig
from rsd_planner.simulation.description import QUESTION, describe
from rsd_planner.simulation.snapshot import restore
from rsd_planner.simulation.world import World
from rsd_planner.training.clips import FRAMES, Sample, read_shard, record_clip, samples_of_a_clip
from rsd_planner.training.sight import Sights, look, stack
from rsd_planner.vla.action_space import ActionSpace, yaw_rotation
from rsd_planner.vla.model import Alpamayo
from rsd_planner.vla.prompt import ImageSlot, Prompter

CAMERA_INDICES = {"cross_left": 0, "front_wide": 1, "cross_right": 2, "front_tele": 6}
"""The public model's numbers of the simulated cameras."""
IGNORED = -100
LESSONS = ("coc", "scene")
"""What a sample may teach to say: the chain of causation, or the answer to what there is to see."""
LARGEST_ACTION = 8.0
"""Normalised actions are learned up to this size: a car that stands has any curvature, and a few such labels (70
standard deviations were seen) would outweigh everything else in a squared error."""


@dataclass(frozen=True)
class Batch:
    """B samples. Pictures of all samples have one size, so all prompts have one length P.

    tokens [B, L] (prompt, CoC, its end, start of the trajectory, padding); labels [B, L]: the tokens to be said, else
    IGNORED; lengths [B]: tokens that count; pixels [B * pictures * patches, ...]; grid [B * pictures, 3]; action
    [B, N, 2], normalised; speed [B, N], the expert's as each step begins (m/s); sights: what the newest pictures show,
    if that is to be learned.
    """

    tokens: Tensor
    labels: Tensor
    lengths: Tensor
    prompt_length: int
    pixels: Tensor
    grid: Tensor
    action: Tensor
    speed: Tensor
    sights: Sights | None = None


class Recorded:
    """Samples of folders of shards: records in memory, pictures as JPEG."""

    def __init__(self, *directories: Path, limit: int | None = None) -> None:
        self.samples: list[Sample] = []
        self._pictures: list[dict[str, list[bytes]]] = []
        for directory in directories:
            if not any(directory.glob("*.tar")):
                raise ValueError(f"{directory} holds no shards (*.tar); make them with rsd-planner data make")
        for shard in [shard for directory in directories for shard in sorted(directory.glob("*.tar"))]:
            self.samples += read_shard(shard, frames=False)
            self._pictures += _jpegs(shard)
            if limit is not None and len(self.samples) >= limit:
                break
        self.samples, self._pictures = self.samples[:limit], self._pictures[:limit]

    def __len__(self) -> int:
        return len(self.samples)

    def spread(self, count: int) -> Recorded:
        """At most this many of the samples, evenly over all of them."""
        chosen = np.unique(np.linspace(0, len(self) - 1, min(count, len(self))).round().astype(int))
        part = copy.copy(self)
        part.samples = [self.samples[index] for index in chosen]
        part._pictures = [self._pictures[index] for index in chosen]
        return part

    def frames(self, index: int, newest: int = FRAMES) -> dict[str, list[NDArray[np.uint8]]]:
        """The newest pictures of each camera, RGB uint8 [H, W, 3], oldest first."""
        return {
            name: [_decoded(data) for data in pictures[-newest:]] for name, pictures in self._pictures[index].items()
        }

    def texts(self, lesson: str) -> list[str]:
        """What the samples teach to say, see LESSONS."""
        if lesson == "coc":
            return [sample.text for sample in self.samples]
        drawn: World | None = None
        told = []
        for sample in self.samples:
            scenario = (sample.family, sample.split, sample.seed)
            world = restore(sample.world, drawn if drawn is not None and drawn.scenario == scenario else None)
            told.append(describe(world))
            drawn = world
        return told

    def scene(self, index: int, newest: int = FRAMES) -> Scene:
        """A sample as the planner sees it, with the newest pictures of each camera."""
        sample = self.samples[index]
        return scene_of(sample.time_s, sample.history, sample.speed_mps, self.frames(index, newest))


def scene_of(
    time_s: float,
    xy_yaw: NDArray[np.float64],
    speed_mps: float,
    frames: Mapping[str, Sequence[NDArray[np.uint8]]],
) -> Scene:
    """What a planner sees of a moment of a drive; see training.clips.Sample for the history [16, 3] and frames."""
    t0_ns = round((10.0 + time_s) * NANOSECONDS)

    def stamps(count: int) -> tuple[int, ...]:
        return tuple(t0_ns - (count - 1 - k) * NANOSECONDS // 10 for k in range(count))

    cameras = tuple(
        CameraFrames(name, CAMERA_INDICES[name], stamps(len(pictures)), tuple(pictures))
        for name, pictures in frames.items()
    )
    xyz, rotation = poses(xy_yaw)
    history = EgoHistory(
        xyz=xyz.numpy(),
        rotation=rotation.numpy(),
        dt_s=0.1,
        speed_mps=speed_mps,
        yaw_rate_radps=0.0,
        position_in_odometry=np.zeros(3),
        quaternion_in_odometry=np.array([0.0, 0.0, 0.0, 1.0]),
    )
    return Scene(t0_ns, cameras, history)


def moments_of_drives(split: str, clips: int, each: int, rig: Rig, progress: bool = True) -> Iterator[Moment]:
    """Independent moments of drives, rendered now, each with the one half a second before it.

    each: moments of a clip, evenly over it. Raises ValueError for an unknown split.
    """
    renderer = Renderer(rig)
    try:
        for clip in tqdm(range(clips), unit="drive", desc="rendering", disable=not progress, leave=False):
            taken = np.linspace(1, samples_of_a_clip() - 1, each + 2).round().astype(int)[1:-1].tolist()
            wanted = {number for last in taken for number in (last - 1, last)}
            scenes = {
                number: scene_of(one.time_s, one.history, one.speed_mps, one.frames)
                for number, one in zip(sorted(wanted), record_clip(split, clip, renderer, wanted=wanted), strict=True)
            }
            yield from (Moment(scenes[last], scenes[last - 1], clip) for last in taken)
    finally:
        renderer.close()


def _jpegs(shard: Path) -> list[dict[str, list[bytes]]]:
    found: list[dict[str, list[bytes]]] = []
    with tarfile.open(shard) as tar:
        for member in tar:
            if member.name.endswith(".json"):
                found.append({})
                continue
            content = tar.extractfile(member)
            if content is not None:
                found[-1].setdefault(member.name.split(".")[1], []).append(content.read())
    return found


def _decoded(data: bytes) -> NDArray[np.uint8]:
    picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if picture is None:
        raise ValueError("a picture of the data set cannot be decoded")
    return np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), dtype=np.uint8)


def poses(xy_yaw: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
    """Poses [N, 3] (x, y, yaw) as positions [N, 3] and rotations [N, 3, 3], float64."""
    plane = torch.from_numpy(np.asarray(xy_yaw, dtype=np.float64))
    return torch.cat([plane[:, :2], torch.zeros(len(plane), 1, dtype=torch.float64)], dim=1), yaw_rotation(plane[:, 2])


def actions(samples: Sequence[Sample], space: ActionSpace) -> Tensor:
    """Normalised actions [samples, N, 2] (float32) whose roll-outs follow the expert's futures."""
    history = [poses(sample.history) for sample in samples]
    future = [poses(sample.future) for sample in samples]
    stacked = [torch.stack([pair[part] for pair in pairs]) for pairs in (history, future) for part in (0, 1)]
    return space.action_from_trajectory(*stacked).float()


def _speeds(sample: Sample) -> NDArray[np.float64]:
    """Speed at the beginning of each step of the future [N] (m/s)."""
    return np.concatenate([[sample.speed_mps], sample.future_speed_mps[:-1]])


def fitted_action_space(samples: Sequence[Sample]) -> ActionSpace:
    """An action space normalised to samples."""
    plain = ActionSpace(accel_mean=0.0, accel_std=1.0, curvature_mean=0.0, curvature_std=1.0)
    found = actions(samples, plain).double()
    mean, std = found.mean(dim=(0, 1)), found.std(dim=(0, 1))
    return ActionSpace(float(mean[0]), float(std[0]), float(mean[1]), float(std[1]))


class Collator:
    """Makes batches of samples for a model."""

    def __init__(self, recorded: Recorded, model: Alpamayo, prompter: Prompter, rig: Rig | None = None) -> None:
        self._rig = rig
        self._recorded, self._config, self._prompter = recorded, model.config, prompter
        self._images = model.image_processor
        self._action = actions(recorded.samples, model.action_space).clamp(-LARGEST_ACTION, LARGEST_ACTION)
        self._speed = torch.tensor(np.array([_speeds(sample) for sample in recorded.samples])).float()
        self._said: dict[str, list[list[int]]] = {}
        self._looks: dict[int, dict[str, NDArray[np.float32]]] = {}

    def __call__(
        self, indices: Sequence[int], lesson: str = "coc", newest: int = FRAMES, sights: bool = False
    ) -> Batch:
        """A batch of these samples with the newest pictures of each camera. sights needs the rig that took them."""
        prompts, pictures = [], []
        for index in indices:
            frames = self._recorded.frames(index, newest)
            slots: list[ImageSlot] = []
            for name in sorted(frames, key=lambda name: CAMERA_INDICES[name]):
                for number, picture in enumerate(frames[name]):
                    _, height, width = self._images.grid_for(*picture.shape[:2])
                    slots.append(ImageSlot(CAMERA_INDICES[name], number, height * width // self._images.merge_size**2))
                    pictures.append(picture)
            prompts.append(self._prompt(index, slots, lesson))
        patches = self._images(pictures)
        prompt = torch.stack(prompts)
        said = [torch.tensor(self._to_be_said(lesson)[index]) for index in indices]
        longest = max(len(tokens) for tokens in said)
        padding = self._prompter.token_id("im_end")
        tail = torch.full((len(indices), longest), padding)
        labels = torch.full((len(indices), prompt.shape[1] + longest), IGNORED)
        for row, tokens in enumerate(said):
            tail[row, : len(tokens)] = tokens
            labels[row, prompt.shape[1] : prompt.shape[1] + len(tokens)] = tokens
        return Batch(
            tokens=torch.cat([prompt, tail], dim=1),
            labels=labels,
            lengths=torch.tensor([prompt.shape[1] + len(tokens) for tokens in said]),
            prompt_length=prompt.shape[1],
            pixels=patches.pixel_values,
            grid=patches.grid_thw,
            action=self._action[list(indices)],
            speed=self._speed[list(indices)],
            sights=self._sights(indices) if sights else None,
        )

    def _sights(self, indices: Sequence[int]) -> Sights:
        if self._rig is None:
            raise ValueError("what the pictures show is not known without the cameras (card.json of the data set)")
        for index in indices:
            if index not in self._looks:
                self._looks[index] = look(restore(self._recorded.samples[index].world), self._rig)
        cameras = sorted((camera.name for camera in self._rig.cameras), key=lambda name: CAMERA_INDICES[name])
        return stack([self._looks[index] for index in indices], cameras)

    def _prompt(self, index: int, slots: list[ImageSlot], lesson: str) -> Tensor:
        if lesson == "scene":
            return self._prompter.question(slots, QUESTION)[0]
        history, _ = poses(self._recorded.samples[index].history)
        return self._prompter.planning(slots, self._config.history_tokenizer.encode(history))[0]

    def _to_be_said(self, lesson: str) -> list[list[int]]:
        """Tokens of every sample, with what ends them."""
        if lesson not in self._said:
            name = "answer_end" if lesson == "scene" else "cot_end"
            ends = [self._prompter.token_id(name), *([self._config.future_start_token] if lesson == "coc" else [])]
            self._said[lesson] = [self._prompter.encode(text) + ends for text in self._recorded.texts(lesson)]
        return self._said[lesson]


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The batch on a device."""

    def moved(value: Any) -> Any:
        if isinstance(value, Sights):
            return Sights(**{name: part.to(device) for name, part in vars(value).items()})
        return value.to(device) if isinstance(value, Tensor) else value

    return Batch(**{name: moved(value) for name, value in vars(batch).items()})
