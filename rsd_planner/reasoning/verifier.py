"""Which drafted tokens the target agrees to, in three lossless ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rsd_planner.reasoning.sampling import Sampling, uniform


@dataclass(frozen=True)
class Judgement:
    """The first `accepted` drafted tokens stand; `following` is the target's own token behind them."""

    accepted: int
    following: int


def judge(
    sampling: Sampling,
    drafted: Sequence[int],
    logits: Tensor,
    position: int,
    row: int = 0,
    draft_log_q: Tensor | None = None,
) -> Judgement:
    """Judges k drafted tokens by the target's raw logits [k + 1, V] at their places.

    position is that of the first drafted token among the generated ones. Greedy decoding and the Gumbel way accept
    a token if and only if the target, decoding alone, would have chosen it. sampling.rejection is classical speculative
    sampling (Leviathan et al. 2023) with the draft's log probabilities draft_log_q [k, V]; without them each drafted
    token was certain. Raises ValueError if logits and draft do not fit.
    """
    if len(logits) != len(drafted) + 1:
        raise ValueError(f"{len(drafted)} drafted tokens need {len(drafted) + 1} rows of logits, got {len(logits)}")
    if sampling.rejection and not sampling.greedy:
        return _by_rejection(sampling, drafted, logits, position, row, draft_log_q)
    chosen = sampling.choose_along(logits, position, row).tolist()
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == chosen[accepted]:
        accepted += 1
    return Judgement(accepted, int(chosen[accepted]))


def _by_rejection(
    sampling: Sampling, drafted: Sequence[int], logits: Tensor, position: int, row: int, draft_log_q: Tensor | None
) -> Judgement:
    p = sampling.log_probabilities(logits).exp()
    for k, token in enumerate(drafted):
        q = torch.zeros_like(p[k])
        if draft_log_q is None:
            q[token] = 1.0
        else:
            q = draft_log_q[k].to(p).exp()
        if uniform(sampling.seed, row, position + k) * float(q[token]) < float(p[k, token]):
            continue
        left = (p[k] - q).clamp_min(0.0)
        return Judgement(k, _drawn(sampling, left.log(), position + k, row))
    return Judgement(len(drafted), _drawn(sampling, p[-1].log(), position + len(drafted), row))


def _drawn(sampling: Sampling, log_weights: Tensor, position: int, row: int) -> int:
    """A token drawn with probabilities proportional to the weights."""
    plain = replace(sampling, temperature=1.0, top_p=1.0, masked=(0, 0))
    return int(plain.choose_along(log_weights.unsqueeze(0), position, row)[0])
