"""Plans as references: places, times and plausibility."""

from __future__ import annotations

import math

import numpy as np
import pytest
from drives import TruePath

from rsd_planner.control.reference import ImplausiblePlan, PlausibilityLimits, Reference

PATH = TruePath(lambda t: 10.0 - 0.5 * t, lambda t: 0.03, seconds=4.0)


def test_any_time_of_a_plan_is_on_the_path():
    plan = PATH.plan(1.0)
    times = np.linspace(0.0, 6.3, 200)
    sampled = plan.at(times)
    index = np.round((times + 1.0) * 100).astype(int)
    exact = (times + 1.0) * 100 - index  # hundredths of a step that the grid misses
    along = exact * 0.01 * PATH.speed[index]
    np.testing.assert_allclose(sampled.x_m, PATH.x[index] + along * np.cos(PATH.yaw[index]), atol=2e-3)
    np.testing.assert_allclose(sampled.y_m, PATH.y[index] + along * np.sin(PATH.yaw[index]), atol=2e-3)
    np.testing.assert_allclose(sampled.speed_mps, 9.5 - 0.5 * times, atol=1e-9)
    np.testing.assert_allclose(sampled.acceleration_mps2, -0.5, atol=1e-9)


def test_before_and_beyond_a_plan_it_goes_on_straight():
    plan = PATH.plan(0.0)
    last, after, before = plan.at(np.array([6.4])), plan.at(np.array([7.4])), plan.at(np.array([-0.5]))
    step = math.hypot(after.x_m[0] - last.x_m[0], after.y_m[0] - last.y_m[0])
    assert step == pytest.approx(last.speed_mps[0])
    assert after.curvature_radpm[0] == 0.0
    assert before.x_m[0] == pytest.approx(-5.0)


def _plan(**columns: tuple[int, float]) -> Reference:
    """A plan at 10 m/s straight on with single values replaced: time, x, y, yaw, speed, curvature = (row, value)."""
    points = np.stack(
        [0.1 * np.arange(1, 65), np.arange(1, 65), *[np.zeros(64)] * 2, np.full(64, 10.0), np.zeros(64)], 1
    )
    for name, (row, value) in columns.items():
        points[row, ["time", "x", "y", "yaw", "speed", "curvature"].index(name)] = value
    return Reference.from_plan(0, 9, (0.0, 0.0, 0.0), 10.0, points)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"y": (7, math.nan)}, "plan 9: x_m of point 7 is not finite"),
        ({"time": (7, 0.3)}, "times do not rise"),
        ({"speed": (7, 60.0)}, "speed of 60.0 at point 8"),
        ({"speed": (7, 12.0)}, "acceleration of 20.0 at point 7"),
        ({"curvature": (7, 0.2)}, "lateral acceleration of 20.0 at point 7"),
        ({"x": (7, 9.0)}, "distance between points against their speed of 10.0"),
    ],
)
def test_implausible_plans_are_named(columns, message):
    _plan().check(PlausibilityLimits())
    with pytest.raises(ImplausiblePlan, match=message):
        _plan(**columns).check(PlausibilityLimits())


def test_an_empty_or_short_plan_is_implausible():
    for points, message in (
        (np.zeros((0, 6)), "do not rise"),
        (np.array([[0.1, 1.0, 0, 0, 10.0, 0]]), "ends after 0.10 s"),
    ):
        with pytest.raises(ImplausiblePlan, match=message):
            Reference.from_plan(0, 1, (0.0, 0.0, 0.0), 10.0, points).check(PlausibilityLimits())
