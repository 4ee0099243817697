"""How well a model reasons and plans on recorded samples, through the planner's own cycle; and what it owes to what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from rsd_planner.evaluation.consistency import consistency
from rsd_planner.evaluation.judging import judge_text
from rsd_planner.evaluation.metrics import average_displacement, bootstrap, displacement, final_displacement
from rsd_planner.planner import Planner, PlannerSettings
from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.scene import Scene
from rsd_planner.training.clips import FRAMES
from rsd_planner.training.samples import Recorded
from rsd_planner.vla.model import Alpamayo
from rsd_planner.vla.prompt import Prompter

_BUDGET = 48


ABLATIONS = ("own CoC", "true CoC", "no CoC", "images blanked", "history blanked")
"""What `score` may take away or give."""


def score(
    model: Alpamayo,
    prompter: Prompter,
    recorded: Recorded,
    samples: int = 1,
    ablation: str = "own CoC",
    newest: int = FRAMES,
) -> dict[str, float]:
    """Means over recorded samples, see score_rows. NaN where no sample has a value."""
    rows = score_rows(model, prompter, recorded, samples, ablation, newest=newest)
    return {name: mean for name, (mean, _, _) in with_intervals(rows, recorded).items()}


def score_rows(
    model: Alpamayo,
    prompter: Prompter,
    recorded: Recorded,
    samples: int = 1,
    ablation: str = "own CoC",
    progress: bool = False,
    newest: int = FRAMES,
) -> list[dict[str, float]]:
    """Figures of each recorded sample: greedy reasoning and one trajectory (minADE_K of `samples` with more).

    ablation, one of ABLATIONS, says what the model gets; ValueError for another. newest: pictures of each camera.
    """
    if ablation not in ABLATIONS:
        raise ValueError(f"ablation {ablation!r} is not one of {', '.join(ABLATIONS)}")
    was_training = model.training
    model.eval()
    settings = PlannerSettings(sampling=Sampling(greedy=True), token_budget=_BUDGET, samples=samples)
    planner = Planner(model, prompter, settings)
    indices = tqdm(range(len(recorded)), desc=ablation, unit="sample", disable=not progress, leave=False)
    rows = [_scored(planner, recorded, index, ablation, newest) for index in indices]
    model.train(was_training)
    return rows


def with_intervals(rows: Sequence[dict[str, float]], recorded: Recorded) -> dict[str, tuple[float, float, float]]:
    """Mean and 95 % interval of each figure, by bootstrap over drives: samples of one are not independent."""
    drives: dict[tuple[str, int], list[dict[str, float]]] = {}
    for row, sample in zip(rows, recorded.samples, strict=True):
        drives.setdefault((sample.family, sample.seed), []).append(row)
    return {name: bootstrap([np.array([row[name] for row in drive]) for drive in drives.values()]) for name in rows[0]}


def _scored(planner: Planner, recorded: Recorded, index: int, ablation: str, newest: int) -> dict[str, float]:
    sample = recorded.samples[index]
    told = {"true CoC": sample.text, "no CoC": ""}.get(ablation)
    plan = planner.plan(_without(recorded.scene(index, newest), ablation), told)
    paths: Sequence[NDArray[np.float64]] = [path.xyz[:, :2] for path in (plan.trajectory, *plan.alternatives)]
    distance = displacement(np.stack(paths), sample.future[:, :2])
    found = judge_text(plan.reasoning.text, sample.meaning)
    found["ade_3s"] = float(average_displacement(distance[0], 3.0, 0.1))
    found["ade_6.4s"] = float(average_displacement(distance[0], 6.4, 0.1))
    found["fde_6.4s"] = float(final_displacement(distance[0], 6.4, 0.1))
    if len(paths) > 1:
        found[f"min_ade_{len(paths)}"] = float(average_displacement(distance, 6.4, 0.1).min())
    found["consistent"] = consistency(plan.reasoning.text, plan.v0_mps, plan.trajectory.speed_mps)
    found["tokens"] = float(len(plan.reasoning.tokens))
    return found


def _without(scene: Scene, ablation: str) -> Scene:
    """Grey pictures, or a history that stands at t0 (the speed at t0 stays: the action space needs it)."""
    if ablation == "images blanked":
        cameras = tuple(
            replace(camera, images=tuple(np.full_like(image, 127) for image in camera.images))
            for camera in scene.cameras
        )
        return replace(scene, cameras=cameras)
    if ablation == "history blanked":
        history = scene.history
        still = np.tile(np.eye(3), (len(history.xyz), 1, 1))
        return replace(scene, history=replace(history, xyz=np.zeros_like(history.xyz), rotation=still))
    return scene
