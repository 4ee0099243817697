"""Drives the world with a model at the wheel, without ROS: many drives in little time, and where one goes wrong.

Run by hand: python bench/closed_loop.py --model models/rsd-mini --seeds 2. The model plans twice a second with greedy
reasoning and its plans are followed by the controller; `rsd-planner drive` is the real thing, over DDS at 10 Hz.
"""

from __future__ import annotations

import argparse
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from rsd_planner.control.reference import Reference
from rsd_planner.simulation import expert
from rsd_planner.simulation.cameras import Renderer, Rig
from rsd_planner.simulation.chain_of_causation import meaning
from rsd_planner.simulation.drive import drive, expert_policy
from rsd_planner.simulation.scenarios import FAMILIES, SPLITS, build
from rsd_planner.simulation.verdict import Verdict, judge, table
from rsd_planner.simulation.wording import write
from rsd_planner.simulation.world import World
from rsd_planner.training.clips import FRAMES, HISTORY_POSES, from_pose, text_seed
from rsd_planner.training.wheel import ModelAtTheWheel

SECONDS = 20.0
_wheels: dict[Path, ModelAtTheWheel] = {}


def drive_once(model: Path, family: str, split: str, seed: int, traced: bool) -> tuple[Verdict, list[str]]:
    """One drive from standstill in the scenario to its end; its verdict and, if traced, two lines each half second."""
    if model not in _wheels:
        _wheels[model] = ModelAtTheWheel(model)
    wheel, world = _wheels[model], build(family, split, seed)
    renderer = Renderer(Rig.from_yaml(model / "cameras.yaml"))
    poses: deque[tuple[float, float, float]] = deque(maxlen=HISTORY_POSES)
    pictures: deque[dict[str, NDArray[np.uint8]]] = deque(maxlen=FRAMES)
    lines: list[str] = []

    def watch(world: World) -> None:
        poses.append((world.ego.x_m, world.ego.y_m, world.ego.yaw_rad))
        pictures.append(renderer.render(world))

    def policy(world: World) -> Reference:
        if len(poses) < HISTORY_POSES:
            return expert_policy(world)
        history = np.array(poses)
        seen = {name: [picture[name] for picture in pictures] for name in pictures[-1]}
        plan = wheel(world, from_pose(history, _pose(world)), seen)
        if traced and round(world.time_s * 10) % 5 == 0:
            lines.extend(_trace(world, plan, wheel.said))
        return plan

    try:
        renderer.load(world)
        wheel.begin()
        log = drive(world, SECONDS, policy, watch)
    finally:
        renderer.close()
    return judge(world, log, drive(build(family, split, seed), SECONDS).distance_m), lines


def _trace(world: World, plan: Reference, said: str) -> list[str]:
    ought = expert.plan(world)
    right = write(meaning(world, ought), text_seed(world))
    speeds = ", ".join(f"{plan.speed_mps[10 * at]:.1f}/{ought.speed_mps[10 * at - 1]:.1f}" for at in (1, 3, 6))
    aside = from_pose(np.column_stack([plan.x_m, plan.y_m, plan.yaw_rad])[20:21], _pose(world))[0, 1]
    ought_aside = ought.in_base_link(world)[19, 1]
    state = f"{world.time_s:5.1f} s, {world.ego.speed_mps:4.1f} m/s, {world.ego_place()[1]:+.2f} m aside"
    lines = [
        f"  {state}; plan/expert m/s in 1, 3, 6 s: {speeds}; left in 2 s {aside:+.2f}/{ought_aside:+.2f} m",
        f"    {said}",
    ]
    return lines if right == said else [*lines, f"    expert: {right}"]


def _pose(world: World) -> NDArray[np.float64]:
    return np.array([world.ego.x_m, world.ego.y_m, world.ego.yaw_rad])


def main() -> None:
    """Drives and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(__file__).parents[1] / "models" / "rsd-mini")
    parser.add_argument("--split", default="held-out", choices=SPLITS)
    parser.add_argument("--scenario", action="append", choices=list(FAMILIES), help="repeatable; default: all")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=2, help="drives of each scenario")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--trace", action="store_true", help="each half second of the drives that fail")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    drives = [(family, seed) for seed in seeds for family in options.scenario or FAMILIES]
    verdicts: list[Verdict] = []
    with ProcessPoolExecutor(options.workers) as pool, tqdm(total=len(drives), unit="drive") as bar:
        running = [
            pool.submit(drive_once, options.model, family, options.split, seed, options.trace)
            for family, seed in drives
        ]
        for one in running:
            verdict, lines = one.result()
            verdicts.append(verdict)
            bar.update()
            if lines and not verdict.success:
                bar.write("\n".join([f"{verdict.family} {verdict.seed}: {'; '.join(verdict.failures)}", *lines]))
    print(table(verdicts))


if __name__ == "__main__":
    main()
