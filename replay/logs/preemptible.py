"""Mark a random share of the jobs as preemptible, for logs that do not say which jobs are."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import click
import msgspec

from replay.logs.trace import Trace
from sia.console.errors import UserError
from sia.contract.labels import name_of
from sia.core.playout import Arrival
from sia.limits import MAX_RESUME_COST, RECALL
from sia.model import NEVER_STOPPED, STOP_WORDS, Job, StopCost
from sia.policies import load
from sia.wording import as_typed, parse_seconds, some


class PreemptibleShare(NamedTuple):
    """The percentage of jobs that are marked, and what each stop costs them.

    The cost is as in the column `preemptible`: seconds, `restart` or `never`.
    """

    percent: float
    cost: StopCost


class PercentAndCost(click.ParamType[PreemptibleShare]):
    """A percentage and a cost, like `30:5m` or `30:restart`."""

    name = "percent:cost"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> PreemptibleShare:
        """Parse a percentage, and a time with its unit, `restart` or `never`."""
        if isinstance(value, PreemptibleShare):
            return value
        percent, _, cost = str(value).partition(":")
        try:
            marked = PreemptibleShare(float(percent), _cost(cost))
        except ValueError:
            marked = PreemptibleShare(-1.0, 0.0)
        seconds = 0.0 if isinstance(marked.cost, str) else marked.cost
        if not (0 <= marked.percent <= 100 and 0 <= seconds <= MAX_RESUME_COST):
            self.fail(
                f"{value}: write the percentage of jobs and what each stop costs them, like 30:5m, "
                f"30:restart or 30:never; a time must be at most {as_typed(MAX_RESUME_COST)}",
                param,
                ctx,
            )
        return marked


def _cost(text: str) -> StopCost:
    word = STOP_WORDS.get(text.strip())
    return parse_seconds(text) if word is None else word


def recalls(label: str) -> bool:
    """Return whether a policy preempts preemptible jobs."""
    return name_of(label) == "sia-recall"


def stops(label: str) -> bool:
    """Return whether a policy preempts any jobs; the cost of marked jobs applies to it then."""
    return load(label).needs.preemption


def refuse_idle(policies: Sequence[str], marked: PreemptibleShare | None, recall: float) -> None:
    """Raise UserError if an option has no effect on any of the policies."""
    if marked is not None and not any(map(stops, policies)):
        way = "add sia-reclaim or sia-recall to --policy, or "
        if marked.cost == NEVER_STOPPED:
            way = ""
        raise UserError(
            f"--preemptible: none of these policies preempts jobs; {way}leave --preemptible out"
        )
    if recall != RECALL and not any(map(recalls, policies)):
        raise UserError(
            "--recall: works only with sia-recall; add it to --policy, or leave --recall out"
        )


def unstoppable(trace: Trace) -> bool:
    """Return whether no job of the log says that it may be stopped. O(jobs)."""
    return all(job.preemptible in (None, NEVER_STOPPED) for job, _ in trace.arrivals)


def note_unstoppable(trace: Trace, policies: Sequence[str]) -> None:
    """Add a note if a policy preempts preemptible jobs but the log has none."""
    who = [label for label in policies if recalls(label) or name_of(label) == "sia-reclaim"]
    if who and unstoppable(trace):
        trace.notes.append(
            f"no job is preemptible, so {some(who)} lends as sia does; mark jobs with "
            "--preemptible, like 30:5m or 30:restart, or in column preemptible"
        )


def mark(trace: Trace, marked: PreemptibleShare | None, seed: int) -> Trace:
    """Return the trace with a random share of jobs marked, replacing the log's own marks.

    The choice depends only on the seed and the job IDs.
    """
    if marked is None:
        return trace
    bound = marked.percent / 100 * 2**64

    def cost(job: Job) -> StopCost | None:
        drawn = blake2b(f"{seed}/{job.id}".encode(), digest_size=8).digest()
        return marked.cost if int.from_bytes(drawn) < bound else None

    arrivals = [
        Arrival(msgspec.structs.replace(job, preemptible=cost(job)), duration)
        for job, duration in trace.arrivals
    ]
    return Trace(arrivals, trace.columns, trace.extras, trace.dropped, trace.notes)
