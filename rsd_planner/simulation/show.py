"""What a person sees of the simulation: pictures, a video, a table."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from rsd_planner.simulation import expert
from rsd_planner.simulation.cameras import Renderer, Rig
from rsd_planner.simulation.drive import drive
from rsd_planner.simulation.scenarios import build
from rsd_planner.simulation.verdict import Verdict, judge
from rsd_planner.simulation.world import World

_PICTURE_EVERY_S = 2.0


def mosaic(rig: Rig, pictures: Mapping[str, NDArray[np.uint8]], lines: list[str]) -> NDArray[np.uint8]:
    """All cameras in two rows with lines of text above: RGB uint8 [H, W, 3]."""
    tiles = [pictures[camera.name] for camera in rig.cameras]
    if len(tiles) % 2:
        tiles.append(np.zeros_like(tiles[0]))
    half = len(tiles) // 2
    body = np.concatenate([np.concatenate(tiles[:half], axis=1), np.concatenate(tiles[half:], axis=1)])
    head = np.zeros((20 * len(lines) + 6, body.shape[1], 3), dtype=np.uint8)
    for row, text in enumerate(lines):
        cv2.putText(head, text, (6, 20 * row + 18), cv2.FONT_HERSHEY_SIMPLEX, 0.45, (255, 255, 255), 1, cv2.LINE_AA)
    return np.concatenate([head, body])


def render_scenario(family: str, split: str, seed: int, rig: Rig, out: Path, seconds: float) -> list[Path]:
    """Lets the expert drive a scenario; writes a video at 10 Hz and a picture every two seconds.

    The files appear under their names only when they are complete.
    """
    world = build(family, split, seed)
    renderer = Renderer(rig)
    renderer.load(world)
    out.mkdir(parents=True, exist_ok=True)
    stem = f"{family.replace(' ', '-')}_{split}_{seed}"
    video, partial = out / f"{stem}.mp4", out / f"{stem}.partial.mp4"
    files: list[Path] = []
    writer: cv2.VideoWriter | None = None

    def watch(world: World) -> None:
        nonlocal writer
        cause = expert.plan(world).cause
        text = f"{family}, {split} {seed}   t {world.time_s:4.1f} s   {world.ego.speed_mps:4.1f} m/s   {cause.kind}"
        picture = mosaic(rig, renderer.render(world), [text])
        if writer is None:
            size = (picture.shape[1], picture.shape[0])
            writer = cv2.VideoWriter(str(partial), cv2.VideoWriter.fourcc(*"mp4v"), 10.0, size)
        writer.write(cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
        if round(world.time_s * 10) % round(_PICTURE_EVERY_S * 10) == 0:
            path = out / f"{stem}_{world.time_s:04.1f}s.png"
            cv2.imwrite(str(path), cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
            files.append(path)

    try:
        drive(world, seconds, watch=watch)
    finally:
        renderer.close()
        if writer is not None:
            writer.release()
    partial.rename(video)
    return [video, *files]


def judge_expert(families: list[str], split: str, seeds: range, seconds: float, workers: int) -> Iterator[Verdict]:
    """Drives scenarios in parallel processes and yields their verdicts, in order, with a progress bar."""
    jobs = [(family, split, seed, seconds) for family in families for seed in seeds]
    # One thread a process: the processes are the parallelism.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(workers) as pool:
        yield from tqdm(pool.map(_judge, jobs), total=len(jobs), unit="drive")


def _judge(job: tuple[str, str, int, float]) -> Verdict:
    family, split, seed, seconds = job
    world = build(family, split, seed)
    log = drive(world, seconds)
    return judge(world, log, expert_distance_m=log.distance_m)
