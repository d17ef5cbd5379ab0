"""Cells files: the types, cells, quotas and pinned cells of a cluster, in TOML."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from cells.cells import Cells
from cells.layout.shape import Shape
from cells.layout.spec import (
    CellsError,
    CellType,
    NodeSpec,
    Pinned,
    QuotaSpec,
    Spec,
    Top,
    only_chain,
    shapes,
)
from replay.logs.trace import PoolTable
from sia.console.errors import UserError
from sia.model import Options
from sia.state.places import Places
from sia.state.state import ClusterState
from sia.wording import counted, some

MAX_CELLS_FILE = 2**26
"""Maximum size of a cells file in bytes. A file with 100,000 GPUs in 12,500 nodes is smaller."""


NAME = re.compile(r"[^\s,:;]+")
"""Pattern of a node's name. It excludes the characters that separate nodes in `jobs.csv`."""


class _Type(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    child: str = ""
    count: int | UnsetType = UNSET
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


def read_cells(path: Path) -> Cells:
    """Read the cluster of a file. Raises UserError with file and key."""
    spec = read_spec(path)
    try:
        return Cells(spec)
    except CellsError as error:
        raise UserError(f"{path}: {error}") from error


def read_spec(path: Path) -> Spec:
    """Decode a file and check its structure. Raises UserError with file and key."""
    try:
        if path.stat().st_size > MAX_CELLS_FILE:
            raise UserError(f"{path}: more than {MAX_CELLS_FILE} bytes; give a cells file")
        values = tomllib.loads(path.read_text("utf-8"))
        file = msgspec.convert(values, _File)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a cells file that can be read") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text; write it in TOML") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: is not TOML: {error}; fix that place") from error
    except RecursionError as error:
        raise UserError(f"{path}: is nested too deeply; see docs/understand/cells.md") from error
    except msgspec.ValidationError as error:
        problem = _with_key(str(error), values)
        raise UserError(f"{path}: {problem}; see docs/understand/cells.md") from error
    try:
        _refuse_unclear(file)
    except CellsError as error:
        raise UserError(f"{path}: {error}") from error
    return _spec(file)


def _refuse_unclear(file: _File) -> None:
    """Raise CellsError for what `Cells` does not check."""
    if not file.cells and (file.quota or file.pinned):
        raise CellsError(
            "cells: quota or pinned cells, but no cells; name them with their nodes, or give the "
            "types only"
        )
    for i, kind in enumerate(file.types):
        if kind.child and kind.count is UNSET:
            raise CellsError(f"types[{i}].count: {kind.name!r} has a child but no count; add count")
    for node in [node for top in file.cells for node in top.nodes]:
        name = node if isinstance(node, str) else node.name
        if not NAME.fullmatch(name):
            raise CellsError(
                f"cells: {name!r} is no name of a node; write one without spaces, commas, "
                "colons and semicolons, which separate nodes and GPUs in results"
            )


def cells_for(path: Path, table: PoolTable) -> Spec:
    """Return the cluster of a file; without nodes it has exactly the cells that the pools need.

    If the file has nodes but no quotas, the pools' quotas are divided into cells. Raises UserError.
    """
    try:
        spec = read_spec(path)
        if not spec.tops:
            return whole_spec(spec, table)
        return spec if spec.quotas else _with_quotas(spec, table)
    except CellsError as error:
        raise UserError(f"{path}: {error}") from error


def checked_places(path: Path, spec: Spec, pools: Path, table: PoolTable) -> Places:
    """Call `places_of`. Raises UserError with the file, or with both if their pools differ."""
    try:
        _refuse_other_names(spec, pools, table)
        return places_of(spec, table)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def _refuse_other_names(spec: Spec, pools: Path, table: PoolTable) -> None:
    """Raise CellsError for pools that only one of the two files has."""
    quotas = {pool.name: pool.quota for pool in table.pools}
    keys = {f"quota.{quota.pool}": quota.pool for quota in spec.quotas}
    keys |= {f"pinned[{i}].pool": pinned.pool for i, pinned in enumerate(spec.pinned)}
    for key, pool in keys.items():
        if pool not in quotas:
            raise CellsError(
                f"{key}: {pools} has no pool {pool!r}, only {some([*quotas])}; name one of them, "
                "or add a row to that file"
            )
    for pool, gpus in quotas.items():
        if gpus and pool not in keys.values():
            raise CellsError(
                f"quota: no cells of pool {pool!r}, which has {counted(gpus, 'GPU')} in {pools}; "
                "give it some here, or none there"
            )


def types_of(path: Path) -> Spec:
    """Read a file without nodes, which generated pools need. Raises UserError."""
    spec = read_spec(path)
    if spec.tops:
        raise UserError(
            f"{path}: cells: an experiment makes nodes for the pools of each run, with --size too; "
            "give a file with types only"
        )
    try:
        only_chain(spec.types)
    except CellsError as error:
        raise UserError(f"{path}: {error}") from error
    return spec


def whole_spec(spec: Spec, table: PoolTable) -> Spec:
    """Return cells of these types that fit the pools: nodes, and smaller cells for the rest.

    Raises CellsError.
    """
    chain = only_chain(spec.types)
    (top,) = chain.names[-1:]
    quotas = _quotas({pool.name: pool.quota for pool in table.pools}, chain)
    gpus = sum(pool.quota for pool in table.pools)
    nodes = chain.size[chain.top] // chain.size[chain.node]
    tops = -(-gpus // chain.size[chain.top])
    return Spec(
        spec.types,
        tuple(
            Top(top, tuple(NodeSpec(f"node{i * nodes + k}") for k in range(nodes)))
            for i in range(tops)
        ),
        tuple(quotas),
    )


def _quotas(gpus: Mapping[str, int], chain: Shape) -> list[QuotaSpec]:
    """Return as many whole nodes as fit into each pool's quota, and smaller cells for the rest."""
    quotas = []
    for pool, left in gpus.items():
        for level in range(chain.node, -1, -1):
            count, left = divmod(left, chain.size[level])  # noqa: PLW2901  what is left of it
            if count:
                quotas.append(QuotaSpec(pool, chain.names[-1], chain.names[level], count))
    return quotas


def _with_quotas(spec: Spec, table: PoolTable) -> Spec:
    """Return the pools' quotas as cells of named nodes, in addition to pinned cells.

    Raises CellsError.
    """
    chains = shapes(spec)
    if len(chains) > 1:
        raise CellsError(
            f"quota: there is none, and several chains ({some([*chains])}); say which cells each "
            "pool owns"
        )
    (chain,) = chains.values()
    gpus = {pool.name: pool.quota for pool in table.pools}
    for i, pinned in enumerate(spec.pinned):
        if pinned.type in chain.names and pinned.pool in gpus:
            gpus[pinned.pool] -= chain.size[chain.names.index(pinned.type)]
            if gpus[pinned.pool] < 0:
                raise CellsError(
                    f"pinned[{i}]: pool {pinned.pool!r} has fewer GPUs in the pools file; pin less"
                )
    made = replace(spec, quotas=tuple(_quotas(gpus, chain)))
    try:
        Cells(made)
    except CellsError as error:
        raise CellsError(f"{error} of the pools file, or give quota here") from error
    return made


def places_of(spec: Spec, table: PoolTable) -> Places:
    """Return the places of these pools. Raises ValueError if the cells contradict the pools."""
    if table.changes:
        change = table.changes[0]
        raise ValueError(
            f"quota.{change.pool}: the pool's quota changes at second {change.time:,.0f}, its "
            "cells do not; give a pools file with one row for each pool"
        )
    places = ClusterState(table.pools, Options(), Cells(spec)).places
    assert places is not None, "there are cells"
    return places


def node_size(spec: Spec) -> int:
    """Return the GPUs of a node in a file without nodes."""
    chain = only_chain(spec.types)
    return chain.size[chain.node]


_QUOTA: Sequence[Any] = (int, dict[str, int], dict[str, dict[str, int]])
"""Types of the values in `quota`, from the inside: a number, numbers by type, these by chain."""


def _with_key(message: str, values: Mapping[str, Any]) -> str:
    """Put the key first, as in all other messages, and name the keys of quotas."""
    found = re.fullmatch(r"(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?", message, re.DOTALL)
    assert found is not None
    key = found[2] or ""
    if key.startswith("quota["):
        key = "quota" + _wrong_in(values["quota"], len(_QUOTA))
    return f"{key}: {found[1]}" if key else found[1]


def _wrong_in(quota: Any, depth: int) -> str:
    """Return the path of the first value of a wrong type, like `.POOL.CHAIN`."""
    for key, value in quota.items() if depth and isinstance(quota, dict) else ():
        try:
            msgspec.convert(value, _QUOTA[depth - 1])
        except msgspec.ValidationError:
            return f".{key}{_wrong_in(value, depth - 1)}"
    return ""


def _spec(file: _File) -> Spec:
    return Spec(
        types=tuple(
            CellType(t.name, t.child, 1 if t.count is UNSET else t.count, t.node)
            for t in file.types
        ),
        tops=tuple(Top(top.type, tuple(map(_node, top.nodes))) for top in file.cells),
        quotas=tuple(
            QuotaSpec(pool, chain, kind, count)
            for pool, chains in file.quota.items()
            for chain, kinds in chains.items()
            for kind, count in kinds.items()
        ),
        pinned=tuple(Pinned(p.name, p.pool, p.type, p.nodes, p.gpus) for p in file.pinned),
    )


def _node(node: str | _Node) -> NodeSpec:
    return NodeSpec(node) if isinstance(node, str) else NodeSpec(node.name, node.gpus, node.bad)
