"""STRL as text: words and parentheses, and the requests of jobs (JamaisVu, §4.1.1).

A job's request is one expression: the nodes on which the job may run, its run time on them, and the
values of starts; see `asks_of`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import NamedTuple

from sia.limits import (
    MAX_ASK_TEXT,
    MAX_ASKS,
    MAX_QUOTA,
    MAX_SLOWDOWN,
    MAX_TIME,
    MAX_VALUE,
    UNKNOWN_RUN_TIME,
)
from sia.wording import did_you_mean, some

MAX_DEPTH = 100
"""Maximum depth of parentheses. No job's request needs a tenth, and a depth-first search of a
deeper tree could exceed Python's stack."""

ALL = "all"
"""The set of all units."""

_TOKEN = re.compile(r"[()]|[^\s();]+|;[^\n]*")


class StrlError(ValueError):
    """An error in a text: place, problem and fix in one line."""

    def __init__(self, at: TextPlace, problem: str, fix: str) -> None:
        """Name the place, the problem and the fix."""
        super().__init__(f"line {at.line}, column {at.column}: {problem}; {fix}")


class TextPlace(NamedTuple):
    """A place in a text: line and column, from 1."""

    line: int
    column: int


class StrlWord(NamedTuple):
    """A word, with its place."""

    text: str
    at: TextPlace


class StrlForm(NamedTuple):
    """The content of one pair of parentheses."""

    items: list[StrlItem]
    at: TextPlace


StrlItem = StrlWord | StrlForm


def forms(text: str) -> list[StrlItem]:
    """Return the forms of a text, each in its parentheses."""
    top = StrlForm([], TextPlace(1, 1))
    open_forms = [top]
    line, begin, seen = 1, 0, 0
    for match in _TOKEN.finditer(text):
        found, start = match.group(), match.start()
        newlines = text.count("\n", seen, start)
        if newlines:
            line += newlines
            begin = text.rfind("\n", seen, start) + 1
        seen = start
        at = TextPlace(line, start - begin + 1)
        if found[0] == ";":
            continue
        if found == "(":
            if len(open_forms) > MAX_DEPTH:
                fix = "join sums in sums, and the like"
                raise StrlError(at, f"more than {MAX_DEPTH} parentheses are open", fix)
            form = StrlForm([], at)
            open_forms[-1].items.append(form)
            open_forms.append(form)
        elif found == ")":
            if len(open_forms) == 1:
                raise StrlError(at, "this parenthesis closes nothing", "remove it, or open one")
            open_forms.pop()
        else:
            open_forms[-1].items.append(StrlWord(found, at))
    if len(open_forms) > 1:
        at = open_forms[-1].at
        raise StrlError(at, "this parenthesis is not closed", "write ) at the end of its form")
    return top.items


def shown(text: str) -> str:
    """Return a word quoted for messages."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")


def word_of(item: StrlItem, what: str) -> StrlWord:
    """Return a word. Raises StrlError for a form."""
    if isinstance(item, StrlForm):
        raise StrlError(item.at, f"{what} is expected, not a parenthesis", f"write {what}")
    return item


def number_of(
    item: StrlItem, what: str, *, least: float | None = None, most: float = MAX_TIME
) -> float:
    """Parse a finite number. Raises StrlError."""
    word = word_of(item, what)
    try:
        value = float(word.text.replace("_", "?"))
    except ValueError:
        problem = f"{what} is {shown(word.text)}, no number"
        raise StrlError(word.at, problem, "write a number, like 20") from None
    if not isfinite(value) or abs(value) > most:
        fix = f"write a number of at most {most:g}"
        raise StrlError(word.at, f"{what} is {shown(word.text)}", fix)
    if least is not None and value < least:
        fix = f"write a number of at least {least:g}"
        raise StrlError(word.at, f"{what} is {shown(word.text)}", fix)
    return value


def count_of(item: StrlItem, what: str, *, least: int = 0) -> int:
    """Parse a whole number. Raises StrlError."""
    value = number_of(item, what)
    if value != int(value) or not least <= value <= MAX_QUOTA:
        word = word_of(item, what)
        fix = f"write a whole number from {least} to {MAX_QUOTA}"
        raise StrlError(word.at, f"{what} is {shown(word.text)}", fix)
    return int(value)


def operator_of(form: StrlForm, known: dict[str, str]) -> StrlWord:
    """Return the first word of a form, one of those known."""
    if not form.items:
        raise StrlError(form.at, "the parentheses are empty", f"write {some([*known])} first")
    word = word_of(form.items[0], "a word")
    if word.text not in known:
        close = did_you_mean(word.text, [*known])
        fix = f"use one of {', '.join(known)}.{close}" if close else f"use {', '.join(known)}"
        raise StrlError(word.at, f"unknown operator {shown(word.text)}", fix)
    return word


def arguments_of(form: StrlForm, usage: str, least: int, most: int | None = None) -> list[StrlItem]:
    """Return the arguments of a form. Raises StrlError for another number of them."""
    given = form.items[1:]
    if len(given) < least or (most is not None and len(given) > most):
        name = word_of(form.items[0], "a word").text
        raise StrlError(form.at, f"{name} has {len(given)} arguments", f"write ({usage})")
    return given


OPERATORS = {
    "nck": "nck SET K START DUR VALUE",
    "lnck": "lnck SET K START DUR VALUE",
    "killnck": "killnck SET K FROM UNTIL COST",
    "lkillnck": "lkillnck SET K FROM UNTIL COST",
    "max": "max EXPR…",
    "min": "min EXPR…",
    "sum": "sum EXPR…",
    "scale": "scale FACTOR EXPR",
    "barrier": "barrier VALUE EXPR",
    "job": "job NAME EXPR",
}
"""The syntax of each operator of an expression."""


def expression_of(item: StrlItem) -> StrlForm:
    """Return an expression's form. Raises StrlError for a word."""
    if isinstance(item, StrlWord):
        fix = f"write an operator in parentheses: {', '.join(OPERATORS)}"
        raise StrlError(item.at, f"{shown(item.text)} is no expression", fix)
    return item


class StrlAsk(NamedTuple):
    """One `nck` of a job's request. Times are in seconds."""

    among: str
    """A set of nodes: an attribute, `all`, `same:rack`, or names in parentheses."""
    gpus: int
    start: float
    """The earliest start after the submission."""
    duration: float
    value: float
    """The value of such a start; 0 means that the job should not start so."""


@lru_cache(maxsize=10_000)
def asks_of(text: str) -> tuple[StrlAsk, ...]:
    """Parse a job's request, in the order of the text. Raises StrlError. O(text).

    A job runs on GPUs of one set, so only `nck`, `max`, `scale`, `barrier` and `job` are allowed.
    Starts after the last START of a set have the value of that START.
    """
    if len(text) > MAX_ASK_TEXT:
        fix = f"write at most {MAX_ASK_TEXT} characters"
        raise StrlError(TextPlace(1, 1), f"the request has {len(text)} characters", fix)
    if not text.isprintable():
        fix = "write it in one line, with spaces in place of tabs"
        raise StrlError(
            TextPlace(1, 1), "the request has line breaks or unprintable characters", fix
        )
    found = forms(text)
    if len(found) != 1:
        at = found[1].at if found else TextPlace(1, 1)
        fix = "write one, such as (max (nck gpu 2 0 60 100) (nck all 2 0 90 100))"
        raise StrlError(at, f"there are {len(found)} expressions", fix)
    asks = _asks(found[0], 1.0)
    if len(asks) > MAX_ASKS:
        fix = f"give at most {MAX_ASKS}; a VALUE holds until the next START of its set"
        raise StrlError(TextPlace(1, 1), f"there are {len(asks)} times nck", fix)
    return tuple(asks)


def _asks(item: StrlItem, factor: float) -> list[StrlAsk]:
    form = expression_of(item)
    word = operator_of(form, OPERATORS)
    name, usage = word.text, OPERATORS[word.text]
    if name == "nck":
        among, count, start, long, value = arguments_of(form, usage, 5, 5)
        times = number_of(start, "START", least=0.0), number_of(long, "DUR", least=0.0)
        worth = factor * number_of(value, "VALUE", least=0.0)
        return [StrlAsk(_set_of(among), count_of(count, "K", least=1), *times, worth)]
    if name in ("lnck", "killnck", "lkillnck"):
        why = "takes any number of GPUs" if name == "lnck" else "is for the scheduler to decide"
        raise StrlError(word.at, f"a job cannot ask for {name}, which {why}", "write nck")
    if name in ("max", "sum", "min"):
        parts = arguments_of(form, usage, 1)
        if name != "max" and len(parts) > 1:
            fix = "write max, of which one part is chosen"
            raise StrlError(word.at, f"a job runs on GPUs of one set, which {name} is not", fix)
        return [ask for part in parts for ask in _asks(part, factor)]
    first, part = arguments_of(form, usage, 2, 2)
    if name == "scale":
        return _asks(part, factor * number_of(first, "FACTOR", least=0.0))
    if name == "barrier":
        least = number_of(first, "VALUE", least=0.0)
        reached = (ask for ask in _asks(part, 1.0) if ask.value >= least)
        return [ask._replace(value=factor * least) for ask in reached]
    word_of(first, "the name of a job")
    return _asks(part, factor)


def _set_of(item: StrlItem) -> str:
    if isinstance(item, StrlWord):
        return item.text
    names = [word_of(each, "the name of a node").text for each in item.items]
    if not names:
        raise StrlError(item.at, "the set is empty", "name at least one node")
    return f"({' '.join(names)})"


def durations(asks: Sequence[StrlAsk]) -> Mapping[str, float]:
    """Return the run time in seconds on each set, in the order of the text."""
    return {ask.among: ask.duration for ask in asks}


def wanted_of(asks: Sequence[StrlAsk]) -> Sequence[StrlAsk]:
    """Return the requests for sets on which some start has a value above 0. O(asks)."""
    worth = {ask.among for ask in asks if ask.value > 0.0}
    return [ask for ask in asks if ask.among in worth]


def quickest(text: str) -> float | None:
    """Return the smallest run time in a job's request, in seconds; None without a request."""
    return min((ask.duration for ask in wanted_of(asks_of(text))), default=None) if text else None


def worth_of(asks: Sequence[StrlAsk], among: str, waited: float) -> float:
    """Return the value of a start on a set, `waited` seconds after the submission. O(asks).

    It is the VALUE of the set's latest `nck` whose START has passed; 0 before the first.
    """
    there = [ask for ask in asks if ask.among == among and ask.start <= waited + 1e-9]
    return max(there, key=lambda ask: (ask.start, ask.value)).value if there else 0.0


def problem_of(text: str, width: int) -> tuple[str, str] | None:
    """Return the problem of a job's request, and the fix; None if there is no problem."""
    try:
        asks = asks_of(text)
    except StrlError as error:
        problem, _, fix = str(error).partition("; ")
        return f"strl: {problem}", fix
    if not any(ask.value for ask in asks):
        return "strl: no start is worth anything", "give at least one nck a VALUE above 0"
    long = durations(asks)
    least = min(long.values())
    return next((wrong for ask in asks if (wrong := _wrong(ask, long, least, width))), None)


def _wrong(
    ask: StrlAsk, long: Mapping[str, float], least: float, width: int
) -> tuple[str, str] | None:
    if ask.gpus != width:
        return f"strl: K is {ask.gpus}, but the job has {width} GPUs", f"write {width}"
    if not ask.value <= MAX_VALUE:  # also what is not a number, after factors without bound
        return f"strl: VALUE is {ask.value:g}", f"write at most {MAX_VALUE:g}"
    if not 0 < ask.duration <= UNKNOWN_RUN_TIME:
        fix = f"write the seconds that the job runs, at most {UNKNOWN_RUN_TIME:g}"
        return f"strl: DUR is {ask.duration:g}", fix
    if ask.duration != long[ask.among]:
        said = f"strl: DUR of {ask.among} is {ask.duration:g} and {long[ask.among]:g}"
        return said, "write the same for all starts on one set"
    if ask.duration > MAX_SLOWDOWN * least:
        fix = f"write at most {MAX_SLOWDOWN:g} times the least"
        return f"strl: DUR is {least:g} and {ask.duration:g}", fix
    return None
