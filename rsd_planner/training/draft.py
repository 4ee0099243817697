"""Distilling the routine reasoner from a target's own chains of causation."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from rsd_planner.evaluation.results import write_json
from rsd_planner.reasoning.routine import RoutineConfig, RoutineNetwork
from rsd_planner.reasoning.routine_checkpoint import load_routine, save_routine
from rsd_planner.training.draft_data import Chains, write_chains
from rsd_planner.training.draft_losses import DraftBatch, DraftLosses, DraftWeights
from rsd_planner.training.loop import TrainingLoop
from rsd_planner.training.recipe import Stage, batch_indices, folder, folders, learning_rate
from rsd_planner.vla.checkpoint import Checkpoint


@dataclass(frozen=True)
class DraftTraining:
    """A distillation, as config/train/draft.yaml holds it.

    target: checkpoint; train, validation: one or more folders of shards; draft: entries of RoutineConfig that differ
    (its width is the target's); sampled: share of the training chains that are drawn as a planner draws them, not
    greedy; blocks: blocks of each chain in a step, the first at its beginning, the others at random places; pixels:
    area that pictures are resized to, if it is to differ from the checkpoint's (for studies of the number of visual
    tokens); initial: a routine reasoner whose weights it starts from, as when its target has been trained on.
    """

    target: Path
    train: tuple[Path, ...]
    validation: tuple[Path, ...]
    out: Path
    initial: Path | None = None
    pixels: int | None = None
    samples: int = 3000
    sampled: float = 0.5
    validation_samples: int = 200
    target_layers: tuple[int, ...] = (2, 4, 6)
    draft: dict[str, Any] = field(default_factory=dict)
    weights: DraftWeights = field(default_factory=DraftWeights)
    steps: int = 3000
    batch: int = 16
    blocks: int = 4
    learning_rate: float = 1e-3
    warm_up: int = 100
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    ema: float = 0.995
    precision: str = "no"
    evaluate_every: int = 500
    save_minutes: float = 4.0

    @classmethod
    def from_yaml(cls, path: Path, overrides: dict[str, Any] | None = None) -> DraftTraining:
        """Reads a distillation. Raises ValueError that names file and key."""
        try:
            content = yaml.safe_load(path.read_text()) | (overrides or {})
            target, out = (folder(content.pop(name)) for name in ("target", "out"))
            train, validation = (folders(content.pop(name)) for name in ("train", "validation"))
            if content.get("initial"):
                content["initial"] = folder(content["initial"])
            if "target_layers" in content:
                content["target_layers"] = tuple(content["target_layers"])
            weights = DraftWeights(**content.pop("weights", {}))
            return cls(target, train, validation, out, weights=weights, **content)
        except (OSError, TypeError, KeyError, yaml.YAMLError) as error:
            raise ValueError(f"{path}: {error}") from error


class DraftTrainer(TrainingLoop[DraftBatch]):
    """One distillation in one process of it; writes the target's chains first where they are missing."""

    def __init__(self, run: DraftTraining) -> None:
        super().__init__(run.out, run.steps, run.precision, run.ema, run.evaluate_every, run.save_minutes)
        self.run = run
        chains = run.out.parent / "chains"
        if self._accelerator.is_main_process:
            for name, data, samples, sampled in (
                ("train", run.train, run.samples, run.sampled),
                ("validation", run.validation, run.validation_samples, 0.0),
            ):
                write_chains(
                    run.target, data, chains / name, run.target_layers, samples, pixels=run.pixels, sampled=sampled
                )
        self._accelerator.wait_for_everyone()
        self._chains, self._unseen = Chains(chains / "train"), Chains(chains / "validation")
        self._target = Checkpoint.open(run.target).load(self._accelerator.device, torch.float32).requires_grad_(False)
        hidden = self._target.vlm.config.text_config.hidden_size
        torch.manual_seed(run.seed)
        network = RoutineNetwork(RoutineConfig.named(hidden, run.target_layers, run.draft))
        if run.initial is not None:
            network.load_state_dict(load_routine(run.initial).state_dict())
        self._prepare(DraftLosses(network, self._target.embed, self._target.head), kept="network")

    def _batch(self, step: int) -> DraftBatch:
        accelerator = self._accelerator
        indices = batch_indices(len(self._chains), self.run.batch * accelerator.num_processes, step, self.run.seed)
        return self._chains.batch(indices[accelerator.process_index :: accelerator.num_processes])

    def _rate(self) -> tuple[float, float, float]:
        run = self.run
        stage = Stage("draft", run.steps, run.learning_rate, warm_up=run.warm_up)
        return learning_rate(stage, self._step), run.weight_decay, run.clip

    def _loss(self, batch: DraftBatch) -> tuple[Tensor, dict[str, Tensor]]:
        generator = self._generator(self.run.seed)
        # A block begins where something is left to be drafted behind its first token.
        most = (batch.lengths - 1).clamp_min(1)
        drawn = torch.rand(len(batch.lengths), self.run.blocks, generator=generator)
        starts = (drawn * most[:, None]).long()
        starts[:, 0] = 0  # where most rounds begin
        device = self._accelerator.device
        figures = self._losses(batch.on(device), starts.to(device), self.run.weights)
        return figures.loss, {"loss": figures.loss, "accepted": figures.accepted}

    def _evaluate(self) -> dict[str, float]:
        network = self._average.module
        assert isinstance(network, RoutineNetwork)
        return accepted_length(DraftLosses(network, self._target.embed, self._target.head), self._unseen)

    def _write(self, directory: Path, figures: dict[str, float]) -> None:
        network = self._average.module
        assert isinstance(network, RoutineNetwork)
        save_routine(network, directory)
        told = {"steps": self._step, "samples": len(self._chains), "run": dataclasses.asdict(self.run)}
        write_json(directory / "training.json", json.loads(json.dumps(told | {"figures": figures}, default=str)))


@torch.no_grad()
def accepted_length(losses: DraftLosses, chains: Chains, rows: int = 16) -> dict[str, float]:
    """What greedy speculative decoding of the kept chains gives: committed tokens / rounds, and the routine share.

    Every chain's blocks from every place are drafted in one pass; the rounds then follow from how much of each stands.
    """
    committed = rounds = drafted_right = 0
    for begin in range(0, len(chains), rows):
        batch = chains.batch(range(begin, min(begin + rows, len(chains))))
        longest = int(batch.lengths.max())
        starts = torch.arange(longest).expand(len(batch.lengths), -1)
        stands = losses.standing(batch, starts)
        for row, length in enumerate(batch.lengths.tolist()):
            place = 0
            while place < length:
                accepted = int(stands[row, place])
                rounds += 1
                committed += 1 + accepted
                drafted_right += accepted
                place += 1 + accepted
    return {"accepted_length": committed / rounds, "routine_share": drafted_right / committed}
