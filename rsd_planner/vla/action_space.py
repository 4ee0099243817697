"""The action space of the public model: 64 steps of (acceleration, curvature) driven by a unicycle.

A trajectory in the ego frame at t0 (REP-103: x forward, y left, z up) is a roll-out of normalised
actions from the speed at t0. Both directions are linear least-squares problems with smoothness
terms; they are solved in float64 whatever the input type, because a history may lie far from its
origin and the normal equations square the condition number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Weights of the smoothness terms at the model's 0.1 s step (1e-6 / dt^6 and 1e-4 / dt^4).
_THIRD_DIFFERENCE_WEIGHT_S6 = 1e-6
_SECOND_DIFFERENCE_WEIGHT_S4 = 1e-4
_SPEED_RIDGE = 1e-4
_YAW_RIDGE = 1e-8
_ACTION_RIDGE = 1e-4


def yaw_of(rotation: Tensor) -> Tensor:
    """Yaw (rad) of rotation matrices [..., 3, 3], as atan2(R10, R00)."""
    return torch.atan2(rotation[..., 1, 0], rotation[..., 0, 0])


def yaw_rotation(yaw: Tensor) -> Tensor:
    """Rotation matrices [..., 3, 3] about z for yaw (rad) [...]."""
    cos, sin = yaw.cos(), yaw.sin()
    zero, one = torch.zeros_like(yaw), torch.ones_like(yaw)
    return torch.stack([cos, -sin, zero, sin, cos, zero, zero, zero, one], dim=-1).unflatten(-1, (3, 3))


def unwrap(angle: Tensor) -> Tensor:
    """Removes 2 pi jumps along the last axis of angle (rad) [..., N]."""
    step = torch.diff(angle, dim=-1)
    wrapped = torch.remainder(step + torch.pi, 2 * torch.pi) - torch.pi
    return torch.cat([angle[..., :1], angle[..., :1] + wrapped.cumsum(-1)], dim=-1)


def _difference_matrix(size: int, order: int, like: Tensor) -> Tensor:
    """Matrix [size - order, size] whose product with x is the order-th forward difference of x."""
    return torch.diff(torch.eye(size, dtype=like.dtype, device=like.device), n=order, dim=0)


def _solve(normal: Tensor, right: Tensor, ridge: float) -> Tensor:
    """Solves (normal + ridge I) x = right for symmetric [..., N, N] and [..., N].

    A factorisation that fails is tried again with ten times the ridge, as the public model does.
    """
    if not (torch.isfinite(normal).all() and torch.isfinite(right).all()):
        raise ValueError("a trajectory with values that are not finite has no action")
    identity = torch.eye(normal.shape[-1], dtype=normal.dtype, device=normal.device)
    for _ in range(12):
        factor, info = torch.linalg.cholesky_ex(normal + ridge * identity)
        if not info.any():
            return torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)
        ridge *= 10.0
    raise ValueError("the least-squares problem of the action space has no solution")


def _fit_with_first_fixed(
    design: Tensor, target: Tensor, first: Tensor, order: int, weight: float, ridge: float
) -> Tensor:
    """Least squares for x [..., N] with x[0] = first: |design x - target|^2 + weight |D^order x|^2 + ridge |x|^2.

    design is [..., M, N], target [..., M], first [...]. Returns x [..., N], first included.
    """
    smooth = _difference_matrix(design.shape[-1], order, design)
    known, free = design[..., 0], design[..., 1:]
    residual = target - known * first.unsqueeze(-1)
    normal = free.mT @ free + weight * smooth[:, 1:].mT @ smooth[:, 1:]
    right = (free.mT @ residual.unsqueeze(-1)).squeeze(-1)
    right = right - weight * first.unsqueeze(-1) * (smooth[:, 1:].mT @ smooth[:, 0])
    return torch.cat([first.unsqueeze(-1), _solve(normal, right, ridge)], dim=-1)


def _speed_design(yaw: Tensor) -> Tensor:
    """Matrix [..., 2 (N-1), N] that maps speeds v_k to v_k u_k + v_(k+1) u_(k+1), x rows before y rows."""
    steps = yaw.shape[-1] - 1
    blocks = []
    for component in (yaw.cos(), yaw.sin()):
        block = torch.zeros(*yaw.shape[:-1], steps, steps + 1, dtype=yaw.dtype, device=yaw.device)
        index = torch.arange(steps, device=yaw.device)
        block[..., index, index] = component[..., :-1]
        block[..., index, index + 1] = component[..., 1:]
        blocks.append(block)
    return torch.cat(blocks, dim=-2)


@dataclass(frozen=True)
class ActionSpace:
    """Normalisation constants and time base of the (acceleration, curvature) action.

    accel_* in m/s^2, curvature_* in 1/m, dt_s in seconds; the bounds are for checking only.
    """

    accel_mean: float = 0.02902694707164455
    accel_std: float = 0.6810426736454882
    curvature_mean: float = 0.0002692167976330542
    curvature_std: float = 0.026148280660833106
    accel_bounds: tuple[float, float] = (-9.8, 9.8)
    curvature_bounds: tuple[float, float] = (-0.33, 0.33)
    dt_s: float = 0.1
    waypoints: int = 64

    def denormalise(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised action [..., N, 2] -> acceleration (m/s^2) [..., N], curvature (1/m) [..., N]."""
        accel = action[..., 0] * self.accel_std + self.accel_mean
        return accel, action[..., 1] * self.curvature_std + self.curvature_mean

    def in_bounds(self, action: Tensor) -> Tensor:
        """True [...] where a whole normalised action [..., N, 2] stays inside the public bounds."""
        accel, curvature = self.denormalise(action)
        inside = (accel >= self.accel_bounds[0]) & (accel <= self.accel_bounds[1])
        inside &= (curvature >= self.curvature_bounds[0]) & (curvature <= self.curvature_bounds[1])
        return inside.all(dim=-1)

    def estimate_v0(self, history_xyz: Tensor, history_rotation: Tensor) -> Tensor:
        """Signed speed (m/s) [...] at t0 from the poses [..., H, 3], [..., H, 3, 3] that lead to it.

        The smoothest speed profile whose trapezoidal motion along the headings explains the
        displacements; float64 inside. The poses are dt_s apart, the last at t0.
        """
        position = history_xyz[..., :2].double()
        yaw = unwrap(yaw_of(history_rotation.double()))
        speed = self._fit_speed(position, yaw, first=None)
        return speed[..., -1].to(history_xyz.dtype)

    def _fit_speed(self, position: Tensor, yaw: Tensor, first: Tensor | None) -> Tensor:
        """Speeds (m/s) [..., N] along positions [..., N, 2] and headings [..., N]; first fixes the first one."""
        design = _speed_design(yaw)
        displacement = torch.diff(position, dim=-2) * (2.0 / self.dt_s)
        target = torch.cat([displacement[..., 0], displacement[..., 1]], dim=-1)
        weight = _THIRD_DIFFERENCE_WEIGHT_S6 / self.dt_s**6
        if first is not None:
            return _fit_with_first_fixed(design, target, first, order=3, weight=weight, ridge=_SPEED_RIDGE)
        smooth = _difference_matrix(yaw.shape[-1], 3, design)
        normal = design.mT @ design + weight * smooth.mT @ smooth
        return _solve(normal, (design.mT @ target.unsqueeze(-1)).squeeze(-1), _SPEED_RIDGE)

    def _fit_action(self, gain: Tensor, target: Tensor) -> Tensor:
        """Smooth x [..., N] with gain * x close to target, all [..., N]."""
        smooth = _difference_matrix(gain.shape[-1], 2, gain)
        weight = _SECOND_DIFFERENCE_WEIGHT_S4 / self.dt_s**4
        return _solve(torch.diag_embed(gain**2) + weight * smooth.mT @ smooth, gain * target, _ACTION_RIDGE)

    def action_from_trajectory(
        self, history_xyz: Tensor, history_rotation: Tensor, future_xyz: Tensor, future_rotation: Tensor
    ) -> Tensor:
        """Normalised action [..., N, 2] whose roll-out follows the future.

        history [..., H, 3], [..., H, 3, 3] and future [..., N, 3], [..., N, 3, 3] are in the ego
        frame at t0; the future starts one dt_s after t0.
        """
        v0 = self.estimate_v0(history_xyz.double(), history_rotation.double())
        origin = torch.zeros_like(v0)
        heading = unwrap(torch.cat([origin.unsqueeze(-1), yaw_of(future_rotation.double())], dim=-1))
        identity = torch.eye(heading.shape[-1], dtype=heading.dtype, device=heading.device)[1:]
        identity = identity.expand(*heading.shape[:-1], *identity.shape)
        weight = _THIRD_DIFFERENCE_WEIGHT_S6 / self.dt_s**6
        yaw = _fit_with_first_fixed(identity, heading[..., 1:], origin, order=3, weight=weight, ridge=_YAW_RIDGE)
        position = future_xyz[..., :2].double()
        position = torch.cat([torch.zeros_like(position[..., :1, :]), position], dim=-2)
        speed = self._fit_speed(position, yaw, first=v0)
        rate = torch.diff(speed, dim=-1) / self.dt_s
        accel = self._fit_action(torch.ones_like(rate), rate)
        distance = speed[..., :-1] * self.dt_s + accel * (self.dt_s**2 / 2)
        curvature = self._fit_action(distance, torch.diff(yaw, dim=-1))
        accel = (accel - self.accel_mean) / self.accel_std
        curvature = (curvature - self.curvature_mean) / self.curvature_std
        return torch.stack([accel, curvature], dim=-1).to(future_xyz.dtype)

    def trajectory_from_action(self, action: Tensor, v0: Tensor, z0: Tensor) -> Trajectory:
        """Roll-out of a normalised action [..., N, 2] from speed v0 (m/s) [...] and height z0 (m) [...].

        Waypoint k (0-based) lies (k+1) dt_s after t0, in the ego frame at t0.
        """
        accel, curvature = self.denormalise(action.double())
        start = v0.double().unsqueeze(-1)
        speed = torch.cat([start, start + (accel * self.dt_s).cumsum(-1)], dim=-1)
        turn = curvature * (speed[..., :-1] * self.dt_s + accel * (self.dt_s**2 / 2))
        yaw = torch.cat([torch.zeros_like(start), turn.cumsum(-1)], dim=-1)
        velocity = speed.unsqueeze(-1) * torch.stack([yaw.cos(), yaw.sin()], dim=-1)
        xy = ((velocity[..., :-1, :] + velocity[..., 1:, :]) * (self.dt_s / 2)).cumsum(-2)
        z = z0.double()[..., None, None].expand(*xy.shape[:-1], 1)
        return Trajectory(
            xyz=torch.cat([xy, z], dim=-1).to(action.dtype),
            yaw_rad=yaw[..., 1:].to(action.dtype),
            speed_mps=speed[..., 1:].to(action.dtype),
            accel_mps2=accel.to(action.dtype),
            curvature_radpm=curvature.to(action.dtype),
        )


@dataclass(frozen=True)
class Trajectory:
    """A roll-out in the ego frame at t0; waypoint k lies (k+1) dt after t0.

    xyz [..., N, 3] m; yaw_rad, speed_mps [..., N] at the waypoint; accel_mps2, curvature_radpm
    [..., N] held over the step that ends there.
    """

    xyz: Tensor
    yaw_rad: Tensor
    speed_mps: Tensor
    accel_mps2: Tensor
    curvature_radpm: Tensor

    @property
    def rotation(self) -> Tensor:
        """Rotation matrices [..., N, 3, 3] (yaw only)."""
        return yaw_rotation(self.yaw_rad)
