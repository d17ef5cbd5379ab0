"""Jobs that may be stopped, where the log does not say which: some of them, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import click
import msgspec

from replay.logs.trace import Trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.limits import MAX_RESUME_COST, RECALL
from sia.model import Job
from sia.policies import load
from sia.wording import as_typed, parse_seconds, some


class PreemptibleShare(NamedTuple):
    """So many percent of the jobs may be stopped, and lose so many seconds each time."""

    percent: float
    cost: float


class PercentAndCost(click.ParamType[PreemptibleShare]):
    """`30:5m`."""

    name = "percent:cost"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> PreemptibleShare:
        """Parse a percentage and a time."""
        if isinstance(value, PreemptibleShare):
            return value
        percent, _, cost = str(value).partition(":")
        try:
            marked = PreemptibleShare(float(percent), parse_seconds(cost))
        except ValueError:
            marked = PreemptibleShare(-1.0, 0.0)
        if not (0 <= marked.percent <= 100 and 0 <= marked.cost <= MAX_RESUME_COST):
            self.fail(
                f"{value}: write a percentage of jobs and the time that each loses, like 30:5m; "
                f"the time must be at most {as_typed(MAX_RESUME_COST)}",
                param,
                ctx,
            )
        return marked


def recalls(label: str) -> bool:
    """Whether a policy stops jobs that may be stopped."""
    return label.partition("@")[0] == "sia-recall"


def stops(label: str) -> bool:
    """Whether a policy stops any jobs: what that costs those marked counts for all that do."""
    return load(label.partition("@")[0]).needs.preemption


def refuse_idle(policies: Sequence[str], marked: PreemptibleShare | None, recall: float) -> None:
    """Raise UserError for an option that has no effect on any of these policies."""
    if marked is not None and not any(map(stops, policies)):
        raise UserError(
            "--preemptible: none of these policies preempts jobs; add sia-recall to --policy, or "
            "leave --preemptible out"
        )
    if recall != RECALL and not any(map(recalls, policies)):
        raise UserError(
            "--recall: works only with sia-recall; add it to --policy, or leave --recall out"
        )


def note_unstoppable(trace: Trace, policies: Sequence[str]) -> None:
    """Note where a policy that may stop jobs finds none that it may."""
    who = [label for label in policies if recalls(label)]
    if who and all(job.preemptible is None for job, _ in trace.arrivals):
        trace.notes.append(
            f"no job is preemptible, so that {some(who)} works like sia; mark jobs with "
            "--preemptible or in column preemptible"
        )


def mark(trace: Trace, marked: PreemptibleShare | None, seed: int) -> Trace:
    """The same jobs, of which some may be stopped and no others, whatever the log says.

    Which ones depends on the seed and their ids alone.
    """
    if marked is None:
        return trace
    bound = marked.percent / 100 * 2**64

    def cost(job: Job) -> float | None:
        drawn = blake2b(f"{seed}/{job.id}".encode(), digest_size=8).digest()
        return marked.cost if int.from_bytes(drawn) < bound else None

    arrivals = [
        Arrival(msgspec.structs.replace(job, preemptible=cost(job)), duration)
        for job, duration in trace.arrivals
    ]
    return Trace(arrivals, trace.columns, trace.extras, trace.dropped, trace.notes)
