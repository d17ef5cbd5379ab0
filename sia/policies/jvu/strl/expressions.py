"""STRL as values: units of nodes, running jobs that hold some, and the expression to maximise.

An expression is either chosen, with a value, or not chosen, with value 0 and no units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

Units = frozenset[str]
"""The names of the nodes from which units may come: an equivalence set (§4.1.1)."""


class Choose(NamedTuple):
    """`nck`: exactly `k` units in [start, start + duration), with value `value` (§4.1.1).

    `lnck` if linear: up to `k` units, each with value / k.
    """

    units: Units
    k: int
    start: float
    duration: float
    value: float
    linear: bool = False


class Kill(NamedTuple):
    """`killnck`: free exactly `count` held units in [begin, until), at a cost (§4.1.1).

    A unit is freed at most until its holder's end, and by at most one kill. Inside `JobScope` the
    units are those of its job. `lkillnck` if linear: up to `k` units, each at cost / k.
    """

    units: Units
    k: int
    begin: float
    until: float
    cost: float
    linear: bool = False


class Max(NamedTuple):
    """Choose at most one part."""

    parts: tuple[Expression, ...]


class Sum(NamedTuple):
    """Choose any parts."""

    parts: tuple[Expression, ...]


class Min(NamedTuple):
    """Choose all parts; the value is the smallest of theirs."""

    parts: tuple[Expression, ...]


class Scale(NamedTuple):
    """The value of a part times a factor of at least 0."""

    factor: float
    part: Expression


class Barrier(NamedTuple):
    """`value`, if the value of the part is at least that; otherwise it cannot be chosen."""

    value: float
    part: Expression


class JobScope(NamedTuple):
    """`job`: the choices of one job; kills inside it free units that this job holds."""

    job: str
    part: Expression


Leaf = Choose | Kill
Expression = Choose | Kill | Max | Sum | Min | Scale | Barrier | JobScope


class StrlHolding(NamedTuple):
    """Units that a running job holds from now until its expected end (seconds)."""

    job: str
    units: Mapping[str, int]
    """By node."""
    end: float


class StrlProblem(NamedTuple):
    """An expression to maximise, and its units and slots. Times are in seconds.

    The slots are [now, now + slot), [now + slot, now + 2 · slot), …, up to now + horizon.
    """

    nodes: Mapping[str, int]
    """Units by node."""
    now: float
    slot: float
    horizon: float
    held: tuple[StrlHolding, ...]
    goal: Expression


def parts_of(expression: Expression) -> tuple[Expression, ...]:
    """Return the parts of an expression, in order; a leaf has none."""
    if isinstance(expression, Choose | Kill):
        return ()
    if isinstance(expression, Max | Sum | Min):
        return expression.parts
    return (expression.part,)


def leaves_of(expression: Expression) -> Iterator[Leaf]:
    """Yield the leaves from left to right."""
    if isinstance(expression, Choose | Kill):
        yield expression
    for part in parts_of(expression):
        yield from leaves_of(part)
