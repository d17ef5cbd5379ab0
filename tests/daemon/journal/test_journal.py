"""The journal: what is durable, what is refused, and what a cut or damaged file still says."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from daemon.journal.highwater import mark_path
from daemon.journal.journal import AuditRow, DeadLetter, Journal, JournalEntry, parts_of
from daemon.journal.recovery import recover
from daemon.journal.schema import VERSION
from daemon.model.errors import JournalError, RowError
from daemon.model.inputs import Cancel, Ended, Started, Tick
from daemon.runtime.clock import Anchor
from sia.console.errors import UserError
from tests.support.budget import budget
from tests.support.daemons.daemons import setup, submit
from tests.support.paths import ROOT
from tests.support.servers.databases import InFile, OnServer, step

CLUSTER = setup(a=3, b=2)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.server)])
def kept(request, tmp_path):
    """A database, of each kind."""
    if request.param == "sqlite":
        return InFile(tmp_path)
    return OnServer(request.getfixturevalue("postgres"), "journal")


def filled(journal, steps, jobs=3):
    """A journal of so many steps, and the engine's dump after each."""
    engine = recover(journal, CLUSTER)
    dumps = [engine.dump()]
    for i in range(steps):
        ids = [f"{i}-{j}" for j in range(jobs)]
        step(journal, engine, float(i), *(submit(id_, "ab"[i % 2]) for id_ in ids))
        dumps.append(engine.dump())
    return journal, dumps


def test_the_journal_reads_what_it_wrote(kept):
    journal = kept.journal()
    engine = recover(journal, CLUSTER)
    first = step(journal, engine, 1.0, submit("one"), submit("two", "b", 2))
    step(journal, engine, 2.5, Started("one", 1))
    last = step(journal, engine, 4.0, Ended("one", 1, 0), Cancel("two", "me"))
    journal.close()
    again = kept.journal()
    assert again.last == 3
    assert again.anchor() == Anchor("boot", 4.0, 4.0)
    assert [(record.seq, record.now) for record in again.records(0)] == [(1, 1.0), (2, 2.5), (3, 4)]
    assert next(again.records(1)).inputs == [Started("one", 1)]
    notices = again.notices(0, 100)
    assert [n.seq for n in notices] == list(range(1, engine.book.notices + 1))
    assert [n.kind for n in notices[: len(first.notices)]] == [n.kind for n in first.notices]
    assert again.notices(2, 1)[0].seq == 3
    assert again.job("one") == last.over[0]
    assert again.jobs(["one", "two", "none"]) == {"one": last.over[0]}
    assert again.history(0, 10) == again.history(0, 10, {"a", "b"}) == [(1, last.over[0])]
    assert again.history(0, 10, {"b"}) == []
    assert recover(again, CLUSTER).dump() == engine.dump()
    again.close()


def test_a_job_that_ends_twice_is_an_error(kept):
    """That is a defect, which no other disk would mend; nothing of that step stays."""
    journal = kept.journal()
    engine = recover(journal, CLUSTER)
    step(journal, engine, 1.0, submit("one"))
    over = step(journal, engine, 2.0, Cancel("one"), Ended("one", 1, 0)).over
    with pytest.raises(RowError):
        journal.commit(JournalEntry(journal.last + 1, Anchor("", 3.0, 3.0), [], [], over=over))
    assert [record.seq for record in journal.records(0)] == [1, 2]
    step(journal, engine, 3.0, Tick())
    journal.close()


def test_the_journal_file_is_private_to_its_user(tmp_path):
    Journal(tmp_path / "new" / "db").close()
    assert stat.S_IMODE((tmp_path / "new" / "db").stat().st_mode) == 0o600


def test_a_second_daemon_is_refused(tmp_path):
    journal = Journal(tmp_path / "db")
    code = (
        "import sys; from pathlib import Path; from daemon.journal.journal import Journal\n"
        "try: Journal(Path(sys.argv[1]))\n"
        "except Exception as error: print(error); sys.exit(2)"
    )
    second = subprocess.run(
        [sys.executable, "-c", code, journal.where], capture_output=True, text=True, check=False
    )
    assert second.returncode == 2
    assert "another daemon has the database open" in second.stdout
    journal.close()


def test_a_second_daemon_is_refused_while_the_first_reopens_the_journal(tmp_path):
    journal = Journal(tmp_path / "db")
    step(journal, recover(journal, CLUSTER), 1.0, submit("one"))
    journal._store.db.close()  # as in the middle of it
    code = "import sys; from pathlib import Path; from daemon.journal.journal import Journal\n"
    code += "Journal(Path(sys.argv[1]))"
    second = subprocess.run(
        [sys.executable, "-c", code, journal.where], capture_output=True, text=True, check=False
    )
    assert "another daemon has the database open; stop that daemon" in second.stderr
    journal.reopen()
    assert journal.last == 1
    journal.close()
    free = subprocess.run([sys.executable, "-c", code, journal.where], check=False)
    assert free.returncode == 0


def test_the_history_of_a_pool_is_found_by_an_index(tmp_path):
    journal = Journal(tmp_path / "db")
    engine = recover(journal, CLUSTER)
    for i in range(6):
        step(journal, engine, float(i), submit(f"{i}", "ba"[i % 3 == 0]), Cancel(f"{i}"))
    asked = []
    journal._store.db.set_trace_callback(asked.append)
    assert [job.spec.id for _, job in journal.history(0, 9, {"a"})] == ["3", "0"]
    assert [job.spec.id for _, job in journal.history(0, 9)] == list("543210")
    assert [job.spec.id for _, job in journal.history(4, 2, {"b"})] == ["2", "1"]
    assert [job.spec.id for _, job in journal.history(0, 4, {"b", "a", "c"})] == list("5432")
    assert journal.history(0, 9, ()) == []
    journal._store.db.set_trace_callback(None)
    for sql in asked:
        plan = " ".join(row[-1] for row in journal._all(f"EXPLAIN QUERY PLAN {sql}"))
        assert "SEARCH" in plan
        assert "TEMP" not in plan, "it is sorted"
        assert ("history_of_pool" in plan) == ("pool =" in sql)
    journal.close()


def test_a_page_of_many_pools_history_reads_no_more_jobs_than_it_shows(kept, monkeypatch):
    monkeypatch.setattr("daemon.journal.journal.POOLS_AT_ONCE", 2)
    monkeypatch.setattr("daemon.journal.journal.ASKED_AT_ONCE", 3)
    journal = kept.journal()
    pools = [f"p{i}" for i in range(5)]
    engine = recover(journal, setup(**dict.fromkeys(pools, 1)))
    for i in range(20):
        step(journal, engine, float(i), submit(f"{i}", pools[i * i % 5]), Cancel(f"{i}"))
    read = []
    monkeypatch.setattr("daemon.journal.journal._read_job", lambda body: read.append(1) or body)
    seen, before = [], 0
    while page := journal.history(before, 4, pools):
        seen += page
        before = page[-1][0]
    assert len(read) == 20
    assert seen == journal.history(0, 99)
    journal.close()


def noise(path):
    path.write_bytes(b"no database at all, but long enough to look into" * 40)


def others(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE things (name TEXT)")
    db.close()


def newer(path):
    Journal(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version={VERSION + 1}")
    db.close()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (noise, "cannot read the database"),
        (others, "is not a database of sia serve; name another file"),
        (newer, f"has version {VERSION + 1}, this release supports {VERSION}"),
        (lambda path: path.mkdir(), "check the disk, and the owner and mode of the file"),
    ],
)
def test_a_file_that_is_not_a_journal_is_refused(tmp_path, make, says):
    make(tmp_path / "db")
    with pytest.raises(UserError, match="db: .*" + says):
        Journal(tmp_path / "db")
    if make is others:
        with sqlite3.connect(tmp_path / "db") as db:
            assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("things",)]
        db.close()


def test_cursors_dead_letters_and_audit_are_stored_with_the_steps(kept):
    journal = kept.journal()
    before = journal.epoch
    journal.mark({"b": "1", "a%": "2", "a": "3", "É": "4", "A": "5"})
    journal.mark({"b": None, "a": "6", "none": None})
    letters = [DeadLetter(0, "hook", seq, 0.1 + seq, "no answer", "{}") for seq in range(1, 6)]
    journal.add_dead_letters(letters, {"hook.after": "5"})
    journal.add_dead_letters([DeadLetter(0, "other", 9, 9.0, "refused", "{}")], {"hook.after": "6"})
    rows = [AuditRow(i, f'{{"n": {i}}}', f"digest {i}") for i in (1, 2, 3)]
    engine = recover(journal, CLUSTER)
    made = engine.step(1.0, [submit("one")])
    anchor = Anchor("", 1.0, 1.0)
    journal.commit(
        JournalEntry(1, anchor, [submit("one")], made.decisions, made.notices, audit=rows)
    )
    journal.close()
    again = kept.journal()
    assert again.epoch > before
    assert list(again.marks("a").items()) == [("a", "6"), ("a%", "2")]
    assert [key for key in again.marks("") if key != "epoch"] == ["A", "a", "a%", "hook.after", "É"]
    assert again.marks("hook.after") == {"hook.after": "6"}
    dead = again.dead("hook", 0, 3)
    assert [(each.seq, each.time) for each in dead] == [(1, 1.1), (2, 2.1), (3, 3.1)]
    assert [each.seq for each in again.dead("hook", dead[-1].number, 9)] == [4, 5]
    again.remove_dead_letters("hook", [each.number for each in dead])
    again.remove_dead_letters("hook", [again.dead("other", 0, 1)[0].number])  # another's stays
    assert [each.seq for each in again.dead("hook", 0, 9)] == [4, 5]
    assert len(again.dead("other", 0, 9)) == 1
    assert again.audit(1, 9) == rows[1:]
    assert again.last_audit() == rows[-1]
    again.close()


DIES = """
import os, signal, sys
from daemon.journal.schema import create_tables
from tests.support.servers.databases import store_of

store = store_of(*sys.argv[1:3])
run, at = store.run, int(sys.argv[3])

def dies(sql, values=()):
    global at
    run(sql, values)
    at -= 1
    if not at:
        store.all("SELECT 1")  # all of it has arrived
        os.kill(os.getpid(), signal.SIGKILL)

store.run = dies
store.open()
create_tables(store)
"""


def test_a_kill_during_the_creation_of_tables_leaves_an_empty_database(kept):
    words = (*kept.words(), "5")
    dead = subprocess.run([sys.executable, "-c", DIES, *words], check=False, cwd=ROOT)
    assert dead.returncode == -signal.SIGKILL
    assert kept.version() == 0
    journal = kept.journal()
    step(journal, recover(journal, CLUSTER), 1.0, submit("one"))
    journal.mark({"key": "value"})
    assert journal.last == 1
    journal.close()
    assert kept.version() == VERSION


@pytest.fixture
def memory():
    """A folder in memory, where there is one: what is opened thousands of times."""
    home = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(dir=home) as name:
        yield Path(name)


def test_a_journal_truncated_near_its_end_opens_with_a_prefix(memory):
    """At every byte of the last 16 KiB of what was written ahead, or every 13th."""
    journal, dumps = filled(Journal(memory / "db"), 4, jobs=1)
    wal = Path(f"{journal.where}-wal").read_bytes()
    base = Path(journal.where).read_bytes()
    journal.close()
    assert len(wal) > 2**14
    found = []
    for cut in range(len(wal), len(wal) - 2**14, -budget(ci=13, soak=1)):
        (memory / "cut").write_bytes(base)
        (memory / "cut-wal").write_bytes(wal[:cut])
        mark_path(memory / "cut").unlink(missing_ok=True)  # as if no more had been acknowledged
        last = last_of(memory / "cut")
        if last not in found:
            found.append(last)
            again = Journal(memory / "cut")
            assert recover(again, CLUSTER).dump() == dumps[last]
            again.close()
    assert found == list(reversed(range(found[-1], len(dumps))))
    assert len(found) > 2


def last_of(path):
    """The last step that a file has, to who only asks for that."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA locking_mode=EXCLUSIVE")
    last = db.execute("SELECT COALESCE(MAX(seq), 0) FROM records").fetchone()[0]
    db.close()
    return last


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE records SET decisions = '[]' WHERE seq = 1", "record 1 makes other decisions"),
        ("UPDATE records SET inputs = '[{}]' WHERE seq = 2", "record 2 cannot be read"),
        ("UPDATE records SET now = -5 WHERE seq = 3", "record 3 cannot be replayed"),
        ("UPDATE parts SET body = x'7b7d'", "no snapshot can be read"),
        ("DELETE FROM snapshots", "no snapshot can be read: there is none"),
    ],
)
def test_recovery_refuses_a_step_with_other_decisions_than_recorded(kept, change, says):
    journal, _ = filled(kept.journal(), 4)
    journal.close()
    kept.change(change)
    kept.reseal()
    again = kept.journal()
    with pytest.raises(UserError, match=says):
        recover(again, CLUSTER)
    again.close()


@pytest.mark.parametrize("column", ["now", "boot", "uptime", "inputs", "decisions", "digest"])
def test_a_modified_step_is_refused(kept, column):
    journal, _ = filled(kept.journal(), 4)
    journal.close()
    value = "7" if column in ("now", "uptime") else "'[]'"
    kept.change(f"UPDATE records SET {column} = {value} WHERE seq = 2")
    again = kept.journal()
    with pytest.raises(UserError, match="step 2 or an earlier step was changed"):
        recover(again, CLUSTER)
    again.close()


@pytest.mark.parametrize("gone", [1, 3])
def test_a_missing_step_is_refused(kept, gone):
    journal, _ = filled(kept.journal(), 4)
    journal.close()
    kept.change(f"DELETE FROM records WHERE seq = {gone}")
    again = kept.journal()
    with pytest.raises(UserError, match=f"step {gone} is missing"):
        recover(again, CLUSTER)
    again.close()


def test_a_damaged_snapshot_gives_way_to_the_one_before(kept):
    journal, dumps = filled(kept.journal(), 4)
    for part in parts_of(4, recover(journal, CLUSTER).dump()):
        journal.save(part)
    journal.close()
    kept.change("UPDATE parts SET body = x'7b7d' WHERE seq = 4")
    again = kept.journal()
    assert recover(again, CLUSTER).dump() == dumps[4]
    again.close()


@pytest.mark.parametrize("defect", [TypeError, AttributeError, ZeroDivisionError])
def test_a_step_that_breaks_the_engine_is_named(kept, monkeypatch, defect):
    journal, _ = filled(kept.journal(), 2)

    def breaks(*_):
        raise defect("broken")

    monkeypatch.setattr("daemon.engine.engine.Engine.step", breaks)
    with pytest.raises(UserError, match=r"record 1 cannot be replayed: .*broken"):
        recover(journal, CLUSTER)
    journal.close()


def test_the_older_snapshot_stands_in_for_a_damaged_one(kept):
    journal, dumps = filled(kept.journal(), 6)
    for seq in (2, 4):
        for part in parts_of(seq, dumps[seq]):
            journal.save(part)
    assert journal.snapshots() == [4, 2]  # and none before them is kept
    journal.close()
    kept.change("UPDATE parts SET body = x'7b7d' WHERE seq = 4")
    again = kept.journal()
    assert recover(again, CLUSTER).dump() == dumps[6]
    again.close()


def test_a_snapshot_counts_only_when_it_is_whole(kept, monkeypatch):
    monkeypatch.setattr("daemon.journal.rows.SNAPSHOT_PART", 300)
    journal, dumps = filled(kept.journal(), 3)
    parts = parts_of(3, dumps[3])
    assert len(parts) > 2
    for part in parts[:-1]:
        journal.save(part)
    assert journal.snapshots() == [0]
    other = parts_of(2, dumps[2])  # one that was broken off is cleared away by the next
    for part in other:
        journal.save(part)
    assert journal.snapshots() == [2, 0]
    assert journal.snapshot(2) == dumps[2]
    assert journal._one("SELECT COUNT(*) FROM parts WHERE seq = 3") == (0,)
    journal.close()


def test_old_records_are_deleted_once_two_snapshots_cover_them(kept, monkeypatch):
    monkeypatch.setattr("daemon.journal.journal.PRUNE_EVERY", 1)
    monkeypatch.setattr("daemon.journal.journal.PRUNED_AT_ONCE", 2)
    journal = kept.journal(keep_records=5.0, keep_history=8.0)
    engine = recover(journal, CLUSTER)
    for i in range(10):
        step(journal, engine, float(i), submit(str(i), hold=True), Cancel(str(i)))
    assert [r.seq for r in journal.records(0)] == list(range(1, 11))  # all since the snapshot
    for seq in (6, 8):
        for part in parts_of(seq, engine.dump()):
            journal.save(part)
    for i in range(10, 16):
        step(journal, engine, float(i), Tick())
    assert next(journal.records(0)).seq == 6  # later than five seconds ago, or needed
    assert min(n.time for n in journal.notices(0, 100)) >= 15 - 8 - 2
    assert journal.job("0") is None
    assert journal.job("9") is not None
    journal.close()


def test_old_records_are_deleted_faster_than_new_ones_arrive(kept, monkeypatch):
    """Each step stores one record but many notices."""
    monkeypatch.setattr("daemon.journal.journal.PRUNED_AT_ONCE", 5)
    journal = kept.journal(keep_records=5.0, keep_history=8.0)
    engine = recover(journal, CLUSTER)
    for i in range(40):
        jobs = [f"{i}-{j}" for j in range(50)]
        step(journal, engine, float(i), *(submit(job, hold=True) for job in jobs))
        step(journal, engine, float(i), *map(Cancel, jobs))
    for table in ("notices", "history"):
        rows = journal._one(f"SELECT COUNT(*) FROM {table}")[0]
        assert rows < 15 * 100, f"{table} grows"
    assert journal.job("39-0") is not None
    journal.close()


def test_a_full_disk_is_reported_and_stores_nothing(tmp_path):
    journal, dumps = filled(Journal(tmp_path / "db"), 3)
    engine = recover(journal, CLUSTER)
    pages = journal._one("PRAGMA page_count")[0]
    journal._store.db.execute(f"PRAGMA max_page_count={pages + 1}")
    with pytest.raises(JournalError, match="the disk is full; free some space"):
        step(journal, engine, 9.0, *(submit(f"more{i}", env={"X": "y" * 500}) for i in range(99)))
    with pytest.raises(JournalError):
        journal.probe()
    assert recover(journal, CLUSTER).dump() == dumps[3]  # reads go on
    journal.reopen()
    assert journal.last == 3
    journal.probe()
    step(journal, recover(journal, CLUSTER), 10.0, submit("again"))
    journal.close()
