"""Simulate two futures of an engine, unchanged and changed, with the same run times.

Each future runs in a child process on a copy of the engine. The change is made with ordinary
commands, so that an impossible change is refused as the real command would be. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, UnsetType
from msgspec.structs import replace

from daemon.answers.estimates.predict import EstimateContext, RawEstimate, foretell, median_of
from daemon.answers.simulate.forward import EnginePlayout, Played
from daemon.answers.simulate.solving import PlayoutSolvers
from daemon.engine.engine import Engine
from daemon.engine.step import unknown_job
from daemon.model.book import Book, JobRecord
from daemon.model.inputs import (
    Cancel,
    Command,
    Drain,
    Lending,
    SetPolicy,
    SetPool,
    SetPriority,
    Submit,
)
from daemon.model.job import JobPhase, JobSpec
from daemon.model.limits import MAX_ID
from daemon.model.outputs import Refused
from daemon.wire.whatif import WHATIF_JOBS, JobWhatIf, PoolWhatIf, WhatIf
from sia.limits import UNKNOWN_RUN_TIME, UNLIMITED

ANEW = "~"
"""Suffix of the id of a job submitted again with changes; no client's id contains it."""

SOLVING = 5.0
"""Seconds that the solver of the policy's programs may use in each future, and again in the worlds
of that future's estimates: together half of the time limit of an answer."""

WAITS = (JobPhase.PENDING, JobPhase.HELD)

GuessRunTime = Callable[[float, JobSpec], float]
"""Returns the expected run time, in seconds, of a job that is submitted at a time; 0 if unknown."""


class Question(Struct, frozen=True):
    """A what-if question with the data to answer it."""

    asked: WhatIf
    new: tuple[JobSpec, ...]
    """The new jobs to submit."""
    guess: GuessRunTime
    known: EstimateContext | None = None
    """Data for estimates; None if estimates are turned off."""
    solver: str | None = None
    """The solver of the policy's programs; None for the best one."""


class WhatIfOutcome(Struct, frozen=True):
    """The result of a child: a refusal, or the simulated future."""

    refused: Refused | None = None
    played: Played | None = None
    notes: tuple[str, ...] = ()
    times: dict[str, RawEstimate] = {}
    """Uncorrected estimates of the jobs of the question."""


def play(engine: Engine, now: float, question: Question) -> WhatIfOutcome:
    """Simulate the engine without the change. The simulation modifies the engine."""
    return _play(engine, now, question, ())


def play_changed(engine: Engine, now: float, question: Question) -> WhatIfOutcome:
    """Change the engine now and simulate it. The simulation modifies the engine."""
    commands = commands_of(engine.book, now, question)
    if isinstance(commands, Refused):
        return WhatIfOutcome(refused=commands)
    return _play(engine, now, question, commands)


def _play(
    engine: Engine, now: float, question: Question, commands: Sequence[Command]
) -> WhatIfOutcome:
    """Apply these commands, then simulate; the notes list programs that were not solved.

    Jobs of the question are estimated as `eta` does. All other jobs are simulated once, each with
    the median run time of similar jobs.
    """
    asked, known = question.asked, question.known
    run_time_of = median_of(known and known.heard, now)
    solvers = PlayoutSolvers(engine.core.policy, question.solver, SOLVING)
    playout = EnginePlayout(
        engine, now, run_time_of, touched(engine, asked, question.new), solvers.share()
    )
    for answer in playout.apply(commands) if commands else ():
        if isinstance(answer, Refused):
            return WhatIfOutcome(refused=answer)
    times = dict[str, RawEstimate]()
    worlds = PlayoutSolvers(engine.core.policy, question.solver, SOLVING)
    if known is not None:
        known = known._replace(solvers=worlds)
        times = foretell(engine, known, now, names_of(engine.book, question))
    played = playout.play(now + asked.horizon, asked.starts)
    return WhatIfOutcome(None, played, (*solvers.notes(), *worlds.notes()), times)


def names_of(book: Book, question: Question) -> list[str]:
    """Return the ids of the question's jobs in both futures."""
    names = [record.spec.id for job in question.asked.jobs for record in book.named(job.job)]
    names = [each for name in names for each in (name, anew(name))]
    return [*(spec.id for spec in question.new), *names][: 2 * WHATIF_JOBS]


def touched(engine: Engine, asked: WhatIf, new: Sequence[JobSpec]) -> set[str] | None:
    """Return the pools that a change can affect: all pools of the changed sharing groups.

    None means all.

    Sharing groups are independent if no GPU is out of service, no job needs certain nodes, and the
    policy does not plan all groups in one program.
    """
    book, pools = engine.book, engine.core.state.pools
    bound = book.setup.areas or book.windows or engine.core.state.places is not None
    if (
        engine.core.policy.needs.solver
        or bound
        or book.seatless
        or asked.drain
        or asked.lending is not None
        or asked.policy
    ):
        return None
    if any(node.reasons for node in book.nodes.values()):
        return None
    names = {spec.pool for spec in new} | {job.pool for job in asked.submit}
    names |= {pool.pool for pool in asked.pools}
    for job in asked.jobs:
        names |= {record.spec.pool for record in book.named(job.job)}
        names |= {job.pool or ""}
    groups = dict.fromkeys(pools[name].group for name in names if name in pools)
    return {pool.name for group in groups for pool in group.pools}


def commands_of(book: Book, now: float, question: Question) -> list[Command] | Refused:
    """Return the change as commands, or the refusal."""
    asked = question.asked
    commands: list[Command] = [SetPolicy(asked.policy)] if asked.policy else []
    commands += (_pool(pool) for pool in asked.pools)
    if asked.lending is not None:
        commands.append(Lending(asked.lending))
    commands += (Drain(node, "what if") for node in asked.drain)
    for job in asked.jobs:
        found = _nothing(book, job) or _job(book, now, job, question.guess)
        if isinstance(found, Refused):
            return found
        commands += found
    commands += (Submit(spec, question.guess(now, spec)) for spec in question.new)
    return commands


def _pool(asked: PoolWhatIf) -> SetPool:
    return SetPool(
        asked.pool, asked.quota, asked.cells, asked.state,
        limit_of(asked.lend_limit), limit_of(asked.borrow_limit), asked.weight,
    )  # fmt: skip


def limit_of(value: int | UnsetType | None) -> int | None:
    """Return the limit for the engine: None keeps the current one, UNLIMITED removes it."""
    if isinstance(value, UnsetType):
        return None
    return UNLIMITED if value is None else value


def _job(book: Book, now: float, asked: JobWhatIf, guess: GuessRunTime) -> list[Command] | Refused:
    if asked.cancel:
        return [Cancel(asked.job)]
    if asked.gpus is None and asked.pool is None and asked.time_limit is None:
        return [] if asked.priority is None else [SetPriority(asked.job, asked.priority)]
    record = book.job(asked.job)
    if record is None:
        if not book.named(asked.job):
            return unknown_job(asked.job)
        why = f"{asked.job!r} is an array; only single jobs of it can be changed"
        return Refused(
            422,
            "invalid",
            why,
            f"use the id of one job, such as {asked.job}.0, or cancel and resubmit the array",
        )
    if record.phase not in WAITS:
        why = f"job {asked.job} is {record.phase.value}"
        return Refused(409, "job is not pending", why, "choose a pending or held job")
    return [Cancel(asked.job), _anew(record, asked, now, guess)]


def _nothing(book: Book, asked: JobWhatIf) -> Refused | None:
    """Return a refusal if the question changes nothing of this job or array."""
    wanted = asked.gpus, asked.pool, asked.time_limit, asked.priority
    has: tuple[object, ...] = (None,) * len(wanted)
    if (record := book.job(asked.job)) is not None:
        has = record.spec.gpus, record.spec.pool, record.time_limit, record.priority
    if asked.cancel or any(want not in (None, old) for want, old in zip(wanted, has, strict=True)):
        return None
    why = f"no change given for job {asked.job}"
    return Refused(
        422, "invalid", why, "set gpus, pool, time_limit or priority to a new value, or cancel"
    )


def anew(job_id: str) -> str:
    """Return the id of a job that is submitted again with changes."""
    return job_id[: MAX_ID - len(ANEW)] + ANEW


def _anew(record: JobRecord, asked: JobWhatIf, now: float, guess: GuessRunTime) -> Submit:
    """Return a submission of the same job with changes and the same expected run time."""
    old, limit = record.spec, record.time_limit
    spec = replace(
        old,
        id=anew(old.id),
        array=None,
        pool=asked.pool or old.pool,
        gpus=asked.gpus or old.gpus,
        time_limit=asked.time_limit or limit,
        priority=record.priority if asked.priority is None else asked.priority,
        hold=record.phase is JobPhase.HELD,
    )
    run_time = guess(now, spec)
    if not run_time and record.expected < (limit or UNKNOWN_RUN_TIME):
        run_time = record.expected
    return Submit(spec, run_time)
