"""Verdicts on drives."""

from __future__ import annotations

import dataclasses

import pytest

from rsd_planner.control.vehicle import VehicleState
from rsd_planner.simulation.drive import DriveLog
from rsd_planner.simulation.scenarios import build
from rsd_planner.simulation.verdict import judge, table


def _log(**more) -> DriveLog:
    states = [VehicleState(speed_mps=10.0 + 0.01 * k, acceleration_mps2=1.0) for k in range(300)]
    return DriveLog(states=states, lateral_errors_m=[0.3, -0.4], speed_errors_mps=[0.0, -0.2], distance_m=79.0, **more)


def test_a_verdict_adds_up():
    verdict = judge(build("follow", "train", 7), _log(), expert_distance_m=99.0)
    assert (verdict.family, verdict.split, verdict.seed) == ("follow", "train", 7)
    assert verdict.progress == pytest.approx(0.8) and verdict.success and not verdict.collided
    assert verdict.lateral_rms_m == pytest.approx((0.25 / 2) ** 0.5) and verdict.lateral_max_m == pytest.approx(0.4)
    assert verdict.speed_rms_mps == pytest.approx((0.04 / 2) ** 0.5)
    not_driven = dataclasses.replace(verdict, taken_over=False)
    assert not not_driven.success and "own driver" in not_driven.failures[0] and "own driver" in table([not_driven])
    assert verdict.seconds == pytest.approx(3.0) and verdict.max_jerk_mps3 == pytest.approx(0.0, abs=1e-9)


def test_standing_about_or_breaking_a_rule_is_no_success():
    assert not judge(build("follow", "train", 7), _log(), expert_distance_m=120.0).success
    bad = judge(build("follow", "train", 7), _log(violations=["collision with lead"]), expert_distance_m=79.0)
    assert bad.collided and not bad.success
    # Where the expert waits, waiting is right.
    still = dataclasses.replace(_log(), distance_m=0.0)
    assert judge(build("follow", "train", 7), still, expert_distance_m=0.1).success


def test_the_table_counts():
    good = judge(build("follow", "train", 0), _log(), 79.0)
    bad = dataclasses.replace(good, family="cut-in", violations=("collision with cutter", "speeding"), notes=("late",))
    lines = table([good, bad, bad]).splitlines()
    cells = {line.split("  ")[0]: line.split() for line in lines[1:4]}
    assert cells["follow"][1:4] == ["1/1", "0", "0"]
    assert cells["cut-in"][1:4] == ["0/2", "2", "2"]
    assert cells["all"][1:4] == ["1/3", "2", "2"]
    assert lines[4] == "  cut-in 0: collision with cutter; speeding; late"
