"""The whole command on simulated bags with the tiny model: parallel, resumed, on Ray, compared, reported."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys

import cv2
import numpy as np
import pytest
from plotly.offline import get_plotlyjs

from rsd_planner.evaluation.compare import compare, describe
from rsd_planner.evaluation.drawing import draw_path, project
from rsd_planner.evaluation.evaluate import Job, evaluate, run_job
from rsd_planner.evaluation.judging import WORLD_FIGURES
from rsd_planner.evaluation.report import write_report
from rsd_planner.evaluation.rerun_log import write_recordings
from rsd_planner.evaluation.results import Results, summarise
from rsd_planner.simulation.cameras import CameraSpec


def _jobs(bags, out, parameters, samples=1) -> list[Job]:
    return [Job(bag, out, parameters, samples) for bag in sorted(bags.iterdir())]


@pytest.fixture(scope="module")
def results(tmp_path_factory, simulated_bags, small_parameters) -> Results:
    out = tmp_path_factory.mktemp("results")
    facts = evaluate(_jobs(simulated_bags, out, small_parameters, samples=3), workers=2)
    assert [fact["error"] for fact in facts] == ["", ""] and all(fact["cycles"] == 75 for fact in facts)
    return Results(out)


def test_rows_hold_everything(results):
    rows = results.rows(("samples_x", "tokens"))
    assert len(rows) == 150 and {row["bag"] for row in rows} == {"follow", "red_light"}
    assert set(WORLD_FIGURES) <= set(rows[0]) and "min_ade_3_6.4s" in rows[0]
    assert all(len(row["samples_x"]) == 2 and len(row["tokens"]) == len(row["sources"]) for row in rows)
    assert all(row["total_s"] > row["stage_decode_s"] > 0 for row in rows)
    assert "plan_x" not in rows[0] and len(results.row("follow", rows[3]["t0_ns"])["plan_x"]) == 64


def test_samples_do_not_change_the_plan(results, simulated_bags, small_parameters, tmp_path):
    job = Job(simulated_bags / "follow", tmp_path, small_parameters, 1)
    assert run_job(job)["error"] == ""
    alone = Results(tmp_path).rows(("plan_x", "plan_y"))
    for row, other in zip(alone, results.rows(("plan_x", "plan_y")), strict=False):
        assert row["text"] == other["text"]
        np.testing.assert_allclose(row["plan_x"], other["plan_x"], atol=5e-3)  # other threads, other sums


def test_the_summary_is_the_rows(results):
    summary = json.loads(results.summary_file.read_text())
    rows = results.rows()
    values = [row["ade_1s"] for row in rows if np.isfinite(row["ade_1s"])]
    assert summary["metrics"]["ade_1s"]["mean"] == pytest.approx(np.mean(values))
    assert summary["metrics"]["ade_1s"]["cycles"] == len(values) and summary["metrics"]["ade_1s"]["low"] is None
    decode = np.percentile([row["stage_decode_s"] for row in rows], 95)
    assert summary["latency"]["decode"]["p95_s"] == pytest.approx(decode)
    tokens = sum(len(row["sources"]) for row in rows)
    assert summary["reasoning"]["tokens"] == tokens and summary["reasoning"]["accepted_length"] == 1.0
    assert summary == json.loads(json.dumps(summarise(rows, results.bags()), default=str).replace("NaN", "null"))


def test_finished_bags_are_kept_and_failed_ones_tried_again(simulated_bags, small_parameters, tmp_path):
    bags = tmp_path / "bags"
    shutil.copytree(simulated_bags / "follow", bags / "follow")
    (bags / "broken").mkdir()
    jobs = _jobs(bags, tmp_path / "out", small_parameters)
    broken, follow = evaluate(jobs)
    assert "no metadata.yaml" in broken["error"] and follow["cycles"] == 75
    results = Results(tmp_path / "out")
    before = results.cycles_file("follow").stat().st_mtime_ns
    shutil.rmtree(bags / "broken")
    shutil.copytree(simulated_bags / "red_light", bags / "broken")
    broken, follow = evaluate(jobs)
    assert broken["error"] == "" and results.cycles_file("follow").stat().st_mtime_ns == before
    # Another parameter makes them anew.
    again = [dataclasses.replace(job, parameters=dataclasses.replace(small_parameters, seed=5)) for job in jobs[1:]]
    evaluate(again)
    assert results.cycles_file("follow").stat().st_mtime_ns > before
    with pytest.raises(ValueError, match="two bags have the name follow"):
        evaluate([jobs[1], jobs[1]])


def _dies(_: Job):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_bag_whose_process_dies_is_reported_by_name(simulated_bags, small_parameters, tmp_path, monkeypatch):
    monkeypatch.setattr("rsd_planner.evaluation.evaluate.run_job", _dies)
    facts = evaluate(_jobs(simulated_bags, tmp_path, small_parameters), workers=2)
    assert all("its process died" in fact["error"] for fact in facts)


def test_a_local_ray_cluster_says_the_same(results, simulated_bags, small_parameters, tmp_path):
    facts = evaluate(_jobs(simulated_bags, tmp_path, small_parameters, samples=3), ray_address="local")
    assert [fact["error"] for fact in facts] == ["", ""]
    comparison = compare(Results(tmp_path), results)
    assert comparison.cycles == 150 and comparison.texts_changed == 0.0
    assert comparison.changed[0]["change_m"] < 1e-3


def test_comparison_pairs_cycles(results, simulated_bags, small_parameters, tmp_path):
    other = dataclasses.replace(small_parameters, seed=7)
    evaluate(_jobs(simulated_bags, tmp_path, other))
    found = compare(Results(tmp_path), results)
    mine = {(row["bag"], row["t0_ns"]): row["ade_2s"] for row in Results(tmp_path).rows()}
    paired = [mine[(row["bag"], row["t0_ns"])] - row["ade_2s"] for row in results.rows()]
    assert found.differences["ade_2s"]["mean"] == pytest.approx(np.nanmean(paired))
    assert len(found.changed) == 10 and found.changed[0]["change_m"] >= found.changed[9]["change_m"] > 0
    assert "ade_2s" in describe(found) and found.texts_changed > 0.5
    report = write_report(Results(tmp_path), found).read_text()
    assert "Most changed cycles" in report


def test_the_report_opens_without_a_network(results, tmp_path):
    path = write_report(results)
    page = path.read_text().replace(get_plotlyjs(), "")
    assert 'src="http' not in page and 'href="http' not in page
    assert page.count("data:image/jpeg;base64") >= 4 and "source-0" in page
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs chromium (Debian: apt-get install chromium)")
    picture = tmp_path / "shot.png"
    command = [
        *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
        *("--no-first-run", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,3000"),
        *("--virtual-time-budget=10000", f"--screenshot={picture}", "--enable-logging=stderr", path.as_uri()),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "Uncaught" not in run.stderr
    shot = cv2.imread(str(picture))
    assert shot is not None and shot.shape == (3000, 1280, 3)
    # Plots were drawn: their blue and orange are there, and the page is no empty sheet.
    blue = np.abs(shot.astype(int) - [182, 111, 59]).max(axis=2) < 12
    orange = np.abs(shot.astype(int) - [12, 65, 194]).max(axis=2) < 12
    assert blue.sum() > 500 and orange.sum() > 100


def test_recordings_for_rerun(results):
    paths = write_recordings(results)
    assert [path.name for path in paths] == ["follow.rrd", "red_light.rrd"]
    assert all(path.stat().st_size > 10_000 and path.read_bytes()[:4] == b"RRF2" for path in paths)


def test_a_path_is_drawn_where_the_camera_sees_it(results):
    """The calibration comes through the bag; the simulator's own camera says where a point on the ground is."""
    (facts,) = (fact for fact in results.bags() if fact["bag"] == "follow")
    spec = CameraSpec("front_wide", 1, (1.8, 0.0, 1.6), 0.0, 2.0, 120.0)
    points = np.array([[10.0, 0.0, 0.0], [20.0, 3.0, 0.0], [8.0, -2.0, 0.5]])
    expected = spec.project(points, 160, 96)
    np.testing.assert_allclose(project(facts["calibration"]["front_wide"], points), expected, atol=1e-3)
    picture = np.zeros((192, 320, 3), dtype=np.uint8)  # twice the calibrated size
    drawn = draw_path(
        picture, facts["calibration"]["front_wide"], np.stack([np.arange(1.0, 30.0), np.zeros(29)], axis=1), (0, 255, 0)
    )
    u, v, _ = 2 * expected[0]
    assert drawn[round(v), round(u), 1] > 100 and drawn[round(v), 10, 1] == 0 and drawn[:90].max() == 0


def _run(*arguments) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rsd_planner.cli", "evaluate", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_the_command_and_its_exit_codes(simulated_bags, tiny_directory, tmp_path):
    options = ["--model", tiny_directory, "--out", tmp_path / "out", "--no-report"]
    for entry in ("camera_names=[front_wide, front_tele]", "camera_indices=[1, 6]", "max_pixels=8192",
                  "min_pixels=2048", "token_budget=12"):  # fmt: skip
        options += ["--set", entry]
    run = _run(simulated_bags, *options)
    assert run.returncode == 0, run.stderr
    assert "150 cycles in 2 clips of 2 bags" in run.stdout and "ade_3s" in run.stdout
    run = _run(simulated_bags, tmp_path / "missing", *options)
    assert run.returncode == 1 and "missing does not exist" in run.stderr and "150 cycles" in run.stdout
    run = _run("--out", tmp_path / "out", "--baseline", tmp_path / "out", "--no-report")
    assert "150 cycles in common" in run.stdout
    for arguments, message in (
        ((simulated_bags, "--model", tmp_path / "no", "--out", tmp_path), "no is not a directory"),
        ((simulated_bags, *options, "--set", "rate_hz=fast"), "parameter rate_hz must be a float, not 'fast'"),
        ((simulated_bags, *options, "--set", "colour=red"), "there is no parameter colour"),
        ((simulated_bags, *options, "--map", "odometry"), "--map 'odometry' is not ROLE=/TOPIC"),
        (("--out", tmp_path / "nothing"), "name bags, or a finished --out"),
    ):
        run = _run(*arguments)
        assert run.returncode == 1 and message in run.stderr and "Traceback" not in run.stderr, run.stderr
