"""Which nodes run with which parameters: the one description behind launch file and `rsd-planner drive`.

Imports no ROS, so that a launch file can read it in any environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

LOG_LEVELS = ("debug", "info", "warn", "error", "fatal")


@dataclass(frozen=True)
class NodeDescription:
    """One process: the executable in lib/rsd_planner and the Python module behind it."""

    name: str
    executable: str
    module: str
    namespace: str
    parameters_file: Path
    overrides: Mapping[str, str | bool | int | float]
    log_level: str
    remappings: Mapping[str, str] = field(default_factory=dict)

    def ros_arguments(self) -> list[str]:
        """The arguments that say all this to a ROS 2 process."""
        arguments = ["--ros-args", "-r", f"__node:={self.name}"]
        if self.namespace:
            arguments += ["-r", f"__ns:=/{self.namespace.strip('/')}"]
        for source, target in self.remappings.items():
            arguments += ["-r", f"{source}:={target}"]
        arguments += ["--params-file", str(self.parameters_file)]
        for name, value in self.overrides.items():
            arguments += ["-p", f"{name}:={str(value).lower() if isinstance(value, bool) else value}"]
        return [*arguments, "--log-level", self.log_level]

    def command(self) -> list[str]:
        """A command that starts the process without launch."""
        return [sys.executable, "-m", self.module, *self.ros_arguments()]


def share_directory() -> Path:
    """Where config/ and launch/ lie: the source tree, or the installed package's share directory."""
    source = Path(__file__).resolve().parents[2]
    if (source / "config" / "planner.yaml").exists():
        return source
    for parent in Path(__file__).resolve().parents:
        share = parent / "share" / "rsd_planner"
        if (share / "config" / "planner.yaml").exists():
            return share
    raise FileNotFoundError("config/planner.yaml of rsd_planner was not found; run scripts/setup")


def shipped_model() -> Path:
    """The checkpoint that a planner loads if it is told no other."""
    return share_directory() / "models" / "rsd-mini"


def planner_nodes(
    params_file: str | Path | None = None,
    model: str = "",
    use_sim_time: bool = False,
    namespace: str = "",
    log_level: str = "info",
    overrides: Mapping[str, str | bool | int | float] | None = None,
    controller: bool = False,
) -> list[NodeDescription]:
    """The planner and, if asked for, the controller that follows its trajectory.

    An empty model leaves the choice to params_file; without one it is the shipped one. overrides (of the planner) win
    over the file. The controller reads config/controller.yaml; it is asked for because it may move a car.

    Raises ValueError for a file that does not exist or an unknown log level.
    """
    parameters = Path(params_file) if params_file else share_directory() / "config" / "planner.yaml"
    if not parameters.is_file():
        raise ValueError(f"params_file {parameters} does not exist")
    if log_level not in LOG_LEVELS:
        raise ValueError(f"log_level {log_level!r} is not one of {', '.join(LOG_LEVELS)}")
    values: dict[str, str | bool | int | float] = {"use_sim_time": use_sim_time}
    if model or not params_file:
        values["model"] = str(Path(model).expanduser().absolute() if model else shipped_model())
    values.update(overrides or {})
    nodes = [
        NodeDescription(
            name="planner",
            executable="planner_node",
            module="rsd_planner.ros.nodes.planner",
            namespace=namespace,
            parameters_file=parameters,
            overrides=values,
            log_level=log_level,
        )
    ]
    if controller:
        nodes.append(_controller_node({"use_sim_time": use_sim_time}, namespace, log_level))
    return nodes


def own_rig(model: Path) -> Path | None:
    """YAML of the cameras that a checkpoint was trained with, if it comes with one."""
    rig = model / "cameras.yaml"
    return rig if rig.is_file() else None


def simulation_nodes(
    planner: NodeDescription | None, simulator: Mapping[str, str | bool | int | float], log_level: str = "info"
) -> list[NodeDescription]:
    """The simulator, a controller and a planner: the given one, or the expert that plans from the true state.

    simulator holds parameters that differ from config/simulator.yaml. All use simulated time. A model that comes with
    the cameras that it was trained with (cameras.yaml) sees through these, unless simulator names a rig.
    """
    config = share_directory() / "config"
    if planner is not None and (rig := own_rig(Path(str(planner.overrides.get("model", ""))))) is not None:
        simulator = {"rig": str(rig), **simulator}
    sim_time: dict[str, str | bool | int | float] = {"use_sim_time": True}
    if planner is None:
        planner = NodeDescription(
            name="planner",
            executable="expert_planner_node",
            module="rsd_planner.ros.nodes.expert_planner",
            namespace="",
            parameters_file=config / "simulator.yaml",
            overrides=sim_time,
            log_level=log_level,
            remappings={"world": "simulator/world"},
        )
    world = NodeDescription(
        name="simulator",
        executable="simulator_node",
        module="rsd_planner.ros.nodes.simulator",
        namespace="",
        parameters_file=config / "simulator.yaml",
        overrides=simulator,
        log_level=log_level,
        remappings={
            "command": "controller/command",
            "controller_status": "controller/status",
            "trajectory": "planner/trajectory",
            "reasoning": "planner/reasoning",
        },
    )
    return [planner, _controller_node(sim_time, "", log_level), world]


def _controller_node(
    overrides: Mapping[str, str | bool | int | float], namespace: str, log_level: str
) -> NodeDescription:
    return NodeDescription(
        name="controller",
        executable="controller_node",
        module="rsd_planner.ros.nodes.controller",
        namespace=namespace,
        parameters_file=share_directory() / "config" / "controller.yaml",
        overrides=overrides,
        log_level=log_level,
        remappings={"trajectory": "planner/trajectory"},
    )


def process_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment for a node's process: Fast DDS's default loses large images, ours does not.

    A profile that the user has chosen stays.
    """
    environment = dict(os.environ if base is None else base)
    # Fast DDS 2, which Jazzy and older have, reads another name; Fast DDS 3 warns of that one.
    old = environment.get("ROS_DISTRO") in ("humble", "iron", "jazzy")
    name = "FASTRTPS_DEFAULT_PROFILES_FILE" if old else "FASTDDS_DEFAULT_PROFILES_FILE"
    environment.setdefault(name, str(share_directory() / "config" / "fastdds.xml"))
    return environment


def local_environment() -> dict[str, str]:
    """Environment for processes among which nothing outside this machine, and no other ROS on it, takes part.

    A ROS_DOMAIN_ID that is set already stays.
    """
    environment = process_environment()
    environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    environment.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))
    return environment
