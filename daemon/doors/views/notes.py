"""Notes on an accepted job, so that no field without effect is silently ignored."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from daemon.answers.explain.planned import deadline_words, planned_of
from daemon.config.config import Ability
from daemon.model.job import JobSpec
from daemon.wire.explain import PlannedView
from daemon.wire.wishes import unheeded
from sia.contract.policy import Policy
from sia.core.guard import PolicyFailedError, ask
from sia.model import seconds_on
from sia.policies.shockwave.modes import mode_names, mode_of
from sia.state.checkpoint import CheckpointCommand, parse_checkpoint
from sia.state.nodes import NodeTable
from sia.state.strl import ALL, asks_of, durations
from sia.wording import counted, duration, some

if TYPE_CHECKING:
    from daemon.service.service import Service


MOST_TOLD = 8
"""Maximum number of jobs of a request for which the response has planned starts."""

CONTRADICTION = 0.01
"""Part by which `demand` and `estimate` may differ before the answer says so: they were rounded."""

MOST_IN_PLAN = 1000
"""Maximum product of jobs in the request and jobs that have not ended for which the response has
planned starts. These take about 10 ms on 500 nodes that differ."""


def heeded(policy: Policy) -> frozenset[str]:
    """Return the fields of jobs that a policy considers."""
    needs, heeds = policy.needs, set(policy.heeds)
    if needs.preemption:
        heeds |= {"checkpoint", "preemptible"}
    if needs.run_times:
        heeds.add("estimate")
    return frozenset(heeds)


def planned_for(service: Service, spec: JobSpec, jobs: int = 1) -> PlannedView | None:
    """Return how the policy's plan runs a job with a deadline, if it makes plans; else None.

    O(jobs that have not ended). For a request of so many `jobs` that the answer would be delayed,
    return None; `sia why` shows the plan later.
    """
    if spec.deadline is None or jobs > MOST_TOLD:
        return None
    record, core = service.book.jobs.get(spec.id), service.engine.core
    if record is None or jobs * len(core.state.jobs) > MOST_IN_PLAN:
        return None
    try:
        return planned_of(service.book, core, record)
    except PolicyFailedError:
        return None  # component `policy` reports the failure with the next decision


def notes_of(service: Service, spec: JobSpec, planned: PlannedView | None) -> list[str]:
    """Return notes on an accepted job and its plan, in whole sentences. O(1)."""
    heeds = heeded(service.engine.core.policy)
    table = service.engine.core.state.nodes
    notes = [*_notes(spec, service.book.setup.policy, heeds, service.clock.now(), table)]
    if spec.checkpoint and "checkpoint" in heeds:
        notes += _cannot_save(spec.checkpoint, service.backend.can)
    if spec.origin and spec.elastic and "adopted_widths" not in service.backend.can:
        notes.append(
            f"min_width and max_width have no effect: the job was submitted to the cluster itself, "
            f"and its script is for {counted(spec.gpus, 'GPU')}; submit it with sia submit if it "
            "can run on others"
        )
    if spec.elastic and "max_width" in heeds:
        notes += _widths(service, spec)
    notes += _of_policy(service, spec)
    return notes + deadline_words(spec, planned, service.clock.now())


def _of_policy(service: Service, spec: JobSpec) -> Iterator[str]:
    """Yield why the policy can never run the job to its end, and when it decides on its deadline.

    A policy with trials decides on a deadline after them.
    """
    record, core = service.book.jobs.get(spec.id), service.engine.core
    job = None if record is None else core.state.jobs.get(record.core)
    if record is None or job is None:
        return
    try:
        why = ask(core.policy, "too_wide", job)
        waits = ask(core.policy, "awaits", job) if core.policy.for_trials else None
    except PolicyFailedError:
        return  # component `policy` reports the failure with the next decision
    if why:
        yield why
    if spec.deadline is not None and record.promise is None and waits is not None:
        when = "" if waits.at is None else f", in {duration(waits.at - core.state.now)}"
        yield f"its deadline is not decided yet: the job waits for {waits.what}{when}"


def _widths(service: Service, spec: JobSpec) -> Iterator[str]:
    """Yield what an elastic job says that cannot be, or that contradicts itself."""
    core = service.engine.core
    pool = core.state.pools[spec.pool]
    shares = core.policy.shares and len(pool.group.pools) > 1
    gpus = pool.group.quota if shares else pool.quota
    if spec.max_width > gpus:
        owner = f"pool {spec.pool} and those that it shares with have"
        have = owner if shares else f"pool {spec.pool} has"
        yield f"max_width {spec.max_width:,} is never reached: {have} {counted(gpus, 'GPU')}"
    if spec.demand and spec.run_time is not None:
        said = seconds_on(spec.demand, spec.gpus)
        if abs(said - spec.run_time) > CONTRADICTION * spec.run_time:
            yield (
                f"demand says {duration(said)} on {counted(spec.gpus, 'GPU')}, and estimate "
                f"{duration(spec.run_time)}: estimate counts, and demand says only how much faster "
                "other widths are"
            )


def _notes(
    spec: JobSpec, policy: str, heeds: frozenset[str], now: float, table: NodeTable | None
) -> Iterator[str]:
    if spec.deadline is not None and spec.deadline <= now:
        passed = datetime.fromtimestamp(spec.deadline, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        yield f"the deadline is missed: it was {passed}"
    for name in unheeded(spec, heeds):
        yield f"policy {policy} does not heed {name}"
    if spec.mode and spec.regimes and "mode" in heeds and spec.mode not in mode_names():
        known = ", ".join(mode_names())
        yield f"mode {spec.mode} is unknown, so its stated regimes are used; known: {known}"
    if spec.soft and spec.deadline is None and "soft" in heeds:
        yield "soft has no effect without deadline"
    if spec.mode and spec.regimes and "mode" in heeds:
        shrinks = mode_of(spec.mode).problem([regime.config for regime in spec.regimes])
        if shrinks:
            yield f"{shrinks}: the speed after that regime is not predicted"
    if spec.value is not None and spec.deadline is None and "value" in heeds:
        yield "value has no effect without deadline"
    if "prefers" in heeds:
        yield from _preferences(spec, table)


def _preferences(spec: JobSpec, table: NodeTable | None) -> Iterator[str]:
    if spec.prefers and table is None:
        yield "prefers has no effect: no node has attributes; see attributes in [[node]]"
    elif spec.prefers and table is not None and not table.preferred(spec.prefers):
        yield f"no node has {spec.prefers}: the job is slowed down by its slowdown on every node"
    elif spec.strl and table is None:
        sets = [among for among in durations(asks_of(spec.strl)) if among != ALL]
        if sets:
            yield f"{some(sets)} means all GPUs: no node has attributes; see attributes in [[node]]"
    elif spec.slowdown is not None and not spec.prefers:
        yield "slowdown has no effect without prefers"


def _cannot_save(checkpoint: str, can: Collection[Ability]) -> Iterator[str]:
    """Yield a note if the backend cannot tell a job to save its work in the requested way."""
    how = parse_checkpoint(checkpoint)
    if "commands" not in can or how is None:
        return
    if isinstance(how, CheckpointCommand):
        if "save_by_command" not in can:
            yield "checkpoint has no effect: the backend runs no command before a stop"
    elif how.name != "SIGTERM" and "save_by_signal" not in can:
        yield f"checkpoint has no effect: the backend sends SIGTERM instead of {how.name}"
