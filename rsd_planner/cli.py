"""The command line: rsd-planner COMMAND. Heavy imports wait until a command needs them."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rsd_planner.cli_learning import add_commands
from rsd_planner.ros.bringup import share_directory


def _drive(arguments: argparse.Namespace) -> int:
    if arguments.scenario:
        from rsd_planner.ros.closed_loop import run

        return run(arguments)
    from rsd_planner.ros.bringup import planner_nodes, process_environment
    from rsd_planner.ros.processes import Processes

    nodes = planner_nodes(
        arguments.params_file,
        arguments.model,
        arguments.use_sim_time,
        arguments.namespace,
        arguments.log_level,
        controller=arguments.controller,
    )
    with Processes(process_environment()) as processes:
        for node in nodes:
            processes.start(node.name, node.command())
        ended = processes.first_ended()
    if ended is None:
        return 0
    name, code = ended
    print(f"{name} ended with exit code {code}; the others were stopped", file=sys.stderr)
    return code or 1


def _model_info(arguments: argparse.Namespace) -> int:
    from rsd_planner.vla.checkpoint import Checkpoint

    checkpoint = Checkpoint.open(arguments.directory)
    checkpoint.check()
    print(checkpoint.describe())
    return 0


def _bag_make(arguments: argparse.Namespace) -> int:
    from rsd_planner.evaluation.bags import write_sample_bag

    count = write_sample_bag(
        arguments.odometry,
        arguments.pictures,
        arguments.out,
        cameras=arguments.cameras,
        storage=arguments.storage,
        transport=arguments.transport,
        seconds=arguments.seconds,
        size=tuple(arguments.size) if arguments.size else None,
        progress=True,
    )
    print(f"{arguments.out}: {count} messages")
    return 0


def _bag_play(arguments: argparse.Namespace) -> int:
    from rsd_planner.ros.nodes.player import run

    return run(arguments)


def _sim_list(_: argparse.Namespace) -> int:
    from rsd_planner.simulation.scenarios import FAMILIES

    for name, builder in FAMILIES.items():
        print(f"{name:<26}{(builder.__doc__ or '').strip()}")
    return 0


def _sim_render(arguments: argparse.Namespace) -> int:
    from rsd_planner.simulation.cameras import Rig
    from rsd_planner.simulation.show import render_scenario

    rig = Rig.from_yaml(arguments.rig or share_directory() / "config" / "cameras.yaml")
    for file in render_scenario(
        arguments.scenario, arguments.split, arguments.seed, rig, arguments.out, arguments.seconds
    ):
        print(file)
    return 0


def _sim_check(arguments: argparse.Namespace) -> int:
    from rsd_planner.simulation.scenarios import FAMILIES
    from rsd_planner.simulation.show import judge_expert
    from rsd_planner.simulation.verdict import table

    families = list(FAMILIES) if arguments.scenario == "all" else [arguments.scenario]
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    verdicts = list(judge_expert(families, arguments.split, seeds, arguments.seconds, arguments.workers))
    print(table(verdicts))
    return int(any(verdict.violations for verdict in verdicts))


def _demo(arguments: argparse.Namespace) -> int:
    from rsd_planner.ros.demo import run

    return run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rsd-planner", description="A driving planner that writes why it drives so.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    _add_demo(commands)

    _add_drive(commands)

    add_commands(commands)

    model = commands.add_parser("model", help="look at checkpoints").add_subparsers(required=True, metavar="ACTION")
    info = model.add_parser("info", help="what a checkpoint holds, its size and the memory it needs")
    info.add_argument("directory", type=Path, help="checkpoint directory of the public layout")
    info.set_defaults(run=_model_info)

    sim = commands.add_parser("sim", help="look at the driving world").add_subparsers(required=True, metavar="ACTION")
    sim.add_parser("list", help="the scenario families, one a line").set_defaults(run=_sim_list)
    render = sim.add_parser("render", help="let the expert drive a scenario; write pictures and a video")
    render.add_argument("--scenario", required=True, help="family, see `sim list`")
    render.add_argument("--seed", type=int, default=0, help="default 0")
    render.add_argument("--split", default="train", help="train, validation or held-out (default train)")
    render.add_argument("--seconds", type=float, default=12.0, help="length (default 12)")
    render.add_argument("--rig", type=Path, help="YAML of the cameras (default config/cameras.yaml)")
    render.add_argument("--out", type=Path, default=Path("log/sim"), help="directory (default log/sim)")
    render.set_defaults(run=_sim_render)
    check = sim.add_parser("check", help="let the expert drive scenarios; exit code 1 if it breaks a rule")
    check.add_argument("--scenario", default="all", help="family or all (default all)")
    check.add_argument("--split", default="held-out", help="train, validation or held-out (default held-out)")
    check.add_argument("--seeds", type=int, default=16, help="of each family (default 16)")
    check.add_argument("--first-seed", type=int, default=0, help="default 0")
    check.add_argument("--seconds", type=float, default=20.0, help="length of each drive (default 20)")
    check.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    check.set_defaults(run=_sim_check)

    bag = commands.add_parser("bag", help="make and play bags").add_subparsers(required=True, metavar="ACTION")
    make = bag.add_parser("make", help="write a rosbag2 of recorded odometry and pictures")
    make.add_argument("--odometry", type=Path, required=True, help="CSV with t_s, x_m .. yaw_rate_radps")
    make.add_argument("--pictures", type=Path, nargs="+", required=True, help="picture files, cycled on the cameras")
    make.add_argument("--out", type=Path, required=True, help="bag directory to make")
    make.add_argument("--storage", choices=("sqlite3", "mcap"), default="sqlite3", help="default sqlite3")
    make.add_argument("--transport", choices=("compressed", "raw"), default="compressed", help="default compressed")
    make.add_argument("--seconds", type=float, default=10.0, help="length (default 10)")
    make.add_argument("--size", type=int, nargs=2, metavar=("WIDTH", "HEIGHT"), help="resize the pictures")
    make.add_argument(
        "--cameras", nargs="+", default=["cross_left", "front_wide", "cross_right", "front_tele"], help="camera names"
    )
    make.set_defaults(run=_bag_make)
    play = bag.add_parser("play", help="publish a bag over DDS at its own pace, with /clock")
    play.add_argument("bag", type=Path, help="rosbag2 directory")
    play.add_argument("--rate", type=float, default=1.0, help="speed; 2 plays twice as fast (default 1)")
    play.add_argument("--loop", action="store_true", help="start again at the end, until interrupted")
    play.add_argument("--no-clock", action="store_true", help="do not publish /clock")
    play.add_argument("--wait", type=float, default=5.0, help="seconds to wait for subscribers (default 5)")
    play.set_defaults(run=_bag_play)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="drive one scenario with the model and show what it thinks",
        description="Simulator, planner and controller in three processes over DDS: one line for each plan, a summary, "
        "and a picture of the drive.",
    )
    demo.add_argument("--scenario", default="red light", help="family, see `sim list` (default red light)")
    demo.add_argument("--seed", dest="first_seed", type=int, default=0, help="of the held-out drives (default 0)")
    demo.add_argument("--seconds", type=float, default=15.0, help="length of the drive (default 15)")
    demo.add_argument("--realtime", action="store_true", help="by the wall clock; default lock-step, repeatable")
    demo.add_argument("--model", default="", help="checkpoint directory (default the shipped one)")
    demo.add_argument("--params-file", help="YAML with parameters of the planner (default config/planner.yaml)")
    demo.add_argument("--rig", type=Path, help="YAML of the cameras (default the model's own)")
    demo.add_argument("--out", type=Path, default=Path("log/demo"), help="picture, verdict, logs (default log/demo)")
    demo.set_defaults(run=_demo, policy="model", split="held-out", seeds=1, cameras=True, log_level="warn")


def _add_drive(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    drive = commands.add_parser(
        "drive",
        help="start planner and controller, or drive scenarios closed-loop",
        description="Without --scenario: the nodes of launch/planner.launch.py without ros2 launch, until interrupted. "
        "With --scenario: simulator, planner and controller in three processes over DDS, and a table of the drives; "
        "exit code 1 if one failed.",
    )
    drive.add_argument("--params-file", help="YAML with parameters of the planner (default config/planner.yaml)")
    drive.add_argument("--model", default="", help="checkpoint directory; wins over the file (default the shipped one)")
    drive.add_argument("--log-level", default="info", help="debug, info, warn, error or fatal (default info)")
    nodes = drive.add_argument_group("without --scenario")
    nodes.add_argument("--use-sim-time", action="store_true", help="take the time from /clock")
    nodes.add_argument("--controller", action="store_true", help="start the controller node too")
    nodes.add_argument("--namespace", default="", help="namespace of nodes and topics")
    loop = drive.add_argument_group("closed loop")
    loop.add_argument("--scenario", default="", help="family (see `sim list`) or all")
    loop.add_argument("--policy", choices=("model", "expert"), default="model", help="who plans (default model)")
    loop.add_argument("--split", default="held-out", help="train, validation or held-out (default held-out)")
    loop.add_argument("--seeds", type=int, default=1, help="of each family (default 1)")
    loop.add_argument("--first-seed", type=int, default=0, help="default 0")
    loop.add_argument("--seconds", type=float, default=20.0, help="length of each drive (default 20)")
    loop.add_argument("--realtime", action="store_true", help="by the wall clock; default lock-step, repeatable")
    loop.add_argument("--cameras", action="store_true", help="publish pictures for the expert too")
    loop.add_argument("--rig", type=Path, help="YAML of the cameras (default the model's own, or config/cameras.yaml)")
    loop.add_argument("--out", type=Path, default=Path("log/drive"), help="verdicts and logs (default log/drive)")
    loop.add_argument("--resume", action="store_true", help="keep the verdicts that --out has already")
    drive.set_defaults(run=_drive)


def main() -> None:
    """Runs a command. What a user can mend ends with one line on stderr and exit code 1."""
    arguments = _parser().parse_args()
    try:
        code = arguments.run(arguments)
    except KeyboardInterrupt:
        code = 130
    except (ValueError, FileExistsError, FileNotFoundError) as error:
        print(f"rsd-planner: {error}", file=sys.stderr)
        code = 1
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("rclpy", "rsd_planner", "sensor_msgs", "nav_msgs"):
            raise
        print(f"rsd-planner: {error.name} is not there; build with scripts/setup, then . scripts/env", file=sys.stderr)
        code = 1
    sys.exit(code)


if __name__ == "__main__":
    main()
