"""From streams to a scene: the newest t0 at which cameras and odometry meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rsd_planner.buffers import NANOSECONDS, Camera, Frame, FrameBuffer, NothingNew, NotReady, OdometryBuffer
from rsd_planner.scene import CameraFrames, EgoHistory, Scene


class Undecodable(Exception):
    """A frame whose picture cannot be decoded; it has been taken out of its buffer."""


@dataclass(frozen=True)
class SynchronisationLimits:
    """Bounds on what may go into one scene.

    frames a camera, frame_period_s apart; max_skew_s between t0 and another camera's newest frame;
    max_frame_offset_s between an older frame and its nominal time (room for a lost frame);
    max_odometry_gap_s between odometry samples.
    """

    frames: int = 4
    frame_period_s: float = 0.1
    max_skew_s: float = 0.05
    max_frame_offset_s: float = 0.15
    max_odometry_gap_s: float = 0.25


@dataclass(frozen=True)
class Selection:
    """The inputs of one cycle, chosen but not decoded."""

    t0_ns: int
    frames: Sequence[tuple[FrameBuffer, Sequence[Frame]]]
    history: EgoHistory

    def decode(self, route: str | None = None) -> Scene:
        """Decodes the frames. Raises Undecodable, which names camera, stamp and reason."""
        cameras = []
        for buffer, frames in self.frames:
            images = []
            for frame in frames:
                try:
                    images.append(frame.image())
                except ValueError as error:
                    buffer.remove(frame)
                    raise Undecodable(f"camera {buffer.camera.name}, stamp {frame.stamp_ns} ns: {error}") from error
            stamps = tuple(frame.stamp_ns for frame in frames)
            cameras.append(CameraFrames(buffer.camera.name, buffer.camera.index, stamps, tuple(images)))
        return Scene(self.t0_ns, tuple(cameras), self.history, route)


class Synchroniser:
    """Collects cameras and odometry and selects what a cycle looks at. Not thread-safe."""

    def __init__(
        self,
        cameras: Sequence[Camera],
        history_poses: int,
        history_dt_s: float,
        limits: SynchronisationLimits | None = None,
        min_period_s: float = 0.0,
    ) -> None:
        if not 1 <= len(cameras) <= 8:
            raise ValueError(f"1 to 8 cameras are supported, not {len(cameras)}")
        if len({camera.name for camera in cameras}) < len(cameras) or len({c.index for c in cameras}) < len(cameras):
            raise ValueError(f"cameras must have different names and indices: {list(cameras)}")
        self._limits = limits or SynchronisationLimits()
        self._poses, self._dt_s = history_poses, history_dt_s
        # A tenth of slack, so that jitter of the stamps does not cost a cycle.
        self._min_step_ns = max(1, int(0.9 * min_period_s * NANOSECONDS))
        self._last_t0_ns: int | None = None
        # Half a second beyond the oldest frame needed: cameras and odometry arrive with their own delays.
        horizon_s = self._limits.frames * self._limits.frame_period_s + self._limits.max_frame_offset_s + 0.5
        self.cameras = {camera.name: FrameBuffer(camera, horizon_s) for camera in cameras}
        self.odometry = OdometryBuffer(max_gap_s=self._limits.max_odometry_gap_s)

    def clear(self) -> None:
        """Forgets everything, as after a jump of the clock."""
        self._last_t0_ns = None
        self.odometry.clear()
        for buffer in self.cameras.values():
            buffer.clear()

    def select(self) -> Selection:
        """Inputs for the newest stamp of the first camera at which all meet, a period after the last one.

        Raises NotReady that says what is missing for the newest frame; NothingNew if there is no such frame.
        """
        for name, buffer in self.cameras.items():
            if not buffer.stamps_ns:
                raise NotReady(f"camera {name}: no frame yet")
        if self.odometry.newest_ns is None:
            raise NotReady("no odometry yet")
        stamps = next(iter(self.cameras.values())).stamps_ns
        if self._last_t0_ns is not None and stamps[-1] < self._last_t0_ns:
            self._last_t0_ns = None  # the stream began anew
        reason: NotReady = NothingNew("no new frame")
        for t0_ns in reversed(stamps):
            if self._last_t0_ns is not None and t0_ns < self._last_t0_ns + self._min_step_ns:
                break
            try:
                selection = Selection(
                    t0_ns, self._frames_for(t0_ns), self.odometry.history(t0_ns, self._poses, self._dt_s)
                )
            except NotReady as error:
                reason = error if t0_ns == stamps[-1] else reason
                continue
            self._last_t0_ns = t0_ns
            return selection
        raise reason

    def _frames_for(self, t0_ns: int) -> list[tuple[FrameBuffer, list[Frame]]]:
        limits = self._limits
        chosen = []
        for buffer in self.cameras.values():
            frames = []
            for age in range(limits.frames - 1, -1, -1):
                nominal_ns = t0_ns - round(age * limits.frame_period_s * NANOSECONDS)
                tolerance_s = limits.max_frame_offset_s if age else limits.max_skew_s
                frames.append(buffer.nearest(nominal_ns, int(tolerance_s * NANOSECONDS)))
            chosen.append((buffer, frames))
        return chosen
