"""Words for meanings, and meanings for words.

A text is a decision and its cause, in one of several orders and wordings. The parser is strict: it
knows exactly the texts that can be written, and returns nothing for any other.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from rsd_planner.simulation.actors import COLOURS, Kind
from rsd_planner.simulation.chain_of_causation import Meaning

_DECISIONS: dict[str, tuple[str, ...]] = {
    "keep speed": ("keep the current speed", "hold speed", "carry on at this speed", "maintain the pace"),
    "speed up": ("accelerate gently", "speed up", "pick up speed", "increase speed"),
    "slow down": ("slow down", "reduce speed", "ease off and brake lightly", "decelerate"),
    "stop": ("brake to a stop", "come to a halt", "stop", "bring the car to a standstill"),
    "wait": ("stay stopped", "remain at a standstill", "wait", "keep standing"),
    "set off": ("set off", "pull away", "start moving again", "move off"),
}
_LATERAL: dict[str, tuple[str, ...]] = {
    "keep lane": ("", " in the lane", " and keep the lane"),
    "nudge left": (" and nudge to the left", " and move over to the left", " and steer a little left"),
    "nudge right": (" and nudge to the right", " and move over to the right", " and steer a little right"),
}
_AROUND = (" around the {around}", " past the {around}")
_JOINS = ("because", "since", "as")

# Wordings of each cause; the slots are attributes of the Meaning.
_CAUSES: dict[str, tuple[str, ...]] = {
    "free road": ("the road ahead is clear", "nothing is in the way", "our lane is free"),
    "curve": ("the road bends to the {side}", "a {side} curve is coming up", "there is a curve to the {side}"),
    "red light": (
        "the traffic light {distance} is red",
        "there is a red traffic light {distance}",
        "the signal {distance} shows red",
    ),
    "amber light": (
        "the traffic light {distance} has turned amber",
        "there is an amber traffic light {distance}",
        "the signal {distance} shows amber",
    ),
    "stop sign": (
        "there is a stop sign {distance}",
        "a stop sign stands {distance}",
        "we reach a stop sign {distance}",
    ),
    "lead": (
        "the {colour} {what} {distance} is slower",
        "a {colour} {what} drives {distance} in our lane",
        "we are behind a {colour} {what} {distance}",
    ),
    "braking lead": (
        "the brake lights of the {colour} {what} {distance} are on",
        "the {colour} {what} {distance} is braking",
        "the {colour} {what} {distance} brakes",
    ),
    "pedestrian": (
        "a pedestrian in {colour} {side} is crossing {distance}",
        "someone in {colour} {side} walks onto the road {distance}",
        "the pedestrian in {colour} {side} enters our path {distance}",
    ),
    "hidden crossing": (
        "the {colour} {what} {side} hides the crossing",
        "a {colour} {what} {side} blocks the view of the crossing",
        "we cannot see the crossing behind the {colour} {what} {side}",
    ),
    "obstacle": (
        "the {what} {side} blocks part of our lane",
        "there is a {what} {side} in our lane",
        "the lane is narrowed by the {what} {side}",
    ),
    "oncoming traffic": (
        "the lane is blocked and a {colour} {what} comes towards us",
        "an oncoming {colour} {what} leaves no room to pass",
        "we must let the oncoming {colour} {what} through first",
    ),
    "crossing traffic": (
        "a {colour} {what} crosses from {side}",
        "the {colour} {what} coming from {side} has priority",
        "we yield to the {colour} {what} crossing from {side}",
    ),
}
_SIDE_WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    "": {"left": ("on the left",), "right": ("on the right",), "ahead": ("right ahead", "directly ahead")},
    "curve": {"left": ("left",), "right": ("right",), "ahead": ("front",)},
    "crossing traffic": {"left": ("the left",), "right": ("the right",), "ahead": ("straight ahead",)},
}
_DISTANCE_WORDS: dict[str, tuple[str, ...]] = {
    "close": ("just in front of us", "a few metres ahead"),
    "near": ("a short way ahead", "not far ahead"),
    "far": ("further ahead", "in the distance"),
}
_WHAT_WORDS: dict[str, tuple[str, ...]] = {kind.value: (kind.value,) for kind in Kind} | {
    Kind.CONES.value: ("row of traffic cones", "line of orange cones"),
    Kind.BROKEN_DOWN_VEHICLE.value: ("broken-down vehicle", "stranded car with hazard lights"),
}
# "Decision because cause." and "Cause, so decision."
_PREFERENCE = 2.0
_ORDERS = ("{decision} {join} {cause}.", "{cause}, so {decision}.")


def write(meaning: Meaning, seed: int) -> str:
    """A text that says the meaning; the seed picks the wording, of which people prefer some (as 1 / rank^2)."""
    random = np.random.default_rng(seed)

    def pick(options: tuple[str, ...]) -> str:
        liking = np.arange(1.0, len(options) + 1.0) ** -_PREFERENCE
        return options[int(random.choice(len(options), p=liking / liking.sum()))]

    cause = pick(_CAUSES[meaning.cause])
    for slot, words in _slots(meaning.cause).items():
        value = getattr(meaning, slot)
        if "{" + slot + "}" in cause:
            cause = cause.replace("{" + slot + "}", pick(words[value]))
    lateral = pick(_LATERAL[meaning.lateral])
    if meaning.around is not None and meaning.cause != "obstacle":
        lateral += pick(_AROUND).replace("{around}", pick(_WHAT_WORDS[meaning.around]))
    decision = pick(_DECISIONS[meaning.longitudinal]) + lateral
    text = pick(_ORDERS).format(decision=decision, join=pick(_JOINS), cause=cause)
    return _articles(text[0].upper() + text[1:])


def parse(text: str) -> Meaning | None:
    """The meaning of a text that `write` can have written, else None."""
    body = text[:1].lower() + text[1:]
    for cause, pattern in _patterns():
        match = pattern.fullmatch(body)
        if match is None:
            continue
        found = {name.rsplit("_", 1)[0]: value for name, value in match.groupdict().items() if value is not None}
        slots = {slot: _inverse(words)[found[slot]] for slot, words in _slots(cause).items() if slot in found}
        around = _inverse(_WHAT_WORDS)[found["around"]] if "around" in found else None
        return Meaning(
            longitudinal=_inverse(_DECISIONS)[found["longitudinal"]],
            lateral=_inverse(_LATERAL)[found.get("lateral", "")],
            cause=cause,
            around=around,
            **slots,
        )
    return None


def _slots(cause: str) -> dict[str, dict[str, tuple[str, ...]]]:
    """Slot -> attribute value -> wordings, for a cause."""
    return {
        "what": _WHAT_WORDS,
        "colour": {colour: (colour,) for colour in COLOURS},
        "side": _SIDE_WORDS.get(cause, _SIDE_WORDS[""]),
        "distance": _DISTANCE_WORDS,
    }


def _articles(text: str) -> str:
    """a before a vowel sound is an."""
    return re.sub(r"\b([Aa]) (?=orange\b|amber\b|oncoming\b)", r"\1n ", text)


def _inverse(words: dict[str, tuple[str, ...]]) -> dict[str, str]:
    return {wording: value for value, wordings in words.items() for wording in wordings}


def _any_of(words: dict[str, tuple[str, ...]], name: str) -> str:
    options = sorted(_inverse(words), key=len, reverse=True)
    return f"(?P<{name}>{'|'.join(map(re.escape, options))})"


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    """A pattern for each order and wording of each cause."""
    around = "(?:" + "|".join(re.escape(way).replace(r"\{around\}", _any_of(_WHAT_WORDS, f"around_{k}"))
                              for k, way in enumerate(_AROUND)) + ")?"  # fmt: skip
    decision = _any_of(_DECISIONS, "longitudinal_0") + _any_of(_LATERAL, "lateral_0") + around
    made = []
    for cause, wordings in _CAUSES.items():
        for wording in wordings:
            pattern = re.escape(wording)
            for slot, words in _slots(cause).items():
                pattern = pattern.replace(r"\{" + slot + r"\}", _any_of(words, f"{slot}_0"))
            pattern = re.sub(r"\b(a)\\ ", r"an?\\ ", pattern)
            for order in _ORDERS:
                whole = re.escape(order).replace(r"\{decision\}", decision).replace(r"\{cause\}", pattern)
                whole = whole.replace(r"\{join\}", f"(?:{'|'.join(_JOINS)})")
                made.append((cause, re.compile(whole)))
    return made
