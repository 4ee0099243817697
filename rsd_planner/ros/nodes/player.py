"""Plays a rosbag2 over DDS at its own pace, with /clock, where `ros2 bag play` is not installed."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rosbags.rosbag2 import Reader, ReaderError
from rosgraph_msgs.msg import Clock

from rsd_planner.buffers import NANOSECONDS
from rsd_planner.ros.conversions import time_message

_CLOCK_STEP_NS = 10_000_000
_QUEUE = 10


def message_class(name: str) -> type:
    """The Python class of a type such as sensor_msgs/msg/Image. Raises ValueError if it is not installed."""
    package, _, kind = name.partition("/msg/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), kind)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise ValueError(f"message type {name} is not installed") from error


class Player(Node):
    """Publishes the messages of a bag as they are stored."""

    def __init__(self, clock: bool) -> None:
        super().__init__("bag_player")
        self._clock_output = self.create_publisher(Clock, "/clock", QoSProfile(depth=1)) if clock else None
        self._outputs: dict[str, Publisher] = {}

    def open(self, reader: Reader, wait_s: float) -> None:
        """Makes a publisher for each topic and waits until each has a subscriber, but no longer than wait_s."""
        for connection in reader.connections:
            if connection.topic == "/clock" and self._clock_output is not None:
                continue
            try:
                kind = message_class(connection.msgtype)
            except ValueError as error:
                self.get_logger().warning(f"topic {connection.topic} is left out: {error}")
                continue
            offered = getattr(connection.ext, "offered_qos_profiles", [])
            latched = any(getattr(qos.durability, "name", "") == "TRANSIENT_LOCAL" for qos in offered)
            profile = QoSProfile(
                history=HistoryPolicy.KEEP_LAST,
                depth=_QUEUE,
                reliability=ReliabilityPolicy.RELIABLE,
                durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
            )
            self._outputs[connection.topic] = self.create_publisher(kind, connection.topic, profile)
        deadline = time.monotonic() + wait_s
        while lonely := [topic for topic, p in self._outputs.items() if p.get_subscription_count() == 0]:
            if time.monotonic() > deadline:
                self.get_logger().warning(f"nobody listens to {', '.join(lonely)}")
                break
            time.sleep(0.05)

    def play(self, reader: Reader, rate: float) -> int:
        """Publishes all messages, spaced as recorded divided by rate; returns how many."""
        begin, first_ns, tick_ns, count = time.monotonic(), None, 0, 0
        for connection, at_ns, data in reader.messages():
            if first_ns is None:
                first_ns = tick_ns = at_ns
            while tick_ns <= at_ns:
                self._sleep_until(begin + (tick_ns - first_ns) / NANOSECONDS / rate)
                if self._clock_output is not None:
                    self._clock_output.publish(Clock(clock=time_message(tick_ns)))
                tick_ns += _CLOCK_STEP_NS
            self._sleep_until(begin + (at_ns - first_ns) / NANOSECONDS / rate)
            publisher: Any = self._outputs.get(connection.topic)
            if publisher is not None:
                publisher.publish(bytes(data))
                count += 1
        return count

    @staticmethod
    def _sleep_until(moment: float) -> None:
        remaining = moment - time.monotonic()
        if remaining > 0:
            time.sleep(remaining)


def run(arguments: argparse.Namespace) -> int:
    """Plays a bag; returns the exit code."""
    if not arguments.rate > 0:
        print(f"--rate must be positive, not {arguments.rate}", file=sys.stderr)
        return 2
    try:
        reader = Reader(arguments.bag)
        reader.open()
    except (ReaderError, OSError) as error:
        print(f"bag {arguments.bag} cannot be opened: {error}", file=sys.stderr)
        return 1
    rclpy.init()
    player = Player(clock=not arguments.no_clock)
    try:
        player.open(reader, arguments.wait)
        while True:
            count = player.play(reader, arguments.rate)
            player.get_logger().info(f"played {count} messages")
            if not arguments.loop:
                break
        time.sleep(0.5)  # lets the last messages leave
    except KeyboardInterrupt:
        pass
    finally:
        reader.close()
        player.destroy_node()
        rclpy.try_shutdown()
    return 0
