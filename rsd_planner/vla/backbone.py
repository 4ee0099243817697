"""The vision-language backbone, driven step by step: encode, prefill, verify, crop.

The layers are transformers' Qwen3-VL; the loop over them is our own, so that the cache is ours, the
pictures can be encoded apart from the prompt, and the input of any layer can be kept.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

from rsd_planner.kv_cache import KeyValueCache
from rsd_planner.vla.vision import ImagePatches


@dataclass(frozen=True)
class VisionFeatures:
    """What the vision tower makes of pictures, in prompt order.

    embeds [visual tokens, D] replace the image placeholders; deepstack holds one [visual tokens, D]
    for each of the first text layers, added to its output.
    """

    embeds: Tensor
    deepstack: list[Tensor]


@dataclass(frozen=True)
class Verification:
    """The target's answer to k tokens: row j speaks of the token after the j-th.

    logits [rows, k, V] raw; hidden maps a layer number to that layer's input [rows, k, D] (the
    number of layers stands for the last one's output, before the final norm).
    """

    logits: Tensor
    hidden: dict[int, Tensor] = field(default_factory=dict)


def run_layers(
    model: Qwen3VLTextModel,
    embeds: Tensor,
    positions: Tensor,
    cache: KeyValueCache | None,
    *,
    mask: Tensor | None = None,
    causal: bool = True,
    visual: Tensor | None = None,
    deepstack: Collection[Tensor] = (),
    keep: Collection[int] = (),
) -> tuple[Tensor, dict[int, Tensor]]:
    """Runs the decoder layers of a Qwen3-VL text model.

    embeds [B, k, D]; positions [3, B, k] (t, h, w); mask is boolean (True = attend), broadcastable
    to [B, heads, k, cache length + k], None for plain causal or full attention; visual [B, k]
    marks the tokens that the deepstack features are added to. Returns the output before the final
    norm [B, k, D] and the inputs of the layers in keep.
    """
    position_embeddings = model.rotary_emb(embeds, positions)
    hidden, kept = embeds, {}
    features = list(deepstack)
    for index, layer in enumerate(model.layers):
        if index in keep:
            kept[index] = hidden
        hidden = layer(
            hidden, position_embeddings=position_embeddings, attention_mask=mask, cache=cache, is_causal=causal
        )
        if index < len(features) and visual is not None:
            hidden = hidden.masked_scatter(visual.unsqueeze(-1), hidden[visual] + features[index].to(hidden.dtype))
    if len(model.layers) in keep:
        kept[len(model.layers)] = hidden
    return hidden, kept


class Context:
    """A prompt and what was decoded after it, as the target sees it: tokens in, logits out.

    Slots in the cache come from the token count; rotary angles from the 3D positions, which after
    the prompt are slot + rope_delta on all three axes.
    """

    def __init__(
        self,
        vlm: Qwen3VLForConditionalGeneration,
        cache: KeyValueCache,
        rope_delta: int,
        last: Verification,
        prompt: tuple[Tensor, Tensor],
    ) -> None:
        self._vlm = vlm
        self.cache = cache
        self.rope_delta = rope_delta
        self.prompt_tokens, self.prompt_positions = prompt
        """[L] and their M-RoPE positions [3, L]."""
        self.last = last
        """The answer to the prompt's last token ([rows, 1, V]; hidden states over the whole prompt)."""

    @property
    def length(self) -> int:
        """Tokens committed so far, the prompt included."""
        return self.cache.length

    @property
    def rows(self) -> int:
        """Sequences decoded side by side."""
        return self.cache.rows

    @torch.inference_mode()
    def verify(self, tokens: Tensor, keep: Collection[int] = ()) -> Verification:
        """Processes tokens [rows, k] after the committed ones and commits them (crop takes them back)."""
        count = tokens.shape[1]
        language = self._vlm.model.language_model
        start = self.length
        steps = torch.arange(start, start + count, device=tokens.device)
        positions = (steps + self.rope_delta).expand(3, self.rows, count)
        mask = None
        if count > 1:
            mask = torch.arange(start + count, device=tokens.device) <= steps.unsqueeze(1)
            mask = mask[None, None]
        hidden, kept = run_layers(language, language.embed_tokens(tokens), positions, self.cache, mask=mask, keep=keep)
        self.cache.advance(count)
        return Verification(self._vlm.lm_head(language.norm(hidden)), kept)

    def crop(self, length: int) -> None:
        """Forgets all tokens from this slot on."""
        self.cache.crop(length)

    def fork(self, rows: int) -> Context:
        """The same context in several rows, for as many samples; the prompt is not processed again."""
        last = Verification(
            self.last.logits.expand(rows, -1, -1),
            {layer: hidden.expand(rows, -1, -1) for layer, hidden in self.last.hidden.items()},
        )
        return Context(
            self._vlm, self.cache.fork(rows), self.rope_delta, last, (self.prompt_tokens, self.prompt_positions)
        )


@torch.inference_mode()
def encode_images(vlm: Qwen3VLForConditionalGeneration, patches: ImagePatches) -> VisionFeatures:
    """Runs the vision tower. A picture's features do not depend on the other pictures."""
    weight = vlm.model.visual.patch_embed.proj.weight
    pixels = patches.pixel_values.to(weight.device, weight.dtype)
    output = vlm.model.visual(pixels, grid_thw=patches.grid_thw.to(weight.device))
    return VisionFeatures(output.pooler_output, list(output.deepstack_features))


def rope_positions(vlm: Qwen3VLForConditionalGeneration, tokens: Tensor, grid_thw: Tensor) -> tuple[Tensor, int]:
    """M-RoPE positions [3, 1, L] of a prompt [1, L] and the delta from slot to position behind it."""
    image = (tokens == vlm.config.image_token_id).int()
    positions, delta = vlm.model.get_rope_index(tokens, mm_token_type_ids=image, image_grid_thw=grid_thw)
    return positions, int(delta)


@torch.inference_mode()
def prefill(
    vlm: Qwen3VLForConditionalGeneration,
    tokens: Tensor,
    features: VisionFeatures,
    grid_thw: Tensor,
    extra: int,
    keep: Collection[int] = (),
) -> Context:
    """Processes prompts [rows, L] of one layout with their pictures and reserves room for `extra` tokens behind it.

    Raises ValueError when the image placeholders do not match the features.
    """
    language = vlm.model.language_model
    text = vlm.config.text_config
    visual = tokens == vlm.config.image_token_id
    if int(visual.sum()) != len(features.embeds):
        raise ValueError(f"the prompt has {int(visual.sum())} image tokens, the pictures give {len(features.embeds)}")
    embeds = language.embed_tokens(tokens)
    embeds = embeds.masked_scatter(visual.unsqueeze(-1), features.embeds.to(embeds.dtype))
    # The prompts' pictures have the same sizes at the same places, so one prompt's positions are all prompts'.
    rows = len(tokens)
    positions, delta = rope_positions(vlm, tokens[:1], grid_thw[: len(grid_thw) // rows].to(tokens.device))
    positions = positions.expand(-1, rows, -1)
    cache = KeyValueCache(
        text.num_hidden_layers,
        rows,
        text.num_key_value_heads,
        tokens.shape[1] + extra,
        text.head_dim,
        embeds.dtype,
        embeds.device,
    )
    hidden, kept = run_layers(
        language, embeds, positions, cache, visual=visual, deepstack=features.deepstack, keep=keep
    )
    cache.advance(tokens.shape[1])
    last = Verification(vlm.lm_head(language.norm(hidden[:, -1:])), kept)
    return Context(vlm, cache, delta, last, (tokens[0], positions[:, 0]))
