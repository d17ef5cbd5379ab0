"""A job log as history: forecasts and estimates of a new daemon are those of an old one."""

import asyncio
import json
from contextlib import closing

import pytest
from click.testing import CliRunner

from daemon.cli.journal import journal as command
from daemon.export.job_import import OTHER, WEEK, import_log
from daemon.export.job_log import export
from daemon.forecasts.forecaster import Predictors, ended_between
from daemon.forecasts.history import SPAN, JournalHistory
from daemon.forecasts.retraining import trace_of
from daemon.journal.audit import AuditRecord
from daemon.journal.journal import Journal
from daemon.model.inputs import Foreseen, Submit
from replay.logs.importers import FORMATS, read_log
from replay.logs.trace import Trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.model import Job
from tests.replay.logs.test_gavel import ROW as GAVEL
from tests.replay.logs.test_gavel import SPEEDS
from tests.replay.logs.test_importers import HELIOS_HEAD, HELIOS_LOG, PHILLY_LOG
from tests.replay.logs.test_pcs import LOG as PCS
from tests.replay.logs.test_pcs import SPEEDUPS
from tests.support.daemons.daemons import FakeBackend, job, serving, setup
from tests.support.daemons.forecast_world import MONDAY, SETUP, World
from tests.support.files import written
from tests.support.logs import PAI_JOBS, PAI_TASKS
from tests.support.servers.databases import OnServer

DAY = 86400.0
QUOTAS = {pool.name: pool.quota for pool in SETUP.pools}


def jobs_of(path, begin, end):
    """The ended jobs that a daemon with this journal reads, oldest first."""
    with closing(Journal(path)) as journal:

        async def read(before, limit):
            return journal.imported(before, limit)

        return asyncio.run(ended_between(read, begin, end))


def log(*rows, origin=None):
    """Jobs of one GPU: (id, pool, submission, duration)."""
    arrivals = [Arrival(Job(i, pool, at, 1), lasts) for i, pool, at, lasts in rows]
    return Trace(arrivals, origin=origin)


def test_forecasts_from_an_imported_log_equal_those_of_the_daemon_that_ran_it(tmp_path):
    world = World(seed=3)
    world.live(hours=40)
    lived = trace_of(world.over)
    waits = {record.spec.id: record.decided - record.submitted for record in world.over}
    extras = {arrival.job.id: (repr(waits[arrival.job.id]),) for arrival in lived.arrivals}
    trace = Trace(lived.arrivals, ("wait",), extras)

    report = import_log(tmp_path / "db", trace, QUOTAS, {}, 0.0, world.now)
    found = jobs_of(tmp_path / "db", world.now - SPAN, world.now)

    assert report.jobs == len(found) == len(lived.arrivals) > 50
    story = JournalHistory(MONDAY, world.now)
    story.add_ended(found)
    new = Predictors(SETUP, "peaks+survival").make(story, None, None)
    own = JournalHistory(MONDAY, world.now)
    own.add_ended(world.over)
    old = Predictors(SETUP, "peaks+survival").make(own, None, None)
    asked = [
        Submit(job(f"n{user}{pool}", pool, user=user))
        for user in ("short", "long")
        for pool in "ab"
    ]
    answers = [each.before(world.now, asked, world.engine.book) for each in (old, new)]
    loads = [[i for i in answer if type(i) is Foreseen] for answer in answers]
    times = [[i.run_time for i in answer if type(i) is Submit] for answer in answers]
    assert loads[0] == loads[1]
    assert times[0] == times[1]
    assert min(times[0]) < 3600 < max(times[0])


def test_a_log_of_last_year_keeps_its_hours_and_weekdays(tmp_path):
    saturday = MONDAY - 40 * WEEK + 5 * DAY
    trace = log(("a", "a", 9 * 3600.0, 60.0), origin=saturday)
    report = import_log(tmp_path / "db", trace, QUOTAS, {}, None, MONDAY)
    assert report.weeks == 39
    (record,) = jobs_of(tmp_path / "db", 0, MONDAY)
    assert record.submitted == MONDAY - 2 * DAY + 9 * 3600.0


def test_a_log_without_dates_ends_now(tmp_path):
    trace = log(("a", "a", 0.0, 60.0), ("b", "b", 500.0, 100.0))
    import_log(tmp_path / "db", trace, QUOTAS, {}, None, MONDAY)
    assert [r.ended for r in jobs_of(tmp_path / "db", 0, MONDAY)] == [MONDAY - 540, MONDAY]


def test_jobs_that_do_not_belong_to_the_history_are_counted(tmp_path):
    trace = log(
        ("old", "a", 0.0, 60.0), ("in", "a", 99 * DAY, 60.0), ("mapped", "theirs", 99 * DAY, 5.0),
        ("lost", "gone", 99 * DAY, 5.0), ("future", "a", 99 * DAY, 2 * DAY),
    )  # fmt: skip
    now = 100 * DAY
    report = import_log(tmp_path / "db", trace, QUOTAS, {"theirs": "b"}, 0.0, now)
    assert report.left_out == {
        "ended more than 90 days ago": 1, "ends in the future": 1,
        "of pool gone, which the daemon lacks": 1,
    }  # fmt: skip
    found = jobs_of(tmp_path / "db", 0, now)
    assert [(r.spec.id, r.spec.pool) for r in found] == [("import:mapped", "b"), ("import:in", "a")]
    with pytest.raises(UserError, match="no job of the daemon's pools"):
        import_log(tmp_path / "db", log(("x", "gone", 0.0, 5.0)), QUOTAS, {}, None, now)


def test_a_job_that_ran_for_ages_is_left_out(tmp_path):
    trace = log(("ages", "a", 0.0, 1e14), ("day", "a", 1e14 - DAY, DAY))
    report = import_log(tmp_path / "db", trace, QUOTAS, {}, None, MONDAY)
    assert (report.jobs, report.left_out) == (1, {"submitted more than 100 years ago": 1})
    assert report.begin == MONDAY - DAY


def test_a_second_log_is_merged_in_order_without_duplicates(tmp_path):
    first = log(("a", "a", 0.0, 60.0), ("b", "a", 200.0, 60.0))
    second = log(("a", "a", 0.0, 60.0), ("c", "b", 100.0, 60.0))
    now = MONDAY
    import_log(tmp_path / "db", first, QUOTAS, {}, MONDAY - 1000, now)
    report = import_log(tmp_path / "db", second, QUOTAS, {}, MONDAY - 1000, now)
    assert (report.jobs, report.stored, report.left_out) == (1, 3, {"already imported": 1})
    ids = [r.spec.id for r in jobs_of(tmp_path / "db", 0, now)]
    assert ids == ["import:a", "import:c", "import:b"]
    with closing(Journal(tmp_path / "db")) as journal:
        trail = [AuditRecord(**json.loads(row.body)) for row in journal.audit(0, 9)]
    assert [record.what for record in trail] == ["journal import"] * 2


def test_another_job_of_the_same_id_is_not_taken_for_the_one_that_was_imported(tmp_path):
    now = MONDAY
    import_log(tmp_path / "db", log(("a", "a", 0.0, 60.0)), QUOTAS, {}, MONDAY - 1000, now)
    other = log(("a", "b", 0.0, 60.0), ("d", "b", 5.0, 9.0))
    report = import_log(tmp_path / "db", other, QUOTAS, {}, MONDAY - 1000, now)
    assert (report.jobs, report.left_out) == (1, {OTHER: 1})


def test_a_map_to_a_missing_pool_is_refused_and_one_of_no_job_is_noted(tmp_path):
    some = log(("a", "a", 0.0, 60.0))
    with pytest.raises(UserError, match="--map x=c: the configuration has no pool c"):
        import_log(tmp_path / "db", some, QUOTAS, {"x": "c"}, None, MONDAY)
    report = import_log(tmp_path / "db", some, QUOTAS, {"x": "b"}, None, MONDAY)
    assert "--map names x, of which the log has no job" in report.notes


def test_a_daemon_reads_imported_jobs_but_lists_and_exports_only_its_own(tmp_path):
    rows = [(f"p{i}", "a", i * 60.0, 30.0) for i in range(2_500)]
    path = tmp_path / "db"

    async def story():
        async with serving(path, setup(a=4), FakeBackend()) as first:
            now = first.clock.now()
        import_log(path, log(*rows), {"a": 4}, {}, None, now)
        async with serving(path, setup(a=4), FakeBackend()) as service:
            pages, before = [], 0
            while page := await service.observed_jobs(before, 1000):
                pages.append([record.spec.id for _, record in page])
                before = page[-1][0]
            assert await service.past_jobs(0, 10) == []
            assert await service.past_job("import:p1") is None
        return pages

    pages = asyncio.run(story())
    assert [len(page) for page in pages] == [1000, 1000, 500]
    assert [job_id for page in pages for job_id in page] == [
        f"import:p{i}" for i in reversed(range(2_500))
    ]
    with (
        closing(Journal(path)) as journal,
        pytest.raises(UserError, match="the journal has no jobs"),
    ):
        export(journal)


CONFIG = """\
[daemon]
state = "state"
[[pool]]
name = "gpu"
quota = 8
"""
SACCT = """\
JobID|Partition|Submit|Start|End|AllocTRES
1|gpu|2026-03-01T09:30:00|2026-03-01T09:40:00|2026-03-01T11:40:00|gres/gpu=4
2|dev|2026-03-01T09:30:00|2026-03-01T09:40:00|2026-03-01T11:40:00|gres/gpu=1
"""


def ran(*asked):
    return CliRunner().invoke(command, ["import", *map(str, asked)])


def test_the_command_reports_what_was_imported_and_what_was_left_out(tmp_path):
    config = written(tmp_path, CONFIG, "sia.toml")
    sacct = written(tmp_path, SACCT, "sacct.txt")
    done = ran(sacct, "--format", "slurm", "--config", config)
    assert done.exit_code == 0, done.output
    assert f"{tmp_path / 'state' / 'sia.db'}: 1 job added, 1 imported job now" in done.output
    assert "left out: 1 job: of pool dev, which the daemon lacks" in done.output
    done = ran(sacct, "--format", "slurm", "--map", "dev=gpu", "--config", config, "--json")
    report = json.loads(done.output)
    assert (report["jobs"], report["stored"]) == (1, 2)
    assert report["left_out"] == {"already imported": 1}


GOOGLE = """\
604046000,,6251639646,0,hb/5+=,1,jobhash=,logical=
605307000,,6251639646,1,hb/5+=,1,jobhash=,logical=
674990001,,6251639646,4,hb/5+=,1,jobhash=,logical=
"""
SWF = "; MaxProcs: 8\n1 0 5 60 4 -1 -1 4 -1 -1 1 3 -1 -1 1 -1 -1 -1\n"
LOGS = {
    "alibaba": (PAI_JOBS, PAI_TASKS),
    "canonical": ("job_id,pool,submit,width,duration\n1,theirs,0,1,60\n", None),
    "gavel": (GAVEL, SPEEDS),
    "google": (GOOGLE, None),
    "helios": (HELIOS_HEAD + HELIOS_LOG, None),
    "pcs": (PCS, SPEEDUPS),
    "philly": (PHILLY_LOG, None),
    "slurm": (SACCT, None),
    "swf": (SWF, None),
}
"""Of each format of `sia trace convert`, a log, and its second file."""


@pytest.mark.parametrize("form", ["canonical", *FORMATS])
def test_a_log_of_each_format_can_be_brought_along(tmp_path, form):
    config = written(tmp_path, CONFIG, "sia.toml")
    log, second = LOGS[form]
    files = [written(tmp_path, log, "log")]
    if second is not None:
        files.append(written(tmp_path, second, "second.csv"))
    trace, _ = read_log(files[0], files[1] if second else None, form)
    pools = dict.fromkeys(arrival.job.pool for arrival in trace.arrivals)
    mapped = [word for pool in pools for word in ("--map", f"{pool}=gpu")]
    done = ran(*files, "--format", form, *mapped, "--config", config, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    wide = report["left_out"].get("wider than its pool", 0)
    assert report["jobs"] + wide == len(trace.arrivals) > wide


def test_the_command_names_the_pools_of_a_log_that_has_none_of_the_daemons(tmp_path):
    config = written(tmp_path, CONFIG, "sia.toml")
    log = written(tmp_path, LOGS["canonical"][0], "log")
    done = ran(log, "--config", config)
    says = "no job of the daemon's pools (gpu), but of theirs; name them with --map LOG_POOL=POOL"
    assert says in done.output
    wide = written(tmp_path, "job_id,pool,submit,width,duration\n1,gpu,0,9,60\n", "wide")
    assert "wider than its pool in sia.toml" in ran(wide, "--config", config).output


def test_the_command_refuses_unusable_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sacct = written(tmp_path, SACCT, "sacct.txt")
    assert "name the daemon's configuration with --config" in ran(sacct).output
    config = written(tmp_path, CONFIG, "sia.toml")
    assert "column job_id" in ran(sacct, "--config", config).output
    said = ran(sacct, "--format", "slurm", "--map", "dev", "--config", config)
    assert said.exit_code == 2
    (tmp_path / "state").mkdir()
    with closing(Journal(tmp_path / "state" / "sia.db")):
        said = ran(sacct, "--format", "slurm", "--config", config)
        assert "another daemon has the database open" in said.output


@pytest.mark.server
def test_a_log_is_imported_into_postgresql_while_a_daemon_leads(tmp_path, postgres):
    pytest.importorskip("psycopg")
    store = OnServer(postgres, "imports")
    with closing(store.journal()) as journal:
        for end in (100.0, 160.0):
            trace = log(("a", "a", 0.0, 60.0), ("b", "a", 100.0, end - 100.0 or 1.0))
            import_log(store.url, trace, QUOTAS, {}, MONDAY - 1000, MONDAY)
        found = [record.spec.id for _, record in journal.imported(0, 9)]
    assert found == ["import:b", "import:a"]
