"""Whether drafting pays, measured while driving: a draft that costs more than it saves is switched off."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Round:
    """One draft with its verification: tokens drafted and accepted, and where the seconds went.

    draft_s: proposing, and taking in what was committed; verify_s: the target's pass; judge_s: choosing tokens.
    """

    drafted: int
    accepted: int
    draft_s: float
    verify_s: float
    judge_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Of the whole round."""
        return self.draft_s + self.verify_s + self.judge_s


class Economy:
    """Compares the time of a committed token with and without a draft, over the last rounds.

    Every `sample_every`-th round goes without a draft, so that the price of a single token stays known. While drafting
    does not pay, every `probe_every`-th round drafts all the same: things may have changed.
    """

    def __init__(self, sample_every: int = 50, probe_every: int = 20, memory: int = 40, least: int = 8) -> None:
        self._sample_every, self._probe_every, self._memory, self._least = sample_every, probe_every, memory, least
        self._with: list[Round] = []
        self._without: list[Round] = []
        self._asked = 0

    def wants_draft(self) -> bool:
        """Whether the round that begins should draft."""
        self._asked += 1
        if self.pays:
            return self._asked % self._sample_every != 0
        return self._asked % self._probe_every == 0

    def record(self, took: Round) -> None:
        """What a round cost."""
        kept = self._with if took.drafted else self._without
        kept.append(took)
        del kept[: -self._memory]

    @property
    def gain(self) -> float | None:
        """Time of a token without over with a draft; None while too little is known."""
        if len(self._with) < self._least or not self._without:
            return None
        with_draft = sum(took.seconds for took in self._with) / sum(1 + took.accepted for took in self._with)
        alone = sorted(took.seconds for took in self._without)[len(self._without) // 2]
        return alone / with_draft

    @property
    def pays(self) -> bool:
        """True unless drafting was found to cost more than it saves."""
        return self.gain is None or self.gain >= 1.0
