"""Golden bags: a change of plans is seen here. `scripts/renew_golden` stores them anew, on purpose."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from rsd_planner.evaluation.golden import differences, plans_of, read_golden, write_golden
from rsd_planner.planner import Planner
from rsd_planner.vla.checkpoint import Checkpoint

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


@pytest.mark.parametrize("bag", sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()))
def test_plans_are_the_golden_ones(bag, small_parameters, request):
    planner = Planner.from_checkpoint(Checkpoint.open(Path(small_parameters.model)), small_parameters.settings())
    found = plans_of(GOLDEN / bag, planner, small_parameters)
    stored = GOLDEN / f"{bag}.json"
    if request.config.getoption("--renew-golden"):
        write_golden(stored, found)
    golden = read_golden(stored)
    assert len(golden) >= 10
    assert differences(found, golden) == []


def test_a_change_is_told():
    golden = read_golden(next(GOLDEN.glob("*.json")))
    found = copy.deepcopy(golden)
    found[1]["text"] += " or not"
    found[2]["plan_y"][40] += 0.5
    del found[3]
    told = differences(found, golden)
    assert len(told) == 3
    assert "no cycle any more" in told[0] and "the text was" in told[1] and "plan_y moved by up to 0.500" in told[2]
