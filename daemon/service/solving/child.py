"""The solver process: reads requests from its input and writes the answers to its output.

python -m daemon.service.solving.child PARENT NICE [SOLVER]
"""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

from msgspec import json

from daemon.runtime.children import end_first, end_with
from daemon.service.solving.frames import HEADER, ChildAnswer, frame
from sia.contract.solvers import answer
from sia.decisions import SolveProgram


def main(parent: int, nice: int, solver: str | None = None) -> None:
    """Answer requests until the input ends."""
    end_with(parent)
    end_first()
    os.nice(nice)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of a solver must not get between the answers
    serve(sys.stdin.buffer, output, solver)


def serve(requests: BinaryIO, answers: BinaryIO, solver: str | None) -> None:
    """Answer each request in order."""
    while len(header := requests.read(HEADER)) == HEADER:
        asked = json.decode(requests.read(int.from_bytes(header, "big")), type=SolveProgram)
        event, why = answer(0.0, asked, timed=True, solver=solver)
        answers.write(frame(json.encode(ChildAnswer(event, why))))
        answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
