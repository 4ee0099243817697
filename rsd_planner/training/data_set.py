"""Data sets of clips: made in parallel and resumable, with a card; and checks over what was made."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from rsd_planner.evaluation.results import write_json
from rsd_planner.simulation.cameras import Rig
from rsd_planner.simulation.scenarios import SPLITS
from rsd_planner.training.clips import Wheel, read_shard, write_shard
from rsd_planner.training.wheel import ModelAtTheWheel

CLIPS_PER_SHARD = 26
CARD = "card.json"


def make(
    split: str, clips: int, out: Path, rig_file: Path, workers: int, first: int = 0, model: Path | None = None
) -> dict[str, Any]:
    """Records clips from `first` on of a split into out and returns the card; shards that are there are kept.

    With a model (a checkpoint) that drives, and the expert only says what it should have done.

    Raises ValueError for an unknown split, a clip count below 1, or an out that holds another split or rig.
    """
    if split not in SPLITS:
        raise ValueError(f"split {split!r} is not one of {', '.join(SPLITS)}")
    if clips < 1:
        raise ValueError(f"--clips must be at least 1, not {clips}")
    rig = Rig.from_yaml(rig_file)
    out.mkdir(parents=True, exist_ok=True)
    identity = {"split": split, "rig": rig_file.read_text()} | ({"driver": str(model)} if model else {})
    _check_identity(out, identity)
    wheel = partial(ModelAtTheWheel, model) if model else None
    jobs: list[tuple[Path, str, range, Rig, Callable[[], Wheel] | None]] = []
    for begin in range(first, first + clips, CLIPS_PER_SHARD):
        part = range(begin, min(begin + CLIPS_PER_SHARD, first + clips))
        # The name tells the clips: a shard that was cut short by a smaller --clips is another file.
        path = out / f"{split}-{part.start:06d}-{part.stop - 1:06d}.tar"
        if not path.exists():
            jobs.append((path, split, part, rig, wheel))
    took = in_parallel(write_shard, jobs, [len(job[2]) for job in jobs], workers)
    made = sum(len(job[2]) for job in jobs)
    card = identity | {"clips": clips, "made_now": made, "clips_per_s": made / took if made else None} | describe(out)
    write_json(out / CARD, card)
    return card


def in_parallel(write: Callable[..., object], jobs: Sequence[tuple], sizes: Sequence[int], workers: int) -> float:
    """Runs write(*job) for all jobs in processes, with a progress bar over their clips; returns the seconds."""
    begin = time.monotonic()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread a process: the processes are the parallelism
    with ProcessPoolExecutor(workers) as pool, tqdm(total=sum(sizes), unit="clip") as bar:
        running = {pool.submit(write, *job): size for job, size in zip(jobs, sizes, strict=True)}
        for done in as_completed(running):
            done.result()
            bar.update(running[done])
    return time.monotonic() - begin


def describe(directory: Path) -> dict[str, Any]:
    """What the shards of a data set hold: samples, bytes, balance of decisions and causes, lengths of texts."""
    shards = sorted(directory.glob("*.tar"))
    if not shards:
        raise ValueError(f"{directory} holds no shards (*.tar)")
    counts: dict[str, Counter[str]] = {name: Counter() for name in ("family", "longitudinal", "lateral", "cause")}
    words: Counter[int] = Counter()
    texts: set[str] = set()
    drives: set[tuple[str, int]] = set()
    samples = 0
    for shard in shards:
        for sample in read_shard(shard, frames=False):
            samples += 1
            drives.add((sample.family, sample.seed))
            texts.add(sample.text)
            words[len(sample.text.split())] += 1
            counts["family"][sample.family] += 1
            for name in ("longitudinal", "lateral", "cause"):
                counts[name][getattr(sample.meaning, name)] += 1
    size = sum(shard.stat().st_size for shard in shards)
    lengths = sorted(words.elements())
    return {
        "shards": len(shards),
        "samples": samples,
        "bytes": size,
        "bytes_per_clip": round(size / len(drives)),
        "distinct_texts": len(texts),
        "words_median": float(np.median(lengths)),
        "words": {str(count): words[count] for count in sorted(words)},
        **{name: dict(counter.most_common()) for name, counter in counts.items()},
    }


def rig_of(directory: Path) -> str | None:
    """The YAML of the cameras that a data set was made with, if its card tells."""
    card = directory / CARD
    return str(json.loads(card.read_text())["rig"]) if card.exists() else None


def leaks(directories: list[Path]) -> list[str]:
    """Worlds that two data sets share, told by the seed of their scenery; empty if there is none."""
    owners: dict[int, set[str]] = {}
    for directory in directories:
        for shard in sorted(directory.glob("*.tar")):
            for sample in read_shard(shard, frames=False):
                owners.setdefault(sample.world["scenery_seed"], set()).add(str(directory))
    return [f"scenery seed {seed} is in {', '.join(sorted(names))}" for seed, names in owners.items() if len(names) > 1]


def _check_identity(out: Path, identity: dict[str, Any]) -> None:
    card = out / CARD
    if not card.exists():
        write_json(card, identity)
        return
    before = json.loads(card.read_text())
    for name in ("split", "rig", "driver"):
        if before.get(name) != identity.get(name):
            raise ValueError(f"{out} holds a data set with another {name}; choose another --out")
