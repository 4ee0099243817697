"""Tracking error and solve time of both trackers on the closed loops of the tests, on one CPU core.

Run by hand: OMP_NUM_THREADS=1 PYTHONPATH=test taskset -c 0 python bench/tracking.py
"""

from __future__ import annotations

import math
import platform

import numpy as np
from drives import TruePath, drive

from rsd_planner.control.controller import Controller
from rsd_planner.control.mpc import Mpc
from rsd_planner.control.pure_pursuit import PurePursuit
from rsd_planner.control.supervisor import SafetyLimits
from rsd_planner.control.vehicle import Vehicle, VehicleState

DRIVES = {
    "straight 15 m/s": (lambda _: 15.0, lambda _: 0.0),
    "curve of 25 m at 9 m/s": (lambda _: 9.0, lambda t: 0.04 * min(max((t - 3) / 1.5, 0.0), 1.0)),
    "s-curve at 25 m/s": (lambda _: 25.0, lambda t: 0.005 * math.sin(1.2 * t)),
    "turn of 8 m at 4 m/s": (lambda _: 4.0, lambda t: 0.12 * min(max((t - 3) / 1.5, 0.0), 1.0)),
    "12 m/s to a stop": (lambda t: max(0.0, 12.0 - 2.5 * max(t - 4.0, 0.0)), lambda _: 0.01),
    "standing start": (lambda t: min(12.0, max(0.0, 1.5 * (t - 3.0))), lambda _: 0.0),
}


def main() -> None:
    car = Vehicle()
    print(f"{platform.machine()}; plans 0.15 s old, {car.dead_time_s} s dead time, 20 s each")
    print(f"{'drive':<24}{'tracker':<14}{'lateral RMS m':>14}{'speed RMS m/s':>15}{'solve p50 ms':>14}{'p99 ms':>8}")
    for name, (speed, curvature) in DRIVES.items():
        path = TruePath(speed, curvature, 20.0)
        for tracker in (Mpc(car), PurePursuit(car)):
            controller = Controller(car, tracker, SafetyLimits(), 0.02)
            result = drive(path, controller, car, 20.0, VehicleState(speed_mps=speed(0.0)))
            lateral = np.array(result.lateral[200:])
            errors = np.array([state.speed_mps for state in result.states[200:]]) - path.speed[201:2001]
            solve_ms = [output.tracking.solve_s * 1e3 for output in result.outputs if output.tracking]
            print(
                f"{name:<24}{type(tracker).__name__:<14}{np.sqrt(np.mean(lateral**2)):>14.3f}"
                f"{np.sqrt(np.mean(errors**2)):>15.3f}{np.median(solve_ms):>14.2f}{np.percentile(solve_ms, 99):>8.2f}"
            )


if __name__ == "__main__":
    main()
