"""The last moments of each input: odometry to interpolate in time, frames to find by stamp.

Stamps are integer nanoseconds of whatever clock the messages carry. Nothing here is thread-safe.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation, Slerp

from rsd_planner.scene import EgoHistory

NANOSECONDS = 1_000_000_000
_RESTART_AFTER = 10


class NotReady(Exception):
    """No scene can be made yet; the message says what is missing."""


class NothingNew(NotReady):
    """All that can be planned on was planned on already."""


@dataclass
class StampFilter:
    """Lets stamps through in rising order and counts the others, 0 (no stamp) among them.

    One wrong stamp far in the future would block a stream for ever, a bag that starts again would
    too: after ten refused stamps that rise among themselves the stream starts anew from them.
    """

    newest_ns: int | None = None
    received: int = 0
    duplicates: int = 0
    backward: int = 0
    unstamped: int = 0
    missing: int = 0
    """Messages that the steps between stamps say were lost on the way or never sent."""
    restarts: int = 0
    restarted: bool = False
    """True if the stamp accepted last began the stream anew."""
    _refused: list[int] = field(default_factory=list)
    _steps_ns: deque[int] = field(default_factory=lambda: deque(maxlen=30))

    @property
    def refused(self) -> int:
        """Messages that were not let through."""
        return self.duplicates + self.backward + self.unstamped

    @property
    def period_ns(self) -> int:
        """Median step between the last stamps; 0 before there are two."""
        return sorted(self._steps_ns)[len(self._steps_ns) // 2] if self._steps_ns else 0

    def accept(self, stamp_ns: int) -> bool:
        """True if the message with this stamp is the newest (or begins the stream anew)."""
        self.restarted = False
        self.received += 1
        if stamp_ns <= 0:  # a driver that sets no stamp: nothing can be placed in time by it
            self.unstamped += 1
            return False
        if self.newest_ns is None or stamp_ns > self.newest_ns:
            if self.newest_ns is not None:
                self._count_step(stamp_ns - self.newest_ns)
            self._refused.clear()
            self.newest_ns = stamp_ns
            return True
        if stamp_ns == self.newest_ns:
            self.duplicates += 1
            return False
        self.backward += 1
        if self._refused and stamp_ns <= self._refused[-1]:
            self._refused.clear()
        self._refused.append(stamp_ns)
        if len(self._refused) < _RESTART_AFTER:
            return False
        self._refused.clear()
        self.restarts += 1
        self.restarted = True
        self.newest_ns = stamp_ns
        return True

    def forget(self) -> None:
        """Accepts any stamp next, as after a jump of the clock."""
        self.newest_ns = None
        self._refused.clear()

    def _count_step(self, step_ns: int) -> None:
        if len(self._steps_ns) >= 5 and step_ns > 1.5 * self.period_ns:
            self.missing += round(step_ns / self.period_ns) - 1
        self._steps_ns.append(step_ns)


@dataclass(frozen=True)
class OdometrySample:
    """One odometry message: pose of base_link in the odometry frame, twist in base_link.

    position [3] m, quaternion [4] (x, y, z, w) normalised, speed_mps forward, yaw_rate_radps.
    """

    stamp_ns: int
    position: tuple[float, float, float]
    quaternion: tuple[float, float, float, float]
    speed_mps: float
    yaw_rate_radps: float

    def __post_init__(self) -> None:
        if not np.isfinite(self.position).all():
            raise ValueError(f"position {self.position} is not finite")
        norm = float(np.linalg.norm(self.quaternion))
        if not np.isfinite(norm) or not 0.9 < norm < 1.1:
            raise ValueError(f"quaternion {self.quaternion} has norm {norm:.3g}, expected 1")


class OdometryBuffer:
    """The last seconds of odometry."""

    def __init__(self, horizon_s: float = 5.0, max_gap_s: float = 0.25) -> None:
        self.order = StampFilter()
        self.invalid = 0
        """Messages whose content could not be used."""
        self.frame = "odom"
        self.base_frame = "base_link"
        self._horizon_ns = int(horizon_s * NANOSECONDS)
        self._max_gap_ns = int(max_gap_s * NANOSECONDS)
        self._samples: deque[OdometrySample] = deque()

    def add(self, sample: OdometrySample) -> bool:
        """Keeps a sample; False if its stamp was not the newest."""
        if not self.order.accept(sample.stamp_ns):
            return False
        if self.order.restarted:
            self._samples.clear()
        self._samples.append(sample)
        while self._samples[0].stamp_ns < sample.stamp_ns - self._horizon_ns:
            self._samples.popleft()
        return True

    def clear(self) -> None:
        """Forgets samples and order, as after a jump of the clock."""
        self._samples.clear()
        self.order.forget()

    @property
    def newest_ns(self) -> int | None:
        """Stamp of the newest sample."""
        return self._samples[-1].stamp_ns if self._samples else None

    def history(self, t0_ns: int, poses: int, dt_s: float) -> EgoHistory:
        """Poses at t0 - (poses - 1) dt_s .. t0, interpolated (positions linearly, attitude by SLERP).

        Relative poses are formed in float64, so an origin kilometres away costs no precision.
        Raises NotReady where the samples do not cover the span or leave a gap in it.
        """
        step_ns = round(dt_s * NANOSECONDS)
        first_ns = t0_ns - (poses - 1) * step_ns
        stamps = [sample.stamp_ns for sample in self._samples]
        if not stamps or stamps[-1] < t0_ns:
            raise NotReady("odometry has not reached the newest camera frames")
        if stamps[0] > first_ns:
            covered = (t0_ns - stamps[0]) / NANOSECONDS
            raise NotReady(f"odometry covers {max(covered, 0.0):.2f} s of the {(poses - 1) * dt_s:.1f} s before t0")
        low, high = bisect.bisect_right(stamps, first_ns) - 1, bisect.bisect_left(stamps, t0_ns)
        used = list(self._samples)[low : high + 1]
        gap_ns = max((b.stamp_ns - a.stamp_ns for a, b in itertools.pairwise(used)), default=0)
        if gap_ns > self._max_gap_ns:
            raise NotReady(f"odometry has a gap of {gap_ns / NANOSECONDS:.2f} s")
        return self._interpolate(used, t0_ns + step_ns * np.arange(1 - poses, 1), dt_s)

    def _interpolate(self, used: Sequence[OdometrySample], wanted_ns: NDArray[np.int64], dt_s: float) -> EgoHistory:
        if len(used) == 1:
            used = [used[0], used[0]]
        # Seconds relative to t0: a double holds no nanoseconds of the epoch.
        time = np.array([sample.stamp_ns - int(wanted_ns[-1]) for sample in used]) / NANOSECONDS
        if time[0] == time[-1]:
            time = time + np.array([0.0, 1e-9])
        wanted = np.clip((wanted_ns - wanted_ns[-1]) / NANOSECONDS, time[0], time[-1])
        position = np.array([sample.position for sample in used])
        xyz = np.stack([np.interp(wanted, time, position[:, axis]) for axis in range(3)], axis=1)
        attitude = Slerp(time, Rotation.from_quat([sample.quaternion for sample in used]))(wanted)
        at_t0 = attitude[-1]
        return EgoHistory(
            xyz=at_t0.inv().apply(xyz - xyz[-1]),
            rotation=(at_t0.inv() * attitude).as_matrix(),
            dt_s=dt_s,
            speed_mps=float(np.interp(wanted[-1], time, [sample.speed_mps for sample in used])),
            yaw_rate_radps=float(np.interp(wanted[-1], time, [sample.yaw_rate_radps for sample in used])),
            position_in_odometry=xyz[-1],
            quaternion_in_odometry=at_t0.as_quat(),
            odometry_frame=self.frame,
            base_frame=self.base_frame,
        )


class Frame:
    """A camera frame that is decoded when it is first needed, and only once."""

    def __init__(self, stamp_ns: int, decode: Callable[[], NDArray[np.uint8]]) -> None:
        self.stamp_ns = stamp_ns
        self._decode: Callable[[], NDArray[np.uint8]] | None = decode
        self._image: NDArray[np.uint8] | None = None

    def image(self) -> NDArray[np.uint8]:
        """RGB uint8 [H, W, 3]. Raises what decode raises."""
        if self._image is None:
            assert self._decode is not None
            self._image = self._decode()
            self._decode = None  # lets go of the message
        return self._image


@dataclass(frozen=True)
class Camera:
    """A camera's name in topics and its number in the public model."""

    name: str
    index: int


class FrameBuffer:
    """The last frames of one camera."""

    def __init__(self, camera: Camera, horizon_s: float) -> None:
        self.camera = camera
        self.order = StampFilter()
        self.invalid = 0
        """Frames whose picture could not be decoded."""
        self._horizon_ns = int(horizon_s * NANOSECONDS)
        self._frames: deque[Frame] = deque()

    def add(self, frame: Frame) -> bool:
        """Keeps a frame; False if its stamp was not the newest."""
        if not self.order.accept(frame.stamp_ns):
            return False
        if self.order.restarted:
            self._frames.clear()
        self._frames.append(frame)
        while self._frames[0].stamp_ns < frame.stamp_ns - self._horizon_ns:
            self._frames.popleft()
        return True

    def remove(self, frame: Frame) -> None:
        """Drops a frame that turned out undecodable."""
        self.invalid += 1
        self._frames.remove(frame)

    def clear(self) -> None:
        """Forgets frames and order, as after a jump of the clock."""
        self._frames.clear()
        self.order.forget()

    @property
    def stamps_ns(self) -> list[int]:
        """Stamps of the frames held, rising."""
        return [frame.stamp_ns for frame in self._frames]

    def nearest(self, stamp_ns: int, tolerance_ns: int) -> Frame:
        """The frame whose stamp is nearest. Raises NotReady if none is within the tolerance."""
        best = min(self._frames, key=lambda frame: abs(frame.stamp_ns - stamp_ns), default=None)
        if best is None:
            raise NotReady(f"camera {self.camera.name}: no frame yet")
        off_ns = best.stamp_ns - stamp_ns
        if abs(off_ns) > tolerance_ns:
            raise NotReady(f"camera {self.camera.name}: the nearest frame is {off_ns / 1e9:+.3f} s off")
        return best
