"""One self-contained HTML page about a folder of results; opens from disk without a network."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from rsd_planner.evaluation.compare import Comparison
from rsd_planner.evaluation.drawing import draw_plan, from_above
from rsd_planner.evaluation.results import Results, column

_DRIVES, _WORST = 12, 10
_LOOKS: dict[str, Any] = {"template": "plotly_white", "margin": {"t": 30, "b": 30, "l": 40, "r": 40}}
_DISTRIBUTIONS = ("ade_3s", "fde_3s", "ade_6.4s", "jitter_3s", "speed", "total_s")


def write_report(results: Results, comparison: Comparison | None = None) -> Path:
    """Writes report.html into a folder of results that has its summary; returns the path."""
    summary = json.loads(results.summary_file.read_text())
    rows = results.rows(("tokens", "sources"))
    bags = {facts["bag"]: facts for facts in results.bags()}
    names = [name for name, facts in bags.items() if facts["cycles"]]
    page = (
        _environment()
        .get_template("report.html.jinja")
        .render(
            title=f"Evaluation {results.directory.name}",
            plotly=get_plotlyjs(),
            summary=summary,
            figures=[(name, figure) for name, figure in summary["metrics"].items() if figure["mean"] is not None],
            comparison=comparison,
            distributions=_html(_distributions(rows)) if rows else "",
            drives=[_drive(name, [row for row in rows if row["bag"] == name]) for name in names[:_DRIVES]],
            more_drives=max(0, len(names) - _DRIVES),
            worst=[_worst_cycle(results, bags, row) for row in _worst(results, rows)],
        )
    )
    path = results.directory / "report.html"
    partial = path.with_name(path.name + ".partial")
    partial.write_text(page, encoding="utf-8")
    partial.rename(path)
    return path


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    environment.filters |= {
        "number": lambda value: "" if value is None else f"{value:.3f}",
        "signed": lambda value: f"{value:+.3f}",
        "ms": lambda seconds: f"{seconds * 1e3:.1f}",
        "interval": _interval,
    }
    return environment


def _interval(figure: dict[str, Any]) -> str:
    low, high = figure["low"], figure["high"]
    return "" if low is None or math.isnan(low) else f"{low:.3f} … {high:.3f}"


def _html(figure: go.Figure) -> str:
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False}))


def _distributions(rows: Sequence[dict[str, Any]]) -> go.Figure:
    figure = make_subplots(rows=2, cols=3, subplot_titles=_DISTRIBUTIONS)
    for place, name in enumerate(_DISTRIBUTIONS):
        values = column(rows, name)
        histogram = go.Histogram(x=values[np.isfinite(values)], nbinsx=40, marker={"color": "#3b6fb6"})
        figure.add_trace(histogram, row=place // 3 + 1, col=place % 3 + 1)
    figure.update_layout(
        height=460, showlegend=False, template="plotly_white", margin={"t": 40, "b": 30, "l": 40, "r": 10}
    )
    return figure


def _drive(bag: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Speed and error over time, and the moments at which the text changes."""
    time = [row["t_s"] for row in rows]
    figure = make_subplots(specs=[[{"secondary_y": True}]])
    hover = [row["text"] for row in rows]
    for name, values, colour, secondary in (
        ("speed (m/s)", column(rows, "v0_mps"), "#3b6fb6", False),
        ("ADE 3 s (m)", column(rows, "ade_3s"), "#c2410c", True),
    ):
        trace = go.Scatter(x=time, y=_gaps(values), name=name, text=hover, line={"color": colour})
        figure.add_trace(trace, secondary_y=secondary)
    figure.update_layout(height=240, **_LOOKS)
    figure.update_xaxes(title="time (s)")
    moments, before = [], None
    for row in rows:
        if row["text"] != before:
            tokens = list(zip(row["tokens"], row["sources"], strict=True)) if row["tokens"] else [(row["text"], 0)]
            moments.append({"t_s": row["t_s"], "tokens": tokens})
            before = row["text"]
    return {"bag": bag, "plot": _html(figure), "moments": moments}


def _gaps(values: np.ndarray) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]


def _worst(results: Results, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The worst cycles of which pictures were kept, a second or more apart."""
    known = [row for row in rows if row["ade_3s"] is not None and math.isfinite(row["ade_3s"])]
    chosen: list[dict[str, Any]] = []
    for row in sorted(known, key=lambda row: -row["ade_3s"]):
        near = any(row["bag"] == other["bag"] and abs(row["t_s"] - other["t_s"]) < 1.0 for other in chosen)
        folder = results.picture_file(row["bag"], row["t0_ns"], "any").parent
        if not near and any(folder.glob(f"{row['t0_ns']}_*.jpg")):
            chosen.append(row)
        if len(chosen) == _WORST:
            break
    return chosen


def _read_picture(file: Path) -> NDArray[np.uint8]:
    picture = cv2.imread(str(file))
    if picture is None:
        raise ValueError(f"{file} is not a picture")
    return np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), dtype=np.uint8)


def _worst_cycle(results: Results, bags: dict[str, Any], light: dict[str, Any]) -> dict[str, Any]:
    bag, t0_ns = light["bag"], light["t0_ns"]
    row = results.row(bag, t0_ns)
    pictures = []
    for file in sorted(results.picture_file(bag, t0_ns, "any").parent.glob(f"{t0_ns}_*.jpg")):
        camera = file.stem.partition("_")[2]
        picture = _read_picture(file)
        calibration = bags[bag]["calibration"].get(camera)
        if calibration is not None:
            picture = draw_plan(picture, calibration, row)
        data = cv2.imencode(".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))[1]
        pictures.append({"camera": camera, "data": base64.b64encode(data.tobytes()).decode()})
    world_file = results.world_file(bag, t0_ns)
    world = json.loads(world_file.read_text()) if world_file.exists() else None
    return {
        "bag": bag,
        "t_s": row["t_s"],
        "ade": row["ade_3s"],
        "text": row["text"],
        "pictures": pictures,
        "above": _html(from_above(row, world)),
    }
