"""Checks that the book and the core agree."""

from __future__ import annotations

from daemon.model.book import Book, core_limits
from daemon.model.job import ON_GPUS, OVER, JobPhase
from sia.core.core import Core
from sia.state.nodes import NodeTable


def check_book(book: Book, core: Core) -> None:
    """Assert that each job is in the core exactly when it should be. O(n)."""
    known, preemption = dict(core.state.jobs), core.policy.needs.preemption
    waiting = {job_id for pool in book.pools.values() for job_id in pool.waiting}
    for job_id, record in book.jobs.items():
        phase = record.phase
        on_gpus = phase in ON_GPUS
        assert phase not in OVER, job_id
        assert job_id not in book.ended, job_id
        state = known.pop(record.core, None)
        waits = phase is JobPhase.PENDING and job_id not in waiting
        leaving = job_id in book.leaving  # a job that is leaving its GPUs may have left the core
        left = leaving and not record.core
        assert state is not None or not record.core, (job_id, record.core)
        assert left or (state is not None) is (on_gpus or waits), (job_id, phase, record.core)
        stops = phase is JobPhase.STOPPING
        runs = on_gpus and (not stops or job_id in book.seatless)
        if state is not None:
            assert (state.stream is not None) is runs, job_id
            assert state.stream is None or state.stream is record.stream, job_id
            assert state.stream is None or state.width == record.gpus, job_id
            if state.loans or record.loans:
                loans = {donor.name: gpus for donor, gpus in state.loans.items()}
                assert loans == dict(record.loans), (job_id, loans, record.loans)
            if preemption and phase is JobPhase.RUNNING and not leaving:
                counted = state.done, state.since, state.overhead, state.speed
                seen = record.done, record.since, record.overhead, record.speed
                assert counted == seen, (job_id, counted, seen)
        assert (record.stream is not None) is (record.decided is not None), job_id
        assert left or (record.stream is not None) is runs, job_id
        assert on_gpus or not (record.placed or record.nodes or record.started), job_id
        assert (record.taken > 0) is (record.placed and on_gpus), job_id
        unordered = phase is JobPhase.STARTING and not record.placed
        assert (job_id in book.seatless) is unordered or (stops and record.placed), job_id
        assert phase is not JobPhase.RUNNING or record.taken >= record.gpus, job_id
        narrows = phase is JobPhase.RUNNING and record.taken > record.gpus
        assert not (stops or narrows) or leaving, job_id
        assert not leaving or stops or narrows or phase is JobPhase.ENDING, job_id
    for job_id in (*book.seatless, *book.leaving):
        assert job_id in book.jobs, job_id
    book.check_index()
    assert not known, f"jobs that only the core has: {list(known)[:5]}"
    _check_pools(book, core)


def _check_pools(book: Book, core: Core) -> None:
    """Assert that the pools agree and that the nodes of maintenance windows exist."""
    assert book.pools.keys() == core.state.pools.keys(), "pools differ"
    for name, pool in book.pools.items():
        state = core.state.pools[name]
        expected = (pool.quota, *core_limits(pool), pool.weight)
        assert expected == (state.quota, state.lend_limit, state.borrow_limit, state.weight), name
        assert state.group.name == (pool.group if pool.share else f"{name} alone"), name
    for window in book.windows.values():
        assert window.node in book.nodes, window


def check_nodes(book: Book, table: NodeTable) -> None:
    """Assert that jobs are on the nodes that the core chose, and which nodes are out. O(jobs)."""
    for job_id, record in book.jobs.items():
        if record.core and record.placed and record.phase in (JobPhase.STARTING, JobPhase.RUNNING):
            there = {node: len(gpus) for node, gpus in record.nodes}
            assert there == table.held(record.core), job_id
    gone = {name for name, node in book.nodes.items() if node.reasons}
    assert gone == table.out.keys(), "nodes that are out"
