"""Meanings of the terms and numbers on pages, in the words of docs/understand/glossary.md."""

from __future__ import annotations

from collections.abc import Mapping

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup

TERMS: Mapping[str, str] = {
    # Concepts.
    "pool": (
        "A set of users with a quota of GPUs: a team, a tenant, a Slurm partition or a Kubernetes "
        "namespace."
    ),
    "quota": "The number of GPUs, or of cells, that a pool owns.",
    "sharing group": "The pools that may lend to each other: one GPU type, one region.",
    "cell": "GPUs that lie together: a GPU, a pair, a node, a rack. Cells form a tree.",
    "out": "A node that takes no jobs: drained, lost, or under maintenance.",
    "maintenance": "A planned window during which a node is out.",
    "width": "The number of GPUs of a job.",
    "array": "Several jobs that were submitted together and differ only in their index.",
    "run time": "The time from a job's start to its end.",
    "time limit": "The run time after which the daemon ends a job.",
    "guaranteed job": (
        "An SLO job of which the policy has promised that it ends by one of its steps, if its "
        "estimate is right."
    ),
    "priority": "A number that puts a job before others of its pool.",
    "virtual start time": "The time at which a job starts in the baseline.",
    "loan": "GPUs of one pool (the lender) that a job of another pool (the borrower) uses.",
    "lender, borrower": (
        "The pool that owns the GPUs of a loan, and the pool whose job runs on them."
    ),
    "turn": (
        "The moment of a job's virtual start, in a policy that acts on it: from its turn on a job "
        "has a claim to GPUs of its pool's quota, and is not stopped."
    ),
    "guest": "A job that runs before its turn, mostly on borrowed GPUs.",
    "reservation": (
        "GPUs that spare starts must leave free during a window because a pool is expected to need "
        "them."
    ),
    "window": (
        "A period that begins now, for which forecasts are made: 5 minutes, 1 hour, 12 hours."
    ),
    "delayed, slowed": "A job that ends more than 1 ms later than in the baseline.",
    "speed-up": "JCT in the baseline divided by the JCT.",
    "load": "The sum of the widths of the jobs that arrive in a pool within a window.",
    "horizon": "How far away an estimated event is expected to be; how far a playout goes.",
    "audit record": "Who changed what, when; each record carries the digest of the one before.",
    "role, permission": "What a token may do.",
    # The glossary's section "Numbers on the pages".
    "GPUs owned": "The sum of the quotas of the pools.",
    "dedicated GPUs": "GPUs of a pool's quota on which its dedicated starts run.",
    "own spare GPUs": "GPUs of a pool's quota on which its own spare starts run.",
    "lent GPUs": "GPUs of a pool on which jobs of other pools run.",
    "borrowed GPUs": "GPUs of other pools on which the pool's jobs run.",
    "idle GPUs": "GPUs of a pool on which no job runs.",
    "pending jobs": (
        "Jobs that have not started, and jobs that were started and wait for their GPUs to become "
        "free."
    ),
    "position": "The place of a pending job in the queue of its pool, from 1.",
    "phase": (
        "The state of a job: pending, held, starting, running, stopping, finished, failed or "
        "cancelled."
    ),
    "stream": "Whether a job was started by a dedicated or by a spare start.",
    "start, p50": "The time by which a job starts in half of the cases.",
    "start, p90": "The time by which a job starts in 90 of 100 cases.",
    "end, p50": "The time by which a job ends in half of the cases.",
    "end, p90": "The time by which a job ends in 90 of 100 cases.",
    "estimated run time": "The run time that the daemon expects of a job.",
    "late now": (
        "Pending jobs that would be running in the baseline, and running jobs that started later "
        "than in the baseline."
    ),
    "only by borrowing": (
        "Jobs that would never have started in the baseline: they are wider than their pool's "
        "quota."
    ),
    "jobs compared": "Ended jobs whose start in the baseline is known.",
    "earlier starts": "The sum of the hours by which jobs started earlier than in the baseline.",
    "later starts": "The sum of the hours by which jobs started later than in the baseline.",
    "GPU-hours": "The number of GPUs times the hours during which they were used.",
    "reserved": "The number of GPUs of a reservation.",
    "too low": "Forecasts of the last day that the load exceeded.",
    "by p50, by p90": (
        "The share of events that came no later than the stated quantile. "
        "The target is 50 % and 90 %."
    ),
    "weight": "The policy serves pools in the order of use / (quota · weight).",
    "lend limit": "The maximum number of GPUs that a pool lends at the same time.",
    "borrow limit": "The maximum number of GPUs that a pool borrows at the same time.",
    "share of free GPUs": "The percentage of all free GPUs that are in pieces of this size.",
    "live jobs": "Jobs that have not ended.",
}
"""Meaning of each term. A test compares them with the glossary."""

NAMED = Markup('<span class="term" title="{}">{}</span>')


@pass_context
def term(context: Context, title: str, of: str) -> Markup:
    """Return a title with the meaning of its term on hover; the end of the page lists the term."""
    explain(context, title, of)
    return NAMED.format(TERMS[of], title)


@pass_context
def explain(context: Context, title: str, of: str) -> str:
    """List a term of the glossary at the end of the page to explain a title; return ""."""
    if of:
        context["explained"].setdefault(title, TERMS[of])
    return ""
