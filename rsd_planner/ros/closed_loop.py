"""Closed-loop drives over DDS: simulator, planner and controller in processes of their own, and a table at the end."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from rsd_planner.evaluation.metrics import bootstrap
from rsd_planner.evaluation.results import write_json
from rsd_planner.ros.bringup import (
    NodeDescription,
    local_environment,
    planner_nodes,
    simulation_nodes,
)
from rsd_planner.ros.processes import Processes
from rsd_planner.simulation.scenarios import FAMILIES, build
from rsd_planner.simulation.verdict import Verdict, read_verdicts, table

RESULTS = "verdicts.jsonl"
_SETTINGS = "settings.json"
_THAT_COUNT = ("policy", "model", "params_file", "split", "seconds", "realtime", "rig")


def drive_nodes(arguments: argparse.Namespace, results: Path) -> list[NodeDescription]:
    """Simulator, controller and planner as the options of `drive` ask for them; verdicts go to results."""
    planner = None
    if arguments.policy == "model":
        (planner,) = planner_nodes(arguments.params_file, arguments.model, True, log_level=arguments.log_level)
    simulator: dict[str, str | bool | int | float] = {
        "scenario": arguments.scenario,
        "split": arguments.split,
        "first_seed": arguments.first_seed,
        "seeds": arguments.seeds,
        "seconds": float(arguments.seconds),
        "pace": "real_time" if arguments.realtime else "lock_step",
        "cameras": arguments.policy == "model" or arguments.cameras,
        "results": str(results.absolute()),
    }
    if arguments.rig is not None:
        simulator["rig"] = str(arguments.rig.absolute())
    return simulation_nodes(planner, simulator, arguments.log_level)


def _begin(arguments: argparse.Namespace, settings: Path, results: Path) -> None:
    """Forgets the verdicts of another time, or, to resume, makes sure that they were given under the same settings."""
    asked = {name: str(getattr(arguments, name)) for name in _THAT_COUNT}
    if arguments.resume and results.exists():
        then = json.loads(settings.read_text()) if settings.exists() else {}
        if other := [name for name in _THAT_COUNT if then.get(name) != asked[name]]:
            told = ", ".join(f"{name} ({then.get(name, 'unknown')}, now {asked[name]})" for name in other)
            raise ValueError(f"{results.parent} was begun with another {told}; choose another --out")
    else:
        results.unlink(missing_ok=True)
    write_json(settings, asked)


def _asked_for(arguments: argparse.Namespace, families: list[str], results: Path) -> list[Verdict]:
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    return [verdict for verdict in read_verdicts(results) if verdict.family in families and verdict.seed in seeds]


def run(arguments: argparse.Namespace) -> int:
    """Drives, prints the table; exit code 1 if a drive failed or a process ended early."""
    families = list(FAMILIES) if arguments.scenario == "all" else [arguments.scenario]
    build(families[0], arguments.split, arguments.first_seed)
    out: Path = arguments.out
    results = out / RESULTS
    _begin(arguments, out / _SETTINGS, results)
    nodes = drive_nodes(arguments, results)
    total = len(families) * arguments.seeds
    begin = time.monotonic()
    with Processes(local_environment(), out / "log") as processes, tqdm(total=total, unit="drive") as bar:
        for node in nodes:
            processes.start(node.name, node.command())
        while not (ended := processes.ended()):
            time.sleep(0.2)
            if (done := len(_asked_for(arguments, families, results))) > bar.n:
                bar.update(done - bar.n)
        verdicts = _asked_for(arguments, families, results)
        bar.update(len(verdicts) - bar.n)
        if len(verdicts) < total:
            name, code = next(iter(ended.items()))
            tail = processes.log(name).read_text(errors="replace")[-2000:]
            print(f"{name} ended with exit code {code} after {len(verdicts)} of {total} drives; its log:\n{tail}",
                  file=sys.stderr)  # fmt: skip
    if verdicts:
        print(table(verdicts))
        for name, values in (("success", [v.success for v in verdicts]), ("collided", [v.collided for v in verdicts])):
            mean, low, high = bootstrap([np.array([float(value)]) for value in values])
            print(f"{name} {mean:.1%}" + (f", 95 % interval {low:.1%} .. {high:.1%}" if low == low else ""))
        driven = sum(verdict.seconds for verdict in verdicts)
        wall = time.monotonic() - begin
        print(f"{len(verdicts)} drives, {driven:.0f} s of driving in {wall:.0f} s; verdicts in {results}")
    return int(len(verdicts) < total or not all(verdict.success for verdict in verdicts))
