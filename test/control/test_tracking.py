"""Trackers: the model inside the MPC, its optimum, and closed loops."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from drives import TruePath, drive
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from rsd_planner.control.controller import Controller
from rsd_planner.control.mpc import Mpc, MpcSettings, _lag_integrals, _Programme
from rsd_planner.control.pure_pursuit import PurePursuit
from rsd_planner.control.supervisor import Mode, SafetyLimits
from rsd_planner.control.tracking import path_error
from rsd_planner.control.vehicle import Command, Vehicle, VehicleState

CAR = Vehicle()


def test_the_lag_model_is_the_actuators():
    """Value, integral and double integral of a lagging actuator under a ramp, against fine integration."""
    lag, step, value, command, rate = 0.17, 0.1, 0.4, -0.2, 1.3
    fine = 200_000
    h = step / fine
    x, first, second = value, 0.0, 0.0
    for k in range(fine):
        second += first * h
        first += x * h
        x += (command + rate * (k + 0.5) * h - x) * h / lag
    for found, expected in zip(_lag_integrals(lag, step), (x, first, second), strict=True):
        assert found @ np.array([value, command, rate]) == pytest.approx(expected, rel=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_the_programme_finds_the_optimum(seed):
    """Against scipy's bounded least squares, where only the rates are bounded."""
    random = np.random.default_rng(seed)
    response, target = random.normal(size=(30, 20)), random.normal(size=30) * 3
    programme = _Programme(20, 0.1)
    wide = np.full(20, 1e3)
    for scale in (1.0, 0.3):  # the second call updates the solver instead of setting it up
        hessian, gradient = scale * response.T @ response, -scale * response.T @ target
        found = programme.solve(hessian, gradient, 0.2, -wide, wide)
        expected = lsq_linear(response, target, bounds=(-0.2, 0.2)).x
        cost = np.sum((response @ found - target) ** 2)
        assert cost <= np.sum((response @ expected - target) ** 2) * (1 + 1e-3)
        assert np.abs(found).max() <= 0.2 + 1e-3


def test_the_error_is_measured_at_the_nearest_point():
    path = TruePath(lambda t: 10.0, lambda t: 0.02, 4.0)
    plan = path.plan(0.0)
    place = plan.at(np.array([2.3]))
    yaw = float(place.yaw_rad[0])
    left = 0.7
    state = VehicleState(place.x_m[0] - left * math.sin(yaw), place.y_m[0] + left * math.cos(yaw), yaw + 0.05, 10.0)
    error = path_error(plan, 2.0, state)
    assert error.lateral_m == pytest.approx(left, abs=1e-3)
    assert error.heading_rad == pytest.approx(0.05, abs=2e-3)
    assert error.time_s == pytest.approx(2.3, abs=1e-2)
    assert error.along_m == pytest.approx(3.0, abs=0.05)  # where it should be 0.3 s later


def test_a_standing_plan_has_no_ambiguous_place():
    plan = TruePath(lambda t: 0.0, lambda t: 0.0, 4.0).plan(0.0)
    error = path_error(plan, 1.0, VehicleState(x_m=0.2))
    assert error.time_s == pytest.approx(1.0, abs=0.03) and error.along_m == pytest.approx(0.2)


DRIVES = {
    "straight": (lambda t: 15.0, lambda t: 0.0),
    "curve": (lambda t: 9.0, lambda t: 0.04 * min(max((t - 3) / 1.5, 0.0), 1.0)),
    "s-curve at 25 m/s": (lambda t: 25.0, lambda t: 0.005 * math.sin(1.2 * t)),
    "tight turn": (lambda t: 4.0, lambda t: 0.12 * min(max((t - 3) / 1.5, 0.0), 1.0)),
    "brake to a stop": (lambda t: max(0.0, 12.0 - 2.5 * max(t - 4.0, 0.0)), lambda t: 0.01),
    "standing start": (lambda t: min(12.0, max(0.0, 1.5 * (t - 3.0))), lambda t: 0.0),
}


@pytest.mark.parametrize("name", DRIVES)
@pytest.mark.parametrize("tracker", [Mpc(CAR), PurePursuit(CAR)], ids=["mpc", "pure pursuit"])
def test_closed_loops(name, tracker):
    """Plans 0.15 s old, dead time and lags: the goal's 0.15 m and 0.3 m/s, commands inside the limits."""
    speed, curvature = DRIVES[name]
    path = TruePath(speed, curvature, 10.0)
    controller = Controller(CAR, tracker, SafetyLimits(), 0.02)
    result = drive(path, controller, CAR, 10.0, VehicleState(speed_mps=speed(0.0)))
    settled = slice(200, None)
    lateral = np.array(result.lateral[settled])
    errors = np.array([state.speed_mps for state in result.states[settled]]) - path.speed[201:1001]
    assert np.sqrt(np.mean(lateral**2)) < 0.15
    assert np.sqrt(np.mean(errors**2)) < 0.3
    assert all(output.mode is Mode.FOLLOWING for output in result.outputs[20:])
    assert controller.solver_failures == 0
    commands = [output.command for output in result.outputs]
    rates = np.diff([command.steering_rad for command in commands]) / 0.02
    assert np.abs(rates).max() <= CAR.max_steering_rate_radps * 1.001
    jerks = np.diff([command.acceleration_mps2 for command in commands[20:]]) / 0.02
    assert np.abs(jerks).max() <= MpcSettings().max_jerk_mps3 * 1.01


@pytest.mark.parametrize("speed", [8.0, 20.0, 35.0])
def test_no_limit_cycle_at_any_speed(speed):
    """Half a metre off at the start: the error dies out without overshooting far, and stays out."""
    path = TruePath(lambda t: speed, lambda t: 0.0, 10.0)
    controller = Controller(CAR, Mpc(CAR), SafetyLimits(), 0.02)
    result = drive(path, controller, CAR, 10.0, VehicleState(y_m=0.5, speed_mps=speed))
    lateral = np.array(result.lateral)
    assert lateral.min() > -0.1
    assert np.abs(lateral[600:]).max() < 0.01
    assert np.std([output.command.steering_rad for output in result.outputs[300:]]) < 1e-4


def test_a_solver_that_fails_is_replaced_for_that_cycle(monkeypatch):
    path = TruePath(lambda t: 10.0, lambda t: 0.02, 6.0)
    controller = Controller(CAR, Mpc(CAR), SafetyLimits(), 0.02)
    monkeypatch.setattr(_Programme, "solve", lambda *_: None)
    result = drive(path, controller, CAR, 6.0, VehicleState(speed_mps=10.0, steering_rad=0.0))
    assert controller.solver_failures > 200
    assert np.abs(result.lateral[300:]).max() < 0.3


def test_delay_is_compensated():
    """The car's state when a command acts is predicted: the same loop with plans 0.4 s old tracks as well."""
    path = TruePath(lambda t: 15.0, lambda t: 0.01 * math.sin(t), 8.0)
    rms = []
    for age in (0.05, 0.4):
        controller = Controller(CAR, Mpc(CAR), SafetyLimits(max_plan_age_s=0.6), 0.02)
        result = drive(path, controller, CAR, 8.0, VehicleState(speed_mps=15.0), plan_age_s=age)
        rms.append(float(np.sqrt(np.mean(np.square(result.lateral[200:])))))
    assert rms[1] < rms[0] + 0.02


def test_garbage_commands_never_leave(monkeypatch):
    path = TruePath(lambda t: 10.0, lambda t: 0.0, 4.0)
    tracker = PurePursuit(CAR)
    controller = Controller(CAR, tracker, SafetyLimits(), 0.02)
    original = tracker.track

    def broken(*arguments):
        return dataclasses.replace(original(*arguments), command=Command(math.nan, math.inf))

    monkeypatch.setattr(tracker, "track", broken)
    result = drive(path, controller, CAR, 3.0, VehicleState(speed_mps=10.0))
    assert all(
        math.isfinite(output.command.steering_rad) and math.isfinite(output.command.acceleration_mps2)
        for output in result.outputs
    )
    assert result.states[-1].speed_mps < 5.0
