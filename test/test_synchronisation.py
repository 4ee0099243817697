"""Scenes from streams: which t0, which frames, and why not."""

from __future__ import annotations

import numpy as np
import pytest

from rsd_planner.buffers import Camera, Frame, NotReady, OdometrySample
from rsd_planner.synchronisation import SynchronisationLimits, Synchroniser, Undecodable

MS = 1_000_000
CAMERAS = [Camera("left", 0), Camera("front", 1)]


def _frame(stamp_ms: int) -> Frame:
    return Frame(stamp_ms * MS, lambda: np.full((2, 2, 3), stamp_ms % 251, dtype=np.uint8))


def _odometry(inputs: Synchroniser, until_ms: int, begin_ms: int = 0) -> None:
    for stamp_ms in range(begin_ms, until_ms + 1, 20):
        position = (stamp_ms * 0.01, 0.0, 0.0)
        inputs.odometry.add(OdometrySample(stamp_ms * MS, position, (0.0, 0.0, 0.0, 1.0), 10.0, 0.0))


@pytest.fixture
def inputs() -> Synchroniser:
    return Synchroniser(CAMERAS, history_poses=16, history_dt_s=0.1)


def _cameras(inputs: Synchroniser, stamps_ms, offset_ms: int = 7) -> None:
    for stamp_ms in stamps_ms:
        inputs.cameras["left"].add(_frame(stamp_ms))
        inputs.cameras["front"].add(_frame(stamp_ms + offset_ms))


def test_the_newest_stamp_where_all_meet(inputs):
    _cameras(inputs, range(1600, 2100, 100))
    _odometry(inputs, 1960)
    selection = inputs.select()
    assert selection.t0_ns == 1900 * MS  # odometry has not reached 2000
    scene = selection.decode()
    assert [camera.stamps_ns for camera in scene.cameras] == [
        tuple(stamp * MS for stamp in (1600, 1700, 1800, 1900)),
        tuple(stamp * MS for stamp in (1607, 1707, 1807, 1907)),
    ]
    assert scene.cameras[1].images[3][0, 0, 0] == 1907 % 251
    assert scene.history.xyz[0, 0] == pytest.approx(-15.0)
    with pytest.raises(NotReady, match="odometry has not reached"):
        inputs.select()  # nothing newer
    _odometry(inputs, 2000, begin_ms=1980)
    assert inputs.select().t0_ns == 2000 * MS
    with pytest.raises(NotReady, match="no new frame"):
        inputs.select()


def test_cameras_at_different_rates_are_paired_by_stamp(inputs):
    """30 Hz beside 10 Hz: the frames nearest to t0 - 0.3 .. t0, never the last four arrivals."""
    _odometry(inputs, 3000)
    for stamp in range(1500, 2500, 100):
        inputs.cameras["left"].add(_frame(stamp))
    for stamp in range(1500, 2500, 33):
        inputs.cameras["front"].add(_frame(stamp))
    scene = inputs.select().decode()
    wanted = [2100, 2200, 2300, 2400]
    assert all(abs(s // MS - w) <= 17 for s, w in zip(scene.cameras[1].stamps_ns, wanted, strict=True))


def test_a_lost_frame_is_bridged_and_a_late_camera_is_not(inputs):
    _odometry(inputs, 3000)
    _cameras(inputs, [1600, 1700, 1900])  # 1800 was lost
    scene = inputs.select().decode()
    assert scene.cameras[0].stamps_ns == (1600 * MS, 1700 * MS, 1700 * MS, 1900 * MS)
    inputs.cameras["left"].add(_frame(2100))
    with pytest.raises(NotReady, match=r"camera front: the nearest frame is -0\.193 s off"):
        inputs.select()


def test_what_is_missing_is_named(inputs):
    with pytest.raises(NotReady, match="camera left: no frame yet"):
        inputs.select()
    _cameras(inputs, [1700, 1800])
    with pytest.raises(NotReady, match="no odometry yet"):
        inputs.select()
    _odometry(inputs, 3000)
    with pytest.raises(NotReady, match=r"camera left: the nearest frame is \+0\.200 s off"):
        inputs.select()  # t0 would be 1800, its oldest frame 1500


def test_an_undecodable_frame_is_taken_out(inputs):
    def broken():
        raise ValueError("the JPEG of 3 bytes is truncated")

    _odometry(inputs, 3000)
    _cameras(inputs, [1600, 1700, 1800])
    inputs.cameras["left"].add(Frame(1900 * MS, broken))
    inputs.cameras["front"].add(_frame(1907))
    with pytest.raises(Undecodable, match="camera left, stamp 1900000000 ns: the JPEG"):
        inputs.select().decode()
    assert inputs.cameras["left"].invalid == 1
    assert 1900 * MS not in inputs.cameras["left"].stamps_ns
    _cameras(inputs, [2000])
    assert inputs.select().decode().t0_ns == 2000 * MS


def test_a_stream_that_begins_anew_is_planned_on_again(inputs):
    _odometry(inputs, 3000)
    _cameras(inputs, range(1600, 2600, 100))
    assert inputs.select().t0_ns == 2500 * MS
    inputs.clear()
    _odometry(inputs, 3000)
    _cameras(inputs, range(1600, 2000, 100))
    assert inputs.select().t0_ns == 1900 * MS


def test_a_period_is_kept_in_stamps():
    """30 Hz frames and 10 cycles a second: every third frame, whenever it arrives."""
    inputs = Synchroniser([Camera("front", 1)], 16, 0.1, min_period_s=0.1)
    _odometry(inputs, 5000)
    chosen = []
    for k in range(90):
        inputs.cameras["front"].add(_frame(1600 + k * 100 // 3))
        try:
            chosen.append(inputs.select().t0_ns // MS)
        except NotReady:
            continue
    assert 26 <= len(chosen) <= 30
    assert np.diff(chosen).min() >= 90


def test_frames_are_decoded_once():
    calls = []
    frame = Frame(0, lambda: calls.append(1) or np.zeros((2, 2, 3), dtype=np.uint8))
    frame.image(), frame.image()
    assert calls == [1]


def test_buffers_hold_seconds_not_bags(inputs):
    _cameras(inputs, range(0, 60_000, 10))
    assert len(inputs.cameras["left"].stamps_ns) < 120
    _odometry(inputs, 60_000)
    assert inputs.odometry._samples[0].stamp_ns >= 55_000 * MS


def test_impossible_camera_sets_are_refused():
    with pytest.raises(ValueError, match="1 to 8 cameras"):
        Synchroniser([], 16, 0.1)
    with pytest.raises(ValueError, match="different names and indices"):
        Synchroniser([Camera("a", 0), Camera("b", 0)], 16, 0.1, SynchronisationLimits())
