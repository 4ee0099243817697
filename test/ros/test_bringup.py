"""One description of the nodes behind launch file and drive command."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from rsd_planner.planner_parameters import PlannerParameters
from rsd_planner.ros.bringup import local_environment, planner_nodes, process_environment, share_directory
from rsd_planner.ros.controller_parameters import ControllerParameters
from rsd_planner.ros.processes import Processes

ROOT = Path(__file__).resolve().parents[2]
HAS_LAUNCH_ROS = importlib.util.find_spec("launch_ros") is not None


@pytest.mark.parametrize(
    ("file", "parameters"), [("planner.yaml", PlannerParameters), ("controller.yaml", ControllerParameters)]
)
def test_the_yaml_lists_every_parameter_with_its_default(file, parameters):
    content = yaml.safe_load((ROOT / "config" / file).read_text())
    assert list(content) == ["/**"]  # a node's name as the key would win over launch arguments
    defaults = dataclasses.asdict(parameters())
    assert content["/**"]["ros__parameters"] == defaults


def test_the_description_becomes_arguments(tmp_path):
    (node,) = planner_nodes(model="some/model", use_sim_time=True, namespace="/ego", overrides={"rate_hz": 2.0})
    arguments = node.ros_arguments()
    assert arguments[:5] == ["--ros-args", "-r", "__node:=planner", "-r", "__ns:=/ego"]
    assert f"model:={Path.cwd() / 'some/model'}" in arguments
    assert "use_sim_time:=true" in arguments and "rate_hz:=2.0" in arguments
    assert arguments[-2:] == ["--log-level", "info"]
    with pytest.raises(ValueError, match=r"params_file .*nowhere\.yaml does not exist"):
        planner_nodes(params_file=tmp_path / "nowhere.yaml")
    with pytest.raises(ValueError, match="log_level 'loud' is not one of debug, info"):
        planner_nodes(log_level="loud")


def test_fast_dds_gets_our_profile_unless_the_user_chose_one():
    assert process_environment({})["FASTDDS_DEFAULT_PROFILES_FILE"] == str(share_directory() / "config" / "fastdds.xml")
    assert "FASTRTPS_DEFAULT_PROFILES_FILE" in process_environment({"ROS_DISTRO": "jazzy"})
    chosen = process_environment({"FASTDDS_DEFAULT_PROFILES_FILE": "mine.xml"})
    assert chosen["FASTDDS_DEFAULT_PROFILES_FILE"] == "mine.xml"


@pytest.mark.skipif(not HAS_LAUNCH_ROS, reason="needs a ROS installation with launch_ros; runs in the public CI")
def test_the_launch_file_starts_the_same_nodes(tiny_directory):
    arguments = subprocess.run(
        ["ros2", "launch", "rsd_planner", "planner.launch.py", "--show-args"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    for name in ("params_file", "use_sim_time", "model", "namespace", "log_level"):
        assert f"'{name}'" in arguments.stdout
    launch = subprocess.Popen(
        ["ros2", "launch", "rsd_planner", "planner.launch.py", f"model:={tiny_directory}", "namespace:=launched"],
        env=local_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert launch.stdout is not None
    try:
        deadline = time.monotonic() + 60
        for line in launch.stdout:
            if f"loaded {tiny_directory}" in line and "launched.planner" in line:
                break
            assert time.monotonic() < deadline
    finally:
        os.killpg(launch.pid, signal.SIGINT)  # as a terminal does
    assert launch.wait(30) == 0


def test_drive_starts_the_nodes_and_stops_them(tmp_path, tiny_directory):
    with Processes(local_environment(), tmp_path) as processes:
        command = [
            sys.executable,
            "-m",
            "rsd_planner.cli",
            "drive",
            "--model",
            str(tiny_directory),
            "--namespace",
            "ego",
        ]
        drive = processes.start("drive", command)
        deadline = time.monotonic() + 60
        while "[ego.planner]: loaded" not in (log := processes.log("drive").read_text()):
            assert time.monotonic() < deadline and drive.poll() is None, log
            time.sleep(0.2)
        drive.send_signal(signal.SIGINT)
        assert drive.wait(30) == 0
    running = subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True).stdout
    assert f"model:={tiny_directory}" not in running


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_waiting_for_processes_ends_with_the_first_or_with_a_signal(tmp_path, number):
    before = signal.getsignal(number)
    with Processes(os.environ, tmp_path) as processes:
        processes.start("long", ["sleep", "60"])
        threading.Timer(0.3, os.kill, (os.getpid(), number)).start()
        assert processes.first_ended() is None and signal.getsignal(number) is before
        processes.start("short", ["sh", "-c", "exit 3"])
        assert processes.first_ended() == ("short", 3)
        # Where the tests run in the background, a child may ignore SIGINT: SIGKILL ends it then.
        assert processes.stop(patience_s=1.0)["long"] in (-signal.SIGINT, -signal.SIGKILL)


def test_drive_ends_with_the_node_that_fails(tmp_path):
    command = [sys.executable, "-m", "rsd_planner.cli", "drive", "--model", str(tmp_path)]
    run = subprocess.run(command, env=local_environment(), capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert "is empty; it should hold config.json" in run.stderr
    assert "planner ended with exit code 1; the others were stopped" in run.stderr
