"""Programs and requests for tests."""

from random import Random

from sia.decisions import SolveProgram
from sia.program import Program, ProgramBuilder, SolveLimit

LIMIT = SolveLimit(seconds=20.0, nodes=1_000, iterations=100_000)


def knapsack(values=(6.0, 10.0, 12.0), sizes=(1.0, 2.0, 3.0), room=5.0) -> Program:
    """Take the most valuable things that fit into a room: by default all but the first."""
    builder = ProgramBuilder()
    first = builder.binaries([-value for value in values])
    builder.at_most({first + i: size for i, size in enumerate(sizes)}, room)
    return builder.build()


def hard(columns: int, rows: int, seed: int = 1) -> Program:
    """A knapsack with many rows: 60 columns and 12 rows take HiGHS seconds."""
    random, builder = Random(seed), ProgramBuilder()
    builder.binaries([-float(random.randint(10, 60)) for _ in range(columns)])
    for _ in range(rows):
        terms = {
            column: float(random.randint(5, 40))
            for column in sorted(random.sample(range(columns), min(25, columns)))
        }
        builder.at_most(terms, float(random.randint(100, 200)))
    return builder.build()


def request(number=1, program=None, limit=LIMIT, start=()) -> SolveProgram:
    return SolveProgram(number, program or knapsack(), limit, start)
