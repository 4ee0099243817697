"""A loop of training steps: on Accelerate, exactly resumable, with an average of the weights, figures and progress.

The state of a step is everything that the next one depends on; what a step learns from must be a function of its
number.
"""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, ProjectConfiguration
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from tqdm import tqdm

from rsd_planner.training.curves import FiguresLog

_STATE, _PROGRESS = "state", "progress.json"
_Batch = TypeVar("_Batch")


class TrainingLoop(ABC, Generic[_Batch]):
    """What is trained is `losses`, a module around the model; the average is kept of `kept`, a part of it."""

    def __init__(
        self, out: Path, steps: int, precision: str, ema: float, evaluate_every: int, save_minutes: float
    ) -> None:
        self._out, self._steps, self._ema = out, steps, ema
        self._evaluate_every, self._save_minutes = evaluate_every, save_minutes
        self._accelerator = Accelerator(
            mixed_precision=precision,
            log_with="tensorboard",
            project_config=ProjectConfiguration(str(out), logging_dir=str(out / "tensorboard")),
            # A stage may train a part only.
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
        )
        self._figures = FiguresLog(out / "figures.jsonl")
        self._step = 0

    def _prepare(self, losses: nn.Module, kept: str) -> None:
        """Sets up the optimiser and goes on where an earlier process was."""
        optimiser = torch.optim.AdamW(_groups(losses), lr=1e-3, betas=(0.9, 0.95))
        self._losses, self._optimiser = self._accelerator.prepare(losses, optimiser)
        self._kept = kept
        self._average = AveragedModel(self._unaveraged(), avg_fn=self._averaging)
        self._accelerator.register_for_checkpointing(self._average)
        self._resume()

    @abstractmethod
    def _batch(self, step: int) -> _Batch:
        """What this process learns from in a step."""

    @abstractmethod
    def _loss(self, batch: _Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the step that begins, and figures to be shown."""

    @abstractmethod
    def _rate(self) -> tuple[float, float, float]:
        """Learning rate, weight decay and clipping of the step that begins."""

    @abstractmethod
    def _evaluate(self) -> dict[str, float]:
        """Figures of the averaged weights on data that is not learned from."""

    @abstractmethod
    def _write(self, directory: Path, figures: dict[str, float]) -> None:
        """Writes the result."""

    def train(self) -> dict[str, float]:
        """Runs to the end, evaluates, writes OUT/checkpoint; returns the last evaluation."""
        accelerator = self._accelerator
        accelerator.init_trackers("training")
        saved = time.monotonic()
        figures: dict[str, float] = {}
        show = accelerator.is_main_process
        with tqdm(total=self._steps, initial=self._step, unit="step", disable=not show, mininterval=5.0) as bar:
            for batch, following in self._batches():
                told = self._train_step(batch)
                self._step += 1
                bar.update()
                if self._step % 20 == 0:
                    values = {name: float(value.detach()) for name, value in told.items()}
                    self._log(values)
                    bar.set_postfix({name: f"{value:.3f}" for name, value in values.items()})
                if self._step % self._evaluate_every == 0 or not following:
                    figures = self._evaluated()
                if time.monotonic() - saved > 60.0 * self._save_minutes or not following:
                    self._save()
                    saved = time.monotonic()
        if accelerator.is_main_process:
            self._write(self._out / "checkpoint", figures)
        accelerator.end_training()
        return figures

    def _batches(self) -> Iterator[tuple[_Batch, bool]]:
        """The batches left, each with whether another one follows."""
        steps = range(self._step, self._steps)
        # The next batch is made while this one is learned from.
        with ThreadPoolExecutor(1) as ahead:
            coming = ahead.submit(self._batch, steps[0]) if steps else None
            for step in steps:
                assert coming is not None
                batch = coming.result()
                following = step + 1 < self._steps
                coming = ahead.submit(self._batch, step + 1) if following else None
                yield batch, following

    def _train_step(self, batch: _Batch) -> dict[str, Tensor]:
        accelerator = self._accelerator
        rate, decay, clip = self._rate()
        for group in self._optimiser.param_groups:
            group["lr"] = rate
            group["weight_decay"] = decay if group["decays"] else 0.0
        self._losses.train()
        with accelerator.autocast():
            loss, told = self._loss(batch)
        if not torch.isfinite(loss):
            raise ValueError(f"the loss of step {self._step} is not finite; resume with a lower learning_rate")
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(self._losses.parameters(), clip)
        self._optimiser.step()
        self._optimiser.zero_grad()
        self._average.update_parameters(self._unaveraged())
        return told

    def _generator(self, seed: int) -> torch.Generator:
        """Random numbers that are a function of the step and the process: a resumed run is the same run."""
        return torch.Generator().manual_seed(seed + 1_000_003 * self._step + self._accelerator.process_index)

    def _unaveraged(self) -> nn.Module:
        found = getattr(self._accelerator.unwrap_model(self._losses), self._kept)
        assert isinstance(found, nn.Module)
        return found

    def _averaging(self, average: Tensor, value: Tensor, count: Tensor | int) -> Tensor:
        """An exponential average, over less at first: the random weights are soon forgotten."""
        share = min(self._ema, (1.0 + float(count)) / (10.0 + float(count)))
        return average.lerp(value, 1.0 - share)

    def _evaluated(self) -> dict[str, float]:
        if not self._accelerator.is_main_process:
            return {}
        figures = self._evaluate()
        self._log({f"validation/{name}": value for name, value in figures.items()})
        tqdm.write(f"step {self._step}: " + "  ".join(f"{name} {value:.3f}" for name, value in figures.items()))
        return figures

    def _log(self, values: dict[str, float]) -> None:
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._accelerator.log(finite, self._step)
        if self._accelerator.is_main_process:
            self._figures.append(self._step, finite)

    def _save(self) -> None:
        """Two folders take turns, so that an interruption leaves the last complete state."""
        accelerator, progress = self._accelerator, self._out / _PROGRESS
        last = json.loads(progress.read_text())["state"] if progress.exists() else ""
        name = f"{_STATE}_{'b' if last.endswith('_a') else 'a'}"
        accelerator.save_state(str(self._out / name))
        if accelerator.is_main_process:
            partial = progress.with_name(progress.name + ".partial")
            partial.write_text(json.dumps({"step": self._step, "state": name}))
            partial.rename(progress)
        accelerator.wait_for_everyone()

    def _resume(self) -> None:
        progress = self._out / _PROGRESS
        if progress.exists():
            told = json.loads(progress.read_text())
            self._accelerator.load_state(str(self._out / told["state"]))
            self._step = int(told["step"])


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """Weight decay for matrices only."""
    decaying = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    return [{"params": decaying, "decays": True}, {"params": others, "decays": False}]
