"""Occupancy over time against sets of GPUs, counted one by one; and the pictures of it."""

from __future__ import annotations

from random import Random
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from cells.layout.spec import CellType, NodeSpec, Spec, Top
from replay.cluster.gpu_names import CellGpus
from replay.cluster.occupancy import MOMENTS, PlacedSpan, occupancy
from replay.cluster.occupancy_figures import (
    PARTS,
    ROWS,
    draw_fragmentation,
    draw_occupancy,
    rows_of,
)
from tests.support.clusters.cells import spec

MIG = (
    CellType("slice"),
    CellType("a100", "slice", 3),
    CellType("box", "a100", 2, node=True),
)


def two_chains():
    """Two racks of two nodes of 8 GPUs, one bad, another with odd numbers; two boxes of slices."""
    here = spec(bad=["n3"])
    odd = Top("rack", (NodeSpec("n0", (4, 5, 6, 7, 0, 1, 2, 3)), NodeSpec("n1")))
    boxes = tuple(Top("box", (NodeSpec(name),)) for name in ("m0", "m1"))
    return Spec((*here.types, *MIG), (odd, boxes[0], here.tops[1], boxes[1]), ())


def numbers(node):
    """GPU numbers of a node of `two_chains`, in the order in which they lie."""
    if node.startswith("m"):
        return [*range(6)]
    return [4, 5, 6, 7, 0, 1, 2, 3] if node == "n0" else [*range(8)]


# Which GPUs a text names


def test_nodes_are_counted_chain_by_chain_in_the_order_of_the_file():
    gpus = CellGpus(two_chains())
    assert [chain.name for chain in gpus.chains] == ["rack", "box"]
    assert [[node.name for node in chain.nodes] for chain in gpus.chains] == [
        ["n0", "n1", "n2", "n3"],
        ["m0", "m1"],
    ]
    assert (gpus.count, gpus.nodes) == (4 * 8 + 2 * 6, 6)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("n1:0-2", [8, 9, 10]),
        ("n1:0,3-4;n2:7", [8, 11, 12, 23]),
        ("n1:1 n2:0", [9, 16]),
        ("n0:4-5,0", [0, 1, 4]),
        ("m1:5;", [43]),
        ("", []),
    ],
)
def test_a_text_names_gpus_by_node_and_number(text, places):
    assert CellGpus(two_chains()).places(text) == places


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("n9:0", "there is no node 'n9'"),
        ("n1:8", "node 'n1' has no GPU 8"),
        ("m0:6", "node 'm0' has no GPU 6"),
        ("n1:0-999999999", "node 'n1' has no GPU 8"),
        ("n1:5-4", "'n1:5-4' names no GPUs"),
        ("n1", "'n1' names no GPUs, like n3:0-3,5"),
        ("n1:", "'n1:' names no GPUs"),
        ("n1:0--3", "'n1:0--3' names no GPUs"),
        ("n1:1_0", "'n1:1_0' names no GPUs"),
        ("n1:٣", "names no GPUs"),
        ("n1:" + "9" * 5000, "names no GPUs"),
    ],
)
def test_a_text_that_names_no_gpus_is_refused(text, problem):
    with pytest.raises(ValueError, match=r".") as caught:
        CellGpus(two_chains()).places(text)
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 100


# What is in use, and what is free


def random_stays(rng):
    """Jobs on one node or two, none at the time and place of another."""
    taken, stays = [], []
    for _ in range(rng.randint(0, 60)):
        start = rng.choice([rng.uniform(-5, 100), rng.randrange(100)])
        end = start + rng.choice([0.01, rng.uniform(0.1, 60), 20])
        names = rng.sample(["n0", "n1", "n2", "n3", "m0", "m1"], rng.choice([1, 1, 2]))
        mine = {(name, gpu) for name in names for gpu in numbers(name) if rng.random() < 0.6}
        if any(start < e and s < end and mine & other for s, e, other in taken):
            continue
        taken.append((start, end, mine))
        by_node = {
            name: ",".join(str(gpu) for node, gpu in sorted(mine) if node == name) for name in names
        }
        text = ";".join(f"{name}:{found}" for name, found in by_node.items() if found)
        stays.append((PlacedSpan(text, start, end, rng.random() < 0.4), mine))
    return stays


LEVELS = {
    "rack": {"gpu": 1, "pair": 2, "quad": 4, "node": 8, "rack": 16},
    "box": {"slice": 1, "a100": 3, "box": 6},
}
"""GPUs of each cell."""

LAID_OUT = {
    "rack": [(name, gpu) for name in ("n0", "n1", "n2", "n3") for gpu in numbers(name)],
    "box": [(name, gpu) for name in ("m0", "m1") for gpu in numbers(name)],
}


def merged(row, free, sizes):
    """Free cells as large as they get, by their size: the largest are looked for first."""
    left, found = set(free), {}
    for size in sorted(sizes, reverse=True):
        for first in range(0, len(row), size):
            cell = set(row[first : first + size])
            if cell <= left:
                left -= cell
                found[size] = found.get(size, 0) + 1
    return found


@pytest.mark.parametrize("seed", range(12))
def test_each_moment_is_as_counted_gpu_by_gpu(seed):
    rng = Random(seed)
    stays = random_stays(rng)
    gpus = CellGpus(two_chains())
    found = occupancy(gpus, [stay for stay, _ in stays], 0.0, 100.0)
    names = [node.name for chain in gpus.chains for node in chain.nodes]
    for i in rng.sample(range(MOMENTS), 40):
        now = (i + 0.5) * 100 / MOMENTS
        assert found.times[i] == pytest.approx(now)
        here = [(stay.spare, mine) for stay, mine in stays if stay.start <= now < stay.end]
        for spare, counts in ((False, found.dedicated), (True, found.spare)):
            of = [gpu for kind, mine in here if kind is spare for gpu in mine]
            assert counts[:, i].tolist() == [sum(n == name for n, _ in of) for name in names]
        used = {gpu for _, mine in here for gpu in mine}
        for chain, sizes in LEVELS.items():
            row = LAID_OUT[chain]
            free = {gpu for gpu in row if gpu not in used and gpu[0] != "n3"}
            cells = merged(row, free, sizes.values())
            cells_here = found.free[chain]
            assert cells_here.merged()[:, i].tolist() == [cells.get(k, 0) for k in sizes.values()]
            levels = [level for level, k in enumerate(sizes.values()) if k in cells]
            assert cells_here.largest()[i] == max(levels, default=-1)
            shares = [
                sum(size * n for size, n in cells.items() if size >= k) / len(row)
                for k in sizes.values()
            ]
            assert cells_here.shares()[:, i].tolist() == pytest.approx(shares)


def test_an_empty_cluster_is_free_but_for_bad_nodes():
    found = occupancy(CellGpus(two_chains()), [], 0.0, 10.0)
    assert found.bad.tolist() == [0, 0, 0, 8, 0, 0]
    assert found.sizes.tolist() == [8, 8, 8, 8, 6, 6]
    assert not found.dedicated.any()
    assert found.free["rack"].cells == (32, 16, 8, 4, 2)
    assert found.free["rack"].merged()[:, 0].tolist() == [0, 0, 0, 1, 1]
    assert found.free["rack"].whole[:, 0].tolist() == [24, 12, 6, 3, 1]


def test_a_job_that_ends_when_another_starts_shares_no_moment_with_it():
    half = 100 / MOMENTS / 2  # the first moment
    stays = [PlacedSpan("n1:0", 0.0, half, spare=False), PlacedSpan("n1:0", half, 50.0, spare=True)]
    found = occupancy(CellGpus(spec()), stays, 0.0, 100.0)
    assert found.dedicated[1, 0] == 0
    assert found.spare[1, :3].tolist() == [1, 1, 1]
    assert np.flatnonzero(found.spare[1]).tolist() == [*range(MOMENTS // 2)]


def test_a_node_that_is_not_there_is_refused_even_between_two_moments():
    with pytest.raises(ValueError, match="there is no node 'n9'"):
        occupancy(CellGpus(spec()), [PlacedSpan("n9:0", 1e-9, 2e-9, spare=False)], 0.0, 100.0)


# Pictures


def rgb(part):
    return np.array([*bytes.fromhex(PARTS[part][1:])])


def test_a_row_mixes_the_colours_of_its_gpus():
    stays = [
        PlacedSpan("n0:0-7", 0.0, 50.0, spare=False),
        PlacedSpan("n1:0-1", 0.0, 100.0, spare=True),
        PlacedSpan("n3:0-3", 0.0, 100.0, spare=False),
    ]
    rows = rows_of(occupancy(CellGpus(two_chains()), stays, 0.0, 100.0))
    assert rows.nodes == 1
    assert rows.colours.shape == (6, MOMENTS, 3)
    dedicated, spare, free, bad = map(rgb, PARTS)
    for i, (node, moment) in enumerate([(0, 0), (0, -1), (1, 0), (2, 0), (3, 0), (4, 0)]):
        expected = [dedicated, free, 0.25 * spare + 0.75 * free, free, (dedicated + bad) / 2, free]
        assert rows.colours[node, moment] == pytest.approx(expected[i], abs=0.51), i


def test_many_nodes_share_a_row_of_equal_size_but_the_last():
    many = spec(racks=ROWS + 1, nodes=2)
    busy = [PlacedSpan(f"n{i}:0-7", 0.0, 100.0, spare=False) for i in (0, 3, 4, 2 * ROWS + 1)]
    rows = rows_of(occupancy(CellGpus(many), busy, 0.0, 100.0))
    assert rows.nodes == 3
    assert len(rows.colours) == 268  # of 802 nodes, the last alone
    dedicated, free = rgb("dedicated"), rgb("free")
    for row, share in ((0, 1 / 3), (1, 2 / 3), (2, 0.0), (266, 0.0), (267, 1.0)):
        mixed = share * dedicated + (1 - share) * free
        assert rows.colours[row, 7] == pytest.approx(mixed, abs=0.51), row


def drawn_well(svg):
    """It is XML, and stands in a page with nothing of its own for scripts or names."""
    root = ET.fromstring(svg)
    assert root.tag.endswith("svg")
    assert "<script" not in svg
    return svg


@pytest.mark.parametrize("seed", [1, 2])
def test_pictures_are_drawn_alike_each_time(seed):
    stays = [stay for stay, _ in random_stays(Random(seed))]
    found = occupancy(CellGpus(two_chains()), stays, 0.0, 100.0)
    picture = drawn_well(draw_occupancy(found, 3))
    assert picture == draw_occupancy(found, 3)
    assert ">n3<" in picture
    assert ">bad, unused<" in picture
    pieces = drawn_well(draw_fragmentation(found, "rack"))
    assert pieces == draw_fragmentation(found, "rack")
    assert [f">{name}<" in pieces for name in ("gpu", "pair (2 GPUs)", "rack (16 GPUs)")] == [
        True, True, True,
    ]  # fmt: skip
    assert ">a100 (3 GPUs)<" in drawn_well(draw_fragmentation(found, "box"))


def test_an_idle_cluster_a_node_and_hostile_names_are_drawn():
    types = (CellType("<b>$x$"), CellType("</svg>", "<b>$x$", 2, node=True))
    found = occupancy(
        CellGpus(Spec(types, (Top("</svg>", (NodeSpec("<script>$_$\x07"),)),), ())), [], 0, 9
    )
    assert "&lt;script" in drawn_well(draw_occupancy(found))
    assert "&lt;b" in drawn_well(draw_fragmentation(found, "</svg>"))
    assert "bad" not in draw_occupancy(found)


def test_a_type_of_one_child_has_no_area_of_its_own():
    types = (CellType("gpu"), CellType("only", "gpu", 1), CellType("node", "only", 2, node=True))
    found = occupancy(CellGpus(Spec(types, (Top("node", (NodeSpec("n"),)),), ())), [], 0.0, 9.0)
    picture = draw_fragmentation(found, "node")
    assert ">only" not in picture
    assert ">node (2 GPUs)<" in picture
