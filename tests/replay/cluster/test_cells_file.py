"""Cells files: what is read, and what is wrong with those that are not."""

from __future__ import annotations

import re

import pytest

from cells.layout.requests import CellPlacement, Request
from replay.cluster.cells_file import read_cells
from sia.console.errors import UserError
from tests.support.paths import DOCS

PAGE = DOCS / "understand/cells.md"

SMALL = """
types = [
    { name = "gpu" },
    { name = "node", child = "gpu", count = 2, node = true },
]
cells = [{ type = "node", nodes = ["n0"] }, { type = "node", nodes = ["n1"] }]
[quota.a.node]
node = 2
"""


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "cells.toml"
        path.write_text(text)
        return path

    return write


def test_the_example_of_the_docs(file):
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    cells = read_cells(file(text))
    cells.check()
    pinned = cells.allocate("j", Request("speech", (2,), pin="speech-n2"))
    assert pinned == CellPlacement((("n2", (4, 5)),))
    assert cells.allocate("k", Request("speech", (4,))) == CellPlacement((("n2", (0, 1, 2, 3)),))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('{ name = "gpu" }', '{ name = "gpu", child = "node", count = 2 }', "contains itself"),
        ('child = "gpu"', 'child = "gpo"', "types[1].child: no type 'gpo'; use one of gpu, node"),
        ("count = 2, ", "", "types[1].count: 'node' has a child but no count; add count"),
        ("count = 2", "count = 0", "types[1].count: must be at least 1 (got 0)"),
        ("count = 2", "count = 2.5", "types[1].count: Expected `int`, got `float`"),
        ('name = "node"', 'name = "gpu"', "types[1].name: duplicate name 'gpu'; use another"),
        ("node = true", "node = false", "types: no type with node = true in the chain of 'node'"),
        ('["n1"]', '["n0"]', "cells[1].nodes: duplicate node 'n0'; list it once"),
        ("count = 2", "count = 9223372036854775807", "GPUs, more than the limit of 4,194,304"),
        (
            '"n1"',
            '{ name = "n1", gpus = [0, 99999999999] }',
            "n1: GPU numbers must be below 10⁹ (got 99999999999)",
        ),
        ('["n1"]', '["n1", "n2"]', "cells[1].nodes: a node has 1 nodes (got 2)"),
        ('"n1"', '{ name = "n1", gpus = [3, 3] }', "cells[1].nodes: n1: GPU 3 is listed twice"),
        ('"n1"', '{ name = "n1", gpus = [3] }', "n1: gpus must be 2 numbers of at least 0"),
        ('"n1"', '{ name = "n1", broken = true }', "unknown field `broken`"),
        ('type = "node"', 'type = "rack"', "cells[0].type: no type 'rack'"),
        ("node = 2\n", "node = 3\n", "quota: 3 node requested in chain node, but only 2 fit"),
        ("node = 2\n", "node = 3\n", "; lower a quota (a 3)"),
        ("node = 2\n", "node = '2'\n", "quota.a.node.node: Expected `int`, got `str`"),
        ("[quota.a.node]\nnode", "quota.a.node", "quota.a.node: Expected `object`, got `int`"),
        ("[quota.a.node]\nnode", "quota.a", "quota.a: Expected `object`, got `int`"),
        ("[quota.a.node]\nnode", "quota", "quota: Expected `object`, got `int`"),
        ("node = 2\n", "node = 0\n", "quota.a.node.node: must be at least 1 (got 0)"),
        ("node = 2\n", "socket = 2\n", "quota.a.node.socket: no such type; use one of gpu, node"),
        ("[quota.a.node]", "[quota.a.rack]", "quota.a.rack: no such chain; use one of node"),
        ("[quota.a.node]", "[quotas.a.node]", "unknown field `quotas`"),
        ("types = [", "types = ", "is not TOML"),
    ],
)
def test_an_error_is_one_line_with_file_and_key(file, old, new, message):
    assert old in SMALL
    path = file(SMALL.replace(old, new))
    with pytest.raises(UserError) as caught:
        read_cells(path)
    said = caught.value.message
    assert said.startswith(f"{path}: ")
    assert message in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("pinned", "message"),
    [
        ('nodes = ["n7"], type = "node"', "pinned[0].nodes: no node 'n7'"),
        ('nodes = ["n0"], type = "rack"', "pinned[0].type: no 'rack' in chain node"),
        ('nodes = ["n0", "n1"], type = "node"', "pinned[0]: these GPUs are not one node"),
        (
            'nodes = ["n0"], type = "gpu", gpus = [9]',
            "pinned[0].gpus: list one node under nodes",
        ),
        ('nodes = [], type = "gpu"', "pinned[0].nodes: list nodes of one chain"),
        ('nodes = ["n0"], type = "node"', "quota: 2 node requested in chain node, but only 1 fit"),
    ],
)
def test_wrong_pinned_cells(file, pinned, message):
    text = f'pinned = [{{ name = "vip", pool = "a", {pinned} }}]\n' + SMALL
    with pytest.raises(UserError) as caught:
        read_cells(file(text))
    assert message in caught.value.message


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="give a cells file that can be read"):
        read_cells(tmp_path / "none.toml")
