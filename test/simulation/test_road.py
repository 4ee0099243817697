"""Roads: geometry against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsd_planner.simulation.road import Road

WINDING = Road.from_segments([(60.0, 0.0), (80.0, 0.02), (60.0, -0.015), (50.0, 0.0)], start=(10.0, -5.0, 0.7))


def test_a_constant_bend_is_a_circle():
    road = Road.from_segments([(200.0, 0.02)])
    for s in (0.0, 33.3, 150.0):
        x, y, yaw = road.pose(s)
        assert (x, y, yaw) == pytest.approx((50 * math.sin(s / 50), 50 * (1 - math.cos(s / 50)), s / 50), abs=2e-2)


@settings(max_examples=200, deadline=None)
@given(st.floats(5.0, 240.0), st.floats(-8.0, 8.0))
def test_places_and_points_are_inverse(s, d):
    x, y, _ = WINDING.pose(s, d)
    found = WINDING.project(x, y)
    assert found == pytest.approx((s, d), abs=0.05)
    assert WINDING.project(x, y, near_s_m=s + 10.0) == pytest.approx(found, abs=1e-9)


def test_it_goes_on_straight_beyond_its_ends():
    x0, y0, yaw = WINDING.pose(0.0)
    x, y, same = WINDING.pose(-20.0, 2.0)
    assert same == yaw
    assert math.hypot(x - x0, y - y0) == pytest.approx(math.hypot(20.0, 2.0))
    assert WINDING.project(x, y) == pytest.approx((-20.0, 2.0), abs=1e-6)


def test_curvature_changes_gradually():
    s = np.arange(0.0, 245.0, 0.5)
    curvature = WINDING.curvature(s)
    assert curvature.max() == pytest.approx(0.02) and curvature.min() == pytest.approx(-0.015)
    assert np.abs(np.diff(curvature)).max() < 0.035 / 12.0  # over 12 m
    heading = np.array([WINDING.pose(at)[2] for at in s])
    np.testing.assert_allclose(np.gradient(heading, s)[2:-2], curvature[2:-2], atol=1.5e-3)
