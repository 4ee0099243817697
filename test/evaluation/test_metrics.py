"""Every metric against a hand-made case or a second way of computing it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsd_planner.evaluation import metrics

N, DT = 64, 0.1
T = DT * np.arange(1, N + 1)
STRAIGHT = np.stack([10.0 * T, np.zeros(N)], axis=1)


def _moved(xy: np.ndarray, x: float, y: float) -> np.ndarray:
    return xy + np.array([x, y])


def test_displacement_of_a_plan_that_drifts_away():
    """A plan that leaves to the left at 0.5 m/s: the distance at t is 0.5 t, and means are those of a series."""
    plan = STRAIGHT + np.stack([np.zeros(N), 0.5 * T], axis=1)
    distance = metrics.displacement(plan, STRAIGHT)
    for horizon in metrics.HORIZONS_S:
        n = round(horizon / DT)
        assert metrics.average_displacement(distance, horizon, DT) == pytest.approx(0.5 * DT * (n + 1) / 2)
        assert metrics.final_displacement(distance, horizon, DT) == pytest.approx(0.5 * horizon)


def test_the_best_of_several_counts():
    samples = np.stack([_moved(STRAIGHT, 0.0, offset) for offset in (3.0, -1.5, 4.0)])
    distance = metrics.displacement(samples, STRAIGHT)
    assert metrics.min_average_displacement(distance, 6.4, DT) == pytest.approx(1.5)
    assert metrics.is_missed(distance, 6.4, DT) == 0.0
    assert metrics.is_missed(distance[[0, 2]], 6.4, DT) == 1.0
    assert math.isnan(metrics.is_missed(np.full((1, N), np.nan), 6.4, DT))


@given(st.floats(-3, 3), st.floats(-50, 50), st.floats(-50, 50), st.floats(-5, 5), st.floats(-5, 5))
@settings(max_examples=50, deadline=None)
def test_along_and_across_do_not_depend_on_the_frame(yaw, x, y, along, across):
    truth = np.array([[x, y]])
    ahead, left = np.array([np.cos(yaw), np.sin(yaw)]), np.array([-np.sin(yaw), np.cos(yaw)])
    found = metrics.along_and_across(truth + along * ahead + across * left, truth, np.array([yaw]))
    assert found[0][0] == pytest.approx(along, abs=1e-9) and found[1][0] == pytest.approx(across, abs=1e-9)


def test_headings_meet_behind_the_car():
    found = metrics.heading_error(np.array([3.1, -3.1, 0.2]), np.array([-3.1, 3.1, 0.5]))
    np.testing.assert_allclose(found, [6.2 - 2 * np.pi, 2 * np.pi - 6.2, -0.3], atol=1e-12)


def test_jitter_of_plans_on_one_line_is_nothing():
    later = _moved(STRAIGHT, 3.0, 0.0)
    assert metrics.jitter(STRAIGHT, later, 0.3, DT) == pytest.approx(0.0, abs=1e-12)
    assert metrics.jitter(STRAIGHT, _moved(later, 0.0, 0.7), 0.3, DT) == pytest.approx(0.7)
    assert math.isnan(metrics.jitter(STRAIGHT, later, 5.0, DT)) and math.isnan(metrics.jitter(STRAIGHT, later, 0.0, DT))


def test_unknown_truth_is_unknown_error():
    truth = {"xy": STRAIGHT.copy(), "yaw": np.zeros(N), "speed": np.full(N, 10.0)}
    for column in truth.values():
        column[30:] = np.nan
    plan = {"xy": _moved(STRAIGHT, 1.0, 0.0), "yaw": np.full(N, 0.1), "speed": np.full(N, 12.0)}
    found = metrics.against_truth(plan, truth, [plan["xy"]], DT)
    assert found["ade_3s"] == pytest.approx(1.0) and found["longitudinal_3s"] == pytest.approx(1.0)
    assert math.isnan(found["ade_5s"]) and math.isnan(found["miss_6.4s"]) and math.isnan(found["heading"])
    assert "min_ade_1_6.4s" not in found


def test_comfort_of_a_plan():
    assert metrics.plan_is_comfortable(np.full(N, 10.0), np.zeros(N), DT) == 1.0
    assert metrics.plan_is_comfortable(np.full(N, 10.0), np.full(N, 0.06), DT) == 0.0  # 6 m/s^2 sideways


def test_the_interval_covers_the_mean_as_often_as_it_says():
    """Coverage over 200 draws of 40 clips whose means vary: near 95 %, and far from what cycles alone would give."""
    random = np.random.default_rng(1)
    hits = 0
    for seed in range(200):
        clips = [random.normal(random.normal(1.0, 0.5), 0.1, random.integers(5, 30)) for _ in range(40)]
        _, low, high = metrics.bootstrap(clips, resamples=300, seed=seed)
        hits += low < 1.0 < high
    assert 170 <= hits <= 199


def test_means_without_an_interval():
    mean, low, high = metrics.bootstrap([np.array([1.0, 3.0, np.nan]), np.array([5.0])])
    assert mean == pytest.approx(3.0) and math.isnan(low) and math.isnan(high)
    assert math.isnan(metrics.bootstrap([np.array([np.nan])])[0])
