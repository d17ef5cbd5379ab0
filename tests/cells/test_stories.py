"""What anyone who knows HiveD expects of cells, one story each."""

from __future__ import annotations

import pytest

from cells.cells import Cells
from cells.layout.requests import Blocked, BlockReason, CellPlacement, CellShortage
from cells.layout.spec import CellsError, CellType, NodeSpec, Pinned, QuotaSpec, Spec, Top
from tests.support.clusters.cells import TYPES, cluster, pinned_node, spec, wants


def gpus(outcome):
    assert isinstance(outcome, CellPlacement), outcome
    return dict(outcome.nodes)


def why_not(cells, request):
    assert cells.allocate("waiting", request) is None
    return cells.blockers(request)


def test_the_second_job_of_one_gpu_lands_in_the_buddy_of_the_first():
    cells = cluster(quotas={"a": {"node": 2}})
    assert gpus(cells.allocate("first", wants("a", 1))) == {"n0": (0,)}
    assert gpus(cells.allocate("second", wants("a", 1))) == {"n0": (1,)}


def test_a_wider_job_takes_the_free_half_of_the_node():
    cells = cluster(quotas={"a": {"node": 2}})
    cells.allocate("narrow", wants("a", 1))
    assert gpus(cells.allocate("half", wants("a", 4))) == {"n0": (4, 5, 6, 7)}


def test_answers_that_are_no_longer_kept_are_worked_out_again(monkeypatch):
    monkeypatch.setattr("cells.cells.MAX_CACHED_ALLOCATIONS", 3)
    cells = cluster(quotas={"a": {"node": 2}})
    for _ in range(2):
        places = [gpus(cells.allocate(f"j{k}", wants("a", 1))) for k in range(16)]
        assert places == [{f"n{k // 8}": (k % 8,)} for k in range(16)]
        for k in range(16):
            cells.free(f"j{k}")
    cells.check()


def test_a_spare_job_goes_to_another_node():
    cells = cluster(quotas={"a": {"node": 2}, "b": {"node": 1}})
    cells.allocate("dedicated", wants("a", 1))
    assert gpus(cells.lend("spare", wants("b", 1))) == {"n1": (0,)}
    assert gpus(cells.lend("next", wants("b", 1))) == {"n1": (1,)}


def test_a_spare_job_beside_a_dedicated_one_keeps_out_of_its_buddy():
    cells = cluster(racks=1, nodes=1, quotas={"a": {"node": 1}})
    cells.allocate("dedicated", wants("a", 1))
    assert gpus(cells.lend("two", wants("a", 2))) == {"n0": (2, 3)}
    assert gpus(cells.lend("four", wants("a", 4))) == {"n0": (4, 5, 6, 7)}
    assert cells.lend("buddy", wants("a", 1)) is None
    assert gpus(cells.allocate("next", wants("a", 1))) == {"n0": (1,)}


def test_not_even_a_part_of_a_buddy_is_lent():
    cells = cluster(racks=1, nodes=1, quotas={"a": {"node": 1}})
    cells.allocate("dedicated", wants("a", 4))
    assert cells.lend("spare", wants("a", 1)) is None


def test_buddies_are_within_one_node():
    cells = cluster(racks=1, nodes=2, quotas={"a": {"node": 1}})
    cells.allocate("dedicated", wants("a", 8))
    assert gpus(cells.lend("spare", wants("a", 8))) == {"n1": tuple(range(8))}


def test_dedicated_jobs_keep_far_from_spare_ones():
    cells = cluster(racks=2, nodes=2, quotas={"a": {"node": 2}})
    cells.lend("spare", wants("a", 1))
    assert gpus(cells.allocate("dedicated", wants("a", 1))) in ({"n1": (0,)}, {"n2": (0,)})


def test_three_nodes_wait_where_the_pool_owns_two_and_two_sockets():
    """The GPUs would add up, the cells do not."""
    cells = cluster(racks=2, nodes=2, quotas={"a": {"node": 2, "quad": 2}})
    assert why_not(cells, wants("a", 24)) == Blocked(BlockReason.QUOTA)
    assert len(gpus(cells.allocate("two", wants("a", 16)))) == 2


def test_a_gang_of_seven_and_five():
    cells = cluster(quotas={"a": {"node": 2}})
    placed = gpus(cells.allocate("gang", wants("a", 7, 5)))
    assert placed == {"n0": tuple(range(7)), "n1": tuple(range(5))}
    cells.free("gang")
    assert gpus(cells.allocate("turned", wants("a", 5, 7))) == {
        "n1": tuple(range(5)),
        "n0": tuple(range(7)),
    }


def test_a_gang_gets_all_or_nothing():
    cells = cluster(quotas={"a": {"node": 2}})
    cells.allocate("one", wants("a", 1))
    assert why_not(cells, wants("a", 8, 8)) == Blocked(BlockReason.QUOTA)
    cells.check()
    assert gpus(cells.allocate("half", wants("a", 8, 4)))


def test_two_nodes_lie_in_one_rack_if_possible():
    cells = cluster(racks=2, nodes=4, quotas={"a": {"node": 4}, "b": {"node": 4}})
    for name in ("b1", "b2", "b3"):
        cells.allocate(name, wants("b", 8))
    assert set(gpus(cells.allocate("gang", wants("a", 16)))) == {"n4", "n5"}
    assert set(gpus(cells.allocate("rest", wants("a", 16)))) == {"n6", "n7"}


def test_two_nodes_lie_in_one_rack_of_those_that_the_pool_has():
    types = (
        CellType("gpu"),
        CellType("node", "gpu", 2, node=True),
        CellType("rack", "node", 2),
        CellType("row", "rack", 2),
    )
    rows = [Top("row", tuple(NodeSpec(f"n{4 * row + i}") for i in range(4))) for row in range(2)]
    quotas = (QuotaSpec("a", "row", "row", 1), QuotaSpec("b", "row", "row", 1))
    cells = Cells(Spec(types, tuple(rows), quotas))
    cells.allocate("b", wants("b", 1))
    cells.allocate("one", wants("a", 1))
    assert set(gpus(cells.allocate("gang", wants("a", 4)))) == {"n6", "n7"}


@pytest.mark.parametrize("stays", [0, 1, 8])
def test_free_lists_stay_as_long_as_there_are_free_cells(stays):
    cells = cluster(quotas={"a": {"node": 2}})
    if stays:
        cells.allocate("stays", wants("a", stays))
    for _ in range(500):
        cells.allocate("comes", wants("a", 1))
        cells.allocate("goes", wants("a", 1))
        cells.free("comes")
        cells.free("goes")
    (state,) = cells._states.values()
    for zone in state.all_zones():
        assert max(map(len, zone.open._heaps)) < 100


def test_a_pinned_cell_is_used_only_by_its_owner():
    pinned = [pinned_node("vip", "a", "n1")]
    cells = cluster(racks=1, nodes=2, quotas={"b": {"node": 1}}, pinned=pinned)
    assert gpus(cells.allocate("mine", wants("a", 4, pin="vip"))) == {"n1": (0, 1, 2, 3)}
    cells.free("mine")
    assert gpus(cells.allocate("theirs", wants("b", 8))) == {"n0": tuple(range(8))}
    assert cells.lend("spare", wants("b", 1)) is None
    assert why_not(cells, wants("a", 1)) == Blocked(BlockReason.QUOTA)
    with pytest.raises(CellsError, match="pinned cell 'vip' belongs to pool a, not b"):
        cells.allocate("thief", wants("b", 1, pin="vip"))


def test_pinned_gpus_cut_up_their_node():
    half = Pinned("half", "a", "quad", ("n0",), (4, 5, 6, 7))
    cells = cluster(racks=1, nodes=2, quotas={"b": {"node": 1, "quad": 1}}, pinned=[half])
    assert gpus(cells.allocate("b", wants("b", 8))) == {"n1": tuple(range(8))}
    assert gpus(cells.allocate("a", wants("a", 2, pin="half"))) == {"n0": (4, 5)}
    with pytest.raises(CellsError, match="2 node requested in chain rack, but only 1 fit"):
        cluster(racks=1, nodes=2, quotas={"b": {"node": 2}}, pinned=[half])


def test_a_bad_buddy_leads_to_splitting_elsewhere_only_while_that_is_safe():
    quotas = {"a": {"node": 1}, "b": {"rack": 1}}
    cells = cluster(racks=3, nodes=2, quotas=quotas, bad=("n1", "n3"))
    assert gpus(cells.allocate("first", wants("a", 8))) == {"n0": tuple(range(8))}
    cells.free("first")
    cells.take_out("n0")
    assert gpus(cells.allocate("second", wants("a", 8))) == {"n2": tuple(range(8))}
    cells.free("second")
    cells.take_out("n2")
    assert why_not(cells, wants("a", 8)) == Blocked(BlockReason.SHORT)  # the rack is b's
    assert gpus(cells.allocate("b", wants("b", 16)))
    assert [short.pools for short in cells.shortages()] == [("a",)]


def test_a_shortage_is_reported_until_the_node_is_back():
    cells = cluster(racks=1, nodes=2, quotas={"a": {"node": 1}, "b": {"node": 1}})
    cells.take_out("n0")
    assert cells.shortages() == [CellShortage("rack", "node", 1, ("a", "b"))]
    cells.allocate("a", wants("a", 1))
    assert cells.shortages() == [CellShortage("rack", "node", 1, ("b",))]
    assert why_not(cells, wants("b", 1)) == Blocked(BlockReason.SHORT)
    cells.bring_back("n0")
    assert cells.shortages() == []
    assert gpus(cells.allocate("b", wants("b", 1))) == {"n0": (0,)}


def test_a_job_on_a_bad_node_runs_on_and_its_cell_is_reported():
    cells = cluster(racks=1, nodes=2, quotas={"a": {"node": 1}})
    cells.allocate("first", wants("a", 4))
    cells.take_out("n0", "drained")
    assert cells.shortages() == [CellShortage("rack", "node", 1, ("a",), broken=True)]
    assert gpus(cells.placement("first")) == {"n0": (0, 1, 2, 3)}
    assert why_not(cells, wants("a", 4)) == Blocked(BlockReason.QUOTA)  # its cell is bound
    cells.free("first")
    assert cells.shortages() == []
    assert gpus(cells.allocate("second", wants("a", 4))) == {"n1": (0, 1, 2, 3)}


def test_reconfiguration_under_running_jobs():
    cells = cluster(racks=1, nodes=2, quotas={"a": {"node": 1}, "b": {"node": 1}})
    cells.allocate("a", wants("a", 1))
    cells.lend("spare", wants("a", 8))
    cells.set_quotas({"b": {"rack": {"node": 2}}})
    assert cells.shortages() == [CellShortage("rack", "node", 1, ("b",))]
    with pytest.raises(CellsError, match="no pool 'a'; use one of b"):
        cells.allocate("a2", wants("a", 1))
    cells.remove("n1")
    cells.add(Top("rack", (NodeSpec("n1"), NodeSpec("n9"))))
    cells.check()
    assert cells.shortages() == []
    assert set(gpus(cells.allocate("b", wants("b", 16)))) == {"n1", "n9"}
    cells.free("a")
    cells.free("spare")
    cells.check()


def test_a_resolved_request_uses_nodes_added_later():
    cells = cluster(racks=1, nodes=2, quotas={"a": {"node": 1}})
    asked = cells.resolve(wants("a", 8))
    assert cells.allocate_resolved("one", asked).nodes[0][0] == "n0"
    cells.add(Top("rack", (NodeSpec("n8"), NodeSpec("n9"))))
    cells.set_quotas({"a": {"rack": {"node": 3}}})
    cells.take_out("n1")
    assert [cells.allocate_resolved(job, asked).nodes[0][0] for job in ("two", "three")] == [
        "n8",
        "n9",
    ]
    assert cells.allocate_resolved("four", asked) is None
    assert not cells.in_quota_resolved(asked)
    cells.check()


def test_blockers_are_named_and_a_claimed_cell_takes_no_more_spare_jobs():
    cells = cluster(racks=1, nodes=2, quotas={"a": {"node": 1}, "b": {"node": 1}})
    cells.lend("s1", wants("b", 8))
    cells.lend("s2", wants("b", 4))
    cells.lend("s3", wants("b", 1))
    assert cells.blockers(wants("a", 8)) == Blocked(BlockReason.SPARE, ("s2", "s3"))
    cells.claim("a", wants("a", 8))
    assert cells.waits_for("a") == ("s2", "s3")
    cells.free("s2")
    assert cells.lend("s4", wants("b", 1)) is None
    assert not cells.ready("a")
    cells.free("s3")
    assert cells.ready("a")


def test_a_reservation_that_is_not_free_of_spare_jobs_stops_all_lending():
    cells = cluster(racks=1, nodes=2, quotas={"a": {"node": 2}})
    cells.lend("s1", wants("a", 1))
    cells.reserve("first", wants("a", 8))
    cells.reserve("second", wants("a", 8))
    assert (cells.ready("first"), cells.ready("second")) == (True, False)
    cells.free("first")
    assert cells.lend("s2", wants("a", 1)) is None
    cells.free("second")
    assert cells.lend("s2", wants("a", 1)) is not None


def test_reserved_cells_are_not_lent():
    cells = cluster(racks=1, nodes=2, quotas={"a": {"node": 1}, "b": {"node": 1}})
    holds = cells.reservations()
    holds.set("a", 1)
    assert gpus(cells.lend("s1", wants("b", 8), [holds])) == {"n0": tuple(range(8))}
    assert cells.lend("s2", wants("b", 1), [holds]) is None
    holds.set("a", 0)
    assert gpus(cells.lend("s2", wants("b", 1), [holds])) == {"n1": (0,)}
    holds.set("a", 1)
    assert not holds.satisfied()


def test_a_part_of_the_quota_that_nobody_reserves_is_left_without_spare_jobs():
    cells = cluster(racks=2, nodes=2, quotas={"a": {"node": 2}, "b": {"node": 2}})
    holds = cells.reservations(clean=0.5)
    nodes = [gpus(cells.lend(f"s{k}", wants("b", 4), [holds])) for k in range(4)]
    assert {name for of in nodes for name in of} == {"n0", "n1"}
    assert cells.lend("more", wants("b", 1), [holds]) is None, "two of four nodes stay free"
    holds.set("a", 8)
    assert holds.satisfied(), "one is reserved, and half of the other three is left, rounded down"
    cells.free("s3")
    assert gpus(cells.lend("again", wants("b", 1), [holds])) == {"n1": (4,)}, "it is lent already"
    for k in range(2):
        assert cells.allocate(f"own{k}", wants("a", 8)) is not None
    assert cells.lend("late", wants("b", 8), [holds]) is None


def test_as_many_cells_are_left_without_spare_jobs_as_one_pool_may_bind_at_once():
    quotas = {"a": {"node": 4}, "b": {"node": 1}, "c": {"node": 1}}
    cells = cluster(racks=3, nodes=2, quotas=quotas)
    holds = cells.reservations(clean=0.5)
    for k in range(2):
        assert cells.lend(f"s{k}", wants("b", 8), [holds]) is not None
    assert cells.lend("more", wants("c", 8), [holds]) is None, "a may bind the other four"
    for k in range(3):
        assert cells.allocate(f"own{k}", wants("a", 8)) is not None
    assert cells.lend("late", wants("c", 8), [holds]) is None, "it may bind the last one, too"


def test_some_cells_are_lent_even_if_only_one_pool_has_free_ones():
    cells = cluster(racks=3, nodes=2, quotas={"a": {"node": 4}, "b": {"node": 2}})
    for k in range(2):
        assert cells.allocate(f"own{k}", wants("b", 8)) is not None
    holds = cells.reservations(clean=0.5)
    assert cells.lend("first", wants("b", 8), [holds]) is not None
    assert cells.lend("second", wants("b", 8), [holds]) is None, "three of four stay free"


def test_a_gang_is_not_brought_together_in_a_rack_that_another_pool_holds():
    quotas = {"a": {"rack": {"node": 2}}, "b": {"rack": {"rack": 1}}, "c": {"rack": {"node": 6}}}
    cells = cluster(racks=4, nodes=3, quotas={pool: of["rack"] for pool, of in quotas.items()})
    for k in range(6):
        cells.allocate(f"c{k}", wants("c", 8))
    cells.free("c2")
    cells.free("c5")
    cells.set_quotas(quotas | {"c": {"rack": {"node": 4}}})
    spare = [gpus(cells.lend(f"s{k}", wants("c", 8))) for k in range(4)]
    assert [name for nodes in spare for name in nodes] == ["n2", "n5", "n6", "n7"]
    cells.free("s0")
    cells.free("s1")
    holds = cells.reservations()
    holds.set("a", 16)
    holds.set("b", 24)
    assert holds.satisfied()
    assert set(gpus(cells.allocate("gang", wants("a", 16)))) == {"n2", "n5"}
    assert len(gpus(cells.allocate("held", wants("b", 24)))) == 3
    cells.check()


def test_the_reservation_follows_quota_returned_by_a_lost_node():
    cells = cluster(racks=1, nodes=2, quotas={"a": {"node": 1}})
    cells.allocate("first", wants("a", 8))
    cells.take_out("n0")
    holds = cells.reservations()
    holds.set("a", 1)
    assert holds.satisfied()  # all that a has is in use
    cells.free("first")
    assert cells.lend("spare", wants("a", 1), [holds]) is None  # n1 is what a has left


def test_quota_must_fit_what_was_not_removed():
    cells = cluster(racks=1, nodes=2, quotas={"a": {"node": 1}})
    cells.remove("n0")
    with pytest.raises(CellsError, match="2 node requested in chain rack, but only 1 fit"):
        cells.set_quotas({"a": {"rack": {"node": 2}}})
    assert gpus(cells.allocate("a", wants("a", 8))) == {"n1": tuple(range(8))}


def test_an_unknown_pool_holds_nothing_back():
    with pytest.raises(CellsError, match="no pool 'x'"):
        cluster(quotas={"a": {"node": 1}}).reservations().set("x", 1)


def test_chains_have_their_own_types_and_slices_may_be_the_lowest():
    types = (
        CellType("slice"),
        CellType("a100", "slice", 7),
        CellType("dgx", "a100", 2, node=True),
        *TYPES,
    )
    quotas = (QuotaSpec("a", "dgx", "a100", 1), QuotaSpec("a", "node", "node", 1))
    tops = (Top("dgx", (NodeSpec("d0"),)), Top("node", (NodeSpec("v0", tuple(range(8, 16))),)))
    cells = Cells(Spec(types, tops, quotas))
    assert gpus(cells.allocate("small", wants("a", 2, chain="dgx"))) == {"d0": (0, 1)}
    assert gpus(cells.allocate("big", wants("a", 4, chain="node"))) == {"v0": (8, 9, 10, 11)}
    with pytest.raises(CellsError, match="no chain ''; use one of dgx, node"):
        cells.allocate("which", wants("a", 2))


def test_a_copy_does_not_affect_the_original():
    cells = cluster(quotas={"a": {"node": 2}})
    cells.allocate("one", wants("a", 1))
    other = cells.copy()
    other.allocate("two", wants("a", 1))
    other.free("one")
    cells.check()
    other.check()
    assert gpus(cells.placement("one")) == {"n0": (0,)}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (wants("x", 1), "no pool 'x'; use one of a"),
        (wants("a", 1, pin="vip"), "no pinned cell 'vip'; use a name listed under pinned"),
        (
            wants("a", 7, 5, gpus=10),
            "requests 12 GPUs, but its gang declared 10; declare all of them",
        ),
        (wants("a", 0), "requests widths [0]; each must be at least 1"),
        (wants("a"), "requests widths []; each must be at least 1"),
    ],
)
def test_an_invalid_request_is_reported_and_changes_nothing(request_, message):
    cells = cluster(quotas={"a": {"node": 2}})
    with pytest.raises(CellsError) as caught:
        cells.allocate("j", request_)
    assert message in str(caught.value)
    cells.check()


def test_an_invalid_name_is_reported_with_the_reason():
    cells = cluster(quotas={"a": {"node": 2}})
    with pytest.raises(CellsError, match="no node 'x'"):
        cells.take_out("x")
    with pytest.raises(CellsError, match="'j' has no cells"):
        cells.free("j")
    cells.allocate("j", wants("a", 1))
    with pytest.raises(CellsError, match="'j' already has cells; free them first"):
        cells.lend("j", wants("a", 1))


def test_an_impossible_assignment_is_refused_with_the_reason():
    with pytest.raises(CellsError) as caught:
        Cells(spec(racks=2, nodes=2, quotas={"a": {"rack": 1}, "b": {"node": 3}}))
    assert str(caught.value) == (
        "quota: 3 node requested in chain rack, but only 2 fit next to pinned cells and quotas of "
        "larger types; lower a quota (b 3)"
    )


def test_a_pool_that_owns_a_row_of_racks_gets_it_beside_spare_and_dedicated_jobs():
    types = (
        CellType("gpu"),
        CellType("node", "gpu", 3, node=True),
        CellType("rack", "node", 2),
        CellType("row", "rack", 2),
    )
    rows = [Top("row", tuple(NodeSpec(f"n{4 * row + i}") for i in range(4))) for row in range(2)]
    quotas = [("a", "node", 2), ("b", "node", 1), ("c", "row", 1)]
    owned = tuple(QuotaSpec(pool, "row", kind, count) for pool, kind, count in quotas)
    cells = Cells(Spec(types, tuple(rows), owned))
    cells.allocate("nodes", wants("a", 4))
    assert gpus(cells.lend("spare", wants("b", 6))) == {"n2": (0, 1, 2), "n3": (0, 1, 2)}
    assert gpus(cells.allocate("row", wants("c", 4))) == {"n4": (0, 1, 2), "n5": (0,)}
    cells.check()


def test_a_width_is_rounded_up_to_cells_and_the_next_narrower_is_known():
    cells = cluster(quotas={"a": {"node": 2}})
    assert [cells.width(width) for width in (1, 2, 3, 5, 8, 9, 16, 17)] == [
        1, 2, 4, 8, 8, 16, 16, 24,
    ]  # fmt: skip
    assert [cells.narrower(width) for width in (17, 16, 9, 8, 5, 3, 2, 1)] == [
        16, 8, 8, 4, 4, 2, 1, 0,
    ]  # fmt: skip


def test_the_quota_and_the_largest_holding_of_a_pool_are_known():
    pinned = [pinned_node("vip", "a", "n3")]
    cells = cluster(quotas={"a": {"node": 1, "quad": 1}, "b": {"node": 1}}, pinned=pinned)
    cells.allocate("b", wants("b", 8))
    cells.take_out("n0", "drained")
    assert cells.owned_gpus() == {"a": {"rack": 20}, "b": {"rack": 8}}
    assert cells.quotas() == {"a": {"rack": {"quad": 1, "node": 1}}, "b": {"rack": {"node": 1}}}
    assert cells.nodes() == {"n0": "drained", "n1": "", "n2": "", "n3": ""}
    assert [cells.fits_quota(wants("a", *widths)) for widths in [(8, 4), (8, 5), (9,)]] == [
        True,
        False,
        False,
    ]
    assert cells.fits_quota(wants("b", 8))
    assert cells.fits_quota(wants("a", 4, 4, pin="vip"))
    assert not cells.fits_quota(wants("a", 8, 1, pin="vip"))


def test_a_spare_job_leaves_all_of_several_windows_held():
    cells = cluster(racks=1, nodes=2, quotas={"a": {"node": 1}, "b": {"node": 1}})
    soon, later = cells.reservations(), cells.reservations()
    soon.set("a", 1)
    later.set("b", 1)
    assert cells.lend("none", wants("b", 1), (soon,)) is not None
    cells.free("none")
    later.set("a", 1)
    assert cells.lend("s", wants("b", 1), (soon, later)) is None
    assert cells.jobs() == {}


def test_a_pool_that_owns_a_rack_uses_what_is_left_of_it():
    cells = cluster(racks=2, nodes=2, quotas={"a": {"rack": 1}, "b": {"rack": 1}})
    cells.take_out("n0")
    assert gpus(cells.allocate("whole", wants("a", 1))) == {"n2": (0,)}
    assert gpus(cells.allocate("left", wants("b", 8))) == {"n1": tuple(range(8))}
    assert why_not(cells, wants("b", 1)) == Blocked(BlockReason.QUOTA)
    cells.check()
    cells.bring_back("n0")
    assert gpus(cells.allocate("mended", wants("b", 8))) == {"n0": tuple(range(8))}
    cells.check()


def test_the_rest_of_a_rack_stays_with_the_pool_whose_quota_it_may_be():
    cells = cluster(racks=1, nodes=2, quotas={"a": {"rack": 1}})
    cells.take_out("n0")
    cells.lend("spare", wants("a", 8))
    assert why_not(cells, wants("a", 8)) == Blocked(BlockReason.SPARE, ("spare",))
    cells.claim("next", wants("a", 8))
    cells.free("spare")
    assert cells.ready("next")
    two = cluster(racks=2, nodes=2, quotas={"a": {"rack": 1}, "b": {"node": 2}})
    two.take_out("n0")
    two.take_out("n2")
    assert why_not(two, wants("a", 1)) == Blocked(BlockReason.SHORT)  # both nodes left are b's
