"""The command line as a user types it."""

from __future__ import annotations

import subprocess
import sys

import cv2
import pytest


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rsd_planner.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


COMMANDS = [
    *("-", "demo", "drive", "model", "model info", "bag", "bag make", "bag play"),
    *("sim", "sim list", "sim render", "sim check", "data", "data make", "data check"),
    *("evaluate", "convert", "convert physical-ai-av", "convert comma2k19", "convert nuscenes"),
    *("train", "train target", "train draft", "train score"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command):
    run = _run(*command.strip("-").split(), "--help")
    assert run.returncode == 0 and run.stdout.startswith("usage: rsd-planner")


def test_model_info(tiny_directory):
    run = _run("model", "info", tiny_directory)
    assert run.returncode == 0 and "0.55 M parameters" in run.stdout and "64 waypoints at 0.1 s" in run.stdout


def test_sim_list_names_the_families():
    lines = _run("sim", "list").stdout.splitlines()
    assert len(lines) >= 10 and any(line.startswith("cut-in ") for line in lines)


def test_sim_render_writes_pictures_and_a_video(tmp_path):
    run = _run("sim", "render", "--scenario", "red light", "--seconds", "2.5", "--out", tmp_path)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert run.returncode == 0 and files == [
        "red-light_train_0.mp4",
        "red-light_train_0_00.0s.png",
        "red-light_train_0_02.0s.png",
    ]
    video = cv2.VideoCapture(str(tmp_path / files[0]))
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == 25


def test_sim_check_prints_a_table():
    run = _run("sim", "check", "--scenario", "follow", "--seeds", "2", "--seconds", "3")
    assert run.returncode == 0 and run.stdout.splitlines()[1].split()[:4] == ["follow", "2/2", "0", "0"]


def test_mistakes_end_with_one_line(tmp_path):
    for arguments, message in (
        (("model", "info", tmp_path), "is empty; it should hold config.json"),
        (("bag", "play", tmp_path / "no"), "cannot be opened"),
        (("demo", "--scenario", "tailgate"), "'tailgate' is not one of free curve"),
        (("sim", "render", "--scenario", "tailgate"), "'tailgate' is not one of free curve"),
        (("drive", "--params-file", tmp_path / "no.yaml"), "does not exist"),
    ):
        run = _run(*arguments)
        assert run.returncode == 1
        assert message in run.stderr and len(run.stderr.strip().splitlines()) == 1, run.stderr
