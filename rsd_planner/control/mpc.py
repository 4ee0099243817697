"""Model predictive tracking of speed and path with OSQP.

Two small quadratic programmes, each condensed to the input rates alone: longitudinal (jerk), then
lateral (steering rate) along the speeds that the first one predicts. Both know the actuators' lag.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
import osqp
import scipy.sparse as sp
from numpy.typing import NDArray

from rsd_planner.control.pure_pursuit import PurePursuit
from rsd_planner.control.reference import Reference, Sampled
from rsd_planner.control.tracking import PathError, TrackingResult, path_error
from rsd_planner.control.vehicle import Command, Vehicle, VehicleState

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class MpcSettings:
    """Weights and bounds. Costs are quadratic in the named quantity, summed over the horizon.

    The lateral input is weighted as lateral jerk (v^2 times the curvature's rate), with a floor on the
    speed: so the closed loop's bandwidth does not grow with speed.
    """

    steps: int = 20
    step_s: float = 0.1
    period_s: float = 0.02
    max_jerk_mps3: float = 8.0
    max_lateral_acceleration_mps2: float = 6.0
    along_weight: float = 0.6
    speed_weight: float = 1.0
    acceleration_weight: float = 0.1
    jerk_weight: float = 0.02
    lateral_weight: float = 1.0
    heading_weight_m2: float = 4.0
    lateral_jerk_weight: float = 0.004
    lateral_speed_floor_mps: float = 3.0


def _lag_integrals(lag_s: float, step_s: float) -> tuple[_Array, _Array, _Array]:
    """A first-order actuator after a step: its value, integral and double integral.

    Each as coefficients of (initial value, command at the step's start, command's rate).
    """
    decay = math.exp(-step_s / lag_s)
    first = lag_s * (1.0 - decay)
    second = lag_s * (step_s - first)
    half, sixth = step_s**2 / 2, step_s**3 / 6
    value = np.array([decay, 1.0 - decay, step_s - first])
    integral = np.array([first, step_s - first, half - second])
    double = np.array([second, half - second, sixth - lag_s * half + lag_s * second])
    return value, integral, double


class _Programme:
    """min 1/2 u'Pu + q'u over input rates u with |u| <= rate and low <= start + step * cumsum(u) <= high."""

    def __init__(self, steps: int, step_s: float) -> None:
        self._upper = np.triu_indices(steps)
        # OSQP wants P by columns, upper triangle only.
        order = np.lexsort((self._upper[0], self._upper[1]))
        self._upper = (self._upper[0][order], self._upper[1][order])
        self._cumulative = step_s * np.tril(np.ones((steps, steps)))
        self._constraints = sp.csc_matrix(np.vstack([np.eye(steps), self._cumulative]))
        self._solver: osqp.OSQP | None = None
        self._steps = steps

    def solve(self, hessian: _Array, gradient: _Array, rate: float, low: _Array, high: _Array) -> _Array | None:
        """The optimal rates [steps], or None if the solver did not find them."""
        lower = np.concatenate([np.full(self._steps, -rate), low])
        upper = np.concatenate([np.full(self._steps, rate), high])
        if self._solver is None:
            self._solver = osqp.OSQP()
            self._solver.setup(
                sp.csc_matrix(np.triu(hessian) + 1e-12 * np.triu(np.ones_like(hessian))),
                gradient,
                self._constraints,
                lower,
                upper,
                verbose=False,
                eps_abs=1e-4,
                eps_rel=1e-4,
                max_iter=1000,
                polishing=False,
                adaptive_rho_interval=25,
            )
        else:
            self._solver.update(q=gradient, l=lower, u=upper, Px=hessian[self._upper])
        result = self._solver.solve(raise_error=False)
        if result.info.status_val not in (osqp.SolverStatus.OSQP_SOLVED, osqp.SolverStatus.OSQP_SOLVED_INACCURATE):
            return None
        return np.asarray(result.x) if np.isfinite(result.x).all() else None


class Mpc:
    """Follows a plan in time and place. Falls back to pure pursuit for a cycle that the solver fails."""

    def __init__(self, vehicle: Vehicle, settings: MpcSettings | None = None) -> None:
        self._vehicle = vehicle
        self._settings = settings or MpcSettings()
        self._fallback = PurePursuit(vehicle, self._settings.period_s, self._settings.max_jerk_mps3)
        self._longitudinal = _Programme(self._settings.steps, self._settings.step_s)
        self._lateral = _Programme(self._settings.steps, self._settings.step_s)
        self._after = np.arange(1, self._settings.steps + 1) * self._settings.step_s

    def track(self, reference: Reference, now_s: float, state: VehicleState, previous: Command) -> TrackingResult:
        """See Tracker."""
        begin = time.perf_counter()
        error = path_error(reference, now_s, state)
        jerks = self._jerks(reference, now_s, state, previous, error)
        rates = None
        if jerks is not None:
            speeds = self._predicted_speeds(state, previous, jerks)
            along = reference.at(error.time_s + np.concatenate([[0.0], self._after]))
            rates = self._steering_rates(along, state, previous, error, speeds)
        if jerks is None or rates is None:
            return replace(self._fallback.track(reference, now_s, state, previous), solved=False)
        period = self._settings.period_s
        command = Command(
            steering_rad=float(previous.steering_rad + rates[0] * period),
            acceleration_mps2=float(previous.acceleration_mps2 + jerks[0] * period),
        )
        target = float(reference.at(np.array([now_s])).speed_mps[0])
        return TrackingResult(
            command=command,
            steering_rate_radps=float(rates[0]),
            jerk_mps3=float(jerks[0]),
            target_speed_mps=target,
            error=error,
            speed_error_mps=state.speed_mps - target,
            solved=True,
            solve_s=time.perf_counter() - begin,
        )

    def _responses(self, state: VehicleState, previous: Command, jerks: _Array) -> tuple[_Array, _Array, _Array]:
        """Acceleration, speed and distance [steps] after each step of the longitudinal model."""
        value, integral, double = _lag_integrals(self._vehicle.acceleration_lag_s, self._settings.step_s)
        acceleration, speed, distance, command = (
            state.acceleration_mps2,
            state.speed_mps,
            0.0,
            previous.acceleration_mps2,
        )
        out = np.empty((3, len(jerks)))
        for k, jerk in enumerate(jerks):
            inputs = np.array([acceleration, command, jerk])
            distance += speed * self._settings.step_s + double @ inputs
            speed += integral @ inputs
            acceleration = value @ inputs
            command += jerk * self._settings.step_s
            out[:, k] = acceleration, speed, distance
        return out[0], out[1], out[2]

    def _predicted_speeds(self, state: VehicleState, previous: Command, jerks: _Array) -> _Array:
        """Speeds [steps + 1] now and after each step."""
        _, speed, _ = self._responses(state, previous, jerks)
        return np.concatenate([[state.speed_mps], speed])

    def _jerks(
        self, reference: Reference, now_s: float, state: VehicleState, previous: Command, error: PathError
    ) -> _Array | None:
        settings = self._settings
        if not hasattr(self, "_unit"):
            # Responses to a unit jerk in each step: the model does not change, so they are found once.
            rest = VehicleState()
            units = [self._responses(rest, Command(), row) for row in np.eye(settings.steps)]
            self._unit = [np.stack([unit[i] for unit in units], axis=1) for i in range(3)]
        free = self._responses(state, previous, np.zeros(settings.steps))
        wanted = reference.at(now_s + self._after)
        start = reference.at(np.array([now_s]))
        ends = np.concatenate([[float(start.speed_mps[0])], wanted.speed_mps])
        distance = np.cumsum((ends[1:] + ends[:-1]) / 2) * settings.step_s
        residuals = (
            (settings.acceleration_weight, self._unit[0], free[0] - wanted.acceleration_mps2),
            (settings.speed_weight, self._unit[1], free[1] - wanted.speed_mps),
            (settings.along_weight, self._unit[2], free[2] + error.along_m - distance),
        )
        hessian = settings.jerk_weight * np.eye(settings.steps)
        gradient = np.zeros(settings.steps)
        for weight, response, residual in residuals:
            hessian += weight * response.T @ response
            gradient += weight * response.T @ residual
        ones = np.ones(settings.steps)
        low = -self._vehicle.max_deceleration_mps2 - previous.acceleration_mps2
        high = self._vehicle.max_acceleration_mps2 - previous.acceleration_mps2
        return self._longitudinal.solve(hessian, gradient, settings.max_jerk_mps3, low * ones, high * ones)

    def _steering_rates(
        self, path: Sampled, state: VehicleState, previous: Command, error: PathError, speeds: _Array
    ) -> _Array | None:
        """Optimal steering rates; the model is linear about the steering that the path's curvature needs."""
        settings, vehicle = self._settings, self._vehicle
        steps, step_s = settings.steps, settings.step_s
        value, integral, double = _lag_integrals(vehicle.steering_lag_s, step_s)
        nominal = np.arctan(vehicle.wheelbase_m * path.curvature_radpm[:-1])
        gain = (1.0 + np.tan(nominal) ** 2) / vehicle.wheelbase_m  # curvature per radian
        speed = (speeds[:-1] + speeds[1:]) / 2
        # State: lateral error, heading error, steering, steering command; column by column of the response.
        x = np.zeros((4, steps + 1))
        x[:, steps] = error.lateral_m, error.heading_rad, state.steering_rad, previous.steering_rad
        rows = np.empty((2, steps, steps + 1))
        for k in range(steps):
            inputs = np.stack([x[2], x[3], np.zeros(steps + 1)])
            inputs[2, k] = 1.0
            bend, lever = speed[k] * gain[k], speed[k] * step_s
            offset = np.zeros(steps + 1)
            offset[steps] = nominal[k]
            lateral = x[0] + lever * x[1] + speed[k] * bend * (double @ inputs - step_s**2 / 2 * offset)
            heading = x[1] + bend * (integral @ inputs - step_s * offset)
            steering = value @ inputs
            x = np.stack([lateral, heading, steering, x[3] + step_s * inputs[2]])
            rows[:, k] = x[:2]
        jerk_scale = np.maximum(np.abs(speed), settings.lateral_speed_floor_mps) ** 2 * gain
        hessian = np.diag(settings.lateral_jerk_weight * jerk_scale**2)
        gradient = np.zeros(steps)
        for weight, response in zip((settings.lateral_weight, settings.heading_weight_m2), rows, strict=True):
            hessian += weight * response[:, :-1].T @ response[:, :-1]
            gradient += weight * response[:, :-1].T @ response[:, -1]
        tightest = vehicle.wheelbase_m * settings.max_lateral_acceleration_mps2 / np.maximum(speeds[1:] ** 2, 1.0)
        # Never tighter than the path itself, lest the two contradict each other.
        bound = np.minimum(np.maximum(np.arctan(tightest), np.abs(nominal)), vehicle.max_steering_rad)
        bound = np.maximum(bound, abs(previous.steering_rad) - vehicle.max_steering_rate_radps * self._after)
        return self._lateral.solve(
            hessian,
            gradient,
            vehicle.max_steering_rate_radps,
            -bound - previous.steering_rad,
            bound - previous.steering_rad,
        )
