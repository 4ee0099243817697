"""A folder of results: a parquet file of cycles and a JSON of facts for each bag, and the summary over all.

OUT/cycles/BAG.parquet   a row a cycle
OUT/bags/BAG.json        how the bag went; there when it is done
OUT/pictures/BAG/T0_CAMERA.jpg   cameras of the worst cycles
OUT/summary.json, OUT/report.html
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rsd_planner.evaluation.metrics import bootstrap
from rsd_planner.reasoning.target import TokenSource

# Columns that are no figures: everything else that is a number is summarised.
_FACTS = {"t_s", "t0_ns", "v0_mps", "truncated"}
_STAGE = "stage_"
_ROW_GROUP = 200
_NUMBERS = pa.list_(pa.float64())
_LISTS: dict[str, pa.DataType] = {
    **{f"plan_{name}": _NUMBERS for name in ("x", "y", "yaw", "speed", "curvature")},
    **{f"truth_{name}": _NUMBERS for name in ("x", "y", "yaw", "speed")},
    **dict.fromkeys(("samples_x", "samples_y"), pa.list_(_NUMBERS)),
    "pose": _NUMBERS,
    "tokens": pa.list_(pa.string()),
    "notes": pa.list_(pa.string()),
}


class Results:
    """A folder of results. Files appear under their names when they are complete."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def summary_file(self) -> Path:
        """Where the summary is."""
        return self.directory / "summary.json"

    def bag_file(self, name: str) -> Path:
        """Facts of a bag."""
        return self.directory / "bags" / f"{name}.json"

    def cycles_file(self, name: str) -> Path:
        """Cycles of a bag."""
        return self.directory / "cycles" / f"{name}.parquet"

    def picture_file(self, bag: str, t0_ns: int, camera: str) -> Path:
        """A camera's picture of a cycle, kept for the worst ones."""
        return self.directory / "pictures" / bag / f"{t0_ns}_{camera}.jpg"

    def world_file(self, bag: str, t0_ns: int) -> Path:
        """The true state at a cycle, kept for the worst ones of simulated bags."""
        return self.directory / "pictures" / bag / f"{t0_ns}.json"

    def write_bag(self, facts: dict[str, Any], rows: Iterable[dict[str, Any]]) -> int:
        """Writes cycles as they come, in groups; returns how many. Facts are written by `finish_bag`."""
        cycles = self.cycles_file(facts["bag"])
        cycles.parent.mkdir(parents=True, exist_ok=True)
        partial = cycles.with_name(cycles.name + ".partial")
        count, writer = 0, None
        try:
            for group in _groups(rows, _ROW_GROUP):
                table = _table(group)
                writer = writer or pq.ParquetWriter(partial, table.schema, compression="zstd")
                writer.write_table(table)
                count += len(group)
        finally:
            if writer is not None:
                writer.close()
        if writer is not None:
            partial.rename(cycles)
        return count

    def finish_bag(self, facts: dict[str, Any]) -> None:
        """Facts come last: who finds them finds the cycles."""
        write_json(self.bag_file(facts["bag"]), facts)

    def bags(self) -> list[dict[str, Any]]:
        """Facts of all bags, by name. Raises ValueError if there are none."""
        files = sorted((self.directory / "bags").glob("*.json"))
        if not files:
            raise ValueError(f"{self.directory} holds no results (bags/*.json)")
        return [json.loads(file.read_text()) for file in files]

    def rows(self, lists: Collection[str] = ()) -> list[dict[str, Any]]:
        """All cycles of all bags that the facts name, in order; of the lists in them only those that are asked for."""
        found: list[dict[str, Any]] = []
        for facts in self.bags():
            if facts["cycles"]:
                file = self.cycles_file(facts["bag"])
                names = [name for name in pq.read_schema(file).names if name in lists or name not in _LISTS]
                found += pq.read_table(file, columns=names).to_pylist()
        return found

    def row(self, bag: str, t0_ns: int) -> dict[str, Any]:
        """One cycle with everything."""
        (row,) = pq.read_table(self.cycles_file(bag), filters=[("t0_ns", "=", t0_ns)]).to_pylist()
        return dict(row)


def summarise(rows: Sequence[dict[str, Any]], bags: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures with 95 % intervals over clips, latencies, token shares, and how the bags went."""
    metrics = {}
    for name in figure_names(rows):
        mean, low, high = bootstrap(by_clip(rows, name))
        count = sum(math.isfinite(value) for value in column(rows, name))
        metrics[name] = {"mean": mean, "low": low, "high": high, "cycles": count}
    stages = [*sorted({name for row in rows for name in row if name.startswith(_STAGE)}), "total_s"]
    latency = {}
    for name in stages:
        values = column(rows, name)
        values = values[np.isfinite(values)]
        if len(values):
            p50, p95, p99 = (float(value) for value in np.percentile(values, [50, 95, 99]))
            latency[name.removeprefix(_STAGE).removesuffix("_s")] = {"p50_s": p50, "p95_s": p95, "p99_s": p99}
    return {
        "cycles": len(rows),
        "clips": len({row["clip"] for row in rows}),
        "bags": {"evaluated": sum(not bag["error"] for bag in bags), "failed": sum(bool(bag["error"]) for bag in bags)},
        "metrics": metrics,
        "latency": latency,
        "reasoning": _reasoning(rows),
        "not_planned": _added([bag["not_planned"] for bag in bags]),
        "problems": {bag["bag"]: bag["problems"] for bag in bags if bag["problems"]},
        "errors": {bag["bag"]: bag["error"] for bag in bags if bag["error"]},
    }


def figure_names(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Columns that hold one number a cycle and mean something on average."""
    names: dict[str, None] = {}
    for row in rows:
        for name, value in row.items():
            timing = name.startswith(_STAGE) or name == "total_s"
            if isinstance(value, float) and name not in _FACTS and not timing:
                names.setdefault(name)
    return list(names)


def column(rows: Sequence[dict[str, Any]], name: str) -> NDArray[np.float64]:
    """A figure [rows], NaN where a row lacks it."""
    values = [row.get(name) for row in rows]
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def by_clip(rows: Sequence[dict[str, Any]], name: str) -> list[NDArray[np.float64]]:
    """A figure's values, an array a clip."""
    clips: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        clips.setdefault(row["clip"], []).append(row)
    return [column(own, name) for own in clips.values()]


def _reasoning(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Shares of token sources, accepted length (committed tokens a round) and tokens a second of decoding."""
    sources = np.array([source for row in rows for source in row["sources"]], dtype=np.int64)
    found: dict[str, float] = {"tokens": float(len(sources))}
    if not len(sources):
        return found
    found["tokens_a_cycle"] = len(sources) / len(rows)
    for source in TokenSource:
        found[f"share_{source.name.lower()}"] = float(np.mean(sources == source))
    # Each round commits one token of the target's own; forced ones belong to none.
    own = int(np.sum(sources == TokenSource.DELIBERATIVE))
    committed = int(np.sum(sources != TokenSource.FORCED))
    if own:
        found["accepted_length"] = committed / own
    seconds = float(np.nansum(column(rows, f"{_STAGE}decode_s")))
    if seconds > 0:
        found["tokens_a_second"] = len(sources) / seconds
    return found


def _groups(rows: Iterable[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    iterator = iter(rows)
    while group := list(itertools.islice(iterator, size)):
        yield group


def _table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """The first row tells the columns; lists have types of their own, since a first one may be empty."""
    return pa.table({name: pa.array([row.get(name) for row in rows], _LISTS.get(name)) for name in rows[0]})


def _added(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for count in counts:
        for name, number in count.items():
            total[name] = total.get(name, 0) + number
    return total


def write_json(path: Path, content: Any) -> None:
    """Writes JSON that appears when it is complete; numbers that are not finite become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(_plain(content), indent=1))
    partial.rename(path)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
