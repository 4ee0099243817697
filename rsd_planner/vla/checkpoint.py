"""Checkpoint directories: what they hold, whether they fit, and the model loaded from them.

Only safetensors are read, memory-mapped, one tensor at a time straight to its device and type.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import init_empty_weights
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rsd_planner.vla.config import AlpamayoConfig, CheckpointError, read_json
from rsd_planner.vla.model import Alpamayo

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_MAX_LISTED = 12

# Buffers that version R1 saves and 1.5 does not. Where present they win over the configuration.
_FREQUENCY_KEYS = (
    "action_in_proj.sinus.0.freqs",
    "action_in_proj.sinus.1.freqs",
    "action_in_proj.timestep_fourier_encoder.freqs",
)
_STATISTIC_KEYS = tuple(
    f"action_space.{name}" for name in ("accel_mean", "accel_std", "curvature_mean", "curvature_std")
)
_OPTIONAL_KEYS = frozenset(_FREQUENCY_KEYS + _STATISTIC_KEYS)

_TYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "U8": 1}


@dataclass(frozen=True)
class TensorEntry:
    """A tensor as its file's header describes it."""

    file: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * _TYPE_BYTES.get(self.dtype, 1)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint directory whose headers were read; no weight is in memory yet."""

    directory: Path
    config: AlpamayoConfig
    tensors: dict[str, TensorEntry]

    @classmethod
    def open(cls, directory: str | Path) -> Checkpoint:
        """Reads configuration and headers. Raises CheckpointError that names the file or tensor."""
        path = Path(directory)
        if not path.is_dir():
            raise CheckpointError(f"{path} is not a directory")
        if not any(path.iterdir()):
            raise CheckpointError(f"{path} is empty; it should hold config.json and {_SINGLE} or {_INDEX}")
        config = AlpamayoConfig.from_directory(path)
        tensors: dict[str, TensorEntry] = {}
        for file in _weight_files(path):
            tensors.update(_read_header(file))
        return cls(path, config, tensors)

    def load(self, device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> Alpamayo:
        """The model with these weights, ready for inference.

        dtype defaults to the checkpoint's own. Raises CheckpointError as check does.
        """
        dtype = dtype or dtype_named(self.config.dtype)
        model = self.check()
        state: dict[str, Tensor] = {}
        optional: dict[str, Tensor] = {}
        for file in sorted({entry.file for entry in self.tensors.values()}):
            with safe_open(file, framework="pt", device=str(device)) as reader:
                for name, entry in self.tensors.items():
                    if entry.file != file:
                        continue
                    tensor = reader.get_tensor(name)
                    (optional if name in _OPTIONAL_KEYS else state)[name] = tensor.to(dtype)
        model.load_state_dict(state, strict=True, assign=True)
        _set_constants(model, optional, dtype)
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))
        return model.eval().requires_grad_(False)

    def check(self) -> Alpamayo:
        """The model without memory for its weights, which the files' headers fit.

        Raises CheckpointError that lists all missing, unexpected and wrongly shaped tensors.
        """
        with init_empty_weights(include_buffers=False):
            model = Alpamayo(self.config)
        expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        found = {name: entry.shape for name, entry in self.tensors.items() if name not in _OPTIONAL_KEYS}
        problems = [f"missing {name} {list(shape)}" for name, shape in expected.items() if name not in found]
        problems += [f"unexpected {name} {list(shape)}" for name, shape in found.items() if name not in expected]
        problems += [
            f"{name} is {list(found[name])}, the configuration asks for {list(shape)}"
            for name, shape in expected.items()
            if name in found and found[name] != shape
        ]
        if problems:
            raise CheckpointError(f"{self.directory} does not fit its configuration: {_listed(problems)}")
        return model

    def describe(self) -> str:
        """What the checkpoint holds, its size and the memory it needs, as text for a person."""
        text, vision = self.config.vlm.text_config, self.config.vlm.vision_config
        expert = self.config.expert
        groups: Counter[str] = Counter()
        for name, entry in self.tensors.items():
            groups[_component(name)] += math.prod(entry.shape)
        parameters = sum(groups.values())
        types = Counter(entry.dtype for entry in self.tensors.values())
        size = sum(entry.size for entry in self.tensors.values())
        cache_values = 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim
        width = dtype_named(self.config.dtype).itemsize
        lines = [
            f"{self.directory}: {self.config.model_type}, {parameters / 1e6:,.2f} M parameters",
            *(f"  {name:<22}{count / 1e6:12,.2f} M" for name, count in groups.most_common()),
            f"text    {text.num_hidden_layers} layers of {text.hidden_size}, {text.num_attention_heads} heads "
            f"({text.num_key_value_heads} key/value) of {text.head_dim}, vocabulary {self.config.vocab_size}",
            f"vision  {vision.depth} layers of {vision.hidden_size}, images of {self.config.min_pixels} to "
            f"{self.config.max_pixels} pixels, {self.config.image_multiple} x {self.config.image_multiple} a token",
            f"expert  {expert.num_hidden_layers} layers of {expert.hidden_size}, {self.config.action_space.waypoints} "
            f"waypoints at {self.config.action_space.dt_s} s, {self.config.flow_steps} flow steps",
            f"files   {len({entry.file for entry in self.tensors.values()})} safetensors, {size / 1e6:,.1f} MB, "
            + ", ".join(f"{count} x {name}" for name, count in types.most_common()),
            f"memory  {parameters * width / 1e6:,.1f} MB of weights as {self.config.dtype} "
            f"({parameters * 4 / 1e6:,.1f} MB as float32), {cache_values * width * 1000 / 1e6:,.2f} MB of cache "
            "per 1,000 tokens and sample",
        ]
        return "\n".join(lines)


def dtype_named(name: str) -> torch.dtype:
    """The torch type of a name such as bfloat16. Raises ValueError for anything but a float type."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"{name!r} is no floating-point type; try bfloat16 or float32")
    return dtype


def _weight_files(directory: Path) -> list[Path]:
    index = directory / _INDEX
    if not index.exists():
        if not (directory / _SINGLE).exists():
            raise CheckpointError(f"{directory} has neither {_SINGLE} nor {_INDEX}")
        return [directory / _SINGLE]
    names = sorted(set(read_json(index).get("weight_map", {}).values()))
    if not names:
        raise CheckpointError(f"{index} names no file in its weight_map")
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise CheckpointError(f"{index} names files outside the checkpoint: {_listed(outside)}")
    missing = [name for name in names if not (directory / name).exists()]
    if missing:
        raise CheckpointError(f"{index} names files that are missing: {_listed(missing)}")
    return [directory / name for name in names]


def _read_header(file: Path) -> dict[str, TensorEntry]:
    try:
        with safe_open(file, framework="pt") as reader:
            slices = {name: reader.get_slice(name) for name in reader.keys()}  # noqa: SIM118 (not a dict)
            return {name: TensorEntry(file, tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is not a readable safetensors file: {error}") from error


def _set_constants(model: Alpamayo, saved: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Fourier frequencies and action statistics, rounded to the model's type as the public model's are."""
    frequencies = model.action_in_proj.frequencies
    rows = [saved.get(key, frequencies[row]).flatten().cpu() for row, key in enumerate(_FREQUENCY_KEYS)]
    model.action_in_proj.frequencies = torch.stack([row.to(dtype).float() for row in rows])
    space = model.action_space
    for key in _STATISTIC_KEYS:
        name = key.rsplit(".", 1)[-1]
        value = saved.get(key, torch.tensor(getattr(model.action_space, name)))
        # A float32 model keeps the configuration's digits where nothing was saved.
        if key in saved or dtype != torch.float32:
            space = dataclasses.replace(space, **{name: float(value.to(dtype))})  # type: ignore[arg-type]
    model.action_space = space


def _component(name: str) -> str:
    if name.startswith("vlm.model.visual"):
        return "vision tower"
    if name.startswith(("vlm.model.language_model.embed_tokens", "vlm.lm_head")):
        return "embedding and head"
    if name.startswith("vlm."):
        return "language model"
    return "action expert"


def _listed(items: list[str]) -> str:
    more = f" and {len(items) - _MAX_LISTED} more" if len(items) > _MAX_LISTED else ""
    return "; ".join(items[:_MAX_LISTED]) + more
