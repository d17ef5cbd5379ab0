"""The solver process: what it answers, and what becomes of one that does not."""

import asyncio
import sys
from contextlib import asynccontextmanager

import pytest
from msgspec import json
from msgspec.structs import replace

from daemon.model.inputs import Answered
from daemon.runtime.health import HealthRegistry
from daemon.service.solving.runner import SolverRunner
from sia.program import SolveLimit
from tests.support.programs import hard, knapsack, request

BEST = Answered(1, "optimal", [0.0, 1.0, 1.0], -22.0)

HEAR = """
import sys, time
size = int.from_bytes(sys.stdin.buffer.read(8), "big")
asked = sys.stdin.buffer.read(size)
def say(body):
    sys.stdout.buffer.write(len(body).to_bytes(8, "big") + body)
    sys.stdout.buffer.flush()
"""


class Asked:
    """A runner, with what it has reported."""

    def __init__(self, child=None):
        self.parts = HealthRegistry(lambda: 0.0)
        self.seen = asyncio.Queue()
        command = None if child is None else [sys.executable, "-c", HEAR + child]
        self.runner = SolverRunner(self.seen.put_nowait, self.parts, command=command)

    async def answer(self):
        async with asyncio.timeout(60):
            return await self.seen.get()

    @property
    def trouble(self):
        return [part.why for part in self.parts.all() if not part.ok]

    @property
    def pid(self):
        return self.runner._process._process.pid


@asynccontextmanager
async def asking(child=None):
    asked = Asked(child)
    try:
        yield asked
    finally:
        await asked.runner.close()


def answered(status, values=()):
    """A child that gives this answer to request 1."""
    said = json.encode(
        {"event": {"type": "ProgramSolved", "time": 0, "request": 1, "status": status,
                   "values": values}}
    )  # fmt: skip
    return f"say({said!r})\ntime.sleep(60)"


def test_a_child_solves_one_program_after_another():
    async def story():
        async with asking() as asked:
            asked.runner.ask(request())
            assert await asked.answer() == BEST
            first = asked.pid
            asked.runner.ask(request(2, knapsack(room=0.5)))
            assert await asked.answer() == Answered(2, "optimal", [0.0, 0.0, 0.0], 0.0)
            assert asked.pid == first
            assert asked.trouble == []

    asyncio.run(story())


def test_a_newer_request_replaces_the_older_one():
    async def story():
        async with asking() as asked:
            asked.runner.ask(request(1, hard(300, 60), SolveLimit(1e6, 10**9, 10**9)))
            asked.runner.ask(request(2))
            assert await asked.answer() == replace(BEST, request=2)
            assert asked.seen.empty()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("child", "why"),
    [
        ("sys.exit(3)", "ended before it answered"),
        ("say(b'{}')", "answer is wrong: Object missing required field `event`"),
        ("say(b'no JSON')", "answer is wrong: JSON is malformed"),
        ("sys.stdout.buffer.write(b'x' * 100); sys.stdout.flush()", "an answer of"),
        (answered("optimal", [1, 1]), "2 values for 3 columns"),
        (answered("optimal", [None, 1, 1]), "Expected `float`, got `null`"),
        (answered("optimal", [0.5, 1, 1]), "column 0 is 0.5, not a whole number"),
        (answered("optimal", [0, 0, 2]), "column 2 is 2, not within 0 to 1"),
        (answered("feasible", [1, 1, 1]), "row 0 is 6, not within -inf to 5"),
        (answered("infeasible", [0, 0, 0]), "values without a solution"),
        (answered("limit").replace('"request":1', '"request":7'), "it answered request 7"),
    ],
)  # fmt: skip
def test_a_solver_that_dies_or_answers_nonsense_has_failed(child, why):
    async def story():
        async with asking(child) as asked:
            asked.runner.ask(request())
            assert await asked.answer() == Answered(1, "failed")
            assert why in asked.trouble[0]

    asyncio.run(story())


def test_a_child_that_was_killed_between_two_requests_is_replaced():
    async def story():
        async with asking() as asked:
            asked.runner.ask(request())
            await asked.answer()
            process = asked.runner._process._process
            process.kill()
            await process.wait()
            asked.runner.ask(request(2))
            assert await asked.answer() == replace(BEST, request=2)

    asyncio.run(story())


def test_a_solver_that_hangs_is_killed_and_the_next_request_gets_another():
    async def story():
        async with asking("time.sleep(600)") as asked:
            asked.runner.patience = 0.0
            asked.runner.ask(request(1, limit=SolveLimit(0.2, 1, 1)))
            assert await asked.answer() == Answered(1, "failed")
            assert asked.trouble == ["the solver did not answer within 0.2 s and was killed"]
            assert asked.runner._process is None
            asked.runner.patience = 60.0
            asked.runner.command = Asked().runner.command
            asked.runner.ask(request(2))
            assert (await asked.answer()).status == "optimal"
            assert asked.trouble == []

    asyncio.run(story())


def test_a_child_that_cannot_be_started_has_failed():
    async def story():
        async with asking() as asked:
            asked.runner.command = ["/nowhere/python"]
            asked.runner.ask(request())
            assert await asked.answer() == Answered(1, "failed")
            assert asked.trouble == ["the solver process failed: No such file or directory"]

    asyncio.run(story())


def test_an_unknown_solver_is_named_in_the_failure():
    async def story():
        async with asking() as asked:
            asked.runner.command = [*asked.runner.command, "highz"]
            asked.runner.ask(request())
            assert (await asked.answer()).status == "failed"
            assert "solver highz: not installed; use one of highs" in asked.trouble[0]

    asyncio.run(story())


def test_closing_in_mid_solve_leaves_no_process():
    async def story():
        async with asking() as asked:
            asked.runner.ask(request())
            await asked.answer()
            process = asked.runner._process._process
            asked.runner.ask(request(2, hard(300, 60), SolveLimit(1e6, 10**9, 10**9)))
            await asyncio.sleep(0)
        assert process.returncode == -9
        assert asked.seen.empty()

    asyncio.run(story())
