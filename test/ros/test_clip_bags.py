"""Clips as bags: what another reader finds in them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rclpy.serialization import deserialize_message
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_typestore

from rsd_planner.images import decode_compressed_image
from rsd_planner.messages import stamp_ns
from rsd_planner.ros import clip_bags, conversions
from rsd_planner.ros.bringup import share_directory
from rsd_planner.ros.nodes.player import message_class
from rsd_planner.simulation import expert
from rsd_planner.simulation.chain_of_causation import meaning
from rsd_planner.simulation.snapshot import restore
from rsd_planner.simulation.wording import parse


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clip_bags, "CLIP_S", 2.0)
        directory = tmp_path_factory.mktemp("bags")
        for clip in (0, 1):
            rig = clip_bags.Rig.from_yaml(share_directory() / "config" / "cameras.yaml")
            clip_bags.write_clip_bag(directory / f"train-{clip:06d}", "train", clip, rig, "mcap")
        yield directory


def _messages(bag) -> dict[str, list]:
    found: dict[str, list] = {}
    with Reader(bag) as reader:
        for connection, stamp, data in reader.messages():
            message = deserialize_message(bytes(data), message_class(connection.msgtype))
            found.setdefault(connection.topic, []).append((stamp, message))
    return found


def test_everything_is_there_at_its_rate(out):
    found = _messages(out / "train-000000")
    counts = {topic: len(messages) for topic, messages in found.items()}
    cameras = ("cross_left", "front_wide", "cross_right", "front_tele")
    expected = {"/clock": 200, "/odometry": 200, "/tf": 200, "/tf_static": 1}
    expected |= {f"/camera/{name}/{topic}": 20 for name in cameras for topic in ("image/compressed", "camera_info")}
    expected |= {"/simulator/world": 20, "/expert/trajectory": 20, "/expert/reasoning": 20}
    assert counts == expected
    for topic, messages in found.items():
        stamps = [stamp for stamp, _ in messages]
        assert stamps == sorted(stamps)
        if hasattr(messages[0][1], "header"):
            assert all(stamp_ns(message.header.stamp) == stamp for stamp, message in messages), topic
    picture = decode_compressed_image(found["/camera/front_wide/image/compressed"][3][1])
    assert picture.shape == (180, 320, 3) and picture.std() > 10


def test_state_odometry_and_the_experts_plan_agree(out):
    found = _messages(out / "train-000000")
    odometry = dict(found["/odometry"])
    for (stamp, state), (_, trajectory), (_, reasoning) in zip(
        found["/simulator/world"], found["/expert/trajectory"], found["/expert/reasoning"], strict=True
    ):
        world = restore({name: value for name, value in json.loads(state.data).items() if name != "stamp_ns"})
        position = odometry[stamp].pose.pose.position
        assert (position.x, position.y) == (world.ego.x_m, world.ego.y_m)
        made = expert.plan(world)
        np.testing.assert_allclose(conversions.reference(trajectory).x_m[1:], made.x_m, atol=1e-9)
        assert parse(reasoning.text) == meaning(world, made)


def test_a_reader_without_our_package_can_read_it(out):
    """The definitions of our own types lie in the bag."""
    store = get_typestore(Stores.ROS2_JAZZY)
    with Reader(out / "train-000001") as reader:
        latched = next(c for c in reader.connections if c.topic == "/tf_static")
        assert latched.ext.offered_qos_profiles[0].durability.name == "TRANSIENT_LOCAL"
        connection = next(c for c in reader.connections if c.topic == "/expert/trajectory")
        from rosbags.typesys import get_types_from_msg

        store.register(get_types_from_msg(connection.msgdef.data, connection.msgtype))
        _, _, data = next(iter(reader.messages([connection])))
        assert len(store.deserialize_cdr(data, connection.msgtype).points) == 64


def test_bags_that_are_there_are_kept(out):
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    said = clip_bags.make_bags("train", 2, out, share_directory() / "config" / "cameras.yaml", 1, "mcap")
    assert "2 bags" in said and "clips/s" not in said
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="split 'test'"):
        clip_bags.make_bags("test", 2, out, share_directory() / "config" / "cameras.yaml", 1, "mcap")
