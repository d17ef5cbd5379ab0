"""Damage to a SQLite journal: the daemon serves all that it acknowledged, or refuses to start."""

import os
import shutil
import sqlite3
from pathlib import Path
from random import Random

import msgspec
import pytest
from click.testing import CliRunner

from daemon.config.read import read_config
from daemon.journal.audit import AuditHead, AuditRecord
from daemon.journal.highwater import SLOT, HighWater, LossError, mark_path, read_mark
from daemon.journal.journal import Journal, JournalEntry, parts_of
from daemon.journal.recovery import recover
from daemon.model.errors import JournalError
from daemon.model.inputs import Started
from daemon.runtime.clock import Anchor
from sia.console.errors import UserError
from sia.console.main import cli
from tests.support.budget import budget
from tests.support.daemons.daemons import setup, submit
from tests.support.servers.databases import step

CLUSTER = setup(a=3, b=2)

JOBS = 30

SAMPLES = int(os.environ.get("SIA_SWEEP", budget(ci=120, soak=2000)))
"""How many places of a file the sweep damages; 0 damages every byte."""


@pytest.fixture
def killed(tmp_path):
    """The files of a daemon that acknowledged 30 jobs, took a snapshot, and was killed."""
    home = tmp_path / "killed"
    pid = os.fork()
    if not pid:
        try:
            acknowledge(home / "sia.db")
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert read_mark(home / "sia.db").seq == JOBS + 1
    return home


def acknowledge(path):
    journal = Journal(path)
    engine = recover(journal, CLUSTER)
    for i in range(JOBS):
        commit(journal, engine, i, submit(f"job-{i}", "ab"[i % 2]))
        if i == JOBS // 3:
            journal._store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if i == JOBS // 2:
            for part in parts_of(journal.last, engine.dump()):
                journal.save(part)
    commit(journal, engine, JOBS, Started("job-0", 1))


def commit(journal, engine, now, *inputs):
    """One step that leaves a record in the audit."""
    made = engine.step(float(now), inputs)
    trail = AuditHead(*journal._audit)
    audit = trail.rows(float(now), [AuditRecord(0, 0.0, "ann", "submit")])
    anchor = Anchor("boot", float(now), float(now))
    journal.commit(
        JournalEntry(
            journal.last + 1, anchor, inputs, made.decisions, made.notices, made.over, audit
        )
    )


def served(path):
    """The jobs that a daemon serves from these files; None where it refuses to start."""
    try:
        journal = Journal(path)
    except UserError:
        return None
    try:
        return set(recover(journal, CLUSTER).book.jobs)
    except (UserError, JournalError):
        return None
    finally:
        journal.close()


def refusal(path):
    with pytest.raises(UserError) as caught:
        Journal(path).close()
    return caught.value.format_message()


def flip(path, at, bit=0):
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def sia(*words):
    return CliRunner().invoke(cli, [*map(str, words)], standalone_mode=False)


def test_a_killed_daemon_continues_with_all_jobs(killed):
    assert served(killed / "sia.db") == {f"job-{i}" for i in range(JOBS)}


def test_a_flipped_bit_in_the_log_is_refused_with_what_is_lost(killed):
    wal = killed / "sia.db-wal"
    flip(wal, wal.stat().st_size // 2)
    damaged = wal.read_bytes()
    said = refusal(killed / "sia.db")
    assert "acknowledged steps lost: " in said
    assert f" to {JOBS + 1}; the database ends at step " in said
    assert "sia journal accept-loss" in said
    assert wal.read_bytes() == damaged  # the log stays, as evidence


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda home: (home / "sia.db-wal").unlink(), "acknowledged steps lost: "),
        (lambda home: os.truncate(home / "sia.db-wal", 0), "acknowledged steps lost: "),
        (lambda home: (home / "sia.db").write_bytes(b""), "lost: 1 to 31; the database ends at"),
        (lambda home: (home / "sia.db").unlink(), "the file is gone: 31 acknowledged steps lost"),
    ],
)
def test_missing_or_empty_files_are_refused(killed, damage, says):
    damage(killed)
    if "wal" not in says and not (killed / "sia.db").exists():
        (killed / "sia.db-wal").unlink()
    assert says in refusal(killed / "sia.db")


def test_an_older_backup_in_the_place_of_the_database_is_refused(killed, tmp_path):
    """Until an operator accepts what it lacks."""
    backup = tmp_path / "backup.db"
    assert sia("journal", "backup", "--state", killed, backup).exception is None
    journal = Journal(killed / "sia.db")
    step(journal, recover(journal, CLUSTER), 99.0, submit("later"))
    journal.close()
    shutil.copy(backup, killed / "sia.db")
    assert "1 acknowledged step lost: 32 to 32" in refusal(killed / "sia.db")


def test_another_history_of_the_same_length_is_refused(killed, tmp_path):
    other = Journal(tmp_path / "other.db")
    engine = recover(other, CLUSTER)
    for i in range(JOBS + 5):
        step(other, engine, float(i), submit(f"other-{i}"))
    other.close()
    shutil.copy(tmp_path / "other.db", killed / "sia.db")
    (killed / "sia.db-wal").unlink()
    assert "step 31 is not the one that the daemon acknowledged" in refusal(killed / "sia.db")


def test_a_crash_between_the_commit_and_the_mark_is_no_loss(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "sia.db")
    engine = recover(journal, CLUSTER)
    step(journal, engine, 1.0, submit("one"))
    with monkeypatch.context() as broken:
        broken.setattr("daemon.journal.sqlite.SqliteStore.acknowledge", lambda *_: None)
        step(journal, engine, 2.0, submit("two"))
    journal._store.close()
    assert read_mark(tmp_path / "sia.db").seq == 1
    journal._store.release()
    assert served(tmp_path / "sia.db") == {"one", "two"}
    assert read_mark(tmp_path / "sia.db").seq == 2


def test_a_mark_that_cannot_be_written_is_reported_until_it_can(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "sia.db")
    engine = recover(journal, CLUSTER)

    def fails(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr("os.pwrite", fails)
        with pytest.raises(JournalError, match="Input/output error"):
            step(journal, engine, 1.0, submit("one"))
        with pytest.raises(JournalError):
            journal.reopen()
    journal.reopen()
    assert (journal.last, read_mark(tmp_path / "sia.db").seq) == (1, 1)
    journal.close()


def test_a_torn_mark_falls_back_to_the_one_before(killed):
    mark = read_mark(killed / "sia.db")
    content = mark_path(killed / "sia.db").read_bytes()
    newest = 0 if f" {mark.seq} ".encode() in content[:SLOT] else SLOT
    flip(mark_path(killed / "sia.db"), newest + 20)
    assert read_mark(killed / "sia.db").seq == mark.seq - 1


@pytest.mark.parametrize("content", [b"", b"\0" * 2 * SLOT, b"words\n"])
def test_a_mark_that_is_damaged_is_refused(killed, content):
    mark_path(killed / "sia.db").write_bytes(content)
    with pytest.raises(LossError, match="it is unknown which steps were acknowledged"):
        Journal(killed / "sia.db")


def test_the_mark_says_where_the_journal_and_the_audit_end(killed):
    journal = Journal(killed / "sia.db")
    newest = journal.last_audit()
    expected = HighWater(31, journal.digest_of(31), newest.number, newest.digest)
    assert read_mark(killed / "sia.db") == expected
    journal.close()


def places(size, rng):
    return range(size) if SAMPLES == 0 else sorted(rng.sample(range(size), min(SAMPLES, size)))


@pytest.mark.parametrize("name", ["sia.db-wal", "sia.db", "sia.durable"])
def test_damage_at_any_byte_loses_no_job_that_was_acknowledged(killed, tmp_path, name):
    """Each place is cut off or has a bit flipped; SIA_SWEEP=0 tries all of both."""
    rng = Random(f"damage {name}")
    jobs = {f"job-{i}" for i in range(JOBS)}
    size = (killed / name).stat().st_size
    home = tmp_path / "damaged"
    refused = went_on = 0
    for at in places(size, rng):
        for cut in (True, False) if SAMPLES == 0 else (rng.random() < 0.3,):
            shutil.copytree(killed, home)
            if cut:
                os.truncate(home / name, at)
            else:
                flip(home / name, at, rng.randrange(8))
            found = served(home / "sia.db")
            assert found in (None, jobs), (name, at, "cut" if cut else "flipped")
            refused, went_on = refused + (found is None), went_on + (found is not None)
            shutil.rmtree(home)
    assert refused
    assert went_on or name == "sia.db-wal"


def test_verify_accepts_an_undamaged_journal(killed):
    done = sia("journal", "verify", "--state", killed)
    assert done.return_value == 0
    assert "ok, ends at step 31, none acknowledged is missing" in done.output
    report = msgspec.json.decode(sia("journal", "verify", "--state", killed, "--json").output)
    assert (report["ok"], report["steps"], report["acknowledged"]) == (True, 31, 31)
    assert (report["checked"], report["audit_records"]) == (31, 31)


def test_verify_without_a_journal_is_misuse(tmp_path):
    with pytest.raises(UserError, match="no such database"):
        raise sia("journal", "verify", "--state", tmp_path).exception


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("DELETE FROM records WHERE seq = 12", "step 12 is missing"),
        ("UPDATE records SET boot = 'x' WHERE seq = 5", "step 5 or an earlier step was changed"),
        ("UPDATE parts SET body = x'7b7d' WHERE seq > 0", "snapshot 16 is damaged"),
        (
            "UPDATE audit SET body = '{}' WHERE number = 3",
            "audit: record 3 or an earlier record was changed",
        ),
        ("DELETE FROM audit WHERE number > 29", "audit: the newest records are missing"),
        ("DELETE FROM records WHERE seq > 29", "2 acknowledged steps lost: 30 to 31"),
    ],
)
def test_verify_finds_damage(killed, sql, says):
    with sqlite3.connect(killed / "sia.db") as db:
        db.execute(sql)
    db.close()
    done = sia("journal", "verify", "--state", killed)
    assert done.return_value == 1
    assert says in done.output
    report = msgspec.json.decode(sia("journal", "verify", "--state", killed, "--json").output)
    assert not report["ok"]
    assert any(says in problem for problem in report["wrong"])


def test_verify_finds_a_missing_log(killed):
    (killed / "sia.db-wal").unlink()
    done = sia("journal", "verify", "--state", killed)
    assert done.return_value == 1
    assert "acknowledged steps lost" in done.output


def test_verify_reports_an_audit_log_with_lost_records(killed):
    (killed / "sia.db-wal").unlink()
    done = sia("audit", "verify", "--database", killed / "sia.db")
    assert done.return_value == 1
    assert "acknowledged steps lost" in done.output
    assert "complete and unchanged" not in done.output


def test_a_loss_is_accepted_by_name_and_the_audit_keeps_it(killed):
    wal = killed / "sia.db-wal"
    flip(wal, wal.stat().st_size // 2)
    damaged = wal.read_bytes()
    done = sia("journal", "accept-loss", "--state", killed)
    assert (done.return_value, "add --yes" in done.output) == (1, True)
    assert served(killed / "sia.db") is None  # nothing was changed
    done = sia("journal", "accept-loss", "--state", killed, "--yes")
    assert done.return_value == 0, done.output
    assert (killed / "sia.db.damaged-1" / "sia.db-wal").read_bytes() == damaged
    left = served(killed / "sia.db")
    assert 0 < len(left) < JOBS
    done = sia("audit", "verify", "--database", killed / "sia.db")
    assert done.return_value == 0
    assert "1 loss accepted" in done.output
    assert "acknowledged steps lost" in done.output
    assert "complete and unchanged" not in done.output
    assert sia("journal", "verify", "--state", killed).return_value == 0
    again = sia("journal", "accept-loss", "--state", killed, "--yes")
    assert "nothing that was acknowledged is lost" in again.output


def test_a_loss_of_everything_can_be_accepted(killed):
    for name in ("sia.db", "sia.db-wal"):
        (killed / name).unlink()
    assert sia("journal", "accept-loss", "--state", killed, "--yes").return_value == 0
    assert served(killed / "sia.db") == set()


def test_a_backup_of_a_damaged_journal_is_refused(killed, tmp_path):
    (killed / "sia.db-wal").unlink()
    with pytest.raises(UserError, match="acknowledged steps lost"):
        raise sia("journal", "backup", "--state", killed, tmp_path / "b.db").exception
    assert not (tmp_path / "b.db").exists()


def test_serve_check_names_a_loss(killed):
    config = Path(killed, "sia.toml")
    config.write_text(f'[daemon]\nstate = "{killed}"\n[[pool]]\nname = "a"\nquota = 3\n')
    assert read_config(config).database == killed / "sia.db"
    assert sia("serve", "--check", "--config", config).return_value == 0
    (killed / "sia.db-wal").unlink()
    done = sia("serve", "--check", "--config", config)
    assert done.return_value == 2
    assert "acknowledged steps lost" in done.output
