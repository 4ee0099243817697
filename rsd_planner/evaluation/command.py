"""The command `rsd-planner evaluate`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from rsd_planner.evaluation.evaluate import Job, evaluate
from rsd_planner.evaluation.reading import parse_map
from rsd_planner.evaluation.replay import Plans
from rsd_planner.evaluation.results import Results
from rsd_planner.parameters import from_yaml
from rsd_planner.planner_parameters import PlannerParameters
from rsd_planner.vla.checkpoint import Checkpoint

EXIT_FAILED, EXIT_DAMAGED = 1, 3
"""Exit codes: a bag gave no cycles at all; a bag broke off or had unusable messages, but was evaluated."""


def run(arguments: argparse.Namespace, record: Callable[[Job], Plans] | None = None) -> int:
    """Evaluates, writes summary and report, prints the figures; see the exit codes above.

    record makes the plans in another way than by the replay (`--live`).
    """
    results = Results(arguments.out)
    if arguments.bags:
        jobs = jobs_of(arguments)
        evaluate(jobs, arguments.workers, arguments.ray, record)
    elif not arguments.baseline and not results.summary_file.exists():
        raise ValueError("name bags, or a finished --out (with --baseline to compare)")
    comparison = None
    if arguments.baseline:
        from rsd_planner.evaluation.compare import compare, describe

        comparison = compare(results, Results(arguments.baseline))
        print(describe(comparison))
    if arguments.rerun:
        from rsd_planner.evaluation.rerun_log import write_recordings

        write_recordings(results)
    if not arguments.no_report:
        from rsd_planner.evaluation.report import write_report

        print(f"report: {write_report(results, comparison)}")
    return _print_summary(results)


def jobs_of(arguments: argparse.Namespace) -> list[Job]:
    """One for each bag. Raises ValueError for what cannot be evaluated as asked."""
    if arguments.live and (arguments.ray or arguments.samples != 1 or arguments.workers != 1):
        raise ValueError("--live runs one node at the bag's speed: without --ray, --samples and --workers")
    if arguments.samples < 1:
        raise ValueError(f"--samples must be at least 1, not {arguments.samples}")
    model = Path(arguments.model).expanduser().absolute()
    if arguments.bags:
        Checkpoint.open(model)
    overrides: dict[str, Any] = {"model": str(model)}
    for entry in arguments.set:
        name, separator, value = entry.partition("=")
        if not separator:
            raise ValueError(f"--set {entry!r} is not NAME=VALUE")
        overrides[name] = yaml.safe_load(value)
    parameters = from_yaml(PlannerParameters, arguments.params_file, overrides)
    topics = parse_map(arguments.map)
    return [
        Job(bag.absolute(), arguments.out.absolute(), parameters, arguments.samples, topics)
        for bag in found_bags(arguments.bags)
    ]


def found_bags(paths: Sequence[Path]) -> list[Path]:
    """The bags that paths name; a folder that is no bag itself stands for the bags in it."""
    found: list[Path] = []
    for path in paths:
        storage = (
            [file for file in path.glob("*") if file.suffix in (".mcap", ".db3", ".zstd")] if path.is_dir() else []
        )
        if not path.is_dir() or storage or (path / "metadata.yaml").exists():
            found.append(path)
            continue
        inside = sorted(entry for entry in path.iterdir() if entry.is_dir())
        if not inside:
            raise ValueError(f"{path} is no bag and holds none")
        found += inside
    return found


def _print_summary(results: Results) -> int:
    summary = json.loads(results.summary_file.read_text())
    print(f"{summary['cycles']} cycles in {summary['clips']} clips of {summary['bags']['evaluated']} bags")
    for name, figure in summary["metrics"].items():
        if figure["mean"] is None:
            continue
        interval = f"  [{figure['low']:.3f}, {figure['high']:.3f}]" if figure["low"] is not None else ""
        print(f"  {name:<20}{figure['mean']:>9.3f}{interval:<20}  {figure['cycles']} cycles")
    for stage, latency in summary["latency"].items():
        print(f"  {stage:<20}" + "  ".join(f"{name[:-2]} {seconds * 1e3:.1f} ms" for name, seconds in latency.items()))
    for reason, count in summary["not_planned"].items():
        print(f"  no cycle for {count} frames: {reason}")
    for bag, problems in summary["problems"].items():
        for problem, count in problems.items():
            print(f"  {bag}: {problem} ({count})", file=sys.stderr)
    for bag, error in summary["errors"].items():
        print(f"  {bag}: {error}", file=sys.stderr)
    return EXIT_FAILED if summary["errors"] else EXIT_DAMAGED if summary["problems"] else 0
