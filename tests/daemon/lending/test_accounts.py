"""Accounts of pools: loans and verdicts against the replay, statements, commands."""

import asyncio
from heapq import heappop, heappush
from math import fsum
from random import Random

import pytest
from msgspec import json
from msgspec.structs import replace

from daemon.doors.views.statements import (
    StatementPeriod,
    StatementTally,
    account_view,
    month_of,
    statement,
    statement_page,
    unknown_of,
)
from daemon.engine.engine import Engine
from daemon.journal.journal import Journal, JournalEntry
from daemon.lending.accounts import BOOK_EVERY, BOOK_WITHIN
from daemon.lending.lateness import late_of
from daemon.model.account import Lent, Verdict
from daemon.model.inputs import Cancel, Ended, SetPool, SetPriority, Submit, Tick
from daemon.model.outputs import Accepted, StartEffect
from daemon.model.setup import Setup
from daemon.runtime.clock import Anchor
from replay.logs.trace import PoolTable, Trace
from replay.run.run import Settings, replay_one
from replay.run.schedule import Result
from replay.run.summary import summarize
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.events import PoolChanged
from sia.model import Job
from sia.virtual.virtual_clock import VirtualClock
from tests.support.budget import budget
from tests.support.builders import SMALL, random_workload, with_priorities
from tests.support.daemons.daemons import job, setup, submit
from tests.support.daemons.doors import asked, door, job_in, story

OVER = 1e6


def whole(month):
    """The period of a month."""
    return StatementPeriod(*month_of(month), month)


def tally_of(pool, verdicts=(), lent=(), page=7):
    """What is added up of rows, read so many at a time."""
    tally = StatementTally(pool)
    for add, rows in ((tally.add_verdicts, verdicts), (tally.add_loans, lent)):
        numbered = [*enumerate(rows, 1)][::-1]
        for first in range(0, len(numbered), page):
            add(numbered[first : first + page])
    return tally


class Life:
    """An engine in which jobs of a workload run as long as they are said to, by any policy."""

    def __init__(self, owned, policy, *, restores=False, book_every=1):
        cluster = Setup(tuple(owned), policy, options=SMALL, book_every=book_every)
        self.engine, self.bookings = Engine.new(cluster), 0
        self.restores, self.ends, self.durations = restores, [], {}
        self.verdicts, self.lent, self.began, self.last = [], [], {}, 0.0

    def step(self, now, inputs):
        if self.restores:
            dumped = self.engine.dump()
            self.engine = Engine.restore(dumped)
            assert self.engine.dump() == dumped
        step = self.engine.step(now, inputs)
        self.verdicts += step.booked.verdicts
        self.lent += step.booked.lent
        self.bookings += bool(step.booked.verdicts or step.booked.lent)
        for effect in step.effects:
            if isinstance(effect, StartEffect):
                self.began[effect.job] = now
                heappush(self.ends, (now + self.durations[effect.job], effect.job))
        return step

    def live(self, arrivals, changes=()):
        """Until all is over; `changes` are (time, input)."""
        coming = [(a.job.submit, 2, i, a) for i, a in enumerate(arrivals)]
        coming = sorted([*coming, *((when, 1, i, c) for i, (when, c) in enumerate(changes))])
        accepted = []
        while coming or self.ends:
            due = max(self.engine.due, self.engine.core.state.now, self.last)
            ends = self.ends[0][0] if self.ends else OVER
            now = self.last = min(coming[0][0] if coming else OVER, ends, due)
            inputs = []
            while self.ends and self.ends[0][0] == now:
                inputs.append(Ended(heappop(self.ends)[1], 1, 0))
            while coming and coming[0][0] == now:
                each = coming.pop(0)[3]
                if isinstance(each, Arrival):
                    self.durations[each.job.id] = each.duration
                    inputs.append(self.submission(each))
                else:
                    inputs.append(each)
            step = self.step(now, inputs or [Tick()])
            pairs = zip(inputs, step.answers, strict=False)
            accepted += [(now, asked) for asked, said in pairs if isinstance(said, Accepted)]
        self.step(OVER, [Tick()])
        for later in (100, 200, 300):
            self.step(OVER + later, [Tick()])
        self.engine.check()
        return accepted

    def submission(self, arrival):
        told = arrival.job
        spec = job(told.id, told.pool, told.width, priority=told.priority)
        return Submit(spec, 1.0)  # a guess that is too short by far


def random_changes(rng, owned, arrivals):
    """Quotas that change, and are never too small for a job."""
    span = int(max(a.job.submit for a in arrivals)) + 50
    for pool in owned:
        widest = max(a.job.width for a in arrivals if a.job.pool == pool.name)
        for _ in range(rng.randint(0, 2)):
            yield float(rng.randint(0, span)), SetPool(pool.name, rng.randint(widest, 14))


@pytest.mark.parametrize("policy", ["sia", "mmfs"])
def test_verdicts_are_the_starts_that_the_replay_of_fcfs_says(policy):
    slowed = sooner = 0
    for seed in range(budget(ci=36, soak=200)):
        rng = Random(seed)
        owned, arrivals = random_workload(rng)
        arrivals = with_priorities(rng, arrivals)
        life = Life(owned, policy, restores=seed % 20 == 0)
        done = life.live(arrivals, [*random_changes(rng, owned, arrivals)])
        changes = [PoolChanged(when, c.pool, c.quota) for when, c in done if isinstance(c, SetPool)]
        trace, table = Trace(arrivals), PoolTable(list(owned), changes)
        fcfs = replay_one(trace, table, "fcfs", Settings(["fcfs"], options=SMALL), None)
        true = {a.job.id: start for a, start in zip(arrivals, fcfs.starts, strict=True)}
        assert {v.job: v.alone for v in life.verdicts} == true, seed
        assert {v.job: v.started for v in life.verdicts} == life.began, seed
        for pool in owned:
            own = [v for v in life.verdicts if v.pool == pool.name]
            account, sums = life.engine.book.accounts[pool.name], tally_of(pool.name, own).totals()
            assert (account.jobs, account.slowed) == (sums.jobs, sums.slowed)
            assert account.gained / 3600 == pytest.approx(sums.sooner_hours)
            assert account.lost / 3600 == pytest.approx(sums.later_hours)
            assert not unknown_of(account)
            slowed, sooner = slowed + sums.slowed, sooner + (account.gained > 0)
    assert slowed > budget(ci=3, soak=20) or policy == "sia"  # under `sia` few jobs are
    assert sooner > budget(ci=3, soak=20)


def test_the_ledger_sums_up_to_what_the_replay_of_the_same_schedule_lends():
    lent = 0.0
    for seed in range(60):
        rng = Random(seed)
        owned, arrivals = random_workload(rng)
        life = Life(owned, "mmfs")
        life.live(arrivals)
        trace, table, settings = (
            Trace(arrivals),
            PoolTable(list(owned)),
            Settings(["mmfs"], options=SMALL),
        )
        shared, alone = (replay_one(trace, table, p, settings, None) for p in ("mmfs", "fcfs"))
        starts = {a.job.id: start for a, start in zip(arrivals, shared.starts, strict=True)}
        assert starts == life.began, seed  # or else it is another schedule
        said = summarize(table, settings, [Result(trace, alone, shared)])["policies"]["mmfs"]
        for pool in owned:
            own = [row for row in life.lent if pool.name in (row.lender, row.borrower)]
            sums, entry = tally_of(pool.name, (), own).totals(), said["pools"][pool.name]
            assert sums.lent_gpu_hours == pytest.approx(entry["gpu_hours_lent"])
            assert sums.borrowed_gpu_hours == pytest.approx(entry["gpu_hours_borrowed"])
            account = life.engine.book.accounts[pool.name]
            assert account.lent == pytest.approx(sums.lent_gpu_hours * 3600)
            assert account.borrowed == pytest.approx(sums.borrowed_gpu_hours * 3600)
        pool_of = {a.job.id: a.job.pool for a in arrivals}
        loans = [loan for loan in shared.loans if loan.donor != pool_of[loan.job_id]]
        rows = [(r.job, r.lender, r.gpus, r.start, r.end) for r in life.lent]
        assert sorted(rows) == sorted(map(tuple, loans)), seed
        assert not life.engine.book.lent
        lent += fsum(row.seconds for row in life.lent)
    assert lent > 1000


def test_an_engine_that_was_dumped_goes_on_with_the_same_accounts():
    for seed in range(10):
        rng = Random(seed)
        owned, arrivals = random_workload(rng)
        lives = [Life(owned, "mmfs", restores=restores) for restores in (False, True)]
        for life in lives:
            life.live(arrivals)
        assert lives[0].engine.dump() == lives[1].engine.dump()
        assert sorted(lives[0].verdicts, key=str) == sorted(lives[1].verdicts, key=str)


def test_an_account_that_begins_later_states_its_begin_and_omits_earlier_jobs():
    engine = Engine.new(setup(a=2, b=2))
    engine.step(1.0, [submit("mine", gpus=2), submit("more", gpus=2, run_time=3.0), submit("last")])
    old = json.decode(engine.dump())
    for key in ("accounts", "lent"):
        del old["book"][key]
    again = Engine.restore(json.encode(old))
    again.step(10.0, [submit("new", "b", 2)])
    account = again.book.accounts["a"]
    assert account.since == 10.0
    assert again.book.lent == {"more": {"b": ("a", 2, 10.0)}}
    again.step(20.0, [Ended("mine", 1, 0), Ended("more", 1, 0)])
    step = again.step(30.0, [Tick()])
    assert step.booked.lent == [Lent("more", "b", "a", 2, 10.0, 20.0)]
    again.settle_accounts()
    assert (account.jobs, account.clock.twins["last"].began) == (0, 20.0)
    assert step.booked.verdicts == []
    assert again.dump() == Engine.restore(again.dump()).dump()


def test_the_daemon_books_every_so_many_steps_and_what_it_books_is_the_same():
    often = seldom = 0
    for seed in range(20):
        rng = Random(seed)
        owned, arrivals = random_workload(rng)
        lives = [Life(owned, "mmfs", book_every=every) for every in (1, 32, 32)]
        lives[2].restores = True
        for life in lives:
            life.live(arrivals)
        for what in ("verdicts", "lent"):
            rows = [getattr(life, what) for life in lives]
            assert sorted(rows[0], key=str) == sorted(rows[1], key=str) == sorted(rows[2], key=str)
        often, seldom = (a + life.bookings for a, life in zip((often, seldom), lives, strict=False))
        assert not any(life.engine.book.verdicts for life in lives)
    assert seldom < often


@pytest.mark.parametrize(("jobs", "known"), [(3, 0), (300, 300)])
def test_the_accounts_of_many_jobs_are_kept_beside_the_steps(jobs, known):
    engine = Engine.new(replace(setup(a=jobs), book_every=32))
    engine.step(1.0, [Tick()])
    engine.step(2.0, [submit(f"job-{i}") for i in range(jobs)])
    twins = engine.book.accounts["a"].clock.twins
    assert not twins
    engine.do_idle_work()
    assert len(twins) == known


def test_an_idle_daemon_makes_no_steps_for_accounts():
    engine = Engine.new(replace(setup(a=1, b=1), book_every=32))
    engine.step(1.0, [submit("one"), submit("two", run_time=1.0)])
    engine.step(2.0, [Ended("one", 1, 0), Ended("two", 1, 0)])
    assert engine.due == 2.0 + BOOK_WITHIN
    (one,) = engine.step(engine.due, [Tick()]).booked.verdicts
    assert engine.due == 2.0 + 2 * BOOK_WITHIN  # now the other, whose turn was later, is known
    (two,) = engine.step(engine.due, [Tick()]).booked.verdicts
    assert (one.alone, two.alone) == (1.0, 2.0)
    assert engine.due == float("inf")


def test_a_job_withdrawn_while_alone_it_would_have_run_counts_as_slowed():
    engine = Engine.new(setup(a=2, b=2))
    engine.step(1.0, [submit("guest", "b", 2), submit("more", "b", 2, run_time=3.0)])
    engine.step(2.0, [submit("late", "a", 1)])
    engine.step(5.0, [Cancel("late")])
    engine.step(6.0, [Tick()])
    step = engine.step(7.0, [Tick()])
    assert step.booked.verdicts == [Verdict("late", "a", 1, 2.0, None, 5.0, 2.0)]


def test_a_priority_counts_in_the_virtual_schedule_too():
    engine = Engine.new(setup(a=1))
    engine.step(1.0, [submit("runs")])
    engine.step(2.0, [submit("first"), submit("second")])
    engine.step(3.0, [SetPriority("second", 5)])
    for now, name in ((4.0, "runs"), (6.0, "second"), (9.0, "first")):
        engine.step(now, [Ended(name, 1, 0)])
    engine.step(10.0, [Tick()])
    engine.settle_accounts()
    account = engine.book.accounts["a"]
    assert (account.jobs, account.slowed, account.took) == (3, 0, account.took_alone)


def booked(folder, verdicts, lent, times):
    """A journal in which these were booked, a row of each at each time."""
    journal = Journal(folder / "db")
    for i, now in enumerate(times):
        step = Engine.new(setup(a=2, b=2)).step(now, [Tick()])
        rows = step.booked._replace(verdicts=verdicts[i : i + 1], lent=lent[i : i + 1])
        step = step._replace(booked=rows)
        journal.commit(JournalEntry.of(i + 1, Anchor("", now, now), [Tick()], step, ()))
    return journal


def test_rows_are_read_by_pool_job_and_time(tmp_path):
    verdicts = [Verdict(f"j{i}", "ab"[i % 2], 1, 0.0, 1.0, 2.0, 0.5 * i) for i in range(6)]
    lent = [Lent(f"j{i}", "ab"[i % 2], "ba"[i % 2], 2, float(i), i + 1.0) for i in range(6)]
    journal = booked(tmp_path, verdicts, lent, [10.0 * i for i in range(6)])
    assert [v.job for _, _, v in journal.verdicts("a", 100, 100)] == ["j4", "j2", "j0"]
    assert [n for n, _, _ in journal.verdicts("b", 6, 1)] == [4]
    assert [row.job for _, _, row in journal.lent("a", 100, 3)] == ["j5", "j4", "j3"]
    assert journal.verdict("j3") == verdicts[3]
    assert journal.verdict("j9") is None
    since = [journal.booked_since("lent", time) for time in (-1.0, 0.0, 15.0, 20.0, 50.0, 51.0)]
    assert since == [1, 1, 3, 3, 6, 7]
    journal.close()


def test_old_rows_are_deleted_with_the_history(tmp_path, monkeypatch):
    monkeypatch.setattr("daemon.journal.journal.PRUNE_EVERY", 1)
    journal = Journal(tmp_path / "db", keep_history=25.0)
    for i in range(6):
        step = Engine.new(setup(a=2)).step(10.0 * i, [Tick()])
        rows = step.booked._replace(verdicts=[Verdict(f"j{i}", "a", 1, 0.0, 1.0, 2.0, 0.0)])
        step = step._replace(booked=rows)
        journal.commit(JournalEntry.of(i + 1, Anchor("", 10.0 * i, 10.0 * i), [Tick()], step, ()))
    assert [v.job for _, _, v in journal.verdicts("a", 100, 100)] == ["j5", "j4", "j3"]
    journal.close()


def test_months_are_those_of_utc():
    assert month_of("2026-11") == (1793491200.0, 1796083200.0)
    assert month_of("2026-12")[1] == month_of("2027-01")[0]
    for text in ("2026-13", "2026-1", "1999-01", "november", "2026-11 "):
        with pytest.raises(UserError, match="is not a month; write one like 2026-11"):
            month_of(text)


def test_a_statement_names_no_job_of_invisible_pools_and_escapes_all_names():
    engine = Engine.new(setup(a=2, b=2))
    engine.step(1.0, [submit("mine", gpus=2), submit("<more>", gpus=2, run_time=3.0)])
    engine.settle_accounts()
    start, _ = month_of("2026-11")
    row = Lent("<gone>", "b", "a", 2, start, start + 1800)
    verdict = Verdict("<own>", "b", 1, start, start + 10, start + 20, None)
    book = engine.book
    tally = tally_of("b", [verdict], [row])
    hidden = statement(book, tally, "b", whole("2026-11"), start + 1.0, "b".__eq__)
    assert [loan.job for loan in (*hidden.open, *hidden.loans)] == ["", ""]
    assert hidden.borrowers == {"a": 1.0}
    assert (hidden.totals.lent_gpu_hours, hidden.totals.never, hidden.totals.speed_up) == (
        1.0,
        1,
        None,
    )
    text = statement_page(statement(book, tally, "b", whole("2026-11"), start, lambda _: True))
    assert "&lt;gone&gt;" in text
    assert "<own>" not in text
    assert "http" not in text.split("</style>")[1]
    assert account_view(book, "b", 3601.0).lent_gpu_hours == 2.0


@story
async def test_accounts_are_served_over_http(folder):
    async with door(folder, speed=100.0) as client:
        each = {"pool": "speech", "gpus": 4, "duration": 20, "run_time": 20}
        jobs = [{"id": job_id, **each} for job_id in "ab"]  # at once: b starts while a runs
        await asked(client, "POST", "/v1/jobs", {"jobs": jobs})
        first = await job_in(client, "a", "finished")
        assert first["alone"] <= first["started"]
        await job_in(client, "b", "finished")
        path = "/v1/pools/speech"
        for _ in range(500):
            account = await asked(client, "GET", f"{path}/account")
            if account["jobs"] == 2:
                break
            await asyncio.sleep(0.01)
        assert (account["slowed"], account["unknown"]) == (0, 0)
        assert account["speed_up"] > 1.0
        ended = await asked(client, "GET", "/v1/jobs/b")
        assert ended["alone"] > ended["started"]
        for _ in range(BOOK_EVERY):  # refused, but each a step
            await client.service.submit([SetPriority("b", 1)])
        ledger = await asked(client, "GET", f"{path}/ledger")
        (loan,) = ledger["loans"]
        assert (loan["lender"], loan["borrower"], loan["job"]) == ("vision", "speech", "b")
        assert loan["gpu_hours"] == 4 * (loan["end"] - loan["start"]) / 3600
        verdicts = await asked(client, "GET", f"{path}/verdicts?limit=1")
        assert [row["job"] for row in verdicts["verdicts"]] == ["b"]
        older = await asked(client, "GET", f"{path}/verdicts?before={verdicts['next']}")
        assert [row["job"] for row in older["verdicts"]] == ["a"]
        made = await asked(client, "GET", f"{path}/statement")
        assert made["totals"]["jobs"] == 2
        assert made["lenders"] == {"vision": loan["gpu_hours"]}
        async with client.get(f"{path}/statement", headers={"Accept": "text/html"}) as response:
            assert response.content_type == "text/html"
            assert "Pool speech: statement of" in await response.text()
        empty = await asked(client, "GET", f"{path}/statement?month=2001-02")
        assert (empty["totals"]["jobs"], empty["loans"]) == (0, [])
        html = {"Accept": "text/html"}
        async with client.get(f"{path}/statement?month=2001-02", headers=html) as response:
            assert ">None<" not in await response.text()
        await asked(client, "GET", f"{path}/statement?month=2001-13", status=422)
        await asked(client, "GET", "/v1/pools/nobody/account", status=404)
        async with client.get("/metrics") as response:
            text = await response.text()
        assert 'sia_alone_jobs_total{outcome="in time",pool="speech"} 2.0' in text


def test_jobs_that_a_step_ends_and_forgets_are_booked_before(monkeypatch):
    for room in ("daemon.model.book", "daemon.lending.accounts"):
        monkeypatch.setattr(f"{room}.KEEP_ENDED", 10)
    engine = Engine.new(setup(a=4))
    jobs = [Submit(job(f"x.{i}", gpus=1, array=(i, 30)), 50.0) for i in range(30)]
    engine.step(1.0, jobs)
    engine.step(2.0, [Cancel("x")])
    engine.settle_accounts()
    assert len(engine.book.ended) == 10
    assert engine.due > 2.0
    engine.check()


def test_a_statement_lists_the_newest_rows_and_sums_up_all(monkeypatch):
    monkeypatch.setattr("daemon.doors.views.statements.LISTED", 10)
    start, _ = month_of("2026-11")
    verdicts = [Verdict(f"j{i}", "a", 1, 0.0, 36.0, 72.0, 0.0) for i in range(25)]
    verdicts[3] = Verdict("j3", "a", 1, 0.0, 1.0, 2.0, None, forgotten=True)
    lent = [Lent(f"j{i}", *("ab" if i % 2 else "ba"), 2, 0.0, 1800.0) for i in range(25)]
    engine = Engine.new(setup(a=2, b=2))
    engine.step(start, [Tick()])
    made = statement(engine.book, tally_of("a", verdicts, lent), "a", whole("2026-11"), start, bool)
    assert [row.number for row in made.verdicts] == [*range(25, 15, -1)]
    assert [row.job for row in made.loans][:2] == ["j24", "j23"]
    assert made.left_out == {"verdicts": 15, "loans": 15}
    totals = made.totals
    assert (totals.jobs, totals.slowed, totals.never, totals.forgotten) == (24, 24, 0, 1)
    assert totals.later_hours == pytest.approx(0.24)
    assert (made.borrowers, made.lenders) == ({"b": 12.0}, {"b": 13.0})


def scavenged(jobs, *, restores_at=()):
    """A pool of one GPU that has borrowed a hundred for so many jobs, ten at a time."""
    engine, verdicts = Engine.new(setup(a=1, b=100)), []
    for now in range(1, jobs // 10 + 1):
        ended = [Ended(f"{now - 1}-{i}", 1, 0) for i in range(10)] if now > 1 else []
        jobs_now = [submit(f"{now}-{i}", "a", 1, run_time=1.0) for i in range(10)]
        verdicts += engine.step(float(now), [*ended, *jobs_now]).booked.verdicts
        if now in restores_at:
            engine = Engine.restore(engine.dump())
    engine.settle_accounts()
    return engine, verdicts + engine.book.verdicts


def test_the_virtual_clock_of_a_pool_that_always_borrows_stays_bounded(monkeypatch):
    monkeypatch.setattr("daemon.lending.accounts.KEEP_OVER", 300)
    monkeypatch.setattr("sia.virtual.virtual_clock.BOUND_EVERY", 100)
    engine, verdicts = scavenged(3000)
    account = engine.book.accounts["a"]
    clock = account.clock
    engine.settle_accounts()
    assert len(clock.twins) < 450
    assert max(map(len, (clock.queue, clock.coming, clock.behind, clock.due))) < 1000
    forgotten = [verdict.job for verdict in verdicts if verdict.forgotten]
    assert account.forgotten == len(forgotten) > 2000
    known = [verdict for verdict in verdicts if not verdict.forgotten]
    assert [v.alone for v in known] == [float(i + 1) for i in range(len(known))]  # one at a time
    assert account_view(engine.book, "a", 400.0).forgotten == account.forgotten
    engine.check()
    again, others = scavenged(3000, restores_at=(50, 111))
    assert again.dump() == engine.dump()
    assert others == verdicts


def test_later_events_do_not_pile_up_behind_a_job_that_waits_long(monkeypatch):
    monkeypatch.setattr("daemon.lending.accounts.KEEP_COMING", 300)
    monkeypatch.setattr("sia.virtual.virtual_clock.BOUND_EVERY", 100)
    engine = Engine.new(setup(a=10, b=2))
    engine.step(1.0, [submit("own", "b", 2), submit("guest", "b", 2, run_time=1.0)])
    engine.step(2.0, [submit("late", "a", 10)])  # alone it would run
    for now in range(3, 1000):
        gone = [Cancel(f"j{now - 1}")] if now > 3 else []
        engine.step(float(now), [*gone, submit(f"j{now}", "a", 1)])
    engine.settle_accounts()
    clock = engine.book.accounts["a"].clock
    assert clock.freed[0] == (2.0, "late")
    assert max(len(clock.coming), len(clock.twins)) < 450
    assert clock.used <= 10
    engine.check()
    assert Engine.restore(engine.dump()).dump() == engine.dump()
    engine.step(1000.0, [Ended("guest", 1, 0), Ended("own", 1, 0)])
    engine.step(1001.0, [Ended("late", 1, 0)])
    step = engine.step(1002.0, [Tick()])
    late = next(verdict for verdict in step.booked.verdicts if verdict.job == "late")
    assert (late.alone, late.started) == (2.0, 1000.0)
    engine.check()


def test_the_budget_counts_a_pending_job_even_after_its_virtual_end():
    clock = VirtualClock.of(1)
    clock.submitted(1.0, Job("late", "a", 1.0, 1))
    for i in range(2000):
        clock.submitted(2.0 + i, Job(f"j{i}", "a", 2.0 + i, 1))
        clock.withdrawn(2.5 + i, f"j{i}")
    clock.advance(3000.0)
    assert len(clock.coming) > 3000
    clock.bound(3000.0, 100, 100)
    assert not clock.coming
    assert late_of(clock, 3000.0)[:2] == (1, 0)
    clock.started(3001.0, "late")
    assert late_of(clock, 3002.0)[:2] == (0, 1)
    clock.finished(3003.0, "late")
    assert late_of(clock, 3004.0)[:2] == (0, 0)
    clock.check()


def test_a_job_that_waits_for_lent_gpus_is_late_until_the_loan_ends():
    engine = Engine.new(replace(setup(a=1, b=1), policy="gssf"))
    engine.step(1.0, [submit("own", "a"), submit("guest", "a")])
    engine.step(2.0, [submit("waits", "b")])

    def late(now):
        engine.settle_accounts()
        view = account_view(engine.book, "b", now)
        made = statement(engine.book, tally_of("b"), "b", whole("2000-01"), now, lambda _: True)
        assert (made.late_waiting, made.late_running) == (view.late_waiting, view.late_running)
        return view.late_waiting, view.late_running, view.slowed

    assert late(2.0) == (0, 0, 0)
    engine.step(10.0, [Tick()])
    assert late(10.0) == (1, 0, 0)
    engine.step(20.0, [Ended("guest", 1, 0)])
    assert late(21.0) == (0, 1, 0)
    over = statement(engine.book, tally_of("b"), "b", whole("2000-01"), 1e9, lambda _: True)
    assert (over.late_waiting, over.late_running) == (0, 0)
    engine.step(30.0, [Ended("waits", 1, 0)])
    assert late(31.0) == (0, 0, 1)


def test_a_late_verdict_is_booked_later():
    engine = Engine.new(setup(a=1, b=1))
    engine.step(1.0, [submit("first", "a", run_time=1.0), submit("guest", "a", run_time=1.0)])
    engine.step(2.0, [Ended("guest", 1, 0)])
    engine.step(500.0, [Ended("first", 1, 0)])  # now alone "guest" would have begun
    engine.step(501.0, [Tick()])
    engine.settle_accounts()
    assert [verdict.job for verdict in engine.book.verdicts] == ["guest"]
    assert engine.due == 501.0 + BOOK_WITHIN
    assert Engine.restore(engine.dump()).due == engine.due


@story
async def test_an_invalid_month_is_refused_with_a_reason(folder):
    async with door(folder) as client:
        path = "/v1/pools/vision/statement?month=2026-13"
        problem = await asked(client, "GET", path, status=422)
        assert "use a month, such as 2026-11" in problem["detail"]
