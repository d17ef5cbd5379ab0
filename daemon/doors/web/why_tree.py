"""Why a job waits, in full: each way to start the job, and the facts of each obstacle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup
from msgspec.structs import asdict

from daemon.answers.explain.wording import WAYS
from daemon.doors.views.html import moment, name, number
from daemon.wire.explain import JobWhy, ObstacleView
from sia.explain.obstacles import EndingJob
from sia.limits import MAX_GROUP
from sia.wording import duration

KINDS = {
    "turn": "Jobs ahead of it", "quota": "Its pool's quota", "room": "Idle GPUs",
    "reservation": "GPUs reserved", "rival": "A pool served first", "others": "Other pools",
    "limit": "A limit on loans", "out": "Nodes that are out", "length": "Its run time",
    "round": "The next round", "early": "Its turn",
    "width": "GPUs it needs", "kept": "A pool that does not lend",
    "hold": "It is held", "pool_hold": "Its pool is on hold", "place": "Its GPUs",
}  # fmt: skip
"""Names of obstacles on the page, by their tags."""

NAMES = {"load": "forecast", "waiting": "pending"}
"""Names of facts on the page, for facts whose key is not shown."""

NUMBERS: dict[str, Callable[[float], Markup | str]] = {
    "window": duration, "run_time": duration, "longest": duration,
    "load": lambda load: "not ready yet" if load >= MAX_GROUP else number(load),
}  # fmt: skip
"""Formats of numbers that are not counts."""


class TraceFact(NamedTuple):
    """One fact of an obstacle."""

    key: str
    value: Markup | str


class ObstacleLine(NamedTuple):
    """An obstacle."""

    name: str
    facts: list[TraceFact]


class PathView(NamedTuple):
    """One way to start."""

    name: str
    open: bool
    obstacles: list[ObstacleLine]


def trace(why: JobWhy, now: float) -> list[PathView]:
    """Return all ways to start, with their obstacles. One that all ways have is listed once."""
    ways = [(WAYS[way.name].capitalize(), way.open, way.obstacles) for way in why.ways]
    if not ways and why.obstacles:
        ways = [("In each way", True, why.obstacles)]
    return [
        PathView(words, is_open, [_shown(one, now) for one in each])
        for words, is_open, each in ways
    ]


def _shown(each: ObstacleView, now: float) -> ObstacleLine:
    tag = each.__struct_config__.tag
    assert isinstance(tag, str), "obstacles are tagged by words"
    return ObstacleLine(KINDS[tag], [*_facts(asdict(each), now)])


def _facts(values: dict[str, Any], now: float) -> Iterator[TraceFact]:
    for key, value in values.items():
        yield TraceFact(NAMES.get(key, key.replace("_", " ")), _value(key, value, now))


def _value(key: str, value: Any, now: float) -> Markup | str:
    """Format a value for people; the key decides how a number is shown."""
    match value:
        case None:
            shown: Markup | str = "unknown"
        case bool():
            shown = "yes" if value else "no"
        case int() | float():
            shown = (
                moment(value, now)
                if key in {"until", "begins"}
                else NUMBERS.get(key, number)(value)
            )
        case str():
            shown = name(value)
        case dict():
            shown = "; ".join(filter(None, value.values()))
        case _:
            shown = _several(value, now)
    return shown


def _several(values: Sequence[Any], now: float) -> Markup:
    """Format a list of jobs that would have to end, or of pools with their GPUs."""
    return Markup(", ").join(_one(each, now) for each in values) or Markup("none")


def _one(each: Any, now: float) -> Markup:
    match each:
        case EndingJob(job, pool, gpus):
            whose = name(job) if job else Markup("jobs of {}").format(name(pool))
            when = (
                Markup(", until {}").format(moment(each.end, now)) if each.end is not None else ""
            )
            return Markup("{} ({} GPUs{})").format(whose, gpus, when)
        case (str(pool), gpus):
            return Markup("{} ({})").format(name(pool), gpus)
    return name(str(each))
