"""Many bags through a model: in one process, in several, or on a Ray cluster; resumable, one bad bag harms no other."""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import json
import math
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import torch
from tqdm import tqdm

from rsd_planner.evaluation.reading import BagError, BagReader
from rsd_planner.evaluation.replay import MeasuredCycle, Plans, Replay, with_samples
from rsd_planner.evaluation.results import Results, summarise, write_json
from rsd_planner.planner import Planner
from rsd_planner.planner_parameters import PlannerParameters
from rsd_planner.vla.checkpoint import Checkpoint, dtype_named

WORST_CYCLES = 8
"""Of each bag: their camera pictures are kept."""
_WORST_BY = "ade_3s"
_FORMAT = 1  # of the results: another one makes them anew
_LOADED: dict[str, Planner] = {}


@dataclass(frozen=True)
class Job:
    """One bag to be evaluated."""

    bag: Path
    out: Path
    parameters: PlannerParameters
    samples: int
    topics: dict[str, str] = field(default_factory=dict)
    threads: int = 0
    progress: bool = False

    @property
    def name(self) -> str:
        """The bag's name in the results."""
        return self.bag.name

    def identity(self) -> str:
        """Of everything that the results depend on: when it is another one, results are made anew."""
        model = Path(self.parameters.model)
        told = [_FORMAT, str(self.bag), self.samples, sorted(self.topics.items()), dataclasses.asdict(self.parameters)]
        files = [*_files(model), *_files(self.bag)]
        told += [[str(file.name), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
        return hashlib.sha256(json.dumps(told, default=str).encode()).hexdigest()[:16]


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.is_file())
    return [path] if path.is_file() else []


def _facts(job: Job) -> dict[str, Any]:
    """What is told of a bag, before anything is known."""
    return {
        "bag": job.name,
        "path": str(job.bag),
        "identity": job.identity(),
        "error": "",
        "cycles": 0,
        "duration_s": 0.0,
        "problems": {},
        "not_planned": {},
        "calibration": {},
    }


def run_job(job: Job, record: Callable[[Job], Plans] | None = None) -> dict[str, Any]:
    """Evaluates one bag and returns its facts. Whatever goes wrong is in there; nothing is raised.

    record makes the plans in another way than by loading the model here (`--live`).
    """
    facts = _facts(job)
    results = Results(job.out)
    reader: BagReader | None = None
    try:
        reader = BagReader(job.bag, job.parameters.cameras(), job.topics)
        facts["duration_s"] = reader.duration_s
        facts["calibration"] = reader.calibration()
        plans = record(job) if record else _planner(job.parameters, job.samples, job.threads)
        replay = Replay(reader, plans, job.parameters)
        facts["cycles"] = results.write_bag(facts, _rows(job, _shown(replay, reader, job)))
        facts["not_planned"] = dict(replay.not_planned)
        if not facts["cycles"]:
            facts["error"] = "no cycle could be planned"
    except BagError as error:
        facts["error"] = str(error)
    except Exception as error:
        facts["error"] = f"{type(error).__name__}: {error}"
        facts["traceback"] = traceback.format_exc()
    finally:
        if reader is not None:
            facts["problems"] = dict(reader.problems)
            reader.close()
    results.finish_bag(facts)
    return facts


def _shown(replay: Replay, reader: BagReader, job: Job) -> Iterator[MeasuredCycle]:
    with tqdm(total=round(reader.duration_s, 1), unit="s", desc=job.name, disable=not job.progress) as bar:
        for cycle in replay.cycles():
            bar.update(round(replay.read_s - bar.n, 1))
            yield cycle


def _rows(job: Job, cycles: Iterator[MeasuredCycle]) -> Iterator[dict[str, Any]]:
    """The rows; at the end the pictures of the worst cycles are written."""
    worst: list[tuple[float, int, MeasuredCycle]] = []
    for number, cycle in enumerate(cycles):
        badness = cycle.row[_WORST_BY]
        if math.isfinite(badness):
            heapq.heappush(worst, (badness, number, cycle))
            if len(worst) > WORST_CYCLES:
                heapq.heappop(worst)
        yield cycle.row
    results = Results(job.out)
    for _, _, cycle in worst:
        for camera, picture in cycle.pictures.items():
            file = results.picture_file(job.name, cycle.row["t0_ns"], camera)
            file.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(file), cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
        if cycle.world is not None:
            write_json(results.world_file(job.name, cycle.row["t0_ns"]), cycle.world)


def _planner(parameters: PlannerParameters, samples: int, threads: int) -> Planner:
    """The planner of this process: loaded once, and used for all its bags."""
    key = f"{parameters} {samples} {threads}"
    if key not in _LOADED:
        _LOADED.clear()
        if threads:
            torch.set_num_threads(threads)
        device = parameters.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = None if parameters.dtype == "auto" else dtype_named(parameters.dtype)
        checkpoint = Checkpoint.open(Path(parameters.model))
        _LOADED[key] = Planner.from_checkpoint(checkpoint, with_samples(parameters, samples), device, dtype)
    return _LOADED[key]


def evaluate(
    jobs: Sequence[Job],
    workers: int = 1,
    ray_address: str | None = None,
    record: Callable[[Job], Plans] | None = None,
) -> list[dict[str, Any]]:
    """Runs what is not done yet and returns the facts of all jobs in order; writes the summary.

    With record (see `run_job`) the jobs run here, one after another. Raises ValueError if two bags have the same name.
    """
    names = [job.name for job in jobs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two bags have the name {', '.join(twice)}; evaluate them into two --out")
    out = Results(jobs[0].out)
    done: dict[str, dict[str, Any]] = {}
    for job in jobs:
        file = out.bag_file(job.name)
        if file.exists():
            facts = json.loads(file.read_text())
            # A bag that failed is tried again: what it lacked may be there now.
            if facts["identity"] == job.identity() and not facts["error"]:
                done[job.name] = facts
    left = [job for job in jobs if job.name not in done]
    with tqdm(total=len(jobs), initial=len(done), unit="bag", disable=len(jobs) == 1) as bar:
        for facts in _run(left, workers, ray_address, record):
            done[facts["bag"]] = facts
            bar.update()
            if facts["error"]:
                tqdm.write(f"{facts['bag']}: {facts['error']}")
    facts_in_order = [done[name] for name in names]
    write_json(out.summary_file, summarise(out.rows(), facts_in_order))
    return facts_in_order


def _run(
    jobs: Sequence[Job], workers: int, ray_address: str | None, record: Callable[[Job], Plans] | None
) -> Iterator[dict[str, Any]]:
    if record is not None:
        yield from (run_job(job, record) for job in jobs)
    elif ray_address is not None:
        yield from _run_on_ray(jobs, ray_address)
    elif workers <= 1 or len(jobs) <= 1:
        yield from map(run_job, (dataclasses.replace(job, progress=len(jobs) == 1) for job in jobs))
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        jobs = [dataclasses.replace(job, threads=job.threads or 1) for job in jobs]
        with ProcessPoolExecutor(min(workers, len(jobs)), max_tasks_per_child=None) as pool:
            running = {pool.submit(run_job, job): job for job in jobs}
            for future in as_completed(running):
                try:
                    yield future.result()
                except Exception as error:  # the process died: out of memory, a signal
                    yield _died(running[future], error)


def _run_on_ray(jobs: Sequence[Job], address: str) -> Iterator[dict[str, Any]]:
    """The same function on a cluster; `out` and the bags must lie where every node reaches them."""
    import ray

    ray.init(address=None if address == "local" else address, log_to_driver=False, ignore_reinit_error=True)
    try:
        remote = ray.remote(max_retries=1)(run_job)
        running = {remote.remote(dataclasses.replace(job, threads=job.threads or 1)): job for job in jobs}
        while running:
            (ready,), _ = ray.wait(list(running), num_returns=1)
            job = running.pop(ready)
            try:
                yield ray.get(ready)
            except Exception as error:
                yield _died(job, error)
    finally:
        ray.shutdown()


def _died(job: Job, error: Exception) -> dict[str, Any]:
    facts = _facts(job) | {"error": f"its process died: {type(error).__name__}: {error}"}
    Results(job.out).finish_bag(facts)
    return facts
