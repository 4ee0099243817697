"""Starts the planner: ros2 launch rsd_planner planner.launch.py model:=DIR."""

from launch.actions import DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from launch import LaunchContext, LaunchDescription
from rsd_planner.ros.bringup import LOG_LEVELS, planner_nodes, process_environment


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
    profiles = {k: v for k, v in process_environment().items() if k.endswith("_DEFAULT_PROFILES_FILE")}
    return [
        *[SetEnvironmentVariable(name, value) for name, value in profiles.items()],
        *[
            Node(
                package="rsd_planner",
                executable=node.executable,
                name=node.name,
                namespace=node.namespace,
                parameters=[
                    str(node.parameters_file),
                    {name: ParameterValue(value, value_type=type(value)) for name, value in node.overrides.items()},
                ],
                remappings=list(node.remappings.items()),
                ros_arguments=["--log-level", node.log_level],
                output="screen",
                emulate_tty=True,
            )
            for node in nodes
        ],
    ]


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
