"""Trajectories as vocabulary bins: the ego history in the prompt, and the discrete future of training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rsd_planner.vla.action_space import ActionSpace, Trajectory


def _to_bins(value: Tensor, low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Nearest of `bins` levels from low to high (ties to even), clamped to the range."""
    scaled = (value - low) / (high - low) * (bins - 1)
    return scaled.round().clamp(0, bins - 1).long()


@dataclass(frozen=True)
class HistoryTokenizer:
    """Steps between consecutive history positions, x, y, z of each pose in turn.

    The step into the oldest pose is measured from the origin, so its bin holds the oldest position
    itself (and mostly clamps): so the public model was trained. Rotation is not encoded.
    """

    low_m: tuple[float, float, float] = (-4.0, -4.0, -10.0)
    high_m: tuple[float, float, float] = (4.0, 4.0, 10.0)
    bins: int = 1000

    def encode(self, xyz: Tensor) -> Tensor:
        """History positions [..., H, 3] in the ego frame at t0 -> bins [..., 3 H] (int64)."""
        step = torch.diff(xyz.float(), dim=-2, prepend=torch.zeros_like(xyz[..., :1, :], dtype=torch.float32))
        low, high = torch.tensor(self.low_m, device=xyz.device), torch.tensor(self.high_m, device=xyz.device)
        return _to_bins(step, low, high, self.bins).flatten(-2)

    def decode(self, bins: Tensor) -> Tensor:
        """Bins [..., 3 H] -> positions [..., H, 3]; exact up to half a bin a step where nothing clamped."""
        low, high = torch.tensor(self.low_m, device=bins.device), torch.tensor(self.high_m, device=bins.device)
        step = bins.unflatten(-1, (-1, 3)).float() / (self.bins - 1) * (high - low) + low
        return step.cumsum(-2)


@dataclass(frozen=True)
class FutureTokenizer:
    """Normalised (acceleration, curvature) of each waypoint in turn, as the public model is trained on."""

    action_space: ActionSpace
    low: float = -10.0
    high: float = 10.0
    bins: int = 3000

    def encode(self, action: Tensor) -> Tensor:
        """Normalised action [..., N, 2] -> bins [..., 2 N] (int64)."""
        low, high = torch.tensor(self.low, device=action.device), torch.tensor(self.high, device=action.device)
        return _to_bins(action.float(), low, high, self.bins).flatten(-2)

    def decode(self, bins: Tensor, v0: Tensor, z0: Tensor) -> Trajectory:
        """Bins [..., 2 N] with speed v0 (m/s) and height z0 (m) [...] at t0 -> roll-out."""
        action = bins.unflatten(-1, (-1, 2)).float() / (self.bins - 1) * (self.high - self.low) + self.low
        return self.action_space.trajectory_from_action(action, v0, z0)
