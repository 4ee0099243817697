"""Routine reasoners on disk: config.json and model.safetensors."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rsd_planner.reasoning.routine import RoutineConfig, RoutineNetwork

_CONFIG = "config.json"


def save_routine(network: RoutineNetwork, directory: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Writes a network; the weights appear when they are complete."""
    directory.mkdir(parents=True, exist_ok=True)
    told = {name: getattr(value, "value", value) for name, value in dataclasses.asdict(network.config).items()}
    (directory / _CONFIG).write_text(json.dumps(told, indent=1) + "\n")
    tensors = {name: value.detach().to("cpu", dtype).contiguous() for name, value in network.state_dict().items()}
    partial = directory / "model.safetensors.partial"
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.rename(directory / "model.safetensors")


def routine_beside(target: Path) -> Path | None:
    """The routine reasoner of a target: TARGET-routine, if it is there."""
    beside = target.with_name(target.name + "-routine")
    return beside if (beside / _CONFIG).is_file() else None


def load_routine(
    directory: Path, device: str | torch.device = "cpu", dtype: torch.dtype = torch.bfloat16
) -> RoutineNetwork:
    """Reads a network, ready for inference. Raises ValueError that names the file and what is wrong."""
    try:
        told = json.loads((directory / _CONFIG).read_text())
        network = RoutineNetwork(RoutineConfig.named(told.pop("hidden"), told.pop("target_layers"), told))
        network.load_state_dict(load_file(directory / "model.safetensors"))
    except (OSError, KeyError, TypeError, RuntimeError, json.JSONDecodeError, SafetensorError) as error:
        raise ValueError(f"{directory} holds no routine reasoner: {error}") from error
    return network.to(device, dtype).eval().requires_grad_(False)
