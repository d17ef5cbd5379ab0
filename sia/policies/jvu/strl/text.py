"""STRL as text: parentheses around an operator and what it needs; `;` begins a comment."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import isfinite
from typing import NamedTuple

from sia.limits import MAX_QUOTA, MAX_TIME
from sia.policies.jvu.strl.expressions import (
    Barrier,
    Choose,
    Expression,
    JobScope,
    Kill,
    Leaf,
    Max,
    Min,
    Scale,
    StrlHolding,
    StrlProblem,
    Sum,
    Units,
)
from sia.wording import did_you_mean, some

MAX_DEPTH = 100
"""Parentheses within parentheses: no job's request needs a tenth, and trees are walked depth
first."""

MAX_OPTIONS = 512
"""Leaves of one `job`, and parts of one `max`: 24 starts on each of 20 racks. With more, a coarser
slot says the same."""

MAX_LEAVES = 50_000
"""Leaves of one problem; with more, no solver is done within a cycle."""

MAX_TEXT = 2**23
"""Characters of one text, about 200 for each leaf."""

_TOKEN = re.compile(r"[()]|[^\s();]+|;[^\n]*")

ALL = "all"


class StrlError(ValueError):
    """What is wrong with a text, where, and how to mend it, in one line."""

    def __init__(self, at: _Place, problem: str, fix: str) -> None:
        """Name the place, the problem and the fix."""
        super().__init__(f"line {at.line}, column {at.column}: {problem}; {fix}")


class _Place(NamedTuple):
    line: int
    column: int


class _Word(NamedTuple):
    text: str
    at: _Place


class _Form(NamedTuple):
    items: list[_Word | _Form]
    at: _Place


_Item = _Word | _Form


def parse_strl(text: str) -> StrlProblem:
    """Parse a problem. Raises StrlError. O(text · log text)."""
    return _Problem(_forms(text)).read()


def format_strl(problem: StrlProblem) -> str:
    """Return a problem as text that `parse_strl` reads back; each set becomes an attribute.

    Names must have no spaces, parentheses and semicolons. O(leaves + sizes of different sets).
    """
    sets: dict[Units, str] = {}
    goal = _written(problem.goal, sets)
    words: dict[str, list[str]] = {node: [] for node in problem.nodes}
    for units, name in sets.items():
        for node in units:
            words[node].append(name)
    lines = [
        f"(node {' '.join([node, str(units), *words[node]])})"
        for node, units in problem.nodes.items()
    ]
    lines.append(f"(now {problem.now!r}) (slot {problem.slot!r}) (horizon {problem.horizon!r})")
    for job, held, end in problem.held:
        names = " ".join(node for node, count in held.items() for _ in range(count))
        lines.append(f"(held {job} ({names}) {end!r})")
    return "\n".join([*lines, f"(maximise {goal})"])


def _written(expression: Expression, sets: dict[Units, str]) -> str:
    if isinstance(expression, Choose | Kill):
        units, k, *numbers, linear = expression
        among = sets.setdefault(units, f"set:{len(sets)}")
        name = ("l" if linear else "") + ("nck" if isinstance(expression, Choose) else "killnck")
        return f"({name} {among} {k} {' '.join(map(repr, numbers))})"
    if isinstance(expression, Max | Sum | Min):
        parts = " ".join(_written(part, sets) for part in expression.parts)
        return f"({type(expression).__name__.lower()} {parts})"
    first, part = expression
    name = "job" if isinstance(expression, JobScope) else type(expression).__name__.lower()
    return f"({name} {first} {_written(part, sets)})"


def _forms(text: str) -> list[_Item]:
    """Return the forms of a text, each in its parentheses."""
    if len(text) > MAX_TEXT:
        fix = f"write at most {MAX_TEXT} characters"
        raise StrlError(_Place(1, 1), f"the text has {len(text)} characters", fix)
    top = _Form([], _Place(1, 1))
    open_forms = [top]
    line, begin, seen = 1, 0, 0
    for match in _TOKEN.finditer(text):
        found, start = match.group(), match.start()
        newlines = text.count("\n", seen, start)
        if newlines:
            line += newlines
            begin = text.rfind("\n", seen, start) + 1
        seen = start
        at = _Place(line, start - begin + 1)
        if found[0] == ";":
            continue
        if found == "(":
            if len(open_forms) > MAX_DEPTH:
                fix = "join sums in sums, and the like"
                raise StrlError(at, f"more than {MAX_DEPTH} parentheses are open", fix)
            form = _Form([], at)
            open_forms[-1].items.append(form)
            open_forms.append(form)
        elif found == ")":
            if len(open_forms) == 1:
                raise StrlError(at, "this parenthesis closes nothing", "remove it, or open one")
            open_forms.pop()
        else:
            open_forms[-1].items.append(_Word(found, at))
    if len(open_forms) > 1:
        at = open_forms[-1].at
        raise StrlError(at, "this parenthesis is not closed", "write ) at the end of its form")
    return top.items


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:37] + "...")


def _word(item: _Item, what: str) -> _Word:
    if isinstance(item, _Form):
        raise StrlError(item.at, f"{what} is expected, not a parenthesis", f"write {what}")
    return item


def _number(item: _Item, what: str, *, least: float | None = None, most: float = MAX_TIME) -> float:
    word = _word(item, what)
    try:
        value = float(word.text.replace("_", "?"))
    except ValueError:
        problem = f"{what} is {_shown(word.text)}, no number"
        raise StrlError(word.at, problem, "write a number, like 20") from None
    if not isfinite(value) or abs(value) > most:
        fix = f"write a number of at most {most:g}"
        raise StrlError(word.at, f"{what} is {_shown(word.text)}", fix)
    if least is not None and value < least:
        fix = f"write a number of at least {least:g}"
        raise StrlError(word.at, f"{what} is {_shown(word.text)}", fix)
    return value


def _count(item: _Item, what: str, *, least: int = 0) -> int:
    value = _number(item, what)
    if value != int(value) or not least <= value <= MAX_QUOTA:
        word = _word(item, what)
        fix = f"write a whole number from {least} to {MAX_QUOTA}"
        raise StrlError(word.at, f"{what} is {_shown(word.text)}", fix)
    return int(value)


class _Problem:
    """Reads the forms of a text: nodes first, as others name them."""

    def __init__(self, forms: Sequence[_Item]) -> None:
        self._forms: dict[str, list[_Form]] = {name: [] for name in _STATEMENTS}
        for item in forms:
            if isinstance(item, _Word):
                fix = "put it in parentheses, as in (now 10)"
                raise StrlError(item.at, f"{_shown(item.text)} stands alone", fix)
            name = self._operator(item, _STATEMENTS).text
            self._forms[name].append(item)
        self._nodes: dict[str, int] = {}
        self._sets: dict[str, Units] = {}
        self._named: dict[tuple[str, ...], Units] = {}
        self._leaves = 0

    @staticmethod
    def _operator(form: _Form, known: dict[str, str]) -> _Word:
        """Return the first word of a form, one of those known."""
        if not form.items:
            raise StrlError(form.at, "the parentheses are empty", f"write {some([*known])} first")
        word = _word(form.items[0], "a word")
        if word.text not in known:
            close = did_you_mean(word.text, [*known])
            fix = f"use one of {', '.join(known)}.{close}" if close else f"use {', '.join(known)}"
            raise StrlError(word.at, f"unknown operator {_shown(word.text)}", fix)
        return word

    @staticmethod
    def _arguments(form: _Form, usage: str, least: int, most: int | None = None) -> list[_Item]:
        """Return the arguments of a form, of which there are so many."""
        given = form.items[1:]
        if len(given) < least or (most is not None and len(given) > most):
            name = _word(form.items[0], "a word").text
            raise StrlError(form.at, f"{name} has {len(given)} arguments", f"write ({usage})")
        return given

    def read(self) -> StrlProblem:
        self._read_nodes()
        numbers = {"now": self._one("now", 0.0), "slot": self._one("slot"),
                   "horizon": self._one("horizon")}  # fmt: skip
        held = self._read_held()
        goals = self._forms["maximise"]
        if len(goals) != 1:
            at = goals[1].at if goals else _Place(1, 1)
            problem = f"{len(goals)} forms say what to maximise"
            raise StrlError(at, problem, "write (maximise EXPR) once")
        (goal,) = self._arguments(goals[0], "maximise EXPR", 1, 1)
        return StrlProblem(self._nodes, held=held, goal=self._expression(goal), **numbers)

    def _one(self, name: str, default: float | None = None) -> float:
        """Return the number of a form that stands once."""
        forms = self._forms[name]
        if not forms and default is not None:
            return default
        usage = _STATEMENTS[name]
        if len(forms) != 1:
            at = forms[1].at if forms else _Place(1, 1)
            problem = f"{len(forms)} forms say {name}"
            raise StrlError(at, problem, f"write ({usage}) once, with a number of seconds")
        (item,) = self._arguments(forms[0], usage, 1, 1)
        value = _number(item, name, least=None if name == "now" else 0.0)
        if name == "slot" and value <= 0.0:
            raise StrlError(forms[0].at, "slot is 0", "write a number of seconds above 0")
        return value

    def _read_nodes(self) -> None:
        attributes: dict[str, list[str]] = {}
        for form in self._forms["node"]:
            name, units, *words = self._arguments(form, _STATEMENTS["node"], 2)
            node = self._new_node(name, _count(units, "UNITS", least=1))
            for item in words:
                word = _word(item, "an attribute")
                if word.text == ALL:
                    fix = "give the attribute another name"
                    raise StrlError(word.at, "all names every unit, and no attribute", fix)
                attributes.setdefault(word.text, []).append(node)
        for form in self._forms["nodes"]:
            for name in self._arguments(form, _STATEMENTS["nodes"], 1):
                self._new_node(name, 1)
        for attribute, names in attributes.items():
            if attribute in self._nodes:
                fix = "name one of them otherwise"
                raise StrlError(
                    self._forms["node"][0].at,
                    f"{_shown(attribute)} is a node and an attribute", fix,
                )  # fmt: skip
            self._sets[attribute] = frozenset(names)
        self._sets[ALL] = frozenset(self._nodes)

    def _new_node(self, item: _Item, units: int) -> str:
        word = _word(item, "the name of a node")
        if word.text in self._nodes:
            problem = f"node {_shown(word.text)} stands twice"
            raise StrlError(word.at, problem, "name each node once, with its number of units")
        self._nodes[word.text] = units
        return word.text

    def _node(self, item: _Item) -> str:
        word = _word(item, "the name of a node")
        if word.text not in self._nodes:
            if word.text in self._sets:
                fix = f"write {word.text} without parentheses"
                raise StrlError(word.at, f"{_shown(word.text)} is an attribute, no node", fix)
            close = did_you_mean(word.text, [*self._nodes])
            fix = f"add (nodes {word.text}), or use a node that there is.{close}"
            raise StrlError(word.at, f"unknown node {_shown(word.text)}", fix)
        return word.text

    def _read_held(self) -> tuple[StrlHolding, ...]:
        now = self._one("now", 0.0)
        held, used = [], dict.fromkeys(self._nodes, 0)
        for form in self._forms["held"]:
            job, names, end = self._arguments(form, _STATEMENTS["held"], 3, 3)
            if isinstance(names, _Word):
                fix = "write the nodes in parentheses, each once for each unit"
                raise StrlError(names.at, f"{_shown(names.text)} is no list of nodes", fix)
            units: dict[str, int] = {}
            for item in names.items:
                node = self._node(item)
                units[node] = units.get(node, 0) + 1
            holding = StrlHolding(_word(job, "the name of a job").text, units, _number(end, "END"))
            if holding.end <= now:
                continue  # it has ended
            held.append(holding)
            for node, count in units.items():
                used[node] += count
                if used[node] > self._nodes[node]:
                    problem = f"{used[node]} units of {_shown(node)} are held"
                    fix = f"it has {self._nodes[node]}; name it once for each unit"
                    raise StrlError(names.at, problem, fix)
        return tuple(held)

    def _units(self, item: _Item) -> Units:
        """Return the set that is named: names of nodes, an attribute, or `all`."""
        if isinstance(item, _Form):
            names = tuple(self._node(each) for each in item.items)
            if not names:
                raise StrlError(item.at, "the set is empty", "name at least one node")
            return self._named.setdefault(names, frozenset(names))
        found = self._sets.get(item.text)
        if found is None and item.text in self._nodes:
            fix = f"write ({item.text})"
            raise StrlError(item.at, f"{_shown(item.text)} is a node, no attribute", fix)
        if found is None:
            close = did_you_mean(item.text, [*self._sets])
            fix = f"use one that a node has, all, or names in parentheses.{close}"
            raise StrlError(item.at, f"unknown attribute {_shown(item.text)}", fix)
        return found

    def _expression(self, item: _Item) -> Expression:
        if isinstance(item, _Word):
            fix = f"write an operator in parentheses: {', '.join(_OPERATORS)}"
            raise StrlError(item.at, f"{_shown(item.text)} is no expression", fix)
        name = self._operator(item, _OPERATORS).text
        if name in _LEAVES:
            return self._leaf(item, name)
        if name in _JOINED:
            given = self._arguments(item, _OPERATORS[name], 1)
            if name == "max" and len(given) > MAX_OPTIONS:
                fix = f"give at most {MAX_OPTIONS}, with a coarser slot or fewer sets"
                raise StrlError(item.at, f"max has {len(given)} options", fix)
            return _JOINED[name](tuple(self._expression(each) for each in given))
        first, part = self._arguments(item, _OPERATORS[name], 2, 2)
        if name == "scale":
            return Scale(_number(first, "FACTOR", least=0.0), self._expression(part))
        if name == "barrier":
            return Barrier(_number(first, "VALUE"), self._expression(part))
        before = self._leaves
        scope = JobScope(_word(first, "the name of a job").text, self._expression(part))
        if (options := self._leaves - before) > MAX_OPTIONS:
            fix = f"give at most {MAX_OPTIONS}, with a coarser slot or fewer sets"
            raise StrlError(item.at, f"job {_shown(scope.job)} has {options} options", fix)
        return scope

    def _leaf(self, item: _Form, name: str) -> Leaf:
        units, count, begin, long, worth = self._arguments(item, _OPERATORS[name], 5, 5)
        self._leaves += 1
        if self._leaves > MAX_LEAVES:
            fix = "use a coarser slot or fewer sets"
            raise StrlError(item.at, f"there are more than {MAX_LEAVES} leaves", fix)
        among, gpus, linear = self._units(units), _count(count, "K"), name.startswith("l")
        if name.endswith("killnck"):
            ends = _number(begin, "FROM"), _number(long, "UNTIL")
            return Kill(among, gpus, *ends, _number(worth, "COST"), linear)
        spans = _number(begin, "START"), _number(long, "DUR", least=0.0)
        return Choose(among, gpus, *spans, _number(worth, "VALUE"), linear)


_STATEMENTS = {
    "node": "node NAME UNITS ATTRIBUTE…",
    "nodes": "nodes NAME…",
    "now": "now SECONDS",
    "slot": "slot SECONDS",
    "horizon": "horizon SECONDS",
    "held": "held JOB (NODE…) END",
    "maximise": "maximise EXPR",
}
_LEAVES = ("nck", "lnck", "killnck", "lkillnck")
_JOINED: dict[str, Callable[[tuple[Expression, ...]], Expression]] = {
    "max": Max, "min": Min, "sum": Sum,
}  # fmt: skip
_OPERATORS = {
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
