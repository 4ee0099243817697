"""Choices of tokens: exact distribution, the public processors, repeatable noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest
from transformers.generation.logits_process import TemperatureLogitsWarper, TopPLogitsWarper

from rsd_planner.reasoning.sampling import Sampling, gumbel


@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.98, 1.0])
@pytest.mark.parametrize("temperature", [0.3, 0.6, 1.7])
def test_probabilities_are_those_of_the_public_processors(temperature, top_p):
    logits = torch.randn(8, 500, generator=torch.Generator().manual_seed(0)) * 4
    sampling = Sampling(temperature=temperature, top_p=top_p, masked=(40, 90))
    masked = logits.clone()
    masked[:, 40:90] = -torch.inf
    expected = TemperatureLogitsWarper(temperature)(None, masked)
    if top_p < 1.0:
        expected = TopPLogitsWarper(top_p)(None, expected)
    found = sampling.log_probabilities(logits)
    np.testing.assert_allclose(found.exp(), expected.softmax(dim=-1), atol=1e-6)
    assert torch.equal(found.isinf(), expected.isinf())


def test_the_gumbel_choice_is_an_exact_sample():
    logits = torch.tensor([2.0, 0.5, -1.0, 1.0, 0.0, -3.0, 9.0])
    sampling = Sampling(temperature=0.9, top_p=0.97, seed=11, masked=(6, 7))
    probability = sampling.log_probabilities(logits).double().softmax(dim=-1).numpy()
    draws = [int(sampling.choose(logits.unsqueeze(0), position)) for position in range(20_000)]
    counts = np.bincount(draws, minlength=7)
    possible = probability > 0
    assert counts[~possible].sum() == 0
    assert chisquare(counts[possible], probability[possible] * len(draws)).pvalue > 1e-3


def test_noise_is_gumbel_and_depends_on_its_key_alone():
    noise = gumbel(seed=5, row=2, position=7, size=50_000)
    assert kstest(noise, "gumbel_r").pvalue > 1e-3
    gumbel(seed=1, row=0, position=0, size=10)
    assert np.array_equal(noise, gumbel(seed=5, row=2, position=7, size=50_000))
    for other in ((6, 2, 7), (5, 3, 7), (5, 2, 8)):
        assert abs(np.corrcoef(noise, gumbel(*other, size=50_000))[0, 1]) < 0.02


def test_greedy_never_takes_a_masked_token():
    logits = torch.tensor([[0.0, 5.0, 4.0]])
    assert Sampling(greedy=True).choose(logits, 0).tolist() == [1]
    assert Sampling(greedy=True, masked=(1, 2)).choose(logits, 0).tolist() == [2]


def test_settings_out_of_range_are_named():
    with pytest.raises(ValueError, match="temperature must be positive, not 0"):
        Sampling(temperature=0.0)
    with pytest.raises(ValueError, match="top_p must be"):
        Sampling(top_p=0.0)
