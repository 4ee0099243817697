"""The smallest target that still has every part."""

from __future__ import annotations

from rsd_planner.training.mini import TargetShape

SHAPE = TargetShape(
    vocabulary=400, layers=2, hidden=64, intermediate=96, heads=2, kv_heads=1, head_dim=32, vision_layers=2,
    vision_hidden=32, vision_intermediate=64, vision_heads=2, expert_hidden=64, expert_intermediate=96,
    action_hidden=32, pixels=64 * 32,
)  # fmt: skip
