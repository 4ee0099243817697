"""--live: the real node over DDS makes the same plans of the same cycles as the replay without it."""

from __future__ import annotations

from rsd_planner.evaluation.compare import compare
from rsd_planner.evaluation.evaluate import Job, evaluate
from rsd_planner.evaluation.results import Results
from rsd_planner.planner_parameters import PlannerParameters
from rsd_planner.ros.live import record


def test_live_and_offline_give_the_same_plans(tmp_path, data, tiny_directory):
    parameters = PlannerParameters(
        model=str(tiny_directory),
        camera_names=["front_wide", "front_tele"],
        camera_indices=[1, 6],
        min_pixels=2048,
        max_pixels=8192,
        token_budget=12,
    )
    bag = data / "golden" / "follow"
    offline, live = Results(tmp_path / "offline"), Results(tmp_path / "live")
    (facts,) = evaluate([Job(bag, offline.directory, parameters, 1)])
    assert facts["error"] == "" and facts["cycles"] == 15
    (facts,) = evaluate([Job(bag, live.directory, parameters, 1)], record=record)
    assert facts["error"] == "", (live.directory / "log" / "follow" / "planner.log").read_text()
    assert facts["cycles"] >= 5
    found = compare(live, offline)
    assert found.cycles == facts["cycles"] and found.texts_changed == 0.0
    assert found.changed[0]["change_m"] < 5e-3
