"""Parameters declared from a dataclass: name, default, description and bounds in one place."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.node import Node

_T = TypeVar("_T")


def declare(node: Node, parameters: type[_T]) -> _T:
    """Declares every field of a dataclass on the node and returns the values that it was started with.

    Raises ValueError that names parameter, value and what would be right.
    """
    values = {}
    for field in dataclasses.fields(parameters):  # type: ignore[arg-type]
        meta = field.metadata
        default = field.default_factory() if callable(field.default_factory) else field.default
        choices = meta["choices"]
        descriptor = ParameterDescriptor(
            description=meta["description"] + (f" One of: {', '.join(choices)}." if choices else ""),
            read_only=True,
        )
        low, high = meta["low"], meta["high"]
        if low is not None and high is not None:
            if isinstance(default, float):
                descriptor.floating_point_range = [FloatingPointRange(from_value=low, to_value=high)]
            else:
                descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high), step=1)]
        try:
            value = node.declare_parameter(field.name, default, descriptor).value
        except Exception as error:  # rclpy raises several unrelated types
            allowed = f" between {low} and {high}" if low is not None else ""
            raise ValueError(f"parameter {field.name} must be a {type(default).__name__}{allowed}: {error}") from error
        if choices and value not in choices:
            raise ValueError(f"parameter {field.name} is {value!r}; it must be one of {', '.join(choices)}")
        values[field.name] = value
    return parameters(**values)
