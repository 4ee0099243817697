"""The car's model against closed forms."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsd_planner.control.vehicle import Command, Vehicle, VehicleState, advance

CAR = Vehicle()


def _run(state: VehicleState, command: Command, seconds: float, step_s: float = 0.01) -> VehicleState:
    for _ in range(round(seconds / step_s)):
        state = advance(CAR, state, command, step_s)
    return state


@pytest.mark.parametrize("steering", [0.3, -0.1])
def test_constant_steering_drives_a_circle(steering):
    radius = CAR.wheelbase_m / math.tan(steering)
    state = _run(VehicleState(speed_mps=5.0, steering_rad=steering), Command(steering), 3.0)
    angle = 5.0 * 3.0 / radius
    assert (state.x_m, state.y_m) == pytest.approx((radius * math.sin(angle), radius * (1 - math.cos(angle))), abs=1e-6)
    assert math.remainder(state.yaw_rad - angle, 2 * math.pi) == pytest.approx(0.0, abs=1e-9)


def test_the_brake_acts_with_its_lag():
    state = _run(VehicleState(speed_mps=20.0), Command(acceleration_mps2=-3.0), 1.0, step_s=0.001)
    lag = CAR.acceleration_lag_s
    assert state.acceleration_mps2 == pytest.approx(-3.0 * (1 - math.exp(-1.0 / lag)), rel=1e-6)
    lost = 3.0 * (1.0 - lag * (1 - math.exp(-1.0 / lag)))
    assert state.speed_mps == pytest.approx(20.0 - lost, rel=1e-5)


def test_brakes_hold():
    state = _run(VehicleState(speed_mps=1.0), Command(acceleration_mps2=-5.0), 2.0)
    assert state.speed_mps == 0.0
    assert _run(state, Command(acceleration_mps2=-5.0), 1.0).x_m == state.x_m
    assert _run(state, Command(acceleration_mps2=1.0), 1.0).speed_mps > 0.5


@settings(max_examples=50, deadline=None)
@given(st.floats(-3, 3), st.floats(-30, 30), st.floats(0, 30))
def test_limits_hold_whatever_is_asked(steering, acceleration, speed):
    state = VehicleState(speed_mps=speed)
    for _ in range(50):
        before = state
        state = advance(CAR, state, Command(steering, acceleration), 0.02)
        assert abs(state.steering_rad) <= CAR.max_steering_rad
        assert abs(state.steering_rad - before.steering_rad) <= CAR.max_steering_rate_radps * 0.02 + 1e-12
        assert -CAR.max_deceleration_mps2 <= state.acceleration_mps2 <= CAR.max_acceleration_mps2
        assert state.speed_mps >= 0


def test_the_yaml_is_the_default_and_mistakes_are_named(tmp_path):
    config = Path(__file__).resolve().parents[2] / "config" / "vehicle.yaml"
    assert Vehicle.from_yaml(config) == CAR
    wrong = tmp_path / "car.yaml"
    wrong.write_text("wheelbase: 3\n")
    with pytest.raises(ValueError, match=r"car\.yaml: unknown keys \['wheelbase'\]"):
        Vehicle.from_yaml(wrong)
    with pytest.raises(ValueError, match="wheelbase_m must be positive"):
        Vehicle(wheelbase_m=0.0)
    with pytest.raises(ValueError, match="below pi / 2"):
        Vehicle(max_steering_rad=1.6)
