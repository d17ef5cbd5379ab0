"""STRL as text: an operator and its arguments in parentheses; `;` begins a comment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sia.limits import MAX_TIME
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
from sia.state.strl import (
    ALL,
    OPERATORS,
    StrlError,
    StrlForm,
    StrlItem,
    StrlWord,
    TextPlace,
    arguments_of,
    count_of,
    expression_of,
    forms,
    number_of,
    operator_of,
    shown,
    word_of,
)
from sia.wording import did_you_mean

MAX_OPTIONS = 512
"""Largest number of leaves in one `job`, and of parts in one `max`: enough for 24 starts on each of
20 racks. For more, use longer slots."""

MAX_LEAVES = 50_000
"""Largest number of leaves in one problem; with more, no solver ends within a cycle."""

MAX_TEXT = 2**23
"""Largest number of characters of one text, about 200 for each leaf."""


def parse_strl(text: str) -> StrlProblem:
    """Parse a problem. Raises StrlError. O(text · log text)."""
    if len(text) > MAX_TEXT:
        fix = f"write at most {MAX_TEXT} characters"
        raise StrlError(TextPlace(1, 1), f"the text has {len(text)} characters", fix)
    return _Problem(forms(text)).read()


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


class _Problem:
    """Reads the forms of a text: nodes first, because other forms name them."""

    def __init__(self, forms: Sequence[StrlItem]) -> None:
        self._forms: dict[str, list[StrlForm]] = {name: [] for name in _STATEMENTS}
        for item in forms:
            if isinstance(item, StrlWord):
                fix = "put it in parentheses, as in (now 10)"
                raise StrlError(item.at, f"{shown(item.text)} stands alone", fix)
            name = operator_of(item, _STATEMENTS).text
            self._forms[name].append(item)
        self._nodes: dict[str, int] = {}
        self._sets: dict[str, Units] = {}
        self._named: dict[tuple[str, ...], Units] = {}
        self._leaves = 0

    def read(self) -> StrlProblem:
        self._read_nodes()
        numbers = {"now": self._one("now", 0.0), "slot": self._one("slot"),
                   "horizon": self._one("horizon")}  # fmt: skip
        held = self._read_held()
        goals = self._forms["maximise"]
        if len(goals) != 1:
            at = goals[1].at if goals else TextPlace(1, 1)
            problem = f"{len(goals)} forms say what to maximise"
            raise StrlError(at, problem, "write (maximise EXPR) once")
        (goal,) = arguments_of(goals[0], "maximise EXPR", 1, 1)
        return StrlProblem(self._nodes, held=held, goal=self._expression(goal), **numbers)

    def _one(self, name: str, default: float | None = None) -> float:
        """Return the number of a form that may occur only once."""
        forms = self._forms[name]
        if not forms and default is not None:
            return default
        usage = _STATEMENTS[name]
        if len(forms) != 1:
            at = forms[1].at if forms else TextPlace(1, 1)
            problem = f"{len(forms)} forms say {name}" if forms else f"{name} is missing"
            raise StrlError(at, problem, f"write ({usage}) once, with a number of seconds")
        (item,) = arguments_of(forms[0], usage, 1, 1)
        value = number_of(item, name, least=None if name == "now" else 0.0)
        if name == "slot" and value <= 0.0:
            raise StrlError(forms[0].at, "slot is 0", "write a number of seconds above 0")
        return value

    def _read_nodes(self) -> None:
        attributes: dict[str, list[str]] = {}
        for form in self._forms["node"]:
            name, units, *words = arguments_of(form, _STATEMENTS["node"], 2)
            node = self._new_node(name, count_of(units, "UNITS", least=0))
            for item in words:
                word = word_of(item, "an attribute")
                if word.text == ALL:
                    fix = "give the attribute another name"
                    raise StrlError(word.at, "all names every unit, and no attribute", fix)
                attributes.setdefault(word.text, []).append(node)
        for form in self._forms["nodes"]:
            for name in arguments_of(form, _STATEMENTS["nodes"], 1):
                self._new_node(name, 1)
        for attribute, names in attributes.items():
            if attribute in self._nodes:
                fix = "name one of them otherwise"
                raise StrlError(
                    self._forms["node"][0].at,
                    f"{shown(attribute)} is a node and an attribute", fix,
                )  # fmt: skip
            self._sets[attribute] = frozenset(names)
        self._sets[ALL] = frozenset(self._nodes)

    def _new_node(self, item: StrlItem, units: int) -> str:
        word = word_of(item, "the name of a node")
        if word.text in self._nodes:
            problem = f"node {shown(word.text)} is repeated"
            raise StrlError(word.at, problem, "name each node once, with its number of units")
        self._nodes[word.text] = units
        return word.text

    def _node(self, item: StrlItem) -> str:
        word = word_of(item, "the name of a node")
        if word.text not in self._nodes:
            if word.text in self._sets:
                fix = f"write {word.text} without parentheses"
                raise StrlError(word.at, f"{shown(word.text)} is an attribute, no node", fix)
            close = did_you_mean(word.text, [*self._nodes])
            fix = f"add (nodes {word.text}), or use a node that there is.{close}"
            raise StrlError(word.at, f"unknown node {shown(word.text)}", fix)
        return word.text

    def _read_held(self) -> tuple[StrlHolding, ...]:
        now = self._one("now", 0.0)
        held, used = [], dict.fromkeys(self._nodes, 0)
        for form in self._forms["held"]:
            job, names, end = arguments_of(form, _STATEMENTS["held"], 3, 3)
            if isinstance(names, StrlWord):
                fix = "write the nodes in parentheses, each once for each unit"
                raise StrlError(names.at, f"{shown(names.text)} is no list of nodes", fix)
            units: dict[str, int] = {}
            for item in names.items:
                node = self._node(item)
                units[node] = units.get(node, 0) + 1
            holding = StrlHolding(
                word_of(job, "the name of a job").text, units, number_of(end, "END")
            )
            if holding.end <= now:
                continue  # the holder has ended
            held.append(holding)
            for node, count in units.items():
                used[node] += count
                if used[node] > self._nodes[node]:
                    problem = f"{used[node]} units of {shown(node)} are held"
                    fix = f"it has {self._nodes[node]}; name it once for each unit"
                    raise StrlError(names.at, problem, fix)
        return tuple(held)

    def _units(self, item: StrlItem) -> Units:
        """Return the set that `item` names: names of nodes, an attribute, or `all`."""
        if isinstance(item, StrlForm):
            names = tuple(self._node(each) for each in item.items)
            return self._named.setdefault(names, frozenset(names))
        found = self._sets.get(item.text)
        if found is None and item.text in self._nodes:
            fix = f"write ({item.text})"
            raise StrlError(item.at, f"{shown(item.text)} is a node, no attribute", fix)
        if found is None:
            close = did_you_mean(item.text, [*self._sets])
            fix = f"use one that a node has, all, or names in parentheses.{close}"
            raise StrlError(item.at, f"unknown attribute {shown(item.text)}", fix)
        return found

    def _expression(self, item: StrlItem, factor: float = 1.0) -> Expression:
        """Read an expression; `factor` is the product of the `scale` factors around it."""
        item = expression_of(item)
        name = operator_of(item, OPERATORS).text
        if name in _LEAVES:
            return self._leaf(item, name, factor)
        if name in _JOINED:
            given = arguments_of(item, OPERATORS[name], 1)
            if name == "max" and len(given) > MAX_OPTIONS:
                fix = f"give at most {MAX_OPTIONS}, with a coarser slot or fewer sets"
                raise StrlError(item.at, f"max has {len(given)} options", fix)
            return _JOINED[name](tuple(self._expression(each, factor) for each in given))
        first, part = arguments_of(item, OPERATORS[name], 2, 2)
        if name == "scale":
            times = number_of(first, "FACTOR", least=0.0)
            return Scale(times, self._expression(part, factor * times))
        if name == "barrier":
            return Barrier(_value_of(first, "VALUE", factor), self._expression(part))
        before = self._leaves
        scope = JobScope(word_of(first, "the name of a job").text, self._expression(part, factor))
        if (options := self._leaves - before) > MAX_OPTIONS:
            fix = f"give at most {MAX_OPTIONS}, with a coarser slot or fewer sets"
            raise StrlError(item.at, f"job {shown(scope.job)} has {options} options", fix)
        return scope

    def _leaf(self, item: StrlForm, name: str, factor: float) -> Leaf:
        units, count, begin, long, worth = arguments_of(item, OPERATORS[name], 5, 5)
        self._leaves += 1
        if self._leaves > MAX_LEAVES:
            fix = "use a coarser slot or fewer sets"
            raise StrlError(item.at, f"there are more than {MAX_LEAVES} leaves", fix)
        among, gpus, linear = self._units(units), count_of(count, "K"), name.startswith("l")
        if name.endswith("killnck"):
            ends = number_of(begin, "FROM"), number_of(long, "UNTIL")
            return Kill(among, gpus, *ends, _value_of(worth, "COST", factor), linear)
        spans = number_of(begin, "START"), number_of(long, "DUR", least=0.0)
        return Choose(among, gpus, *spans, _value_of(worth, "VALUE", factor), linear)


def _value_of(item: StrlItem, what: str, factor: float) -> float:
    """Parse a value to which `factor` applies. Raises StrlError."""
    value = number_of(item, what)
    if not abs(factor * value) <= MAX_TIME:  # also what is not a number: 0 times infinity
        word, fix = word_of(item, what), f"use smaller factors: the product is at most {MAX_TIME:g}"
        problem = f"{what} is {shown(word.text)}, times {factor:g} by scale"
        raise StrlError(word.at, problem, fix)
    return value


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
