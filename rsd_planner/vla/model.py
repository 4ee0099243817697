"""The deliberative reasoner: backbone, action expert and what turns a context into a trajectory."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn
from transformers import Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

from rsd_planner.reasoning.target import Prompt, TokenKind
from rsd_planner.vla import flow
from rsd_planner.vla.action_expert import ActionExpert, ActionInProjection
from rsd_planner.vla.backbone import Context, VisionFeatures, encode_images, prefill
from rsd_planner.vla.config import AlpamayoConfig
from rsd_planner.vla.vision import ImagePatches, ImageProcessor


class Alpamayo(nn.Module):
    """A model of the public Alpamayo architecture; parameter names are those of its checkpoints."""

    def __init__(self, config: AlpamayoConfig) -> None:
        super().__init__()
        self.config = config
        self.action_space = config.action_space
        self.vlm = Qwen3VLForConditionalGeneration(config.vlm)
        self.expert = Qwen3VLTextModel(config.expert)
        del self.expert.embed_tokens  # the checkpoint has none: waypoints are embedded by action_in_proj
        self.action_in_proj = ActionInProjection(
            config.expert.hidden_size,
            config.action_hidden_size,
            config.action_encoder_layers,
            config.fourier_features,
            config.fourier_max_frequency,
        )
        self.action_out_proj = nn.Linear(config.expert.hidden_size, 2)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.action_out_proj.weight.device

    @property
    def image_processor(self) -> ImageProcessor:
        """Cuts pictures into patches with this checkpoint's area bounds."""
        vision = self.config.vlm.vision_config
        return ImageProcessor(
            self.config.min_pixels,
            self.config.max_pixels,
            vision.patch_size,
            vision.spatial_merge_size,
            vision.temporal_patch_size,
        )

    @property
    def masked_tokens(self) -> tuple[int, int]:
        """Range [first, end) of the trajectory bins, which are never generated."""
        start = self.config.trajectory_token_start
        return start, start + self.config.trajectory_vocab_size

    def encode_images(self, patches: ImagePatches) -> VisionFeatures:
        """Vision features of pictures in prompt order."""
        return encode_images(self.vlm, patches)

    def prefill(
        self,
        prompt: Tensor,
        features: VisionFeatures,
        grid_thw: Tensor,
        extra: int,
        keep: Collection[int] = (),
    ) -> Context:
        """Processes prompts [rows, L] of one layout; leaves room for `extra` generated tokens and for the waypoints.

        keep names the layers whose inputs are returned with the logits, see Verification.
        """
        room = extra + self.action_space.waypoints
        return prefill(self.vlm, prompt.to(self.device), features, grid_thw, room, keep)

    def prompt_of(self, context: Context) -> Prompt:
        """What a draft may know of a context's prompt."""
        tokens = context.prompt_tokens
        start, end = self.masked_tokens
        kinds = torch.full_like(tokens, TokenKind.TEXT)
        kinds[tokens == self.vlm.config.image_token_id] = TokenKind.VISUAL
        kinds[(tokens >= start) & (tokens < end)] = TokenKind.HISTORY
        return Prompt(tokens, kinds, context.prompt_positions, context.rope_delta)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., D] of tokens."""
        return self.vlm.model.language_model.embed_tokens(tokens)

    def head(self, states: Tensor) -> Tensor:
        """Logits [..., V] of normed states [..., D]."""
        return self.vlm.lm_head(states)

    def velocity(
        self, context: Context, valid: Tensor | None = None, first_position: Tensor | None = None
    ) -> ActionExpert:
        """The expert's velocity field after a context.

        valid [rows]: tokens of each row that count, by default all committed ones; first_position
        [rows]: M-RoPE position of the first waypoint, by default the one after the valid tokens.
        """
        if valid is None:
            valid = torch.full((context.rows,), context.length)
        if first_position is None:
            first_position = valid + context.rope_delta
        return ActionExpert(
            self.expert,
            self.action_in_proj,
            self.action_out_proj,
            context,
            self.action_space.waypoints,
            valid,
            first_position,
        )

    @torch.inference_mode()
    def sample_action(self, velocity: flow.Velocity, noise: Tensor, steps: int | None = None) -> Tensor:
        """Normalised actions [rows, N, 2] that the flow makes of noise [rows, N, 2]."""
        return flow.integrate(velocity, noise.to(self.device), steps or self.config.flow_steps)[:, -1]
