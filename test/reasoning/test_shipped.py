"""The shipped reasoners, in float32: exact on moments that neither was trained on, whatever is asked of them."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch

from rsd_planner.cli import main
from rsd_planner.planner import Planner, PlannerSettings
from rsd_planner.reasoning.decoding import decode_autoregressively, decode_speculatively
from rsd_planner.reasoning.routine import RoutineReasoner
from rsd_planner.reasoning.routine_checkpoint import load_routine, routine_beside
from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.reasoning.target import TokenSource
from rsd_planner.ros.bringup import own_rig, shipped_model
from rsd_planner.simulation.cameras import Rig
from rsd_planner.training.samples import moments_of_drives
from rsd_planner.vla.checkpoint import Checkpoint

MODEL = shipped_model()


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner.from_checkpoint(Checkpoint.open(MODEL), PlannerSettings(draft="none"), dtype=torch.float32)


@pytest.fixture(scope="module")
def routine(planner) -> RoutineReasoner:
    beside = routine_beside(MODEL)
    assert beside is not None
    return RoutineReasoner(load_routine(beside, dtype=torch.float32), planner.model.embed, planner.model.head)


@pytest.fixture(scope="module")
def scenes():
    rig = Rig.from_yaml(own_rig(MODEL))
    return [scene for scene, _, _ in moments_of_drives("held-out", 4, 3, rig, progress=False)]


def test_tokens_and_cache_are_those_of_the_target_alone(planner, routine, scenes):
    """Blocks of 2 up to the draft's and budgets that end anywhere in a chain, in turn over the moments."""
    asked = itertools.cycle(itertools.product((2, 3, 5, 7, 11, 16, routine.network.config.block), (48, 9, 14, 48, 1)))
    drafted = 0
    for scene in scenes:
        context = planner.prefill(scene, keep=routine.layers)
        prompt, length = planner.model.prompt_of(context), context.length
        for greedy, seed in ((True, 0), (False, 1), (False, 2)):
            sampling = Sampling(greedy=greedy, seed=seed, temperature=0.9, masked=planner.model.masked_tokens)
            block, budget = next(asked)
            context.crop(length)
            (alone,) = decode_autoregressively(context, sampling, planner.ending, budget)
            own = [part[..., : context.length, :].clone() for part in (context.cache.keys, context.cache.values)]
            context.crop(length)
            found = decode_speculatively(context, routine, prompt, sampling, planner.ending, budget, block)
            assert (found.tokens, found.truncated) == (alone.tokens, alone.truncated)
            drafted += sum(source is TokenSource.ROUTINE for source in found.sources)
            for part, wanted in zip((context.cache.keys, context.cache.values), own, strict=True):
                scale = max(1.0, float(wanted.abs().max()))
                np.testing.assert_allclose(part[..., : context.length, :], wanted, atol=1e-5 * scale)
    assert drafted > 10 * len(scenes)  # it is no test of an idle draft


def test_the_bench_measures_what_it_says(routine, tmp_path, monkeypatch, capsys):
    own = f"routine, block {routine.network.config.block}"
    out = tmp_path / "bench.json"
    few = ["--drives", "2", "--moments", "2", "--repeats", "1", "--blocks", "4", "--dtype", "float32"]
    monkeypatch.setattr("sys.argv", ["rsd-planner", "bench", "reasoning", *few, "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    told = json.loads(out.read_text())
    ways = {way["way"]: way for way in told["ways"]}
    assert set(ways) >= {"autoregressive", "prompt lookup", "previous chain", "routine, block 4", own}
    assert told["moments"] == 4 and ways["autoregressive"]["speed_up"] == 1.0
    for way in ways.values():
        moments = way["speed_up_of_moments"]
        assert way["speed_up"] == pytest.approx(np.median(moments)) and len(moments) == 4
        assert min(moments) <= way["speed_up_low"] <= way["speed_up"] <= way["speed_up_high"] <= max(moments)
        assert way["chains_that_differ"] == 0 and way["largest_margin"] < 1e-3
        shares = way["routine_share"] + way["previous_share"]
        # Every round commits one token of the target's own (no chain was cut here).
        assert shares == pytest.approx(1.0 - 1.0 / way["accepted_length"])
        assert way["accepted_length"] <= way["accepted_at_most"] <= max(way["block"], 1)
        assert way["rounds_a_chain"] * way["accepted_length"] == pytest.approx(way["tokens_a_chain"])
    assert ways["autoregressive"]["accepted_length"] == 1.0
    assert ways[own]["accepted_length"] > 2.0 * ways["prompt lookup"]["accepted_length"]
    positions = ways[own]["acceptance_by_position"]
    assert 0.5 < positions[0] <= 1.0 and len(positions) < routine.network.config.block
    assert f"speed-up {ways[own]['speed_up']:.2f}" in capsys.readouterr().out
