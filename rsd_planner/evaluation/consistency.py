"""Whether the trajectory does what the chain of causation says."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from rsd_planner.simulation.chain_of_causation import LONGITUDINAL
from rsd_planner.simulation.wording import parse

# Words of free texts (the public model's) for each decision; the first that occurs in the text decides.
_WORDS: tuple[tuple[str, str], ...] = (
    ("wait", r"(stay|remain|keep)(ing|s)? (stopped|still|at a standstill|standing)|\bwait"),
    ("set off", r"(start|begin)(s|ning)? moving|pull(s|ing)? away|set(s|ting)? off|move(s)? off|resume"),
    ("stop", r"\b(come to a (stop|halt)|stop(s|ping)?|halt|standstill)\b(?! sign)"),
    ("slow down", r"slow(s|ing)?|decelerat|brak|reduc(e|ing) speed|yield|ease off"),
    ("speed up", r"accelerat|speed(s|ing)? up|increase speed|pick up speed"),
    (
        "keep speed",
        r"(keep|maintain|hold|adapt)(s|ing)? (the |a |current |our )*(speed|pace|distance|lane)|continue|carry on",
    ),
)


def stated_decision(text: str) -> str | None:
    """The longitudinal decision that a text states, None if it states none that is understood."""
    meaning = parse(text)
    if meaning is not None:
        return meaning.longitudinal
    found = [(match.start(), decision) for decision, words in _WORDS if (match := re.search(words, text.lower()))]
    return min(found)[1] if found else None


def is_done(decision: str, speed_now_mps: float, speed_mps: NDArray[np.float64], dt_s: float = 0.1) -> bool:
    """Whether planned speeds [N] carry a decision out.

    The bounds are those by which the decisions are defined (simulation.chain_of_causation), with 0.5 m/s of leeway.
    """
    if decision not in LONGITUDINAL:
        raise ValueError(f"decision {decision!r} is not one of {', '.join(LONGITUDINAL)}")
    soon = float(speed_mps[round(3.0 / dt_s) - 1])
    change = soon - speed_now_mps
    if decision == "wait":
        return bool(speed_mps[: round(2.0 / dt_s)].max() < 1.0)
    if decision == "stop":
        return bool(speed_mps.min() < 0.8)
    if decision == "set off":
        return speed_now_mps < 2.5 and change > 1.0
    if decision == "slow down":
        return change < -0.5
    if decision == "speed up":
        return change > 0.5
    return abs(change) < 1.5


def consistency(text: str, speed_now_mps: float, speed_mps: NDArray[np.float64], dt_s: float = 0.1) -> float:
    """Reasoning-action consistency of one plan: 1 if it does what it says, 0 if not, NaN if nothing was understood."""
    decision = stated_decision(text)
    return float("nan") if decision is None else float(is_done(decision, speed_now_mps, speed_mps, dt_s))
