"""A live journal as a job log: what really happened, in the terms of a replay."""

import asyncio
import csv
import json
import sqlite3
from collections import Counter
from contextlib import closing
from random import Random

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from daemon.cli.journal import journal as command
from daemon.engine.engine import Engine
from daemon.export.copy import backup, copied, opened
from daemon.export.files import report_of, write_export
from daemon.export.job_log import export
from daemon.journal.journal import Journal
from daemon.model.inputs import Cancel, Configured, Hold, Lending, Release, SetPool, Submit
from daemon.model.job import PoolMode
from replay.logs.read import read_pools, read_trace
from replay.run.output import write_trace
from replay.run.run import Settings, replay_one
from sia.console.errors import UserError
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Regime
from tests.support.daemons.daemons import FakeBackend, StillClock, serving, setup, submit, until
from tests.support.daemons.lives import Life, lived
from tests.support.servers.databases import OnServer

BEGIN = 86400.0 * 20000 + 5000.0
"""A time of the daemon's: some morning."""


def journal_of(path, cluster, story, lasts, **more):
    with closing(Journal(path)) as journal:
        return Life(Engine.new(cluster), lasts, journal=journal, **more).run(story)


def exported(path, room, **options):
    with opened(path, room) as journal:
        return export(journal, **options)


def some_story(seed, jobs=60):
    """Submissions that come in batches at odd times; what each lasts."""
    rng = Random(seed)
    lasts, story, now = {}, [], BEGIN
    for i in range(jobs):
        now += rng.choice([0.0, 0.0, rng.uniform(0, 60), rng.uniform(0, 300)])
        lasts[f"j{i}"] = rng.choice([rng.uniform(1, 30), rng.uniform(50, 400)])
        asked = submit(f"j{i}", rng.choice("aab"), rng.randint(1, 3), lasts[f"j{i}"])
        if story and story[-1][0] == now:
            story[-1][1].append(asked)
        else:
            story.append((now, [asked]))
    return story, lasts


@pytest.mark.parametrize("policy", ["fcfs", "sia", "ssf"])
def test_a_replay_of_the_export_equals_what_happened(tmp_path, policy):
    """To the bit: same starts, same ends, same loans; some jobs run twice, quotas change."""
    story, lasts = some_story(1)
    middle = story[len(story) // 2][0] + 0.1
    story.append((middle, [SetPool("a", quota=6, actor="me")]))
    story.sort(key=lambda each: each[0])
    breaks = {} if policy == "sia" else {"j3": 7.5, "j11": 2.25}  # sia would have to foresee them
    for _, inputs in story:
        inputs[:] = [
            replace(e, spec=replace(e.spec, requeue=True)) if isinstance(e, Submit) else e
            for e in inputs
        ]
    cluster = replace(setup(a=4, b=3), policy=policy)
    life = journal_of(tmp_path / "db", cluster, story, lambda s: lasts[s.id], breaks=breaks)
    made = exported(tmp_path / "db", tmp_path)
    again = replay_one(
        made.trace, made.table,
        policy, Settings([policy], "none", "perfect", options=cluster.options), None,
    )  # fmt: skip
    starts = {a.job.id: s for a, s in zip(made.trace.arrivals, again.starts, strict=True)}
    assert {d.job: d.start for d in made.done} == starts
    loans = {(x.job_id, x.donor, x.gpus, x.start, x.end) for x in again.loans}
    assert {tuple(x) for x in made.loans} == loans
    assert bool(made.loans) is (policy == "sia")
    assert made.counted["runs of jobs that were queued again: rows of their own"] == len(breaks)
    was = lived(life)
    assert {d.job: (d.start + made.begin, d.end + made.begin) for d in made.done
            if "#" not in d.job} == was  # fmt: skip


@pytest.mark.parametrize(
    "policy", ["srtf", "las:thresholds=60+600", "emmfs", "sia-recall:recall=1"]
)
def test_a_replay_of_the_export_repeats_stops_and_resizes(tmp_path, policy):
    """Same starts, same ends, same widths of every run; some jobs lose work by a stop.

    None loses all of it under LAS, which stops jobs again and again: such a job would never end.
    """
    story, lasts = some_story(5)
    costs = [None, 0.0, 3.0, "never"] + ["restart"] * (not policy.startswith("las"))
    rng = Random(5)
    for _, inputs in story:
        inputs[:] = [
            replace(
                each,
                spec=replace(
                    each.spec,
                    min_width=rng.randint(1, each.spec.gpus),
                    max_width=each.spec.gpus,
                    preemptible=rng.choice(costs),
                ),
            )
            for each in inputs
        ]
    cluster = replace(setup(a=4, b=3), policy=policy)
    journal_of(tmp_path / "db", cluster, story, lambda s: lasts[s.id])
    made = exported(tmp_path / "db", tmp_path)
    again = replay_one(
        made.trace, made.table,
        policy, Settings([policy], "none", "perfect", options=cluster.options), None,
    )  # fmt: skip
    assert made.segments
    ours = sorted(each[:4] for each in made.segments)
    theirs = sorted(each[:4] for each in again.segments if each.end > each.start)
    assert [(job, width) for job, _, _, width in ours] == [(s[0], s[3]) for s in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine[1:3] == pytest.approx(other[1:3], abs=1e-3)
    hours = sum((s.end - s.start) * s.width for s in again.segments) / 3600
    assert report_of(made).gpu_hours == pytest.approx(hours, abs=1e-3)
    runs = Counter(job for job, *_ in ours)
    assert max(runs.values()) > 1
    assert len(made.done) == len(lasts)


TRIED = "chronus:profile=300:capacity=8:lease=1200:be=300"


def test_an_exported_trial_is_a_segment_only_if_its_job_ended_in_it(tmp_path):
    """As in a replay: jobs of up to 300 s end in their trials, the work of other trials is lost."""
    rng, lasts, story, now = Random(7), {}, [], BEGIN
    for i in range(25):
        now += rng.uniform(0, 400)
        lasts[f"j{i}"] = rng.choice([rng.uniform(30, 250), rng.uniform(400, 3000)])
        story.append((now, [submit(f"j{i}", "a", rng.choice((1, 2, 8)), lasts[f"j{i}"])]))
    cluster = replace(setup(a=24), policy=TRIED)
    journal_of(tmp_path / "db", cluster, story, lambda s: lasts[s.id])
    made = exported(tmp_path / "db", tmp_path)
    again = replay_one(
        made.trace, made.table, TRIED,
        Settings([TRIED], "none", "perfect", options=cluster.options), None,
    )  # fmt: skip
    for ours, theirs in (
        ([each[:4] for each in made.segments], [each[:4] for each in again.segments]),
        ([*made.trials], [*again.tables["profiling"]]),
    ):
        ours.sort()
        for mine, other in zip(ours, sorted(theirs), strict=True):
            assert (mine[0], mine[3]) == (other[0], other[3])
            assert [*mine[1:3]] == pytest.approx([*other[1:3]], abs=1e-3)
    short = {job for job, run_time in lasts.items() if run_time < 300}
    assert short < {trial.job_id for trial in made.trials} == set(lasts)
    assert [d.start for d in sorted(made.done)] == pytest.approx(
        [
            start
            for _, start in sorted(
                zip((a.job.id for a in made.trace.arrivals), again.starts, strict=True)
            )
        ],
        abs=1e-3,
    )
    write_export(made, tmp_path / "out", [])
    with (tmp_path / "out" / "real" / "profiling.csv").open() as file:
        assert next(iter(csv.DictReader(file))).keys() == {"job_id", "start", "end", "gpus"}


def test_a_trial_that_another_policy_makes_an_ordinary_run_is_exported_as_both(tmp_path):
    story = [(BEGIN, [submit("slim", "a", 8, 1000.0), submit("wide", "a", 16, 1000.0)])]
    cluster = replace(setup(a=40), policy="chronus:profile=300:capacity=16")
    changed = [(BEGIN + 100, [Configured(replace(cluster, policy="fcfs"))])]
    journal_of(tmp_path / "db", cluster, [*story, *changed], lambda _: 1000.0)
    made = exported(tmp_path / "db", tmp_path)
    began = BEGIN - made.begin
    assert set(made.trials) == {
        ("slim", began, began + 100, 8), ("wide", began, began + 100, 8)
    }  # fmt: skip
    assert {(s[0], s[1] - began, s[2] - began, s[3]) for s in made.segments} == {
        ("slim", 0, 1000, 8), ("wide", 100, 1100, 16)
    }  # fmt: skip


def test_sia_replay_reads_the_exported_log(tmp_path):
    story, lasts = some_story(2, jobs=20)
    state = tmp_path / "state"
    state.mkdir()
    journal_of(state / "sia.db", setup(a=4, b=3), story, lambda s: lasts[s.id])
    said = CliRunner().invoke(
        command, ["export", "--state", str(state), "--out", str(tmp_path / "out"), "--json"]
    )
    assert said.exit_code == 0, said.output
    assert json.loads(said.output)["jobs"] == 20
    trace = read_trace(tmp_path / "out" / "trace.csv")
    assert {a.job.id: a.duration for a in trace.arrivals} == pytest.approx(lasts, abs=1e-6)
    assert trace.columns == ("state",)
    assert set(trace.extras.values()) == {("finished",)}
    table = read_pools(tmp_path / "out" / "pools.csv")
    assert {(p.name, p.quota) for p in table.pools} == {("a", 4), ("b", 3)}
    with (tmp_path / "out" / "real" / "jobs.csv").open() as file:
        rows = list(csv.DictReader(file))
    hours = sum((float(r["end"]) - float(r["start"])) * int(r["width"]) for r in rows) / 3600
    assert json.loads(said.output)["gpu_hours"] == pytest.approx(hours)


def test_the_exported_log_contains_the_wishes_of_jobs(tmp_path):
    asked = submit("a", "a", 2, 60.0)
    wishes = {
        "min_width": 1, "max_width": 4, "demand": ((1, 100.0), (4, 40.0)), "value": 20.0,
        "budget": 4.0, "prefers": "v100", "slowdown": 1.5, "preemptible": "restart", "mode": "gns",
        "min_run_time": 600.0, "model": "LM", "regimes": (Regime("32", 6.0, 10.0),),
    }  # fmt: skip
    due = {"deadline": BEGIN + 600.0, "run_time": 90.0, "checkpoint": "USR1"}
    story = [(BEGIN, [replace(asked, spec=replace(asked.spec, **wishes, **due))])]
    journal_of(tmp_path / "db", setup(a=4, b=3), story, lambda _: 60.0)
    made = exported(tmp_path / "db", tmp_path)
    write_trace(tmp_path / "trace.csv", made.trace)
    trace = read_trace(tmp_path / "trace.csv")
    (job,) = (arrival.job for arrival in trace.arrivals)
    assert {name: getattr(job, name) for name in wishes} == wishes
    assert (job.submit, job.deadline, job.estimate) == (5000.0, 5600.0, 90.0)
    assert trace.columns == ("state", "checkpoint")
    assert trace.extras == {"a": ("finished", "USR1")}


@pytest.mark.parametrize("epochs", [1e-300, 1e-20, 5.0])
def test_regimes_are_scaled_to_the_run_time_or_left_out_where_that_cannot_be_read(tmp_path, epochs):
    asked = submit("a", "a", 1, 60.0)
    spec = replace(asked.spec, regimes=(Regime("32", epochs, 1e-20),))
    story = [(BEGIN, [replace(asked, spec=spec)])]
    journal_of(tmp_path / "db", setup(a=4), story, lambda _: 60.0)
    made = exported(tmp_path / "db", tmp_path)
    write_trace(tmp_path / "trace.csv", made.trace)
    (arrival,) = read_trace(tmp_path / "trace.csv").arrivals
    left_out = made.counted["jobs whose regimes were left out: they do not fit"]
    assert [r.seconds for r in arrival.job.regimes] == ([] if left_out else [12.0])
    assert bool(left_out) == (epochs < 1)


def test_jobs_that_no_log_can_carry_are_counted(tmp_path):
    lasts = {"ran": 10.0, "held": 20.0, "now": 500.0}
    story = [
        (BEGIN, [submit("ran"), submit("gone", gpus=4), submit("held", hold=True)]),
        (BEGIN + 1, [submit("first", priority=5, gpus=4), Lending(on=False)]),
        (BEGIN + 2, [Cancel("gone"), Cancel("first"), SetPool("a", state=PoolMode.HOLD)]),
        (BEGIN + 3, [SetPool("a", state=PoolMode.OPEN), SetPool("a", lend_limit=1)]),
        (BEGIN + 30, [Release("held")]),
        (BEGIN + 60, [submit("now", run_time=700.0), submit("then", gpus=4, run_time=30.0)]),
        (BEGIN + 61, [submit("asleep"), Hold("asleep")]),
    ]
    with closing(Journal(tmp_path / "db")) as journal:
        life = Life(Engine.new(setup(a=4)), lambda s: lasts[s.id], journal=journal)
        life.run(story, until=BEGIN + 70)
    made = exported(tmp_path / "db", tmp_path)
    rows = {a.job.id: (a.job.submit + made.begin - BEGIN, a.duration) for a in made.trace.arrivals}
    assert rows == {"ran": (0, 10), "held": (30, 20), "now": (60, 700), "then": (60, 30)}
    assert made.trace.extras["now"] == ("running",)
    assert dict(made.counted) == {
        "jobs left out: they left their queue without having run": 2,
        "jobs with a priority, which no log carries": 1,
        "jobs whose row begins when they last joined their queue": 1,
        "jobs that still run, with their estimated run time, or the time so far": 1,
        "pending jobs, with their estimated run time": 1,
        "jobs left out: they are pending, and are held": 1,
    }
    assert len(made.notes) == 3
    ended = exported(tmp_path / "db", tmp_path, alive=False)
    assert {a.job.id for a in ended.trace.arrivals} == {"ran", "held"}


def test_jobs_that_state_only_regimes_are_expected_to_run_as_long_as_these(tmp_path):
    regimes = (Regime("32", 9.0, 36.5), Regime("64", 21.0, 20.0))
    asked = [submit(name, gpus=4, run_time=UNKNOWN_RUN_TIME) for name in ("now", "then")]
    stated = [replace(each, spec=replace(each.spec, regimes=regimes)) for each in asked]
    with closing(Journal(tmp_path / "db")) as journal:
        Life(Engine.new(setup(a=4)), lambda _: 500.0, journal=journal).run(
            [(BEGIN, stated)], until=BEGIN + 70
        )
    made = exported(tmp_path / "db", tmp_path)
    rows = {a.job.id: (a.duration, a.job.regimes) for a in made.trace.arrivals}
    assert rows == {"now": (748.5, regimes), "then": (748.5, regimes)}


def test_jobs_of_a_pool_on_hold_join_their_queue_when_it_opens(tmp_path):
    story = [
        (BEGIN, [submit("one"), SetPool("a", state=PoolMode.HOLD), submit("two")]),
        (BEGIN + 40, [SetPool("a", state=PoolMode.OPEN)]),
    ]
    journal_of(tmp_path / "db", setup(a=4), story, lambda s: 5.0)
    made = exported(tmp_path / "db", tmp_path)
    assert {d.job: d.submit + made.begin - BEGIN for d in made.done}["one"] == 40.0


def test_an_export_beside_a_running_daemon_does_not_disturb_it(tmp_path):
    async def story():
        backend = FakeBackend()
        async with serving(tmp_path / "db", setup(a=4), backend, StillClock(BEGIN)) as service:
            for i in range(30):
                await service.submit([submit(f"j{i}")])
                await until(lambda i=i: f"j{i}" in backend.running)
                service.clock.time += 10.0
                backend.end(f"j{i}")
                await until(lambda i=i: f"j{i}" not in service.book.jobs)
            await service.submit([submit("last")])
            await until(lambda: "last" in backend.running)
            made = await asyncio.to_thread(exported, tmp_path / "db", tmp_path)
            assert len(made.done) == 30
            assert len(made.trace.arrivals) == 31
            await service.submit([submit("after")])
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".journal")] == []

    asyncio.run(story())


def test_a_copy_has_the_state_of_one_moment_while_the_file_is_written(tmp_path, monkeypatch):
    """A log begun anew between the copy of the file and its own is noticed."""
    path = tmp_path / "db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("CREATE TABLE t (a, b)")
    db.execute("INSERT INTO t VALUES (0, 0)")

    def write(n):
        db.execute("BEGIN")
        db.execute("UPDATE t SET a = ?", (n,))
        db.execute("UPDATE t SET b = ?", (n,))
        db.execute("COMMIT")

    copies = []
    from daemon.export import copy  # noqa: PLC0415

    plain = copy.shutil.copyfile

    def slowly(source, target):
        if len(copies) < 3:
            write(len(copies) + 1)
            db.execute("PRAGMA wal_checkpoint(RESTART)")
            write(len(copies) + 10)
        copies.append(source)
        return plain(source, target)

    monkeypatch.setattr(copy.shutil, "copyfile", slowly)
    copied(path, tmp_path / "copy")
    assert len(copies) > 3
    with closing(sqlite3.connect(tmp_path / "copy")) as found:
        ((a, b),) = found.execute("SELECT a, b FROM t").fetchall()
        assert a == b == 12
    db.close()


@pytest.mark.parametrize("what", ["none", "empty", "no jobs"])
def test_a_journal_without_jobs_is_reported(tmp_path, what):
    path = tmp_path / "db"
    if what == "empty":
        Journal(path).close()
    elif what == "no jobs":
        journal_of(path, setup(a=1), [], lambda s: 1.0)
    with pytest.raises(UserError, match=r"no such database|journal is empty|journal has no jobs"):
        exported(path, tmp_path)


def test_replay_says_what_another_policy_would_have_done(tmp_path):
    story, lasts = some_story(3, jobs=40)
    state = tmp_path / "state"
    state.mkdir()
    cluster = replace(setup(a=4, b=3), policy="fcfs")
    journal_of(state / "sia.db", cluster, story, lambda s: lasts[s.id])
    said = CliRunner().invoke(
        command,
        ["replay", "--state", str(state), "--policy", "fcfs,ssf", "--out", str(tmp_path / "out"),
         "--json"],
    )  # fmt: skip
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout)["outcomes"]
    assert set(found) == {"as it was", "fcfs", "ssf"}
    assert found["fcfs"]["wait_mean"] == pytest.approx(found["as it was"]["wait_mean"], abs=1e-3)
    assert found["fcfs"]["against"]["measures"]["equal_pct"]["value"] == 100
    assert found["ssf"]["wait_mean"] < found["fcfs"]["wait_mean"]
    assert (tmp_path / "out" / "waits.svg").read_text().startswith("<?xml")
    words = CliRunner().invoke(
        command,
        ["replay", "--state", str(state), "--policy", "ssf", "--out", str(tmp_path / "two")],
    )
    assert words.exit_code == 0, words.output
    assert "as it was" in words.output
    late = CliRunner().invoke(
        command,
        [
            "replay",
            "--state",
            str(state),
            "--policy",
            "ssf",
            "--since",
            "1s",
            "--out",
            str(tmp_path),
        ],
    )
    assert "--since 1s: no job was submitted in this time" in f"{late.exception} {late.output}"


@pytest.mark.server
def test_an_export_reads_a_postgresql_database_beside_the_leader(tmp_path, postgres):
    """One moment: what is written while it is read is not in it, and nothing is kept waiting."""
    pytest.importorskip("psycopg")
    store = OnServer(postgres, "exported")
    story, lasts = some_story(4, jobs=20)
    with closing(store.journal()) as journal:
        life = Life(
            Engine.new(setup(a=4, b=3)), lambda s: lasts.get(s.id, 1.0), journal=journal
        ).run(story)
        with opened(store.url, tmp_path) as copy:
            assert copy.last == journal.last
            life.step(life.engine.core.state.now + 1.0, [submit("after")])
            made = export(copy)
        assert copy.last < journal.last
    assert {d.job for d in made.done} == set(lasts)


def test_a_backup_beside_a_daemon_is_its_journal_at_that_moment(tmp_path):
    source, to = tmp_path / "state" / "sia.db", tmp_path / "backup.db"
    source.parent.mkdir()
    with closing(Journal(source)) as journal:
        life = Life(Engine.new(setup(a=4)), lambda spec: 5.0, journal=journal)
        for i in range(50):
            life.step(BEGIN + i, [submit(f"j{i}", "a", 1, 5.0)])
        said = CliRunner().invoke(command, ["backup", "--state", str(source.parent), str(to)])
        assert said.exit_code == 0, said.output
        kept = list(journal.records(0))
        life.step(BEGIN + 99, [submit("later", "a", 1, 5.0)])
    assert to.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir() if path != source.parent] == ["backup.db"]
    with closing(Journal(to)) as again:
        assert list(again.records(0)) == kept


def test_a_backup_overwrites_nothing_and_reports_errors(tmp_path):
    source, to = tmp_path / "sia.db", tmp_path / "backup.db"
    with pytest.raises(UserError, match="no such database; use"):
        backup(source, to)
    with closing(Journal(source)):
        backup(source, to)
        before = to.read_bytes()
        with pytest.raises(UserError, match="file exists; give another name"):
            backup(source, to)
    assert to.read_bytes() == before
    source.write_bytes(before[:100] + b"x" * (len(before) - 100))
    with pytest.raises(UserError, match=r"is damaged .*; keep it, and restore"):
        backup(source, tmp_path / "other.db")
    code = CliRunner().invoke(command, ["backup", "--state", str(tmp_path), "/proc/none/x.db"])
    assert code.exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".db") == [
        "backup.db",
        "sia.db",
    ]
