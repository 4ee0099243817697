"""Comfort against motions whose derivatives are known."""

from __future__ import annotations

import numpy as np
import pytest

from rsd_planner.control.comfort import comfort

T = np.arange(0.0, 20.0, 0.1)


def test_quadratic_speed_is_differentiated_exactly():
    """An order-2 fit has the derivatives of a parabola without error: a = 1 - 0.1 t, jerk = -0.1."""
    ride = comfort(0.1, 5.0 + T - 0.05 * T**2, np.zeros_like(T))
    assert ride.max_longitudinal_mps2 == pytest.approx(1.0)
    assert ride.min_longitudinal_mps2 == pytest.approx(1.0 - 0.1 * T[-1])
    assert ride.max_longitudinal_jerk_mps3 == pytest.approx(0.1)
    assert ride.max_lateral_mps2 == pytest.approx(0.0, abs=1e-12)
    assert ride.within_bounds


def test_turning_at_constant_speed():
    ride = comfort(0.1, np.full_like(T, 10.0), 0.02 * T)
    assert ride.max_yaw_rate_radps == pytest.approx(0.02 * T[-1])
    assert ride.max_yaw_acceleration_radps2 == pytest.approx(0.02)
    assert ride.max_lateral_mps2 == pytest.approx(0.2 * T[-1])
    assert ride.max_jerk_mps3 == pytest.approx(0.2)


@pytest.mark.parametrize(("scale", "comfortable"), [(0.9, True), (1.1, False)])
def test_the_bounds_are_nuplans(scale, comfortable):
    """Each quantity alone, just inside and just outside: braking 4.05, pulling 2.40, lateral 4.89, yaw rate 0.95."""
    still = np.zeros_like(T)
    for speed, yaw_rate in (
        (100.0 - scale * 4.05 * T, still),
        (scale * 2.40 * T, still),
        (still + 20.0, still + scale * 4.89 / 20.0),
        (still + 1.0, still + scale * 0.95),
    ):
        ride = comfort(0.1, speed, yaw_rate)
        assert ride.within_bounds is comfortable, ride


def test_short_motions_and_wrong_ones():
    assert comfort(0.1, np.array([5.0, 5.0]), np.zeros(2)).within_bounds
    with pytest.raises(ValueError, match="two or more samples of both, not 3 and 2"):
        comfort(0.1, np.zeros(3), np.zeros(2))
