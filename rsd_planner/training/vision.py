"""The vision tower in training: pictures of one size attend in one batch, and patches are embedded by a product.

The same numbers as transformers' own classes; their way (a call for each picture, a convolution) costs a third of a
training step on a CPU, where the fused attention's backward pass is slow for short sequences.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.qwen3_vl.modeling_qwen3_vl import (
    Qwen3VLVisionAttention,
    Qwen3VLVisionPatchEmbed,
    apply_rotary_pos_emb_vision,
)


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


def for_training(visual: nn.Module) -> None:
    """Makes a vision tower use these classes; its parameters stay."""
    for module in visual.modules():
        if type(module) is Qwen3VLVisionAttention:
            module.__class__ = OneSizeAttention
        elif type(module) is Qwen3VLVisionPatchEmbed:
            module.__class__ = LinearPatchEmbed
