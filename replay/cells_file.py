"""Cells files: the types, cells, quotas and pinned cells of a cluster, in TOML."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec

from cells.cells import Cells
from cells.spec import CellsError, CellType, Node, Pinned, Quota, Spec, Top
from replay.errors import UserError

MAX_CELLS_FILE = 2**26
"""Bytes of a cells file: 100,000 GPUs in 12,500 nodes take less than one of them."""


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
    cells: list[_Top]
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
    return _spec(said)


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
