"""Node descriptions as actions of ROS 2 launch; for the files in launch/."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from launch.actions import SetEnvironmentVariable, Shutdown
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from rsd_planner.ros.bringup import NodeDescription, process_environment


def actions(nodes: Iterable[NodeDescription]) -> list[Any]:
    """Starts the nodes, with the DDS profile that lets large images through; all ends with the simulator."""
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
                on_exit=Shutdown() if node.name == "simulator" else None,
            )
            for node in nodes
        ],
    ]
