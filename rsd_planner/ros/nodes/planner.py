"""The planner node: cameras and odometry in, chain of causation and trajectory out.

Callbacks only store messages. A worker thread loads the model, then plans as soon as the inputs of a
new t0 are together, one cycle at a time. Status goes out once a second whatever the worker does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path as FilePath

import torch
from nav_msgs.msg import Odometry, Path
from rclpy.clock import Clock, ClockType, JumpThreshold
from rclpy.duration import Duration
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import qos_policy_name_from_kind
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header
from visualization_msgs.msg import MarkerArray

from rsd_planner.buffers import NANOSECONDS, Frame, NothingNew, NotReady, StampFilter
from rsd_planner.images import decode_compressed_image, decode_image
from rsd_planner.messages import odometry_sample, stamp_ns
from rsd_planner.msg import ChainOfCausation, PlannerStatus, Trajectory
from rsd_planner.plan import Plan
from rsd_planner.planner import Planner
from rsd_planner.planner_parameters import PlannerParameters
from rsd_planner.ros import conversions
from rsd_planner.ros.bringup import shipped_model
from rsd_planner.ros.parameters import declare
from rsd_planner.ros.process import run_node
from rsd_planner.ros.qos import PLAN_QOS, STATUS_QOS, sensor_qos
from rsd_planner.synchronisation import Selection, SynchronisationLimits, Synchroniser, Undecodable
from rsd_planner.vla.checkpoint import Checkpoint, dtype_named

_WARN_PERIOD_S = 5.0


class PlannerNode(Node):
    """See the module. Raises ValueError if it cannot be configured."""

    def __init__(self) -> None:
        super().__init__("planner")
        self.parameters = declare(self, PlannerParameters)
        named = FilePath(self.parameters.model).expanduser() if self.parameters.model else shipped_model()
        self._checkpoint = Checkpoint.open(named)
        config = self._checkpoint.config
        self._lock = threading.Lock()
        self._inputs = Synchroniser(
            self.parameters.cameras(),
            config.history_poses,
            config.action_space.dt_s,
            SynchronisationLimits(
                max_skew_s=self.parameters.max_skew_s,
                max_frame_offset_s=self.parameters.max_frame_offset_s,
                max_odometry_gap_s=self.parameters.max_odometry_gap_s,
            ),
            min_period_s=1.0 / self.parameters.rate_hz,
        )
        self._reasoning = self.create_publisher(ChainOfCausation, "~/reasoning", PLAN_QOS)
        self._trajectory = self.create_publisher(Trajectory, "~/trajectory", PLAN_QOS)
        self._path = self.create_publisher(Path, "~/path", PLAN_QOS)
        self._markers = self.create_publisher(MarkerArray, "~/markers", PLAN_QOS)
        self._status = self.create_publisher(PlannerStatus, "~/status", STATUS_QOS)
        self._state, self._message = PlannerStatus.STATE_LOADING, f"loading {self._checkpoint.directory}"
        self._plans = self._failed_cycles = self._deadline_misses = 0
        self._newest: Plan | None = None
        self._warned: dict[str, float] = {}
        self._qos_problems: dict[str, str] = {}
        self.fatal = ""
        """Set by the worker when the node cannot go on: why."""
        self._subscribe()
        self._wake = threading.Event()
        self._stopping = False
        # The heartbeat must not stop with simulated time.
        self.create_timer(1.0, self._beat, clock=Clock(clock_type=ClockType.STEADY_TIME))
        threshold = JumpThreshold(min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=True)
        self._jump_handle = self.get_clock().create_jump_callback(threshold, post_callback=self._on_clock_jump)
        self._worker = threading.Thread(target=self._work, name="planning", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """Ends the worker after the cycle it is in."""
        self._stopping = True
        self._wake.set()
        self._worker.join(timeout=10.0)

    # Inputs (executor thread) -------------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        compressed = self.parameters.camera_transport == "compressed"
        for name in self.parameters.camera_names:
            topic = f"camera/{name}/image" + ("/compressed" if compressed else "")
            self._listen(
                CompressedImage if compressed else Image,
                topic,
                partial(self._on_image, name, decode_compressed_image if compressed else decode_image),
                self.parameters.camera_reliability,
                depth=10,
            )
        self._listen(Odometry, "odometry", self._on_odometry, self.parameters.odometry_reliability, depth=100)

    def _listen(self, kind: type, topic: str, callback: Callable[..., None], reliability: str, depth: int) -> None:
        def incompatible(event: object) -> None:
            policy = qos_policy_name_from_kind(event.last_policy_kind)  # type: ignore[attr-defined]
            self._qos_problems[topic] = f"a publisher of {topic} offers an incompatible QoS ({policy})"
            self.get_logger().error(self._qos_problems[topic])

        events = SubscriptionEventCallbacks(incompatible_qos=incompatible)
        self.create_subscription(kind, topic, callback, sensor_qos(reliability, depth), event_callbacks=events)

    def _on_image(self, name: str, decode: Callable[..., object], message: Image | CompressedImage) -> None:
        frame = Frame(stamp_ns(message.header.stamp), partial(decode, message))  # type: ignore[arg-type]
        with self._lock:
            self._inputs.cameras[name].add(frame)
        self._wake.set()

    def _on_odometry(self, message: Odometry) -> None:
        try:
            sample = odometry_sample(message)
        except ValueError as error:
            with self._lock:
                self._inputs.odometry.invalid += 1
            self._warn("odometry", f"odometry message refused: {error}")
            return
        with self._lock:
            self._inputs.odometry.frame = message.header.frame_id or "odom"
            self._inputs.odometry.base_frame = message.child_frame_id or "base_link"
            self._inputs.odometry.add(sample)
        self._wake.set()

    def _on_clock_jump(self, _: object) -> None:
        with self._lock:
            self._inputs.clear()
        self.get_logger().info("the clock jumped back: all inputs were forgotten")

    # Planning (worker thread) -------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            planner = self._load()
        except Exception as error:
            self.fatal = f"the model cannot be loaded: {error}"
            return
        while not self._stopping:
            self._wake.wait()
            self._wake.clear()
            if self._stopping:
                break
            try:
                self._cycle(planner)
            except Undecodable as error:
                self._warn("image", f"image refused: {error}")
            except NotReady as error:
                # Inputs come one by one: that is no wait while the last plan is fresh. And that nothing
                # is new says less than an earlier reason for waiting.
                planning = self._state == PlannerStatus.STATE_PLANNING
                if not (self._plan_is_fresh() if planning else isinstance(error, NothingNew)):
                    self._report(PlannerStatus.STATE_WAITING, str(error))
            except Exception as error:  # whatever one cycle does, the next may go well
                self._failed_cycles += 1
                self._report(PlannerStatus.STATE_ERROR, f"{type(error).__name__}: {error}")
                self._warn("cycle", f"a planning cycle failed: {type(error).__name__}: {error}")

    def _load(self) -> Planner:
        if self.parameters.threads:
            torch.set_num_threads(self.parameters.threads)
        device = self.parameters.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = None if self.parameters.dtype == "auto" else dtype_named(self.parameters.dtype)
        start = time.monotonic()
        planner = Planner.from_checkpoint(self._checkpoint, self.parameters.settings(), device, dtype)
        took = time.monotonic() - start
        self.get_logger().info(f"loaded {self._checkpoint.directory} on {device} in {took:.1f} s")
        self._report(PlannerStatus.STATE_WAITING, "no inputs yet")
        return planner

    def _cycle(self, planner: Planner) -> None:
        with self._lock:
            selection = self._inputs.select()
        self._check_age(selection)
        start = time.perf_counter()
        scene = selection.decode()
        decode_s = time.perf_counter() - start
        plan = planner.plan(scene)
        plan = replace(plan, stages_s={"image_decode": decode_s, **plan.stages_s})
        trajectory = conversions.trajectory_message(plan)
        self._trajectory.publish(trajectory)  # first: it is what the controller waits for
        self._reasoning.publish(conversions.reasoning_message(plan))
        self._path.publish(conversions.path_message(plan))
        self._markers.publish(conversions.markers_message(plan))
        self._plans += 1
        self._newest = plan
        if plan.total_s > 1.0 / self.parameters.rate_hz:
            self._deadline_misses += 1
        for note in plan.notes:
            self._warn(note.split(" ")[0], f"plan {plan.plan_id}: {note}")
        self._report(PlannerStatus.STATE_PLANNING, "")

    def _check_age(self, selection: Selection) -> None:
        age_s = (self._now_ns() - selection.t0_ns) / NANOSECONDS
        if not -1.0 <= age_s <= self.parameters.max_input_age_s:
            raise NotReady(
                f"the newest frames are {age_s:.3f} s old by this node's clock (use_sim_time is "
                f"{self.get_parameter('use_sim_time').value}), max_input_age_s is {self.parameters.max_input_age_s}"
            )

    # Reports ------------------------------------------------------------------------------------------------------

    def _report(self, state: int, message: str) -> None:
        changed = state != self._state
        self._state, self._message = state, message
        if changed:
            self._publish_status()
            if state != PlannerStatus.STATE_PLANNING:
                self.get_logger().info(message)

    def _plan_is_fresh(self) -> bool:
        age_s = self._plan_age_s()
        return 0.0 <= age_s <= self.parameters.max_input_age_s

    def _plan_age_s(self) -> float:
        return (self._now_ns() - self._newest.t0_ns) / NANOSECONDS if self._newest else -1.0

    def _now_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)

    def _beat(self) -> None:
        self._wake.set()  # lets the worker notice that inputs have stopped
        self._publish_status()

    def _publish_status(self) -> None:
        message = self._message
        if self._state == PlannerStatus.STATE_WAITING:
            message = "; ".join([message, *self._connection_problems()])
            self._warn("waiting", f"no plan: {message}")
        with self._lock:
            orders = {name: buffer.order for name, buffer in self._inputs.cameras.items()}
            invalid = [buffer.invalid for buffer in self._inputs.cameras.values()] + [self._inputs.odometry.invalid]
            orders["odometry"] = self._inputs.odometry.order
        newest = self._newest
        self._status.publish(
            PlannerStatus(
                header=Header(stamp=self.get_clock().now().to_msg()),
                state=self._state,
                message=message,
                plans=self._plans,
                failed_cycles=self._failed_cycles,
                deadline_misses=self._deadline_misses,
                plan_age=self._plan_age_s(),
                stages=list(newest.stages_s) if newest else [],
                stage_durations=list(newest.stages_s.values()) if newest else [],
                inputs=list(orders),
                input_rates=[NANOSECONDS / order.period_ns if order.period_ns else 0.0 for order in orders.values()],
                input_ages=[self._age_s(order) for order in orders.values()],
                input_received=[order.received for order in orders.values()],
                input_gaps=[order.missing for order in orders.values()],
                input_rejected=[order.refused + bad for order, bad in zip(orders.values(), invalid, strict=True)],
            )
        )

    def _age_s(self, order: StampFilter) -> float:
        return -1.0 if order.newest_ns is None else (self._now_ns() - order.newest_ns) / NANOSECONDS

    def _connection_problems(self) -> list[str]:
        """Why an input may stay silent: nobody publishes it, or with another type or QoS."""
        problems = list(self._qos_problems.values())
        for subscription in self.subscriptions:
            topic, wanted = subscription.topic_name, subscription.msg_type
            if topic in ("/clock", "/parameter_events"):
                continue
            publishers = self.get_publishers_info_by_topic(topic)
            expected = f"{wanted.__module__.split('.')[0]}/msg/{wanted.__name__}"
            others = sorted({info.topic_type for info in publishers} - {expected})
            if not publishers:
                problems.append(f"nobody publishes {topic}")
            elif others and len(others) == len({info.topic_type for info in publishers}):
                problems.append(f"{topic} is published as {', '.join(others)}, this node reads {expected}")
        return problems

    def _warn(self, kind: str, text: str) -> None:
        """Logs a warning, at most one of a kind every few seconds."""
        now = time.monotonic()
        if now - self._warned.get(kind, -_WARN_PERIOD_S) >= _WARN_PERIOD_S:
            self._warned[kind] = now
            self.get_logger().warning(text)


def main() -> None:
    """Runs the node until SIGINT or SIGTERM. Exit code 1 if it cannot be configured or loaded."""
    run_node(PlannerNode)


if __name__ == "__main__":
    main()
