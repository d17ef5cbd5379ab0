"""The allocator: local search against everything, quasi-consolidation, speeds."""

import json
from random import Random

import pytest

from sia.policies.chronus.placing.placement import (
    LocalSearch,
    Nodes,
    PlacedJob,
    consolidated,
    placements_of,
)
from sia.state.nodes import quasi
from sia.state.speeds import SpeedRow, Speeds
from tests.support.budget import budget
from tests.support.naive import naive_leases
from tests.support.shell import sia

ROUNDS = budget(ci=60, soak=2000)

SPEEDS = Speeds(
    [
        SpeedRow("vgg", 4, 2, 0.7),
        SpeedRow("vgg", 4, 4, 0.3),
        SpeedRow("gan", 8, 3, 0.9),
        SpeedRow("fast", 8, 2, 1.4),
    ]
)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_local_search_finds_the_most_reward_of_all_placements(seed):
    rng = Random(seed)
    gpus = tuple(rng.choice([4, 8]) for _ in range(rng.randint(1, 3)))
    free = tuple(rng.randint(0, has) for has in gpus)
    jobs = [
        PlacedJob(str(i), rng.choice([1, 2, 3, 4, 5]), rng.choice(["vgg", "gan", "fast", ""]))
        for i in range(rng.randint(1, 4))
    ]
    local = LocalSearch(Nodes(gpus, free), SPEEDS)
    found = local.place(jobs)
    for node, has in enumerate(free):
        assert sum(place.get(node, 0) for place in found.values()) <= has
    by_id = {job.job_id: job for job in jobs}
    assert all(sum(place.values()) == by_id[i].width for i, place in found.items())
    reward = sum(local.reward(by_id[i], place) for i, place in found.items())

    def speed(model, width, nodes):
        return SPEEDS.speed(model, width, nodes, Nodes(gpus, gpus).fewest(width))

    expected = naive_leases.most_reward([(job.width, job.model) for job in jobs], free, speed)
    assert reward == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(20))
def test_placements_that_differ_only_in_equal_nodes_count_once(seed):
    rng = Random(seed)
    free = tuple(rng.randint(0, 4) for _ in range(4))
    width = rng.randint(1, 6)

    def kind(gpus):
        return tuple(sorted(zip(free, gpus, strict=True)))

    everything = {kind(way) for way in naive_leases.spreads(width, free)}
    found = [kind([place.get(n, 0) for n in range(4)]) for place in placements_of(width, free)]
    assert len(found) == len(set(found))
    assert set(found) == everything


@pytest.mark.parametrize(
    ("width", "free", "expected"),
    [
        (3, (8, 3, 5), {1: 3}),
        (4, (8, 3, 5), {2: 4}),
        (4, (3, 2, 3), {0: 3, 1: 1}),
        (6, (3, 2, 3), {0: 3, 2: 3}),
        (7, (3, 2, 3), {0: 3, 2: 3, 1: 1}),
        (9, (3, 2, 3), {}),
    ],
)
def test_quasi_consolidation_takes_the_fullest_node_that_holds_it_else_the_emptiest(
    width, free, expected
):
    assert quasi(width, free) == expected


def test_without_a_search_the_job_with_the_most_potential_is_placed_first():
    nodes = Nodes((8, 8), (4, 3))
    jobs = [PlacedJob("plain", 4), PlacedJob("vgg", 3, "vgg"), PlacedJob("wide", 4)]
    found = LocalSearch(nodes, SPEEDS, 0).place(jobs)
    assert found == {"vgg": {1: 3}, "plain": {0: 4}}


def test_a_job_that_fits_nowhere_is_left_out_and_ends_no_search():
    found = LocalSearch(Nodes((4, 4), (2, 4)), SPEEDS, 0).place(
        [PlacedJob("wide", 8), PlacedJob("a", 5)]
    )
    assert found == {"a": {1: 4, 0: 1}}


def test_on_nodes_of_several_sizes_a_job_lies_on_the_fewest_or_not_at_all():
    found, _ = consolidated([PlacedJob("a", 8), PlacedJob("b", 2)], Nodes((2, 6, 8), (2, 6, 1)))
    assert found == {"b": {0: 2}}


@pytest.mark.parametrize(
    ("model", "width", "nodes", "fewest", "speed"),
    [
        ("vgg", 4, 1, 1, 1.0),
        ("vgg", 4, 2, 1, 0.7),
        ("vgg", 4, 3, 1, 0.5),
        ("vgg", 4, 9, 1, 0.3),
        ("vgg", 3, 2, 1, 0.7),  # the next wider row
        ("vgg", 32, 6, 4, 1.0),  # the widest has no point beyond its fewest nodes
        ("vgg", 16, 3, 2, 0.65),
        ("gan", 8, 2, 1, 0.95),
        ("unknown", 8, 2, 1, 1.0),
        ("", 8, 2, 1, 1.0),
    ],
)
def test_speeds_are_linear_in_nodes_and_then_flat(model, width, nodes, fewest, speed):
    assert SPEEDS.speed(model, width, nodes, fewest) == pytest.approx(speed)


def test_the_potential_is_over_all_numbers_of_nodes_as_if_all_were_free():
    local = LocalSearch(Nodes((8, 8), (1, 0)), SPEEDS)
    assert local.potential(PlacedJob("a", 4, "vgg")) == pytest.approx(4 * 0.3)
    assert local.potential(PlacedJob("a", 1, "vgg")) == 0.0


@pytest.fixture
def placed(tmp_path):
    """What `sia chronus place` answers for a log, on three nodes of 8."""

    def run(rows, *options, speeds="vgg,8,2,0.5\n"):
        (tmp_path / "nodes.csv").write_text("node,gpus,attributes,free\nn1,8,,\nn2,8,,6\nn3,8,,8\n")
        (tmp_path / "log.csv").write_text(
            f"job_id,pool,submit,width,duration,deadline,model\n{rows}"
        )
        (tmp_path / "speeds.csv").write_text(f"model,gpus,nodes,speed\n{speeds}")
        return sia("chronus", "place", "--nodes", tmp_path / "nodes.csv", "--trace",
                   tmp_path / "log.csv", "--speeds", tmp_path / "speeds.csv", *options)  # fmt: skip

    return run


def test_a_rounded_job_has_its_own_gpus_and_leaves_the_rest_to_small_ones(placed):
    answer = json.loads(placed("a,p,0,12,60,99,\nb,p,0,4,60,,\nc,p,0,5,60,,vgg\n", "--json").stdout)
    assert answer == {
        "objective": 21.0,
        "jobs": [
            {"job_id": "a", "nodes": {"n1": 8, "n3": 4}},
            {"job_id": "b", "nodes": {"n3": 4}},
            {"job_id": "c", "nodes": {"n2": 5}},
        ],
        "unplaced": [],
    }


def test_a_job_that_cannot_lie_on_the_fewest_nodes_is_not_placed(placed):
    answer = json.loads(
        placed("a,p,0,24,60,99,\nb,p,0,17,60,,\nc,p,0,7,60,,vgg\n", "--json").stdout
    )
    assert answer["unplaced"] == ["a", "b"]
    assert answer["objective"] == 7.0


@pytest.mark.parametrize("speed", ["0", "-1", "nan"])
def test_a_speed_of_0_or_less_is_refused(placed, speed):
    done = placed("a,p,0,1,60,,\n", speeds=f"vgg,8,2,{speed}\n")
    assert done.returncode == 2
    assert "speeds.csv: row 2, column speed: " in done.stderr
    assert done.stderr.count("\n") == 1
