"""Speculative decoding against autoregressive decoding: token for token, whatever the draft does."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rsd_planner.reasoning.decoding import Ending, decode_autoregressively, decode_speculatively
from rsd_planner.reasoning.drafts import FirstOf, PreviousChain, PromptLookup, Proposal
from rsd_planner.reasoning.economy import Economy, Round
from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.reasoning.target import Prompt, TokenKind, TokenSource
from rsd_planner.reasoning.verifier import judge

VOCABULARY = 12
ENDING = Ending(future_start=9, end_of_text=10, cot_end=8)
PROMPT = Prompt(torch.arange(5), torch.full((5,), TokenKind.TEXT), torch.arange(5).expand(3, -1), 0)


class ToyTarget:
    """Logits are a fixed random function of the last two tokens, so that sampling has something to choose."""

    def __init__(self, seed: int, sharpness: float = 3.0) -> None:
        self._table = torch.randn(VOCABULARY, VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))
        self._table *= sharpness
        self.tokens = [0, 1]
        self.rows = 1
        self.passes = 0
        self.last = self._answer([[0, 1]])

    @property
    def length(self) -> int:
        return len(self.tokens)

    def verify(self, tokens: torch.Tensor, keep=()):  # noqa: ARG002
        self.passes += 1
        pairs = []
        for token in tokens[0].tolist():
            self.tokens.append(token)
            pairs.append(self.tokens[-2:])
        return self._answer(pairs)

    def crop(self, length: int) -> None:
        del self.tokens[length:]

    def _answer(self, pairs):
        return SimpleNamespace(logits=torch.stack([self._table[a, b] for a, b in pairs])[None], hidden={})


class Scripted:
    """Proposes what it is told to: a function of the committed tokens and how many are wanted."""

    layers = ()

    def __init__(self, propose) -> None:
        self._propose = propose
        self.observed: list[int] = []

    def begin(self, *_):
        self.observed.clear()

    def propose(self, committed, most, sampling):  # noqa: ARG002
        tokens = self._propose(list(committed), most)
        return Proposal(tokens, TokenSource.ROUTINE) if tokens else None

    def observe(self, committed, hidden):  # noqa: ARG002
        self.observed += committed


def adversaries(truth: list[int], seed: int) -> dict[str, Scripted]:
    """Always right; always wrong; random; wrong from a place on; none; full of ends."""
    random = np.random.default_rng(seed)
    wrong = [(token + 1) % VOCABULARY for token in truth]
    place = int(random.integers(len(truth)))
    return {
        "right": Scripted(lambda done, most: truth[len(done) : len(done) + most]),
        "wrong": Scripted(lambda done, most: wrong[len(done) : len(done) + most]),
        "random": Scripted(lambda done, most: random.integers(0, VOCABULARY, most).tolist()),
        "wrong from": Scripted(lambda done, most: [*truth[:place], *wrong[place:]][len(done) : len(done) + most]),
        "silent": Scripted(lambda done, most: []),
        "ends": Scripted(lambda done, most: random.choice([8, 9, 10], most).tolist()),
    }


@settings(max_examples=250, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    block=st.integers(2, 16),
    budget=st.integers(1, 40),
    greedy=st.booleans(),
    row=st.integers(0, 3),
)
def test_every_draft_gives_the_autoregressive_run(seed, block, budget, greedy, row):
    sampling = Sampling(greedy=greedy, seed=seed % 1000, temperature=0.9, masked=(2, 3))
    # The row number only keys the noise: an autoregressive run of several equal rows gives each row's truth.
    alone = _rows_alone(seed, sampling, budget, row)
    for name, draft in adversaries(alone.tokens, seed).items():
        target = ToyTarget(seed)
        found = decode_speculatively(target, draft, PROMPT, sampling, ENDING, budget, block, row)
        assert found.tokens == alone.tokens, name
        assert found.truncated == alone.truncated and found.length == target.length == 2 + len(found.tokens)
        assert target.tokens[2:] == found.tokens
        assert len(found.sources) == len(found.tokens)
        assert sum(source is TokenSource.FORCED for source in found.sources) == (
            sum(source is TokenSource.FORCED for source in alone.sources)
        )
        forced = sum(source is TokenSource.FORCED for source in found.sources)
        assert draft.observed == found.tokens[: len(found.tokens) - forced]
        assert sum(1 + took.accepted for took in found.rounds) == len(found.tokens) - forced
        if name in ("wrong", "silent"):
            assert TokenSource.ROUTINE not in found.sources
        if name == "right":  # every pass commits a whole block
            assert len(found.rounds) == -(-(len(found.tokens) - forced) // block)


def _rows_alone(seed: int, sampling: Sampling, budget: int, row: int):
    class Several(ToyTarget):
        def __init__(self) -> None:
            super().__init__(seed)
            self.rows = row + 1
            self._own = [list(self.tokens) for _ in range(self.rows)]
            self.last = SimpleNamespace(logits=self.last.logits.expand(self.rows, -1, -1), hidden={})

        def verify(self, tokens, keep=()):  # noqa: ARG002
            for own, new in zip(self._own, tokens.tolist(), strict=True):
                own.extend(new)
            logits = torch.stack([self._table[own[-2], own[-1]] for own in self._own])[:, None]
            return SimpleNamespace(logits=logits, hidden={})

    return decode_autoregressively(Several(), sampling, ENDING, budget)[row]


class Sentence(ToyTarget):
    """Wants to say a sentence, whatever it is given."""

    def __init__(self, sentence: list[int]) -> None:
        self._sentence = sentence
        super().__init__(0)

    def _answer(self, pairs):
        # The token at index k of the sequence is followed by the generated token k + 1 - 2.
        places = range(self.length - len(pairs) - 1, self.length - 1)
        wanted = torch.tensor([[self._sentence[k] if k < len(self._sentence) else 1 for k in places]])
        return SimpleNamespace(logits=5.0 * torch.nn.functional.one_hot(wanted, VOCABULARY), hidden={})


@pytest.mark.parametrize("end", [[8, 9], [10], [9]])
def test_a_stop_at_every_place_of_a_block(end):
    """The target ends after n tokens, properly or not; the draft knows it and runs on behind the end."""
    greedy = Sampling(greedy=True)
    for n in range(20):
        sentence = [*([3, 4] * 10)[:n], *end]
        known = [*sentence, 1, 1, 1, 1]
        draft = Scripted(lambda done, most, known=known: known[len(done) : len(done) + most])
        (alone,) = decode_autoregressively(Sentence(sentence), greedy, ENDING, budget=30)
        assert alone.tokens[: n + 1] == [*sentence[:n], 8 if end == [10] else end[0]]
        for block in range(2, 17):
            target = Sentence(sentence)
            found = decode_speculatively(target, draft, PROMPT, greedy, ENDING, 30, block)
            assert (found.tokens, found.truncated, found.length) == (alone.tokens, alone.truncated, alone.length)
            assert target.tokens[2:] == found.tokens


def test_rejection_sampling_is_exact():
    """The first two tokens' joint frequencies against the target's own probabilities, for a draft that is off."""
    target = ToyTarget(3, sharpness=1.0)
    p1 = Sampling(temperature=1.0, top_p=1.0).log_probabilities(target._table[0, 1]).exp().double()
    q_logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(9))
    log_q = q_logits.log_softmax(-1)
    counts = np.zeros(VOCABULARY)
    bonus = np.zeros(VOCABULARY)
    draws = 6000
    random = np.random.default_rng(0)
    for seed in range(draws):
        drafted = int(random.choice(VOCABULARY, p=log_q.exp().double().numpy() / float(log_q.exp().double().sum())))
        logits = torch.stack([target._table[0, 1], target._table[1, drafted]])
        sampling = Sampling(temperature=1.0, top_p=1.0, seed=seed, rejection=True)
        found = judge(sampling, [drafted], logits, position=0, draft_log_q=log_q[None])
        first = drafted if found.accepted else found.following
        counts[first] += 1
        if found.accepted and drafted == 3:
            bonus[found.following] += 1
    assert stats.chisquare(counts, p1.numpy() / p1.sum().item() * draws).pvalue > 0.001
    p2 = Sampling(temperature=1.0, top_p=1.0).log_probabilities(target._table[1, 3]).exp().double().numpy()
    assert stats.chisquare(bonus, p2 / p2.sum() * bonus.sum()).pvalue > 0.001


def test_rejection_without_probabilities_takes_the_draft_as_certain():
    logits = torch.full((2, VOCABULARY), -10.0)
    logits[0, 4], logits[1, 5] = 10.0, 10.0
    sampling = Sampling(rejection=True)
    assert judge(sampling, [4], logits, 0).accepted == 1 and judge(sampling, [4], logits, 0).following == 5
    refused = judge(sampling, [6], logits, 0)
    assert refused.accepted == 0 and refused.following == 4
    with pytest.raises(ValueError, match="need 2 rows of logits, got 3"):
        judge(sampling, [6], torch.zeros(3, VOCABULARY), 0)


def test_the_previous_chain_goes_on_after_a_substitution():
    source = PreviousChain()
    assert source.propose([1], 5, Sampling()) is None
    source.remember([1, 2, 3, 4, 5, 6, 7])
    assert source.propose([1, 2], 3, Sampling()).tokens == [3, 4, 5]
    assert source.propose([1, 2, 11], 3, Sampling()) is None  # nothing is known of what follows 2 11
    assert source.propose([1, 2, 11, 4, 5], 9, Sampling()).tokens == [6, 7]  # 4 5 stood there before
    assert source.propose([1, 2, 3, 4, 5, 6, 7], 3, Sampling()) is None


def test_prompt_lookup_takes_the_longest_and_latest_match():
    source = PromptLookup(longest=2)
    prompt = Prompt(torch.tensor([5, 6, 7, 5, 6, 8]), torch.zeros(6), torch.arange(6).expand(3, -1), 0)
    source.begin(prompt, {}, 10)
    assert source.propose([1, 5, 6], 1, Sampling()).tokens == [8]
    assert source.propose([7], 2, Sampling()).tokens == [5, 6]
    assert source.propose([11], 2, Sampling()) is None
    both = FirstOf(PreviousChain(), source)
    both.begin(prompt, {}, 10)
    assert both.propose([7], 2, Sampling()).source is TokenSource.ROUTINE and both.layers == []


def test_a_draft_that_does_not_pay_is_switched_off_and_tried_again():
    economy = Economy(sample_every=4, probe_every=5, least=3)
    assert [economy.wants_draft() for _ in range(8)] == [True, True, True, False] * 2
    economy.record(Round(0, 0, 0.0, 1.0))
    for _ in range(3):
        economy.record(Round(7, 1, 0.5, 2.0))
    assert economy.gain == pytest.approx(1.0 / (2.5 / 2)) and not economy.pays
    assert sum(economy.wants_draft() for _ in range(20)) == 4
    for _ in range(40):
        economy.record(Round(7, 6, 0.5, 1.5))
    assert economy.gain == pytest.approx(1.0 / (2.0 / 7)) and economy.pays


def test_what_cannot_be_decoded_is_refused():
    with pytest.raises(ValueError, match="budget must be positive and the block at least 2, not 0 and 4"):
        decode_speculatively(ToyTarget(0), PromptLookup(), PROMPT, Sampling(), ENDING, 0, 4)
