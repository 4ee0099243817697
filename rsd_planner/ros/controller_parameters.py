"""Parameters of the controller node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rsd_planner.control.controller import Controller
from rsd_planner.control.mpc import Mpc, MpcSettings
from rsd_planner.control.pure_pursuit import PurePursuit
from rsd_planner.control.supervisor import SafetyLimits
from rsd_planner.control.tracking import Tracker
from rsd_planner.control.vehicle import Vehicle
from rsd_planner.parameters import RELIABILITIES, parameter
from rsd_planner.ros.bringup import share_directory


@dataclass(frozen=True)
class ControllerParameters:
    """Parameters of the controller node; config/controller.yaml lists them with their defaults."""

    vehicle: str = parameter("", "YAML of the car; empty: config/vehicle.yaml.")
    tracker: str = parameter("mpc", "How the plan is followed.", choices=("mpc", "pure_pursuit"))
    rate_hz: float = parameter(50.0, "Commands a second.", 10.0, 200.0)
    max_plan_age_s: float = parameter(0.5, "Largest age (s) of a plan that is followed.", 0.05, 5.0)
    max_odometry_age_s: float = parameter(0.25, "Largest age (s) of the newest odometry.", 0.02, 2.0)
    max_start_distance_m: float = parameter(3.0, "Largest distance (m) of a plan from the car.", 0.1, 100.0)
    stop_deceleration_mps2: float = parameter(3.0, "Deceleration (m/s^2) of the minimum-risk stop.", 0.5, 8.0)
    stop_jerk_mps3: float = parameter(6.0, "Jerk (m/s^3) of the minimum-risk stop.", 0.5, 50.0)
    standstill_speed_mps: float = parameter(0.6, "A car and plan below this speed (m/s) mean to stand.", 0.0, 3.0)
    odometry_reliability: str = parameter("best_effort", "QoS of the odometry input.", choices=RELIABILITIES)

    def controller(self) -> Controller:
        """The controller that they describe. Raises ValueError or OSError for an unusable vehicle file."""
        path = Path(self.vehicle).expanduser() if self.vehicle else share_directory() / "config" / "vehicle.yaml"
        vehicle = Vehicle.from_yaml(path)
        limits = SafetyLimits(
            max_plan_age_s=self.max_plan_age_s,
            max_odometry_age_s=self.max_odometry_age_s,
            max_start_distance_m=self.max_start_distance_m,
            stop_deceleration_mps2=self.stop_deceleration_mps2,
            stop_jerk_mps3=self.stop_jerk_mps3,
            standstill_speed_mps=self.standstill_speed_mps,
        )
        period_s = 1.0 / self.rate_hz
        tracker: Tracker
        if self.tracker == "mpc":
            tracker = Mpc(vehicle, MpcSettings(period_s=period_s))
        else:
            tracker = PurePursuit(vehicle, period_s)
        return Controller(vehicle, tracker, limits, period_s)
