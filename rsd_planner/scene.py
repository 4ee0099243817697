"""What the planner sees: camera frames chosen by stamp, and the way the car came."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class EgoHistory:
    """Poses that lead to t0, oldest first, dt_s apart, the last at t0 (REP-103 axes).

    xyz [H, 3] m and rotation [H, 3, 3] in base_link at t0, float64; speed_mps (signed, forward) and
    yaw_rate_radps at t0 come from the odometry's twist. position_in_odometry [3] m and
    quaternion_in_odometry [4] (x, y, z, w) place base_link at t0 in odometry_frame.
    """

    xyz: NDArray[np.float64]
    rotation: NDArray[np.float64]
    dt_s: float
    speed_mps: float
    yaw_rate_radps: float
    position_in_odometry: NDArray[np.float64]
    quaternion_in_odometry: NDArray[np.float64]
    odometry_frame: str = "odom"
    base_frame: str = "base_link"


@dataclass(frozen=True)
class CameraFrames:
    """One camera's frames, oldest first; index is the public model's camera number."""

    name: str
    index: int
    stamps_ns: tuple[int, ...]
    images: tuple[NDArray[np.uint8], ...]
    """Each uint8 [H, W, 3] RGB."""


@dataclass(frozen=True)
class Scene:
    """Everything one planning cycle looks at. t0_ns is the stamp that the plan will carry."""

    t0_ns: int
    cameras: tuple[CameraFrames, ...]
    history: EgoHistory
    route: str | None = None
    """A navigation instruction, for models that take one."""
