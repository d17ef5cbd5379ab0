"""Writes cells files. A replay that generates nodes writes them, with their names, into one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from cells.layout.spec import NodeSpec, Spec

CELLS = "cells.toml"
"""Name of the file in the folder of results."""


def write_cells(path: Path, spec: Spec) -> None:
    """Write a file that `read_spec` reads as the same cluster."""
    path.write_text("\n".join(_lines(spec)) + "\n", encoding="utf-8", newline="\n")


def _lines(spec: Spec) -> Iterator[str]:
    yield "types = ["
    for kind in spec.types:
        child = f", child = {_text(kind.child)}, count = {kind.count}" if kind.child else ""
        yield f"    {{ name = {_text(kind.name)}{child}{', node = true' * kind.node} }},"
    yield "]"
    for top in spec.tops:
        nodes = ", ".join(map(_node, top.nodes))
        yield f"\n[[cells]]\ntype = {_text(top.type)}\nnodes = [{nodes}]"
    head = ""
    for quota in spec.quotas:
        table = f"\n[quota.{_text(quota.pool)}.{_text(quota.chain)}]"
        if table != head:
            yield table
        head = table
        yield f"{_text(quota.type)} = {quota.count}"
    for pinned in spec.pinned:
        yield f"\n[[pinned]]\nname = {_text(pinned.name)}\npool = {_text(pinned.pool)}"
        yield f"type = {_text(pinned.type)}\nnodes = [{', '.join(map(_text, pinned.nodes))}]"
        if pinned.gpus:
            yield f"gpus = {[*pinned.gpus]}"


def _node(node: NodeSpec) -> str:
    if not node.gpus and not node.bad:
        return _text(node.name)
    gpus = f", gpus = {[*node.gpus]}" if node.gpus else ""
    return f"{{ name = {_text(node.name)}{gpus}{', bad = true' * node.bad} }}"


def _text(text: str) -> str:
    """Quote text as a TOML basic string, which differs from JSON in one character."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007F")
