"""The world's state, its physics in 10 ms steps, and the rules of the road."""

from __future__ import annotations

import copy
import enum
import math
from dataclasses import dataclass, field, replace

from rsd_planner.control.vehicle import Command, Vehicle, VehicleState, advance
from rsd_planner.simulation.actors import Actor
from rsd_planner.simulation.outlines import Box, actor_box, overlap
from rsd_planner.simulation.road import LANE_WIDTH_M, Road

STEP_S = 0.01
SLOW_ZONE_MPS = 8.3
"""Limit of a 30 km/h zone, whose road is surfaced in red."""
AMBER_S = 3.0
"""How long a light is amber, as every driver knows."""


class LightState(enum.Enum):
    """What a traffic light shows."""

    GREEN = "green"
    AMBER = "amber"
    RED = "red"


@dataclass(frozen=True)
class TrafficLight:
    """A light for the ego's direction; it changes at rising times (s): (from, state)."""

    stop_s_m: float
    phases: tuple[tuple[float, LightState], ...]

    def state(self, time_s: float) -> LightState:
        """What it shows."""
        return self._phase(time_s)[1]

    def since_s(self, time_s: float) -> float:
        """Seconds for which it has shown that."""
        return time_s - self._phase(time_s)[0]

    def _phase(self, time_s: float) -> tuple[float, LightState]:
        return max((phase for phase in self.phases if phase[0] <= time_s), key=lambda phase: phase[0])


@dataclass(frozen=True)
class Surroundings:
    """Looks: time of day, fog and the seed of scenery that has no influence on driving."""

    light: str = "day"
    """day, dusk or fog."""
    scenery_seed: int = 0
    density: float = 1.0


@dataclass
class World:
    """Everything that is true. Places are on `road`, the ego's route."""

    road: Road
    ego: VehicleState
    vehicle: Vehicle = field(default_factory=Vehicle)
    actors: list[Actor] = field(default_factory=list)
    lights: list[TrafficLight] = field(default_factory=list)
    stop_signs_s_m: list[float] = field(default_factory=list)
    crossings_s_m: list[float] = field(default_factory=list)
    crossroad: Road | None = None
    crossroad_s_m: float = 0.0
    """Where the crossing road's middle lies on the route."""
    speed_limit_mps: float = 13.9
    surroundings: Surroundings = field(default_factory=Surroundings)
    time_s: float = 0.0
    stood_at_sign_s: dict[float, float] = field(default_factory=dict)
    """Seconds stood before each stop sign where the car has stood."""
    violations: list[str] = field(default_factory=list)
    """What went wrong so far, each kind once, in order."""
    scenario: tuple[str, str, int] | None = None
    """Family, split and seed that it was drawn from."""

    def copy(self) -> World:
        """An independent copy; roads are shared, they never change."""
        return copy.deepcopy(self, {id(road): road for road in (self.road, self.crossroad) if road is not None})

    def without(self, name: str) -> World:
        """A copy without one cause: an actor by its name, `stop sign`, or `light` (which is green then)."""
        other = self.copy()
        other.actors = [actor for actor in other.actors if actor.name != name]
        if name == "light":
            other.lights = [replace(light, phases=((0.0, LightState.GREEN),)) for light in self.lights]
        if name == "stop sign":
            other.stop_signs_s_m = []
        return other

    def ego_place(self) -> tuple[float, float]:
        """(s, d) of base_link."""
        return self.road.project(self.ego.x_m, self.ego.y_m)

    @property
    def ego_front_m(self) -> float:
        """Distance from base_link to the front bumper."""
        return self.vehicle.length_m - self.vehicle.rear_overhang_m

    def step(self, command: Command) -> None:
        """One physics step: actors, ego, rules."""
        s, d = self.ego_place()
        for actor in self.actors:
            distance = (self.road.project(*actor.pose()[:2])[0] if actor.road is not self.road else actor.s_m) - s
            actor.step(self.time_s, distance, self._leader_of(actor, s, d) if actor.follows else None, STEP_S)
        self.ego = advance(self.vehicle, self.ego, command, STEP_S)
        self.time_s += STEP_S
        self._judge(s)

    def _leader_of(self, actor: Actor, ego_s: float, ego_d: float) -> tuple[float, float] | None:
        """Bumper distance and speed of the nearest thing ahead in the actor's lane."""
        found: tuple[float, float] | None = None
        others = [(other.s_m, other.d_m, other.length_m, other.speed_mps * other.direction) for other in self.actors
                  if other is not actor and other.road is actor.road]  # fmt: skip
        if actor.road is self.road:
            middle = ego_s + self.ego_front_m - self.vehicle.length_m / 2
            others.append((middle, ego_d, self.vehicle.length_m, self.ego.speed_mps))
        for s, d, length, speed in others:
            gap = actor.direction * (s - actor.s_m) - (length + actor.length_m) / 2
            if abs(d - actor.d_m) < 1.8 and gap > -1.0 and (found is None or gap < found[0]):
                found = (gap, speed * actor.direction)
        return found

    def _judge(self, s_before: float) -> None:
        s, d = self.ego_place()
        front_before, front = s_before + self.ego_front_m, s + self.ego_front_m
        for actor in self.actors:
            if overlap(self.ego_box(), actor_box(actor)):
                self._note(f"collision with {actor.name}")
        for light in self.lights:
            if front_before <= light.stop_s_m < front and light.state(self.time_s) is LightState.RED:
                self._note("ran a red light")
        for sign in self.stop_signs_s_m:
            if self.ego.speed_mps < 0.2 and -6.0 < front - sign <= 0.3:
                self.stood_at_sign_s[sign] = self.stood_at_sign_s.get(sign, 0.0) + STEP_S
            if front_before <= sign < front and sign not in self.stood_at_sign_s:
                self._note("ran a stop sign")
        if self.ego.speed_mps > 1.1 * self.speed_limit_mps:
            self._note("speeding")
        half = self.vehicle.width_m / 2
        lanes = [lane.offset_m for lane in self.road.lanes]
        if d - half < min(lanes) - LANE_WIDTH_M / 2 - 0.3 or d + half > max(lanes) + LANE_WIDTH_M / 2:
            self._note("left the road")

    def _note(self, what: str) -> None:
        if what not in self.violations:
            self.violations.append(what)

    def ego_box(self) -> Box:
        """The ego's outline on the ground."""
        ahead = self.ego_front_m - self.vehicle.length_m / 2
        x = self.ego.x_m + ahead * math.cos(self.ego.yaw_rad)
        y = self.ego.y_m + ahead * math.sin(self.ego.yaw_rad)
        return Box(x, y, self.ego.yaw_rad, self.vehicle.length_m, self.vehicle.width_m)
