"""Solve the core's programs in a child process, one at a time, and report the answers."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import MsgspecError, json

from daemon.model.inputs import Answered
from daemon.runtime.health import HealthRegistry
from daemon.runtime.logs import log
from daemon.service.solving.frames import HEADER, ChildAnswer, frame
from sia.contract.solvers import SolverAnswer, failed, verified
from sia.decisions import SolveProgram

KINDNESS = 10
"""Niceness added to the solver process, so that the daemon's loop and the jobs have precedence."""

PATIENCE = 15.0
"""Seconds after a request's own limit at which the solver counts as hanging. It starts in 1 s, and
HiGHS checks the time between two linear programs, which take seconds at 10,000 columns."""

LONGEST_VALUE = 30
"""Maximum bytes of a number in JSON, with its comma."""

LONGEST_REST = 10_000
"""Maximum bytes of an answer without its numbers."""

MEND = "jobs start without the planner until it answers again; see the daemon's log"
SHADOW_MEND = "shadow lending continues without the planner until it answers again; see the log"


class SolverProcess:
    """The child process and its pipes. It is used by one request at a time."""

    def __init__(self, process: Process) -> None:
        """Use a process that has just been started."""
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str]) -> SolverProcess:
        """Start the child. Raises OSError."""
        made = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True
        )
        return cls(made)

    @property
    def alive(self) -> bool:
        """Whether the process runs, as far as is known."""
        return self._process.returncode is None

    async def ask(self, asked: SolveProgram) -> ChildAnswer:
        """Return its answer.

        Raises OSError or EOFError if it dies, MsgspecError or ValueError if its answer is invalid.
        """
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        requests.write(frame(json.encode(asked)))
        await requests.drain()
        size = int.from_bytes(await answers.readexactly(HEADER), "big")
        if size > LONGEST_REST + LONGEST_VALUE * len(asked.program.costs):
            raise ValueError(f"an answer of {size} bytes")
        return json.decode(await answers.readexactly(size), type=ChildAnswer)

    def kill(self) -> None:
        """Kill the child, without waiting for its end."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def gone(self) -> None:
        """Wait until the child has ended."""
        await self._process.wait()


class SolverRunner:
    """Solve the core's latest program in a child process, which is started on demand and then kept.

    A newer request replaces an older one. Every failure becomes an answer of status `failed`, so
    that the core never waits in vain.
    """

    def __init__(
        self,
        observe: Callable[[Answered], None],
        parts: HealthRegistry,
        solver: str | None = None,
        command: Sequence[str] | None = None,
        *,
        shadow: bool = False,
    ) -> None:
        """Report answers to `observe` and failures to `parts`.

        `shadow` is for the core that simulates lending. `solver` is the name of a solver, by
        default the best one. `command` starts another child, for tests.
        """
        self._observe, self._parts, self._shadow = observe, parts, shadow
        child = [sys.executable, "-P", "-m", "daemon.service.solving.child", str(os.getpid())]
        self.command = command or [*child, str(KINDNESS), *([solver] if solver else [])]
        self.patience = PATIENCE
        self._process: SolverProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def ask(self, asked: SolveProgram) -> None:
        """Solve this program instead of the current one. Returns at once."""
        self.cancel()
        self._task = asyncio.get_running_loop().create_task(self._solve(asked))

    def cancel(self) -> None:
        """Stop solving. The child is killed, as solvers cannot be interrupted between checks."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            self._end_child()

    async def close(self) -> None:
        """Stop solving, and wait until the child is gone."""
        self.cancel()
        self._end_child()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._ending:
            await asyncio.wait(self._ending)

    def _end_child(self) -> None:
        child, self._process = self._process, None
        if child is not None:
            child.kill()
            gone = asyncio.get_running_loop().create_task(child.gone())
            self._ending.add(gone)
            gone.add_done_callback(self._ending.discard)

    async def _solve(self, asked: SolveProgram) -> None:
        found = await self._answer(asked)
        event, why = found
        if event.status == "failed":
            log().warning("solver failed", request=asked.request, why=why)
        if self._shadow:
            self._parts.say("shadow solver", why, SHADOW_MEND if why else "")
        else:
            self._parts.say("solver", why, MEND if why else "")
        self._observe(
            Answered(event.request, event.status, event.values, event.bound, self._shadow)
        )

    async def _answer(self, asked: SolveProgram) -> SolverAnswer:
        """Return the child's answer, or one of status `failed`; a bad child is killed."""
        limit = asked.limit.seconds + self.patience
        try:
            async with asyncio.timeout(limit):
                if self._process is None or not self._process.alive:
                    self._process = await SolverProcess.start(self.command)
                found = await self._process.ask(asked)
                checked = await asyncio.to_thread(verified, asked, found.event)
        except TimeoutError:
            why = f"the solver did not answer within {limit:g} s and was killed"
        except OSError as error:
            why = f"the solver process failed: {error.strerror or error}"
        except EOFError:
            why = "the solver process ended before it answered"
        except (MsgspecError, ValueError) as error:
            why = f"the solver's answer is wrong: {error}"
        else:
            if checked.event.status == "failed":
                return checked._replace(why=checked.why or found.why or "no reason given")
            return checked
        self._end_child()
        return failed(0.0, asked, why)
