"""The command line as a user types it."""

from __future__ import annotations

import subprocess
import sys

import pytest


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rsd_planner.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "command", [(), ("demo",), ("drive",), ("model",), ("model", "info"), ("bag",), ("bag", "make"), ("bag", "play")]
)
def test_every_command_explains_itself(command):
    run = _run(*command, "--help")
    assert run.returncode == 0 and run.stdout.startswith("usage: rsd-planner")


def test_model_info(tiny_directory):
    run = _run("model", "info", tiny_directory)
    assert run.returncode == 0 and "0.55 M parameters" in run.stdout and "64 waypoints at 0.1 s" in run.stdout


def test_mistakes_end_with_one_line(tmp_path, tiny_directory):
    for arguments, message in (
        (("model", "info", tmp_path), "is empty; it should hold config.json"),
        (("bag", "play", tmp_path / "no"), "cannot be opened"),
        (("demo", "--model", tiny_directory, "--data", tmp_path), "holds no *odometry.csv or no *.jpg"),
        (("drive", "--params-file", tmp_path / "no.yaml"), "does not exist"),
    ):
        run = _run(*arguments)
        assert run.returncode == 1
        assert message in run.stderr and len(run.stderr.strip().splitlines()) == 1, run.stderr
