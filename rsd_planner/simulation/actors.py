"""What else is on the road, and how it behaves. Every actor moves along a road at a place (s, d)."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from rsd_planner.simulation.road import Road


class Kind(enum.Enum):
    """Classes that a person tells apart at a glance, with length, width, height (m)."""

    CAR = "car"
    TRUCK = "truck"
    BUS = "bus"
    PEDESTRIAN = "pedestrian"
    CYCLIST = "cyclist"
    CONES = "cones"
    BROKEN_DOWN_VEHICLE = "broken-down vehicle"

    @property
    def size_m(self) -> tuple[float, float, float]:
        """Length, width and height."""
        return _SIZES[self]

    @property
    def is_static(self) -> bool:
        """True for what never moves by itself."""
        return self in (Kind.CONES, Kind.BROKEN_DOWN_VEHICLE)


_SIZES = {
    Kind.CAR: (4.5, 1.85, 1.5),
    Kind.TRUCK: (8.0, 2.4, 3.2),
    Kind.BUS: (11.0, 2.5, 3.1),
    Kind.PEDESTRIAN: (0.5, 0.6, 1.75),
    Kind.CYCLIST: (1.8, 0.6, 1.75),
    Kind.CONES: (2.5, 1.2, 0.75),
    Kind.BROKEN_DOWN_VEHICLE: (4.5, 1.85, 1.5),
}
_BRAKES_BELOW_MPS2 = -0.4
COLOURS = ("red", "blue", "white", "black", "yellow", "green", "grey", "orange")


@dataclass(frozen=True)
class Idm:
    """Intelligent driver model (Treiber 2000): SI units."""

    desired_speed_mps: float
    headway_s: float = 1.5
    min_gap_m: float = 2.5
    acceleration_mps2: float = 1.6
    braking_mps2: float = 2.0

    def acceleration(self, speed_mps: float, gap_m: float = math.inf, closing_mps: float = 0.0) -> float:
        """Acceleration behind a leader at bumper distance gap_m that is approached at closing_mps."""
        free = 1.0 - (max(speed_mps, 0.0) / max(self.desired_speed_mps, 0.1)) ** 4
        if not math.isfinite(gap_m):
            return self.acceleration_mps2 * max(free, -2.0)
        dynamic = speed_mps * closing_mps / (2.0 * math.sqrt(self.acceleration_mps2 * self.braking_mps2))
        wanted = self.min_gap_m + max(0.0, speed_mps * self.headway_s + dynamic)
        return self.acceleration_mps2 * (max(free, -2.0) - (wanted / max(gap_m, 0.1)) ** 2)


@dataclass(frozen=True)
class Action:
    """Something that an actor begins to do once its trigger is met.

    The trigger is the ego car's distance (m) to the actor along the ego's road falling below ego_within_m, or
    after_s seconds. speed_mps is approached with rate_mps2; drift_mps is a sideways speed that lasts until the
    actor's d has reached drift_to_m.
    """

    after_s: float = math.inf
    ego_within_m: float = -math.inf
    speed_mps: float | None = None
    rate_mps2: float = 2.0
    drift_mps: float = 0.0
    drift_to_m: float = 0.0


@dataclass
class Actor:
    """An actor's appearance and motion. direction +1 drives with the road's s, -1 against it.

    follows: keeps its distance to what is ahead in its lane (IDM), the ego car included.
    """

    name: str
    kind: Kind
    colour: str
    road: Road
    s_m: float
    d_m: float
    speed_mps: float = 0.0
    direction: int = 1
    follows: bool = False
    actions: tuple[Action, ...] = ()
    acceleration_mps2: float = 0.0
    drift_mps: float = 0.0
    target_speed_mps: float = field(default=math.nan)
    rate_mps2: float = 2.0
    drift_to_m: float = 0.0
    actions_begun: int = 0

    def __post_init__(self) -> None:
        if math.isnan(self.target_speed_mps):
            self.target_speed_mps = self.speed_mps

    @property
    def stands_for_good(self) -> bool:
        """True for an obstacle or a parked vehicle, not for somebody who waits."""
        moves = self.actions_begun < len(self.actions) or self.target_speed_mps > 0 or self.kind is Kind.PEDESTRIAN
        return self.speed_mps < 0.1 and not moves

    @property
    def shows_brake_lights(self) -> bool:
        """True for a vehicle that brakes, or waits with its foot on the brake."""
        waits = self.speed_mps < 0.1 and not self.stands_for_good
        has_lights = self.kind in (Kind.CAR, Kind.TRUCK, Kind.BUS)
        return has_lights and (waits or self.acceleration_mps2 < _BRAKES_BELOW_MPS2)

    @property
    def length_m(self) -> float:
        """Length along its heading."""
        return self.kind.size_m[0]

    @property
    def width_m(self) -> float:
        """Width across its heading."""
        return self.kind.size_m[1]

    def pose(self) -> tuple[float, float, float]:
        """x, y (m) of its middle and heading (rad). A walker faces where it walks."""
        x, y, yaw = self.road.pose(self.s_m, self.d_m)
        if self.kind is Kind.PEDESTRIAN and self.drift_mps:
            return x, y, yaw + math.copysign(math.pi / 2, self.drift_mps)
        return x, y, yaw + (math.pi if self.direction < 0 else 0.0)

    def step(self, time_s: float, ego_distance_m: float, leader: tuple[float, float] | None, step_s: float) -> None:
        """Moves on. leader is (bumper distance m, speed m/s) of what is ahead in its lane, if anything."""
        if self.actions_begun < len(self.actions):
            action = self.actions[self.actions_begun]
            if time_s >= action.after_s or ego_distance_m <= action.ego_within_m:
                self.actions_begun += 1
                if action.speed_mps is not None:
                    self.target_speed_mps, self.rate_mps2 = action.speed_mps, action.rate_mps2
                if action.drift_mps:
                    self.drift_mps, self.drift_to_m = action.drift_mps, action.drift_to_m
        wanted = (self.target_speed_mps - self.speed_mps) / step_s
        self.acceleration_mps2 = min(max(wanted, -self.rate_mps2), self.rate_mps2)
        if self.follows and leader is not None:
            gap, speed = leader
            model = Idm(max(self.target_speed_mps, 0.5))
            following = model.acceleration(self.speed_mps, gap, self.speed_mps - speed)
            self.acceleration_mps2 = max(-8.0, min(self.acceleration_mps2, following))
        before = self.speed_mps
        self.speed_mps = max(0.0, before + self.acceleration_mps2 * step_s)
        self.s_m += self.direction * (before + self.speed_mps) / 2 * step_s
        if self.drift_mps:
            left = self.drift_to_m - self.d_m
            move = self.drift_mps * step_s
            if abs(move) >= abs(left):
                self.d_m, self.drift_mps = self.drift_to_m, 0.0
            else:
                self.d_m += move
