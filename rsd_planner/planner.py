"""The planning cycle: scene, reasoning, trajectory, plan. Knows no ROS."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rsd_planner.plan import ChainOfCausation, Plan, PlannedTrajectory
from rsd_planner.reasoning.decoding import (
    Ending,
    ReasonedRow,
    decode_autoregressively,
    decode_speculatively,
    dictate,
)
from rsd_planner.reasoning.economy import Economy
from rsd_planner.reasoning.routine import RoutineNetwork, RoutineReasoner
from rsd_planner.reasoning.routine_checkpoint import load_routine, routine_beside
from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.scene import EgoHistory, Scene
from rsd_planner.vla import flow
from rsd_planner.vla.action_space import Trajectory
from rsd_planner.vla.backbone import Context
from rsd_planner.vla.checkpoint import Checkpoint
from rsd_planner.vla.model import Alpamayo
from rsd_planner.vla.prompt import ImageSlot, Prompter
from rsd_planner.vla.vision import ImagePatches

_T = TypeVar("_T")


class PlanningError(RuntimeError):
    """A cycle that gave no usable plan; the next one may."""


@dataclass(frozen=True)
class PlannerSettings:
    """How a cycle runs.

    sampling of the chain of causation; token_budget for it (None: the checkpoint's); flow_steps (None: the
    checkpoint's); samples trajectories are drawn, the first is the plan: all after one chain of causation, or with
    own_chains each after one of its own (the prompt is processed once either way). flow_noise scales the noise that the
    plan's flow starts from: at 0 it is the flow's middle path, the same for every seed; alternatives are drawn with the
    noise that the flow was trained for. *_pixels bound the area of a
    resized image (None: the checkpoint's). The speed fitted to the history is used while it is within
    v0_tolerance_mps + 10 % of the odometry's. draft: the routine reasoner's directory, "auto" for the one beside the
    checkpoint if it is there, "none" for decoding token by token; block: tokens that one pass of the target judges
    (None: as many as the draft was trained for).
    """

    sampling: Sampling = field(default_factory=Sampling)
    token_budget: int | None = None
    flow_steps: int | None = None
    flow_noise: float = 0.0
    samples: int = 1
    own_chains: bool = False
    min_pixels: int | None = None
    max_pixels: int | None = None
    v0_tolerance_mps: float = 1.0
    draft: str = "auto"
    block: int | None = None


class Planner:
    """Plans with one loaded model, and a routine reasoner if there is one. Not thread-safe: one cycle at a time."""

    def __init__(
        self, model: Alpamayo, prompter: Prompter, settings: PlannerSettings, routine: RoutineNetwork | None = None
    ) -> None:
        self.model = model
        self._routine = RoutineReasoner(routine, model.embed, model.head) if routine is not None else None
        self._economy = Economy()
        self._prompter = prompter
        self._settings = settings
        self.sampling = replace(settings.sampling, masked=model.masked_tokens)
        self.budget = settings.token_budget or model.config.max_new_tokens
        processor = model.image_processor
        self._images = replace(
            processor,
            min_pixels=settings.min_pixels or processor.min_pixels,
            max_pixels=settings.max_pixels or processor.max_pixels,
        )
        self.ending = Ending(
            future_start=model.config.future_start_token,
            end_of_text=prompter.token_id("im_end"),
            cot_end=prompter.token_id("cot_end"),
        )
        self._cycles = 0

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        settings: PlannerSettings | None = None,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> Planner:
        """Loads model, tokenizer and draft. Raises CheckpointError, ValueError for a draft that does not fit."""
        prompter = Prompter.from_directory(checkpoint.directory, checkpoint.config)
        settings = settings or PlannerSettings()
        named = routine_beside(checkpoint.directory) if settings.draft == "auto" else Path(settings.draft).expanduser()
        model = checkpoint.load(device, dtype)
        if settings.draft == "none" or named is None:
            return cls(model, prompter, settings)
        return cls(model, prompter, settings, routine_for(model, named))

    @property
    def history_poses(self) -> int:
        """Poses that the scene's history must have."""
        return self.model.config.history_poses

    def plan(self, scene: Scene, told: str | None = None) -> Plan:
        """One cycle. Raises PlanningError if no finite trajectory comes out.

        told: a chain of causation to be taken as it is instead of reasoning (empty: none at all), for studies of what
        the reasoning is worth.
        """
        stopwatch = _Stopwatch(self.model.device)
        given = None if told is None else self._prompter.encode(told)
        read = self._routine.layers if self._routine is not None and given is None else ()
        context = self._prefill(scene, stopwatch, max(self.budget, len(given or ())), read)
        v0_mps, from_twist, notes = self._speed_at_t0(scene.history)
        noise = flow.noise(self._settings.samples, self.model.action_space.waypoints, self._settings.sampling.seed)
        noise[0] *= self._settings.flow_noise
        # A sample does not depend on how many there are.
        chains = noise.split(1 if self._settings.own_chains else len(noise))
        length, rows, trajectories = context.length, [], []
        for number, own_noise in enumerate(chains):
            context.crop(length)
            rows.append(stopwatch.run("decode", partial(self._reason, context, given, number)))
            trajectories += stopwatch.run("action", partial(self._trajectories, context, own_noise, v0_mps))
        row, (first, *others) = rows[0], trajectories
        if not np.isfinite(first.xyz).all():
            raise PlanningError(f"the action expert gave a trajectory that is not finite (t0 {scene.t0_ns} ns)")
        if row.truncated:
            notes += (f"the chain of causation was closed after {len(row.tokens)} tokens",)
        if not self._economy.pays:
            notes += (f"drafting does not pay ({self._economy.gain:.2f} x the speed without) and is switched off",)
        self._cycles += 1
        return Plan(
            plan_id=self._cycles,
            t0_ns=scene.t0_ns,
            reasoning=self._reasoning(row),
            trajectory=first,
            alternatives=tuple(others),
            alternative_reasonings=tuple(self._reasoning(other) for other in rows[1:]),
            history=scene.history,
            v0_mps=v0_mps,
            v0_from_twist=from_twist,
            notes=notes,
            stages_s=stopwatch.stages_s,
        )

    def _reason(self, context: Context, given: Sequence[int] | None, number: int) -> ReasonedRow:
        """The chain of causation of the number-th sample."""
        if given is not None:
            return dictate(context, given, self.ending)[0]
        if self._routine is None:
            return decode_autoregressively(context, self.sampling, self.ending, self.budget, number)[0]
        prompt, block = self.model.prompt_of(context), self._settings.block or self._routine.network.config.block
        asked = (self.sampling, self.ending, self.budget, block, number)
        return decode_speculatively(context, self._routine, prompt, *asked, economy=self._economy)

    def prefill(self, scene: Scene, keep: Collection[int] = ()) -> Context:
        """The target behind a scene's prompt, with the inputs of the layers in keep; for measurements."""
        return self._prefill(scene, _Stopwatch(self.model.device), self.budget, keep)

    def _prefill(self, scene: Scene, stopwatch: _Stopwatch, room: int, keep: Collection[int]) -> Context:
        slots, patches = stopwatch.run("preprocess", lambda: self._patches(scene))
        features = stopwatch.run("encode", lambda: self.model.encode_images(patches))
        history_xyz = torch.from_numpy(scene.history.xyz)
        prompt = self._prompter.planning(slots, self.model.config.history_tokenizer.encode(history_xyz), scene.route)
        return stopwatch.run(
            "prefill", lambda: self.model.prefill(prompt, features, patches.grid_thw, extra=room + 2, keep=keep)
        )

    def _trajectories(self, context: Context, noise: torch.Tensor, v0_mps: float) -> list[PlannedTrajectory]:
        """One of each noise [samples, N, 2], after the chain that was decoded last."""
        space, velocity = self.model.action_space, self.model.velocity(context)
        made = []
        for own in noise.split(1):
            action = self.model.sample_action(velocity, own, self._settings.flow_steps)[0].double().cpu()
            rollout = space.trajectory_from_action(action, torch.tensor(v0_mps), torch.tensor(0.0))
            made.append(_planned(rollout, space.dt_s))
        return made

    def _patches(self, scene: Scene) -> tuple[list[ImageSlot], ImagePatches]:
        slots: list[ImageSlot] = []
        images: list[NDArray[np.uint8]] = []
        for camera in sorted(scene.cameras, key=lambda camera: camera.index):
            for frame, image in enumerate(camera.images):
                _, height, width = self._images.grid_for(image.shape[0], image.shape[1])
                slots.append(ImageSlot(camera.index, frame, height * width // self._images.merge_size**2))
                images.append(image)
        return slots, self._images(images)

    def _speed_at_t0(self, history: EgoHistory) -> tuple[float, bool, tuple[str, ...]]:
        fitted = float(
            self.model.action_space.estimate_v0(torch.from_numpy(history.xyz), torch.from_numpy(history.rotation))
        )
        measured = history.speed_mps
        if not np.isfinite(measured):
            return fitted, False, ("the odometry has no usable twist",)
        if abs(fitted - measured) <= self._settings.v0_tolerance_mps + 0.1 * abs(measured):
            return fitted, False, ()
        note = f"speed fitted to the history {fitted:.2f} m/s, odometry {measured:.2f} m/s: the latter is used"
        return measured, True, (note,)

    def _reasoning(self, row: ReasonedRow) -> ChainOfCausation:
        return ChainOfCausation(
            text=self._prompter.chain_of_causation(row.tokens),
            tokens=tuple(self._prompter.strings(row.tokens)),
            ids=tuple(row.tokens),
            sources=tuple(row.sources),
            truncated=row.truncated,
            rounds=tuple(row.rounds),
        )


def routine_for(model: Alpamayo, directory: Path) -> RoutineNetwork:
    """A routine reasoner where a target is and in its dtype. Raises ValueError if there is none or it does not fit."""
    routine = load_routine(directory, model.device, model.action_out_proj.weight.dtype)
    text = model.config.vlm.text_config
    routine.config.check_target(text.hidden_size, text.num_hidden_layers, directory)
    return routine


class _Stopwatch:
    """Wall time of named stages, summed over their runs; waits for the accelerator at each end."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.stages_s: dict[str, float] = {}

    def run(self, stage: str, work: Callable[[], _T]) -> _T:
        start = time.perf_counter()
        result = work()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.stages_s[stage] = self.stages_s.get(stage, 0.0) + time.perf_counter() - start
        return result


def _planned(rollout: Trajectory, dt_s: float) -> PlannedTrajectory:
    return PlannedTrajectory(
        dt_s=dt_s,
        xyz=rollout.xyz.numpy(),
        yaw_rad=rollout.yaw_rad.numpy(),
        speed_mps=rollout.speed_mps.numpy(),
        accel_mps2=rollout.accel_mps2.numpy(),
        curvature_radpm=rollout.curvature_radpm.numpy(),
    )
