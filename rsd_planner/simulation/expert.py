"""The expert driver: privileged, rule-based, comfortable; its 6.4 s plan is the label.

A plan is a function of the world's present state alone. Others are expected to keep their speed; what a driver
could not see (behind a bus, say) is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rsd_planner.simulation.actors import Actor, Idm, Kind
from rsd_planner.simulation.expert_plan import CRUISE, STEP_S, STEPS, Cause, ExpertPlan
from rsd_planner.simulation.outlines import actor_box, crosses
from rsd_planner.simulation.road import LANE_WIDTH_M
from rsd_planner.simulation.world import AMBER_S, LightState, World

_COMFORT_LATERAL_MPS2 = 1.8
_COMFORT_BRAKING_MPS2 = 1.2
_CLEARANCE_M = 0.7
_CORRIDOR_MARGIN_M = 0.35
_STOP_MARGIN_M = 1.0
_CAUTION_MPS = 4.0
_FIRM_BRAKING_MPS2 = 2.5
_STANDS_AT_SIGN_S = 1.0
"""Long enough to be seen in the ego history, the only place where a learner can see that the stop is made."""


@dataclass(frozen=True)
class _Nudge:
    """Going around something: offset d_m (m) held from begin_s_m to end_s_m on the route."""

    name: str
    offset_m: float
    begin_s_m: float
    end_s_m: float


def plan(world: World, aside_m: float = 0.0) -> ExpertPlan:
    """The expert's plan for the world as it is now.

    aside_m: how far left of the lane's middle it keeps where it goes around nothing; not what a good driver does, but
    what brings a car to where the way back must be known.
    """
    return _Planning(world, aside_m).run()


def is_visible(world: World, actor: Actor) -> bool:
    """Whether the straight line from the driver to the actor's middle is free of what is taller than 2 m."""
    eye = (world.ego.x_m + 1.5 * math.cos(world.ego.yaw_rad), world.ego.y_m + 1.5 * math.sin(world.ego.yaw_rad))
    x, y, _ = actor.pose()
    return not any(
        other is not actor and other.kind.size_m[2] > 2.0 and crosses(actor_box(other), eye, (x, y))
        for other in world.actors
    )


class _Planning:
    """One plan in the making."""

    def __init__(self, world: World, aside_m: float) -> None:
        self.world, self.aside_m = world, aside_m
        self.s0, self.d0 = world.ego_place()
        self.front = world.ego_front_m
        self.half_width = world.vehicle.width_m / 2
        self.actors = [actor for actor in world.actors if is_visible(world, actor)]
        self.on_route = [actor for actor in self.actors if actor.road is world.road]
        self.idm = Idm(world.speed_limit_mps)
        self.waits: list[tuple[float, Cause]] = []  # (stop line s, why)
        self.nudge = self._find_nudge()
        self._find_stops()
        self.hidden = self._hidden_crossings()
        ahead = self.s0 + np.arange(0.0, 150.0, 1.0)
        bend = np.sqrt(_COMFORT_LATERAL_MPS2 / np.maximum(np.abs(world.road.curvature(ahead)), 1e-4))
        reach = ahead[None, :] - ahead[:, None]
        allowed = np.sqrt(bend[None, :] ** 2 + 2 * _COMFORT_BRAKING_MPS2 * np.maximum(reach, 0.0))
        self.allowed = np.where(reach >= 0, allowed, np.inf).min(axis=1)

    # What has to be waited for ------------------------------------------------------------------------------------

    def _find_stops(self) -> None:
        world, front = self.world, self.s0 + self.front
        speed = world.ego.speed_mps
        for light in world.lights:
            gap = light.stop_s_m - front
            if gap < 0:
                continue
            state = light.state(world.time_s)
            # Who reaches the line before the light is red goes; the rule stays true to itself as time passes.
            late = gap > speed * (AMBER_S - 0.2 - light.since_s(world.time_s))
            if state is LightState.RED or (state is LightState.AMBER and late):
                self.waits.append((light.stop_s_m, Cause(f"{state.value} light", "light")))
        for sign in world.stop_signs_s_m:
            if sign > front - 0.3 and world.stood_at_sign_s.get(sign, 0.0) < _STANDS_AT_SIGN_S:
                self.waits.append((sign, Cause("stop sign", "stop sign")))
        self._find_cross_traffic(front)

    def _find_cross_traffic(self, front: float) -> None:
        """Yields at the line while somebody on the crossing road would share the middle with us."""
        world = self.world
        line = world.crossroad_s_m - 7.5
        if world.crossroad is None or world.lights or front > line + 1.5:
            return
        speed = max(world.ego.speed_mps, 3.0)
        arrive = max(0.0, line - front) / speed
        leave = arrive + (15.0 + world.vehicle.length_m) / max(speed, 4.0) + 1.0
        for actor in self.actors:
            if actor.road is not world.crossroad or actor.speed_mps < 0.5:
                continue
            middle = actor.road.project(*world.road.pose(world.crossroad_s_m)[:2])[0]
            to_go = actor.direction * (middle - actor.s_m)
            enters = (to_go - 5.0 - actor.length_m / 2) / actor.speed_mps
            leaves = (to_go + 5.0 + actor.length_m / 2) / actor.speed_mps
            if leaves > arrive - 0.5 and enters < leave + 1.0:
                self.waits.append((line, Cause("crossing traffic", actor.name)))

    def _hidden_crossings(self) -> list[tuple[float, str]]:
        """Crossings ahead beside which something tall hides who may step out: (s, what hides)."""
        return [
            (crossing, actor.name)
            for crossing in self.world.crossings_s_m
            for actor in self.on_route
            if actor.kind.size_m[2] > 2.0 and abs(actor.d_m) < 6.0 and 0.0 < crossing - actor.s_m < 12.0
        ]

    def _find_nudge(self) -> _Nudge | None:
        """A way around the nearest thing that stands in the lane, or a wait for those who come the other way."""
        blockers = [
            actor
            for actor in self.on_route
            if actor.stands_for_good
            and self.s0 - 4.0 < actor.s_m + actor.length_m / 2
            and actor.s_m - self.s0 < 90.0
            and abs(actor.d_m) < self.half_width + actor.width_m / 2 + 0.4
        ]
        if not blockers:
            return None
        actor = min(blockers, key=lambda blocker: blocker.s_m)
        side = 1.0 if actor.d_m <= 0.3 else -1.0
        offset = actor.d_m + side * (actor.width_m / 2 + self.half_width + _CLEARANCE_M)
        begin = actor.s_m - actor.length_m / 2 - self.front - 2.0
        end = actor.s_m + actor.length_m / 2 + self.world.vehicle.rear_overhang_m + 2.0
        if abs(offset) + self.half_width > LANE_WIDTH_M / 2 + 0.15:
            committed = abs(self.d0 - offset) < 1.2 or self.s0 > begin
            other = None if committed else self._oncoming_in_the_way(begin, end, offset)
            if other is not None:
                # Far enough back that the way around is still drivable from a standstill.
                line = actor.s_m - actor.length_m / 2 - 9.0
                self.waits.append((line, Cause("oncoming traffic", other.name)))
                return None
        return _Nudge(actor.name, offset, begin, end)

    def _oncoming_in_the_way(self, begin: float, end: float, offset: float) -> Actor | None:
        speed = max(self.world.ego.speed_mps, 4.0)
        passing = max(0.0, end + 8.0 - self.s0) / min(speed, 8.0) + 2.0
        for actor in self.on_route:
            if actor.direction > 0 or actor.speed_mps < 0.5 or actor.s_m < self.s0 - 3.0:
                continue
            if abs(actor.d_m - offset) > self.half_width + actor.width_m / 2 + 0.8:
                continue
            if actor.s_m - actor.speed_mps * passing < end + 10.0 and actor.s_m > begin - 5.0:
                return actor
        return None

    # The plan itself ----------------------------------------------------------------------------------------------

    def lateral(self, s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Offset from the lane's middle along the route, smooth, starting where the car is."""
        speed = max(self.world.ego.speed_mps, 3.0)
        ramp = min(max(14.0, 2.6 * speed), 40.0)
        wanted = np.full_like(s, self.aside_m)
        if self.nudge is not None:
            rise = np.clip((s - (self.nudge.begin_s_m - ramp)) / ramp, 0.0, 1.0)
            fall = np.clip((self.nudge.end_s_m + ramp - s) / ramp, 0.0, 1.0)
            wanted = self.nudge.offset_m * _smooth(rise) * _smooth(fall)
        start = wanted[0] if len(s) else 0.0
        u = np.clip((s - self.s0) / max(10.0, 2.0 * speed), 0.0, 1.0)
        return wanted + (self.d0 - start) * (1.0 - _smooth(u))

    def run(self) -> ExpertPlan:
        """Rolls the car out under the tightest of all limits at each moment."""
        world = self.world
        grid = self.s0 + np.arange(0.0, 160.0, 0.5)
        offsets = self.lateral(grid)
        s, v, a = self.s0, world.ego.speed_mps, min(max(world.ego.acceleration_mps2, -8.0), 3.0)
        rows = []
        strongest, cause, later = -0.25, CRUISE, CRUISE
        for k in range(STEPS):
            at_s = k * STEP_S
            wanted, why = self._acceleration(at_s, s, v, grid, offsets)
            cruise = self._cruise(s, v)[0]
            if wanted - cruise < strongest:
                strongest, later = wanted - cruise, why
                cause = why if at_s < 3.0 else cause
            jerk_down = 3.0 if wanted > -3.0 else 12.0
            a += min(max(wanted - a, -jerk_down * STEP_S), 2.5 * STEP_S)
            if v + a * STEP_S < 0:
                a = -v / STEP_S
            s += v * STEP_S + a * STEP_S**2 / 2
            v = max(0.0, v + a * STEP_S)
            rows.append((s, v, a))
        if cause == CRUISE and (self.allowed[:40] < 0.97 * world.speed_limit_mps).any():
            cause = Cause("curve", "curve")
        s_m, speed, acceleration = np.array(rows).T
        d_m = np.interp(s_m, grid, offsets)
        slope = np.interp(s_m, grid, np.gradient(offsets, grid))
        poses = np.array([world.road.pose(at, off) for at, off in zip(s_m, d_m, strict=True)])
        yaw = poses[:, 2] + np.arctan(slope)
        bend = world.road.curvature(grid) + np.gradient(np.gradient(offsets, grid), grid)
        return ExpertPlan(
            speed_now_mps=world.ego.speed_mps,
            s_m=s_m,
            d_m=d_m,
            x_m=poses[:, 0],
            y_m=poses[:, 1],
            yaw_rad=yaw,
            speed_mps=speed,
            acceleration_mps2=acceleration,
            curvature_radpm=np.interp(s_m, grid, bend),
            cause=cause,
            later_cause=later,
            nudge_for=self.nudge.name if self.nudge else None,
        )

    def _cruise(self, s: float, v: float) -> tuple[float, Cause]:
        index = min(max(int(s - self.s0), 0), len(self.allowed) - 1)
        limit = self.world.speed_limit_mps
        if self.nudge is not None and self.nudge.begin_s_m - 15.0 < s < self.nudge.end_s_m:
            limit = min(limit, 8.0)
        return min(max(1.2 * (min(limit, self.allowed[index]) - v), -2.5), 1.6), CRUISE

    def _acceleration(
        self, at_s: float, s: float, v: float, grid: NDArray[np.float64], offsets: NDArray[np.float64]
    ) -> tuple[float, Cause]:
        """The tightest limit at a moment of the roll-out, and its cause."""
        tightest = self._cruise(s, v)
        for line, cause in self.waits:
            if line - s - self.front > -_STOP_MARGIN_M:
                tightest = min(tightest, (self._stop(line - s - self.front, v), cause), key=lambda pair: pair[0])
        for crossing, hider in self.hidden:
            room = crossing - s - self.front
            if room > -1.0:
                slow = math.sqrt(_CAUTION_MPS**2 + 2 * _COMFORT_BRAKING_MPS2 * max(room - 6.0, 0.0))
                limit = min(max(1.2 * (slow - v), -2.5), 1.6)
                if limit < tightest[0]:
                    tightest = (limit, Cause("hidden crossing", hider))
        for actor in self.on_route:
            limit = self._behind(actor, at_s, s, v, grid, offsets)
            if limit < tightest[0]:
                tightest = (limit, Cause(actor.kind.value, actor.name))
        return tightest

    @staticmethod
    def _stop(gap: float, v: float) -> float:
        """Acceleration that ends at standstill a metre before a line."""
        room = gap - _STOP_MARGIN_M
        if room < 0.3:
            return -2.0 if v > 0.05 else 0.0
        needed = v**2 / (2 * room)
        # Coast until comfortable braking is due, then brake as it is due; creep the last bit.
        if needed > 1.1:
            return -needed
        return min(1.6, 1.2 * (math.sqrt(2 * 1.0 * room) - v))

    def _behind(
        self, actor: Actor, at_s: float, s: float, v: float, grid: NDArray[np.float64], offsets: NDArray[np.float64]
    ) -> float:
        """Limit that one actor on the route sets at a moment, +inf if none."""
        if actor.kind is Kind.PEDESTRIAN:
            return self._pedestrian(actor, s, v, grid, offsets)
        place = actor.s_m + actor.direction * actor.speed_mps * at_s
        gap = place - actor.length_m / 2 - s - self.front
        if gap < -actor.length_m - 2.0 or gap > 120.0:
            return math.inf
        reach = self.half_width + actor.width_m / 2 + _CORRIDOR_MARGIN_M
        here = float(np.interp(place - self.front, grid, offsets))
        soon = actor.d_m
        if actor.drift_mps:  # where it will be two seconds on
            change = actor.drift_mps * (at_s + 2.0)
            left = actor.drift_to_m - actor.d_m
            soon = actor.d_m + (change if abs(change) < abs(left) else left)
        low, high = min(actor.d_m, soon) - reach, max(actor.d_m, soon) + reach
        if not low < here < high or (actor.direction < 0 and actor.speed_mps > 0.5):
            return math.inf
        if actor.speed_mps < 0.1:
            return self._stop(gap - 3.0, v)
        following = self.idm.acceleration(v, max(gap, 0.2), v - actor.speed_mps)
        # IDM answers a gap that is suddenly short by braking to its wanted gap at once; what is needed is less.
        return max(following, -max(_FIRM_BRAKING_MPS2, self._needed_braking(actor, gap, v) + 1.0))

    @staticmethod
    def _needed_braking(actor: Actor, gap: float, v: float) -> float:
        """Constant braking (m/s^2) that just keeps off somebody ahead who goes on as now, standing ones included."""
        room = max(gap - 3.0, 0.5)
        closing = max(v - actor.speed_mps, 0.0)
        needed = closing**2 / (2 * room)
        if actor.acceleration_mps2 < -1.0:
            stops_in = actor.speed_mps**2 / (-2 * actor.acceleration_mps2)
            needed = max(needed, v**2 / (2 * (room + stops_in)))
        return needed

    def _pedestrian(
        self, actor: Actor, s: float, v: float, grid: NDArray[np.float64], offsets: NDArray[np.float64]
    ) -> float:
        """Stops for who walks in our way or is about to."""
        gap = actor.s_m - 0.5 - s - self.front
        if gap < -1.0:
            return math.inf
        here = float(np.interp(actor.s_m - self.front, grid, offsets))
        reach = self.half_width + 0.9
        side = actor.d_m - here
        comes = actor.drift_mps * side < 0 and (actor.drift_to_m - here) * side < reach * abs(side)
        if abs(side) > reach and not comes:
            return math.inf
        return self._stop(gap - 2.0, v)


def _smooth(u: NDArray[np.float64]) -> NDArray[np.float64]:
    """0 to 1 with two vanishing derivatives at both ends."""
    return u**3 * (10.0 - 15.0 * u + 6.0 * u**2)
