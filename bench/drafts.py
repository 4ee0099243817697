"""Studies of drafts: the same data and steps, one thing different, several seeds.

positions: the claim of FlatRoPE and its rivals, and contexts; losses: the left-to-right losses one by one; writing:
blocks against token by token.

Run by hand: python bench/drafts.py positions --config config/train/draft.yaml --out log/positions [--set steps=800 ...]
Finished runs are kept. Prints a table and writes table.md, results.json and study.png to --out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
import yaml
from torch import Tensor

from rsd_planner.reasoning.routine import Attention, RoutineNetwork
from rsd_planner.reasoning.routine_checkpoint import load_routine
from rsd_planner.reasoning.target import TokenKind
from rsd_planner.training.draft import DraftTrainer, DraftTraining
from rsd_planner.training.draft_data import Chains
from rsd_planner.training.draft_losses import DraftLosses
from rsd_planner.vla.checkpoint import Checkpoint

mpl.use("agg")
import matplotlib.pyplot as plt

STUDIES: dict[str, dict[str, dict[str, Any]]] = {
    "positions": {
        "flat, all": {"draft": {"positions": "flat", "reads": "all"}},
        "mrope, all": {"draft": {"positions": "mrope", "reads": "all"}},
        "block, all": {"draft": {"positions": "block", "reads": "all"}},
        "none, all": {"draft": {"positions": "none", "reads": "all"}},
        "flat, no visual": {"draft": {"positions": "flat", "reads": "no visual"}},
        "flat, history": {"draft": {"positions": "flat", "reads": "history"}},
    },
    "losses": {
        "even": {"weights": {"decay": 1.0}},
        "falling 0.9": {"weights": {"decay": 0.9}},
        "falling 0.8": {"weights": {"decay": 0.8}},
        "falling 0.9, focal 1": {"weights": {"decay": 0.9, "focal": 1.0}},
        "falling 0.9, expected 1": {"weights": {"decay": 0.9, "expected": 1.0}},
    },
    "writing": {
        "block, 2 layers": {"draft": {"writes": "block", "layers": 2}},
        "block, 1 layer": {"draft": {"writes": "block", "layers": 1}},
        "token by token, 1 layer": {"draft": {"writes": "token", "layers": 1}},
    },
}
"""Study -> variant -> what differs from the configuration."""
PARTS = ("visual", "history", "text", "CoC", "block")
FIGURES = ("accepted_length", "routine_share", *PARTS)


def main() -> None:
    """Trains what is missing, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES, help="what differs")
    parser.add_argument("--config", type=Path, required=True, help="YAML of a distillation")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=3, help="of every variant (default 3)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an entry that differs")
    arguments = parser.parse_args()
    overrides = {name: yaml.safe_load(value) for name, _, value in (entry.partition("=") for entry in arguments.set)}
    base = DraftTraining.from_yaml(arguments.config, overrides)
    results: dict[str, list[dict[str, float]]] = defaultdict(list)
    for seed in range(arguments.seeds):
        for variant, differs in STUDIES[arguments.study].items():
            results[variant].append(one_run(base, arguments.out, variant, differs, seed))
            print(f"{variant}, seed {seed}: {results[variant][-1]}", file=sys.stderr, flush=True)
    lines = table(results)
    print("\n".join(lines))
    (arguments.out / "table.md").write_text("\n".join(lines) + "\n")
    (arguments.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    plot(results, arguments.out / "study.png")


def one_run(base: DraftTraining, out: Path, variant: str, differs: dict[str, Any], seed: int) -> dict[str, float]:
    """Trains one draft, unless it is there, and measures it on the validation chains."""
    directory = out / f"{variant.replace(', ', '-').replace(' ', '-')}-{seed}"
    known = directory / "result.json"
    if not known.exists():
        draft = {**base.draft, **differs.get("draft", {})}
        weights = dataclasses.replace(base.weights, **differs.get("weights", {}))
        run = dataclasses.replace(base, out=directory, seed=seed, draft=draft, weights=weights)
        figures = DraftTrainer(run).train()
        network = load_routine(directory / "checkpoint", dtype=torch.float32)
        masses = attention_masses(network, Checkpoint.open(run.target), Chains(out / "chains" / "validation"))
        kept = {name: figures[name] for name in ("accepted_length", "routine_share")}
        known.write_text(json.dumps(kept | masses) + "\n")
    result: dict[str, float] = json.loads(known.read_text())
    return result


@torch.no_grad()
def attention_masses(network: RoutineNetwork, target: Checkpoint, chains: Chains, rows: int = 8) -> dict[str, float]:
    """Where the drafted places look: the mean share of attention on each part, over layers, heads, blocks."""
    model = target.load(dtype=torch.float32)
    losses = DraftLosses(network, model.embed, model.head)
    sums, count = dict.fromkeys(PARTS, 0.0), 0
    for begin in range(0, len(chains), rows):
        batch = chains.batch(range(begin, min(begin + rows, len(chains))))
        starts = (batch.lengths[:, None] - 1).clamp_min(1) * torch.tensor([0, 1, 2]) // 3
        kinds = batch.kinds[0]
        chain = batch.chain.shape[1]
        with listening(network) as heard:
            losses.standing(batch, starts)
        for weights in heard:  # [rows, heads, queries, prompt + chain + blocks]
            prompt, said, own = weights.split([len(kinds), chain, weights.shape[-1] - len(kinds) - chain], dim=-1)
            for kind, name in ((TokenKind.VISUAL, "visual"), (TokenKind.HISTORY, "history"), (TokenKind.TEXT, "text")):
                sums[name] += float(prompt[..., kinds == kind].sum(-1).mean())
            sums["CoC"] += float(said.sum(-1).mean())
            sums["block"] += float(own.sum(-1).mean())
            count += 1
    return {name: value / count for name, value in sums.items()}


@contextmanager
def listening(network: RoutineNetwork) -> Iterator[list[Tensor]]:
    """Collects the attention weights of every layer while it lasts."""
    heard: list[Tensor] = []

    def hear(_: Attention, inputs: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
        queries, keys, _values, mask = inputs
        keys = keys.repeat_interleave(queries.shape[1] // keys.shape[1], dim=1)
        scores = queries @ keys.mT / queries.shape[-1] ** 0.5
        heard.append(scores.masked_fill(~mask, -torch.inf).softmax(dim=-1))

    hooks = [layer.attention.register_forward_pre_hook(hear) for layer in network.layers]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()


def table(results: dict[str, list[dict[str, float]]]) -> list[str]:
    """Mean and spread over the seeds, as Markdown."""
    lines = ["| what differs | " + " | ".join(FIGURES) + " |", "| --- |" + " ---: |" * len(FIGURES)]
    for variant, runs in results.items():
        cells = []
        for name in FIGURES:
            values = [run[name] for run in runs]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            digits = 2 if name == "accepted_length" else 3
            cells.append(f"{statistics.mean(values):.{digits}f} ± {spread:.{digits}f}")
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    return lines


def plot(results: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Accepted length of every seed, and where the attention goes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for place, runs in enumerate(results.values()):
        left.plot([place] * len(runs), [run["accepted_length"] for run in runs], "o", color="tab:blue")
    left.set_ylabel("accepted length (tokens a round)")
    left.set_ylim(bottom=0)
    below = [0.0] * len(results)
    for part in PARTS:
        values = [statistics.mean(run[part] for run in runs) for runs in results.values()]
        right.bar(range(len(results)), values, bottom=below, label=part)
        below = [one + other for one, other in zip(below, values, strict=True)]
    right.set_ylabel("share of the draft's attention")
    right.legend()
    for axes in (left, right):
        axes.set_xticks(range(len(results)), [name.replace(", ", "\n") for name in results])
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
