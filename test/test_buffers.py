"""Odometry and frame buffers with the streams that cars send."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from rsd_planner.buffers import NotReady, OdometryBuffer, OdometrySample, StampFilter
from rsd_planner.evaluation.bags import read_odometry

SECOND = 1_000_000_000
EPOCH = 1_700_000_000 * SECOND


def _sample(stamp_ns: int, xyz, yaw_rad: float = 0.0, speed_mps: float = 0.0) -> OdometrySample:
    return OdometrySample(
        stamp_ns, tuple(xyz), (0.0, 0.0, math.sin(yaw_rad / 2), math.cos(yaw_rad / 2)), speed_mps, 0.0
    )


def _drive(buffer: OdometryBuffer, stamps_s, pose) -> None:
    for t in stamps_s:
        x, y, yaw, speed = pose(t)
        assert buffer.add(_sample(EPOCH + round(t * SECOND), (x, y, 0.0), yaw, speed))


@settings(max_examples=30, deadline=None)
@given(
    rate_hz=st.floats(20, 200),
    jitter=st.floats(0, 0.4),
    seed=st.integers(0, 1000),
    origin=st.sampled_from([0.0, 1000.0, 250_000.0]),
    heading=st.floats(-3.1, 3.1),
)
def test_jittery_odometry_far_from_the_origin(rate_hz, jitter, seed, origin, heading):
    """A 12 m/s turn of 0.3 rad/s seen at any rate, anywhere, in any direction: millimetres, not decimetres."""
    speed, rate = 12.0, 0.3
    step = 1.0 / rate_hz
    noise = np.random.default_rng(seed).uniform(-jitter, jitter, int(3 / step)) * step
    stamps = np.arange(len(noise)) * step + noise

    def pose(t):
        yaw = heading + rate * t
        x = origin + speed / rate * (math.sin(yaw) - math.sin(heading))
        y = -origin - speed / rate * (math.cos(yaw) - math.cos(heading))
        return x, y, yaw, speed

    buffer = OdometryBuffer()
    _drive(buffer, stamps, pose)
    history = buffer.history(EPOCH + int(2.0 * SECOND), poses=16, dt_s=0.1)
    t = np.arange(-15, 1) * 0.1
    # Linear interpolation cuts a corner by at most v w h^2 / 8 with h the step between samples.
    tolerance = speed * rate * (step * (1 + 2 * jitter)) ** 2 / 8 + 1e-6 * max(origin, 1) / 1000 + 1e-6
    np.testing.assert_allclose(history.xyz[:, 0], speed / rate * np.sin(rate * t), atol=2 * tolerance)
    np.testing.assert_allclose(history.xyz[:, 1], speed / rate * (1 - np.cos(rate * t)), atol=2 * tolerance)
    yaw = np.arctan2(history.rotation[:, 1, 0], history.rotation[:, 0, 0])
    np.testing.assert_allclose(yaw, rate * t, atol=1e-6)
    assert np.all(history.xyz[-1] == 0.0)
    assert history.speed_mps == pytest.approx(speed)


def test_a_pitched_pose_is_relative_to_the_car(data: Path):
    """On a real drive, rotating the whole world changes nothing that the car sees."""
    rows = read_odometry(data / "comma2k19" / "segment_40_odometry.csv")
    turn = Rotation.from_euler("xyz", [0.3, -0.2, 2.5])
    plain, turned = OdometryBuffer(), OdometryBuffer()
    for row in rows[:60]:
        stamp = EPOCH + round(row.t_s * SECOND)
        plain.add(OdometrySample(stamp, row.position, row.quaternion, row.velocity[0], row.yaw_rate_radps))
        position = tuple(turn.apply(row.position) + np.array([1000.0, -2000.0, 30.0]))
        quaternion = tuple((turn * Rotation.from_quat(row.quaternion)).as_quat())
        turned.add(OdometrySample(stamp, position, quaternion, row.velocity[0], row.yaw_rate_radps))
    t0 = EPOCH + round(2.5 * SECOND)
    one, two = plain.history(t0, 16, 0.1), turned.history(t0, 16, 0.1)
    np.testing.assert_allclose(one.xyz, two.xyz, atol=1e-9)
    np.testing.assert_allclose(one.rotation, two.rotation, atol=1e-9)
    assert one.xyz[0, 0] < -8.0  # it drove at 8 to 20 m/s


def test_yaw_is_interpolated_the_short_way_round():
    buffer = OdometryBuffer()
    for k, degrees in enumerate([170, 178, -174, -166]):
        buffer.add(_sample(EPOCH + k * SECOND // 5, (0, 0, 0), math.radians(degrees)))
    history = buffer.history(EPOCH + SECOND // 2, poses=2, dt_s=0.1)
    # t0 is halfway between -174 and -166, 0.1 s before it is -174.
    yaw = np.degrees(np.arctan2(history.rotation[:, 1, 0], history.rotation[:, 0, 0]))
    np.testing.assert_allclose(yaw, [-4.0, 0.0], atol=1e-9)


def test_what_is_missing_is_said():
    buffer = OdometryBuffer(max_gap_s=0.25)
    with pytest.raises(NotReady, match="has not reached"):
        buffer.history(EPOCH, 16, 0.1)
    _drive(buffer, np.arange(0, 1.0, 0.05), lambda t: (t, 0, 0, 1))
    with pytest.raises(NotReady, match=r"covers 0\.90 s of the 1\.5 s"):
        buffer.history(EPOCH + int(0.9 * SECOND), 16, 0.1)
    _drive(buffer, np.arange(1.4, 3.0, 0.05), lambda t: (t, 0, 0, 1))
    with pytest.raises(NotReady, match=r"gap of 0\.45 s"):
        buffer.history(EPOCH + int(2.0 * SECOND), 16, 0.1)
    assert buffer.history(EPOCH + int(2.92 * SECOND), 16, 0.1).xyz[0, 0] == pytest.approx(-1.5)


@pytest.mark.parametrize(
    ("position", "quaternion", "message"),
    [
        ((0.0, math.nan, 0.0), (0, 0, 0, 1), "position .* not finite"),
        ((0.0, 0.0, 0.0), (0, 0, 0, 0), "norm 0, expected 1"),
        ((0.0, 0.0, 0.0), (0, 0, math.nan, 1), "norm nan"),
    ],
)
def test_unusable_poses_are_refused(position, quaternion, message):
    with pytest.raises(ValueError, match=message):
        OdometrySample(EPOCH, position, quaternion, 0.0, 0.0)


def test_duplicates_and_backward_stamps_are_counted():
    order = StampFilter()
    assert [order.accept(stamp) for stamp in (10, 20, 20, 15, 30)] == [True, True, False, False, True]
    assert (order.duplicates, order.backward, order.restarts, order.received) == (1, 1, 0, 5)


def test_a_looping_stream_begins_anew():
    order = StampFilter()
    assert all(order.accept(stamp) for stamp in range(10, 1010, 10))
    accepted = [order.accept(stamp) for stamp in range(10, 310, 10)]
    assert accepted.index(True) == 9 and all(accepted[9:]) and order.restarts == 1


def test_one_stamp_from_the_future_does_not_block_the_stream():
    order = StampFilter()
    order.accept(10)
    order.accept(10**18)
    accepted = [order.accept(stamp) for stamp in range(20, 500, 10)]
    assert accepted.index(True) == 9 and all(accepted[9:])


def test_missing_messages_are_counted_by_their_stamps():
    order = StampFilter()
    for k in [*range(1, 11), 13, 14, 18]:  # 11, 12 and 15, 16, 17 never came
        order.accept(k * SECOND // 10)
    assert order.missing == 5
    assert order.period_ns == SECOND // 10
