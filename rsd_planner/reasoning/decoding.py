"""Decoding of a chain of causation up to the token that opens the trajectory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from rsd_planner.reasoning.drafts import DraftSource
from rsd_planner.reasoning.economy import Economy, Round
from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.reasoning.target import Prompt, Target, TokenSource
from rsd_planner.reasoning.verifier import judge


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

    def cut(self, drafted: Sequence[int]) -> list[int]:
        """The part of a draft that may be committed: up to the proper end, and not an end without a trajectory."""
        kept: list[int] = []
        for token in drafted:
            if token == self.end_of_text:
                break
            kept.append(token)
            if token == self.future_start:
                break
        return kept


@dataclass
class ReasonedRow:
    """One sample: its tokens (the end included), who proposed each, and where it stands in the cache."""

    tokens: list[int] = field(default_factory=list)
    sources: list[TokenSource] = field(default_factory=list)
    truncated: bool = False
    """True if the closing tokens were forced."""
    length: int = 0
    """Tokens in the cache that belong to this row, prompt and end included."""
    rounds: list[Round] = field(default_factory=list)
    """Of speculative decoding."""

    @property
    def finished(self) -> bool:
        """True once the end is in the cache."""
        return self.length > 0


def decode_autoregressively(
    target: Target, sampling: Sampling, ending: Ending, budget: int, first_row: int = 0
) -> list[ReasonedRow]:
    """Lets the target write token by token; every row ends with future_start in the cache.

    first_row is the number of the target's first row among several samples (the sampling's key).

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
        chosen = sampling.choose(logits, position, first_row).tolist()
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


def decode_speculatively(
    target: Target,
    draft: DraftSource,
    prompt: Prompt,
    sampling: Sampling,
    ending: Ending,
    budget: int,
    block: int = 16,
    row: int = 0,
    economy: Economy | None = None,
) -> ReasonedRow:
    """As decode_autoregressively, token for token, in fewer passes of the target: `draft` proposes, the target judges.

    A round processes the target's own last choice and up to block - 1 drafted tokens behind it in one pass. target has
    one row and was prefilled with the layers of draft kept; row is its number among several samples (the sampling's
    key). economy tells whether drafting pays.
    """
    if budget < 1 or block < 2:
        raise ValueError(f"the token budget must be positive and the block at least 2, not {budget} and {block}")
    device = target.last.logits.device
    reasoned = ReasonedRow()
    tokens = reasoned.tokens
    draft.begin(prompt, target.last.hidden, budget + 2)
    following = int(sampling.choose_along(target.last.logits[0, -1:], 0, row)[0])
    while following != ending.end_of_text and len(tokens) < budget:
        begin = time.perf_counter()
        committed = [*tokens, following]
        most = min(block - 1, budget - len(committed))
        wanted = most > 0 and following != ending.future_start and (economy is None or economy.wants_draft())
        proposal = draft.propose(committed, most, sampling) if wanted else None
        drafted = ending.cut(proposal.tokens) if proposal is not None else []
        drafted_at = time.perf_counter()
        length = target.length
        answer = target.verify(torch.tensor([[following, *drafted]], device=device), keep=draft.layers)
        verified_at = time.perf_counter()
        log_q = proposal.log_q if proposal is not None else None
        judgement = judge(sampling, drafted, answer.logits[0], len(committed), row, log_q)
        judged_at = time.perf_counter()
        new = [following, *drafted[: judgement.accepted]]
        target.crop(length + len(new))
        draft.observe(new, {layer: hidden[:, : len(new)] for layer, hidden in answer.hidden.items()})
        tokens += new
        reasoned.sources.append(TokenSource.DELIBERATIVE)
        if proposal is not None:
            reasoned.sources += [proposal.source] * judgement.accepted
        draft_s = drafted_at - begin + time.perf_counter() - judged_at
        took = Round(len(drafted), judgement.accepted, draft_s, verified_at - drafted_at, judged_at - verified_at)
        reasoned.rounds.append(took)
        if economy is not None:
            economy.record(took)
        if tokens[-1] == ending.future_start:
            reasoned.length = target.length
            return reasoned
        following = judgement.following
    forced = ending.closing(tokens)
    target.verify(torch.tensor([forced], device=device))
    tokens += forced
    reasoned.sources += [TokenSource.FORCED] * len(forced)
    reasoned.truncated, reasoned.length = True, target.length
    return reasoned


def dictate(target: Target, tokens: Sequence[int], ending: Ending) -> list[ReasonedRow]:
    """Commits a chain of causation that is given, with its end, instead of decoding one; all tokens are FORCED."""
    said = [*tokens, *ending.closing(tokens)]
    target.verify(torch.tensor([said] * target.rows, device=target.last.logits.device))
    return [ReasonedRow(list(said), [TokenSource.FORCED] * len(said), False, target.length) for _ in range(target.rows)]
