"""The model's layers as a CPU trains them fastest: the same numbers as transformers' own classes, in fewer steps.

Pictures of one size attend in one batch and patches are embedded by a product: a call for each picture and a
convolution cost a third of a training step. Attention by plain products, since the fused one's backward pass is slow
for short sequences.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3_vl.modeling_qwen3_vl import (
    Qwen3VLTextAttention,
    Qwen3VLTextRMSNorm,
    Qwen3VLVisionAttention,
    Qwen3VLVisionPatchEmbed,
    apply_rotary_pos_emb_vision,
)

from rsd_planner.vla.model import Alpamayo


class OneSizeAttention(Qwen3VLVisionAttention):
    """Attention inside each picture, all pictures at once if they have one size."""

    def forward(
        self,
        hidden_states: Tensor,
        cu_seqlens: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """hidden_states [patches, D]; cu_seqlens marks the pictures' ends."""
        lengths = torch.diff(cu_seqlens)
        if position_embeddings is None or bool((lengths != lengths[0]).any()):
            return super().forward(hidden_states, cu_seqlens, position_embeddings=position_embeddings, **kwargs)
        patches = hidden_states.shape[0]
        query, key, value = self.qkv(hidden_states).reshape(patches, 3, self.num_heads, -1).unbind(1)
        query, key = apply_rotary_pos_emb_vision(query, key, *position_embeddings)

        def by_picture(tensor: Tensor) -> Tensor:
            return tensor.reshape(len(lengths), int(lengths[0]), self.num_heads, -1).transpose(1, 2)

        weights = by_picture(query) @ by_picture(key).transpose(-1, -2) * self.scaling
        mixed = weights.softmax(dim=-1).to(value.dtype) @ by_picture(value)
        return self.proj(mixed.transpose(1, 2).reshape(patches, -1))


class LinearPatchEmbed(Qwen3VLVisionPatchEmbed):
    """A convolution whose kernel is its stride is a matrix product."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Patches [n, values] -> [n, D]."""
        return F.linear(hidden_states.to(self.proj.weight.dtype), self.proj.weight.flatten(1), self.proj.bias)


class FusedNorm(Qwen3VLTextRMSNorm):
    """The same norm in one kernel."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """In float32, as the weights of a training are."""
        return F.rms_norm(hidden_states.float(), self.weight.shape, self.weight, self.variance_epsilon)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Grouped-query attention by plain products, as transformers calls it; elsewhere than on a CPU its own way."""
    if query.device.type != "cpu":
        own = sdpa_attention_forward(module, query, key, value, attention_mask, 0.0, scaling, is_causal, **kwargs)
        return own[0], None
    rows, heads, length, size = query.shape
    groups, slots = key.shape[1], key.shape[2]
    # Scaled before the product and kept in its type: there are many more scores than queries.
    query = (query * scaling).reshape(rows, groups, -1, size)
    scores = (query @ key.transpose(-1, -2)).view(rows, heads, length, slots)
    if attention_mask is None and is_causal and length > 1:
        attention_mask = torch.ones(length, slots, dtype=torch.bool).tril()
    if attention_mask is not None:
        scores = scores + torch.zeros(attention_mask.shape, dtype=scores.dtype).masked_fill(~attention_mask, -math.inf)
    with torch.autocast("cpu", enabled=False):
        weights = scores.softmax(dim=-1)
    mixed = (weights.view(rows, groups, -1, slots) @ value).view(rows, heads, length, size)
    return mixed.transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register("products", attend)


def for_training(model: Alpamayo) -> None:
    """Makes a model compute this way; its parameters stay."""
    for module in model.modules():
        if type(module) is Qwen3VLVisionAttention:
            module.__class__ = OneSizeAttention
        elif type(module) is Qwen3VLVisionPatchEmbed:
            module.__class__ = LinearPatchEmbed
        elif type(module) is Qwen3VLTextRMSNorm:
            module.__class__ = FusedNorm
        elif isinstance(module, Qwen3VLTextAttention):
            module.config._attn_implementation = "products"
