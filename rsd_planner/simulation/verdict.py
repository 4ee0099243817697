"""What a drive was worth: rules, progress, tracking, comfort; and the table over many."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rsd_planner.control.comfort import comfort
from rsd_planner.simulation.drive import DriveLog
from rsd_planner.simulation.world import STEP_S, World

MIN_PROGRESS = 0.8
"""Share of the expert's way that a successful drive covers at least."""


@dataclass(frozen=True)
class Verdict:
    """One drive. progress is the distance against the expert's in the same world; errors are the controller's."""

    family: str
    split: str
    seed: int
    violations: tuple[str, ...]
    seconds: float
    distance_m: float
    progress: float
    lateral_rms_m: float
    lateral_max_m: float
    speed_rms_mps: float
    speed_max_mps: float
    hardest_braking_mps2: float
    max_jerk_mps3: float
    comfortable: bool
    real_time_factor: float = float("nan")
    taken_over: bool = True
    """Whether the planner that is judged ever drove."""
    notes: tuple[str, ...] = ()
    """What else a person should know, such as commands that came late."""

    @property
    def collided(self) -> bool:
        """Whether it hit something."""
        return any(violation.startswith("collision") for violation in self.violations)

    @property
    def success(self) -> bool:
        """The planner drove, no rule broken, and no standing about."""
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """Why it is no success."""
        found = [*self.violations]
        if self.progress < MIN_PROGRESS:
            found.append(f"only {self.progress:.0%} of the expert's way")
        if not self.taken_over:
            found.append("the simulator's own driver drove: no command that follows a plan came")
        return tuple(found)


def write_verdict(path: Path, verdict: Verdict) -> None:
    """Appends a verdict, a JSON object in a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(dataclasses.asdict(verdict)) + "\n")


def read_verdicts(path: Path) -> list[Verdict]:
    """The verdicts that have been written so far."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [
        Verdict(**(record | {"violations": tuple(record["violations"]), "notes": tuple(record["notes"])}))
        for record in records
    ]


def judge(world: World, log: DriveLog, expert_distance_m: float) -> Verdict:
    """The verdict on a drive that has ended."""
    if world.scenario is None:
        raise ValueError("only a drive in a world of a scenario is judged")
    family, split, seed = world.scenario
    every = round(0.1 / STEP_S)
    states = log.states[::every] or [world.ego]
    states = states if len(states) > 1 else states * 2
    speed = np.array([state.speed_mps for state in states])
    yaw_rate = speed * np.array([world.vehicle.curvature(state.steering_rad) for state in states])
    ride = comfort(0.1, speed, yaw_rate)
    lateral, pace = (np.abs(errors or [0.0]) for errors in (log.lateral_errors_m, log.speed_errors_mps))
    return Verdict(
        family=family,
        split=split,
        seed=seed,
        violations=tuple(log.violations),
        seconds=len(log.states) * STEP_S,
        distance_m=log.distance_m,
        # Where the expert hardly moves, standing is right.
        progress=(log.distance_m + 1.0) / (max(expert_distance_m, 0.0) + 1.0),
        lateral_rms_m=float(np.sqrt(np.mean(lateral**2))),
        lateral_max_m=float(lateral.max()),
        speed_rms_mps=float(np.sqrt(np.mean(pace**2))),
        speed_max_mps=float(pace.max()),
        hardest_braking_mps2=min(state.acceleration_mps2 for state in log.states or states),
        max_jerk_mps3=ride.max_longitudinal_jerk_mps3,
        comfortable=ride.within_bounds,
    )


def table(verdicts: Sequence[Verdict]) -> str:
    """A line for each family and one for all, then the drives that failed."""
    head = ("family", "success", "collided", "rule breaks", "lateral m", "max", "speed m/s", "max", "braking", "jerk",
            "comfort", "x real time")  # fmt: skip
    families = list(dict.fromkeys(verdict.family for verdict in verdicts))
    groups = [(family, [verdict for verdict in verdicts if verdict.family == family]) for family in families]
    rows = [head, *[_row(name, own) for name, own in [*groups, ("all", list(verdicts))] if own]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        row[0].ljust(widths[0]) + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]
    lines += [
        f"  {verdict.family} {verdict.seed}: {'; '.join(told)}"
        for verdict in verdicts
        if (told := [*verdict.failures, *verdict.notes])
    ]
    return "\n".join(lines)


def _row(name: str, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    def rms(values: list[float]) -> float:
        return float(np.sqrt(np.mean(np.square(values))))

    count = len(verdicts)
    breaks = sum(not v.startswith("collision") for verdict in verdicts for v in verdict.violations)
    pace = float(np.median([verdict.real_time_factor for verdict in verdicts]))
    return (
        name,
        f"{sum(verdict.success for verdict in verdicts)}/{count}",
        str(sum(verdict.collided for verdict in verdicts)),
        str(breaks),
        f"{rms([verdict.lateral_rms_m for verdict in verdicts]):.3f}",
        f"{max(verdict.lateral_max_m for verdict in verdicts):.3f}",
        f"{rms([verdict.speed_rms_mps for verdict in verdicts]):.3f}",
        f"{max(verdict.speed_max_mps for verdict in verdicts):.3f}",
        f"{min(verdict.hardest_braking_mps2 for verdict in verdicts):.1f}",
        f"{max(verdict.max_jerk_mps3 for verdict in verdicts):.1f}",
        f"{sum(verdict.comfortable for verdict in verdicts)}/{count}",
        f"{pace:.2f}" if np.isfinite(pace) else "-",
    )
