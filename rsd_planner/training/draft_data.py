"""What a draft learns from: the target's own chains of causation with its hidden states, written once and kept."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from rsd_planner.evaluation.results import write_json
from rsd_planner.reasoning.decoding import Ending, decode_autoregressively
from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.training.draft_losses import DraftBatch
from rsd_planner.training.samples import Collator, Recorded
from rsd_planner.vla.checkpoint import Checkpoint
from rsd_planner.vla.prompt import Prompter
from rsd_planner.vla.vision import ImagePatches

_SHARD, _ROWS, _META = 64, 8, "meta.json"


def write_chains(
    target: Path,
    data: Sequence[Path],
    out: Path,
    layers: Sequence[int],
    samples: int,
    budget: int = 48,
    pixels: int | None = None,
    sampled: float = 0.0,
) -> None:
    """Lets the target reason about recorded samples and keeps chains and layer inputs in shards.

    sampled: share of the chains that are drawn as a planner draws them by default; the others are greedy. pixels: area
    that pictures are resized to, if it is to differ from the checkpoint's. Shards that are there are kept.
    Raises ValueError if out was written for another target or other layers.
    """
    checkpoint = Checkpoint.open(target)
    out.mkdir(parents=True, exist_ok=True)
    meta = {"target": _fingerprint(checkpoint), "layers": list(layers), "samples": samples, "budget": budget}
    meta |= {"pixels": pixels} if pixels is not None else {}
    meta |= {"sampled": sampled} if sampled else {}
    known = out / _META
    if known.exists():
        before = json.loads(known.read_text())
        if {name: before.get(name) for name in meta} != meta:
            raise ValueError(f"{out} holds chains of another target, of other layers or another number; remove it")
    model = checkpoint.load()
    if pixels is not None:
        model.config = dataclasses.replace(model.config, min_pixels=pixels, max_pixels=pixels)
    prompter = Prompter.from_directory(target, checkpoint.config)
    recorded = Recorded(*data).spread(samples)
    collator = Collator(recorded, model, prompter)
    ending = Ending(model.config.future_start_token, prompter.token_id("im_end"), prompter.token_id("cot_end"))
    greedy, drawn = Sampling(greedy=True, masked=model.masked_tokens), Sampling(masked=model.masked_tokens)
    for begin in tqdm(range(0, len(recorded), _SHARD), unit="shard", desc=out.name):
        path = out / f"{begin:06d}.safetensors"
        if path.exists() and known.exists():
            continue
        parts = []
        for first in range(begin, min(begin + _SHARD, len(recorded)), _ROWS):
            batch = collator(range(first, min(first + _ROWS, begin + _SHARD, len(recorded))))
            prompts = batch.tokens[:, : batch.prompt_length].to(model.device)
            features = model.encode_images(ImagePatches(batch.pixels, batch.grid))
            context = model.prefill(prompts, features, batch.grid, extra=budget + 2, keep=layers)
            number = first // _ROWS
            draws = int((number + 1) * sampled) > int(number * sampled)
            rows = decode_autoregressively(context, drawn if draws else greedy, ending, budget, first_row=first)
            longest = max(len(row.tokens) for row in rows)
            chain = torch.full((len(rows), budget + 2), ending.future_start)
            for index, row in enumerate(rows):
                chain[index, : len(row.tokens)] = torch.tensor(row.tokens)
            context.crop(batch.prompt_length)
            said = context.verify(chain[:, :longest].to(model.device), keep=layers)
            part = {"chain": chain, "lengths": torch.tensor([len(row.tokens) for row in rows])}
            for layer in layers:
                after = said.hidden[layer]
                padding = after.new_zeros(len(rows), budget + 2 - longest, after.shape[-1])
                whole = torch.cat([context.last.hidden[layer], after, padding], dim=1)
                part[f"hidden.{layer}"] = whole.to("cpu", torch.bfloat16)
            parts.append(part)
            if not known.exists():
                prompt = model.prompt_of(context)
                write_json(
                    known,
                    {
                        **meta,
                        "kinds": prompt.kinds.tolist(),
                        "positions": prompt.positions.tolist(),
                        "delta": prompt.delta,
                    },
                )
        joined = {name: torch.cat([part[name] for part in parts]).contiguous() for name in parts[0]}
        partial = path.with_name(path.name + ".partial")
        save_file(joined, partial)
        partial.rename(path)


def _fingerprint(checkpoint: Checkpoint) -> str:
    """Tells one target's weights from another's."""
    digest = hashlib.sha256()
    for file in sorted({entry.file for entry in checkpoint.tensors.values()}):
        digest.update(f"{file.name} {file.stat().st_size}".encode())
        with file.open("rb") as content:
            digest.update(content.read(1 << 22))
    return digest.hexdigest()


class Chains:
    """A folder of `write_chains`, read shard by shard as batches ask for it."""

    def __init__(self, directory: Path) -> None:
        self.meta: dict[str, Any] = json.loads((directory / _META).read_text())
        self._shards = sorted(directory.glob("*.safetensors"))
        if not self._shards:
            raise ValueError(f"{directory} holds no chains (*.safetensors)")
        self.layers: tuple[int, ...] = tuple(self.meta["layers"])
        self._places = []
        for number, shard in enumerate(self._shards):
            with safe_open(shard, framework="pt") as reader:
                count = reader.get_slice("lengths").get_shape()[0]
            self._places += [(number, row) for row in range(count)]

    def __len__(self) -> int:
        return len(self._places)

    def batch(self, indices: Sequence[int]) -> DraftBatch:
        """These samples."""
        rows: dict[str, list[Tensor]] = {}
        for index in indices:
            number, row = self._places[index]
            with safe_open(self._shards[number], framework="pt") as reader:
                for name in reader.keys():  # noqa: SIM118 (not a dict)
                    rows.setdefault(name, []).append(reader.get_slice(name)[row : row + 1])
        joined = {name: torch.cat(parts) for name, parts in rows.items()}
        return DraftBatch(
            hidden={layer: joined[f"hidden.{layer}"].float() for layer in self.layers},
            kinds=torch.tensor(self.meta["kinds"]).expand(len(indices), -1),
            positions=torch.tensor(self.meta["positions"]),
            delta=int(self.meta["delta"]),
            chain=joined["chain"],
            lengths=joined["lengths"],
        )
