"""Results as recordings for the Rerun viewer: plan, truth, figures and text over time, pictures of the worst cycles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import rerun as rr

from rsd_planner.evaluation.results import Results

_FIGURES = ("v0_mps", "ade_3s", "jitter_3s", "total_s")


def write_recordings(results: Results) -> list[Path]:
    """Writes recordings/BAG.rrd for each bag with cycles; returns the paths."""
    lists = ("plan_x", "plan_y", "truth_x", "truth_y", "pose")
    rows = results.rows(lists)
    written = []
    for facts in results.bags():
        if not facts["cycles"]:
            continue
        name = facts["bag"]
        path = results.directory / "recordings" / f"{name}.rrd"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        recording = rr.RecordingStream("rsd_planner", recording_id=f"{name}-{facts['identity']}")
        recording.save(partial)
        for row in rows:
            if row["bag"] == name:
                _log(recording, results, row)
        recording.flush()
        recording.disconnect()
        partial.rename(path)
        written.append(path)
    return written


def _log(recording: rr.RecordingStream, results: Results, row: dict[str, Any]) -> None:
    recording.set_time("bag", duration=row["t_s"])
    x, y, yaw = row["pose"]
    for name, colour in (("plan", (30, 140, 60)), ("truth", (220, 150, 20))):
        points = np.column_stack([row[f"{name}_x"], row[f"{name}_y"]]).astype(np.float64)
        points = points[np.isfinite(points).all(axis=1)]
        placed = np.column_stack(
            [
                x + np.cos(yaw) * points[:, 0] - np.sin(yaw) * points[:, 1],
                y + np.sin(yaw) * points[:, 0] + np.cos(yaw) * points[:, 1],
                np.zeros(len(points)),
            ]
        )
        recording.log(f"odom/{name}", rr.LineStrips3D([placed], colors=[colour]))
    recording.log("reasoning", rr.TextLog(row["text"]))
    for figure in _FIGURES:
        value = row[figure]
        if value is not None and np.isfinite(value):
            recording.log(f"figures/{figure}", rr.Scalars(value))
    folder = results.picture_file(row["bag"], row["t0_ns"], "any").parent
    for file in sorted(folder.glob(f"{row['t0_ns']}_*.jpg")):
        recording.log(f"camera/{file.stem.partition('_')[2]}", rr.EncodedImage(path=file))
