"""A scenario driven over DDS: time, exposures, the hand-over from the simulator's own driver, and the verdict."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from std_msgs.msg import String

from rsd_planner.buffers import NANOSECONDS
from rsd_planner.control.tracking import path_error
from rsd_planner.control.vehicle import Command
from rsd_planner.messages import stamp_ns
from rsd_planner.msg import ControlCommand, Trajectory
from rsd_planner.ros import world_messages as messages
from rsd_planner.ros.conversions import reference
from rsd_planner.ros.simulator_links import NoAnswer, SimulatorLinks
from rsd_planner.ros.simulator_parameters import SimulatorParameters
from rsd_planner.simulation.cameras import Renderer, Rig
from rsd_planner.simulation.drive import CONTROL_EVERY, DriveLog, Driver, drive
from rsd_planner.simulation.drive_by_wire import DriveByWire
from rsd_planner.simulation.verdict import Verdict, judge
from rsd_planner.simulation.world import STEP_S, World

_BEGIN_NS = 10 * NANOSECONDS
"""ROS time at which every scenario begins; 0 means that no time is known."""


class SimulatedDrive:
    """One scenario from its first moment to its verdict."""

    def __init__(
        self,
        links: SimulatorLinks,
        parameters: SimulatorParameters,
        rig: Rig,
        world: World,
        renderer: Renderer | None,
    ) -> None:
        self._links, self._parameters, self._rig = links, parameters, rig
        self._world, self._renderer = world, renderer
        self._lock_step = self._parameters.pace == "lock_step"
        self._frame_every = max(1, round(1.0 / self._rig.rate_hz / STEP_S))
        self._jitter = np.random.default_rng(world.surroundings.scenery_seed)
        self._under_way: list[tuple[float, Callable[[], None]]] = []  # (due s, what to publish)
        self._log = DriveLog()
        self._handed_over = False
        self._late_plans = 0

    def run(self) -> Verdict:
        """Drives; the verdict says what happened."""
        world, parameters = self._world, self._parameters
        beginning = world.copy()
        self._links.begin()
        if self._renderer is not None:
            self._renderer.load(world)
        log = self._log
        own, wire = Driver(world), DriveByWire(world.vehicle, STEP_S, parameters.max_command_age_s)
        begin_s, begin_wall = world.ego_place()[0], time.monotonic()
        failure = ""
        for step in range(round(parameters.seconds / STEP_S)):
            if not self._lock_step:
                due = begin_wall + step * STEP_S / parameters.real_time_factor
                self._links.pause(max(0.0, due - time.monotonic()))
            try:
                command = self._tick(step, own)
            except NoAnswer as error:
                failure = str(error)
                break
            if command is not None:
                wire.accept(*command)
            world.step(wire.act(world.time_s))
            log.states.append(world.ego)
            if any(violation.startswith("collision") for violation in world.violations):
                break
        wall_s = time.monotonic() - begin_wall
        log.violations = [*world.violations, *([failure] if failure else [])]
        log.distance_m = world.ego_place()[0] - begin_s
        notes = []
        if wire.lost_steps:
            notes.append(f"{wire.lost_steps * STEP_S:.2f} s without a fresh command")
        if not self._handed_over:
            status = self._links.controller_status()
            notes.append(f"no hand-over: the controller says '{status.reason or f'plan {status.plan_id}'}'")
        if self._late_plans:
            notes.append(f"{self._late_plans} commands followed an older plan")
        as_expert = drive(beginning, len(log.states) * STEP_S)
        verdict = judge(world, log, as_expert.distance_m)
        pace = len(log.states) * STEP_S / wall_s
        return dataclasses.replace(verdict, real_time_factor=pace, taken_over=self._handed_over, notes=tuple(notes))

    def _tick(self, step: int, own: Driver) -> tuple[Command, float] | None:
        """Everything that happens before a physics step; the new command with its time, if there is one."""
        world, links = self._world, self._links
        now_ns = _BEGIN_NS + round(world.time_s * NANOSECONDS)

        def tick() -> None:
            links.publish_tick(world, now_ns)

        if self._lock_step and step == 0:
            # The controller's timer starts anew when the clock jumps; it must have seen the jump to this very moment.
            links.wait_for(
                lambda: stamp_ns(links.controller_status().header.stamp) == now_ns,
                "no status of the controller came",
                tick,
            )
        plan = links.newest_plan()  # what a command of now follows, before the next plan comes
        tick()
        if self._lock_step and step % CONTROL_EVERY == 0 and step > 0:
            what = f"no command for {world.time_s:.2f} s came"
            links.wait_for(lambda: _is_of(_stamp(links.newest_command()), now_ns), what, tick)
        command = self._take(now_ns, plan.plan_id if plan else 0)
        if self._handed_over and plan is not None and step % CONTROL_EVERY == 0:
            self._track(plan, now_ns)
        self._expose(step, now_ns)
        self._deliver(world.time_s)
        own_output = None if self._handed_over else own.drive(world, step)
        if self._handed_over:
            return command
        return None if own_output is None else (own_output.command, world.time_s)

    def _track(self, plan: Trajectory, now_ns: int) -> None:
        """How far the true car is from the plan that is being followed."""
        path = reference(plan)
        error = path_error(path, (now_ns - path.t0_ns) / NANOSECONDS, self._world.ego)
        planned = path.at(np.array([error.time_s])).speed_mps[0]
        self._log.lateral_errors_m.append(error.lateral_m)
        self._log.speed_errors_mps.append(self._world.ego.speed_mps - float(planned))

    def _take(self, now_ns: int, plan_id: int) -> tuple[Command, float] | None:
        """The controller's newest command of this drive, and the hand-over once it follows a plan."""
        message = self._links.newest_command()
        if message is None or not _BEGIN_NS <= _stamp(message) < now_ns + NANOSECONDS:
            return None
        if not self._handed_over:
            if self._world.time_s < self._parameters.hand_over_s or message.minimum_risk or not message.plan_id:
                return None
            self._handed_over = True
        if self._lock_step and _stamp(message) == now_ns and message.plan_id < plan_id:
            self._late_plans += 1
        command = Command(message.steering_tire_angle, message.acceleration)
        return command, (_stamp(message) - _BEGIN_NS) / NANOSECONDS

    def _expose(self, step: int, now_ns: int) -> None:
        """Takes pictures and the true state, and sends them on their way."""
        if step % self._frame_every:
            return
        world, links, rig = self._world, self._links, self._rig
        state = messages.world_message(world, now_ns)
        arrivals = [world.time_s]
        if self._renderer is not None:
            compressed = self._parameters.camera_transport == "compressed"
            delays = self._jitter.normal(rig.latency_s, rig.jitter_s, len(rig.cameras))
            arrivals = [world.time_s + max(0.0, float(delay)) for delay in delays]
            pictures = self._renderer.render(world)
            for camera, arrival in zip(rig.cameras, arrivals, strict=True):
                image = messages.image_message(camera, pictures[camera.name], now_ns, compressed)
                info = messages.camera_info_message(camera, rig, now_ns)
                self._under_way.append((arrival, partial(links.publish_image, camera.name, image, info)))
        # The state arrives with the last picture: who plans from it is not ahead of who plans from pictures.
        self._under_way.append((max(arrivals), lambda: self._ask(now_ns, state)))

    def _deliver(self, time_s: float) -> None:
        due = [entry for entry in self._under_way if entry[0] <= time_s + 1e-9]
        self._under_way = [entry for entry in self._under_way if entry[0] > time_s + 1e-9]
        for _, publish in sorted(due, key=lambda entry: entry[0]):
            publish()

    def _ask(self, exposure_ns: int, state: String) -> None:
        """Publishes the true state once plans are needed; in lock-step, waits for the plan of that exposure.

        Earlier it would only blur which plan the controller has seen first.
        """
        links, exposed_s = self._links, (exposure_ns - _BEGIN_NS) / NANOSECONDS
        if exposed_s < self._parameters.hand_over_s - 0.1 - 1e-9:
            return
        links.publish_world(state)
        if self._lock_step:
            what = f"no plan for {exposed_s:.2f} s came"
            links.wait_for(lambda: _is_of(links.answered_ns(), exposure_ns), what, lambda: links.publish_world(state))


def _stamp(answer: ControlCommand | None) -> int:
    return 0 if answer is None else stamp_ns(answer.header.stamp)


def _is_of(answer_ns: int, question_ns: int) -> bool:
    """Whether an answer's stamp is the question's or a little later (and not one of an earlier drive)."""
    return 0 <= answer_ns - question_ns < NANOSECONDS
