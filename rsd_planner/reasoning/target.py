"""What the decoder knows of the deliberative reasoner: tokens in, logits out, and a way back."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class TokenSource(enum.IntEnum):
    """Who proposed a token of the chain of causation (the target agreed to all but FORCED)."""

    DELIBERATIVE = 0
    """The target's own choice."""
    ROUTINE = 1
    """Drafted by the routine reasoner."""
    PREVIOUS = 2
    """Taken from the previous cycle's chain of causation."""
    FORCED = 3
    """Appended to close a chain that ran out of budget or ended without a trajectory."""


class TokenKind(enum.IntEnum):
    """What a token of the prompt stands for."""

    TEXT = 0
    VISUAL = 1
    HISTORY = 2


@dataclass(frozen=True)
class Prompt:
    """What a draft may know of a prompt before the target has seen it.

    tokens, kinds [L]; positions [3, L]: the target's M-RoPE positions; those of the tokens behind the prompt are
    slot + delta on all axes.
    """

    tokens: Tensor
    kinds: Tensor
    positions: Tensor
    delta: int


class Answer(Protocol):
    """The target's answer to k tokens."""

    @property
    def logits(self) -> Tensor:
        """Raw logits [rows, k, V]."""

    @property
    def hidden(self) -> Mapping[int, Tensor]:
        """Kept layer inputs [rows, k, D] by layer number."""


class Target(Protocol):
    """A target behind its prompt. `rsd_planner.vla.backbone.Context` is one."""

    @property
    def last(self) -> Answer:
        """The answer to the prompt's last token."""

    @property
    def length(self) -> int:
        """Tokens committed, the prompt included."""

    @property
    def rows(self) -> int:
        """Sequences decoded side by side."""

    def verify(self, tokens: Tensor, keep: Collection[int] = ()) -> Answer:
        """Processes and commits tokens [rows, k]."""

    def crop(self, length: int) -> None:
        """Forgets the tokens from this slot on."""
