"""What the target is trained on: the words of the chain of causation, and the velocity of the action's flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rsd_planner.training.cpu import for_training
from rsd_planner.training.samples import IGNORED, Batch
from rsd_planner.training.sight import MotionHead, SightHeads
from rsd_planner.vla.action_expert import ActionExpert
from rsd_planner.vla.action_space import ActionSpace
from rsd_planner.vla.backbone import rope_positions, run_layers
from rsd_planner.vla.model import Alpamayo


@dataclass
class _GrowingCache:
    """Keys and values as the layers give them, with gradients; what is read later does not change what is stored."""

    stored: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    frozen: bool = False

    def update(self, keys: Tensor, values: Tensor, layer: int, **_: object) -> tuple[Tensor, Tensor]:
        """As transformers' attention calls it: stores at first, later appends to what is stored."""
        if not self.frozen:
            self.stored[layer] = (keys, values)
            return keys, values
        stored_keys, stored_values = self.stored[layer]
        return torch.cat([stored_keys, keys], dim=2), torch.cat([stored_values, values], dim=2)

    @property
    def keys(self) -> Tensor:
        """Of the first layer."""
        return self.stored[0][0]


@dataclass(frozen=True)
class _Context:
    """What the action expert needs of a context."""

    cache: _GrowingCache
    length: int
    rows: int


@dataclass(frozen=True)
class Losses:
    """words: mean cross-entropy over the tokens to be said; flow: mean squared error of the velocity; path: see
    path_error; sight and motion: see training.sight. right: share of the words, seen: of the things, whose most
    probable value is the true one; closing: mean error of how fast things come nearer (m/s).
    """

    words: Tensor
    flow: Tensor
    path: Tensor
    sight: Tensor
    motion: Tensor
    right: Tensor
    seen: Tensor
    closing: Tensor


@dataclass(frozen=True)
class Weights:
    """What a step trains and how much each part counts; detach keeps the flow's gradient out of the backbone."""

    words: float = 1.0
    flow: float = 0.0
    path: float = 0.0
    sight: float = 0.0
    motion: float = 0.0
    detach: bool = True

    @property
    def needs_sights(self) -> bool:
        """Whether what the pictures show must be known."""
        return self.sight > 0 or self.motion > 0

    def total(self, losses: Losses) -> Tensor:
        """The loss to be lowered."""
        parts = ("words", "flow", "path", "sight", "motion")
        return sum((getattr(self, part) * getattr(losses, part) for part in parts), losses.words.new_zeros(()))


class TargetLosses(nn.Module):
    """A model with its losses, so that a wrapper (FSDP, DDP) sees one forward."""

    def __init__(self, model: Alpamayo, heads: nn.ModuleDict | None = None) -> None:
        super().__init__()
        for_training(model)
        self.model = model
        config = model.vlm.config.vision_config
        self.heads = heads or nn.ModuleDict(
            {
                "sight": SightHeads(1 + len(config.deepstack_visual_indexes), config.out_hidden_size),
                "motion": MotionHead(config.out_hidden_size),
            }
        )
        # Motion is asked for where two thirds of the text layers have seen the pictures: the rest can still use it.
        self._space = model.action_space
        self._moves = 2 * model.vlm.config.text_config.num_hidden_layers // 3

    def forward(self, batch: Batch, noise: Tensor, time: Tensor, weights: Weights) -> Losses:
        """noise [K, B, N, 2] and time [K, B] of K draws of the flow (0 noise, 1 data) after one context.

        A part of weight 0 is neither trained nor computed, but for words and path where there is a flow.
        """
        nothing = torch.zeros((), device=batch.tokens.device)
        words, flow, path, sight, motion, right, seen, closing = (nothing,) * 8
        reaches_back = weights.words > 0 or weights.motion > 0 or (weights.flow > 0 and not weights.detach)
        with torch.set_grad_enabled(torch.is_grad_enabled() and (reaches_back or weights.sight > 0)):
            vision = self.model.vlm.model.visual(batch.pixels, grid_thw=batch.grid)
        if weights.sight > 0 and batch.sights is not None:
            levels = [self._newest(level, batch) for level in (vision.pooler_output, *vision.deepstack_features)]
            sight, seen = self.heads["sight"](levels, batch.sights)
        if weights.words > 0 or weights.flow > 0 or weights.motion > 0:
            with torch.set_grad_enabled(torch.is_grad_enabled() and reaches_back):
                hidden, tokens, cache, delta = self._backbone(batch, vision)
                words, right = self._words(hidden, batch)
                if weights.motion > 0 and batch.sights is not None:
                    motion, closing = self.heads["motion"](self._newest(tokens, batch), batch.sights)
            if weights.flow > 0:
                if weights.detach:
                    cache.stored = {layer: (k.detach(), v.detach()) for layer, (k, v) in cache.stored.items()}
                draws = zip(noise, time, strict=True)
                flow, path = torch.stack([self._flow(cache, batch, delta, *draw) for draw in draws]).mean(dim=0)
        return Losses(words, flow, path, sight, motion, right, seen, closing)

    @staticmethod
    def _newest(level: Tensor, batch: Batch) -> Tensor:
        """Tokens of the newest picture of each camera [B, cameras, tokens, D]."""
        assert batch.sights is not None
        samples, cameras, tokens, _ = batch.sights.thing.shape
        return level.view(samples, cameras, -1, tokens, level.shape[-1])[:, :, -1]

    def _backbone(self, batch: Batch, vision: Any) -> tuple[Tensor, Tensor, _GrowingCache, int]:
        """Output of the last layer, visual tokens [B * visual, D] where motion is asked for, cache, rope delta."""
        vlm = self.model.vlm
        language = vlm.model.language_model
        visual = batch.tokens == vlm.config.image_token_id
        embeds = language.embed_tokens(batch.tokens)
        embeds = embeds.masked_scatter(visual.unsqueeze(-1), vision.pooler_output.to(embeds.dtype))
        rows, length = batch.tokens.shape
        # One prompt's positions are all prompts': only history bins differ.
        prompt = batch.tokens[:1, : batch.prompt_length]
        positions, delta = rope_positions(vlm, prompt, batch.grid[: len(batch.grid) // rows])
        after = torch.arange(batch.prompt_length, length, device=prompt.device) + delta
        positions = torch.cat([positions, after.expand(3, 1, -1)], dim=2).expand(3, rows, length)
        cache = _GrowingCache()
        hidden, kept = run_layers(
            language,
            embeds,
            positions,
            cache,  # type: ignore[arg-type]
            visual=visual,
            deepstack=list(vision.deepstack_features),
            keep=(self._moves,),
        )
        return hidden, kept[self._moves][visual], cache, delta

    def _words(self, hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        vlm = self.model.vlm
        first = batch.prompt_length - 1
        logits = vlm.lm_head(vlm.model.language_model.norm(hidden[:, first:-1])).float()
        labels = batch.labels[:, first + 1 :]
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        known = labels != IGNORED
        return loss, (logits.argmax(-1) == labels)[known].float().mean()

    def _flow(self, cache: _GrowingCache, batch: Batch, delta: int, noise: Tensor, time: Tensor) -> Tensor:
        cache.frozen = True
        rows, length = batch.tokens.shape
        expert = ActionExpert(
            self.model.expert,
            self.model.action_in_proj,
            self.model.action_out_proj,
            _Context(cache, length, rows),  # type: ignore[arg-type]
            self.model.action_space.waypoints,
            batch.lengths,
            batch.lengths + delta,
        )
        share = time[:, None, None]
        mixed = share * batch.action + (1.0 - share) * noise
        error = expert(mixed, time).float() - (batch.action - noise)
        return torch.stack([error.square().mean(), path_error((1.0 - share) * error, batch.speed, self._space)])


def path_error(error: Tensor, speed_mps: Tensor, space: ActionSpace) -> Tensor:
    """How far a path goes astray by an error of its normalised actions [B, N, 2], to first order, about speeds [B, N].

    The mean over waypoints of the smooth (within 1 m: squared) errors ahead and to the left (m) and of the speed
    (m/s). Errors of single actions cancel or add up on the way; the squared error of the velocity does not know which.
    """
    dt = space.dt_s
    speed = dt * (error[..., 0] * space.accel_std).cumsum(-1)
    ahead = dt * speed.cumsum(-1)
    heading = dt * (error[..., 1] * space.curvature_std * speed_mps).cumsum(-1)
    aside = dt * (heading * speed_mps).cumsum(-1)
    return torch.stack([F.smooth_l1_loss(part, torch.zeros_like(part)) for part in (speed, ahead, aside)]).sum()


def flow_time(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Times of this shape of the flow in training: 0.999 (1 - Beta(1.5, 1)), as the public recipe draws them."""
    # The inverse of Beta(a, 1)'s distribution function is u^(1 / a).
    return 0.999 * (1.0 - torch.rand(tuple(shape), generator=generator) ** (1.0 / 1.5))
