"""What a plan was worth against what the car really did. Every function says its definition and where it is from.

Positions in m, yaw in rad, speeds in m/s; plans and truth are given in base_link at t0, point k at t0 + (k + 1) dt.
Truth that is unknown (the bag had ended) is NaN; a figure over a span with unknown truth is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rsd_planner.control.comfort import comfort

HORIZONS_S = (1.0, 2.0, 3.0, 5.0, 6.4)
MISS_M = 2.0
MIN_CLIPS = 5
Floats = NDArray[np.float64]


def points_until(horizon_s: float, dt_s: float) -> int:
    """Number of points up to and including a horizon."""
    return round(horizon_s / dt_s)


def displacement(plan_xy: Floats, truth_xy: Floats) -> Floats:
    """Distance of each point [..., N] of plans [..., N, 2] from the truth [N, 2]."""
    return np.asarray(np.linalg.norm(plan_xy - truth_xy, axis=-1))


def average_displacement(distance: Floats, horizon_s: float, dt_s: float) -> Floats:
    """ADE: mean distance over the points up to a horizon, of distances [..., N] (Alahi et al. 2016, Social LSTM)."""
    return np.asarray(distance[..., : points_until(horizon_s, dt_s)].mean(axis=-1))


def final_displacement(distance: Floats, horizon_s: float, dt_s: float) -> Floats:
    """FDE: distance at a horizon, of distances [..., N] (Alahi et al. 2016)."""
    return np.asarray(distance[..., points_until(horizon_s, dt_s) - 1])


def min_average_displacement(distance: Floats, horizon_s: float, dt_s: float) -> float:
    """minADE_k: the least ADE of k samples [k, N] (nuScenes prediction challenge; Alpamayo reports k = 6 at 6.4 s)."""
    return float(average_displacement(distance, horizon_s, dt_s).min())


def is_missed(distance: Floats, horizon_s: float, dt_s: float) -> float:
    """1 if the best of k samples [k, N] is more than 2 m off somewhere up to the horizon (nuScenes MissRateTopK_2)."""
    furthest = distance[..., : points_until(horizon_s, dt_s)].max(axis=-1)
    best = float(np.min(furthest))
    return math.nan if math.isnan(best) else float(best > MISS_M)


def along_and_across(plan_xy: Floats, truth_xy: Floats, truth_yaw: Floats) -> tuple[Floats, Floats]:
    """Longitudinal and lateral error [N]: the plan's offset in the truth's heading frame, ahead and left positive."""
    offset = plan_xy - truth_xy
    cos, sin = np.cos(truth_yaw), np.sin(truth_yaw)
    return offset[:, 0] * cos + offset[:, 1] * sin, -offset[:, 0] * sin + offset[:, 1] * cos


def heading_error(plan_yaw: Floats, truth_yaw: Floats) -> Floats:
    """Smallest angle [N] between headings, left positive."""
    return np.asarray(np.remainder(plan_yaw - truth_yaw + np.pi, 2 * np.pi) - np.pi)


def plan_is_comfortable(speed_mps: Floats, curvature_radpm: Floats, dt_s: float) -> float:
    """1 if the planned motion [N] keeps nuPlan's comfort bounds (control.comfort), else 0."""
    return float(comfort(dt_s, speed_mps, speed_mps * curvature_radpm).within_bounds)


def jitter(before_xy: Floats, now_xy: Floats, shift_s: float, dt_s: float, span_s: float = 3.0) -> float:
    """Plan-to-plan consistency: mean distance between two plans at the same times, over the newer one's first 3 s.

    Both [N, 2] in one fixed frame; the newer one's t0 is shift_s later. NaN where they do not overlap.
    """
    count = points_until(span_s, dt_s)
    times = shift_s + dt_s * np.arange(1, count + 1)
    own = dt_s * np.arange(1, len(before_xy) + 1)
    if shift_s <= 0 or times[-1] > own[-1] + 1e-9:
        return math.nan
    earlier = np.stack([np.interp(times, own, before_xy[:, axis]) for axis in range(2)], axis=1)
    return float(np.linalg.norm(now_xy[:count] - earlier, axis=1).mean())


def against_truth(
    plan: dict[str, Floats], truth: dict[str, Floats], samples_xy: Sequence[Floats], dt_s: float
) -> dict[str, float]:
    """All displacement figures of a cycle. plan and truth hold xy [N, 2], yaw, speed [N]; samples_xy the plan's first.

    heading and speed errors are means of absolute values over 6.4 s, along and across at 3 s and 6.4 s.
    """
    found: dict[str, float] = {}
    distance = displacement(plan["xy"], truth["xy"])
    samples = displacement(np.stack(samples_xy), truth["xy"])
    for horizon in HORIZONS_S:
        name = f"{horizon:g}s"
        found[f"ade_{name}"] = float(average_displacement(distance, horizon, dt_s))
        found[f"fde_{name}"] = float(final_displacement(distance, horizon, dt_s))
    full = HORIZONS_S[-1]
    if len(samples_xy) > 1:
        found[f"min_ade_{len(samples_xy)}_{full:g}s"] = min_average_displacement(samples, full, dt_s)
    found[f"miss_{full:g}s"] = is_missed(samples, full, dt_s)
    along, across = along_and_across(plan["xy"], truth["xy"], truth["yaw"])
    for horizon in (3.0, full):
        last = points_until(horizon, dt_s) - 1
        found[f"longitudinal_{horizon:g}s"] = float(abs(along[last]))
        found[f"lateral_{horizon:g}s"] = float(abs(across[last]))
    found["heading"] = float(np.abs(heading_error(plan["yaw"], truth["yaw"])).mean())
    found["speed"] = float(np.abs(plan["speed"] - truth["speed"]).mean())
    return found


def bootstrap(values: Sequence[Floats], resamples: int = 2000, seed: int = 0) -> tuple[float, float, float]:
    """Mean over all values and its 95 % percentile interval, by resampling clips (Efron 1979).

    values: one array a clip; NaNs are left out. Fewer than five clips give no interval (NaN): it would say little.
    """
    kept = [clip[np.isfinite(clip)] for clip in values]
    kept = [clip for clip in kept if len(clip)]
    if not kept:
        return math.nan, math.nan, math.nan
    sums, counts = np.array([clip.sum() for clip in kept]), np.array([len(clip) for clip in kept])
    mean = float(sums.sum() / counts.sum())
    if len(kept) < MIN_CLIPS:
        return mean, math.nan, math.nan
    drawn = np.random.default_rng(seed).integers(len(kept), size=(resamples, len(kept)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return mean, float(low), float(high)
