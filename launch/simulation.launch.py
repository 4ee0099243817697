"""Drives a scenario: ros2 launch rsd_planner simulation.launch.py scenario:="cut-in" [policy:=expert] [model:=DIR]."""

from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration

from launch import LaunchContext, LaunchDescription
from rsd_planner.ros.bringup import LOG_LEVELS, planner_nodes, simulation_nodes
from rsd_planner.ros.launch_actions import actions


def _nodes(context: LaunchContext) -> list:
    def argument(name: str) -> str:
        return LaunchConfiguration(name).perform(context)

    planner = None
    if argument("policy") == "model":
        (planner,) = planner_nodes(argument("params_file"), argument("model"), True, log_level=argument("log_level"))
    simulator = {
        "scenario": argument("scenario"),
        "split": argument("split"),
        "first_seed": int(argument("seed")),
        "seeds": int(argument("seeds")),
        "seconds": float(argument("seconds")),
        "pace": argument("pace"),
    }
    return actions(simulation_nodes(planner, simulator, argument("log_level")))


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            DeclareLaunchArgument("scenario", default_value="all", description="scenario family, or all"),
            DeclareLaunchArgument(
                "policy", default_value="model", choices=["model", "expert"], description="who plans"
            ),
            DeclareLaunchArgument("model", default_value="", description="checkpoint; empty: the shipped one"),
            DeclareLaunchArgument("params_file", default_value="", description="YAML of the planner"),
            DeclareLaunchArgument("split", default_value="train", description="train | validation | held-out"),
            DeclareLaunchArgument("seed", default_value="0", description="first seed"),
            DeclareLaunchArgument("seeds", default_value="1", description="seeds of each family"),
            DeclareLaunchArgument("seconds", default_value="20.0", description="length of a drive"),
            DeclareLaunchArgument("pace", default_value="real_time", description="real_time | lock_step"),
            DeclareLaunchArgument("log_level", default_value="info", description=" | ".join(LOG_LEVELS)),
            OpaqueFunction(function=_nodes),
        ]
    )
