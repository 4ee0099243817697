"""Flow matching: noise at t = 0, data at t = 1, Euler steps along the learned velocity."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

Velocity = Callable[[Tensor, Tensor], Tensor]


def noise(rows: int, waypoints: int, seed: int, device: torch.device | None = None) -> Tensor:
    """Standard normal start [rows, waypoints, 2] float32, the same for a seed on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, waypoints, 2, generator=generator).to(device or "cpu")


def integrate(velocity: Velocity, start: Tensor, steps: int) -> Tensor:
    """All states [rows, steps + 1, N, 2] of the Euler integration of velocity(x, t) from start.

    velocity takes x [rows, N, 2] and t [rows] and is evaluated at the start of each step.
    """
    if steps < 1:
        raise ValueError(f"the flow needs at least one step, not {steps}")
    times = torch.linspace(0.0, 1.0, steps + 1).tolist()
    states = [start]
    for now, after in itertools.pairwise(times):
        time = torch.full((len(start),), now, device=start.device)
        states.append(states[-1] + (after - now) * velocity(states[-1], time))
    return torch.stack(states, dim=1)


def guided(conditional: Velocity, unconditional: Velocity, weight: float) -> Velocity:
    """Classifier-free guidance: (1 - weight) unconditional + weight conditional."""

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        return (1.0 - weight) * unconditional(x, t) + weight * conditional(x, t)

    return velocity
