"""The expert as a planner node: reads the simulator's true state, publishes what a planner publishes."""

from __future__ import annotations

from nav_msgs.msg import Path
from rclpy.node import Node
from std_msgs.msg import String
from visualization_msgs.msg import MarkerArray

from rsd_planner.msg import ChainOfCausation, Trajectory
from rsd_planner.ros import conversions
from rsd_planner.ros.process import run_node
from rsd_planner.ros.qos import PLAN_QOS
from rsd_planner.ros.world_messages import expert_plan, world_state
from rsd_planner.simulation import expert
from rsd_planner.simulation.chain_of_causation import meaning
from rsd_planner.simulation.scenarios import build
from rsd_planner.simulation.snapshot import restore
from rsd_planner.simulation.wording import write
from rsd_planner.simulation.world import World


class ExpertPlannerNode(Node):
    """Needs the simulator's topic `world`; knows of no camera. A plan is stamped with the state's time."""

    def __init__(self) -> None:
        super().__init__("planner")
        self._reasoning = self.create_publisher(ChainOfCausation, "~/reasoning", PLAN_QOS)
        self._trajectory = self.create_publisher(Trajectory, "~/trajectory", PLAN_QOS)
        self._path = self.create_publisher(Path, "~/path", PLAN_QOS)
        self._markers = self.create_publisher(MarkerArray, "~/markers", PLAN_QOS)
        self._drawn: World | None = None
        self._plans = 0
        self.create_subscription(String, "world", self._on_world, PLAN_QOS)

    def _on_world(self, message: String) -> None:
        try:
            state = world_state(message)
            scenario = (state["family"], state["split"], state["seed"])
            if self._drawn is None or self._drawn.scenario != scenario:
                self._drawn = build(*scenario)
            world = restore(state, self._drawn)
            t0_ns = int(state["stamp_ns"])
        except (ValueError, KeyError, TypeError) as error:
            self.get_logger().error(f"the world's state cannot be read: {error}", throttle_duration_sec=1.0)
            return
        self._plans += 1
        made = expert.plan(world)
        text = write(meaning(world, made), round(world.time_s * 10))
        plan = expert_plan(world, made, self._plans, t0_ns, text)
        self._trajectory.publish(conversions.trajectory_message(plan))
        self._reasoning.publish(conversions.reasoning_message(plan))
        self._path.publish(conversions.path_message(plan))
        self._markers.publish(conversions.markers_message(plan))


def main() -> None:
    """Runs the node until SIGINT or SIGTERM."""
    run_node(ExpertPlannerNode)


if __name__ == "__main__":
    main()
