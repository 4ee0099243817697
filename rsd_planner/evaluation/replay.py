"""A bag through the planner without DDS: the node's own synchronisation, as fast as the model allows.

Memory is bounded by a window of seconds, not by the bag: a cycle waits until its truth has been read, then it is
measured and given away as a row.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation, Slerp

from rsd_planner.buffers import NANOSECONDS, NothingNew, NotReady, OdometrySample
from rsd_planner.evaluation.consistency import consistency
from rsd_planner.evaluation.judging import WORLD_FIGURES, judge_plan
from rsd_planner.evaluation.metrics import against_truth, jitter, plan_is_comfortable
from rsd_planner.evaluation.reading import BagReader, Event, FrameEvent, OdometryEvent
from rsd_planner.plan import Plan, PlannedTrajectory
from rsd_planner.planner import PlanningError
from rsd_planner.planner_parameters import PlannerParameters
from rsd_planner.scene import Scene
from rsd_planner.synchronisation import SynchronisationLimits, Synchroniser, Undecodable

CLIP_S = 20.0
"""Length of the clips that intervals are resampled over (that of the public data set's clips)."""
_MAX_GAP_S = 0.5
_WORLD_SKEW_NS = 20_000_000
_THUMBNAIL_WIDTH = 480


class Plans(Protocol):
    """What makes plans: `rsd_planner.planner.Planner`, or a recording of them."""

    @property
    def history_poses(self) -> int:
        """Poses of history that a scene must have."""

    def plan(self, scene: Scene) -> Plan:
        """One cycle. Raises PlanningError, or NotReady if there is no plan to be had of this scene."""


@dataclass
class _Cycle:
    plan: Plan
    t_s: float
    pictures: dict[str, NDArray[np.uint8]]


@dataclass(frozen=True)
class MeasuredCycle:
    """A row of the results, each camera's newest picture (RGB uint8, at most 480 wide), the true state if known."""

    row: dict[str, Any]
    pictures: dict[str, NDArray[np.uint8]]
    world: dict[str, Any] | None


class Replay:
    """One pass over one bag."""

    def __init__(self, reader: BagReader, plans: Plans, parameters: PlannerParameters) -> None:
        self._reader, self._plans, self._parameters = reader, plans, parameters
        limits = SynchronisationLimits(
            max_skew_s=parameters.max_skew_s,
            max_frame_offset_s=parameters.max_frame_offset_s,
            max_odometry_gap_s=parameters.max_odometry_gap_s,
        )
        self._inputs = Synchroniser(
            parameters.cameras(), plans.history_poses, 0.1, limits, min_period_s=1.0 / parameters.rate_hz
        )
        self._first_camera = parameters.camera_names[0]
        self._truth: deque[OdometrySample] = deque()
        self._world: deque[tuple[int, dict[str, Any]]] = deque()
        self._waiting: deque[_Cycle] = deque()
        self._before: Plan | None = None
        self._first_ns: int | None = None
        self._unplanned: dict[int, str] = {}
        self.not_planned: Counter[str] = Counter()
        """Frames of the first camera that gave no cycle, by reason."""
        self.read_s = 0.0
        """How far the bag has been read."""

    def cycles(self) -> Iterator[MeasuredCycle]:
        """All cycles in order. A bag that breaks off ends here; see the reader's `problems`."""
        for at_ns, event in self._reader.events():
            self.read_s = (at_ns - self._reader.start_ns) / NANOSECONDS
            restarted = self._take(event)
            if restarted:
                yield from self._finish(everything=True)
                self._truth.clear()
                self._world.clear()
                self._before = self._first_ns = None
            if isinstance(event, FrameEvent | OdometryEvent):
                self._plan()
            yield from self._finish(everything=False)
        self._settle(None)
        yield from self._finish(everything=True)
        self._report_inputs()

    # Inputs -------------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> bool:
        """Puts an event where it belongs; True if the stream of odometry began anew."""
        if isinstance(event, FrameEvent):
            self._inputs.cameras[event.camera].add(event.frame)
            return False
        if isinstance(event, OdometryEvent):
            buffer = self._inputs.odometry
            buffer.frame, buffer.base_frame = event.frame, event.base_frame
            if not buffer.add(event.sample):
                return False
            if buffer.order.restarted:
                return True
            self._first_ns = self._first_ns or event.sample.stamp_ns
            self._truth.append(event.sample)
            horizon = self._waiting[0].plan.t0_ns if self._waiting else event.sample.stamp_ns
            while len(self._truth) > 2 and self._truth[1].stamp_ns < horizon - NANOSECONDS:
                self._truth.popleft()
            return False
        self._world.append((event.stamp_ns, event.state))
        horizon = self._waiting[0].plan.t0_ns if self._waiting else event.stamp_ns
        while len(self._world) > 1 and self._world[0][0] < horizon - NANOSECONDS:
            self._world.popleft()
        return False

    def _plan(self) -> None:
        try:
            selection = self._inputs.select()
        except NothingNew:
            return
        except NotReady as error:
            if stamps := self._inputs.cameras[self._first_camera].stamps_ns:
                self._unplanned[stamps[-1]] = str(error)
            return
        try:
            scene = selection.decode()
            plan = self._plans.plan(scene)
        except (Undecodable, PlanningError) as error:
            self._reader.problems[f"no plan: {_without_numbers(str(error))}"] += 1
            return
        except NotReady as error:
            self.not_planned[_without_numbers(str(error))] += 1
            return
        self._settle(plan.t0_ns)
        pictures = {camera.name: _thumbnail(camera.images[-1]) for camera in scene.cameras}
        self._waiting.append(_Cycle(plan, (plan.t0_ns - (self._first_ns or 0)) / NANOSECONDS, pictures))

    def _settle(self, t0_ns: int | None) -> None:
        """Frames before a plan's t0 (None: all) that have not been planned on never will be."""
        for stamp in list(self._unplanned):
            if t0_ns is None or stamp <= t0_ns:
                reason = self._unplanned.pop(stamp)
                if stamp != t0_ns:
                    self.not_planned[_without_numbers(reason)] += 1

    def _report_inputs(self) -> None:
        orders = {f"camera {name}": buffer.order for name, buffer in self._inputs.cameras.items()}
        orders["odometry"] = self._inputs.odometry.order
        for name, order in orders.items():
            for what, count in (
                ("have no messages", int(order.received == 0)),
                ("messages with stamp 0", order.unstamped),
                ("messages out of order", order.backward),
                ("messages twice", order.duplicates),
                ("messages missing by their stamps", order.missing),
                ("times the stamps began anew", order.restarts),
            ):
                if count:
                    self._reader.problems[f"{name}: {what}"] += count

    # Measuring ----------------------------------------------------------------------------------------------------

    def _finish(self, everything: bool) -> Iterator[MeasuredCycle]:
        newest = self._truth[-1].stamp_ns if self._truth else 0
        while self._waiting:
            plan = self._waiting[0].plan
            end_ns = plan.t0_ns + round(len(plan.trajectory.xyz) * plan.trajectory.dt_s * NANOSECONDS)
            if newest < end_ns and not everything:
                return
            cycle = self._waiting.popleft()
            yield MeasuredCycle(self._row(cycle), cycle.pictures, self._world_at(plan.t0_ns))
            self._before = cycle.plan

    def _row(self, cycle: _Cycle) -> dict[str, Any]:
        plan, path = cycle.plan, cycle.plan.trajectory
        truth = self._truth_after(plan)
        samples = [path, *plan.alternatives]
        planned = {"xy": path.xyz[:, :2], "yaw": path.yaw_rad, "speed": path.speed_mps}
        position, yaw = plan.history.position_in_odometry, _yaw(plan.history.quaternion_in_odometry)
        row: dict[str, Any] = {
            "bag": self._reader.path.name,
            "clip": f"{self._reader.path.name}#{int(cycle.t_s // CLIP_S)}",
            "t_s": cycle.t_s,
            "t0_ns": plan.t0_ns,
            "text": plan.reasoning.text,
            "truncated": plan.reasoning.truncated,
            "tokens": list(plan.reasoning.tokens),
            "sources": [int(source) for source in plan.reasoning.sources],
            "v0_mps": plan.v0_mps,
            "notes": list(plan.notes),
            "pose": [float(position[0]), float(position[1]), yaw],
            **{f"plan_{name}": _listed(column) for name, column in _columns(path).items()},
            **{f"truth_{name}": _listed(column) for name, column in truth.items()},
            "samples_x": [_listed(sample.xyz[:, 0]) for sample in samples[1:]],
            "samples_y": [_listed(sample.xyz[:, 1]) for sample in samples[1:]],
            **{f"stage_{name}_s": seconds for name, seconds in plan.stages_s.items()},
            "total_s": plan.total_s,
            "deadline_missed": float(plan.total_s > 1.0 / self._parameters.rate_hz),
        }
        true = {"xy": np.stack([truth["x"], truth["y"]], axis=1), "yaw": truth["yaw"], "speed": truth["speed"]}
        row |= against_truth(planned, true, [sample.xyz[:, :2] for sample in samples], path.dt_s)
        row["comfortable"] = plan_is_comfortable(path.speed_mps, path.curvature_radpm, path.dt_s)
        row["consistent"] = consistency(plan.reasoning.text, plan.v0_mps, path.speed_mps, path.dt_s)
        row |= self._against_before(plan)
        return row | self._by_world(plan)

    def _against_before(self, plan: Plan) -> dict[str, float]:
        found = {"jitter_3s": float("nan"), "coc_same": float("nan"), "coc_similarity": float("nan")}
        before = self._before
        if before is None or plan.t0_ns - before.t0_ns > NANOSECONDS:
            return found
        shift_s = (plan.t0_ns - before.t0_ns) / NANOSECONDS
        found["jitter_3s"] = jitter(_in_odometry(before), _in_odometry(plan), shift_s, plan.trajectory.dt_s)
        found["coc_same"] = float(plan.reasoning.text == before.reasoning.text)
        matcher = difflib.SequenceMatcher(None, before.reasoning.tokens, plan.reasoning.tokens, autojunk=False)
        found["coc_similarity"] = matcher.ratio()
        return found

    def _by_world(self, plan: Plan) -> dict[str, float]:
        now = self._world_at(plan.t0_ns)
        if now is None:
            return dict.fromkeys(WORLD_FIGURES, float("nan")) if self._reader.topic_of("world") else {}
        states = [(stamp - plan.t0_ns, state) for stamp, state in self._world]
        later = [(after / NANOSECONDS, state) for after, state in states if after > _WORLD_SKEW_NS]
        yaw = plan.trajectory.yaw_rad + _yaw(plan.history.quaternion_in_odometry)
        text = plan.reasoning.text
        return judge_plan(now, later, _in_odometry(plan), yaw, plan.trajectory.dt_s, text)

    def _world_at(self, t0_ns: int) -> dict[str, Any] | None:
        return next((state for stamp, state in self._world if abs(stamp - t0_ns) <= _WORLD_SKEW_NS), None)

    def _truth_after(self, plan: Plan) -> dict[str, NDArray[np.float64]]:
        """x, y, yaw (in base_link at t0) and speed [N] of the car at the plan's times; NaN where it is not known."""
        step_s, count = plan.trajectory.dt_s, len(plan.trajectory.xyz)
        wanted = step_s * np.arange(1, count + 1)
        samples = list(self._truth)
        time = np.array([(sample.stamp_ns - plan.t0_ns) / NANOSECONDS for sample in samples])
        unknown = {name: np.full(count, np.nan) for name in ("x", "y", "yaw", "speed")}
        if len(samples) < 2:
            return unknown
        after = np.clip(np.searchsorted(time, wanted - 1e-9), 1, len(time) - 1)
        known = (wanted <= time[-1] + 1e-9) & (time[after] - time[after - 1] <= _MAX_GAP_S)
        at = np.clip(wanted, time[0], time[-1])
        base = Rotation.from_quat(plan.history.quaternion_in_odometry).inv()
        position = np.array([sample.position for sample in samples])
        xyz = np.stack([np.interp(at, time, position[:, axis]) for axis in range(3)], axis=1)
        relative = base.apply(xyz - plan.history.position_in_odometry)
        attitude = base * Slerp(time, Rotation.from_quat([sample.quaternion for sample in samples]))(at)
        forward = attitude.apply(np.array([1.0, 0.0, 0.0]))
        speed = np.array([sample.speed_mps for sample in samples])
        if not np.isfinite(speed).all():
            speed = np.linalg.norm(np.gradient(position, time, axis=0), axis=1)
        found = {
            "x": relative[:, 0],
            "y": relative[:, 1],
            "yaw": np.unwrap(np.arctan2(forward[:, 1], forward[:, 0])),
            "speed": np.interp(at, time, speed),
        }
        return {name: np.where(known, column, np.nan) for name, column in found.items()}


def _columns(path: PlannedTrajectory) -> dict[str, NDArray[np.float64]]:
    return {
        "x": path.xyz[:, 0],
        "y": path.xyz[:, 1],
        "yaw": path.yaw_rad,
        "speed": path.speed_mps,
        "curvature": path.curvature_radpm,
    }


def _in_odometry(plan: Plan) -> NDArray[np.float64]:
    """Waypoints [N, 2] in the odometry frame."""
    base = Rotation.from_quat(plan.history.quaternion_in_odometry)
    return np.asarray((base.apply(plan.trajectory.xyz) + plan.history.position_in_odometry)[:, :2])


def _thumbnail(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A small copy: a cycle waits for its truth for seconds, and full pictures would fill the memory."""
    height, width = picture.shape[:2]
    if width <= _THUMBNAIL_WIDTH:
        return picture
    size = (_THUMBNAIL_WIDTH, round(height * _THUMBNAIL_WIDTH / width))
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def _yaw(quaternion: NDArray[np.float64]) -> float:
    x, y, z, w = quaternion
    return float(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))


def _listed(column: NDArray[np.float64]) -> list[float]:
    return [float(value) for value in column]


def _without_numbers(text: str) -> str:
    """A reason without its figures, so that equal reasons count as one."""
    return re.sub(r"[-+]?\d+(\.\d+)?", "N", text)


def with_samples(parameters: PlannerParameters, samples: int) -> Any:
    """The planner's settings with more trajectories a cycle."""
    return replace(parameters.settings(), samples=samples)
