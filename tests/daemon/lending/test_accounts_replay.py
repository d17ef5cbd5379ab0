"""Accounts of a life with a real log's jobs, beside what the command line makes of its journal."""

import csv
from collections import defaultdict
from math import fsum
from random import Random

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from daemon.cli.accounts import PAGE
from daemon.cli.journal import journal as journal_command
from daemon.engine.engine import Engine
from daemon.journal.journal import Journal
from daemon.model.inputs import Cancel, Tick
from replay.cli.replay import replay as replay_command
from replay.logs.read import read_trace
from sia.model import Options
from tests.support.daemons.daemons import setup, submit
from tests.support.daemons.lives import Life

BEGIN = 86400.0 * 20000
"""A midnight, so that second 0 of the export is that of the log."""

JOBS = 400


def story_of(log, quotas):
    """The log's first jobs as they come; some are withdrawn, if they wait by then."""
    rng, story, lasts = Random(0), defaultdict(list), {}
    fitting = [a for a in log.arrivals if a.job.width <= quotas[a.job.pool]]
    for i, (job, lasting) in enumerate(fitting[:JOBS]):
        now = BEGIN + float(job.submit)
        lasts[job.id] = float(lasting)
        story[now].append(submit(job.id, job.pool, job.width, 1.0))
        if i > JOBS // 2 and rng.random() < 0.5:
            story[now + rng.randint(1, 3)].append(Cancel(job.id))
    return sorted(story.items()), lasts


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def read(journal, pools, what):
    """All that was booked, each row once."""
    found = {}
    for pool in pools:
        before, page = 10**9, PAGE
        while page == PAGE:
            rows = getattr(journal, what)(pool, before, PAGE)
            found |= {number: row for number, _, row in rows}
            before, page = rows[-1][0] if rows else 0, len(rows)
    return list(found.values())


@pytest.fixture(scope="module")
def lived(traces, tmp_path_factory):
    """The folder of a life that was exported and replayed, its verdicts and its ledger."""
    folder = tmp_path_factory.mktemp("life")
    quotas = {"vcvGl": 64, "vcvlY": 8}  # less than they had, so that jobs wait
    story, lasts = story_of(read_trace(traces / "helios_venus_2vc.csv.gz"), quotas)
    seldom = Options((3600.0, 86400.0), 3600.0)  # ticks: each is a commit
    cluster = replace(setup(**quotas), policy="sia", options=seldom)
    journal = Journal(folder / "sia.db")
    life = Life(Engine.new(cluster), lambda spec: lasts[spec.id], journal=journal).run(story)
    now = max(record.ended for record in life.over)
    for later in (1e7, 2e7, 3e7):  # alone some have their turn long after
        life.step(now + later, [Tick()])
    verdicts, lent = (read(journal, quotas, what) for what in ("verdicts", "lent"))
    journal.close()
    out = folder / "out"
    made = CliRunner().invoke(
        journal_command, ["export", "--state", str(folder), "--ended", "--out", str(out)]
    )
    assert made.exit_code == 0, made.output
    asked = ["--trace", str(out / "trace.csv"), "--pools", str(out / "pools.csv")]
    asked += ["--policy", "fcfs", "--no-report", "--out", str(out / "again")]
    again = CliRunner().invoke(replay_command, asked)
    assert again.exit_code == 0, again.output
    return out, life, verdicts, lent, made.output


def test_verdicts_are_the_starts_of_fcfs_on_the_exported_trace(lived):
    out, life, verdicts, _, said = lived
    alone = {row["job_id"]: float(row["start"]) for row in rows_of(out / "again/fcfs/jobs.csv")}
    gone = {record.spec.id: record for record in life.over if record.decided is None}
    assert len(gone) > 10
    assert f"counted: jobs left out: they left their queue without having run ({len(gone)})" in said
    ran = {verdict.job: verdict for verdict in verdicts if verdict.started is not None}
    assert sorted(ran) == sorted(alone)
    # No log says who left a queue without having run: those behind them had stood behind them.
    first = {"vcvGl": BEGIN * 2, "vcvlY": BEGIN * 2}
    for record in gone.values():
        first[record.spec.pool] = min(first[record.spec.pool], record.submitted)
    same = [v for v in ran.values() if v.submitted < first[v.pool]]
    assert len(same) > JOBS // 2
    assert {v.job: v.alone - BEGIN for v in same} == {v.job: alone[v.job] for v in same}
    assert {v.job: v.started for v in ran.values()} == {
        r.spec.id: r.decided for r in life.over if r.decided is not None
    }
    assert sum(v.started < v.alone for v in same) > 50  # it was another schedule than alone


def test_the_ledger_sums_up_to_the_gpu_hours_of_what_ran_on_loans(lived):
    out, life, _, lent, _ = lived
    jobs = {row["job_id"]: row for row in rows_of(out / "real/jobs.csv")}
    own = defaultdict(float)  # what spare jobs used of their own pool
    for row in rows_of(out / "real/loans.csv"):
        if row["donor"] == jobs[row["job_id"]]["pool"]:
            own[row["donor"]] += int(row["gpus"]) * (float(row["end"]) - float(row["start"]))
    for pool, account in life.engine.book.accounts.items():
        spare = fsum(
            int(row["width"]) * (float(row["end"]) - float(row["start"]))
            for row in jobs.values()
            if (row["pool"], row["stream"]) == (pool, "spare")
        )
        borrowed = fsum(row.seconds for row in lent if row.borrower == pool)
        assert borrowed == spare - own[pool]
        assert account.borrowed == borrowed
        assert account.lent == fsum(row.seconds for row in lent if row.lender == pool)
    assert fsum(row.seconds for row in lent) > 3600
