"""Golden bags: recorded plans that must not change unless somebody means them to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rsd_planner.evaluation.reading import BagReader
from rsd_planner.evaluation.replay import Plans, Replay
from rsd_planner.planner_parameters import PlannerParameters

TOLERANCE = 0.02
"""m, rad, m/s: what another machine's arithmetic may change."""
_COLUMNS = ("plan_x", "plan_y", "plan_yaw", "plan_speed")


def plans_of(bag: Path, plans: Plans, parameters: PlannerParameters) -> list[dict[str, Any]]:
    """Every plan of a bag: t0_ns, text and the trajectory's columns."""
    reader = BagReader(bag, parameters.cameras())
    try:
        rows = [cycle.row for cycle in Replay(reader, plans, parameters).cycles()]
    finally:
        reader.close()
    return [
        {"t0_ns": row["t0_ns"], "text": row["text"], **{name: [round(v, 4) for v in row[name]] for name in _COLUMNS}}
        for row in rows
    ]


def differences(found: list[dict[str, Any]], golden: list[dict[str, Any]]) -> list[str]:
    """What changed, a line each; empty if nothing did."""
    ours, theirs = {plan["t0_ns"]: plan for plan in found}, {plan["t0_ns"]: plan for plan in golden}
    told = [
        f"t0 {t0_ns}: {'a new cycle' if t0_ns in ours else 'no cycle any more'}"
        for t0_ns in sorted(ours.keys() ^ theirs.keys())
    ]
    for t0_ns in sorted(ours.keys() & theirs.keys()):
        new, old = ours[t0_ns], theirs[t0_ns]
        if new["text"] != old["text"]:
            told.append(f"t0 {t0_ns}: the text was {old['text']!r}, is {new['text']!r}")
        for name in _COLUMNS:
            worst = float(np.abs(np.array(new[name]) - np.array(old[name])).max())
            if worst > TOLERANCE:
                told.append(f"t0 {t0_ns}: {name} moved by up to {worst:.3f}")
    return told


def read_golden(path: Path) -> list[dict[str, Any]]:
    """Stored plans."""
    return list(json.loads(path.read_text()))


def write_golden(path: Path, plans: list[dict[str, Any]]) -> None:
    """Stores plans, a cycle a line, so that a change is seen in review."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text("[\n" + ",\n".join(json.dumps(plan) for plan in plans) + "\n]\n")
    partial.rename(path)
