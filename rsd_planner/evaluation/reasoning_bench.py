"""How fast two reasoners write a chain of causation: every way of drafting against decoding token by token.

All ways decode behind the same prefilled prompt, with the same target, dtype, cache and ending, one after another in
turns. Reasoning time runs from the end of the prefill to the token that opens the trajectory.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from rsd_planner.evaluation.results import write_json
from rsd_planner.planner import Planner, PlannerSettings, routine_for
from rsd_planner.reasoning.decoding import ReasonedRow, decode_autoregressively, decode_speculatively
from rsd_planner.reasoning.drafts import DraftSource, FirstOf, PreviousChain, PromptLookup
from rsd_planner.reasoning.routine import RoutineNetwork, RoutineReasoner
from rsd_planner.reasoning.routine_checkpoint import routine_beside
from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.reasoning.target import TokenSource
from rsd_planner.scene import Scene
from rsd_planner.simulation.cameras import Rig
from rsd_planner.vla.checkpoint import Checkpoint, dtype_named

ALONE = "autoregressive"
PUBLIC_ROUND_COST = 6.25 / 5.8
"""Cost of a round (draft and verification) over that of one token on a GPU, where both wait for memory: what the public
notes on DFlash's draft for Alpamayo-R1 (8 B) give, accepted length 6.25 at 5.8 times the speed."""


class Moment(NamedTuple):
    """A scene, the one shortly before it in the same drive, and that drive."""

    scene: Scene
    before: Scene
    drive: int


@dataclass(frozen=True)
class Way:
    """One way of decoding: where drafts come from (None: nowhere) and how many tokens a pass judges.

    reasoner: name of the routine reasoner that drafts alone, whose prices the cost model takes; empty if there is none.
    """

    name: str
    source: DraftSource | None = None
    block: int = 0
    reasoner: str = ""


@dataclass
class Trial:
    """What one way did on one moment: seconds of each repetition, and the chain (the same in all of them)."""

    seconds: list[float] = field(default_factory=list)
    row: ReasonedRow = field(default_factory=ReasonedRow)
    margin: float = 0.0
    """Of greedy decoding: the largest distance of a committed token's logit from the best one, in one pass over all."""

    @property
    def median_s(self) -> float:
        """Of the repetitions."""
        return statistics.median(self.seconds)


class ReasoningBench:
    """Measures ways of decoding with one planner's target, on moments of drives."""

    def __init__(
        self, planner: Planner, drafts: dict[str, RoutineNetwork], blocks: Sequence[int] = (), repeats: int = 3
    ) -> None:
        self._planner, self._repeats = planner, repeats
        self._previous = PreviousChain()
        reasoners = {
            name: RoutineReasoner(net, planner.model.embed, planner.model.head) for name, net in drafts.items()
        }
        longest = max([16, *(network.config.block for network in drafts.values())])
        self.ways = [
            Way(ALONE),
            Way("prompt lookup", PromptLookup(), longest),
            Way("previous chain", self._previous, longest),
        ]
        for number, (name, reasoner) in enumerate(reasoners.items()):
            own = reasoner.network.config.block
            sweep = [block for block in blocks if block < own] if number == 0 else []
            self.ways += [Way(f"{name}, block {block}", reasoner, block, name) for block in [*sweep, own]]
            if number == 0:
                self.main = self.ways[-1].name
                self.ways.append(Way(f"previous chain, then {name}", FirstOf(self._previous, reasoner), own))
        self._keep = sorted({layer for reasoner in reasoners.values() for layer in reasoner.layers})
        self.reasoners = reasoners
        self.trials: dict[str, list[Trial]] = {way.name: [] for way in self.ways}
        self.drives: list[int] = []

    def run(self, moments: Iterable[Moment]) -> None:
        """Decodes every moment in every way; the first moment once more beforehand, to warm up."""
        for number, moment in enumerate(moments):
            if number == 0:
                self._one(moment, 1)
                self.prices = self._price(moment.scene)
            for name, trial in self._one(moment, self._repeats).items():
                self.trials[name].append(trial)
            self.drives.append(moment.drive)

    def _one(self, moment: Moment, repeats: int) -> dict[str, Trial]:
        planner = self._planner
        sampling, ending, budget = planner.sampling, planner.ending, planner.budget
        before = planner.prefill(moment.before)
        self._previous.remember(decode_autoregressively(before, sampling, ending, budget)[0].tokens)
        context = planner.prefill(moment.scene, keep=self._keep)
        prompt, length = planner.model.prompt_of(context), context.length
        found = {way.name: Trial() for way in self.ways}
        for turn in range(repeats):
            for way in self.ways[turn % len(self.ways) :] + self.ways[: turn % len(self.ways)]:
                context.crop(length)
                begin = time.perf_counter()
                if way.source is None:
                    (row,) = decode_autoregressively(context, sampling, ending, budget)
                else:
                    row = decode_speculatively(context, way.source, prompt, sampling, ending, budget, way.block)
                _wait(planner.model.device)
                found[way.name].seconds.append(time.perf_counter() - begin)
                found[way.name].row = row
        if sampling.greedy:
            for trial in found.values():
                context.crop(length)
                said = torch.tensor([trial.row.tokens], device=planner.model.device)
                answers = torch.cat([context.last.logits[0, -1:], context.verify(said).logits[0, :-1]]).float()
                answers[:, slice(*sampling.masked)] = -torch.inf
                chosen = answers.gather(1, said[0, :, None])[:, 0]
                own = torch.tensor([source is not TokenSource.FORCED for source in trial.row.sources])
                trial.margin = float((answers.amax(dim=1) - chosen).cpu()[own].max())
        return found

    def _price(self, scene: Scene, turns: int = 15) -> dict[str, Any]:
        """Seconds of the parts on their own: passes of the target over k tokens, and of each draft."""
        planner, device = self._planner, self._planner.model.device
        context = planner.prefill(scene, keep=self._keep)
        prompt, length = planner.model.prompt_of(context), context.length
        sizes = sorted({1, 2, 4, 8, 16, *(way.block for way in self.ways if way.block)})
        tokens = {size: torch.zeros(1, size, dtype=torch.long, device=device) for size in sizes}

        def judged(size: int) -> None:
            answer = context.verify(tokens[size], keep=self._keep)
            planner.sampling.choose_along(answer.logits[0], 0)
            context.crop(length)

        def prepared(reasoner: RoutineReasoner) -> None:
            reasoner.begin(prompt, context.last.hidden, planner.budget + 2)

        works: dict[str, Callable[[], Any]] = {f"verify {size}": partial(judged, size) for size in sizes}
        for name, reasoner in self.reasoners.items():
            works[f"begin {name}"] = partial(prepared, reasoner)
            works[f"draft {name}"] = partial(reasoner.propose, [0], 64, planner.sampling)
        found: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(turns):
            for name, work in works.items():
                begin = time.perf_counter()
                work()
                _wait(device)
                found[name].append(time.perf_counter() - begin)
        return {name: statistics.median(seconds) for name, seconds in found.items()}

    # Figures ------------------------------------------------------------------------------------------------------

    def figures(self) -> list[dict[str, Any]]:
        """One entry a way: times, ratios to decoding token by token with 95 % intervals over drives, shares."""
        alone = self.trials[ALONE]
        return [self._figures(way, self.trials[way.name], alone) for way in self.ways]

    def _figures(self, way: Way, trials: list[Trial], alone: list[Trial]) -> dict[str, Any]:
        rounds = [one for trial in trials for one in trial.row.rounds]
        sources = [source for trial in trials for source in trial.row.sources]
        seconds = np.array([trial.median_s for trial in trials])
        ratios = np.array([one.median_s for one in alone]) / seconds
        low, high = self._interval(ratios)
        committed = sum(source is not TokenSource.FORCED for source in sources)
        own = sum(source is TokenSource.DELIBERATIVE for source in sources)
        spent = {
            "draft": sum(one.draft_s for one in rounds),
            "verify": sum(one.verify_s for one in rounds),
            "judge": sum(one.judge_s for one in rounds),
        }
        whole = sum(trial.seconds[-1] for trial in trials)
        found: dict[str, Any] = {
            "way": way.name,
            "block": way.block,
            "milliseconds": float(np.median(seconds)) * 1e3,
            "speed_up": float(np.median(ratios)),
            "speed_up_low": low,
            "speed_up_high": high,
            "speed_up_of_moments": ratios.tolist(),
            "accepted_length": committed / max(own, 1),
            # What a draft that is always right would reach.
            "accepted_at_most": committed / sum(-(-len(trial.row.tokens) // max(way.block, 1)) for trial in trials),
            "acceptance_rate": sum(one.accepted for one in rounds) / max(1, sum(one.drafted for one in rounds)),
            "routine_share": sum(source is TokenSource.ROUTINE for source in sources) / len(sources),
            "previous_share": sum(source is TokenSource.PREVIOUS for source in sources) / len(sources),
            "tokens_a_second": len(sources) / float(seconds.sum()),
            "tokens_a_chain": len(sources) / len(trials),
            "rounds_a_chain": own / len(trials),
            "chains_that_differ": sum(a.row.tokens != b.row.tokens for a, b in zip(trials, alone, strict=True)),
            "largest_margin": max(trial.margin for trial in trials),
            "acceptance_by_position": _by_position(trials, way.block),
        }
        if rounds:
            found["time_shares"] = {name: part / whole for name, part in spent.items()}
            found["time_shares"]["rest"] = 1.0 - sum(found["time_shares"].values())
        if way.reasoner:
            found |= self._predicted(way.reasoner, way.block, found)
        return found

    def _predicted(self, reasoner: str, block: int, found: dict[str, Any]) -> dict[str, float]:
        """Speed-up by the cost model: n tokens one by one, over a beginning and n / accepted-length rounds."""
        tokens, length, price = found["tokens_a_chain"], found["accepted_length"], self.prices
        rounds = tokens / length
        together = price[f"begin {reasoner}"] + rounds * (price[f"draft {reasoner}"] + price[f"verify {block}"])
        return {
            "speed_up_predicted": tokens * price["verify 1"] / together,
            "speed_up_predicted_gpu": length / PUBLIC_ROUND_COST,
        }

    def _interval(self, values: np.ndarray, resamples: int = 2000) -> tuple[float, float]:
        """95 % percentile interval of the median over all moments, by resampling drives."""
        drives = np.array(self.drives)
        own = [values[drives == drive] for drive in np.unique(drives)]
        drawn = np.random.default_rng(0).integers(len(own), size=(resamples, len(own)))
        medians = [np.median(np.concatenate([own[drive] for drive in some])) for some in drawn]
        low, high = np.percentile(medians, [2.5, 97.5])
        return float(low), float(high)


def _by_position(trials: Sequence[Trial], block: int) -> list[float]:
    """Share of the drafted k-th tokens of a block (k = 1, 2, ...) that were accepted."""
    rounds = [one for trial in trials for one in trial.row.rounds]
    found = []
    for place in range(1, block):
        asked = [one for one in rounds if one.drafted >= place]
        if not asked:
            break
        found.append(sum(one.accepted >= place for one in asked) / len(asked))
    return found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def table(figures: Sequence[dict[str, Any]], prices: dict[str, float]) -> str:
    """The figures for people."""
    head = (
        f"{'way of decoding':<34}{'ms':>8}{'speed-up':>10}{'95 %':>14}{'predicted':>11}{'accepted':>10}{'at most':>9}"
        f"{'routine':>9}{'previous':>10}{'tokens/s':>10}{'differ':>8}"
    )
    lines = [head]
    for one in figures:
        interval = f"{one['speed_up_low']:.2f}..{one['speed_up_high']:.2f}"
        predicted = f"{one['speed_up_predicted']:.2f}" if "speed_up_predicted" in one else "-"
        lines.append(
            f"{one['way']:<34}{one['milliseconds']:>8.1f}{one['speed_up']:>10.2f}{interval:>14}{predicted:>11}"
            f"{one['accepted_length']:>10.2f}{one['accepted_at_most']:>9.2f}{one['routine_share']:>9.1%}"
            f"{one['previous_share']:>10.1%}{one['tokens_a_second']:>10.0f}{one['chains_that_differ']:>8}"
        )
    for one in figures:
        if "time_shares" in one:
            shares = "  ".join(f"{name} {share:.0%}" for name, share in one["time_shares"].items())
            lines.append(f"time of {one['way']}: {shares}")
    for one in figures:
        if "speed_up_predicted" in one:
            positions = " ".join(f"{share:.2f}" for share in one["acceptance_by_position"])
            lines.append(f"acceptance by position, {one['way']}: {positions}")
    lines.append("one by one (ms): " + ", ".join(f"{name} {seconds * 1e3:.2f}" for name, seconds in prices.items()))
    return "\n".join(lines)


def describe(planner: Planner) -> str:
    """What the figures hold for."""
    weight = planner.model.action_out_proj.weight
    sampling = planner.sampling
    how = "greedy" if sampling.greedy else f"temperature {sampling.temperature}, top-p {sampling.top_p}, Gumbel"
    where = torch.cuda.get_device_name(weight.device) if weight.is_cuda else f"CPU, {torch.get_num_threads()} threads"
    return f"{where}, {str(weight.dtype).removeprefix('torch.')}, torch {torch.__version__}, {how}"


def as_json(bench: ReasoningBench, planner: Planner, figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Everything, for a file."""
    return {
        "machine": describe(planner),
        "sampling": dataclasses.asdict(planner.sampling),
        "moments": len(bench.drives),
        "drives": len(set(bench.drives)),
        "ways": figures,
        "prices_s": bench.prices,
        "public_round_cost": PUBLIC_ROUND_COST,
    }


def run(arguments: argparse.Namespace, moments: Callable[[str, int, int, Rig], Iterable[Moment]]) -> int:
    """The command. moments(split, drives, each, rig) renders what is reasoned about; ValueError without a draft."""
    if arguments.quick:
        arguments.drives, arguments.moments, arguments.repeats = min(arguments.drives, 5), 2, 2
    beside = routine_beside(arguments.model)
    drafts = arguments.draft or ([beside] if beside else [])
    if not drafts:
        raise ValueError(f"there is no {arguments.model}-routine; name a draft with --draft")
    settings = PlannerSettings(sampling=Sampling(greedy=not arguments.sampled), draft="none")
    checkpoint = Checkpoint.open(arguments.model)
    planner = Planner.from_checkpoint(checkpoint, settings, dtype=dtype_named(arguments.dtype))
    networks = {
        str(draft) if number else "routine": routine_for(planner.model, draft) for number, draft in enumerate(drafts)
    }
    bench = ReasoningBench(planner, networks, arguments.blocks, arguments.repeats)
    bench.run(moments(arguments.split, arguments.drives, arguments.moments, Rig.from_yaml(arguments.rig)))
    figures = bench.figures()
    print(f"{describe(planner)}; {len(bench.drives)} moments of {arguments.drives} {arguments.split} drives")
    print(table(figures, bench.prices))
    print(f"speed-up {next(one['speed_up'] for one in figures if one['way'] == bench.main):.2f}")
    if arguments.out:
        write_json(arguments.out, as_json(bench, planner, figures))
    return 0
