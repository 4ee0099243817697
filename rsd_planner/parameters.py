"""Parameters as dataclasses: name, default, description and bounds in one place, with and without ROS."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

import yaml

RELIABILITIES = ("best_effort", "reliable")
_T = TypeVar("_T")


def parameter(
    default: Any,
    description: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A dataclass field that `declare` turns into a read-only ROS parameter of the same name."""
    metadata = {"description": description, "low": low, "high": high, "choices": choices}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def from_yaml(parameters: type[_T], path: Path, overrides: dict[str, Any] | None = None) -> _T:
    """Values of a parameter file of ROS 2 (the key `/**`) with overrides, checked as a node would check them.

    Raises ValueError that names file, parameter, value and what would be right.
    """
    try:
        content = yaml.safe_load(path.read_text())
        values = dict(content["/**"]["ros__parameters"])
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no parameter file with /**: ros__parameters: {error}") from error
    values.pop("use_sim_time", None)
    values |= overrides or {}
    fields = {field.name: field for field in dataclasses.fields(parameters)}  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in fields:
            raise ValueError(f"{path}: there is no parameter {name}; there are {', '.join(fields)}")
        _check(path, name, value, fields[name])
    return parameters(**values)


def _check(path: Path, name: str, value: Any, field: dataclasses.Field[Any]) -> None:
    default = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[operator, misc]
    low, high, choices = field.metadata["low"], field.metadata["high"], field.metadata["choices"]
    fits = type(value) is type(default) or (isinstance(default, float) and type(value) is int)
    if not fits:
        raise ValueError(f"{path}: parameter {name} must be a {type(default).__name__}, not {value!r}")
    if low is not None and not low <= value <= high:
        raise ValueError(f"{path}: parameter {name} must lie between {low} and {high}, not {value}")
    if choices and value not in choices:
        raise ValueError(f"{path}: parameter {name} is {value!r}; it must be one of {', '.join(choices)}")
