"""Paths, recorded arrays and models that several tests share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rsd_planner.vla.checkpoint import Checkpoint
from rsd_planner.vla.model import Alpamayo


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--renew-golden", action="store_true", help="store the golden plans anew")


DATA = Path(__file__).parent / "data"


class Recorded:
    """Arrays of a recorded npz, as numpy (item) or torch (call)."""

    def __init__(self, path: Path) -> None:
        self._arrays = dict(np.load(path, allow_pickle=False))

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def __call__(self, name: str) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(self._arrays[name]))


def assert_close(found: torch.Tensor | np.ndarray, expected: np.ndarray, relative: float = 1e-4) -> None:
    """The largest difference is within `relative` of the largest expected magnitude (at least 1)."""
    found = np.asarray(found)
    assert found.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max()))
    worst = float(np.abs(found - expected).max())
    assert worst <= relative * scale, f"off by {worst:.3g} at a scale of {scale:.3g}"


@pytest.fixture(scope="session")
def data() -> Path:
    return DATA


@pytest.fixture(scope="session")
def tiny_directory() -> Path:
    return DATA / "alpamayo_tiny" / "checkpoint"


@pytest.fixture(scope="session")
def tiny(tiny_directory: Path) -> Alpamayo:
    return Checkpoint.open(tiny_directory).load()


@pytest.fixture(scope="session")
def tiny_record() -> Recorded:
    return Recorded(DATA / "alpamayo_tiny" / "reference.npz")


@pytest.fixture(scope="session")
def reference() -> Alpamayo:
    return Checkpoint.open(DATA / "alpamayo_reference" / "checkpoint").load()


@pytest.fixture(scope="session")
def record():
    return lambda name: Recorded(DATA / "alpamayo_reference" / f"{name}.npz")
