"""The first minute: `make run` is `sia demo`."""

import signal
import subprocess
import sys
from contextlib import closing
from datetime import datetime, timedelta, timezone
from math import inf

import pytest
from msgspec.structs import replace

from daemon.config.check import problems_of
from daemon.journal.journal import Journal
from daemon.model.account import Booked, Lent, Verdict
from daemon.process.demo.diary import Booking, Diary, newest
from daemon.process.demo.setting import (
    BEGIN,
    LEARNED,
    WINDOWS,
    begin_journal,
    config_in,
    live_alone,
)
from daemon.process.demo.show import monday_before
from daemon.process.demo.virtual import VirtualDaemon
from replay.synthetic.teams import TEAMS, Crowd
from sia.wording import DAY, HOUR
from tests.support.budget import budget
from tests.support.paths import ROOT

pytestmark = pytest.mark.usefixtures("leaves_nothing")

NAMES = [team.profile.pool.name for team in TEAMS]

MONDAY = 1e9
"""On the daemon's clock, second 0 of the company's time."""

WEEKS = budget(ci=6, soak=12)
"""How long the users continue."""


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Where temporary folders are made."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def begun(*arguments, command=("-m", "sia")):
    return subprocess.Popen(
        [sys.executable, *command, "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_demo_plays_an_hour_per_second_reports_who_gained_and_ends(scratch):
    out, err = (demo := begun("--for", "4s")).communicate(timeout=120)
    assert (demo.returncode, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"A made-up company of {len(TEAMS)} teams with 328 GPUs:"
    assert any(line.startswith("  export SIA_URL=http://127.0.0.1:") for line in lines)
    since = lines.index(next(line for line in lines if line.startswith("Since Monday: ")))
    assert lines[since + 1].startswith("  Lent, in GPU-hours: language ")
    assert " hours of waiting. No job was slowed." in lines[since + 3]
    hours = [line.split() for line in lines if line.startswith("  day 1, ")]
    assert hours[0][2:4] == ["Wed", "09:00"]
    assert any(int(hour[4]) > 0 for hour in hours), "jobs start, on a busy machine some hours later"
    header = lines.index(next(line for line in lines if line.startswith("pool  ")))
    table = [line.split() for line in lines[header + 2 : header + 2 + len(TEAMS)]]
    assert [words[0] for words in table] == NAMES
    assert all(words[-1] == "0" for words in table), "no job was slowed"
    assert list(scratch.iterdir()) == []


SHORT = """
from daemon.process.demo import show
from sia.console.main import main
from sia.wording import DAY, HOUR
show.LEARNED, show.BEGIN = DAY, 2 * DAY + 8 * HOUR
main()
"""
"""The demo, on the first Wednesday after two days instead of two weeks: its begin takes less."""


def test_an_interrupted_demo_ends_in_order(scratch):
    demo = begun(command=("-c", SHORT))
    first = (demo.stdout.readline() for _ in range(60))  # more than it says by then
    assert any(line.startswith("  day 1, Wed 09:00") for line in first)
    (folder,) = scratch.iterdir()
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=120)
    assert (demo.returncode, err) == (0, "")
    assert "Mean waits with sharing and alone" in out
    assert list(scratch.iterdir()) == []


def test_the_demo_knows_the_two_weeks_before(tmp_path):
    config, crowd = config_in(tmp_path), Crowd(1)
    begin_journal(config, live_alone(crowd, LEARNED), MONDAY, MONDAY + LEARNED)
    with closing(Journal(config.database)) as journal:
        now = journal.anchor().now
        past = [record for _, record in journal.history(0, 99_999)]
    assert now == MONDAY + LEARNED
    assert {job.spec.pool for job in past} == set(NAMES)
    assert all(MONDAY <= job.submitted <= job.started < job.ended <= now for job in past)
    assert min(job.submitted for job in past) < MONDAY + DAY
    open_ = crowd.due(inf)
    assert not {job.spec.id for job in past} & {arrival.job.id for arrival in open_}
    assert min(arrival.job.submit for arrival in open_) >= LEARNED


def test_the_configuration_of_the_demo_could_be_written(tmp_path):
    config = config_in(tmp_path)
    assert problems_of(config) == []
    assert config.windows == WINDOWS


@pytest.mark.parametrize("zone", [0, 9, -8])
@pytest.mark.parametrize("weekday", range(7))
def test_the_demo_begins_on_a_recent_wednesday_morning(weekday, zone):
    zone = timezone(timedelta(hours=zone))
    now = datetime(2026, 11, 23 + weekday, 12, 30, tzinfo=zone)
    begin = datetime.fromtimestamp(monday_before(now) + BEGIN, zone)
    assert (begin.strftime("%A"), begin.hour) == ("Wednesday", 8)
    assert now <= begin < now + timedelta(days=7)


def overview():
    """The module that makes the picture of the README."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        __import__("overview")
    return sys.modules.pop("overview")


class Days(list):
    """The days of a virtual daemon that keeps jobs for a day: verdicts and loans of each.

    It begins as the demo does, with all jobs of the two weeks before.

    Attributes:
        pictured: The digest at the time of the picture of the README.
        oldest: At the end of each day, seconds since the oldest job in the journal ended.
        sizes: At the end of each day, the number of the newest verdict.
        audit: The audit records.
    """

    def __init__(self, folder, days):
        config, crowd = config_in(folder), Crowd(1)
        begin_journal(config, live_alone(crowd, LEARNED), MONDAY, MONDAY + LEARNED)
        self.oldest, self.sizes = [], []
        with closing(VirtualDaemon(replace(config, history=DAY), crowd, MONDAY)) as daemon:
            seen, journal, picture = Booking(), daemon.journal, overview()
            for day in range(15, 15 + days):
                if day - 1 < picture.UNTIL / DAY < day:
                    daemon.play(MONDAY + picture.UNTIL)
                    self.pictured = picture.digest_of(daemon)
                daemon.play(MONDAY + day * DAY)
                booked, seen = newest(journal, NAMES, seen)
                self.append(booked)
                self.oldest.append(daemon.now - journal.history(0, 99_999)[-1][1].ended)
                self.sizes.append(journal.booked_since("verdicts", inf))
            daemon.engine.check()
            self.audit = journal.audit(0, 10)


in_one_process = pytest.mark.xdist_group("demo days")


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """Days 15 to 24 of the company, from a Monday on, at whose begin pools began to share."""
    return Days(tmp_path_factory.mktemp("days"), 11)


@in_one_process
def test_jobs_still_come_and_go_on_day_ten(days):
    jobs = [len(day.verdicts) for day in days]
    assert min(jobs[:5] + jobs[7:]) > 150
    assert min(jobs) > 50, "weekends too"
    assert sum(jobs[5:7]) / 2 < sum(jobs[:5]) / 5, "but less"


@in_one_process
def test_each_day_some_pool_lends_and_pools_short_of_gpus_wait_less(days):
    assert all(sum(row.seconds for row in day.lent) > 10 * HOUR for day in days)
    total = Diary()
    for day in days:
        total.add(day)
    for pool in ("speech", "students", "robotics"):
        assert total.total[pool].waited < total.total[pool].alone / 2
    assert sum(tally.slowed for tally in total.total.values()) == 0


@in_one_process
def test_a_pool_that_was_idle_for_days_becomes_busy_on_thursday(days):
    woken = [sum(verdict.pool == "language" for verdict in day.verdicts) for day in days]
    assert woken[:3] == [0, 0, 0]
    assert min(woken[3:5]) > 0
    assert woken[6:10] == [0] * 4, "what began on Friday has ended on Saturday"
    assert woken[10] > 0


@in_one_process
def test_the_journal_keeps_no_more_than_configured(days):
    assert max(days.oldest) < 1.5 * DAY
    assert days.sizes[-1] > days.sizes[0], "numbers grow, rows do not"
    assert days.audit == [], "nobody asked for these jobs"


@in_one_process
def test_the_picture_of_the_readme_is_of_the_demo_as_it_is(days):
    assert overview().DIGEST.read_text().strip() == days.pictured, (
        "the demo has changed; run make docs with Chromium, and commit docs/figures"
    )


def test_the_simulated_users_continue_forever_in_bounded_memory():
    crowd = Crowd(1)
    seen = 0
    for week in range(1, WEEKS + 1):
        past = live_alone(crowd, week * 7 * DAY)
        late = [each for each in past if each.end > (week - 1) * 7 * DAY]
        assert {each.job.pool for each in late} == set(NAMES), week
        seen += len(late)
        assert len(crowd._whose) == len(crowd._coming) < 1000
    assert 2000 < seen / WEEKS < 6000


def test_users_submit_less_while_they_wait_longer():
    def submitted(slower):
        crowd, now, count, ends = Crowd(1), 0.0, 0, []
        while (now := min(crowd.next, *(end for end, _ in ends), inf)) < 7 * DAY:
            for arrival in crowd.due(now):
                count += 1
                ends.append((now + slower * arrival.duration, arrival.job.id))
            for end in [end for end in ends if end[0] <= now]:
                ends.remove(end)
                crowd.ended(now, end[1])
        return count

    assert submitted(1) > 1.5 * submitted(10) > 0


def test_the_end_of_a_job_that_nobody_waits_for_changes_nothing():
    crowd = Crowd(1)
    before = crowd.next
    crowd.ended(5.0, "somebody else's")
    assert crowd.next == before


def test_a_day_is_reported_in_a_few_lines():
    diary = Diary()
    assert diary.end_day("Monday") == [
        "Monday: 0 jobs ended; mean wait –, without sharing –.",
        "  Saved: 0 hours of waiting. No job was slowed.",
    ]
    at = {"gpus": 1, "submitted": 0.0, "ended": 9000.0}
    verdicts = [
        Verdict("a", "students", started=0.0, alone=7200.0, **at),
        Verdict("b", "students", started=60.0, alone=3660.0, **at),
        Verdict("c", "vision", started=120.0, alone=60.0, **at),
        Verdict("d", "vision", started=None, alone=60.0, **at),
        Verdict("e", "vision", started=60.0, alone=None, **at),
    ]
    lent = [
        Lent("a", "vision", "students", 2, 0.0, 7200.0),
        Lent("b", "vision", "speech", 1, 0.0, 3600.0),
        Lent("b", "search", "speech", 1, 0.0, 3600.0),
    ]
    diary.add(Booked(verdicts, lent))
    assert diary.end_day("Tuesday") == [
        "Tuesday: 3 jobs ended; mean wait 1 m, without sharing 1 h 1 m.",
        "  Lent, in GPU-hours: vision 4 to students and 1 to speech; search 1 to speech.",
        "  Waited: students 30 s instead of 1 h 30 m.",
        "  Saved: 3 hours of waiting. 1 job was slowed, by 1 m on average.",
    ]
    assert diary.rows([("students", 8), ("speech", 16)]) == [
        ["students", "8", "2", "30 s", "1 h 30 m", "2", "0"],
        ["speech", "16", "0", "–", "–", "0", "0"],
    ]
