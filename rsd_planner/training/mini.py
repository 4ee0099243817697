"""A new, small checkpoint of the public layout: tokenizer, configuration, random weights."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

from rsd_planner.vla.action_space import ActionSpace
from rsd_planner.vla.config import AlpamayoConfig
from rsd_planner.vla.model import Alpamayo
from rsd_planner.vla.prompt import extend_tokenizer

# Qwen's special tokens that the prompts use, in the order of its vocabulary.
_QWEN_TOKENS = ("endoftext", "im_start", "im_end", "vision_start", "vision_end", "image_pad", "video_pad")
_HISTORY_BINS = 768
"""Three axes share the bins of one step, so this is how finely a step of +-4 m is told: 1 cm."""

_EMBEDDING_STD = 0.25


@dataclass(frozen=True)
class TargetShape:
    """Sizes of a target. The expert has the text model's layers, heads and head size, since it reads its cache."""

    vocabulary: int = 1024
    layers: int = 6
    hidden: int = 256
    intermediate: int = 768
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    vision_layers: int = 4
    vision_hidden: int = 144
    vision_intermediate: int = 432
    vision_heads: int = 4
    expert_hidden: int = 256
    expert_intermediate: int = 512
    action_hidden: int = 128
    pixels: int = 160 * 96
    """Area that pictures are resized to (15 tokens of 32 x 32 pixels)."""


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Byte-level BPE trained on texts, with Qwen's and the public model's special tokens behind it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[f"<|{name}|>" for name in _QWEN_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return extend_tokenizer(tokenizer, _HISTORY_BINS)


def write_skeleton(directory: Path, shape: TargetShape, tokenizer: Tokenizer, action_space: ActionSpace) -> None:
    """Configuration and tokenizer of a checkpoint without weights."""
    directory.mkdir(parents=True, exist_ok=True)

    def token(name: str) -> int:
        found = tokenizer.token_to_id(f"<|{name}|>")
        if found is None:
            raise ValueError(f"the tokenizer has no <|{name}|>")
        return int(found)

    tokenizer.save(str(directory / "tokenizer.json"))
    half = shape.head_dim // 2
    side = (half - 12 * half // 32) // 2
    text = {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": tokenizer.get_vocab_size(),
        "rope_scaling": {
            "mrope_interleaved": True,
            "mrope_section": [half - 2 * side, side, side],
            "rope_type": "default",
        },
        "rope_theta": 100000.0,
        "max_position_embeddings": 4096,
    }
    vision = {
        "depth": shape.vision_layers,
        "hidden_size": shape.vision_hidden,
        "intermediate_size": shape.vision_intermediate,
        "num_heads": shape.vision_heads,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": shape.hidden,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": list(range(min(3, shape.vision_layers - 1))),
    }
    backbone = {
        "text_config": text,
        "vision_config": vision,
        "image_token_id": token("image_pad"),
        "video_token_id": token("video_pad"),
        "vision_start_token_id": token("vision_start"),
        "vision_end_token_id": token("vision_end"),
    }
    config: dict[str, Any] = {
        "model_type": "alpamayo_r1",
        "vlm_name_or_path": ".",
        "model_dtype": "bfloat16",
        "vocab_size": tokenizer.get_vocab_size(),
        "traj_token_start_idx": tokenizer.token_to_id("<i0>"),
        "traj_vocab_size": _HISTORY_BINS,
        "traj_tokenizer_cfg": None,
        "hist_traj_tokenizer_cfg": {"ego_xyz_min": [-4, -4, -10], "ego_xyz_max": [4, 4, 10], "num_bins": _HISTORY_BINS},
        "tokens_per_history_traj": 48,
        "tokens_per_future_traj": 128,
        "traj_token_ids": {
            name: token(f"traj_{name}")
            for name in ("history", "future", "history_start", "future_start", "history_end", "future_end")
        },
        "min_pixels": shape.pixels,
        "max_pixels": shape.pixels,
        "diffusion_cfg": {"num_inference_steps": 5},
        "action_space_cfg": {
            "accel_mean": action_space.accel_mean,
            "accel_std": action_space.accel_std,
            "curvature_mean": action_space.curvature_mean,
            "curvature_std": action_space.curvature_std,
        },
        "action_in_proj_cfg": {"num_enc_layers": 2, "hidden_size": shape.action_hidden, "num_fourier_feats": 20},
        "expert_cfg": {"hidden_size": shape.expert_hidden, "intermediate_size": shape.expert_intermediate},
    }
    for name, content in (("config.json", config), ("vlm_config.json", backbone)):
        (directory / name).write_text(json.dumps(content, indent=1) + "\n")


def new_model(directory: Path, seed: int) -> Alpamayo:
    """A model with random float32 weights for a skeleton.

    Products keep the size of what goes in (transformers' 0.02 is meant for thousands of channels; with a few hundred,
    layers would hardly speak at first), what is added to the residual stream is smaller by the number of layers.
    """
    torch.manual_seed(seed)
    model = Alpamayo(AlpamayoConfig.from_directory(directory)).float()
    layers = model.vlm.config.text_config.num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv3d):
            adds = name.endswith(("o_proj", "down_proj", "attn.proj", "mlp.linear_fc2"))
            scale = (2.0 * layers) ** -0.5 if adds else 1.0
            nn.init.normal_(module.weight, std=scale * module.weight[0].numel() ** -0.5)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=_EMBEDDING_STD)
    return model


def save_weights(model: torch.nn.Module, directory: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Writes model.safetensors; it appears when it is complete."""
    tensors = {name: value.detach().to("cpu", dtype).contiguous() for name, value in model.state_dict().items()}
    partial = directory / "model.safetensors.partial"
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.rename(directory / "model.safetensors")
