"""How comfortable a drive was: the quantities and bounds of nuPlan's comfort metric (Caesar et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import savgol_filter

# nuPlan's ego_is_comfortable: m/s^2, m/s^3, rad/s, rad/s^2.
MIN_LONGITUDINAL_MPS2, MAX_LONGITUDINAL_MPS2 = -4.05, 2.40
MAX_LATERAL_MPS2 = 4.89
MAX_LONGITUDINAL_JERK_MPS3, MAX_JERK_MPS3 = 4.13, 8.37
MAX_YAW_RATE_RADPS, MAX_YAW_ACCELERATION_RADPS2 = 0.95, 1.93

_SMOOTHING_S, _ORDER = 1.5, 2


@dataclass(frozen=True)
class Comfort:
    """Extremes over a drive, after smoothing (Savitzky-Golay, order 2 over 1.5 s, as nuPlan does)."""

    min_longitudinal_mps2: float
    max_longitudinal_mps2: float
    max_lateral_mps2: float
    max_longitudinal_jerk_mps3: float
    max_jerk_mps3: float
    max_yaw_rate_radps: float
    max_yaw_acceleration_radps2: float

    @property
    def within_bounds(self) -> bool:
        """Whether nuPlan calls the drive comfortable."""
        return (
            self.min_longitudinal_mps2 > MIN_LONGITUDINAL_MPS2
            and self.max_longitudinal_mps2 < MAX_LONGITUDINAL_MPS2
            and self.max_lateral_mps2 < MAX_LATERAL_MPS2
            and self.max_longitudinal_jerk_mps3 < MAX_LONGITUDINAL_JERK_MPS3
            and self.max_jerk_mps3 < MAX_JERK_MPS3
            and self.max_yaw_rate_radps < MAX_YAW_RATE_RADPS
            and self.max_yaw_acceleration_radps2 < MAX_YAW_ACCELERATION_RADPS2
        )


def comfort(dt_s: float, speed_mps: NDArray[np.float64], yaw_rate_radps: NDArray[np.float64]) -> Comfort:
    """Comfort of a motion sampled every dt_s: speed and yaw rate [N], at least 2 samples."""
    if len(speed_mps) < 2 or len(speed_mps) != len(yaw_rate_radps):
        raise ValueError(f"comfort needs two or more samples of both, not {len(speed_mps)} and {len(yaw_rate_radps)}")
    window = min(round(_SMOOTHING_S / dt_s), len(speed_mps)) // 2 * 2 - 1
    window = max(window, 3)
    if len(speed_mps) < window:
        speed_mps, yaw_rate_radps = (np.pad(v, (0, window - len(v)), mode="edge") for v in (speed_mps, yaw_rate_radps))

    def smooth(values: NDArray[np.float64], derivative: int = 0) -> NDArray[np.float64]:
        smoothed = savgol_filter(values, window, _ORDER, deriv=derivative, delta=dt_s)
        return np.asarray(smoothed, dtype=np.float64)

    longitudinal, yaw_acceleration = smooth(speed_mps, 1), smooth(yaw_rate_radps, 1)
    lateral = smooth(speed_mps * yaw_rate_radps)
    jerk, lateral_jerk = smooth(longitudinal, 1), smooth(lateral, 1)
    return Comfort(
        min_longitudinal_mps2=float(longitudinal.min()),
        max_longitudinal_mps2=float(longitudinal.max()),
        max_lateral_mps2=float(np.abs(lateral).max()),
        max_longitudinal_jerk_mps3=float(np.abs(jerk).max()),
        max_jerk_mps3=float(np.hypot(jerk, lateral_jerk).max()),
        max_yaw_rate_radps=float(np.abs(yaw_rate_radps).max()),
        max_yaw_acceleration_radps2=float(np.abs(yaw_acceleration).max()),
    )
