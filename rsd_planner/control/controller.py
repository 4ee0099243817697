"""Plan and odometry in, command out, once a period. Knows no ROS."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

from rsd_planner.control.reference import Reference
from rsd_planner.control.supervisor import NANOSECONDS, Mode, SafetyLimits, Supervisor
from rsd_planner.control.tracking import Tracker, TrackingResult
from rsd_planner.control.vehicle import Command, Vehicle, VehicleState, advance

_HOLD_MPS2 = -1.0
_MAX_PREDICTION_S = 0.5


@dataclass(frozen=True)
class ControlOutput:
    """What the drive-by-wire should do, and why."""

    command: Command
    target_speed_mps: float
    steering_rate_radps: float
    mode: Mode
    reason: str
    plan_id: int
    tracking: TrackingResult | None
    """None while nothing is tracked (no plan, or no odometry)."""


class Controller:
    """Predicts the car to the moment the command acts, then tracks what the supervisor allows."""

    def __init__(self, vehicle: Vehicle, tracker: Tracker, limits: SafetyLimits, period_s: float) -> None:
        self._vehicle = vehicle
        self._tracker = tracker
        self._limits = limits
        self._period_s = period_s
        self.supervisor = Supervisor(limits)
        self.solver_failures = 0
        self._odometry: tuple[int, VehicleState] | None = None
        self._last = Command()
        # What was asked, and the actuators that the model expects when it has acted: (time of acting, ...).
        self._acted: deque[tuple[int, Command, float, float]] = deque()
        self._actuators = VehicleState()

    def on_odometry(self, stamp_ns: int, x_m: float, y_m: float, yaw_rad: float, speed_mps: float) -> None:
        """Takes the pose of base_link in the odometry frame and the forward speed; older stamps are ignored."""
        values = (x_m, y_m, yaw_rad, speed_mps)
        if not all(map(math.isfinite, values)):
            raise ValueError(f"odometry (x, y, yaw, speed) {values} is not finite")
        if self._odometry is None or stamp_ns > self._odometry[0]:
            self._odometry = (stamp_ns, VehicleState(x_m, y_m, yaw_rad, speed_mps))

    def on_plan(self, plan: Reference, now_ns: int) -> None:
        """Offers a plan, unless odometry is lost: none can be followed then. Raises ImplausiblePlan."""
        if self._odometry_is_old(now_ns):
            self.supervisor.remark("a plan came, but no fresh odometry")
            return
        self.supervisor.offer(plan, now_ns, self._state_at(now_ns))

    def clear(self) -> None:
        """Forgets everything, as after a jump of the (simulated) clock: it is another drive."""
        self.supervisor.clear()
        self._last, self._actuators = Command(), VehicleState()
        self._odometry = None
        self._acted.clear()

    def step(self, now_ns: int) -> ControlOutput:
        """The command for this period."""
        acts_ns = now_ns + round(self._vehicle.dead_time_s * NANOSECONDS)
        state = self._state_at(acts_ns)
        self.supervisor.watch(now_ns, self._odometry[0] if self._odometry else None, self._state_at(now_ns))
        reference = self.supervisor.reference
        tracking, stands = None, False
        if reference is not None and state is not None and not self._odometry_is_old(now_ns):
            now_s = (acts_ns - reference.t0_ns) / NANOSECONDS
            tracking = self._tracker.track(reference, now_s, state, self._last)
            self.solver_failures += not tracking.solved
            stands = self.supervisor.means_to_stand(now_s, state.speed_mps)
        command = tracking.command if tracking else self._blind_stop()
        if stands and command.acceleration_mps2 > _HOLD_MPS2:
            command = Command(command.steering_rad, self._eased_to(_HOLD_MPS2))
        command = self._checked(command)
        output = ControlOutput(
            command=command,
            target_speed_mps=tracking.target_speed_mps if tracking and not stands else 0.0,
            steering_rate_radps=(command.steering_rad - self._last.steering_rad) / self._period_s,
            mode=self.supervisor.mode,
            reason=self.supervisor.reason,
            plan_id=reference.plan_id if reference else 0,
            tracking=tracking,
        )
        self._last = command
        self._remember(acts_ns, command, state.speed_mps if state else 0.0)
        return output

    def _odometry_is_old(self, now_ns: int) -> bool:
        return self._odometry is None or now_ns - self._odometry[0] > self._limits.max_odometry_age_s * NANOSECONDS

    def _blind_stop(self) -> Command:
        """Without pose or plan: the steering stays, the brake comes on with bounded jerk and holds."""
        target = _HOLD_MPS2 if self.supervisor.mode is Mode.WAITING else -self._limits.stop_deceleration_mps2
        return Command(self._last.steering_rad, self._eased_to(target))

    def _eased_to(self, acceleration_mps2: float) -> float:
        """From the last command's acceleration towards another one, with the stop's jerk."""
        step = self._limits.stop_jerk_mps3 * self._period_s
        last = self._last.acceleration_mps2
        return last + min(max(acceleration_mps2 - last, -step), step)

    def _checked(self, command: Command) -> Command:
        """Inside the vehicle's limits and the stop's, whatever made the command; never NaN."""
        if not (math.isfinite(command.steering_rad) and math.isfinite(command.acceleration_mps2)):
            command = self._blind_stop()
        vehicle = self._vehicle
        reach = vehicle.max_steering_rate_radps * self._period_s * (1 + 1e-6)
        change = min(max(command.steering_rad - self._last.steering_rad, -reach), reach)
        steering = self._last.steering_rad + change
        return Command(
            min(max(steering, -vehicle.max_steering_rad), vehicle.max_steering_rad),
            min(max(command.acceleration_mps2, self._hardest_braking()), vehicle.max_acceleration_mps2),
        )

    def _hardest_braking(self) -> float:
        """Lowest acceleration (m/s^2): the stop's while it lasts, approached with its jerk from a harder one."""
        if self.supervisor.mode is not Mode.MINIMUM_RISK:
            return -self._vehicle.max_deceleration_mps2
        eased = self._last.acceleration_mps2 + self._limits.stop_jerk_mps3 * self._period_s
        return min(-self._limits.stop_deceleration_mps2, eased)

    def _remember(self, acts_ns: int, command: Command, speed_mps: float) -> None:
        moving = replace(self._actuators, speed_mps=speed_mps)
        self._actuators = advance(self._vehicle, moving, command, self._period_s)
        self._acted.append((acts_ns, command, self._actuators.steering_rad, self._actuators.acceleration_mps2))
        while self._acted and self._acted[0][0] < acts_ns - round(2 * _MAX_PREDICTION_S * NANOSECONDS):
            self._acted.popleft()

    def _state_at(self, when_ns: int) -> VehicleState | None:
        """The newest odometry carried forward by the commands that act until then."""
        if self._odometry is None:
            return None
        stamp_ns, state = self._odometry
        before = [entry for entry in self._acted if entry[0] <= stamp_ns]
        steering, acceleration = (before[-1][2], before[-1][3]) if before else (0.0, 0.0)
        state = VehicleState(state.x_m, state.y_m, state.yaw_rad, state.speed_mps, acceleration, steering)
        when_ns = min(when_ns, stamp_ns + round(_MAX_PREDICTION_S * NANOSECONDS))
        time_ns, command = stamp_ns, before[-1][1] if before else Command()
        for acts_ns, following, _, _ in self._acted:
            if acts_ns <= stamp_ns:
                continue
            if acts_ns >= when_ns:
                break
            state = advance(self._vehicle, state, command, (acts_ns - time_ns) / NANOSECONDS)
            time_ns, command = acts_ns, following
        if when_ns > time_ns:
            state = advance(self._vehicle, state, command, (when_ns - time_ns) / NANOSECONDS)
        return state
