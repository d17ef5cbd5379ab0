"""Cells that were dumped and restored answer from then on as the undisturbed ones do."""

import re
from dataclasses import replace
from random import Random

import msgspec
import pytest

from cells.cells import Cells
from cells.layout.shape import Cell
from cells.layout.spec import CellsError, NodeSpec, Top
from cells.snapshot import CellsSnapshot
from tests.cells.test_guarantee import CALM, NODES_LOST, UPHEAVAL, History
from tests.support.budget import budget
from tests.support.clusters.cells import cluster, pinned_node, wants

ROUNDS, STEPS = budget(ci=10, soak=80), 80
LIFE = {**CALM, **NODES_LOST, **UPHEAVAL, "reservation": 0.5, "hold": 0.5}


def again(cells):
    """By way of its bytes."""
    data = msgspec.json.encode(cells.dump())
    made = Cells.restore(msgspec.json.decode(data, type=CellsSnapshot))
    assert msgspec.json.encode(made.dump()) == data
    made.check()
    return made


def renewed(history, renew=again):
    """The same history with other cells, and what is held back as it was."""
    history.cells = renew(history.cells)
    history.holds = {chain: history.cells.reservations(chain) for chain in history.chains}
    for (chain, pool), gpus in history.held.items():
        history.holds[chain].set(pool, gpus)


def places(cells):
    return {job: cells.placement(job) for job in cells.jobs()}


def part(seed, renew=again):
    """Whether places differ in two lives of the same cells, one being restored now and then."""
    rng = Random(seed)
    one, other = (History(seed) for _ in range(2))
    for _ in range(STEPS):
        if rng.random() < 0.2:
            renewed(other, renew)
        one.step(**LIFE)
        other.step(**LIFE)
        if places(one.cells) != places(other.cells) or one.cells.nodes() != other.cells.nodes():
            return True
    return renew is again and one.cells.dump() != other.cells.dump()


def test_restored_cells_go_on_as_undisturbed_ones():
    for seed in range(ROUNDS):
        assert not part(seed), f"seed {seed}"


def test_bound_cells_keep_their_numbers_wherever_they_are():
    """The first quota cell of a was given back while b had its place, and is bound further on."""
    cells = cluster(quotas={"a": {"node": 2}, "b": {"node": 1}})
    cells.allocate("gone", wants("a", 8))
    cells.allocate("then", wants("a", 8))
    cells.free("gone")
    cells.allocate("other", wants("b", 8))
    cells.allocate("half", wants("a", 4))
    cells.allocate("stays", wants("a", 4))
    cells.free("then")
    cells.allocate("second", wants("a", 4))
    cells.free("half")
    kept = cells.dump()
    mine = sorted((bound for bound in kept.bound if bound.pool == "a"), key=lambda b: b.cell)
    by_place = [bound._replace(slot=slot) for slot, bound in enumerate(mine)]
    others = [bound for bound in kept.bound if bound.pool != "a"]
    renumbered = Cells.restore(replace(kept, bound=(*others, *by_place)))
    asked = "next", wants("a", 4)
    assert again(cells).allocate(*asked).nodes == (("n2", (0, 1, 2, 3)),)
    assert renumbered.allocate(*asked).nodes == (("n1", (4, 5, 6, 7)),)
    assert cells.allocate(*asked).nodes == (("n2", (0, 1, 2, 3)),)


def without(**changes):
    """What is restored is not what was dumped."""

    def renew(cells):
        kept = cells.dump()
        return Cells.restore(replace(kept, **{k: change(kept) for k, change in changes.items()}))

    return renew


@pytest.mark.parametrize(
    "forget",
    [
        pytest.param(without(out=lambda _: ()), id="nodes that are out"),
    ],
)
def test_a_snapshot_that_omits_something_is_detected(forget):
    assert any(part(seed, forget) for seed in range(80))


def test_a_node_that_is_gone_is_still_shown_while_its_job_runs():
    pins = [pinned_node("vip", "a", "n0")]
    cells = cluster(quotas={"a": {"node": 1}, "b": {"rack": 1}}, pinned=pins, bad=["n3"])
    cells.allocate("first", wants("a", 8, pin="vip"))
    cells.remove("n0")
    cells.add(Top("rack", (NodeSpec("n0"), NodeSpec("n9", bad=True))))
    made = again(cells)
    assert made.placement("first").nodes[0][0] == "n0"
    assert made.nodes() == cells.nodes()
    assert made.nodes() == {"n1": "", "n2": "", "n3": "bad", "n0": "", "n9": "bad"}
    made.free("first")
    assert made.allocate("second", wants("a", 8, pin="vip")) is None, "the pinned cell is gone"


def lived_in():
    """Pool a has a node and two jobs in it, b a node; somebody is on spare GPUs, a node is out."""
    cells = cluster(quotas={"a": {"node": 2}, "b": {"node": 1}})
    cells.allocate("own", wants("a", 3))
    cells.allocate("other", wants("b", 8))
    cells.lend("guest", wants("b", 2))
    cells.take_out("n3", "drained")
    return cells.dump()


def put(kept, field, place, row):
    rows = list(getattr(kept, field))
    rows[place : place + 1] = row
    return replace(kept, **{field: tuple(rows)})


OWN, GUEST = 0, 2
QUAD, NODE = 2, 3


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda k: put(k, "tenants", OWN, [k.tenants[OWN]] * 2), "'own' already has cells"),
        (
            lambda k: put(k, "tenants", OWN, [k.tenants[OWN], k.tenants[OWN]._replace(name="x")]),
            "x: cell (2, 0) is not free",
        ),
        (
            lambda k: put(
                k, "tenants", GUEST, [k.tenants[GUEST], k.tenants[GUEST]._replace(name="x")]
            ),
            "x: cell (1, 8) is lent twice",
        ),
        (
            lambda k: put(k, "tenants", OWN, [k.tenants[OWN]._replace(cells=(Cell(QUAD, 4),))]),
            "own: cell (2, 4) is not free",
        ),
        (
            lambda k: put(k, "tenants", OWN, [k.tenants[OWN]._replace(cells=(Cell(QUAD, 99),))]),
            "own: the chain has no cell (2, 99)",
        ),
        (
            lambda k: put(k, "tenants", OWN, [k.tenants[OWN]._replace(cells=(Cell(9, 0),))]),
            "own: cells do not match its widths",
        ),
        (
            lambda k: put(k, "tenants", OWN, [k.tenants[OWN]._replace(widths=())]),
            "own: cells do not match its widths",
        ),
        (
            lambda k: put(k, "tenants", OWN, [k.tenants[OWN]._replace(chain="row")]),
            "no chain 'row'",
        ),
        (lambda k: put(k, "bound", 0, []), "own: cell (2, 0) is not free"),
        (lambda k: put(k, "bound", 0, [k.bound[0]] * 2), "cell (3, 0) is bound twice"),
        (
            lambda k: put(k, "bound", 0, [k.bound[0], k.bound[0]._replace(cell=Cell(NODE, 2))]),
            "slot 0 is taken",
        ),
        (lambda k: put(k, "bound", 0, [k.bound[0]._replace(slot=10**12)]), "or too high"),
        (lambda k: put(k, "bound", 0, [k.bound[0]._replace(pool="x")]), "unknown pool 'x'"),
        (
            lambda k: put(k, "bound", 0, [k.bound[0]._replace(cell=Cell(QUAD, 0))]),
            "more cells bound than owned",
        ),
        (lambda k: put(k, "out", 0, [("n8", "bad")]), "no node 'n8'"),
        (lambda k: put(k, "gone", 0, [("rack", 9, "n9")]), "chain rack has no node 9"),
        (
            lambda k: replace(k, spec=replace(k.spec, tops=k.spec.tops[:1])),
            "node requested in chain",
        ),
    ],
)
def test_cells_that_contradict_themselves_are_refused(break_it, message):
    with pytest.raises(CellsError, match=re.escape(message)):
        Cells.restore(break_it(lived_in()))
