"""What a training of the target is: data, stages, and everything about a step that its number tells."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rsd_planner.training.clips import FRAMES
from rsd_planner.training.losses import Weights
from rsd_planner.training.mini import TargetShape
from rsd_planner.training.samples import LESSONS


@dataclass(frozen=True)
class Stage:
    """One stage.

    words / flow / path / sight / motion: weights of the losses, see losses.Losses; detach keeps the flow's gradient
    out of the backbone; draws: noises and times of the flow for each sample. lesson: what is to be said, see
    samples.LESSONS; newest: pictures of each camera.
    """

    name: str
    steps: int
    learning_rate: float
    words: float = 1.0
    flow: float = 0.0
    path: float = 0.0
    sight: float = 0.0
    motion: float = 0.0
    detach: bool = True
    draws: int = 1
    lesson: str = "coc"
    newest: int = FRAMES
    warm_up: int = 200
    batch: int = 16
    weight_decay: float = 0.05
    clip: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1 or self.learning_rate <= 0:
            raise ValueError(f"stage {self.name}: steps, batch and learning_rate must be positive")
        if self.words == self.flow == self.sight == self.motion == 0:
            raise ValueError(f"stage {self.name} trains nothing: words, flow, sight and motion are 0")
        if self.path > 0 and self.flow == 0:
            raise ValueError(f"stage {self.name}: path is an error of the flow and needs flow > 0")
        if self.lesson not in LESSONS:
            raise ValueError(f"stage {self.name}: lesson {self.lesson!r} is not one of {', '.join(LESSONS)}")
        if not 1 <= self.newest <= FRAMES or self.draws < 1:
            raise ValueError(f"stage {self.name}: newest must be 1 to {FRAMES} and draws at least 1")

    @property
    def weights(self) -> Weights:
        """Of the losses."""
        return Weights(self.words, self.flow, self.path, self.sight, self.motion, self.detach)


@dataclass(frozen=True)
class TargetTraining:
    """A training run, as config/train/target.yaml holds it.

    train: one or more folders of shards. initial: a checkpoint whose weights, tokenizer and normalisation it starts
    from, instead of random weights of `shape`.
    """

    train: tuple[Path, ...]
    validation: Path
    out: Path
    stages: tuple[Stage, ...]
    shape: TargetShape = field(default_factory=TargetShape)
    seed: int = 0
    ema: float = 0.998
    precision: str = "bf16"
    evaluate_every: int = 1000
    evaluate_on: int = 96
    save_minutes: float = 4.0
    limit: int | None = None
    initial: Path | None = None

    @classmethod
    def from_yaml(cls, path: Path, overrides: dict[str, Any] | None = None) -> TargetTraining:
        """Reads a run. Raises ValueError that names file and key."""
        try:
            content = yaml.safe_load(path.read_text()) | (overrides or {})
            stages = tuple(Stage(**stage) for stage in content.pop("stages"))
            shape = TargetShape(**content.pop("shape", {}))
            train = folders(content.pop("train"))
            validation, out = folder(content.pop("validation")), folder(content.pop("out"))
            if content.get("initial"):
                content["initial"] = folder(content["initial"])
            return cls(train, validation, out, stages, shape, **content)
        except (OSError, TypeError, KeyError, yaml.YAMLError) as error:
            raise ValueError(f"{path}: {error}") from error

    @property
    def steps(self) -> int:
        """Of all stages."""
        return sum(stage.steps for stage in self.stages)

    def stage_at(self, step: int) -> tuple[Stage, int]:
        """The stage of a step of the run, and the step within it."""
        for stage in self.stages:
            if step < stage.steps:
                return stage, step
            step -= stage.steps
        raise ValueError("the run is over")


def folder(text: str) -> Path:
    """A folder as a file of a run names it."""
    return Path(text).expanduser()


def folders(named: str | list[str]) -> tuple[Path, ...]:
    """One or more of them."""
    return tuple(folder(text) for text in (named if isinstance(named, list) else [named]))


def learning_rate(stage: Stage, step: int) -> float:
    """Linear warm-up, then a cosine to a tenth."""
    if step < stage.warm_up:
        return stage.learning_rate * (step + 1) / stage.warm_up
    share = (step - stage.warm_up) / max(1, stage.steps - stage.warm_up)
    return stage.learning_rate * (0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * share)))


def batch_indices(samples: int, batch: int, step: int, seed: int) -> list[int]:
    """Samples of a step: epoch after epoch in orders of their own, a function of the step alone."""
    indices = []
    for place in range(step * batch, (step + 1) * batch):
        epoch, position = divmod(place, samples)
        indices.append(int(_order(samples, seed + epoch)[position]))
    return indices


_ORDERS: dict[tuple[int, int], np.ndarray] = {}


def _order(samples: int, seed: int) -> np.ndarray:
    if (samples, seed) not in _ORDERS:
        _ORDERS.clear()
        _ORDERS[samples, seed] = np.random.default_rng(seed).permutation(samples)
    return _ORDERS[samples, seed]
