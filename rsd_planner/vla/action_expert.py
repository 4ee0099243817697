"""The action expert: a second decoder that reads the backbone's cache and moves noise to an action."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

from rsd_planner.vla.backbone import Context, run_layers


class ActionInProjection(nn.Module):
    """Embeds each waypoint's noisy action and the flow time: Fourier features, MLP, LayerNorm."""

    frequencies: Tensor
    """[3, features / 2]: of acceleration, curvature and flow time."""

    def __init__(
        self, out_size: int, hidden_size: int, encoder_layers: int, fourier_features: int, max_frequency: float
    ) -> None:
        super().__init__()
        half = fourier_features // 2
        frequencies = torch.logspace(0, math.log10(max_frequency), half, dtype=torch.float32)
        self.register_buffer("frequencies", frequencies.repeat(3, 1), persistent=False)
        trunk: list[nn.Module] = []
        size = 3 * 2 * half
        for _ in range(encoder_layers):
            trunk += [nn.Linear(size, hidden_size), nn.SiLU(), nn.RMSNorm(hidden_size, eps=1e-5)]
            size = hidden_size
        # Named encoder.trunk in checkpoints.
        self.encoder = nn.ModuleDict({"trunk": nn.Sequential(*trunk, nn.Linear(size, out_size))})
        self.norm = nn.LayerNorm(out_size)

    def forward(self, action: Tensor, time: Tensor) -> Tensor:
        """Normalised action [B, N, 2] at flow time [B] -> embeddings [B, N, out_size]."""
        scalars = torch.cat([action, time[:, None, None].expand(-1, action.shape[1], 1)], dim=-1)
        # The order of the products is the public model's: the highest frequency turns a last-digit
        # difference into a visible one, and ten flow steps amplify it.
        angle = scalars.float().unsqueeze(-1) * self.frequencies * (2 * math.pi)
        features = math.sqrt(2) * torch.cat([angle.sin(), angle.cos()], dim=-1)
        return self.norm(self.encoder["trunk"](features.flatten(-2).to(self.norm.weight.dtype)))


class ActionExpert:
    """The velocity field of the flow, given a context.

    first_position [rows] is the M-RoPE position of the first waypoint; valid [rows] the number of
    cache slots that belong to the row (the rest is masked, rows may have stopped at different lengths).
    """

    def __init__(
        self,
        decoder: Qwen3VLTextModel,
        in_projection: ActionInProjection,
        out_projection: nn.Linear,
        context: Context,
        waypoints: int,
        valid: Tensor,
        first_position: Tensor,
    ) -> None:
        self._decoder = decoder
        self._in_projection = in_projection
        self._out_projection = out_projection
        self._cache = context.cache
        device = context.cache.keys.device
        steps = torch.arange(waypoints, device=device)
        self.positions = (first_position.to(device).unsqueeze(1) + steps).expand(3, -1, -1)
        """M-RoPE positions [3, rows, N], the same on all axes."""
        self.allowed = self._allowed(valid.to(device), context.length, waypoints)
        """Slots [rows, 1, 1, length + N] that the waypoints may attend to; None where all may."""

    @staticmethod
    def _allowed(valid: Tensor, length: int, waypoints: int) -> Tensor | None:
        if bool((valid >= length).all()):
            return None
        slots = torch.arange(length + waypoints, device=valid.device)
        allowed = (slots < valid.unsqueeze(1)) | (slots >= length)
        return allowed[:, None, None, :]

    def hidden(self, action: Tensor, time: Tensor) -> Tensor:
        """Last hidden state [rows, N, D] for the noisy action [rows, N, 2] at flow time [rows]."""
        embeds = self._in_projection(action, time)
        hidden, _ = run_layers(self._decoder, embeds, self.positions, self._cache, mask=self.allowed, causal=False)
        return self._decoder.norm(hidden)

    def __call__(self, action: Tensor, time: Tensor) -> Tensor:
        """Velocity [rows, N, 2] (float32) of the flow."""
        return self._out_projection(self.hidden(action, time)).float()
