"""The commands about data, training and evaluation. Heavy imports wait until a command needs them."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rsd_planner.ros.bringup import own_rig, share_directory, shipped_model


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds data, train, bench, evaluate and convert."""
    _add_data(commands)
    _add_train(commands)
    _add_bench(commands)
    _add_evaluate(commands)
    _add_convert(commands)


def _data_make(arguments: argparse.Namespace) -> int:
    from rsd_planner.training.data_set import make

    rig = arguments.rig or share_directory() / "config" / "cameras.yaml"
    if arguments.as_bag:
        from rsd_planner.ros.clip_bags import make_bags

        print(make_bags(arguments.split, arguments.clips, arguments.out, rig, arguments.workers, arguments.storage))
        return 0
    card = make(
        arguments.split,
        arguments.clips,
        arguments.out,
        rig,
        arguments.workers,
        arguments.first_clip,
        arguments.model,
    )
    speed = f", {card['clips_per_s']:.2f} clips/s" if card["clips_per_s"] else ""
    print(
        f"{arguments.out}: {card['clips']} clips, {card['samples']} samples, "
        f"{card['bytes_per_clip']} bytes a clip{speed}"
    )
    return 0


def _data_check(arguments: argparse.Namespace) -> int:
    from rsd_planner.training.data_set import describe, leaks

    for directory in arguments.directories:
        print(f"{directory}:")
        for name, value in describe(directory).items():
            print(f"  {name}: {value}")
    found = leaks(arguments.directories)
    print("\n".join(found) if found else "no world is in two of them")
    return int(bool(found))


def _bench_reasoning(arguments: argparse.Namespace) -> int:
    from rsd_planner.evaluation.reasoning_bench import run
    from rsd_planner.training.samples import moments_of_drives

    arguments.rig = arguments.rig or own_rig(arguments.model) or share_directory() / "config" / "cameras.yaml"
    return run(arguments, moments_of_drives)


def _evaluate(arguments: argparse.Namespace) -> int:
    from rsd_planner.evaluation.command import run

    if arguments.live:
        from rsd_planner.ros.live import record

        return run(arguments, record)
    return run(arguments)


def _train_target(arguments: argparse.Namespace) -> int:
    import yaml

    from rsd_planner.training.recipe import TargetTraining
    from rsd_planner.training.target import TargetTrainer

    overrides = {name: yaml.safe_load(value) for name, _, value in (entry.partition("=") for entry in arguments.set)}
    figures = TargetTrainer(TargetTraining.from_yaml(arguments.config, overrides)).train()
    print("  ".join(f"{name} {value:.3f}" for name, value in figures.items()))
    return 0


def _train_draft(arguments: argparse.Namespace) -> int:
    import yaml

    from rsd_planner.training.draft import DraftTrainer, DraftTraining

    overrides = {name: yaml.safe_load(value) for name, _, value in (entry.partition("=") for entry in arguments.set)}
    figures = DraftTrainer(DraftTraining.from_yaml(arguments.config, overrides)).train()
    print("  ".join(f"{name} {value:.3f}" for name, value in figures.items()))
    return 0


def _train_score(arguments: argparse.Namespace) -> int:
    import torch

    from rsd_planner.evaluation.results import write_json
    from rsd_planner.training.samples import Recorded
    from rsd_planner.training.scoring import ABLATIONS, score_rows, with_intervals
    from rsd_planner.vla.checkpoint import Checkpoint
    from rsd_planner.vla.prompt import Prompter

    checkpoint = Checkpoint.open(arguments.model)
    model = checkpoint.load(dtype=torch.float32)
    recorded = Recorded(arguments.data)
    recorded = recorded.spread(arguments.limit or len(recorded))
    prompter = Prompter.from_directory(checkpoint.directory, checkpoint.config)
    told = {}
    for ablation in ABLATIONS if arguments.ablations else ABLATIONS[:1]:
        rows = score_rows(model, prompter, recorded, arguments.samples, ablation, progress=True)
        told[ablation] = with_intervals(rows, recorded)
        print(f"{ablation}, {len(rows)} samples: mean and 95 % interval over drives")
        for name, (mean, low, high) in told[ablation].items():
            print(f"  {name:<16}{mean:8.3f}   {low:.3f} .. {high:.3f}", flush=True)
    if arguments.out is not None:
        write_json(arguments.out, {"model": str(arguments.model), "data": str(arguments.data), "figures": told})
    return 0


def _convert(arguments: argparse.Namespace) -> int:
    from rsd_planner.evaluation.convert.command import run

    return run(arguments)


def _add_data(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    data = commands.add_parser("data", help="make and check data sets").add_subparsers(required=True, metavar="ACTION")
    record = data.add_parser("make", help="record clips of expert driving; shards that are there are kept")
    record.add_argument("--split", required=True, help="train, validation or held-out")
    record.add_argument("--clips", type=int, required=True, help="drives of 12 s, two samples a second")
    record.add_argument("--first-clip", type=int, default=0, help="number of the first one (default 0)")
    record.add_argument("--out", type=Path, required=True, help="directory of the data set")
    record.add_argument("--model", type=Path, help="checkpoint that drives; the expert tells what it should have done")
    record.add_argument("--rig", type=Path, help="YAML of the cameras (default config/cameras.yaml)")
    record.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    record.add_argument("--as-bag", action="store_true", help="a rosbag2 for each clip instead of shards")
    record.add_argument("--storage", choices=("sqlite3", "mcap"), default="mcap", help="of bags (default mcap)")
    record.set_defaults(run=_data_make)
    verify = data.add_parser("check", help="balance and lengths of data sets; exit code 1 if two share a world")
    verify.add_argument("directories", type=Path, nargs="+", help="data sets")
    verify.set_defaults(run=_data_check)


def _add_train(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    train = commands.add_parser("train", help="train models").add_subparsers(required=True, metavar="MODEL")
    target = train.add_parser(
        "target",
        help="the deliberative reasoner, from random weights",
        description="Runs a training to its end and writes OUT/checkpoint; started again, it goes on where it was.",
    )
    target.add_argument("--config", type=Path, required=True, help="YAML of the run, see config/train/target.yaml")
    target.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an entry that differs")
    target.set_defaults(run=_train_target)
    draft = train.add_parser(
        "draft",
        help="the routine reasoner, from a target's own chains of causation",
        description="Lets the target reason about recorded samples (kept beside OUT), distils, writes OUT/checkpoint; "
        "started again, it goes on where it was.",
    )
    draft.add_argument("--config", type=Path, required=True, help="YAML of the run, see config/train/draft.yaml")
    draft.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an entry that differs")
    draft.set_defaults(run=_train_draft)
    judge = train.add_parser("score", help="how a target reasons and plans on recorded samples")
    judge.add_argument("--model", type=Path, required=True, help="checkpoint directory")
    judge.add_argument("--data", type=Path, required=True, help="folder of shards")
    judge.add_argument("--limit", type=int, help="samples, evenly over the folder (default: all)")
    judge.add_argument("--samples", type=int, default=1, help="trajectories a sample, for minADE (default 1)")
    judge.add_argument("--ablations", action="store_true", help="also with the true CoC, without, with inputs blanked")
    judge.add_argument("--out", type=Path, help="JSON file of the figures")
    judge.set_defaults(run=_train_score)


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = commands.add_parser("bench", help="measure").add_subparsers(required=True, metavar="WHAT")
    reasoning = bench.add_parser(
        "reasoning",
        help="the two reasoners together against decoding token by token",
        description="Renders independent moments of drives and lets the target reason about each in every way, in "
        "turns, behind the same prefilled prompt. Times on a busy machine are noise; the ratios are less so.",
    )
    reasoning.add_argument("--quick", action="store_true", help="few moments: an answer within 45 s")
    reasoning.add_argument("--model", type=Path, default=shipped_model(), help="target (default the shipped one)")
    reasoning.add_argument(
        "--draft", type=Path, action="append", help="routine reasoner; may be given again (default MODEL-routine)"
    )
    reasoning.add_argument("--split", default="held-out", help="of the simulator's drives (default held-out)")
    reasoning.add_argument("--drives", type=int, default=28, help="number of them (default 28)")
    reasoning.add_argument("--moments", type=int, default=4, help="of each drive (default 4)")
    reasoning.add_argument("--repeats", type=int, default=3, help="of every way on a moment (default 3)")
    reasoning.add_argument(
        "--blocks", type=int, nargs="*", default=[4, 8, 12, 16], help="smaller blocks (default 4 8 12 16)"
    )
    reasoning.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="default bfloat16")
    reasoning.add_argument("--sampled", action="store_true", help="sample as the node does instead of greedy decoding")
    reasoning.add_argument("--rig", type=Path, help="YAML of the cameras (default: the model's)")
    reasoning.add_argument("--out", type=Path, help="JSON file of all figures")
    reasoning.set_defaults(run=_bench_reasoning)


def _add_evaluate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    evaluate = commands.add_parser(
        "evaluate",
        help="run a model on bags and report how it plans",
        description="Replays bags into a model and measures its plans against what the car did. Exit code 1 if a bag "
        "gave no cycles, 3 if one was damaged but evaluated.",
    )
    evaluate.add_argument("bags", type=Path, nargs="*", help="rosbag2 directories or storage files, or folders of bags")
    evaluate.add_argument(
        "--model", default=str(shipped_model()), help="checkpoint directory (default the shipped one)"
    )
    evaluate.add_argument("--out", type=Path, required=True, help="folder of results; finished bags in it are kept")
    evaluate.add_argument(
        "--params-file",
        type=Path,
        default=share_directory() / "config" / "planner.yaml",
        help="YAML of the planner",
    )
    evaluate.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter that differs")
    evaluate.add_argument(
        "--map", action="append", default=[], metavar="ROLE=/TOPIC", help="where odometry, world or camera/NAME is"
    )
    evaluate.add_argument("--samples", type=int, default=1, help="trajectories a cycle, for minADE (default 1)")
    evaluate.add_argument("--workers", type=int, default=1, help="processes (default 1)")
    evaluate.add_argument("--ray", metavar="ADDRESS", help="run on a Ray cluster; 'local' starts one here")
    evaluate.add_argument("--live", action="store_true", help="through the real node over DDS, at the bag's speed")
    evaluate.add_argument("--baseline", type=Path, help="other results to compare --out with")
    evaluate.add_argument("--rerun", action="store_true", help="write a Rerun recording of each bag")
    evaluate.add_argument("--no-report", action="store_true", help="leave report.html out")
    evaluate.set_defaults(run=_evaluate)


def _add_convert(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    convert = commands.add_parser(
        "convert",
        help="make bags of public data sets",
        description="Writes a rosbag2 with TF, camera_info and ground-truth odometry for each drive; those that are "
        "there are kept. The licences of the data sets are named in docs/evaluation.md.",
    )
    sources = convert.add_subparsers(required=True, metavar="DATA_SET")
    physical = sources.add_parser("physical-ai-av", help="NVIDIA PhysicalAI-AV clips, through physical-ai-av")
    physical.add_argument("clips", nargs="+", help="clip ids")
    physical.add_argument("--revision", help="revision of the data set (default: the newest)")
    physical.add_argument("--cache-dir", help="cache of the hub's client")
    comma = sources.add_parser("comma2k19", help="comma2k19 segments")
    comma.add_argument("segments", type=Path, nargs="+", help="segment directories")
    nuscenes = sources.add_parser("nuscenes", help="nuScenes scenes")
    nuscenes.add_argument("root", type=Path, help="data root")
    nuscenes.add_argument("--version", default="v1.0-mini", help="folder of the tables (default v1.0-mini)")
    nuscenes.add_argument("--scenes", nargs="+", help="names of scenes (default: all)")
    for name, source in (("physical-ai-av", physical), ("comma2k19", comma), ("nuscenes", nuscenes)):
        source.add_argument("--out", type=Path, required=True, help="folder of the bags")
        source.add_argument("--storage", choices=("sqlite3", "mcap"), default="mcap", help="bag format (default mcap)")
        source.set_defaults(run=_convert, source=name)
