"""The life of a node's process: start, spin, end with an honest exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

import rclpy
from rclpy._rclpy_pybind11 import RCLError
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions


def run_node(make: Callable[[], Node]) -> None:
    """Makes a node and spins it until SIGINT or SIGTERM, then exits.

    Exit code 1 with one line on stderr if making it raises ValueError, or when its attribute `fatal`
    says why it cannot go on; exit code 0 when its attribute `finished` is true. A node with a method `stop`
    has it called before it is destroyed.
    """
    # rclpy ends the context on SIGINT; a KeyboardInterrupt besides would strike in the middle of its C++ calls.
    signal.signal(signal.SIGINT, lambda *_: None)
    name = sys.argv[0].rsplit("/", 1)[-1].removesuffix(".py")
    try:
        rclpy.init(signal_handler_options=SignalHandlerOptions.ALL)
        node = make()
    except (ValueError, RCLError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        rclpy.try_shutdown()
        sys.exit(1)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    code = 0
    try:
        while rclpy.ok():
            executor.spin_once(timeout_sec=0.5)
            if fatal := getattr(node, "fatal", ""):
                node.get_logger().fatal(fatal)
                code = 1
                break
            if getattr(node, "finished", False):
                break
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    except Exception:  # a callback that was at work when the signal took the context away
        if rclpy.ok():
            raise
    finally:
        try:
            getattr(node, "stop", lambda: None)()
            node.destroy_node()
            rclpy.try_shutdown()
        except KeyboardInterrupt:  # a second SIGINT while the node is taken down
            pass
    sys.exit(code)
