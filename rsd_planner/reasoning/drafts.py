"""Where drafts come from: one small interface, and the sources that need no model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.reasoning.target import Prompt, TokenSource


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens, who drafted them, and the log probabilities [k, V] that they were drawn with (None: certain)."""

    tokens: Sequence[int]
    source: TokenSource
    log_q: Tensor | None = None


class DraftSource(Protocol):
    """Proposes what the target may say next."""

    @property
    def layers(self) -> Collection[int]:
        """Layers of the target whose inputs `begin` and `observe` want."""

    def begin(self, prompt: Prompt, hidden: Mapping[int, Tensor], room: int) -> None:
        """A prompt that the target has processed: inputs of the layers [1, L, D]; at most `room` tokens follow."""

    def propose(self, committed: Sequence[int], most: int, sampling: Sampling) -> Proposal | None:
        """At most this many tokens behind the committed ones (the last of which the target has not processed yet).

        None if there is nothing to propose.
        """

    def observe(self, committed: Sequence[int], hidden: Mapping[int, Tensor]) -> None:
        """Tokens that the target has now processed for good, and its layers' inputs there [1, k, D]."""


class _ModelFree:
    """What sources without a model have in common: they read tokens only."""

    layers: Collection[int] = ()

    def begin(self, prompt: Prompt, hidden: Mapping[int, Tensor], room: int) -> None:
        """Nothing to prepare."""

    def observe(self, committed: Sequence[int], hidden: Mapping[int, Tensor]) -> None:
        """Nothing to remember."""


class PreviousChain(_ModelFree):
    """The last cycle's chain of causation: as a whole first, after a substitution again where it goes on alike."""

    def __init__(self, overlap: int = 2) -> None:
        self._previous: list[int] = []
        self._overlap = overlap

    def remember(self, tokens: Sequence[int]) -> None:
        """The chain that the next cycle is expected to resemble; empty after a jump in time."""
        self._previous = list(tokens)

    def propose(self, committed: Sequence[int], most: int, sampling: Sampling) -> Proposal | None:  # noqa: ARG002
        """What followed there."""
        place = self._place(list(committed))
        tokens = self._previous[place : place + most] if place is not None else []
        return Proposal(tokens, TokenSource.PREVIOUS) if tokens else None

    def _place(self, committed: list[int]) -> int | None:
        """Where the old chain goes on after what is committed, if it tells."""
        if committed == self._previous[: len(committed)]:
            return len(committed)
        tail = committed[-self._overlap :]
        if len(tail) < self._overlap:
            return None
        # Of several places the one that lies nearest to as far as we are.
        ends = range(self._overlap, len(self._previous) + 1)
        places = [end for end in ends if self._previous[end - self._overlap : end] == tail]
        return min(places, key=lambda place: abs(place - len(committed)), default=None)


class PromptLookup(_ModelFree):
    """What followed the last few tokens where they stood before, in prompt or chain (Saxena 2023)."""

    def __init__(self, longest: int = 3) -> None:
        self._longest = longest
        self._prompt: list[int] = []

    def begin(self, prompt: Prompt, hidden: Mapping[int, Tensor], room: int) -> None:  # noqa: ARG002
        """Keeps the prompt's tokens."""
        self._prompt = prompt.tokens.tolist()

    def propose(self, committed: Sequence[int], most: int, sampling: Sampling) -> Proposal | None:  # noqa: ARG002
        """The longest match wins, of equally long ones the latest."""
        text = [*self._prompt, *committed]
        for length in range(min(self._longest, len(text) - 1), 0, -1):
            tail = text[-length:]
            for begin in range(len(text) - length - 1, -1, -1):
                if text[begin : begin + length] == tail:
                    return Proposal(text[begin + length : begin + length + most], TokenSource.ROUTINE)
        return None


class FirstOf:
    """The first of several sources that has something to propose."""

    def __init__(self, *sources: DraftSource) -> None:
        self._sources = sources

    @property
    def layers(self) -> Collection[int]:
        """Those of all."""
        return sorted({layer for source in self._sources for layer in source.layers})

    def begin(self, prompt: Prompt, hidden: Mapping[int, Tensor], room: int) -> None:
        """For all."""
        for source in self._sources:
            source.begin(prompt, hidden, room)

    def propose(self, committed: Sequence[int], most: int, sampling: Sampling) -> Proposal | None:
        """The first that has something."""
        for source in self._sources:
            proposal = source.propose(committed, most, sampling)
            if proposal is not None and proposal.tokens:
                return proposal
        return None

    def observe(self, committed: Sequence[int], hidden: Mapping[int, Tensor]) -> None:
        """For all."""
        for source in self._sources:
            source.observe(committed, hidden)
