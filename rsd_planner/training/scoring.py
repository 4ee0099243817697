"""How well a model reasons and plans on recorded samples, through the planner's own cycle; and what it owes to what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rsd_planner.evaluation.consistency import consistency
from rsd_planner.evaluation.judging import judge_text
from rsd_planner.evaluation.metrics import average_displacement, displacement, final_displacement
from rsd_planner.planner import Planner, PlannerSettings
from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.training.samples import Recorded
from rsd_planner.vla.model import Alpamayo
from rsd_planner.vla.prompt import Prompter

_BUDGET = 48


def score(model: Alpamayo, prompter: Prompter, recorded: Recorded, samples: int = 1) -> dict[str, float]:
    """Means over recorded samples of greedy reasoning and one trajectory (minADE_K of `samples` with more).

    NaN where no sample has a value.
    """
    was_training = model.training
    model.eval()
    settings = PlannerSettings(sampling=Sampling(greedy=True), token_budget=_BUDGET, samples=samples)
    planner = Planner(model, prompter, settings)
    rows = [_scored(planner, recorded, index) for index in range(len(recorded))]
    model.train(was_training)
    means = {}
    for name in rows[0]:
        values = np.array([row[name] for row in rows])
        known = values[np.isfinite(values)]
        means[name] = float(known.mean()) if len(known) else float("nan")
    return means


def _scored(planner: Planner, recorded: Recorded, index: int) -> dict[str, float]:
    sample = recorded.samples[index]
    plan = planner.plan(recorded.scene(index))
    paths: Sequence[np.ndarray] = [path.xyz[:, :2] for path in (plan.trajectory, *plan.alternatives)]
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
