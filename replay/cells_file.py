"""Cells files: the types, cells, quotas and pinned cells of a cluster, in TOML."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec

from cells.cells import Cells
from cells.spec import CellsError, CellType, Node, Pinned, Quota, Spec, Top, only_chain
from replay.errors import UserError
from replay.trace import PoolTable
from sia.model import Options
from sia.places import Places
from sia.state import State

MAX_CELLS_FILE = 2**26
"""Bytes of a cells file: 100,000 GPUs in 12,500 nodes take less than one of them."""


NAME = re.compile(r"[^\s,:;]+")
"""Of a node: what separates nodes in `jobs.csv` is not in it."""


class _Type(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    child: str = ""
    count: int = 1
    node: bool = False


class _Node(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    gpus: tuple[int, ...] = ()
    bad: bool = False


class _Top(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    nodes: list[str | _Node]


class _Pinned(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    pool: str
    type: str
    nodes: tuple[str, ...]
    gpus: tuple[int, ...] = ()


class _File(msgspec.Struct, forbid_unknown_fields=True):
    types: list[_Type]
    cells: list[_Top] = []
    quota: dict[str, dict[str, dict[str, int]]] = {}
    pinned: list[_Pinned] = []


def read_cells(path: Path, *, lend_rests: bool = False) -> Cells:
    """The cluster of a file. Raises UserError with file and key."""
    spec = read_spec(path)
    try:
        return Cells(spec, lend_rests=lend_rests)
    except CellsError as error:
        raise UserError(f"{path}: {error}") from error


def read_spec(path: Path) -> Spec:
    """What a file says, if it is well formed. Raises UserError with file and key."""
    try:
        if path.stat().st_size > MAX_CELLS_FILE:
            raise UserError(f"{path}: more than {MAX_CELLS_FILE} bytes; give a cells file")
        said = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a cells file that can be read") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text; write it in TOML") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: is no TOML: {error}; mend that place") from error
    except RecursionError as error:
        raise UserError(f"{path}: is nested too deeply; see docs/cells.md") from error
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {_with_key(str(error))}; see docs/cells.md") from error
    if not said.cells and (said.quota or said.pinned):
        raise UserError(
            f"{path}: cells: quota or pinned cells, but no cells; name them with their nodes, or "
            "give the types alone"
        )
    for node in [node for top in said.cells for node in top.nodes]:
        name = node if isinstance(node, str) else node.name
        if not NAME.fullmatch(name):
            raise UserError(
                f"{path}: cells: {name!r} is no name of a node; write one without spaces, commas, "
                "colons and semicolons, which separate nodes and GPUs in results"
            )
    return _spec(said)


def cells_for(path: Path, table: PoolTable) -> Spec:
    """The cluster of a file; one with types alone has just what the pools need.

    Raises UserError.
    """
    try:
        spec = read_spec(path)
        return spec if spec.tops else whole_spec(spec, table)
    except CellsError as error:
        raise UserError(f"{path}: {error}") from error


def checked_places(path: Path, spec: Spec, table: PoolTable) -> Places:
    """As `places_of`. Raises UserError with the file."""
    try:
        return places_of(spec, table)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def types_of(path: Path) -> Spec:
    """A file of types alone, as pools that are drawn need it. Raises UserError."""
    spec = read_spec(path)
    if spec.tops:
        raise UserError(
            f"{path}: cells: they are of pools that an experiment does not have; give a file with "
            "types alone"
        )
    try:
        only_chain(spec.types)
    except CellsError as error:
        raise UserError(f"{path}: {error}") from error
    return spec


def whole_spec(spec: Spec, table: PoolTable) -> Spec:
    """Cells of these types for just the pools: nodes, and smaller ones for what is left of quotas.

    Raises CellsError.
    """
    chain = only_chain(spec.types)
    (top,) = chain.names[-1:]
    quotas = []
    for pool in table.pools:
        left = pool.quota
        for level in range(chain.node, -1, -1):
            count, left = divmod(left, chain.size[level])
            if count:
                quotas.append(Quota(pool.name, top, chain.names[level], count))
    gpus = sum(pool.quota for pool in table.pools)
    nodes = chain.size[chain.top] // chain.size[chain.node]
    tops = -(-gpus // chain.size[chain.top])
    return Spec(
        spec.types,
        tuple(
            Top(top, tuple(Node(f"node{i * nodes + k}") for k in range(nodes))) for i in range(tops)
        ),
        tuple(quotas),
    )


def places_of(spec: Spec, table: PoolTable) -> Places:
    """The places of these pools. Raises ValueError where the two contradict."""
    if table.changes:
        change = table.changes[0]
        raise ValueError(
            f"quota.{change.pool}: the pool's quota changes at second {change.time:,.0f}, its "
            "cells do not; give a pools file with one row for each pool"
        )
    places = State(table.pools, Options(), Cells(spec)).places
    assert places is not None, "there are cells"
    return places


def node_size(spec: Spec) -> int:
    """GPUs of a node, where a file has types alone."""
    chain = only_chain(spec.types)
    return chain.size[chain.node]


def _with_key(message: str) -> str:
    """The key first, as in all other messages."""
    found = re.fullmatch(r"(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?", message, re.DOTALL)
    assert found is not None
    return f"{found[2]}: {found[1]}" if found[2] else found[1]


def _spec(said: _File) -> Spec:
    return Spec(
        types=tuple(CellType(t.name, t.child, t.count, t.node) for t in said.types),
        tops=tuple(Top(top.type, tuple(map(_node, top.nodes))) for top in said.cells),
        quotas=tuple(
            Quota(pool, chain, kind, count)
            for pool, chains in said.quota.items()
            for chain, kinds in chains.items()
            for kind, count in kinds.items()
        ),
        pinned=tuple(Pinned(p.name, p.pool, p.type, p.nodes, p.gpus) for p in said.pinned),
    )


def _node(said: str | _Node) -> Node:
    return Node(said) if isinstance(said, str) else Node(said.name, said.gpus, said.bad)
