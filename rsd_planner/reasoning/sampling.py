"""From raw logits to a token: mask, temperature, top-p, and a choice that a seed repeats exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    greedy takes the most probable one. Otherwise the choice is argmax(log p + g) with Gumbel noise g
    from a counter-based generator keyed by (seed, row, position), which is an exact sample of p and
    depends on nothing that was drawn before. masked is the range of ids [first, end) that is
    never chosen. rejection verifies drafts by rejection sampling instead of by the Gumbel choice: exact as well, but
    the tokens then depend on the draft. The defaults are the public model's.
    """

    greedy: bool = False
    temperature: float = 0.6
    top_p: float = 0.98
    seed: int = 0
    masked: tuple[int, int] = (0, 0)
    rejection: bool = False

    def __post_init__(self) -> None:
        if not self.temperature > 0.0:
            raise ValueError(f"temperature must be positive, not {self.temperature} (greedy decoding is a switch)")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], not {self.top_p}")

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Log probabilities [..., V] (float32, -inf where impossible) of raw logits [..., V].

        The mask comes before temperature and top-p, as in the public model. Top-p keeps the smallest
        set of most probable tokens that reaches the mass, at least one.
        """
        scaled = self._masked(logits) / self.temperature
        if self.top_p < 1.0:
            ordered, order = scaled.sort(dim=-1, descending=True)
            mass = ordered.softmax(dim=-1).cumsum(dim=-1)
            beyond = mass - ordered.softmax(dim=-1) >= self.top_p
            scaled = scaled.scatter(-1, order, ordered.masked_fill(beyond, -torch.inf))
        return scaled.log_softmax(dim=-1)

    def choose(self, logits: Tensor, position: int, first_row: int = 0) -> Tensor:
        """Tokens [rows] for raw logits [rows, V] of the position-th generated token (from 0)."""
        return self._choose(logits, [(first_row + row, position) for row in range(len(logits))])

    def choose_along(self, logits: Tensor, position: int, row: int = 0) -> Tensor:
        """Tokens [k] for raw logits [k, V] of the tokens from position on of one row: the same as k single choices."""
        return self._choose(logits, [(row, position + k) for k in range(len(logits))])

    def _choose(self, logits: Tensor, keys: Sequence[tuple[int, int]]) -> Tensor:
        if self.greedy:
            return self._masked(logits).argmax(dim=-1)
        log_p = self.log_probabilities(logits)
        noise = np.stack([gumbel(self.seed, row, position, logits.shape[-1]) for row, position in keys])
        return (log_p + torch.from_numpy(noise).to(log_p.device)).argmax(dim=-1)

    def _masked(self, logits: Tensor) -> Tensor:
        masked = logits.float().clone()
        masked[..., slice(*self.masked)] = -torch.inf
        return masked


def gumbel(seed: int, row: int, position: int, size: int) -> np.ndarray:
    """Gumbel(0, 1) noise [size] float64 that depends on its key alone (Philox 4x64)."""
    generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, row, position]))
    return -np.log(-np.log(np.maximum(generator.random(size), np.finfo(np.float64).tiny)))


def uniform(seed: int, row: int, position: int) -> float:
    """A number in [0, 1) that depends on its key alone and not on the Gumbel noise of that key."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=[0, 1, row, position])).random())
