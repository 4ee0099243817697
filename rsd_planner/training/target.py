"""Training the target: from random weights (or a checkpoint's) to a checkpoint, stage after stage."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rsd_planner.simulation.cameras import Rig
from rsd_planner.training.curves import draw_curves
from rsd_planner.training.data_set import rig_of
from rsd_planner.training.loop import TrainingLoop
from rsd_planner.training.losses import Losses, TargetLosses, flow_time
from rsd_planner.training.mini import new_model, save_weights, train_tokenizer, write_skeleton
from rsd_planner.training.recipe import Stage, TargetTraining, batch_indices, learning_rate
from rsd_planner.training.samples import LESSONS, Batch, Collator, Recorded, fitted_action_space, on_device
from rsd_planner.training.scoring import score
from rsd_planner.vla.checkpoint import Checkpoint
from rsd_planner.vla.config import AlpamayoConfig
from rsd_planner.vla.model import Alpamayo
from rsd_planner.vla.prompt import Prompter

_SKELETON, _TOLD, _RIG = "skeleton", "training.json", "cameras.yaml"


class TargetTrainer(TrainingLoop[Batch]):
    """One run in one process of it."""

    def __init__(self, run: TargetTraining) -> None:
        super().__init__(run.out, run.steps, run.precision, run.ema, run.evaluate_every, run.save_minutes)
        self.run = run
        self._recorded = Recorded(*run.train, limit=run.limit)
        self._validation = Recorded(run.validation).spread(run.evaluate_on)
        skeleton = run.out / _SKELETON
        if self._accelerator.is_main_process and not (skeleton / "config.json").exists():
            self._write_skeleton(skeleton)
        self._accelerator.wait_for_everyone()
        model = new_model(skeleton, run.seed)
        if run.initial is not None:
            model.load_state_dict(Checkpoint.open(run.initial).load(dtype=torch.float32).state_dict())
        self._prompter = Prompter.from_directory(skeleton, AlpamayoConfig.from_directory(skeleton))
        rig = Rig.from_yaml(skeleton / _RIG) if (skeleton / _RIG).exists() else None
        self._collator = Collator(self._recorded, model, self._prompter, rig)
        self._unseen = Collator(self._validation, model, self._prompter, rig)
        self._prepare(TargetLosses(model), kept="model")

    def _write(self, directory: Path, figures: dict[str, float]) -> None:
        """The averaged weights in the public layout, with the run and its last figures."""
        shutil.copytree(self.run.out / _SKELETON, directory, dirs_exist_ok=True)
        save_weights(self._averaged(), directory)
        draw_curves(self._figures.read(), self.run.stages, directory / "curves.png")
        told = {"steps": self._step, "samples": len(self._recorded), "run": dataclasses.asdict(self.run)}
        (directory / _TOLD).write_text(json.dumps(told | {"figures": figures}, indent=1, default=str) + "\n")

    def _write_skeleton(self, directory: Path) -> None:
        run = self.run
        if run.initial is not None:
            shutil.copytree(run.initial, directory, ignore=shutil.ignore_patterns("*.safetensors", "*.md", _TOLD))
            return
        texts = [text for lesson in LESSONS for text in self._recorded.texts(lesson)]
        tokenizer = train_tokenizer(texts, run.shape.vocabulary)
        write_skeleton(directory, run.shape, tokenizer, fitted_action_space(self._recorded.samples))
        if (rig := rig_of(run.train[0])) is not None:
            (directory / _RIG).write_text(rig)

    def _batch(self, step: int) -> Batch:
        accelerator, stage = self._accelerator, self.run.stage_at(step)[0]
        indices = batch_indices(len(self._recorded), stage.batch * accelerator.num_processes, step, self.run.seed)
        own = indices[accelerator.process_index :: accelerator.num_processes]
        return self._collator(own, stage.lesson, stage.newest, stage.weights.needs_sights)

    def _rate(self) -> tuple[float, float, float]:
        stage, within = self.run.stage_at(self._step)
        return learning_rate(stage, within), stage.weight_decay, stage.clip

    def _loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        stage, device = self.run.stage_at(self._step)[0], self._accelerator.device
        generator = self._generator(self.run.seed)
        noise = torch.randn(stage.draws, *batch.action.shape, generator=generator).to(device)
        moment = flow_time(noise.shape[:2], generator).to(device)
        losses: Losses = self._losses(on_device(batch, device), noise, moment, stage.weights)
        return stage.weights.total(losses), vars(losses)

    def _averaged(self) -> Alpamayo:
        model = self._average.module
        assert isinstance(model, Alpamayo)
        return model

    def _evaluate(self) -> dict[str, float]:
        """Losses, and the planner's figures once a CoC is learned."""
        stage = self.run.stage_at(self._step - 1)[0]
        figures = self._losses_on_unseen(stage)
        if stage.lesson == "coc" and stage.words > 0:
            figures |= score(self._averaged(), self._prompter, self._validation, newest=stage.newest)
        return figures

    def _losses_on_unseen(self, stage: Stage) -> dict[str, float]:
        losses, found = TargetLosses(self._averaged(), self._accelerator.unwrap_model(self._losses).heads), []
        generator, device = torch.Generator().manual_seed(self.run.seed), self._accelerator.device
        for begin in range(0, len(self._validation), stage.batch):
            indices = range(begin, min(begin + stage.batch, len(self._validation)))
            batch = on_device(self._unseen(indices, stage.lesson, stage.newest, stage.weights.needs_sights), device)
            noise = torch.randn(1, *batch.action.shape, generator=generator).to(device)
            moment = flow_time(noise.shape[:2], generator).to(device)
            with torch.no_grad(), self._accelerator.autocast():
                found.append(losses(batch, noise, moment, stage.weights))
        parts = (("words", "right"), ("flow", "path"), ("sight", "seen"), ("motion", "closing"))
        trained = zip((stage.words, stage.flow, stage.sight, stage.motion), parts, strict=True)
        names = [name for weight, part in trained for name in part if weight > 0]
        return {name: float(np.mean([float(getattr(loss, name)) for loss in found])) for name in names}
