"""Chronus where nodes are known: who moves, who lies together, how fast jobs run."""

from itertools import combinations, pairwise
from random import Random

import pytest

from predictors.perfect import PerfectRunTimes
from replay.deadlines.rewards import GUARANTEED
from replay.logs.trace import PoolTable, Trace
from replay.run.run import Settings, replay_one
from replay.run.solving import ReplaySolver
from sia.core.core import Core
from sia.core.playout import Arrival, play
from sia.core.snapshot import decode, dump, encode, restore
from sia.decisions import PreemptJob, ProposalRefused, StartJob
from sia.events import GpusOut, NodeBack, NodeOut
from sia.model import GpuNode, Job, Options, Pool
from sia.policies import make
from sia.policies.chronus.leases.sizes import NodeSizes
from sia.policies.chronus.placing.moves import StayingJob, fewest_moves, lacking
from sia.policies.chronus.placing.placement import Nodes, PlacedJob, consolidated
from sia.state.speeds import SpeedRow
from tests.sia.policies.chronus.test_promises import drawn, options
from tests.support.budget import budget
from tests.support.files import tables
from tests.support.shell import sia


@pytest.mark.parametrize("seed", range(budget(ci=36, soak=5000)))
def test_as_few_jobs_move_as_can_be(seed):
    rng = Random(seed)
    node = rng.choice([8, 8, 6, 4])
    sizes = NodeSizes(node * 3, node)
    parts = [part for part in (1, 2, 4) if part < node]
    free, staying = [], {}
    for n in range(3):
        room, jobs = rng.choice([node, node, node - 1]), []
        while room and rng.random() < 0.7:
            part = rng.choice([p for p in parts if p <= room])
            jobs.append(StayingJob(f"{n}.{len(jobs)}", part))
            room -= part
        free.append(room)
        staying[n] = jobs
    wanted = [rng.choice([*parts, node]) for _ in range(rng.randint(1, 4))]
    moved = fewest_moves(sizes, free, staying, wanted)
    least = naive_moves(sizes, node, free, staying, wanted)
    assert (None if moved is None else len(moved)) == least
    if moved is not None:
        assert is_placed(sizes, node, free, staying, wanted, moved)


def naive_moves(sizes, node, free, staying, wanted):
    """The least number of jobs that must move, by trying all sets of them."""
    jobs = [job.job_id for alike in staying.values() for job in alike]
    for count in range(len(jobs) + 1):
        for moved in combinations(jobs, count):
            if is_placed(sizes, node, free, staying, wanted, moved):
                return count
    return None


def is_placed(sizes, node, free, staying, wanted, moved):
    left, asked = [*free], [*wanted]
    for n, jobs in staying.items():
        for job in jobs:
            if job.job_id in moved:
                left[n] += job.gpus
                asked.append(job.gpus)
    jobs = [PlacedJob(str(i), gpus) for i, gpus in enumerate(asked)]
    placed, _ = consolidated(jobs, Nodes((node,) * len(free), tuple(left)))
    assert (len(placed) == len(jobs)) is not any(lacking(sizes, left, asked))
    return len(placed) == len(jobs)


NODES = {
    "alike": (8, 8, 8, 8), "of 6": (6, 6, 6, 6, 6), "unlike": (8, 4, 8, 6, 2, 8), "of 4": (4,) * 8,
    "in part": (8, 8, 8, 8),
}  # fmt: skip


@pytest.mark.parametrize("kind", NODES)
@pytest.mark.parametrize("seed", range(budget(ci=2, soak=300)))
def test_promises_hold_on_nodes_and_guaranteed_jobs_lie_on_the_fewest(seed, kind):
    rng = Random(f"{seed} {kind}")
    less = (0, 3, 0, 1) if kind == "in part" else (0,) * 9
    nodes = tuple(GpuNode(f"n{i}", gpus, free=gpus - less[i]) for i, gpus in enumerate(NODES[kind]))
    pools = [Pool("p", sum(node.usable for node in nodes))]
    trace = drawn(rng, pools)
    models = rng.choices(["", "vgg"], k=len(trace.arrivals))
    trace = Trace([
        Arrival(replaced(job, model), duration)
        for (job, duration), model in zip(trace.arrivals, models, strict=True)
    ])  # fmt: skip
    label = options(rng).replace(":roundup=no", "").replace("capacity=8", "capacity=16")
    rows = (SpeedRow("vgg", 4, 2, 0.5), SpeedRow("vgg", 8, 4, 0.2))
    settings = Settings(
        [label], options=Options(resume_cost=rng.choice([0.0, 60.0])), nodes=nodes, speeds=rows
    )
    found = replay_one(trace, PoolTable(pools), label, settings, None)
    sizes = {node.name: node.usable for node in nodes}
    held = {}
    for segment in found.segments:
        assert sum(len(gpus) for _, gpus in segment.nodes) == segment.width
        for name, gpus in segment.nodes:
            assert max(gpus) < sizes[name]
            for gpu in gpus:
                held.setdefault((name, gpu), []).append((segment.start, segment.end))
    for spans in held.values():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    for (job, _), end in zip(trace.arrivals, found.ends, strict=True):
        promised = found.promises.get(job.id)
        if promised is not None and promised.label == GUARANTEED:
            assert end is not None, job
            assert job.step_met(end) is not None, (job, end, promised)
            for segment in found.segments:
                if segment.job_id == job.id:
                    assert len(segment.nodes) <= -(-job.width // max(NODES[kind]))


def replaced(job, model):
    return Job(**{name: getattr(job, name) for name in job.__struct_fields__} | {"model": model})


@pytest.mark.parametrize("label", ["chronus:profile=0:fill", "chronus:capacity=16"])
def test_a_restored_snapshot_decides_the_same_on_nodes(label):
    rng = Random(label)
    nodes = tuple(GpuNode(f"n{i}", 8) for i in range(4))
    trace = drawn(rng, pools := [Pool("p", 32)], jobs=25)
    core = Core(pools, make(label), nodes=nodes, speeds=[SpeedRow("vgg", 4, 2, 0.5)])
    durations = {job.id: duration for job, duration in trace.arrivals}
    played = play(
        core, trace.arrivals, solve=ReplaySolver(None, 0.0), run_times=PerfectRunTimes(durations)
    )
    for number, _ in enumerate(played):
        core.check()
        if number % 7 == 3:
            again = restore(decode(encode(dump(core))), make(label))
            again.check()
            assert encode(dump(again)) == encode(dump(core))


# Nodes that are out


def outages(*spans):
    """Events of nodes that are out from and until these times; nobody else is told."""
    edges = [(begin, node, True) for node, begin, _ in spans]
    edges += [(end, node, False) for node, _, end in spans if end is not None]
    gone = 0
    for time, node, is_out in sorted(edges, key=lambda edge: edge[0]):
        gone += node.gpus if is_out else -node.gpus
        yield NodeOut(time, node.name, "bad") if is_out else NodeBack(time, node.name)
        yield GpusOut(time, "p", gone)


def played(label, nodes, arrivals, facts):
    """All decisions of a story on nodes, at the end of which nobody waits."""
    core = Core([Pool("p", sum(node.gpus for node in nodes))], make(label), nodes=nodes)
    run_times = PerfectRunTimes({job.id: duration for job, duration in arrivals})
    decisions = []
    solve = ReplaySolver(None, 0.0)
    for instant in play(core, arrivals, facts=[*facts], solve=solve, run_times=run_times):
        core.check()
        decisions += instant.decisions
        assert not any(isinstance(each, ProposalRefused) for each in instant.decisions)
        assert instant.now < 300_000.0, [*core.state.jobs]
    assert not core.state.jobs
    return decisions


@pytest.mark.parametrize("seed", range(budget(ci=8, soak=500)))
def test_all_jobs_end_though_nodes_are_out_for_a_while_and_no_start_is_refused(seed):
    rng = Random(seed)
    nodes = tuple(GpuNode(f"m{i}", gpus) for i, gpus in enumerate((8, rng.choice([4, 8]), 8, 8)))
    arrivals = drawn(rng, [Pool("p", 8)], jobs=30).arrivals
    label = options(rng)
    spans = []
    for node in rng.sample(nodes, 2):
        begin = float(rng.choice([0, rng.randint(0, 12_000)]))
        spans.append((node, begin, begin + rng.randint(100, 20_000)))
    played(label, nodes, arrivals, outages(*spans))


@pytest.mark.parametrize("label", ["chronus", "chronus:lease=300:be=60:profile=0"])
def test_nobody_is_placed_on_a_node_that_stays_out(label):
    nodes = tuple(GpuNode(f"m{i}", 2) for i in range(4))
    arrivals = [Arrival(Job(f"j{i}", "p", 100.0 + i * 10, 1 + i % 2), 500.0) for i in range(20)]
    decisions = played(label, nodes, arrivals, outages((nodes[0], 0.0, None)))
    starts = [each for each in decisions if isinstance(each, StartJob)]
    assert len(starts) == 20
    assert not any(name == "m0" for start in starts for name, _ in start.nodes)


def test_jobs_of_a_node_that_goes_out_stay_there():
    nodes = GpuNode("m0", 4), GpuNode("m1", 4), GpuNode("m2", 4)
    arrivals = [
        Arrival(Job("small", "p", 0.0, 1), 5000.0),
        Arrival(Job("due", "p", 0.0, 4, deadline=20_000.0), 5000.0),
    ]
    for name in ("m0", "m1"):
        node = next(node for node in nodes if node.name == name)
        decisions = played("chronus:profile=0", nodes, arrivals, outages((node, 100.0, None)))
        assert not any(isinstance(each, PreemptJob) for each in decisions)


@pytest.mark.parametrize("begin", [0.0, 1000.0])
def test_the_profiler_leaves_a_node_that_is_out(begin):
    """Its only node is m3, as it takes the last one."""
    nodes = tuple(GpuNode(f"m{i}", 8) for i in range(4))
    arrivals = [Arrival(Job(f"j{i}", "p", 300.0 * i, 1 + i % 8), 500.0) for i in range(10)]
    played("chronus:capacity=8", nodes, arrivals, outages((nodes[3], begin, None)))


@pytest.fixture
def placed(tmp_path):
    """The rows of a replay's tables by name, for a log on two nodes of 8."""

    def run(rows, label="chronus:profile=0", pools="p,16", nodes="n1,8\nn2,8\n", speeds=""):
        (tmp_path / "log.csv").write_text(
            f"job_id,pool,submit,width,duration,deadline,model\n{rows}"
        )
        (tmp_path / "pools.csv").write_text(f"pool,quota\n{pools}\n")
        (tmp_path / "nodes.csv").write_text(f"node,gpus\n{nodes}")
        (tmp_path / "speeds.csv").write_text(f"model,gpus,nodes,speed\n{speeds or 'm,2,2,0.5'}\n")
        done = sia("replay", "--trace", tmp_path / "log.csv", "--pools", tmp_path / "pools.csv",
                   "--policy", label, "--nodes", tmp_path / "nodes.csv", "--speeds",
                   tmp_path / "speeds.csv", "--resume-cost", "50s", "--no-report",
                   "--out", tmp_path / "out")  # fmt: skip
        assert not done.returncode, done.stderr
        return tables(tmp_path / "out" / label)

    return run


def segments(found):
    return sorted((*row[:3], row[4]) for row in found["segments"])


def test_one_renewed_job_moves_for_a_job_that_needs_a_whole_node_and_pays_for_it(placed):
    """Four jobs of 4 fill both nodes; two end, one on each node, and a job of 8 gets a lease."""
    rows = "a,p,0,4,5000,9000,\nb,p,0,4,1000,9000,\nc,p,0,4,5000,9000,\nd,p,0,4,1100,9000,\n"
    found = placed(f"{rows}e,p,100,8,1000,5000,\n")
    assert segments(found) == [
        ("a", "0.0", "1200.0", "n1:0-3"), ("a", "1200.0", "5050.0", "n2:4-7"),
        ("b", "0.0", "1000.0", "n1:4-7"),
        ("c", "0.0", "5000.0", "n2:0-3"),
        ("d", "0.0", "1100.0", "n2:4-7"),
        ("e", "1200.0", "2200.0", "n1:0-7"),
    ]  # fmt: skip


def test_a_small_job_without_a_deadline_runs_slower_on_two_nodes_and_its_speed_counts(placed):
    rows = "a,p,0,7,9000,20000,\nb,p,0,7,9000,20000,\nc,p,0,2,1000,,m\nd,p,0,2,1000,,\n"
    found = placed(f"{rows}", "chronus:profile=0:roundup=no")
    assert segments(found)[2] == ("c", "0.0", "2000.0", "n1:7;n2:7")


def test_trials_run_on_nodes_of_the_profiler_and_each_on_one_node(placed):
    rows = "".join(f"{i},p,0,6,100,,\n" for i in "abc")
    found = placed(rows, "chronus", "p,24", "n1,8\nn2,8\nn3,8\n")
    assert segments(found) == [
        ("a", "0.0", "100.0", "n3:0-5"), ("b", "0.0", "100.0", "n2:0-5"),
        ("c", "100.0", "200.0", "n3:0-5"),
    ]  # fmt: skip


def test_speeds_without_nodes_are_refused(tmp_path):
    (tmp_path / "log.csv").write_text("job_id,pool,submit,width,duration\na,p,0,1,10\n")
    (tmp_path / "pools.csv").write_text("pool,quota\np,8\n")
    done = sia("replay", "--trace", tmp_path / "log.csv", "--pools", tmp_path / "pools.csv",
               "--policy", "fcfs", "--speeds", "none.csv", "--out", tmp_path / "out")  # fmt: skip
    assert done.returncode == 2
    assert "give --nodes" in done.stderr
