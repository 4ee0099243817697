"""Starts the planner: ros2 launch rsd_planner planner.launch.py model:=DIR."""

from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration

from launch import LaunchContext, LaunchDescription
from rsd_planner.ros.bringup import LOG_LEVELS, planner_nodes
from rsd_planner.ros.launch_actions import actions


def _nodes(context: LaunchContext) -> list:
    def argument(name: str) -> str:
        return LaunchConfiguration(name).perform(context)

    nodes = planner_nodes(
        params_file=argument("params_file"),
        model=argument("model"),
        use_sim_time=argument("use_sim_time").lower() in ("true", "1"),
        namespace=argument("namespace"),
        log_level=argument("log_level"),
        controller=argument("controller").lower() in ("true", "1"),
    )
    return actions(nodes)


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            DeclareLaunchArgument("params_file", default_value="", description="YAML; default: config/planner.yaml"),
            DeclareLaunchArgument("use_sim_time", default_value="false", description="take the time from /clock"),
            DeclareLaunchArgument("model", default_value="", description="checkpoint directory; overrides params_file"),
            DeclareLaunchArgument("controller", default_value="false", description="start the controller node too"),
            DeclareLaunchArgument("namespace", default_value="", description="namespace of nodes and topics"),
            DeclareLaunchArgument("log_level", default_value="info", description=" | ".join(LOG_LEVELS)),
            OpaqueFunction(function=_nodes),
        ]
    )
