"""Training the target: stages of steps, exactly resumable, on Accelerate."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch import Tensor
from torch.optim.swa_utils import AveragedModel
from tqdm import tqdm

from rsd_planner.simulation.cameras import Rig
from rsd_planner.training.curves import FiguresLog, draw_curves
from rsd_planner.training.data_set import rig_of
from rsd_planner.training.losses import Losses, TargetLosses, flow_time
from rsd_planner.training.mini import new_model, save_weights, train_tokenizer, write_skeleton
from rsd_planner.training.recipe import Stage, TargetTraining, batch_indices, learning_rate
from rsd_planner.training.samples import LESSONS, Batch, Collator, Recorded, fitted_action_space, on_device
from rsd_planner.training.scoring import score
from rsd_planner.vla.checkpoint import Checkpoint
from rsd_planner.vla.config import AlpamayoConfig
from rsd_planner.vla.model import Alpamayo
from rsd_planner.vla.prompt import Prompter

_SKELETON, _STATE, _PROGRESS, _TOLD, _RIG = "skeleton", "state", "progress.json", "training.json", "cameras.yaml"


class TargetTrainer:
    """One run in one process of it; the state of a step is everything that the next one depends on."""

    def __init__(self, run: TargetTraining) -> None:
        self.run = run
        self._accelerator = Accelerator(
            mixed_precision=run.precision,
            log_with="tensorboard",
            project_config=ProjectConfiguration(str(run.out), logging_dir=str(run.out / "tensorboard")),
        )
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
        losses = TargetLosses(model)
        optimiser = torch.optim.AdamW(_groups(losses), lr=1e-3, betas=(0.9, 0.95))
        self._losses, self._optimiser = self._accelerator.prepare(losses, optimiser)
        self._average = AveragedModel(self._unwrapped(), avg_fn=self._averaging)
        self._accelerator.register_for_checkpointing(self._average)
        self._step = 0
        self._resume()
        self._figures = FiguresLog(run.out / "figures.jsonl")

    def _averaging(self, average: Tensor, value: Tensor, count: Tensor | int) -> Tensor:
        """An exponential average, over less at first: the random weights are soon forgotten."""
        share = min(self.run.ema, (1.0 + float(count)) / (10.0 + float(count)))
        return average.lerp(value, 1.0 - share)

    def train(self) -> dict[str, float]:
        """Runs to the end, evaluates, writes the checkpoint; returns the last evaluation."""
        run, accelerator = self.run, self._accelerator
        accelerator.init_trackers("target")
        saved = time.monotonic()
        figures: dict[str, float] = {}
        show = accelerator.is_main_process
        with tqdm(total=run.steps, initial=self._step, unit="step", disable=not show, mininterval=5.0) as bar:
            for batch, following in self._batches():
                losses = self._train_step(batch)
                self._step += 1
                bar.update()
                if self._step % 20 == 0:
                    told = {name: float(value.detach()) for name, value in vars(losses).items()}
                    self._log(told)
                    bar.set_postfix({name: f"{value:.3f}" for name, value in told.items()})
                if self._step % run.evaluate_every == 0 or not following:
                    figures = self._evaluate()
                if time.monotonic() - saved > 60.0 * run.save_minutes or not following:
                    self._save()
                    saved = time.monotonic()
        self.write_checkpoint(run.out / "checkpoint", figures)
        accelerator.end_training()
        return figures

    def write_checkpoint(self, directory: Path, figures: dict[str, float]) -> None:
        """The averaged weights in the public layout, with the run and its last figures."""
        if not self._accelerator.is_main_process:
            return
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

    def _batches(self) -> Iterator[tuple[Batch, bool]]:
        """The batches left, each with whether another one follows."""
        steps = range(self._step, self.run.steps)
        # The next batch is made while this one is learned from.
        with ThreadPoolExecutor(1) as ahead:
            coming = ahead.submit(self._batch, steps[0]) if steps else None
            for step in steps:
                assert coming is not None
                batch = coming.result()
                following = step + 1 < self.run.steps
                coming = ahead.submit(self._batch, step + 1) if following else None
                yield batch, following

    def _batch(self, step: int) -> Batch:
        """This process's part of a step's batch."""
        accelerator, stage = self._accelerator, self.run.stage_at(step)[0]
        indices = batch_indices(len(self._recorded), stage.batch * accelerator.num_processes, step, self.run.seed)
        own = indices[accelerator.process_index :: accelerator.num_processes]
        return self._collator(own, stage.lesson, stage.newest, stage.sight > 0)

    def _train_step(self, batch: Batch) -> Losses:
        run, accelerator = self.run, self._accelerator
        stage, within = run.stage_at(self._step)
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate(stage, within)
            group["weight_decay"] = stage.weight_decay if group["decays"] else 0.0
        self._losses.train()
        batch = on_device(batch, accelerator.device)
        # Noise and time are a function of the step (and the process), so that a resumed run is the same run.
        generator = torch.Generator().manual_seed(run.seed + 1_000_003 * self._step + accelerator.process_index)
        noise = torch.randn(stage.draws, *batch.action.shape, generator=generator).to(accelerator.device)
        moment = flow_time(noise.shape[:2], generator).to(accelerator.device)
        with accelerator.autocast():
            losses: Losses = self._losses(batch, noise, moment, stage.weights)
        total = stage.weights.total(losses)
        if not torch.isfinite(total):
            raise ValueError(f"the loss of step {self._step} is not finite; resume with a lower learning_rate")
        accelerator.backward(total)
        accelerator.clip_grad_norm_(self._losses.parameters(), stage.clip)
        self._optimiser.step()
        self._optimiser.zero_grad()
        self._average.update_parameters(self._unwrapped())
        return losses

    def _averaged(self) -> Alpamayo:
        model = self._average.module
        assert isinstance(model, Alpamayo)
        return model

    def _unwrapped(self) -> Alpamayo:
        return self._accelerator.unwrap_model(self._losses).model

    def _evaluate(self) -> dict[str, float]:
        """On validation samples: losses of the averaged weights, and the planner's figures once a CoC is learned."""
        if not self._accelerator.is_main_process:
            return {}
        stage = self.run.stage_at(self._step - 1)[0]
        figures = self._losses_on_unseen(stage)
        if stage.lesson == "coc" and stage.words > 0:
            figures |= score(self._averaged(), self._prompter, self._validation)
        self._log({f"validation/{name}": value for name, value in figures.items()})
        told = "  ".join(f"{name} {value:.3f}" for name, value in figures.items())
        tqdm.write(f"step {self._step}: {told}")
        return figures

    def _log(self, values: dict[str, float]) -> None:
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._accelerator.log(finite, self._step)
        if self._accelerator.is_main_process:
            self._figures.append(self._step, finite)

    def _losses_on_unseen(self, stage: Stage) -> dict[str, float]:
        losses, found = TargetLosses(self._averaged(), self._accelerator.unwrap_model(self._losses).heads), []
        generator = torch.Generator().manual_seed(self.run.seed)
        for begin in range(0, len(self._validation), stage.batch):
            indices = range(begin, min(begin + stage.batch, len(self._validation)))
            batch = self._unseen(indices, stage.lesson, stage.newest, stage.sight > 0)
            batch = on_device(batch, self._accelerator.device)
            noise = torch.randn(1, *batch.action.shape, generator=generator).to(self._accelerator.device)
            moment = flow_time(noise.shape[:2], generator).to(self._accelerator.device)
            with torch.no_grad(), self._accelerator.autocast():
                found.append(losses(batch, noise, moment, stage.weights))
        parts = (("words", "right"), ("flow",), ("sight", "seen"))
        trained = zip((stage.words, stage.flow, stage.sight), parts, strict=True)
        names = [name for weight, part in trained for name in part if weight > 0]
        return {name: float(np.mean([float(getattr(loss, name)) for loss in found])) for name in names}

    # State --------------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Two folders take turns, so that an interruption leaves the last complete state."""
        accelerator = self._accelerator
        progress = self.run.out / _PROGRESS
        last = json.loads(progress.read_text())["state"] if progress.exists() else ""
        name = f"{_STATE}_{'b' if last.endswith('_a') else 'a'}"
        accelerator.save_state(str(self.run.out / name))
        if accelerator.is_main_process:
            partial = progress.with_name(progress.name + ".partial")
            partial.write_text(json.dumps({"step": self._step, "state": name}))
            partial.rename(progress)
        accelerator.wait_for_everyone()

    def _resume(self) -> None:
        progress = self.run.out / _PROGRESS
        if progress.exists():
            told = json.loads(progress.read_text())
            self._accelerator.load_state(str(self.run.out / told["state"]))
            self._step = int(told["step"])


def _groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Weight decay for matrices only."""
    decaying = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    return [{"params": decaying, "decays": True}, {"params": others, "decays": False}]
