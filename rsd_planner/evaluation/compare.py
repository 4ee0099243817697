"""Two folders of results, cycle by cycle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rsd_planner.evaluation.metrics import bootstrap
from rsd_planner.evaluation.results import Results, figure_names

MOST_CHANGED = 10
_SPAN = 30  # points: 3 s


@dataclass(frozen=True)
class Comparison:
    """differences: figure -> mean of new minus baseline over the same cycles, its 95 % interval and their number.

    changed: the cycles whose plans moved most, by the mean distance of their first 3 s.
    """

    baseline: str
    cycles: int
    differences: dict[str, dict[str, float]]
    changed: list[dict[str, Any]]
    texts_changed: float


def compare(new: Results, baseline: Results) -> Comparison:
    """Pairs cycles by bag and t0. Raises ValueError if no cycle is in both."""
    pairs = _pairs(new, baseline)
    if not pairs:
        raise ValueError(f"{new.directory} and {baseline.directory} have no cycle in common")
    mine, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    differences = {}
    for name in figure_names(mine):
        if name not in figure_names(theirs):
            continue
        clips: dict[str, list[float]] = {}
        for row, other in pairs:
            if row[name] is not None and other[name] is not None:
                clips.setdefault(row["clip"], []).append(row[name] - other[name])
        arrays = [np.array(values) for values in clips.values()]
        mean, low, high = bootstrap(arrays)
        count = sum(int(np.isfinite(values).sum()) for values in arrays)
        if count:
            differences[name] = {"mean": mean, "low": low, "high": high, "cycles": count}
    changed = sorted(
        ({"change_m": _moved(a, b), **_told(a, b)} for a, b in pairs), key=lambda entry: -entry["change_m"]
    )
    return Comparison(
        baseline=str(baseline.directory),
        cycles=len(pairs),
        differences=differences,
        changed=changed[:MOST_CHANGED],
        texts_changed=float(np.mean([a["text"] != b["text"] for a, b in pairs])),
    )


def describe(comparison: Comparison) -> str:
    """For a terminal. A star marks differences whose interval does not hold 0."""
    lines = [f"against {comparison.baseline}, {comparison.cycles} cycles in common (new minus baseline):"]
    for name, figure in comparison.differences.items():
        known = np.isfinite(figure["low"])
        star = "*" if known and not figure["low"] <= 0 <= figure["high"] else " "
        interval = f"[{figure['low']:+.3f}, {figure['high']:+.3f}]" if known else ""
        lines.append(f" {star}{name:<20}{figure['mean']:>+9.3f}  {interval}")
    lines.append(f"  texts that changed: {comparison.texts_changed:.1%}")
    lines += [
        f"  {entry['bag']} {entry['t_s']:.1f} s: plan moved {entry['change_m']:.3f} m on average over 3 s"
        for entry in comparison.changed
        if entry["change_m"] > 0
    ]
    return "\n".join(lines)


def _pairs(new: Results, baseline: Results) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    others = {(row["bag"], row["t0_ns"]): row for row in baseline.rows(("plan_x", "plan_y"))}
    keyed = ((row, others.get((row["bag"], row["t0_ns"]))) for row in new.rows(("plan_x", "plan_y")))
    return [(row, other) for row, other in keyed if other is not None]


def _moved(row: dict[str, Any], other: dict[str, Any]) -> float:
    dx = np.array(row["plan_x"][:_SPAN]) - np.array(other["plan_x"][:_SPAN])
    dy = np.array(row["plan_y"][:_SPAN]) - np.array(other["plan_y"][:_SPAN])
    return float(np.hypot(dx, dy).mean())


def _told(row: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {
        "bag": row["bag"],
        "t0_ns": row["t0_ns"],
        "t_s": row["t_s"],
        "text": row["text"],
        "text_before": other["text"],
    }
