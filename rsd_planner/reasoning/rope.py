"""Rotary positions of a draft: FlatRoPE, and the others that it is compared with.

Every token has a position on three axes (t, h, w), as in the target's M-RoPE; the schemes differ in what stands there.
"""

from __future__ import annotations

import enum

import torch
from torch import Tensor

from rsd_planner.reasoning.target import Prompt


class Positions(enum.Enum):
    """What a token's rotary position is."""

    FLAT = "flat"
    """FlatRoPE: its number in the whole sequence, visual tokens counted, on all channels."""
    MROPE = "mrope"
    """The target's own: time, row and column of a picture's tokens; slot + delta for text."""
    BLOCK = "block"
    """The number inside the drafted block; the context has no position (0)."""
    NONE = "none"
    """No position at all."""

    def of_prompt(self, prompt: Prompt) -> Tensor:
        """Positions [3, L] of a prompt's tokens."""
        length = len(prompt.tokens)
        if self is Positions.FLAT:
            return torch.arange(length, device=prompt.tokens.device).expand(3, -1)
        if self is Positions.MROPE:
            return prompt.positions
        return torch.zeros(3, length, dtype=torch.long, device=prompt.tokens.device)

    def of_chain(self, slots: Tensor, delta: int | Tensor, in_block: Tensor | None = None) -> Tensor:
        """Positions [3, ...] of generated tokens by their slots [...] in the whole sequence.

        delta: the target's, see Prompt. in_block [...]: numbers inside a drafted block; None for context.
        """
        if self is Positions.FLAT:
            position = slots
        elif self is Positions.MROPE:
            position = slots + delta
        elif self is Positions.BLOCK and in_block is not None:
            position = in_block
        else:
            position = torch.zeros_like(slots)
        return position.expand(3, *position.shape)


def angles(positions: Tensor, head_dim: int, theta: float, sections: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Cosine and sine [..., head_dim] of positions [3, ...].

    Channel pairs turn with frequencies theta^(-2 k / head_dim). Of the pairs, rows and columns take every third one
    of the first 3 * sections[1] and 3 * sections[2] (Qwen3-VL's interleaved M-RoPE), time the others: with the same
    number on all axes this is the plain rotary embedding (Su et al. 2021).
    """
    pairs = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    turned = positions.unsqueeze(-1).float() * theta ** (-pairs / head_dim)
    mixed = turned[0].clone()
    for axis in (1, 2):
        channels = slice(axis, 3 * sections[axis], 3)
        mixed[..., channels] = turned[axis][..., channels]
    whole = torch.cat([mixed, mixed], dim=-1)
    return whole.cos(), whole.sin()


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads [..., heads, n, head_dim] turned by cos, sin [..., n, head_dim]."""
    first, second = heads.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(-3).to(heads.dtype), sin.unsqueeze(-3).to(heads.dtype)
    return heads * cos + torch.cat([-second, first], dim=-1) * sin
