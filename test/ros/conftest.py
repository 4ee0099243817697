"""A planner process and a car that feeds it, on a ROS domain of the test run's own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import cv2
import numpy as np
import pytest
import rclpy
from car import SMALL, Car

from rsd_planner.ros.bringup import local_environment, planner_nodes
from rsd_planner.ros.processes import Processes


@pytest.fixture(scope="session", autouse=True)
def ros_environment() -> None:
    os.environ.update(local_environment())


@pytest.fixture
def processes(tmp_path) -> Iterator[Processes]:
    with Processes(local_environment(), tmp_path / "log") as running:
        yield running


@pytest.fixture
def car(processes, tiny_directory) -> Iterator[Car]:
    """A car beside a running planner process that has loaded the tiny model."""
    jpeg = cv2.imencode(".jpg", np.random.default_rng(0).integers(0, 255, (90, 160, 3), dtype=np.uint8))[1].tobytes()
    context = rclpy.Context()
    context.init()
    node = Car(context, jpeg)
    (planner,) = planner_nodes(model=str(tiny_directory), overrides=SMALL)
    processes.start("planner", planner.command())
    node.wait_for(node.planner_is_loaded, 60)
    node.wait_for(lambda: node.odometry.get_subscription_count() == 1)
    yield node
    assert processes.ended() == {}, processes.log("planner").read_text()
    assert processes.stop() == {"planner": 0}
    node.spinner.shutdown()
    node.destroy_node()
    context.try_shutdown()
