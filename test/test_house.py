"""The rules of the house: who may import whom, and how large a module may get."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "rsd_planner"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "msg" not in path.relative_to(PACKAGE).parts)
ROS = {
    "rclpy", "builtin_interfaces", "geometry_msgs", "nav_msgs", "sensor_msgs", "std_msgs", "visualization_msgs",
    "rosgraph_msgs", "rcl_interfaces", "launch", "launch_ros", "rsd_planner.msg", "ament_index_python",
    "tf2_msgs", "ackermann_msgs", "autoware_control_msgs",
}  # fmt: skip
# Part -> parts of this package that it may import. A module directly in rsd_planner/ is a part of its own.
MAY_IMPORT = {
    "scene": set(),
    "buffers": {"scene"},
    "synchronisation": {"buffers", "scene"},
    "images": set(),
    "messages": {"buffers"},
    "kv_cache": set(),
    "reasoning": {"kv_cache"},
    "vla": {"kv_cache", "reasoning"},
    "plan": {"reasoning", "scene"},
    "parameters": set(),
    "planner_parameters": {"buffers", "parameters", "planner", "reasoning"},
    "planner": {"plan", "reasoning", "scene", "vla"},
    "evaluation": {
        *("control", "plan", "planner", "reasoning", "scene", "buffers", "synchronisation", "vla", "simulation"),
        *("images", "messages", "parameters", "planner_parameters"),
    },
    "control": set(),
    "ros": {
        *("control", "plan", "planner", "reasoning", "scene", "buffers", "synchronisation", "vla", "evaluation"),
        *("simulation", "training", "images", "messages", "parameters", "planner_parameters"),
    },
    "simulation": {"control"},
    "training": {"buffers", "control", "plan", "planner", "reasoning", "scene", "simulation", "vla", "evaluation"},
    "cli": {"ros", "vla", "evaluation", "simulation", "cli_learning"},
    "cli_learning": {"ros", "evaluation", "training", "vla"},
}


def _imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if part == "__init__":
        return
    for name in _imports(path):
        if part not in ("ros",):
            assert not any(name == ros or name.startswith(f"{ros}.") for ros in ROS), f"{path.name} imports {name}"
        if name.startswith("rsd_planner.") and not name.startswith("rsd_planner.msg"):
            other = name.split(".")[1]
            assert other == part or other in MAY_IMPORT[part], f"{path.name} imports {name}"


def test_reasoning_knows_no_model():
    for path in (PACKAGE / "reasoning").glob("*.py"):
        assert not any(name.startswith("transformers") for name in _imports(path)), path.name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_is_read_in_one_sitting(path: Path):
    assert len(path.read_text().splitlines()) <= 350
    assert path.stem not in ("utils", "helpers", "common", "manager")
