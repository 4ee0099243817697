"""Bags made of recorded data, read back."""

from __future__ import annotations

from collections import Counter

import cv2
import numpy as np
import pytest
from rosbags.highlevel import AnyReader

from rsd_planner.evaluation.bags import read_odometry, write_sample_bag


def _make(data, out, **options):
    pictures = sorted((data / "udacity_highway").glob("*.jpg"))
    return write_sample_bag(data / "comma2k19" / "segment_40_odometry.csv", pictures, out, **options)


@pytest.mark.parametrize("storage", ["sqlite3", "mcap"])
@pytest.mark.parametrize("transport", ["compressed", "raw"])
def test_what_is_written_is_read(data, tmp_path, storage, transport):
    out = tmp_path / "bag"
    count = _make(data, out, storage=storage, transport=transport, seconds=1.0, size=(160, 90))
    rows = [row for row in read_odometry(data / "comma2k19" / "segment_40_odometry.csv") if row.t_s <= 1.0]
    with AnyReader([out]) as reader:
        messages = [(c, t, reader.deserialize(raw, c.msgtype)) for c, t, raw in reader.messages()]
    assert len(messages) == count
    assert Counter(connection.topic for connection, _, _ in messages)["/odometry"] == len(rows)
    times = [time for _, time, _ in messages]
    assert times == sorted(times)
    stamps: dict[str, list[int]] = {}
    for connection, time, message in messages:
        stamp = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
        assert stamp == time
        stamps.setdefault(connection.topic, []).append(stamp)
    cameras = [topic for topic in stamps if topic.startswith("/camera")]
    assert len(cameras) == 4
    assert all(np.all(np.diff(stamps[topic]) == 10**8) for topic in cameras)
    odometry = [message for connection, _, message in messages if connection.topic == "/odometry"]
    for row, message in zip(rows, odometry, strict=True):
        position = message.pose.pose.position
        assert (position.x, position.y, position.z) == row.position
        assert message.twist.twist.linear.x == row.velocity[0]
    image = next(message for connection, _, message in messages if "front_wide" in connection.topic)
    if transport == "raw":
        assert (image.height, image.width, image.step, image.encoding) == (90, 160, 480, "rgb8")
        source = cv2.imread(str(sorted((data / "udacity_highway").glob("*.jpg"))[1]))
        expected = cv2.resize(source, (160, 90), interpolation=cv2.INTER_AREA)[:, :, ::-1]
        np.testing.assert_array_equal(image.data.reshape(90, 160, 3), expected)
    else:
        assert cv2.imdecode(image.data, cv2.IMREAD_COLOR).shape == (90, 160, 3)


def test_jpeg_files_go_in_unchanged(data, tmp_path):
    _make(data, tmp_path / "bag", seconds=0.2)
    pictures = sorted((data / "udacity_highway").glob("*.jpg"))
    with AnyReader([tmp_path / "bag"]) as reader:
        connections = [c for c in reader.connections if "cross_left" in c.topic]
        raw = [reader.deserialize(raw, c.msgtype).data.tobytes() for c, _, raw in reader.messages(connections)]
    assert raw == [picture.read_bytes() for picture in pictures[: len(raw)]]


def test_nothing_is_overwritten_and_nothing_half_done_stays(data, tmp_path, monkeypatch):
    out = tmp_path / "bag"
    out.mkdir()
    with pytest.raises(FileExistsError, match="exists already"):
        _make(data, out, seconds=0.2)
    out.rmdir()
    monkeypatch.setattr("rsd_planner.evaluation.bags.odometry_message", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        _make(data, out, seconds=0.2)
    assert not out.exists()


def test_unusable_sources_are_named(data, tmp_path):
    table = tmp_path / "odometry.csv"
    table.write_text("t_s,x_m\n0,0\n")
    with pytest.raises(ValueError, match="lacks the columns y_m, z_m"):
        read_odometry(table)
    source = (data / "comma2k19" / "segment_40_odometry.csv").read_text().splitlines()
    table.write_text("\n".join([*source[:3], source[3].replace(source[3].split(",")[1], "nan", 1)]))
    with pytest.raises(ValueError, match="line 4: a value is not finite"):
        read_odometry(table)
    table.write_text(source[0] + "\n")
    with pytest.raises(ValueError, match="holds no rows"):
        read_odometry(table)
    with pytest.raises(ValueError, match=r"README\.md is not a picture"):
        write_sample_bag(
            data / "comma2k19" / "segment_40_odometry.csv", [data / "README.md"], tmp_path / "bag", seconds=0.1
        )
