"""How many raw frames reach the planner node: four cameras at 10 Hz into a node that plans meanwhile.

Run by hand: python bench/camera_input.py. Compares config/fastdds.xml with Fast DDS's own transport,
alternating; prints frames received of frames sent.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import rclpy
from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import Image

from rsd_planner.ros.bringup import planner_nodes
from rsd_planner.ros.conversions import time_message
from rsd_planner.ros.demo import Monitor, local_environment
from rsd_planner.ros.processes import Processes
from rsd_planner.ros.qos import sensor_qos

CAMERAS = ("cross_left", "front_wide", "cross_right", "front_tele")
MODEL = Path(__file__).parents[1] / "test" / "data" / "alpamayo_tiny" / "checkpoint"
TRANSPORTS = ("fastdds.xml", "default")
PROFILE = "FASTDDS_DEFAULT_PROFILES_FILE"


def one_run(environment: dict[str, str], width: int, height: int, seconds: float, log: Path) -> str:
    """Sends for some seconds; a line with received / sent of each camera, plans and cycle time."""
    context = rclpy.Context()
    context.init()
    monitor = Monitor("planner", context, show=False)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(monitor)
    quality = sensor_qos("best_effort", 10)
    cameras = [monitor.create_publisher(Image, f"camera/{name}/image", quality) for name in CAMERAS]
    odometry = monitor.create_publisher(Odometry, "odometry", quality)
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8).tobytes()
    frame = Image(height=height, width=width, encoding="rgb8", step=3 * width, data=pixels)
    overrides = {"min_pixels": 2048, "max_pixels": 8192, "token_budget": 16, "rate_hz": 5.0}
    (planner,) = planner_nodes(model=str(MODEL), overrides=overrides)

    def spin(seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            executor.spin_once(timeout_sec=left)

    with Processes(environment, log) as processes:
        processes.start("planner", planner.command())
        while not (monitor.planner_is_loaded() and all(p.get_subscription_count() for p in [*cameras, odometry])):
            spin(0.2)
        spin(2.0)  # discovery on the other side
        begin, sent = time.monotonic(), 0
        for tick in range(round(seconds * 50)):
            spin(max(0.0, begin + tick / 50 - time.monotonic()))
            now = time_message(time.time_ns())
            pose = Odometry(child_frame_id="base_link")
            pose.header.stamp, pose.header.frame_id = now, "odom"
            odometry.publish(pose)
            if tick % 5 == 0:
                frame.header.stamp = now
                for camera in cameras:
                    camera.publish(frame)
                sent += 1
        spin(2.5)
        status = monitor.status
        received = [f"{count}/{sent}" for count in list(status.input_received)[:4]]
        totals = [sum(message.stage_durations) for message in monitor.reasonings.values()]
        median_ms = f"{statistics.median(totals) * 1e3:.0f} ms" if totals else "-"
        line = f"{'  '.join(received)}   {len(totals)} plans, median cycle {median_ms}"
    executor.shutdown()
    monitor.destroy_node()
    context.try_shutdown()
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of sending, each run (default 20)")
    parser.add_argument("--runs", type=int, default=2, help="of each transport (default 2)")
    parser.add_argument("--once", choices=TRANSPORTS, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, nargs=2, default=[1920, 1080], metavar=("WIDTH", "HEIGHT"))
    arguments = parser.parse_args()
    if arguments.once:
        with tempfile.TemporaryDirectory() as log:
            line = one_run(dict(os.environ), *arguments.size, arguments.seconds, Path(log))
        print(f"{arguments.once:<14}{line}", flush=True)
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, {arguments.size[0]} x {arguments.size[1]} rgb8, four cameras")
    for run in range(arguments.runs):
        for number, transport in enumerate(TRANSPORTS):
            # Fast DDS reads its profile once in a process, so each run is a process of its own.
            environment = local_environment() | {"ROS_DOMAIN_ID": str(40 + 2 * run + number)}
            if transport == "default":
                del environment[PROFILE]
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--once", transport], env=environment, check=True)


if __name__ == "__main__":
    main()
