"""When the car stops, how, and what starts it again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drives import TruePath, drive
from hypothesis import given, settings
from hypothesis import strategies as st

from rsd_planner.control.controller import Controller
from rsd_planner.control.mpc import Mpc
from rsd_planner.control.reference import ImplausiblePlan
from rsd_planner.control.supervisor import Mode, SafetyLimits, Supervisor, stop_profile
from rsd_planner.control.vehicle import Vehicle, VehicleState

CAR, LIMITS = Vehicle(), SafetyLimits()
PATH = TruePath(lambda t: 10.0, lambda t: 0.02, 12.0)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.0, 40.0), st.floats(-3.0, 2.5))
def test_a_stop_is_bounded(speed, acceleration):
    profile = stop_profile(speed, acceleration, LIMITS)
    rate = np.diff(profile) / 0.05
    assert profile[0] == speed and profile[-1] == 0.0
    assert rate.min() >= -LIMITS.stop_deceleration_mps2 - 1e-9
    assert np.all(rate <= 1e-9)
    # The first step may drop the throttle; after it the jerk is bounded until the last step, which ends at 0.
    assert np.abs(np.diff(rate[:-2])).max(initial=0.0) <= LIMITS.stop_jerk_mps3 * 0.05 + 0.06
    # Not later than at half the deceleration, plus the time to build it up and ease it off.
    assert len(profile) * 0.05 < 1.5 + 2 * speed / LIMITS.stop_deceleration_mps2


def _controller() -> Controller:
    return Controller(CAR, Mpc(CAR), LIMITS, 0.02)


def test_silence_of_the_planner_stops_the_car_on_its_path():
    result = drive(PATH, _controller(), CAR, 10.0, VehicleState(speed_mps=10.0), plans_until_s=3.0)
    stop = next(k for k, output in enumerate(result.outputs) if output.mode is Mode.MINIMUM_RISK)
    # The last plan's t0 is 3.0 s at most, so at 3.5 s it is too old.
    assert 3.3 <= stop * 0.02 <= 3.6
    assert "the newest plan is 0.5" in result.outputs[stop].reason
    assert result.states[-1].speed_mps == pytest.approx(0.0, abs=0.05)
    assert np.abs(result.lateral[300:]).max() < 0.15  # it stays in the curve
    acceleration = [state.acceleration_mps2 for state in result.states]
    assert min(acceleration) >= -LIMITS.stop_deceleration_mps2
    assert all(output.mode is Mode.MINIMUM_RISK for output in result.outputs[stop:])


def test_lost_odometry_stops_the_car_blind():
    result = drive(PATH, _controller(), CAR, 9.0, VehicleState(speed_mps=10.0), odometry_until_s=3.0)
    assert result.outputs[-1].mode is Mode.MINIMUM_RISK
    assert result.outputs[-1].reason == "odometry is lost"
    assert result.states[-1].speed_mps == 0.0
    assert min(state.acceleration_mps2 for state in result.states) > -LIMITS.stop_deceleration_mps2 - 0.1


def _creeping(controller: Controller) -> list[VehicleState]:
    """Braking to 0.4 m/s, creeping on for five seconds, setting off at 8 s."""
    path = TruePath(lambda t: max(0.4, 2.0 - t) if t < 8.0 else min(0.4 + 1.2 * (t - 8.0), 6.0), lambda t: 0.0, 12.0)
    return drive(path, controller, CAR, 10.0, VehicleState(speed_mps=2.0)).states


def test_a_plan_that_creeps_means_to_stand_until_one_means_to_move():
    stands = _creeping(_controller())
    speed = np.array([state.speed_mps for state in stands])
    assert speed[250:680].max() == 0.0  # a plan of 6.8 s reaches 0.6 m/s within 1.5 s
    assert speed[-1] > 1.5
    acceleration = np.array([state.acceleration_mps2 for state in stands])
    assert acceleration.min() > -1.5
    creeps = _creeping(Controller(CAR, Mpc(CAR), replace(LIMITS, standstill_speed_mps=0.0), 0.02))
    assert np.array([state.speed_mps for state in creeps])[250:680].min() > 0.2


def test_a_plan_that_passes_through_slowness_is_followed():
    path = TruePath(lambda t: 0.3 + 1.2 * abs(t - 3.0), lambda t: 0.0, 8.0)
    result = drive(path, _controller(), CAR, 6.0, VehicleState(speed_mps=3.9))
    assert min(state.speed_mps for state in result.states) > 0.15


def test_without_a_plan_the_car_is_held():
    controller = _controller()
    controller.on_odometry(0, 0.0, 0.0, 0.0, 0.0)
    for tick in range(50):
        output = controller.step(tick * 20_000_000)
    assert output.mode is Mode.WAITING and output.plan_id == 0 and output.command.acceleration_mps2 == -1.0


def test_an_implausible_plan_stops_and_a_good_one_goes_on():
    supervisor = Supervisor(LIMITS)
    state = VehicleState(speed_mps=10.0)
    supervisor.offer(PATH.plan(0.0, 1), 0, state)
    assert supervisor.mode is Mode.FOLLOWING
    far = VehicleState(x_m=50.0, speed_mps=10.0)
    with pytest.raises(ImplausiblePlan, match=r"plan 2: it is 4\d\.\d m away from the car"):
        supervisor.offer(PATH.plan(0.1, 2), 10**8, far)
    assert supervisor.mode is Mode.MINIMUM_RISK and supervisor.rejected_plans == 1
    stopping = supervisor.reference
    assert stopping.speed_mps[-1] == 0.0
    # Latched: neither time nor an old plan ends it.
    supervisor.watch(2 * 10**8, 2 * 10**8, state)
    supervisor.offer(PATH.plan(0.0, 3), 2 * 10**8, None)
    assert supervisor.mode is Mode.MINIMUM_RISK and supervisor.reference is stopping
    supervisor.offer(PATH.plan(0.2, 4), 3 * 10**8, None)
    assert supervisor.mode is Mode.FOLLOWING and supervisor.reference.plan_id == 4 and supervisor.reason == ""


def test_plans_out_of_order_are_ignored():
    supervisor = Supervisor(LIMITS)
    supervisor.offer(PATH.plan(0.2, 2), 3 * 10**8, None)
    supervisor.offer(PATH.plan(0.1, 1), 3 * 10**8, None)
    assert supervisor.reference.plan_id == 2
