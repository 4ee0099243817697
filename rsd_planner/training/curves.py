"""The figures of a training over its steps: kept line by line, drawn at its end."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rsd_planner.training.recipe import Stage

_PANELS = (
    ("losses", ("words", "flow", "validation/words", "validation/flow")),
    ("share right", ("validation/coc_decision", "validation/coc_cause", "validation/coc_attributes",
                     "validation/consistent")),
    ("displacement (m)", ("validation/ade_3s", "validation/ade_6.4s")),
)  # fmt: skip
_AVERAGED = 10


class FiguresLog:
    """A file with a JSON object a line. A resumed run writes steps again: the later line counts."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, step: int, values: dict[str, float]) -> None:
        """Adds what is known at a step."""
        with self._path.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")

    def read(self) -> dict[str, list[tuple[int, float]]]:
        """Values by name, each with its step, rising. A line that was cut short is left out."""
        found: dict[str, dict[int, float]] = defaultdict(dict)
        lines = self._path.read_text().splitlines(keepends=True) if self._path.exists() else []
        for line in lines:
            if not line.endswith("\n"):
                continue
            record = json.loads(line)
            step = int(record.pop("step"))
            for name, value in record.items():
                found[name][step] = value
        return {name: sorted(values.items()) for name, values in found.items()}


def draw_curves(figures: dict[str, list[tuple[int, float]]], stages: Sequence[Stage], path: Path) -> None:
    """Losses and what the validation gave over the steps, with the stages' ends; training losses as running means."""
    figure = Figure(figsize=(12.0, 3.6), layout="constrained")
    for number, (title, names) in enumerate(_PANELS):
        axes = figure.add_subplot(1, len(_PANELS), number + 1)
        for name in names:
            steps, values = zip(*figures.get(name, [(0, float("nan"))]), strict=True)
            if not name.startswith("validation/"):
                values = tuple(
                    sum(values[max(0, k - _AVERAGED + 1) : k + 1]) / min(k + 1, _AVERAGED) for k in range(len(values))
                )
            axes.plot(steps, values, label=name, linewidth=1.0, marker="." if name.startswith("validation/") else "")
        end = 0
        for stage in stages[:-1]:
            end += stage.steps
            axes.axvline(end, color="grey", linewidth=0.6, linestyle=":")
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.legend(fontsize=7)
    FigureCanvasAgg(figure).print_figure(path, dpi=110)
