"""Decoding of a chain of causation up to the token that opens the trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.reasoning.target import Target, TokenSource


@dataclass(frozen=True)
class Ending:
    """The tokens that end a chain of causation.

    future_start opens the trajectory and is the proper end; end_of_text ends the text without one;
    cot_end closes the reasoning before future_start.
    """

    future_start: int
    end_of_text: int
    cot_end: int

    def closing(self, tokens: Sequence[int]) -> list[int]:
        """What has to follow tokens so that a trajectory can be read behind them."""
        return [self.future_start] if self.cot_end in tokens else [self.cot_end, self.future_start]


@dataclass
class ReasonedRow:
    """One sample: its tokens (the end included), who proposed each, and where it stands in the cache."""

    tokens: list[int] = field(default_factory=list)
    sources: list[TokenSource] = field(default_factory=list)
    truncated: bool = False
    """True if the closing tokens were forced."""
    length: int = 0
    """Tokens in the cache that belong to this row, prompt and end included."""

    @property
    def finished(self) -> bool:
        """True once the end is in the cache."""
        return self.length > 0


def decode_autoregressively(target: Target, sampling: Sampling, ending: Ending, budget: int) -> list[ReasonedRow]:
    """Lets the target write token by token; every row ends with future_start in the cache.

    A row that spends its budget of tokens, or ends its text, without future_start is closed with
    the proper tokens and marked truncated. Room for budget + 2 tokens is needed.
    """
    if budget < 1:
        raise ValueError(f"the token budget must be positive, not {budget}")
    rows = [ReasonedRow() for _ in range(target.rows)]
    forced: list[list[int]] = [[] for _ in rows]
    logits = target.last.logits[:, -1]
    position = 0
    while not all(row.finished for row in rows):
        chosen = sampling.choose(logits, position).tolist()
        for index, row in enumerate(rows):
            if row.finished:
                chosen[index] = ending.future_start  # fills the slot; masked out for the action expert
                continue
            if not forced[index] and (len(row.tokens) == budget or chosen[index] == ending.end_of_text):
                forced[index] = ending.closing(row.tokens)
                row.truncated = True
            source = TokenSource.DELIBERATIVE
            if forced[index]:
                chosen[index], source = forced[index].pop(0), TokenSource.FORCED
            row.tokens.append(chosen[index])
            row.sources.append(source)
        logits = target.verify(torch.tensor(chosen, device=logits.device).unsqueeze(1)).logits[:, -1]
        for index, row in enumerate(rows):
            if not row.finished and chosen[index] == ending.future_start:
                row.length = target.length
        position += 1
    return rows


def dictate(target: Target, tokens: Sequence[int], ending: Ending) -> list[ReasonedRow]:
    """Commits a chain of causation that is given, with its end, instead of decoding one; all tokens are FORCED."""
    said = [*tokens, *ending.closing(tokens)]
    target.verify(torch.tensor([said] * target.rows, device=target.last.logits.device))
    return [ReasonedRow(list(said), [TokenSource.FORCED] * len(said), False, target.length) for _ in range(target.rows)]
