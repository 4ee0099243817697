"""Decoding up to the trajectory's start: every ending, on a scripted target and on a real one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from rsd_planner.reasoning.decoding import Ending, decode_autoregressively, dictate
from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.reasoning.target import TokenSource
from rsd_planner.vla.vision import ImagePatches

VOCABULARY = 12
ENDING = Ending(future_start=9, end_of_text=10, cot_end=8)
GREEDY = Sampling(greedy=True)


class ScriptedTarget:
    """Wants to say a fixed sentence in each row; keeps what it was given. Follows the Target protocol."""

    def __init__(self, *scripts: list[int], prompt: int = 5) -> None:
        self._scripts, self.rows, self.length, self._prompt = scripts, len(scripts), prompt, prompt
        self.given: list[list[int]] = [[] for _ in scripts]
        self.last = self._answer(0)

    def verify(self, tokens: torch.Tensor, keep=()):  # noqa: ARG002 (the protocol has it)
        for row, new in zip(self.given, tokens.tolist(), strict=True):
            row.extend(new)
        self.length += tokens.shape[1]
        return self._answer(self.length - self._prompt)

    def _answer(self, position: int):
        logits = torch.zeros(self.rows, 1, VOCABULARY)
        for row, script in enumerate(self._scripts):
            logits[row, 0, script[position] if position < len(script) else 1] = 5.0
        return SimpleNamespace(logits=logits, hidden={})


def test_a_proper_ending_is_in_the_cache():
    target = ScriptedTarget([3, 4, 8, 9, 7])
    (row,) = decode_autoregressively(target, GREEDY, ENDING, budget=10)
    assert row.tokens == [3, 4, 8, 9] == target.given[0]
    assert set(row.sources) == {TokenSource.DELIBERATIVE} and not row.truncated
    assert row.length == 5 + 4 == target.length


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_a_spent_budget_is_closed(budget):
    target = ScriptedTarget([3, 4, 5, 6, 3, 4])
    (row,) = decode_autoregressively(target, GREEDY, ENDING, budget)
    assert row.tokens == [*[3, 4, 5][:budget], 8, 9] == target.given[0]
    assert row.sources == [TokenSource.DELIBERATIVE] * budget + [TokenSource.FORCED] * 2
    assert row.truncated and row.length == target.length == 5 + budget + 2


def test_a_text_that_ends_without_a_trajectory_is_closed():
    target = ScriptedTarget([3, 8, 10])
    (row,) = decode_autoregressively(target, GREEDY, ENDING, budget=10)
    assert row.tokens == [3, 8, 9] and row.truncated  # cot_end was said already


def test_the_budget_may_end_exactly_at_the_end():
    (row,) = decode_autoregressively(ScriptedTarget([3, 8, 9]), GREEDY, ENDING, budget=3)
    assert row.tokens == [3, 8, 9] and not row.truncated


def test_rows_end_apart():
    target = ScriptedTarget([9], [3, 4, 8, 9], [3, 4, 5, 6, 3])
    rows = decode_autoregressively(target, GREEDY, ENDING, budget=4)
    assert [row.tokens for row in rows] == [[9], [3, 4, 8, 9], [3, 4, 5, 6, 8, 9]]
    assert [row.length for row in rows] == [6, 9, 11]
    assert [row.truncated for row in rows] == [False, False, True]


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ValueError, match="budget must be positive"):
        decode_autoregressively(ScriptedTarget([9]), GREEDY, ENDING, budget=0)


def test_a_seed_repeats_a_sample_and_another_does_not(tiny, tiny_record):
    from rsd_planner.vla.vision import ImagePatches

    patches = ImagePatches(tiny_record("pixel_values"), tiny_record("image_grid_thw"))
    context = tiny.prefill(tiny_record("fused_ids"), tiny.encode_images(patches), patches.grid_thw, extra=26)
    ending = Ending(future_start=1217, end_of_text=2, cot_end=1214)

    def sample(seed: int) -> list[int]:
        context.crop(130)
        (row,) = decode_autoregressively(
            context, Sampling(seed=seed, temperature=1.5, masked=tiny.masked_tokens), ending, budget=24
        )
        assert not any(437 <= token < 437 + 768 for token in row.tokens)
        return row.tokens

    assert sample(1) == sample(1) != sample(2)


def test_a_dictated_chain_is_closed_and_in_the_cache():
    target = ScriptedTarget([1, 1], [1, 1])
    rows = dictate(target, [3, 4], ENDING)
    assert [row.tokens for row in rows] == [[3, 4, 8, 9]] * 2 == target.given
    assert all(set(row.sources) == {TokenSource.FORCED} and row.length == target.length for row in rows)
    assert dictate(ScriptedTarget([1]), [3, 8], ENDING)[0].tokens == [3, 8, 9]
    assert dictate(ScriptedTarget([1]), [], ENDING)[0].tokens == [8, 9]


def test_dictating_is_decoding_in_one_pass(tiny, tiny_record):
    """The real model's cache after a chain that it wrote itself, and after the same chain dictated."""
    prompt, pixels = tiny_record("fused_ids"), tiny_record("pixel_values")
    grid = tiny_record("image_grid_thw")
    ending = Ending(tiny.config.future_start_token, 1, 2)
    contexts = []
    for _ in range(2):
        features = tiny.encode_images(ImagePatches(pixels, grid))
        contexts.append(tiny.prefill(prompt, features, grid, extra=20))
    (own,) = decode_autoregressively(contexts[0], GREEDY, ending, budget=8)
    (told,) = dictate(contexts[1], own.tokens[:-2], ending)
    assert told.tokens == own.tokens and told.length == own.length
    length = own.length
    torch.testing.assert_close(
        contexts[1].cache.keys[:, :, :, :length], contexts[0].cache.keys[:, :, :, :length], atol=1e-4, rtol=1e-4
    )
