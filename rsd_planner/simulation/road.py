"""Roads as a line with lanes beside it; places are (s, d): metres along it and to its left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_SPACING_M = 0.5
_TRANSITION_M = 12.0
LANE_WIDTH_M = 3.5


@dataclass(frozen=True)
class Lane:
    """A lane by its centre (m to the left of the road's line) and direction of travel (+1 with s, -1 against)."""

    offset_m: float
    direction: int


@dataclass(frozen=True)
class Road:
    """The line that a route follows, sampled every half metre, straight before and beyond its ends.

    The line is the centre of the lane that the ego car starts in. x_m, y_m, yaw_rad (unwrapped), curvature_radpm [N].
    """

    x_m: NDArray[np.float64]
    y_m: NDArray[np.float64]
    yaw_rad: NDArray[np.float64]
    curvature_radpm: NDArray[np.float64]
    lanes: tuple[Lane, ...] = (Lane(0.0, 1), Lane(LANE_WIDTH_M, -1))
    spacing_m: float = field(default=_SPACING_M)

    @classmethod
    def from_segments(
        cls,
        segments: Sequence[tuple[float, float]],
        start: tuple[float, float, float] = (0.0, 0.0, 0.0),
        lanes: tuple[Lane, ...] = (Lane(0.0, 1), Lane(LANE_WIDTH_M, -1)),
    ) -> Road:
        """Segments of (length m, curvature 1/m), joined by linear changes of curvature."""
        total = sum(length for length, _ in segments)
        s = np.arange(0.0, total, _SPACING_M)
        ends = np.cumsum([length for length, _ in segments])
        curvature = np.array([segments[int(np.searchsorted(ends, at, side="right"))][1] for at in s])
        window = max(1, round(_TRANSITION_M / _SPACING_M))
        padded = np.pad(curvature, window // 2, mode="edge")
        curvature = np.convolve(padded, np.ones(window) / window, mode="same")[window // 2 :][: len(s)]
        yaw = start[2] + np.concatenate([[0.0], np.cumsum((curvature[1:] + curvature[:-1]) / 2) * _SPACING_M])
        middle = (yaw[1:] + yaw[:-1]) / 2
        x = start[0] + np.concatenate([[0.0], np.cumsum(np.cos(middle)) * _SPACING_M])
        y = start[1] + np.concatenate([[0.0], np.cumsum(np.sin(middle)) * _SPACING_M])
        return cls(x, y, yaw, curvature, lanes)

    @property
    def length_m(self) -> float:
        """Length of the sampled line."""
        return (len(self.x_m) - 1) * self.spacing_m

    def pose(self, s_m: float, d_m: float = 0.0) -> tuple[float, float, float]:
        """x, y (m) and heading (rad) of the road at a place."""
        inside = min(max(s_m, 0.0), self.length_m)
        k = min(int(inside / self.spacing_m), len(self.x_m) - 2)
        u = inside / self.spacing_m - k
        yaw = float(self.yaw_rad[k] + u * (self.yaw_rad[k + 1] - self.yaw_rad[k]))
        x = float(self.x_m[k] + u * (self.x_m[k + 1] - self.x_m[k]))
        y = float(self.y_m[k] + u * (self.y_m[k + 1] - self.y_m[k]))
        beyond = s_m - inside
        cos, sin = math.cos(yaw), math.sin(yaw)
        return x + beyond * cos - d_m * sin, y + beyond * sin + d_m * cos, yaw

    def project(self, x_m: float, y_m: float, near_s_m: float | None = None) -> tuple[float, float]:
        """The place (s, d) of a point; near_s_m restricts the search to 40 m around it."""
        low, high = 0, len(self.x_m)
        if near_s_m is not None:
            low = min(max(0, int((near_s_m - 40.0) / self.spacing_m)), high - 2)
            high = max(low + 2, min(high, int((near_s_m + 40.0) / self.spacing_m) + 1))
        k = low + int(np.argmin((self.x_m[low:high] - x_m) ** 2 + (self.y_m[low:high] - y_m) ** 2))
        dx, dy = x_m - self.x_m[k], y_m - self.y_m[k]
        cos, sin = math.cos(self.yaw_rad[k]), math.sin(self.yaw_rad[k])
        left = -dx * sin + dy * cos
        # The step along the tangent is longer on the inside of a bend than along the line.
        ahead = (dx * cos + dy * sin) / max(0.2, 1.0 - left * float(self.curvature_radpm[k]))
        ahead = ahead if 0 < k < len(self.x_m) - 1 else dx * cos + dy * sin
        return float(k * self.spacing_m + ahead), float(left)

    def curvature(self, s_m: NDArray[np.float64]) -> NDArray[np.float64]:
        """Curvature (1/m) of the line at places along it; 0 outside."""
        s = np.arange(len(self.x_m)) * self.spacing_m
        return np.interp(s_m, s, self.curvature_radpm, left=0.0, right=0.0)
